"""LogSegment: one .log file with its two indexes.

The .log holds record batches one after the other, nothing else; its name is the base offset in 20 digits, and
every offset in it is in [base offset, base offset + 2**31).  An append is one pwrite of the whole record set.  A read
returns a slice of the file, which is mapped; parts of a file that another process may change are copied instead.
Source: LogSegment.java and FileRecords.java, Kafka 4.x.
"""

import threading

from cpython.ref cimport Py_INCREF, PyObject
from libc.stdint cimport INT32_MAX, INT64_MAX
from libc.string cimport memset

from kcore.common.file cimport File, Mapping
from kcore.common.file import is_file, rename, unlink_if_there, write_atomically
from kcore.common.status cimport KC_OK, raise_status
from kcore.common.text import bytes_of, date_of
from kcore.common.time import SYSTEM_TIME
from kcore.errors import CorruptIndex, CorruptMessage, LogClosed, NegativeReadSize, ReadOnlyLog
from kcore.log.abstract_index cimport AbstractIndex
from kcore.log.offset_index cimport KC_OFFSET_INDEX_ENTRY_SIZE
from kcore.log.segment_file cimport (
    KC_SCAN_CHECK_CRC, KC_SCAN_NOTEWORTHY, KC_SEGMENT_MORE, WINDOW_BYTES, describe, kc_log_bytes,
)
from kcore.log.time_index cimport KC_TIME_INDEX_ENTRY_SIZE
from kcore.record.columns cimport RecordColumns
from kcore.record.file_records cimport FileRecords, make_file_records
from kcore.record.memory_records cimport BatchTable, MemoryRecords
from kcore.record.record_batch cimport KC_MIN_BATCH_SIZE, kc_batch
from kcore.record.record_columns cimport ColumnsReader


cdef extern from "Python.h":
    ctypedef struct PyTypeObject
    ctypedef struct PyStructSequence_Field:
        const char *name
        const char *doc
    ctypedef struct PyStructSequence_Desc:
        const char *name
        const char *doc
        PyStructSequence_Field *fields
        int n_in_sequence
    PyTypeObject *PyStructSequence_NewType(PyStructSequence_Desc *desc)
    object PyStructSequence_New(PyTypeObject *type)
    void PyStructSequence_SET_ITEM(object p, Py_ssize_t i, PyObject *item)


cdef enum:
    # A search within this distance of the end reads pages that were just written, and keeps the GIL.  A search
    # before that may wait for the disk.
    WARM_BYTES = 32 * 1024 * 1024

# A tuple with named fields, like os.stat_result.  It is made once per read, at a third of the cost of a namedtuple.
cdef PyStructSequence_Field[4] _FIELDS
cdef PyStructSequence_Desc _DESC


cdef object _tuple_type(const char *name, const char *doc, const char *first, const char *second, const char *third):
    memset(_FIELDS, 0, sizeof(_FIELDS))
    _FIELDS[0].name, _FIELDS[1].name, _FIELDS[2].name = first, second, third
    _DESC.name, _DESC.doc, _DESC.fields, _DESC.n_in_sequence = name, doc, _FIELDS, 3
    return <object>PyStructSequence_NewType(&_DESC)


cdef inline object _tuple_of(object tuple_type, object first, object second, object third):
    made = PyStructSequence_New(<PyTypeObject *>tuple_type)
    Py_INCREF(first)
    Py_INCREF(second)
    Py_INCREF(third)
    PyStructSequence_SET_ITEM(made, 0, <PyObject *>first)
    PyStructSequence_SET_ITEM(made, 1, <PyObject *>second)
    PyStructSequence_SET_ITEM(made, 2, <PyObject *>third)
    return made


OffsetPosition = _tuple_type(
    b"kcore.log.log_segment.OffsetPosition",
    b"A batch: its last offset, position and size in bytes.",
    b"offset", b"position", b"size",
)
SegmentRead = _tuple_type(
    b"kcore.log.log_segment.SegmentRead",
    b"A slice of the log: position of the first batch, the slice, whether that batch is cut off.",
    b"position", b"records", b"first_entry_incomplete",
)
cdef object _OffsetPosition = OffsetPosition
cdef object _SegmentRead = SegmentRead


cdef bytes _bytes_of(AbstractIndex index):
    return (<const char *>index.slots)[:index.count * index.entry_size] if index.count else b""


