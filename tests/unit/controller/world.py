"""Controllers on one store, without threads and sockets."""

from collections import Counter, deque
from random import Random

from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_settings import ControllerSettings
from kcore.controller.kafka_controller import KafkaController
from kcore.errors import NONE
from kcore.metadata import znodes
from kcore.metadata.embedded_store import FILE_NAME, SESSION_TIMEOUT_MS, EmbeddedStore
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.metadata.open_store import open_store
from kcore.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from kcore.protocol.messages.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaResponse,
)
from kcore.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from tests.unit.metadata.zookeeper_sessions import deliver_all, expire


class FakeChannels:
    """Keeps the requests; answer() lets the brokers carry them out.  codes: (broker, partition) -> error code."""

    def __init__(self):
        self.brokers = {}
        self.sent = []
        self.waiting = deque()
        self.codes = {}

    def add_broker(self, broker):
        self.brokers[broker.broker_id] = broker

    def remove_broker(self, broker_id):
        del self.brokers[broker_id]

    def send_request(self, broker_id, request, on_reply=None):
        assert broker_id in self.brokers
        self.sent.append((broker_id, request))
        self.waiting.append((broker_id, request, on_reply))

    def queue_sizes(self):
        waiting = Counter(broker_id for broker_id, _, _ in self.waiting)
        return {broker_id: waiting[broker_id] for broker_id in self.brokers}

    def close(self):
        self.brokers.clear()

    def answer(self):
        count = len(self.waiting)
        for _ in range(count):
            broker_id, request, on_reply = self.waiting.popleft()
            if on_reply is not None:
                on_reply(self._reply(broker_id, request))
        return count

    def _reply(self, broker_id, request):
        if isinstance(request, UpdateMetadataRequest):
            return UpdateMetadataResponse()
        partitions = [
            (topic, state.partition_index, self.codes.get((broker_id, topic.topic_name, state.partition_index), NONE))
            for topic in request.topic_states
            for state in topic.partition_states
        ]
        if isinstance(request, LeaderAndIsrRequest):
            return LeaderAndIsrResponse(
                topics=[
                    LeaderAndIsrTopicError(
                        topic_id=topic.topic_id,
                        partition_errors=[LeaderAndIsrPartitionError(partition_index=number, error_code=code)],
                    )
                    for topic, number, code in partitions
                ]
            )
        return StopReplicaResponse(
            partition_errors=[
                StopReplicaPartitionError(topic_name=topic.topic_name, partition_index=number, error_code=code)
                for topic, number, code in partitions
            ]
        )

    def take(self, kind=None):
        """The requests of a kind that were sent since the last call: (broker, request)."""
        taken = [(broker, request) for broker, request in self.sent if kind is None or isinstance(request, kind)]
        self.sent.clear()
        return taken


