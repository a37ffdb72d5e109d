"""How a broker becomes the controller, begins its term and resigns, on a store without threads."""

import logging
import threading
from functools import partial

import pytest

from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_context import ReplicaAssignment
from kcore.controller.controller_event_manager import ControllerEvent, ControllerEventManager
from kcore.controller.controller_settings import ControllerSettings
from kcore.controller.controller_store import ControllerMoved
from kcore.controller.kafka_controller import KafkaController
from kcore.controller.leader_elections import ElectionType
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore
from kcore.metadata.store import ConnectionLost, Create, Delete, NodeExists, SessionEvent, StoreError
from kcore.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from kcore.protocol.messages.update_metadata import UpdateMetadataRequest
from tests.unit.controller.reassigning import reassign
from tests.unit.controller.world import FakeChannels, MemoryWorld, partitions_of

T0 = TopicPartition("t", 0)
DEADLINE_S = 60


@pytest.fixture
def with_a_thread():
    """A controller that processes its events on its own thread, once it is started."""
    time = MockTime()
    scheduler = MockScheduler(time)
    controller = KafkaController(1, MemoryStore(), FakeChannels(), ControllerSettings(), int, time, scheduler)
    yield controller
    controller.events.close()


def active_ids(world):
    return [c.broker_id for c in world.controllers.values() if c.is_active]


def raise_(error):
    raise error


# -- election -------------------------------------------------------------------------------------------


def test_CTRL_02_a_controller_that_starts_has_one_thread_and_Startup_is_its_first_event(with_a_thread, monkeypatch):
    names, threads, run, is_done = [], set(), ControllerEvent.run, threading.Event()

    def noted(event):
        names.append(event.name)
        threads.add(threading.current_thread())
        run(event)

    monkeypatch.setattr(ControllerEvent, "run", noted)
    with_a_thread.startup()
    with_a_thread.put_call("last", lambda: with_a_thread.is_active, lambda result: is_done.set())
    assert is_done.wait(DEADLINE_S)
    assert names[0] == "Startup" and names[-1] == "last"
    assert len(threads) == 1 and threading.current_thread() not in threads


def test_CTRL_01_one_of_the_brokers_is_the_controller_and_any_other_can_follow_it(world):
    world.start(1, 2, 3)
    assert active_ids(world) == [1]
    world.kill(1)
    assert len(active_ids(world)) == 1
    world.kill(active_ids(world)[0])
    assert len(active_ids(world)) == 1


def test_CTRL_03_the_watch_on_the_controllers_node_is_set_before_the_election(world, monkeypatch):
    world.start(1)
    calls = []
    store = world.stores[2] = world._open()
    for name in ("get", "multi"):
        real = getattr(store, name)
        monkeypatch.setattr(store, name, lambda *a, r=real, n=name: calls.append((n, *a)) or r(*a))
    controller = KafkaController(2, store, FakeChannels(), ControllerSettings(), int, world.time, world.scheduler)
    controller.startup(start_thread=False)
    controller.events.process_all()
    reads = [call for call in calls if call[1] == znodes.CONTROLLER]
    assert reads[0][:2] == ("get", znodes.CONTROLLER) and reads[0][2] is not None
    # CTRL-04: the controller is there, so that nothing is created.
    assert not [call for call in calls if call[0] == "multi"]


def test_CTRL_04_a_broker_that_starts_later_takes_note_of_the_controller(world):
    world.start(3)
    world.start(1)
    assert active_ids(world) == [3]
    assert world.controllers[1].active_controller_id == 3


def test_CTRL_05_the_controllers_node_is_ephemeral_and_has_its_id_and_the_time(world):
    world.start(7)
    node = world.admin.get(znodes.CONTROLLER)
    assert node.ephemeral_owner == world.stores[7].session_id
    assert znodes.ControllerZNode.decode(node.data) == (7, world.time.milliseconds())


def test_CTRL_06_a_broker_that_loses_the_election_records_the_winner(world):
    world.start(1)
    controller = world.controllers[1]
    world.start(2)
    loser = world.controllers[2]
    loser._elect()
    assert (controller.is_active, loser.is_active, loser.active_controller_id) == (True, False, 1)


