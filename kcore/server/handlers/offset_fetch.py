"""OffsetFetch (9): what a group has committed; from version 8 of several groups, from version 10 topics by id."""

from __future__ import annotations

from collections.abc import Collection

from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.group_metadata_manager import OffsetFetchResult
from kcore.errors import NONE, ApiError, GroupAuthorizationFailed, TopicAuthorizationFailed, UnknownTopicId
from kcore.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services

_NO_OFFSET = OffsetFetchResult()
_DENIED = OffsetFetchResult(error_code=TopicAuthorizationFailed.code)


class Handler:
    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self._group_coordinator = services.group_coordinator
        self._auth = services.auth

    def runs_on(self, context: RequestContext, body: OffsetFetchRequest) -> RunsOn:
        # All offsets of a group may be very many.
        if context.api_version >= 8:
            is_whole = any(group.topics is None for group in body.groups)
        else:
            is_whole = body.topics is None
        return RunsOn.POOL if is_whole else RunsOn.NETWORK_THREAD

    def handle(self, context: RequestContext, body: OffsetFetchRequest) -> None:
        if context.api_version >= 8:
            by_id = context.api_version >= 10
            # All offsets of a group once, since they may be very many; but each part of them that the request names.
            requested = {
                (group.group_id, None if group.topics is None else number): group
                for number, group in enumerate(body.groups)
            }
            groups = [self._group(context, group, by_id, body.require_stable) for group in requested.values()]
            context.respond(OffsetFetchResponse(groups=groups))
            return
        if not self._auth.authorize(context, AclOperation.DESCRIBE, ResourceType.GROUP, body.group_id):
            context.respond(self.error_response(body, GroupAuthorizationFailed.code, context.api_version))
            return
        partitions = known = None
        if body.topics is not None:
            partitions = [TopicPartition(topic.name, p) for topic in body.topics for p in topic.partition_indexes]
            permitted = self._permitted(context, {tp.topic for tp in partitions})
            known = [tp for tp in partitions if tp.topic in permitted]
        error_code, offsets = NONE, {}
        try:
            offsets = self._group_coordinator.offsets.fetch(body.group_id, known, body.require_stable)
        except ApiError as error:
            error_code = error.code
        if partitions is None:
            permitted = self._permitted(context, {tp.topic for tp in offsets})
            offsets = {tp: result for tp, result in offsets.items() if tp.topic in permitted}
        topics: dict[str, list[OffsetFetchResponsePartition]] = {}
        for topic_partition in offsets if partitions is None else partitions:
            result = offsets.get(topic_partition, _NO_OFFSET) if topic_partition.topic in permitted else _DENIED
            topics.setdefault(topic_partition.topic, []).append(
                OffsetFetchResponsePartition(
                    partition_index=topic_partition.partition,
                    committed_offset=result.offset,
                    committed_leader_epoch=result.leader_epoch,
                    metadata=result.metadata,
                    # Versions 0 and 1 have no other place for the group's error.
                    error_code=error_code or result.error_code,
                )
            )
        context.respond(
            OffsetFetchResponse(
                error_code=error_code,
                topics=[OffsetFetchResponseTopic(name=name, partitions=items) for name, items in topics.items()],
            )
        )

    def _permitted(self, context: RequestContext, names: Collection[str]) -> Collection[str]:
        """Those of the topics whose offsets the client may know."""
        return self._auth.filter_by_authorized(context, AclOperation.DESCRIBE, ResourceType.TOPIC, names)

    def _group(
        self, context: RequestContext, group: OffsetFetchRequestGroup, by_id: bool, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        if not self._auth.authorize(context, AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id):
            return OffsetFetchResponseGroup(group_id=group.group_id, error_code=GroupAuthorizationFailed.code)
        cache = self._cache.snapshot
        names: list[str | None] = []
        partitions = None
        permitted: Collection[str] = ()
        if group.topics is not None:
            names = [cache.topic_name(topic.topic_id) if by_id else topic.name for topic in group.topics]
            permitted = self._permitted(context, {name for name in names if name is not None})
            partitions = [
                TopicPartition(name, p)
                for topic, name in zip(group.topics, names, strict=True)
                for p in topic.partition_indexes
                if name is not None and name in permitted
            ]
        try:
            offsets = self._group_coordinator.offsets.fetch(
                group.group_id, partitions, require_stable, (group.member_id, group.member_epoch)
            )
        except ApiError as error:
            return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
        topics = []
        if group.topics is None:
            permitted = self._permitted(context, {topic_partition.topic for topic_partition in offsets})
            by_topic: dict[str, list[OffsetFetchResponsePartitions]] = {}
            for topic_partition, result in offsets.items():
                if topic_partition.topic not in permitted:
                    continue
                by_topic.setdefault(topic_partition.topic, []).append(_partition(topic_partition.partition, result))
            topics = [
                OffsetFetchResponseTopics(name=name, topic_id=cache.topic_id(name), partitions=items)
                for name, items in by_topic.items()
                # A deleted topic has no id to be named by.
                if not by_id or cache.topic(name) is not None
            ]
        else:
            for topic, name in zip(group.topics, names, strict=True):
                if name is None:
                    unknown = OffsetFetchResult(error_code=UnknownTopicId.code)
                    items = [_partition(p, unknown) for p in topic.partition_indexes]
                elif name not in permitted:
                    items = [_partition(p, _DENIED) for p in topic.partition_indexes]
                else:
                    items = [
                        _partition(p, offsets.get(TopicPartition(name, p), _NO_OFFSET)) for p in topic.partition_indexes
                    ]
                topics.append(OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=items))
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)

    def error_response(self, body: OffsetFetchRequest, error_code: int, version: int) -> OffsetFetchResponse:
        topics = []
        if version < 2:  # they have no other place for it
            topics = [
                OffsetFetchResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetFetchResponsePartition(
                            partition_index=number, committed_offset=-1, metadata="", error_code=error_code
                        )
                        for number in topic.partition_indexes
                    ],
                )
                for topic in body.topics or ()
            ]
        return OffsetFetchResponse(
            error_code=error_code,
            topics=topics,
            groups=[OffsetFetchResponseGroup(group_id=group.group_id, error_code=error_code) for group in body.groups],
        )


def _partition(number: int, result: OffsetFetchResult) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=number,
        committed_offset=result.offset,
        committed_leader_epoch=result.leader_epoch,
        metadata=result.metadata,
        error_code=result.error_code,
    )
