# cython: freethreading_compatible = True
"""Records as columns: NumPy arrays with one entry a record, made without an object for any of them; and columns as
batches.

The kernels are in csrc/record_columns.h.  NumPy is imported at first use, by whoever asks for columns.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int16_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from kcore.common.status cimport KC_OK, KC_TRUNCATED, raise_status
from kcore.record.memory_records cimport BatchTable, MemoryRecords
from kcore.errors import CorruptMessage
from kcore.record.record_batch cimport (
    KC_ATTR_CODEC_MASK,
    KC_ATTR_CONTROL,
    KC_ATTR_LOG_APPEND_TIME,
    KC_ATTR_TRANSACTIONAL,
    KC_BATCH_HEADER_SIZE,
    KC_WALK_CHECK_CRC,
    Record,
    RecordBatch,
    kc_batch_check_count,
    kc_batch_walk,
    kc_batch_write_header,
    kc_record_body_size,
    kc_record_write,
    kc_varlong_size,
    make_batch,
    put_bytes,
)

#: Room for the batch that brings decompressed bytes to the limit, in most cases.
cdef int64_t ARENA_SLACK = 256 * 1024
#: To begin with: a guess must not be what memory runs out for.
cdef int64_t LARGEST_ARENA = 64 * 1024 * 1024

cdef enum:
    OFFSET = 1
    TIMESTAMP = 2
    KEY = 4
    VALUE = 8
    HEADERS = 16

#: Columns with a value of their own for each record, and the bit that asks for them.
cdef dict _READ = {"offset": OFFSET, "timestamp": TIMESTAMP, "key": KEY, "value": VALUE, "headers": HEADERS}

#: Columns that a whole batch has one value for.
BATCH_COLUMNS = ("timestampType", "leaderEpoch", "producerId", "producerEpoch", "isTransactional", "isControl")
#: Every column that RecordColumns can have.
COLUMNS = (*_READ, *BATCH_COLUMNS, "sequence")


cdef int64_t *_int64s(array) except? NULL:
    """The first of them, valid as long as the array.  To be written to only in arrays made here."""
    cdef const int64_t[::1] view = array
    return <int64_t *>&view[0] if view.shape[0] else NULL


cdef int32_t *_int32s(array) except? NULL:
    cdef const int32_t[::1] view = array
    return <int32_t *>&view[0] if view.shape[0] else NULL


cdef uint8_t *_uint8s(array) except? NULL:
    cdef const uint8_t[::1] view = array
    return <uint8_t *>&view[0] if view.shape[0] else NULL


cdef class BinaryColumn:
    """Byte strings that lie in one buffer: string i begins at position[i] of it and has size[i] bytes, -1 for null.

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
        offsets = _int32s(offset_array)
        out = _uint8s(byte_array)
        if nulls:
            valid = _uint8s(valid_array)
        with nogil:
            kc_gather(&extents, count, offsets, out, valid)
        return valid_array, offset_array, byte_array[:total], nulls

    def take(self, indices):
        """The strings of these numbers (an int64 array), in that order; they are not copied.  Raises IndexError."""
        return _column(
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
        self.extents.data = _uint8s(self.owner)
        self.extents.data_size = len(self.owner)
        self.extents.position = _int64s(self.position)
        return 0

    def __repr__(self):
        return f"BinaryColumn({len(self.size)} strings)"


cdef BinaryColumn _column(const uint8_t *data, int64_t data_size, object owner, object position, object size):
    cdef BinaryColumn column = BinaryColumn.__new__(BinaryColumn)
    column.extents.data = data
    column.extents.data_size = data_size
    column.extents.position = _int64s(position)
    column.extents.size = _int32s(size)
    column.owner = owner
    column.position = position
    column.size = size
    return column


cdef class RecordColumns:
    """Columns of some records, in the order of their offsets: what was asked for, None for the rest.

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
        read = {name: getattr(self, name) for name in _READ}
        return [name for name in COLUMNS if read.get(name, self.batches) is not None]

    def __contains__(self, name):
        return name in self.keys()

    def __iter__(self):
        return iter(self.keys())

    def __getitem__(self, str name):
        import numpy as np

        if name not in self:
            raise KeyError(name)
        if name in _READ:
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
        cdef BinaryColumn key = _column(
            raw.data, raw.data_size, self.headers.owner, np.empty(total, np.int64), np.empty(total, np.int32)
        )
        cdef BinaryColumn value = _column(
            raw.data, raw.data_size, self.headers.owner, np.empty(total, np.int64), np.empty(total, np.int32)
        )
        cdef int32_t *counts
        if total:
            raw.position += start
            raw.size += start
            counts = _int32s(header_count)
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


cdef class ColumnsReader:
    """Reads batches into columns.  One thread at a time.

    columns: names of those wanted, None for all; records with an offset in [start_offset, end_offset) and a timestamp in
    [from_time, to_time]; aborted: tuples that begin with (producer id, first offset, last offset) of transactions whose
    records are left out.
    """

    def __cinit__(
        self,
        columns=None,
        *,
        int64_t start_offset=0,
        int64_t end_offset=INT64_MAX,
        int64_t from_time=INT64_MIN,
        int64_t to_time=INT64_MAX,
        aborted=(),
        bint keep_control=False,
        bint check_crc=True,
        str source="",
    ):
        cdef Py_ssize_t i
        if columns is None:
            columns = tuple(_READ)
        for name in columns:
            if name not in COLUMNS:
                raise ValueError(f"column {name!r} is none of {', '.join(COLUMNS)}")
            self.wanted |= _READ.get(name, OFFSET if name == "sequence" else 0)
        txns = sorted((txn[0], txn[1], txn[2]) for txn in aborted)
        self.aborted = <kc_aborted *>calloc(max(1, len(txns)), sizeof(kc_aborted))
        if self.aborted == NULL:
            raise MemoryError(f"{source}: {len(txns)} aborted transactions")
        for i, (producer_id, first, last) in enumerate(txns):
            self.aborted[i].producer_id = producer_id
            self.aborted[i].first_offset = first
            self.aborted[i].last_offset = last
        self.selection.start = start_offset
        self.selection.end = end_offset
        self.selection.from_time = from_time
        self.selection.to_time = to_time
        self.selection.keep_control = keep_control
        self.selection.aborted = self.aborted
        self.selection.aborted_count = len(txns)
        self.check_crc = check_crc
        self.source = source
        self.previous = -1

    def __dealloc__(self):
        free(self.aborted)

    cdef RecordColumns of_rows(self, BatchTable table, int64_t max_bytes):
        """Of the table's batches, whose bytes are there.  Uncompressed ones alone are not copied: the columns' extents
        count from the table's first byte.  Of compressed ones the table is cut behind that which brings the decompressed
        bytes to max_bytes."""
        cdef BatchTable chosen = _empty_like(table)
        cdef Py_ssize_t i
        cdef bint packed = False
        for i in range(table.count):
            if kc_batch_selected(table.rows + i, &self.selection):
                packed = packed or _is_packed(table.rows + i)
                chosen.reserve(table.count)
                chosen.rows[chosen.count] = table.rows[i]
                chosen.count += 1
        if packed:
            return self._unpacked(table, chosen, max_bytes)
        positions, sizes = _places(chosen.count)
        cdef int64_t *position = _int64s(positions)
        cdef int64_t *size = _int64s(sizes)
        for i in range(chosen.count):
            position[i] = chosen.rows[i].position - chosen.base_position + KC_BATCH_HEADER_SIZE
            size[i] = chosen.rows[i].size - KC_BATCH_HEADER_SIZE
        cdef int64_t end = position[chosen.count - 1] + size[chosen.count - 1] if chosen.count else 0
        return self._read(chosen, positions, sizes, chosen.data, end, chosen.owner, False)

    cdef RecordColumns _unpacked(self, BatchTable table, BatchTable chosen, int64_t max_bytes):
        """Decompress into one buffer, where uncompressed batches among them go too."""
        positions, sizes = _places(chosen.count)
        # As a memoryview: it keeps a bytearray from being resized under the columns.
        if chosen.count == 1 and chosen.rows[0].magic == 2:
            owner = memoryview(chosen.batch(0).payload_of_copy())
            _int64s(positions)[0] = 0
            _int64s(sizes)[0] = len(owner)
        else:
            owner = memoryview(self._arena(table, chosen, max_bytes, _int64s(positions), _int64s(sizes)))
        cdef Py_buffer *view = PyMemoryView_GET_BUFFER(owner)
        return self._read(chosen, positions, sizes, <const uint8_t *>view.buf, view.len, owner, True)

    cdef object _arena(self, BatchTable table, BatchTable chosen, int64_t max_bytes, int64_t *position, int64_t *size):
        """What the batches hold, one behind the other; of those behind max_bytes both tables are rid."""
        cdef Py_ssize_t i = 0
        cdef int64_t at = 0
        cdef int64_t packed = 0
        cdef RecordBatch batch
        cdef bytes old
        for i in range(chosen.count):
            packed += chosen.rows[i].size
        # What will usually do; it grows where it does not, and pages that nothing is written to cost nothing.
        cdef int64_t room = min(6 * packed, min(max_bytes, LARGEST_ARENA)) + ARENA_SLACK
        cdef bytearray arena = PyByteArray_FromStringAndSize(NULL, room)
        i = 0
        while i < chosen.count:
            batch = chosen.batch(i)
            position[i] = at
            if batch.row.magic == 2:
                size[i] = batch.payload_into(arena, at)
            else:
                old = _as_magic_2(batch, chosen.rows + i)
                size[i] = put_bytes(arena, at, <const uint8_t *>PyBytes_AS_STRING(old), len(old))
            at += size[i]
            i += 1
            if at >= max_bytes and i < chosen.count:
                while table.rows[table.count - 1].base_offset >= chosen.rows[i].base_offset:
                    table.count -= 1
                chosen.count = i
        if at < ARENA_SLACK:
            # Cut to so little, it would stay a mapping of its own.
            return PyBytes_FromStringAndSize(PyByteArray_AS_STRING(arena), at)
        PyByteArray_Resize(arena, at)
        return arena

    cdef RecordColumns _read(self, BatchTable chosen, positions, sizes, const uint8_t *data, int64_t data_size, owner,
                             bint unpacked):
        import numpy as np

        cdef Py_ssize_t i = 0
        cdef kc_columns to
        cdef kc_error err
        cdef kc_status status = KC_OK
        cdef int64_t before
        cdef int64_t *position = _int64s(positions)
        cdef int64_t *size = _int64s(sizes)
        memset(&to, 0, sizeof(to))
        for i in range(chosen.count):
            status = kc_batch_check_count(chosen.rows + i, size[i], &err)
            if status != KC_OK:
                self._refuse(chosen.rows + i, &err, unpacked)
            to.capacity += chosen.rows[i].count
        cdef Py_ssize_t room = to.capacity
        cdef RecordColumns columns = RecordColumns.__new__(RecordColumns)
        records = np.zeros(chosen.count, np.int32)
        cdef int32_t *batch_records = _int32s(records)
        cdef dict arrays = _room_for(self.wanted, room)
        if self.wanted & OFFSET:
            to.offset = _int64s(arrays["offset"])
        if self.wanted & TIMESTAMP:
            to.timestamp = _int64s(arrays["timestamp"])
        if self.wanted & KEY:
            to.key.position, to.key.size = _int64s(arrays["key"][0]), _int32s(arrays["key"][1])
        if self.wanted & VALUE:
            to.value.position, to.value.size = _int64s(arrays["value"][0]), _int32s(arrays["value"][1])
        if self.wanted & HEADERS:
            to.headers.position, to.headers.size = _int64s(arrays["headers"][0]), _int32s(arrays["headers"][1])
            to.header_count = _int32s(arrays["header_count"])
        with nogil:
            for i in range(chosen.count):
                before = to.count
                status = kc_columns_add(&to, chosen.rows + i, data, position[i], size[i], &self.selection, &err)
                if status != KC_OK:
                    break
                batch_records[i] = <int32_t>(to.count - before)
        if status != KC_OK:
            self._refuse(chosen.rows + i, &err, unpacked)
        columns.count = to.count
        columns.batches = chosen.to_numpy()
        columns.batch_records = records
        if self.wanted & OFFSET:
            columns.offset = arrays["offset"][: to.count]
        if self.wanted & TIMESTAMP:
            columns.timestamp = arrays["timestamp"][: to.count]
        if self.wanted & KEY:
            columns.key = _cut_column(data, data_size, owner, arrays["key"], to.count)
        if self.wanted & VALUE:
            columns.value = _cut_column(data, data_size, owner, arrays["value"], to.count)
        if self.wanted & HEADERS:
            columns.headers = _cut_column(data, data_size, owner, arrays["headers"], to.count)
            columns.header_count = arrays["header_count"][: to.count]
        return columns

    cdef int _refuse(self, const kc_batch *row, kc_error *err, bint unpacked) except -1:
        """Raise for the records of a batch; a position inside decompressed bytes means nothing in the file."""
        err.position = row.position + (0 if unpacked else KC_BATCH_HEADER_SIZE + err.position)
        raise_status(err, self.source, row.base_offset)

    cdef RecordColumns of_log(self, const uint8_t *log, int64_t position, int64_t end, int64_t bound,
                              int64_t max_bytes, str source):
        """Of the batches from position on in log[0..end), of some max_bytes, compressed or not; nothing of the result
        lies in log.

        The batches' offsets must ascend from one call to the next and stay below bound.  Moves `previous` to the last
        offset that was passed and `position` behind its batch.
        """
        cdef BatchTable table = BatchTable.__new__(BatchTable)
        cdef int64_t stop = end if end - position <= max_bytes else position + max_bytes
        cdef int64_t room = 16
        cdef int64_t at = position
        cdef int64_t last_offset = self.previous
        cdef int64_t first_offset
        cdef int64_t n
        cdef kc_error err
        cdef kc_error order
        cdef int flags = KC_WALK_CHECK_CRC if self.check_crc else 0
        self.source = source
        table.source = source
        table.data = log
        err.status = KC_OK
        while at < stop and last_offset < self.selection.end - 1 and err.status == KC_OK:
            if table.count:
                # As many more as the bytes seem to hold, and as the offsets asked for do.
                first_offset = table.rows[0].base_offset
                if last_offset < first_offset:
                    break  # no CRC covers offsets; the check of their order below says so
                room = (stop - at) * table.count // (at - position) + 1
                n = (self.selection.end - last_offset) // ((last_offset - first_offset) // table.count + 1)
                room = min(room, min(n, room) + 16)
            table.reserve(table.count + room)
            with nogil:
                n = kc_batch_walk(log, stop, &at, flags, table.rows + table.count, room, &err)
            table.count += n
            if table.count:
                last_offset = table.rows[table.count - 1].last_offset
            elif err.status == KC_TRUNCATED and stop < end:
                # The first batch alone is larger than max_bytes.
                stop = end if err.expected > end - position else position + err.expected
                err.status = KC_OK
        # What does not parse may be the beginning of a batch that is being written, or lies behind what is asked for.
        if err.status != KC_OK and err.status != KC_TRUNCATED and last_offset < self.selection.end - 1:
            raise_status(&err, source)
        if kc_batches_check_order(table.rows, table.count, self.previous, bound, &order) != KC_OK:
            raise_status(&order, source)
        cdef RecordColumns columns = self.of_rows(table, max_bytes)
        columns.detach()
        if table.count:
            self.previous = table.rows[table.count - 1].last_offset
            self.position = table.rows[table.count - 1].position + table.rows[table.count - 1].size
        return columns

    cpdef RecordColumns nothing(self):
        """Columns of no records."""
        cdef RecordColumns columns = self.of_rows(BatchTable.__new__(BatchTable), 0)
        columns.detach()
        return columns


cdef dict _room_for(int wanted, Py_ssize_t count):
    """Arrays of the wanted columns, extents as pairs.  One block for all of them: malloc gives and takes back several
    large ones page by page, each time anew, which would cost as much as half the reading."""
    import numpy as np

    numbers = [name for name, bit in _READ.items() if wanted & bit]
    strings = [name for name in numbers if _READ[name] > TIMESTAMP]
    sizes = [*strings, "header_count"] if wanted & HEADERS else strings
    block = np.empty(count * (2 * len(numbers) + len(sizes)), np.int32)
    longs = block[: 2 * count * len(numbers)].view(np.int64).reshape(len(numbers), count)
    ints = block[2 * count * len(numbers) :].reshape(len(sizes), count)
    arrays = dict(zip(numbers, longs, strict=True))
    for name, size in zip(sizes, ints, strict=True):
        arrays[name] = (arrays[name], size) if name in arrays else size
    return arrays


cdef inline bint _is_packed(const kc_batch *row) noexcept:
    """Whether the records cannot be read where they lie."""
    return row.attributes & KC_ATTR_CODEC_MASK != 0 or row.magic != 2


cdef bytes _as_magic_2(RecordBatch batch, kc_batch *row):
    """The records of a message of magic 0 or 1, a wrapper or not, as a batch of magic 2 has them; *row becomes its row.
    The slow way: such logs are old, and seldom large."""
    if batch.owner is None:
        # Borrowed bytes: nobody else may get hold of them.
        copy = PyBytes_FromStringAndSize(<const char *>batch.data, batch.row.size)
        batch = make_batch(&batch.row, <const uint8_t *>PyBytes_AS_STRING(copy), memoryview(copy), batch.source)
    cdef list records = list(batch.records())
    cdef Record record
    cdef int64_t total = 0
    cdef int64_t key_size, value_size, body
    cdef uint8_t *p
    row.count = <int32_t>len(records)
    row.base_timestamp = 0
    if records:
        row.base_offset = (<Record>records[0]).offset
    for record in records:
        if record.offset - row.base_offset > INT32_MAX:
            raise CorruptMessage(
                f"{batch.source}: offsets {row.base_offset} to {record.offset} in the message at position {row.position}",
                source=batch.source, position=row.position, offset=row.last_offset,
            )
        body = _body_size(record, row.base_offset, &key_size, &value_size)
        total += kc_varlong_size(body) + body
    cdef bytes payload = PyBytes_FromStringAndSize(NULL, total)
    p = <uint8_t *>PyBytes_AS_STRING(payload)
    for record in records:
        body = _body_size(record, row.base_offset, &key_size, &value_size)
        p = kc_record_write(
            p, body, record.timestamp, <int32_t>(record.offset - row.base_offset),
            NULL if key_size < 0 else <uint8_t *>PyBytes_AS_STRING(record.key), <int32_t>key_size,
            NULL if value_size < 0 else <uint8_t *>PyBytes_AS_STRING(record.value), <int32_t>value_size,
            0,
        )
    return payload


cdef int64_t _body_size(Record record, int64_t base_offset, int64_t *key_size, int64_t *value_size) except -1:
    key_size[0] = -1 if record.key is None else len(record.key)
    value_size[0] = -1 if record.value is None else len(record.value)
    return kc_record_body_size(
        record.timestamp, <int32_t>(record.offset - base_offset), key_size[0], value_size[0], 0, 0
    )


cdef BatchTable _empty_like(BatchTable table):
    cdef BatchTable made = BatchTable.__new__(BatchTable)
    made.data, made.base_position, made.owner, made.source = (
        table.data, table.base_position, table.owner, table.source
    )
    return made


def _places(Py_ssize_t count):
    import numpy as np

    return np.empty(count, np.int64), np.empty(count, np.int64)


cdef BinaryColumn _cut_column(const uint8_t *data, int64_t data_size, owner, tuple extents, int64_t count):
    return _column(data, data_size, owner, extents[0][:count], extents[1][:count])


def columns_of(
    records, *, columns=None, start_offset=0, end_offset=INT64_MAX, aborted=(), keep_control=False, check_crc=True,
    source="",
):
    """RecordColumns of a buffer of batches (bytes-like, or a MemoryRecords, which was checked already).

    The records with an offset in [start_offset, end_offset); columns: names of those to read, None for all.  Without
    compression keys and values stay where they are, and the columns keep the buffer alive; otherwise they point into
    one buffer of what was decompressed.  aborted: transactions to leave out, tuples that begin with (producer id,
    first offset, last offset); control batches come only with keep_control.  The GIL is released.
    Raises CorruptMessage (source, position, offset), and what MemoryRecords raises.
    """
    cdef MemoryRecords checked
    if isinstance(records, MemoryRecords):
        checked = records
    else:
        checked = MemoryRecords(records, check_crc=check_crc, source=source)
    cdef ColumnsReader reader = ColumnsReader(
        columns, start_offset=start_offset, end_offset=end_offset, aborted=aborted, keep_control=keep_control,
        source=checked.source,
    )
    return reader.of_rows(checked.batches, INT64_MAX)


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
    column = _column(
        &strings[0] if strings.shape[0] else NULL, strings.shape[0], b"" if data is None else data,
        np.empty(count, np.int64), np.empty(count, np.int32),
    )
    if count == 0:
        return column
    places = np.frombuffer(offsets, np.int32)
    if start < 0 or count < 0 or places.shape[0] < start + count + 1:
        raise ValueError(f"{places.shape[0]} offsets, strings {start} to {start + count} are asked for")
    if valid is not None:
        bits = np.frombuffer(valid, np.uint8)
        if bits.shape[0] < (start + count + 7) // 8:
            raise ValueError(f"{8 * bits.shape[0]} validity bits, strings {start} to {start + count} are asked for")
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
    for name in _READ:
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
    cdef BinaryColumn made = _column(NULL, 0, None, np.empty(count, np.int64), np.empty(count, np.int32))
    counts = np.empty(count, np.int32)
    cdef const int32_t *list_offsets = _int32s(lists)
    cdef int32_t *header_count = _int32s(counts)
    cdef int64_t size
    cdef uint8_t *data
    with nogil:
        size = kc_headers_encode(
            list_offsets, count, &key.extents, &value.extents, &made.extents, header_count, NULL
        )
    encoded = np.empty(size, np.uint8)
    data = _uint8s(encoded)
    if size:
        with nogil:
            kc_headers_encode(list_offsets, count, &key.extents, &value.extents, &made.extents, header_count, data)
    made.owner = encoded
    made.extents.data = data
    made.extents.data_size = size
    return made, counts


def batches_of(
    columns,
    *,
    base_offset=0,
    int64_t max_bytes=1024 * 1024,
    int64_t max_records=INT32_MAX,
    compression="none",
    level=None,
    timestamp_type="CreateTime",
    int32_t leader_epoch=-1,
    int64_t producer_id=-1,
    int16_t producer_epoch=-1,
    int32_t base_sequence=-1,
    bint is_transactional=False,
):
    """The records as finished batches of magic 2, one behind the other in a bytearray.

    columns: RecordColumns, or what kcore.record.arrow.columns_from_arrow takes.  Offsets count from base_offset; None:
    they are those of the column offset.  A batch gets as many records as fit into max_bytes before compression, its
    header included, and no more than max_records; a larger record has a batch of its own.  compression, level and the
    fields of the header are those of RecordBatchBuilder, which would write the same bytes; the sequence goes on from
    batch to batch.  The GIL is released.
    Raises ValueError for an offset that does not ascend, a timestamp below -1, a record that no batch can hold.
    """
    from kcore.record.compression import codec_of, compress

    if not isinstance(columns, RecordColumns):
        from kcore.record.arrow import columns_from_arrow

        columns = columns_from_arrow(columns, with_offsets=base_offset is None)
    cdef int codec = codec_of(compression, level)
    if timestamp_type not in ("CreateTime", "LogAppendTime"):
        raise ValueError(f"timestamp type {timestamp_type!r} is neither CreateTime nor LogAppendTime")
    if base_offset is not None and base_offset < 0:
        raise ValueError(f"base offset {base_offset} is negative")
    if base_offset is None and columns.offset is None:
        raise ValueError("without a base offset the records need the column offset")
    cdef kc_batch template
    cdef kc_columns source = _as_source(columns, base_offset is None)
    memset(&template, 0, sizeof(template))
    template.leader_epoch = leader_epoch
    template.producer_id = producer_id
    template.producer_epoch = producer_epoch
    template.base_sequence = base_sequence
    template.attributes = (
        codec
        | (KC_ATTR_LOG_APPEND_TIME if timestamp_type == "LogAppendTime" else 0)
        | (KC_ATTR_TRANSACTIONAL if is_transactional else 0)
    )
    cdef kc_batch_limits limits
    limits.max_bytes, limits.max_records = min(max_bytes, INT32_MAX), min(max_records, INT32_MAX)
    if max_bytes < 1 or max_records < 1:
        raise ValueError(f"batches of {max_bytes} bytes and {max_records} records")
    cdef BatchTable plan = _planned(&source, 0 if base_offset is None else base_offset, &limits, &template)
    return _written(&source, plan) if codec == 0 else _packed(&source, plan, codec, level, compress)


cdef kc_columns _as_source(RecordColumns columns, bint with_offsets):
    cdef kc_columns source
    memset(&source, 0, sizeof(source))
    source.count = columns.count
    if with_offsets:
        source.offset = _int64s(columns.offset)
    if columns.timestamp is not None:
        source.timestamp = _int64s(columns.timestamp)
    if columns.key is not None:
        source.key = columns.key.extents
    if columns.value is not None:
        source.value = columns.value.extents
    if columns.headers is not None:
        source.headers = columns.headers.extents
        source.header_count = _int32s(columns.header_count)
    return source


cdef BatchTable _planned(kc_columns *source, int64_t base_offset, const kc_batch_limits *limits,
                         const kc_batch *template):
    """A row for each batch to write, all but its CRC; sizes are those before compression."""
    cdef BatchTable plan = BatchTable.__new__(BatchTable)
    cdef int64_t first = 0
    cdef int64_t next_offset = base_offset
    cdef int64_t first_offset = source.offset[0] if source.offset != NULL else base_offset
    cdef int64_t position = 0
    cdef kc_error err
    cdef kc_status status = KC_OK
    cdef kc_batch *row
    while first < source.count:
        # As many rows as the batches so far make likely, and some more.
        plan.reserve(plan.count + 16 + (0 if first == 0 else (source.count - first) * plan.count // first))
        with nogil:
            while first < source.count and plan.count < plan.capacity:
                row = plan.rows + plan.count
                row[0] = template[0]
                row.magic = 2
                row.position = position
                status = kc_batch_plan(source, first, next_offset, limits, row, &err)
                if status != KC_OK:
                    break
                if row.base_sequence >= 0:
                    row.base_sequence = <int32_t>((row.base_sequence + (row.base_offset - first_offset)) & INT32_MAX)
                first += row.count
                next_offset = row.last_offset + 1
                position += row.size
                plan.count += 1
        if status != KC_OK:
            raise_status(&err, "records")
    return plan


cdef bytearray _written(const kc_columns *source, BatchTable plan):
    cdef kc_batch *row
    cdef int64_t size = 0
    if plan.count:
        row = plan.rows + plan.count - 1
        size = row.position + row.size
    cdef bytearray batches = PyByteArray_FromStringAndSize(NULL, size + KC_COPY_SLACK)
    cdef uint8_t *p = <uint8_t *>PyByteArray_AS_STRING(batches)
    cdef int64_t first = 0
    cdef Py_ssize_t i
    with nogil:
        for i in range(plan.count):
            row = plan.rows + i
            kc_batch_write_records(source, first, row, p + row.position + KC_BATCH_HEADER_SIZE)
            kc_batch_write_header(p + row.position, row)
            first += row.count
    PyByteArray_Resize(batches, size)
    return batches


cdef bytearray _packed(const kc_columns *source, BatchTable plan, int codec, level, compress):
    cdef bytearray batches = bytearray()
    cdef bytes packed
    cdef kc_batch *row
    cdef uint8_t *p
    cdef int64_t first = 0
    cdef int64_t size
    cdef int64_t largest = 0
    cdef Py_ssize_t i
    for i in range(plan.count):
        largest = max(largest, plan.rows[i].size)
    # One for all: malloc would give new pages to each, if they are large.
    cdef bytearray payload = PyByteArray_FromStringAndSize(NULL, largest + KC_COPY_SLACK)
    for i in range(plan.count):
        row = plan.rows + i
        size = row.size - KC_BATCH_HEADER_SIZE
        p = <uint8_t *>PyByteArray_AS_STRING(payload)
        with nogil:
            kc_batch_write_records(source, first, row, p)
        packed = compress(codec, memoryview(payload)[:size], level)
        size = KC_BATCH_HEADER_SIZE + len(packed)
        if size > INT32_MAX:
            raise ValueError(f"the batch takes {size} bytes, it can take {INT32_MAX}")
        row.size = <int32_t>size
        row.position = len(batches)
        PyByteArray_Resize(batches, row.position + size)
        p = <uint8_t *>PyByteArray_AS_STRING(batches) + row.position
        memcpy(p + KC_BATCH_HEADER_SIZE, PyBytes_AS_STRING(packed), size - KC_BATCH_HEADER_SIZE)
        with nogil:
            kc_batch_write_header(p, row)
        first += row.count
    return batches
