"""SegmentFile: a segment's .log, its bytes and who walks over them; LogSegment adds the indexes.

Walks need no index: each batch says where the next one begins.  Source: FileRecords.java, Kafka 4.x.
"""

import os
from collections import namedtuple

from libc.stdint cimport INT64_MAX, int32_t
from libc.string cimport memset

from kcore.common.file cimport Mapping, Window, populate
from kcore.common.futures import submit
from kcore.common.status cimport KC_OK
from kcore.errors import CorruptMessage, LogClosed, ReadOnlyLog
from kcore.record.file_records cimport make_file_records
from kcore.record.memory_records cimport BatchTable
from kcore.record.record_batch cimport (
    KC_BATCH_HEADER_SIZE, KC_LEGACY_TIMESTAMP_OFFSET, KC_MAGIC_OFFSET, KC_MAX_TIMESTAMP_OFFSET, KC_MIN_BATCH_SIZE,
    kc_batch_assign,
)


cdef extern from "unistd.h" nogil:
    int usleep(unsigned int microseconds)


cdef enum:
    # Bytes per step of a scan: some 0.3 ms, after which a cut by another process is noticed and Ctrl-C is seen.
    SCAN_BYTES = 8 * 1024 * 1024
    SCAN_ROWS = 4096
    # Of a foreign file a scan reads so much at a time: it is copied into and checked in a core's own cache.
    SCAN_WINDOW_BYTES = 256 * 1024
    # The bytes after the last index entry: an index interval and a batch or two.  On the stack.
    TAIL_BYTES = 32 * 1024
    # Of a batch's header: base offset, length, leader epoch.
    RENUMBERED_BYTES = 16

RecoveryResult = namedtuple("RecoveryResult", "valid_bytes truncated_bytes reason last_offset")


cdef class _ScanAhead:
    """What another thread finds out about the batches from `start` on, while this one scans from the file's beginning:
    those up to `position` are valid, CRCs included.  Worth something only if a batch does begin at `start`."""

    cdef int64_t step(self, int64_t position, int64_t stop, bint *is_known) except -1:
        """Where a step from position on has to end, and whether all bytes before it are known to be valid."""
        is_known[0] = False
        if position < self.start:
            return min(stop, self.start)
        self.reached = self.reached or position == self.start
        if not self.reached or position >= self.position:
            self.finish()
        if not self.reached or position >= self.position:
            return stop
        is_known[0] = True
        return min(stop, self.position)

    cdef int finish(self) except -1:
        """Stop the other thread's scan and wait for it."""
        if not self.stopped:
            self.stopped = True
            if not self.future.cancel():
                # Whatever went wrong there, this thread will meet it too.
                self.future.exception()
        return 0


cdef str describe(const kc_error *err):
    return f"{err.what.decode()} at position {err.position}: expected {err.expected}, found {err.actual}"


