"""DeleteRecords over replicas: the answer waits for the low watermark (HW-05)."""

import pytest

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.replica.explain import explain_isr
from tests.batches import batch

from ..conftest import TP, Answer, Node, update
from ..test_follower_fetches import follow

OTHER = TopicPartition("t", 1)


@pytest.fixture
def alive():
    return {0, 1, 2}


@pytest.fixture
def leader(tmp_path, alive):
    """Broker 0 leads two partitions with 5 records each, which 1 and 2 have."""
    node = Node(tmp_path, is_alive=alive.__contains__)
    for tp in (TP, OTHER):
        node.lead(tp, epoch=4, isr=(0, 1, 2))
        node.produce({tp: batch(b"a", b"b", b"c", b"d", b"e")})
        for broker_id in (1, 2):
            follow(node, broker_id, 5, tp)
    yield node
    node.shutdown()


def delete(node, offsets, timeout_ms=1000):
    answer = Answer()
    node.replica_manager.delete_records(offsets, answer, timeout_ms)
    return answer


def outcome(answer, tp=TP):
    result = answer.result[tp]
    return result.error and type(result.error), result.low_watermark


def test_HW_05_the_answer_comes_when_the_last_live_replica_starts_at_the_offset(leader):
    answer = delete(leader, {TP: 3})
    assert leader.replica_manager.get_partition(TP).log.log_start_offset == 3
    follow(leader, 1, 5, log_start=3)
    assert answer.waits
    follow(leader, 2, 5, log_start=2)
    assert answer.waits
    follow(leader, 2, 5, log_start=4)
    assert outcome(answer) == (None, 3)
    assert leader.replica_manager.delayed_delete_records_purgatory.delayed == 0


def test_HW_05_no_request_waits_for_a_broker_that_is_not_alive(leader, alive):
    follow(leader, 1, 5, log_start=3)
    alive.remove(2)
    assert outcome(delete(leader, {TP: 3})) == (None, 3)


def test_HW_05_the_answer_comes_when_the_replica_that_is_waited_for_dies(leader, alive):
    answer = delete(leader, {TP: 3})
    follow(leader, 1, 5, log_start=3)
    alive.remove(2)
    assert answer.waits
    leader.replica_manager.increment_high_watermarks()  # as after the metadata that say so
    assert outcome(answer) == (None, 3)


def test_the_expected_high_watermark_is_the_offset_that_the_followers_must_reach(leader):
    answer = delete(leader, {TP: -1})
    for broker_id in (1, 2):
        assert answer.waits
        follow(leader, broker_id, 5, log_start=5)
    assert outcome(answer) == (None, 5)


def test_at_the_deadline_the_partitions_that_are_not_deleted_everywhere_time_out(leader):
    follow(leader, 1, 5, OTHER, log_start=2)
    follow(leader, 2, 5, OTHER, log_start=2)
    answer = delete(leader, {TP: 3, OTHER: 2, TopicPartition("t", 9): 0}, timeout_ms=100)
    follow(leader, 1, 5, log_start=3)
    leader.advance(99)
    assert answer.waits
    leader.advance(1)
    assert outcome(answer) == (errors.RequestTimedOut, 0)
    assert outcome(answer, OTHER) == (None, 2)
    assert outcome(answer, TopicPartition("t", 9)) == (errors.UnknownTopicOrPartition, -1)


def test_PURG_10_lost_leadership_ends_the_wait(leader):
    answer = delete(leader, {TP: 3})
    leader.become(update(leader=1, epoch=5, isr=(1,), replicas=(0, 1, 2), partition_epoch=1))
    assert outcome(answer) == (errors.NotLeaderOrFollower, -1)


def test_a_follower_that_has_never_fetched_is_waited_for(leader):
    leader.become(update(leader=1, epoch=5, isr=(1,), replicas=(0, 1), partition_epoch=1))
    leader.become(update(leader=0, epoch=6, isr=(0, 1), partition_epoch=2))
    answer = delete(leader, {TP: 0})
    assert answer.waits
    follow(leader, 1, 5, epoch=6, log_start=0)
    assert outcome(answer) == (None, 0)


def test_METRIC_01_what_times_out_is_counted_and_explained_while_it_waits(leader):
    follow(leader, 1, 5, log_start=3)
    delete(leader, {TP: 3})
    (waiting,) = explain_isr(leader.replica_manager, TP).waiting
    assert (waiting.kind, waiting.ms_left) == ("a DeleteRecords", 1000)
    assert waiting.waits_for.startswith(
        "for the logs of all live replicas to start at 3 or later; the lowest starts at"
    )
    leader.advance(1000)
    assert leader.replica_manager.meters.delete_records_expirations.count == 1
    assert explain_isr(leader.replica_manager, TP).waiting == ()
