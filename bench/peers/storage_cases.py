"""storage_cases.py CASE DATA WORK WARM_SECONDS ROUND_SECONDS: kcore's side of the storage comparison.

One case in a process of its own, driven by lines on standard input exactly as java/StorageBench.java is: "ready" once
the case is set up and warm, then one round a line, answered by "SECONDS CPU UNITS".
"""

from __future__ import annotations

import gc
import mmap
import os
import random
import struct
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.peers.storage_data import NOW, linked, read_sets
from kcore.common.topic_partition import TopicPartition
from kcore.log.batch_filter import BatchFilter
from kcore.log.log_cleaner import Cleaner
from kcore.log.log_cleaner_manager import LogToClean
from kcore.log.log_config import LogConfig
from kcore.log.log_loader import load_log
from kcore.log.log_segment import LogSegment
from kcore.log.log_validator import assign_offsets, validate_records
from kcore.log.offset_index import OffsetIndex
from kcore.log.offset_map import OffsetMap
from kcore.log.unified_log import UnifiedLog
from kcore.record.column_batches import batches_of
from kcore.record.columns import binary_column, make_columns
from kcore.record.crc32c import crc32c
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import RecordBatch
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.record.record_columns import columns_of

LIMIT = 256 << 20  # bytes written before a log starts anew
PARTITION = TopicPartition("bench", 0)
NO_LIMIT = 2**63 - 1


class Case(ABC):
    """One piece of work: run() is timed and says how many units it did, before() is not timed."""

    def __init__(self, data: Path, work: Path) -> None:
        self.data = data
        self.work = work
        self._directories = 0

    def fresh_directory(self) -> Path:
        self._directories += 1
        directory = self.work / f"bench{self._directories}-0"
        directory.mkdir(parents=True)
        return directory

    def linked(self, name: str) -> Path:
        return linked(self.data / name, self.fresh_directory())

    def before(self) -> None:  # noqa: B027  (most cases have nothing to prepare)
        pass

    @abstractmethod
    def run(self) -> int: ...

    def measure(self, seconds: float) -> tuple[float, float, int]:
        """Seconds, CPU seconds of this thread (so many at least), units."""
        spent, cpu, units = 0.0, 0.0, 0
        while cpu < seconds:
            self.before()
            start, cpu_start = time.perf_counter(), time.thread_time()
            units += self.run()
            cpu += time.thread_time() - cpu_start
            spent += time.perf_counter() - start
        return spent, cpu, units


class Pool:
    """Single batches, and the offsets that lie behind them in a log."""

    def __init__(self, path: Path) -> None:
        self.buffers = read_sets(path)
        self.counts = [struct.unpack_from(">i", buffer, 57)[0] for buffer in self.buffers]
        self.bytes = sum(map(len, self.buffers))
        self.records = sum(self.counts)
        self.end = 0

    def from_producer(self) -> None:
        """Base offset 0 in each batch, as a producer sends it."""
        for buffer in self.buffers:
            buffer[0:8] = bytes(8)

    def in_sequence(self) -> None:
        """The next sequence numbers of an idempotent producer."""
        for buffer, count in zip(self.buffers, self.counts, strict=True):
            struct.pack_into(">qhi", buffer, 43, 4711, 0, self.end)
            struct.pack_into(">I", buffer, 17, crc32c(memoryview(buffer)[21:]))
            self.end += count

    def from_leader(self) -> None:
        """The next offsets of the log, as a leader sends them."""
        for buffer, count in zip(self.buffers, self.counts, strict=True):
            struct.pack_into(">q", buffer, 0, self.end)
            self.end += count


# -- appends ----------------------------------------------------------------------------------------------------------


class SegmentAppend(Case):
    """LogSegment.append of MemoryRecords that exist already, `group` batches in each."""

    def __init__(self, data: Path, work: Path, name: str, group: str = "1") -> None:
        super().__init__(data, work)
        self.pool = Pool(data / name)
        buffers, size = self.pool.buffers, int(group)
        self.sets = [MemoryRecords(bytearray().join(buffers[n : n + size])) for n in range(0, len(buffers), size)]
        self.segment: LogSegment | None = None

    def before(self) -> None:
        if self.segment is None or self.segment.size + self.pool.bytes > LIMIT:
            if self.segment is not None:
                self.segment.delete()
            self.segment = LogSegment(str(self.fresh_directory()), 0)
            self.pool.end = 0
        end = self.pool.end
        for records in self.sets:
            end = assign_offsets(records, end, 0) + 1
        self.pool.end = end

    def run(self) -> int:
        assert self.segment is not None
        append = self.segment.append
        for records in self.sets:
            append(records)
        return self.pool.bytes


