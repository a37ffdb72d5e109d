"""LocalController: what it writes, and what it hands to the doors that a controller's requests will use."""

import pytest

from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaStorageError, TopicAlreadyExists, UnknownTopicOrPartition
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore
from kcore.metadata.metadata_cache import NO_LEADER, MetadataCache
from kcore.metadata.store import UnreadableNode
from kcore.replica.partition_state import LeaderAndIsrUpdate, StopReplica
from kcore.server.config.topic_configs import TopicConfigs
from kcore.server.topics.local_controller import (
    CONTROLLER_EPOCH,
    LocalController,
    _adopted_leader_epoch,
    _next_leader_epoch,
)
from kcore.server.topics.topic_adoption import HostedLog


class Doors:
    """The replica manager's two doors; notes what came, and what the store and the cache had at that time."""

    def __init__(self, store, cache):
        self.store, self.cache = store, cache
        self.failing = set()
        self.calls = []

    def become_leader_or_follower(self, updates, controller_epoch):
        self.calls.append(
            (updates, controller_epoch, self.store.children(znodes.TOPICS), list(self.cache.snapshot.topic_names()))
        )
        return {u.topic_partition: self._error(u) for u in updates}

    def stop_replicas(self, stops, controller_epoch):
        self.calls.append(
            (stops, controller_epoch, self.store.children(znodes.TOPICS), list(self.cache.snapshot.topic_names()))
        )
        return {s.topic_partition: self._error(s) for s in stops}

    def _error(self, order):
        return KafkaStorageError("no room") if order.topic_partition in self.failing else None


class Parts:
    def __init__(self, store=None):
        self.store = store or MemoryStore()
        self.cache = MetadataCache("cluster", 1)
        self.doors = Doors(self.store, self.cache)
        self.configs = TopicConfigs()
        self.controller = LocalController(1, self.store, self.cache, self.doors, self.configs)
        self.led = []
        self.controller.on_leadership = lambda tp, epoch: self.led.append((tp, epoch))

    def state(self, topic, number):
        return znodes.PartitionStateZNode.decode(self.store.get(znodes.partition_state(topic, number)).data)


class Adoption:
    """A start with these logs, where these topics exist only as directories."""

    def __init__(self, hosted=(), adopted=()):
        self.hosted, self.adopted = dict(hosted), dict(adopted)
        self.calls = []

    def finish_deletions(self):
        self.calls.append("finish_deletions")

    def hosted_logs(self):
        self.calls.append("hosted_logs")
        return self.hosted

    def adopted_topics(self, topics, hosted):
        return self.adopted

    def largest_producer_id(self, topics, hosted):
        return 7


def test_a_topic_is_stored_then_led_then_seen():
    parts = Parts()
    topic_id = parts.controller.create_topic("t", {0: [1], 1: [1]}, {"retention.ms": "5"})
    node = znodes.TopicZNode.decode(parts.store.get(znodes.topic("t")).data)
    assert node == znodes.TopicZNode({0: [1], 1: [1]}, topic_id)
    assert parts.state("t", 1) == znodes.PartitionStateZNode(1, 0, [1], CONTROLLER_EPOCH)
    assert znodes.decode_config(parts.store.get(znodes.topic_config("t")).data) == {"retention.ms": "5"}
    assert parts.configs.get("t") == {"retention.ms": "5"}
    ((updates, epoch, stored, seen),) = parts.doors.calls
    assert (epoch, stored, seen) == (CONTROLLER_EPOCH, ["t"], [])
    assert updates == [
        LeaderAndIsrUpdate(TopicPartition("t", n), 1, 0, (1,), [1], topic_id=topic_id, is_new=True) for n in (0, 1)
    ]
    assert [info.leader for info in parts.cache.topic("t").partitions.values()] == [1, 1]
    assert parts.led == [(TopicPartition("t", 0), 0), (TopicPartition("t", 1), 0)]


