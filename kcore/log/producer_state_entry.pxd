from libc.stdint cimport int16_t, int32_t, int64_t

from kcore.record.record_batch cimport kc_batch


cdef enum:
    BATCHES_KEPT = 5


cdef struct written_batch:
    # The fields of BatchMetadata.
    int64_t last_offset
    int64_t timestamp
    int32_t last_sequence
    int32_t offset_delta


cdef class ProducerStateEntry:
    cdef readonly object producer_id           # an int that is a key of ProducerStates as it is
    cdef readonly int64_t last_timestamp
    cdef int64_t open_txn                      # its first offset; -1: none
    cdef readonly int32_t coordinator_epoch
    cdef readonly int16_t producer_epoch
    cdef int batch_count                             # how many of written are in use
    cdef written_batch[BATCHES_KEPT] written   # oldest first

    cdef int32_t next_sequence(self) noexcept
    cdef int find(self, const kc_batch *row) noexcept
    cdef bint is_continued_by(self, const kc_batch *row) noexcept
    cdef bint accepts_replicated(self, int16_t producer_epoch, bint is_transactional) noexcept
    cdef ProducerStateEntry followed_by(self, const kc_batch *row, int64_t open_txn)
    cdef ProducerStateEntry followed_by_batches(self, const kc_batch **batches, int count, int64_t open_txn)
    cdef object metadata(self, int index)


cdef class ProducerStates:
    cdef public dict producers
