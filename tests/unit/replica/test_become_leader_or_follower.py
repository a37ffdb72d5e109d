"""What a controller's updates do to the partitions of a broker (RM)."""

import errno
import os
import threading
from uuid import UUID

import pytest

from kcore import errors
from kcore.common import file
from kcore.common.topic_partition import TopicPartition
from kcore.replica.partition import OfflinePartition, Partition
from kcore.replica.partition_state import FollowerState, LeaderState, StopReplica
from tests.batches import batch

from .conftest import TP, Answer, Node, update

OTHER = TopicPartition("t", 1)
THIRD = TopicPartition("t", 2)


def state(node, topic_partition=TP):
    return node.replica_manager.get_partition(topic_partition)._state


@pytest.fixture
def full_disk(node, monkeypatch):
    """A set of partitions whose logs cannot be made."""
    get_or_create_log = node.log_manager.get_or_create_log
    refused = set()

    def get_or_refuse(topic_partition, **arguments):
        if topic_partition in refused:
            raise errors.KafkaStorageError(f"{topic_partition}: {OSError(errno.ENOSPC, 'no space')}")
        return get_or_create_log(topic_partition, **arguments)

    monkeypatch.setattr(node.log_manager, "get_or_create_log", get_or_refuse)
    return refused


# -- the lock of state changes


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node.become(update(OTHER)),
        lambda node: node.stop(TP),
        lambda node: node.replica_manager.handle_log_dir_failure("elsewhere"),
    ],
)
def test_RM_01_one_lock_serialises_all_changes_of_leadership(node, monkeypatch, change):
    lock, events = threading.RLock(), []
    second_waits, first_is_inside = threading.Event(), threading.Event()

    class RecordingLock:
        def __enter__(self):
            if first_is_inside.is_set():
                second_waits.set()
            lock.acquire()
            events.append(("enter", threading.get_ident()))

        def __exit__(self, *exc_info):
            events.append(("leave", threading.get_ident()))
            lock.release()

    get_or_create_log = node.log_manager.get_or_create_log

    def slow(topic_partition, **arguments):
        if topic_partition == THIRD:
            first_is_inside.set()
            assert second_waits.wait(60), "the other change did not ask for the lock"
        return get_or_create_log(topic_partition, **arguments)

    node.lead()
    node.replica_manager.state_change_lock = RecordingLock()
    monkeypatch.setattr(node.log_manager, "get_or_create_log", slow)
    second = threading.Thread(target=lambda: first_is_inside.wait(60) and change(node))
    second.start()
    assert node.become(update(THIRD)) == {THIRD: None}
    second.join(60)
    first, other = threading.get_ident(), second.ident
    assert events == [("enter", first), ("leave", first), ("enter", other), ("leave", other)]


# -- epochs


def test_RM_02_a_controller_that_was_replaced_changes_nothing(node):
    node.become(update(epoch=3), controller_epoch=5)
    before = state(node)
    with pytest.raises(errors.StaleControllerEpoch):
        node.become(update(epoch=4), update(OTHER), controller_epoch=4)
    with pytest.raises(errors.StaleControllerEpoch):
        node.stop(TP, controller_epoch=4)
    assert state(node) is before
    assert node.replica_manager.get_partition(OTHER) is None


def test_RM_03_CTRL_24_the_controllers_epoch_is_kept_also_where_no_partition_changed(node):
    node.become(controller_epoch=7)
    with pytest.raises(errors.StaleControllerEpoch):
        node.become(update(), controller_epoch=6)
    node.become(update(), controller_epoch=7)
    assert state(node).controller_epoch == 7


@pytest.mark.parametrize("leader", [0, 1])
def test_RM_06_RM_08_only_a_higher_leader_epoch_is_accepted_and_the_other_partitions_go_on(node, leader):
    node.become(update(epoch=3), update(OTHER, epoch=3))
    before = state(node)
    for epoch in (2, 3):
        results = node.become(update(leader=leader, epoch=epoch, isr=(0, 1)), update(OTHER, epoch=epoch + 2))
        assert results == {TP: errors.StaleControllerEpoch, OTHER: None}
        assert state(node) is before
    assert node.become(update(leader=leader, epoch=4, isr=(0, 1))) == {TP: None}
    assert state(node).leader_epoch == 4


