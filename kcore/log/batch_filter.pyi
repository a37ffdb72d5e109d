"""BatchFilter: what is left of a chunk of a compacted log, by the rules in csrc/batch_filter.h."""

from collections.abc import Callable, Iterable

from kcore.log.offset_map import OffsetMap
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import RecordBatch

DISCARD_RECORDS: int  # none of its records stays
RETAIN_EMPTY: int  # the batch stays even without a record
START_HORIZON: int  # the marker of a transaction without data: counts as a tombstone

class BatchFilter:
    """Filters chunk after chunk of one log, in the order of offsets.  Not thread-safe.

    policy(batch) -> flags for markers, transactional batches, and those whose last offset is among stops (those of
    compressed or older batches too); rebuild_legacy(batch) -> the bytes left of a batch of magic 0 or 1, None for all.
    """

    def __init__(
        self,
        offset_map: OffsetMap,
        policy: Callable[[RecordBatch], int],
        rebuild_legacy: Callable[[RecordBatch], bytes | None],
        *,
        stops: Iterable[int] = ...,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None: ...
    def filter(self, records: MemoryRecords) -> memoryview: ...  # good until the next call; CorruptMessage
    def count_legacy(self, read: int, kept: int, without_key: int) -> None: ...
    @property
    def records_read(self) -> int: ...
    @property
    def records_kept(self) -> int: ...
    @property
    def records_without_key(self) -> int: ...
