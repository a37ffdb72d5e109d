"""A topic was deleted and created again, and a member of the cluster still hosts the earlier one."""

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

import kcore
from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.metadata import znodes
from kcore.metadata.store import ConnectionLost
from tests.unit.server.controller_client import ControllerClient, codes
from tests.unit.server.member.conftest import T0, T1, TOPIC_ID, partition, with_broker_2
from tests.waiting import wait_until

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
        hosted = partition(broker, T0)
        response = earlier.leader_and_isr({"t": [earlier.state(0)]}, topic_ids={"t": NEXT_ID})
        assert codes(response) == {(NEXT_ID, 0): 0}
        with pytest.raises(errors.NotLeaderOrFollower):
            waiting.result(60)
    assert not hosted.is_leader
    assert partition(broker, T0).is_leader and partition(broker, T0).leader_epoch == 0
    assert (broker.log("t").topic_id, broker.log("t").log_end_offset) == (NEXT_ID, 0)
    broker.produce("t", b"x", partition=0)
    # A partition that the request does not name went, too: the topic may have fewer now.
    assert strays(broker) == ["t-0", "t-1"] and partition(broker, T1) is None
    both = [earlier.state(0), earlier.state(1)]
    codes_of_both = codes(earlier.leader_and_isr({"t": both}, topic_ids={"t": NEXT_ID}))
    assert codes_of_both == {(NEXT_ID, 0): errors.StaleControllerEpoch.code, (NEXT_ID, 1): 0}
    assert strays(broker) == ["t-0", "t-1"] and broker.log("t").log_end_offset == 1


def test_a_follower_of_the_next_topic_starts_with_an_empty_log(broker, store, earlier):
    create_again(store, replicas=(2, 1))
    follower = earlier.state(0, leader=2, isr=(2,), replicas=(2, 1))
    assert codes(earlier.leader_and_isr({"t": [follower]}, topic_ids={"t": NEXT_ID})) == {(NEXT_ID, 0): 0}
    assert (broker.log("t").topic_id, broker.log("t").log_end_offset) == (NEXT_ID, 0)
    assert strays(broker) == ["t-0", "t-1"]


@pytest.mark.parametrize("how", ["stopped", "started again"])
def test_a_log_that_is_not_hosted_does_not_keep_the_next_topic_away(tmp_path, store, how):
    """The controller has stopped the replica without deleting its log, or the broker was down during the deletion."""
    with kcore.Broker(tmp_path, store=store) as broker, ControllerClient(broker) as controller:
        controller.leader_and_isr({"t": [controller.state(0, leader_epoch=7)]}, topic_ids={"t": TOPIC_ID})
        controller.stop_replica("t", 0, 7)
        if how == "stopped":
            assert_next_topic_is_served(broker, store, controller)
    if how == "started again":
        with kcore.Broker(tmp_path, store=store) as broker, ControllerClient(broker) as controller:
            assert_next_topic_is_served(broker, store, controller)


def assert_next_topic_is_served(broker, store, controller):
    assert broker.replica_manager.log_manager.get_log(T0).topic_id == TOPIC_ID and partition(broker) is None
    create_again(store)
    assert codes(controller.leader_and_isr({"t": [controller.state(0)]}, topic_ids={"t": NEXT_ID})) == {(NEXT_ID, 0): 0}
    assert partition(broker, T0).is_leader and broker.log("t").topic_id == NEXT_ID
    assert strays(broker) == ["t-0"]


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


def test_a_partition_of_the_next_topic_stays_when_another_one_is_of_the_deleted_topic(broker, store, controller):
    """A late request has made partition 1 of the deleted topic, after partition 0 of the next one."""
    create_again(store)
    controller.update_metadata({"t": {0: {}, 1: {}}}, topic_ids={"t": NEXT_ID})
    controller.leader_and_isr({"t": [controller.state(0)]}, topic_ids={"t": NEXT_ID})
    broker.produce("t", b"x", partition=0)
    controller.leader_and_isr({"t": [controller.state(1, leader_epoch=7)]}, topic_ids={"t": TOPIC_ID})
    assert partition(broker, T1).topic_id == TOPIC_ID
    response = controller.leader_and_isr({"t": [controller.state(1)]}, topic_ids={"t": NEXT_ID})
    assert codes(response) == {(NEXT_ID, 1): 0}
    assert strays(broker) == ["t-1"]
    assert partition(broker, T0).is_leader and broker.log("t").log_end_offset == 1


def test_a_log_that_has_another_topic_id_by_then_is_not_set_aside(broker, earlier):
    assert broker.replica_manager.set_aside({T0: NEXT_ID}, earlier.controller_epoch) == []
    assert partition(broker, T0).is_leader and strays(broker) == []


