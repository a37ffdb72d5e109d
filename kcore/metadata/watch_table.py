"""The watches of one session.

A watch remembers the node as it was at the read that set the watch.  It fires once the node differs from that, as
ZooKeeper does for a client that reconnects (SetWatches).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from kcore.metadata.node_changes import NodeRow
from kcore.metadata.store import EventType, SessionEvent, SessionListener, Watch, WatchEvent

logger = logging.getLogger(__name__)

#: (czxid, mzxid) or (czxid, pzxid) of a node, None for none.
_State = tuple[int, int] | None


class WatchTable:
    """Not thread-safe; the store's lock guards it."""

    def __init__(self) -> None:
        self._data: dict[str, dict[tuple[Watch, _State], None]] = {}
        self._children: dict[str, dict[tuple[Watch, _State], None]] = {}

    def __bool__(self) -> bool:
        return bool(self._data or self._children)

    def watch_data(self, path: str, row: NodeRow | None, watch: Watch) -> None:
        """row: the node as the read that leaves this watch has seen it."""
        self._data.setdefault(path, {})[watch, _data_state(row)] = None

    def watch_children(self, path: str, row: NodeRow, watch: Watch) -> None:
        self._children.setdefault(path, {})[watch, _children_state(row)] = None

    def clear(self) -> None:
        self._data.clear()
        self._children.clear()

    def paths(self) -> Iterable[str]:
        """Of nodes that are watched."""
        return {**self._data, **self._children}

    def take_due(self, paths: Iterable[str], row_of: Callable[[str], NodeRow | None]) -> list[tuple[Watch, WatchEvent]]:
        """Remove the watches of these paths whose nodes have changed, and return them with their events, each once."""
        due: dict[tuple[Watch, WatchEvent], None] = {}
        for path in paths:
            if path in self._data or path in self._children:
                row = row_of(path)
                _take(self._data, path, _data_state(row), EventType.CHANGED, due)
                _take(self._children, path, _children_state(row), EventType.CHILDREN_CHANGED, due)
        return list(due)


def _data_state(row: NodeRow | None) -> _State:
    return None if row is None else (row.czxid, row.mzxid)


def _children_state(row: NodeRow | None) -> _State:
    return None if row is None else (row.czxid, row.pzxid)


def _take(
    table: dict[str, dict[tuple[Watch, _State], None]],
    path: str,
    now: _State,
    changed: EventType,
    due: dict[tuple[Watch, WatchEvent], None],
) -> None:
    watches = table.get(path, {})
    for watch, before in list(watches):
        event = event_between(before, now, changed)
        if event is not None:
            due[watch, WatchEvent(event, path)] = None
            del watches[watch, before]
    if not watches:
        table.pop(path, None)


def event_between(before: _State, now: _State, changed: EventType) -> EventType | None:
    """What happened to a node between two states; None for nothing."""
    if before == now:
        return None
    if before is None:
        return EventType.CREATED
    if now is None or now[0] != before[0]:
        return EventType.DELETED
    return changed


def deliver(
    session_events: Iterable[SessionEvent],
    listeners: Iterable[SessionListener],
    due: Iterable[tuple[Watch, WatchEvent]],
) -> None:
    """Call the listeners and the watches.  An exception is logged, and the others are called all the same."""
    for session_event in session_events:
        for listener in listeners:
            _call(listener, session_event)
    for watch, event in due:
        _call(watch, event)


def _call(callback: Callable[[Any], None], event: WatchEvent | SessionEvent) -> None:
    try:
        callback(event)
    except Exception:
        logger.exception("%s failed on %s", callback, event)
