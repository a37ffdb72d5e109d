"""The batches of a slice of a file that come before damage."""

from __future__ import annotations

from kcore.errors import CorruptMessage
from kcore.record.file_records import FileRecords
from kcore.record.memory_records import MemoryRecords


def valid_part(records: FileRecords, *, check_crc: bool = True) -> tuple[MemoryRecords, CorruptMessage | None]:
    """The batches before the first damage, and that damage, if there is any.  check_crc: whether a wrong CRC is damage.

    Raises CorruptMessage if no batch is before it, OSError.
    """
    try:
        return records.memory_records(check_crc=check_crc), None
    except CorruptMessage as error:
        size = (error.position or 0) - records.position
        if not 0 < size < records.size_in_bytes:
            raise
        return records.slice(0, size).memory_records(check_crc=check_crc), error
