"""RegexResolver: looks up the topics that match the regular expressions of consumer groups, outside of requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kcore.common.scheduler import Scheduler
from kcore.common.time import Time
from kcore.coordinator.group.topic_patterns import compile_pattern
from kcore.errors import InvalidRegularExpression

logger = logging.getLogger(__name__)

#: A group's topics are looked up no more often than this.
MIN_INTERVAL_MS = 10_000

#: A task matches so many names: at most a second (10 ms for a name and the worst expression that is taken).
NAMES_OF_A_TASK = 100

#: Names of topics -> those that the member may see that had them looked up.
Permitted = Callable[[Iterable[str]], Collection[str]]


class TopicNames(NamedTuple):
    """Of the cluster at one moment.  serial: other names have another one."""

    serial: int = 0
    names: Collection[str] = ()


@dataclass(slots=True)
class RegexState:
    """Of one group, under its lock.  looked_up_ms: of the hi-res clock, None before the first time.

    names: of the topics that there were then.  serial: of the last ones that have no topic beyond these.
    """

    is_running: bool = False
    looked_up_ms: float | None = None
    serial: int = -1
    names: frozenset[str] = frozenset()

    def is_due(self, now_ms: float, topics: TopicNames, refresh_interval_ms: int, *, has_unresolved: bool) -> bool:
        """Whether the expressions have to be looked up: a new one, a new topic, or a long time since."""
        if self.is_running:
            return False
        if self.looked_up_ms is None:
            return True
        age_ms = now_ms - self.looked_up_ms
        if age_ms <= MIN_INTERVAL_MS:
            return False
        if has_unresolved or age_ms >= refresh_interval_ms:
            return True
        if topics.serial != self.serial:
            if not self.names.issuperset(topics.names):
                return True
            self.serial = topics.serial
        return False


class RegexResolver:
    """Thread-safe."""

    def __init__(self, scheduler: Scheduler, time: Time, topic_names: Callable[[], TopicNames]) -> None:
        self._scheduler = scheduler
        self._time = time
        self._topic_names = topic_names

    def maybe_start(
        self,
        state: RegexState,
        regexes: Collection[str],
        resolved: Collection[str],
        refresh_interval_ms: int,
        permitted: Permitted,
        on_resolved: Callable[[Mapping[str, Collection[str]]], None],
    ) -> None:
        """Under the group's lock.  on_resolved(topics by expression) runs later, without it.

        An expression that cannot be compiled is not in the result.
        """
        topics, now_ms = self._topic_names(), self._time.hi_res_clock_ms()
        has_unresolved = not set(regexes) <= set(resolved)
        if not regexes or not state.is_due(now_ms, topics, refresh_interval_ms, has_unresolved=has_unresolved):
            return
        state.is_running, state.looked_up_ms = True, now_ms
        state.serial, state.names = topics.serial, frozenset(topics.names)
        lookup = _Lookup(sorted(regexes), sorted(state.names), permitted, on_resolved)
        self._scheduler.schedule("resolve-regular-expressions", lambda: self._step(lookup))

    def _step(self, lookup: _Lookup) -> None:
        if lookup.match_some():
            self._scheduler.schedule("resolve-regular-expressions", lambda: self._step(lookup))
        else:
            lookup.finish()


class _Lookup:
    def __init__(
        self,
        regexes: list[str],
        names: list[str],
        permitted: Permitted,
        on_resolved: Callable[[Mapping[str, Collection[str]]], None],
    ) -> None:
        self._names = names
        self._permitted = permitted
        self._on_resolved = on_resolved
        self._waiting = list(reversed(regexes))
        self._next_name = 0
        self._matched: dict[str, list[str]] = {}

    def match_some(self) -> bool:
        """Match a part of the names; whether more are left."""
        if not self._waiting:
            return False
        regex = self._waiting[-1]
        try:
            matches = compile_pattern(regex)
        except InvalidRegularExpression as error:
            # Another broker has taken it.
            logger.warning("the topics of a regular expression cannot be looked up: %s", error)
            self._waiting.pop()
            return bool(self._waiting)
        some = self._names[self._next_name : self._next_name + NAMES_OF_A_TASK]
        self._matched.setdefault(regex, []).extend(name for name in some if matches(name))
        self._next_name += NAMES_OF_A_TASK
        if self._next_name >= len(self._names):
            self._waiting.pop()
            self._next_name = 0
        return bool(self._waiting)

    def finish(self) -> None:
        everything = {name for names in self._matched.values() for name in names}
        try:
            visible = set(self._permitted(sorted(everything)))
        except Exception:
            logger.exception("the topics of regular expressions are not looked up: the authorizer failed")
            self._on_resolved({})
            return
        self._on_resolved({regex: visible.intersection(names) for regex, names in self._matched.items()})
