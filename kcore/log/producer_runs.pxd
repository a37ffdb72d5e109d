from libc.stdint cimport int16_t, int32_t, int64_t

from kcore.log.producer_state_entry cimport BATCHES_KEPT, ProducerStateEntry
from kcore.record.record_batch cimport kc_batch


cdef enum:
    MAX_RUNS = 64
    LAST_ROWS = 8    # at least BATCHES_KEPT, and a power of two: a remainder without a division


cdef struct producer_run:
    # The data batches of one producer, all of one epoch, in a stretch of rows.
    int64_t producer_id
    int64_t first_txn_offset    # base offset of its first transactional batch; -1 without one
    int64_t first_txn_position
    int64_t count
    Py_ssize_t[LAST_ROWS] last_rows    # row n of the run is at n & (LAST_ROWS - 1)
    int16_t producer_epoch


cdef Py_ssize_t find_runs(const kc_batch *rows, Py_ssize_t count, Py_ssize_t start, int64_t end_offset,
                          int32_t latest_leader_epoch, producer_run *runs, int *run_count) noexcept nogil
cdef ProducerStateEntry state_after_run(ProducerStateEntry state, const kc_batch *rows, const producer_run *run)
