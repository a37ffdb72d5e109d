"""A member of a cluster whose controller is the test: what stands for its KafkaController."""

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.metadata.store import SessionEvent, StoreError
from kcore.server import cluster_membership
from kcore.server.member.cluster_member import ClusterMember

_RETRY_MS = 1000


class AbsentController:
    """Is in no election and carries nothing out; it begins the next session of the store, as a KafkaController does.

    is_active: what the broker hears of it.  shutdowns: the (id, epoch) of brokers that asked to be relieved.
    """

    def __init__(self, broker_id, store, config, connections, scheduler, parts, register_again):
        self.broker_id = broker_id
        self.is_active = False
        self.isr_changes = self
        self.shutdowns = []
        self._store = store
        self._scheduler = scheduler
        self._register_again = register_again
        self._has_ended = False

    def startup(self):
        self._store.add_session_listener(self._session_changed)

    def shutdown(self):
        self._has_ended = True

    abandon = shutdown

    def _session_changed(self, event):
        if event is SessionEvent.EXPIRED:
            self._scheduler.schedule("new-session", self._begin_session)

    def _begin_session(self):
        if self._has_ended:
            return
        try:
            self._store.new_session()
        except StoreError:
            self._scheduler.schedule("new-session", self._begin_session, _RETRY_MS)
        else:
            self._register()

    def _register(self):
        if not self._register_again() and not self._has_ended:
            self._scheduler.schedule("register", self._register, _RETRY_MS)

    def controlled_shutdown(self, broker_id, broker_epoch, on_done):
        self.shutdowns.append((broker_id, broker_epoch))
        if broker_id == 1:
            on_done(None, [TopicPartition("t", 0)])
        else:
            on_done(errors.StaleBrokerEpoch("another registration"), ())

    def request(self, broker_id, broker_epoch, changes, on_done):
        on_done(self._error())

    def alter_partition_reassignments(self, targets, on_done):
        on_done(self._error())

    def list_partition_reassignments(self, topic_partitions, on_done):
        on_done(self._error())

    def elect_leaders(self, election_type, topic_partitions, on_done):
        on_done(self._error())

    def _error(self):
        return errors.NotController(f"broker {self.broker_id} is not the controller")


def be_the_controller(monkeypatch):
    """Brokers that start have an AbsentController, and neither wait for metadata nor ask to be relieved."""
    monkeypatch.setattr(cluster_membership, "make_controller", AbsentController)
    monkeypatch.setattr(ClusterMember, "wait_for_metadata", lambda *args: True)
    monkeypatch.setattr(cluster_membership, "controlled_shutdown", lambda *args: False)
