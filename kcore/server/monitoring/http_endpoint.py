"""GET /metrics, /healthz and /readyz: what monitoring systems ask a broker over HTTP.

/healthz: 200 while the process answers, also while it loads its logs.  /readyz: 200 while clients and other brokers can
use the broker; else 503, with the reason.  /metrics: what Prometheus reads, of the broker and of its process.
"""

from __future__ import annotations

import logging
import selectors
import socket
from collections.abc import Callable
from contextlib import ExitStack
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from kcore.common.optional_packages import missing_package
from kcore.common.shutdownable_thread import ShutdownableThread
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


class HttpEndpoint(ShutdownableThread):
    """A thread that takes connections; it sleeps while there is none.  It has bound its port when it is made, which
    raises OSError.  Lifetime: start(), then shutdown()."""

    def __init__(self, host: str, port: int, reports: Reports) -> None:
        self._process = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._process)
        self._reports = reports
        self._server = _Server(host, port, self._answer)
        self.port: int = self._server.server_address[1]
        super().__init__(f"kcore-http-{self.port}")
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for end in (self._server, self._wake_reader):
            self._selector.register(end, selectors.EVENT_READ)

    def do_work(self) -> None:
        self._selector.select()
        if not self.is_running:
            return
        self._server.handle_request()
        if self._server.accept_error is not None:
            logger.warning("%s: %s", self.name, plain_error(self._server.accept_error))
            self._server.accept_error = None
            self.pause(100)  # no descriptor is left, perhaps

    def wake_up(self) -> None:
        try:
            self._wake_writer.send(b"\0")
        except OSError:
            pass  # closed, so the thread has ended

    def shutdown(self) -> None:
        """Returns when no request is answered any more."""
        super().shutdown()
        self._server.end()
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()

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
    timeout = 0  # of handle_request(), which is called for a connection that waits

    def __init__(self, host: str, port: int, answer: Callable[[str], tuple[HTTPStatus, str, bytes]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.answer = answer
        self._connections: set[socket.socket] = set()
        #: Why the last connection was not taken.
        self.accept_error: OSError | None = None
        super().__init__((host, port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            self.accept_error = error
            raise

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
    try:
        endpoint = HttpEndpoint(host, port, reports)
    except OSError as error:
        address = f"kcore.monitoring.address {host}:{port}"
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror or error}") from error
    endpoint.start()
    parts.callback(endpoint.shutdown)
    return endpoint.port
