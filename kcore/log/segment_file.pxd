from libc.stdint cimport int32_t, int64_t, uint8_t

from kcore.common.file cimport File, Mapping, Window
from kcore.common.status cimport kc_error
from kcore.record.record_batch cimport kc_batch


cdef extern from "log_segment.h" nogil:
    ctypedef struct kc_log_bytes:
        const uint8_t *bytes
        int64_t first
        int64_t size
        int64_t end

    int KC_SEGMENT_MORE

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

    int KC_SCAN_CHECK_CRC
    int KC_SCAN_NOTEWORTHY

    ctypedef struct kc_segment_scan:
        int64_t base_offset
        int flags
        int64_t position
        int64_t last_offset
        int64_t leader_epoch
        int64_t need
        kc_indexer *indexer

    int64_t kc_segment_scan_step(kc_segment_scan *scan, const kc_log_bytes *log, int64_t stop, kc_batch *rows,
                                 int64_t capacity, kc_error *err)


cdef enum:
    # Of a foreign file a search reads so much at a time: an index interval and a batch or two.  On the stack.
    WINDOW_BYTES = 8 * 1024


cdef class _ScanAhead:
    cdef int64_t start
    cdef int64_t position
    cdef bint reached               # this thread's scan got there: a batch does begin at start
    cdef bint stopped
    cdef object future

    cdef int64_t step(self, int64_t position, int64_t stop, bint *is_known) except -1
    cdef int finish(self) except -1


cdef class SegmentFile:
    cdef readonly int64_t base_offset
    cdef readonly str log_path
    cdef readonly bint writable
    cdef bint _may_map              # our own, and without a hole
    cdef str _stem                  # path without ".log" and suffix
    cdef str _suffix
    cdef File _file                 # None once closed
    cdef int64_t _size
    cdef bint _cut_pending          # a failed append left bytes after _size that could not be cut
    cdef int[2] _readers            # that walk or read the file without the GIL, by the generation they entered in
    cdef int _generation            # 0 or 1; a cut starts the next one
    cdef bint _first_timestamp_known
    cdef int64_t _first_timestamp

    cdef File _open_file(self)
    cdef int _check_writable(self) except -1
    cdef int _load_first_timestamp(self) except -1
    cdef int64_t _end(self) except -1
    cdef Mapping _look(self, kc_log_bytes *log, int64_t position, uint8_t *window, int64_t room)
    cdef int _enter(self, kc_log_bytes *log) noexcept
    cdef bint _walk_short_tail(self, int64_t end, int64_t indexed, int64_t *max_timestamp, int64_t *last_offset,
                               int64_t *position, int64_t *end_offset) except -1
    cdef int _begin(self, kc_segment_scan *scan, int flags, int64_t position) except -1
    cdef int _scan(self, kc_segment_scan *scan, object on_batches, _ScanAhead ahead, kc_error *err) except -1
    cdef int64_t _scan_step(self, kc_segment_scan *scan, int64_t stop, kc_batch *rows, Window window,
                            kc_error *err) except -1
    cdef _ScanAhead _scan_ahead(self, object threads, int64_t start)
    cdef int _cut(self, int64_t size) except -1


cdef str describe(const kc_error *err)
