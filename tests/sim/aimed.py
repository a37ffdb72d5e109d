"""Histories near the named scenarios: each scenario as it is, then with other moments, settings and clients around it.

Random histories seldom come near what a scenario needs; another moment of one of its faults may show something new.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

from tests.sim.events import Consume, Event, History, Produce, random_controlled_history, random_history
from tests.sim.rules import rules
from tests.sim.seeds import is_unclean
from tests.sim.transactions.events import random_transactional_history

#: By how much the events from one of them on come earlier or later, ms.
_SHIFTS_MS = (-20, -5, -2, -1, 1, 2, 5, 20, 100)


@cache
def scenarios() -> list[History]:
    """Each history that some rule needs, once."""
    return list(dict.fromkeys(rule.history for rule in rules()))


def aimed_history(seed: int) -> History:
    """All scenarios as they are, then variations of each."""
    number, at = divmod(seed, len(scenarios()))
    return replace(varied(scenarios()[at], number), seed=seed)


def varied(history: History, number: int) -> History:
    """Variation 0 is the history itself."""
    if number == 0:
        return history
    random = Random(number)
    settings = replace(
        history.settings,
        segment_bytes=random.choice([history.settings.segment_bytes, 300, 100_000]),
        remembers_idle=random.random() < 0.5,
    )
    events = list(history.events)
    begin, end = events[0].at_ms, events[-1].at_ms
    for _ in range(random.choice([1, 1, 2])):
        at, shift_ms = random.randrange(len(events)), random.choice(_SHIFTS_MS)
        events[at:] = [replace(event, at_ms=max(1, event.at_ms + shift_ms)) for event in events[at:]]
    for _ in range(random.choice([0, 0, 3])):
        at_ms, partition = random.randint(begin, end + 500), random.randrange(settings.partitions)
        client: Event = Produce(at_ms, partition) if random.random() < 0.6 else Consume(at_ms, partition)
        events.append(client)
    return History(settings, tuple(sorted(events, key=lambda event: event.at_ms)))


def mixed_history(seed: int) -> History:
    """In turn: a random history of either controller, one of a swarm of either, two aimed ones, one of transactions."""
    number, kind = divmod(seed, 7)
    unclean = is_unclean(number)
    match kind:
        case 0:
            history = random_history(number, unclean=unclean)
        case 1:
            history = random_controlled_history(number, unclean=unclean)
        case 2 | 3:
            history = aimed_history(2 * number + kind - 2)
        case 4:
            history = random_history(number, unclean=unclean, swarm=True)
        case 5:
            history = random_controlled_history(number, unclean=unclean, swarm=True)
        case _:
            history = random_transactional_history(number)
    return replace(history, seed=seed)
