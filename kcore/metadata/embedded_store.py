"""MetadataStore on SQLite, for one broker or the brokers of one machine.

One table, one row per node.  Write-ahead log, and synchronous=FULL: a change is on the disk when its
call returns, so that neither a topic nor a block of producer ids is forgotten when the machine stops.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kcore.metadata.store import (
    ANY_VERSION,
    BadVersion,
    MetadataStore,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    StoreError,
    check_path,
    parent_of,
)

#: The file, in a broker's data directory.
FILE_NAME = "kcore-metadata.db"

_SCHEMA_VERSION = 1
_SCHEMA = (
    "CREATE TABLE node (path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL, "
    "version INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX node_parent ON node (parent)",
)


class EmbeddedStore(MetadataStore):
    """A store in one file.  Thread-safe: one connection behind one lock; other processes may share the file."""

    def __init__(self, path: str, *, durable: bool = True, busy_timeout_ms: int = 10_000) -> None:
        """Open or create the file.  durable=False leaves flushing to the system: for a directory that is
        thrown away at the end.  Raises StoreError for a file that is not such a store."""
        self.path = path
        self._lock = threading.RLock()
        self._depth = 0
        self._pid = os.getpid()
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
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            with self.transaction():
                (version,) = self._db.execute("PRAGMA user_version").fetchone()  # another process may have been faster
                if version == 0:
                    for statement in _SCHEMA:
                        self._db.execute(statement)
                    self._db.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")
                    version = _SCHEMA_VERSION
        if version != _SCHEMA_VERSION:
            raise StoreError(f"{self.path}: schema version {version}, this is for {_SCHEMA_VERSION}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._lock:
            if self._depth:
                self._depth += 1
                try:
                    yield
                finally:
                    self._depth -= 1
                return
            # IMMEDIATE: a reader that later wants to write could not wait for another process's writer.
            self._db.execute("BEGIN IMMEDIATE")
            self._depth = 1
            try:
                yield
            except BaseException:
                self._depth = 0
                self._db.execute("ROLLBACK")
                raise
            self._depth = 0
            self._db.execute("COMMIT")

    def create(self, path: str, data: bytes = b"") -> None:
        check_path(path)
        if path == "/":
            raise NodeExists(path)
        parent = parent_of(path)
        with self.transaction():
            if parent != "/" and not self._db.execute("SELECT 1 FROM node WHERE path = ?", (parent,)).fetchone():
                raise NoNode(parent)
            if self._db.execute("SELECT 1 FROM node WHERE path = ?", (path,)).fetchone():
                raise NodeExists(path)
            self._db.execute("INSERT INTO node VALUES (?, ?, ?, 0)", (path, parent, data))

    def get(self, path: str) -> Node | None:
        if path == "/":
            return Node(b"", 0)
        with self._lock:
            row = self._db.execute("SELECT data, version FROM node WHERE path = ?", (check_path(path),)).fetchone()
        return Node(*row) if row else None

    def set(self, path: str, data: bytes, expected_version: int = ANY_VERSION) -> int:
        with self.transaction():
            version = self._checked_version(path, expected_version) + 1
            self._db.execute("UPDATE node SET data = ?, version = ? WHERE path = ?", (data, version, path))
        return version

    def children(self, path: str) -> list[str]:
        with self._lock:
            rows = self._db.execute("SELECT path FROM node WHERE parent = ?", (check_path(path),)).fetchall()
        return sorted(child.rpartition("/")[2] for (child,) in rows)

    def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        with self.transaction():
            self._checked_version(path, expected_version)
            if self._db.execute("SELECT 1 FROM node WHERE parent = ? LIMIT 1", (path,)).fetchone():
                raise NotEmpty(path)
            self._db.execute("DELETE FROM node WHERE path = ?", (path,))

    def _checked_version(self, path: str, expected_version: int) -> int:
        row = self._db.execute("SELECT version FROM node WHERE path = ?", (check_path(path),)).fetchone()
        if row is None:
            raise NoNode(path)
        version: int = row[0]
        if expected_version not in (ANY_VERSION, version):
            raise BadVersion(f"{path}: version {version}, expected {expected_version}")
        return version

    def close(self) -> None:
        """Close the file.  In a forked child nothing: SQLite's locks and log belong to the parent."""
        if os.getpid() == self._pid:
            with self._lock:
                self._db.close()