@pytest.mark.parametrize("error", [NodeExists, ControllerMoved])
def test_CTRL_06_a_broker_that_lost_to_one_that_is_gone_again_takes_part_again(world, monkeypatch, error):
    """The watch compares the node with what it was before the election: it was not there, and is not there now."""
    world.start(1)
    controller, real, errors = world.controllers[1], world.controllers[1]._store.elect, [error("of another")]
    monkeypatch.setattr(controller._store, "elect", lambda *a: real(*a) if not errors else raise_(errors.pop()))
    controller._move(None)
    world.settle()
    assert not errors and active_ids(world) == [1]


def test_CTRL_03_a_controller_that_is_replaced_before_its_first_watch_is_called_takes_note(world):
    """Its node and its successor's have come and gone: the watch of before the election finds nothing changed."""
    world.start(1)
    controller = world.controllers[1]
    controller._move(None)
    world.deliver()
    world.process()
    assert controller.is_active
    world.admin.delete(znodes.CONTROLLER)
    successors = int(world.admin.get(znodes.CONTROLLER_EPOCH).data) + 1
    world.admin.set(znodes.CONTROLLER_EPOCH, str(successors).encode())
    world.settle()
    assert active_ids(world) == [1] and controller.context.epoch == successors + 1
    assert world.admin.get(znodes.CONTROLLER) is not None


def test_CTRL_07_a_controller_whose_node_is_gone_before_its_term_begins_is_elected_again(world, monkeypatch):
    world.start(1)
    controller, real, deleted = world.controllers[1], world.controllers[1]._store.elect, []

    def elect_and_delete(*arguments):
        epoch = real(*arguments)
        if not deleted:
            deleted.append(epoch)
            world.admin.delete(znodes.CONTROLLER)
        return epoch

    monkeypatch.setattr(controller._store, "elect", elect_and_delete)
    controller._move(None)
    world.settle()
    world.time.sleep(1000)
    world.scheduler.tick()
    world.settle()
    assert deleted and active_ids(world) == [1] and controller.context.epoch == deleted[0] + 1


@pytest.mark.parametrize("error, has_place", [(OSError("full"), True), (StoreError("it is away"), False)])
def test_CTRL_07_a_fail_over_that_fails_gives_the_election_back(world, monkeypatch, caplog, error, has_place):
    world.start(1, 2)
    monkeypatch.setattr(world.controllers[2].replica_state_machine, "startup", lambda: (_ for _ in ()).throw(error))
    world.controllers[1]._move(None)
    world.deliver()
    world.controllers[2].events._take().run()  # one event: that it has resigned is the next
    assert not world.controllers[2].is_active
    assert world.channels[2].brokers == {}
    (record,) = [r for r in caplog.records if "the fail-over failed" in r.getMessage()]
    assert str(error) in record.getMessage() and bool(record.exc_info) == has_place
    monkeypatch.undo()
    world.settle()
    assert len(active_ids(world)) == 1


def test_a_store_that_fails_at_the_wrong_moment_keeps_no_broker_from_later_elections(world, monkeypatch):
    world.start(1, 2)
    store, failures = world.stores[2], []
    real = store.get

    def fail_once(path, *args):
        if path == znodes.CONTROLLER and not failures:
            failures.append(path)
            raise StoreError("database is locked")
        return real(path, *args)

    monkeypatch.setattr(store, "get", fail_once)
    world.kill(1)
    assert failures and active_ids(world) == []
    world.time.sleep(1000)
    world.scheduler.tick()
    world.settle()
    assert active_ids(world) == [2]


def test_a_broker_that_cannot_be_elected_for_long_says_so_less_and_less_often(world, monkeypatch, caplog):
    """On a full disk it was two lines a second."""
    world.start(1, 2)

    def full(*arguments):
        raise StoreError("database or disk is full")

    monkeypatch.setattr(world.controllers[2]._store, "elect", full)
    world.kill(1)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        for _ in range(60):
            world.time.sleep(1000)
            world.scheduler.tick()
            world.settle()
    lines = [record.getMessage() for record in caplog.records if "could not take part" in record.getMessage()]
    assert 1 <= len(lines) <= 7
    assert not [record for record in caplog.records if "not the controller any more" in record.getMessage()]
    monkeypatch.undo()
    world.time.sleep(1000)
    world.scheduler.tick()
    world.settle()
    assert active_ids(world) == [2]