def test_RM_07_a_broker_that_is_no_replica_refuses_and_makes_no_log(node, tmp_path):
    assert node.become(update(isr=(1, 2), leader=1)) == {TP: errors.UnknownTopicOrPartition}
    assert node.replica_manager.get_partition(TP) is None
    assert not (tmp_path / "t-0").exists()
    node.lead(epoch=3)
    before = state(node)
    assert node.become(update(isr=(1, 2), leader=1, epoch=4)) == {TP: errors.UnknownTopicOrPartition}
    assert state(node) is before


@pytest.mark.parametrize(
    "wrong",
    [{"isr": (), "replicas": (0, 1)}, {"leader": 1, "isr": (1, 0), "replicas": (0, 2)}, {"leader": 5, "isr": (0,)}],
)
def test_an_update_with_an_empty_isr_or_a_leader_that_is_no_replica_changes_nothing(node, tmp_path, wrong):
    """With the first, a high watermark would wait for nobody."""
    assert node.become(update(**wrong), update(OTHER)) == {TP: errors.InvalidRequest, OTHER: None}
    assert node.replica_manager.get_partition(TP) is None and not (tmp_path / "t-0").exists()
    node.lead(epoch=3)
    before = state(node)
    assert node.become(update(**{**wrong, "epoch": 4})) == {TP: errors.InvalidRequest}
    assert state(node) is before
    assert node.become(update(leader=-1, epoch=4, isr=(0, 7), replicas=(0, 1))) == {TP: None}


# -- leaders and followers


def test_RM_04_RM_09_this_broker_leads_what_names_it_and_follows_the_rest(node, tmp_path):
    results = node.become(update(isr=(0, 1)), update(OTHER, leader=1, epoch=5, isr=(0, 1)), controller_epoch=2)
    assert results == {TP: None, OTHER: None}
    assert isinstance(state(node), LeaderState)
    assert state(node, OTHER) == FollowerState(leader_id=1, leader_epoch=5, controller_epoch=2, partition_epoch=0)
    assert (tmp_path / "t-1").is_dir()


def test_PART_08_a_follower_refuses_producers_and_consumers(node):
    node.become(update(leader=1, isr=(0, 1)))
    assert isinstance(node.produce(batch()).result[TP].error, errors.NotLeaderOrFollower)
    ((_, result),) = node.fetch(0).result
    assert isinstance(result.error, errors.NotLeaderOrFollower)
    answer = Answer()
    node.replica_manager.delete_records({TP: 0}, answer)
    assert isinstance(answer.result[TP].error, errors.NotLeaderOrFollower)
    assert node.replica_manager.get_partition(TP).local_log().log_end_offset == 0


def test_RM_19_PURG_17_requests_that_wait_for_a_partition_are_answered_when_it_becomes_a_follower(node):
    node.lead(isr=(0, 1))
    produce, fetch = node.produce(batch()), node.fetch(0, max_wait_ms=500)
    assert produce.waits and fetch.waits
    node.become(update(leader=1, epoch=1, isr=(0, 1)))
    assert isinstance(produce.result[TP].error, errors.NotLeaderOrFollower)
    ((_, result),) = fetch.result
    assert isinstance(result.error, errors.NotLeaderOrFollower)


def test_PART_05_requests_that_wait_for_the_high_watermark_are_answered_when_only_the_leader_is_in_the_isr(node):
    node.lead(isr=(0, 1))
    produce = node.produce(batch())
    assert produce.waits
    node.become(update(epoch=1, isr=(0,), replicas=(0, 1)))
    assert produce.result[TP].error is None


def test_a_leader_that_followed_takes_appends_with_its_new_epoch(node):
    node.become(update(leader=1, isr=(0, 1)))
    partition = node.lead(epoch=4)
    node.produce(batch())
    assert partition.local_log().end_offset_for_epoch(4) == (4, 1)


def test_RM_10_the_checkpoint_has_the_partitions_that_are_followed_too(node, tmp_path):
    node.become(update(leader=1, isr=(0, 1)), update(OTHER))
    node.advance(5000)
    lines = (tmp_path / "replication-offset-checkpoint").read_text().splitlines()
    assert sorted(lines[2:]) == ["t 0 0", "t 1 0"]


