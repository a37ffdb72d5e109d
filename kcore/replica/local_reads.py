"""LocalReads: the reads of a fetch from this broker's logs (RD-17..23), and what they say of a follower (RD-09)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptMessage, OffsetOutOfRange
from kcore.record.memory_records import EMPTY
from kcore.replica.api_errors import api_error
from kcore.replica.fetch_params import (
    FUTURE_LOCAL_REPLICA_ID,
    FetchInfos,
    FetchParams,
    FetchPartitionData,
    FetchPartitionResult,
)
from kcore.replica.hosted_partitions import HostedPartitions
from kcore.replica.partition import LogReadInfo, Partition
from kcore.replica.replica import IdleFetch, Replica
from kcore.replica.replica_quota import leader_throttles

if TYPE_CHECKING:
    from kcore.log.log_hot_path import FetchDataInfo
    from kcore.replica.damage_checks import DamageChecks
    from kcore.replica.replica_meters import ReplicaMeters
    from kcore.replica.replica_selector import PreferredReadReplica


#: A consumer's offsets are remembered of so many partitions.
_MAX_REMEMBERED = 10_000


@dataclass(slots=True)
class ReadResult:
    """What the reads of one fetch have given.

    answers: one for each partition of the request, in its order.  fetched: the reads that succeeded; of a partition
    that a consumer reads elsewhere there is none.  advanced: the partitions of which the follower's state has changed
    so that requests which wait for them may complete.  readable_bytes: of all records in the answers.  is_final: the
    fetch is answered now, whatever its min_bytes: an error (RD-12), a reader whose log has diverged, or a consumer that
    should read elsewhere (RD-13).
    """

    answers: list[tuple[TopicPartition, FetchPartitionResult]]
    fetched: list[FetchDataInfo]
    advanced: list[TopicPartition]
    readable_bytes: int = 0
    is_final: bool = False

    def set_diverging(self, answer: FetchPartitionResult, diverging_epoch: tuple[int, int]) -> None:
        answer.diverging_epoch = diverging_epoch
        self.is_final = True


class LocalReads:
    """Thread-safe, as its parts are.  preferred_read_replica may be set; None: nobody is sent elsewhere (RD-25)."""

    def __init__(
        self,
        hosted_partitions: HostedPartitions,
        meters: ReplicaMeters,
        damage_checks: DamageChecks,
        preferred_read_replica: PreferredReadReplica | None = None,
    ) -> None:
        self.hosted_partitions = hosted_partitions
        self.meters = meters
        self.preferred_read_replica = preferred_read_replica
        self._damage_checks = damage_checks
        # Any seed: the choices must only not keep step with the order in which a client names its partitions.
        self._random = Random(0).random

    def read_again(
        self, params: FetchParams, fetch_infos: FetchInfos
    ) -> list[tuple[TopicPartition, FetchPartitionResult]]:
        """The answers to a fetch that has waited.  What it says of its reader was taken in when it came."""
        if params.replica_id >= 0:
            return self._read_for_follower(params, fetch_infos, None).answers
        return self._read_for_consumer(params, fetch_infos).answers

    def read(self, params: FetchParams, fetch_infos: FetchInfos, follower_fetch_time_ms: int | None) -> ReadResult:
        """One read of each partition, in request order (RD-17..20).

        With a follower_fetch_time_ms (ms) the follower's state is updated from each read that succeeds.
        """
        if params.replica_id >= 0:
            return self._read_for_follower(params, fetch_infos, follower_fetch_time_ms)
        result = self._read_for_consumer(params, fetch_infos)
        if params.sent_from is not None and result.readable_bytes:
            self._note_consumer(params.sent_from, fetch_infos, result.answers)
        return result

    def _read_for_consumer(self, params: FetchParams, fetch_infos: FetchInfos) -> ReadResult:
        result = ReadResult([], [], [])
        remaining, soft_limit = params.max_bytes, not params.hard_max_bytes
        replica_id, isolation, client = params.replica_id, params.isolation, params.client
        only_leader = client is None and replica_id != FUTURE_LOCAL_REPLICA_ID  # params.only_leader, without the call
        may_be_sent_elsewhere = self.preferred_read_replica is not None and client is not None and bool(client.rack)
        get, get_or_exception = self.hosted_partitions.get, self.hosted_partitions.get_or_exception
        for topic_partition, data in fetch_infos:
            try:
                hosted = get(topic_partition)
                partition = hosted if type(hosted) is Partition else get_or_exception(topic_partition)
                if may_be_sent_elsewhere and (elsewhere := self._elsewhere(partition, params, data)) is not None:
                    result.answers.append((topic_partition, elsewhere))
                    result.is_final = True
                    continue
                read = partition.read_records(
                    data.fetch_offset,
                    data.max_bytes if data.max_bytes < remaining else remaining,
                    isolation,
                    soft_limit and not result.readable_bytes,
                    data.current_leader_epoch,
                    data.last_fetched_epoch,
                    only_leader,
                )
            except Exception as error:
                if isinstance(error, OffsetOutOfRange) and params.sent_from:
                    self._note_lost_consumer(params.sent_from, topic_partition, data.fetch_offset)
                self._add_failure(result, topic_partition, data, error)
                continue
            fetched, records = read.fetched, read.fetched.records
            size = records.size_in_bytes
            if not size:
                if data.fetch_offset < read.last_stable_offset and _has_room(remaining, data, read):
                    self._damage_checks.suspect(partition, data.fetch_offset, "a read got nothing")
            elif soft_limit and fetched.first_entry_incomplete:
                # The client could make nothing of a first batch that is cut (RD-20).
                records, size = EMPTY, 0
            else:
                result.readable_bytes += size
                remaining = remaining - size if size < remaining else 0
            partition.meters.read(size, replica_id)
            result.fetched.append(fetched)
            answer = FetchPartitionResult(
                None,
                read.high_watermark,
                read.last_stable_offset,
                read.log_start_offset,
                records,
                fetched.aborted_transactions,
            )
            result.answers.append((topic_partition, answer))
            if read.diverging_epoch is not None:
                result.set_diverging(answer, read.diverging_epoch)
        return result

    def _read_for_follower(self, params: FetchParams, fetch_infos: FetchInfos, fetch_time_ms: int | None) -> ReadResult:
        result = ReadResult([], [], [])
        remaining, soft_limit = params.max_bytes, not params.hard_max_bytes
        replica_id, replica_epoch, quota = params.replica_id, params.replica_epoch, params.quota
        isolation, only_leader = params.isolation, params.only_leader
        get, get_or_exception = self.hosted_partitions.get, self.hosted_partitions.get_or_exception
        for topic_partition, data in fetch_infos:
            try:
                hosted = get(topic_partition)
                partition = hosted if type(hosted) is Partition else get_or_exception(topic_partition)
                idle = partition.repeat_idle_fetch(replica_id, data, fetch_time_ms, replica_epoch)
                if idle is not None:
                    result.fetched.append(idle.fetched)
                    result.answers.append(idle.answer)
                    partition.meters.read(0, replica_id)
                    continue
                replica = partition.follower_replica(replica_id, data.current_leader_epoch)
                read = partition.read_records(
                    data.fetch_offset,
                    data.max_bytes if data.max_bytes < remaining else remaining,
                    isolation,
                    soft_limit and not result.readable_bytes,
                    data.current_leader_epoch,
                    data.last_fetched_epoch,
                    only_leader,
                )
                if (
                    fetch_time_ms is not None
                    and read.diverging_epoch is None
                    and partition.update_follower_fetch_state(
                        replica, read, data.log_start_offset, fetch_time_ms, replica_epoch
                    )
                ):
                    result.advanced.append(topic_partition)
            except Exception as error:
                self._add_failure(result, topic_partition, data, error)
                continue
            records = read.fetched.records
            size = records.size_in_bytes
            if size and not _is_sendable(params, partition, read):
                records, size = EMPTY, 0
            is_sent = size > 0 or (
                records is read.fetched.records
                and data.fetch_offset < read.log_end_offset
                and _has_room(remaining, data, read)
            )
            if is_sent and fetch_time_ms is not None:
                self._note_sent(partition, replica, data.fetch_offset, fetch_time_ms)
            result.readable_bytes += size
            remaining = remaining - size if size < remaining else 0
            partition.meters.read(size, replica_id)
            answer = FetchPartitionResult(
                None, read.high_watermark, read.last_stable_offset, read.log_start_offset, records
            )
            result.fetched.append(read.fetched)
            result.answers.append((topic_partition, answer))
            if read.diverging_epoch is not None:
                result.set_diverging(answer, read.diverging_epoch)
            else:
                is_idle = data.fetch_offset == read.log_end_offset and quota is None
                replica.idle_fetch = IdleFetch(data, read.fetched, result.answers[-1]) if is_idle else None
        return result

    def _note_sent(self, partition: Partition, replica: Replica, offset: int, fetch_time_ms: int) -> None:
        """What a follower is sent begins at offset; it may have been sent the same before."""
        if replica.sent_from == offset:
            self._damage_checks.note_repeat(partition, replica, offset, fetch_time_ms)
        else:
            replica.sent_from = offset

    def _note_consumer(
        self,
        sent_from: dict[TopicPartition, int],
        fetch_infos: FetchInfos,
        answers: list[tuple[TopicPartition, FetchPartitionResult]],
    ) -> None:
        """Remember from which offset on a consumer is sent records.  Whoever ends at a wrong CRC begins there again, on
        this connection or on the next one, or before: librdkafka does so if auto.offset.reset is earliest.

        Of one partition of the fetch: a consumer that stands still fetches again and again, and the others' fetches of
        many partitions do not get slower.
        """
        count = len(fetch_infos)
        place = 0 if count == 1 else int(self._random() * count)
        if not answers[place][1].records.size_in_bytes:
            return
        topic_partition, data = fetch_infos[place]
        offset = data.fetch_offset
        previous = sent_from.get(topic_partition, offset)
        if previous < offset:  # it has read on
            sent_from[topic_partition] = offset
            return
        if topic_partition not in sent_from and len(sent_from) >= _MAX_REMEMBERED:
            sent_from.clear()
        sent_from[topic_partition] = offset
        partition = self.hosted_partitions.get(topic_partition)
        if isinstance(partition, Partition):
            self._damage_checks.note_read(partition, previous)

    def _note_lost_consumer(self, sent_from: dict[TopicPartition, int], tp: TopicPartition, offset: int) -> None:
        """It asks for an offset that is none.  After the end, though it was sent records: librdkafka does so when it
        has met a wrong CRC, and goes on at the end if auto.offset.reset is latest."""
        partition = self.hosted_partitions.get(tp)
        if tp in sent_from and isinstance(partition, Partition) and offset > partition.log.log_end_offset:
            why = f"a consumer that was sent records asks for offset {offset}, which is after the end"
            self._damage_checks.suspect(partition, sent_from[tp], why)

    def _add_failure(
        self, result: ReadResult, topic_partition: TopicPartition, data: FetchPartitionData, error: Exception
    ) -> None:
        if isinstance(error, CorruptMessage):
            partition = self.hosted_partitions.get(topic_partition)
            if isinstance(partition, Partition):
                self._damage_checks.suspect(partition, data.fetch_offset, f"a read failed ({error})")
        answer = api_error(error, "fetch", topic_partition)
        self.meters.read_failed(topic_partition.topic, answer)
        result.answers.append((topic_partition, FetchPartitionResult(answer)))
        result.is_final = True

    def _elsewhere(
        self, partition: Partition, params: FetchParams, data: FetchPartitionData
    ) -> FetchPartitionResult | None:
        """The answer to a consumer that should come to another broker, without a read; None if it reads here (RD-25).

        Raises what Partition.check_readable raises.
        """
        partition.check_readable(data.current_leader_epoch, params.only_leader)
        assert self.preferred_read_replica is not None and params.client is not None
        preferred = self.preferred_read_replica(partition, params.client, data.fetch_offset)
        if preferred < 0:
            return None
        log = partition.log
        return FetchPartitionResult(
            None, log.high_watermark, log.last_stable_offset, log.log_start_offset, preferred_read_replica=preferred
        )


def _is_sendable(params: FetchParams, partition: Partition, read: LogReadInfo) -> bool:
    """Whether a follower is sent what was read: not a throttled one (RD-26), nor a part of a first batch."""
    quota = params.quota
    if quota is not None and leader_throttles(quota, partition.topic_partition, params.replica_id, partition.isr):
        return False
    # A reader with soft limits could make nothing of a first batch that is cut (RD-20).
    return not read.fetched.first_entry_incomplete or params.hard_max_bytes


def _has_room(remaining: int, data: FetchPartitionData, read: LogReadInfo) -> bool:
    """Whether a read below the end of what its reader may see should have brought records."""
    return min(remaining, data.max_bytes) > 0 and read.diverging_epoch is None
