"""The controller's reads and writes of many partitions' states: few calls, and each partition's own error."""

from uuid import UUID

import pytest

from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_store import ControllerMoved, ControllerStore
from kcore.controller.election import LeaderAndIsr
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.metadata.multi_size import MAX_BYTES, operation_size
from kcore.metadata.store import BadVersion, Delete, MultiTooLarge, NodeExists, NoNode

PARTITIONS = [TopicPartition(topic, number) for topic in ("a", "b") for number in range(40)]
STATE = LeaderAndIsr(leader=1, leader_epoch=0, isr=(1, 2), controller_epoch=1)


class CountingStore(MemoryStore):
    """calls: the names of those that would each be a way to the server and back."""

    def __init__(self, tree=None):
        super().__init__(tree)
        self.calls = []
        self._is_inside = False

    def _count(self, name, call):
        if self._is_inside:
            return call()
        self.calls.append(name)
        self._is_inside = True
        try:
            return call()
        finally:
            self._is_inside = False

    def get(self, path, watch=None):
        return self._count("get", lambda: super(CountingStore, self).get(path, watch))

    def multi(self, operations):
        return self._count("multi", lambda: super(CountingStore, self).multi(operations))

    def get_many(self, paths, watches=()):
        return self._count("get_many", lambda: super(CountingStore, self).get_many(paths, watches))

    def multi_many(self, changes):
        return self._count("multi_many", lambda: super(CountingStore, self).multi_many(changes))


@pytest.fixture
def metadata_store():
    store = CountingStore()
    for path in (znodes.CONTROLLER_EPOCH, znodes.topic("a"), znodes.topic("b")):
        store.create_recursive(path, b"0")
    return store


@pytest.fixture
def store(metadata_store):
    store = ControllerStore(metadata_store)
    store.elect(1, 0)
    metadata_store.calls.clear()
    return store


def test_states_of_many_partitions_take_a_few_calls(metadata_store, store):
    assert set(store.create_states(dict.fromkeys(PARTITIONS, STATE)).values()) == {None}
    # The nodes above them are read, then all is written as one change.
    assert metadata_store.calls == ["get_many", "get_many", "multi"]
    metadata_store.calls.clear()
    states = store.states(PARTITIONS)
    assert states == dict.fromkeys(PARTITIONS, STATE)
    assert set(store.change_states(states).values()) == {None}
    assert metadata_store.calls == ["get_many", "multi"]


def test_a_conflict_costs_its_partition_alone_and_one_more_call(metadata_store, store):
    store.create_states(dict.fromkeys(PARTITIONS, STATE))
    states = store.states(PARTITIONS)
    changed, deleted = PARTITIONS[3], PARTITIONS[50]
    metadata_store.set(znodes.partition_state(*changed), metadata_store.get(znodes.partition_state(*changed)).data)
    metadata_store.delete(znodes.partition_state(*deleted))
    metadata_store.calls.clear()
    errors = {tp: type(error) for tp, error in store.change_states(states).items() if error is not None}
    assert errors == {changed: BadVersion, deleted: NoNode}
    assert metadata_store.calls == ["multi", "multi_many"]
    versions = {tp: state.partition_epoch for tp, state in store.states(PARTITIONS).items()}
    assert versions == {tp: 1 for tp in PARTITIONS if tp != deleted}


def test_new_states_are_created_beside_those_that_somebody_has_created(metadata_store, store):
    """Also where only the nodes above a state are there, or come in between."""
    store.create_states({PARTITIONS[0]: STATE})
    metadata_store.create(znodes.partition("a", 1))
    get_many = metadata_store.get_many

    def read_then_create(paths, watches=()):
        nodes = get_many(paths, watches)
        metadata_store.get_many = get_many
        metadata_store.create_recursive(znodes.partition("b", 7))
        return nodes

    metadata_store.get_many = read_then_create
    errors = store.create_states(dict.fromkeys(PARTITIONS, STATE))
    assert {tp: type(error) for tp, error in errors.items() if error is not None} == {PARTITIONS[0]: NodeExists}
    assert store.states(PARTITIONS).keys() == set(PARTITIONS)


def test_a_replaced_controller_writes_none_of_many_states(metadata_store, store):
    store.create_states(dict.fromkeys(PARTITIONS, STATE))
    states = store.states(PARTITIONS)
    metadata_store.set(znodes.partition_state(*PARTITIONS[3]), b"{}")
    multi = metadata_store.multi

    def fail_over_after(operations):
        metadata_store.multi = multi
        try:
            return multi(operations)
        finally:
            metadata_store.set(znodes.CONTROLLER_EPOCH, b"2")

    metadata_store.multi = fail_over_after
    with pytest.raises(ControllerMoved):
        store.change_states(states)
    assert metadata_store.get(znodes.partition_state(*PARTITIONS[0])).version == 0


@pytest.mark.parametrize("others", [{}, {TopicPartition("b", 1): (3,)}])
def test_orders_to_reassign_that_change_while_their_topic_is_deleted_are_read_again(
    metadata_store, store, monkeypatch, others
):
    of_a, of_b = TopicPartition("a", 0), TopicPartition("b", 0)
    metadata_store.create_recursive(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({of_a: (1,), **others}))
    multi, changes = metadata_store.multi, [{of_a: (1,), of_b: (2,), **others}]

    def after_a_change(operations):
        if changes:
            metadata_store.set(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment(changes.pop()))
        return multi(operations)

    monkeypatch.setattr(metadata_store, "multi", after_a_change)
    store.delete_topic("a")
    assert metadata_store.get(znodes.topic("a")) is None and not changes
    orders = znodes.decode_reassignment(metadata_store.get(znodes.REASSIGN_PARTITIONS).data)
    assert orders == {of_b: (2,), **others}


