from libc.stdint cimport int64_t, uint8_t

from kcore.common.file cimport File
from kcore.common.status cimport kc_error, kc_status
from kcore.log.offset_index cimport OffsetIndex
from kcore.log.time_index cimport TimeIndex
from kcore.record.file_records cimport FileRecords
from kcore.record.record_batch cimport kc_batch


cdef extern from "log_segment.h" nogil:
    ctypedef struct kc_batch_place:
        int64_t position
        int64_t last_offset
        int size

    int64_t kc_segment_entry_start(const uint8_t *log, int64_t end, int64_t position, int64_t offset)
    int kc_segment_search_for(const uint8_t *log, int64_t end, int64_t position, int64_t target,
                              kc_batch_place *found, kc_error *err)
    int kc_segment_search_for_timestamp(const uint8_t *log, int64_t end, int64_t position, int64_t timestamp,
                                        int64_t first_offset, kc_batch_place *found, kc_error *err)
    kc_status kc_segment_walk_to_end(const uint8_t *log, int64_t end, int64_t *position, int64_t *max_timestamp,
                                     int64_t *last_offset, int64_t *end_offset, kc_error *err)
    int kc_segment_walk_tail(const uint8_t *tail, int64_t size, int64_t indexed, int64_t *position,
                             int64_t *max_timestamp, int64_t *last_offset, int64_t *end_offset)

    ctypedef struct kc_indexer:
        int64_t base_offset
        int64_t interval_bytes
        int64_t bytes_since_last_entry
        int64_t max_timestamp
        int64_t offset_of_max_timestamp
        uint8_t *offset_slots
        int64_t offset_count
        int64_t offset_capacity
        uint8_t *time_slots
        int64_t time_count
        int64_t time_capacity

    void kc_indexer_add_batch(kc_indexer *indexer, const kc_batch *row, int64_t position)
    void kc_indexer_add_append(kc_indexer *indexer, const kc_batch *rows, int64_t count, int64_t position)
    void kc_indexer_add_final_time(kc_indexer *indexer, int64_t time_capacity)
    kc_status kc_segment_check_offsets(const kc_batch *rows, int64_t count, int64_t base_offset, kc_error *err)

    int KC_SCAN_CHECK_CRC
    int KC_SCAN_NOTEWORTHY

    ctypedef struct kc_segment_scan:
        int64_t base_offset
        int flags
        int64_t position
        int64_t last_offset
        int64_t leader_epoch
        kc_indexer *indexer

    int64_t kc_segment_scan_step(kc_segment_scan *scan, const uint8_t *log, int64_t end, int64_t stop, kc_batch *rows,
                                 int64_t capacity, kc_error *err)


cdef class _ScanAhead:
    cdef int64_t start
    cdef int64_t position
    cdef bint reached               # this thread's scan got there: a batch does begin at start
    cdef bint stopped
    cdef object future

    cdef int64_t step(self, int64_t position, int64_t stop, bint *is_known) except -1
    cdef int finish(self) except -1


cdef class LogSegment:
    cdef readonly int64_t base_offset
    cdef readonly str log_path
    cdef readonly bint writable
    cdef public int64_t created_ms
    cdef str _stem                  # path without ".log" and suffix
    cdef str _suffix
    cdef int64_t _max_index_size
    cdef bint _per_append_index
    cdef File _file                 # None once closed
    cdef int64_t _size
    cdef bint _cut_pending          # a failed append left bytes behind _size that could not be cut
    cdef int[2] _readers            # that walk the mapping without the GIL, by the generation they entered in
    cdef int _generation            # 0 or 1; a cut starts the next one
    cdef OffsetIndex _offset_index  # both None until needed, unless writable and there
    cdef TimeIndex _time_index
    cdef bint _index_missing
    cdef object _lock               # around making the indexes
    cdef kc_indexer _indexer        # the rule's state; the slot fields are set for each use
    cdef bint _max_timestamp_known
    cdef bint _first_timestamp_known
    cdef int64_t _first_timestamp

    cdef File _open_file(self)
    cdef int _check_writable(self) except -1
    cdef int _indexes(self) except -1
    cdef int _open_indexes(self) except -1
    cdef OffsetIndex _offsets(self)
    cdef TimeIndex _times(self)
    cdef int64_t append_rows(self, const uint8_t *data, int64_t size, const kc_batch *rows, int64_t count) except -1
    cdef bint needs_roll(self, int64_t append_size, int64_t last_offset, int64_t max_timestamp, int64_t now_ms,
                         int64_t segment_bytes, int64_t segment_ms) except -1
    cdef FileRecords find_slice(self, int64_t start_offset, int64_t max_size, int64_t max_position,
                                bint min_one_message, int64_t *position, bint *incomplete)
    cdef bint rolls_by_timestamps(self) except -1
    cdef int _load_max_timestamp(self) except -1
    cdef int _load_first_timestamp(self) except -1
    cdef int _lend_slots(self, OffsetIndex offset_index, TimeIndex time_index) except -1
    cdef int64_t _end(self) except -1
    cdef int _enter(self, int64_t *end) noexcept
    cdef int _search(self, int64_t offset, int64_t starting_position, kc_batch_place *found) except -1
    cdef int _scan(self, kc_segment_scan *scan, object on_batches, _ScanAhead ahead, kc_error *err) except -1
    cdef int64_t _scan_step(self, kc_segment_scan *scan, int64_t end, int64_t stop, kc_batch *rows,
                            kc_error *err) except -1
    cdef _ScanAhead _scan_ahead(self, object threads)
    cdef int _begin(self, kc_segment_scan *scan, int flags, int64_t position) except -1
    cdef int _rebuild(self, OffsetIndex offset_index, TimeIndex time_index, int flags, object on_batches,
                      _ScanAhead ahead, kc_segment_scan *scan, kc_error *err) except -1
    cdef bint _walk_short_tail(self, int64_t end, int64_t indexed, int64_t *max_timestamp, int64_t *last_offset,
                               int64_t *position, int64_t *end_offset) except -1
    cdef int64_t _walk_to_end(self, int64_t from_offset, int64_t *max_timestamp, int64_t *last_offset,
                              int64_t *position) except? -2
    cdef int _cut(self, int64_t size) except -1
    cdef int _add_final_time(self) except -1
