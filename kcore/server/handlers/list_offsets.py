"""ListOffsets (2): where a log starts and ends, and which record is the first at or after a time."""

from __future__ import annotations

from collections import Counter

from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    NONE,
    InvalidRequest,
    LeaderNotAvailable,
    OffsetNotAvailable,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
    UnsupportedVersion,
    code_of,
)
from kcore.log.log_offset_metadata import FetchIsolation
from kcore.log.special_timestamps import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
)
from kcore.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kcore.replica.fetch_params import CONSUMER_REPLICA_ID
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services

#: The version from which each special timestamp is understood.
_FIRST_VERSION = {
    LATEST_TIMESTAMP: 0,
    EARLIEST_TIMESTAMP: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}
#: Answered from memory.
_WITHOUT_READING = (
    LATEST_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    EARLIEST_LOCAL_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
)
_READ_COMMITTED = 1


class Handler:
    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self._replica_manager = services.replica_manager
        self._auth = services.auth

    def runs_on(self, context: RequestContext, body: ListOffsetsRequest) -> RunsOn:
        # A time is looked for in indexes and segments, which may have to be read from the disk.
        reads = any(p.timestamp not in _WITHOUT_READING for topic in body.topics for p in topic.partitions)
        return RunsOn.POOL if reads else RunsOn.NETWORK_THREAD

    def handle(self, context: RequestContext, body: ListOffsetsRequest) -> None:
        if body.replica_id >= 0:
            context.request_time = None  # a follower's requests count toward no quota
        version = context.api_version
        if body.replica_id != CONSUMER_REPLICA_ID:
            isolation = FetchIsolation.LOG_END
        elif body.isolation_level == _READ_COMMITTED:
            isolation = FetchIsolation.TXN_COMMITTED
        else:
            isolation = FetchIsolation.HIGH_WATERMARK
        request_counts = Counter((topic.name, p.partition_index) for topic in body.topics for p in topic.partitions)
        names = [topic.name for topic in body.topics]
        permitted = self._auth.filter_by_authorized(context, AclOperation.DESCRIBE, ResourceType.TOPIC, names)
        context.respond(
            ListOffsetsResponse(
                topics=[
                    ListOffsetsTopicResponse(
                        name=topic.name,
                        partitions=[
                            _error(p.partition_index, TopicAuthorizationFailed.code)
                            if topic.name not in permitted
                            else _error(p.partition_index, InvalidRequest.code)
                            if request_counts[topic.name, p.partition_index] > 1
                            else self._answer(TopicPartition(topic.name, p.partition_index), p, isolation, version)
                            for p in topic.partitions
                        ],
                    )
                    for topic in body.topics
                ]
            )
        )

    def _answer(
        self, topic_partition: TopicPartition, partition: ListOffsetsPartition, isolation: FetchIsolation, version: int
    ) -> ListOffsetsPartitionResponse:
        number = topic_partition.partition
        try:
            if not self._cache.contains(topic_partition):
                raise UnknownTopicOrPartition(f"{topic_partition}: no such partition")
            if version == 0:
                hosted = self._replica_manager.get_partition_or_exception(topic_partition)
                offsets = hosted.legacy_fetch_offsets_for_timestamp(
                    partition.timestamp, partition.max_num_offsets, isolation
                )
                return ListOffsetsPartitionResponse(partition_index=number, old_style_offsets=offsets)
            timestamp = partition.timestamp
            if timestamp < 0 and _FIRST_VERSION.get(timestamp, version + 1) > version:
                return _error(number, UnsupportedVersion.code)
            if timestamp in (LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP):
                record = None  # there is no tiered storage
            else:
                hosted = self._replica_manager.get_partition_or_exception(topic_partition)
                record = hosted.fetch_offset_for_timestamp(timestamp, isolation, partition.current_leader_epoch)
        except OffsetNotAvailable:
            # Older clients know the other code, and try again too (KIP-207).
            return _error(number, OffsetNotAvailable.code if version >= 5 else LeaderNotAvailable.code)
        except Exception as error:
            code = code_of(error)
            if code < 0:
                raise
            return _error(number, code)
        if record is None:
            return ListOffsetsPartitionResponse(partition_index=number, error_code=NONE)
        answer = ListOffsetsPartitionResponse(
            partition_index=number, error_code=NONE, timestamp=record.timestamp, offset=record.offset
        )
        if version >= 4 and record.leader_epoch is not None:
            answer.leader_epoch = record.leader_epoch
        return answer

    def error_response(self, body: ListOffsetsRequest, error_code: int, version: int) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name, partitions=[_error(p.partition_index, error_code) for p in topic.partitions]
                )
                for topic in body.topics
            ]
        )


def _error(number: int, error_code: int) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=number, error_code=error_code)
