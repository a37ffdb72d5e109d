from libc.stdint cimport int64_t, uint8_t

from kcore.common.status cimport kc_error, kc_status
from kcore.log.offset_index cimport OffsetIndex
from kcore.log.segment_file cimport SegmentFile, _ScanAhead, kc_indexer, kc_log_bytes, kc_segment_scan
from kcore.log.time_index cimport TimeIndex
from kcore.record.file_records cimport FileRecords
from kcore.record.record_batch cimport kc_batch


cdef extern from "log_segment.h" nogil:
    ctypedef struct kc_batch_place:
        int64_t position
        int64_t last_offset
        int size

    int64_t kc_segment_entry_start(const kc_log_bytes *log, int64_t position, int64_t offset)
    int kc_segment_search_for(const kc_log_bytes *log, int64_t *position, int64_t target, kc_batch_place *place,
                              kc_error *err)
    int kc_segment_search_for_timestamp(const kc_log_bytes *log, int64_t *position, int64_t timestamp,
                                        int64_t first_offset, kc_batch_place *place, kc_error *err)
    int kc_segment_walk_to_end(const kc_log_bytes *log, int64_t *position, int64_t *max_timestamp,
                               int64_t *last_offset, int64_t *end_offset, kc_error *err)

    void kc_indexer_add_batches(kc_indexer *indexer, const kc_batch *rows, int64_t count, int64_t position)
    void kc_indexer_add_append(kc_indexer *indexer, const kc_batch *rows, int64_t count, int64_t position)
    void kc_indexer_add_final_time(kc_indexer *indexer, int64_t time_capacity)
    kc_status kc_segment_check_offsets(const kc_batch *rows, int64_t count, int64_t base_offset, kc_error *err)


cdef class LogSegment(SegmentFile):
    cdef public int64_t created_ms
    cdef int64_t _max_index_size
    cdef bint _per_append_index
    cdef OffsetIndex _offset_index  # both None until needed, unless writable and there
    cdef TimeIndex _time_index
    cdef bint _index_missing
    cdef object _lock               # around making the indexes
    cdef kc_indexer _indexer        # the rule's state; the slot fields are set for each use
    cdef bint _max_timestamp_known

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
    cdef int _lend_slots(self, OffsetIndex offset_index, TimeIndex time_index) except -1
    cdef int _search(self, int64_t offset, int64_t starting_position, kc_batch_place *place) except -1
    cdef int _rebuild(self, OffsetIndex offset_index, TimeIndex time_index, int flags, object on_batches,
                      _ScanAhead ahead, kc_segment_scan *scan, kc_error *err) except -1
    cdef int64_t _walk_to_end(self, int64_t from_offset, int64_t *max_timestamp, int64_t *last_offset,
                              int64_t *position) except? -2
    cdef int _add_final_time(self) except -1
