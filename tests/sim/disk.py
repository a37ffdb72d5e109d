"""What a dead machine leaves of a broker's data directory.

The files are real.  A crash closes them as they are; a lost power then cuts the .log files at a point at or above the
recovery point, and leaves the leader epochs as they were at the last flush or as they are.
tests/reference/disk.py knows the exact rules call by call; here it is enough that a part of the tail is gone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID

from kcore.common.topic_partition import TopicPartition
from kcore.log.checkpoints import LEADER_EPOCH_CHECKPOINT, REPLICATION_OFFSET_CHECKPOINT, OffsetCheckpointFile
from kcore.log.log_file_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, partition_directory, segment_file
from kcore.log.log_manager import LogManager
from kcore.log.unified_log import UnifiedLog

_SIZE_AT = 8  # of a batch's length, which counts what is after it
_HEADER = 12


class DamagedBatch:
    """A batch of an open log whose last byte the disk returns wrongly.  data: the batch."""

    def __init__(self, log: UnifiedLog, path: str, position: int, data: bytes) -> None:
        self.log = log
        self._path = path
        self._position = position
        self._damaged = data[:-1] + bytes([data[-1] ^ 1])
        _flip(path, position + len(data) - 1)

    def mend(self) -> None:
        """Unless the batch was cut off since; then something else may be there."""
        if os.path.exists(self._path):
            with open(self._path, "rb") as file:
                file.seek(self._position)
                is_there = file.read(len(self._damaged)) == self._damaged
            if is_there:
                _flip(self._path, self._position + len(self._damaged) - 1)


class Disk:
    """One broker's data directory."""

    def __init__(self, path: str) -> None:
        self.path = path
        #: log directory and topic -> (recovery point, leader epochs on the platter), as of the last flush.
        self._flushed: dict[tuple[str, UUID | None], tuple[int, bytes | None]] = {}

    def note_flushes(self, manager: LogManager) -> None:
        """Call it after each step: if a recovery point rose, the leader epochs were synced."""
        for log in manager.all_logs():
            flushed = self._flushed.get(_key(log))
            if flushed is None or flushed[0] != log.recovery_point:
                self._flushed[_key(log)] = (log.recovery_point, _read(_epoch_file(log)))

    def crash(self, manager: LogManager, *, loses_power: bool, kept: float = 1.0, may_leave_holes: bool = False) -> str:
        """The broker is gone without a word; what was cut, as text.

        kept: the share of the unsynced bytes that stays; below a half, the synced leader epochs instead of the last.
        may_leave_holes: for some shares the loss is in the first unsynced segment alone, and the later ones stay.
        """
        cuts = []
        for log in manager.all_logs():
            log.mark_offline(OSError("the broker has crashed"))
            points = {segment.base_offset: segment.size for segment in log.segments}
            for segment in log.segments:
                segment.close(trim=False)
            if loses_power:
                leaves_hole = may_leave_holes and round(kept * 100) % 3 == 1
                cuts.append(self._lose_tail(log, points, kept, leaves_hole=leaves_hole))
        for log_dir in manager._dirs.values():
            log_dir.release()
        return " ".join(cuts)

    def flip_bit(self, partition: str, share: float) -> int | None:
        """Damage the batch at this share of a partition's log, while the broker is down; its offset, None if there is
        no batch.  Without the index of its segment the next start checks that."""
        directory = os.path.join(self.path, partition)
        batches = []
        for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
            if name.endswith(LOG_SUFFIX):
                path = os.path.join(directory, name)
                batches += [(path, *batch) for batch in _batches_of(_read(path) or b"")]
        if not batches:
            return None
        path, offset, end = batches[min(int(share * len(batches)), len(batches) - 1)]
        _flip(path, end - 1)
        with suppress(FileNotFoundError):
            os.unlink(path.removesuffix(LOG_SUFFIX) + OFFSET_INDEX_SUFFIX)
        return offset

    def remove_log(self, topic_partition: TopicPartition) -> int | None:
        """While the broker is down; the checkpointed high watermark of the log, None if it has none above 0."""
        checkpoint = OffsetCheckpointFile(os.path.join(self.path, REPLICATION_OFFSET_CHECKPOINT))
        directory = os.path.join(self.path, partition_directory(topic_partition))
        high_watermark = checkpoint.read().get(topic_partition)
        if not high_watermark or not os.path.isdir(directory):
            return None
        shutil.rmtree(directory)
        return high_watermark

    def _lose_tail(self, log: UnifiedLog, sizes: dict[int, int], kept: float, *, leaves_hole: bool) -> str:
        """The first bytes after the recovery point are there."""
        holds_recovery_point = max((base for base in sizes if base <= log.recovery_point), default=min(sizes))
        unflushed = sorted(base for base in sizes if base >= holds_recovery_point)
        first = segment_file(log.directory, unflushed[0], LOG_SUFFIX)
        flushed_bytes = _position_of(first, log.recovery_point)
        if leaves_hole and len(unflushed) > 1:
            unflushed = unflushed[:1]
        left = flushed_bytes + int((sum(sizes[base] for base in unflushed) - flushed_bytes) * kept)
        cut = f"{log.topic_partition}:{left}"
        for base in unflushed:
            size = min(left, sizes[base])
            if base > unflushed[0] and size == 0:
                _remove_segment(log.directory, base)
            else:
                os.truncate(segment_file(log.directory, base, LOG_SUFFIX), size)
            left -= size
        epochs = self._flushed.get(_key(log), (0, None))[1]
        if epochs is not None and kept < 0.5:
            with open(_epoch_file(log), "wb") as file:
                file.write(epochs)
        return cut


def _remove_segment(directory: str, base_offset: int) -> None:
    """Its name went with its records.

    An empty segment after a shorter one would be a replica with a hole, if the cut is between two batches: recovery
    cannot distinguish that gap from one of a compaction (docs/invariants.md, "known and accepted").
    """
    for name in os.listdir(directory):
        if name.startswith(f"{base_offset:020d}."):
            os.unlink(os.path.join(directory, name))


def _flip(path: str, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def _key(log: UnifiedLog) -> tuple[str, UUID | None]:
    return log.directory, log.topic_id


def _epoch_file(log: UnifiedLog) -> str:
    return os.path.join(log.directory, LEADER_EPOCH_CHECKPOINT)


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _batches_of(data: bytes) -> Iterator[tuple[int, int]]:
    """(base offset, position of its end) of each whole batch."""
    at = 0
    while at + _HEADER <= len(data):
        end = at + _HEADER + int.from_bytes(data[at + _SIZE_AT : at + _HEADER], "big")
        if end > len(data):
            return
        yield int.from_bytes(data[at : at + _SIZE_AT], "big"), end
        at = end


def _position_of(path: str, offset: int) -> int:
    """Where the first batch begins that starts at offset or above; the file's end if none does."""
    data = _read(path) or b""
    at = 0
    while at + _HEADER <= len(data) and int.from_bytes(data[at : at + _SIZE_AT], "big") < offset:
        at += _HEADER + int.from_bytes(data[at + _SIZE_AT : at + _HEADER], "big")
    return min(at, len(data))
