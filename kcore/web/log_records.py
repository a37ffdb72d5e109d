"""The records of a log's files, sound or damaged, found through its indexes.  No log is opened."""

from __future__ import annotations

import os
from collections.abc import Iterator

from kcore.common.text import counted
from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaError
from kcore.inspect.batch_reader import Damage, Tail, read_batches, without_path
from kcore.inspect.index_contents import IndexContents, read_index
from kcore.inspect.partition_checks import PartitionFiles, end_limit
from kcore.log.log_file_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import RecordBatch
from kcore.web.records import Bounds, Slice, Taker


class LogRecords:
    """A PartitionRecords of a partition's directory.  Thread-safe: it keeps nothing but the names of the files, as they
    are when it is made."""

    def __init__(self, directory: str) -> None:
        """Raises OSError."""
        self.directory = directory
        self._files = PartitionFiles.of(directory)

    @property
    def topic_partition(self) -> TopicPartition:
        """By the directory's name; partition -1 where that is none of a partition."""
        return self._files.topic_partition or TopicPartition(os.path.basename(self.directory), -1)

    def segments(self, span: Bounds) -> list[str]:
        """The .log files that may hold these offsets, in order."""
        return [
            self._files.file(base, LOG_SUFFIX)
            for base in self._files.bases
            if base < span.end and end_limit(self._files, base) > span.start
        ]

    def bounds(self) -> Bounds:
        end = self._files.log_start_offset
        for base in self._files.bases[-1:]:
            end = base
            for item in self._batches_from(base, None):
                if isinstance(item, RecordBatch):
                    end = max(end, item.last_offset + 1)
        return Bounds(self._files.log_start_offset, end)

    def offset_at(self, timestamp_ms: int) -> int:
        for base in self._files.bases:
            times = self._index(base, TIME_INDEX_SUFFIX)
            is_last = base == self._files.bases[-1]
            if times is not None and len(times.entries):
                if int(times.entries["timestamp"][-1]) < timestamp_ms and not is_last:
                    continue
                before = int(times.entries["timestamp"].searchsorted(timestamp_ms)) - 1
                start = base if before < 0 else base + int(times.entries["offset"][before])
            else:
                start = base
            for item in self._batches_from(base, start):
                if isinstance(item, RecordBatch) and item.max_timestamp >= timestamp_ms:
                    offset = _first_offset(item, timestamp_ms)
                    if offset is not None:
                        return offset
        return self.bounds().end

    def read(self, offset: int, most: int) -> Slice:
        taker = Taker(max(offset, self._files.log_start_offset), most)
        wanted = taker.slice.next_offset
        first = next((base for base in reversed(self._files.bases) if base <= wanted), 0)
        for base in self._files.bases:
            if base >= first and not taker.is_full:
                self._read_segment(base, wanted, taker)
        return taker.slice

    def _read_segment(self, base: int, offset: int, taker: Taker) -> None:
        name = os.path.basename(self._files.file(base, LOG_SUFFIX))
        for item in self._batches_from(base, offset):
            if taker.is_full:
                return
            if isinstance(item, RecordBatch):
                try:
                    taker.take(item)
                except KafkaError as error:
                    problem = without_path(error, self._files.file(base, LOG_SUFFIX))
                    taker.add_problem(item.base_offset, f"{name}, position {item.position}: {problem}")
            else:
                taker.add_problem(item.offset, f"{name}, position {item.position}: {damage_text(item)}")

    def _batches_from(self, base: int, offset: int | None) -> Iterator[RecordBatch | Damage | Tail]:
        """The batches of a segment that may hold the offset or a later one, None for the last ones, and damage between
        them.  Those of one item are valid until the next one is read."""
        path = self._files.file(base, LOG_SUFFIX)
        start = self._position(base, offset)
        for item in read_batches(path, start, end_offset=self._files.next_base(base)):
            if isinstance(item, MemoryRecords):
                yield from (batch for batch in item.batches if offset is None or batch.last_offset >= offset)
            elif offset is None or isinstance(item, Tail) or item.last_offset is None or item.last_offset >= offset:
                yield item

    def _position(self, base: int, offset: int | None) -> int:
        """Where a batch begins at or before the offset, None for the last one that the index has; 0 if the index does
        not lead to a batch."""
        index = self._index(base, OFFSET_INDEX_SUFFIX)
        if index is None or not len(index.entries):
            return 0
        entries = index.entries
        slot = len(entries) - 1 if offset is None else int(entries["offset"].searchsorted(offset - base, "right")) - 1
        if slot < 0:
            return 0
        position, indexed = int(entries["position"][slot]), base + int(entries["offset"][slot])
        first = next(read_batches(self._files.file(base, LOG_SUFFIX), position), None)
        is_batch = isinstance(first, MemoryRecords) and first.first_offset <= indexed <= first.batches[0].last_offset
        return position if is_batch else 0

    def _index(self, base: int, suffix: str) -> IndexContents | None:
        """None where there is none that can be read."""
        try:
            return read_index(self._files.file(base, suffix))
        except OSError:
            return None


def _first_offset(batch: RecordBatch, timestamp_ms: int) -> int | None:
    """Of the first record of at least that time; None if there is none, or the records cannot be read."""
    try:
        return next((record.offset for record in batch.records() if record.timestamp >= timestamp_ms), None)
    except KafkaError:
        return None


def damage_text(item: Damage | Tail) -> str:
    if isinstance(item, Damage):
        return item.problem
    return f"the file ends inside a batch: {counted(item.size, 'byte')} of it"
