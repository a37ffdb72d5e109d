"""When a ZooKeeper server last heard of a session, at the earliest: read off kazoo's pings and the session's calls."""

from __future__ import annotations

import math
from typing import Any

from kazoo.client import KazooClient

from kcore.common.time import SYSTEM_TIME, Time


class Heartbeats:
    """Of one kazoo client, from before its start.  Reads need no lock: each field is written as a whole.

    What counts is when a request was sent that was answered later, not when its answer was read: a process that stood
    still finds old answers in its socket.
    """

    def __init__(self, client: KazooClient, timeout_ms: float, time: Time = SYSTEM_TIME) -> None:
        """timeout_ms: the session's, until a server has granted another."""
        self._time = time
        self._timeout_ms = timeout_ms
        self._heard_ms = -math.inf
        self._ping_sent_ms = 0.0
        self._connection = connection = client._connection
        self._connect, self._read, self._ping = connection._connect, connection._read_socket, connection._send_ping
        connection._connect, connection._read_socket, connection._send_ping = (
            self._connecting,
            self._reading,
            self._pinging,
        )

    def now_ms(self) -> float:
        return self._time.hi_res_clock_ms()

    def answered(self, sent_ms: float) -> None:
        """A request that was sent at this time, or later, has been answered."""
        self._heard_ms = max(self._heard_ms, sent_ms)

    @property
    def is_recent(self) -> bool:
        """Whether the server has heard of the session within its timeout, so that it cannot have ended it."""
        return self.now_ms() - self._heard_ms < self._timeout_ms

    # -- on kazoo's thread that reads and writes the socket -------------------------------------------------

    def _connecting(self, *args: Any) -> tuple[float, float]:
        read_timeout_ms, connect_timeout_ms = self._connect(*args)
        self._timeout_ms = read_timeout_ms * 3 / 2  # kazoo's is two thirds of what the server granted
        return read_timeout_ms, connect_timeout_ms

    def _pinging(self, *args: Any) -> None:
        self._ping_sent_ms = self.now_ms()
        self._ping(*args)

    def _reading(self, *args: Any) -> Any:
        was_outstanding = self._connection.ping_outstanding.is_set()
        answer = self._read(*args)
        if was_outstanding and not self._connection.ping_outstanding.is_set():
            self.answered(self._ping_sent_ms)
        return answer
