"""OffsetForLeaderEpoch (23): where an epoch ends in the leader's log."""

from __future__ import annotations

from kcore.common.topic_partition import TopicPartition
from kcore.errors import NONE, ApiError, UnknownTopicOrPartition, code_of
from kcore.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from kcore.server.handlers import Services
from kcore.server.request_context import RequestContext


class Handler:
    may_block = False

    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self._replica_manager = services.replica_manager

    def handle(self, context: RequestContext, body: OffsetForLeaderEpochRequest) -> None:
        if body.replica_id >= 0:
            context.request_time = None  # a follower's requests count toward no quota
        context.respond(
            OffsetForLeaderEpochResponse(
                topics=[
                    OffsetForLeaderTopicResult(
                        topic=topic.topic,
                        partitions=[
                            self._answer(TopicPartition(topic.topic, partition.partition), partition)
                            for partition in topic.partitions
                        ],
                    )
                    for topic in body.topics
                ]
            )
        )

    def _answer(self, topic_partition: TopicPartition, partition: OffsetForLeaderPartition) -> EpochEndOffset:
        try:
            if not self._cache.contains(topic_partition):
                raise UnknownTopicOrPartition(f"{topic_partition}: no such partition")
            epoch, end_offset = self._replica_manager.last_offset_for_leader_epoch(
                topic_partition, partition.leader_epoch, partition.current_leader_epoch
            )
        except ApiError as error:
            return EpochEndOffset(partition=partition.partition, error_code=code_of(error))
        return EpochEndOffset(partition=partition.partition, error_code=NONE, leader_epoch=epoch, end_offset=end_offset)

    def error_response(
        self, body: OffsetForLeaderEpochRequest, error_code: int, version: int
    ) -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[EpochEndOffset(partition=p.partition, error_code=error_code) for p in topic.partitions],
                )
                for topic in body.topics
            ]
        )
