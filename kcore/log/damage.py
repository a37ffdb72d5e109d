"""Damage in a segment of an open log: where the first bad batch is that a reader from an offset on meets."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kcore.errors import CorruptMessage

if TYPE_CHECKING:
    from kcore.log.unified_log import UnifiedLog


class Damage(NamedTuple):
    """offset: of the first record that cannot be read.  position: bytes from the start of the file `path`."""

    offset: int
    path: str
    position: int
    reason: str

    def __str__(self) -> str:
        return f"offset {self.offset}, {self.path} position {self.position}: {self.reason}"


def find_damage(log: UnifiedLog, offset: int) -> Damage | None:
    """Check the segment that a read at offset returns records of, from there to its end, with CRC.

    GIL released; takes no lock.  Raises OSError, LogClosed.
    """
    segment = log.segments.floor(offset)
    while segment is not None:
        try:
            place = segment.translate_offset(offset)
        except CorruptMessage:
            place = None
        # Where no batch has the offset, a wrong length may hide those from there on.
        position = 0 if place is None else place.position
        result = segment.scan(None, start_position=position, check_crc=True, only_noteworthy=True)
        if result.truncated_bytes:
            first_offset = max(result.last_offset + 1, segment.base_offset if place is None else offset)
            return Damage(first_offset, segment.log_path, result.valid_bytes, result.reason or "")
        if place is not None:
            return None
        segment = log.segments.higher(segment.base_offset)
    return None