def test_a_broker_that_does_not_hear_of_its_election_gives_it_back(world, monkeypatch):
    """The write took place, its answer was lost: /controller has this broker's id, and nobody has failed over."""
    world.start(1, 2)
    store, lost = world.stores[2], []
    real = store.multi

    def lose_the_answer(operations):
        results = real(operations)
        if not lost and isinstance(operations[0], Create) and operations[0].path == znodes.CONTROLLER:
            lost.append(1)
            raise ConnectionLost("the answer is lost")
        return results

    monkeypatch.setattr(store, "multi", lose_the_answer)
    world.kill(1)
    assert lost and active_ids(world) == [2] and world.active.context.live_brokers.keys() == {2}
    assert world.admin.get(znodes.CONTROLLER_EPOCH).data == b"3"


def lose_an_answer(monkeypatch, store, kind, is_done):
    """Have the next multi() with a `kind` of the controller's node raise ConnectionLost, done or not."""
    real, lost = store.multi, []

    def multi(operations):
        if not lost and any(isinstance(o, kind) and o.path == znodes.CONTROLLER for o in operations):
            lost.append(1)
            if is_done:
                real(operations)
            raise ConnectionLost("in between")
        return real(operations)

    monkeypatch.setattr(store, "multi", multi)
    return lost


@pytest.mark.parametrize("is_done", [False, True])
def test_an_election_whose_answer_was_lost_makes_no_controller_without_a_term(world, monkeypatch, is_done):
    world.start(1, 2)
    world.create_topic("t", [[1, 2]])
    lost = lose_an_answer(monkeypatch, world.stores[2], Create, is_done)
    world.kill(1)
    assert lost
    world.time.sleep(1000)
    world.scheduler.tick()
    world.settle()
    assert active_ids(world) == [2] and world.active.context.live_brokers.keys() == {2}
    assert world.state("t").leader == 2


@pytest.mark.parametrize("is_done", [False, True])
def test_a_resignation_whose_answer_was_lost_leaves_no_controller_without_a_term(world, monkeypatch, is_done):
    world.start(1)
    lost = lose_an_answer(monkeypatch, world.stores[1], Delete, is_done)
    world.controllers[1]._move(ConnectionLost("the cause"))
    assert lost and active_ids(world) == []
    world.time.sleep(1000)
    world.scheduler.tick()
    world.settle()
    assert active_ids(world) == [1] and world.active.context.live_brokers.keys() == {1}


def test_CTRL_07_a_node_that_was_left_behind_is_withdrawn_each_second_though_its_owner_pauses(world, monkeypatch):
    """While it is there no other broker can be elected."""
    world.start(1)
    for _ in range(3):
        world.controllers[1]._backoff.begin()
    world.start(2)
    store = world.stores[1]
    real = store.multi

    def fail(operations):
        if any(isinstance(o, Delete) and o.path == znodes.CONTROLLER for o in operations):
            raise ConnectionLost("timed out")
        return real(operations)

    def pass_a_second():
        world.time.sleep(1000)
        world.scheduler.tick()
        world.settle()

    monkeypatch.setattr(store, "multi", fail)
    world.controllers[1]._move(ConnectionLost("the cause"))
    assert world.controllers[1]._backoff.pause.delay_ms == 8000
    for _ in range(3):
        pass_a_second()
        assert active_ids(world) == [] and world.admin.get(znodes.CONTROLLER) is not None
    monkeypatch.undo()
    pass_a_second()
    assert active_ids(world) == [2]
    # Its own candidacy waits for the end of the pause: at 4 s there is no controller, at 8 s it is elected.
    world.kill(2)
    for _ in range(3):
        pass_a_second()
        assert active_ids(world) == []
    pass_a_second()
    assert active_ids(world) == [1]


def test_a_session_that_cannot_begin_is_tried_again(world, monkeypatch):
    world.start(1, 2)
    store, failures = world.stores[1], []
    real = store.new_session

    def fail_once():
        if not failures:
            failures.append(1)
            raise StoreError("database is locked")
        return real()

    monkeypatch.setattr(store, "new_session", fail_once)
    world.expire(1)
    world.settle()
    assert failures and active_ids(world) == [2] and world.active.context.live_brokers.keys() == {2}
    world.time.sleep(1000)
    world.scheduler.tick()
    world.settle()
    assert world.active.context.live_brokers.keys() == {1, 2}


