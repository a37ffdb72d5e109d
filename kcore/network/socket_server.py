"""SocketServer: the broker's listening sockets, and who may connect.  Its processors (processor.py) read and write."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from kcore.common.text import plain_error
from kcore.common.time import SYSTEM_TIME, Time
from kcore.network.authenticator import AuthenticatingHandler, identify_by_transport
from kcore.network.channel_builder import ChannelBuilder, channel_builder_of
from kcore.network.connection import Connection, Request
from kcore.network.listener import ANONYMOUS, ConnectionContext, Listener, SecurityProtocol
from kcore.network.poller import WatchedPoller
from kcore.network.processor import Processor

logger = logging.getLogger(__name__)

#: How long accepting rests when the process has no file descriptor left.
ACCEPT_BACKOFF_MS = 100

Handler = Callable[[Request], None]

#: One listener on this machine, on any free port.
LOCAL_LISTENER = Listener("PLAINTEXT", SecurityProtocol.PLAINTEXT, "127.0.0.1", 0)


class SocketServer:
    """Listens on some addresses and calls a handler with each request, on the thread that read it.

    The constructor takes the ports; nothing is read before start(handler).  The handler answers through the Request,
    at once or later.  Thread-safe.  Lifetime: start() once, then shutdown(): requests that were not answered by then
    are dropped, and every descriptor is closed.
    """

    def __init__(
        self,
        *,
        listeners: Sequence[Listener] = (LOCAL_LISTENER,),
        name: str = "broker",
        time: Time = SYSTEM_TIME,
        num_network_threads: int = 1,
        socket_request_max_bytes: int = 100 << 20,
        socket_send_buffer_bytes: int = -1,
        socket_receive_buffer_bytes: int = -1,
        socket_listen_backlog_size: int = 50,
        max_connections: int = 2**31 - 1,
        max_connections_per_ip: int = 2**31 - 1,
        connections_max_idle_ms: int = 600_000,
        queued_max_request_bytes: int = -1,
        channel_builder: Callable[[Listener], ChannelBuilder] = channel_builder_of,
    ) -> None:
        self.name = name
        self.time = time
        self.connections_max_idle_ms = connections_max_idle_ms
        self.queued_max_bytes = queued_max_request_bytes
        self.starved: set[Processor] = set()
        self.accept_paused = False
        self._request_max_bytes = socket_request_max_bytes
        self._send_buffer_bytes = socket_send_buffer_bytes
        self.max_connections = max_connections
        self.max_connections_per_ip = max_connections_per_ip
        #: Address of a new connection -> ms until it is closed unserved, 0 if it is served.  On the first processor.
        self.connection_throttle_ms: Callable[[str], int] = lambda host: 0
        self._per_ip: Counter[str] = Counter()
        self._per_ip_lock = threading.Lock()
        self._next = 0
        self._started = False
        self._closed = False
        #: As given, with the ports that they have.
        self.listeners: list[Listener] = []
        self.processors: list[Processor] = []
        self._listening: list[socket.socket] = []
        try:
            for listener in listeners:
                sock = _listening_socket(
                    listener.host, listener.port, socket_listen_backlog_size, socket_receive_buffer_bytes
                )
                self._listening.append(sock)
                self.listeners.append(listener._replace(port=sock.getsockname()[1]))
            for index in range(num_network_threads):
                self.processors.append(Processor(self, index))
        except BaseException:
            self._close_all()
            raise
        self._channel_builders = [channel_builder(listener) for listener in self.listeners]
        _servers.add(self)

    def start(self, handler: Handler) -> None:
        for sock, listener, builder in zip(self._listening, self.listeners, self._channel_builders, strict=True):
            connect = partial(self._new_connection, builder, handler)
            self.processors[0].listen(sock.fileno(), partial(self._accept, sock, listener, connect))
        self._started = True
        for processor in self.processors:
            processor.start()

    def shutdown(self) -> None:
        """Stop reading and answering, then close every socket.  Returns when the threads have ended."""
        if self._closed:
            return
        for processor in self.processors:
            processor.initiate_shutdown()
        if self._started:
            for processor in self.processors:
                processor.await_shutdown()
        self._close_all()

    @property
    def port(self) -> int:
        """Of the first listener."""
        return self.listeners[0].port

    @property
    def connection_count(self) -> int:
        return sum(processor.connection_count for processor in self.processors)

    def limit_connections(self, max_connections: int, max_connections_per_ip: int) -> None:
        """Accept up to these numbers of connections from now on; those that are open stay open."""
        self.max_connections = max_connections
        self.max_connections_per_ip = max_connections_per_ip
        # Always, because the first processor may be about to set accept_paused by the old limit.
        self.processors[0].wake_up()

    def watch_pollers(self) -> list[WatchedPoller]:
        """For tests: what the threads wait with from their next turns on."""
        return [processor.watch_poller() for processor in self.processors]

    def may_begin_request(self) -> bool:
        """Whether queued.max.request.bytes leaves room.  A request that began is always read to its end."""
        return (
            self.queued_max_bytes <= 0
            or sum(processor.queued_bytes for processor in self.processors) < self.queued_max_bytes
        )

    def on_closed(self, connection: Connection) -> None:
        self._forget(connection.peer_host)
        if self.accept_paused:
            self.processors[0].wake_up()

    def _forget(self, host: str) -> None:
        """One connection of the host has ended."""
        with self._per_ip_lock:
            self._per_ip[host] -= 1
            if not self._per_ip[host]:
                del self._per_ip[host]

    def _accept(
        self,
        listening: socket.socket,
        listener: Listener,
        connect: Callable[[socket.socket, ConnectionContext], Connection],
    ) -> None:
        """Take what the kernel has accepted, a few at a time.  Runs on the first processor's thread."""
        first = self.processors[0]
        for _ in range(32):
            if self.connection_count >= self.max_connections:
                self.accept_paused = True
                first.pause_accept()
                return
            try:
                sock, address = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    logger.error(
                        "cannot accept a connection: %s; trying again in %d ms", plain_error(error), ACCEPT_BACKOFF_MS
                    )
                    first.pause_accept(ACCEPT_BACKOFF_MS)
                    return
                continue  # that one was gone before it was taken
            host = address[0]
            throttle_ms = self.connection_throttle_ms(host)
            if throttle_ms > 0:
                logger.debug("%s: refused in %d ms, it opens connections faster than its quota", host, throttle_ms)
                first.close_later(sock, throttle_ms)
                continue
            with self._per_ip_lock:
                allowed = self._per_ip[host] < self.max_connections_per_ip
                if allowed:
                    self._per_ip[host] += 1
            if not allowed:
                logger.info("%s: refused, it has %d connections already", host, self.max_connections_per_ip)
                sock.close()
                continue
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                if self._send_buffer_bytes >= 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_bytes)
            except OSError:
                pass  # it is gone already; reading will say so
            context = ConnectionContext(listener.name, listener.security_protocol, ANONYMOUS, host, address[1])
            try:
                connection = connect(sock, context)
            except Exception:
                logger.exception("%s: its connection to %s cannot be made", host, listener.name)
                sock.close()
                self._forget(host)
                continue
            processor = self.processors[self._next % len(self.processors)]
            self._next += 1
            processor.hand_over(connection)

    def _new_connection(
        self, builder: ChannelBuilder, handler: Handler, sock: socket.socket, context: ConnectionContext
    ) -> Connection:
        connection = Connection(builder.new_transport(sock), context, self._request_max_bytes)
        if builder.new_authenticator is not None:
            authenticator = builder.new_authenticator(context)
            connection.max_request_bytes = authenticator.max_receive_size
            connection.handler = AuthenticatingHandler(authenticator, handler, self._request_max_bytes, self.time)
        elif connection.is_ready:
            connection.handler = handler
        else:
            connection.handler = partial(identify_by_transport, handler=handler)
        return connection

    def _close_all(self) -> None:
        self._closed = True
        for sock in self._listening:
            sock.close()
        for processor in self.processors:
            processor.close()
        _servers.discard(self)


def _listening_socket(host: str, port: int, backlog: int, receive_buffer_bytes: int) -> socket.socket:
    # As bytes: for a str, Python would load its codec for international names, which takes 2 ms of a broker's start.
    name = host.encode() if host.isascii() else host
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            name or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if receive_buffer_bytes >= 0:
            # Accepted sockets inherit it; set later it could not widen the window any more.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        listener.bind(address)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}") from error
    return listener


_servers: weakref.WeakSet[SocketServer] = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked child has the sockets but not the threads: they would hide from peers that the parent has closed one.

    Closing a descriptor does not touch the parent's epoll registration; unregistering it would.
    """
    for server in list(_servers):
        server._close_all()


os.register_at_fork(after_in_child=_close_in_child)
