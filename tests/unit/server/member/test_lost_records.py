"""A member whose log has lost records: it leaves the ISR before it registers, and becomes whole as a follower."""

import os
import shutil
import threading

import pytest

import kcore
from kcore.common.time import MockTime
from kcore.log.checkpoints import OffsetCheckpointFile
from kcore.log.lost_records import LostRecords
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore
from kcore.metadata.znodes import PartitionStateZNode
from kcore.server import broker_parts
from kcore.server.member import registration
from kcore.server.member.lost_records import IsrDeparture
from tests.unit.server.controller_client import ControllerClient
from tests.waiting import wait_until

from .conftest import T0, TOPIC_ID, run_now


def lose_the_last_record(tmp_path, tree):
    """A member's log of three records, of which the last is lost after a clean stop."""
    store = MemoryStore(tree, executor=run_now)
    with kcore.Broker(tmp_path, store=store) as broker, ControllerClient(broker) as controller:
        controller.leader_and_isr({"t": [controller.state()]}, 7, {"t": TOPIC_ID})
        controller.update_metadata({"t": {0: {}}}, topic_ids={"t": TOPIC_ID})
        for _ in range(3):
            broker.produce("t", "x")
        size = broker.log("t").size
    store.close()
    os.truncate(tmp_path / "t-0" / f"{0:020d}.log", size * 2 // 3)


def put_state(store, leader, isr, leader_epoch=4):
    state = PartitionStateZNode(leader, leader_epoch, isr, 3)
    store.create_or_set(znodes.partition_state(*T0), state.encode())


def stored(store):
    return PartitionStateZNode.decode(store.get(znodes.partition_state(*T0)).data)


class Registrations(MemoryStore):
    """Notes the ISR at the moment at which broker 1 registers."""

    def multi(self, operations):
        if any(getattr(operation, "path", "") == znodes.broker_id(1) for operation in operations):
            self.isrs = [*getattr(self, "isrs", []), stored(self).isr]
        return super().multi(operations)


def test_a_member_is_not_in_the_isr_any_more_when_it_registers(tmp_path, tree):
    lose_the_last_record(tmp_path, tree)
    store = Registrations(tree, executor=run_now)
    put_state(store, 1, [1, 2, 3])
    with kcore.Broker(tmp_path, store=store) as broker:
        assert store.isrs == [[2, 3]]
        assert stored(store) == PartitionStateZNode(-1, 4, [2, 3], 3)
        assert broker.replica_manager.log_manager.get_log(T0).lost_records == LostRecords(2)
    assert (tmp_path / "t-0" / "lost-records").exists()


def lose_the_log(tmp_path, tree):
    """A member's log of a record is removed after a clean stop."""
    store = MemoryStore(tree, executor=run_now)
    with kcore.Broker(tmp_path, store=store) as broker, ControllerClient(broker) as controller:
        controller.leader_and_isr({"t": [controller.state()]}, 7, {"t": TOPIC_ID})
        controller.update_metadata({"t": {0: {}}}, topic_ids={"t": TOPIC_ID})
        broker.produce("t", "x")
    store.close()
    shutil.rmtree(tmp_path / "t-0")


def put_topic(store, replicas):
    store.create_or_set(znodes.topic("t"), znodes.TopicZNode({0: replicas}, TOPIC_ID).encode())


def test_a_member_whose_log_is_gone_leaves_the_isr_and_makes_the_log_anew_with_the_mark(tmp_path, tree):
    lose_the_log(tmp_path, tree)
    store = Registrations(tree, executor=run_now)
    put_topic(store, [1, 2, 3])
    put_state(store, 1, [1, 2, 3])
    with kcore.Broker(tmp_path, store=store) as broker, ControllerClient(broker) as controller:
        assert store.isrs == [[2, 3]]
        state = controller.state(leader=2, isr=[2, 3], replicas=[1, 2, 3])
        controller.leader_and_isr({"t": [state]}, 7, {"t": TOPIC_ID})
        assert broker.replica_manager.log_manager.get_log(T0).lost_records == LostRecords(0)
    assert (tmp_path / "t-0" / "lost-records").exists()


def test_a_member_that_has_no_log_leaves_the_isr_though_no_checkpoint_says_that_there_was_one(tmp_path, tree):
    store = Registrations(tree, executor=run_now)
    put_topic(store, [1, 2, 3])
    put_state(store, 1, [1, 2, 3])
    with kcore.Broker(tmp_path, store=store):
        assert store.isrs == [[2, 3]]


@pytest.mark.parametrize("what", ["a directory that has failed", "a log that cannot be loaded"])
def test_a_log_that_may_be_there_is_not_missed(tmp_path, tree, what):
    store = Registrations(tree, executor=run_now)
    put_topic(store, [1, 2, 3])
    put_state(store, 1, [1, 2, 3])
    settings = {"log.dirs": str(tmp_path / "a")}
    if what == "a directory that has failed":
        (tmp_path / "b").write_text("no directory")
        settings["log.dirs"] += f",{tmp_path / 'b'}"
    else:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "t-0").symlink_to(tmp_path / "a disk that is not mounted")
    with kcore.Broker(store=store, **settings):
        assert store.isrs == [[1, 2, 3]]


