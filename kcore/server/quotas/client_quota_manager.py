"""ClientQuotaManager: one kind of client quota, of users and client ids (QUOTA-07; KIP-13, KIP-55, KIP-124).

The response to a client above its quota says how long to wait, and the broker reads nothing from its connection for so
long.  No request fails.
Source: ClientQuotaManager, ClientRequestQuotaManager, DefaultQuotaCallback, Kafka 2.4-3.9.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple

from kcore.common.sampled_rate import SampledRate
from kcore.common.time import Time

_MAX_THROTTLE_MS = 2**31 - 1
#: Clients whose quotas and rates are kept before those without a use are dropped: client ids are the clients' choice.
_MAX_RESOLVED = 10_000


class DefaultName:
    """The one DEFAULT: every user or client id without a quota of its own."""

    def __repr__(self) -> str:
        return "<default>"


DEFAULT = DefaultName()
EntityName = str | DefaultName


class QuotaEntity(NamedTuple):
    """Whom a quota is for: a user, a client id, a client id of a user, or an IP address; None for the part that it does
    not name."""

    user: EntityName | None
    client_id: EntityName | None
    ip: EntityName | None = None


class _Quota(NamedTuple):
    """scope: (user, client id) whose requests count together; "" for any."""

    scope: tuple[str, str]
    limit: float


def quota_of(quotas: Mapping[QuotaEntity, float], user: str, client_id: str) -> _Quota | None:
    """The quota that holds for a client: of all that fit the most specific, the user before the client id.

    What it is measured over follows from it: a default of users is a quota of each user by himself.
    """
    for entity in (
        QuotaEntity(user, client_id),
        QuotaEntity(user, DEFAULT),
        QuotaEntity(user, None),
        QuotaEntity(DEFAULT, client_id),
        QuotaEntity(DEFAULT, DEFAULT),
        QuotaEntity(DEFAULT, None),
        QuotaEntity(None, client_id),
        QuotaEntity(None, DEFAULT),
    ):
        limit = quotas.get(entity)
        if limit is not None:
            scope = (user if entity.user is not None else "", client_id if entity.client_id is not None else "")
            return _Quota(scope, limit)
    return None


class ClientQuotaManager:
    """Thread-safe.  Amounts are bytes, or percent of a second of a thread; limits are the same per second.

    is_enabled is False while there is no quota of this kind: then no call is needed.
    """

    def __init__(self, num_samples: int, window_seconds: int, time: Time, max_throttle_ms: int | None = None) -> None:
        self.is_enabled = False
        self._num_samples = num_samples
        self._window_seconds = window_seconds
        self._time = time
        self._max_throttle_ms = _MAX_THROTTLE_MS if max_throttle_ms is None else max_throttle_ms
        self._lock = threading.Lock()
        self._quotas: Mapping[QuotaEntity, float] = {}
        self._resolved: dict[tuple[str, str], _Quota | None] = {}
        self._rates: dict[tuple[str, str], SampledRate] = {}

    def update(self, quotas: Mapping[QuotaEntity, float]) -> None:
        """Replace all quotas; the measured rates stay."""
        with self._lock:
            self._quotas = dict(quotas)
            self._resolved = {}
            self.is_enabled = bool(quotas)

    def limit(self, user: str, client_id: str) -> float | None:
        """Per second; None if no quota holds for this client."""
        with self._lock:
            quota = self._quota(user, client_id)
            return None if quota is None else quota.limit

    def record(self, user: str, client_id: str, amount: float) -> int:
        """Count an amount; ms for which the client is to be throttled, 0 if it is within its quota."""
        with self._lock:
            quota = self._quota(user, client_id)
            if quota is None:
                return 0
            now_ms = self._time.hi_res_clock_ms()
            rate = self._rate(quota.scope, now_ms)
            rate.record(amount, now_ms)
            return self._throttle_ms(rate, quota.limit, now_ms)

    def unrecord(self, user: str, client_id: str, amount: float) -> None:
        """Undo the last record(): its bytes were not sent."""
        with self._lock:
            quota = self._quota(user, client_id)
            if quota is not None:
                now_ms = self._time.hi_res_clock_ms()
                self._rate(quota.scope, now_ms).record(-amount, now_ms)

    def max_amount_in_window(self, user: str, client_id: str) -> float:
        """What the quota allows in all full windows together; infinite without one (API-13)."""
        limit = self.limit(user, client_id)
        return float("inf") if limit is None else limit * (self._num_samples - 1) * self._window_seconds

    def _quota(self, user: str, client_id: str) -> _Quota | None:
        client = (user, client_id)
        if client in self._resolved:
            return self._resolved[client]
        if len(self._resolved) >= _MAX_RESOLVED:
            self._resolved = {}
        quota = self._resolved[client] = quota_of(self._quotas, user, client_id)
        return quota

    def _rate(self, scope: tuple[str, str], now_ms: float) -> SampledRate:
        rate = self._rates.get(scope)
        if rate is None:
            if len(self._rates) >= _MAX_RESOLVED:
                oldest_ms = now_ms - self._num_samples * self._window_seconds * 1000
                self._rates = {at: rate for at, rate in self._rates.items() if rate.last_recorded_ms > oldest_ms}
            rate = self._rates[scope] = SampledRate(self._num_samples, self._window_seconds * 1000, now_ms)
        return rate

    def _throttle_ms(self, rate: SampledRate, limit: float, now_ms: float) -> int:
        """How long until the rate is the limit, if nothing is added."""
        excess = rate.rate(now_ms) - limit
        if excess <= 0:
            return 0
        if limit <= 0:
            return self._max_throttle_ms
        return min(int(excess / limit * rate.window_size_ms(now_ms) + 0.5), self._max_throttle_ms)


class RequestTime:
    """The time that a thread spends on one request, for the request quota.

    Begun when the thread takes the request, ended when the handler returns: what waits costs no thread.
    """

    __slots__ = ("_client_id", "_quota", "_start_ms", "_stop_ms", "_time", "_user")

    def __init__(self, quota: ClientQuotaManager, user: str, client_id: str, time: Time) -> None:
        self._quota = quota
        self._user = user
        self._client_id = client_id
        self._time = time
        self._start_ms = time.hi_res_clock_ms()
        self._stop_ms: float | None = None

    def restart(self) -> None:
        """Another thread takes the request: how long it waited for that does not count."""
        self._start_ms = self._time.hi_res_clock_ms()

    def stop(self) -> None:
        self._stop_ms = self._time.hi_res_clock_ms()

    def record(self) -> int:
        """Count the time; ms for which the client is to be throttled."""
        stop_ms = self._time.hi_res_clock_ms() if self._stop_ms is None else self._stop_ms
        return self._quota.record(self._user, self._client_id, (stop_ms - self._start_ms) / 10)
