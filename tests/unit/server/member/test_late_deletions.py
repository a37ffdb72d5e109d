"""StopReplica requests about a topic that was deleted since: the log here is of the next topic of that name."""

from uuid import UUID

import pytest

from kcore import errors
from kcore.metadata import znodes
from kcore.metadata.store import ConnectionLost
from kcore.server.member.late_deletions import is_to_be_deleted
from tests.unit.server.controller_client import codes
from tests.unit.server.member.conftest import T0, TOPIC_ID, partition, with_broker_2

EARLIER_ID = UUID(int=TOPIC_ID.int - 1)
REFUSED = errors.InconsistentTopicId.code


@pytest.fixture
def hosted(broker, store, controller):
    """The controller, with which broker 1 leads the one partition of a topic, which has a record."""
    store.ensure_path(znodes.TOPICS)
    store.ensure_path(znodes.DELETE_TOPICS)
    store.create(znodes.topic("t"), znodes.TopicZNode({0: [1, 2]}, TOPIC_ID).encode())
    controller.update_metadata({"t": {0: {"replicas": [1, 2]}}}, with_broker_2(broker), topic_ids={"t": TOPIC_ID})
    state = controller.state(leader_epoch=3, replicas=(1, 2))
    controller.leader_and_isr({"t": [state]}, topic_ids={"t": TOPIC_ID})
    broker.produce("t", b"x")
    return controller


def values(broker):
    return [record.value for record in broker.consume("t")]


@pytest.mark.parametrize("version", [0, 1, 3, 4])
def test_a_late_stop_replica_of_an_earlier_topic_deletes_no_log_of_the_next_one(broker, hosted, version):
    """Its leader epoch is higher, or is not compared."""
    for leader_epoch in (-2, 9):
        response = hosted.stop_replica("t", 0, leader_epoch, delete=True, version=version)
        assert codes(response) == {("t", 0): REFUSED}
    assert partition(broker, T0).is_leader and values(broker) == [b"x"]


def test_the_topic_in_use_is_deleted_once_its_deletion_is_ordered(broker, store, hosted):
    store.create(znodes.delete_topic("t"))
    assert codes(hosted.stop_replica("t", 0, -2, delete=True)) == {("t", 0): 0}
    assert partition(broker, T0) is None and broker.replica_manager.log_manager.get_log(T0) is None


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(None, id="no topic"),
        pytest.param(znodes.TopicZNode({0: [1]}, EARLIER_ID), id="another topic"),
        pytest.param(znodes.TopicZNode({0: [2]}, TOPIC_ID), id="not assigned"),
        pytest.param(znodes.TopicZNode({0: [2, 1]}, TOPIC_ID, removing={0: [1]}), id="reassigned"),
        pytest.param(znodes.TopicZNode({0: [2, 1]}, TOPIC_ID, adding={0: [1]}), id="a reassignment is cancelled"),
    ],
)
def test_a_log_that_the_topic_in_use_does_not_have_here_is_deleted(broker, store, hosted, node):
    store.delete(znodes.topic("t"))
    if node is not None:
        store.create(znodes.topic("t"), node.encode())
    assert codes(hosted.stop_replica("t", 0, 4, delete=True)) == {("t", 0): 0}
    assert partition(broker, T0) is None and broker.replica_manager.log_manager.get_log(T0) is None


def test_a_partition_that_is_only_stopped_needs_no_answer_of_the_store(broker, store, hosted, monkeypatch):
    def fail(*args):
        raise AssertionError("the store was read")

    with monkeypatch.context() as patch:
        for name in ("get", "get_many", "sync"):
            patch.setattr(store, name, fail)
        assert codes(hosted.stop_replica("t", 0, 3)) == {("t", 0): 0}
        assert codes(hosted.stop_replica("unknown", 0, 3, delete=True)) == {("unknown", 0): 0}


@pytest.mark.parametrize("call", ["sync", "get_many"])
@pytest.mark.parametrize("is_in_metadata", [True, False])
def test_while_the_store_does_not_answer_the_metadata_decide(broker, store, hosted, monkeypatch, call, is_in_metadata):
    def fail(*args):
        raise ConnectionLost("no answer")

    if not is_in_metadata:  # as a controller says before it has the logs deleted
        hosted.update_metadata({"t": {0: {"leader": -2}}}, with_broker_2(broker), topic_ids={"t": TOPIC_ID})
    with monkeypatch.context() as patch:
        patch.setattr(store, call, fail)
        response = hosted.stop_replica("t", 0, -2, delete=True)
    assert codes(response) == {("t", 0): REFUSED if is_in_metadata else 0}
    assert (partition(broker, T0) is not None) is is_in_metadata


def test_while_the_store_does_not_answer_a_log_of_another_topic_than_in_the_metadata_is_deleted(
    broker, store, hosted, monkeypatch
):
    next_one = {"t": {0: {"replicas": [1, 2]}}}
    hosted.update_metadata(next_one, with_broker_2(broker), topic_ids={"t": UUID(int=TOPIC_ID.int + 1)})
    assert partition(broker, T0).topic_id == TOPIC_ID  # the store does not have that one yet

    def fail(*args):
        raise ConnectionLost("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(store, "get", fail)
        assert codes(hosted.stop_replica("t", 0, -2, delete=True)) == {("t", 0): 0}


def test_a_topic_without_an_id_is_judged_by_its_replicas():
    topic = znodes.TopicZNode({0: [1, 2], 1: [2]})
    for log_topic_id in (None, TOPIC_ID):
        assert not is_to_be_deleted(1, 0, log_topic_id, topic, is_ordered=False)
        assert is_to_be_deleted(1, 1, log_topic_id, topic, is_ordered=False)
        assert is_to_be_deleted(1, 5, log_topic_id, topic, is_ordered=False)
        assert is_to_be_deleted(1, 0, log_topic_id, topic, is_ordered=True)
    assert not is_to_be_deleted(1, 0, None, topic._replace(topic_id=TOPIC_ID), is_ordered=False)
