"""A broker leaves the ISRs of what it has lost before it registers; one without others leads with what it has."""

import shutil

import pytest

import kcore
from kcore.common.topic_partition import TopicPartition
from kcore.log.lost_records import read_mark, write_mark
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.metadata.store import ConnectionLost, NotAllowed
from kcore.metadata.znodes import PartitionStateZNode
from kcore.server.member.lost_records import IsrDeparture, state_without

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def tree():
    return MemoryTree()


@pytest.fixture
def store(tree):
    return MemoryStore(tree)


@pytest.fixture
def departure(store):
    return IsrDeparture(1, store)


def put(store, tp, leader, isr, leader_epoch=4, controller_epoch=3):
    state = PartitionStateZNode(leader, leader_epoch, isr, controller_epoch)
    store.create_or_set(znodes.partition_state(*tp), state.encode())


def stored(store, tp=T0):
    node = store.get(znodes.partition_state(*tp))
    return PartitionStateZNode.decode(node.data), node.version


def register(store, broker_id):
    store.ensure_path(znodes.BROKER_IDS)
    store.create(znodes.broker_id(broker_id), b"{}", ephemeral=True)


@pytest.mark.parametrize(
    ("leader", "isr", "expected"),
    [
        (1, [1, 2, 3], (-1, [2, 3])),
        (2, [2, 1], (2, [2])),
        (-1, [3, 1], (-1, [3])),
        (1, [1], None),  # nobody else has the records
        (-1, [1], None),
        (2, [2, 3], None),
    ],
)
def test_a_broker_leaves_the_isr_if_others_are_in_it_and_no_epoch_changes(leader, isr, expected):
    left = state_without(PartitionStateZNode(leader, 4, isr, 3), 1)
    assert left == (None if expected is None else PartitionStateZNode(expected[0], 4, expected[1], 3))


def test_only_the_isrs_of_partitions_that_have_lost_records_are_left(store, departure):
    put(store, T0, 1, [1, 2])
    put(store, T1, 1, [1, 2])
    assert departure.leave([T0], may_wait=True) == []
    assert stored(store) == (PartitionStateZNode(-1, 4, [2], 3), 1)
    assert stored(store, T1) == (PartitionStateZNode(1, 4, [1, 2], 3), 0)
    assert departure.leave([T0], may_wait=True) == []
    assert stored(store)[1] == 1  # left once


def test_the_last_member_of_an_isr_stays_and_says_so(store, departure, caplog):
    put(store, T0, -1, [1])
    assert departure.leave([T0], may_wait=True) == []
    assert stored(store) == (PartitionStateZNode(-1, 4, [1], 3), 0)
    assert "lacks records of 1 partition, or may, and no other broker is in the ISR: it may lead" in caplog.text


def test_a_partition_with_a_live_leader_waits_for_the_controller(store, departure):
    put(store, T0, 2, [2, 1])
    put(store, T1, 3, [3, 1])
    register(store, 2)
    assert departure.leave([T0, T1], may_wait=True) == [T0]
    assert stored(store)[0].isr == [2, 1] and stored(store, T1)[0] == PartitionStateZNode(3, 4, [3], 3)
    # The controller has done it.
    put(store, T0, 2, [2], leader_epoch=5)
    assert departure.leave([T0, T1], may_wait=True) == []
    assert stored(store) == (PartitionStateZNode(2, 5, [2], 3), 1)


def test_where_no_controller_does_it_in_time_the_broker_leaves_all_the_same(store, departure):
    put(store, T0, 2, [2, 1])
    register(store, 2)
    assert departure.leave([T0], may_wait=False) == []
    assert stored(store) == (PartitionStateZNode(2, 4, [2], 3), 1)


def test_a_state_that_changes_between_the_read_and_the_write_is_read_again(tree, store, departure, monkeypatch):
    put(store, T0, 1, [1, 2, 3])
    put(store, T1, 1, [1, 2])
    controller = MemoryStore(tree)
    multi = store.multi

    def late_multi(operations):
        monkeypatch.setattr(store, "multi", multi)
        put(controller, T0, 2, [1, 2], leader_epoch=5)
        controller.delete(znodes.partition_state(*T1))
        return multi(operations)

    monkeypatch.setattr(store, "multi", late_multi)
    assert departure.leave([T0, T1], may_wait=False) == []
    assert stored(store) == (PartitionStateZNode(2, 5, [2], 3), 2)
    assert store.get(znodes.partition_state(*T1)) is None


