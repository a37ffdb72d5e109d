"""How long each broker of a cluster takes to answer: it is asked now and then."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from kcore.client.admin_client import Node
from kcore.client.blocking_sender import BlockingSender
from kcore.client.first_answer import all_answers
from kcore.common.shutdownable_thread import ShutdownableThread
from kcore.common.time import Time
from kcore.errors import KafkaError
from kcore.protocol.messages.api_versions import ApiVersionsRequest
from kcore.web.cluster_reader import CLIENT_ID, ClusterReader
from kcore.web.sampler import INTERVAL_MS, RING_SIZE

#: A broker that has not answered after so long has not answered.
TIMEOUT_MS = 5000
#: Brokers in a plot.
MOST_LINES = 10
#: Every broker serves it.
_VERSION = 0


class Row(NamedTuple):
    """at_ms: ms since 1970.  answer_ms: by broker id, None for one that did not answer."""

    at_ms: int
    answer_ms: Mapping[int, float | None]


class AnswerTimes(ShutdownableThread):
    """A thread that asks each broker for the versions that it serves, and keeps how long each answer took.

    A broker answers that request without its logs and disks.  So the time is that of the network, and of the request's
    wait for a thread of the broker.  Connections stay open from one request to the next.  rows() and last() may be
    called on any thread.
    """

    def __init__(self, reader: ClusterReader, *, time: Time, timeout_ms: float = TIMEOUT_MS) -> None:
        super().__init__("kcore-web-answer-times")
        self._reader = reader
        self._time = time
        self._timeout_ms = timeout_ms
        self._lock = threading.Lock()  # of _rows and _senders
        self._rows: deque[Row] = deque(maxlen=RING_SIZE)
        self._senders: dict[Node, BlockingSender] = {}

    def do_work(self) -> None:
        self.step()
        self.pause(INTERVAL_MS)

    def wake_up(self) -> None:
        self._close_all_but(())

    def step(self) -> None:
        """Ask all brokers, at the same time."""
        try:
            brokers = list(self._reader.brokers().brokers.values())
        except (OSError, KafkaError):
            brokers = []
        self._close_all_but(brokers)
        answers = all_answers(brokers, self._answer_ms)
        row = Row(self._time.milliseconds(), {broker.broker_id: _known(answers[broker]) for broker in brokers})
        with self._lock:
            self._rows.append(row)

    def rows(self) -> Sequence[Row]:
        """Of the last hour, the oldest first."""
        with self._lock:
            return list(self._rows)

    def last(self) -> Mapping[int, float | None]:
        """By broker id; empty before the first answers."""
        with self._lock:
            return self._rows[-1].answer_ms if self._rows else {}

    def _answer_ms(self, broker: Node) -> float:
        """Raises OSError, KafkaError."""
        with self._lock:
            sender = self._senders.get(broker)
            if sender is None:
                sender = BlockingSender(
                    broker.host, broker.port, CLIENT_ID, request_timeout_ms=self._timeout_ms, time=self._time
                )
                self._senders[broker] = sender
        sender.api_versions()  # connects, unless it is connected
        asked_ms = self._time.hi_res_clock_ms()
        sender.send(ApiVersionsRequest(), _VERSION)
        return self._time.hi_res_clock_ms() - asked_ms

    def _close_all_but(self, brokers: Collection[Node]) -> None:
        """The connections to others."""
        with self._lock:
            closed = [self._senders.pop(broker) for broker in self._senders.keys() - set(brokers)]
        for sender in closed:
            sender.close()


def _known(answer: float | Exception) -> float | None:
    if isinstance(answer, OSError | KafkaError):
        return None
    if isinstance(answer, Exception):
        raise answer
    return answer


def lines_of(rows: Iterable[Row]) -> list[tuple[int, list[float | None]]]:
    """(broker id, a value for each row, None where the broker was not there or did not answer), by id.  Of more than
    MOST_LINES brokers those whose slowest answer was the slowest; no answer is slower than all."""
    rows = list(rows)
    slowest: dict[int, float] = {}
    for row in rows:
        for broker, answer_ms in row.answer_ms.items():
            slowest[broker] = max(slowest.get(broker, 0.0), math.inf if answer_ms is None else answer_ms)
    shown = sorted(sorted(slowest, key=lambda broker: (-slowest[broker], broker))[:MOST_LINES])
    return [(broker, [row.answer_ms.get(broker) for row in rows]) for broker in shown]
