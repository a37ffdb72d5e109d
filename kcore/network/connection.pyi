"""Framing, both ways, on one connection; a Transport below it carries the bytes."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kcore.network.listener import ConnectionContext, KafkaPrincipal
from kcore.network.transport import ConnectionClosed as ConnectionClosed
from kcore.network.transport import Transport

class FileChunk(Protocol):
    """What a response carries besides bytes: kcore.record.file_records.FileRecords."""

    @property
    def size_in_bytes(self) -> int: ...
    def send_to(self, sock_fd: int, offset: int = ...) -> int: ...

Chunk = bytes | bytearray | memoryview | FileChunk

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
    def respond(self, chunks: Sequence[Chunk], throttle_ms: float = ...) -> None:
        """chunks: a whole frame, its size first.  throttle_ms: how long the connection is mute once it has left."""

    def respond_nothing(self, throttle_ms: float = ...) -> None: ...
    def refuse(self, chunks: Sequence[Chunk], delay_ms: float, reason: object) -> None:
        """On the network thread: chunks leave after delay_ms, then the connection ends."""

    def close_connection(self, reason: object) -> None: ...

class Connection:
    """One accepted socket; used by its processor's thread only."""

    context: ConnectionContext
    handler: Callable[[Request], None]
    max_request_bytes: int
    peer_host: str  # context.client_address
    throttle_ms: float | None
    @property
    def fd(self) -> int: ...
    buffered_bytes: int
    request: Request | None
    processor: Any
    last_active_ms: float
    interest: int
    in_flight_bytes: int
    def __init__(self, transport: Transport, context: ConnectionContext, max_request_bytes: int) -> None: ...
    def receive(self, scratch: bytearray) -> int: ...  # complete requests that wait
    def peer_has_closed(self) -> bool: ...
    def next_frame(self) -> bytearray | None: ...
    # Of its transport: see there.
    @property
    def is_ready(self) -> bool: ...
    @property
    def wants_write(self) -> bool: ...
    @property
    def has_buffered(self) -> bool: ...
    @property
    def peer_principal(self) -> KafkaPrincipal | None: ...
    @property
    def mid_request(self) -> bool: ...
    @property
    def has_output(self) -> bool: ...
    def send(self, chunks: Sequence[Chunk]) -> bool: ...  # True when all of it has left
    def flush(self) -> bool: ...
    def close(self) -> None: ...
