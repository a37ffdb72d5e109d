"""Operations that wait for a condition or a deadline, whichever comes first (PURG)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable, Iterable, Sequence

from kcore.purgatory.timer import Timer, TimerTask

logger = logging.getLogger(__name__)


class DelayedOperation:
    """Something that completes once: when try_complete() finds it can, or delay_ms after it began to wait.

    A subclass implements try_complete() and on_complete(), and on_expiration() if it cares.  None of them is called
    with a lock of the purgatory held.  try_complete() may run on several threads at once, so it either only reads, or
    writes what any other thread would write too; on_complete() runs exactly once (PURG-01).
    Source: DelayedOperation, Kafka 2.4.
    """

    __slots__ = ("_completed", "_purgatory", "_timer_task", "_watch_keys", "delay_ms")

    def __init__(self, delay_ms: float) -> None:
        self.delay_ms = delay_ms
        # Locked for good by whoever completes the operation: the cheapest test-and-set there is.
        self._completed = threading.Lock()
        self._purgatory: DelayedOperationPurgatory | None = None
        self._timer_task: TimerTask | None = None
        self._watch_keys: Iterable[Hashable] = ()

    def try_complete(self) -> bool:
        """Call and return force_complete() if the operation can complete now, else return False."""
        raise AssertionError(f"{type(self).__name__} has no try_complete()")

    def try_complete_for(self, key: Hashable) -> bool:
        """The same after a change of what `key` names: an operation that waits under many keys may look at one."""
        return self.try_complete()

    def on_complete(self) -> None:
        """What the operation does, once, on the thread that completed it."""
        raise AssertionError(f"{type(self).__name__} has no on_complete()")

    def on_expiration(self) -> None:
        """Runs after on_complete() when it was the deadline that completed the operation (PURG-05)."""

    @property
    def waiting(self) -> Sequence[DelayedOperation]:
        """Who waits where this is watched: itself, unless it observes for others."""
        return (self,)

    @property
    def deadline_ms(self) -> float | None:
        """When it expires, by Timer.now_ms(); None before it has begun to wait."""
        task = self._timer_task
        return None if task is None else task.deadline_ms

    @property
    def is_completed(self) -> bool:
        """True from before on_complete() starts."""
        return self._completed.locked()

    def force_complete(self) -> bool:
        """Complete now, whatever the condition says; True for the one caller that did it."""
        if not self._completed.acquire(blocking=False):
            return False
        if self._purgatory is not None:
            self._purgatory._forget(self)
        self.on_complete()
        return True

    def _expire(self) -> None:
        if self.force_complete():
            self.on_expiration()


class DelayedOperationPurgatory:
    """Where operations wait: watched under keys, and timed.

    Thread-safe.  Its lock guards only the watch lists and is never held while an operation's methods run.  An
    operation leaves all its lists the moment it completes, whoever completed it (PURG-06).
    Source: DelayedOperationPurgatory, Kafka 2.4.
    """

    def __init__(self, name: str, timer: Timer) -> None:
        self.name = name
        self._timer = timer
        self._lock = threading.Lock()
        #: Empty while nobody waits.  Dicts as ordered sets: operations are tried in the order they came, and leave in
        #: O(1).
        self.watchers: dict[Hashable, dict[DelayedOperation, None]] = {}

    def try_complete_else_watch(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> bool:
        """True if the operation completed at once; else it waits under every key (PURG-02, PURG-03).

        keys is kept until the operation completes and must not change.
        """
        return operation.try_complete() or self.watch(operation, keys)

    def watch(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> bool:
        """The same for an operation that the caller has just tried in its own way."""
        operation._watch_keys = keys
        operation._purgatory = self
        watchers = self.watchers
        with self._lock:
            for key in keys:
                watching = watchers.get(key)
                if watching is None:
                    watchers[key] = {operation: None}
                else:
                    watching[operation] = None
        # A change before the lines above did not find this operation in the lists, so try again.
        if operation.try_complete():
            return True
        timer_task = self._timer.add(operation._expire, operation.delay_ms)
        operation._timer_task = timer_task
        if not operation._completed.locked():
            return False
        # Completed by another thread, perhaps before the timer task or the lists had the operation.
        self._forget(operation)
        return True

    def check_and_complete(self, key: Hashable) -> int:
        """Try all operations that wait under key; how many this call completed (PURG-04).

        Call it after the change it reports, with no lock held.  One dict lookup when nobody waits.  An operation that
        raises is logged and does not keep the others waiting.
        """
        watching = self.watchers.get(key)
        if watching is None:
            return 0
        with self._lock:
            operations = list(watching)
        completed = 0
        for operation in operations:
            try:
                if not operation._completed.locked() and operation.try_complete_for(key):
                    completed += 1
            except Exception:
                logger.exception("%s: an operation waiting for %s failed", self.name, key)
        return completed

    def observe(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> None:
        """Have operation.try_complete_for(key) called for each change from now on: for one that never completes."""
        with self._lock:
            for key in keys:
                self.watchers.setdefault(key, {})[operation] = None

    def end_observation(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> None:
        with self._lock:
            self._remove(operation, keys)

    def _forget(self, operation: DelayedOperation) -> None:
        with self._lock:
            self._remove(operation, operation._watch_keys)
        timer_task = operation._timer_task
        if timer_task is not None:
            timer_task.callback = None  # as cancel()

    def operations(self, key: Hashable) -> list[DelayedOperation]:
        """Those that wait under key and observe it, oldest first; some may have completed since."""
        with self._lock:
            return list(self.watchers.get(key, ()))

    def _remove(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> None:
        watchers = self.watchers
        for key in keys:
            watching = watchers.get(key)
            if watching is not None:
                watching.pop(operation, None)
                if not watching:
                    del watchers[key]

    @property
    def size(self) -> int:
        """How many entries all watch lists have; an operation has one under each of its keys."""
        with self._lock:
            return sum(len(operation.waiting) for watching in self.watchers.values() for operation in watching)

    @property
    def delayed(self) -> int:
        """How many operations wait at all."""
        with self._lock:
            operations = {operation for watching in self.watchers.values() for operation in watching}
            return sum(len(operation.waiting) for operation in operations)
