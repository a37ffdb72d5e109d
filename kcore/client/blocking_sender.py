"""BlockingSender: one connection to a broker, with one request in flight (RFT-01)."""

from __future__ import annotations

import errno
import socket
import struct
import threading

from kcore.client.socket_connection import ClientConnection, ConnectionFactory, SocketConnection
from kcore.common.time import SYSTEM_TIME, Time
from kcore.errors import InvalidRequest, UnsupportedVersion, for_code
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.headers import decode_response_header, encode_request_header
from kcore.protocol.messages import response_class
from kcore.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kcore.protocol.schema import Message

#: Largest reply that is taken unless the caller says otherwise: as socket.request.max.bytes.
DEFAULT_MAX_RESPONSE_BYTES = 100 << 20

_SIZE = struct.Struct(">i")
#: How an alert of TLS begins: with one a server answers what is not encrypted.
_TLS_ALERT = b"\x15\x03"
_UNSUPPORTED_VERSION = struct.pack(">h", UnsupportedVersion.code)
_SMALLEST_BUFFER = 4096
#: A buffer above this size is given back once a reply needs less than a sixteenth of it.
_LARGE_BUFFER = 1 << 20
_CLOSED_WITHOUT_AN_ANSWER = (
    "closed without an answer: the broker has stopped, or this port speaks TLS or SASL, which kcore does not: then "
    "give the port of a PLAINTEXT listener"
)
_API_KEYS = {int(key): key for key in ApiKey}


class _CutReply(ConnectionResetError):
    """The connection ended inside a reply."""