cdef class LogSegment(SegmentFile):
    """One .log file and its .index and .timeindex.

    Not thread-safe for writers: the log's lock serialises append, truncate_to, recover, close, delete and suffix
    changes.  Reads (translate_offset, read, find_*, scan) need no lock: they use the size at their start, and a
    truncation waits for the reads that walk the file.  Appends of 64 KiB or more release the GIL during the write;
    searches release it unless the place is within the last 32 MiB.

    writable=False opens every file read-only and never creates one: a missing or bad index is rebuilt in memory at
    first use.  Another process may then own the files and cut them, so nothing is mapped.  For a writable segment whose
    .log has data but no index, sanity_check() raises FileNotFoundError; it works without, slowly, until recover().
    per_append_index=True is the rule of Kafka 2.4-3.8: one index entry per append instead of per batch.  Raises OSError.
    """

    def __cinit__(
        self,
        str directory,
        int64_t base_offset,
        *,
        bint writable=True,
        str file_suffix="",
        int64_t index_interval_bytes=4096,
        int64_t max_index_size=10 * 1024 * 1024,
        int64_t max_segment_bytes=1024 * 1024 * 1024,
        bint per_append_index=False,
        now_ms=None,
    ):
        self.created_ms = SYSTEM_TIME.milliseconds() if now_ms is None else now_ms
        self._max_index_size = max_index_size
        self._per_append_index = per_append_index
        self._lock = threading.Lock()
        self._indexer.base_offset = base_offset
        self._indexer.interval_bytes = index_interval_bytes
        self._indexer.max_timestamp = -1
        self._indexer.offset_of_max_timestamp = base_offset
        if writable:
            self._index_missing = self._size > 0 and not (
                is_file(self._index_path("index")) and is_file(self._index_path("timeindex"))
            )
            if not self._index_missing:
                self._indexes()
                if self._size == 0:
                    # The .log is empty, so no index entry can be right.
                    self._offset_index.truncate()
                    self._time_index.truncate()

    def _index_path(self, str extension):
        return f"{self._stem}.{extension}{self._suffix}"

    cdef int _indexes(self) except -1:
        """Open both indexes, if they are not."""
        if self._offset_index is None:
            with self._lock:  # Two threads must not rebuild them at once; the scan releases the GIL.
                if self._offset_index is None:
                    self._open_indexes()
        return 0

    cdef OffsetIndex _offsets(self):
        """The offset index, for a reader: its own reference, because another thread may close the segment."""
        cdef OffsetIndex index = self._offset_index
        if index is None:
            self._indexes()
            index = self._offset_index
            if index is None:
                raise LogClosed(f"{self.log_path} is closed")
        return index

    cdef TimeIndex _times(self):
        cdef TimeIndex index
        self._indexes()
        index = self._time_index
        if index is None:
            raise LogClosed(f"{self.log_path} is closed")
        return index

    cdef int _open_indexes(self) except -1:
        cdef OffsetIndex offset_index
        cdef TimeIndex time_index
        cdef kc_segment_scan scan
        cdef kc_error err
        self._open_file()
        options = {"max_index_size": self._max_index_size, "writable": self.writable}
        try:
            offset_index = OffsetIndex(self._index_path("index"), self.base_offset, **options)
            time_index = TimeIndex(self._index_path("timeindex"), self.base_offset, **options)
            if not self.writable:
                self._check_indexes(offset_index, time_index)
        except (FileNotFoundError, CorruptIndex):
            if self.writable:
                raise
            offset_index, time_index = self._empty_indexes_in_memory()
            self._rebuild(offset_index, time_index, 0, None, None, &scan, &err)
        self._time_index = time_index
        self._offset_index = offset_index
        return 0

    def _empty_indexes_in_memory(self):
        # One entry per interval at most, and none for fewer bytes than a batch has.
        cdef int64_t slots = 2 + self._size // max(self._indexer.interval_bytes + 1, <int64_t>KC_MIN_BATCH_SIZE)
        return (
            OffsetIndex(
                self._index_path("index"), self.base_offset,
                max_index_size=slots * KC_OFFSET_INDEX_ENTRY_SIZE, in_memory=True,
            ),
            TimeIndex(
                self._index_path("timeindex"), self.base_offset,
                max_index_size=(slots + 1) * KC_TIME_INDEX_ENTRY_SIZE, in_memory=True,
            ),
        )

    def _check_indexes(self, OffsetIndex offset_index, TimeIndex time_index):
        offset_index.sanity_check()
        time_index.sanity_check()
        if len(offset_index):
            offset, position = offset_index.entry(len(offset_index) - 1)
            if not 0 <= position < self._size:
                raise CorruptIndex(
                    f"{offset_index.path}: the last entry has offset {offset} at position {position}, "
                    f"{self.log_path} has {self._size} bytes"
                )

    @property
    def offset_index(self):
        return self._offsets()

    @property
    def time_index(self):
        return self._times()

    cdef int _load_max_timestamp(self) except -1:
        cdef TimeIndex time_index
        cdef kc_batch_place place
        cdef int64_t timestamp, last_offset, position
        if self._max_timestamp_known:
            return 0
        time_index = self._times()
        time_index.get_last(&timestamp, &last_offset)
        if not self.writable and time_index.count and self._search(last_offset, 0, &place) == 0:
            # The .log ends before the batch of this entry.  A read-only segment is not repaired.
            timestamp, last_offset = -1, self.base_offset
            self._walk_to_end(-1, &timestamp, &last_offset, &position)
        self._indexer.max_timestamp = timestamp
        self._indexer.offset_of_max_timestamp = last_offset
        self._max_timestamp_known = True
        return 0

    @property
    def max_timestamp_so_far(self):
        """The greatest timestamp in ms, -1 if there is none; after opening, that of the last time index entry."""
        self._load_max_timestamp()
        return self._indexer.max_timestamp

    @property
    def offset_of_max_timestamp(self):
        """Last offset of the batch that has the greatest timestamp; base_offset if there is none."""
        self._load_max_timestamp()
        return self._indexer.offset_of_max_timestamp

    cdef int _lend_slots(self, OffsetIndex offset_index, TimeIndex time_index) except -1:
        """Let the indexer write into these indexes, up to the slot the time index keeps in reserve."""
        if offset_index.slots == NULL:
            offset_index.load()
        if time_index.slots == NULL:
            time_index.load()
        self._indexer.offset_slots = offset_index.slots
        self._indexer.offset_count = offset_index.count
        self._indexer.offset_capacity = offset_index.limit
        self._indexer.time_slots = time_index.slots
        self._indexer.time_count = time_index.count
        self._indexer.time_capacity = time_index.limit - 1
        return 0

    def append(self, MemoryRecords records not None):
        """Write all batches at the end with one pwrite, then their index entries; returns the position they got.

        The caller has checked the batches and assigned their offsets.  Raises LogSegmentOffsetOverflow (SEG-04),
        ValueError for a file that would pass 2**31 - 1 bytes, ReadOnlyLog, OSError; then nothing is written, the
        file has its old size, and the segment can be appended to again.  Source: SEG-02..06.
        """
        cdef BatchTable table = records.batches
        return self.append_rows(table.data, records.valid_bytes, table.rows, table.count)

    cdef int64_t append_rows(self, const uint8_t *data, int64_t size, const kc_batch *rows, int64_t count) except -1:
        """append() for native callers: the batches of data[0..size), one row each."""
        cdef int64_t position = self._size
        cdef int64_t entries
        cdef kc_error err
        cdef int cut
        if self._file is None or not self.writable:
            self._check_writable()
        if count == 0:
            return position
        if kc_segment_check_offsets(rows, count, self.base_offset, &err) != KC_OK:
            raise_status(&err, self.log_path)
        if size > INT32_MAX - position:
            raise ValueError(f"{self.log_path}: {position} + {size} bytes are more than a segment can have")
        if self._offset_index is None:
            self._indexes()
        if not self._max_timestamp_known:
            self._load_max_timestamp()
        if self._cut_pending:
            self._file.truncate(position)
            self._cut_pending = False
        # All that can fail comes before the data: the pages that hold the entries, and the write itself.
        entries = 1 if count == 1 else min(count, size // (self._indexer.interval_bytes + 1) + 1)
        self._offset_index.reserve(entries)
        self._time_index.reserve(entries)
        if self._file.append(data, size, position, &cut, &err) != KC_OK:
            self._cut_pending = not cut
            raise_status(&err, self.log_path)
        if position == 0:
            self._first_timestamp = rows[0].max_timestamp
            self._first_timestamp_known = True
        self._lend_slots(self._offset_index, self._time_index)
        if self._per_append_index:
            kc_indexer_add_append(&self._indexer, rows, count, position)
            if position == 0:
                self._first_timestamp = self._indexer.max_timestamp
        else:
            kc_indexer_add_batches(&self._indexer, rows, count, position)
        self._size = position + size
        self._offset_index.count = self._indexer.offset_count
        self._time_index.count = self._indexer.time_count
        return position

    def should_roll(
        self,
        int64_t append_size,
        int64_t last_offset,
        int64_t max_timestamp,
        int64_t now_ms,
        *,
        int64_t segment_bytes,
        int64_t segment_ms,
        int64_t jitter_ms=0,
    ):
        """Whether an append of that size, last offset and max timestamp needs a new segment (LOG-17..20)."""
        return self.needs_roll(append_size, last_offset, max_timestamp, now_ms, segment_bytes, segment_ms - jitter_ms)

    cdef bint needs_roll(self, int64_t append_size, int64_t last_offset, int64_t max_timestamp, int64_t now_ms,
                         int64_t segment_bytes, int64_t segment_ms) except -1:
        """should_roll() for native callers, who take the jitter off segment_ms themselves."""
        cdef int64_t waited_ms
        if self._size > segment_bytes - append_size:
            return True
        if last_offset - self.base_offset > INT32_MAX or last_offset < self.base_offset:
            return True
        if self._offset_index is None:
            self._indexes()
        if self._offset_index.count >= self._offset_index.limit or self._time_index.count >= self._time_index.limit - 1:
            return True
        if self._size == 0:
            return False
        if self.rolls_by_timestamps():
            # Compared first: the difference of two timestamps that somebody else wrote may not fit.
            waited_ms = max_timestamp - self._first_timestamp if max_timestamp > self._first_timestamp else 0
        else:
            waited_ms = now_ms - self.created_ms
        return waited_ms > segment_ms

    cdef bint rolls_by_timestamps(self) except -1:
        """Whether needs_roll() goes by the batches' timestamps alone and does not look at now_ms."""
        if not self._first_timestamp_known:
            self._load_first_timestamp()
        return self._first_timestamp_known and self._first_timestamp >= 0

    cdef int _search(self, int64_t offset, int64_t starting_position, kc_batch_place *place) except -1:
        """The first batch whose last offset is >= offset: returns 1 and sets *place; or returns 0, and place.position is
        where the walk over the batches ended: before the end of the file, if the file ends inside a batch."""
        cdef kc_error err
        cdef int status = KC_SEGMENT_MORE
        cdef int slot
        cdef int64_t indexed, position
        cdef bint by_index = True
        cdef uint8_t[WINDOW_BYTES] window
        cdef kc_log_bytes log
        cdef Mapping mapping
        cdef OffsetIndex offset_index = self._offsets()
        offset_index.floor_entry(offset, &indexed, &position)
        while status == KC_SEGMENT_MORE:
            mapping = self._look(&log, position, window, WINDOW_BYTES)
            if starting_position >= log.end:
                place.position = starting_position
                return 0
            if self._may_map and log.end - position <= WARM_BYTES:
                position = max(kc_segment_entry_start(&log, position, indexed), starting_position)
                status = kc_segment_search_for(&log, &position, offset, place, &err)
                break
            slot = self._enter(&log)
            with nogil:
                if by_index:
                    position = kc_segment_entry_start(&log, position, indexed)
                    if position < starting_position:
                        position = starting_position
                status = kc_segment_search_for(&log, &position, offset, place, &err)
            self._readers[slot] -= 1
            by_index = False
        if status < 0:
            raise_status(&err, self.log_path)
        if status == 0:
            place.position = position
        return status

    def translate_offset(self, int64_t offset, int64_t starting_position=0):
        """OffsetPosition of the first batch whose last offset is at or above offset (its last offset, position,
        size in bytes); None when there is none.

        Walks the batch headers from the position of the index entry at or before it; from the start of the file if the
        batch there does not fit the entry.  Raises CorruptMessage (file and position) for an invalid header.
        Source: SEG-10.
        """
        cdef kc_batch_place place
        if self._search(offset, starting_position, &place) == 0:
            return None
        return _tuple_of(_OffsetPosition, place.last_offset, place.position, place.size)

    def read(
        self,
        int64_t start_offset,
        int64_t max_size,
        int64_t max_position=INT64_MAX,
        bint min_one_message=False,
    ):
        """SegmentRead of at most max_size bytes from the batch that holds start_offset, ending before max_position.

        None when the segment ends before start_offset.  The slice may be empty, may start with records below
        start_offset, and may end inside a batch.  min_one_message lets it be as large as the first batch at least.
        first_entry_incomplete: the slice is smaller than the first batch.  NegativeReadSize for max_size < 0.
        Source: SEG-07..09.
        """
        cdef int64_t position
        cdef bint incomplete
        cdef FileRecords records = self.find_slice(
            start_offset, max_size, max_position, min_one_message, &position, &incomplete
        )
        return None if records is None else _tuple_of(_SegmentRead, position, records, incomplete)

    cdef FileRecords find_slice(self, int64_t start_offset, int64_t max_size, int64_t max_position,
                                bint min_one_message, int64_t *position, bint *incomplete):
        """read() for native callers: None, or the slice, its position, and whether its first batch is cut off.

        For None, position is where the search of the batches ended.
        """
        cdef kc_batch_place place
        cdef int64_t size
        if max_size < 0:
            raise NegativeReadSize(f"a read of at most {max_size} bytes")
        if self._search(start_offset, 0, &place) == 0:
            position[0] = place.position
            return None
        if min_one_message and max_size < place.size:
            max_size = place.size
        size = min(max_size, max(0, min(max_position, self._size) - place.position))
        position[0] = place.position
        incomplete[0] = max_size < place.size
        return make_file_records(self._open_file(), place.position, size)

    def fetch_upper_bound_offset(self, int64_t position, int64_t size):
        """An offset above those of all batches that begin in [position, position + size), None if the index has
        none (IDX-14).

        The index entry gives the batch; with a wrong entry the offset is too high or None, never too low.
        """
        bound = self._offsets().fetch_upper_bound_offset(position, size)
        if bound is None:
            return None
        cdef uint8_t[64] window  # a header
        cdef kc_log_bytes log
        # This reference keeps the mapping alive; this thread keeps the GIL, so the file cannot be cut.
        cdef Mapping mapping = self._look(&log, bound[1], window, sizeof(window))
        cdef int64_t start = kc_segment_entry_start(&log, bound[1], INT64_MAX)
        if start == 0:
            return None
        return max(bound[0], int.from_bytes(self.slice(start, 8).read(), "big", signed=True))

    def columns(self, start_offset=None, end_offset=None, columns=None):
        """RecordColumns of the records with an offset in [start_offset, end_offset), by default all of them: NumPy
        arrays and the other attributes in docs/dataframes.md.

        columns: names of the columns to read, None for all.  No control records; aborted transactions are included.
        Every CRC is checked.  The result is a copy, independent of the file.  GIL released.  Raises CorruptMessage,
        also when the file ends inside a batch before end_offset; ValueError for an unknown column, OSError.
        """
        cdef int64_t first = self.base_offset if start_offset is None else start_offset
        cdef int64_t end = INT64_MAX if end_offset is None else end_offset
        cdef ColumnsReader reader = ColumnsReader(columns, start_offset=first, end_offset=end, source=self.log_path)
        result = self.read_columns(reader, first, INT64_MAX, INT64_MAX)
        if result is None:
            reader.position = self.scan(None, check_crc=False).valid_bytes
        if reader.previous < end - 1 and reader.position < self._size:
            raise CorruptMessage(
                f"{self.log_path}: the file ends inside the batch at position {reader.position}, after offset "
                f"{reader.previous}",
                source=self.log_path,
                position=reader.position,
            )
        return reader.nothing() if result is None else result

    def read_columns(self, ColumnsReader reader not None, int64_t start_offset, int64_t bound, int64_t max_bytes):
        """The reader's columns of about max_bytes of batches from start_offset on, as RecordColumns; None when the
        segment ends before start_offset.

        Sets reader.previous to the last offset that was read and reader.position to the start of the next batch.  The
        offsets of all batches must be below bound.  Raises CorruptMessage, OSError.
        """
        cdef kc_batch_place place
        cdef kc_batch_place last
        cdef int64_t size = 0
        cdef int slot
        cdef kc_log_bytes log
        cdef Mapping mapping
        if self._search(start_offset, 0, &place) == 0:
            return None
        if not self._may_map:
            size = max(max_bytes, <int64_t>place.size)
            if reader.selection.end < INT64_MAX and self._search(reader.selection.end - 1, place.position, &last):
                size = min(size, last.position + last.size - place.position)
            size = max(min(size, self._size - place.position), 0)
        mapping = self._look(&log, place.position, NULL if self._may_map else reader.window.of(size), size)
        # While this thread is counted as a reader the bytes stay mapped, with or without the GIL.
        slot = self._enter(&log)
        try:
            if place.position >= log.first + log.size:
                return None
            return reader.of_log(
                log.bytes + (place.position - log.first), place.position, log.first + log.size - place.position,
                bound, max_bytes, self.log_path,
            )
        finally:
            self._readers[slot] -= 1

    def find_offset_by_timestamp(self, int64_t timestamp, starting_offset=None):
        """(timestamp, offset, leader epoch) of the first record with a timestamp at or above this one and an offset
        of at least starting_offset; None if there is none.

        Searches the time index, the offset index, batch headers, then the (decompressed) records of one batch.  Raises
        CorruptMessage.  Source: LogSegment.findOffsetByTimestamp.
        """
        cdef int64_t first = self.base_offset if starting_offset is None else starting_offset
        cdef kc_batch_place place
        cdef kc_error err
        cdef int status
        cdef int slot
        cdef int64_t indexed, position
        cdef bint by_index = True
        cdef uint8_t[WINDOW_BYTES] window
        cdef kc_log_bytes log
        cdef Mapping mapping
        cdef OffsetIndex offset_index = self._offsets()
        cdef TimeIndex time_index = self._times()
        offset_index.floor_entry(max(time_index.floor_offset(timestamp), first), &indexed, &position)
        while True:
            mapping = self._look(&log, position, window, WINDOW_BYTES)
            slot = self._enter(&log)
            with nogil:
                if by_index:
                    position = kc_segment_entry_start(&log, position, indexed)
                status = kc_segment_search_for_timestamp(&log, &position, timestamp, first, &place, &err)
            self._readers[slot] -= 1
            by_index = False
            if status == KC_SEGMENT_MORE:
                continue
            if status < 0:
                raise_status(&err, self.log_path)
            if status == 0:
                return None
            record = self._first_record(place.position, place.size, timestamp, first)
            if record is not None:
                return record
            position = place.position + place.size

    def _first_record(self, int64_t position, int64_t size, int64_t timestamp, int64_t first):
        # Another process may have changed a file that is open for reading only.
        for batch in self.slice(position, size).memory_records(check_crc=not self.writable).batches:
            for record in batch.records():
                if record.timestamp >= timestamp and record.offset >= first:
                    return record.timestamp, record.offset, batch.leader_epoch
        return None

    def find_offset_of_max_timestamp(self):
        """(timestamp, offset, leader epoch) of the first record that has the greatest timestamp; None if no record
        has one.  Source: KIP-734."""
        cdef kc_batch_place place
        self._load_max_timestamp()
        if self._indexer.max_timestamp < 0:
            return None
        if self._search(self._indexer.offset_of_max_timestamp, 0, &place) == 0:
            return None
        return self._first_record(place.position, place.size, self._indexer.max_timestamp, self.base_offset)

    def read_next_offset(self):
        """The offset after the last batch; base_offset when there is none.  Walks the headers after the last index
        entry; a partial batch at the end is not counted.  Raises CorruptMessage.  Source: SEG-14."""
        cdef int64_t max_timestamp = -1
        cdef int64_t last_offset = -1
        cdef int64_t position
        return self._walk_to_end(INT64_MAX, &max_timestamp, &last_offset, &position) + 1

    def ends_inside_a_batch(self):
        """Whether there are bytes after the last whole batch: no reader could find what is appended after them.
        Walks and raises as read_next_offset() does."""
        cdef int64_t max_timestamp = -1
        cdef int64_t last_offset = -1
        cdef int64_t position
        self._walk_to_end(INT64_MAX, &max_timestamp, &last_offset, &position)
        return position < self._size

    cdef int64_t _walk_to_end(self, int64_t from_offset, int64_t *max_timestamp, int64_t *last_offset,
                              int64_t *position) except? -2:
        """Walk from the index entry of from_offset on.  Last offset of the last batch, base_offset - 1 without one;
        increases *max_timestamp and its *last_offset; sets *position to the end of the last whole batch."""
        cdef int64_t indexed
        cdef int64_t end_offset = self.base_offset - 1
        cdef int64_t end
        cdef int status = KC_SEGMENT_MORE
        cdef kc_error err
        cdef int slot
        cdef bint by_index = True
        cdef uint8_t[WINDOW_BYTES] window
        cdef kc_log_bytes log
        cdef Mapping mapping
        cdef OffsetIndex offset_index = self._offsets()
        offset_index.floor_entry(from_offset, &indexed, position)
        end = self._end()
        if end == 0:
            position[0] = 0
            return end_offset
        if self._walk_short_tail(end, indexed, max_timestamp, last_offset, position, &end_offset):
            return end_offset
        while status == KC_SEGMENT_MORE:
            mapping = self._look(&log, position[0], window, WINDOW_BYTES)
            slot = self._enter(&log)
            with nogil:
                if by_index:
                    position[0] = kc_segment_entry_start(&log, position[0], indexed)
                status = kc_segment_walk_to_end(&log, position, max_timestamp, last_offset, &end_offset, &err)
            self._readers[slot] -= 1
            by_index = False
        if status < 0:
            raise_status(&err, self.log_path)
        return end_offset

    cdef int _rebuild(self, OffsetIndex offset_index, TimeIndex time_index, int flags, object on_batches,
                      _ScanAhead ahead, kc_segment_scan *scan, kc_error *err) except -1:
        """Scan from the start and fill these two empty indexes in memory, the final time entry included."""
        self._begin(scan, flags, 0)
        scan.indexer = &self._indexer
        self._max_timestamp_known = False
        self._indexer.bytes_since_last_entry = 0
        self._indexer.max_timestamp = -1
        self._indexer.offset_of_max_timestamp = self.base_offset
        self._lend_slots(offset_index, time_index)
        self._scan(scan, on_batches, ahead, err)
        kc_indexer_add_final_time(&self._indexer, time_index.limit)
        offset_index.count = self._indexer.offset_count
        time_index.count = self._indexer.time_count
        self._max_timestamp_known = True
        return 0

    def recover(self, on_batches=None, *, bint only_noteworthy=False, bint cut=True, threads=None):
        """Check every batch (CRC, offsets), rebuild both indexes in the same pass, cut the file at the first batch
        that is not valid and the indexes to their entries.

        on_batches and only_noteworthy as for scan().  Returns a RecoveryResult: how many bytes were cut off and why.
        cut=False: if something would be cut off, neither the file nor the indexes are changed.  threads: an Executor
        of which one thread, if it is idle, checks the CRCs of a large file's second part meanwhile.  GIL released.
        Raises ReadOnlyLog, OSError.  Source: SEG-11.
        """
        cdef _ScanAhead ahead = None
        cdef OffsetIndex offset_index
        cdef TimeIndex time_index
        # Its own references, as it scans without the GIL: a caller might wrongly close the segment meanwhile.
        cdef OffsetIndex old_offset_index = None
        cdef TimeIndex old_time_index = None
        cdef kc_segment_scan scan
        cdef kc_error err
        cdef int64_t size = self._size
        self._check_writable()
        if not self._index_missing or self._offset_index is not None:
            old_offset_index, old_time_index = self._offsets(), self._times()
        offset_index, time_index = self._empty_indexes_in_memory()
        # No more entries than the files may hold; the last slot of the time index is for the final entry.
        if old_offset_index is not None:
            offset_index.limit = min(offset_index.limit, old_offset_index.limit)
            time_index.limit = min(time_index.limit, old_time_index.limit)
        else:
            offset_index.limit = min(offset_index.limit, self._max_index_size // KC_OFFSET_INDEX_ENTRY_SIZE)
            time_index.limit = min(time_index.limit, self._max_index_size // KC_TIME_INDEX_ENTRY_SIZE)
        if threads is not None and old_offset_index is not None:
            # Split somewhat before the middle: this thread also walks the headers of the other part.
            ahead = self._scan_ahead(threads, old_offset_index.position_at_or_after(size * 6 // 13))
        try:
            self._rebuild(
                offset_index, time_index, KC_SCAN_CHECK_CRC | (KC_SCAN_NOTEWORTHY if only_noteworthy else 0),
                on_batches, ahead, &scan, &err,
            )
        finally:
            if ahead is not None:
                ahead.finish()
        result = self._result(scan.position, scan.last_offset, None if err.status == KC_OK else describe(&err))
        if scan.position < size:
            if not cut:
                return result
            self._cut(scan.position)
        if old_offset_index is not None:
            old_offset_index.replace(offset_index.slots, offset_index.count)
            old_time_index.replace(time_index.slots, time_index.count)
        else:
            # A missing index makes the next start recover this segment, so the files are written last, and atomically.
            # An empty time index would not, so it is on the disk before the offset index gets its name.
            write_atomically(time_index.path, _bytes_of(time_index))
            write_atomically(offset_index.path, _bytes_of(offset_index))
            self._indexes()
        self._index_missing = False
        if scan.position == 0:
            self._first_timestamp_known = False
        return result

    def truncate_to(self, int64_t offset, *, now_ms=None):
        """Remove every batch that ends at or above offset, so also one that spans it; returns the bytes removed.

        Index entries are removed before the data, both indexes get their full size back, and the byte counter of the
        index interval restarts.  An emptied segment counts its age from now_ms.  Raises CorruptMessage, ReadOnlyLog,
        OSError.  Source: TRUNC-08.
        """
        cdef kc_batch_place place
        cdef int64_t before = self._size
        cdef int64_t timestamp, last_offset, position
        self._check_writable()
        self._indexes()
        cdef bint beyond = self._search(offset, 0, &place)
        self._offset_index.truncate_to(offset)
        self._time_index.truncate_to(offset)
        self._indexer.bytes_since_last_entry = 0
        if beyond:
            self._cut(place.position)
        # The batch with the greatest timestamp may be removed.  The last time index entry has the maximum up to its
        # offset; walk the batches from there.
        self._time_index.get_last(&timestamp, &last_offset)
        self._walk_to_end(last_offset, &timestamp, &last_offset, &position)
        self._indexer.max_timestamp = timestamp
        self._indexer.offset_of_max_timestamp = last_offset
        self._max_timestamp_known = True
        if self._size == 0:
            self.created_ms = SYSTEM_TIME.milliseconds() if now_ms is None else now_ms
            self._first_timestamp_known = False
        self.resize_indexes(self._max_index_size)
        return before - self._size

    def configure(
        self,
        *,
        int64_t index_interval_bytes,
        int64_t max_index_size,
        int64_t max_segment_bytes,
        bint per_append_index,
    ):
        """Follow these settings from the next append on: those of the constructor, for an empty segment.

        Raises ValueError for a segment with data, whose index entries follow the old ones; ReadOnlyLog, OSError.
        """
        self._check_writable()
        if self._size:
            raise ValueError(f"{self.log_path}: {self._size} bytes were written with other settings")
        self.resize_indexes(max_index_size)
        self._max_index_size = max_index_size
        self._per_append_index = per_append_index
        self._indexer.interval_bytes = index_interval_bytes
        self._file.reserve = max_segment_bytes

    def resize_indexes(self, int64_t max_index_size):
        """Give both index files this size, or that of their entries if they need more: then they are full, and the
        next append rolls.  OSError."""
        self._check_writable()
        self._indexes()
        self._offset_index.resize(max(max_index_size, <int64_t>self._offset_index.size_in_bytes))
        self._time_index.resize(max(max_index_size, <int64_t>self._time_index.size_in_bytes))

    def sanity_check(self):
        """Raise CorruptIndex if an index cannot be right, FileNotFoundError if one is missing; recover() helps.

        Looks at a few entries of each, not at the log.  Source: IDX-12.
        """
        options = {"max_index_size": self._max_index_size, "writable": False}
        if self.writable and not self._index_missing:
            self._indexes()
            self._check_indexes(self._offset_index, self._time_index)
        else:
            offset_index = OffsetIndex(self._index_path("index"), self.base_offset, **options)
            time_index = TimeIndex(self._index_path("timeindex"), self.base_offset, **options)
            self._check_indexes(offset_index, time_index)
            if self._index_missing:
                # An append or a search has created it since: it has no entries for the older batches.
                raise FileNotFoundError(2, "the index was missing when the segment was opened", offset_index.path)

    @property
    def is_untouched(self):
        """Whether nothing was appended, cut off or recovered since it was opened, so that its files are as they were.
        Also False after a read of the greatest timestamp."""
        return not self._max_timestamp_known and not self._cut_pending

    def unmap_if_untouched(self):
        """Remove the mappings of an untouched segment; the next use maps the files again."""
        if self._max_timestamp_known or not self.writable or self._file is None:
            return
        self._file.unmap()
        if self._offset_index is not None:
            self._offset_index.unmap()
            self._time_index.unmap()

    cdef int _add_final_time(self) except -1:
        # If it is unknown, nothing was appended: the final entry was written when the segment was closed or rolled.
        cdef bint has_timestamp = self._max_timestamp_known and self._indexer.max_timestamp >= 0
        if has_timestamp and self._time_index.count < self._time_index.limit:
            self._time_index.reserve(1)
            self._lend_slots(self._offset_index, self._time_index)
            kc_indexer_add_final_time(&self._indexer, self._time_index.limit)
            self._time_index.count = self._indexer.time_count
        return 0

    def on_become_inactive(self):
        """Add the final entry to the time index and cut both index files to their entries (SEG-12).  OSError."""
        self._check_writable()
        self._add_final_time()
        self._offset_index.trim_to_valid_size()
        self._time_index.trim_to_valid_size()

    def flush(self):
        """fsync the log, then both indexes; GIL released (SEG-13).  After an OSError it is unknown what was flushed."""
        self._check_writable()
        # A flush runs without the log's lock: its own references, in case the segment is closed meanwhile.
        cdef File file = self._file
        cdef OffsetIndex offset_index = self._offset_index
        cdef TimeIndex time_index = self._time_index
        file.sync()
        if offset_index is not None:
            offset_index.flush()
            time_index.flush()

    def change_file_suffixes(self, str old, str new):
        """Rename the segment's files, .txnindex included, from one suffix to another ("" for none).  ValueError if
        they have another one, OSError."""
        self._check_writable()
        if self._suffix != old:
            raise ValueError(f"{self.log_path} does not have the suffix {old!r}")
        rename(self.log_path, f"{self._stem}.log{new}")
        self._suffix = new
        self.log_path = f"{self._stem}.log{new}"
        self._file.path = self.log_path
        if self._offset_index is not None:
            self._offset_index.rename(self._index_path("index"))
            self._time_index.rename(self._index_path("timeindex"))
            others = ["txnindex"]
        else:
            others = ["index", "timeindex", "txnindex"]
        for extension in others:
            try:
                rename(f"{self._stem}.{extension}{old}", f"{self._stem}.{extension}{new}")
            except FileNotFoundError:
                pass

    def delete(self):
        """Close and remove the segment's files, .txnindex included; missing ones are no error.  Slices that were read
        stay readable.  OSError."""
        self._check_writable()
        self.close(trim=False)
        for extension in ("log", "index", "timeindex", "txnindex"):
            unlink_if_there(self._index_path(extension))

    def close(self, *, bint trim=True):
        """Final time entry, trimmed indexes (unless trim=False: as a crash leaves them), memory released; later
        calls raise LogClosed.  Slices that were read stay readable.  OSError, but everything is closed."""
        if self._file is None:
            return
        try:
            if trim and self.writable:
                if self._cut_pending:
                    self._cut(self._size)
                if not self._index_missing:
                    self._indexes()
                    self._add_final_time()
        finally:
            self._file = None
            try:
                if self._offset_index is not None:
                    self._offset_index.close(trim=trim)
            finally:
                if self._time_index is not None:
                    self._time_index.close(trim=trim)
                self._offset_index = self._time_index = None

    def __repr__(self):
        return f"LogSegment({self.log_path!r}, {self._size} bytes)"

    def time_span(self):
        """For people: the timestamp of the first batch, and the latest one of the time index."""
        first, latest = self.first_batch_timestamp, self.max_timestamp_so_far
        return tuple("" if time is None or time < 0 else date_of(time) for time in (first, latest))

    def _repr_html_(self):
        from kcore.common.html_table import html_table

        first, latest = self.time_span()
        rows = [
            ("file", self.log_path),
            ("base offset", self.base_offset),
            ("size", bytes_of(self.size)),
            ("first timestamp", first),
            ("latest timestamp", latest),
            ("entries of the offset index", len(self.offset_index)),
            ("entries of the time index", len(self.time_index)),
        ]
        return html_table("LogSegment", ["", ""], rows)