def test_a_state_that_a_controller_writes_between_the_read_and_the_write_is_not_overwritten(
    tree, store, departure, monkeypatch
):
    """Also where every node that is written still exists."""
    put(store, T0, 1, [1, 2, 3])
    controller = MemoryStore(tree)
    multi = store.multi

    def late_multi(operations):
        monkeypatch.setattr(store, "multi", multi)
        put(controller, T0, 2, [1, 2], leader_epoch=5)
        return multi(operations)

    monkeypatch.setattr(store, "multi", late_multi)
    assert departure.leave([T0], may_wait=False) == []
    assert stored(store) == (PartitionStateZNode(2, 5, [2], 3), 2)


def test_a_topic_that_is_deleted_between_the_read_and_the_write_is_left_alone(
    tree, store, departure, monkeypatch, caplog
):
    put(store, T0, 1, [1, 2])
    controller, multi = MemoryStore(tree), store.multi

    def late_multi(operations):
        controller.delete(znodes.partition_state(*T0))
        return multi(operations)

    monkeypatch.setattr(store, "multi", late_multi)
    assert departure.leave([T0], may_wait=False) == []
    assert store.get(znodes.partition_state(*T0)) is None and caplog.text == ""  # not "it left the ISRs"


def test_a_state_that_the_store_has_not_seen_yet_is_waited_for(store, departure, monkeypatch):
    """A ZooKeeper server may be late; sync() ends that."""
    put(store, T0, 2, [2, 3])
    monkeypatch.setattr(store, "sync", lambda: put(store, T0, 2, [2, 1, 3]))
    assert departure.leave([T0], may_wait=False) == []
    assert stored(store) == (PartitionStateZNode(2, 4, [2, 3], 3), 2)


def test_a_thousand_isrs_are_left_with_few_writes(store, departure, monkeypatch):
    partitions = [TopicPartition("t", number) for number in range(1200)]
    for tp in partitions:
        put(store, tp, 1, [1, 2])
    sizes, multi = [], store.multi
    monkeypatch.setattr(store, "multi", lambda operations: sizes.append(len(operations)) or multi(operations))
    assert departure.leave(partitions, may_wait=True) == []
    assert sizes == [500, 500, 200]
    assert all(stored(store, tp)[0].isr == [2] for tp in partitions)


def test_a_state_that_cannot_be_read_or_is_not_there_is_left_alone(store, departure, caplog):
    store.create_recursive(znodes.partition_state(*T0), b"{")
    assert departure.leave([T0, T1], may_wait=True) == []
    assert "/brokers/topics/t/partitions/0/state cannot be read" in caplog.text


@pytest.mark.parametrize("error", [ConnectionLost, NotAllowed])
def test_an_error_of_the_store_is_raised(store, departure, monkeypatch, error):
    put(store, T0, 1, [1, 2])

    def fail(operations):
        raise error("away")

    monkeypatch.setattr(store, "multi", fail)
    with pytest.raises(error):
        departure.leave([T0], may_wait=True)


def test_a_broker_that_has_lost_nothing_asks_the_store_nothing(departure, monkeypatch):
    monkeypatch.setattr(departure, "_store", None)
    assert departure.leave([], may_wait=True) == []


def test_what_others_have_written_is_read(store, departure, monkeypatch):
    calls, get_many = [], store.get_many
    monkeypatch.setattr(store, "sync", lambda: calls.append("sync"))
    monkeypatch.setattr(store, "get_many", lambda paths: calls.append("read") or get_many(paths))
    departure.leave([T0], may_wait=True)
    assert calls == ["sync", "read"]


def test_a_broker_without_others_leads_a_log_with_a_mark_and_removes_it(tmp_path, caplog):
    with kcore.Broker(tmp_path) as broker:
        for _ in range(3):
            broker.produce("t", "x")
    write_mark(str(tmp_path / "t-0"), 2)
    with kcore.Broker(tmp_path) as broker:
        broker.produce("t", "x")
        assert broker.log("t").log_end_offset == 4
        assert "t-0: records from offset 2 on are lost, and no other broker has a replica" in caplog.text
    assert read_mark(str(tmp_path / "t-0")) is None


def test_a_broker_without_others_makes_a_log_that_is_gone_anew_and_says_so(tmp_path, caplog):
    with kcore.Broker(tmp_path) as broker:
        broker.produce("t", "x")
    shutil.rmtree(tmp_path / "t-0")
    with kcore.Broker(tmp_path) as broker:
        assert broker.log("t").log_end_offset == 0
        assert "t-0: made anew and empty: its directory is gone, and had records up to offset 1" in caplog.text
    assert read_mark(str(tmp_path / "t-0")) is None