class BlockingSender:
    """Sends a request and blocks until its reply is here.  Connects when needed.

    One thread sends; close() may come from any thread, and ends a send that waits.  After an error the connection is
    closed, and the next send connects anew.  `records` of a reply are views of the receive buffer, no copies; the
    buffer is used again by a later send only when no view of it is left.

    request_timeout_ms, which may change between two requests, bounds connecting, sending and receiving together.  A
    reply of more than max_response_bytes is refused before any of it is read.
    Source: BrokerBlockingSender, Kafka 3.9.
    """

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str | None,
        *,
        request_timeout_ms: float,
        time: Time = SYSTEM_TIME,
        max_response_bytes: int = DEFAULT_MAX_RESPONSE_BYTES,
        receive_buffer_bytes: int = -1,
        connection_factory: ConnectionFactory = SocketConnection,
    ) -> None:
        """receive_buffer_bytes: SO_RCVBUF; -1 leaves it to the system.  connection_factory: what carries the bytes."""
        self.host = host
        self.port = port
        self._client_id = client_id
        self.request_timeout_ms = request_timeout_ms
        self._time = time
        self._max_response_bytes = max_response_bytes
        self._receive_buffer_bytes = receive_buffer_bytes
        self._new_connection = connection_factory
        self._lock = threading.Lock()  # of _connection, _is_sending and _is_closed
        self._connection: ClientConnection | None = None
        self._is_sending = False
        self._is_closed = False
        self._correlation_id = 0
        self._api_versions: dict[ApiKey, tuple[int, int]] | None = None
        self._is_kafka = False  # whether this address has ever answered more than ApiVersions
        self._buffer = bytearray(_SMALLEST_BUFFER)

    def send(self, request: Message, api_version: int) -> Message:
        """The reply, of the response class of the request's API.

        Raises OSError when the broker cannot be reached, breaks the connection off or does not answer in time
        (TimeoutError); ConnectionAbortedError once close() was called; InvalidRequest for a reply that is malformed,
        too large, or of another request; UnsupportedVersion and ValueError for a request that cannot be encoded, which
        then was not sent.
        """
        api_key = request.api_key
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        header = encode_request_header(api_key, api_version, correlation_id, self._client_id)
        body = request.encode(api_version)
        frame = b"".join((_SIZE.pack(len(header) + len(body)), header, body))
        with self._lock:
            self._check_open()
            self._is_sending = True
        try:
            left_ms: float = self.request_timeout_ms
            deadline_ms = self._time.hi_res_clock_ms() + left_ms
            connection = self._connection
            if connection is None:
                connection = self._connect(deadline_ms)
                left_ms = self._left_ms(deadline_ms)
            connection.set_timeout(left_ms)
            connection.send_all(frame)
            reply = self._receive_frame(connection, deadline_ms)
            self._is_kafka = self._is_kafka or api_key != ApiKey.API_VERSIONS
            return _decode_reply(reply, api_key, api_version, correlation_id)
        except (BlockingIOError, TimeoutError):
            self._disconnect()
            self._check_open()
            reason = f"{self.host}:{self.port}: no answer (timeout {self.request_timeout_ms / 1000:g} s)"
            raise TimeoutError(errno.ETIMEDOUT, reason) from None
        except (ConnectionResetError, BrokenPipeError) as error:
            is_kafka = self._is_kafka
            self._disconnect()
            self._check_open()
            if is_kafka or isinstance(error, _CutReply):
                raise
            # A listener with SASL answers ApiVersions, and closes at the first other request.
            raise ConnectionResetError(errno.ECONNRESET, f"{self}: {_CLOSED_WITHOUT_AN_ANSWER}") from error
        except BaseException:
            self._disconnect()
            self._check_open()
            raise
        finally:
            with self._lock:
                self._is_sending = False
                is_closed = self._is_closed
            if is_closed:
                self._disconnect()

    def api_versions(self) -> dict[ApiKey, tuple[int, int]]:
        """The versions that the broker serves, lowest and highest, of the APIs that we know.

        Asked once per connection.  Raises what send() raises, and the broker's error.
        """
        if self._api_versions is None:
            response = self._ask_api_versions(3)
            if response.error_code == UnsupportedVersion.code:
                response = self._ask_api_versions(0)
            if response.error_code:
                raise for_code(response.error_code)(f"{self}: ApiVersions")
            self._api_versions = {
                _API_KEYS[item.api_key]: (item.min_version, item.max_version)
                for item in response.api_keys
                if item.api_key in _API_KEYS
            }
        return self._api_versions

    def _ask_api_versions(self, api_version: int) -> ApiVersionsResponse:
        request = ApiVersionsRequest(client_software_name="kcore", client_software_version="1")
        response = self.send(request, api_version)
        assert isinstance(response, ApiVersionsResponse)
        return response

    def close(self) -> None:
        """Close the connection for good.  A send that waits raises ConnectionAbortedError.  Idempotent."""
        with self._lock:
            self._is_closed = True
            connection = self._connection
            if connection is not None and self._is_sending:
                # The thread that sends closes it: a descriptor closed here could be another file's by its next call.
                connection.shutdown()
                return
        self._disconnect()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionAbortedError(errno.ECONNABORTED, f"{self}: closed")

    def _connect(self, deadline_ms: float) -> ClientConnection:
        errors = []
        for family, kind, protocol, _, address in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            connection = self._new_connection(sock, self.host)
            with self._lock:
                is_closed = self._is_closed
                if not is_closed:
                    self._connection = connection
            if is_closed:
                connection.close()
                self._check_open()
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                if self._receive_buffer_bytes > 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)
                connection.connect(address, self._left_ms(deadline_ms))
                return connection
            except OSError as error:
                self._disconnect()
                self._check_open()
                errors.append(error)
        if not errors or isinstance(errors[0], TimeoutError):
            raise errors[0] if errors else ConnectionError(f"{self}: no address")
        reason = f"{self.host}:{self.port}: {errors[0].strerror or errors[0]}"
        raise type(errors[0])(errors[0].errno, reason) from errors[0]

    def _left_ms(self, deadline_ms: float) -> float:
        """Above 0.  Raises BlockingIOError, as a system call does that has run into its timeout."""
        left_ms = deadline_ms - self._time.hi_res_clock_ms()
        if left_ms <= 0:
            raise BlockingIOError
        return left_ms

    def _disconnect(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            self._api_versions = None
        if connection is not None:
            connection.close()

    def _receive_frame(self, connection: ClientConnection, deadline_ms: float) -> memoryview:
        """A reply without its size.  A small one costs one system call, a large one two."""
        buffer = self._free_buffer()
        received = self._receive_into(connection, memoryview(buffer), _SIZE.size, deadline_ms)
        (size,) = _SIZE.unpack_from(buffer)
        if not 4 <= size <= self._max_response_bytes:
            reason = f"reply of {size} bytes, expected 4 to {self._max_response_bytes}"
            raise InvalidRequest(f"{self}: {_other_protocol(size) or reason}")
        end = _SIZE.size + size
        if received > end:
            raise InvalidRequest(f"{self}: {received - end} bytes after a reply, with no request in flight")
        if end > len(buffer) or (len(buffer) > _LARGE_BUFFER and end < len(buffer) // 16):
            capacity = max(_SMALLEST_BUFFER, 1 << (end - 1).bit_length())
            self._buffer = bytearray(min(capacity, max(end, self._max_response_bytes)))
            self._buffer[:received] = memoryview(buffer)[:received]
            buffer = self._buffer
        frame = memoryview(buffer)[:end]
        if received < end:
            self._receive_into(connection, frame[received:], end - received, deadline_ms, received)
        return frame[_SIZE.size :]

    def _receive_into(
        self, connection: ClientConnection, target: memoryview, at_least: int, deadline_ms: float, before: int = 0
    ) -> int:
        """How many bytes came, at_least so many: one system call, unless a signal or the timeout ends it early.
        before: how many bytes of the reply are there already."""
        wait_for_all = at_least == len(target)
        received = position = connection.receive_into(target, wait_for_all)
        while position < at_least:
            if received == 0:
                kind = _CutReply if before + position else ConnectionResetError
                raise kind(errno.ECONNRESET, f"{self}: closed by the broker, {at_least - position} bytes missing")
            connection.set_timeout(self._left_ms(deadline_ms))
            received = connection.receive_into(target[position:], wait_for_all)
            position += received
        return position

    def _free_buffer(self) -> bytearray:
        """A buffer without a memoryview on it: the last one if possible."""
        if _has_views(self._buffer):
            self._buffer = bytearray(_SMALLEST_BUFFER)
        return self._buffer

    def __repr__(self) -> str:
        return f"BlockingSender({self})"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def _other_protocol(size: int) -> str | None:
    """What an impossible size says of the server, if it is the start of an answer of another protocol."""
    start = _SIZE.pack(size)
    if start == b"HTTP":
        return "this is no Kafka broker, it answers HTTP: give the port of a Kafka listener"
    if start[:2] == _TLS_ALERT:
        return "this listener answers TLS, which kcore does not speak: give the port of a PLAINTEXT listener"
    return None


def _has_views(buffer: bytearray) -> bool:
    try:
        buffer.append(0)  # refused while a memoryview of it exists
    except BufferError:
        return True
    del buffer[-1]
    return False


def _decode_reply(frame: memoryview, api_key: ApiKey, api_version: int, correlation_id: int) -> Message:
    answered_id, position = decode_response_header(frame, api_key, api_version)
    if answered_id != correlation_id:
        raise InvalidRequest(f"{api_key.name}: reply with correlation id {answered_id}, expected {correlation_id}")
    if api_key == ApiKey.API_VERSIONS and frame[position : position + 2] == _UNSUPPORTED_VERSION:
        api_version = 0  # as any client can read (KIP-511)
    return response_class(api_key).decode(frame, api_version, position)
