"""What carries a connection's bytes, below the framing; its methods are C functions that Connection calls."""

import socket

from kcore.network.listener import KafkaPrincipal

class ConnectionClosed(Exception):
    """The peer is gone, or has closed its side."""

class Transport:
    """The bytes of one connected, non-blocking socket.  Used by one thread."""

    sock: socket.socket
    fd: int  # -1 once it is closed
    sends_mappings: bool
    is_ready: bool  # the handshake is done
    wants_write: bool  # reading goes on once the socket is writable
    has_buffered: bool  # bytes are here that no poll reports
    peer_principal: KafkaPrincipal | None  # as the handshake has proved
    def __init__(self, sock: socket.socket) -> None: ...
    def close(self) -> None: ...

class PythonTransport(Transport):
    """A transport whose bytes pass through Python, as TLS does: a subclass has the three methods and sets the fields.

    Not ready at first.  All three raise ConnectionClosed or OSError, and keep no memoryview; after any other exception
    the connection is closed too."""

    def handshake(self) -> None:
        """Go on with it as far as the socket allows; sets is_ready or wants_write."""

    def read_into(self, target: memoryview) -> int:
        """Bytes read; -1 when there are none yet.  ConnectionClosed at the end.  Sets has_buffered."""

    def write(self, data: memoryview) -> int:
        """Bytes taken; -1 when the socket is full: the next call then has the same data."""
