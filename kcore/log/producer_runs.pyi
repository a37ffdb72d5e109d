"""Long stretches of a segment as its producers' state sees them."""

from kcore.record.memory_records import BatchTable

#: (last sequence, last offset, offset delta, max timestamp)
RunBatch = tuple[int, int, int, int]

def take_runs(
    table: BatchTable, start: int, end_offset: int, latest_leader_epoch: int
) -> tuple[int, list[tuple[int, int, list[RunBatch], int, int]]]:
    """(row, runs): the data batches of rows [start, row) that have a producer, below end_offset, producer by producer.

    row is the first that needs more than its header: a control batch, another magic than 2, a leader epoch above
    latest_leader_epoch, a producer's new epoch, one producer too many; or len(table).  A run: (producer id, epoch,
    its last five batches, offset and position of its first transactional batch, -1 without one).  ValueError for a
    row that is not there.  Holds the GIL, some 10 ns a row.
    """
