"""Throttler: keeps what several threads do below a rate."""

from __future__ import annotations

import threading

from kcore.common.time import Time


class Throttler:
    """Sleeps where more than rate_per_s would be done.  Thread-safe; the sleep is outside the lock.

    Looks every check_interval_ms at what was done since the last look.  Source: Throttler, Kafka 2.4-4.x.
    """

    def __init__(self, rate_per_s: float, time: Time, check_interval_ms: float = 300) -> None:
        self.rate_per_s = rate_per_s
        self._time = time
        self._check_interval_ms = check_interval_ms
        self._lock = threading.Lock()
        self._period_start_ms = time.hi_res_clock_ms()
        self._observed = 0.0

    def maybe_throttle(self, amount: float) -> None:
        """Tell that amount was done; returns when the next may be."""
        with self._lock:
            self._observed += amount
            elapsed_ms = self._time.hi_res_clock_ms() - self._period_start_ms
            if elapsed_ms < self._check_interval_ms or self._observed == 0:
                return
            wait_ms = self._observed / self.rate_per_s * 1000 - elapsed_ms
            self._observed = 0.0
            self._period_start_ms += elapsed_ms + max(wait_ms, 0.0)
        if wait_ms > 0:
            self._time.sleep(wait_ms)
