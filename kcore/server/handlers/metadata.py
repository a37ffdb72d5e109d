"""Metadata (3): brokers, topics, leaders; creates requested topics that are missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kcore.common import topic_names
from kcore.common.topic_partition import ZERO_UUID
from kcore.errors import (
    NONE,
    ApiError,
    InvalidRequest,
    LeaderNotAvailable,
    ListenerNotFound,
    ReplicaNotAvailable,
    UnknownTopicId,
    UnknownTopicOrPartition,
    code_of,
)
from kcore.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kcore.server.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from kcore.server.handlers import Services
from kcore.server.metadata_cache import NO_LEADER, MetadataSnapshot, TopicInfo
from kcore.server.request_context import RequestContext

#: Partitions in an answer of half a millisecond.
_MAX_INLINE_PARTITIONS = 300


#: How long a request waits for the first metadata of a broker that has just started, in milliseconds.
_FIRST_METADATA_MS = 10_000


class _View(NamedTuple):
    """What one client sees of a snapshot.  broker_ids: those in the response, which have a listener of the client's."""

    snapshot: MetadataSnapshot
    broker_ids: frozenset[int]
    version: int
    operations: int

    @classmethod
    def of(cls, snapshot: MetadataSnapshot, context: RequestContext, operations: int) -> _View:
        endpoints = snapshot.endpoints(context.listener_name)
        return cls(snapshot, frozenset(broker.node_id for broker, _ in endpoints), context.api_version, operations)


class Handler:
    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self._admin = services.admin_manager
        self._config = services.config

    def may_block(self, context: RequestContext, body: MetadataRequest) -> bool:
        """Whether a topic is to be created, or the answer is a large one."""
        cache = self._cache.snapshot
        left = _MAX_INLINE_PARTITIONS
        if body.topics is None or (context.api_version == 0 and not body.topics):
            for topic in cache.topics():
                left -= len(topic.partitions)
                if left < 0:
                    return True
            return False
        for requested in body.topics:
            name = requested.name if requested.topic_id == ZERO_UUID else cache.topic_name(requested.topic_id)
            topic_info = cache.topic(name or "")
            if topic_info is None:
                if self._config["auto.create.topics.enable"] and body.allow_auto_topic_creation:
                    return True
            else:
                left -= len(topic_info.partitions)
                if left < 0:
                    return True
        return False

    def handle(self, context: RequestContext, body: MetadataRequest) -> None:
        if self._cache.snapshot.broker_ids():
            self._respond(context, body)
        else:
            # A member of a cluster before the controller's first request.  librdkafka forgets all brokers when a
            # response names none, and may then hang for ever.
            self._admin.when_done(
                {"": lambda snapshot: bool(snapshot.broker_ids())},
                _FIRST_METADATA_MS,
                lambda missing: self._respond(context, body, may_create=False),
            )

    def _respond(self, context: RequestContext, body: MetadataRequest, *, may_create: bool = True) -> None:
        """may_create=False: on a thread that must not wait for the store."""
        version = context.api_version
        operations = TOPIC_OPERATIONS if body.include_topic_authorized_operations else NOT_ASKED
        if body.topics is None or (version == 0 and not body.topics):
            snapshot = self._cache.snapshot
            view = _View.of(snapshot, context, operations)
            topics = [_describe(topic, view) for topic in snapshot.topics()]
        else:
            if version < 12 and any(topic.name is None or topic.topic_id != ZERO_UUID for topic in body.topics):
                # The field is in versions 10 and 11, but Kafka's brokers learnt to answer it with 12.
                context.respond(self.error_response(body, InvalidRequest.code, context.api_version))
                return
            creates = self._config["auto.create.topics.enable"] and body.allow_auto_topic_creation
            # Each topic once, as in Kafka: a request with one name a million times would make a response of a gigabyte.
            requested = {(topic.topic_id, topic.name): topic for topic in body.topics}
            refused: dict[str, ApiError] = {}
            if not self._cache.snapshot.broker_ids():
                # There is no controller.  This broker does not know which topics exist, and a client raises an error
                # for "unknown topic", but asks again for "no leader".
                refused = {name: LeaderNotAvailable(name) for _, name in requested if name}
            elif creates and may_create:
                refused = self._create_missing(requested.values())
            elif creates:
                refused = {name: LeaderNotAvailable(name) for _, name in requested if name and not self._has(name)}
            # One snapshot for the whole answer, taken after the missing topics were created.
            snapshot = self._cache.snapshot
            view = _View.of(snapshot, context, operations)
            topics = [_answer(topic, refused, view) for topic in requested.values()]
        context.respond(
            MetadataResponse(
                brokers=[
                    MetadataResponseBroker(
                        node_id=broker.node_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                    )
                    for broker, endpoint in snapshot.endpoints(context.listener_name)
                ],
                cluster_id=snapshot.cluster_id,
                controller_id=snapshot.controller_id,
                topics=topics,
                cluster_authorized_operations=(
                    CLUSTER_OPERATIONS if body.include_cluster_authorized_operations else NOT_ASKED
                ),
            )
        )

    def _has(self, name: str) -> bool:
        return self._cache.topic(name) is not None

    def _create_missing(self, topics: Iterable[MetadataRequestTopic]) -> dict[str, ApiError]:
        """Create the topics that are requested by name and missing.  Returns the errors by topic name."""
        refused: dict[str, ApiError] = {}
        for topic in topics:
            name = topic.name or ""
            if topic.topic_id == ZERO_UUID and self._cache.topic(name) is None:
                try:
                    topic_names.validate(name)
                    if self._admin.auto_create_topic(name):
                        # In a cluster it is in the metadata once the controller has elected leaders.
                        refused[name] = LeaderNotAvailable(name)
                except ApiError as error:
                    refused[name] = error
        return refused

    def error_response(self, body: MetadataRequest, error_code: int, version: int) -> MetadataResponse:
        return MetadataResponse(
            error_code=error_code,
            topics=[
                MetadataResponseTopic(error_code=error_code, name=topic.name or "", topic_id=topic.topic_id)
                for topic in body.topics or ()
            ],
        )