# -- storage errors


def test_RM_11_RM_16_a_log_that_cannot_be_had_takes_its_partition_offline_and_the_others_go_on(node, full_disk):
    full_disk.add(OTHER)
    assert node.become(update(), update(OTHER), update(THIRD)) == {
        TP: None,
        OTHER: errors.KafkaStorageError,
        THIRD: None,
    }
    assert isinstance(node.replica_manager.get_partition(OTHER), OfflinePartition)
    assert [p.topic_partition for p in node.replica_manager.partitions()] == [TP, THIRD]


def test_RM_31_an_offline_partition_answers_kafka_storage_error(node, full_disk):
    full_disk.add(TP)
    node.become(update())
    with pytest.raises(errors.KafkaStorageError, match=r"t-0 is offline: t-0: .*no space"):
        node.replica_manager.get_partition_or_exception(TP)
    with pytest.raises(errors.KafkaStorageError):
        node.replica_manager.get_partition(TP).local_log()
    assert isinstance(node.produce(batch()).result[TP].error, errors.KafkaStorageError)
    ((_, result),) = node.fetch(0).result
    assert isinstance(result.error, errors.KafkaStorageError)


def test_the_next_update_opens_a_log_that_a_full_disk_had_refused(node, full_disk):
    full_disk.add(TP)
    assert node.become(update()) == {TP: errors.KafkaStorageError}
    assert node.become(update()) == {TP: errors.KafkaStorageError}
    full_disk.clear()
    assert node.become(update()) == {TP: None}
    assert node.produce(batch()).result[TP].error is None


def test_RM_16_a_topic_id_that_is_not_the_logs_is_that_partitions_error(node):
    first, second = UUID(int=1), UUID(int=2)
    node.become(update(topic_id=first))
    node.stop(TP)
    results = node.become(update(epoch=1, topic_id=second), update(OTHER, topic_id=second))
    assert results == {TP: errors.InconsistentTopicId, OTHER: None}
    assert isinstance(node.replica_manager.get_partition(TP), OfflinePartition)


def test_RM_16_another_error_ends_the_request_and_waiters_for_changed_partitions_are_answered(node, monkeypatch):
    node.lead(isr=(0, 1))
    produce = node.produce(batch())
    monkeypatch.setattr(Partition, "make_leader", lambda *args: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        node.become(update(leader=1, epoch=1, isr=(0, 1)), update(OTHER), update(THIRD))
    assert isinstance(produce.result[TP].error, errors.NotLeaderOrFollower)
    assert node.replica_manager.get_partition(THIRD) is None


@pytest.fixture
def two_dirs(tmp_path):
    node = Node([tmp_path / "a", tmp_path / "b"])
    node.become(update(), update(OTHER))
    yield node
    node.shutdown()


def test_RM_05_RM_29_a_failed_log_dir_takes_its_partitions_offline_for_good(two_dirs):
    node = two_dirs
    failed = node.replica_manager.get_partition(TP).local_log().parent_dir
    waiting = node.fetch(0, max_wait_ms=500)
    node.replica_manager.handle_log_dir_failure(failed)
    ((_, result),) = waiting.result
    assert isinstance(result.error, errors.KafkaStorageError)
    assert node.become(update(epoch=9), update(OTHER, epoch=9)) == {TP: errors.KafkaStorageError, OTHER: None}
    assert node.stop(TP, delete=True) == {TP: errors.KafkaStorageError}
    assert isinstance(node.replica_manager.get_partition(TP), OfflinePartition)
    assert node.produce({OTHER: batch()}).result[OTHER].error is None


def test_RM_29_a_failed_log_is_refused_before_its_directory_is_taken_offline(two_dirs):
    partition = two_dirs.replica_manager.get_partition(TP)
    partition.local_log().mark_offline(OSError(errno.EIO, "broken"))
    with pytest.raises(errors.KafkaStorageError):
        partition.local_log()


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS])
def test_RM_24_a_high_watermark_checkpoint_that_cannot_be_written_fails_its_directory_alone(two_dirs, error):
    node = two_dirs
    node.produce({TP: batch(), OTHER: batch(b"a", b"b")})
    lost, kept = (node.replica_manager.get_partition(tp).local_log().parent_dir for tp in (TP, OTHER))
    assert lost != kept
    file.fail_next(file.CHANGES, error, under=lost, times=-1)
    node.replica_manager.checkpoint_high_watermarks()
    channel = node.log_manager.log_dir_failure_channel
    assert (channel.failure(lost).errno, channel.failure(kept)) == (error, None)
    with open(os.path.join(kept, "replication-offset-checkpoint")) as checkpoint:
        assert checkpoint.read() == "0\n1\nt 1 2\n"
    node.log_manager.handle_log_dir_failure(lost)
    node.replica_manager.handle_log_dir_failure(lost)
    assert isinstance(node.produce({TP: batch()}).result[TP].error, errors.KafkaStorageError)
    assert node.produce({OTHER: batch()}).result[OTHER].error is None


