"""ReplicaManager.append_records: its parameters, and when the answer waits for other replicas (APP)."""

import pytest

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.replica.delayed.delayed_produce import DelayedProduce
from tests.batches import batch

from .conftest import TP, Answer, update

OTHER = TopicPartition("t", 1)
FOLLOWED = TopicPartition("t", 2)
OFFSETS = TopicPartition("__consumer_offsets", 0)
UNKNOWN = TopicPartition("unknown", 0)


@pytest.fixture
def replicated(node):
    """Leads TP and OTHER with a follower in the ISR that never fetches; follows FOLLOWED."""
    node.become(
        update(TP, isr=(0, 1)), update(OTHER, isr=(0, 1)), update(FOLLOWED, leader=1, isr=(0, 1)), update(OFFSETS)
    )
    return node


def log_end(node, topic_partition):
    return node.replica_manager.get_partition(topic_partition).log.log_end_offset


def is_waiting(node):
    return node.replica_manager.delayed_produce_purgatory.delayed == 1


def test_APP_02_timeout_acks_internal_topics_and_origin_are_parameters_of_one_call(replicated):
    append = replicated.replica_manager.append_records
    waiting, refused, allowed = Answer(), Answer(), Answer()
    append(750, -1, False, AppendOrigin.CLIENT, {TP: batch()}, waiting)
    append(750, 1, False, AppendOrigin.CLIENT, {OFFSETS: batch()}, refused)
    append(750, 1, True, AppendOrigin.COORDINATOR, {OFFSETS: batch()}, allowed)
    assert isinstance(refused.result[OFFSETS].error, errors.InvalidTopicException)
    assert allowed.result[OFFSETS].error is None
    replicated.advance(749)
    assert waiting.waits
    replicated.advance(1)
    assert isinstance(waiting.result[TP].error, errors.RequestTimedOut)


def test_APP_02_the_origin_reaches_the_log(replicated, monkeypatch):
    log = replicated.replica_manager.get_partition(TP).log
    append_as_leader, origins = log.append_as_leader, []

    def spy(records, leader_epoch, origin):
        origins.append(origin)
        return append_as_leader(records, leader_epoch, origin)

    monkeypatch.setattr(type(log), "append_as_leader", lambda log, *args: spy(*args))
    replicated.produce(batch(), acks=1)
    replicated.produce(batch(), acks=1, origin=AppendOrigin.COORDINATOR)
    assert origins == [AppendOrigin.CLIENT, AppendOrigin.COORDINATOR]


@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_APP_05_every_partition_is_written_before_the_request_waits_or_is_answered(replicated, acks):
    written = []

    class LooksAtTheLogs(Answer):
        def __call__(self, result):
            written.extend(log_end(replicated, tp) for tp in (TP, OTHER))
            super().__call__(result)

    answer = LooksAtTheLogs()
    replicated.replica_manager.append_records(
        1000, acks, False, AppendOrigin.CLIENT, {TP: batch(), UNKNOWN: batch(), OTHER: batch(b"a", b"b")}, answer
    )
    assert (log_end(replicated, TP), log_end(replicated, OTHER)) == (1, 2)
    replicated.advance(1000)
    assert written == [1, 2]


@pytest.mark.parametrize(
    ("acks", "partitions", "waits"),
    [
        (-1, (TP,), True),
        (-1, (UNKNOWN, TP), True),
        (-1, (UNKNOWN, FOLLOWED), False),
        (1, (TP,), False),
        (0, (TP,), False),
    ],
)
def test_APP_08_a_request_waits_if_acks_is_all_and_a_partition_was_written(replicated, acks, partitions, waits):
    answer = replicated.produce({tp: batch() for tp in partitions}, acks=acks)
    assert (answer.waits, is_waiting(replicated)) == (waits, waits)


@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_APP_10_a_request_that_need_not_wait_is_answered_before_the_call_returns(leader, acks):
    result = leader.produce({TP: batch(b"a", b"b"), UNKNOWN: batch()}, acks=acks).result
    assert (result[TP].error, result[TP].base_offset) == (None, 0)
    assert isinstance(result[UNKNOWN].error, errors.UnknownTopicOrPartition)


@pytest.mark.parametrize("acks", [0, 1])
def test_APP_13_acks_0_and_1_never_wait_for_other_replicas(replicated, monkeypatch, acks):
    monkeypatch.setattr(DelayedProduce, "__init__", lambda *args: pytest.fail("a DelayedProduce was made"))
    partition = replicated.replica_manager.get_partition(TP)
    status = replicated.produce(batch(), acks=acks).result[TP]
    assert (status.error, status.base_offset) == (None, 0)
    assert partition.log.high_watermark == 0  # no other replica has it


def test_APP_16_records_go_to_partitions_that_this_broker_leads(replicated):
    answer = replicated.produce({FOLLOWED: batch(), UNKNOWN: batch(), TP: batch(b"a", b"b")}, acks=1)
    assert [type(status.error) for status in answer.result.values()] == [
        errors.NotLeaderOrFollower,
        errors.UnknownTopicOrPartition,
        type(None),
    ]
    assert [log_end(replicated, tp) for tp in (FOLLOWED, TP)] == [0, 2]


