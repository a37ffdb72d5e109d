"""MetadataStore on a ZooKeeper ensemble, through kazoo: for brokers of several machines, and beside Java brokers.

Each session is a kazoo client of its own: kazoo begins a new session by itself once one has expired, and what was meant
for the old one must not be done under the new one.  Two things are done here because kazoo does not: calls of a session
that is suspended fail at once; and a watch that was left before a reconnection is left again if its node is still the
same, and called if it is not (as ZooKeeper's own client does with SetWatches).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from queue import SimpleQueue
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient, TransactionRequest
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import EventType as ZooKeeperEventType
from kazoo.protocol.states import KazooState, WatchedEvent
from kazoo.retry import KazooRetry

from kcore.common.shutdownable_thread import ShutdownableThread
from kcore.metadata.multi_size import MAX_BYTES, operation_size
from kcore.metadata.store import (
    BadVersion,
    Check,
    ChrootGone,
    ConnectionLost,
    Create,
    Delete,
    EventType,
    MetadataStore,
    MultiFailed,
    MultiTooLarge,
    NoChildrenForEphemerals,
    Node,
    NodeExists,
    NoNode,
    NotAllowed,
    NotEmpty,
    Operation,
    QuotaExceeded,
    Result,
    SessionEvent,
    SessionExpired,
    SessionListener,
    SetData,
    StoreClosed,
    StoreError,
    Watch,
    WatchEvent,
    check_path,
)
from kcore.metadata.watch_table import deliver, event_between
from kcore.metadata.zookeeper_reads import MultiRead

logger = logging.getLogger(__name__)

#: ZooKeeper's default port.
DEFAULT_PORT = 2181
#: The longest pause between two attempts to connect.
_MAX_RETRY_S = 1.0
#: How many servers in turn may leave a new connection without an answer before a session ends.
_ATTEMPTS_A_SESSION = 3
#: How long close() waits until the server has confirmed the end of the session.
_CLOSE_TIMEOUT_S = 5.0
#: Requests without an answer, of one get_many() or multi_many().
_MAX_IN_FLIGHT = 128
#: Nodes that one request reads.
_MAX_READ = 500


#: Between two looks whether the connection is there again.
_RECONNECT_POLL_MS = 20


class _Unimplemented(StoreError):
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
#: In a multi() that failed, the answer to operations before and after the one that did.
_NOT_THE_CAUSE = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)


class ZookeeperStore(MetadataStore):
    """A client of the ensemble.  Thread-safe.  Watches and session listeners are called on one thread of the store.

    A call that gets no answer for the session's timeout raises ConnectionLost.  Everything below `chroot`, which is
    created if it is missing.
    """

    def __init__(
        self,
        hosts: str,
        chroot: str = "",
        *,
        session_timeout_ms: int,
        connection_timeout_ms: int | None = None,
    ) -> None:
        """hosts: host:port of the servers, separated by commas.  The servers may grant another session timeout, between
        2 and 20 of their ticks.  connection_timeout_ms: until the first connection, and that of new_session(); by
        default the session's timeout.  Raises ConnectionLost if there is none in that time."""
        self.address = hosts + chroot
        self._hosts = hosts
        self._chroot = chroot
        self._session_timeout_ms = session_timeout_ms
        self._connection_timeout_ms = connection_timeout_ms or session_timeout_ms
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._listeners: list[SessionListener] = []
        self._events: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._is_closed = False
        self._has_multi_read = True
        # The number of the change that created the chroot's node.
        self._chroot_czxid: int | None = None
        self._is_chroot_gone = False
        self._is_chroot_watched = False
        if chroot:
            self._create_chroot()
        self._deliverer = _Deliverer(self._events)
        self._session = self._new_session()
        if not self._session.start(self._connection_timeout_ms):
            self._session.abandon()
            raise self._unreachable()
        self._find_multi_read()
        self._deliverer.start()
        self._watch_chroot()

    def _new_session(self) -> _Session:
        client = self._new_client(self._chroot)
        return _Session(client, self._session_timeout_ms, self._events, self._notify, self.address)

    def _new_client(self, chroot: str) -> KazooClient:
        handler = _Handler()
        # The interruption: so that stop() need not wait for the next attempt.
        retry = KazooRetry(max_tries=-1, max_delay=_MAX_RETRY_S, interrupt=handler.is_stopping.is_set)
        timeout_s = self._session_timeout_ms / 1000
        # A server in kazoo's list is waited for that share of the session's timeout.
        hosts = ",".join([self._hosts] * -(-_ATTEMPTS_A_SESSION // len(self._hosts.split(","))))
        return KazooClient(hosts + chroot, timeout_s, handler=handler, connection_retry=retry, logger=_KAZOO_LOG)

    def _find_multi_read(self) -> None:
        """Find out whether the server reads many nodes with one request.

        One before 3.6 answers that it does not know it, and then breaks the connection: here, where nobody uses it yet.
        """
        try:
            self._session.call(partial(self._session.read, ["/"]))
        except _Unimplemented:
            self._has_multi_read = False
            pause = threading.Event()
            for _ in range(self._connection_timeout_ms // _RECONNECT_POLL_MS):
                try:
                    self._session.call(lambda: self._session.client.exists_async("/"))
                    return
                except StoreError:
                    pause.wait(_RECONNECT_POLL_MS / 1000)
        except StoreError:
            pass  # whatever is wrong, the first caller finds out

    def _create_chroot(self) -> None:
        client = self._new_client("")
        session = _Session(client, self._session_timeout_ms, SimpleQueue(), lambda event: None)
        try:
            if not session.start(self._connection_timeout_ms):
                raise self._unreachable()
            session.call(lambda: client.ensure_path_async(self._chroot))
        finally:
            session.close()

    def _unreachable(self) -> ConnectionLost:
        return ConnectionLost(f"{self.address}: no ZooKeeper server answers within {self._connection_timeout_ms} ms")

    # -- reading ----------------------------------------------------------------------------------------

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        return self._read(self._live_session(), check_path(path), watch)

    def _read(self, session: _Session, path: str, watch: Watch | None) -> Node | None:
        while True:
            try:
                return self._get(session, path, watch)
            except NoNode:
                if watch is None:
                    return None
            # A server keeps a watch for a node that is not there only if asked whether it exists.
            watcher = session.watcher(path, watch)
            with watcher:
                stat = session.call(lambda w=watcher: session.client.exists_async(path, watch=w))  # type: ignore[misc]
                if stat is None:
                    watcher.keep(None)
                    return None

    def _get(self, session: _Session, path: str, watch: Watch | None) -> Node:
        if watch is None:
            data, stat = session.call(lambda: session.client.get_async(path))
        else:
            with session.watcher(path, watch) as watcher:
                data, stat = session.call(lambda: session.client.get_async(path, watch=watcher))
                watcher.keep((stat.czxid, stat.mzxid))
        return _node((data, stat))

    def get_many(self, paths: Sequence[str], watches: Sequence[Watch] = ()) -> list[Node | None]:
        for path in paths:
            check_path(path)
        session = self._live_session()
        nodes: list[Node | None] = []
        if not watches and self._has_multi_read:
            try:
                return self._multi_read(session, paths)
            except _Unimplemented:
                self._has_multi_read = False  # the connection is now to a server of another version
        for begin in range(0, len(paths), _MAX_IN_FLIGHT):
            some = paths[begin : begin + _MAX_IN_FLIGHT]
            if watches:
                nodes += self._get_and_watch(session, some, watches[begin : begin + _MAX_IN_FLIGHT])
            else:
                starts = [partial(session.client.get_async, path) for path in some]
                nodes += [_node_or_none(answer) for answer in session.call_many(starts, NoNode)]
        return nodes

    def _multi_read(self, session: _Session, paths: Sequence[str]) -> list[Node | None]:
        """Raises _Unimplemented."""
        pieces = [paths[begin : begin + _MAX_READ] for begin in range(0, len(paths), _MAX_READ)]
        answers = session.call_many([partial(session.read, piece) for piece in pieces])
        nodes: list[Node | None] = []
        for path, node in zip(paths, chain.from_iterable(answers), strict=True):
            if isinstance(node, Exception):
                raise _store_error(node, path)
            nodes.append(node)
        return nodes

    def _get_and_watch(
        self, session: _Session, paths: Sequence[str], watches: Sequence[Watch]
    ) -> Iterator[Node | None]:
        with ExitStack() as stack:
            pairs = zip(paths, watches, strict=True)
            watchers = [stack.enter_context(session.watcher(path, watch)) for path, watch in pairs]
            starts = [
                partial(session.client.get_async, path, watch=watcher)
                for path, watcher in zip(paths, watchers, strict=True)
            ]
            answers = session.call_many(starts, NoNode)
            for watcher, answer in zip(watchers, answers, strict=True):
                if not isinstance(answer, StoreError):
                    watcher.keep((answer[1].czxid, answer[1].mzxid))
        for path, watch, answer in zip(paths, watches, answers, strict=True):
            # A node that is not there takes its watch another way.
            yield self.get(path, watch) if isinstance(answer, StoreError) else _node_or_none(answer)

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        check_path(path)
        session = self._live_session()
        if watch is None:
            try:
                return sorted(session.call(lambda: session.client.get_children_async(path)))
            except NoNode:
                return []
        with session.watcher(path, watch, is_of_children=True) as watcher:
            names, stat = session.call(
                lambda: session.client.get_children_async(path, watch=watcher, include_data=True)
            )
            watcher.keep((stat.czxid, stat.pzxid))
        return sorted(names)

    # -- changes ----------------------------------------------------------------------------------------

    def multi(self, operations: Sequence[Operation]) -> list[Result]:
        session = self._live_session()
        if not operations:
            return []
        self._check_multi(operations)
        return _results(operations, session.call(self._transaction(session, operations).commit_async))

    def multi_many(self, changes: Sequence[Sequence[Operation]]) -> list[list[Result] | MultiFailed]:
        session = self._live_session()
        results: list[list[Result] | MultiFailed] = [[] for _ in changes]
        sent: list[int] = []
        for index, operations in enumerate(changes):
            try:
                self._check_multi(operations)
            except MultiFailed as error:
                results[index] = error
            else:
                if operations:
                    sent.append(index)
        for begin in range(0, len(sent), _MAX_IN_FLIGHT):
            some = sent[begin : begin + _MAX_IN_FLIGHT]
            starts = [self._transaction(session, changes[index]).commit_async for index in some]
            for index, answers in zip(some, session.call_many(starts), strict=True):
                try:
                    results[index] = _results(changes[index], answers)
                except MultiFailed as error:
                    results[index] = error
        return results

    def _check_multi(self, operations: Sequence[Operation]) -> None:
        """Raises MultiFailed for what no server should see, MultiTooLarge."""
        size = 0
        for index, operation in enumerate(operations):
            try:
                _check(operation)
            except StoreError as error:
                raise MultiFailed(index, error) from None
            size += operation_size(operation) + len(self._chroot)
        if size > MAX_BYTES:
            # A server breaks the connection of a client that sends more, which the client would take for a failure.
            raise MultiTooLarge(f"{len(operations)} operations of {size} bytes, ZooKeeper takes {MAX_BYTES}")

    def _transaction(self, session: _Session, operations: Sequence[Operation]) -> TransactionRequest:
        transaction = session.client.transaction()
        for operation in operations:
            match operation:
                case Create(path, data, ephemeral, sequential):
                    transaction.create(path, data, ephemeral=ephemeral, sequence=sequential)
                    if path.endswith("/"):  # of a sequential node without a name; kazoo has cut it off
                        sent = transaction.operations[-1]
                        transaction.operations[-1] = sent._replace(path=f"{self._chroot}{path}")
                case SetData(path, data, expected_version):
                    transaction.set_data(path, data, expected_version)
                case Delete(path, expected_version):
                    transaction.delete(path, expected_version)
                case Check(path, expected_version):
                    transaction.check(path, expected_version)
        return transaction

    # -- session ----------------------------------------------------------------------------------------

    @property
    def session_id(self) -> int:
        return self._session.session_id

    def add_session_listener(self, listener: SessionListener) -> None:
        with self._lock:
            self._listeners.append(listener)

    def new_session(self) -> int:
        with self._lock:
            if self._is_closed:
                raise StoreClosed(f"{self.address}: the store is closed")
            if not self._session.has_expired:
                raise StoreError(f"{self.address}: session {self.session_id} has not expired")
        session = self._new_session()
        if not session.start(self._connection_timeout_ms):
            session.abandon()
            raise self._unreachable()
        with self._lock:
            is_needed = self._session.has_expired and not self._is_closed
            if is_needed:
                self._session = session
                self._is_chroot_watched = False
        if not is_needed:
            session.close()
            raise StoreClosed(f"{self.address}: closed, or another thread has begun a session")
        self._notify(SessionEvent.CONNECTED)
        self._watch_chroot()
        return session.session_id

    def close(self) -> None:
        """End the session.  In a forked child nothing: the connection belongs to the parent."""
        self._close(_Session.close)

    def abandon(self) -> None:
        self._close(_Session.abandon)

    def _close(self, end: Callable[[_Session], None]) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        end(self._session)
        self._deliverer.shutdown()

    def _live_session(self) -> _Session:
        if self._is_closed:
            raise StoreClosed(f"{self.address}: the store is closed")
        if self._is_chroot_gone:
            raise ChrootGone(
                f"{self.address}: {self._chroot} was deleted in ZooKeeper, with all that the cluster had stored: stop "
                "the brokers"
            )
        return self._session

    def _watch_chroot(self, event: WatchEvent | None = None) -> None:
        """Once the chroot is deleted nothing is found, and whatever is created again would be another cluster's.

        On the thread that begins a session, and on the store's when the node has changed.
        """
        if not self._chroot or self._is_chroot_gone:
            return
        with self._lock:
            if event is None and self._is_chroot_watched:
                return
            self._is_chroot_watched = True
            session = self._session
        try:
            node = self._read(session, "/", self._watch_chroot)
        except StoreError as error:
            logger.debug("%s: its chroot is looked at with the next connection: %s", self.address, error)
            self._is_chroot_watched = False
            return
        if self._chroot_czxid is None and node is not None:
            self._chroot_czxid = node.czxid
        if node is None or node.czxid != self._chroot_czxid:
            self._is_chroot_gone = True
            logger.error("ZooKeeper %s: %s was deleted; nothing can be stored any more", self.address, self._chroot)
            self._notify(SessionEvent.SUSPENDED)

    def _notify(self, event: SessionEvent) -> None:
        """Have the listeners called.  On kazoo's thread, which must not wait for them."""
        if event is SessionEvent.CONNECTED:
            self._events.put(self._watch_chroot)
        with self._lock:
            listeners = [] if self._is_closed else list(self._listeners)
        self._events.put(lambda: deliver([event], listeners, []))


class _Session:
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
        self._watchers: set[_Watcher] = set()
        # On kazoo's thread of callbacks only: the last event, and the watches that it has called.
        self._event: WatchedEvent | None = None
        self._called: set[Watch] = set()
        client.add_listener(self._state_changed)

    # -- life -------------------------------------------------------------------------------------------

    def start(self, timeout_ms: int) -> bool:
        """Connect; whether that succeeded in the time."""
        self.client.start_async()  # its event is set before the listener is called
        return self._has_begun.wait(timeout_ms / 1000)

    def close(self) -> None:
        self._end()
        stopping = self.client.handler.spawn(self._stop)
        stopping.join(_CLOSE_TIMEOUT_S)
        if stopping.is_alive():  # nobody answers
            self.client.handler.break_connection()
            stopping.join()

    def abandon(self) -> None:
        """Break the connection for good; the server ends the session when it has been silent for its timeout."""
        self._end()
        self.client.handler.break_connection()
        self._stop()

    def _end(self) -> None:
        with self._lock:
            self._is_ended = True
            self._watchers.clear()

    def _stop(self) -> None:
        """Whoever comes second, at an expiry and a close() at once, waits for the first."""
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

    def call_many(self, starts: Sequence[Callable[[], Any]], expected: type[StoreError] | None = None) -> list[Any]:
        """The answers to all, which are asked for at once.  Raises the StoreError that an answer stands for, the first
        one; of the expected kind it is the answer."""
        with self._lock:
            if self.has_expired:
                raise SessionExpired(f"session {self.session_id}")
            if not self._is_connected:
                raise ConnectionLost(f"session {self.session_id} is suspended")
        pending = [start() for start in starts]
        # They come in order: this thread is woken once, not for each.
        in_time = not pending or pending[-1].wait(self._timeout_s)
        answers: list[Any] = []
        for one in pending:
            try:
                answers.append(self._answer(one, self._timeout_s if in_time else 0))
            except StoreError as error:
                if expected is None or not isinstance(error, expected):
                    raise
                answers.append(error)
        return answers

    def _answer(self, pending: Any, timeout_s: float) -> Any:
        try:
            return pending.get(timeout=timeout_s)
        except exceptions.ConnectionClosedError:
            if self.has_expired:
                raise SessionExpired(f"session {self.session_id}") from None
            raise StoreClosed("the store is closed") from None
        except exceptions.UnimplementedError as error:
            raise _Unimplemented("the server does not know the request") from error
        except (exceptions.KazooException, KazooTimeoutError) as error:
            raise _store_error(error, "") from error

    def read(self, paths: Sequence[str]) -> Any:
        """For call(): the nodes, None for each that is not there."""
        answer = self.client.handler.async_result()
        chroot = self.client.chroot
        self.client._call(MultiRead([chroot + path if path != "/" else chroot or path for path in paths]), answer)
        return answer

    # -- watches ----------------------------------------------------------------------------------------

    def watcher(self, path: str, watch: Watch, *, is_of_children: bool = False) -> _Watcher:
        return _Watcher(self, path, watch, is_of_children, self.connections)

    def add(self, watcher: _Watcher) -> None:
        with self._lock:
            if not self._is_ended and not self.has_expired:
                self._watchers.add(watcher)

    def discard(self, watcher: _Watcher) -> None:
        with self._lock:
            self._watchers.discard(watcher)

    def check(self, watcher: _Watcher) -> None:
        """A watcher knows its node's state from now on: a connection since may have cost it its place at the server."""
        if watcher.connection != self.connections:
            self._events.put(self._leave_watches_again)

    def fired(self, watcher: _Watcher, event: WatchedEvent) -> None:
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

    def _deliver(self, watcher: _Watcher, event: EventType) -> None:
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


class _Watcher:
    """A watch, as kazoo calls it; and in a `with` block the call that leaves it, until keep()."""

    def __init__(self, session: _Session, path: str, watch: Watch, is_of_children: bool, connection: int) -> None:
        self.path = path
        self.watch = watch
        #: The connection on which the server knows it.
        self.connection = connection
        self.has_state = False
        self.state: tuple[int, int] | None = None
        self.changed = EventType.CHILDREN_CHANGED if is_of_children else EventType.CHANGED
        self._session = session
        self._is_of_children = is_of_children

    def __enter__(self) -> _Watcher:
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
    """kazoo's own log: a line for each attempt to connect is for debugging.  _Session has one for each change of its
    state.  Exceptions that kazoo did not expect stay errors."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        super().log(level if kwargs.get("exc_info") else min(level, logging.DEBUG), msg, *args, **kwargs)


_KAZOO_LOG = _KazooLog(logging.getLogger("kazoo.client"), None)


class _Handler(SequentialThreadingHandler):
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


class _Deliverer(ShutdownableThread):
    def __init__(self, events: SimpleQueue[Callable[[], object]]) -> None:
        super().__init__("kcore-zookeeper-events")
        self._events = events

    def do_work(self) -> None:
        try:
            self._events.get()()
        except Exception:
            logger.exception("%s: an event failed", self.name)

    def wake_up(self) -> None:
        self._events.put(lambda: None)


def _check(operation: Operation) -> None:
    """Raises StoreError for what no server should see: below a chroot its root is a node like others."""
    sequential = isinstance(operation, Create) and operation.sequential
    path = check_path(operation.path + "0" if sequential else operation.path)
    if path == "/" and isinstance(operation, Create):
        raise NodeExists(path)
    if path == "/" and isinstance(operation, Delete):
        raise StoreError("the root cannot be deleted")


def _node(answer: Any) -> Node:
    data, stat = answer
    return Node(data or b"", stat.version, stat.czxid, stat.ephemeralOwner)


def _node_or_none(answer: Any) -> Node | None:
    return None if isinstance(answer, NoNode) else _node(answer)


def _results(operations: Sequence[Operation], answers: Sequence[Any]) -> list[Result]:
    """Raises MultiFailed."""
    for index, answer in enumerate(answers):
        if isinstance(answer, Exception) and not isinstance(answer, _NOT_THE_CAUSE):
            raise MultiFailed(index, _store_error(answer, operations[index].path))
    return [_result(operation, answer) for operation, answer in zip(operations, answers, strict=True)]


def _result(operation: Operation, answer: Any) -> Result:
    if isinstance(operation, Create):
        path: str = answer
        return path
    if isinstance(operation, SetData):
        version: int = answer.version
        return version
    return None


def _store_error(error: Exception, path: str) -> StoreError:
    for kind, meaning in _ERRORS:
        if isinstance(error, kind):
            return meaning(path or str(error) or kind.__name__)
    return StoreError(f"{path}: ZooKeeper answers {type(error).__name__} {error}".strip())
