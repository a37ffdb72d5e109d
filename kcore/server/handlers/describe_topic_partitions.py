"""DescribeTopicPartitions (75): topics in the order of their names, page by page.

Source: DescribeTopicPartitionsRequestHandler, KRaftMetadataCache.describeTopicResponse, Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from itertools import islice

from kcore.common import topic_names
from kcore.errors import (
    ApiError,
    InvalidRequest,
    LeaderNotAvailable,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
    code_of,
)
from kcore.metadata.metadata_cache import NO_LEADER, MetadataSnapshot, TopicInfo
from kcore.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.POOL  # up to 2000 partitions, and the names of all topics are sorted

    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self._admin = services.admin_manager
        self._config = services.config
        self._auth = services.auth

    def handle(self, context: RequestContext, body: DescribeTopicPartitionsRequest) -> None:
        self._admin.when_there_are_brokers(partial(self._respond, context, body))

    def _respond(self, context: RequestContext, body: DescribeTopicPartitionsRequest) -> None:
        snapshot = self._cache.snapshot
        try:
            names = _names(snapshot, body)
        except InvalidRequest as error:
            context.respond(self.error_response(body, error.code, context.api_version))
            return
        limit = min(body.response_partition_limit, self._config["max.request.partition.size.limit"])
        context.respond(self._page(context, body, snapshot, names, max(limit, 1)))

    def _page(
        self,
        context: RequestContext,
        body: DescribeTopicPartitionsRequest,
        snapshot: MetadataSnapshot,
        names: list[str],
        limit: int,
    ) -> DescribeTopicPartitionsResponse:
        """The topics with these names, up to so many partitions; topics that the client may not see come last."""
        endpoints = snapshot.endpoints(context.listener_name)
        broker_ids = frozenset(broker.node_id for broker, _ in endpoints)
        topics: list[DescribeTopicPartitionsResponseTopic] = []
        denied: list[DescribeTopicPartitionsResponseTopic] = []
        next_cursor = None
        for name in names:
            if not self._auth.authorize(
                context, AclOperation.DESCRIBE, ResourceType.TOPIC, name, log_if_denied=bool(body.topics)
            ):
                if body.topics:
                    denied.append(_error(name, TopicAuthorizationFailed.code))
                continue
            if limit == 0:
                next_cursor = Cursor(topic_name=name, partition_index=0)
                break
            topic = snapshot.topic(name)
            if topic is None:
                described = _error(name, _missing_code(snapshot, name), is_internal=topic_names.is_internal(name))
            else:
                is_first = body.cursor is not None and body.cursor.topic_name == name
                start = body.cursor.partition_index if body.cursor is not None and is_first else 0
                described = _describe(topic, broker_ids, start, limit)
            described.topic_authorized_operations = self._auth.authorized_operations(context, ResourceType.TOPIC, name)
            topics.append(described)
            limit -= len(described.partitions)
            if topic is not None and described.partitions:
                following = described.partitions[-1].partition_index + 1
                if following < len(topic.partitions):
                    next_cursor = Cursor(topic_name=name, partition_index=following)
                    break
        return DescribeTopicPartitionsResponse(topics=topics + denied, next_cursor=next_cursor)

    def error_response(
        self, body: DescribeTopicPartitionsRequest, error_code: int, version: int
    ) -> DescribeTopicPartitionsResponse:
        return DescribeTopicPartitionsResponse(topics=[_error(topic.name, error_code) for topic in body.topics])


def _names(snapshot: MetadataSnapshot, body: DescribeTopicPartitionsRequest) -> list[str]:
    """The topics from the cursor on, in order.  Raises InvalidRequest for a cursor that cannot be."""
    names: Collection[str] = {topic.name for topic in body.topics} or snapshot.topic_names()
    cursor = body.cursor
    if cursor is None:
        return sorted(names)
    if cursor.partition_index < 0:
        raise InvalidRequest(f"The partition of the cursor is {cursor.partition_index}")
    if body.topics and cursor.topic_name not in names:
        raise InvalidRequest(f"The topic of the cursor, {cursor.topic_name}, is not among those of the request")
    return sorted(name for name in names if name >= cursor.topic_name)


def _missing_code(snapshot: MetadataSnapshot, name: str) -> int:
    if not snapshot.broker_ids():
        # There is no controller: this broker does not know which topics exist.
        return LeaderNotAvailable.code
    try:
        topic_names.validate(name)
    except ApiError as error:
        return code_of(error)
    return UnknownTopicOrPartition.code


def _error(name: str, error_code: int, *, is_internal: bool = False) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=error_code, name=name, is_internal=is_internal)


def _describe(
    topic: TopicInfo, broker_ids: Collection[int], start: int, limit: int
) -> DescribeTopicPartitionsResponseTopic:
    """At most `limit` partitions, from number `start` on.  broker_ids: those with a listener of the client's."""
    numbers = islice((number for number in sorted(topic.partitions) if number >= start), limit)
    partitions = [(number, topic.partitions[number]) for number in numbers]
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic_names.is_internal(topic.name),
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                partition_index=number,
                leader_id=info.leader if info.leader in broker_ids else NO_LEADER,
                leader_epoch=info.leader_epoch,
                replica_nodes=list(info.replicas),
                isr_nodes=list(info.isr),
                # There are none without KRaft.  Kafka's admin client does not take null.
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=list(info.offline_replicas),
            )
            for number, info in partitions
        ],
    )
