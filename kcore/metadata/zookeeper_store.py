"""MetadataStore on a ZooKeeper ensemble, through kazoo: for brokers of several machines, and beside Java brokers.

Each session (zookeeper_session.py) is a kazoo client of its own: kazoo begins a new session by itself once one has
expired, and what was meant for the old one must not be done under the new one.
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
from kazoo.retry import KazooRetry

from kcore.common.shutdownable_thread import ShutdownableThread
from kcore.errors import StartCancelled
from kcore.metadata.multi_size import MAX_BYTES, operation_size
from kcore.metadata.store import (
    BadVersion,
    Check,
    CheckChildrenCreated,
    ChrootGone,
    ConnectionLost,
    Create,
    Delete,
    MetadataStore,
    MultiFailed,
    MultiTooLarge,
    Node,
    NodeExists,
    NoNode,
    Operation,
    Result,
    SessionEvent,
    SessionListener,
    SetData,
    StoreClosed,
    StoreError,
    Watch,
    WatchEvent,
    check_path,
)
from kcore.metadata.watch_table import deliver
from kcore.metadata.zookeeper_session import KAZOO_LOG, Handler, Session, Unimplemented, store_error

logger = logging.getLogger(__name__)

#: ZooKeeper's default port.
DEFAULT_PORT = 2181
#: The longest pause between two attempts to connect.
_MAX_RETRY_S = 1.0
#: How many servers in turn may leave a new connection without an answer before a session ends.
_ATTEMPTS_A_SESSION = 3
#: Requests without an answer, of one get_many() or multi_many().
_MAX_IN_FLIGHT = 128
#: Nodes that one request reads.
_MAX_READ = 500
#: Between two looks whether the connection is there again.
_RECONNECT_POLL_MS = 20


#: Of the node that CheckChildrenCreated creates and deletes; the server adds the number.
_CHECK_NAME = "kcore-check-"

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
        is_start_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """hosts: host:port of the servers, separated by commas.  The servers may grant another session timeout, between
        2 and 20 of their ticks.  connection_timeout_ms: until the first connection, and that of new_session(); by
        default the session's timeout.  is_start_cancelled: asked until the first connection.  Raises ConnectionLost if
        there is none in that time, StartCancelled."""
        self.address = hosts + chroot
        self._hosts = hosts
        self._chroot = chroot
        self._session_timeout_ms = session_timeout_ms
        self._connection_timeout_ms = connection_timeout_ms or session_timeout_ms
        self._is_start_cancelled = is_start_cancelled
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
        if not self._session.start(self._connection_timeout_ms, is_start_cancelled):
            self._session.abandon()
            raise self._unreachable()
        self._is_start_cancelled = lambda: False
        self._find_multi_read()
        self._deliverer.start()
        self._watch_chroot()

    def _new_session(self) -> Session:
        client = self._new_client(self._chroot)
        return Session(client, self._session_timeout_ms, self._events, self._notify, self.address)

    def _new_client(self, chroot: str) -> KazooClient:
        handler = Handler()
        # The interruption: so that stop() need not wait for the next attempt.
        retry = KazooRetry(max_tries=-1, max_delay=_MAX_RETRY_S, interrupt=handler.is_stopping.is_set)
        timeout_s = self._session_timeout_ms / 1000
        # A server in kazoo's list is waited for that share of the session's timeout.
        hosts = ",".join([self._hosts] * -(-_ATTEMPTS_A_SESSION // len(self._hosts.split(","))))
        return KazooClient(hosts + chroot, timeout_s, handler=handler, connection_retry=retry, logger=KAZOO_LOG)

    def _find_multi_read(self) -> None:
        """Find out whether the server reads many nodes with one request.

        One before 3.6 answers that it does not know it, and then breaks the connection: here, where no caller uses it
        yet.
        """
        try:
            self._session.call(partial(self._session.read, ["/"]))
        except Unimplemented:
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
        session = Session(client, self._session_timeout_ms, SimpleQueue(), lambda event: None)
        try:
            if not session.start(self._connection_timeout_ms, self._is_start_cancelled):
                raise self._unreachable()
            session.call(lambda: client.ensure_path_async(self._chroot))
        finally:
            session.close()

    def _unreachable(self) -> ConnectionLost | StartCancelled:
        if self._is_start_cancelled():
            return StartCancelled(f"{self.address}: no ZooKeeper server has answered")
        return ConnectionLost(f"{self.address}: no ZooKeeper server answers within {self._connection_timeout_ms} ms")

    # -- reading ----------------------------------------------------------------------------------------

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        return self._read(self._live_session(), check_path(path), watch)

    def _read(self, session: Session, path: str, watch: Watch | None) -> Node | None:
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

    def _get(self, session: Session, path: str, watch: Watch | None) -> Node:
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
            except Unimplemented:
                self._has_multi_read = False  # the connection is now to a server of another version
        for begin in range(0, len(paths), _MAX_IN_FLIGHT):
            some = paths[begin : begin + _MAX_IN_FLIGHT]
            if watches:
                nodes += self._get_and_watch(session, some, watches[begin : begin + _MAX_IN_FLIGHT])
            else:
                starts = [partial(session.client.get_async, path) for path in some]
                nodes += [_node_or_none(answer) for answer in session.call_many(starts, NoNode)]
        return nodes

    def _multi_read(self, session: Session, paths: Sequence[str]) -> list[Node | None]:
        """Raises Unimplemented."""
        pieces = [paths[begin : begin + _MAX_READ] for begin in range(0, len(paths), _MAX_READ)]
        answers = session.call_many([partial(session.read, piece) for piece in pieces])
        nodes: list[Node | None] = []
        for path, node in zip(paths, chain.from_iterable(answers), strict=True):
            if isinstance(node, Exception):
                raise store_error(node, path)
            nodes.append(node)
        return nodes

    def _get_and_watch(self, session: Session, paths: Sequence[str], watches: Sequence[Watch]) -> Iterator[Node | None]:
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

    def children_created(self, path: str) -> int:
        session = self._live_session()
        stat = session.call(lambda: session.client.exists_async(check_path(path)))
        if stat is None:
            raise NoNode(path)
        # What a client gets counts deletions too.  Source: DataNode.copyStat, ZooKeeper 3.9.
        return int(stat.cversion + stat.numChildren) // 2

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

    def _transaction(self, session: Session, operations: Sequence[Operation]) -> TransactionRequest:
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
                case CheckChildrenCreated(path, children_created):
                    name = f"{path.rstrip('/')}/{_CHECK_NAME}"
                    transaction.create(name, sequence=True)
                    transaction.delete(f"{name}{children_created:010}")
        return transaction

    # -- session ----------------------------------------------------------------------------------------

    @property
    def session_id(self) -> int:
        return self._session.session_id

    @property
    def is_session_certain(self) -> bool:
        session = self._session
        return not session.has_expired and session.heartbeats.is_recent

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

    def sync(self) -> None:
        session = self._live_session()
        session.call(lambda: session.client.sync_async("/"))

    def ping(self, timeout_ms: float) -> None:
        self._live_session().ping(timeout_ms)

    def close(self) -> None:
        """End the session.  In a forked child nothing: the connection belongs to the parent."""
        self._close(Session.close)

    def abandon(self) -> None:
        self._close(Session.abandon)

    def _close(self, end: Callable[[Session], None]) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        end(self._session)
        self._deliverer.shutdown()

    def _live_session(self) -> Session:
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
    remaining, own = iter(answers), []
    for index, operation in enumerate(operations):
        answer = next(remaining)
        if isinstance(operation, CheckChildrenCreated):
            deleted = next(remaining)
            if isinstance(deleted, exceptions.NoNodeError):
                raise MultiFailed(index, BadVersion(f"{operation.path}: children were created meanwhile"))
            answer = answer if isinstance(answer, Exception) else deleted
        if isinstance(answer, Exception) and not isinstance(answer, _NOT_THE_CAUSE):
            raise MultiFailed(index, store_error(answer, operation.path))
        own.append(answer)
    return [_result(operation, answer) for operation, answer in zip(operations, own, strict=True)]


def _result(operation: Operation, answer: Any) -> Result:
    if isinstance(operation, Create):
        path: str = answer
        return path
    if isinstance(operation, SetData):
        version: int = answer.version
        return version
    return None