def test_a_server_of_the_store_that_lags_behind_is_asked_after_a_sync(broker, store, earlier, monkeypatch):
    create_again(store)
    get, has_synced = store.get, []
    monkeypatch.setattr(store, "sync", lambda: has_synced.append(True))
    monkeypatch.setattr(store, "get", lambda path, *watch: get(path, *watch) if has_synced else None)
    assert codes(earlier.leader_and_isr({"t": [earlier.state(0)]}, topic_ids={"t": NEXT_ID})) == {(NEXT_ID, 0): 0}


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
    assert not broker.replica_manager.fetchers.states() and not broker.replica_manager.fetchers.threads()


def test_groups_are_read_from_the_next_offsets_topic(broker, store, controller):
    name = "__consumer_offsets"
    create_again(store, name)
    controller.update_metadata({name: {0: {}}}, topic_ids={name: TOPIC_ID})
    controller.leader_and_isr({name: [controller.state(0, leader_epoch=7)]}, topic_ids={name: TOPIC_ID})
    owned = broker.group_coordinator.manager.partitions.owned
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


@pytest.fixture
def unreachable(store, monkeypatch):
    """A context in which the store cannot be read."""

    def fail(*args):
        raise ConnectionLost("no answer")

    @contextmanager
    def while_unreachable():
        with monkeypatch.context() as patch:
            patch.setattr(store, "get", fail)
            yield

    return while_unreachable


def test_a_request_that_comes_while_the_store_cannot_be_reached_is_carried_out_later(
    broker, store, earlier, caplog, unreachable
):
    create_again(store)
    with unreachable():
        response = earlier.leader_and_isr({"t": [earlier.state(0), earlier.state(1)]}, topic_ids={"t": NEXT_ID})
        assert set(codes(response).values()) == {REFUSED}
        assert "topic t" in caplog.text and "no answer" in caplog.text
        assert broker.log("t").topic_id == TOPIC_ID and strays(broker) == []
    wait_until(lambda: all(partition(broker, tp) and partition(broker, tp).topic_id == NEXT_ID for tp in (T0, T1)))
    assert partition(broker, T0).is_leader and partition(broker, T1).is_leader
    assert strays(broker) == ["t-0", "t-1"]


@pytest.mark.parametrize("order", ["in order", "the later one first"])
def test_of_two_requests_that_came_while_the_store_could_not_be_reached_the_later_one_is_carried_out(
    broker, store, earlier, unreachable, order
):
    create_again(store, replicas=(2, 1))
    follows = earlier.state(0, leader=2, isr=(2, 1), replicas=(2, 1))
    leads = earlier.state(0, leader=1, leader_epoch=1, isr=(1,), replicas=(2, 1), partition_epoch=1)
    with unreachable():
        for state in (follows, leads) if order == "in order" else (leads, follows):
            earlier.leader_and_isr({"t": [state]}, topic_ids={"t": NEXT_ID})
    wait_until(lambda: partition(broker, T0) and partition(broker, T0).topic_id == NEXT_ID)
    assert partition(broker, T0).is_leader and partition(broker, T0).leader_epoch == 1


def test_a_late_request_of_an_older_controller_does_not_replace_one_that_waits_for_the_store(
    broker, store, earlier, unreachable
):
    create_again(store)
    with unreachable():
        earlier.leader_and_isr({"t": [earlier.state(0, leader_epoch=1)]}, topic_ids={"t": NEXT_ID})
        earlier.controller_epoch -= 1
        late = earlier.state(0, leader=2, leader_epoch=9, isr=(2, 1), replicas=(2, 1))
        earlier.leader_and_isr({"t": [late]}, topic_ids={"t": NEXT_ID})
    wait_until(lambda: partition(broker, T0) and partition(broker, T0).topic_id == NEXT_ID)
    assert partition(broker, T0).is_leader and partition(broker, T0).leader_epoch == 1


@pytest.mark.parametrize("later", ["stopped", "a newer controller", "created once more"])
def test_what_a_request_asked_while_the_store_could_not_be_reached_may_be_over_by_then(
    broker, store, earlier, unreachable, monkeypatch, later
):
    create_again(store)
    schedule = broker.cluster_member._scheduler.schedule
    scheduled = []
    monkeypatch.setattr(
        broker.cluster_member._scheduler,
        "schedule",
        lambda name, *task: scheduled.append(task[0]) if name == "state-change" else schedule(name, *task),
    )
    with unreachable():
        earlier.leader_and_isr({"t": [earlier.state(0)]}, topic_ids={"t": NEXT_ID})
    (carry_out_postponed,) = scheduled
    if later == "stopped":
        earlier.stop_replica("t", 0, -2, delete=True)
    elif later == "a newer controller":
        earlier.controller_epoch += 1
        earlier.update_metadata()
    else:
        store.delete(znodes.topic("t"))
        store.create(znodes.topic("t"), znodes.TopicZNode({0: [1]}, UUID(int=5)).encode())
    carry_out_postponed()
    assert strays(broker) == []
    hosted = partition(broker, T0)
    assert hosted is None if later == "stopped" else hosted.topic_id == TOPIC_ID