# -- stop


def test_a_stop_of_an_older_leader_epoch_is_fenced_and_a_negative_epoch_is_not_compared(node):
    node.lead(epoch=3)
    stop = node.replica_manager.stop_replicas
    for epoch, error in ((2, errors.FencedLeaderEpoch), (-2, type(None))):
        (result,) = stop([StopReplica(TP, True, epoch)], 1).values()
        assert isinstance(result, error)
    assert node.replica_manager.get_partition(TP) is None
    assert node.stop(TP) == {TP: None}  # not hosted is no error
    node.lead(epoch=4)
    (result,) = stop([StopReplica(TP, False, 4)], 1).values()
    assert result is None


def test_a_stop_that_cannot_delete_is_that_partitions_error(node, monkeypatch):
    node.become(update(), update(OTHER))
    async_delete_logs = node.log_manager.async_delete_logs

    def fail_once(topic_partitions, **how):
        async_delete_logs([topic_partition for topic_partition in topic_partitions if topic_partition != TP])
        return {TP: errors.KafkaStorageError("broken")}

    monkeypatch.setattr(node.log_manager, "async_delete_logs", fail_once)
    assert node.stop(TP, OTHER, delete=True) == {TP: errors.KafkaStorageError, OTHER: None}


# -- the leadership callback


def test_RM_13_RM_15_API_03_the_callback_gets_what_is_led_and_followed_from_now_on_once_and_before_the_results(node):
    calls = []

    def note(leaders, followers):
        assert node.replica_manager.state_change_lock._is_owned()
        calls.append(([p.topic_partition for p in leaders], [p.topic_partition for p in followers]))

    def become(*updates):
        return node.replica_manager.become_leader_or_follower(updates, 1, note)

    become(update(TP), update(OTHER, leader=1, replicas=(0, 1)), update(THIRD, replicas=(1, 2)))
    assert calls == [([TP], [OTHER])]
    # A leader that leads on, with another epoch: nothing for the callback (RM-15).
    become(update(TP, epoch=1), update(OTHER, epoch=1, replicas=(0, 1)))
    assert calls[1:] == [([OTHER], [])]
    become()
    assert calls[2:] == [([], [])]


def test_RM_02_the_callback_is_not_called_for_a_request_of_an_old_controller(node):
    calls = []
    node.become(update(TP), controller_epoch=5)
    with pytest.raises(errors.StaleControllerEpoch):
        node.replica_manager.become_leader_or_follower([update(OTHER)], 4, lambda *partitions: calls.append(partitions))
    assert calls == []


def test_a_hosted_partition_refuses_another_topic_id_and_takes_its_first(node):
    node.become(update(TP, topic_id=UUID(int=7)), update(OTHER))
    assert node.become(update(TP, epoch=1, topic_id=UUID(int=8))) == {TP: errors.InconsistentTopicId}
    assert node.become(update(TP, epoch=1, topic_id=UUID(int=7))) == {TP: None}
    assert node.become(update(OTHER, epoch=1, topic_id=UUID(int=9))) == {OTHER: None}
    assert node.replica_manager.get_partition(OTHER).log.topic_id == UUID(int=9)
