"""ConnectionQuotas: how many connections an IP address may open per second (KIP-612).

Source: ConnectionQuotas.recordIpConnectionMaybeThrottle, Kafka 3.9.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from kcore.common.sampled_rate import SampledRate
from kcore.common.time import Time
from kcore.security.acl import canonical_host
from kcore.server.quotas.client_quota_manager import DEFAULT, EntityName, QuotaEntity

#: Addresses whose rates are kept before those without a recent connection are dropped.
_MAX_ADDRESSES = 10_000


class ConnectionQuotas:
    """Thread-safe.  Limits are connections per second, over all windows but the last as the other quotas measure."""

    def __init__(self, num_samples: int, window_seconds: int, time: Time) -> None:
        self._num_samples = num_samples
        self._window_ms = window_seconds * 1000
        self._time = time
        self._lock = threading.Lock()
        self._limits: Mapping[EntityName | None, float] = {}
        self._rates: dict[str, SampledRate] = {}

    def update(self, quotas: Mapping[QuotaEntity, float]) -> None:
        """Replace all quotas; the measured rates stay."""
        with self._lock:
            self._limits = {_address(entity.ip): limit for entity, limit in quotas.items()}

    def throttle_ms(self, host: str) -> int:
        """Count a new connection; ms after which it is to be closed, 0 if its address is within its quota.

        One that is to be closed does not count.  host: the address that it comes from.
        """
        if not self._limits:
            return 0
        with self._lock:
            address = canonical_host(host)
            limit = self._limits.get(address, self._limits.get(DEFAULT))
            if limit is None:
                return 0
            now_ms = self._time.hi_res_clock_ms()
            rate = self._rate(address, now_ms)
            rate.record(1, now_ms)
            excess = rate.rate(now_ms) - limit
            if excess <= 0:
                return 0
            rate.record(-1, now_ms)
            if excess >= limit:  # so far above it, or without any, a window is not enough
                return self._window_ms
            return max(1, round(min(excess / limit * rate.window_size_ms(now_ms), self._window_ms)))

    def _rate(self, address: str, now_ms: float) -> SampledRate:
        rate = self._rates.get(address)
        if rate is None:
            if len(self._rates) >= _MAX_ADDRESSES:
                oldest_ms = now_ms - self._num_samples * self._window_ms
                self._rates = {at: rate for at, rate in self._rates.items() if rate.last_recorded_ms > oldest_ms}
            rate = self._rates[address] = SampledRate(self._num_samples, self._window_ms, now_ms)
        return rate


def _address(name: EntityName | None) -> EntityName | None:
    """A Java broker may have stored it in another spelling."""
    return canonical_host(name) if isinstance(name, str) else name
