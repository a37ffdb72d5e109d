"""GET /metrics, /healthz and /readyz: what monitoring systems ask a broker over HTTP.

/healthz: 200 while the process answers, also while it loads its logs.  /readyz: 200 while clients and other brokers can
use the broker; else 503, with the reason.  /metrics: what Prometheus reads, of the broker and of its process.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from kcore.common.optional_packages import missing_package
from kcore.common.text import plain_error
from kcore.server.monitoring.prometheus_text import CONTENT_TYPE

try:
    from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
except ImportError as error:
    raise missing_package("kcore.monitoring.address", "metrics", error) from error

logger = logging.getLogger(__name__)

#: How long a client may take for its request, and for reading the answer.
CLIENT_TIMEOUT_S = 10.0
_TEXT = "text/plain; charset=utf-8"


class Reports(NamedTuple):
    """What the endpoint asks the broker, on a thread of its own.  metrics: as prometheus_text() returns them."""

    metrics: Callable[[], str]
    why_not_ready: Callable[[], str | None]


class HttpEndpoint:
    """It has bound its port when it is made; start() once, then shutdown() once.  Raises OSError."""

    def __init__(self, host: str, port: int, reports: Reports) -> None:
        self._process = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._process)
        self._reports = reports
        self._server = _Server(host, port, self._answer)
        self._thread = threading.Thread(target=self._server.serve_forever, name=f"kcore-http-{self.port}", daemon=True)

    @property
    def port(self) -> int:
        port: int = self._server.server_address[1]
        return port

    def start(self) -> None:
        self._thread.start()

    def shutdown(self) -> None:
        """Returns when no request is answered any more."""
        self._server.shutdown()
        self._thread.join()
        self._server.end()

    def _answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """The status, content type and body."""
        if path == "/metrics":
            body = self._reports.metrics().encode() + generate_latest(self._process)
            return HTTPStatus.OK, CONTENT_TYPE, body
        if path == "/healthz":
            return HTTPStatus.OK, _TEXT, b"ok\n"
        if path == "/readyz":
            reason = self._reports.why_not_ready()
            if reason is None:
                return HTTPStatus.OK, _TEXT, b"ok\n"
            return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{reason}\n".encode()
        return HTTPStatus.NOT_FOUND, _TEXT, b"not here: /metrics, /healthz, /readyz\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # server_close() waits for them

    def __init__(self, host: str, port: int, answer: Callable[[str], tuple[HTTPStatus, str, bytes]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.answer = answer
        self._connections: set[socket.socket] = set()
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def end(self) -> None:
        """Close the port, and the connections of clients that have not read their answers."""
        for connection in list(self._connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has gone
        self.server_close()

    def server_bind(self) -> None:
        # HTTPServer's own looks the name of the address up, which may ask a name server.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.exception("a request of %s", client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = CLIENT_TIMEOUT_S
    server_version, sys_version = "kcore", ""

    def do_GET(self) -> None:
        self._respond(with_body=True)

    def do_HEAD(self) -> None:
        self._respond(with_body=False)

    def _respond(self, *, with_body: bool) -> None:
        status, content_type, body = self.server.answer(self.path.partition("?")[0])
        try:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)
        except OSError as error:
            logger.info("%s went away: %s", self.client_address[0], plain_error(error))

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("%s: " + format, self.client_address[0], *args)


def serve_monitoring(host: str, port: int, reports: Reports, parts: ExitStack) -> int:
    """Answer until `parts` is closed; the port.  Raises OSError."""
    endpoint = HttpEndpoint(host, port, reports)
    endpoint.start()
    parts.callback(endpoint.shutdown)
    return endpoint.port
