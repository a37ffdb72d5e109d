"""Partition.state is one value: no answer mixes two of them."""

import threading

import pytest

from kcore import errors
from kcore.common.time import MockTime
from kcore.log.log_offset_metadata import FetchIsolation, LogOffsetMetadata, TimestampAndOffset
from kcore.replica.partition import Partition
from tests.batches import batch

from .conftest import TP, update


class Log:
    """A log of 5 records, all replicated; the n-th use of it calls change() first, as another thread could."""

    def __init__(self, change_at=-1):
        self.uses = 0
        self.change_at = change_at
        self.change = lambda: None

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self.uses += 1
        if self.uses == self.change_at:
            changer = threading.Thread(target=self.change)
            changer.start()
            changer.join(60)
            assert not changer.is_alive()
        return getattr(Values, name)


class Values:
    class config:
        min_insync_replicas = 1

    log_end_offset = high_watermark = last_stable_offset = 5
    log_start_offset = 0
    log_end_offset_metadata = LogOffsetMetadata(5)

    @staticmethod
    def maybe_assign_epoch_start_offset(epoch, start):
        pass

    @staticmethod
    def maybe_increment_high_watermark_to_log_end():
        return False

    @staticmethod
    def fetch_offset_by_timestamp(timestamp):
        return TimestampAndOffset(timestamp, 3, 4)

    @staticmethod
    def end_offset_for_epoch(epoch):
        return (epoch, 5)

    @staticmethod
    def read(*args):
        return "records"


QUESTIONS = {
    "read": lambda p: p.read_records(0, 1, FetchIsolation.HIGH_WATERMARK, True, 4),
    "latest offset": lambda p: p.fetch_offset_for_timestamp(-1, FetchIsolation.HIGH_WATERMARK, 4),
    "offset by time": lambda p: p.fetch_offset_for_timestamp(1000, FetchIsolation.HIGH_WATERMARK, 4),
    "epoch end": lambda p: p.last_offset_for_leader_epoch(4, 4),
}
CHANGES = {
    "resign": lambda p: p.resign(),
    "follow": lambda p: p.make_follower(update(leader=1, epoch=5), 1),
    "lead on": lambda p: p.make_leader(update(epoch=5, isr=()), 1),
}


def answer(question, change, change_at):
    log = Log()
    partition = Partition(TP, log, 0, MockTime())
    partition.make_leader(update(epoch=4), 1)
    log.uses, log.change_at, log.change = 0, change_at, lambda: change(partition)
    return question(partition), log.uses


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_an_answer_is_that_of_the_state_before_a_change_wherever_the_change_comes(question, change):
    undisturbed, uses = answer(question, change, -1)
    for at in range(1, uses + 1):
        assert answer(question, change, at)[0] == undisturbed


def check_acks(partition):
    return partition.check_enough_replicas_reach_offset(5, 4)


def move_away_and_back(partition):
    CHANGES["follow"](partition)
    partition.make_leader(update(epoch=6), 1)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (CHANGES["resign"], errors.NotLeaderOrFollower),
        (move_away_and_back, errors.NotLeaderOrFollower),
        (CHANGES["lead on"], errors.NotEnoughReplicasAfterAppend),
    ],
)
def test_PART_18_a_produce_is_not_acknowledged_by_a_high_watermark_of_after_the_state(change, error):
    """A high watermark that is read after the change may have passed the offset because of it: with another record
    there, or with an ISR below the minimum."""
    with pytest.raises(error):
        answer(check_acks, change, 1)


def test_PART_18_a_high_watermark_that_rises_after_the_state_was_read_acknowledges_nothing():
    class Rising(Log):
        high_watermark = property(lambda self: next(self.values))
        values = iter([4, 5])

    partition = Partition(TP, Rising(), 0, MockTime())
    partition.make_leader(update(epoch=4), 1)
    assert not check_acks(partition)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_PART_18_the_answer_to_a_produce_is_that_of_one_state(change):
    """A produce that had passed the check for leadership was answered NOT_ENOUGH_REPLICAS_AFTER_APPEND once
    resign() had emptied the ISR."""
    is_acknowledged, uses = answer(check_acks, change, 2)
    assert is_acknowledged and uses >= 2


@pytest.mark.parametrize("leader_epoch", [3, 5])
def test_PART_18_a_produce_is_acknowledged_by_the_leadership_of_its_append_alone(leader_epoch):
    """Its epoch is higher than that of the partition if the topic was deleted and made again meanwhile."""
    with pytest.raises(errors.NotLeaderOrFollower):
        answer(lambda partition: partition.check_enough_replicas_reach_offset(5, leader_epoch), CHANGES["resign"], -1)


