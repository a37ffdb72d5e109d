"""A client that sends exactly what a test needs: one connection, any bytes, any version."""

import socket
import struct

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.headers import decode_response_header, encode_request_header
from kcore.protocol.messages import response_class


class Client:
    """A socket to a broker.  Not thread-safe."""

    def __init__(self, broker, client_id="test"):
        self.client_id = client_id
        self.sock = socket.create_connection(("127.0.0.1", broker.port), timeout=60)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.correlation_id = 0

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.sock.close()

    def send_bytes(self, data):
        self.sock.sendall(data)

    def send_frame(self, body):
        self.send_bytes(struct.pack(">i", len(body)) + body)

    def send(self, request, version):
        self.correlation_id += 1
        header = encode_request_header(ApiKey(request.api_key), version, self.correlation_id, self.client_id)
        self.send_frame(header + request.encode(version))

    def receive_frame(self):
        size = struct.unpack(">i", self._read(4))[0]
        return self._read(size)

    def receive(self, api_key, version):
        frame = self.receive_frame()
        correlation_id, position = decode_response_header(frame, ApiKey(api_key), version)
        assert correlation_id == self.correlation_id
        return response_class(ApiKey(api_key)).decode(frame, version, position)

    def ask(self, request, version):
        self.send(request, version)
        return self.receive(request.api_key, version)

    def is_closed(self):
        """Waits for the broker to close the connection; False if it sends something instead."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True

    def _read(self, size):
        data = bytearray()
        while len(data) < size:
            chunk = self.sock.recv(size - len(data))
            if not chunk:
                raise EOFError(f"{len(data)} of {size} bytes")
            data += chunk
        return bytes(data)
