# cython: freethreading_compatible = True
"""Long stretches of a segment as its producers' state sees them: of each producer its last batches, not every one.

Since producers are idempotent by default nearly every batch has a producer id, and a recovery reads them all.
"""

from libc.stdint cimport int16_t, int32_t, int64_t

from kcore.log.producer_state_entry cimport BATCHES_KEPT
from kcore.record.memory_records cimport BatchTable
from kcore.record.record_batch cimport KC_ATTR_CONTROL, KC_ATTR_TRANSACTIONAL, kc_batch, last_sequence_of


cdef enum:
    MAX_RUNS = 64


ctypedef struct run_t:
    int64_t producer_id
    int64_t first_txn_offset
    int64_t first_txn_position
    int64_t count
    Py_ssize_t rows[BATCHES_KEPT]
    int16_t producer_epoch


cdef tuple _batch(const kc_batch *row):
    return last_sequence_of(row), row.last_offset, row.last_offset - row.base_offset, row.max_timestamp


cdef tuple _run(BatchTable table, const run_t *run):
    cdef int64_t i
    cdef int64_t first = max(0, run.count - BATCHES_KEPT)
    batches = [_batch(table.rows + run.rows[i % BATCHES_KEPT]) for i in range(first, run.count)]
    return run.producer_id, run.producer_epoch, batches, run.first_txn_offset, run.first_txn_position


def take_runs(BatchTable table not None, Py_ssize_t start, int64_t end_offset, int32_t latest_leader_epoch):
    """(row, runs): the data batches of rows [start, row) that have a producer, below end_offset, producer by producer.

    row is the first that needs more than its header: a control batch, another magic than 2, a leader epoch above
    latest_leader_epoch, a producer's new epoch, one producer too many; or len(table).  A run: (producer id, epoch,
    its last five batches as (last sequence, last offset, offset delta, max timestamp), offset and position of its
    first transactional batch, -1 without one).  ValueError for a row that is not there.
    """
    cdef run_t[MAX_RUNS] runs
    cdef run_t *run = NULL
    cdef int used = 0
    cdef int i
    cdef Py_ssize_t at = start
    cdef const kc_batch *row
    if not 0 <= start <= table.count:
        raise ValueError(f"{table.source}: no row {start} of {table.count}")
    while at < table.count:
        row = table.rows + at
        if row.magic != 2 or row.attributes & KC_ATTR_CONTROL or row.leader_epoch > latest_leader_epoch:
            break
        if row.producer_id >= 0 and row.base_offset < end_offset:
            if run == NULL or run.producer_id != row.producer_id:
                run = NULL
                for i in range(used):
                    if runs[i].producer_id == row.producer_id:
                        run = &runs[i]
                        break
                if run == NULL:
                    if used == MAX_RUNS:
                        break
                    run = &runs[used]
                    used += 1
                    run.producer_id = row.producer_id
                    run.producer_epoch = row.producer_epoch
                    run.first_txn_offset = run.first_txn_position = -1
                    run.count = 0
            if run.producer_epoch != row.producer_epoch:
                break
            if row.attributes & KC_ATTR_TRANSACTIONAL and run.first_txn_offset < 0:
                run.first_txn_offset = row.base_offset
                run.first_txn_position = row.position
            run.rows[run.count % BATCHES_KEPT] = at
            run.count += 1
        at += 1
    return at, [_run(table, &runs[i]) for i in range(used)]
