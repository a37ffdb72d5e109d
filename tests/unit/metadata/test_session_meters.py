"""Changes of the store's session are counted under Kafka's names."""

from kcore.metadata.memory_store import MemoryStore
from kcore.metadata.session_meters import SessionMeters
from kcore.metadata.store import SessionEvent


def test_METRIC_01_each_change_of_a_session_is_counted():
    listeners = []

    class Store(MemoryStore):
        def add_session_listener(self, listener):
            listeners.append(listener)

    meters = SessionMeters(Store())
    (listener,) = listeners
    for event in (SessionEvent.SUSPENDED, SessionEvent.CONNECTED, SessionEvent.SUSPENDED, SessionEvent.EXPIRED):
        listener(event)
    assert {str(name): meter.count for name, meter in meters.measured()} == {
        "kafka.server:type=SessionExpireListener,name=ZooKeeperSyncConnectsPerSec": 1,
        "kafka.server:type=SessionExpireListener,name=ZooKeeperDisconnectsPerSec": 2,
        "kafka.server:type=SessionExpireListener,name=ZooKeeperExpiresPerSec": 1,
    }
