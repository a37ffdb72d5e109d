"""DelayedProduce on its own: with an ISR of one nothing ever waits, so the high watermark is moved by hand."""

import threading
from types import SimpleNamespace

import pytest

from kcore import errors
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_offset_metadata import LogOffsetMetadata
from kcore.purgatory.delayed_operation import DelayedOperationPurgatory
from kcore.purgatory.timer import Timer
from kcore.replica.delayed.delayed_produce import DelayedProduce, ProducePartitionStatus
from kcore.replica.partition import Partition
from kcore.replica.replica_meters import ReplicaMeters
from tests.batches import batch

from ..conftest import TP, update

A, B, FAILED = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 2)


class Log(SimpleNamespace):
    """What Partition uses of a log; its high watermark moves only by hand."""

    def __init__(self):
        super().__init__(
            high_watermark=0,
            log_end_offset=0,
            log_end_offset_metadata=LogOffsetMetadata(0),
            config=SimpleNamespace(min_insync_replicas=2),
            maybe_assign_epoch_start_offset=lambda epoch, start: None,
            maybe_increment_high_watermark=lambda new: None,
            maybe_increment_high_watermark_to_log_end=lambda: False,
        )


class Parked:
    def __init__(self):
        self.time = MockTime()
        self.timer = Timer(self.time)
        self.purgatory = DelayedOperationPurgatory("Produce", self.timer)
        self.partitions = {}
        self.meters = ReplicaMeters()
        for tp in (A, B):
            self.partitions[tp] = Partition(tp, Log(), 0, self.time)
            self.lead(tp, 0, (0, 1))
        self.answers = []
        statuses = {
            A: ProducePartitionStatus(None, 0, required_offset=5),
            B: ProducePartitionStatus(None, 0, required_offset=7),
            FAILED: ProducePartitionStatus(errors.CorruptMessage("bad")),
        }
        self.purgatory.try_complete_else_watch(
            DelayedProduce(1000, statuses, [A, B], self, self.meters, self.answers.append), [A, B]
        )

    def lead(self, tp, epoch, isr):
        self.partitions[tp].make_leader(update(tp, 0, epoch, isr), 1)

    def get_or_exception(self, tp):
        if tp not in self.partitions:
            raise errors.UnknownTopicOrPartition(str(tp))
        return self.partitions[tp]

    def high_watermark(self, tp, offset):
        self.partitions[tp].log.high_watermark = offset
        self.purgatory.check_and_complete(tp)

    def errors(self):
        (statuses,) = self.answers
        return [type(statuses[tp].error) for tp in (A, B, FAILED)]


@pytest.fixture
def parked():
    return Parked()


def test_PURG_08_APP_12_it_answers_when_the_high_watermark_has_passed_every_pending_partition(parked):
    parked.high_watermark(A, 5)
    parked.high_watermark(B, 6)
    assert parked.answers == []
    parked.high_watermark(B, 7)
    assert parked.errors() == [type(None), type(None), errors.CorruptMessage]
    assert parked.purgatory.delayed == 0


def test_PURG_07_PURG_09_at_the_deadline_pending_partitions_time_out_and_the_others_keep_their_result(parked):
    parked.high_watermark(A, 5)
    parked.time.sleep(1000)
    parked.timer.advance()
    assert parked.errors() == [type(None), errors.RequestTimedOut, errors.CorruptMessage]


def test_PURG_09_what_times_out_is_counted_for_each_pending_partition(parked):
    parked.high_watermark(A, 5)
    parked.time.sleep(1000)
    parked.timer.advance()
    assert {tp: meter.count for tp, meter in parked.meters.produce_expirations.items()} == {B: 1}


def test_PURG_09_a_produce_that_is_answered_in_time_is_no_expiration(parked):
    parked.high_watermark(A, 5)
    parked.high_watermark(B, 7)
    parked.time.sleep(1000)
    parked.timer.advance()
    assert parked.meters.produce_expirations == {}


def test_PURG_09_what_was_not_replicated_in_time_stays_in_the_log(node):
    partition = node.lead(isr=(0, 1))
    produce = node.produce(batch(b"late"), timeout_ms=500)
    node.advance(500)
    assert isinstance(produce.result[TP].error, errors.RequestTimedOut)
    log = partition.log
    assert (log.high_watermark, [bytes(record.value) for record in log.records()]) == (0, [b"late"])
    node.become(update(epoch=1, isr=(0,), replicas=(0, 1)))
    assert log.high_watermark == 1, "its ISR shrinks: the record is committed"


def test_PART_18_an_isr_that_shrank_below_the_minimum_is_an_error_after_the_append(parked):
    parked.lead(A, 1, (0,))
    parked.high_watermark(A, 5)
    parked.high_watermark(B, 7)
    assert parked.errors() == [errors.NotEnoughReplicasAfterAppend, type(None), errors.CorruptMessage]


def test_PURG_10_lost_leadership_and_lost_partitions_end_the_wait(parked):
    parked.partitions[A].resign()
    del parked.partitions[B]
    parked.purgatory.check_and_complete(A)
    assert parked.errors() == [errors.NotLeaderOrFollower, errors.UnknownTopicOrPartition, errors.CorruptMessage]


def test_PURG_01_PURG_08_a_thread_that_tries_does_not_change_what_another_has_answered(parked):
    """An error that it came upon after the other's answer was in the answer, or not, as it happened."""
    (operation,) = parked.purgatory.watchers[A]
    parked.partitions[A].log.high_watermark = 5
    partition = parked.partitions[B]
    others, answered = [], []
    parked.answers = SimpleNamespace(append=lambda statuses: None)
    operation._callback = lambda statuses: answered.append({tp: status.error for tp, status in statuses.items()})

    def lose_leadership_meanwhile(offset, leader_epoch):
        del partition.check_enough_replicas_reach_offset
        partition.log.high_watermark = 7
        other = threading.Thread(target=operation.try_complete)
        other.start()
        other.join(0.2)  # it waits for this thread now, or would have answered
        others.append(other)
        raise errors.NotLeaderOrFollower("lost")

    partition.check_enough_replicas_reach_offset = lose_leadership_meanwhile
    operation.try_complete()
    others[0].join(60)
    assert answered == [{tp: status.error for tp, status in operation._statuses.items()}]