@pytest.mark.parametrize("errors", [1, 3])
def test_a_controller_whose_store_is_away_looks_for_it_once_a_second(tmp_path, caplog, errors):
    """It was twice: after the error, and after the node that could not be deleted."""
    world = MemoryWorld(tmp_path)
    world.start(1)
    controller = world.active
    world.stores[1].disconnect()
    world.deliver()
    for _ in range(errors):
        controller.events.put(ControllerEvent("Fails", partial(controller._guarded, partial(raise_, ConnectionLost()))))
    world.process()
    assert not controller.is_active
    answers = []
    controller.elect_leaders(ElectionType.PREFERRED, [T0], answers.append)
    world.process()
    assert str(answers[0]) == "broker 1 is not the controller, and its metadata store cannot be reached"
    attempts = []
    for _ in range(5):
        caplog.clear()
        world.time.sleep(1000)
        world.scheduler.tick()
        world.process()
        attempts.append(sum("event Startup" in line for line in caplog.messages))
    assert attempts == [1] * 5
    world.stores[1].reconnect()
    world.time.sleep(1000)
    world.scheduler.tick()
    world.settle()
    assert world.active is controller and not controller._is_store_away
    world.close()


def test_CTRL_08_and_CTRL_09_a_controller_whose_session_expires_resigns_before_it_takes_part_again(world):
    world.start(1, 2)
    world.create_topic("t", [[1, 2]])
    controller, channels = world.controllers[1], world.channels[1]
    done = []
    controller._put("stale", lambda: done.append("ran"), lambda: done.append("skipped"))
    old_node = world.admin.get(znodes.broker_id(1))
    world.expire(1)
    world.settle()
    assert done == ["skipped"]
    (active,) = active_ids(world)  # either of them
    assert world.admin.get(znodes.CONTROLLER_EPOCH).data == b"2"
    assert channels.brokers.keys() == ({1, 2} if active == 1 else set())
    # Registered again, under the new session.
    node = world.admin.get(znodes.broker_id(1))
    assert node.ephemeral_owner == world.stores[1].session_id != old_node.ephemeral_owner
    assert world.active.context.live_brokers.keys() == {1, 2}
    world.kill(2)
    assert active_ids(world) == [1] and controller.context.leadership[T0].leader == 1


def test_CTRL_09_a_broker_that_could_not_register_in_its_new_session_takes_part_in_no_election(world):
    """No other broker could reach it: the brokers find the controller's address in its registration."""
    world.start(1, 2)
    world.kill(1)
    world.start(3)
    controller, can_register = world.controllers[3], []
    register = controller._register_broker
    controller._register_broker = lambda: bool(can_register) and register()
    world.expire(3)
    world.settle()
    world.kill(2)
    assert active_ids(world) == []
    # Neither a connection that was lost nor an attempt after an error makes it a candidate.
    controller._session_changed(SessionEvent.CONNECTED)
    controller._put_startup()
    for _ in range(3):
        world.time.sleep(1000)
        world.scheduler.tick()
        world.settle()
    assert active_ids(world) == [] and world.admin.get(znodes.CONTROLLER) is None
    can_register.append(True)
    world.time.sleep(1000)
    world.scheduler.tick()
    world.settle()
    assert active_ids(world) == [3] and world.admin.get(znodes.broker_id(3)) is not None


def test_CTRL_08_no_session_begins_before_the_running_event_has_ended_and_Expire_is_being_processed(
    with_a_thread, monkeypatch
):
    """An event that still runs writes in the session in which it began."""
    order, runs, release, has_gone_on = [], threading.Event(), threading.Event(), threading.Event()
    await_started = ControllerEventManager.await_started

    def waiting(events, event, timeout_s):
        has_gone_on.set()
        return await_started(events, event, DEADLINE_S)

    def new_session():
        order.append("new session")
        has_gone_on.set()

    def slow():
        runs.set()
        assert release.wait(DEADLINE_S)
        order.append("slow")

    monkeypatch.setattr(ControllerEventManager, "await_started", waiting)
    monkeypatch.setattr(with_a_thread._metadata_store, "new_session", new_session)
    expire = with_a_thread._expire
    monkeypatch.setattr(with_a_thread, "_expire", lambda: (order.append("Expire"), expire()))
    with_a_thread.startup()
    with_a_thread.events.put(ControllerEvent("slow", slow))
    assert runs.wait(DEADLINE_S)
    expired = threading.Thread(target=with_a_thread._session_changed, args=(SessionEvent.EXPIRED,))
    expired.start()
    assert has_gone_on.wait(DEADLINE_S)
    assert order == []
    release.set()
    expired.join(DEADLINE_S)
    # Whoever waited goes on when the processing of Expire begins.
    assert order[0] == "slow" and sorted(order) == ["Expire", "new session", "slow"]


