"""A topic was deleted and created again, and a member of the cluster still hosts the earlier one."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.metadata import znodes
from kcore.metadata.store import ConnectionLost
from tests.unit.server.controller_client import codes
from tests.unit.server.member.conftest import T0, T1, TOPIC_ID, partition, wait_until, with_broker_2

NEXT_ID = UUID(int=TOPIC_ID.int + 1)
REFUSED = errors.InconsistentTopicId.code
ELSEWHERE = {"leader": 2, "replicas": [2], "isr": [2]}


def create_again(store, name="t", replicas=(1,)):
    """What the store has of the topic when it was deleted and created again, with two partitions."""
    store.ensure_path(znodes.TOPICS)
    node = znodes.TopicZNode({0: list(replicas), 1: list(replicas)}, NEXT_ID)
    store.create(znodes.topic(name), node.encode())


def strays(broker):
    (log_dir,) = broker.replica_manager.log_manager.live_log_dirs
    return sorted(path.name.partition(".")[0] for path in Path(log_dir).glob("*-stray"))


@pytest.fixture
def earlier(broker, controller):
    """The controller, with which broker 1 leads both partitions of the earlier topic, in epoch 7."""
    controller.update_metadata({"t": {0: {}, 1: {}}}, with_broker_2(broker), topic_ids={"t": TOPIC_ID})
    states = [controller.state(number, leader_epoch=7, isr=(1, 2), replicas=(1, 2)) for number in range(2)]
    assert set(codes(controller.leader_and_isr({"t": states}, topic_ids={"t": TOPIC_ID})).values()) == {0}
    return controller


def test_the_log_of_the_deleted_topic_becomes_a_stray_when_this_broker_gets_the_next_one(broker, store, earlier):
    create_again(store)
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(broker.produce, "t", b"of the earlier topic", partition=0)
        wait_until(lambda: broker.log("t").log_end_offset == 1)
        response = earlier.leader_and_isr({"t": [earlier.state(0)]}, topic_ids={"t": NEXT_ID})
        assert codes(response) == {(NEXT_ID, 0): 0}
        with pytest.raises(errors.NotLeaderOrFollower):
            waiting.result(60)
    assert strays(broker) == ["t-0"]
    assert partition(broker, T0).is_leader and partition(broker, T0).leader_epoch == 0
    assert (broker.log("t").topic_id, broker.log("t").log_end_offset) == (NEXT_ID, 0)
    broker.produce("t", b"x", partition=0)
    # The other partition was not in that request.
    assert broker.log("t", 1).topic_id == TOPIC_ID
    assert codes(earlier.leader_and_isr({"t": [earlier.state(1)]}, topic_ids={"t": NEXT_ID})) == {(NEXT_ID, 1): 0}
    assert strays(broker) == ["t-0", "t-1"] and broker.log("t").log_end_offset == 1


def test_a_late_request_of_the_deleted_topic_leaves_the_next_one_alone(broker, store, controller):
    create_again(store)
    controller.update_metadata({"t": {0: {}}}, with_broker_2(broker), topic_ids={"t": NEXT_ID})
    controller.leader_and_isr({"t": [controller.state(0)]}, topic_ids={"t": NEXT_ID})
    broker.produce("t", b"x", partition=0)
    late = controller.state(0, leader=2, leader_epoch=9, isr=(2, 1), replicas=(2, 1))
    assert codes(controller.leader_and_isr({"t": [late]}, topic_ids={"t": TOPIC_ID})) == {(TOPIC_ID, 0): REFUSED}
    # Epochs of another topic are not compared.
    controller.update_metadata({"t": {0: {**ELSEWHERE, "leader_epoch": 9}}}, topic_ids={"t": TOPIC_ID})
    assert partition(broker, T0).is_leader and strays(broker) == []
    assert (broker.log("t").topic_id, broker.log("t").log_end_offset) == (NEXT_ID, 1)


def test_a_request_of_an_older_controller_sets_nothing_aside(broker, store, earlier):
    create_again(store)
    earlier.controller_epoch -= 1
    stale = errors.StaleControllerEpoch.code
    assert earlier.leader_and_isr({"t": [earlier.state(0)]}, topic_ids={"t": NEXT_ID}).error_code == stale
    assert earlier.update_metadata({"t": {0: ELSEWHERE}}, topic_ids={"t": NEXT_ID}).error_code == stale
    assert broker.log("t").topic_id == TOPIC_ID and strays(broker) == []


def test_the_log_of_the_deleted_topic_becomes_a_stray_when_other_brokers_have_the_next_one(broker, store, earlier):
    create_again(store, replicas=(2,))
    # A follower goes, too: it would ask for ever.
    follower = earlier.state(1, leader=2, leader_epoch=8, isr=(2, 1), replicas=(2, 1))
    earlier.leader_and_isr({"t": [follower]}, topic_ids={"t": TOPIC_ID})
    assert broker.replica_manager.fetchers.states()
    earlier.update_metadata({"t": {0: ELSEWHERE, 1: ELSEWHERE}}, topic_ids={"t": NEXT_ID})
    assert partition(broker, T0) is None and partition(broker, T1) is None
    assert strays(broker) == ["t-0", "t-1"]
    assert not broker.replica_manager.fetchers.states()


def test_groups_are_read_from_the_next_offsets_topic(broker, store, controller):
    name = "__consumer_offsets"
    create_again(store, name)
    controller.update_metadata({name: {0: {}}}, topic_ids={name: TOPIC_ID})
    controller.leader_and_isr({name: [controller.state(0, leader_epoch=7)]}, topic_ids={name: TOPIC_ID})
    owned = broker.group_coordinator.manager._owned
    wait_until(lambda: owned == {0: 7})
    controller.leader_and_isr({name: [controller.state(0)]}, topic_ids={name: NEXT_ID})
    wait_until(lambda: owned == {0: 0})
    assert broker.replica_manager.log_manager.get_log(TopicPartition(name, 0)).topic_id == NEXT_ID


@pytest.mark.parametrize("body", [b"{", b'{"version": 9}', None])
def test_without_a_readable_node_the_request_is_refused_and_nothing_changes(broker, store, earlier, caplog, body):
    if body is not None:
        store.ensure_path(znodes.TOPICS)
        store.create(znodes.topic("t"), body)
    with caplog.at_level(logging.ERROR):
        response = earlier.leader_and_isr({"t": [earlier.state(0)]}, topic_ids={"t": NEXT_ID})
        earlier.update_metadata({"t": {0: {**ELSEWHERE, "leader_epoch": 9}}}, topic_ids={"t": NEXT_ID})
    assert codes(response) == {(NEXT_ID, 0): REFUSED}
    assert (znodes.topic("t") in caplog.text) == (body is not None)
    assert broker.log("t").topic_id == TOPIC_ID and partition(broker, T0).is_leader and strays(broker) == []


def test_while_the_store_is_away_the_request_is_refused(broker, store, earlier, caplog, monkeypatch):
    create_again(store)

    def away(path, watch=None):
        raise ConnectionLost("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(store, "get", away)
        response = earlier.leader_and_isr({"t": [earlier.state(0)]}, topic_ids={"t": NEXT_ID})
    assert codes(response) == {(NEXT_ID, 0): REFUSED}
    assert "topic t" in caplog.text and "no answer" in caplog.text
    assert broker.log("t").topic_id == TOPIC_ID and strays(broker) == []
    assert codes(earlier.leader_and_isr({"t": [earlier.state(0)]}, topic_ids={"t": NEXT_ID})) == {(NEXT_ID, 0): 0}
    assert strays(broker) == ["t-0"]
