"""Topics that were deleted while a member had no session in the store: no request of the controller names them."""

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.metadata import znodes
from kcore.metadata.store import ConnectionLost
from kcore.server.member import cluster_member
from tests.unit.server.controller_client import codes
from tests.unit.server.member.conftest import T0, T1, TOPIC_ID, metadata, partition, with_broker_2
from tests.waiting import wait_until

KEPT_ID = UUID(int=5)
K0 = TopicPartition("kept", 0)


def create(store, name, topic_id):
    store.ensure_path(znodes.TOPICS)
    store.create(znodes.topic(name), znodes.TopicZNode({0: [1], 1: [1]}, topic_id).encode())


@pytest.fixture
def two_topics(broker, store, controller):
    """The controller.  Broker 1 leads partition 0 of both topics and follows partition 1 of "t"."""
    ids = {"t": TOPIC_ID, "kept": KEPT_ID}
    for name, topic_id in ids.items():
        create(store, name, topic_id)
    controller.update_metadata({"t": {0: {}, 1: {}}, "kept": {0: {}}}, with_broker_2(broker), topic_ids=ids)
    led = controller.state(0, isr=(1, 2), replicas=(1, 2))
    followed = controller.state(1, leader=2, isr=(2, 1), replicas=(2, 1))
    response = controller.leader_and_isr({"t": [led, followed], "kept": [controller.state(0)]}, topic_ids=ids)
    assert set(codes(response).values()) == {0}
    return controller


def end_session(broker, tree, store):
    before = broker.cluster_member.broker_epoch
    tree.expire(store.session_id)
    wait_until(lambda: broker.cluster_member.broker_epoch > before)


def names(broker):
    return sorted(topic.name for topic in metadata(broker).topics)


def test_a_member_serves_no_topic_that_was_deleted_while_it_had_no_session(broker, tree, store, two_topics):
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(broker.produce, "t", b"x", partition=0)
        wait_until(lambda: broker.log("t").log_end_offset == 1)
        store.delete(znodes.topic("t"))
        end_session(broker, tree, store)
        with pytest.raises(errors.NotLeaderOrFollower):
            waiting.result(60)
    wait_until(lambda: names(broker) == ["kept"])
    assert not partition(broker, T0).is_leader and not broker.replica_manager.fetchers.states()
    assert partition(broker, K0).is_leader
    # Nothing is deleted: whether anybody wants the records the store does not say.
    log_manager = broker.replica_manager.log_manager
    assert log_manager.get_log(T0).log_end_offset == 1 and log_manager.get_log(T1) is not None


def test_a_server_of_the_store_that_lags_behind_is_asked_after_a_sync(broker, tree, store, two_topics, monkeypatch):
    children, has_synced = store.children, []
    monkeypatch.setattr(store, "sync", lambda: has_synced.append(True))

    def lags(path, *watch):
        names = children(path, *watch)
        return names if has_synced or path != znodes.TOPICS else [*names, "t"]

    monkeypatch.setattr(store, "children", lags)
    store.delete(znodes.topic("t"))
    end_session(broker, tree, store)
    wait_until(lambda: names(broker) == ["kept"])


def test_a_registration_and_what_is_read_after_it_are_tried_again_until_the_store_answers(
    broker, tree, store, two_topics, monkeypatch
):
    monkeypatch.setattr(cluster_member, "_RETRY_MS", 1)
    create, sync, failures = store.create, store.sync, {"create": 2, "sync": 2}

    def fail_twice(name, call):
        def failing(*args, **kwargs):
            if failures[name]:
                failures[name] -= 1
                raise ConnectionLost("database is locked")
            return call(*args, **kwargs)

        return failing

    monkeypatch.setattr(store, "create", fail_twice("create", create))
    monkeypatch.setattr(store, "sync", fail_twice("sync", sync))
    store.delete(znodes.topic("t"))
    end_session(broker, tree, store)
    wait_until(lambda: names(broker) == ["kept"])
    assert set(failures.values()) == {0}


def test_a_member_serves_on_if_the_store_has_lost_all_topics(broker, tree, store, two_topics, caplog):
    for name in ("t", "kept"):
        store.delete(znodes.topic(name))
    end_session(broker, tree, store)
    wait_until(lambda: "it serves them on" in caplog.text)
    assert names(broker) == ["kept", "t"] and partition(broker, T0).is_leader


def test_topics_that_are_there_are_served_on_in_the_next_session(broker, tree, store, two_topics, monkeypatch):
    changes = []
    monkeypatch.setattr(type(broker.metadata_cache), "update", lambda self, change: changes.append(change))
    store.delete(znodes.topic("kept"))
    create(store, "kept", UUID(int=6))  # created again: its metadata will come
    end_session(broker, tree, store)
    assert names(broker) == ["kept", "t"] and not changes
    assert partition(broker, T0).is_leader and broker.replica_manager.fetchers.states()


def test_the_metadata_of_a_topic_that_was_created_again_have_no_partition_of_the_earlier_one(broker, two_topics):
    two_topics.update_metadata({"t": {0: {}}}, topic_ids={"t": UUID(int=9)})
    (topic,) = [topic for topic in metadata(broker).topics if topic.name == "t"]
    assert (topic.topic_id, [p.partition_index for p in topic.partitions]) == (UUID(int=9), [0])
    # Some of its partitions, without an id or with the same one, leave the others.
    for number, ids in ((1, {}), (2, {"t": UUID(int=9)})):
        two_topics.update_metadata({"t": {number: {}}}, topic_ids=ids)
    (topic,) = [topic for topic in metadata(broker).topics if topic.name == "t"]
    assert (topic.topic_id, len(topic.partitions)) == (UUID(int=9), 3)
