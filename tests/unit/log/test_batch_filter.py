"""What the cleaner's native pass does with the room that its output has."""

from kcore.log.batch_filter import BatchFilter
from kcore.log.offset_map import OffsetMap
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.reference import record_batch as model

BATCHES, RECORDS = 100, 64
#: The most that a record can grow by.
GROWTH = 16


def tombstones(base_offset):
    """A batch of the smallest records, of 8 bytes each."""
    builder = RecordBatchBuilder(base_offset=base_offset)
    for _ in range(RECORDS):
        builder.append(None, b"k", timestamp=0)
    return bytes(builder.build())


def test_a_batch_that_may_outgrow_the_room_left_for_it_gets_more_first():
    """A tombstone's timestamp becomes a difference from the time when it may go: 10 bytes in place of one, if that is
    far enough away.  The output has twice the room of the batches, which is 3 bytes too few for each of them."""
    chunk = b"".join(tombstones(n * RECORDS) for n in range(BATCHES))
    size = len(chunk) // BATCHES
    needs_room = []
    no_keys = OffsetMap(1 << 10)
    no_keys.clear()
    batch_filter = BatchFilter(
        no_keys,
        lambda batch: needs_room.append(batch.base_offset) or 0,
        None,
        now_ms=1 << 62,
        delete_retention_ms=1,
    )
    cleaned = bytes(batch_filter.filter(MemoryRecords(chunk)))
    grown = size + RECORDS * 9
    assert len(cleaned) == BATCHES * grown > 2 * len(chunk)
    room = [2 * len(chunk) - n * grown for n in range(BATCHES)]
    assert needs_room == [n * RECORDS for n in range(BATCHES) if room[n] < size + RECORDS * GROWTH] == [99 * RECORDS]
    for n, batch in enumerate(model.decode_batches(cleaned)):
        assert [(r.offset, r.timestamp, r.value) for r in batch.records] == [
            (offset, 0, None) for offset in range(n * RECORDS, (n + 1) * RECORDS)
        ]
