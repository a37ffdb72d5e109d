"""Nodes that no broker would write: the controller logs them and goes on, and brokers never elect each other without
pause."""

from random import Random

import pytest

from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.controller.election_backoff import ElectionBackoff, election_backoff_ms
from kcore.errors import KafkaStorageError, UnknownServerError
from kcore.metadata import znodes
from kcore.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from kcore.protocol.messages.update_metadata import UpdateMetadataRequest
from tests.unit.controller.world import MemoryWorld, partitions_of

T0 = TopicPartition("t", 0)

TOPIC = b'{"version":1,"partitions":{"0":[1,2]}}'
STATE = b'{"controller_epoch":1,"leader":%s,"version":1,"leader_epoch":%s,"isr":%s}'


def epoch(world):
    return int(world.admin.get(znodes.CONTROLLER_EPOCH).data)


def alter(world, targets):
    """What a client's request to reassign is answered."""
    results = []
    world.active.alter_partition_reassignments(targets, results.append)
    world.settle()
    (result,) = results
    return result


def fail_over(world):
    """Another controller reads everything."""
    before = epoch(world)
    world.admin.delete(znodes.CONTROLLER)
    world.settle()
    return epoch(world) - before


@pytest.mark.parametrize(
    ("path", "data"),
    [
        (f"{znodes.ISR_CHANGE_NOTIFICATION}/foo", b""),
        (f"{znodes.LOG_DIR_EVENT_NOTIFICATION}/foo", b"{}"),
        (f"{znodes.DELETE_TOPICS}/unknown", b""),
        (znodes.REASSIGN_PARTITIONS, b"{}"),
        (znodes.PREFERRED_REPLICA_ELECTION, b"{}"),
    ],
)
@pytest.mark.parametrize("is_found_by_fail_over", [False, True])
def test_CTRL_13_a_node_is_deleted_with_what_is_below_it(world, path, data, is_found_by_fail_over):
    world.start(1, 2)
    before = epoch(world)
    world.admin.create_recursive(path, data)
    world.admin.create(f"{path}/child", b"")
    world.settle()
    if is_found_by_fail_over:
        assert fail_over(world) == 1
    world.create_topic("t", [[1, 2]])
    assert epoch(world) == before + is_found_by_fail_over
    assert world.state("t").leader == 1
    assert world.admin.get(path) is None


def test_orders_to_delete_topics_of_names_that_no_store_takes_any_more_are_carried_out(tmp_path, monkeypatch):
    world = MemoryWorld(tmp_path)  # ZooKeeper itself has never taken such a path
    for name in (".", "..", "a\x01"):
        for path in (znodes.topic("unused"), znodes.topic_config("unused"), znodes.delete_topic("unused")):
            world.admin.ensure_path(path.removesuffix("/unused"))
        with monkeypatch.context() as earlier_version:
            earlier_version.setattr("kcore.metadata.node_changes.check_path", lambda path: path)
            world.admin.create(znodes.delete_topic(name))
    world.start(1, 2)
    assert epoch(world) == 1
    assert world.admin.children(znodes.DELETE_TOPICS) == []
    world.create_topic("t", [[1, 2]])
    assert world.state("t").leader == 1
    world.close()


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/brokers/ids/79", b'{"version":5,"host":"h","port":1,"endpoints":[]}'),
        ("/brokers/ids/78", b'{"version":5,"endpoints":["PLAINTEXT://h:99999999999"]}'),
        ("/brokers/ids/99999999999", b'{"version":5,"endpoints":["PLAINTEXT://h:1"]}'),
        ("/brokers/ids/77", b'{"version":5,"endpoints":["PLAINTEXT://h:1"],"rack":5}'),
        ("/brokers/topics/g", b'{"version":1,"partitions":{"0":[4294967296]}}'),
        ("/brokers/topics/g", b'{"version":1,"partitions":{"0":[1e999]}}'),
        ("/brokers/topics/g", b"[" * 100_000),
        ("/brokers/topics/g", b'{"version":1,"partitions":{"0":[1,1]}}'),
        ("/brokers/topics/a b!", TOPIC),
        ("/brokers/topics/" + "n" * 250, TOPIC),
        ("/isr_change_notification/foo", b'{"partitions":[{"topic":"t","partition":1e999}]}'),
        ("/log_dir_event_notification/foo", b'{"broker":1e999}'),
        ("/admin/reassign_partitions", b'{"partitions":[{"topic":"t","partition":0,"replicas":[1e999]}]}'),
        ("/admin/preferred_replica_election", b'{"partitions":[{"topic":"t","partition":1e999}]}'),
    ],
    ids=range(14),
)
def test_a_node_that_cannot_be_read_is_left_out(world, path, data):
    world.start(1, 2)
    world.create_topic("t", [[1, 2]])
    before = epoch(world)
    world.admin.create_recursive(path, data)
    world.settle()
    assert epoch(world) == before
    assert fail_over(world) == 1
    world.create_topic("new", [[2, 1]])
    assert world.state("new").leader == 2
    assert world.active.context.live_ids == {1, 2} and world.active.context.topics == {"t", "new"}


