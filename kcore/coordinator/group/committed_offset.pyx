"""What a group has committed for one partition.

A coordinator may keep millions of these.  They refer to nothing that could refer to them, so the garbage collector need
not look at them: that took longer than to read them.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t


cdef extern from "bytes.h" nogil:
    int16_t kc_load_i16(const uint8_t *p)
    int32_t kc_load_i32(const uint8_t *p)
    int64_t kc_load_i64(const uint8_t *p)

#: Of the value of an offset commit of version 3: int16 version, int64 offset, int32 leader epoch, int16 size of the
#: metadata, which follow, then int64 time of the commit.
cdef enum:
    OFFSET = 2
    LEADER_EPOCH = 10
    METADATA_SIZE = 14
    METADATA = 16
    TIME_SIZE = 8


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class OffsetAndMetadata:
    """OffsetAndMetadata(offset, metadata="", leader_epoch=-1, commit_timestamp=-1, expire_timestamp=None)\n--\n
    A committed offset.  Times in ms since the epoch; expire_timestamp only from clients that set a retention.  Immutable.
    """

    cdef readonly int64_t offset
    cdef readonly str metadata
    cdef readonly int32_t leader_epoch
    cdef readonly int64_t commit_timestamp
    cdef readonly object expire_timestamp

    def __init__(
        self,
        int64_t offset,
        str metadata not None="",
        int32_t leader_epoch=-1,
        int64_t commit_timestamp=-1,
        expire_timestamp=None,
    ):
        self.offset = offset
        self.metadata = metadata
        self.leader_epoch = leader_epoch
        self.commit_timestamp = commit_timestamp
        self.expire_timestamp = None if expire_timestamp is None else <int64_t>expire_timestamp

    cdef tuple _fields(self):
        return self.offset, self.metadata, self.leader_epoch, self.commit_timestamp, self.expire_timestamp

    def __eq__(self, other):
        if not isinstance(other, OffsetAndMetadata):
            return NotImplemented
        return self._fields() == (<OffsetAndMetadata>other)._fields()

    def __hash__(self):
        return hash(self._fields())

    def __repr__(self):
        return (
            f"OffsetAndMetadata(offset={self.offset}, metadata={self.metadata!r}, leader_epoch={self.leader_epoch}, "
            f"commit_timestamp={self.commit_timestamp}, expire_timestamp={self.expire_timestamp})"
        )


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class CommittedOffset:
    """CommittedOffset(append_offset, value)\n--\n
    With the log offset of its record, which decides between two commits of one partition.  Immutable.
    """

    cdef readonly int64_t append_offset
    cdef readonly OffsetAndMetadata value

    def __init__(self, int64_t append_offset, OffsetAndMetadata value not None):
        self.append_offset = append_offset
        self.value = value

    def __eq__(self, other):
        if not isinstance(other, CommittedOffset):
            return NotImplemented
        return self.append_offset == (<CommittedOffset>other).append_offset and self.value == other.value

    def __hash__(self):
        return hash((self.append_offset, self.value))

    def __repr__(self):
        return f"CommittedOffset(append_offset={self.append_offset}, value={self.value!r})"


def read_version_3(bytes data not None):
    """The OffsetAndMetadata of an offset commit's value; None if it is not exactly one of version 3."""
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    if size < METADATA + TIME_SIZE or kc_load_i16(p) != 3 or kc_load_i16(p + METADATA_SIZE) != size - METADATA - TIME_SIZE:
        return None
    cdef OffsetAndMetadata value = OffsetAndMetadata.__new__(OffsetAndMetadata)
    try:
        value.metadata = PyUnicode_DecodeUTF8(<const char *>p + METADATA, size - METADATA - TIME_SIZE, NULL)
    except UnicodeDecodeError:
        return None
    value.offset = kc_load_i64(p + OFFSET)
    value.leader_epoch = kc_load_i32(p + LEADER_EPOCH)
    value.commit_timestamp = kc_load_i64(p + size - TIME_SIZE)
    return value
