"""LogValidator: what a leader checks in a producer's records, and the assignment of their offsets (VAL)."""

from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import TimestampType

class ValidationResult:
    @property
    def max_timestamp(self) -> int: ...
    @property
    def offset_of_max_timestamp(self) -> int: ...  # VAL-21, counted from the first record's offset
    @property
    def record_count(self) -> int: ...
    @property
    def records(self) -> MemoryRecords | None: ...  # the batch built anew; None: the producer's own is written
    @property
    def converted_count(self) -> int: ...  # VAL-24; 0 in place, as the next two
    @property
    def temporary_bytes(self) -> int: ...
    @property
    def conversion_ns(self) -> int: ...

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
    compression_type: str = ...,
    compression_level: int | None = ...,
    target_magic: int = ...,
    base_offset: int = ...,
) -> ValidationResult:
    """Check a leader's append, record by record, compressed ones too; build it anew where magic, codec or offsets are
    not the topic's (LOG-07, VAL-02..20).

    Outside the log lock, GIL released for the native part.  No byte of records changes; in place, the BatchTable gets
    the max timestamp that the records really have, and assign_offsets writes it: so validate what will be assigned.
    Raises InvalidRecord or InvalidTimestamp with .record_errors = [(index in the batch, message)], CorruptMessage
    for bytes the codec refuses.
    """

def assign_offsets(
    records: MemoryRecords, base_offset: int, leader_epoch: int, log_append_time: int | None = None
) -> int:
    """Rewrite the headers in place (VAL-03): offsets base_offset.., epoch; the max timestamp, and its CRC, when
    log_append_time is given or validation found another.  The BatchTable follows.  Returns the last offset."""
