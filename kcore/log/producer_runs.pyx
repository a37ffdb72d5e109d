"""The batches of a replicated chunk or of a segment, producer by producer: the last batches of each, not every one.

Producers are idempotent by default, so nearly every batch has a producer id.  A follower and a recovery meet thousands
of batches at a time, of few producers, and a producer's state keeps its last five only.
"""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memset

from kcore.log.producer_state_entry cimport BATCHES_KEPT, ProducerStateEntry
from kcore.record.memory_records cimport BatchTable
from kcore.record.record_batch cimport KC_ATTR_CONTROL, KC_ATTR_TRANSACTIONAL, kc_batch, last_sequence_of


cdef Py_ssize_t find_runs(const kc_batch *rows, Py_ssize_t count, Py_ssize_t start, int64_t end_offset,
                          int32_t latest_leader_epoch, producer_run *runs, int *run_count) noexcept nogil:
    """Collect the runs of rows [start, n) into runs[0..MAX_RUNS) and return n; see take_runs()."""
    cdef producer_run *run = NULL
    cdef int used = 0
    cdef int i, bits
    cdef Py_ssize_t at = start
    cdef const kc_batch *row
    # The last run whose producer id has these low bits: ids are assigned one after the other, so mostly the right one.
    # 1,000 rows of 30 producers in turn: 16 us instead of 30 to 40.
    cdef unsigned char[MAX_RUNS] run_of_bits
    memset(run_of_bits, 0, MAX_RUNS)
    while at < count:
        row = rows + at
        if row.magic != 2 or row.attributes & KC_ATTR_CONTROL or row.leader_epoch > latest_leader_epoch:
            break
        if row.producer_id >= 0 and row.base_offset < end_offset:
            if run == NULL or run.producer_id != row.producer_id:
                bits = row.producer_id & (MAX_RUNS - 1)
                i = run_of_bits[bits]
                if i == used or runs[i].producer_id != row.producer_id:
                    i = 0
                    while i < used and runs[i].producer_id != row.producer_id:
                        i += 1
                run = &runs[i] if i < used else NULL
                if run == NULL:
                    if used == MAX_RUNS:
                        break
                    run = &runs[used]
                    used += 1
                    run.producer_id = row.producer_id
                    run.producer_epoch = row.producer_epoch
                    run.first_txn_offset = run.first_txn_position = -1
                    run.count = 0
                run_of_bits[bits] = <unsigned char>i
            if run.producer_epoch != row.producer_epoch:
                break
            if row.attributes & KC_ATTR_TRANSACTIONAL and run.first_txn_offset < 0:
                run.first_txn_offset = row.base_offset
                run.first_txn_position = row.position
            run.last_rows[run.count & (LAST_ROWS - 1)] = at
            run.count += 1
        at += 1
    run_count[0] = used
    return at


cdef ProducerStateEntry state_after_run(ProducerStateEntry state, const kc_batch *rows, const producer_run *run):
    """The state of a producer after a run in its epoch that starts no transaction."""
    cdef const kc_batch *last_batches[BATCHES_KEPT]
    cdef int64_t first = max(0, run.count - BATCHES_KEPT)
    cdef int64_t n
    for n in range(first, run.count):
        last_batches[n - first] = rows + run.last_rows[n & (LAST_ROWS - 1)]
    return state.followed_by_batches(last_batches, <int>(run.count - first), state.open_txn)


cdef tuple _batch(const kc_batch *row):
    return last_sequence_of(row), row.last_offset, row.last_offset - row.base_offset, row.max_timestamp


cdef tuple _run(const kc_batch *rows, const producer_run *run):
    cdef int64_t n
    cdef int64_t first = max(0, run.count - BATCHES_KEPT)
    batches = [_batch(rows + run.last_rows[n & (LAST_ROWS - 1)]) for n in range(first, run.count)]
    return run.producer_id, run.producer_epoch, batches, run.first_txn_offset, run.first_txn_position


def take_runs(BatchTable table not None, Py_ssize_t start, int64_t end_offset, int32_t latest_leader_epoch):
    """(row, runs): the data batches of rows [start, row) that have a producer, below end_offset, producer by producer.

    row is the first that needs more than its header: a control batch, another magic than 2, a leader epoch above
    latest_leader_epoch, a producer's new epoch, one producer too many; or len(table).  A run: (producer id, epoch,
    its last five batches as (last sequence, last offset, offset delta, max timestamp), offset and position of its
    first transactional batch, -1 without one).  ValueError for a row that is not there.
    """
    cdef producer_run[MAX_RUNS] runs
    cdef int run_count, i
    if not 0 <= start <= table.count:
        raise ValueError(f"{table.source}: no row {start} of {table.count}")
    cdef Py_ssize_t at = find_runs(table.rows, table.count, start, end_offset, latest_leader_epoch, runs, &run_count)
    return at, [_run(table.rows, &runs[i]) for i in range(run_count)]
