"""SampledRate: an amount per second over a sliding row of short windows, as quotas measure it."""

from __future__ import annotations

from collections import deque


class SampledRate:
    """At most num_samples windows of window_ms each; what is older than all of them together counts no more.

    Not thread-safe.  now_ms never goes back.  Source: SampledStat, Rate, SimpleRate, Kafka 2.4-4.x.
    """

    __slots__ = ("_num_samples", "_samples", "_total", "_window_ms", "last_recorded_ms")

    def __init__(self, num_samples: int, window_ms: float, now_ms: float) -> None:
        self._num_samples = num_samples
        self._window_ms = window_ms
        #: [start, amount], the oldest first.
        self._samples: deque[list[float]] = deque([[now_ms, 0.0]])
        self._total = 0.0
        self.last_recorded_ms = now_ms

    def record(self, amount: float, now_ms: float) -> None:
        """Add an amount; a negative one takes back what was recorded just now."""
        self._forget_old(now_ms)
        samples = self._samples
        if now_ms - samples[-1][0] >= self._window_ms:
            samples.append([now_ms, 0.0])
            if len(samples) > self._num_samples:
                self._total -= samples.popleft()[1]
        samples[-1][1] += amount
        self._total += amount
        self.last_recorded_ms = now_ms

    def total(self, now_ms: float) -> float:
        self._forget_old(now_ms)
        return self._total

    def simple_rate(self, now_ms: float) -> float:
        """Per second, over the time since the oldest window began, a window at least: high at once after a burst."""
        total = self.total(now_ms)
        return total * 1000 / max(now_ms - self._samples[0][0], self._window_ms)

    def rate(self, now_ms: float) -> float:
        """Per second, over window_size_ms()."""
        return self.total(now_ms) * 1000 / self.window_size_ms(now_ms)

    def window_size_ms(self, now_ms: float) -> float:
        """The time since the oldest window began, taken to be all windows but the last at least."""
        self._forget_old(now_ms)
        elapsed_ms = now_ms - self._samples[0][0]
        missing = self._num_samples - 1 - int(elapsed_ms // self._window_ms)
        return max(elapsed_ms + max(missing, 0) * self._window_ms, 1)

    def _forget_old(self, now_ms: float) -> None:
        samples = self._samples
        oldest_ms = now_ms - self._num_samples * self._window_ms
        while samples and samples[0][0] <= oldest_ms:
            self._total -= samples.popleft()[1]
        if not samples:
            samples.append([now_ms, 0.0])
            self._total = 0.0  # exactly, whatever the sums have lost