class World:
    """Brokers with a controller each, on stores of one tree.  settle() runs everything to its end."""

    SETTINGS = ControllerSettings()

    def __init__(self, tmp_path):
        self.time = MockTime()
        self.scheduler = MockScheduler(self.time)
        self.scheduler.startup()
        self.stores, self.controllers, self.channels = {}, {}, {}
        self.admin = self._open()

    # -- brokers ----------------------------------------------------------------------------------------

    def start(self, *broker_ids, settings=SETTINGS):
        for broker_id in broker_ids:
            store = self.stores[broker_id] = self._open()
            channels = self.channels[broker_id] = FakeChannels()

            def register(broker_id=broker_id, store=store):
                store.ensure_path(znodes.BROKER_IDS)
                endpoints = {"PLAINTEXT": (f"host{broker_id}", 9092)}
                node = znodes.BrokerZNode(endpoints, f"rack{broker_id}", 0, {"PLAINTEXT": "PLAINTEXT"})
                store.create(znodes.broker_id(broker_id), node.encode(), ephemeral=True)
                return True

            register()
            controller = KafkaController(broker_id, store, channels, settings, register, self.time, self.scheduler)
            self.controllers[broker_id] = controller
            controller.startup(start_thread=False)
        self.settle()

    def kill(self, broker_id):
        """Its session ends without it; nothing of it runs any more."""
        self.controllers.pop(broker_id)
        self.channels.pop(broker_id)
        self.end_session(self.stores.pop(broker_id))
        self.settle()

    def settle(self):
        while self.deliver() + self.process() + sum(c.answer() for c in self.channels.values()):
            pass

    def process(self):
        return sum(controller.events.process_all() for controller in list(self.controllers.values()))

    @property
    def active(self):
        (controller,) = [c for c in self.controllers.values() if c.is_active]
        return controller

    @property
    def requests(self):
        """Of the active controller."""
        return self.channels[self.active.broker_id]

    # -- topics -----------------------------------------------------------------------------------------

    def create_topic(self, name, assignment, config=None):
        """As a broker does for CreateTopics: the controller's watch is called."""
        node = znodes.TopicZNode(dict(enumerate(assignment)), znodes.random_id(Random(name)))
        self.admin.create_recursive(znodes.topic_config(name), znodes.encode_config(config or {}))
        self.admin.create_recursive(znodes.topic(name), node.encode())
        self.settle()

    def delete_topic(self, name):
        self.admin.create_recursive(znodes.delete_topic(name))
        self.settle()

    def state(self, topic, number=0):
        node = self.admin.get(znodes.partition_state(topic, number))
        return znodes.PartitionStateZNode.decode(node.data) if node is not None else None

    def set_isr(self, topic, number, isr):
        """As a leader does."""
        path = znodes.partition_state(topic, number)
        self.admin.set(path, self.state(topic, number)._replace(isr=list(isr)).encode())


class MemoryWorld(World):
    def __init__(self, tmp_path):
        self.tree = MemoryTree()
        super().__init__(tmp_path)

    def _open(self):
        return MemoryStore(self.tree)

    def deliver(self):
        return self.tree.pump()

    def expire(self, broker_id):
        self.tree.expire(self.stores[broker_id].session_id)

    def end_session(self, store):
        store.close()

    def close(self):
        for store in (self.admin, *self.stores.values()):
            store.close()


class EmbeddedWorld(MemoryWorld):
    """Each broker has a connection of its own, as another process would."""

    def __init__(self, tmp_path):
        self.path = str(tmp_path / FILE_NAME)
        World.__init__(self, tmp_path)

    def _open(self):
        return EmbeddedStore(self.path, durable=False, poll_interval_ms=None, time=self.time)

    def deliver(self):
        before = sum(len(c.events._events) for c in self.controllers.values())
        for store in (self.admin, *self.stores.values()):
            store.poll()
        return sum(len(c.events._events) for c in self.controllers.values()) - before

    def expire(self, broker_id):
        silent = self.stores[broker_id]
        for _ in range(7):
            for store in (self.admin, *self.stores.values()):
                if store is not silent:
                    store.poll()
            self.time.sleep(SESSION_TIMEOUT_MS / 6)


class ZookeeperWorld(MemoryWorld):
    """Each broker has a session with a real server."""

    def __init__(self, address):
        self.address = address
        World.__init__(self, None)

    def _open(self):
        # Long: a machine that stands still must not end a session.
        return open_store(self.address, session_timeout_ms=60_000)

    def deliver(self):
        before = sum(len(c.events._events) for c in self.controllers.values())
        for store in (self.admin, *self.stores.values()):
            deliver_all(store)
        return sum(len(c.events._events) for c in self.controllers.values()) - before

    def expire(self, broker_id):
        expire(self.stores[broker_id])


def partitions_of(request):
    """TopicPartition -> state, of a request."""
    return {
        TopicPartition(topic.topic_name, state.partition_index): state
        for topic in request.topic_states
        for state in topic.partition_states
    }
