"""MetadataStore on SQLite, for one broker or the brokers of one machine.

One row per node.  Write-ahead log, and synchronous=FULL: a change is on the disk when its call returns, so that neither
a topic nor a block of producer ids is forgotten when the machine stops.

Watches see the changes of other processes by polling.  A session is a row with a heartbeat counter: who polls and sees
it stand still for the session's timeout, by its own clock, ends that session and deletes its ephemeral nodes.  A store
that has left no watch and made no ephemeral node has neither a row nor a thread, and costs nothing while it is idle.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from kcore.common.shutdownable_thread import ShutdownableThread
from kcore.common.time import SYSTEM_TIME, Time
from kcore.metadata.node_changes import ROOT, NodeChanges, NodeRow
from kcore.metadata.store import (
    Create,
    Delete,
    MetadataStore,
    MultiFailed,
    Node,
    NoNode,
    Operation,
    Result,
    SessionEvent,
    SessionExpired,
    SessionListener,
    StoreError,
    Watch,
    WatchEvent,
    check_path,
    parent_of,
)
from kcore.metadata.watch_table import WatchTable, deliver

logger = logging.getLogger(__name__)

#: The file, in a broker's data directory.
FILE_NAME = "kcore-metadata.db"
#: Kafka's zookeeper.session.timeout.ms.
SESSION_TIMEOUT_MS = 18_000
#: A poll costs some 0.2 ms of a processor that was idle, which is much of what an idle broker costs.
QUIET_AFTER_MS, QUIET_POLL_MS = 10_000, 250

_SCHEMA_VERSION = 2
_COLUMNS = ", ".join(NodeRow._fields)
_SCHEMA = (
    "CREATE TABLE node (path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL, version INTEGER NOT NULL, "
    "czxid INTEGER NOT NULL, mzxid INTEGER NOT NULL, pzxid INTEGER NOT NULL, children_created INTEGER NOT NULL, "
    "num_children INTEGER NOT NULL, ephemeral_owner INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX node_parent ON node (parent)",
    "CREATE INDEX node_owner ON node (ephemeral_owner) WHERE ephemeral_owner != 0",
    "CREATE TABLE session (id INTEGER PRIMARY KEY, timeout_ms INTEGER NOT NULL, heartbeat INTEGER NOT NULL)",
    # One row: how many changes there were, and the last session's id.
    "CREATE TABLE counter (zxid INTEGER NOT NULL, session_id INTEGER NOT NULL)",
    "INSERT INTO counter VALUES (1, 0)",
)


def _write(rows: int) -> str:
    """The statement that writes so many nodes."""
    values = f"({', '.join('?' * (2 + len(ROOT)))})"
    return (
        f"INSERT INTO node (path, parent, {_COLUMNS}) VALUES {', '.join([values] * rows)} "
        f"ON CONFLICT (path) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in NodeRow._fields)}"
    )


_WRITE = _write(1)
# Each statement gives the GIL up, and a busy thread may keep it for a switch interval.  Ten parameters a node: SQLite
# before 3.32 allows 999.
_MANY = 64
_WRITE_MANY = _write(_MANY)
_NODE_COLUMNS = ", ".join(Node._fields)
_GET = f"SELECT {_NODE_COLUMNS} FROM node WHERE path = ?"
#: SQLite before 3.32 allows 999 parameters.
_MANY_PATHS = 500
#: Version 1 had no root, no counters and no sessions.
_FROM_VERSION_1 = (
    "ALTER TABLE node RENAME TO old_node",
    "DROP INDEX node_parent",
    *_SCHEMA,
    f"INSERT INTO node (path, parent, {_COLUMNS}) SELECT path, parent, data, version, 1, 1, 1, "
    "(SELECT count(*) FROM old_node child WHERE child.parent = old_node.path), "
    "(SELECT count(*) FROM old_node child WHERE child.parent = old_node.path), 0 FROM old_node",
    "INSERT OR REPLACE INTO node SELECT '/', '', x'', 0, 0, 0, 1, count(*), count(*), 0 FROM old_node "
    "WHERE parent = '/'",
    "DROP TABLE old_node",
)


class EmbeddedStore(MetadataStore):
    """A store in one file.  Thread-safe: a lock guards the one connection.  Other processes may open the same file.

    The connection is never lost, so sessions are not suspended.  A thread polls from the first watch or ephemeral node
    on: every poll_interval_ms while there are watches (QUIET_POLL_MS once nothing has changed for QUIET_AFTER_MS),
    else three times per session timeout.  With poll_interval_ms None there is no thread, and the owner calls poll().
    """

    def __init__(
        self,
        path: str,
        *,
        durable: bool = True,
        busy_timeout_ms: int = 10_000,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        poll_interval_ms: float | None = 100,
        time: Time = SYSTEM_TIME,
    ) -> None:
        """Open or create the file.  durable=False leaves flushing to the system: for a directory that is
        thrown away at the end.  Raises StoreError for a file that is not such a store."""
        self.path = path
        self._durable = durable
        self._time = time
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._session_timeout_ms = session_timeout_ms
        self._poll_interval_ms = poll_interval_ms
        self._poller: _Poller | None = None
        self._watches = WatchTable()
        self._listeners: list[SessionListener] = []
        self._session_events: list[SessionEvent] = []
        # None: no row yet, so nobody can end the session.
        self._session_id: int | None = None
        self._has_expired = False
        self._last_heartbeat_ms = 0.0
        # Session -> its heartbeat and since when it has stood still.
        self._observed: dict[int, tuple[int, float]] = {}
        self._watched_zxid = -1
        self._last_change_ms = time.hi_res_clock_ms()
        # As of the last poll: SQLite's counter of the others' commits, and the sessions.
        self._data_version = -1
        self._sessions: list[tuple[int, int, int]] = []
        self._has_written = False  # since the last poll
        self._is_closed = False
        try:
            self._db = sqlite3.connect(
                path,
                timeout=busy_timeout_ms / 1000,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=32,
            )
        except sqlite3.Error as error:
            raise StoreError(f"{path}: {error}") from error
        try:
            # Before the first write: creating a write-ahead log for a scratch file need not reach the disk.
            self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._create_schema()
        except sqlite3.Error as error:
            self._db.close()
            raise StoreError(f"{path}: {error}") from error
        except BaseException:
            self._db.close()
            raise

    def _create_schema(self) -> None:
        if self._schema_version() != _SCHEMA_VERSION:
            with self._transaction():
                version = self._schema_version()  # another process may have been faster
                if version not in (0, 1, _SCHEMA_VERSION):
                    raise StoreError(f"{self.path}: schema version {version}, this is for {_SCHEMA_VERSION}")
                if version != _SCHEMA_VERSION:
                    for statement in _FROM_VERSION_1 if version == 1 else _SCHEMA:
                        self._db.execute(statement)
                    if version == 0:
                        self._db.execute(_WRITE, ("/", "", *ROOT))
                    self._db.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")

    def _schema_version(self) -> int:
        version: int = self._db.execute("PRAGMA user_version").fetchone()[0]
        return version

    # -- reading ----------------------------------------------------------------------------------------

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        with self._session():
            if watch is None:
                node = self._db.execute(_GET, (check_path(path),)).fetchone()
                return Node._make(node) if node is not None else None
            row = self._row(check_path(path))
            self._watches.watch_data(path, row, watch)
            self._start_polling()
        return row.node() if row is not None else None

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        check_path(path)
        with self._session():
            if watch is not None:
                # Before the names: a child that comes in between is reported once more, not missed.
                row = self._row(path)
                if row is None:
                    raise NoNode(path)
                self._watches.watch_children(path, row, watch)
                self._start_polling()
            rows = self._db.execute("SELECT path FROM node WHERE parent = ?", (path,)).fetchall()
        return sorted(child.rpartition("/")[2] for (child,) in rows)

    def get_many(self, paths: Sequence[str], watches: Sequence[Watch] = ()) -> list[Node | None]:
        if watches:
            with self._session():
                return super().get_many(paths, watches)
        nodes: dict[str, Node] = {}
        for path in paths:
            check_path(path)
        with self._session():
            for begin in range(0, len(paths), _MANY_PATHS):
                some = paths[begin : begin + _MANY_PATHS]
                marks = ", ".join("?" * len(some))
                rows = self._db.execute(f"SELECT path, {_NODE_COLUMNS} FROM node WHERE path IN ({marks})", some)
                nodes.update((path, Node._make(columns)) for path, *columns in rows)
        return [nodes.get(path) for path in paths]

    # -- changes ----------------------------------------------------------------------------------------

    def multi(self, operations: Sequence[Operation]) -> list[Result]:
        is_ephemeral = any(isinstance(operation, Create) and operation.ephemeral for operation in operations)
        with self._session():
            if is_ephemeral:
                self._open_session()
            with self._transaction():
                self._check_own_row()
                results = self._apply(operations)
            self._wake_up()
        return results

    def multi_many(self, changes: Sequence[Sequence[Operation]]) -> list[list[Result] | MultiFailed]:
        """In one transaction: the disk is waited for once."""
        answers: list[list[Result] | MultiFailed] = []
        with self._session():
            if any(isinstance(o, Create) and o.ephemeral for operations in changes for o in operations):
                self._open_session()
            with self._transaction():
                self._check_own_row()
                for operations in changes:
                    try:
                        answers.append(self._apply(operations))
                    except MultiFailed as error:
                        answers.append(error)
            self._wake_up()
        return answers

    def _apply(self, operations: Sequence[Operation]) -> list[Result]:
        """In a transaction.  Raises MultiFailed before anything was written."""
        (zxid,) = self._db.execute("SELECT zxid FROM counter").fetchone()
        changes = NodeChanges(self._row, zxid + 1, self._session_id or 0)
        results = changes.apply(operations)
        if changes.rows:
            self._db.execute("UPDATE counter SET zxid = ?", (zxid + 1,))
            written: list[tuple[object, ...]] = []
            for path, row in changes.rows.items():
                if row is None:
                    self._db.execute("DELETE FROM node WHERE path = ?", (path,))
                else:
                    written.append((path, "" if path == "/" else parent_of(path), *row))
            while len(written) >= _MANY:
                self._db.execute(_WRITE_MANY, list(chain.from_iterable(written[-_MANY:])))
                del written[-_MANY:]
            for values in written:
                self._db.execute(_WRITE, values)
        return results

    # -- session ----------------------------------------------------------------------------------------

    @property
    def session_id(self) -> int:
        with self._session():
            return self._open_session()

    def add_session_listener(self, listener: SessionListener) -> None:
        with self._lock:
            self._listeners.append(listener)

    def new_session(self) -> int:
        with self._errors(), self._lock:
            if not self._has_expired:
                raise StoreError(f"{self.path}: session {self._session_id} has not expired")
            self._has_expired = False
            self._session_events.append(SessionEvent.CONNECTED)
            session_id = self._open_session()
            self._wake_up()
        return session_id

    def close(self) -> None:
        """Close the file.  In a forked child nothing: SQLite's locks and log belong to the parent."""
        self._close(ends_session=True)

    def abandon(self) -> None:
        """Close the file as the end of a killed process does: the session lives on until the others, who see it silent
        for its timeout, end it."""
        self._close(ends_session=False)

    def _close(self, *, ends_session: bool) -> None:
        if os.getpid() != self._pid:
            return
        poller = self._poller
        if poller is not None:
            poller.shutdown()
        with self._errors(), self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                if ends_session and self._session_id is not None and not self._has_expired:
                    with self._transaction():
                        self._end_session(self._session_id)
            finally:
                self._db.close()

    def _open_session(self) -> int:
        """Give the session its row, from where on it has to be kept alive; its id."""
        if self._session_id is None:
            with self._transaction():
                self._db.execute("UPDATE counter SET session_id = session_id + 1")
                (session_id,) = self._db.execute("SELECT session_id FROM counter").fetchone()
                self._db.execute("INSERT INTO session VALUES (?, ?, 0)", (session_id, self._session_timeout_ms))
            self._session_id = session_id
            self._last_heartbeat_ms = self._time.hi_res_clock_ms()
            self._start_polling()
        assert self._session_id is not None
        return self._session_id

    def _end_session(self, session_id: int) -> None:
        """In a transaction: delete a session with its nodes."""
        owned = self._db.execute("SELECT path FROM node WHERE ephemeral_owner = ?", (session_id,)).fetchall()
        self._apply([Delete(path) for (path,) in owned])
        self._db.execute("DELETE FROM session WHERE id = ?", (session_id,))

    def _check_own_row(self) -> None:
        """Raises SessionExpired if another store has ended this session."""
        if self._session_id is not None:
            alive = self._db.execute("SELECT 1 FROM session WHERE id = ?", (self._session_id,)).fetchone()
            if alive is None:
                raise self._expired()

    def _expired(self) -> SessionExpired:
        error = SessionExpired(f"{self.path}: session {self._session_id}")
        self._has_expired = True
        self._session_id = None
        self._watches.clear()
        self._session_events.append(SessionEvent.EXPIRED)
        self._wake_up()
        return error

    # -- polling ----------------------------------------------------------------------------------------

    def poll(self) -> None:
        """One step: keep this session alive, end those that nobody keeps alive, call the watches that are due."""
        with self._errors(), self._lock:
            now_ms = self._time.hi_res_clock_ms()
            if not self._has_expired:
                self._beat(now_ms)
            # Nobody has committed anything in nearly all polls; then this is their only statement.
            (data_version,) = self._db.execute("PRAGMA data_version").fetchone()
            if data_version != self._data_version:
                self._sessions = self._db.execute("SELECT id, timeout_ms, heartbeat FROM session").fetchall()
            self._end_silent_sessions(now_ms)
            is_written = self._has_written or data_version != self._data_version
            due = self._take_due() if self._watches and is_written else []
            # Here, so that a poll that fails is repeated.
            self._data_version, self._has_written = data_version, False
            session_events, self._session_events = self._session_events, []
            listeners = list(self._listeners)
        # Outside the lock: a watch reads again, and whoever holds a lock of its own may be calling the store.
        deliver(session_events, listeners, due)

    def _beat(self, now_ms: float) -> None:
        if self._session_id is None or now_ms - self._last_heartbeat_ms < self._session_timeout_ms / 3:
            return
        # A heartbeat that is lost in a power failure does no harm.
        self._db.execute("PRAGMA synchronous=OFF")
        try:
            alive = self._db.execute("UPDATE session SET heartbeat = heartbeat + 1 WHERE id = ?", (self._session_id,))
        finally:
            self._db.execute(f"PRAGMA synchronous={'FULL' if self._durable else 'OFF'}")
        self._last_heartbeat_ms = now_ms
        if not alive.rowcount:
            self._expired()

    def _end_silent_sessions(self, now_ms: float) -> None:
        observed = {}
        for session_id, timeout_ms, heartbeat in self._sessions:
            if session_id == self._session_id:
                continue
            before, since_ms = self._observed.get(session_id, (heartbeat, now_ms))
            if before != heartbeat:
                since_ms = now_ms
            if now_ms - since_ms < timeout_ms:
                observed[session_id] = heartbeat, since_ms
                continue
            with self._transaction():
                still = self._db.execute("SELECT heartbeat FROM session WHERE id = ?", (session_id,)).fetchone()
                if still == (heartbeat,):
                    self._end_session(session_id)
        self._observed = observed
        self._sessions = [session for session in self._sessions if session[0] in observed]

    def _take_due(self) -> list[tuple[Watch, WatchEvent]]:
        """The watches that are due if a node has changed since the last poll: a lookup per watched node, about 5 us."""
        (zxid,) = self._db.execute("SELECT zxid FROM counter").fetchone()
        if zxid == self._watched_zxid:
            return []
        due = self._watches.take_due(list(self._watches.paths()), self._row)
        self._watched_zxid = zxid
        self._last_change_ms = self._time.hi_res_clock_ms()
        return due

    def _start_polling(self) -> None:
        if self._poll_interval_ms is None:
            return
        self._last_change_ms = self._time.hi_res_clock_ms()
        if self._poller is None:
            self._poller = _Poller(self)
            self._poller.start()
        self._poller.wake_up()

    def _wake_up(self) -> None:
        """Deliver soon what this store's own call has changed."""
        if self._poller is not None and (self._watches or self._session_events):
            self._poller.wake_up()

    def _poll_delay_ms(self) -> float | None:
        """Until the next poll; None: not before something happens here."""
        assert self._poll_interval_ms is not None
        if self._watches:
            quiet_ms = self._time.hi_res_clock_ms() - self._last_change_ms
            return self._poll_interval_ms if quiet_ms < QUIET_AFTER_MS else max(self._poll_interval_ms, QUIET_POLL_MS)
        if self._session_id is not None:
            return self._session_timeout_ms / 3
        return None

    # -- SQLite -----------------------------------------------------------------------------------------

    def _row(self, path: str) -> NodeRow | None:
        row = self._db.execute(f"SELECT {_COLUMNS} FROM node WHERE path = ?", (path,)).fetchone()
        return NodeRow._make(row) if row is not None else None

    @contextmanager
    def _session(self) -> Iterator[None]:
        """The lock, for a call that a session must be alive for."""
        with self._lock:
            if self._has_expired:
                raise SessionExpired(self.path)
            try:
                self._check_own_row()
                yield
            except sqlite3.Error as error:
                raise StoreError(f"{self.path}: {error}") from error

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # IMMEDIATE: a reader that later wants to write could not wait for another process's writer.
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
            self._has_written = True
        except BaseException:
            # A commit that fails for lack of room may have ended the transaction, or not.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


class _Poller(ShutdownableThread):
    def __init__(self, store: EmbeddedStore) -> None:
        super().__init__("kcore-metadata-poller")
        self._store = store
        self._woken = threading.Event()

    def do_work(self) -> None:
        delay_ms = self._store._poll_delay_ms()
        self._woken.wait(None if delay_ms is None else delay_ms / 1000)
        self._woken.clear()
        if self.is_running:
            try:
                self._store.poll()
            except StoreError:
                logger.exception("%s: the poll failed, and is tried again", self.name)

    def wake_up(self) -> None:
        self._woken.set()
