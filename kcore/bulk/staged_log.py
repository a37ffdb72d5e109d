"""Finished segments that belong to no log yet: a bulk load writes them before the end of the log is determined.

A staged log has the segments of one partition in a directory of its own.  Its offsets count from 0 and its leader epoch
is 0; bulk_commit renumbers it and adds it to a log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kcore.common.file import make_directory, sync_path
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import MessageTooLarge
from kcore.log.log_config import LogConfig
from kcore.log.log_segment import LogSegment
from kcore.record.memory_records import MemoryRecords

if TYPE_CHECKING:
    from kcore.record.memory_records import Buffer


class StagedSegment(NamedTuple):
    base_offset: int
    next_offset: int
    size: int  # bytes of the .log


class StagedLog(NamedTuple):
    topic_partition: TopicPartition
    directory: str
    segments: tuple[StagedSegment, ...]

    @property
    def record_count(self) -> int:
        return self.segments[-1].next_offset if self.segments else 0


class StagedLogWriter:
    """Writes a staged log.  Not thread-safe.  Ends with finish() or close(); close() does not remove the files."""

    def __init__(
        self, topic_partition: TopicPartition, directory: str, config: LogConfig, *, time: Time = SYSTEM_TIME
    ) -> None:
        self.topic_partition = topic_partition
        self.directory = directory
        self.next_offset = 0
        self._config = config
        self._now_ms = time.milliseconds()
        self._finished: list[StagedSegment] = []
        make_directory(directory)
        self._segment: LogSegment | None = self._new_segment(0)

    def _new_segment(self, base_offset: int) -> LogSegment:
        config = self._config
        return LogSegment(
            self.directory,
            base_offset,
            index_interval_bytes=config.index_interval_bytes,
            max_index_size=config.segment_index_bytes,
            max_segment_bytes=config.segment_bytes,
            now_ms=self._now_ms,
        )

    def append(self, batches: Buffer) -> None:
        """Batches of magic 2 whose offsets go on from next_offset; rolls segments by Kafka's rules (LOG-17..20).

        Raises MessageTooLarge, with nothing written, for a batch above max.message.bytes; OSError.
        """
        records = MemoryRecords(batches, check_crc=False, source=self.directory)
        rows = records.batches.to_numpy()
        if len(rows) == 0:
            return
        largest = int(rows["size"].max())
        if largest > self._config.max_message_bytes:
            raise MessageTooLarge(
                f"{self.topic_partition}: a batch of one record has {largest} bytes, "
                f"the largest that a broker would take has {self._config.max_message_bytes} (max.message.bytes)"
            )
        first, count = 0, len(rows)
        ends = rows["position"] + rows["size"]
        while first < count:
            segment = self._segment
            assert segment is not None, "a finished log is appended to"
            start = int(rows["position"][first])
            stop = int(ends.searchsorted(start + self._config.segment_bytes - segment.size, side="right"))
            if stop == first and segment.size == 0:
                stop = first + 1  # a batch larger than segment_bytes gets a segment of its own
            if stop == first or (
                segment.size
                and segment.should_roll(
                    int(ends[stop - 1]) - start,
                    int(rows["last_offset"][stop - 1]),
                    int(rows["max_timestamp"][first:stop].max()),
                    self._now_ms,
                    segment_bytes=self._config.segment_bytes,
                    segment_ms=self._config.segment_ms,
                )
            ):
                self._roll(int(rows["base_offset"][first]))
                continue
            piece = records
            if stop - first < count:
                piece = MemoryRecords(memoryview(batches)[start : int(ends[stop - 1])], check_crc=False)
            segment.append(piece)
            first = stop
            self.next_offset = int(rows["last_offset"][stop - 1]) + 1

    def _roll(self, base_offset: int) -> None:
        self._end_segment(base_offset)
        self._segment = self._new_segment(base_offset)

    def _end_segment(self, next_offset: int) -> None:
        segment = self._segment
        assert segment is not None
        self._finished.append(StagedSegment(segment.base_offset, next_offset, segment.size))
        self._segment = None
        segment.on_become_inactive()
        segment.flush()
        segment.close()

    def finish(self) -> StagedLog:
        """Ends the last segment; all files and their names are synced.  Raises OSError."""
        self._end_segment(self.next_offset)
        sync_path(self.directory)
        return StagedLog(self.topic_partition, self.directory, tuple(self._finished))

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close(trim=False)
            self._segment = None
