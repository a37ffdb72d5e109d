"""OffsetIndex: relative offset -> position, over a mapped .index file.

Entries are 8 bytes, big endian: int32 offset - base_offset, int32 position in the .log.  Strictly ascending,
sparse: one per index.interval.bytes of log.  Source: OffsetIndex.java.
"""

from kcore.errors import CorruptIndex, IndexFull, InvalidOffset


cdef class OffsetIndex(AbstractIndex):
    """The .index of one segment.  writable=False reads the file once and never changes or creates one.

    Raises FileNotFoundError when it is missing and not writable.  One writer (the log's lock); lookups need no
    lock and hold the GIL: some twenty cache lines, no system call.
    """

    ENTRY_SIZE = KC_OFFSET_INDEX_ENTRY_SIZE

    cdef int64_t get_last_offset(self) except? -1:
        if self.count == 0:
            return self.base_offset
        if self.slots == NULL:
            self.load()
            if self.count == 0:
                return self.base_offset
        return self.base_offset + kc_offset_index_relative_offset(self.slots, self.count - 1)

    @property
    def last_offset(self):
        """Offset of the last entry; base_offset when there is none."""
        return self.get_last_offset()

    @property
    def is_full(self):
        """No slot is left: the log rolls (IDX-05)."""
        return self.count >= self.limit

    def lookup(self, int64_t target_offset):
        """The (offset, position) of the last entry at or below target_offset.

        (base_offset, 0) when there is none, so the caller can always scan forward from the answer.
        Source: OffsetIndex.lookup.
        """
        cdef int64_t slot
        if self.slots == NULL:
            self.load()
        slot = kc_offset_index_floor(self.slots, self.count, target_offset - self.base_offset)
        if slot < 0:
            return (self.base_offset, 0)
        return (
            self.base_offset + kc_offset_index_relative_offset(self.slots, slot),
            kc_offset_index_position(self.slots, slot),
        )

    cdef int floor_entry(self, int64_t target_offset, int64_t *offset, int64_t *position) except -1:
        """lookup for other native code.  What the entry says is not checked: kc_segment_entry_start does that."""
        cdef int64_t slot
        offset[0], position[0] = self.base_offset, 0
        if self.count == 0:
            return 0
        if self.slots == NULL:
            self.load()
        slot = kc_offset_index_floor(self.slots, self.count, target_offset - self.base_offset)
        if slot >= 0:
            offset[0] = self.base_offset + kc_offset_index_relative_offset(self.slots, slot)
            position[0] = kc_offset_index_position(self.slots, slot)
        return 0

    cdef int64_t position_at_or_after(self, int64_t position) except -1:
        """The position of the first entry that is not below this position; 0 if there is none.  The zeros after the
        last entry of an index that was not cut to its entries count as higher positions."""
        cdef int64_t first = 0, end = self.count, slot
        cdef int64_t result = 0, entry_position
        if self.slots == NULL:
            self.load()
        while first < min(end, self.count):
            slot = (first + end) // 2
            entry_position = kc_offset_index_position(self.slots, slot)
            if 0 < entry_position < position:
                first = slot + 1
            else:
                result, end = entry_position, slot
        return max(result, 0)

    def entry(self, int64_t n):
        """(offset, position) of entry n.  IndexError."""
        self._slot(n)
        return (
            self.base_offset + kc_offset_index_relative_offset(self.slots, n),
            kc_offset_index_position(self.slots, n),
        )

    def append(self, int64_t offset, int64_t position):
        """Add an entry.

        Raises InvalidOffset unless offset is above the last one, IndexFull, LogSegmentOffsetOverflow, ValueError
        for a position outside [0, 2**31), OSError for a full disk; nothing has changed then.
        """
        cdef int32_t relative = self.relative(offset)
        self.check_writable()
        if not 0 <= position <= 0x7FFFFFFF:
            raise ValueError(f"{self.path}: position {position} does not fit in an entry")
        if self.count >= self.limit:
            raise IndexFull(f"{self.path}: all {self.limit} slots are taken, no room for offset {offset}")
        if self.count and offset <= self.get_last_offset():
            raise InvalidOffset(f"{self.path}: offset {offset} is not above the last one, {self.get_last_offset()}")
        self.reserve(1)
        kc_offset_index_put(self.slots, self.count, relative, <int32_t>position)
        self.count += 1  # last, so that a lookup sees whole entries only

    def fetch_upper_bound_offset(self, int64_t position, int64_t size):
        """(offset, position) of the first entry at or after the end of a fetch of `size` bytes from
        `position`: the offsets of all fetched records are below it.  None when no entry is that far (IDX-14)."""
        cdef int64_t slot
        if self.slots == NULL:
            self.load()
        slot = kc_offset_index_ceiling_position(self.slots, self.count, position + size)
        return None if slot < 0 else self.entry(slot)

    def truncate_to(self, int64_t offset):
        """Keep the entries below offset (IDX-11)."""
        self.check_writable()
        if self.slots == NULL:
            self.load()
        self.keep(kc_offset_index_floor(self.slots, self.count, offset - self.base_offset - 1) + 1)

    def sanity_check(self):
        """Raise CorruptIndex for an index that cannot be right; looks at the length and the last two entries.

        Finds also the zeros of a file that was never trimmed (IDX-13).  Source: IDX-12.
        """
        cdef int64_t last
        self._check_length()
        if self.slots == NULL and self.count:
            self.load()
        self._check_no_hole()
        if self.count == 0:
            return
        last = self.get_last_offset()
        if last < self.base_offset:
            raise CorruptIndex(f"{self.path}: last offset {last} is below the base offset {self.base_offset}")
        if self.count > 1 and kc_offset_index_relative_offset(self.slots, self.count - 2) >= last - self.base_offset:
            before = self.base_offset + kc_offset_index_relative_offset(self.slots, self.count - 2)
            raise CorruptIndex(f"{self.path}: last offset {last} is not above the one before it, {before}")

    def to_numpy(self):
        """A copy as a structured array: offset int64 (absolute), position int32."""
        import numpy as np

        if self.slots == NULL:
            self.load()
        raw = np.frombuffer(
            (<const char *>self.slots)[: self.count * KC_OFFSET_INDEX_ENTRY_SIZE],
            [("offset", ">i4"), ("position", ">i4")],
        )
        array = np.empty(len(raw), [("offset", np.int64), ("position", np.int32)])
        array["offset"] = raw["offset"].astype(np.int64) + self.base_offset
        array["position"] = raw["position"]
        return array
