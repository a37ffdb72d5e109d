"""One session of a ZooKeeper ensemble: a kazoo client, its watches, and its errors as the store's.

Two things are done here because kazoo does not: calls of a session that is suspended fail at once; and a watch that was
left before a reconnection is left again if its node is still the same, and called if it is not (as ZooKeeper's own
client does with SetWatches).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import EventType as ZooKeeperEventType
from kazoo.protocol.states import KazooState, WatchedEvent

from kcore.metadata.store import (
    BadVersion,
    ConnectionLost,
    EventType,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotAllowed,
    NotEmpty,
    QuotaExceeded,
    SessionEvent,
    SessionExpired,
    StoreClosed,
    StoreError,
    Watch,
    WatchEvent,
)
from kcore.metadata.watch_table import deliver, event_between
from kcore.metadata.zookeeper_heartbeats import Heartbeats
from kcore.metadata.zookeeper_reads import MultiRead

logger = logging.getLogger(__name__)

#: How long close() waits until the server has confirmed the end of the session.
_CLOSE_TIMEOUT_S = 5.0
#: How often a start looks whether it was cancelled.
_CANCEL_CHECK_MS = 250
#: The same while there is no connection: another may be about to begin.
_CLOSE_WITHOUT_CONNECTION_S = 0.5


class Unimplemented(StoreError):
    """The server does not know the request."""


_ERRORS: tuple[tuple[type[Exception], type[StoreError]], ...] = (
    (exceptions.NodeExistsError, NodeExists),
    (exceptions.NoNodeError, NoNode),
    (exceptions.BadVersionError, BadVersion),
    (exceptions.NotEmptyError, NotEmpty),
    (exceptions.NoChildrenForEphemeralsError, NoChildrenForEphemerals),
    (exceptions.SessionExpiredError, SessionExpired),
    (exceptions.ConnectionLoss, ConnectionLost),
    # The server, or the way to it, cannot do it now; a moment later it may.
    (exceptions.SessionMovedError, ConnectionLost),
    (exceptions.UnknownSessionError, ConnectionLost),
    (exceptions.OperationTimeoutError, ConnectionLost),
    (exceptions.RequestTimeoutError, ConnectionLost),
    (exceptions.ThrottledOpError, ConnectionLost),
    (exceptions.ReconfigInProcessError, ConnectionLost),
    (exceptions.NewConfigNoQuorumError, ConnectionLost),
    (exceptions.NotReadOnlyCallError, ConnectionLost),
    (exceptions.ConnectionDropped, ConnectionLost),
    (exceptions.CancelledError, ConnectionLost),
    (KazooTimeoutError, ConnectionLost),
    # Nothing changes until an administrator changes something.
    (exceptions.NoAuthError, NotAllowed),
    (exceptions.AuthFailedError, NotAllowed),
    (exceptions.InvalidACLError, NotAllowed),
    (exceptions.SessionClosedRequireSaslError, NotAllowed),
    (exceptions.SASLException, NotAllowed),
    (exceptions.QuotaExceededError, QuotaExceeded),
    (exceptions.ZookeeperStoppedError, StoreClosed),
)
_EVENTS = {
    ZooKeeperEventType.CREATED: EventType.CREATED,
    ZooKeeperEventType.DELETED: EventType.DELETED,
    ZooKeeperEventType.CHANGED: EventType.CHANGED,
    ZooKeeperEventType.CHILD: EventType.CHILDREN_CHANGED,
}


class Session:
    """One session: a kazoo client from its start to its end.

    notify: called on kazoo's thread when the session is suspended, connected again, or has expired.
    """

    def __init__(
        self,
        client: KazooClient,
        timeout_ms: int,
        events: SimpleQueue[Callable[[], object]],
        notify: Callable[[SessionEvent], None],
        address: str = "",
    ) -> None:
        self.client = client
        self._address = address
        self.session_id = 0
        self.has_expired = False
        self._timeout_s = timeout_ms / 1000
        self.heartbeats = Heartbeats(client, timeout_ms)
        self._events = events
        self._notify = notify
        self._lock = threading.Lock()
        self._is_connected = False
        self._is_ended = False  # by its owner
        self._has_begun = threading.Event()
        self._is_stopping = False
        self._has_stopped = threading.Event()
        #: How often there was a connection.
        self.connections = 0
        self._watchers: set[Watcher] = set()
        # On kazoo's thread of callbacks only: the last event, and the watches that it has called.
        self._event: WatchedEvent | None = None
        self._called: set[Watch] = set()
        client.add_listener(self._state_changed)

    # -- life -------------------------------------------------------------------------------------------

    def start(self, timeout_ms: int, is_cancelled: Callable[[], bool] = lambda: False) -> bool:
        """Connect; whether that succeeded in the time, and before it was cancelled."""
        self.client.start_async()  # its event is set before the listener is called
        left_ms = timeout_ms
        while not self._has_begun.wait(min(left_ms, _CANCEL_CHECK_MS) / 1000):
            left_ms -= _CANCEL_CHECK_MS
            if left_ms <= 0 or is_cancelled():
                return False
        return True

    def close(self) -> None:
        is_connected = self._end()
        stopping = self.client.handler.spawn(self._stop)
        stopping.join(_CLOSE_TIMEOUT_S if is_connected else _CLOSE_WITHOUT_CONNECTION_S)
        if stopping.is_alive():  # the server does not answer
            self.client.handler.break_connection()
            stopping.join()

    def abandon(self) -> None:
        """Break the connection for good; the server ends the session when it has been silent for its timeout."""
        self._end()
        self.client.handler.break_connection()
        self._stop()

    def _end(self) -> bool:
        """Whether there is a connection."""
        with self._lock:
            self._is_ended = True
            self._watchers.clear()
            return self._is_connected

    def _stop(self) -> None:
        """The second caller, at an expiry and a close() at once, waits for the first."""
        with self._lock:
            is_first = not self._is_stopping
            self._is_stopping = True
        if not is_first:
            self._has_stopped.wait()
            return
        try:
            self.client.stop()
            self.client.close()
        finally:
            self._has_stopped.set()

    def _state_changed(self, state: str) -> None:
        """On kazoo's thread that reads and writes the socket."""
        with self._lock:
            if self._is_ended or self.has_expired:
                return
            self._is_connected = state == KazooState.CONNECTED
            if self._is_connected:
                self.connections += 1
                self.session_id = self.client.client_id[0]
                self._has_begun.set()
            elif state == KazooState.LOST:
                self.has_expired = True
                self._watchers.clear()
            is_first = self.connections == 1
        name = f"ZooKeeper {self._address}: session {self.session_id:#x}"
        if state == KazooState.SUSPENDED:
            logger.warning("%s is suspended: the connection is lost", name)
            self._notify(SessionEvent.SUSPENDED)
        elif state == KazooState.LOST:
            logger.warning("%s has expired", name)
            # Before this thread begins the next session: that is new_session()'s to do, with another client.
            self.client.handler.spawn(self._stop)
            self.client.handler.is_stopping.wait()
            self._notify(SessionEvent.EXPIRED)
        elif not is_first:
            logger.info("%s is connected again", name)
            self._notify(SessionEvent.CONNECTED)
            self._events.put(self._leave_watches_again)

    # -- calls ------------------------------------------------------------------------------------------

    def call(self, start: Callable[[], Any]) -> Any:
        """The answer to what start() asks for.  Raises the StoreError that it stands for."""
        (answer,) = self.call_many([start])
        return answer

    def ping(self, timeout_ms: float) -> None:
        """Break the connection if no answer comes in this time; another is begun at once.  Raises ConnectionLost."""
        with self._lock:
            connection = self.connections if self._is_connected else None
        try:
            self.call_many([lambda: self.client.exists_async("/")], timeout_s=timeout_ms / 1000)
        except ConnectionLost as error:
            if connection != self.connections:  # not the one that was asked
                raise
            self.client.handler.break_connection()
            raise ConnectionLost(f"ZooKeeper {self._address}: no answer within {timeout_ms:g} ms") from error

    def call_many(
        self,
        starts: Sequence[Callable[[], Any]],
        expected: type[StoreError] | None = None,
        timeout_s: float | None = None,
    ) -> list[Any]:
        """The answers to all, which are asked for at once.  Raises the StoreError that an answer stands for, the first
        one; of the expected kind it is the answer."""
        with self._lock:
            if self.has_expired:
                raise SessionExpired(f"session {self.session_id}")
            if not self._is_connected:
                raise ConnectionLost(f"session {self.session_id} is suspended")
        begin_ms = self.heartbeats.now_ms()
        pending = [start() for start in starts]
        # They come in order: this thread is woken once, not for each.
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        in_time = not pending or pending[-1].wait(timeout_s)
        answers: list[Any] = []
        for one in pending:
            try:
                answers.append(self._answer(one, timeout_s if in_time else 0))
            except StoreError as error:
                if expected is None or not isinstance(error, expected):
                    raise
                answers.append(error)
        if answers:
            self.heartbeats.answered(begin_ms)
        return answers

    def _answer(self, pending: Any, timeout_s: float) -> Any:
        try:
            return pending.get(timeout=timeout_s)
        except exceptions.ConnectionClosedError:
            if self.has_expired:
                raise SessionExpired(f"session {self.session_id}") from None
            raise StoreClosed("the store is closed") from None
        except exceptions.UnimplementedError as error:
            raise Unimplemented("the server does not know the request") from error
        except (exceptions.KazooException, KazooTimeoutError) as error:
            raise store_error(error, "") from error

    def read(self, paths: Sequence[str]) -> Any:
        """For call(): the nodes, None for each that is not there."""
        answer = self.client.handler.async_result()
        chroot = self.client.chroot
        self.client._call(MultiRead([chroot + path if path != "/" else chroot or path for path in paths]), answer)
        return answer

    # -- watches ----------------------------------------------------------------------------------------

    def watcher(self, path: str, watch: Watch, *, is_of_children: bool = False) -> Watcher:
        return Watcher(self, path, watch, is_of_children, self.connections)

    def add(self, watcher: Watcher) -> None:
        with self._lock:
            if not self._is_ended and not self.has_expired:
                self._watchers.add(watcher)

    def discard(self, watcher: Watcher) -> None:
        with self._lock:
            self._watchers.discard(watcher)

    def check(self, watcher: Watcher) -> None:
        """A watcher knows its node's state from now on: a connection since may have cost it its place at the server."""
        if watcher.connection != self.connections:
            self._events.put(self._leave_watches_again)

    def fired(self, watcher: Watcher, event: WatchedEvent) -> None:
        """On kazoo's thread of callbacks."""
        if event.type not in _EVENTS:
            return  # the connection was lost; the watch is left again with the next
        with self._lock:
            if watcher not in self._watchers:
                return
            self._watchers.discard(watcher)
        # One event object goes to all watchers of a node; as in ZooKeeper, the same watch is called once for it.
        if event is not self._event:
            self._event = event
            self._called = set()
        if watcher.watch not in self._called:
            self._called.add(watcher.watch)
            self._deliver(watcher, _EVENTS[event.type])

    def _deliver(self, watcher: Watcher, event: EventType) -> None:
        self._events.put(lambda: deliver([], [], [(watcher.watch, WatchEvent(event, watcher.path))]))

    def _leave_watches_again(self) -> None:
        """On the store's thread, after a reconnection: compare each watched node with what its watch has seen."""
        with self._lock:
            connection = self.connections
            watchers = [w for w in self._watchers if w.has_state and w.connection != connection]
            if not self._is_connected:
                return  # the next connection comes here again
        asked = [(watcher, watcher.ask_again()) for watcher in watchers]
        due: dict[tuple[Watch, WatchEvent], None] = {}
        for watcher, answer in asked:
            try:
                state = watcher.state_of(answer.get(timeout=self._timeout_s))
            except exceptions.NoNodeError:
                state = None
            except (exceptions.KazooException, KazooTimeoutError) as error:
                logger.info("watches are left again with the next connection: %s", error)
                return
            event = event_between(watcher.state, state, watcher.changed)
            with self._lock:
                if watcher not in self._watchers:
                    continue
                if event is None:
                    watcher.connection = connection
                    continue
                self._watchers.discard(watcher)
            due[watcher.watch, WatchEvent(event, watcher.path)] = None
        deliver([], [], list(due))