def _answer(requested: MetadataRequestTopic, refused: Mapping[str, ApiError], view: _View) -> MetadataResponseTopic:
    """One requested topic, by id if it has one."""
    snapshot = view.snapshot
    if requested.topic_id != ZERO_UUID:
        by_id = snapshot.topic_by_id(requested.topic_id)
        if by_id is None:
            return MetadataResponseTopic(error_code=UnknownTopicId.code, name=None, topic_id=requested.topic_id)
        return _describe(by_id, view)
    name = requested.name or ""
    topic = snapshot.topic(name)
    if topic is not None:
        return _describe(topic, view)
    error = refused.get(name) or _name_error(name)
    error_code = code_of(error) if error is not None else UnknownTopicOrPartition.code
    return MetadataResponseTopic(error_code=error_code, name=name, is_internal=topic_names.is_internal(name))


def _name_error(name: str) -> ApiError | None:
    try:
        topic_names.validate(name)
    except ApiError as error:
        return error
    return None


def _describe(topic: TopicInfo, view: _View) -> MetadataResponseTopic:
    partitions = []
    for number, info in topic.partitions.items():
        error_code, leader = NONE, info.leader
        if leader not in view.broker_ids:
            # From version 6 on there is an error of its own for a live leader without a listener of the client's name.
            is_alive = view.version >= 6 and view.snapshot.broker(leader) is not None
            error_code, leader = (ListenerNotFound if is_alive else LeaderNotAvailable).code, NO_LEADER
        replicas, isr = list(info.replicas), list(info.isr)
        if view.version == 0:
            # The first clients take a replica that is not among the response's brokers for an error.
            replicas, isr = [r for r in replicas if r in view.broker_ids], [r for r in isr if r in view.broker_ids]
            if error_code == NONE and len(replicas) + len(isr) < len(info.replicas) + len(info.isr):
                error_code = ReplicaNotAvailable.code
        partitions.append(
            MetadataResponsePartition(
                error_code=error_code,
                partition_index=number,
                leader_id=leader,
                leader_epoch=info.leader_epoch,
                replica_nodes=replicas,
                isr_nodes=isr,
                offline_replicas=list(info.offline_replicas),
            )
        )
    return MetadataResponseTopic(
        error_code=NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic_names.is_internal(topic.name),
        partitions=partitions,
        topic_authorized_operations=view.operations,
    )
