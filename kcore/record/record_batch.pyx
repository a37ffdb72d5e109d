"""One batch: the header's fields, and its records on demand.  A message of magic 0 or 1 is a batch too.

The formats are described in csrc/record_batch.h, csrc/record.h and csrc/legacy_record.h.  Objects here are read-only and may be shared by threads.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.buffer cimport PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory, PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.string cimport memcpy, memset

from kcore.common.status cimport KC_CORRUPT, kc_fail, raise_status

from kcore.errors import CorruptMessage
from kcore.record.compression import CODECS, MAX_DECOMPRESSED_SIZE, decompress, decompress_zstd_into

cdef int ZSTD = CODECS.index("zstd")
cdef int64_t MAX_DECOMPRESSED = MAX_DECOMPRESSED_SIZE

cdef extern from "zstd_frame.h" nogil:
    int64_t kc_zstd_most(const uint8_t *data, int64_t size)

cdef tuple _CODECS = ("none", "gzip", "snappy", "lz4", "zstd", "unknown-5", "unknown-6", "unknown-7")


@cython.freelist(256)
cdef class Record:
    """Record(offset, timestamp, timestamp_type="CreateTime", key=None, value=None, headers=())\n--\n
    One record.  offset: absolute; timestamp: ms since the epoch, -1 for none; timestamp_type: "CreateTime",
    "LogAppendTime", or "NoTimestampType" for magic 0; key, value: bytes or None; headers: a sequence of
    (str, bytes or None).  Immutable.

    A header key that is not UTF-8 keeps its bytes as surrogate escapes.
    """

    def __init__(
        self, int64_t offset, int64_t timestamp, timestamp_type="CreateTime", key=None, value=None, headers=()
    ):
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self.headers = headers

    def __iter__(self):
        return iter((self.offset, self.timestamp, self.timestamp_type, self.key, self.value, self.headers))

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        return tuple(self) == tuple(other)

    def __hash__(self):
        return hash((self.offset, self.timestamp, self.key, self.value))

    def __reduce__(self):
        return Record, tuple(self)

    def __repr__(self):
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, timestamp_type={self.timestamp_type!r}, "
            f"key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )


cdef inline int _make_room(bytearray buffer, int64_t size) except -1:
    """Let it have that many bytes at least."""
    if PyByteArray_GET_SIZE(buffer) < size:
        PyByteArray_Resize(buffer, max(size, 2 * PyByteArray_GET_SIZE(buffer)))
    return 0


cdef int64_t put_bytes(bytearray buffer, int64_t position, const uint8_t *data, int64_t size) except -1:
    """Copy them to buffer[position:], which grows; their number."""
    _make_room(buffer, position + size)
    memcpy(PyByteArray_AS_STRING(buffer) + position, data, size)
    return size


cdef inline object _bytes_or_none(const uint8_t *data, int32_t size):
    return PyBytes_FromStringAndSize(<const char *>data, size) if size >= 0 else None


@cython.final
cdef class _RecordIterator:
    """Over a payload that kc_records_check has passed."""

    cdef object payload          # keeps data alive
    cdef const uint8_t *data
    cdef int64_t size
    cdef int64_t position
    cdef int64_t base_offset
    cdef int64_t base_timestamp
    cdef int64_t log_append_time
    cdef bint is_log_append_time
    cdef object timestamp_type

    def __iter__(self):
        return self

    def __next__(self):
        cdef kc_record parsed
        cdef kc_error err
        if self.position >= self.size:
            raise StopIteration
        # Nobody may change the bytes between check and iteration, but if somebody does, stay inside them.
        if kc_record_parse(self.data, self.size, self.position, &parsed, &err):
            raise_status(&err, "records changed while they were read")
        self.position += parsed.size
        cdef Record record = Record.__new__(Record)
        record.offset = self.base_offset + parsed.offset_delta
        record.timestamp = self.log_append_time if self.is_log_append_time else (
            self.base_timestamp + parsed.timestamp_delta
        )
        record.timestamp_type = self.timestamp_type
        record.key = _bytes_or_none(parsed.key, parsed.key_size)
        record.value = _bytes_or_none(parsed.value, parsed.value_size)
        record.headers = self._headers(&parsed) if parsed.header_count else ()
        return record

    cdef list _headers(self, kc_record *parsed):
        cdef kc_header header
        cdef const uint8_t *p = parsed.headers
        cdef list headers = []
        for _ in range(parsed.header_count):
            p = kc_header_parse(p, self.data + self.position, &header)
            if p == NULL:
                raise CorruptMessage("records changed while they were read")
            key = PyUnicode_DecodeUTF8(<char *>header.key, header.key_size, "surrogateescape")
            headers.append((key, _bytes_or_none(header.value, header.value_size)))
        return headers


@cython.final
cdef class _LegacyRecordIterator:
    """Over messages of magic 0 and 1 that kc_legacy_check_inner has passed, or over one plain message."""

    cdef object payload          # keeps data alive
    cdef const uint8_t *data
    cdef int64_t size
    cdef int64_t position
    cdef int64_t base_offset     # added to the offsets as they stand in the messages
    cdef int64_t log_append_time
    cdef bint is_log_append_time

    def __iter__(self):
        return self

    def __next__(self):
        cdef kc_legacy_message parsed
        cdef kc_error err
        memset(&parsed, 0, sizeof(parsed))  # compilers cannot see that a status that is not OK raises
        if self.position >= self.size:
            raise StopIteration
        if kc_legacy_parse(self.data, self.size, self.position, &parsed, &err):
            raise_status(&err, "records changed while they were read")
        self.position += parsed.size
        cdef Record record = Record.__new__(Record)
        record.offset = self.base_offset + parsed.offset
        if parsed.magic == 0:
            record.timestamp, record.timestamp_type = -1, "NoTimestampType"
        elif self.is_log_append_time:
            record.timestamp, record.timestamp_type = self.log_append_time, "LogAppendTime"
        else:
            record.timestamp, record.timestamp_type = parsed.timestamp, "CreateTime"
        record.key = _bytes_or_none(parsed.key, parsed.key_size)
        record.value = _bytes_or_none(parsed.value, parsed.value_size)
        record.headers = ()
        return record


cdef RecordBatch make_batch(const kc_batch *row, const uint8_t *data, object owner, str source):
    """data: the batch's first byte, inside the memoryview owner; NULL for the header alone."""
    cdef RecordBatch batch = RecordBatch.__new__(RecordBatch)
    batch.row = row[0]
    batch.data = data
    batch.owner = owner
    batch.source = source
    return batch