class PlainWrite(Case):
    """The limit of all appends: os.pwrite of the same bytes, and nothing else."""

    def __init__(self, data: Path, work: Path, name: str, group: str = "1") -> None:
        super().__init__(data, work)
        buffers, size = read_sets(data / name), int(group)
        self.buffers = [bytearray().join(buffers[n : n + size]) for n in range(0, len(buffers), size)]
        self.bytes = sum(map(len, self.buffers))
        self.path = self.fresh_directory() / "plain"
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT)
        self.position = 0

    def before(self) -> None:
        if self.position + self.bytes > LIMIT:
            os.close(self.fd)
            self.path.unlink()
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT)
            self.position = 0

    def run(self) -> int:
        fd, position = self.fd, self.position
        for buffer in self.buffers:
            position += os.pwrite(fd, buffer, position)
        self.position = position
        return self.bytes


class LogAppend(Case):
    """Appends to a log, from bytes as they came in from the network."""

    def __init__(self, data: Path, work: Path, name: str) -> None:
        super().__init__(data, work)
        self.pool = Pool(data / name)
        self.log: UnifiedLog | None = None

    def before(self) -> None:
        if self.log is None or self.log.size + self.pool.bytes > LIMIT:
            if self.log is not None:
                self.log.delete()
            self.log = load_log(str(self.fresh_directory()), PARTITION, LogConfig())
            self.pool.end = 0
        self.prepare(self.pool)

    @abstractmethod
    def prepare(self, pool: Pool) -> None: ...

    @abstractmethod
    def how(self, log: UnifiedLog) -> Callable[[bytearray], object]: ...

    def run(self) -> int:
        assert self.log is not None
        append = self.how(self.log)
        for buffer in self.pool.buffers:
            append(buffer)
        return self.pool.bytes


class LeaderAppend(LogAppend):
    """With or without what clients add by default: a producer id and sequence numbers."""

    def __init__(self, data: Path, work: Path, name: str, idempotent: str = "") -> None:
        super().__init__(data, work, name)
        self.idempotent = bool(idempotent)

    def prepare(self, pool: Pool) -> None:
        pool.from_producer()
        if self.idempotent:
            pool.in_sequence()

    def how(self, log: UnifiedLog) -> Callable[[bytearray], object]:
        return log.append_as_leader


class FollowerAppend(LogAppend):
    def prepare(self, pool: Pool) -> None:
        pool.from_leader()

    def how(self, log: UnifiedLog) -> Callable[[bytearray], object]:
        return log.append_as_follower


# -- what is read from files ------------------------------------------------------------------------------------------


class OneSegment(Case):
    def __init__(self, data: Path, work: Path, name: str) -> None:
        super().__init__(data, work)
        self.directory = self.linked(name)
        self.segment = LogSegment(str(self.directory), 0, max_segment_bytes=2**31 - 1)
        self.targets = targets(self.segment.read_next_offset())


class Recover(OneSegment):
    """CRC of every batch, both indexes rebuilt, and what epoch cache and producer state want to know."""

    def __init__(self, data: Path, work: Path, name: str, threads: str = "1") -> None:
        super().__init__(data, work, name)
        self.others = ThreadPoolExecutor(int(threads) - 1) if int(threads) > 1 else None

    def run(self) -> int:
        epochs = set()

        def note(batches: Iterable[RecordBatch]) -> None:
            epochs.update(batch.leader_epoch for batch in batches)

        result = self.segment.recover(note, only_noteworthy=True, threads=self.others)
        assert result.truncated_bytes == 0 and epochs == {0}
        return result.valid_bytes


class OneCrc(Case):
    """The limit of all scans that check CRCs: the CRC of a whole log file, as one piece."""

    def __init__(self, data: Path, work: Path, name: str) -> None:
        super().__init__(data, work)
        (log,) = (data / name).glob("*.log")
        with open(log, "rb") as file:
            self.mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def run(self) -> int:
        crc32c(self.mapping)
        return len(self.mapping)


class HeaderScan(OneSegment):
    def __init__(self, data: Path, work: Path, name: str) -> None:
        super().__init__(data, work, name)
        first = self.segment.read(0, 1, min_one_message=True)
        assert first is not None
        self.batches = self.segment.size // first.records.size_in_bytes

    def run(self) -> int:
        result = self.segment.scan(None, check_crc=False)
        assert result.valid_bytes == self.segment.size
        return self.batches


