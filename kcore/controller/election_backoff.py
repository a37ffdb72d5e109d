"""How long a broker whose terms as controller end with errors waits before it stands for election again.

Kafka's controller resigns and deletes /controller after such an error, and is elected again at once if no other broker
is faster (KafkaController.triggerControllerMove, 3.9): with an error that does not pass, the epoch rises without pause.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from kcore.common.scheduler import Scheduler
from kcore.common.time import Time

#: Before a broker that could not take part in an election tries again.
RETRY_MS = 1000
FIRST_MS, LONGEST_MS = 1000, 60_000


def election_backoff_ms(failures: int) -> int:
    """After so many terms, one after the other, that an error has ended: 1 s, 2 s, 4 s … 60 s."""
    return min(FIRST_MS << min(failures - 1, 16), LONGEST_MS)


class Pause(NamedTuple):
    number: int
    delay_ms: int


class ElectionBackoff:
    """Of one broker.  Not thread-safe: the controller's event thread; end() also on another."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self._pauses = 0
        self._failures = 0
        self._elected_ms = 0.0
        #: During a pause the broker does not try to become controller; it still deletes its own old /controller node.
        self.pause: Pause | None = None

    def elected(self) -> None:
        self._elected_ms = self._time.hi_res_clock_ms()

    def begin(self) -> Pause:
        """An error has ended the term.  A term longer than the longest pause was no failure, nor were those before."""
        if self._time.hi_res_clock_ms() - self._elected_ms > LONGEST_MS:
            self._failures = 0
        self._failures += 1
        self._pauses += 1
        self.pause = Pause(self._pauses, election_backoff_ms(self._failures))
        return self.pause

    def end(self, pause: Pause) -> None:
        """Nothing happens if a later one has begun."""
        if self.pause == pause:
            self.pause = None


class ElectionAttempts:
    """When one broker tries to take part in the election: one attempt at a time is scheduled or queued, however many
    errors ask for it.

    put: queues an attempt, which calls came() when it begins, or when it is dropped.
    Thread-safe: an attempt whose came() is late sees all that was before it.
    """

    def __init__(self, name: str, scheduler: Scheduler, backoff: ElectionBackoff, put: Callable[[], None]) -> None:
        self._name = name
        self._scheduler = scheduler
        self._backoff = backoff
        self._put = put
        self._is_coming = False

    def begin(self) -> None:
        self._is_coming = True
        self._put()

    def came(self) -> None:
        self._is_coming = False

    def retry(self, pause: Pause | None = None) -> None:
        """Try again in a second, or at the end of a pause."""
        if pause is not None:
            self._scheduler.schedule(self._name, partial(self._end, pause), pause.delay_ms)
        elif not self._is_coming:
            self._is_coming = True
            self._scheduler.schedule(self._name, self.begin, RETRY_MS)

    def _end(self, pause: Pause) -> None:
        self._backoff.end(pause)
        if not self._is_coming:
            self.begin()