# -- fail-over ------------------------------------------------------------------------------------------


def test_CTRL_10_each_controller_has_a_higher_epoch(world):
    world.start(1, 2)
    assert world.admin.get(znodes.CONTROLLER_EPOCH).data == b"1"
    assert world.active.context.epoch == 1
    world.kill(1)
    assert world.admin.get(znodes.CONTROLLER_EPOCH).data == b"2"
    assert world.active.context.epoch == 2


def test_CTRL_11_a_change_between_watch_and_read_is_not_missed(world):
    world.start(1)
    world.create_topic("before", [[1]])
    controller = world.active
    real, created = controller._store.states, []

    def create_while_reading(partitions, *watch):
        if not created:
            created.append(1)
            node = znodes.TopicZNode({0: [1]}, None)
            world.admin.create_recursive(znodes.topic("between"), node.encode())
        return real(partitions, *watch)

    controller._move(None)
    controller._store.states = create_while_reading
    world.settle()
    assert created and world.state("between").leader == 1


def test_CTRL_11_a_broker_that_dies_while_the_state_is_read_is_not_missed(world):
    world.start(1, 2)
    world.create_topic("t", [[2, 1]])
    controller = world.active
    real, died = controller._store.states, []

    def die_while_reading(partitions, *watch):
        if not died:
            died.append(world.controllers.pop(2))
            del world.channels[2]
            world.end_session(world.stores.pop(2))
        return real(partitions, *watch)

    world.controllers[2].events.close()  # so that broker 1 is elected again
    controller._move(None)
    controller._store.states = die_while_reading
    world.settle()
    assert died and world.active is controller
    assert (world.state("t").leader, world.state("t").isr) == (1, [1])
    assert controller.context.live_brokers.keys() == {1}


def test_what_was_queued_before_a_resignation_is_not_done_after_it(world, caplog, monkeypatch):
    world.start(1, 2)
    world.create_topic("t", [[2, 1]])
    old = world.active
    watch = old._term.watches["BrokerChange"]
    monkeypatch.setattr(old, "_elect", lambda: None)  # ZooKeeper says by itself that its node is gone
    old._move(None)
    channels = world.channels[old.broker_id]
    channels.take()
    watch(None)
    old.events.process_all()
    assert not channels.take() and not old.context.live_brokers
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_replica_stays_new_in_a_request_that_gathers_several_changes(world):
    world.start(1)
    world.create_topic("t", [[1]])
    world.requests.take()
    controller = world.active
    state = controller.context.leadership[T0]
    controller._batch.add_leader_and_isr([1], T0, state, is_new=True)
    controller._batch.add_leader_and_isr([1], T0, state, is_new=False)
    controller._batch.send()
    ((_, request),) = world.requests.take(LeaderAndIsrRequest)
    assert partitions_of(request)[T0].is_new


def test_CTRL_13_old_notifications_are_deleted_at_a_fail_over(world):
    world.start(1)
    world.controllers[1]._move(None)
    for parent in (znodes.ISR_CHANGE_NOTIFICATION, znodes.LOG_DIR_EVENT_NOTIFICATION):
        world.admin.create(f"{parent}/old_", b"?", sequential=True)
    world.settle()
    assert world.active
    assert world.admin.children(znodes.ISR_CHANGE_NOTIFICATION) == []
    assert world.admin.children(znodes.LOG_DIR_EVENT_NOTIFICATION) == []


def test_CTRL_14_a_new_controller_reads_brokers_topics_and_leadership_and_has_a_channel_to_each_broker(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[1, 2, 3], [2, 3, 1]])
    world.kill(1)
    context = world.active.context
    assert context.live_brokers.keys() == {2, 3} == world.requests.brokers.keys()
    assert {tp: a.replicas for tp, a in context.assignments.items()} == {
        T0: (1, 2, 3),
        TopicPartition("t", 1): (2, 3, 1),
    }
    assert context.leadership[T0].leader == world.state("t").leader == 2