def test_a_topic_that_is_left_out_is_logged_once_for_each_content_of_its_node(world, caplog):
    """It was once for each change of the list of topics."""

    def left_out():
        lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        caplog.clear()
        return [line.partition(" is left out: ")[0] for line in lines]

    world.start(1, 2)
    broken, strange = znodes.topic("broken"), znodes.topic("a b")
    world.admin.create_recursive(broken, b'{"version":1,"partit')
    world.admin.create(strange, TOPIC)
    for number in range(3):
        world.create_topic(f"t{number}", [[1, 2]])
    assert sorted(left_out()) == [strange, broken]
    world.admin.set(broken, b'{"version":1,"partitions":')
    world.settle()
    world.create_topic("t3", [[1, 2]])
    assert left_out() == [broken]
    world.admin.set(broken, TOPIC)
    world.settle()
    assert world.active.context.topics == {"t0", "t1", "t2", "t3", "broken"} and left_out() == []


@pytest.mark.parametrize(("name", "data"), [("broken", b'{"version":1,"partit'), ("a b", TOPIC)], ids=["body", "name"])
@pytest.mark.parametrize("is_found_by_fail_over", [False, True])
def test_an_order_to_delete_a_topic_that_is_left_out_deletes_its_nodes(world, name, data, is_found_by_fail_over):
    """In the middle of a term the order alone was deleted."""
    world.admin.create_recursive(znodes.topic(name), data)
    world.admin.create_recursive(znodes.partition_state(name, 0), STATE % (b"1", b"0", b"[1,2]"))
    world.admin.create_recursive(znodes.topic_config(name), znodes.encode_config({}))
    if is_found_by_fail_over:
        world.admin.create_recursive(znodes.delete_topic(name))
    world.start(1, 2)
    if not is_found_by_fail_over:
        world.delete_topic(name)
    for parent in (znodes.TOPICS, znodes.TOPIC_CONFIGS, znodes.DELETE_TOPICS):
        assert world.admin.children(parent) == []
    assert world.active.context.topics_to_delete == world.active.context.topics_with_deletion_started == set()
    world.create_topic("broken", [[1, 2]])
    assert world.state("broken").leader == 1 and epoch(world) == 1


@pytest.mark.parametrize("is_ordered_in_the_store", [False, True])
def test_a_topic_whose_node_cannot_be_read_is_not_reassigned_and_the_term_goes_on(
    world, caplog, is_ordered_in_the_store
):
    """It ended the term; the error is the client's, and names the node."""
    world.start(1, 2)
    world.create_topic("t", [[1], [1]])
    world.create_topic("u", [[1]])
    before, states = epoch(world), [world.state("t", number) for number in range(2)]
    world.admin.set(znodes.topic("t"), b"garb")
    world.settle()
    t1, u0 = TopicPartition("t", 1), TopicPartition("u", 0)
    targets = dict.fromkeys((T0, t1, u0), (2,))
    caplog.clear()
    if is_ordered_in_the_store:
        world.admin.create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment(targets))
        world.settle()
        assert znodes.decode_reassignment(world.admin.get(znodes.REASSIGN_PARTITIONS).data) == {u0: (2,)}
    else:
        results = alter(world, targets)
        assert results[u0] is None
        for tp in (T0, t1):
            assert isinstance(results[tp], UnknownServerError)
            assert str(results[tp]).startswith("The node /brokers/topics/t in the metadata store cannot be read: ")
    context = world.active.context
    assert epoch(world) == before and context.being_reassigned == {u0}
    assert [world.state("t", number) for number in range(2)] == states
    assert context.assignments[T0].replicas == (1,) and world.admin.get(znodes.topic("t")).data == b"garb"
    lines = [r.getMessage() for r in caplog.records if "no partition of t is reassigned" in r.getMessage()]
    assert len(lines) == 1 and "/brokers/topics/t" in lines[0] and not any(r.exc_info for r in caplog.records)


