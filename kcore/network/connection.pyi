"""Framing, both ways, on one non-blocking socket."""

import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

class FileChunk(Protocol):
    """What a response carries besides bytes: kcore.record.file_records.FileRecords."""

    @property
    def size_in_bytes(self) -> int: ...
    def send_to(self, sock_fd: int, offset: int = ...) -> int: ...

Chunk = bytes | bytearray | memoryview | FileChunk

class ConnectionClosed(Exception): ...
class InvalidReceive(Exception): ...

class Request:
    """One request on its way through the broker; answered exactly once, from any thread."""

    #: Called on the processor's thread when the connection closes before the answer.
    on_abandoned: Callable[[Request], None] | None
    def __init__(self, connection: Connection, buffer: bytearray, processor: Any) -> None: ...
    @property
    def buffer(self) -> bytearray: ...
    @property
    def connection(self) -> Connection: ...
    @property
    def is_done(self) -> bool: ...
    def respond(self, chunks: Sequence[Chunk]) -> None: ...  # a whole frame, its size first
    def respond_nothing(self) -> None: ...
    def close_connection(self, reason: object) -> None: ...

class Connection:
    """One accepted socket; used by its processor's thread only."""

    sock: socket.socket
    peer_host: str
    fd: int
    buffered_bytes: int
    request: Request | None
    processor: Any
    last_active_ms: float
    interest: int
    in_flight_bytes: int
    def __init__(self, sock: socket.socket, peer_host: str, max_request_bytes: int) -> None: ...
    def receive(self, scratch: bytearray) -> int: ...  # complete requests that wait
    def peer_has_closed(self) -> bool: ...
    def next_frame(self) -> bytearray | None: ...
    @property
    def mid_request(self) -> bool: ...
    @property
    def has_output(self) -> bool: ...
    def send(self, chunks: Sequence[Chunk]) -> bool: ...  # True when all of it has left
    def flush(self) -> bool: ...
    def close(self) -> None: ...
