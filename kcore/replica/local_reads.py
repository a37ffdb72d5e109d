"""LocalReads: the reads of a fetch from this broker's logs (RD-17..23), and what they say of a follower (RD-09)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptMessage
from kcore.record.memory_records import EMPTY
from kcore.replica.api_errors import api_error
from kcore.replica.fetch_params import FUTURE_LOCAL_REPLICA_ID, FetchInfos, FetchParams, FetchPartitionResult
from kcore.replica.hosted_partitions import HostedPartitions
from kcore.replica.partition import Partition
from kcore.replica.replica import IdleFetch, Replica
from kcore.replica.replica_quota import leader_throttles

if TYPE_CHECKING:
    from kcore.log.log_hot_path import FetchDataInfo
    from kcore.log.unified_log import UnifiedLog
    from kcore.replica.damage_checks import DamageChecks
    from kcore.replica.replica_meters import ReplicaMeters
    from kcore.replica.replica_selector import PreferredReadReplica


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

    def read_again(
        self, params: FetchParams, fetch_infos: FetchInfos
    ) -> list[tuple[TopicPartition, FetchPartitionResult]]:
        """One read of each partition, in request order, for a fetch that has waited (RD-17..20).

        A follower's state is left as it is: what its fetch says was taken in when it came.
        """
        return self.read(params, fetch_infos, None, [])[0]

    def read(
        self,
        params: FetchParams,
        fetch_infos: FetchInfos,
        follower_fetch_time_ms: int | None,
        advanced: list[TopicPartition],
    ) -> tuple[list[tuple[TopicPartition, FetchPartitionResult]], list[FetchDataInfo], int, bool]:
        """One read of each partition: (results, the successful reads, bytes read, whether it is to be answered now).

        With a follower_fetch_time_ms (ms) the follower's state is updated from each read that succeeds; `advanced` gets
        the partitions for which requests may wait that this can end.
        """
        results: list[tuple[TopicPartition, FetchPartitionResult]] = []
        reads: list[FetchDataInfo] = []
        total = 0
        answers_now = False
        remaining = params.max_bytes
        isolation = params.isolation
        hard_limit = params.hard_max_bytes
        min_one_message = not hard_limit
        replica_id = params.replica_id
        quota = params.quota
        replica = None
        client = params.client
        only_leader = client is None and replica_id != FUTURE_LOCAL_REPLICA_ID  # params.only_leader, without the call
        preferred_read_replica = self.preferred_read_replica if client is not None and client.rack else None
        get, get_or_exception = self.hosted_partitions.get, self.hosted_partitions.get_or_exception
        for topic_partition, data in fetch_infos:
            try:
                hosted = get(topic_partition)
                partition = hosted if type(hosted) is Partition else get_or_exception(topic_partition)
                if replica_id >= 0:
                    idle = partition.repeat_idle_fetch(replica_id, data, follower_fetch_time_ms, params.replica_epoch)
                    if idle is not None:
                        reads.append(idle.fetched)
                        results.append(idle.answer)
                        partition.meters.read(0, replica_id)
                        continue
                    replica = partition.follower_replica(replica_id, data.current_leader_epoch)
                elif preferred_read_replica is not None and client is not None:
                    partition.check_readable(data.current_leader_epoch, only_leader)
                    preferred = preferred_read_replica(partition, client, data.fetch_offset)
                    if preferred >= 0:
                        results.append((topic_partition, _elsewhere(partition.log, preferred)))
                        answers_now = True
                        continue
                read = partition.read_records(
                    data.fetch_offset,
                    data.max_bytes if data.max_bytes < remaining else remaining,
                    isolation,
                    min_one_message,
                    data.current_leader_epoch,
                    data.last_fetched_epoch,
                    only_leader,
                )
                fetched = read.fetched
                if (
                    replica is not None
                    and follower_fetch_time_ms is not None
                    and read.diverging_epoch is None
                    and partition.update_follower_fetch_state(
                        replica, read, data.log_start_offset, follower_fetch_time_ms, params.replica_epoch
                    )
                ):
                    advanced.append(topic_partition)
            except Exception as error:
                if isinstance(error, CorruptMessage):
                    self._suspect_damage(topic_partition, data.fetch_offset, error)
                answers_now = True
                results.append((topic_partition, self._failure(topic_partition, error)))
                continue
            records = fetched.records
            if quota is not None and leader_throttles(quota, topic_partition, replica_id, partition.isr):
                records = EMPTY  # RD-26
            size = records.size_in_bytes
            if size:
                if fetched.first_entry_incomplete and not hard_limit:
                    # A client of soft limits could make nothing of a first batch that is cut (RD-20).
                    records, size = EMPTY, 0
                else:
                    min_one_message = False
                    total += size
                    remaining = remaining - size if size < remaining else 0
                    if replica is not None and follower_fetch_time_ms is not None:
                        self._note_sent(partition, replica, data.fetch_offset, follower_fetch_time_ms)
            elif (
                data.fetch_offset < (read.last_stable_offset if replica is None else read.log_end_offset)
                and min(remaining, data.max_bytes) > 0
                and records is fetched.records
                and read.diverging_epoch is None
            ):
                # There should be records.
                if replica is None:
                    self._damage_checks.suspect(partition, data.fetch_offset, "a read got nothing")
                elif follower_fetch_time_ms is not None:
                    self._note_sent(partition, replica, data.fetch_offset, follower_fetch_time_ms)
            partition.meters.read(size, replica_id)
            reads.append(fetched)
            result = FetchPartitionResult(
                None,
                read.high_watermark,
                read.last_stable_offset,
                read.log_start_offset,
                records,
                fetched.aborted_transactions,
            )
            answer = (topic_partition, result)
            results.append(answer)
            if read.diverging_epoch is not None:
                result.diverging_epoch = read.diverging_epoch
                answers_now = True
            elif replica is not None:
                is_idle = data.fetch_offset == read.log_end_offset and quota is None
                replica.idle_fetch = IdleFetch(data, fetched, answer) if is_idle else None
        return results, reads, total, answers_now

    def _note_sent(self, partition: Partition, replica: Replica, offset: int, fetch_time_ms: int) -> None:
        """What a follower is sent begins at offset; it may have been sent the same before."""
        if replica.sent_from == offset:
            self._damage_checks.note_repeat(partition, replica, offset, fetch_time_ms)
        else:
            replica.sent_from = offset

    def _suspect_damage(self, topic_partition: TopicPartition, offset: int, error: CorruptMessage) -> None:
        partition = self.hosted_partitions.get(topic_partition)
        if isinstance(partition, Partition):
            self._damage_checks.suspect(partition, offset, f"a read failed ({error})")

    def _failure(self, topic_partition: TopicPartition, error: Exception) -> FetchPartitionResult:
        answer = api_error(error, "fetch", topic_partition)
        self.meters.read_failed(topic_partition.topic, answer)
        return FetchPartitionResult(answer)


def _elsewhere(log: UnifiedLog, broker_id: int) -> FetchPartitionResult:
    """Nothing is read: the consumer comes to that broker (RD-25)."""
    return FetchPartitionResult(
        None, log.high_watermark, log.last_stable_offset, log.log_start_offset, preferred_read_replica=broker_id
    )
