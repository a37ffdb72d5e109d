"""OffsetMap: the cleaner's fixed-size table from a record's key to the latest offset it was seen at.

csrc/offset_map.h says how it is made and why its hash is safe.  Source: SkimpyOffsetMap, Kafka 2.4-4.x.
"""

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX
from libc.string cimport memcpy

from kcore.common.status cimport KC_OK, raise_status
from kcore.record.memory_records cimport BatchTable, MemoryRecords
from kcore.record.record_batch cimport (
    KC_ATTR_CODEC_MASK,
    KC_ATTR_CONTROL,
    KC_ATTR_TRANSACTIONAL,
    KC_BATCH_HEADER_SIZE,
    RecordBatch,
    kc_batch,
    kc_batch_check_count,
)

cdef extern from "sys/mman.h" nogil:
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS, MADV_HUGEPAGE
    void *MAP_FAILED
    void *mmap(void *address, size_t size, int protection, int flags, int fd, int64_t offset)
    int munmap(void *address, size_t size)
    int madvise(void *address, size_t size, int advice)


def siphash128(bytes secret, bytes data):
    """The 16 bytes that csrc/offset_map.c hashes a key to; secret: 16 bytes.  For tests against the published vectors."""
    cdef uint64_t[2] words
    cdef uint64_t[2] out
    if len(secret) != 16:
        raise ValueError("a secret has 16 bytes")
    for i in range(2):
        words[i] = int.from_bytes(secret[8 * i : 8 * i + 8], "little")
    kc_siphash128(words, <const uint8_t *>data, len(data), out)
    return int(out[0]).to_bytes(8, "little") + int(out[1]).to_bytes(8, "little")


cdef enum:
    FIRST_SLOTS = 16 * 1024

# What kc_offset_map_add_batches leaves alone.
cdef int SPECIAL = KC_ATTR_CODEC_MASK | KC_ATTR_TRANSACTIONAL | KC_ATTR_CONTROL


cdef void _free_table(kc_offset_map *map) noexcept:
    if map.entries != NULL:
        munmap(map.entries, map.slots * sizeof(kc_offset_entry))
    map.entries = NULL
    map.slots = map.limit = 0


