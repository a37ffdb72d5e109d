"""Waiting for sockets: epoll directly where there is one, else what `selectors` offers.

selectors.EpollSelector wraps each event in a named tuple and asks time.monotonic() twice; on a broker
that answers 50,000 requests a second that is a tenth of its CPU, so Linux goes without it.
"""

from __future__ import annotations

import select
import selectors
from collections.abc import Iterable
from typing import Protocol

READ = 1
WRITE = 2
#: The peer is gone; reported whether it was asked for or not (not by every poller).
HANGUP = 4


class Poller(Protocol):
    """fd -> interest, a set of READ and WRITE.  Interest 0 keeps the fd and reports only HANGUP."""

    def register(self, fd: int, interest: int) -> None: ...
    def modify(self, fd: int, interest: int) -> None: ...
    def unregister(self, fd: int) -> None: ...
    def poll(self, timeout_ms: float) -> Iterable[tuple[int, int]]:
        """(fd, what is ready) pairs; waits up to timeout_ms, for ever if it is negative."""

    def is_ready(self) -> bool:
        """Whether poll() would return at once.  From any thread."""

    def close(self) -> None: ...


class SelectorPoller:
    """Any selector of the standard library."""

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        self._selector = selector or selectors.DefaultSelector()
        self._dormant: set[int] = set()

    def register(self, fd: int, interest: int) -> None:
        if interest:
            self._selector.register(fd, interest)
        else:
            self._dormant.add(fd)

    def modify(self, fd: int, interest: int) -> None:
        if fd in self._dormant:
            if interest:
                self._dormant.discard(fd)
                self._selector.register(fd, interest)
        elif interest:
            self._selector.modify(fd, interest)
        else:
            self._selector.unregister(fd)
            self._dormant.add(fd)

    def unregister(self, fd: int) -> None:
        if fd in self._dormant:
            self._dormant.discard(fd)
        else:
            self._selector.unregister(fd)

    def poll(self, timeout_ms: float) -> Iterable[tuple[int, int]]:
        return [(key.fd, mask) for key, mask in self._selector.select(None if timeout_ms < 0 else timeout_ms / 1000)]

    def is_ready(self) -> bool:
        return bool(self._selector.select(0))

    def close(self) -> None:
        self._selector.close()


class EpollPoller:
    """Linux.  Level-triggered."""

    # Indexed by READ | WRITE; and the way back, by the low five bits of an epoll event.
    _ASK = (0, 0x1, 0x4, 0x5)  # EPOLLIN, EPOLLOUT
    _SEEN = tuple((e & 1) | (e & 4) >> 1 | (4 if e & 0x18 else 0) for e in range(32))  # 0x18: EPOLLERR | EPOLLHUP

    def __init__(self) -> None:
        self._epoll = select.epoll()

    def register(self, fd: int, interest: int) -> None:
        self._epoll.register(fd, self._ASK[interest])

    def modify(self, fd: int, interest: int) -> None:
        self._epoll.modify(fd, self._ASK[interest])

    def unregister(self, fd: int) -> None:
        self._epoll.unregister(fd)

    def poll(self, timeout_ms: float) -> Iterable[tuple[int, int]]:
        seen = self._SEEN
        return [(fd, seen[event & 31]) for fd, event in self._epoll.poll(timeout_ms / 1000 if timeout_ms >= 0 else -1)]

    def is_ready(self) -> bool:
        return bool(self._epoll.poll(0, 1))

    def close(self) -> None:
        self._epoll.close()


class WatchedPoller:
    """For tests: a poller that says whether its thread waits with nothing to do, and how often it has waited."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._is_polling = False
        self.turns = 0
        self.register, self.modify, self.unregister = poller.register, poller.modify, poller.unregister
        self.is_ready, self.close = poller.is_ready, poller.close

    def poll(self, timeout_ms: float) -> Iterable[tuple[int, int]]:
        self._is_polling = True
        try:
            return self._poller.poll(timeout_ms)
        finally:
            self._is_polling = False
            self.turns += 1

    @property
    def waits(self) -> bool:
        try:
            return self._is_polling and not self._poller.is_ready()
        except (OSError, ValueError):  # it is closed
            return False


def new_poller() -> Poller:
    return EpollPoller() if hasattr(select, "epoll") else SelectorPoller()