class Watcher:
    """A watch, as kazoo calls it; and in a `with` block the call that leaves it, until keep()."""

    def __init__(self, session: Session, path: str, watch: Watch, is_of_children: bool, connection: int) -> None:
        self.path = path
        self.watch = watch
        #: The connection on which the server knows it.
        self.connection = connection
        self.has_state = False
        self.state: tuple[int, int] | None = None
        self.changed = EventType.CHILDREN_CHANGED if is_of_children else EventType.CHANGED
        self._session = session
        self._is_of_children = is_of_children

    def __enter__(self) -> Watcher:
        # Before the call: an event can come before its caller has read the answer.
        self._session.add(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self.has_state:
            self._session.discard(self)

    def keep(self, state: tuple[int, int] | None) -> None:
        """state: (czxid, mzxid or pzxid) of the node as the call has seen it."""
        self.state = state
        self.has_state = True
        self._session.check(self)

    def __call__(self, event: WatchedEvent) -> None:
        self._session.fired(self, event)

    def ask_again(self) -> Any:
        client = self._session.client
        if self._is_of_children:
            return client.get_children_async(self.path, watch=self, include_data=True)
        return client.exists_async(self.path, watch=self)

    def state_of(self, answer: Any) -> tuple[int, int] | None:
        if self._is_of_children:
            return answer[1].czxid, answer[1].pzxid
        return None if answer is None else (answer.czxid, answer.mzxid)


class _KazooLog(logging.LoggerAdapter[logging.Logger]):
    """kazoo's own log: a line for each attempt to connect is for debugging.  Session has one for each change of its
    state.  Exceptions that kazoo did not expect stay errors."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        super().log(level if kwargs.get("exc_info") else min(level, logging.DEBUG), msg, *args, **kwargs)


KAZOO_LOG = _KazooLog(logging.getLogger("kazoo.client"), None)


class Handler(SequentialThreadingHandler):
    """kazoo's threads; says when the client has begun to stop, and can break its connection."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stopping = threading.Event()
        self._socket: Any = None

    def start(self) -> None:
        self.is_stopping.clear()
        super().start()

    def stop(self) -> None:
        self.is_stopping.set()
        super().stop()

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        self._socket = super().create_connection(*args, **kwargs)
        return self._socket

    def break_connection(self) -> None:
        try:
            if self._socket is not None:
                self._socket.shutdown(2)  # SHUT_RDWR
        except OSError:
            pass  # it is broken already


def store_error(error: Exception, path: str) -> StoreError:
    for kind, meaning in _ERRORS:
        if isinstance(error, kind):
            return meaning(path or str(error) or kind.__name__)
    return StoreError(f"{path}: ZooKeeper answers {type(error).__name__} {error}".strip())