def test_the_last_member_of_an_isr_leads_without_its_log_and_says_so(tmp_path, tree, caplog):
    lose_the_log(tmp_path, tree)
    store = Registrations(tree, executor=run_now)
    put_topic(store, [1, 2])
    put_state(store, 1, [1])
    with kcore.Broker(tmp_path, store=store) as broker, ControllerClient(broker) as controller:
        assert store.isrs == [[1]]
        assert "lacks records of 1 partition, or may, and no other broker is in the ISR: it may lead" in caplog.text
        controller.leader_and_isr({"t": [controller.state(replicas=[1, 2], leader_epoch=9)]}, 7, {"t": TOPIC_ID})
        assert broker.replica_manager.get_partition(T0).is_leader


@pytest.mark.parametrize("replicas", [None, [2, 3]])
def test_a_log_of_a_topic_that_is_gone_or_on_other_brokers_is_not_missed(tmp_path, tree, replicas):
    lose_the_log(tmp_path, tree)
    store = MemoryStore(tree, executor=run_now)
    if replicas is not None:
        put_topic(store, replicas)
    with kcore.Broker(tmp_path, store=store) as broker:
        assert broker.replica_manager.log_manager.gone_logs() == []
    assert T0 not in OffsetCheckpointFile(str(tmp_path / "replication-offset-checkpoint")).read()


def test_a_member_with_a_live_leader_registers_once_the_controller_has_taken_it_out(tmp_path, tree, monkeypatch):
    lose_the_last_record(tmp_path, tree)
    other = MemoryStore(tree, executor=run_now)
    other.ensure_path(znodes.BROKER_IDS)
    other.create(znodes.broker_id(2), b"{}", ephemeral=True)
    put_state(other, 2, [2, 1])
    store = Registrations(tree, executor=run_now)
    polled = threading.Event()
    monkeypatch.setattr(registration, "_POLL_MS", 1)
    get_many = store.get_many
    monkeypatch.setattr(store, "get_many", lambda *args: polled.set() or get_many(*args))

    def controller():
        assert polled.wait(60)
        put_state(other, 2, [2], leader_epoch=5)

    thread = threading.Thread(target=controller)
    thread.start()
    with kcore.Broker(tmp_path, store=store):
        assert store.isrs == [[2]] and stored(store) == PartitionStateZNode(2, 5, [2], 3)
    thread.join()


def test_a_member_registers_in_a_new_session_only_after_it_has_left_the_isr(tmp_path, tree):
    lose_the_last_record(tmp_path, tree)
    store = Registrations(tree, executor=run_now)
    put_state(store, 1, [1])  # the only one: it may lead
    with kcore.Broker(tmp_path, store=store):
        assert store.isrs == [[1]]
        put_state(store, 1, [1, 2])
        tree.expire(store.session_id)
        wait_until(lambda: len(store.isrs) == 2)
        assert store.isrs == [[1], [2]]


@pytest.mark.parametrize(("next_boot", "isr"), [("a", [1, 2]), ("b", [2])])
def test_a_member_that_was_killed_with_its_machine_leaves_the_isr_too(tmp_path, tree, monkeypatch, next_boot, isr):
    monkeypatch.setattr(broker_parts, "boot_id", lambda: "a")
    broker = kcore.Broker(tmp_path, store=MemoryStore(tree, executor=run_now)).start()
    with ControllerClient(broker) as controller:
        controller.leader_and_isr({"t": [controller.state()]}, 7, {"t": TOPIC_ID})
        controller.update_metadata({"t": {0: {}}}, topic_ids={"t": TOPIC_ID})
        broker.produce("t", "x")
    session_id = broker.store.session_id
    broker.kill()
    tree.expire(session_id)
    monkeypatch.setattr(broker_parts, "boot_id", lambda: next_boot)
    store = Registrations(tree, executor=run_now)
    put_state(store, 1, [1, 2])
    with kcore.Broker(tmp_path, store=store):
        assert store.isrs == [isr]
        assert (tmp_path / ".kcore_boot_id").read_text() == f"{next_boot}\n"


def test_a_member_that_cannot_leave_the_isr_has_lost_its_records_at_its_next_start_too(tmp_path, tree, monkeypatch):
    monkeypatch.setattr(broker_parts, "boot_id", lambda: "a")
    with kcore.Broker(tmp_path, store=MemoryStore(tree, executor=run_now)):
        pass
    (tmp_path / ".kafka_cleanshutdown").unlink()
    monkeypatch.setattr(broker_parts, "boot_id", lambda: "b")
    monkeypatch.setattr(IsrDeparture, "leave", lambda *args, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        kcore.Broker(tmp_path, store=MemoryStore(tree, executor=run_now)).start()
    assert (tmp_path / ".kcore_boot_id").read_text() == "a\n"


def test_each_registration_waits_for_a_controller_anew(broker, monkeypatch):
    member, answers, waits = broker.cluster_member.registration, [[T0], [T0], [], [T0]], []
    monkeypatch.setattr(member, "_time", MockTime())
    monkeypatch.setattr(member, "_controller_wait_ms", 1000)

    def leave(logs, *, may_wait):
        waits.append(may_wait)
        return answers.pop(0)

    monkeypatch.setattr(member._isr_departure, "leave", leave)
    for passed_ms in (600, 600, 600):
        member._leave_isrs()
        member._time.sleep(passed_ms)
    member._leave_isrs()
    assert waits == [True, True, False, True]


def test_a_partition_that_was_given_up_has_no_coordinator_here_and_the_controller_hears_of_it(broker, monkeypatch):
    calls = []
    monkeypatch.setattr(broker.running.services.coordinators, "partitions_lost", lambda lost: calls.append(list(lost)))
    monkeypatch.setattr(broker.cluster_member, "log_dir_failed", lambda: calls.append("notified"))
    broker.replica_manager.damage_checks.on_given_up(T0)
    assert calls == [[T0], "notified"]
