"""For how long the sessions in a SQLite file have shown no heartbeat, as one of the stores on that file sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class StoredSession(NamedTuple):
    """A row: a session, the silence that ends it, and the counter that its store raises three times in that time."""

    id: int
    timeout_ms: int
    heartbeat: int


class SessionSilence:
    """Counts at each look the time since the last one, by the clock of whoever looks.

    Time in which only this store could write (its commits take long on a slow disk) does not count.  Not thread-safe.
    """

    def __init__(self) -> None:
        # Session -> its heartbeat and for how long it has stood still.
        self._seen: dict[int, tuple[int, float]] = {}
        self._last_look_ms = 0.0
        self._kept_out_ms = 0.0

    def others_were_kept_out(self, duration_ms: float) -> None:
        """A transaction of this store had the file locked, so that no other one could write a heartbeat."""
        self._kept_out_ms += duration_ms

    def forget(self) -> None:
        """Nobody could write a heartbeat, or it could not be seen: all counts begin again."""
        self._seen = {}

    def look(self, sessions: Iterable[StoredSession], now_ms: float) -> dict[int, float]:
        """Milliseconds of silence of each of these sessions, as they are now; the others are forgotten."""
        gap_ms = max(0.0, now_ms - self._last_look_ms - self._kept_out_ms)
        self._last_look_ms, self._kept_out_ms = now_ms, 0.0
        seen = {}
        for session in sessions:
            heartbeat, silence_ms = self._seen.get(session.id, (None, 0.0))
            is_silent = heartbeat == session.heartbeat
            seen[session.id] = (
                session.heartbeat,
                silence_after(silence_ms, gap_ms, session.timeout_ms) if is_silent else 0.0,
            )
        self._seen = seen
        return {session_id: silence_ms for session_id, (_, silence_ms) in seen.items()}


def silence_after(silence_ms: float, gap_ms: float, timeout_ms: float) -> float:
    """For how long a session was silent, after a look that saw the same heartbeat gap_ms after the look before.

    A longer gap counts as half a timeout: a thread that stood still for longer (its machine was suspended, say) may be
    the first to run again, and the session's own thread must have its turn first.
    """
    return silence_ms + min(gap_ms, timeout_ms / 2)
