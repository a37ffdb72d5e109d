"""A token bucket: a rate that may be exceeded for a while by what was saved before."""

from __future__ import annotations

_MAX_MS = 2**31 - 1


class TokenBucket:
    """Not thread-safe.  Full at first; a withdrawal may leave a debt, which time pays back.

    rate: tokens per second.  burst: the most that is saved.  Source: TokenBucket, Kafka (KIP-599).
    """

    def __init__(self, rate: float, burst: float, now_ms: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._last_ms = now_ms

    def withdraw(self, tokens: float, now_ms: float) -> None:
        self._refill(now_ms)
        self._tokens -= tokens

    def debt_ms(self, now_ms: float) -> int:
        """How long until the debt is paid, 2**31 - 1 at most, as a throttle time of Kafka's; 0 without one."""
        self._refill(now_ms)
        return round(min(max(-self._tokens / self._rate * 1000, 0), _MAX_MS))

    def set_rate(self, rate: float, burst: float, now_ms: float) -> None:
        """What is saved or owed stays, up to the new burst."""
        self._refill(now_ms)
        self._rate, self._burst = rate, burst
        self._tokens = min(self._tokens, burst)

    def _refill(self, now_ms: float) -> None:
        self._tokens = min(self._tokens + max(now_ms - self._last_ms, 0) / 1000 * self._rate, self._burst)
        self._last_ms = max(now_ms, self._last_ms)
