"""BatchFilter: what is left of a chunk of a compacted log, by the rules in csrc/batch_filter.h."""

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from kcore.common.status cimport KC_OK, kc_error, kc_status, raise_status
from kcore.log.offset_map cimport OffsetMap, kc_offset_map
from kcore.record.memory_records cimport BatchTable, MemoryRecords
from kcore.record.record_batch cimport (
    KC_ATTR_CODEC_MASK,
    KC_BATCH_HEADER_SIZE,
    RecordBatch,
    kc_batch,
    kc_batch_check_count,
    kc_batch_write_header,
)

from kcore.record.compression import compress


cdef extern from "batch_filter.h" nogil:
    enum:
        KC_FILTER_DISCARD_RECORDS
        KC_FILTER_RETAIN_EMPTY
        KC_FILTER_START_HORIZON
        KC_SPAN_GROWTH

    ctypedef struct kc_batch_filter:
        const kc_offset_map *map
        int64_t now_ms
        int64_t delete_retention_ms
        int64_t records_read
        int64_t records_kept
        int64_t records_without_key

    ctypedef struct kc_span:
        int32_t position
        int32_t size

    ctypedef struct kc_filtered:
        int64_t kept
        int64_t payload_size
        int as_it_was
        kc_batch row

    ctypedef struct kc_filter_run:
        const uint8_t *buf
        int64_t base_position
        const int64_t *stops
        int64_t stop_count
        int64_t stop
        kc_span *spans
        int64_t span_capacity
        uint8_t *out
        int64_t out_capacity
        int64_t out_size

    kc_status kc_filter_select(kc_batch_filter *filter, const kc_batch *batch, const uint8_t *payload, int64_t size,
                               int flags, kc_span *spans, kc_filtered *result, kc_error *err)
    int64_t kc_filter_write(const kc_batch *batch, const uint8_t *payload, int64_t size, const kc_span *spans,
                            kc_filtered *result, uint8_t *out)
    int64_t kc_filter_batches(kc_batch_filter *filter, kc_filter_run *run, const kc_batch *rows, int64_t start,
                              int64_t count, kc_error *err)


DISCARD_RECORDS = KC_FILTER_DISCARD_RECORDS
RETAIN_EMPTY = KC_FILTER_RETAIN_EMPTY
START_HORIZON = KC_FILTER_START_HORIZON


