# cython: freethreading_compatible = True
"""Build one magic-2 batch.

Records are written as they will lie in the batch, behind room for the header; build() compresses them if
asked to and writes the header last, when its fields are known (MRB-11).
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT64_MAX, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from kcore.record.record_batch cimport (
    KC_ATTR_CONTROL,
    KC_ATTR_DELETE_HORIZON,
    KC_ATTR_LOG_APPEND_TIME,
    KC_ATTR_TRANSACTIONAL,
    KC_BATCH_HEADER_SIZE,
    kc_batch,
    kc_batch_write_header,
    kc_record_body_size,
    kc_record_write,
    kc_varlong_size,
    kc_write_bytes,
)

from kcore.record.compression import CODECS, compress

cdef int LENGTH_FIELD_MAX = 5  # bytes of a varint
cdef int CONTROL_KEY_SIZE = 4  # int16 version, int16 type


cdef bytes _as_bytes(data, str what):
    if PyBytes_CheckExact(data):
        return data
    if isinstance(data, (bytearray, memoryview, bytes)):
        return bytes(data)
    raise TypeError(f"{what} must be bytes-like or None, not {type(data).__name__}")


cdef inline const uint8_t *_pointer(data):
    if data is None:
        return NULL
    return <const uint8_t *>PyBytes_AS_STRING(data)


cdef class RecordBatchBuilder:
    """Collects records and builds one batch.  Not thread-safe.

    compression: "none", "gzip", "snappy", "lz4" or "zstd"; level: the codec's own scale, None = its default.
    Offsets are base_offset, base_offset + 1, ... unless append() is given one (a compacted batch).
    With delete_horizon_ms that is the base timestamp, else the first record's timestamp is (MRB-08).
    Source: MemoryRecordsBuilder.
    """

    cdef uint8_t *data
    cdef int64_t size
    cdef int64_t capacity
    cdef kc_batch row
    cdef int codec
    cdef object level
    cdef bint built

    def __init__(
        self,
        *,
        int64_t base_offset=0,
        compression="none",
        level=None,
        timestamp_type="CreateTime",
        int32_t leader_epoch=-1,
        int64_t producer_id=-1,
        int16_t producer_epoch=-1,
        int32_t base_sequence=-1,
        bint is_transactional=False,
        bint is_control=False,
        delete_horizon_ms=None,
    ):
        if self.size:
            raise TypeError("a RecordBatchBuilder is set up once")
        if compression not in CODECS:
            raise ValueError(f"compression {compression!r} is none of {', '.join(CODECS)}")
        if timestamp_type not in ("CreateTime", "LogAppendTime"):
            raise ValueError(f"timestamp type {timestamp_type!r} is neither CreateTime nor LogAppendTime")
        if base_offset < 0:
            raise ValueError(f"base offset {base_offset} is negative")
        self.codec = CODECS.index(compression)
        self.level = level
        self.size = KC_BATCH_HEADER_SIZE
        self.row.base_offset = base_offset
        self.row.last_offset = base_offset - 1
        self.row.leader_epoch = leader_epoch
        self.row.producer_id = producer_id
        self.row.producer_epoch = producer_epoch
        self.row.base_sequence = base_sequence
        self.row.max_timestamp = -1
        self.row.attributes = self.codec
        if timestamp_type == "LogAppendTime":
            self.row.attributes |= KC_ATTR_LOG_APPEND_TIME
        if is_transactional:
            self.row.attributes |= KC_ATTR_TRANSACTIONAL
        if is_control:
            self.row.attributes |= KC_ATTR_CONTROL
        if delete_horizon_ms is not None:
            self.row.attributes |= KC_ATTR_DELETE_HORIZON
            self.row.base_timestamp = delete_horizon_ms

    def __dealloc__(self):
        free(self.data)

    def append(self, value, key=None, *, int64_t timestamp=-1, headers=(), offset=None):
        """Add a record; its offset.  timestamp: ms since the epoch, -1 for none.  Raises ValueError for an offset
        not above the last one (MRB-03), a timestamp below -1 (MRB-04), a control batch's key that is not one
        (MRB-06), and a batch that cannot hold more (MRB-07, MRB-12); nothing was added then."""
        # The references keep the pointers alive until the record is written.  Headers may come from a generator, so
        # whatever may run the caller's code runs before we look at ourselves.
        key_bytes = None if key is None else _as_bytes(key, "key")
        value_bytes = None if value is None else _as_bytes(value, "value")
        cdef list parts = []
        cdef int64_t headers_size = 0
        if headers:
            headers_size = self._add_headers(parts, headers)
        cdef int64_t at = self.row.last_offset + 1 if offset is None else offset
        if self.built:
            raise ValueError("the batch was built, nothing can be appended")
        if at <= self.row.last_offset or at < self.row.base_offset:
            raise ValueError(f"offset {at} is not above the last one, {self.row.last_offset}")
        if at - self.row.base_offset > INT32_MAX or self.row.count == INT32_MAX:
            raise ValueError(f"offset {at} is too far above the base offset {self.row.base_offset}")
        if timestamp < -1:
            raise ValueError(f"timestamp {timestamp} is negative")
        cdef int64_t base_timestamp = self._base_timestamp(timestamp)
        # Only a base of -1 or a delete horizon below 0 can be so far away.
        if base_timestamp < 0 and timestamp > INT64_MAX + base_timestamp:
            raise ValueError(f"timestamp {timestamp} is too far above the base timestamp {base_timestamp}")
        if self.row.attributes & KC_ATTR_CONTROL and (key_bytes is None or len(key_bytes) < CONTROL_KEY_SIZE):
            raise ValueError(f"key {key!r} of a record in a control batch is no control record's key")
        cdef int32_t header_count = <int32_t>(len(parts) // 2)
        cdef int64_t key_size = -1 if key_bytes is None else PyBytes_GET_SIZE(key_bytes)
        cdef int64_t value_size = -1 if value_bytes is None else PyBytes_GET_SIZE(value_bytes)
        cdef int64_t timestamp_delta = timestamp - base_timestamp
        cdef int32_t offset_delta = <int32_t>(at - self.row.base_offset)
        cdef int64_t body = kc_record_body_size(
            timestamp_delta, offset_delta, key_size, value_size, header_count, headers_size
        )
        self._reserve(body + LENGTH_FIELD_MAX)
        cdef uint8_t *p = kc_record_write(
            self.data + self.size, body, timestamp_delta, offset_delta,
            _pointer(key_bytes), <int32_t>key_size, _pointer(value_bytes), <int32_t>value_size,
            header_count,
        )
        for part in parts:
            p = kc_write_bytes(p, _pointer(part), -1 if part is None else <int32_t>PyBytes_GET_SIZE(part))
        self.size = p - self.data
        self.row.base_timestamp = base_timestamp
        self.row.max_timestamp = max(self.row.max_timestamp, timestamp)
        self.row.last_offset = at
        self.row.count += 1
        return at

    cdef int64_t _base_timestamp(self, int64_t timestamp):
        if self.row.count or self.row.attributes & KC_ATTR_DELETE_HORIZON:
            return self.row.base_timestamp
        return timestamp

    cdef int64_t _add_headers(self, list parts, headers) except -1:
        """Append key and value of each header to parts; the bytes they will take."""
        cdef int64_t size = 0
        cdef int64_t length
        for name, data in headers:
            if not isinstance(name, str):
                raise TypeError(f"header key must be str, not {type(name).__name__}")
            parts.append(name.encode("utf-8", "surrogateescape"))
            parts.append(None if data is None else _as_bytes(data, "header value"))
        for part in parts:
            length = -1 if part is None else PyBytes_GET_SIZE(part)
            size += kc_varlong_size(length) + max(length, 0)
        return size

    cdef int _reserve(self, int64_t more) except -1:
        cdef int64_t capacity
        cdef void *data
        if self.size + more > INT32_MAX:
            raise ValueError(f"the batch would take {self.size + more} bytes, it can take {INT32_MAX}")
        if self.size + more > self.capacity:
            capacity = max(512, self.size + more, 2 * self.capacity)
            data = realloc(self.data, capacity)
            if data == NULL:
                raise MemoryError(f"record batch of {capacity} bytes")
            self.data = <uint8_t *>data
            self.capacity = capacity
        return 0

    def build(self):
        """The batch, as a bytearray of the caller's own; empty when nothing was appended.  The builder is done
        then (MRB-12): ValueError at the second call."""
        if self.built:
            raise ValueError("the batch was built already")
        self.built = True
        if self.row.count == 0:
            return bytearray()
        cdef bytearray batch
        cdef bytes packed
        if self.codec == 0:
            batch = PyByteArray_FromStringAndSize(<char *>self.data, self.size)
        else:
            packed = compress(
                self.codec, <const uint8_t[: self.size - KC_BATCH_HEADER_SIZE]>(self.data + KC_BATCH_HEADER_SIZE),
                self.level,
            )
            batch = PyByteArray_FromStringAndSize(NULL, KC_BATCH_HEADER_SIZE + len(packed))
            memcpy(
                PyByteArray_AS_STRING(batch) + KC_BATCH_HEADER_SIZE, PyBytes_AS_STRING(packed), len(packed)
            )
        if len(batch) > INT32_MAX:
            raise ValueError(f"the batch takes {len(batch)} bytes, it can take {INT32_MAX}")
        self.row.size = <int32_t>len(batch)
        kc_batch_write_header(<uint8_t *>PyByteArray_AS_STRING(batch), &self.row)
        free(self.data)
        self.data = NULL
        self.capacity = 0
        return batch

    @property
    def size_in_bytes(self):
        """Of the batch so far, uncompressed."""
        return self.size

    def __len__(self):
        return self.row.count