cdef class SegmentFile:
    """The .log of one segment.

    One writer at a time (the log's lock).  Reads need no lock: they see the size of one moment, and a cut waits for
    those that walk the file without the GIL.  Raises OSError.
    """

    # Cython hands LogSegment's arguments to both: its defaults of the first three options are these, the others its own.
    def __cinit__(self, str directory, int64_t base_offset, *, bint writable=True, str file_suffix="",
                  int64_t max_segment_bytes=1024 * 1024 * 1024, **others):
        if base_offset < 0:
            raise ValueError(f"{directory}: base offset {base_offset} is negative")
        self.base_offset = base_offset
        self.writable = writable
        self._stem = os.path.join(directory, f"{base_offset:020d}")
        self._suffix = file_suffix
        self.log_path = f"{self._stem}.log{file_suffix}"
        self._file = File(self.log_path, writable=writable, create=writable)
        self._size = self._file.length()
        self._may_map = writable and self._file.first_hole(self._size) == self._size
        self._file.reserve = max(max_segment_bytes, self._size) if writable else self._size

    cdef File _open_file(self):
        if self._file is None:
            raise LogClosed(f"{self.log_path} is closed")
        return self._file

    cdef int _check_writable(self) except -1:
        self._open_file()
        if not self.writable:
            raise ReadOnlyLog(f"{self.log_path} is open for reading only")
        return 0

    @property
    def size(self):
        """Bytes of the .log."""
        return self._size

    @property
    def first_batch_timestamp(self):
        """Max timestamp of the first batch, None when the segment is empty: time rolling counts from it (SEG-03)."""
        self._load_first_timestamp()
        return self._first_timestamp if self._first_timestamp_known else None

    cdef int _load_first_timestamp(self) except -1:
        if not self._first_timestamp_known and self._size:
            header = self.slice(0, KC_BATCH_HEADER_SIZE).read()
            if len(header) < KC_MIN_BATCH_SIZE:
                return 0
            if header[KC_MAGIC_OFFSET] == 0:
                self._first_timestamp = -1
            else:
                at = KC_LEGACY_TIMESTAMP_OFFSET if header[KC_MAGIC_OFFSET] == 1 else KC_MAX_TIMESTAMP_OFFSET
                self._first_timestamp = int.from_bytes(header[at : at + 8], "big", signed=True)
            self._first_timestamp_known = True
        return 0

    def slice(self, int64_t position, int64_t size):
        """FileRecords of [position, position + size), as far as the file goes.  ValueError."""
        if not 0 <= position <= self._size or size < 0:
            raise ValueError(f"{self.log_path}: no {size} bytes at position {position} of {self._size}")
        return make_file_records(self._open_file(), position, min(size, self._size - position))

    cdef int64_t _end(self) except -1:
        """How far the file may be read now.  Another process may cut a file that is open for reading only."""
        if self.writable:
            return self._size
        return min(self._size, self._open_file().length())

    cdef Mapping _look(self, kc_log_bytes *log, int64_t position, uint8_t *window, int64_t room):
        """Have *log be what may be touched of the file: all of our own, through a mapping, which the caller must keep.
        Of a foreign one, or one with a hole, the bytes from `position` on, at most `room`, copied to `window`: a mapped
        page is a SIGBUS if the owner has cut the file, or if the page is a hole and tmpfs has no block left for it.  A
        short read is the file's end.  Releases the GIL for that.  OSError."""
        cdef Mapping mapping = None
        cdef File file = self._open_file()
        cdef int64_t wanted
        cdef int slot
        log.bytes, log.first = NULL, 0
        if self._may_map:
            if self._size:
                mapping = file.map(self._size)
                log.bytes = mapping.data
            log.size = log.end = self._size
            return mapping
        log.end = self._end()
        log.first = max(position, 0)
        log.bytes = window
        wanted = min(room, max(log.end - log.first, 0))
        # Counted in: a cut of our own file and an append after it wait until the copy is made.  Then _enter() has the
        # new size.
        slot = self._generation
        self._readers[slot] += 1
        try:
            log.size = file.read_into(window, wanted, log.first) if wanted else 0
        finally:
            self._readers[slot] -= 1
        if log.size < wanted:
            log.end = log.first + log.size
        return None

    cdef int _enter(self, kc_log_bytes *log) noexcept:
        """A reader goes into the file without the GIL, no further than log.end, which may be lowered.  Returns the
        counter to take back.  From here to the release of the GIL nothing else may run."""
        log.end = min(log.end, self._size)
        log.size = min(log.size, max(log.end - log.first, 0))
        self._readers[self._generation] += 1
        return self._generation

    cdef bint _walk_short_tail(self, int64_t end, int64_t indexed, int64_t *max_timestamp, int64_t *last_offset,
                               int64_t *position, int64_t *end_offset) except -1:
        """Walk from *position on what one small read brings, if it is sound and nothing is mapped yet: a mapping costs
        as much as ten reads, and most of ten thousand logs are opened to see where they end.  False, and nothing has
        changed, where that does not tell."""
        cdef uint8_t[TAIL_BYTES] tail
        cdef int64_t start = position[0]
        cdef int64_t walked
        cdef int64_t timestamp = max_timestamp[0], timestamp_offset = last_offset[0], batch_offset = end_offset[0]
        cdef File file = self._open_file()
        cdef kc_log_bytes log
        cdef int slot
        if not self.writable or file._mapping is not None or not end - TAIL_BYTES <= start < end or start < 0:
            return False
        log.first, log.size, log.end = start, end - start, end
        slot = self._enter(&log)
        end = log.end
        try:
            if end <= start or file.read_into(tail, end - start, start) != end - start:
                return False
        finally:
            self._readers[slot] -= 1
        if not kc_segment_walk_tail(
            tail, end - start, indexed if start else INT64_MAX, &walked, &timestamp, &timestamp_offset, &batch_offset
        ):
            return False
        position[0] = start + walked
        max_timestamp[0], last_offset[0], end_offset[0] = timestamp, timestamp_offset, batch_offset
        return True

    cdef int _begin(self, kc_segment_scan *scan, int flags, int64_t position) except -1:
        memset(scan, 0, sizeof(kc_segment_scan))
        scan.base_offset = self.base_offset
        scan.flags = flags
        scan.position = position
        scan.last_offset = -1
        scan.leader_epoch = -2
        return 0

    cdef int _scan(self, kc_segment_scan *scan, object on_batches, _ScanAhead ahead, kc_error *err) except -1:
        """Run scan to the end of the file or the first batch that is not valid (err->status)."""
        cdef int64_t end
        cdef int64_t stop
        cdef int64_t n
        cdef bint is_known = False
        cdef int flags = scan.flags
        cdef BatchTable table = None
        cdef kc_batch *rows = NULL
        cdef Window window = None if self._may_map else Window()
        err.status = KC_OK
        while err.status == KC_OK:
            end = self._end()
            if scan.position >= end:
                break
            stop = min(end, scan.position + SCAN_BYTES)
            if ahead is not None:
                stop = ahead.step(scan.position, stop, &is_known)
                scan.flags = flags & ~KC_SCAN_CHECK_CRC if is_known else flags
            if on_batches is not None and table is None:
                table = BatchTable.__new__(BatchTable)
                table.source = self.log_path
                table.reserve(SCAN_ROWS)
                rows = table.rows
            n = self._scan_step(scan, stop, rows, window, err)
            if n:
                table.count = n
                on_batches(table)
                table = None
        return 0

    cdef int64_t _scan_step(self, kc_segment_scan *scan, int64_t stop, kc_batch *rows, Window window,
                            kc_error *err) except -1:
        """Go on to `stop`, or until there are SCAN_ROWS rows; how many there are.  window: of a foreign file's reader."""
        cdef kc_log_bytes log
        cdef int64_t n = 0
        cdef int64_t room
        cdef int slot
        cdef Mapping mapping
        cdef bint is_mapped
        scan.need = 0
        while True:
            room = max(<int64_t>SCAN_WINDOW_BYTES, scan.need)
            mapping = self._look(&log, scan.position, NULL if window is None else window.of(room), room)
            is_mapped = mapping is not None
            slot = self._enter(&log)
            with nogil:
                if is_mapped:
                    populate(mapping, scan.position, min(stop, log.end) - scan.position)
                n += kc_segment_scan_step(
                    scan, &log, min(stop, log.end), NULL if rows == NULL else rows + n, SCAN_ROWS - n, err
                )
            self._readers[slot] -= 1
            if not scan.need:
                return n

    cdef _ScanAhead _scan_ahead(self, object threads, int64_t start):
        """Have one of these threads, when it is free, scan the file from position `start` on; None for a file that is
        soon scanned."""
        cdef _ScanAhead ahead
        cdef int64_t end = self._size
        if end <= SCAN_BYTES or not 0 < start < end:
            return None
        ahead = _ScanAhead.__new__(_ScanAhead)
        ahead.start = ahead.position = start
        ahead.future = submit(threads, self._run_ahead, ahead, end)
        return ahead

    def _run_ahead(self, _ScanAhead ahead, int64_t end):
        cdef kc_segment_scan scan
        cdef kc_error err
        cdef Window window = None if self._may_map else Window()
        self._begin(&scan, KC_SCAN_CHECK_CRC, ahead.start)
        err.status = KC_OK
        while not ahead.stopped and err.status == KC_OK and scan.position < end:
            self._scan_step(&scan, min(end, scan.position + SCAN_BYTES), NULL, window, &err)
            ahead.position = scan.position

    def scan(self, on_batches, *, int64_t start_position=0, bint check_crc=True, bint only_noteworthy=False):
        """Walk the batches from start_position on and hand them to on_batches(BatchTable), some thousand at a time;
        changes nothing.

        The tables hold headers only; slice(batch.position, batch.size) has the bytes.  only_noteworthy: just the
        batches that change the leader epoch, have a producer id, or are control batches.  Returns a RecoveryResult:
        valid_bytes is the position of the first invalid batch, truncated_bytes the bytes from there on.  GIL
        released.  Raises OSError.
        """
        cdef kc_segment_scan scan
        cdef kc_error err
        self._begin(
            &scan,
            (KC_SCAN_CHECK_CRC if check_crc else 0) | (KC_SCAN_NOTEWORTHY if only_noteworthy else 0),
            start_position,
        )
        self._scan(&scan, on_batches, None, &err)
        return self._result(scan.position, scan.last_offset, None if err.status == KC_OK else describe(&err))

    def _result(self, int64_t valid_bytes, int64_t last_offset, reason):
        return RecoveryResult(
            valid_bytes,
            self._size - valid_bytes,
            reason,
            self.base_offset - 1 if last_offset < 0 else last_offset,
        )

    def end_before_damage(self):
        """Have a segment that is open for reading only end where recover() would cut it; nothing changes on disk.
        Returns the RecoveryResult.  GIL released.  OSError."""
        if self.writable:
            raise ValueError(f"{self.log_path} is writable: recover() cuts the file")
        result = self.scan(lambda batches: None)
        self._size = min(self._size, <int64_t>result.valid_bytes)
        return result

    def renumber(self, int64_t base_offset, int32_t leader_epoch):
        """Change the base offset of the batches, and their leader epoch, in place, in a segment that no other thread
        reads.  Neither is covered by the CRC, and the indexes count from the base offset.  The caller closes the
        segment and gives its files the name of base_offset.

        Raises CorruptMessage, with nothing changed, for a file with a batch that is not whole or not of magic 2;
        ReadOnlyLog, OSError.
        """
        cdef list tables = []
        cdef BatchTable table
        cdef kc_batch row
        cdef uint8_t[RENUMBERED_BYTES] head
        cdef int64_t shift = base_offset - self.base_offset
        cdef int64_t position
        cdef Py_ssize_t i
        self._check_writable()
        result = self.scan(tables.append, check_crc=False)
        if result.truncated_bytes:
            raise CorruptMessage(
                f"{self.log_path}: {result.reason}",
                source=self.log_path, position=result.valid_bytes, offset=result.last_offset + 1,
            )
        for table in tables:
            for i in range(table.count):
                if table.rows[i].magic != 2:
                    raise CorruptMessage(
                        f"{self.log_path}: magic {table.rows[i].magic} at position {table.rows[i].position}, expected 2",
                        source=self.log_path, position=table.rows[i].position, offset=table.rows[i].base_offset,
                    )
        for table in tables:
            for i in range(table.count):
                row = table.rows[i]
                position = row.position
                row.position = 0
                self._file.read_into(head, RENUMBERED_BYTES, position)
                kc_batch_assign(head, &row, row.base_offset + shift, leader_epoch)
                self._file.write(head, RENUMBERED_BYTES, position)

    cdef int _cut(self, int64_t size) except -1:
        """Cut the file.  On OSError nothing has changed."""
        cdef int64_t old_size = self._size
        # Who enters from now on stays within the new end; those inside must be out first: they would die of SIGBUS.
        # Counted apart, so that new readers cannot make this wait for ever.
        self._size = size
        cdef int old = self._generation
        self._generation = 1 - old
        while self._readers[old]:
            with nogil:
                usleep(20)
        try:
            self._file.truncate(size)
        except BaseException:
            self._size = old_size
            raise
        self._cut_pending = False
        self._may_map = self._may_map or (self.writable and self._file.first_hole(size) == size)
        return 0
