"""The small text files beside a log: recovery points, log starts, high watermarks, leader epochs, cleaner offsets.

All have one format: a line with the version (0), a line with the number of entries, one line per entry.  An entry is
"topic partition offset" in the files of a data directory (recovery-point-offset-checkpoint,
log-start-offset-checkpoint, replication-offset-checkpoint, cleaner-offset-checkpoint), "epoch start_offset" in the
leader-epoch-checkpoint of a partition.  A file is replaced as a whole: written beside, synced, renamed, and then the
directory is synced, so that a crash leaves the old file or the new one.
Source: CheckpointFile, OffsetCheckpointFile, LeaderEpochCheckpointFile, Kafka 2.4-4.x.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kcore.common.file import read_file, write_atomically
from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptFile

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
REPLICATION_OFFSET_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"

logger = logging.getLogger(__name__)

_VERSION = 0
_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1


class EpochEntry(NamedTuple):
    epoch: int
    start_offset: int


def _write_lines(path: str, lines: Iterable[str], *, sync: bool) -> None:
    entries = list(lines)
    text = "".join(f"{line}\n" for line in (str(_VERSION), str(len(entries)), *entries))
    write_atomically(path, text.encode(), sync=sync)


def _read_entries(path: str, field_count: int) -> list[tuple[int, list[str]]]:
    """(line number, fields) of each entry.  No file, or an empty one as Kafka creates it, holds no entry.

    Raises CorruptFile naming file and line.
    """
    try:
        data = read_file(path)
    except FileNotFoundError:
        return []
    if not data:
        return []
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise CorruptFile(f"{path}: not a text file") from None
    version = _number(path, 1, lines[0])
    if version != _VERSION:
        raise CorruptFile(f"{path}: line 1: version {version}, expected {_VERSION}")
    if len(lines) < 2:
        raise CorruptFile(f"{path}: line 2: the number of entries is missing")
    expected = _number(path, 2, lines[1])
    entries = [(number, line.split()) for number, line in enumerate(lines[2:], 3) if line.strip()]
    if not data.endswith(b"\n"):  # the last number may have lost digits
        raise CorruptFile(f"{path}: line {len(lines)}: the line does not end")
    if len(entries) != expected:
        raise CorruptFile(f"{path}: line 2: {expected} entries announced, {len(entries)} found")
    for number, parts in entries:
        if len(parts) != field_count:
            raise CorruptFile(f"{path}: line {number}: {len(parts)} fields, expected {field_count}")
    return entries


def _number(path: str, line: int, text: str) -> int:
    try:
        # int() alone would take "1_000" and digits of other scripts.
        if not text.strip().isascii() or "_" in text:
            raise ValueError
        return int(text)
    except ValueError:
        raise CorruptFile(f"{path}: line {line}: {text!r} is not a number") from None


class OffsetCheckpointFile:
    """partition -> offset, for all partitions of a data directory.  Thread-safe."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()

    def read(self) -> dict[TopicPartition, int]:
        """Raises CorruptFile, OSError."""
        with self._lock:
            entries = _read_entries(self.path, 3)
        result = {}
        for line, (topic, partition, offset) in entries:
            tp = TopicPartition(topic, _number(self.path, line, partition))
            value = _number(self.path, line, offset)
            if not (0 <= tp.partition <= _MAX_INT32 and 0 <= value <= _MAX_INT64):
                raise CorruptFile(f"{self.path}: line {line}: no partition {tp.partition} or offset {value}")
            result[tp] = value
        return result

    def read_or_warn(self) -> dict[TopicPartition, int]:
        """As read(), but for a damaged file: logs a warning and returns no offsets.  Raises OSError."""
        try:
            return self.read()
        except CorruptFile as error:
            logger.warning("going on without a checkpoint: %s", error)
            return {}

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raises OSError; the file then still has its old content."""
        with self._lock:
            _write_lines(
                self.path, (f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items()), sync=True
            )


class LeaderEpochCheckpointFile:
    """A partition's (epoch, start offset) entries.  Not thread-safe: LeaderEpochFileCache owns it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self) -> list[EpochEntry]:
        """In the order of the file.  Raises CorruptFile, OSError."""
        entries = []
        for line, (epoch, offset) in _read_entries(self.path, 2):
            entry = EpochEntry(_number(self.path, line, epoch), _number(self.path, line, offset))
            if entry.epoch > _MAX_INT32 or entry.start_offset > _MAX_INT64:
                raise CorruptFile(f"{self.path}: line {line}: no epoch {epoch} or offset {offset}")
            entries.append(entry)
        return entries

    def write(self, entries: Iterable[EpochEntry], *, sync: bool = True) -> None:
        """Raises OSError; the file then still has its old content."""
        _write_lines(self.path, (f"{entry.epoch} {entry.start_offset}" for entry in entries), sync=sync)
