"""Connections of a client as TLS makes them."""

import itertools
import socket

from tests.unit.network.cutting_transport import encrypted, shake_hands


class SslLikeConnection:
    """Has what an SSLSocket has, and nothing else: timeouts of its own instead of the kernel's, reads of any size, and
    the descriptor that it takes from the socket that it was given."""

    def __init__(self, sock, host, cuts=(7,)):
        self._socket = sock
        self._cuts = itertools.cycle(cuts)

    def connect(self, address, timeout_ms):
        self._socket.settimeout(timeout_ms / 1000)
        self._socket.connect(address)
        self._socket = socket.socket(fileno=self._socket.detach())
        self.set_timeout(timeout_ms)

    def set_timeout(self, timeout_ms):
        self._socket.settimeout(timeout_ms / 1000)

    def send_all(self, data):
        self._socket.sendall(data)

    def receive_into(self, target, wait_for_all):
        return self._socket.recv_into(target, min(next(self._cuts), len(target)))

    def shutdown(self):
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self):
        self._socket.close()


class EncryptingConnection(SslLikeConnection):
    """The other end of a CuttingTransport."""

    def __init__(self, sock, host, script, cuts):
        super().__init__(sock, host, cuts)
        self._script = script

    def connect(self, address, timeout_ms):
        super().connect(address, timeout_ms)
        shake_hands(self._socket, self._script)

    def send_all(self, data):
        super().send_all(encrypted(data))

    def receive_into(self, target, wait_for_all):
        received = super().receive_into(target, wait_for_all)
        target[:received] = encrypted(target[:received])
        return received
