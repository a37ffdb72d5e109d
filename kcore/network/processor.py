"""Processor: the thread that owns connections, reads their requests and writes the responses.

It calls the handler for each request on the spot.  No queue stands between: under the GIL a hand-over costs more than
it gives (docs/decisions/0003-requests-run-on-the-network-thread.md).  A handler may keep its request and answer later,
from any thread: what waits for a condition is parked in a purgatory, what waits for a disk or takes long runs on a
thread of the broker's pool (docs/decisions/0009-where-a-request-runs.md).  The answer then travels back over the
processor's queue.

One connection has one request in flight, and the next one waits (in the kernel, or in the connection if it came in the
same read).  That keeps responses in request order, as Kafka does by muting.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from kcore.common.shutdownable_thread import ShutdownableThread
from kcore.common.time import Time
from kcore.network.connection import Connection, ConnectionClosed, InvalidReceive, Request
from kcore.network.poller import HANGUP, READ, WRITE, Poller, WatchedPoller, new_poller
from kcore.network.throttled_sockets import ThrottledSockets

if TYPE_CHECKING:
    from kcore.network.connection import Chunk

logger = logging.getLogger(__name__)

#: What one read takes; requests up to this size come with one system call.
SCRATCH_BYTES = 65536
#: Requests of one connection that are handled before the others get their turn.
TURN_REQUESTS = 16
#: A pipelined request was read without polling its connection; after so long without an answer it is polled again.
POLL_AGAIN_MS = 100
#: The throttle_ms of a connection that is closed once its response has left.
FOR_EVER = math.inf


class ServerOfProcessors(Protocol):
    """What the processors of one server share: a SocketServer.

    starved: processors with connections that may not begin a request before queued.max.request.bytes allows it.
    """

    name: str
    time: Time
    connections_max_idle_ms: int
    queued_max_bytes: int
    starved: set[Processor]
    accept_paused: bool

    def may_begin_request(self) -> bool: ...

    def on_closed(self, connection: Connection) -> None: ...


class Processor(ShutdownableThread):
    """A loop over its own sockets.

    Only complete(), abort(), hand_over(), wake_up(), the numbers of connections and queued_bytes may be used from other
    threads.
    """

    def __init__(self, server: ServerOfProcessors, index: int) -> None:
        super().__init__(f"kcore-network-{server.name}-{index}")
        self._server = server
        self._time = server.time
        self._poller: Poller = new_poller()
        self._connections: dict[int, Connection] = {}
        self._scratch = bytearray(SCRATCH_BYTES)
        #: (connection, response or None) that other threads, or other connections' requests, have completed.
        self._completions: deque[tuple[Connection, Sequence[Chunk] | None]] = deque()
        self._incoming: deque[Connection] = deque()
        #: Connections with requests that wait although no thread is at work on one.
        self._backlog: deque[Connection] = deque()
        #: Connections with more to read, as far as we know, that no poll reports.  An ordered set.
        self._unread: dict[Connection, None] = {}
        #: Connections that are not polled, each with the request that was in flight then.
        self._unpolled: dict[Connection, Request] = {}
        self._poll_again_ms = -1.0
        #: Connections that may not begin a request before queued.max.request.bytes allows it.
        self._starved: set[Connection] = set()
        #: (when it ends, order, connection, None) of connections that are throttled, as a heap; of those whose end is
        #: delayed, with the last response.
        self._muted: list[tuple[float, int, Connection, Sequence[Chunk] | None]] = []
        self._mute_order = itertools.count()
        self._current: Connection | None = None
        self._ident = -1
        self._idle_check_ms = self._turn_began_ms = 0.0
        self.queued_bytes = 0
        #: Descriptor of a listening socket -> what takes its connections.
        self._accepts: dict[int, Callable[[], None]] = {}
        self._accept_again_ms = -1.0
        self._throttled = ThrottledSockets()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._wake_pending = False
        self._poller.register(self._wake_reader.fileno(), READ)

    # -- what other threads may call ------------------------------------------------------------------

    def complete(self, connection: Connection, chunks: Sequence[Chunk] | None) -> None:
        """Send a response, or None for none, and let the connection's next request come.

        On the processor's own thread it leaves at once: a follower that an append has woken writes while the append's
        thread goes on.  What another connection has sent meanwhile is handled at the end of the turn.
        """
        if threading.get_ident() != self._ident:
            self._completions.append((connection, chunks))
            self.wake_up()
            return
        self._answer(connection, chunks)
        if self._current is not connection and connection.buffered_bytes:
            self._backlog.append(connection)

    def abort(self, connection: Connection, reason: object) -> None:
        """Close a connection instead of answering it."""
        if threading.get_ident() == self._ident:
            self._close(connection, reason, level=logging.WARNING)
        else:
            # Closing is the processor's own business; an impossible response makes it do so.
            self._completions.append((connection, [_Abort(reason)]))
            self.wake_up()

    def refuse(self, connection: Connection, chunks: Sequence[Chunk], delay_ms: float, reason: object) -> None:
        """Send a response (empty: none) after delay_ms, then close the connection.  On the processor's own thread."""
        logger.info("%s: %s", connection.peer_host, reason)
        self.queued_bytes -= connection.in_flight_bytes
        connection.in_flight_bytes = 0
        self._mute(connection, delay_ms, chunks)

    def hand_over(self, connection: Connection) -> None:
        """Take charge of a connection that was just accepted."""
        if threading.get_ident() == self._ident:
            self._add(connection)
        else:
            self._incoming.append(connection)
            self.wake_up()

    def wake_up(self) -> None:
        if not self._wake_pending:
            self._wake_pending = True
            try:
                self._wake_writer.send(b"\0")
            except OSError:
                pass  # full, so it is readable; or closed, so no thread waits

    def watch_poller(self) -> WatchedPoller:
        self._poller = watched = WatchedPoller(self._poller)
        self.wake_up()  # the turn that runs has begun with the other one
        return watched

    @property
    def connection_count(self) -> int:
        return len(self._connections) + len(self._incoming)

    def connections_by_listener(self) -> Counter[str]:
        """How many are open, of each listener that has any."""
        return Counter(connection.context.listener_name for connection in list(self._connections.values()))

    # -- the loop -------------------------------------------------------------------------------------

    def do_work(self) -> None:
        self._ident = threading.get_ident()
        events = self._poller.poll(self._timeout_ms())
        now = self._turn_began_ms = self._time.hi_res_clock_ms()
        for fd, ready in events:
            connection = self._connections.get(fd)
            if connection is not None:
                connection.last_active_ms = now
                self._on_ready(connection, ready)
            elif fd in self._accepts:
                self._accepts[fd]()
            else:
                self._on_wake()
        # What this turn has made possible, in that order.
        while self._completions:
            connection, chunks = self._completions.popleft()
            self._answer(connection, chunks)
            self._serve(connection)
        for _ in range(len(self._backlog)):
            self._serve(self._backlog.popleft())
        if self._unread:
            self._read_unread(now)
        if self._muted:
            self._unmute(now)
        if self._throttled.next_ms <= now:
            self._throttled.close_due(now)
        if now >= self._idle_check_ms:
            self._close_idle(now)
        if 0 <= self._poll_again_ms <= now:
            self._poll_again()
        if 0 <= self._accept_again_ms <= now:
            self.resume_accept()
        # Last: whatever the turn has freed, a connection of any processor may be waiting for it.
        if self._server.starved:
            self._resume_starved()

    def _timeout_ms(self) -> float:
        if self._backlog or self._completions or self._incoming or self._unread:
            return 0
        deadline = self._idle_check_ms if self._connections else -1.0
        throttled_ms = self._throttled.next_ms
        if self._accept_again_ms < 0 and self._poll_again_ms < 0 and not self._muted and throttled_ms == math.inf:
            # The check of idle connections has seconds of time.
            return deadline if deadline < 0 else max(0.0, deadline - self._turn_began_ms) + 1
        for other in (self._accept_again_ms, self._poll_again_ms, throttled_ms):
            if 0 <= other < math.inf:
                deadline = other if deadline < 0 else min(deadline, other)
        if self._muted:
            deadline = min(deadline, self._muted[0][0])
        if deadline < 0:
            return -1
        return max(0.0, deadline - self._time.hi_res_clock_ms()) + 1

    def _on_wake(self) -> None:
        try:
            self._wake_reader.recv(64)
        except BlockingIOError:
            pass
        # Before the queues are emptied: what is added from now on is worth another wake-up.
        self._wake_pending = False
        while self._incoming:
            self._add(self._incoming.popleft())
        if self._server.accept_paused and self._accepts:
            self.resume_accept()

    def _on_ready(self, connection: Connection, ready: int) -> None:
        if ready & WRITE:
            self._on_writable(connection)
        elif connection.request is not None:
            # A pipelined request, or the peer has gone and will not take an answer that may be hours away.
            # Nothing is read while one is in flight, and most answers leave before more arrives, so the
            # interest changes only when it must.
            if ready & HANGUP or connection.peer_has_closed():
                self._close(connection, "the peer hung up")
            else:
                self._set_interest(connection, 0)
        elif ready & HANGUP and not ready & READ:
            self._close(connection, "the peer hung up")
        else:
            self._on_readable(connection)

    def _on_readable(self, connection: Connection) -> None:
        server = self._server
        if (
            server.queued_max_bytes > 0
            and connection.is_ready  # a handshake needs no memory
            and not connection.mid_request
            and not server.may_begin_request()
        ):
            self._starved.add(connection)
            self._server.starved.add(self)
            self._set_interest(connection, 0)
            return
        before = connection.buffered_bytes
        try:
            try:
                waiting = connection.receive(self._scratch)
            finally:  # also what came before an error: _close() takes all that is buffered off
                self.queued_bytes += connection.buffered_bytes - before
        except InvalidReceive as error:
            self._close(connection, error, level=logging.WARNING)
        except (ConnectionClosed, OSError) as error:
            self._close(connection, error)
        except MemoryError:
            self._close(connection, "no memory for a request", level=logging.ERROR)
        else:
            if waiting:
                self._serve(connection)
            elif connection.wants_write:
                self._set_interest(connection, WRITE)
            elif connection.has_buffered:
                self._unread[connection] = None

    def _resume_starved(self) -> None:
        """Read the connections again that waited for bytes of others, if there is room; other processors read theirs.

        No wake-up is missed: a processor enters server.starved before it looks here whether there is room, and a
        processor that frees bytes looks here after that whether any has entered.
        """
        server = self._server
        if not server.may_begin_request():
            return
        server.starved.discard(self)
        self._unread.update(dict.fromkeys(self._starved))
        self._starved.clear()
        for processor in tuple(server.starved):
            processor.wake_up()

    def _read_unread(self, now: float) -> None:
        """Read the next pipelined request of each connection that was just answered, without polling the connection.

        The connection is polled again when it has nothing more to read, or when its request has waited for
        POLL_AGAIN_MS: polling notices a peer that hangs up."""
        unread, self._unread = self._unread, {}
        for connection in unread:
            if connection.fd < 0 or connection.request is not None:
                continue
            connection.last_active_ms = now
            self._on_readable(connection)
            is_waiting = connection.request is not None or connection in self._unread or connection in self._starved
            if connection.fd >= 0 and not is_waiting:
                if connection.interest == 0:
                    self._set_interest(connection, READ)
            elif connection.request is not None:
                self._unpolled[connection] = connection.request
                if self._poll_again_ms < 0:
                    self._poll_again_ms = now + POLL_AGAIN_MS

    def _poll_again(self) -> None:
        self._poll_again_ms = -1.0
        unpolled, self._unpolled = self._unpolled, {}
        for connection, request in unpolled.items():
            if connection.fd >= 0 and connection.request is request and connection.interest == 0:
                self._set_interest(connection, READ)

    def _serve(self, connection: Connection) -> None:
        """Handle what waits on a connection, until one request stays in flight."""
        for _ in range(TURN_REQUESTS):
            if connection.request is not None or connection.fd < 0:
                return
            frame = connection.next_frame()
            if frame is None:
                return
            connection.in_flight_bytes = len(frame)
            request = connection.request = Request(connection, frame, self)
            del frame  # a parked request gives its buffer up as soon as it can
            self._current = connection
            try:
                connection.handler(request)
            except Exception:
                logger.exception("%s: a request failed", connection.peer_host)
                self._close(connection, "its request failed")
            finally:
                self._current = None
        self._backlog.append(connection)

    def _answer(self, connection: Connection, chunks: Sequence[Chunk] | None) -> None:
        if connection.fd < 0:
            return
        if chunks is not None:
            if chunks and isinstance(chunks[0], _Abort):
                self._close(connection, chunks[0].reason, level=logging.WARNING)
                return
            try:
                if not connection.send(chunks):
                    self._set_interest(connection, WRITE)
                    return
            except (ConnectionClosed, OSError) as error:
                self._close(connection, error)
                return
        self._finish(connection)

    def _on_writable(self, connection: Connection) -> None:
        if not connection.has_output:  # the handshake of its transport had to write first
            self._set_interest(connection, READ)
            self._on_ready(connection, READ)
            return
        try:
            if not connection.flush():
                return
        except (ConnectionClosed, OSError) as error:
            self._close(connection, error)
            return
        if connection.request is not None:
            self._finish(connection)
            self._serve(connection)

    def _finish(self, connection: Connection) -> None:
        """The response is out, or there is none: ready for the next request."""
        self.queued_bytes -= connection.in_flight_bytes
        connection.in_flight_bytes = 0
        if connection.throttle_ms is not None:
            if connection.throttle_ms == FOR_EVER:
                self._close(connection, "refused")
            else:
                self._mute(connection, connection.throttle_ms)
            return
        connection.request = None
        interest = connection.interest
        if interest == 0 or connection.has_buffered:
            self._unread[connection] = None
        if interest == WRITE:
            self._set_interest(connection, READ)

    def _mute(self, connection: Connection, for_ms: float, last_response: Sequence[Chunk] | None = None) -> None:
        """Take no request from a connection for a while.  Until then the answered one counts as in flight.

        last_response: sent then, and the connection is closed.
        """
        until = self._time.hi_res_clock_ms() + for_ms
        connection.throttle_ms = None
        heapq.heappush(self._muted, (until, next(self._mute_order), connection, last_response))
        self._set_interest(connection, READ)  # a peer that hangs up is noticed

    def _unmute(self, now: float) -> None:
        while self._muted and self._muted[0][0] <= now:
            _, _, connection, last_response = heapq.heappop(self._muted)
            if connection.fd < 0:
                continue
            if last_response is None:
                self._finish(connection)
                self._serve(connection)
            else:
                connection.throttle_ms = FOR_EVER
                self._answer(connection, last_response or None)

    # -- connections ----------------------------------------------------------------------------------

    def _set_interest(self, connection: Connection, interest: int) -> None:
        if connection.interest != interest:
            connection.interest = interest
            self._poller.modify(connection.fd, interest)

    def _add(self, connection: Connection) -> None:
        connection.processor = self
        connection.last_active_ms = self._time.hi_res_clock_ms()
        connection.interest = WRITE if connection.wants_write else READ
        self._connections[connection.fd] = connection
        self._poller.register(connection.fd, connection.interest)

    def _close(self, connection: Connection, reason: object, level: int = logging.DEBUG) -> None:
        if connection.fd < 0:
            return
        logger.log(level, "%s: connection closed: %s", connection.peer_host, reason)
        del self._connections[connection.fd]
        self._poller.unregister(connection.fd)
        self._starved.discard(connection)
        self._unpolled.pop(connection, None)
        self.queued_bytes -= connection.buffered_bytes + connection.in_flight_bytes
        connection.in_flight_bytes = 0
        request, connection.request = connection.request, None
        if request is not None and request.on_abandoned is not None:
            request.on_abandoned(request)
        connection.close()
        self._server.on_closed(connection)

    def _close_idle(self, now: float) -> None:
        limit = self._server.connections_max_idle_ms
        if limit < 0:
            self._idle_check_ms = now + 60_000
            return
        self._idle_check_ms = now + min(max(limit / 10, 10), 60_000)
        for connection in [c for c in self._connections.values() if now - c.last_active_ms > limit]:
            # A parked request has its own deadline; a response that its client does not take has this one.
            if connection.request is None or connection.has_output:
                self._close(connection, f"idle for {limit} ms")

    # -- accepting, on the first processor only ---------------------------------------------------------

    def listen(self, fd: int, accept: Callable[[], None]) -> None:
        self._accepts[fd] = accept
        self._poller.register(fd, READ)

    def pause_accept(self, for_ms: float = -1.0) -> None:
        """Leave new connections in the kernel's backlog: for this time, or by default until a connection is closed."""
        for fd in self._accepts:
            self._poller.modify(fd, 0)
        if for_ms >= 0:
            self._accept_again_ms = self._time.hi_res_clock_ms() + for_ms

    def resume_accept(self) -> None:
        self._accept_again_ms = -1.0
        self._server.accept_paused = False
        for fd in self._accepts:
            self._poller.modify(fd, READ)

    def close_later(self, sock: socket.socket, delay_ms: float) -> None:
        """Keep a connection that was just accepted for so long, without reading from it, and close it then."""
        self._throttled.add(sock, self._time.hi_res_clock_ms() + delay_ms)

    def close(self) -> None:
        """Close every socket.  After the thread has ended, or in a forked child, which has no such thread."""
        for connection in [*self._connections.values(), *self._incoming]:
            connection.close()
        self._connections.clear()
        self._incoming.clear()
        self._completions.clear()
        self._backlog.clear()
        self._starved.clear()
        self._unpolled.clear()
        self._muted.clear()
        self._throttled.close()
        self._poller.close()
        self._wake_reader.close()
        self._wake_writer.close()


class _Abort:
    """Stands in a processor's queue for "close it"."""

    size_in_bytes = 0

    def __init__(self, reason: object) -> None:
        self.reason = reason

    def send_to(self, sock_fd: int, offset: int = 0) -> int:
        return 0
