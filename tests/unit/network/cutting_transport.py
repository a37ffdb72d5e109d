"""A transport that has all that makes TLS difficult: a handshake, bytes that the socket no longer has, and cuts."""

import socket
from collections.abc import Iterator

from kcore.network.listener import KafkaPrincipal
from kcore.network.transport import ConnectionClosed, PythonTransport

_ENCRYPTED = bytes(byte ^ 0x5A for byte in range(256))

#: Who the handshake says that the peer is.
PEER = KafkaPrincipal("User", "CN=peer")


def encrypted(data: bytes) -> bytes:
    """And back."""
    return bytes(data).translate(_ENCRYPTED)


class CuttingTransport(PythonTransport):
    """Takes all that the socket has at the first read, and gives and takes as many bytes at a time as `cuts` says.

    script: the handshake, a byte of ours for each w and a byte of the peer's for each r.
    cuts: the size of the next read or write at most; 0: not now; -1, for a read: not before the socket is writable.
    """

    def __init__(self, sock: socket.socket, script: str, cuts: Iterator[int]) -> None:
        self._script = script
        self._cuts = cuts
        self._plaintext = b""
        self._begin_step()

    def _begin_step(self) -> None:
        self.wants_write = self._script.startswith("w")
        self.is_ready = not self._script
        if self.is_ready:
            self.peer_principal = PEER

    def handshake(self) -> None:
        """One step of it."""
        try:
            if self.wants_write:
                self.sock.send(b"w")
            elif not self.sock.recv(1):
                raise ConnectionClosed("end of stream in the handshake")
        except BlockingIOError:
            return
        self._script = self._script[1:]
        self._begin_step()

    def read_into(self, target: memoryview) -> int:
        if not self._plaintext:
            try:
                self._plaintext = encrypted(self.sock.recv(1 << 20))
            except BlockingIOError:
                return -1
            if not self._plaintext:
                raise ConnectionClosed("end of stream")
        size = min(next(self._cuts), len(target), len(self._plaintext))
        self.wants_write = size < 0
        size = max(size, 0)
        target[:size] = self._plaintext[:size]
        self._plaintext = self._plaintext[size:]
        self.has_buffered = bool(self._plaintext)
        return size or -1

    def write(self, data: memoryview) -> int:
        size = min(next(self._cuts), len(data))
        if size <= 0:
            return -1
        try:
            return self.sock.send(encrypted(data[:size]))
        except BlockingIOError:
            return -1


def shake_hands(sock: socket.socket, script: str) -> None:
    """The peer's side, on a blocking socket."""
    for step in script:
        if step == "w":
            assert sock.recv(1) == b"w"
        else:
            sock.sendall(b"r")
