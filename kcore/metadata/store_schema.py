"""The tables of EmbeddedStore's file, what marks a file as one, and how the file of an earlier version is changed.

The file is a store's if its application_id says so, or its tables if it has none, as earlier versions wrote it.  Any
other database is refused and left as it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from contextlib import closing
from functools import cache

from kcore.common.file import unlink_if_there
from kcore.metadata.node_changes import ROOT, NodeRow
from kcore.metadata.store import ForeignFile, NewerSchema

#: "kcor": PRAGMA application_id of a store.
APPLICATION_ID = 0x6B636F72
#: PRAGMA user_version.
SCHEMA_VERSION = 2
#: Schema version -> its tables.
_TABLES = {1: {"node"}, 2: {"node", "session", "counter"}}
NODE_COLUMNS = ", ".join(NodeRow._fields)
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
#: Version 1 had no root, no counters and no sessions.
_FROM_VERSION_1 = (
    "ALTER TABLE node RENAME TO old_node",
    "DROP INDEX node_parent",
    *_SCHEMA,
    f"INSERT INTO node (path, parent, {NODE_COLUMNS}) SELECT path, parent, data, version, 1, 1, 1, "
    "(SELECT count(*) FROM old_node child WHERE child.parent = old_node.path), "
    "(SELECT count(*) FROM old_node child WHERE child.parent = old_node.path), 0 FROM old_node",
    "INSERT OR REPLACE INTO node SELECT '/', '', x'', 0, 0, 0, 1, count(*), count(*), 0 FROM old_node "
    "WHERE parent = '/'",
    "DROP TABLE old_node",
)


def write_nodes(count: int) -> str:
    """The statement that writes so many nodes: of each its path, its parent's, and NodeRow's fields."""
    values = f"({', '.join('?' * (2 + len(ROOT)))})"
    return (
        f"INSERT INTO node (path, parent, {NODE_COLUMNS}) VALUES {', '.join([values] * count)} "
        f"ON CONFLICT (path) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in NodeRow._fields)}"
    )


def has_schema(db: sqlite3.Connection) -> bool:
    return (pragma(db, "application_id"), pragma(db, "user_version")) == (APPLICATION_ID, SCHEMA_VERSION)


def create_schema(db: sqlite3.Connection) -> None:
    """In a transaction: make the tables, or those of this version out of an earlier one's; mark the file as a store."""
    version = pragma(db, "user_version")
    if version != SCHEMA_VERSION:
        for statement in _FROM_VERSION_1 if version == 1 else _SCHEMA:
            db.execute(statement)
        if version == 0:
            db.execute(write_nodes(1), ("/", "", *ROOT))
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")


def check_is_store(path: str, application_id: int, schema_version: int, tables: Collection[str]) -> None:
    """Raises ForeignFile or NewerSchema unless a SQLite file with these values is a metadata store, or empty."""
    is_marked = application_id == APPLICATION_ID
    is_newer = schema_version > SCHEMA_VERSION and (is_marked or _TABLES[SCHEMA_VERSION] <= set(tables))
    if is_newer:
        raise NewerSchema(
            f"{path}: the metadata store has schema version {schema_version}, and this version of kcore reads versions "
            f"up to {SCHEMA_VERSION}: it was written by a later one"
        )
    is_empty = not tables and application_id == schema_version == 0
    is_store = (is_marked or application_id == 0) and set(tables) == _TABLES.get(schema_version)
    if not is_empty and not is_store:
        raise ForeignFile(
            f"{path}: not a metadata store, but another SQLite database (application id {application_id}, version "
            f"{schema_version}, tables {', '.join(sorted(tables)[:5]) or 'none'}); it is left as it is"
        )


def write_empty_store(path: str) -> None:
    """Make the file of a new store at once, with its tables and already with a write-ahead log: SQLite itself makes and
    deletes a journal for that, and takes 0.4 ms.  For a directory that nobody else uses yet.

    Nothing is made where SQLite lacks serialize(), as some before 3.36 do, nor where the file cannot be written, on a
    full disk say: SQLite then fails too, and says why.  Raises FileExistsError.
    """
    if not hasattr(sqlite3.Connection, "serialize"):
        return
    try:
        with open(path, "xb") as file:
            file.write(_empty_store())
    except FileExistsError:
        raise
    except OSError:
        unlink_if_there(path)


@cache
def _empty_store() -> bytes:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        create_schema(db)
        image = bytearray(db.serialize())
    # The versions of the format that readers and writers have to know: 2 is a write-ahead log.
    # Source: SQLite's description of its file format, section 1.3.3.
    image[18:20] = 2, 2
    return bytes(image)


def pragma(db: sqlite3.Connection, name: str) -> int:
    value: int = db.execute(f"PRAGMA {name}").fetchone()[0]
    return value