def test_a_topic_is_deleted_after_the_orders_to_reassign_it_and_before_the_order_to_delete_it(
    metadata_store, store, monkeypatch
):
    """Of a large topic these are several changes, and the controller may end between them."""
    body = znodes.encode_reassignment({TopicPartition("a", 0): (1,)})
    metadata_store.create_recursive(znodes.REASSIGN_PARTITIONS, body)
    metadata_store.create_recursive(znodes.delete_topic("a"))
    multi, deleted = metadata_store.multi, []

    def recorded(operations):
        deleted.extend(operation.path for operation in operations if isinstance(operation, Delete))
        return multi(operations)

    monkeypatch.setattr(metadata_store, "multi", recorded)
    store.delete_topic("a")
    assert deleted == [znodes.REASSIGN_PARTITIONS, znodes.topic("a"), znodes.delete_topic("a")]


def test_orders_to_reassign_go_with_what_somebody_has_put_below_them(metadata_store, store):
    of_a = TopicPartition("a", 0)
    metadata_store.create_recursive(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({of_a: (1,)}))
    metadata_store.create_recursive(f"{znodes.REASSIGN_PARTITIONS}/foreign/nodes")
    store.remove_reassignment_orders(lambda tp, target: target == (2,))
    assert metadata_store.get(f"{znodes.REASSIGN_PARTITIONS}/foreign/nodes") is not None
    store.remove_reassignment_orders(lambda tp, target: target == (1,))
    assert metadata_store.get(znodes.REASSIGN_PARTITIONS) is None


def test_announcements_are_deleted_with_one_call(metadata_store, store):
    names = [f"n{number}" for number in range(20)]
    for name in names[1:]:
        metadata_store.create_recursive(f"{znodes.ISR_CHANGE_NOTIFICATION}/{name}")
    metadata_store.calls.clear()
    store.delete_children(znodes.ISR_CHANGE_NOTIFICATION, names)
    assert metadata_store.calls == ["multi_many"]
    assert metadata_store.children(znodes.ISR_CHANGE_NOTIFICATION) == []


def test_a_topic_keeps_the_id_that_somebody_gives_it_meanwhile_and_one_that_is_deleted_meanwhile_gets_none(
    metadata_store, store
):
    given = UUID(int=7)
    bare = znodes.TopicZNode({0: [1]})
    for name in ("a", "b"):
        metadata_store.set(znodes.topic(name), bare.encode())
    get_many = metadata_store.get_many

    def read_then_change(paths, watches=()):
        nodes = get_many(paths, watches)
        metadata_store.set(znodes.topic("a"), bare._replace(topic_id=given).encode())
        metadata_store.delete(znodes.topic("b"))
        return nodes

    metadata_store.get_many = read_then_change
    topics = store.topics(["a", "b"], lambda name: None)
    assert topics == {"a": bare._replace(topic_id=given), "b": bare}


def test_a_replaced_controller_gives_no_ids(metadata_store, store):
    bare = znodes.TopicZNode({0: [1]}).encode()
    metadata_store.set(znodes.topic("a"), bare)
    metadata_store.set(znodes.CONTROLLER_EPOCH, b"9")
    with pytest.raises(ControllerMoved):
        store.topics(["a"], lambda name: None)
    assert metadata_store.get(znodes.topic("a")).data == bare


def test_CTRL_10_the_epoch_of_a_controller_that_has_come_and_gone_is_not_used_again():
    """It was elected, and resigned, after this broker has read the epoch."""
    tree = MemoryTree()
    first, second = MemoryStore(tree), MemoryStore(tree)
    first.create_recursive(znodes.CONTROLLER_EPOCH, b"0")
    multi = first.multi

    def multi_after_another_term(operations):
        other = ControllerStore(second)
        assert other.elect(2, 0) == 1
        other.delete_controller()
        return multi(operations)

    first.multi = multi_after_another_term
    with pytest.raises(ControllerMoved):
        ControllerStore(first).elect(1, 0)
    assert second.get(znodes.CONTROLLER) is None


def test_states_of_many_partitions_with_long_names_are_written_in_pieces_that_a_store_takes():
    """ZooKeeper takes no message above 1 MiB."""

    class LimitedStore(MemoryStore):
        def multi(self, operations):
            if sum(map(operation_size, operations)) > MAX_BYTES:
                raise MultiTooLarge(f"{len(operations)} operations")
            return super().multi(operations)

    metadata_store = LimitedStore()
    metadata_store.create_recursive(znodes.CONTROLLER_EPOCH, b"0")
    topics = [f"{number:04}".ljust(249, "x") for number in range(1000)]
    for topic in topics:
        metadata_store.create_recursive(znodes.topic(topic))
    store = ControllerStore(metadata_store)
    store.elect(1, 0)
    states = dict.fromkeys((TopicPartition(topic, 0) for topic in topics), STATE)
    assert set(store.create_states(states).values()) == {None}
    assert set(store.change_states(store.states(states)).values()) == {None}


def test_only_the_node_of_the_own_session_is_withdrawn():
    """An election whose answer was lost may have been another broker's: its node is not to be deleted."""
    tree = MemoryTree()
    first, second = MemoryStore(tree), MemoryStore(tree)
    first.create_recursive(znodes.CONTROLLER_EPOCH, b"0")
    ControllerStore(second).elect(2, 0)
    ControllerStore(first).withdraw()
    assert first.get(znodes.CONTROLLER).ephemeral_owner == second.session_id
    ControllerStore(second).withdraw()
    assert first.get(znodes.CONTROLLER) is None