def test_a_reassignment_ends_once_the_node_of_its_topic_can_be_read_again(world, caplog):
    world.start(1, 2)
    world.create_topic("t", [[1]])
    assert alter(world, {T0: (2,)}) == {T0: None}
    before, path = epoch(world), znodes.topic("t")
    sound = world.admin.get(path).data
    world.admin.set(path, b"garb")
    world.settle()
    world.set_isr("t", 0, [1, 2])
    world.settle()
    assert epoch(world) == before and world.active.context.being_reassigned == {T0}
    assert world.state("t").leader == 1 and world.admin.get(path).data == b"garb"
    assert "the reassignment of t waits: the node /brokers/topics/t in the metadata store cannot be read" in caplog.text
    world.admin.set(path, sound)
    world.settle()
    assert epoch(world) == before and world.active.context.being_reassigned == set()
    node = znodes.TopicZNode.decode(world.admin.get(path).data)
    assert (node.assignment, node.adding, node.removing) == ({0: [2]}, {}, {}) and world.state("t").leader == 2


@pytest.mark.parametrize(
    "data",
    [
        STATE % (b"1", b"1099511627776", b"[1,2]"),
        STATE % (b"1", b"0", b'["1","2"]'),
        STATE % (b"1", b"0", b"[[1]]"),
        STATE % (b"1e999", b"0", b"[1,2]"),
    ],
)
def test_a_state_that_cannot_be_read_keeps_no_broker_from_the_metadata_of_others(world, data):
    world.start(1, 2)
    world.create_topic("t", [[1, 2]])
    world.create_topic("other", [[2, 1]])
    world.admin.set(znodes.partition_state("t", 0), data)
    assert fail_over(world) == 1
    requests = [request for _, request in world.requests.take(UpdateMetadataRequest)]
    assert "other" in {topic.topic_name for request in requests for topic in request.topic_states}
    for request in requests:
        request.encode(7)


def test_a_partition_that_has_a_state_before_its_topic_is_noticed_gets_a_leader_from_that(world):
    """Somebody restores a topic and writes its node last; partition 1 has no state yet."""
    world.start(1, 2, 3)
    old = znodes.PartitionStateZNode(3, 7, [3, 2], 1)
    world.admin.create_recursive(znodes.partition_state("t", 0), old.encode())
    world.admin.create_recursive(znodes.partition("t", 1))
    world.settle()
    assignment = {0: [1, 2, 3], 1: [1, 2]}
    world.admin.set(znodes.topic("t"), znodes.TopicZNode(assignment, znodes.random_id(Random(1))).encode())
    world.settle()
    restored, new = world.state("t", 0), world.state("t", 1)
    assert (restored.leader, restored.leader_epoch, list(restored.isr)) == (2, 8, [3, 2])
    assert (new.leader, new.leader_epoch, list(new.isr)) == (1, 0, [1, 2])
    sent = {broker for broker, request in world.requests.take(LeaderAndIsrRequest) if T0 in partitions_of(request)}
    assert sent == {1, 2, 3}


@pytest.mark.parametrize("is_found_by_fail_over", [False, True])
def test_CTRL_14_a_topic_without_an_id_gets_one_that_it_keeps(world, is_found_by_fail_over):
    """Tools and brokers before Kafka 2.8 write none."""
    if is_found_by_fail_over:
        world.admin.create_recursive(znodes.topic("t"), TOPIC)
        world.start(1, 2)
    else:
        world.start(1, 2)
        world.admin.create_recursive(znodes.topic("t"), TOPIC)
        world.settle()

    def stored():
        return znodes.TopicZNode.decode(world.admin.get(znodes.topic("t")).data)

    node = stored()
    assert node.topic_id is not None and node.assignment == {0: [1, 2]}
    sent = [request.topic_states for _, request in world.requests.take(LeaderAndIsrRequest)]
    assert sent and {topic.topic_id for topics in sent for topic in topics} == {node.topic_id}
    assert fail_over(world) == 1
    assert stored() == node and world.active.context.topic_ids == {"t": node.topic_id}


