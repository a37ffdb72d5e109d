"""What carries a BlockingSender's bytes, below the framing: a blocking TCP connection."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any, Protocol

_TIMEVAL = struct.Struct("@ll")


class ClientConnection(Protocol):
    """One connection to a broker.  One thread uses it; shutdown() may come from another, also during connect().

    Made from a socket that is not connected, which it owns, and the name of the broker's host.  All raise OSError; what
    takes too long raises TimeoutError or BlockingIOError.
    """

    def connect(self, address: Any, timeout_ms: float) -> None:
        """Connect, and do all that comes before the first request: a handshake, an authentication."""

    def set_timeout(self, timeout_ms: float) -> None:
        """How long each of the following calls may wait."""

    def send_all(self, data: bytes) -> None: ...

    def receive_into(self, target: memoryview, wait_for_all: bool) -> int:
        """Bytes received, 0 at the end.  wait_for_all: fewer than the target holds are of no use yet, and may be given
        nevertheless."""

    def shutdown(self) -> None:
        """End both directions, so that a call that waits ends.  Raises nothing."""

    def close(self) -> None: ...


ConnectionFactory = Callable[[socket.socket, str], ClientConnection]


class SocketConnection:
    """A plain one, with the kernel's timeouts: only so does one recv() wait for a whole reply."""

    def __init__(self, sock: socket.socket, host: str) -> None:
        self._socket = sock
        self._timeout_ms: float | None = None

    def connect(self, address: Any, timeout_ms: float) -> None:
        self._socket.settimeout(timeout_ms / 1000)
        self._socket.connect(address)
        self._socket.setblocking(True)

    def set_timeout(self, timeout_ms: float) -> None:
        if timeout_ms == self._timeout_ms:
            return
        self._timeout_ms = timeout_ms
        timeval = _TIMEVAL.pack(*divmod(max(1, int(timeout_ms * 1000)), 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)

    def send_all(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive_into(self, target: memoryview, wait_for_all: bool) -> int:
        return self._socket.recv_into(target, 0, socket.MSG_WAITALL if wait_for_all else 0)

    def shutdown(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # not connected any more

    def close(self) -> None:
        self._socket.close()
