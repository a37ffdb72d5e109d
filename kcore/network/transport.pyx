"""What carries a connection's bytes, below the framing: a plain non-blocking socket.

Connection calls these methods as C functions and knows no socket.  A transport that encrypts is a PythonTransport.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport EAGAIN, EFAULT, EINTR, errno
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy, memset

import errno as errno_names
import logging
import os

logger = logging.getLogger(__name__)

cdef extern from *:
    """
    #include <sys/socket.h>
    #ifndef MSG_MORE      /* macOS: the header goes out by itself, then the file's bytes */
    #define MSG_MORE 0
    #endif
    #ifndef MSG_NOSIGNAL  /* macOS: CPython ignores SIGPIPE */
    #define MSG_NOSIGNAL 0
    #endif
    """
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    int MSG_MORE
    int MSG_NOSIGNAL
    int MSG_PEEK
    Py_ssize_t recv(int fd, void *buffer, size_t length, int flags) nogil
    Py_ssize_t sendmsg(int fd, const msghdr *message, int flags) nogil


class ConnectionClosed(Exception):
    """The peer is gone, or has closed its side."""


cdef enum:
    # One recv or send of this size takes about as long as handing the GIL over and back.
    RELEASE_GIL_BYTES = 65536
    # What a PythonTransport writes at once.  Small parts are joined up to one TLS record.
    JOINED_BYTES = 16384
    FILE_PIECE_BYTES = 65536


cdef class Transport:
    """The bytes of one connected socket.  Used by one thread.  Releases the GIL for large reads and writes only.

    sends_mappings: whether parts of send() may be in the mapping of a file that can be cut at any time.
    is_ready: the handshake is done; receive() goes on with it until then, and nothing is sent before.
    wants_write: receive() goes on once the socket is writable, whether it is readable or not.
    has_buffered: bytes for receive() are here that the socket has already given, so no poll reports them.
    peer_principal: the KafkaPrincipal that the handshake has proved; None where it proves none.
    Source: TransportLayer, Kafka 3.9.
    """

    def __cinit__(self, sock, *_):
        self.sock = sock
        self.fd = sock.fileno()
        self.sends_mappings = True
        self.is_ready = True
        self.wants_write = self.has_buffered = False

    cdef Py_ssize_t receive(self, uint8_t *target, Py_ssize_t size) except -2:
        """Bytes read, at most `size`; -1 when there are none yet.  Raises ConnectionClosed, also at the end."""
        cdef Py_ssize_t got
        while True:
            if size > RELEASE_GIL_BYTES:
                with nogil:
                    got = recv(self.fd, target, size, 0)
            else:
                got = recv(self.fd, target, size, 0)
            if got > 0:
                return got
            if got == 0:
                raise ConnectionClosed("end of stream")
            if errno == EAGAIN:
                return -1
            if errno != EINTR:
                raise ConnectionClosed(os.strerror(errno))

    cdef Py_ssize_t send(self, iovec *parts, int count, int64_t total, bint more, bint may_wait) except -4:
        """Bytes sent of these parts, `total` in all; -1 when the socket is full, -2 if a mapping's file was cut where
        the first byte was.  more: a file slice follows at once.  may_wait: for the disk, to read a mapping.
        Raises ConnectionClosed."""
        cdef msghdr message
        cdef Py_ssize_t sent
        cdef int flags = MSG_NOSIGNAL | MSG_MORE if more else MSG_NOSIGNAL
        memset(&message, 0, sizeof(message))
        message.msg_iov = parts
        message.msg_iovlen = count
        while True:
            if may_wait or total > RELEASE_GIL_BYTES:
                with nogil:
                    sent = sendmsg(self.fd, &message, flags)
            else:
                sent = sendmsg(self.fd, &message, flags)
            if sent >= 0:
                return sent
            if errno == EAGAIN:
                return -1
            if errno == EFAULT:
                return -2
            if errno != EINTR:
                raise ConnectionClosed(os.strerror(errno))

    cdef int64_t send_file(self, object chunk, int64_t offset) except -2:
        """Bytes sent of a file slice from this offset on; 0 when the socket is full.  Raises OSError."""
        return chunk.send_to(self.fd, offset)

    cdef bint peer_has_closed(self) except -1:
        """Whether the peer has ended its side and everything it sent before was read.  Takes nothing away."""
        cdef uint8_t byte
        return not self.has_buffered and recv(self.fd, &byte, 1, MSG_PEEK) == 0

    def close(self):
        if self.fd >= 0:
            self.fd = -1
            self.sock.close()


cdef class PythonTransport(Transport):
    """A transport whose bytes pass through Python, as TLS does.  A subclass has these methods, and sets the fields.

    handshake(): goes on with it as far as the socket allows, and sets is_ready or wants_write.
    read_into(target) -> bytes read into a memoryview; -1 when there are none yet.  Sets has_buffered.
    write(data) -> bytes taken of a memoryview; -1 when the socket is full: the next call then has the same data.
    All raise ConnectionClosed (read_into also at the end) or OSError; another exception, or a size that is wrong, is
    logged and ends the connection too.  No memoryview may be kept.
    """

    def __cinit__(self, sock, *_):
        self.sends_mappings = False
        self.is_ready = False

    cdef Py_ssize_t receive(self, uint8_t *target, Py_ssize_t size) except -2:
        if not self.is_ready:
            self._call(self.handshake, None, 0)
            if not self.is_ready:
                return -1
        return self._call(self.read_into, PyMemoryView_FromMemory(<char *>target, size, PyBUF_WRITE), size)

    cdef Py_ssize_t _call(self, method, data, Py_ssize_t size) except -2:
        """Bytes of `data` that a method has read or written; -1."""
        cdef Py_ssize_t done
        try:
            if data is None:
                method()
                return -1
            done = method(data)
            if done != -1 and not 0 < done <= size:
                raise ValueError(f"{done} bytes of {size}")
            return done
        except (ConnectionClosed, OSError):
            raise
        except Exception as error:
            logger.exception("%r failed", self)
            raise ConnectionClosed(f"its transport failed: {error!r}") from error

    cdef Py_ssize_t send(self, iovec *parts, int count, int64_t total, bint more, bint may_wait) except -4:
        """Writes the first part, or as many as one TLS record holds."""
        cdef Py_ssize_t used = 0, size
        cdef int i
        if total == 0:
            return 0
        if count == 1 or <Py_ssize_t>parts[0].iov_len >= JOINED_BYTES:
            size = parts[0].iov_len
            return self._call(self.write, PyMemoryView_FromMemory(<char *>parts[0].iov_base, size, PyBUF_READ), size)
        joined = PyByteArray_FromStringAndSize(NULL, min(total, <int64_t>JOINED_BYTES))
        for i in range(count):
            size = min(<Py_ssize_t>parts[i].iov_len, len(joined) - used)
            memcpy(PyByteArray_AS_STRING(joined) + used, parts[i].iov_base, size)
            used += size
        return self._call(self.write, memoryview(joined), used)

    cdef int64_t send_file(self, object chunk, int64_t offset) except -2:
        """The slice is read, not sent from the page cache."""
        piece = bytearray(min(chunk.size_in_bytes - offset, FILE_PIECE_BYTES))
        cdef int64_t got = chunk.read_into(piece, offset)
        if got == 0:
            raise OSError(errno_names.EIO, f"{chunk!r} ends before its byte {offset}")
        return max(self._call(self.write, memoryview(piece)[:got], got), 0)
