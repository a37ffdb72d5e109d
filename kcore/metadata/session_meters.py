"""SessionMeters: what happens to a broker's session of the store, under Kafka's names (METRIC-01)."""

from __future__ import annotations

from collections.abc import Iterator

from kcore.common.meters import Meter
from kcore.common.metrics import Measured, MetricName
from kcore.metadata.store import MetadataStore, SessionEvent

#: Source: ZooKeeperClient.stateToMeterMap, Kafka 3.9.
_NAMES = {
    SessionEvent.CONNECTED: "ZooKeeperSyncConnectsPerSec",
    SessionEvent.SUSPENDED: "ZooKeeperDisconnectsPerSec",
    SessionEvent.EXPIRED: "ZooKeeperExpiresPerSec",
}


class SessionMeters:
    """Counts the changes of a session's state from the time when it is made; of any store, not only ZooKeeper."""

    def __init__(self, store: MetadataStore) -> None:
        self._meters = {event: Meter() for event in SessionEvent}
        store.add_session_listener(lambda event: self._meters[event].mark(1))

    def measured(self) -> Iterator[tuple[MetricName, Measured]]:
        for event, name in _NAMES.items():
            yield MetricName("kafka.server", "SessionExpireListener", name), self._meters[event]
