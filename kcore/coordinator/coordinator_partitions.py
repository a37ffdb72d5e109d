"""The partitions of an internal topic that a coordinator owns: loading what they hold, and appending to them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol, TypeVar

from kcore.common.scheduler import Scheduler
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptMessage, KafkaStorageError
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation
from kcore.record.file_records import FileRecords
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import RecordBatch
from kcore.record.valid_part import valid_part
from kcore.replica.delayed.delayed_produce import ProducePartitionStatus
from kcore.replica.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

#: Between two looks whether what was read is committed by now: about the time that a follower needs to fetch it.
COMMIT_CHECK_MS = 10
#: Loads whose times are kept for the metrics.
_LOAD_TIMES = 1000

#: The most bytes that a read may ask for.
_WHOLE_SEGMENT = 2**31 - 1

T = TypeVar("T")


class PartitionLoad(Protocol):
    """What a coordinator makes of the records of one partition, called in this order.

    str() of it says what there is, for the log.  acts: whether more than this log depends on what was read, so that it
    must be committed before it counts: the last records of a new leader may be ones that its successor does not have.
    """

    acts: bool

    def read_batch(self, batch: RecordBatch) -> None:
        """The next batch."""

    def skip(self) -> None:
        """What comes next cannot be read, and is left out: one batch, or all that follow."""

    def finish(self) -> None:
        """All batches have been read, or those before an error."""

    def publish(self) -> None:
        """Put what was read where requests look it up.  Under CoordinatorPartitions.lock, so it must be short; not
        called if this broker has resigned meanwhile."""

    def activate(self) -> None:
        """Begin to wait for what was published, as sessions of members.  Without the lock, and before a request can
        reach it; it may be unloaded already."""


class CoordinatorPartitions:
    """Thread-safe.  A partition is loading, then owned, until this broker resigns from it.

    lock: held while the table changes.  Who looks up what is kept in a partition holds it around that and around the
    look into the table, so that both are of one moment.  Nothing is read from logs or appended under it.
    Source: GroupMetadataManager and TransactionStateManager, Kafka 3.9.
    """

    def __init__(
        self,
        topic: str,
        num_partitions: int,
        replica_manager: ReplicaManager,
        disk_scheduler: Scheduler,
        time: Time,
        *,
        append_timeout_ms: float,
        load_buffer_size: int,
    ) -> None:
        self.lock = threading.Lock()
        #: Partition -> coordinator epoch (the leader epoch of the partition).  Read without the lock, too: so one that
        #: has been loaded is put into `owned` before it leaves `loading`.
        self.loading: dict[int, int] = {}
        self.owned: dict[int, int] = {}
        #: How long the last loads took.
        self.load_times_ms: deque[float] = deque(maxlen=_LOAD_TIMES)
        #: Key -> the partition that has what is kept of it.
        self.partition_for = lru_cache(maxsize=10_000)(
            lambda key: java_abs(java_string_hash(key)) % num_partitions  # as Kafka: clients find it in one place
        )
        self._topic = topic
        self._replica_manager = replica_manager
        self._disk_scheduler = disk_scheduler
        self._time = time
        self._append_timeout_ms = append_timeout_ms
        self._load_buffer_size = load_buffer_size

    def append(
        self, partition: int, epoch: int, batch: bytearray, on_done: Callable[[ProducePartitionStatus], None]
    ) -> None:
        """Write a batch with acks=all; on_done(its status) runs now, or later on another thread.  Under no lock.

        epoch: the coordinator epoch of what the batch is about.  Where this broker coordinates the partition anew since
        then the batch is refused with NotLeaderOrFollower: the load may have missed it, and newer batches may be in the
        log.  The log decides, since the partition may move at any time before.
        """
        topic_partition = TopicPartition(self._topic, partition)
        self._replica_manager.append_records(
            self._append_timeout_ms,
            -1,
            True,
            AppendOrigin.COORDINATOR,
            {topic_partition: batch},
            lambda statuses: on_done(statuses[topic_partition]),
            {topic_partition: epoch},
        )

    def max_batch_size(self, partition: int) -> int | None:
        """The largest batch that the log of a partition takes, in bytes; None if there is no log to ask."""
        replica = self._replica_manager.get_partition(TopicPartition(self._topic, partition))
        try:
            config = replica.local_log().config if replica is not None else None
        except KafkaStorageError:
            return None
        return None if config is None else min(config.max_message_bytes, config.segment_bytes)

    def is_transaction_committed(self, partition: int, producer_id: int, offset: int) -> bool | None:
        """Of the transaction that has the producer's record at this offset; None if it is open, or not known."""
        topic_partition = TopicPartition(self._topic, partition)
        replica = self._replica_manager.get_partition(topic_partition)
        try:
            log = replica.local_log() if replica is not None else None
            return None if log is None else log.is_transaction_committed(producer_id, offset)
        except (OSError, CorruptMessage, KafkaStorageError) as error:
            logger.warning("%s: whether the transaction of offset %d is committed: %s", topic_partition, offset, error)
            return None

    # -- elections ---------------------------------------------------------------------------------------------------

    def elect(self, partition: int, epoch: int, load: PartitionLoad) -> None:
        """Begin to coordinate what is kept in a partition that this broker leads since epoch.

        It is loading until its records have been read, on the disk's scheduler; a partition without records is owned at
        once, and one whose log cannot be had (any more) not at all.
        """
        with self.lock:
            if epoch < self.epoch(partition):
                return
            if partition in self.owned:
                # Led before and still: what is in memory is newer than anything that could be read.
                self.owned[partition] = epoch
                return
            if self._is_empty(partition):
                self.owned[partition] = epoch
                self.loading.pop(partition, None)
                return
            if self.loading.get(partition) == epoch:
                return
            self.loading[partition] = epoch
        # A load for an older epoch, if one still waits or runs, sees the new epoch in `loading` and ends.
        self._disk_scheduler.schedule(f"load-{self._topic}-{partition}", lambda: self._load(partition, epoch, load), 0)

    def resign(self, partition: int, epoch: int | None, kept_in: Callable[[], list[T]]) -> list[T]:
        """Coordinate a partition no more; what kept_in() returns is to be unloaded.

        epoch is the one since which another broker leads, None when the partition is gone.  If it is older than the
        one since which this broker leads, nothing changes, and [] comes back.  kept_in() is called under the lock: what
        another election loads, which may come before these are unloaded, stays.
        """
        with self.lock:
            if epoch is not None and epoch < self.epoch(partition):
                return []
            self.loading.pop(partition, None)
            self.owned.pop(partition, None)
            return kept_in()

    def epoch(self, partition: int) -> int:
        """Since which this broker coordinates or loads it; -1 if it does not."""
        return max(self.loading.get(partition, -1), self.owned.get(partition, -1))

    def is_followed(self, partition: int, epoch: int) -> bool:
        """Whether no other broker can have written to it since this epoch(): neither one of whose election this broker
        has not heard, nor one that led until this broker was elected again."""
        replica = self._replica_manager.get_partition(TopicPartition(self._topic, partition))
        # In this order: then it was followed in the leadership of that epoch.
        return replica is not None and replica.is_followed and replica.has_led_since(epoch)

    # -- loading -----------------------------------------------------------------------------------------------------

    def _is_empty(self, partition: int) -> bool:
        """Whether the partition is hosted here and has no records."""
        replica = self._replica_manager.get_partition(TopicPartition(self._topic, partition))
        if replica is None:
            return False
        try:
            log = replica.local_log()
        except KafkaStorageError:
            return False
        return log.log_start_offset == log.log_end_offset

    def _has_log(self, topic_partition: TopicPartition) -> bool:
        replica = self._replica_manager.get_partition(topic_partition)
        try:
            return replica is not None and replica.local_log() is not None
        except KafkaStorageError:
            return False

    def _is_committed(self, topic_partition: TopicPartition) -> bool:
        """Whether all records are; while it is loading nothing is appended.  True of a log that cannot be had."""
        replica = self._replica_manager.get_partition(topic_partition)
        try:
            log = replica.local_log() if replica is not None else None
        except KafkaStorageError:
            return True
        return log is None or log.high_watermark >= log.log_end_offset

    def _load(self, partition: int, epoch: int, load: PartitionLoad) -> None:
        if self.loading.get(partition) != epoch:
            return  # resigned, or elected again, meanwhile
        topic_partition = TopicPartition(self._topic, partition)
        started_ms = self._time.hi_res_clock_ms()
        try:
            self._read(topic_partition, epoch, load)
        except Exception:
            # As Kafka: what was read counts, so that one bad place does not take all of the partition away.
            logger.exception("%s: reading its records stopped by an error", topic_partition)
            load.skip()
        load.finish()
        self._own(partition, epoch, load, started_ms)

    def _own(self, partition: int, epoch: int, load: PartitionLoad, started_ms: float) -> None:
        """Its records have been read: coordinate it, as soon as they count."""
        topic_partition = TopicPartition(self._topic, partition)
        if self.loading.get(partition) == epoch and load.acts and not self._is_committed(topic_partition):
            self._disk_scheduler.schedule(
                f"commit-{self._topic}-{partition}",
                lambda: self._own(partition, epoch, load, started_ms),
                COMMIT_CHECK_MS,
            )
            return
        with self.lock:
            if self.loading.get(partition) != epoch:
                return
            if not self._has_log(topic_partition):
                # What was read may be a part.  If the log is lost from here on, resign() is still to come.
                del self.loading[partition]
                logger.warning("%s: has no log, so what it holds is not coordinated here", topic_partition)
                return
            load.publish()
        load.activate()
        with self.lock:
            # Otherwise resigned just now; then what was loaded is gone again, too.
            if self.loading.get(partition) == epoch:
                self.owned[partition] = epoch
                self.loading.pop(partition)
        took_ms = self._time.hi_res_clock_ms() - started_ms
        self.load_times_ms.append(took_ms)
        logger.info("%s: loaded %s in %.0f ms", topic_partition, load, took_ms)

    def _read(self, topic_partition: TopicPartition, epoch: int, load: PartitionLoad) -> None:
        replica = self._replica_manager.get_partition(topic_partition)
        if replica is None:
            return
        log = replica.local_log()
        offset = log.log_start_offset
        while offset < log.log_end_offset and self.loading.get(topic_partition.partition) == epoch:
            # Before the read: of segments that the cleaner merges meanwhile all are still to be read.
            base_offsets = log.segment_base_offsets()
            info = log.read(offset, _WHOLE_SEGMENT, FetchIsolation.LOG_END, True)
            if not info.records:
                return
            last_offset = self._read_segment(topic_partition, info.records, epoch, load)
            # No CRC covers a base offset.  So within a segment it does not decide where the next batch is looked for,
            # and the next segment is taken by its name.
            read_up_to = max(offset, info.fetch_offset_metadata.segment_base_offset)
            offset = next((base for base in base_offsets if base > read_up_to), max(offset, last_offset) + 1)

    def _read_segment(
        self, topic_partition: TopicPartition, records: FileRecords | MemoryRecords, epoch: int, load: PartitionLoad
    ) -> int:
        """The slice of a segment, offsets.load.buffer.size at a time; the offset of its last record.

        Raises CorruptMessage.
        """
        last_offset, position, size = -1, 0, self._load_buffer_size
        damage: CorruptMessage | None = None
        while position < records.size_in_bytes and self.loading.get(topic_partition.partition) == epoch:
            if isinstance(records, MemoryRecords):
                part = records
            else:
                # CRCs are checked below: what follows a batch that cannot be read still counts.
                part, damage = valid_part(records.slice(position, size), check_crc=False)
            for batch in part.batches:
                self._read_batch(topic_partition, batch, load)
                last_offset = batch.last_offset
            if damage is not None:
                raise damage
            if part.valid_bytes:
                position += part.valid_bytes
                size = self._load_buffer_size
            elif size < records.size_in_bytes - position:
                size *= 2  # its next batch is larger
            else:
                raise CorruptMessage(f"{records}: no batch has the {size} bytes after {position}")
        return last_offset

    @staticmethod
    def _read_batch(topic_partition: TopicPartition, batch: RecordBatch, load: PartitionLoad) -> None:
        problem: object = "its CRC does not match"
        try:
            if batch.is_valid():
                load.read_batch(batch)
                return
        except CorruptMessage as error:
            problem = error
        logger.error(
            "%s: offsets %d to %d, the batch at position %d, are skipped: %s",
            topic_partition,
            batch.base_offset,
            batch.last_offset,
            batch.position,
            problem,
        )
        load.skip()


def java_string_hash(text: str) -> int:
    """String.hashCode of Java: over UTF-16 code units, as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def java_abs(value: int) -> int:
    """Utils.abs of Kafka: 0 for the one value that has no positive twin in 32 bits."""
    return 0 if value == -(1 << 31) else abs(value)