def test_a_topic_that_another_broker_has_created_meanwhile_is_not_written_over():
    parts = Parts()
    parts.store.create_recursive(znodes.topic("t"), b"{}")
    with pytest.raises(TopicAlreadyExists):
        parts.controller.create_topic("t", {0: [1]}, {})
    assert parts.store.get(znodes.topic("t")).data == b"{}"
    assert parts.store.children(znodes.topic("t")) == [] and parts.doors.calls == [] and parts.cache.topics() == []


def test_more_partitions_are_added_to_what_the_store_has():
    parts = Parts()
    topic_id = parts.controller.create_topic("t", {0: [1]}, {})
    parts.controller.create_partitions("t", {1: [1], 2: [1]})
    node = znodes.TopicZNode.decode(parts.store.get(znodes.topic("t")).data)
    assert node == znodes.TopicZNode({0: [1], 1: [1], 2: [1]}, topic_id)
    assert [update.topic_partition.partition for update in parts.doors.calls[1][0]] == [1, 2]
    assert sorted(parts.cache.topic("t").partitions) == [0, 1, 2]
    with pytest.raises(UnknownTopicOrPartition):
        parts.controller.create_partitions("none", {1: [1]})


def test_a_deleted_topic_is_removed_from_the_store_with_a_note_then_hidden_then_stopped():
    parts = Parts()
    topic_id = parts.controller.create_topic("t", {0: [1], 1: [1]}, {"retention.ms": "5"})
    topic = parts.cache.topic("t")
    parts.doors.failing.add(TopicPartition("t", 1))
    with pytest.raises(KafkaStorageError):
        parts.controller.delete_topic(topic)
    stops, epoch, stored, seen = parts.doors.calls[-1]
    assert stops == [StopReplica(TopicPartition("t", n), delete=True) for n in (0, 1)]
    assert (epoch, stored, seen) == (CONTROLLER_EPOCH, [], [])
    # A directory is left, so the note that the next start reads is too.
    assert znodes.decode_deletion(parts.store.get(znodes.topic_deletion(topic_id)).data) == "t"
    parts.doors.failing.clear()
    parts.controller.create_topic("u", {0: [1]}, {})
    parts.controller.delete_topic(parts.cache.topic("u"))
    assert parts.store.children(znodes.TOPIC_DELETIONS) == [znodes.id_to_string(topic_id)]
    assert parts.store.children(znodes.TOPIC_CONFIGS) == [] and parts.configs.get("u") == {}


def test_a_deletion_that_cannot_be_written_leaves_the_topic_as_it_was(monkeypatch):
    parts = Parts()
    parts.controller.create_topic("t", {0: [1]}, {"retention.ms": "5"})
    topic, calls = parts.cache.topic("t"), len(parts.doors.calls)

    def locked(operations):
        raise OSError("database is locked")

    with monkeypatch.context() as patch:
        patch.setattr(parts.store, "multi", locked)
        with pytest.raises(OSError, match="locked"):
            parts.controller.delete_topic(topic)
    assert parts.cache.topic("t") == topic and parts.cache.snapshot.topic_by_id(topic.topic_id) == topic
    assert parts.store.get(znodes.topic("t")) is not None and len(parts.doors.calls) == calls
    assert parts.configs.get("t") == {"retention.ms": "5"}
    parts.controller.delete_topic(topic)
    assert parts.cache.topic("t") is None and parts.store.get(znodes.topic("t")) is None


def test_a_partition_that_cannot_be_opened_has_no_leader_until_a_retry_opens_it():
    parts = Parts()
    parts.doors.failing.add(TopicPartition("t", 1))
    parts.controller.create_topic("t", {0: [1], 1: [1]}, {})
    assert [info.leader for info in parts.cache.topic("t").partitions.values()] == [1, NO_LEADER]
    parts.controller.retry_offline_partitions()
    assert parts.cache.topic("t").partitions[1].leader == NO_LEADER
    parts.doors.failing.clear()
    parts.controller.retry_offline_partitions()
    assert parts.cache.topic("t").partitions[1].leader == 1
    update = parts.doors.calls[-1][0][0]
    assert (update.topic_partition, update.leader_epoch, update.is_new) == (TopicPartition("t", 1), 0, True)
    assert parts.led == [(TopicPartition("t", 0), 0), (TopicPartition("t", 1), 0)]
    calls = len(parts.doors.calls)
    parts.controller.retry_offline_partitions()
    assert len(parts.doors.calls) == calls