cdef class OffsetMap:
    """key -> latest offset, in at most memory_bytes; full at load_factor of the slots that fit into them.

    Takes memory as keys come (half as much again while the table moves to a larger one), none before clear() and after
    release().  Not thread-safe: a cleaner thread owns it.  Raises ValueError for a size that holds no key.
    """

    def __cinit__(self, int64_t memory_bytes, double load_factor=0.9):
        self.max_slots = memory_bytes // <int64_t>sizeof(kc_offset_entry)
        self._load_factor = load_factor
        if not 0 < load_factor <= 1 or <int64_t>(self.max_slots * load_factor) < 1 or self.max_slots < 2:
            raise ValueError(
                f"an offset map of {memory_bytes} bytes with load factor {load_factor} is too small to hold one key: "
                "raise log.cleaner.dedupe.buffer.size or lower log.cleaner.threads"
            )
        self.map.latest_offset = -1

    def __dealloc__(self):
        self.release()

    def clear(self):
        """Remove all entries and choose a new secret for the hash.  Raises MemoryError."""
        self.release()
        secret = os.urandom(16)
        memcpy(self.map.secret, <const char *>secret, 16)
        self._take_table(&self.map, FIRST_SLOTS)

    def release(self):
        """Give the memory back; the next clear() takes it again."""
        _free_table(&self.map)
        self.map.size = 0
        self.map.latest_offset = -1

    cdef int _take_table(self, kc_offset_map *map, int64_t slots) except -1:
        """A table of empty slots, as many as that or as there may be."""
        slots = min(slots, self.max_slots)
        cdef size_t size = slots * sizeof(kc_offset_entry)
        # Huge pages if there are any: every search touches another page, and a large table has more of the small ones
        # than the CPU remembers addresses of.
        cdef void *entries = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if entries == MAP_FAILED:
            raise MemoryError(f"an offset map of {size} bytes")
        madvise(entries, size, MADV_HUGEPAGE)
        map.entries = <kc_offset_entry *>entries
        map.slots = slots
        map.limit = min(<int64_t>(self.max_slots * self._load_factor), slots - 1)
        map.roomy = INT64_MAX if slots == self.max_slots else slots // 2
        return 0

    cdef int _make_room(self, int64_t count) except -1:
        """Have a table for `count` keys more, if there may be one: a small one stays in the CPU's caches, so it starts
        small and grows fourfold."""
        cdef kc_offset_map larger = self.map
        cdef int64_t slots = self.map.slots
        while slots < self.max_slots and slots // 2 - self.map.size < count:
            slots *= 4
        self._take_table(&larger, slots)
        with nogil:
            kc_offset_map_move(&self.map, &larger)
        _free_table(&self.map)
        self.map = larger
        return 0

    cdef int _check_cleared(self) except -1:
        if self.map.entries == NULL:
            raise ValueError("the offset map has no memory: clear() it first")
        return 0

    def put(self, key, int64_t offset):
        """Whether there was room.  offset becomes the latest one."""
        cdef Py_buffer view
        self._check_cleared()
        if kc_offset_map_needs_room(&self.map, 1):
            self._make_room(1)
        PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
        cdef bint done = kc_offset_map_put(&self.map, <const uint8_t *>view.buf, view.len, offset)
        PyBuffer_Release(&view)
        return done

    def get(self, key):
        """The key's latest offset, -1 if it is unknown."""
        cdef Py_buffer view
        self._check_cleared()
        PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
        cdef int64_t offset = kc_offset_map_get(&self.map, <const uint8_t *>view.buf, view.len)
        PyBuffer_Release(&view)
        return offset

    def update_latest_offset(self, int64_t offset):
        """Everything up to offset has been looked at, whether it had a key or not."""
        self.map.latest_offset = offset

    def add(self, MemoryRecords records not None, int64_t start_offset, transactions):
        """Put the keys of all records from start_offset on; (records read, whether the table was full before the end).

        transactions: called for each control and transactional batch, as a CleanedTransactionMetadata is; the
        records of an aborted transaction are not put.  Releases the GIL while it works on uncompressed batches.
        Raises CorruptMessage.
        """
        cdef BatchTable table = records.batches
        cdef int64_t done = 0
        cdef int64_t count = table.count
        cdef int64_t read = 0
        cdef int full = 0
        cdef const kc_batch *row
        cdef kc_error err
        self._check_cleared()
        while done < count:
            with nogil:
                done += kc_offset_map_add_batches(
                    &self.map, table.rows + done, count - done, table.data, table.base_position, start_offset, &read,
                    &full, &err,
                )
            if err.status != KC_OK:
                err.position += table.rows[done].position + KC_BATCH_HEADER_SIZE
                raise_status(&err, table.source, table.rows[done].base_offset)
            if full:
                break
            row = table.rows + done
            if done < count and row.magic == 2 and not row.attributes & SPECIAL:
                if kc_batch_check_count(row, row.size - KC_BATCH_HEADER_SIZE, &err) != KC_OK:
                    err.position = row.position
                    raise_status(&err, table.source, row.base_offset)
                self._make_room(row.count)
            elif done < count:
                full = self._add_special(table.batch(done), start_offset, transactions, &read)
                if full:
                    break
                if table.rows[done].last_offset >= start_offset:
                    self.map.latest_offset = table.rows[done].last_offset
                done += 1
        return read, bool(full)

    cdef int _add_special(self, RecordBatch batch, int64_t start_offset, transactions, int64_t *read) except -1:
        """A batch that is compressed, transactional, a marker, or of an older format; whether the table is full."""
        cdef kc_error err
        cdef int full = 0
        cdef kc_status status
        cdef const uint8_t *data
        cdef int64_t size
        if batch.row.attributes & KC_ATTR_CONTROL:
            transactions.on_control_batch_read(batch)
            read[0] += batch.row.count
            return 0
        if batch.row.attributes & KC_ATTR_TRANSACTIONAL and transactions.on_batch_read(batch):
            read[0] += batch.row.count
            return 0
        if batch.row.magic != 2:
            for record in batch.records():
                if record.key is not None and record.offset >= start_offset and not self.put(record.key, record.offset):
                    return 1
                read[0] += 1
            return 0
        if batch.row.count == 0:
            return 0
        payload = batch.payload()
        cdef Py_buffer view
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        data, size = <const uint8_t *>view.buf, view.len
        try:
            status = kc_batch_check_count(&batch.row, size, &err)
            if status == KC_OK:
                if kc_offset_map_needs_room(&self.map, batch.row.count):
                    self._make_room(batch.row.count)
                with nogil:
                    status = kc_offset_map_add_records(
                        &self.map, &batch.row, data, size, start_offset, read, &full, &err
                    )
        finally:
            PyBuffer_Release(&view)
        if status != KC_OK:
            err.position = batch.row.position
            raise_status(&err, batch.source, batch.row.base_offset)
        return full

    @property
    def slots(self):
        """The number of slots; some always stay free."""
        return self.max_slots

    @property
    def limit(self):
        """Keys at which the table counts as full."""
        return <int64_t>(self.max_slots * self._load_factor)

    @property
    def latest_offset(self):
        """-1 before the first."""
        return self.map.latest_offset

    @property
    def utilization(self):
        """Keys, as a share of the slots."""
        return self.map.size / self.max_slots

    def __len__(self):
        return self.map.size

    def __repr__(self):
        return f"OffsetMap({self.map.size} of {self.max_slots} slots, latest offset {self.map.latest_offset})"