def test_records_that_were_truncated_before_the_wait_for_them_began_are_not_acknowledged(replicated, monkeypatch):
    """The partition leaves this broker and comes back after they were appended: what is committed at their offset then
    are other records."""
    purgatory = replicated.replica_manager.delayed_produce_purgatory
    watch, others = purgatory.watch, []

    def watch_after_the_moves(*args):
        monkeypatch.undo()
        replicated.become(update(TP, 1, epoch=1, isr=(1,), replicas=(0, 1)))
        replicated.replica_manager.get_partition(TP).log.truncate_to(0)
        replicated.become(update(TP, epoch=2, isr=(0,), replicas=(0, 1)))
        others.append(replicated.produce(batch(b"another")))
        watch(*args)

    monkeypatch.setattr(purgatory, "watch", watch_after_the_moves)
    truncated = replicated.produce(batch(b"truncated"))
    assert others[0].result[TP].error is None
    assert isinstance(truncated.result[TP].error, errors.NotLeaderOrFollower)


def test_records_that_were_truncated_after_the_first_look_at_the_replicas_are_not_acknowledged(replicated):
    """The wait is for the leader epoch of the append, not for the one when the wait is made."""
    partition = replicated.replica_manager.get_partition(TP)
    look = partition.check_enough_replicas_reach_offset

    def look_and_move(*args):
        is_reached = look(*args)
        partition.check_enough_replicas_reach_offset = look
        replicated.become(update(TP, 1, epoch=1, isr=(1,), replicas=(0, 1)))
        partition.log.truncate_to(0)
        replicated.become(update(TP, epoch=2, isr=(0,), replicas=(0, 1)))
        assert replicated.produce(batch(b"another")).result[TP].error is None
        return is_reached

    partition.check_enough_replicas_reach_offset = look_and_move
    truncated = replicated.produce(batch(b"truncated"))
    assert isinstance(truncated.result[TP].error, errors.NotLeaderOrFollower)


def test_records_that_were_truncated_before_the_first_look_at_the_replicas_are_not_acknowledged(replicated):
    partition = replicated.replica_manager.get_partition(TP)
    append = partition.append_records_to_leader

    def append_and_move(*args):
        appended = append(*args)
        partition.append_records_to_leader = append
        replicated.become(update(TP, 1, epoch=1, isr=(1,), replicas=(0, 1)))
        partition.log.truncate_to(0)
        replicated.become(update(TP, epoch=2, isr=(0,), replicas=(0, 1)))
        assert replicated.produce(batch(b"another")).result[TP].error is None
        return appended

    partition.append_records_to_leader = append_and_move
    assert isinstance(replicated.produce(batch(b"truncated")).result[TP].error, errors.NotLeaderOrFollower)


def test_a_produce_that_waits_is_acknowledged_by_a_leader_that_leads_on(replicated):
    waiting = replicated.produce(batch())
    replicated.become(update(TP, epoch=1, isr=(0, 1)))
    assert waiting.waits
    replicated.become(update(TP, epoch=2, isr=(0,), replicas=(0, 1)))
    assert (waiting.result[TP].error, waiting.result[TP].base_offset) == (None, 0)


def test_what_an_idempotent_producer_sends_again_after_another_may_have_led_is_written_once(replicated):
    def records():
        return batch(producer_id=7, producer_epoch=0, base_sequence=0)

    first = replicated.produce(records())
    replicated.become(update(TP, epoch=2, isr=(0, 1)))
    assert isinstance(first.result[TP].error, errors.NotLeaderOrFollower)
    again = replicated.produce(records())
    replicated.become(update(TP, epoch=3, isr=(0,), replicas=(0, 1)))
    assert (again.result[TP].error, again.result[TP].base_offset) == (None, 0)
    assert log_end(replicated, TP) == 1


def test_records_of_a_leader_epoch_are_refused_where_another_broker_may_have_led_since(node):
    def append(leader_epoch):
        answer = Answer()
        node.replica_manager.append_records(
            1000, 1, False, AppendOrigin.CLIENT, {TP: batch(), OTHER: batch()}, answer, {TP: leader_epoch}
        )
        assert answer.result[OTHER].error is None, "its records may be of any epoch"
        return answer.result[TP].error and type(answer.result[TP].error)

    node.become(update(OTHER, epoch=3), update(TP, epoch=5))
    assert append(5) is None
    node.become(update(TP, epoch=6))
    assert [append(epoch) for epoch in (5, 6)] == [None, None], "no other broker can have led since epoch 5"
    assert append(4) is append(7) is errors.NotLeaderOrFollower
    partition = node.replica_manager.get_partition(TP)
    assert [partition.has_led_since(epoch) for epoch in (4, 5, 6, 7)] == [False, True, True, False]
    node.become(update(TP, epoch=8))
    assert append(6) is errors.NotLeaderOrFollower, "another one may have led in epoch 7"
    assert append(8) is None
    node.become(update(TP, 1, epoch=9, replicas=(0, 1)))
    assert append(8) is errors.NotLeaderOrFollower
    assert not partition.has_led_since(8)
    node.become(update(TP, epoch=10))
    assert append(8) is errors.NotLeaderOrFollower
    assert append(10) is None
    assert log_end(node, TP) == 5
    assert log_end(node, OTHER) == 10
