"""TimeIndex: timestamp -> relative offset, over a mapped .timeindex file.

Entries are 12 bytes, big endian: int64 timestamp, int32 offset - base_offset.  An entry (t, o) says that no record
up to offset o has a timestamp above t, so a search for t' > t may start after o.  Source: KIP-33, TimeIndex.java.
"""

from kcore.common.file cimport File
from kcore.errors import CorruptIndex, IndexFull, InvalidOffset, InvalidTimestamp


cdef class TimeIndex(AbstractIndex):
    """The .timeindex of one segment.  writable=False reads the file once and never changes or creates one.

    Raises FileNotFoundError when it is missing and not writable.  One writer (the log's lock); lookups need no
    lock and hold the GIL.
    """

    ENTRY_SIZE = KC_TIME_INDEX_ENTRY_SIZE

    cdef int get_last(self, int64_t *timestamp, int64_t *offset) except -1:
        if self.slots == NULL and self.count:
            self.load()
        if self.count == 0:
            timestamp[0] = -1
            offset[0] = self.base_offset
        else:
            timestamp[0] = kc_time_index_timestamp(self.slots, self.count - 1)
            offset[0] = self.base_offset + kc_time_index_relative_offset(self.slots, self.count - 1)
        return 0

    @property
    def is_full(self):
        """No slot is left but the one kept for the final entry of a segment that becomes inactive (IDX-05)."""
        return self.count >= self.limit - 1

    def lookup(self, int64_t timestamp):
        """The (timestamp, offset) of the last entry at or below timestamp; (-1, base_offset) when there is none.

        Source: TimeIndex.lookup.
        """
        cdef int64_t slot
        if self.slots == NULL:
            self.load()
        slot = kc_time_index_floor(self.slots, self.count, timestamp)
        if slot < 0:
            return (-1, self.base_offset)
        return (
            kc_time_index_timestamp(self.slots, slot),
            self.base_offset + kc_time_index_relative_offset(self.slots, slot),
        )

    cdef int64_t floor_offset(self, int64_t timestamp) except? -1:
        """lookup's offset alone."""
        cdef int64_t slot
        if self.slots == NULL:
            self.load()
        slot = kc_time_index_floor(self.slots, self.count, timestamp)
        return self.base_offset if slot < 0 else self.base_offset + kc_time_index_relative_offset(self.slots, slot)

    def entry(self, int64_t n):
        """(timestamp, offset) of entry n.  IndexError."""
        self._slot(n)
        return (
            kc_time_index_timestamp(self.slots, n),
            self.base_offset + kc_time_index_relative_offset(self.slots, n),
        )

    def maybe_append(self, int64_t timestamp, int64_t offset, *, bint skip_full_check=False):
        """Add an entry if timestamp is above the last one; an equal one is ignored (IDX-07).

        skip_full_check lets the last slot be used, for the final entry of a segment.  Raises IndexFull,
        InvalidOffset or InvalidTimestamp for one below the last entry's, LogSegmentOffsetOverflow, OSError.
        """
        self.check_writable()
        self.add(timestamp, offset, skip_full_check)

    cdef int add(self, int64_t timestamp, int64_t offset, bint skip_full_check) except -1:
        cdef int64_t last_timestamp, last_offset
        cdef int32_t relative
        self.get_last(&last_timestamp, &last_offset)
        if self.count >= self.limit - (0 if skip_full_check else 1):
            raise IndexFull(f"{self.path}: {self.count} of {self.limit} slots are taken, no room for {timestamp}")
        if self.count and offset < last_offset:
            raise InvalidOffset(f"{self.path}: offset {offset} is below the last one, {last_offset}")
        if self.count and timestamp < last_timestamp:
            raise InvalidTimestamp(f"{self.path}: timestamp {timestamp} is below the last one, {last_timestamp}")
        if timestamp <= last_timestamp:
            return 0
        relative = self.relative(offset)
        self.reserve(1)
        kc_time_index_put(self.slots, self.count, timestamp, relative)
        self.count += 1  # last, so that a lookup sees whole entries only
        return 0

    def truncate_to(self, int64_t offset):
        """Keep the entries whose offset is below offset (IDX-11)."""
        self.check_writable()
        if self.slots == NULL:
            self.load()
        self.keep(kc_time_index_count_below(self.slots, self.count, offset - self.base_offset))

    def sanity_check(self):
        """Raise CorruptIndex for an index that cannot be right; looks at the length and at three entries.

        Finds also the zeros of a file that was never trimmed (IDX-13).  Source: IDX-12.
        """
        cdef uint8_t[KC_TIME_INDEX_ENTRY_SIZE] first
        cdef uint8_t[2 * KC_TIME_INDEX_ENTRY_SIZE] last
        cdef int64_t timestamp, offset, before
        cdef File file = None
        self._check_length()
        if self.slots == NULL and self.count:
            if self.writable:
                file = self._file()
                self.leave_out_holes(file)
            else:
                self.load()  # its owner may have cut the file: then there are fewer
        self._check_no_hole()
        if self.count == 0:
            return
        self.copy_slots(file, max(self.count - 2, 0), min(self.count, 2), last)
        timestamp = kc_time_index_timestamp(last, self.count > 1)
        offset = self.base_offset + kc_time_index_relative_offset(last, self.count > 1)
        if offset < self.base_offset:
            raise CorruptIndex(f"{self.path}: last offset {offset} is below the base offset {self.base_offset}")
        if self.count == 1:
            return
        self.copy_slots(file, 0, 1, first)
        if timestamp < kc_time_index_timestamp(first, 0):
            raise CorruptIndex(
                f"{self.path}: last timestamp {timestamp} is below the first one, {kc_time_index_timestamp(first, 0)}"
            )
        before = kc_time_index_timestamp(last, 0)
        if timestamp <= before:
            raise CorruptIndex(f"{self.path}: last timestamp {timestamp} is not above the one before it, {before}")

    def to_numpy(self):
        """A copy as a structured array: timestamp int64, offset int64 (absolute)."""
        import numpy as np

        if self.slots == NULL:
            self.load()
        raw = np.frombuffer(
            (<const char *>self.slots)[: self.count * KC_TIME_INDEX_ENTRY_SIZE],
            [("timestamp", ">i8"), ("offset", ">i4")],
        )
        array = np.empty(len(raw), [("timestamp", np.int64), ("offset", np.int64)])
        array["timestamp"] = raw["timestamp"]
        array["offset"] = raw["offset"].astype(np.int64) + self.base_offset
        return array