class TranslateOffset(OneSegment):
    def run(self) -> int:
        translate_offset = self.segment.translate_offset
        for target in self.targets:
            translate_offset(target)
        return len(self.targets)


class LogRead(Case):
    def __init__(self, data: Path, work: Path, name: str) -> None:
        super().__init__(data, work)
        directory = str(self.linked(name))
        self.log = load_log(directory, PARTITION, LogConfig(), had_clean_shutdown=True, sole_replica=True)
        self.targets = targets(self.log.log_end_offset)

    def run(self) -> int:
        read = self.log.read
        for target in self.targets:
            read(target, 1 << 20)
        return len(self.targets)


class IndexLookup(Case):
    ENTRIES = (10 << 20) // 8

    def __init__(self, data: Path, work: Path, which: str) -> None:
        super().__init__(data, work)
        path = self.fresh_directory() / "00000000000000000000.index"
        self.index = OffsetIndex(str(path), 0, max_index_size=10 << 20)
        for i in range(self.ENTRIES):
            self.index.append(i * 16 + 15, i * 1600)
        if which == "random":
            self.targets = targets(self.ENTRIES * 16)
        else:
            self.targets = [(self.ENTRIES - 1000) * 16 + target for target in targets(16_000)]

    def run(self) -> int:
        lookup = self.index.lookup
        for target in self.targets:
            lookup(target)
        return len(self.targets)


def targets(end: int) -> list[int]:
    rng = random.Random(7)
    return [rng.randrange(end) for _ in range(10_000)]


# -- records ----------------------------------------------------------------------------------------------------------


class Validate(Case):
    """From bytes to validated records with their offsets: the CRC, which Kafka checks elsewhere, is in it.  Magic 2 in
    place; magic 1 becomes magic 2."""

    def __init__(self, data: Path, work: Path, name: str, codec: str = "none") -> None:
        super().__init__(data, work)
        self.buffers = read_sets(data / name)
        self.magic = self.buffers[0][16]
        assert MemoryRecords(self.buffers[0]).batches[0].compression == codec

    def before(self) -> None:
        if self.magic == 2:
            for buffer in self.buffers:
                buffer[0:8] = bytes(8)

    def run(self) -> int:
        end = 0
        for buffer in self.buffers:
            records = MemoryRecords(buffer)
            result = validate_records(
                records,
                from_client=True,
                compacted=False,
                timestamp_type="CreateTime",
                now_ms=NOW,
                before_max_ms=NO_LIMIT,
                after_max_ms=3_600_000,
            )
            end = assign_offsets(result.records or records, end, 0) + 1
        return end


class RecordsToColumns(Case):
    """Offset, timestamp, and where key and value lie: what Kafka's side looks at.  All batches are in one buffer, as a
    read gives them."""

    def __init__(self, data: Path, work: Path, name: str) -> None:
        super().__init__(data, work)
        pool = Pool(data / name)
        pool.from_leader()
        self.buffer = b"".join(pool.buffers)

    def run(self) -> int:
        columns = ["offset", "timestamp", "key", "value"]
        return len(columns_of(self.buffer, columns=columns, check_crc=False))


class ColumnsToBatches(Case):
    def __init__(self, data: Path, work: Path, name: str) -> None:
        super().__init__(data, work)
        pool = Pool(data / name)
        pool.from_leader()
        self.size = max(map(len, pool.buffers))
        read = columns_of(b"".join(pool.buffers))
        assert read.value is not None
        # The values side by side, as a data frame has them; not where they lie in the batches.
        _, offsets, bytes_, _ = read.value.gather()
        self.columns = make_columns(
            len(read), timestamp=read.timestamp, value=binary_column(offsets, bytes_, None, 0, len(read))
        )

    def run(self) -> int:
        written = batches_of(self.columns, base_offset=0, max_bytes=self.size)
        assert len(written) > self.size
        return len(self.columns)


class AiokafkaIteration(Case):
    """aiokafka's side of RecordsToColumns."""

    def __init__(self, data: Path, work: Path, name: str) -> None:
        super().__init__(data, work)
        self.buffers = [bytes(buffer) for buffer in Pool(data / name).buffers]

    def run(self) -> int:
        from aiokafka.record.default_records import DefaultRecordBatch

        count = 0
        for buffer in self.buffers:
            for record in DefaultRecordBatch(buffer):
                _ = record.offset, record.timestamp, record.key, record.value
                count += 1
        return count


