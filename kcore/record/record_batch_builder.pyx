"""Build one batch, or messages of magic 0 or 1.

Records are written as they will be in the batch, after room for the header; build() compresses them if
asked to and writes the header last, when its fields are known (MRB-11).
"""

from cpython.buffer cimport PyBUF_READ
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
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
    kc_legacy_size,
    kc_legacy_write,
    kc_record_body_size,
    kc_record_write,
    kc_varlong_size,
    kc_write_bytes,
)

from kcore.record.compression import codec_of, compress

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
    """RecordBatchBuilder(*, magic=2, base_offset=0, compression="none", level=None, timestamp_type="CreateTime", \
leader_epoch=-1, producer_id=-1, producer_epoch=-1, base_sequence=-1, is_transactional=False, is_control=False, \
delete_horizon_ms=None, log_append_time=None, initial_size=0, any_timestamp=False)\n--\n
    Collects records and builds one batch.  Not thread-safe.

    magic: 2, or 0 or 1 for a message a record, all in one wrapper if compressed.
    compression: "none", "gzip", "snappy", "lz4" or, in magic 2, "zstd"; level: the codec's own scale, None = its
    default.  Offsets are base_offset, base_offset + 1, ... unless append() is given one (a compacted batch).
    log_append_time: ms, with timestamp type LogAppendTime; plain messages of magic 1 get it as their own timestamp.
    With delete_horizon_ms that is the base timestamp, else the first record's timestamp is.
    initial_size: bytes reserved at once, see estimate_size_in_bytes; the buffer grows as needed.
    any_timestamp: a copy of old messages takes over timestamps below -1 too.
    Raises ValueError for arguments that contradict each other or no batch can have.
    Source: MemoryRecordsBuilder.
    """

    cdef uint8_t *data
    cdef int64_t size
    cdef int64_t capacity
    cdef kc_batch row
    cdef int codec
    cdef object level
    cdef bint is_set_up
    cdef bint any_timestamp
    cdef bint built
    cdef int magic
    cdef int header_size
    cdef int64_t log_append_time
    cdef int64_t offset_of_max_timestamp

    def __init__(
        self,
        *,
        int magic=2,
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
        log_append_time=None,
        int64_t initial_size=0,
        bint any_timestamp=False,
    ):
        if self.is_set_up:
            raise TypeError("a RecordBatchBuilder is set up once")
        self.is_set_up = True
        self.codec = codec_of(compression, level)
        if not 0 <= magic <= 2:
            raise ValueError(f"magic {magic} is none of 0, 1, 2")
        if timestamp_type not in ("CreateTime", "LogAppendTime") and (magic or timestamp_type != "NoTimestampType"):
            raise ValueError(f"timestamp type {timestamp_type!r} is neither CreateTime nor LogAppendTime")
        if log_append_time is not None and timestamp_type != "LogAppendTime":
            raise ValueError(f"a log append time with timestamp type {timestamp_type}")
        if magic == 2 and any_timestamp:
            raise ValueError("any timestamp is for magic 0 and 1")
        if magic < 2 and (
            compression == "zstd" or is_transactional or is_control or producer_id >= 0 or delete_horizon_ms is not None
        ):
            raise ValueError(f"magic {magic} has no zstd, producers, transactions, control records or delete horizon")
        if base_offset < 0:
            raise ValueError(f"base offset {base_offset} is negative")
        self.any_timestamp = any_timestamp
        self.level = level
        self.magic = magic
        if magic == 2:
            self.header_size = KC_BATCH_HEADER_SIZE
        else:
            self.header_size = kc_legacy_size(magic, 0, 0) if self.codec else 0
        self.log_append_time = -1 if log_append_time is None else log_append_time
        self.offset_of_max_timestamp = base_offset
        self.size = self.header_size
        if initial_size:
            self._reserve(initial_size - self.size)
        self.row.base_offset = base_offset
        self.row.last_offset = base_offset - 1
        self.row.leader_epoch = leader_epoch
        self.row.producer_id = producer_id
        self.row.producer_epoch = producer_epoch
        self.row.base_sequence = base_sequence
        self.row.max_timestamp = -1
        self.row.attributes = self.codec
        if timestamp_type == "LogAppendTime" and magic:
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
        """Add a record; its offset.  timestamp: ms since the epoch, -1 for none.

        Raises ValueError for an offset not above the last one, a timestamp below -1, headers before magic 2, a control
        batch's key that is not one, and a batch that cannot hold more; nothing was added then.
        """
        # The references keep the pointers alive until the record is written.  Headers may come from a generator, so
        # whatever may run the caller's code runs before the builder's own state is read.
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
        if timestamp < -1 and not self.any_timestamp:
            raise ValueError(f"timestamp {timestamp} is negative")
        if self.magic < 2:
            if parts:
                raise ValueError(f"magic {self.magic} has no headers")
            self._append_message(at, timestamp, key_bytes, value_bytes)
            return at
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
        self._note(at, timestamp)
        return at

    cdef int _note(self, int64_t offset, int64_t timestamp) except -1:
        if timestamp > self.row.max_timestamp:
            self.row.max_timestamp = timestamp
            self.offset_of_max_timestamp = offset
        self.row.last_offset = offset
        self.row.count += 1
        return 0

    cdef int _append_message(self, int64_t offset, int64_t timestamp, bytes key, bytes value) except -1:
        """A record in the form of magic 0 and 1."""
        cdef int64_t key_size = -1 if key is None else PyBytes_GET_SIZE(key)
        cdef int64_t value_size = -1 if value is None else PyBytes_GET_SIZE(value)
        # Inner offsets of magic 1 count from the wrapper's first.
        cdef int64_t written_offset = offset - self.row.base_offset if self.codec and self.magic == 1 else offset
        if self.magic == 0:
            timestamp = -1
        elif self.log_append_time >= 0 and not self.codec:
            timestamp = self.log_append_time
        self._reserve(kc_legacy_size(self.magic, key_size, value_size))
        cdef uint8_t *p = kc_legacy_write(
            self.data + self.size, self.magic, written_offset, timestamp,
            self.row.attributes & KC_ATTR_LOG_APPEND_TIME,
            _pointer(key), <int32_t>key_size, _pointer(value), <int32_t>value_size,
        )
        self.size = p - self.data
        self._note(offset, timestamp)
        return 0

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
        then: ValueError at the second call."""
        if self.built:
            raise ValueError("the batch was built already")
        self.built = True
        if self.row.count == 0:
            return bytearray()
        if self.log_append_time >= 0:
            self.row.max_timestamp = self.log_append_time
        cdef bytearray batch
        cdef bytes packed = None
        cdef int64_t size = self.size
        if self.codec:
            packed = compress(
                self.codec,
                PyMemoryView_FromMemory(<char *>self.data + self.header_size, size - self.header_size, PyBUF_READ),
                self.level, magic=self.magic,
            )
            size = self.header_size + len(packed)
        if size > INT32_MAX:
            raise ValueError(f"the batch takes {size} bytes, it can take {INT32_MAX}")
        if packed is None:
            batch = PyByteArray_FromStringAndSize(<char *>self.data, size)
        else:
            batch = PyByteArray_FromStringAndSize(NULL, size)
        cdef uint8_t *p = <uint8_t *>PyByteArray_AS_STRING(batch)
        self.row.size = <int32_t>size
        if self.magic == 2:
            if packed is not None:
                memcpy(p + self.header_size, PyBytes_AS_STRING(packed), len(packed))
            kc_batch_write_header(p, &self.row)
        elif packed is not None:
            kc_legacy_write(
                p, self.magic, self.row.last_offset, self.row.max_timestamp, self.row.attributes, NULL, -1,
                _pointer(packed), <int32_t>len(packed),
            )
        free(self.data)
        self.data = NULL
        self.capacity = 0
        return batch

    @property
    def info(self):
        """(max timestamp, offset that goes with it) of the records so far, as an index entry names them."""
        cdef bint last = self.magic == 2 or self.codec != 0
        if self.log_append_time >= 0:
            return self.log_append_time, self.row.last_offset if last else self.row.base_offset
        if self.row.max_timestamp < 0 or last:
            return self.row.max_timestamp, self.row.last_offset
        return self.row.max_timestamp, self.offset_of_max_timestamp

    @property
    def size_in_bytes(self):
        """Of the batch so far, uncompressed."""
        return self.size

    def __len__(self):
        return self.row.count


def estimate_size_in_bytes(records, *, int magic=2, compression="none", int64_t base_offset=0):
    """How many bytes a batch of these Records will take: exact if uncompressed, else half of that, but at least 1 KiB
    and at most 64 KiB.  Source: AbstractRecords.estimateSizeInBytes."""
    cdef int64_t size = KC_BATCH_HEADER_SIZE if magic == 2 else 0
    cdef int64_t body, headers_size, key_size, value_size
    cdef int64_t base_timestamp = -1
    cdef bint first = True
    for record in records:
        if first:
            base_timestamp = record.timestamp
            first = False
        key_size = -1 if record.key is None else len(record.key)
        value_size = -1 if record.value is None else len(record.value)
        if magic < 2:
            size += kc_legacy_size(magic, key_size, value_size)
            continue
        headers_size = 0
        for name, value in record.headers:
            body = len(name.encode("utf-8", "surrogateescape"))
            headers_size += kc_varlong_size(body) + body
            body = -1 if value is None else len(value)
            headers_size += kc_varlong_size(body) + max(body, 0)
        body = kc_record_body_size(
            record.timestamp - base_timestamp, <int32_t>(record.offset - base_offset), key_size, value_size,
            <int32_t>len(record.headers), headers_size,
        )
        size += kc_varlong_size(body) + body
    if compression == "none":
        return size
    return min(max(size // 2, 1024), 65536)
