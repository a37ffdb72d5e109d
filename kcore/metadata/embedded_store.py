"""MetadataStore on SQLite, for one broker or the brokers of one machine.

One row per node.  Write-ahead log, and synchronous=FULL: a change is on the disk when its call returns, so that neither
a topic nor a block of producer ids is forgotten when the machine stops.

Watches see the changes of other processes by polling.  A session is a row with a heartbeat counter: who polls and sees
it stand still for the session's timeout, by its own clock, ends that session and deletes its ephemeral nodes; at once
if the session's process has ended (session_locks.py).  Time in which only the one that polls could write does not count
(session_silence.py).  Nor does time in which no process could (another program has locked the file): all counts of
silence begin again after it.  A store that has left no watch and made no ephemeral node has
neither a row nor a thread, and costs nothing while it is idle.

A node whose path ZooKeeper would refuse is not made, but earlier versions have made some: where there is one, it can be
read, changed and deleted.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from kcore.common.lock_holders import writer_of
from kcore.common.shutdownable_thread import ShutdownableThread
from kcore.common.text import bytes_of
from kcore.common.time import SYSTEM_TIME, Time
from kcore.errors import StartCancelled
from kcore.metadata import store_schema
from kcore.metadata.node_changes import NodeChanges, NodeRow
from kcore.metadata.session_locks import SessionLocks
from kcore.metadata.session_silence import SessionSilence, StoredSession
from kcore.metadata.store import (
    ConnectionLost,
    Create,
    Delete,
    ForeignFile,
    MetadataStore,
    MultiFailed,
    Node,
    NoNode,
    Operation,
    Result,
    SessionEvent,
    SessionExpired,
    SessionListener,
    StoreClosed,
    StoreError,
    StoreFileGone,
    StoreLock,
    StoreLocked,
    Watch,
    WatchEvent,
    check_path,
    parent_of,
)
from kcore.metadata.store_schema import NODE_COLUMNS, check_is_store, pragma, write_nodes
from kcore.metadata.watch_table import WatchTable, deliver

logger = logging.getLogger(__name__)

#: The file, in a broker's data directory.
FILE_NAME = "kcore-metadata.db"
#: Kafka's zookeeper.session.timeout.ms.
SESSION_TIMEOUT_MS = 18_000
#: A poll costs some 0.2 ms of a processor that was idle, which is much of what an idle broker costs.
QUIET_AFTER_MS, QUIET_POLL_MS = 10_000, 250

#: How long a call waits for another program that has locked the file.
_BUSY_TIMEOUT_MS = 10_000
#: The longest wait of a poll for another program that has locked the file: readers of this store wait for the poll.
_POLL_BUSY_TIMEOUT_MS = 500
#: A call waits for another program in slices, and ends its wait once a ping() has failed meanwhile.
_WAIT_SLICE_MS = 250
#: A wait that is longer is logged.
_LOGGED_WAIT_MS = 1000
_OPEN_RETRY_MS = 50
#: What SQLite answers while the file cannot be had; a call a moment later may succeed.  FULL and READONLY: of a disk.
_AWAY_CODES = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
}

#: What a disk may cause that is full.
_DISK_CODES = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}

_WRITE = write_nodes(1)
# Each statement gives the GIL up, and a busy thread may keep it for a switch interval.  Ten parameters a node: SQLite
# before 3.32 allows 999.
_MANY = 64
_WRITE_MANY = write_nodes(_MANY)
_NODE_COLUMNS = ", ".join(Node._fields)
_GET = f"SELECT {_NODE_COLUMNS} FROM node WHERE path = ?"
#: SQLite before 3.32 allows 999 parameters.
_MANY_PATHS = 500


class EmbeddedStore(MetadataStore):
    """A store in one file.  Thread-safe: a lock guards the one connection.  Other processes may open the same file.

    Calls raise StoreLocked while another program has the file locked for longer than busy_timeout_ms (before
    end_start(): connection_timeout_ms; after a ping() that fails a quarter of a second, until a change succeeds again),
    ConnectionLost on disk errors; StoreFileGone, and the session is suspended, once the file was deleted or replaced.

    A thread polls from the first watch or ephemeral node on: every poll_interval_ms while there are watches
    (QUIET_POLL_MS once nothing has changed for QUIET_AFTER_MS), else three times per session timeout.  With
    poll_interval_ms None there is no thread, and the owner calls poll().
    """

    def __init__(
        self,
        path: str,
        *,
        durable: bool = True,
        busy_timeout_ms: int = _BUSY_TIMEOUT_MS,
        connection_timeout_ms: int | None = None,
        is_start_cancelled: Callable[[], bool] = lambda: False,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        poll_interval_ms: float | None = 100,
        time: Time = SYSTEM_TIME,
    ) -> None:
        """Open or create the file.  durable=False leaves flushing to the system: for a directory that is
        thrown away at the end.  connection_timeout_ms: by default busy_timeout_ms.  is_start_cancelled: asked until
        end_start() while the file is locked.

        Raises ForeignFile for a file that is no store, NewerSchema for one that a later version of kcore has written
        (both are left as they are), ConnectionLost for one that stays locked for connection_timeout_ms, StartCancelled.
        """
        self.path = path
        self._durable = durable
        self._busy_timeout_ms = busy_timeout_ms if connection_timeout_ms is None else connection_timeout_ms
        self._busy_timeout_after_start_ms = busy_timeout_ms
        self._is_start_cancelled = is_start_cancelled
        # How long the call that has the lock waits for another program.
        self._wait_ms: float = min(self._busy_timeout_ms, _WAIT_SLICE_MS)
        # A ping() has failed, and no transaction has begun since.  Also set without the lock.
        self._is_away = False
        self._time = time
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._session_timeout_ms = session_timeout_ms
        self._poll_interval_ms = poll_interval_ms
        self._poller: _Poller | None = None
        self._watches = WatchTable()
        self._listeners: list[SessionListener] = []
        self._session_events: list[SessionEvent] = []
        # None: no row yet, so no other process can end the session.
        self._session_id: int | None = None
        self._has_expired = False
        self._session_locks = SessionLocks(path)
        self._last_heartbeat_ms = 0.0
        self._silence = SessionSilence()
        # The last poll has found the file locked.
        self._is_locked_out = False
        # Since when another program has the file locked, on SYSTEM_TIME's clock: a call has tried since then.
        self._locked_since_ms: float | None = None
        # Device and inode of the file, None for a database without a file.
        self._file_id: tuple[int, int] | None = None
        self._is_file_gone = False
        self._watched_zxid = -1
        self._last_change_ms = time.hi_res_clock_ms()
        # As of the last poll: SQLite's counter of the others' commits, and the sessions.
        self._data_version = -1
        self._sessions: list[StoredSession] = []
        self._has_written = False  # since the last poll
        self._is_closed = False
        try:
            self._db = sqlite3.connect(
                path,
                timeout=self._wait_ms / 1000,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=32,
            )
        except sqlite3.Error as error:
            raise self._store_error(error) from error
        try:
            self._set_up()
            self._set_wait(self._busy_timeout_ms)
            self._file_id = self._current_file_id()
        except sqlite3.Error as error:
            self._db.close()
            raise self._store_error(error) from error
        except BaseException:
            self._db.close()
            raise

    def _set_up(self) -> None:
        """Tried again while another program has the file locked: to change the journal's mode does not wait for it."""
        begin_ms = SYSTEM_TIME.hi_res_clock_ms()  # the other program does not know any other time
        is_logged = False
        while True:
            try:
                self._check_is_store()
                # Before the first write: creating a write-ahead log for a scratch file need not reach the disk.
                self._db.execute(f"PRAGMA synchronous={'FULL' if self._durable else 'OFF'}")
                self._db.execute("PRAGMA journal_mode=WAL")
                if not store_schema.has_schema(self._db):
                    with self._transaction():  # another process may have been faster
                        store_schema.create_schema(self._db)
                return
            except sqlite3.OperationalError as error:
                waited_ms = SYSTEM_TIME.hi_res_clock_ms() - begin_ms
                if _primary_code(error) != sqlite3.SQLITE_BUSY:
                    raise
                if waited_ms >= self._busy_timeout_ms:
                    waited = f"waited {waited_ms / 1000:.1f} s"
                    raise ConnectionLost(f"{self.path}: database is locked{self._holder()} ({waited})") from error
                self._check_start()
                if waited_ms >= _LOGGED_WAIT_MS and not is_logged:
                    is_logged = True
                    self._log_wait(self._busy_timeout_ms)
            SYSTEM_TIME.sleep(_OPEN_RETRY_MS)

    def _check_is_store(self) -> None:
        """Raises ForeignFile, NewerSchema.  It writes nothing."""
        self._db.execute("BEGIN")  # one moment: another process may be making the store
        try:
            names = self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            tables = {name for (name,) in names if not name.startswith("sqlite_")}
            application_id, version = pragma(self._db, "application_id"), pragma(self._db, "user_version")
            check_is_store(self.path, application_id, version, tables)
        finally:
            self._db.execute("ROLLBACK")

    # -- reading ----------------------------------------------------------------------------------------

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        with self._session():
            if watch is None:
                node = self._db.execute(_GET, (path,)).fetchone()
                if node is None:
                    check_path(path)
                return Node._make(node) if node is not None else None
            row = self._row(path)
            if row is None:
                check_path(path)
            self._watches.watch_data(path, row, watch)
            self._start_polling()
        return row.node() if row is not None else None

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        with self._session():
            if watch is not None:
                # Before the names: a child that comes in between is reported once more, not missed.
                row = self._row(path)
                if row is None:
                    raise NoNode(check_path(path))
                self._watches.watch_children(path, row, watch)
                self._start_polling()
            rows = self._db.execute("SELECT path FROM node WHERE parent = ?", (path,)).fetchall()
            # "" stands for the root's parent.
            if (not rows or not path) and watch is None and self._row(path) is None:
                check_path(path)
        return sorted(child.rpartition("/")[2] for (child,) in rows)

    def children_created(self, path: str) -> int:
        with self._session():
            row = self._row(path)
        if row is None:
            raise NoNode(check_path(path))
        return row.children_created

    def get_many(self, paths: Sequence[str], watches: Sequence[Watch] = ()) -> list[Node | None]:
        if watches:
            with self._session():
                return super().get_many(paths, watches)
        nodes: dict[str, Node] = {}
        with self._session():
            for begin in range(0, len(paths), _MANY_PATHS):
                some = paths[begin : begin + _MANY_PATHS]
                marks = ", ".join("?" * len(some))
                rows = self._db.execute(f"SELECT path, {_NODE_COLUMNS} FROM node WHERE path IN ({marks})", some)
                nodes.update((path, Node._make(columns)) for path, *columns in rows)
        for path in paths:
            if path not in nodes:
                check_path(path)
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

    @property
    def is_session_certain(self) -> bool:
        # Without the lock, which others may hold for as long as the file is locked.
        if self._has_expired:
            return False
        silent_ms = self._time.hi_res_clock_ms() - self._last_heartbeat_ms
        return self._session_id is None or silent_ms < self._session_timeout_ms

    def add_session_listener(self, listener: SessionListener) -> None:
        with self._lock:
            self._listeners.append(listener)

    def new_session(self) -> int:
        with self._errors(), self._lock:
            if not self._has_expired:
                raise StoreError(f"{self.path}: session {self._session_id} has not expired")
            # First its row: if that cannot be written, the session is still expired, and the caller tries again.
            session_id = self._open_session()
            self._has_expired = False
            self._session_events.append(SessionEvent.CONNECTED)
            self._wake_up()
        return session_id

    def end_start(self) -> None:
        with self._errors(), self._lock:
            self._is_start_cancelled = lambda: False
            self._busy_timeout_ms = self._busy_timeout_after_start_ms
            self._set_wait(self._busy_timeout_ms)

    def ping(self, timeout_ms: float) -> None:
        """Whether the file can be written.  A read does not show it: it goes on while a program has locked the file."""
        if self._is_away:
            timeout_ms = min(timeout_ms, _WAIT_SLICE_MS)
        if (since_ms := self._locked_since_ms) is not None:  # others have waited a part of that time already
            timeout_ms = max(min(timeout_ms, _WAIT_SLICE_MS), timeout_ms - self._locked_ms(since_ms))
        if not self._lock.acquire(timeout=timeout_ms / 1000):
            self._is_away = True  # the call that has the lock gives up at the end of a slice
            kind = ConnectionLost if self._locked_since_ms is None else StoreLocked
            raise kind(f"{self.path}: another call waits for the file")
        try:
            with self._errors(), self._brief_wait(timeout_ms) as wait, self._session():
                self._begin()
                self._db.execute("ROLLBACK")
            if wait.is_busy:
                raise StoreLocked(f"{self.path} is locked{self._holder()}")
        except ConnectionLost:
            self._is_away = True
            self._db.execute(f"PRAGMA busy_timeout={_WAIT_SLICE_MS}")
            raise
        finally:
            self._lock.release()

    def lock(self) -> StoreLock | None:
        if self._lock.acquire(timeout=_POLL_BUSY_TIMEOUT_MS / 1000):  # else the call that has it tries the file
            try:
                with self._errors(), self._brief_wait(_POLL_BUSY_TIMEOUT_MS):
                    self._begin()
                    self._db.execute("ROLLBACK")
            finally:
                self._lock.release()
        since_ms = self._locked_since_ms
        if since_ms is None:
            return None
        return StoreLock(self.path, SYSTEM_TIME.milliseconds() - int(self._locked_ms(since_ms)), self._writer())

    def close(self) -> None:
        """Close the file.  In a forked child nothing: SQLite's locks and log belong to the parent."""
        self._close(ends_session=True)

    def abandon(self) -> None:
        """Close the file as the end of a killed process does: the others end the session when they see it."""
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
                    with self._brief_wait() as wait, self._transaction():
                        self._end_session(self._session_id)
                    if wait.is_busy:
                        raise ConnectionLost(f"{self.path} is locked{self._holder()}")
                    self._session_locks.release()
            except (sqlite3.Error, StoreError) as error:
                # As after a lost connection: the others end the session.
                logger.warning("session %d could not be ended: %s", self._session_id, error)
            finally:
                self._session_locks.abandon()
                self._db.close()

    def _open_session(self) -> int:
        """Give the session its row, from where on it has to be kept alive; its id."""
        if self._session_id is None:
            try:
                with self._transaction():
                    self._db.execute("UPDATE counter SET session_id = session_id + 1")
                    (session_id,) = self._db.execute("SELECT session_id FROM counter").fetchone()
                    self._db.execute("INSERT INTO session VALUES (?, ?, 0)", (session_id, self._session_timeout_ms))
                    if self._file_id is not None:
                        self._session_locks.hold(session_id)
            except BaseException:
                self._session_locks.release()
                raise
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
        self._session_locks.release()
        self._watches.clear()
        self._session_events.append(SessionEvent.EXPIRED)
        self._wake_up()
        return error

    # -- polling ----------------------------------------------------------------------------------------

    def poll(self) -> None:
        """One step: keep this session alive, end those that no process keeps alive, call the watches that are due."""
        due: list[tuple[Watch, WatchEvent]] = []
        try:
            with self._errors(), self._lock:
                self._check_file()
                due = self._poll()
        except StoreError:
            self._silence.forget()  # whatever the others have done meanwhile, it was not seen
            raise
        finally:
            with self._lock:
                session_events, self._session_events = self._session_events, []
                listeners = list(self._listeners)
            # Outside the lock: a watch reads again, and whoever holds a lock of its own may be calling the store.
            deliver(session_events, listeners, due)

    def _poll(self) -> list[tuple[Watch, WatchEvent]]:
        now_ms = self._time.hi_res_clock_ms()
        can_write = self._beat(now_ms)
        # No process has committed anything in nearly all polls; then this is their only statement.
        data_version = pragma(self._db, "data_version")
        if data_version != self._data_version:
            rows = self._db.execute(f"SELECT {', '.join(StoredSession._fields)} FROM session")
            self._sessions = list(map(StoredSession._make, rows))
        can_write = can_write and self._end_silent_sessions(now_ms)
        if not can_write:
            self._silence.forget()
        if self._is_locked_out == can_write:
            self._is_locked_out = not can_write
            state = "can be written again" if can_write else f"is locked{self._holder() or ' by another program'}"
            logger.info("%s %s", self.path, state)
        is_written = self._has_written or data_version != self._data_version
        due = self._take_due() if self._watches and is_written else []
        # Here, so that a poll that fails is repeated.
        self._data_version, self._has_written = data_version, False
        return due

    def _beat(self, now_ms: float) -> bool:
        """Keep this session alive three times per timeout.  False if the file is locked: no session could do that.

        Without a session of its own, a poller that may have to end those of others finds that out by a transaction.
        After a poll that found the file locked the next one tries again, so that the session of a process that has
        ended is not left until the next heartbeat.
        """
        if now_ms - self._last_heartbeat_ms < self._session_timeout_ms / 3 and not self._is_locked_out:
            return True
        if self._has_expired or (self._session_id is None and not self._sessions):
            return True
        rows = 1
        with self._brief_wait() as wait:
            if self._session_id is None:
                self._begin()
                self._db.execute("ROLLBACK")
            else:
                with self._without_sync():  # a heartbeat that is lost in a power failure does no harm
                    beat = "UPDATE session SET heartbeat = heartbeat + 1 WHERE id = ?"
                    rows = self._db.execute(beat, (self._session_id,)).rowcount
            self._last_heartbeat_ms = now_ms
        self._note_lock(wait.is_busy)
        if not rows:
            self._expired()
        return not wait.is_busy

    def _end_silent_sessions(self, now_ms: float) -> bool:
        """False if the file is locked; then none was ended."""
        others = [session for session in self._sessions if session.id != self._session_id]
        silence_ms = self._silence.look(others, now_ms)
        left = []
        for session in others:
            is_abandoned = self._session_locks.is_abandoned(session.id)
            if silence_ms[session.id] < session.timeout_ms and not is_abandoned:
                left.append(session)
                continue
            # Not synced: others wait for it, and a session that a power failure brings back is ended again.
            with self._brief_wait() as wait, self._without_sync(), self._transaction():
                still = self._db.execute("SELECT heartbeat FROM session WHERE id = ?", (session.id,)).fetchone()
                is_over = still == (session.heartbeat,)
                if is_over:
                    silent = f"has been silent for {session.timeout_ms} ms"
                    why = "is of a process that has ended" if is_abandoned else silent
                    logger.info("%s: session %d %s", self.path, session.id, why)
                    self._end_session(session.id)
            if wait.is_busy:
                return False
            if is_over:
                self._session_locks.remove(session.id)
        self._sessions = left
        self._session_locks.keep([session.id for session in left])
        return True

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
        if self._is_locked_out:
            return QUIET_POLL_MS
        if self._session_id is not None:
            return self._session_timeout_ms / 3
        return None

    # -- SQLite -----------------------------------------------------------------------------------------

    def _row(self, path: str) -> NodeRow | None:
        row = self._db.execute(f"SELECT {NODE_COLUMNS} FROM node WHERE path = ?", (path,)).fetchone()
        return NodeRow._make(row) if row is not None else None

    @contextmanager
    def _session(self) -> Iterator[None]:
        """The lock, for a call that a session must be alive for."""
        with self._lock:
            if self._has_expired:
                raise SessionExpired(self.path)
            self._check_file()
            try:
                self._check_own_row()
                yield
            except sqlite3.Error as error:
                raise self._store_error(error) from error

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._store_error(error) from error

    def _store_error(self, error: sqlite3.Error) -> StoreError:
        if self._is_closed:
            return StoreClosed(f"{self.path}: the store is closed")
        code = _primary_code(error)
        kind = ConnectionLost if code in _AWAY_CODES else ForeignFile if code == sqlite3.SQLITE_NOTADB else StoreError
        kind = StoreLocked if code == sqlite3.SQLITE_BUSY else kind
        return kind(f"{self.path}: {error}{self._room() if code in _DISK_CODES else ''}")

    def _room(self) -> str:
        """Where a disk is full SQLite may say only that an I/O failed."""
        try:
            disk = os.statvfs(os.path.dirname(self.path) or ".")
        except OSError:
            return ""
        return f" ({bytes_of(disk.f_bavail * disk.f_frsize)} free)"

    def _current_file_id(self) -> tuple[int, int] | None:
        """None: there is no file."""
        try:
            now = os.stat(self.path)
        except OSError:
            return None
        return now.st_dev, now.st_ino

    def _check_file(self) -> None:
        """Raises StoreFileGone once the file has another inode or none: what is read and written through this
        connection is then seen by no broker that starts later.  A system call of about 2 us."""
        if self._file_id is None or self._is_closed:
            return
        file_id = self._current_file_id()
        is_gone = file_id != self._file_id
        if is_gone != self._is_file_gone:
            self._is_file_gone = is_gone
            self._session_events.append(SessionEvent.SUSPENDED if is_gone else SessionEvent.CONNECTED)
            if self._poller is not None:
                self._poller.wake_up()
        if is_gone:
            what = "is not there any more" if file_id is None else "is another file now"
            raise StoreFileGone(
                f"{self.path}: the metadata store's file {what}: stop the brokers, restore the file, start them again"
            )

    @contextmanager
    def _brief_wait(self, timeout_ms: float | None = None) -> Iterator[_Wait]:
        """Wait for other programs only for a moment.  is_busy: the file was locked for longer, and nothing was done."""
        wait = _Wait()
        if timeout_ms is None:
            timeout_ms = min(self._busy_timeout_ms, _POLL_BUSY_TIMEOUT_MS, self._session_timeout_ms // 6)
        self._set_wait(timeout_ms)
        try:
            yield wait
        except sqlite3.OperationalError as error:
            if _primary_code(error) != sqlite3.SQLITE_BUSY:
                raise
            wait.is_busy = True
        finally:
            self._set_wait(self._busy_timeout_ms)

    @contextmanager
    def _without_sync(self) -> Iterator[None]:
        """Outside a transaction: commits do not wait for the disk.  A later one that does takes theirs along.

        NORMAL: where such a commit also moves the write-ahead log into the file, that is on the disk before the log is
        written over.  With OFF a power failure would cost what was committed long before.
        """
        if not self._durable:
            yield
            return
        self._db.execute("PRAGMA synchronous=NORMAL")
        try:
            yield
        finally:
            self._db.execute("PRAGMA synchronous=FULL")

    def _set_wait(self, timeout_ms: float) -> None:
        self._wait_ms = timeout_ms
        if self._is_away:
            timeout_ms = min(timeout_ms, _WAIT_SLICE_MS)
        self._db.execute(f"PRAGMA busy_timeout={int(timeout_ms)}")

    def _begin(self) -> None:
        """Begin a transaction that writes.  IMMEDIATE: a reader that later wants to write could not wait for another
        process's writer."""
        waited_ms = 0
        self._db.execute(f"PRAGMA busy_timeout={int(min(self._wait_ms, _WAIT_SLICE_MS))}")
        while True:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                break
            except sqlite3.OperationalError as error:
                waited_ms += _WAIT_SLICE_MS
                is_busy = _primary_code(error) == sqlite3.SQLITE_BUSY
                self._note_lock(is_busy)
                if not is_busy or waited_ms >= self._wait_ms or self._is_away:
                    if is_busy:
                        waited = f"waited {min(waited_ms, self._wait_ms) / 1000:.1f} s"
                        error.args = (f"{error}{self._holder()} ({waited})",)
                    self._set_wait(self._wait_ms)
                    raise
                self._check_start()
                if waited_ms == _LOGGED_WAIT_MS:
                    self._log_wait(self._wait_ms)
        self._is_away = False
        self._note_lock(False)
        self._set_wait(self._wait_ms)

    def _note_lock(self, is_locked: bool) -> None:
        if not is_locked:
            self._locked_since_ms = None
        elif self._locked_since_ms is None:
            self._locked_since_ms = SYSTEM_TIME.hi_res_clock_ms()

    def _locked_ms(self, since_ms: float) -> float:
        return SYSTEM_TIME.hi_res_clock_ms() - since_ms

    def _check_start(self) -> None:
        if self._is_start_cancelled():
            raise StartCancelled(f"{self.path} is locked{self._holder()}")

    def _log_wait(self, wait_ms: float) -> None:
        logger.warning("%s is locked%s: waiting for it, %g s in all", self.path, self._holder(), wait_ms / 1000)

    def _holder(self) -> str:
        """ " by process 123 (sqlite3)": who keeps this store from writing; empty if that is not known."""
        writer = self._writer()
        return f" by {writer}" if writer is not None else ""

    def _writer(self) -> str | None:
        return writer_of(self.path, f"{self.path}-shm")  # the write-ahead log's locks are on the latter

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._begin()
        begin_ms = SYSTEM_TIME.hi_res_clock_ms()
        try:
            yield
            self._db.execute("COMMIT")
            self._has_written = True
        except BaseException:
            # A commit that fails for lack of room may have ended the transaction, or not.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        finally:
            self._silence.others_were_kept_out(SYSTEM_TIME.hi_res_clock_ms() - begin_ms)


def _primary_code(error: sqlite3.Error) -> int:
    """Without SQLite's extension in the upper bits; SQLITE_ERROR for what the module itself raises."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


class _Wait:
    is_busy = False


class _Poller(ShutdownableThread):
    def __init__(self, store: EmbeddedStore) -> None:
        super().__init__("kcore-metadata-poller")
        self._store = store
        self._woken = threading.Event()
        self._error: str | None = None

    def do_work(self) -> None:
        delay_ms = self._store._poll_delay_ms()
        self._woken.wait(None if delay_ms is None else delay_ms / 1000)
        self._woken.clear()
        if self.is_running:
            try:
                self._store.poll()
            except StoreError as error:
                if str(error) != self._error:
                    self._error = str(error)
                    logger.error("the metadata store cannot be reached, and is tried again: %s", error)
            else:
                if self._error is not None:
                    self._error = None
                    logger.info("%s: the metadata store is back", self._store.path)

    def wake_up(self) -> None:
        self._woken.set()