class AiokafkaBuilding(Case):
    """aiokafka's side of ColumnsToBatches."""

    def __init__(self, data: Path, work: Path, name: str) -> None:
        super().__init__(data, work)
        batches = [MemoryRecords(buffer).batches[0] for buffer in Pool(data / name).buffers]
        self.batches = [[(record.timestamp, record.value) for record in batch.records()] for batch in batches]

    def run(self) -> int:
        from aiokafka.record.default_records import DefaultRecordBatchBuilder

        count = 0
        for records in self.batches:
            builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 24)
            for i, (timestamp, value) in enumerate(records):
                builder.append(i, timestamp, None, value, [])
            count += len(records)
            assert builder.build()
        return count


# -- the cleaner ------------------------------------------------------------------------------------------------------


class Clean(Case):
    """Offset map and rewritten segment of a log whose keys all come several times."""

    def __init__(self, data: Path, work: Path) -> None:
        super().__init__(data, work)
        self.cleaner = Cleaner(OffsetMap(128 << 20), io_buffer_size=512 << 10)
        self.log: UnifiedLog | None = None

    def before(self) -> None:
        if self.log is not None:
            self.log.delete()
        config = LogConfig.from_kafka({"cleanup.policy": "compact"})
        self.log = load_log(str(self.linked("keyed")), PARTITION, config, had_clean_shutdown=True, sole_replica=True)

    def run(self) -> int:
        log = self.log
        assert log is not None
        size = log.size
        self.cleaner.clean(LogToClean(log, 0, log.active_segment.base_offset, 0, size))
        assert log.size < size, "nothing was cleaned"
        return size


class OffsetMapCalls(Case):
    """As a cleaning calls it, a chunk of batches at a time; ours includes parsing the records that the keys are of."""

    KEYS = 1_000_000
    PER_BATCH = 500

    def __init__(self, data: Path, work: Path, which: str) -> None:
        super().__init__(data, work)
        self.chunks = [self.chunk(base) for base in range(0, self.KEYS, 20 * self.PER_BATCH)]
        self.map = OffsetMap(64 << 20)
        self.put = which == "put"
        self.map.clear()
        if not self.put:
            self.run_put()

    def chunk(self, start: int) -> MemoryRecords:
        batches = bytearray()
        for base in range(start, start + 20 * self.PER_BATCH, self.PER_BATCH):
            builder = RecordBatchBuilder(base_offset=base)
            for n in range(base, base + self.PER_BATCH):
                builder.append(b"v", struct.pack(">QQ", n * 0x9E3779B97F4A7C15 % 2**64, n))
            batches += builder.build()
        return MemoryRecords(bytes(batches))

    def before(self) -> None:
        if self.put:
            self.map.clear()

    def run_put(self) -> None:
        for chunk in self.chunks:
            self.map.add(chunk, 0, None)

    def run(self) -> int:
        if self.put:
            self.run_put()
        else:
            batch_filter = BatchFilter(self.map, None, None, now_ms=0, delete_retention_ms=0)
            for chunk in self.chunks:
                batch_filter.filter(chunk)
        return self.KEYS


CASES: dict[str, Callable[..., Case]] = {
    "segment_append": SegmentAppend,
    "plain_write": PlainWrite,
    "leader_append": LeaderAppend,
    "follower_append": FollowerAppend,
    "recover": Recover,
    "one_crc": OneCrc,
    "header_scan": HeaderScan,
    "translate_offset": TranslateOffset,
    "log_read": LogRead,
    "index_lookup": IndexLookup,
    "validate": Validate,
    "convert": Validate,
    "records_to_columns": RecordsToColumns,
    "columns_to_batches": ColumnsToBatches,
    "aiokafka_iteration": AiokafkaIteration,
    "aiokafka_building": AiokafkaBuilding,
    "clean": Clean,
    "offset_map": OffsetMapCalls,
}


def main() -> None:
    name, data, work, warm, seconds = sys.argv[1:]
    kind, *options = name.split(":")
    case = CASES[kind](Path(data), Path(work), *options)
    gc.freeze()
    case.measure(float(warm))
    print("ready", flush=True)
    for _ in sys.stdin:
        print(*case.measure(float(seconds)), flush=True)


if __name__ == "__main__":
    main()