def test_CTRL_14_a_new_controller_knows_stored_isrs_epochs_and_reassignments_and_watches_each_topic(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[1, 2, 3], [2, 3, 1]])
    world.create_topic("u", [[2]])
    reassign(world, (3,), TopicPartition("u", 0))
    world.set_isr("t", 1, [2, 3])  # nobody has notified a controller of it
    world.kill(1)
    context = world.active.context
    assert context.topics == {"t", "u"}
    for tp in (T0, TopicPartition("t", 1), TopicPartition("u", 0)):
        known, stored = context.leadership[tp], world.state(*tp)
        node = world.admin.get(znodes.partition_state(*tp))
        assert (known.leader, known.leader_epoch, list(known.isr), known.controller_epoch, known.partition_epoch) == (
            stored.leader,
            stored.leader_epoch,
            stored.isr,
            stored.controller_epoch,
            node.version,
        )
    assert context.leadership[TopicPartition("t", 1)].isr == (2, 3)
    assert context.assignments[TopicPartition("u", 0)] == ReplicaAssignment((3, 2), adding=(3,), removing=(2,))
    # Each topic's node is watched.
    for name in ("t", "u"):
        path = znodes.topic(name)
        topic = znodes.TopicZNode.decode(world.admin.get(path).data)
        added = len(topic.assignment)
        world.admin.set(path, topic._replace(assignment={**topic.assignment, added: [3]}).encode())
        world.settle()
        assert world.state(name, added).leader == 3


def test_CTRL_15_V22_13_topics_are_not_deleted_where_that_is_switched_off(world):
    world.start(1, settings=ControllerSettings(delete_topic_enable=False))
    world.create_topic("t", [[1]])
    world.delete_topic("t")
    assert world.admin.children(znodes.DELETE_TOPICS) == []
    world.controllers[1]._move(None)
    world.admin.create(znodes.delete_topic("t"))
    world.settle()
    assert world.admin.children(znodes.DELETE_TOPICS) == []
    assert world.state("t").leader == 1


def test_CTRL_16_and_CTRL_17_brokers_get_the_live_brokers_before_they_lead_anything(world):
    world.start(1, 2)
    world.create_topic("t", [[1, 2]])
    world.channels[2].take()
    world.kill(1)
    sent = world.requests.take()
    assert isinstance(sent[0][1], UpdateMetadataRequest)
    assert [broker.id for broker in sent[0][1].live_brokers] == [2]
    # The replicas first, from what was stored, then the election.
    leaders = [partitions_of(r)[T0].leader for _, r in sent if isinstance(r, LeaderAndIsrRequest)]
    assert leaders[-1] == 2


def test_CTRL_16_all_brokers_get_the_metadata_before_anything_else_also_one_that_stops(world):
    """Broker 3 has asked the controller before this one for its shutdown, and runs still."""
    world.start(1, 2, 3)
    world.create_topic("t", [[1, 2, 3], [2, 3, 1]])
    epoch = world.active.context.live_brokers[3].epoch
    world.active.controlled_shutdown(3, epoch, lambda error, remaining: None)
    world.settle()
    world.channels[2].take()
    world.kill(1)
    sent = world.requests.take()
    for broker_id in (2, 3):
        first = next(request for broker, request in sent if broker == broker_id)
        assert isinstance(first, UpdateMetadataRequest), f"broker {broker_id}"
        assert [broker.id for broker in first.live_brokers] == [2, 3]
        assert partitions_of(first).keys() == {T0, TopicPartition("t", 1)}


def test_CTRL_19_preferred_leaders_are_restored_by_a_task_that_starts_with_the_term(world):
    settings = ControllerSettings(rebalance_interval_ms=300_000)
    world.start(1, settings=settings)
    world.start(2, settings=settings)
    world.create_topic("t", [[2, 1]])
    world.kill(2)
    world.start(2, settings=settings)
    world.set_isr("t", 0, [1, 2])
    assert world.state("t").leader == 1
    for _ in range(60):
        world.time.sleep(5_000)
        world.scheduler.tick()
        world.settle()
    assert world.state("t").leader == 2
