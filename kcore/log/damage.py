"""Damage in a segment of an open log: where the first bad batch is that a reader from an offset on meets."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kcore.errors import CorruptMessage
from kcore.record.memory_records import MemoryRecords

if TYPE_CHECKING:
    from kcore.log.log_segment import LogSegment
    from kcore.log.unified_log import UnifiedLog


#: Of the records whose headers are compared with the log, bytes: as many as a follower fetches at once.
_READ_BYTES = 1 << 20


class Damage(NamedTuple):
    """offset: of the first record that cannot be read.  position: bytes from the start of the file `path`."""

    offset: int
    path: str
    position: int
    reason: str

    def __str__(self) -> str:
        return f"offset {self.offset}, {self.path} position {self.position}: {self.reason}"


def find_damage(log: UnifiedLog, offset: int) -> Damage | None:
    """Check the segment that a read at offset returns records of: the CRCs from there to its end, and all its headers;
    of the records that one read returns, also what is wrong only beside the rest of the log.

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
        checked = segment.scan(None, start_position=position, check_crc=True, only_noteworthy=True)
        # From the start: which of two overlapping batches has the wrong base offset shows beside the batch before them.
        walked = segment.scan(None, check_crc=False, only_noteworthy=True)
        if checked.truncated_bytes or walked.truncated_bytes:
            result = min(checked, walked, key=lambda result: result.valid_bytes)
            lowest = offset if result is checked and place is not None else segment.base_offset
            # Not above the last record, whatever the headers say: what is at the mark must be cut.
            first_offset = min(max(result.last_offset + 1, lowest), log.log_end_offset - 1)
            return Damage(first_offset, segment.log_path, result.valid_bytes, result.reason or "")
        if place is not None:
            return _wrong_header(log, segment, offset)
        segment = log.segments.higher(segment.base_offset)
    return None


def _wrong_header(log: UnifiedLog, segment: LogSegment, offset: int) -> Damage | None:
    """The first batch, of those that one read returns, whose base offset or leader epoch cannot be right.

    No CRC covers these two fields.  A follower refuses such a batch, as it does one with a wrong CRC.
    """
    # Up to the log end: a batch that is being appended has its bytes in the file before the log ends after it.
    records = log.read(offset, _READ_BYTES).records
    if isinstance(records, MemoryRecords):  # nothing
        return None
    end_offset, latest_epoch = log.log_end_offset, log.leader_epoch_cache.latest_epoch
    following = log.segments.higher(segment.base_offset)
    limit = end_offset if following is None else following.base_offset
    expected = segment.base_offset
    for batch in records.memory_records(check_crc=False).batches:
        reason = None
        if not expected <= batch.base_offset <= batch.last_offset < limit:
            reason = (
                f"its offsets are {batch.base_offset} to {batch.last_offset}, expected within [{expected}, {limit})"
            )
        elif not -1 <= batch.leader_epoch <= latest_epoch:
            reason = f"its leader epoch is {batch.leader_epoch}, the log's latest is {latest_epoch}"
        if reason is not None:
            return Damage(max(expected, offset), segment.log_path, batch.position, reason)
        expected = batch.last_offset + 1
    return None
