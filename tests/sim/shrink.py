"""A failed history made short: events are left out as long as the same invariant still breaks (delta debugging)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.sim.events import Event, History, Produce, ProduceIdempotent
from tests.sim.simulated import simulated


@dataclass(frozen=True, slots=True)
class Failure:
    """name: of the invariant, or of an unexpected exception's class.  story: what happened, line by line."""

    name: str
    message: str
    history: History
    story: tuple[str, ...] = ()
    steps: int = 0

    def __str__(self) -> str:
        """The report for a reader: the events, what they led to, and how to run it again."""
        events = "\n".join(f"    {event!r}," for event in self.history.events)
        origin = "" if self.history.seed is None else f" (from seed {self.history.seed})"
        return "\n".join(
            [
                f"{self.message}{origin}",
                "",
                f"{len(self.history.events)} events; > is an event, the other lines are what became of it:",
                *_abridged(self.story),
                "",
                "to run it again:",
                f"run_history(History({self.history.settings}, (\n{events}\n)))",
            ]
        )


def _abridged(story: tuple[str, ...], head: int = 60, tail: int = 20) -> list[str]:
    if len(story) <= head + tail:
        return list(story)
    return [*story[:head], f"       ... {len(story) - head - tail} lines ...", *story[-tail:]]


def run_history(history: History) -> Failure | None:
    """Run a history up to its end, or to the step after which something is wrong."""
    cluster = None
    try:
        with simulated(history) as cluster:
            cluster.run()
        return None
    except Exception as error:
        name = getattr(error, "name", None)
        name = name if isinstance(name, str) else type(error).__name__
        story = () if cluster is None else tuple(cluster.story)
        return Failure(name, f"{type(error).__name__}: {error}", history, story, cluster.steps if cluster else 0)


def shrunk(failure: Failure, *, seconds: float = 60, run: Callable[[History], Failure | None] = run_history) -> Failure:
    """The same failure with as few events as shrinking reaches within so many seconds of CPU time.

    Removes halves, then quarters and so on, until no single event can go; then makes what is left simpler.
    """
    deadline = time.process_time() + seconds

    def tried(events: list[Event]) -> Failure | None:
        if time.process_time() > deadline:
            return None
        again = run(failure.history.with_events(events))
        return again if again is not None and again.name == failure.name else None

    best = failure
    chunk = max(1, len(best.history.events) // 2)
    while True:
        events = list(best.history.events)
        at = len(events)
        progress = False
        # From the end: what comes after the failure goes first.
        while at > 0:
            at = max(0, at - chunk)
            shorter = tried(events[:at] + events[at + chunk :])
            if shorter is not None:
                best, events, progress = shorter, list(shorter.history.events), True
        if chunk == 1 and not progress:
            break
        if time.process_time() > deadline:
            return best
        chunk = max(1, chunk // 2)
    for index, event in enumerate(best.history.events):
        simpler = _simpler(event)
        if simpler != event:
            events = list(best.history.events)
            events[index] = simpler
            best = tried(events) or best
    return best


def _simpler(event: Event) -> Event:
    match event:
        case Produce():
            return replace(event, records=1, size=1, acks=-1)
        case ProduceIdempotent():
            return replace(event, records=1)
        case _ if hasattr(event, "count"):
            return replace(event, count=1)
    return event
