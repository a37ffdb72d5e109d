"""SegmentFile: a segment's .log, its bytes and who walks over them (SEG)."""

from collections.abc import Callable
from typing import NamedTuple

from kcore.record.file_records import FileRecords
from kcore.record.memory_records import BatchTable

class RecoveryResult(NamedTuple):
    valid_bytes: int
    truncated_bytes: int
    reason: str | None  # why the scan stopped before the end of the file
    last_offset: int  # base_offset - 1 when empty

class SegmentFile:
    """Not thread-safe for writers (the log's lock serialises them); reads need no lock.  Base of LogSegment.

    Our own file is read through a mapping; one that is not writable with pread, since its owner may cut it at any
    time."""

    @property
    def base_offset(self) -> int: ...
    @property
    def log_path(self) -> str: ...
    @property
    def writable(self) -> bool: ...
    @property
    def size(self) -> int: ...  # bytes of the .log
    @property
    def first_batch_timestamp(self) -> int | None: ...  # what time rolling measures from (LOG-18)
    def slice(self, position: int, size: int) -> FileRecords: ...
    def scan(
        self,
        on_batches: Callable[[BatchTable], None] | None,
        *,
        start_position: int = ...,
        check_crc: bool = ...,
        only_noteworthy: bool = ...,
    ) -> RecoveryResult:
        """Walk the file in chunks without changing it.  only_noteworthy: hand over only batches that change the
        leader epoch, have a producer id, or are control batches: all that epoch cache and producer state need.
        Tables hold headers only; slice(batch.position, batch.size) has a batch's bytes."""

    def end_before_damage(self) -> RecoveryResult: ...
    def renumber(self, base_offset: int, leader_epoch: int) -> None:
        """Another base offset and this leader epoch for all batches, in place; the caller renames the closed files.
        Raises CorruptMessage, nothing changed, for what is no whole batch of magic 2; ReadOnlyLog, OSError."""
