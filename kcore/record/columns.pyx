"""Columns of records: NumPy arrays with one entry a record, and byte strings as places in a buffer.

kcore.record.record_columns makes them of batches, kcore.record.column_batches batches of them.  The kernels are in
csrc/record_columns.h.  NumPy is imported at first use.
"""

from libc.stdint cimport INT32_MAX

from kcore.common.status cimport KC_OK, raise_status
from kcore.record.record_batch cimport KC_ATTR_CONTROL, KC_ATTR_LOG_APPEND_TIME, KC_ATTR_TRANSACTIONAL

#: Columns with a value of their own for each record.
RECORD_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
#: Columns that a whole batch has one value for.
BATCH_COLUMNS = ("timestampType", "leaderEpoch", "producerId", "producerEpoch", "isTransactional", "isControl")
#: Every column that RecordColumns can have.
COLUMNS = (*RECORD_COLUMNS, *BATCH_COLUMNS, "sequence")


cdef int64_t *int64s(array) except? NULL:
    """The first of them, valid as long as the array.  To be written to only in arrays made here."""
    cdef const int64_t[::1] view = array
    return <int64_t *>&view[0] if view.shape[0] else NULL


cdef int32_t *int32s(array) except? NULL:
    cdef const int32_t[::1] view = array
    return <int32_t *>&view[0] if view.shape[0] else NULL


cdef uint8_t *uint8s(array) except? NULL:
    cdef const uint8_t[::1] view = array
    return <uint8_t *>&view[0] if view.shape[0] else NULL


