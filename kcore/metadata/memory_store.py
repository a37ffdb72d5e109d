"""MetadataStore in memory: several sessions on one tree, for tests and the simulator.

Nothing runs by itself: watches and session events wait until somebody calls pump(), or go to an executor; a session
expires when a test calls expire().  The same calls in the same order give the same answers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from kcore.metadata.node_changes import ROOT, NodeChanges, NodeRow
from kcore.metadata.store import (
    ConnectionLost,
    Delete,
    MetadataStore,
    Node,
    NoNode,
    Operation,
    Result,
    SessionEvent,
    SessionExpired,
    SessionListener,
    StoreClosed,
    StoreError,
    Watch,
    check_path,
    parent_of,
)
from kcore.metadata.watch_table import WatchTable, deliver

#: Runs a function, now or later, on any thread.
Executor = Callable[[Callable[[], object]], None]


class MemoryTree:
    """The nodes and the sessions on them: what a ZooKeeper ensemble is to its clients.  Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._rows: dict[str, NodeRow] = {"/": ROOT}
        self._children: dict[str, set[str]] = {}
        self._zxid = 0
        self._last_session_id = 0
        self._stores: list[MemoryStore] = []
        self._sessions: dict[int, MemoryStore] = {}

    def pump(self) -> int:
        """Deliver events until none is left, the stores in the order in which they were made; how many they were."""
        delivered = 0
        while number := sum(store.pump() for store in list(self._stores)):
            delivered += number
        return delivered

    def expire(self, session_id: int) -> None:
        """End a session as a server does after its timeout.  No error if it has ended."""
        with self.lock:
            store = self._sessions.get(session_id)
            if store is None:
                return
            self._end_session(session_id)
            store._expire()
        self._notify()

    # -- for MemoryStore --------------------------------------------------------------------------------

    def _row(self, path: str) -> NodeRow | None:
        return self._rows.get(path)

    def _names(self, path: str) -> list[str]:
        return sorted(self._children.get(path, ()))

    def _apply(self, operations: Sequence[Operation], session_id: int) -> list[Result]:
        changes = NodeChanges(self._row, self._zxid + 1, session_id)
        results = changes.apply(operations)
        if changes.rows:
            self._zxid += 1
        for path, row in changes.rows.items():
            names = self._children.setdefault(parent_of(path), set()) if path != "/" else set()
            if row is None:
                self._rows.pop(path, None)
                names.discard(path.rpartition("/")[2])
            else:
                self._rows[path] = row
                names.add(path.rpartition("/")[2])
        return results

    def _begin_session(self, store: MemoryStore) -> int:
        self._last_session_id += 1
        self._sessions[self._last_session_id] = store
        return self._last_session_id

    def _end_session(self, session_id: int) -> None:
        if self._sessions.pop(session_id, None) is not None:
            owned = [path for path, row in self._rows.items() if row.ephemeral_owner == session_id]
            self._apply([Delete(path) for path in owned], session_id)

    def _notify(self) -> None:
        """Hand the delivery to the executors.  Called without the lock."""
        for store in list(self._stores):
            store._notify()


class MemoryStore(MetadataStore):
    """One session on a tree, a new one by default.  executor: gets pump() after each change that may concern this
    session; None: the maker of the store calls pump() of it or of the tree."""

    def __init__(self, tree: MemoryTree | None = None, executor: Executor | None = None) -> None:
        self.tree = tree if tree is not None else MemoryTree()
        self._executor = executor
        self._watches = WatchTable()
        self._listeners: list[SessionListener] = []
        self._session_events: deque[SessionEvent] = deque()
        self._is_connected = True
        self._has_expired = False
        #: Of one expiry, EXPIRED is reported once.
        self._is_expiry_told = False
        self._is_closed = False
        with self.tree.lock:
            self.tree._stores.append(self)
            self._session_id = self.tree._begin_session(self)

    # -- reading ----------------------------------------------------------------------------------------

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        with self.tree.lock:
            self._check_session()
            row = self.tree._row(path)
            if row is None:
                check_path(path)
            if watch is not None:
                self._watches.watch_data(path, row, watch)
            return row.node() if row is not None else None

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        with self.tree.lock:
            self._check_session()
            row = self.tree._row(path)
            if row is None:
                check_path(path)
            if watch is not None:
                if row is None:
                    raise NoNode(path)
                self._watches.watch_children(path, row, watch)
            return self.tree._names(path)

    def children_created(self, path: str) -> int:
        with self.tree.lock:
            self._check_session()
            row = self.tree._row(path)
        if row is None:
            raise NoNode(check_path(path))
        return row.children_created

    # -- changes ----------------------------------------------------------------------------------------

    def multi(self, operations: Sequence[Operation]) -> list[Result]:
        with self.tree.lock:
            self._check_session()
            results = self.tree._apply(operations, self._session_id)
        self.tree._notify()
        return results

    # -- session ----------------------------------------------------------------------------------------

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def is_session_certain(self) -> bool:
        return not self._has_expired

    def add_session_listener(self, listener: SessionListener) -> None:
        with self.tree.lock:
            self._listeners.append(listener)

    def new_session(self) -> int:
        with self.tree.lock:
            if not self._has_expired:
                raise StoreError(f"session {self._session_id} has not expired")
            self._has_expired = False
            self._session_id = self.tree._begin_session(self)
            self._session_events.append(SessionEvent.CONNECTED)
        self._notify()
        return self._session_id

    def close(self) -> None:
        with self.tree.lock:
            if self._is_closed:
                return
            self._is_closed = True
            self.tree._stores.remove(self)
            self.tree._end_session(self._session_id)
        self.tree._notify()

    def abandon(self) -> None:
        """The session lives on until somebody calls MemoryTree.expire()."""
        with self.tree.lock:
            if not self._is_closed:
                self._is_closed = True
                self.tree._stores.remove(self)

    # -- what happens to a session ----------------------------------------------------------------------

    def disconnect(self) -> None:
        """Cut this client off: its calls raise ConnectionLost, and its watches wait, until reconnect()."""
        with self.tree.lock:
            self._is_connected = False
            self._session_events.append(SessionEvent.SUSPENDED)
        self._notify()

    def reconnect(self) -> None:
        """The session goes on, or turns out to have expired meanwhile."""
        with self.tree.lock:
            self._is_connected = True
            if not self._has_expired:
                self._session_events.append(SessionEvent.CONNECTED)
            elif not self._is_expiry_told:
                self._is_expiry_told = True
                self._session_events.append(SessionEvent.EXPIRED)
        self._notify()

    def pump(self) -> int:
        """Deliver this session's events that are due; how many they were."""
        with self.tree.lock:
            if self._is_closed:
                return 0
            session_events = list(self._session_events)
            self._session_events.clear()
            listeners = list(self._listeners)
            due = self._watches.take_due(list(self._watches.paths()), self.tree._row) if self._is_connected else []
        # Outside the lock: a watch reads again, and whoever holds a lock of its own may be calling the store.
        deliver(session_events, listeners, due)
        return len(session_events) + len(due)

    def _expire(self) -> None:
        self._has_expired = True
        self._is_expiry_told = self._is_connected
        self._watches.clear()
        if self._is_connected:
            self._session_events.append(SessionEvent.EXPIRED)

    def _notify(self) -> None:
        if self._executor is not None and (self._session_events or self._watches):
            self._executor(self.pump)

    def _check_session(self) -> None:
        if self._is_closed:
            raise StoreClosed("the store is closed")
        if not self._is_connected:
            raise ConnectionLost(f"session {self._session_id}")
        if self._has_expired:
            raise SessionExpired(f"session {self._session_id}")