@pytest.mark.parametrize("change", [CHANGES["resign"], CHANGES["follow"]])
def test_PURG_10_a_request_after_the_change_is_refused(leader, change):
    partition = leader.replica_manager.get_partition(TP)
    partition.append_records_to_leader(batch(), -1)
    change(partition)
    for ask in (
        lambda: partition.check_enough_replicas_reach_offset(1),
        lambda: partition.append_records_to_leader(batch(), 1),
        lambda: partition.read_records(0, 1, FetchIsolation.LOG_END, True),
        lambda: partition.fetch_offset_for_timestamp(-1, FetchIsolation.LOG_END),
        lambda: partition.delete_records_on_leader(0),
    ):
        with pytest.raises(errors.NotLeaderOrFollower):
            ask()


# -- what a change keeps and what it discards


def test_PART_01_a_leader_has_the_assigned_followers_and_its_leader_epoch(node):
    partition = node.lead(epoch=3, isr=(0, 1), replicas=(0, 1, 2))
    state = partition.state
    assert (state.leader_epoch, state.controller_epoch, state.epoch_start_offset) == (3, 1, 0)
    assert (state.isr.committed, set(state.replicas)) == ({0, 1}, {1, 2})
    partition.make_leader(update(epoch=4, isr=(0, 2), replicas=(0, 2, 3), partition_epoch=9), 7)
    state = partition.state
    assert (state.leader_epoch, state.controller_epoch, state.partition_epoch) == (4, 7, 9)
    assert (state.isr.committed, set(state.replicas)) == ({0, 2}, {2, 3})


def test_PART_03_PART_04_a_new_epoch_begins_with_new_replicas_and_a_new_isr_alone_does_not(node):
    partition = node.lead(epoch=3, isr=(0, 1), replicas=(0, 1, 2))
    now = node.time.milliseconds()
    first = partition.state.replicas
    assert [first[i].state.last_caught_up_time_ms for i in (1, 2)] == [now, 0]
    first[1].state = first[1].state.after_fetch(LogOffsetMetadata(0), 0, now, 0)
    partition.make_leader(update(epoch=3, isr=(0, 1, 2), replicas=(0, 1, 2), partition_epoch=1), 1)
    assert partition.state.replicas[1] is first[1]
    partition.make_leader(update(epoch=4, isr=(0, 1), replicas=(0, 1, 2), partition_epoch=2), 1)
    second = partition.state.replicas
    assert second[1] is not first[1]
    assert second[1].state.log_end_offset == 0  # led before: what it fetched still holds
    partition.make_follower(update(leader=1, epoch=5, partition_epoch=3), 1)
    partition.make_leader(update(epoch=6, isr=(0, 1), replicas=(0, 1, 2), partition_epoch=4), 1)
    assert partition.state.replicas[1].state.log_end_offset == -1


def test_PART_05_an_isr_of_one_moves_the_high_watermark_to_the_log_end_and_a_larger_one_does_not(node):
    partition = node.lead(epoch=0, isr=(0, 1), replicas=(0, 1))
    info, advanced = partition.append_records_to_leader(batch(b"a", b"b"), -1)
    assert (info.last_offset, advanced, partition.log.high_watermark) == (1, False, 0)
    partition.make_leader(update(epoch=1, isr=(0,), replicas=(0, 1), partition_epoch=1), 1)
    assert partition.log.high_watermark == 2


def test_PART_07_a_follower_has_no_isr_and_the_same_leader_and_epoch_again_are_no_change(leader):
    partition = leader.replica_manager.get_partition(TP)
    assert partition.make_follower(update(leader=1, epoch=5), 1) is True
    assert (partition.leader_id, partition.leader_epoch, partition.isr) == (1, 5, frozenset())
    assert partition.make_follower(update(leader=1, epoch=5), 1) is False
    assert partition.make_follower(update(leader=2, epoch=5), 1) is True
    assert partition.make_follower(update(leader=2, epoch=6), 1) is True


def test_an_update_with_an_older_partition_epoch_changes_nothing(leader):
    partition = leader.replica_manager.get_partition(TP)
    partition.make_leader(update(epoch=3, partition_epoch=8), 1)
    state = partition.state
    assert partition.make_leader(update(epoch=4, partition_epoch=7), 1) is False
    assert partition.make_follower(update(leader=1, epoch=4, partition_epoch=7), 1) is False
    assert partition.state is state


def test_RM_16_a_leader_epoch_that_cannot_be_written_leaves_the_state_as_it_was(leader, monkeypatch):
    partition = leader.replica_manager.get_partition(TP)
    state = partition.state
    partition.log.mark_offline(OSError("broken"))
    with pytest.raises(errors.KafkaStorageError):
        partition.make_leader(update(epoch=4), 1)
    assert partition.state is state