cdef class BatchFilter:
    """Filters chunk after chunk of one log, in the order of offsets.  Not thread-safe.

    policy(batch) decides about the batches that need more than the table of keys: those of transactions, markers, and
    those whose last offset is among `stops`; it returns a sum of DISCARD_RECORDS, RETAIN_EMPTY and START_HORIZON, 0 for
    the usual rules.  rebuild_legacy(batch) returns the bytes that are
    left of a batch of magic 0 or 1, None for all.  Counts are of all chunks.
    """

    cdef OffsetMap offset_map
    cdef kc_batch_filter rules
    cdef kc_filter_run run
    cdef object policy
    cdef object rebuild_legacy
    cdef int64_t *stops

    def __cinit__(
        self, OffsetMap offset_map not None, policy, rebuild_legacy, *, stops=(), int64_t now_ms, int64_t delete_retention_ms
    ):
        self.offset_map = offset_map
        self.rules.map = &offset_map.map
        self.rules.now_ms = now_ms
        self.rules.delete_retention_ms = min(delete_retention_ms, INT64_MAX - now_ms)
        self.policy = policy
        self.rebuild_legacy = rebuild_legacy
        ascending = sorted(stops)
        self.stops = <int64_t *>malloc(max(len(ascending), 1) * sizeof(int64_t))
        if self.stops == NULL:
            raise MemoryError(f"{len(ascending)} offsets")
        for i, offset in enumerate(ascending):
            self.stops[i] = offset
        self.run.stops = self.stops
        self.run.stop_count = len(ascending)

    def __dealloc__(self):
        free(self.stops)
        free(self.run.spans)
        free(self.run.out)

    cdef int _reserve_out(self, int64_t more) except -1:
        """Make room for `more` bytes after the present ones."""
        cdef int64_t capacity = self.run.out_capacity
        cdef void *out
        if capacity - self.run.out_size < more:
            capacity = max(2 * capacity, self.run.out_size + more)
            out = realloc(self.run.out, capacity)
            if out == NULL:
                raise MemoryError(f"{capacity} bytes of cleaned batches")
            self.run.out = <uint8_t *>out
            self.run.out_capacity = capacity
        return 0

    cdef int _reserve_spans(self, int64_t count) except -1:
        cdef void *spans
        if self.run.span_capacity < count:
            spans = realloc(self.run.spans, count * sizeof(kc_span))
            if spans == NULL:
                raise MemoryError(f"a batch of {count} records")
            self.run.spans = <kc_span *>spans
            self.run.span_capacity = count
        return 0

    def filter(self, MemoryRecords records not None):
        """What is left of these batches, as a memoryview that is good until the next call.

        Releases the GIL while it works on uncompressed batches.  Raises CorruptMessage for a batch whose records are
        not what its header says; the records' CRCs are the caller's to check.
        """
        cdef BatchTable table = records.batches
        cdef kc_error err
        cdef int64_t done = 0
        cdef int64_t count = table.count
        self.offset_map._check_cleared()
        self.run.buf = table.data
        self.run.base_position = table.base_position
        self.run.out_size = 0
        self._reserve_out(2 * records.valid_bytes)
        self._reserve_spans(4096)
        while done < count:
            with nogil:
                done = kc_filter_batches(&self.rules, &self.run, table.rows, done, count, &err)
            if err.status != KC_OK:
                err.position += table.rows[done].position + KC_BATCH_HEADER_SIZE
                raise_status(&err, table.source, table.rows[done].base_offset)
            if done < count:
                self._filter_one(table.batch(done))
                done += 1
        return PyMemoryView_FromMemory(<char *>self.run.out, self.run.out_size, PyBUF_READ)

    cdef int _filter_one(self, RecordBatch batch) except -1:
        """A batch that the native loop does not process, for whatever reason."""
        cdef int flags = self.policy(batch)
        cdef int codec = batch.row.attributes & KC_ATTR_CODEC_MASK
        cdef kc_filtered result
        cdef kc_error err
        cdef kc_status status
        cdef Py_buffer view
        cdef int64_t written
        cdef uint8_t *out
        if flags == KC_FILTER_DISCARD_RECORDS:
            # Nothing of it stays: no need to look inside.
            self.rules.records_read += max(batch.row.count, 0)
            return 0
        if batch.row.magic != 2:
            rebuilt = self.rebuild_legacy(batch)
            if rebuilt is None:
                return self._append(batch.data, batch.row.size)
            return self._append(<const uint8_t *>PyBytes_AS_STRING(rebuilt), len(rebuilt))
        payload = batch.payload() if batch.row.count else b""
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            status = kc_batch_check_count(&batch.row, view.len, &err)
            if status == KC_OK:
                self._reserve_spans(batch.row.count)
                with nogil:
                    status = kc_filter_select(
                        &self.rules, &batch.row, <const uint8_t *>view.buf, view.len, flags, self.run.spans, &result,
                        &err,
                    )
            if status != KC_OK:
                err.position = batch.row.position + (0 if codec else KC_BATCH_HEADER_SIZE + err.position)
                raise_status(&err, batch.source, batch.row.base_offset)
            if result.as_it_was:
                return self._append(batch.data, batch.row.size)
            if result.kept == 0 and not flags & KC_FILTER_RETAIN_EMPTY:
                return 0
            self._reserve_out(KC_BATCH_HEADER_SIZE + result.payload_size + result.kept * KC_SPAN_GROWTH)
            out = self.run.out + self.run.out_size
            with nogil:
                written = kc_filter_write(
                    &batch.row, <const uint8_t *>view.buf, view.len, self.run.spans, &result,
                    out + KC_BATCH_HEADER_SIZE,
                )
        finally:
            PyBuffer_Release(&view)
        if codec and result.kept:
            packed = compress(codec, PyMemoryView_FromMemory(<char *>out + KC_BATCH_HEADER_SIZE, written, PyBUF_READ))
            written = len(packed)
            self._reserve_out(KC_BATCH_HEADER_SIZE + written)
            out = self.run.out + self.run.out_size
            memcpy(out + KC_BATCH_HEADER_SIZE, <const char *>packed, written)
        result.row.size = <int32_t>(KC_BATCH_HEADER_SIZE + written)
        kc_batch_write_header(out, &result.row)
        self.run.out_size += result.row.size
        return 0

    cdef int _append(self, const uint8_t *data, int64_t size) except -1:
        self._reserve_out(size)
        memcpy(self.run.out + self.run.out_size, data, size)
        self.run.out_size += size
        return 0

    def count_legacy(self, int64_t read, int64_t kept, int64_t without_key):
        """What rebuild_legacy() did."""
        self.rules.records_read += read
        self.rules.records_kept += kept
        self.rules.records_without_key += without_key

    @property
    def records_read(self):
        return self.rules.records_read

    @property
    def records_kept(self):
        return self.rules.records_kept

    @property
    def records_without_key(self):
        """Dropped, because nothing in a compacted log can ever replace them."""
        return self.rules.records_without_key
