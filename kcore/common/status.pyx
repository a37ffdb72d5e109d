"""kc_error -> exception: the one place where a failure in csrc becomes one of Python."""

import os

import kcore.errors as errors

cdef dict _EXCEPTION = {
    KC_UNSUPPORTED_MAGIC: errors.UnsupportedForMessageFormat,
    KC_INVALID_RECORD: errors.InvalidRecord,
    KC_INVALID_TIMESTAMP: errors.InvalidTimestamp,
    KC_INDEX_FULL: errors.IndexFull,
    KC_INVALID_OFFSET: errors.InvalidOffset,
    KC_OFFSET_OVERFLOW: errors.LogSegmentOffsetOverflow,
    KC_CORRUPT_INDEX: errors.CorruptIndex,
    KC_INVALID_ARGUMENT: ValueError,
}


cdef int raise_status(const kc_error *err, object source, object offset=None) except -1:
    """Raise what err says happened.  source: the file or connection, for the message; offset: of the
    batch, where the caller knows it.  Never returns normally, so call it only for err.status < 0."""
    what = err.what.decode()
    if err.status == KC_IO:
        where = what if err.position < 0 else f"{what} at position {err.position}"
        raise OSError(err.actual, f"{os.strerror(err.actual)} ({where})", source)
    if err.status == KC_NO_MEMORY:
        raise MemoryError(f"{source}: {what}: {err.expected} bytes")
    message = f"{source}: " if source else ""
    message += f"{what} at position {err.position}: expected {err.expected}, found {err.actual}"
    if offset is not None:
        message += f" (batch at offset {offset})"
    if err.status == KC_CORRUPT or err.status == KC_TRUNCATED:
        if err.status == KC_TRUNCATED:
            message += " (bytes end early)"
        raise errors.CorruptMessage(message, source=source, position=err.position, offset=offset)
    raise _EXCEPTION[err.status](message)