cdef class RecordBatch:
    """RecordBatch()\n--\n
    One batch: a copy of its header, decoded, and a reference to its bytes.

    A message of magic 0 or 1 is one too, with producer id and leader epoch -1.  Of a wrapper, a compressed such
    message, the base offset is that of its last record, and count is -1, unknown: only records() knows more.
    Made by BatchTable.  Offsets assigned to the table's buffer later do not show in a batch taken before.
    """

    def __init__(self):
        raise TypeError("a RecordBatch comes from MemoryRecords.batches")

    cdef int need_data(self) except -1:
        if self.data == NULL:
            raise ValueError(f"{self.source}: only the header of the batch at {self.row.position} was read")
        return 0

    @property
    def position(self):
        """Of the first byte, in the buffer or file it came from."""
        return self.row.position

    @property
    def size(self):
        """Bytes, header included."""
        return self.row.size

    @property
    def base_offset(self):
        return self.row.base_offset

    @property
    def last_offset(self):
        return self.row.last_offset

    @property
    def next_offset(self):
        return self.row.last_offset + 1

    @property
    def leader_epoch(self):
        return self.row.leader_epoch

    @property
    def magic(self):
        return self.row.magic

    @property
    def crc(self):
        """As the header has it."""
        return self.row.crc

    @property
    def attributes(self):
        return self.row.attributes

    @property
    def compression(self):
        """The codec's name; "unknown-N" for attribute bits that no codec has."""
        return _CODECS[self.row.attributes & KC_ATTR_CODEC_MASK]

    @property
    def timestamp_type(self):
        if self.row.magic == 0:
            return "NoTimestampType"
        return "LogAppendTime" if self.row.attributes & KC_ATTR_LOG_APPEND_TIME else "CreateTime"

    @property
    def is_transactional(self):
        return self.row.attributes & KC_ATTR_TRANSACTIONAL != 0

    @property
    def is_control(self):
        return self.row.attributes & KC_ATTR_CONTROL != 0

    @property
    def delete_horizon_ms(self):
        """When tombstones and markers in here may go; None unless the cleaner set it (KIP-534)."""
        return self.row.base_timestamp if self.row.attributes & KC_ATTR_DELETE_HORIZON else None

    @property
    def base_timestamp(self):
        return self.row.base_timestamp

    @property
    def max_timestamp(self):
        return self.row.max_timestamp

    @property
    def producer_id(self):
        return self.row.producer_id

    @property
    def producer_epoch(self):
        return self.row.producer_epoch

    @property
    def base_sequence(self):
        return self.row.base_sequence

    @property
    def last_sequence(self):
        """Sequence of the last record: wraps from 2**31 - 1 to 0; -1 where the batch has none."""
        return last_sequence_of(&self.row)

    @property
    def has_producer_id(self):
        return self.row.producer_id > -1

    @property
    def count(self):
        """Records, as the header says; 0 in a batch the cleaner emptied, -1 in a wrapper, which does not say."""
        return self.row.count

    @property
    def buffer(self):
        """The batch's bytes, header included: a view, not a copy."""
        self.need_data()
        whole = self.owner.cast("B")
        cdef Py_ssize_t start = self.data - <const uint8_t *>PyMemoryView_GET_BUFFER(whole).buf
        return whole[start : start + self.row.size]

    def is_valid(self):
        """Whether the CRC is that of the bytes.  Holds the GIL."""
        cdef kc_error err
        self.need_data()
        return self.check_crc(&err) == 0

    def ensure_valid(self):
        """Raises CorruptMessage unless the CRC is that of the bytes."""
        cdef kc_error err
        self.need_data()
        if self.check_crc(&err):
            raise_status(&err, self.source, self.row.base_offset)

    cdef kc_status check_crc(self, kc_error *err):
        cdef kc_batch row = self.row
        row.position = 0
        cdef kc_status status = kc_batch_check_crc(self.data, &row, err)
        err.position = self.row.position
        return status

    cdef object payload(self):
        """The records' bytes: a view of them, or what they decompress to.  Raises CorruptMessage."""
        return self._decompressed(
            self.buffer[KC_BATCH_HEADER_SIZE:] if self.row.magic == 2 else self._wrapper_value()
        )

    cdef object _decompressed(self, packed):
        cdef int codec = self.row.attributes & KC_ATTR_CODEC_MASK
        if codec == 0:
            return packed
        try:
            return decompress(codec, packed, magic=self.row.magic)
        except CorruptMessage as error:
            raise self._located(error) from error

    cdef object payload_of_copy(self):
        """payload(), made of a copy: nobody gets hold of the batch's own bytes.  Of magic 2 with a codec."""
        self.need_data()
        return self._decompressed(
            PyBytes_FromStringAndSize(
                <const char *>self.data + KC_BATCH_HEADER_SIZE, self.row.size - KC_BATCH_HEADER_SIZE
            )
        )

    cdef int64_t payload_into(self, bytearray buffer, int64_t position) except -1:
        """payload_of_copy(), or the records of a batch without a codec, to buffer[position:], which grows; its size.
        What zstd holds goes there without a copy in between.  Raises CorruptMessage."""
        cdef int codec = self.row.attributes & KC_ATTR_CODEC_MASK
        cdef const uint8_t *packed = self.data + KC_BATCH_HEADER_SIZE
        cdef int64_t size = self.row.size - KC_BATCH_HEADER_SIZE
        cdef int64_t most = -1
        cdef Py_buffer *payload
        self.need_data()
        if codec == 0:
            return put_bytes(buffer, position, packed, size)
        copy = PyBytes_FromStringAndSize(<const char *>packed, size)
        if codec == ZSTD:
            most = kc_zstd_most(<const uint8_t *>PyBytes_AS_STRING(copy), size)
        if not 0 < most <= MAX_DECOMPRESSED:
            view = PyMemoryView_FromObject(self._decompressed(copy))
            payload = PyMemoryView_GET_BUFFER(view)
            return put_bytes(buffer, position, <const uint8_t *>payload.buf, payload.len)
        _make_room(buffer, position + most)
        room = PyMemoryView_FromMemory(PyByteArray_AS_STRING(buffer) + position, most, PyBUF_WRITE)
        try:
            return decompress_zstd_into(copy, room)
        except CorruptMessage as error:
            raise self._located(error) from error
        finally:
            room.release()

    cdef object _located(self, error):
        """A codec's error, with the place of the batch in its message."""
        return CorruptMessage(
            f"{self.source}: batch at offset {self.row.base_offset}, position {self.row.position}: {error}",
            source=self.source,
            position=self.row.position,
            offset=self.row.base_offset,
        )

    cdef object _wrapper_value(self):
        """A plain message of magic 0 or 1 whole, a wrapper's compressed value.  Raises CorruptMessage."""
        cdef kc_legacy_message message
        cdef kc_error err
        self._parse_message(&message)
        if not self.row.attributes & KC_ATTR_CODEC_MASK:
            return self.buffer
        if message.value_size < 0:
            kc_fail(&err, KC_CORRUPT, b"value length of a wrapper", self.row.position, 0, message.value_size)
            raise_status(&err, self.source, self.row.base_offset)
        cdef Py_ssize_t start = message.value - self.data
        return self.buffer[start : start + message.value_size]

    cdef int _parse_message(self, kc_legacy_message *message) except -1:
        cdef kc_error err
        if kc_legacy_parse(self.data, self.row.size, 0, message, &err):
            err.position = self.row.position
            raise_status(&err, self.source, self.row.base_offset)
        return 0

    def records(self):
        """An iterator of the batch's records, in order.

        Decompresses and checks all of them first: raises CorruptMessage (source, offset, position) here, or
        yields every record without fail.  The CRC is not checked again; ensure_valid() does.  With
        LogAppendTime every record has the batch's max timestamp.  Holds the GIL but for decompression.
        """
        cdef kc_error err
        cdef bint compressed = self.row.attributes & KC_ATTR_CODEC_MASK != 0
        self.need_data()
        if self.row.magic != 2:
            return self._legacy_records(compressed)
        cdef _RecordIterator records = _RecordIterator.__new__(_RecordIterator)
        if self.row.count == 0:  # emptied by the cleaner, which leaves the codec's bits but no stream
            return iter(())
        if compressed:
            records.payload = self.payload()
            records.data = records.payload
            records.size = len(records.payload)
        else:
            records.payload = self.owner
            records.data = self.data + KC_BATCH_HEADER_SIZE
            records.size = self.row.size - KC_BATCH_HEADER_SIZE
        if kc_records_check(records.data, records.size, self.row.count,
                            self.row.last_offset - self.row.base_offset, self.row.base_timestamp, &err):
            # A position inside decompressed bytes means nothing in the file: name the batch's.
            err.position = self.row.position + (0 if compressed else KC_BATCH_HEADER_SIZE + err.position)
            raise_status(&err, self.source, self.row.base_offset)
        records.base_offset = self.row.base_offset
        records.base_timestamp = self.row.base_timestamp
        records.is_log_append_time = self.row.attributes & KC_ATTR_LOG_APPEND_TIME != 0
        records.log_append_time = self.row.max_timestamp
        records.timestamp_type = self.timestamp_type
        return records

    cdef object _legacy_records(self, bint compressed):
        cdef kc_error err
        cdef kc_legacy_message message
        cdef int64_t last_offset
        cdef _LegacyRecordIterator records = _LegacyRecordIterator.__new__(_LegacyRecordIterator)
        records.is_log_append_time = self.row.attributes & KC_ATTR_LOG_APPEND_TIME != 0
        records.log_append_time = self.row.max_timestamp
        if not compressed:
            self._parse_message(&message)
            records.payload, records.data, records.size = self.owner, self.data, self.row.size
            return records
        records.payload = self.payload()
        records.data = records.payload
        records.size = len(records.payload)
        if kc_legacy_check_inner(records.data, records.size, &last_offset, &err) < 0:
            err.position = self.row.position
            raise_status(&err, self.source, self.row.base_offset)
        # Some versions of librdkafka produce wrappers of offset 0: they say nothing of those inside.
        if self.row.last_offset:
            if self.row.magic == 1:
                records.base_offset = self.row.last_offset - last_offset
            if records.base_offset < 0 or records.base_offset + last_offset != self.row.last_offset:
                kc_fail(&err, KC_CORRUPT, b"last offset in a wrapper", self.row.position, self.row.last_offset,
                        last_offset)
                raise_status(&err, self.source, self.row.base_offset)
        return records

    def __iter__(self):
        return self.records()

    def __len__(self):
        if self.row.count < 0:
            raise TypeError("a wrapper message does not say how many records it has")
        return self.row.count

    def __repr__(self):
        return (
            f"RecordBatch(base_offset={self.row.base_offset}, last_offset={self.row.last_offset}, "
            f"count={self.row.count}, position={self.row.position}, size={self.row.size}, "
            f"compression={self.compression!r})"
        )

    def _repr_html_(self):
        from itertools import islice

        from kcore.common.html_table import MOST_ROWS, html_table
        from kcore.common.text import bytes_of, bytes_text, date_of

        kind = "control batch" if self.is_control else "transactional batch" if self.is_transactional else "batch"
        title = (
            f"{kind}: offsets {self.base_offset:,} to {self.last_offset:,}, {bytes_of(self.size)}, "
            f"compression {self.compression}, leader epoch {self.leader_epoch}"
        )
        if self.has_producer_id:
            title += f", producer {self.producer_id} epoch {self.producer_epoch} sequence {self.base_sequence}"
        if not self.is_valid():
            return html_table(f"{title}: the CRC does not match, its records cannot be read", [], [])
        rows = [
            (
                record.offset,
                date_of(record.timestamp) if record.timestamp >= 0 else "",
                bytes_text(record.key),
                bytes_text(record.value),
                ", ".join(f"{key}={bytes_text(value)}" for key, value in record.headers),
            )
            for record in islice(self.records(), MOST_ROWS)
        ]
        count = max(self.row.count, len(rows))  # a wrapper message does not say it
        return html_table(title, ["offset", "timestamp", "key", "value", "headers"], rows, count=count)
