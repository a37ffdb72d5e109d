# cython: freethreading_compatible = True
"""One magic-2 batch: the header's fields, and its records on demand.

The format is told in csrc/record_batch.h.  Objects here are read-only and may be shared by threads.
"""

from cpython.memoryview cimport PyMemoryView_GET_BUFFER

from kcore.common.status cimport raise_status

cdef tuple _CODECS = ("none", "gzip", "snappy", "lz4", "zstd", "unknown-5", "unknown-6", "unknown-7")


cdef RecordBatch make_batch(const kc_batch *row, const uint8_t *data, object owner, str source):
    """data: the batch's first byte, inside the memoryview owner; NULL for the header alone."""
    cdef RecordBatch batch = RecordBatch.__new__(RecordBatch)
    batch.row = row[0]
    batch.data = data
    batch.owner = owner
    batch.source = source
    return batch


cdef class RecordBatch:
    """One magic-2 batch: a copy of its header, decoded, and a reference to its bytes.

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
        if self.row.base_sequence < 0:
            return -1
        return (self.row.base_sequence + (self.row.last_offset - self.row.base_offset)) & 0x7FFFFFFF

    @property
    def has_producer_id(self):
        return self.row.producer_id > -1

    @property
    def count(self):
        """Records, as the header says; 0 in a batch the cleaner emptied."""
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

    def __len__(self):
        return self.row.count

    def __repr__(self):
        return (
            f"RecordBatch(base_offset={self.row.base_offset}, last_offset={self.row.last_offset}, "
            f"count={self.row.count}, position={self.row.position}, size={self.row.size}, "
            f"compression={self.compression!r})"
        )
