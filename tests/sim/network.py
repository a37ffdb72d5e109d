"""The clock and the network of a simulation: what happens later, in the order of its time.

Everything takes whole milliseconds, and what is due at the same time happens in the order in which it was added, so
that the same events give the same order.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kcore.common.time import MockTime


class Agenda:
    """What is to be done at which time.  The clock moves only here."""

    def __init__(self, time: MockTime) -> None:
        self._time = time
        self._heap: list[tuple[int, int, str, Callable[[], None]]] = []
        self._numbers = itertools.count()

    @property
    def now_ms(self) -> int:
        return int(self._time.hi_res_clock_ms())

    def at(self, at_ms: int, name: str, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (max(at_ms, self.now_ms), next(self._numbers), name, action))

    def after(self, delay_ms: int, name: str, action: Callable[[], None]) -> None:
        self.at(self.now_ms + delay_ms, name, action)

    def next_due_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def step(self) -> str:
        """Do the next thing; its name.  The clock moves up to it."""
        at_ms, _, name, action = heapq.heappop(self._heap)
        if at_ms > self.now_ms:
            self._time.sleep(at_ms - self.now_ms)
        action()
        return name


@dataclass(frozen=True, slots=True)
class Message:
    """deliver() is called once for each copy that arrives.

    is_reliable: sent again until it has arrived (the controller's requests).  survives: also when its sender has
    crashed since.
    """

    name: str
    source: int
    target: int
    deliver: Callable[[], None]
    is_reliable: bool = False
    survives: bool = False


@dataclass(slots=True)
class _Link:
    """What happens to the next messages of one direction: (lost, extra delay, delay of a second copy or None)."""

    faults: deque[tuple[bool, int, int | None]] = field(default_factory=deque)


class Network:
    """Messages between brokers, the controller and clients."""

    RETRY_MS = 50

    def __init__(self, agenda: Agenda, latency_ms: int) -> None:
        self._agenda = agenda
        self._latency_ms = latency_ms
        self._links: dict[tuple[int, int], _Link] = {}
        self._cut_until_ms: dict[frozenset[int], int] = {}
        self._paused_until_ms: dict[int, int] = {}
        #: Counted up at each crash: what an earlier life sent, or was sent, does not arrive.
        self._lives: dict[int, int] = {}
        self.faults: dict[str, int] = dict.fromkeys(("lost", "delayed", "duplicated", "cut"), 0)

    # -- faults -----------------------------------------------------------------------------------------------------

    def lose(self, source: int, target: int, count: int) -> None:
        self._link(source, target).faults.extend([(True, 0, None)] * count)

    def delay(self, source: int, target: int, by_ms: int, count: int) -> None:
        self._link(source, target).faults.extend([(False, by_ms, None)] * count)

    def duplicate(self, source: int, target: int, after_ms: int, count: int) -> None:
        self._link(source, target).faults.extend([(False, 0, after_ms)] * count)

    def cut(self, a: int, b: int, for_ms: int) -> None:
        link = frozenset((a, b))
        self._cut_until_ms[link] = max(self._cut_until_ms.get(link, 0), self._agenda.now_ms + for_ms)

    def pause(self, node: int, for_ms: int) -> None:
        self._paused_until_ms[node] = max(self.paused_until_ms(node), self._agenda.now_ms + for_ms)

    def paused_until_ms(self, node: int) -> int:
        """A time that may be past."""
        return self._paused_until_ms.get(node, 0)

    def close_connections(self, node: int) -> None:
        """The node has died: nothing that was on its way to it or from it arrives, but what survives."""
        self._lives[node] = self._lives.get(node, 0) + 1
        self._paused_until_ms.pop(node, None)

    def heal(self) -> None:
        """No more faults; pauses end when they would."""
        self._links.clear()
        self._cut_until_ms.clear()

    def _link(self, source: int, target: int) -> _Link:
        return self._links.setdefault((source, target), _Link())

    # -- messages ---------------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        link = self._links.get((message.source, message.target))
        lost, extra_ms, again_ms = link.faults.popleft() if link is not None and link.faults else (False, 0, None)
        if lost:
            self.faults["lost"] += 1
            extra_ms = self.RETRY_MS
        elif extra_ms:
            self.faults["delayed"] += 1
        if not lost or message.is_reliable:
            self._put(message, self._latency_ms + extra_ms)
        if again_ms is not None:
            self.faults["duplicated"] += 1
            self._put(message, self._latency_ms + again_ms)

    def _put(self, message: Message, delay_ms: int) -> None:
        lives = (None if message.survives else self._lives.get(message.source, 0), self._lives.get(message.target, 0))
        name = f"{message.name} {message.source}->{message.target}"

        def arrive() -> None:
            is_of_this_life = lives[0] is None or lives[0] == self._lives.get(message.source, 0)
            if not is_of_this_life or lives[1] != self._lives.get(message.target, 0):
                return
            now_ms = self._agenda.now_ms
            paused_until_ms = self.paused_until_ms(message.target)
            if paused_until_ms > now_ms:
                self._agenda.at(paused_until_ms, name, arrive)
            elif self._cut_until_ms.get(frozenset((message.source, message.target)), 0) > now_ms:
                self.faults["cut"] += 1
                if message.is_reliable:
                    self._agenda.after(self.RETRY_MS, name, arrive)
            else:
                message.deliver()

        self._agenda.after(delay_ms, name, arrive)
