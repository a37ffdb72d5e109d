"""Writing the ends of transactions to partitions that this broker leads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from kcore.common.time import Time
from kcore.common.topic_names import GROUP_METADATA_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.transaction_config import REQUEST_TIMEOUT_MS
from kcore.coordinator.transaction.transaction_state import TRANSACTION_VERSION
from kcore.errors import ApiError, NotLeaderOrFollower
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.record.control_record import ControlRecordType, EndTransactionMarker
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.replica.delayed.delayed_produce import ProducePartitionStatus
from kcore.replica.replica_manager import ReplicaManager

#: The error of each partition, None where the marker is written.
MarkerResults = Mapping[TopicPartition, ApiError | None]


class Marker(NamedTuple):
    """coordinator_epoch: the leader epoch of the coordinator's partition; a log refuses one that is too old.
    transaction_version: 2 where producer_epoch is above that of the transaction, so that a log can tell the marker from
    one of the next transaction; else 0, also where the sender does not say."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    transaction_version: int = 0

    @property
    def origin(self) -> AppendOrigin:
        if self.transaction_version >= TRANSACTION_VERSION:
            return AppendOrigin.COORDINATOR_RAISING_EPOCH
        return AppendOrigin.COORDINATOR

    def batch(self, now_ms: int) -> bytearray:
        kind = ControlRecordType.COMMIT if self.is_commit else ControlRecordType.ABORT
        marker = EndTransactionMarker(kind, self.coordinator_epoch)
        builder = RecordBatchBuilder(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            is_transactional=True,
            is_control=True,
        )
        builder.append(marker.value(), marker.key(), timestamp=now_ms)
        return builder.build()


class TransactionalOffsets(Protocol):
    """What is kept of the partitions of the offsets topic: GroupMetadataManager."""

    def loaded_epoch(self, partition: int) -> int | None:
        """The leader epoch since which what is in the partition has been loaded here; None if it is not."""

    def end_transaction(self, producer_id: int, epochs: Mapping[int, int], is_commit: bool) -> None:
        """The markers are in these partitions.  epochs: partition -> its loaded_epoch() before."""


class MarkerWriter:
    """Thread-safe."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        time: Time,
        offsets: TransactionalOffsets,
        append_timeout_ms: float = REQUEST_TIMEOUT_MS,
    ) -> None:
        self._replica_manager = replica_manager
        self._time = time
        self._append_timeout_ms = append_timeout_ms
        self._offsets = offsets

    def write(
        self, marker: Marker, partitions: Collection[TopicPartition], on_written: Callable[[MarkerResults], None]
    ) -> None:
        """Append the marker with acks=all.  on_written() runs now, or later on another thread, without a lock.

        A partition of the offsets topic that is being loaded answers NotLeaderOrFollower: the load may have missed it.
        So does one that has moved away and back before the marker is in its log.
        """
        now_ms = self._time.milliseconds()
        results: dict[TopicPartition, ApiError | None] = {}
        leader_epochs: dict[TopicPartition, int] = {}
        for topic_partition in partitions:
            if topic_partition.topic == GROUP_METADATA_TOPIC:
                epoch = self._offsets.loaded_epoch(topic_partition.partition)
                if epoch is None:
                    results[topic_partition] = NotLeaderOrFollower(f"{topic_partition} is not loaded yet")
                else:
                    leader_epochs[topic_partition] = epoch
        batches = {tp: marker.batch(now_ms) for tp in partitions if tp not in results}

        def appended(statuses: Mapping[TopicPartition, ProducePartitionStatus]) -> None:
            ended = {tp.partition: epoch for tp, epoch in leader_epochs.items() if statuses[tp].error is None}
            if ended:
                self._offsets.end_transaction(marker.producer_id, ended, marker.is_commit)
            results.update((topic_partition, status.error) for topic_partition, status in statuses.items())
            on_written(results)

        if not batches:
            on_written(results)
            return
        self._replica_manager.append_records(
            self._append_timeout_ms, -1, True, marker.origin, batches, appended, leader_epochs
        )
