"""Batches as columns, made without an object for any record.

The kernels are in csrc/record_columns.h.  NumPy is imported at first use, by whoever asks for columns.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from kcore.common.file cimport Window
from kcore.common.status cimport KC_OK, KC_TRUNCATED, raise_status
from kcore.errors import CorruptMessage
from kcore.record.columns cimport column_at, int32s, int64s
from kcore.record.columns import COLUMNS, RECORD_COLUMNS
from kcore.record.memory_records cimport BatchTable, MemoryRecords
from kcore.record.record_batch cimport (
    KC_ATTR_CODEC_MASK,
    KC_BATCH_HEADER_SIZE,
    KC_WALK_CHECK_CRC,
    Record,
    RecordBatch,
    kc_batch_check_count,
    kc_batch_walk,
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

#: The bits that ask for them.
cdef dict _READ = {"offset": OFFSET, "timestamp": TIMESTAMP, "key": KEY, "value": VALUE, "headers": HEADERS}


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
            columns = RECORD_COLUMNS
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
        self.window = Window()

    def __dealloc__(self):
        free(self.aborted)

    cdef RecordColumns of_rows(self, BatchTable table, int64_t max_bytes):
        """Of the table's batches, whose bytes are there.  Uncompressed ones alone are not copied: the columns' extents
        count from the table's first byte.  Of compressed ones the table is cut after the one that brings the decompressed
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
        cdef int64_t *position = int64s(positions)
        cdef int64_t *size = int64s(sizes)
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
            int64s(positions)[0] = 0
            int64s(sizes)[0] = len(owner)
        else:
            owner = memoryview(self._arena(table, chosen, max_bytes, int64s(positions), int64s(sizes)))
        cdef Py_buffer *view = PyMemoryView_GET_BUFFER(owner)
        return self._read(chosen, positions, sizes, <const uint8_t *>view.buf, view.len, owner, True)

    cdef object _arena(self, BatchTable table, BatchTable chosen, int64_t max_bytes, int64_t *position, int64_t *size):
        """What the batches hold, one after the other; both tables lose those after max_bytes."""
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
        cdef int64_t *position = int64s(positions)
        cdef int64_t *size = int64s(sizes)
        memset(&to, 0, sizeof(to))
        for i in range(chosen.count):
            status = kc_batch_check_count(chosen.rows + i, size[i], &err)
            if status != KC_OK:
                self._refuse(chosen.rows + i, &err, unpacked)
            to.capacity += chosen.rows[i].count
        cdef Py_ssize_t room = to.capacity
        cdef RecordColumns columns = RecordColumns.__new__(RecordColumns)
        records = np.zeros(chosen.count, np.int32)
        cdef int32_t *batch_records = int32s(records)
        cdef dict arrays = _room_for(self.wanted, room)
        if self.wanted & OFFSET:
            to.offset = int64s(arrays["offset"])
        if self.wanted & TIMESTAMP:
            to.timestamp = int64s(arrays["timestamp"])
        if self.wanted & KEY:
            to.key.position, to.key.size = int64s(arrays["key"][0]), int32s(arrays["key"][1])
        if self.wanted & VALUE:
            to.value.position, to.value.size = int64s(arrays["value"][0]), int32s(arrays["value"][1])
        if self.wanted & HEADERS:
            to.headers.position, to.headers.size = int64s(arrays["headers"][0]), int32s(arrays["headers"][1])
            to.header_count = int32s(arrays["header_count"])
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

    cdef RecordColumns of_log(self, const uint8_t *data, int64_t position, int64_t size, int64_t bound,
                              int64_t max_bytes, str source):
        """Of the batches in data[0..size), which is at `position` of a log, of some max_bytes, compressed or not;
        nothing of the result is in data.  None if it ends inside the first batch.

        The batches' offsets must ascend from one call to the next and stay below bound.  Moves `previous` to the last
        offset that was passed and `position` after its batch.
        """
        cdef BatchTable table = BatchTable.__new__(BatchTable)
        cdef int64_t stop = min(size, max_bytes)
        cdef int64_t room = 16
        cdef int64_t at = 0
        cdef int64_t last_offset = self.previous
        cdef int64_t first_offset
        cdef int64_t n
        cdef kc_batch *rows
        cdef Py_ssize_t i
        cdef kc_error err
        cdef kc_error order
        cdef int flags = KC_WALK_CHECK_CRC if self.check_crc else 0
        self.source = source
        table.source = source
        table.data = data
        table.base_position = position
        err.status = KC_OK
        while at < stop and last_offset < self.selection.end - 1 and err.status == KC_OK:
            if table.count:
                # An estimate of the number of batches left, from the average size and offset range of those parsed so far.
                first_offset = table.rows[0].base_offset
                if last_offset < first_offset:
                    break  # the CRC does not cover offsets; kc_batches_check_order() below raises
                room = (stop - at) * table.count // at + 1
                n = (self.selection.end - last_offset) // ((last_offset - first_offset) // table.count + 1)
                room = min(room, min(n, room) + 16)
            table.reserve(table.count + room)
            rows = table.rows + table.count
            with nogil:
                n = kc_batch_walk(data, stop, &at, flags, rows, room, &err)
                for i in range(n):
                    rows[i].position += position
            table.count += n
            if table.count:
                last_offset = table.rows[table.count - 1].last_offset
            elif err.status == KC_TRUNCATED and stop < size:
                # The first batch alone is larger than max_bytes.
                stop = min(size, err.expected)
                err.status = KC_OK
        if err.status == KC_TRUNCATED and table.count == 0:
            return None
        # What does not parse may be the beginning of a batch that is being written, or is after what the caller wants.
        if err.status != KC_OK and err.status != KC_TRUNCATED and last_offset < self.selection.end - 1:
            err.position += position
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
    """Whether the records cannot be read in place."""
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
    return column_at(data, data_size, owner, extents[0][:count], extents[1][:count])


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
