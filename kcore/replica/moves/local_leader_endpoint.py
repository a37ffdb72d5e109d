"""LocalLeaderEndPoint: this broker's own logs as the source of their future logs (DIR-02, DIR-08, DIR-09, RD-27)."""

from __future__ import annotations

from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, FencedLeaderEpoch, KafkaError, UnknownLeaderEpoch, UnknownServerError
from kcore.log.log_offset_metadata import FetchIsolation
from kcore.log.special_timestamps import EARLIEST_TIMESTAMP
from kcore.log.unified_log import UnifiedLog
from kcore.record.memory_records import MemoryRecords
from kcore.replica.fetch_params import FetchPartitionData
from kcore.replica.fetcher.leader_endpoint import (
    EpochEndOffset,
    FetchedPartition,
    FetchReply,
    FetchRequest,
    LeaderFeatures,
    LeaderReply,
    LeaderRequest,
    ListedOffset,
    ListOffsetsReply,
    OffsetForLeaderEpochReply,
    OffsetForLeaderEpochRequest,
    OffsetQuestion,
)
from kcore.replica.hosted_partitions import HostedPartitions


class LocalLeaderEndPoint:
    """Answers at once, from the current logs up to their ends (RD-27), whether this broker leads or follows.

    A fetch is answered for one partition: the first in the order of topics and partitions, until it is fetched no more;
    so one log after the other is copied (DIR-09).  Not thread-safe: each mover thread has its own.
    Source: LocalLeaderEndPoint, Kafka 3.9.
    """

    features = LeaderFeatures(truncates_on_fetch=False, looks_up_epochs=True)

    def __init__(self, hosted_partitions: HostedPartitions) -> None:
        self._hosted_partitions = hosted_partitions
        self._copied: TopicPartition | None = None

    def send(self, request: LeaderRequest) -> LeaderReply:
        if isinstance(request, FetchRequest):
            return self._fetch_one(request)
        if isinstance(request, OffsetForLeaderEpochRequest):
            return OffsetForLeaderEpochReply(
                {tp: self._epoch_end(tp, epoch, of) for tp, (epoch, of) in request.partitions.items()}
            )
        return ListOffsetsReply({tp: self._offset(tp, question) for tp, question in request.partitions.items()})

    def close(self) -> None:
        """Nothing waits here."""

    def _log(self, tp: TopicPartition, leader_epoch: int) -> UnifiedLog:
        """The current log.  Raises FencedLeaderEpoch or UnknownLeaderEpoch for another epoch than the partition's."""
        partition = self._hosted_partitions.get_or_exception(tp)
        if leader_epoch != partition.leader_epoch:
            error = FencedLeaderEpoch if leader_epoch < partition.leader_epoch else UnknownLeaderEpoch
            raise error(f"{tp}: the move has leader epoch {leader_epoch}, the partition {partition.leader_epoch}")
        return partition.local_log()

    def _fetch_one(self, request: FetchRequest) -> FetchReply:
        if not request.partitions:
            return FetchReply()
        tp = self._copied
        if tp is None or tp not in request.partitions:
            tp = self._copied = min(request.partitions)
        return FetchReply({tp: self._fetch(tp, request.partitions[tp])})

    def _fetch(self, tp: TopicPartition, data: FetchPartitionData) -> FetchedPartition:
        try:
            log = self._log(tp, data.current_leader_epoch)
            high_watermark, log_start_offset = log.high_watermark, log.log_start_offset
            fetched = log.read(data.fetch_offset, data.max_bytes, FetchIsolation.LOG_END, min_one_message=True)
            records = b"" if isinstance(fetched.records, MemoryRecords) else fetched.records.read()
            return FetchedPartition(records, high_watermark, log_start_offset)
        except KafkaError as error:
            return FetchedPartition(error=_api_error(error))

    def _epoch_end(self, tp: TopicPartition, current_leader_epoch: int, leader_epoch: int) -> EpochEndOffset:
        try:
            return EpochEndOffset(*self._log(tp, current_leader_epoch).end_offset_for_epoch(leader_epoch))
        except KafkaError as error:
            return EpochEndOffset(error=_api_error(error))

    def _offset(self, tp: TopicPartition, question: OffsetQuestion) -> ListedOffset:
        try:
            log = self._log(tp, question.current_leader_epoch)
        except KafkaError as error:
            return ListedOffset(error=_api_error(error))
        is_start = question.timestamp == EARLIEST_TIMESTAMP
        return ListedOffset(log.log_start_offset if is_start else log.log_end_offset)


def _api_error(error: KafkaError) -> ApiError:
    return error if isinstance(error, ApiError) else UnknownServerError(str(error))