def test_CTRL_07_brokers_that_all_fail_do_not_elect_each_other_without_pause(world, monkeypatch):
    world.start(1, 2, 3)

    def fail():
        raise KafkaStorageError("always")

    before = epoch(world)
    with monkeypatch.context() as patch:
        for controller in world.controllers.values():
            patch.setattr(controller.replica_state_machine, "startup", fail)
        world.admin.delete(znodes.CONTROLLER)
        world.settle()
        # Each has tried, and waits.
        assert epoch(world) == before + 3 and world.admin.get(znodes.CONTROLLER) is None
        world.time.sleep(999)
        world.scheduler.tick()
        world.settle()
        assert epoch(world) == before + 3
    world.time.sleep(1)
    world.scheduler.tick()
    world.settle()
    assert epoch(world) == before + 4 and world.active


def test_no_controller_is_elected_with_an_epoch_that_requests_cannot_carry(world):
    """They have 32 bits for it."""
    world.start(1, 2)
    world.admin.set(znodes.CONTROLLER_EPOCH, b"%d" % (2**31 - 2))
    assert fail_over(world) == 1 and world.active.context.epoch == 2**31 - 1
    world.create_topic("t", [[1, 2]])
    for _, request in world.requests.take(UpdateMetadataRequest):
        request.encode(7)
    assert fail_over(world) == 0
    assert not any(controller.is_active for controller in world.controllers.values())
    assert world.admin.get(znodes.CONTROLLER) is None


def test_the_pause_before_the_next_election_doubles_up_to_a_minute():
    assert [election_backoff_ms(failures) for failures in range(1, 9)] == [
        1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000,
    ]  # fmt: skip
    assert election_backoff_ms(10**9) == 60_000


def test_the_end_of_an_old_pause_does_not_end_a_later_one():
    time = MockTime()
    backoff = ElectionBackoff(time)
    first = backoff.begin()
    time.sleep(61_000)
    second = backoff.begin()
    assert second.delay_ms == first.delay_ms
    backoff.end(first)
    assert backoff.pause == second
    backoff.end(second)
    assert backoff.pause is None


def test_CTRL_07_a_broker_that_always_fails_raises_the_epoch_less_and_less_often(world, monkeypatch):
    """It was once a second."""
    world.start(1)

    def fail():
        raise KafkaStorageError("always")

    def pass_s(seconds):
        for _ in range(2 * seconds):
            world.time.sleep(500)
            world.scheduler.tick()
            world.settle()

    with monkeypatch.context() as patch:
        patch.setattr(world.controllers[1].replica_state_machine, "startup", fail)
        before = epoch(world)
        world.admin.delete(znodes.CONTROLLER)
        world.settle()
        epochs = []
        for seconds in (0, 1, 2, 4, 8, 16, 32, 60, 60):
            pass_s(seconds)
            epochs.append(epoch(world) - before)
        assert epochs == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    pass_s(60)
    assert world.active and epoch(world) == before + 10
    # A term that lasted is the end of the row of failures.
    pass_s(61)
    with monkeypatch.context() as patch:
        patch.setattr(world.controllers[1].replica_state_machine, "startup", fail)
        world.active._guarded(lambda: None)
        with pytest.raises(KafkaStorageError):
            world.active._guarded(fail)
        world.settle()
        assert not world.controllers[1].is_active
    pass_s(1)
    assert world.active and epoch(world) == before + 11


def test_CTRL_07_an_error_of_another_kind_does_not_shorten_the_pause(world, monkeypatch):
    """A broker that is not the controller tries again after a second when an event of it fails."""
    world.start(1)
    controller = world.controllers[1]

    def fail():
        raise KafkaStorageError("always")

    for _ in range(3):
        with pytest.raises(KafkaStorageError):
            world.active._guarded(fail)
        world.settle()
        for _ in range(4):
            if not controller.is_active:
                world.time.sleep(1000)
                world.scheduler.tick()
                world.settle()
    with pytest.raises(KafkaStorageError):
        world.active._guarded(fail)  # the fourth: 8 s
    with pytest.raises(KafkaStorageError):
        controller._guarded(fail)
    before = epoch(world)
    for _ in range(7):
        world.time.sleep(1000)
        world.scheduler.tick()
        world.settle()
        assert epoch(world) == before
    world.time.sleep(1000)
    world.scheduler.tick()
    world.settle()
    assert epoch(world) == before + 1 and world.active
