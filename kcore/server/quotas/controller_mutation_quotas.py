"""ControllerMutationQuotas: how many partitions clients may create and delete per second (KIP-599).

Source: ControllerMutationQuotaManager, StrictControllerMutationQuota, PermissiveControllerMutationQuota, Kafka 3.9.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from kcore.common.time import Time
from kcore.common.token_bucket import TokenBucket
from kcore.errors import ThrottlingQuotaExceeded
from kcore.server.quotas.client_quota_manager import QuotaEntity, quota_of

#: Clients whose buckets are kept before those without a debt are dropped: client ids are the clients' choice.
_MAX_BUCKETS = 10_000


class ControllerMutationQuotas:
    """Thread-safe.  Limits are partitions per second; burst_seconds: for how long an unused limit is saved."""

    def __init__(self, burst_seconds: int, time: Time) -> None:
        self._burst_seconds = burst_seconds
        self._time = time
        self._lock = threading.Lock()
        self._quotas: Mapping[QuotaEntity, float] = {}
        #: By whose requests count together, as quota_of() says it.
        self._buckets: dict[tuple[str, str], TokenBucket] = {}

    def update(self, quotas: Mapping[QuotaEntity, float]) -> None:
        """Replace all quotas; what clients have used stays."""
        with self._lock:
            self._quotas = dict(quotas)

    def of_request(self, user: str, client_id: str, *, is_strict: bool) -> MutationQuota:
        return MutationQuota(self, (user, client_id), is_strict=is_strict)

    def record(self, client: tuple[str, str], partitions: int) -> int:
        """Count partitions that a client has created or deleted; ms until its debt is paid."""
        with self._lock:
            now_ms = self._time.hi_res_clock_ms()
            bucket = self._bucket(client, now_ms)
            if bucket is None:
                return 0
            bucket.withdraw(partitions, now_ms)
            return bucket.debt_ms(now_ms)

    def _bucket(self, client: tuple[str, str], now_ms: float) -> TokenBucket | None:
        """None for a client without a quota."""
        quota = quota_of(self._quotas, *client)
        if quota is None:
            return None
        burst = quota.limit * self._burst_seconds
        bucket = self._buckets.get(quota.scope)
        if bucket is None:
            if len(self._buckets) >= _MAX_BUCKETS:
                self._buckets = {at: kept for at, kept in self._buckets.items() if kept.debt_ms(now_ms)}
            bucket = self._buckets[quota.scope] = TokenBucket(quota.limit, burst, now_ms)
        else:
            bucket.set_rate(quota.limit, burst, now_ms)
        return bucket


class MutationQuota:
    """What one request may do.  Not thread-safe.

    is_strict: what comes while there is a debt is refused; else all is done, and the client waits afterwards.
    throttle_ms: how long it is to wait.
    """

    def __init__(self, quotas: ControllerMutationQuotas, client: tuple[str, str], *, is_strict: bool) -> None:
        self._quotas = quotas
        self._client = client
        self._is_strict = is_strict
        self.throttle_ms = 0

    def check(self) -> None:
        """To be called before a change.  Raises ThrottlingQuotaExceeded."""
        if self._is_strict:
            self.throttle_ms = self._quotas.record(self._client, 0)
            if self.throttle_ms:
                raise ThrottlingQuotaExceeded("The throttling quota has been exceeded.")

    def record(self, partitions: int) -> None:
        """After a change.  In a strict one the debt counts for the next change only."""
        debt_ms = self._quotas.record(self._client, partitions)
        if not self._is_strict:
            self.throttle_ms = debt_ms
