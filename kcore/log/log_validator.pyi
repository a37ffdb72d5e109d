"""LogValidator: what a leader checks in a producer's records, and the assignment of their offsets (VAL)."""

from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import TimestampType

class ValidationResult:
    max_timestamp: int
    offset_of_max_timestamp: int  # VAL-21, as a delta from the first record's offset until offsets are assigned
    record_count: int

def validate_records(
    records: MemoryRecords,
    *,
    from_client: bool,
    compacted: bool,
    timestamp_type: TimestampType,
    now_ms: int,
    before_max_ms: int,
    after_max_ms: int,
    source: str = ...,
) -> ValidationResult:
    """Check a leader's append, record by record (LOG-07, VAL-07..12, 14, 16..20), compressed ones too.

    Outside the log lock, GIL released for the native part.  No byte changes; the BatchTable gets the max timestamp
    that the records really have, and assign_offsets writes it: so validate the MemoryRecords that will be assigned.
    Raises InvalidRecord or InvalidTimestamp with .record_errors = [(index in the batch, message)], CorruptMessage
    for bytes the codec refuses.
    """

def assign_offsets(
    records: MemoryRecords, base_offset: int, leader_epoch: int, log_append_time: int | None = None
) -> int:
    """Rewrite the headers in place (VAL-03): offsets base_offset.., epoch; the max timestamp, and its CRC, when
    log_append_time is given or validation found another.  The BatchTable follows.  Returns the last offset."""
