"""Framing, both ways, on one connection; a Transport below it carries the bytes.

A request on the wire is an int32 size and that many bytes; so is a response.  A small request costs
one recv into a buffer that all connections of a processor share, and one copy; a request larger than
what that buffer holds gets its own bytearray as soon as its size is known, is not zeroed, and the
kernel copies straight into it.  A response is a list of chunks, bytes or slices of segment files
(FileRecords), and leaves in one sendmsg, small slices from a mapping of their file.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t
from libc.string cimport memcpy

from kcore.network.transport cimport Transport, iovec

from collections import deque

from kcore.network.transport import ConnectionClosed

cdef extern from "bytes.h" nogil:
    int32_t kc_load_i32(const uint8_t *p)


class InvalidReceive(Exception):
    """A size prefix that is negative or beyond socket.request.max.bytes."""


cdef enum:
    MAX_IOV = 64
    # What one connection may move before the others get their turn.
    TURN_BYTES = 4 << 20
    # A larger slice of a file leaves in a call of its own: 1 MiB in one sendmsg with the bytes around it took the
    # kernel a fifth more CPU time.
    MAX_MAPPED_BYTES = 65536


cdef class Connection


cdef inline bint _is_file(object chunk):
    cdef object kind = type(chunk)
    if kind is bytes or kind is bytearray or kind is memoryview:
        return False
    return hasattr(chunk, "send_to")


cdef inline bint _is_mapped(object chunk):
    return hasattr(chunk, "mapped") and chunk.size_in_bytes <= MAX_MAPPED_BYTES


cdef inline int64_t _size_of(object chunk) except -1:
    return chunk.size_in_bytes if _is_file(chunk) else len(chunk)


cdef class Request:
    """One request on its way through the broker.  It is answered exactly once, from any thread.

    buffer: the request's bytes, header first, size prefix gone; its owner may write to it.
    """

    cdef readonly bytearray buffer
    cdef readonly Connection connection
    cdef public object on_abandoned  # None, or whom to call with this request when its connection closes first
    cdef object _processor
    cdef bint _done

    def __cinit__(self, Connection connection not None, bytearray buffer not None, processor):
        self.connection = connection
        self.buffer = buffer
        self._processor = processor
        self._done = False

    cdef int _finish(self) except -1:
        if self._done:
            raise RuntimeError("a request was answered twice")
        self._done = True
        self.buffer = None  # a parked request must not keep a producer's records in memory
        return 0

    @property
    def is_done(self):
        return self._done

    def respond(self, list chunks not None, throttle_ms=0):
        """Send a response: size, header and body, as bytes-like objects and FileRecords.

        throttle_ms: once it has left, the connection's next request is not read for this long (Kafka's quotas).
        """
        self._finish()
        if throttle_ms > 0:
            self.connection.throttle_ms = throttle_ms
        self._processor.complete(self.connection, chunks)

    def respond_nothing(self, throttle_ms=0):
        """The request has no response (acks=0); the connection's next request may come, after throttle_ms."""
        self._finish()
        if throttle_ms > 0:
            self.connection.throttle_ms = throttle_ms
        self._processor.complete(self.connection, None)

    def refuse(self, list chunks not None, delay_ms, reason):
        """Answer after delay_ms and end the connection, on its network thread; no chunks: no answer.  Nothing more is
        read from it."""
        self._finish()
        self._processor.refuse(self.connection, chunks, delay_ms, reason)

    def close_connection(self, reason):
        """End the connection instead of answering: Kafka's answer to what it cannot parse."""
        self._finish()
        self._processor.abort(self.connection, reason)


