"""ThrottledSockets: connections above the quota of their address, which are closed only after a while.

Closed at once, their client would connect again at once.  Source: Acceptor.throttledSockets, Kafka 3.9.
"""

from __future__ import annotations

import heapq
import itertools
import math
import socket

#: Each holds a file descriptor; with more than these, the first one is closed before its time.
_MAX_SOCKETS = 1000


class ThrottledSockets:
    """Of one thread: nothing is read from them."""

    def __init__(self) -> None:
        #: (when it is closed, order, socket), as a heap.
        self._sockets: list[tuple[float, int, socket.socket]] = []
        self._order = itertools.count()
        #: When the next one is to be closed; infinity while there is none.
        self.next_ms = math.inf

    def __len__(self) -> int:
        return len(self._sockets)

    def add(self, sock: socket.socket, until_ms: float) -> None:
        heapq.heappush(self._sockets, (until_ms, next(self._order), sock))
        if len(self._sockets) > _MAX_SOCKETS:
            self._close_next()
        self.next_ms = self._sockets[0][0]

    def close_due(self, now_ms: float) -> None:
        while self.next_ms <= now_ms:
            self._close_next()

    def close(self) -> None:
        """All of them."""
        while self._sockets:
            self._close_next()

    def _close_next(self) -> None:
        heapq.heappop(self._sockets)[2].close()
        self.next_ms = self._sockets[0][0] if self._sockets else math.inf
