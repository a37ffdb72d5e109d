"""The network of a simulation: messages in a list, which are late, lost, repeated and overtaken by others."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from kcore.common.time import MockTime

#: The address of the controller; brokers have their id.
CONTROLLER = -1


@dataclass(frozen=True, slots=True)
class Message:
    """deliver() is called once for each copy that arrives.  A reliable one is sent until it has arrived."""

    name: str
    source: int
    target: int
    deliver: Callable[[], None]
    is_reliable: bool = False


class Router:
    """Takes messages and hands them out in the order of their arrival; the same seed gives the same order.

    loss, duplication: the shares of messages.  A message takes 1 to 20 ms, one in ten up to two seconds: then its
    sender may have given it up.
    """

    RETRY_MS = 100.0

    def __init__(self, random: Random, time: MockTime, *, loss: float, duplication: float) -> None:
        self._random = random
        self._time = time
        self.loss = loss
        self.duplication = duplication
        self.cut_links: set[frozenset[int]] = set()
        self._queue: list[tuple[float, int, Message]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._queue)

    def send(self, message: Message) -> None:
        copies = 2 if self._random.random() < self.duplication else 1
        for _ in range(copies):
            if message.is_reliable or self._random.random() >= self.loss:
                is_late = self._random.random() < 0.1
                self._push(message, self._random.uniform(1, 2000) if is_late else self._random.uniform(1, 20))

    def _push(self, message: Message, delay_ms: float) -> None:
        arrival_ms = self._time.hi_res_clock_ms() + delay_ms
        heapq.heappush(self._queue, (arrival_ms, next(self._numbers), message))

    def next_arrival_ms(self) -> float | None:
        return self._queue[0][0] if self._queue else None

    def deliver_next(self) -> str:
        """Let the next message arrive, and the clock move up to there; what happened."""
        arrival_ms, _, message = heapq.heappop(self._queue)
        self._time.sleep(max(0.0, arrival_ms - self._time.hi_res_clock_ms()))
        if frozenset((message.source, message.target)) in self.cut_links:
            if message.is_reliable:
                self._push(message, self.RETRY_MS)
            return f"{message.name} {message.source}->{message.target} cut"
        message.deliver()
        return f"{message.name} {message.source}->{message.target}"

    def close_connections(self, node: int) -> None:
        """The node has died: nothing that it has sent, and nothing that was on its way to it, arrives any more."""
        self._queue = [entry for entry in self._queue if node not in (entry[2].source, entry[2].target)]
        heapq.heapify(self._queue)