cdef class Connection:
    """One accepted connection.  Used by one thread, its processor's; public fields are the processor's.

    context: a ConnectionContext, for the handlers of its requests; another one once its client has authenticated.
    handler: called with each request.
    """

    cdef readonly object peer_host
    cdef public object context, handler
    cdef public int64_t max_request_bytes
    cdef Transport _transport
    cdef readonly int64_t buffered_bytes  # of requests that are here, whole or in part, and not yet taken
    cdef public object request, processor
    cdef public object throttle_ms        # of the response that is being sent; None: not at all
    cdef public double last_active_ms
    cdef public int interest
    cdef public int64_t in_flight_bytes
    cdef int64_t _filled
    cdef uint8_t _prefix[4]
    cdef int _prefix_len
    cdef bytearray _partial
    cdef object _frames
    cdef list _out
    cdef bint _sends_mappings  # of the response that is being sent
    cdef Py_ssize_t _out_index
    cdef int64_t _out_offset
    cdef object __weakref__

    def __cinit__(self, Transport transport not None, context, int64_t max_request_bytes):
        self._transport = transport
        self.context = context
        self.peer_host = context.client_address
        self.max_request_bytes = max_request_bytes
        self._frames = deque()
        self._prefix_len = 0
        self._partial = None
        self._out = None

    @property
    def fd(self):
        """The socket's descriptor; -1 once the connection is closed."""
        return self._transport.fd

    def receive(self, bytearray scratch not None):
        """Read what is there, at most TURN_BYTES; returns the number of complete requests that wait.

        scratch: a buffer that no other thread uses during the call.  Raises ConnectionClosed, InvalidReceive,
        OSError; the connection is of no more use then.  Releases the GIL for large reads only.
        """
        cdef uint8_t *target
        cdef Py_ssize_t want, got
        cdef int64_t budget = TURN_BYTES
        while True:
            if self._partial is not None:
                target = <uint8_t *>PyByteArray_AS_STRING(self._partial) + self._filled
                want = PyByteArray_GET_SIZE(self._partial) - self._filled
            else:
                target = <uint8_t *>PyByteArray_AS_STRING(scratch)
                want = PyByteArray_GET_SIZE(scratch)
            got = self._transport.receive(target, want)
            if got < 0:
                break
            if self._partial is not None:
                self._filled += got
                if self._filled == PyByteArray_GET_SIZE(self._partial):
                    self._frames.append(self._partial)
                    self._partial = None
                    break  # one request at a time: the next one waits in the kernel
            else:
                self._split(target, got)
            budget -= got
            # A short read has drained the socket (what the transport has of it: see has_buffered).  A full scratch
            # without the rest of a large request to follow may hold many requests: they go first.
            if got < want or self._partial is None or budget <= 0:
                break
        return len(self._frames)

    cdef int _split(self, const uint8_t *bytes_, Py_ssize_t n) except -1:
        cdef Py_ssize_t take, i
        cdef int32_t size
        while n > 0:
            if self._partial is None:
                take = min(4 - self._prefix_len, n)
                for i in range(take):
                    self._prefix[self._prefix_len + i] = bytes_[i]
                self._prefix_len += take
                bytes_ += take
                n -= take
                if self._prefix_len < 4:
                    return 0
                self._prefix_len = 0
                size = kc_load_i32(self._prefix)
                if size < 0 or size > self.max_request_bytes:
                    raise InvalidReceive(f"request size {size}, allowed are 0 to {self.max_request_bytes}")
                self._partial = PyByteArray_FromStringAndSize(NULL, size)
                self.buffered_bytes += size
                self._filled = 0
            take = min(PyByteArray_GET_SIZE(self._partial) - self._filled, n)
            if take > 0:
                memcpy(PyByteArray_AS_STRING(self._partial) + self._filled, bytes_, take)
            self._filled += take
            bytes_ += take
            n -= take
            if self._filled == PyByteArray_GET_SIZE(self._partial):
                self._frames.append(self._partial)
                self._partial = None
        return 0

    def next_frame(self):
        """The oldest complete request, a bytearray without its size prefix; None if there is none."""
        if not self._frames:
            return None
        cdef bytearray frame = self._frames.popleft()
        self.buffered_bytes -= PyByteArray_GET_SIZE(frame)
        return frame

    @property
    def mid_request(self):
        """Whether the first bytes of a request are here and its last are not."""
        return self._partial is not None or self._prefix_len > 0

    def peer_has_closed(self):
        """Whether the peer has ended its side and everything it sent before was read.  Takes nothing away."""
        return self._transport.peer_has_closed()

    @property
    def is_ready(self):
        return self._transport.is_ready

    @property
    def wants_write(self):
        return self._transport.wants_write

    @property
    def has_buffered(self):
        return self._transport.has_buffered

    @property
    def peer_principal(self):
        return self._transport.peer_principal

    @property
    def has_output(self):
        return self._out is not None

    def send(self, list chunks not None):
        """Start to send one response; True when all of it has left.

        chunks: bytes-like objects and FileRecords, the response's size first.  The rest waits for flush().
        Raises ConnectionClosed, OSError.
        """
        if self._out is not None:
            raise RuntimeError("a response is still being sent")
        self._out = chunks
        self._sends_mappings = self._transport.sends_mappings
        self._out_index = 0
        self._out_offset = 0
        return self.flush()

    def flush(self):
        """Go on sending; True when nothing is left.  Stops after TURN_BYTES, so that others are served."""
        cdef int64_t budget = TURN_BYTES, sent, size
        cdef object chunk
        while self._out is not None:
            chunk = self._out[self._out_index]
            if not _is_file(chunk) or (self._sends_mappings and _is_mapped(chunk)):
                sent = self._send_parts()
                if sent == -2:
                    self._sends_mappings = False
                    continue
            else:
                size = chunk.size_in_bytes
                sent = self._transport.send_file(chunk, self._out_offset) if size > self._out_offset else 0
                if sent == 0 and size > self._out_offset:
                    return False
                self._advance(sent)
            if sent < 0:
                return False
            budget -= sent
            if budget <= 0:
                return self._out is None
        return True

    cdef int64_t _send_parts(self) except -4:
        """Send the run of chunks at the front that need no send_file(); bytes sent, -1 when the socket is full, -2 if a
        file was cut where the first byte was: send_file() then has the rest of it, or its error."""
        cdef Py_buffer views[MAX_IOV]
        cdef iovec iov[MAX_IOV]
        cdef Py_ssize_t count = len(self._out), i = self._out_index, sent
        cdef int used = 0, buffers = 0, j
        cdef int64_t total = 0
        cdef uintptr_t address
        cdef list mappings = []
        try:
            while i < count and used < MAX_IOV:
                chunk = self._out[i]
                if not _is_file(chunk):
                    PyObject_GetBuffer(chunk, &views[buffers], PyBUF_SIMPLE)
                    iov[used].iov_base = views[buffers].buf
                    iov[used].iov_len = views[buffers].len
                    buffers += 1
                elif self._sends_mappings and _is_mapped(chunk):
                    address, mapping = chunk.mapped()
                    mappings.append(mapping)
                    iov[used].iov_base = <void *>address
                    iov[used].iov_len = chunk.size_in_bytes
                else:
                    break
                if used == 0:
                    iov[0].iov_base = <char *>iov[0].iov_base + self._out_offset
                    iov[0].iov_len -= self._out_offset
                total += iov[used].iov_len
                used += 1
                i += 1
            sent = self._transport.send(iov, used, total, i < count, len(mappings) > 0)
        finally:
            for j in range(buffers):
                PyBuffer_Release(&views[j])
        if sent >= 0:
            self._advance(sent)
        return sent

    cdef int _advance(self, int64_t sent) except -1:
        """Step over what was sent, and over empty chunks."""
        cdef int64_t left, size
        self._out_offset += sent
        while self._out_index < len(self._out):
            chunk = self._out[self._out_index]
            size = _size_of(chunk)
            if self._out_offset < size:
                return 0
            self._out_offset -= size
            self._out_index += 1
        self._out = None
        return 0

    def close(self):
        """Close the socket.  What was not sent is dropped."""
        self._out = None
        self._partial = None
        self._frames.clear()
        self._transport.close()
