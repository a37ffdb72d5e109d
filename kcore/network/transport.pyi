"""What carries a connection's bytes, below the framing; its methods are C functions that Connection calls."""

import socket

class ConnectionClosed(Exception):
    """The peer is gone, or has closed its side."""

class Transport:
    """The bytes of one connected, non-blocking socket.  Used by one thread."""

    sock: socket.socket
    fd: int  # -1 once it is closed
    sends_mappings: bool
    def __init__(self, sock: socket.socket) -> None: ...
    def close(self) -> None: ...