cdef class BinaryColumn:
    """Byte strings in one buffer: string i begins at position[i] of it and has size[i] bytes, -1 for null.

    position: int64 array; size: int32 array; data: the buffer, as a memoryview.  column[i] is bytes or None.
    Read-only; safe to share between threads.
    """

    def __init__(self):
        raise TypeError("columns_of and the like make columns")

    @property
    def data(self):
        return memoryview(self.owner).cast("B").toreadonly()

    def __len__(self):
        return len(self.size)

    def __getitem__(self, Py_ssize_t index):
        if index < 0:
            index += len(self.size)
        if not 0 <= index < len(self.size):
            raise IndexError(f"string {index} of {len(self.size)}")
        size = int(self.size[index])
        if size < 0:
            return None
        at = int(self.position[index])
        return bytes(self.data[at : at + size])

    def __iter__(self):
        data = self.data
        for at, size in zip(self.position.tolist(), self.size.tolist(), strict=True):
            yield bytes(data[at : at + size]) if size >= 0 else None

    def gather(self, Py_ssize_t start=0, stop=None):
        """Strings start to stop in Arrow's layout: (validity bits or None, int32 offsets, bytes, number of nulls), the
        first three as arrays.  Copies the strings with the GIL released.  OverflowError for more than 2**31 - 1 bytes.
        """
        import numpy as np

        cdef Py_ssize_t end = len(self.size) if stop is None else stop
        if not 0 <= start <= end <= len(self.size):
            raise IndexError(f"strings {start} to {end} of {len(self.size)}")
        if self.gathered is not None and start == 0 and end == len(self.size):
            return self.gathered
        cdef int64_t count = end - start
        cdef int64_t nulls
        cdef int64_t total
        cdef kc_extents extents = self.extents
        cdef int32_t *offsets
        cdef uint8_t *out
        cdef uint8_t *valid = NULL
        extents.position += start
        extents.size += start
        with nogil:
            total = kc_extents_bytes(extents.size, count, &nulls)
        if total > INT32_MAX:
            raise OverflowError(f"{total} bytes are more than one Arrow array can hold")
        offset_array = np.empty(count + 1, np.int32)
        byte_array = np.empty(total + KC_COPY_SLACK, np.uint8)
        valid_array = np.zeros((count + 7) // 8, np.uint8) if nulls else None
        offsets = int32s(offset_array)
        out = uint8s(byte_array)
        if nulls:
            valid = uint8s(valid_array)
        with nogil:
            kc_gather(&extents, count, offsets, out, valid)
        return valid_array, offset_array, byte_array[:total], nulls

    def take(self, indices):
        """The strings of these numbers (an int64 array), in that order; they are not copied.  Raises IndexError."""
        return column_at(
            self.extents.data, self.extents.data_size, self.owner, self.position.take(indices), self.size.take(indices)
        )

    cdef int detach(self) except -1:
        """Take the strings out of a buffer that was only borrowed."""
        import numpy as np

        if self.owner is not None:
            return 0
        self.gathered = self.gather()
        self.owner = self.gathered[2]
        self.position = self.gathered[1][: len(self.size)].astype(np.int64)
        self.extents.data = uint8s(self.owner)
        self.extents.data_size = len(self.owner)
        self.extents.position = int64s(self.position)
        return 0

    def __repr__(self):
        return f"BinaryColumn({len(self.size)} strings)"


cdef BinaryColumn column_at(const uint8_t *data, int64_t data_size, object owner, object position, object size):
    cdef BinaryColumn column = BinaryColumn.__new__(BinaryColumn)
    column.extents.data = data
    column.extents.data_size = data_size
    column.extents.position = int64s(position)
    column.extents.size = int32s(size)
    column.owner = owner
    column.position = position
    column.size = size
    return column


cdef class RecordColumns:
    """Columns of some records, in the order of their offsets; None for a column that the caller did not want.

    offset, timestamp: int64 arrays (timestamps in ms, -1 for none); key, value: BinaryColumn; header_count: int32
    array; headers: BinaryColumn of each record's headers as they are encoded, see header_lists().  batches: a
    structured array (kcore.record.layout.BATCH_DTYPE) of the batches they come from, batch_records: how many of each
    there are.  columns["offset"] is the same as columns.offset; by that way there are also, one value a record,
    timestampType (0 CreateTime, 1 LogAppendTime, -1 none), leaderEpoch, producerId, producerEpoch, sequence,
    isTransactional and isControl.
    """

    def __init__(self):
        raise TypeError("columns_of and the like make columns")

    def __len__(self):
        return self.count

    def keys(self):
        """The names of all columns that are there."""
        read = {name: getattr(self, name) for name in RECORD_COLUMNS}
        return [name for name in COLUMNS if read.get(name, self.batches) is not None]

    def __contains__(self, name):
        return name in self.keys()

    def __iter__(self):
        return iter(self.keys())

    def __getitem__(self, str name):
        import numpy as np

        if name not in self:
            raise KeyError(name)
        if name in RECORD_COLUMNS:
            return getattr(self, name)
        attributes = self.batches["attributes"]
        if name == "timestampType":
            log_append_time = (attributes & KC_ATTR_LOG_APPEND_TIME != 0).astype(np.int32)
            values = np.where(self.batches["magic"] == 0, np.int32(-1), log_append_time)
        elif name == "isTransactional":
            values = attributes & KC_ATTR_TRANSACTIONAL != 0
        elif name == "isControl":
            values = attributes & KC_ATTR_CONTROL != 0
        elif name == "sequence":
            return self._sequence()
        else:
            field = {"leaderEpoch": "leader_epoch", "producerId": "producer_id", "producerEpoch": "producer_epoch"}
            values = self.batches[field[name]]
        return np.repeat(values, self.batch_records)

    def _sequence(self):
        """Of each record: it goes up with the offset, from 2**31 - 1 to 0 (RecordBatch.last_sequence)."""
        import numpy as np

        if self.offset is None:
            raise KeyError("sequence needs the column offset")
        base = np.repeat(self.batches["base_sequence"].astype(np.int64), self.batch_records)
        delta = self.offset - np.repeat(self.batches["base_offset"], self.batch_records)
        return np.where(base < 0, -1, (base + delta) & 0x7FFFFFFF).astype(np.int32)

    def header_columns(self, Py_ssize_t start=0, stop=None):
        """(int32 offsets, keys, values) of records start to stop: record i's headers are those from offsets[i] up to
        offsets[i + 1] of two BinaryColumns.  OverflowError for more than 2**31 - 1 of them."""
        import numpy as np

        if self.headers is None:
            raise KeyError("headers")
        cdef Py_ssize_t end = self.count if stop is None else stop
        if not 0 <= start <= end <= self.count:
            raise IndexError(f"records {start} to {end} of {self.count}")
        cdef int64_t count = end - start
        cdef kc_error err
        cdef kc_status status
        cdef kc_extents raw = self.headers.extents
        header_count = self.header_count[start:end]
        total = int(header_count.sum(dtype=np.int64))
        if total > INT32_MAX:
            raise OverflowError(f"{total} headers are more than one Arrow array can hold")
        offsets = np.zeros(count + 1, np.int32)
        if total:
            np.cumsum(header_count, dtype=np.int32, out=offsets[1:])
        cdef BinaryColumn key = column_at(
            raw.data, raw.data_size, self.headers.owner, np.empty(total, np.int64), np.empty(total, np.int32)
        )
        cdef BinaryColumn value = column_at(
            raw.data, raw.data_size, self.headers.owner, np.empty(total, np.int64), np.empty(total, np.int32)
        )
        cdef int32_t *counts
        if total:
            raw.position += start
            raw.size += start
            counts = int32s(header_count)
            with nogil:
                status = kc_headers_expand(&raw, counts, count, &key.extents, &value.extents, &err)
            if status != KC_OK:
                raise_status(&err, "headers changed while they were read")
        return offsets, key, value

    def take(self, indices):
        """The records of these numbers (an int64 array), in that order, without what only their batches say.  Strings
        are not copied.  Raises IndexError."""
        cdef RecordColumns taken = RecordColumns.__new__(RecordColumns)
        taken.count = len(indices)
        taken.offset = None if self.offset is None else self.offset.take(indices)
        taken.timestamp = None if self.timestamp is None else self.timestamp.take(indices)
        taken.key = None if self.key is None else self.key.take(indices)
        taken.value = None if self.value is None else self.value.take(indices)
        taken.headers = None if self.headers is None else self.headers.take(indices)
        taken.header_count = None if self.header_count is None else self.header_count.take(indices)
        return taken

    cdef int detach(self) except -1:
        cdef BinaryColumn column
        for column in (self.key, self.value, self.headers):
            if column is not None:
                column.detach()
        return 0

    def to_arrow(self, columns=None, *, topic=None, partition=None):
        """A pyarrow.Table: see kcore.record.arrow for its schema.  Needs pyarrow."""
        from kcore.record.arrow import table_of

        return table_of(self, columns, topic=topic, partition=partition)

    def __repr__(self):
        return f"RecordColumns({self.count} records, {', '.join(self.keys())})"


def binary_column(offsets, data, valid, Py_ssize_t start, Py_ssize_t count):
    """A BinaryColumn of strings start to start + count of Arrow's layout, without copying them.  offsets, data, valid:
    buffers of int32 offsets, of bytes, of validity bits; data and valid may be None.  ValueError for offsets that do not
    ascend within data."""
    import numpy as np

    cdef BinaryColumn column
    cdef kc_error err
    cdef kc_status status
    cdef const uint8_t[::1] bits
    cdef const uint8_t *valid_bits = NULL
    cdef const uint8_t[::1] strings = np.frombuffer(b"" if data is None else data, np.uint8)
    cdef const int32_t[::1] places
    column = column_at(
        &strings[0] if strings.shape[0] else NULL, strings.shape[0], b"" if data is None else data,
        np.empty(count, np.int64), np.empty(count, np.int32),
    )
    if count == 0:
        return column
    places = np.frombuffer(offsets, np.int32)
    if start < 0 or count < 0 or places.shape[0] < start + count + 1:
        raise ValueError(f"{places.shape[0]} offsets, too few for strings {start} to {start + count}")
    if valid is not None:
        bits = np.frombuffer(valid, np.uint8)
        if bits.shape[0] < (start + count + 7) // 8:
            raise ValueError(f"{8 * bits.shape[0]} validity bits, too few for strings {start} to {start + count}")
        valid_bits = &bits[0]
    with nogil:
        status = kc_extents_of_offsets(&places[start], valid_bits, start, count, &column.extents, &err)
    if status != KC_OK:
        raise_status(&err, "")
    return column


def make_columns(
    Py_ssize_t count, *, offset=None, timestamp=None, BinaryColumn key=None, BinaryColumn value=None, headers=None
):
    """RecordColumns of arrays, as batches_of() takes them.  offset, timestamp: int64 arrays; headers: what
    RecordColumns.header_columns() gives.  ValueError for columns of different lengths."""
    import numpy as np

    cdef RecordColumns columns = RecordColumns.__new__(RecordColumns)
    columns.count = count
    columns.offset = None if offset is None else np.ascontiguousarray(offset, np.int64)
    columns.timestamp = None if timestamp is None else np.ascontiguousarray(timestamp, np.int64)
    columns.key = key
    columns.value = value
    if headers is not None:
        columns.headers, columns.header_count = _encoded_headers(*headers)
    for name in RECORD_COLUMNS:
        column = getattr(columns, name)
        if column is not None and len(column) != count:
            raise ValueError(f"column {name} has {len(column)} values, expected {count}")
    return columns


def _encoded_headers(offsets, BinaryColumn key not None, BinaryColumn value not None):
    import numpy as np

    lists = np.ascontiguousarray(offsets, np.int32)
    cdef int64_t count = len(lists) - 1
    total = len(key)
    if count < 0 or lists[0] < 0 or lists[count] > total or len(value) != total or (np.diff(lists) < 0).any():
        raise ValueError(f"offsets of headers do not ascend within {total}")
    if (key.size < 0).any():
        raise ValueError("a header's key is null")
    cdef BinaryColumn made = column_at(NULL, 0, None, np.empty(count, np.int64), np.empty(count, np.int32))
    counts = np.empty(count, np.int32)
    cdef const int32_t *list_offsets = int32s(lists)
    cdef int32_t *header_count = int32s(counts)
    cdef int64_t size
    cdef uint8_t *data
    with nogil:
        size = kc_headers_encode(
            list_offsets, count, &key.extents, &value.extents, &made.extents, header_count, NULL
        )
    encoded = np.empty(size, np.uint8)
    data = uint8s(encoded)
    if size:
        with nogil:
            kc_headers_encode(list_offsets, count, &key.extents, &value.extents, &made.extents, header_count, data)
    made.owner = encoded
    made.extents.data = data
    made.extents.data_size = size
    return made, counts