def test_a_start_leads_all_topics_in_one_call_after_one_change_of_the_store():
    first = Parts()
    for name in ("a", "b"):
        first.controller.create_topic(name, {0: [1]}, {})
    parts = Parts(first.store)
    adopted = znodes.TopicZNode({0: [], 1: [1]}, znodes.id_from_string("A" * 21 + "Q"))
    hosted = {"a": {0: HostedLog(None, 3)}, "b": {}, "c": {1: HostedLog(None, 4)}}
    changes = []
    multi = parts.store.multi
    parts.store.multi = lambda operations: changes.append(len(operations)) or multi(operations)
    adoption = Adoption(hosted, {"c": adopted})
    assert parts.controller.load_topics(adoption, unclean=False) == 7
    assert adoption.calls == ["finish_deletions", "hosted_logs"]
    assert len(changes) == 1
    ((updates, _, stored, _),) = parts.doors.calls
    assert stored == ["a", "b", "c"]
    # a goes on, in the epoch that its log has reached; b has lost its log; c's former leader wrote up to epoch 4.
    epochs = {str(update.topic_partition): update.leader_epoch for update in updates}
    assert epochs == {"a-0": 3, "b-0": 1, "c-1": 5}
    assert {name: parts.state(*name.split("-")).leader_epoch for name in epochs} == epochs
    assert [info.leader for info in parts.cache.topic("c").partitions.values()] == [NO_LEADER, 1]


@pytest.mark.parametrize(
    ("stored", "last", "continued", "expected"),
    [(5, None, True, 5), (5, 3, True, 5), (5, 7, True, 7), (5, None, False, 6), (5, 7, False, 8), (0, 0, False, 1)],
)
def test_the_leader_epoch_after_a_start(stored, last, continued, expected):
    assert _next_leader_epoch(stored, last, continued) == expected


def test_the_leader_epoch_of_an_adopted_log():
    assert [_adopted_leader_epoch(last) for last in (None, 0, 4)] == [0, 1, 5]


def test_updates_carry_the_version_of_the_stored_state_on_which_the_next_change_of_the_isr_depends():
    parts = Parts()
    parts.controller.create_topic("t", {0: [1], 1: [1]}, {})
    path = znodes.partition_state("t", 0)
    parts.store.set(path, parts.store.get(path).data)
    tp = TopicPartition("t", 0), TopicPartition("t", 1)
    for unclean in (False, True):
        # After an unclean stop the epochs rise, which is another write.
        again = Parts(parts.store)
        again.doors.failing.add(tp[1])
        again.controller.load_topics(Adoption({"t": {0: HostedLog(None, 0), 1: HostedLog(None, 0)}}), unclean)
        again.doors.failing.clear()
        again.controller.retry_offline_partitions()
        for calls in again.doors.calls:
            for update in calls[0]:
                version = parts.store.get(znodes.partition_state(*update.topic_partition)).version
                assert update.partition_epoch == version, update
        assert {update.topic_partition for calls in again.doors.calls for update in calls[0]} == set(tp)
    assert [parts.store.get(znodes.partition_state(*each)).version for each in tp] == [2, 1]


@pytest.mark.parametrize("in_force", [{"retention.ms": "7"}, {}])
def test_settings_that_cannot_be_read_are_replaced_by_those_in_force(in_force):
    parts = Parts()
    path = znodes.topic_config("t")
    parts.store.create_recursive(path, b"garbage")
    parts.configs.set("t", in_force)
    parts.controller.change_config("t", {"segment.bytes": "4000"}, in_force)
    expected = {**in_force, "segment.bytes": "4000"}
    assert znodes.decode_config(parts.store.get(path).data) == parts.configs.get("t") == expected


def test_a_start_with_a_node_that_cannot_be_read_names_it():
    parts = Parts()
    parts.store.create_recursive(znodes.topic("t"), b"garbage")
    with pytest.raises(UnreadableNode, match="the node /brokers/topics/t in the metadata store cannot be read: "):
        parts.controller.load_topics(Adoption(), unclean=False)
