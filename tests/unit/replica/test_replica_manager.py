import threading

import pytest

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation
from kcore.replica.delayed.delayed_fetch import DelayedFetch
from kcore.replica.fetch_params import FetchParams, FetchPartitionData
from tests.batches import batch

from .conftest import TP, Answer, Node, update

OTHER = TopicPartition("t", 1)
ELSEWHERE = TopicPartition("elsewhere", 0)
UNKNOWN = TopicPartition("unknown", 0)


def values(records):
    return [record.value for record in records.records()]


# -- leadership


def test_RM_26_a_restarted_leader_starts_from_the_checkpoint_and_alone_in_the_isr_goes_to_the_log_end(tmp_path):
    node = Node(tmp_path)
    node.lead()
    node.produce(batch(b"a", b"b"))
    node.shutdown()
    node = Node(tmp_path)
    assert node.log_manager.get_log(TP).high_watermark == 2
    assert node.lead(epoch=1).log.high_watermark == 2
    node.shutdown()


@pytest.mark.parametrize("checkpoint, expected", [(None, 1), (0, 1), (2, 2), (99, 3)])
def test_RM_26_the_high_watermark_of_the_checkpoint_is_brought_between_log_start_and_log_end(
    tmp_path, checkpoint, expected
):
    node = Node(tmp_path)
    node.lead()
    node.produce(batch(b"a", b"b", b"c"))
    node.replica_manager.get_partition(TP).log.maybe_increment_log_start_offset(1)
    node.shutdown()
    path = tmp_path / "replication-offset-checkpoint"
    assert path.read_text().endswith(f"{TP.topic} {TP.partition} 3\n")
    path.write_text("0\n0\n" if checkpoint is None else f"0\n1\n{TP.topic} {TP.partition} {checkpoint}\n")
    node = Node(tmp_path)
    log = node.log_manager.get_log(TP)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (1, expected, 3)
    # A member of a larger ISR, which decides alone about no record.
    assert node.lead(epoch=1, isr=(0, 1)).log.high_watermark == expected
    node.shutdown()


def test_RM_26_without_a_checkpoint_the_high_watermark_is_0(tmp_path):
    node = Node(tmp_path)
    node.lead()
    node.produce(batch(b"a", b"b", b"c"))
    node.shutdown()
    (tmp_path / "replication-offset-checkpoint").unlink()
    node = Node(tmp_path)
    assert node.log_manager.get_log(TP).high_watermark == 0
    node.shutdown()


def test_RM_10_the_high_watermark_checkpoint_task_starts_once(node):
    tasks = []
    schedule = node.scheduler.schedule

    def spy(name, *args):
        tasks.append(name)
        return schedule(name, *args)

    node.scheduler.schedule = spy
    node.lead()
    node.lead(OTHER)
    assert tasks.count("highwatermark-checkpoint") == 1


def test_RM_23_the_checkpoint_holds_the_high_watermark_of_every_hosted_log(leader, tmp_path):
    leader.lead(OTHER)
    leader.produce(batch(b"a", b"b", b"c"))
    leader.advance(5000)
    lines = (tmp_path / "replication-offset-checkpoint").read_text().splitlines()
    assert (lines[0], lines[1], sorted(lines[2:])) == ("0", "2", ["t 0 3", "t 1 0"])


def test_RM_23_an_idle_broker_does_not_write_its_checkpoint_again(leader, tmp_path):
    checkpoint = tmp_path / "replication-offset-checkpoint"
    leader.produce(batch())
    leader.advance(5000)
    written = checkpoint.stat().st_mtime_ns, checkpoint.stat().st_ino
    leader.advance(5000)
    assert (checkpoint.stat().st_mtime_ns, checkpoint.stat().st_ino) == written
    leader.produce(batch())
    leader.advance(5000)
    assert (checkpoint.stat().st_mtime_ns, checkpoint.stat().st_ino) != written


def test_RM_30_get_partition_returns_hosted_partitions_only(leader):
    assert leader.replica_manager.get_partition(TP).topic_partition == TP
    assert leader.replica_manager.get_partition(UNKNOWN) is None
    assert [partition.topic_partition for partition in leader.replica_manager.partitions()] == [TP]


def test_RM_31_a_partition_not_hosted_is_not_led_if_the_metadata_know_it_and_unknown_if_not(leader):
    lookup = leader.replica_manager.get_partition_or_exception
    assert lookup(TP) is leader.replica_manager.get_partition(TP)
    with pytest.raises(errors.NotLeaderOrFollower):
        lookup(ELSEWHERE)
    with pytest.raises(errors.ReplicaNotAvailable):
        lookup(ELSEWHERE, expect_leader=False)
    with pytest.raises(errors.UnknownTopicOrPartition):
        lookup(UNKNOWN)


def test_a_stopped_replica_is_gone_and_its_log_stays_unless_deleted(leader, tmp_path):
    leader.produce(batch())
    leader.stop(TP, delete=False)
    assert leader.replica_manager.get_partition(TP) is None
    assert (tmp_path / "t-0").is_dir()
    assert leader.lead(epoch=1).log.log_end_offset == 1
    leader.stop(TP, delete=True)
    assert not (tmp_path / "t-0").exists()
    assert leader.lead(epoch=2).log.log_end_offset == 0


# -- append


@pytest.mark.parametrize("acks", [-2, 2, 5])
def test_APP_03_V22_03_other_acks_than_minus_1_0_and_1_are_refused_and_nothing_is_written(leader, acks):
    leader.lead(OTHER)
    result = leader.produce({TP: batch(), OTHER: batch()}, acks=acks).result
    for status in result.values():
        assert isinstance(status.error, errors.InvalidRequiredAcks)
        assert (status.base_offset, status.log_append_time, status.log_start_offset) == (-1, -1, -1)
    assert leader.replica_manager.get_partition(TP).log.log_end_offset == 0


@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_APP_06_a_success_has_base_offset_and_log_start_offset(leader, acks):
    leader.produce(batch(b"a", b"b"), acks=acks)
    status = leader.produce(batch(b"c"), acks=acks).result[TP]
    assert status.error is None
    assert (status.base_offset, status.required_offset, status.log_append_time, status.log_start_offset) == (
        2,
        3,
        -1,
        0,
    )


def test_APP_06_the_log_append_time_is_returned_where_the_topic_has_it(tmp_path):
    node = Node(tmp_path, {"t": {"message.timestamp.type": "LogAppendTime"}})
    node.lead()
    assert node.produce(batch()).result[TP].log_append_time == node.time.milliseconds()
    node.shutdown()


def test_APP_09_with_an_isr_of_one_acks_all_is_answered_at_once(leader):
    answer = leader.produce(batch(), acks=-1)
    assert answer.result[TP].error is None
    assert leader.replica_manager.delayed_produce_purgatory.delayed == 0


def test_APP_01_V22_01_producers_and_coordinators_get_offsets_and_a_follower_keeps_its_leaders(leader):
    for origin in (AppendOrigin.CLIENT, AppendOrigin.COORDINATOR):
        leader.produce(batch(), origin=origin)
    partition = leader.replica_manager.get_partition(TP)
    assert [b.base_offset for b in partition.log.batches()] == [0, 1]
    leader.become(update(leader=1, epoch=5, isr=(1,), replicas=(0, 1)))
    assert isinstance(leader.produce(batch()).result[TP].error, errors.NotLeaderOrFollower)
    partition.append_records_to_follower_or_future_replica(batch(base_offset=7), is_future=False)
    assert [b.base_offset for b in partition.log.batches()] == [0, 1, 7]


def test_APP_15_internal_topics_are_closed_to_producers_and_open_to_coordinators(node):
    offsets = TopicPartition("__consumer_offsets", 0)
    node.lead(offsets)
    refused = node.produce({offsets: batch()}).result[offsets]
    assert isinstance(refused.error, errors.InvalidTopicException)
    accepted = node.produce({offsets: batch()}, internal=True, origin=AppendOrigin.COORDINATOR).result[offsets]
    assert (accepted.error, accepted.base_offset) == (None, 0)


def test_APP_17_APP_19_each_partition_fails_for_itself(leader):
    corrupt = batch(b"corrupt")
    corrupt[-1] ^= 1
    answer = leader.produce({UNKNOWN: batch(), ELSEWHERE: batch(), OTHER: corrupt, TP: batch()})
    leader.lead(OTHER)
    result = answer.result
    assert [type(status.error) for status in result.values()] == [
        errors.UnknownTopicOrPartition,
        errors.NotLeaderOrFollower,
        errors.UnknownTopicOrPartition,
        type(None),
    ]
    result = leader.produce({OTHER: corrupt, TP: batch()}).result
    assert isinstance(result[OTHER].error, errors.CorruptMessage)
    assert result[TP].base_offset == 1


def test_V22_08_APP_10_a_produce_of_no_partition_is_answered_at_once(leader):
    assert leader.produce({}, acks=-1).result == {}


def test_APP_11_acks_all_with_every_partition_failed_is_answered_at_once(leader):
    assert not leader.produce({UNKNOWN: batch()}).waits


def test_APP_18_records_that_are_refused_are_named_with_the_log_start_offset(tmp_path):
    node = Node(tmp_path, {"t": {"cleanup.policy": "compact"}})
    node.lead()
    status = node.produce(batch(b"no key", b"none either")).result[TP]
    assert isinstance(status.error, errors.InvalidRecord)
    assert [index for index, _ in status.record_errors] == [0, 1]
    assert status.log_start_offset == 0
    assert status.error_message
    node.shutdown()


def test_APP_20_a_repeated_idempotent_batch_succeeds_with_its_first_offsets(leader):
    producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    leader.produce(batch(b"first"))
    assert leader.produce(batch(b"x", **producer)).result[TP].base_offset == 1
    leader.produce(batch(b"between"))
    again = leader.produce(batch(b"x", **producer)).result[TP]
    assert (again.error, again.base_offset) == (None, 1)
    assert leader.replica_manager.get_partition(TP).log.log_end_offset == 3


def test_APP_17_an_unforeseen_error_becomes_unknown_server_error_and_is_logged(leader, caplog):
    partition = leader.replica_manager.get_partition(TP)
    partition.append_records_to_leader = lambda *args: 1 // 0
    assert isinstance(leader.produce(batch()).result[TP].error, errors.UnknownServerError)
    assert "ZeroDivisionError" in caplog.text


def test_a_refused_sequence_is_in_the_log_with_the_one_that_was_expected(leader, caplog):
    caplog.set_level("INFO", "kcore.replica.local_appends")
    answer = leader.produce(batch(producer_id=7, producer_epoch=0, base_sequence=0))
    assert answer.result[TP].error is None
    answer = leader.produce(batch(producer_id=7, producer_epoch=0, base_sequence=5))
    assert isinstance(answer.result[TP].error, errors.OutOfOrderSequenceNumber)
    (line,) = caplog.messages
    assert line == f"{TP}: producer 7 at offset 1 sent sequence 5, expected 1 after 0"


def test_PART_09_acks_all_is_refused_while_the_isr_is_below_min_insync_replicas(tmp_path):
    node = Node(tmp_path, {"t": {"min.insync.replicas": "2"}})
    node.lead()
    assert isinstance(node.produce(batch()).result[TP].error, errors.NotEnoughReplicas)
    assert node.replica_manager.get_partition(TP).log.log_end_offset == 0
    assert node.produce(batch(), acks=1).result[TP].error is None
    node.shutdown()


# -- fetch


def test_RD_08_RD_12_RD_14_enough_bytes_are_answered_at_once(leader):
    leader.produce(batch(b"a"))
    leader.produce(batch(b"b"))
    ((tp, result),) = leader.fetch(0, max_wait_ms=500).result
    assert (tp, result.error) == (TP, None)
    assert (result.high_watermark, result.last_stable_offset, result.log_start_offset) == (2, 2, 0)
    assert values(result.records) == [b"a", b"b"]
    assert result.aborted_transactions is None
    assert result.preferred_read_replica == -1


def test_RD_12_without_time_to_wait_an_empty_answer_comes_at_once(leader):
    ((_, result),) = leader.fetch(0).result
    assert (result.error, result.records.size_in_bytes) == (None, 0)


@pytest.mark.parametrize("limits", [{"partition_max_bytes": -5}, {"max_bytes": -1}])
def test_a_fetch_of_a_negative_number_of_bytes_is_answered_as_by_kafka_and_not_logged(leader, caplog, limits):
    """Each such request wrote a traceback."""
    leader.produce(batch(b"a"))
    ((_, result),) = leader.fetch(0, **limits).result
    assert type(result.error) is errors.UnknownServerError and f"{min(limits.values())} bytes" in str(result.error)
    assert not caplog.records
    ((_, result),) = leader.fetch(1, **limits).result
    assert result.error is None  # nothing is there to be read


def test_RD_12_a_fetch_of_nothing_is_answered_at_once(leader):
    assert leader.fetch({}, max_wait_ms=500).result == []


def test_RD_12_an_error_of_one_partition_answers_all_at_once(leader):
    answer = leader.fetch({TP: 0, UNKNOWN: 0}, max_wait_ms=500)
    assert [type(result.error) for _, result in answer.result] == [type(None), errors.UnknownTopicOrPartition]


def test_RD_15_RD_16_PURG_16_a_waiting_fetch_is_woken_by_an_append_and_reads_afresh(leader):
    answer = leader.fetch(0, max_wait_ms=500)
    assert answer.waits
    leader.produce(batch(b"new"))
    assert values(answer.result[0][1].records) == [b"new"]
    leader.advance(1000)
    assert leader.replica_manager.delayed_fetch_purgatory.delayed == 0
    assert leader.timer.size == 0


def test_RD_16_a_waiting_fetch_is_answered_at_its_deadline_with_what_there_is(leader):
    leader.produce(batch(b"a"))
    answer = leader.fetch(0, max_wait_ms=500, min_bytes=10_000)
    leader.advance(499)
    assert answer.waits
    leader.advance(1)
    assert values(answer.result[0][1].records) == [b"a"]


def test_PURG_14_bytes_of_all_partitions_count_toward_min_bytes_each_up_to_its_limit(leader):
    leader.lead(OTHER)
    size = len(batch(b"x"))
    answer = leader.fetch({TP: 0, OTHER: 0}, max_wait_ms=500, min_bytes=2 * size)
    leader.produce({TP: batch(b"x")})
    assert answer.waits
    leader.produce({OTHER: batch(b"x")})
    assert not answer.waits
    limited = leader.fetch({TP: 1, OTHER: 1}, max_wait_ms=500, min_bytes=2 * size, partition_max_bytes=size)
    for _ in range(3):
        leader.produce({TP: batch(b"x")})
    assert limited.waits
    leader.produce({OTHER: batch(b"x")})
    assert not limited.waits


def test_PURG_11_a_wait_for_many_partitions_ends_when_one_of_them_is_deleted(leader):
    many = [TopicPartition("many", number) for number in range(20)]
    for tp in many:
        leader.lead(tp)
    answer = leader.fetch(dict.fromkeys(many, 0), max_wait_ms=500)
    leader.stop(many[11], delete=True)
    assert [tp for tp, result in answer.result if result.error is not None] == [many[11]]


def test_RD_17_RD_18_partitions_share_a_budget_and_the_first_with_data_may_exceed_it(leader):
    leader.lead(OTHER)
    for tp in (TP, OTHER):
        leader.produce({tp: batch(b"x" * 100)})
    size = len(batch(b"x" * 100))
    result = dict(leader.fetch({TP: 0, OTHER: 0}, max_bytes=10).result)
    assert [result[tp].records.size_in_bytes for tp in (TP, OTHER)] == [size, 0]
    result = dict(leader.fetch({TP: 0, OTHER: 0}, max_bytes=size + 10).result)
    assert [result[tp].records.size_in_bytes for tp in (TP, OTHER)] == [size, 0]
    result = dict(leader.fetch({TP: 0, OTHER: 0}, max_bytes=2 * size).result)
    assert [result[tp].records.size_in_bytes for tp in (TP, OTHER)] == [size, size]
    result = dict(leader.fetch({TP: 1, OTHER: 0}, max_bytes=10).result)
    assert [result[tp].records.size_in_bytes for tp in (TP, OTHER)] == [0, size]


def test_RD_19_under_hard_limits_no_response_exceeds_max_bytes(leader):
    leader.lead(OTHER)
    for tp in (TP, OTHER):
        leader.produce({tp: batch(b"x" * 100)})
    answer = leader.fetch({TP: 0, OTHER: 0}, max_bytes=10, hard_max_bytes=True)
    assert sum(result.records.size_in_bytes for _, result in answer.result) <= 10


def test_RD_20_under_soft_limits_the_first_batch_of_a_partition_is_never_cut(leader):
    leader.lead(OTHER)
    for tp in (TP, OTHER):
        leader.produce({tp: batch(b"x" * 100)})
    size = len(batch(b"x" * 100))
    result = dict(leader.fetch({TP: 0, OTHER: 0}, max_bytes=size + size // 2).result)
    assert result[OTHER].records.size_in_bytes == 0


def test_RD_20_a_later_batch_is_cut_where_the_limit_is(leader):
    """As by Kafka: clients drop an incomplete batch at the end and fetch it again."""
    for _ in range(2):
        leader.produce(batch(b"x" * 100))
    size = len(batch(b"x" * 100))
    for limits in ({"max_bytes": size + size // 2}, {"partition_max_bytes": size + size // 2}):
        ((_, result),) = leader.fetch(0, **limits).result
        assert result.records.size_in_bytes == size + size // 2


def test_RD_21_an_error_comes_with_offsets_of_minus_1_and_no_records(leader):
    for offsets, error in (
        ({UNKNOWN: 0}, errors.UnknownTopicOrPartition),
        ({ELSEWHERE: 0}, errors.NotLeaderOrFollower),
        ({TP: 1}, errors.OffsetOutOfRange),
    ):
        ((_, result),) = leader.fetch(offsets).result
        assert isinstance(result.error, error)
        assert (result.high_watermark, result.last_stable_offset, result.log_start_offset) == (-1, -1, -1)
        assert result.records.size_in_bytes == 0


def test_RD_24_the_clients_leader_epoch_is_checked_where_it_has_one(node):
    node.lead(epoch=5)
    for epoch, error in ((4, errors.FencedLeaderEpoch), (6, errors.UnknownLeaderEpoch), (5, type(None))):
        ((_, result),) = node.fetch(0, epoch=epoch).result
        assert isinstance(result.error, error)


def test_RD_28_a_fetch_at_the_end_is_empty_and_no_error(leader):
    leader.produce(batch())
    ((_, result),) = leader.fetch(1).result
    assert (result.error, result.records.size_in_bytes, result.high_watermark) == (None, 0, 1)


@pytest.mark.parametrize("replica_id", [0, 1])
def test_RD_10_a_follower_that_is_not_assigned_is_refused(leader, replica_id):
    ((_, result),) = leader.fetch(0, FetchIsolation.LOG_END, replica_id=replica_id).result
    assert isinstance(result.error, errors.UnknownTopicOrPartition)


def test_PURG_14_a_slow_look_at_all_partitions_does_not_replace_a_newer_count(leader, monkeypatch):
    """One thread has counted TP and stands still; meanwhile another appends to TP."""
    leader.lead(OTHER)
    size = len(batch())
    answer = leader.fetch({TP: 0, OTHER: 0}, max_wait_ms=500, min_bytes=2 * size)
    purgatory = leader.replica_manager.delayed_fetch_purgatory
    (operation,) = purgatory.operations(TP)
    counted, is_past_or_waits = threading.Event(), threading.Event()

    class Lock:
        """The operation's lock; who must wait for it says so."""

        def __init__(self, lock):
            self.lock = lock

        def __enter__(self):
            if not self.lock.acquire(blocking=False):
                is_past_or_waits.set()
                self.lock.acquire()

        def __exit__(self, *error):
            self.lock.release()

    def append():
        leader.produce(batch(), acks=1)
        is_past_or_waits.set()

    readable_bytes = DelayedFetch._readable_bytes

    def slow_readable_bytes(fetch, at):
        available = readable_bytes(fetch, at)
        if threading.current_thread() is looking:
            counted.set()
            assert is_past_or_waits.wait(60)
        return available

    operation._available_lock = Lock(operation._available_lock)
    monkeypatch.setattr(DelayedFetch, "_readable_bytes", slow_readable_bytes)
    looking = threading.Thread(target=operation.try_complete)
    looking.start()
    assert counted.wait(60)
    appending = threading.Thread(target=append)
    appending.start()
    for thread in (looking, appending):
        thread.join(60)
        assert not thread.is_alive()
    assert answer.waits
    leader.produce({OTHER: batch()}, acks=1)
    assert not answer.waits


def test_PURG_11_a_waiting_fetch_is_answered_when_its_partition_is_deleted(leader):
    answer = leader.fetch(0, max_wait_ms=500)
    leader.stop(TP, delete=True)
    ((_, result),) = answer.result
    assert isinstance(result.error, errors.UnknownTopicOrPartition)


def test_PURG_11_a_waiting_fetch_with_a_fenced_epoch_is_answered(node):
    node.lead(epoch=1)
    answer = node.fetch(0, max_wait_ms=500, epoch=1)
    node.lead(epoch=2)
    ((_, result),) = answer.result
    assert isinstance(result.error, errors.FencedLeaderEpoch)


def test_PURG_13_a_fetch_below_the_active_segment_does_not_wait_for_min_bytes(leader):
    log = leader.replica_manager.get_partition(TP).log
    answer = leader.fetch(0, max_wait_ms=500, min_bytes=1_000_000)
    leader.produce(batch(b"a"))
    assert answer.waits
    log.roll()
    leader.produce(batch(b"b"))
    assert values(answer.result[0][1].records) == [b"a"]


def test_PURG_12_a_waiting_fetch_is_answered_when_its_place_was_truncated_with_a_segment(leader):
    log = leader.replica_manager.get_partition(TP).log
    leader.produce(batch(b"a", b"b"))
    log.roll()
    leader.produce(batch(b"c"))
    waiting = leader.fetch(3, max_wait_ms=500)
    log.is_served = False  # as after this broker has followed another one for a while
    log.truncate_to(1)
    leader.replica_manager.delayed_fetch_purgatory.check_and_complete(TP)
    ((_, result),) = waiting.result
    assert isinstance(result.error, errors.OffsetOutOfRange)


def test_PURG_15_a_roll_alone_completes_no_request(leader):
    leader.produce(batch(b"a"))
    answer = leader.fetch(1, max_wait_ms=500)
    leader.replica_manager.get_partition(TP).log.roll()
    assert leader.replica_manager.delayed_fetch_purgatory.check_and_complete(TP) == 0
    assert answer.waits
    leader.produce(batch(b"b"))
    assert values(answer.result[0][1].records) == [b"b"]


def test_RD_05_a_read_committed_fetch_stops_at_the_last_stable_offset(leader):
    leader.produce(batch(b"plain"))
    transaction = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    leader.produce(batch(b"open", **transaction))
    leader.produce(batch(b"after"))
    ((_, result),) = leader.fetch(0, FetchIsolation.TXN_COMMITTED).result
    assert (result.high_watermark, result.last_stable_offset) == (3, 1)
    assert values(result.records) == [b"plain"]
    assert result.aborted_transactions == []
    waiting = leader.fetch(1, FetchIsolation.TXN_COMMITTED, max_wait_ms=500)
    leader.produce(batch(b"more"))
    assert waiting.waits
    assert len(values(leader.fetch(1).result[0][1].records)) == 3


def test_RD_23_an_append_during_a_read_does_not_raise_the_offsets_in_the_answer(leader):
    log = leader.replica_manager.get_partition(TP).log
    read = log.read

    def read_with_append(*args):
        log.read = read
        leader.produce(batch(b"meanwhile"))
        return read(*args)

    log.read = read_with_append
    try:
        ((_, result),) = leader.fetch(0).result
    finally:
        del log.read
    assert result.high_watermark == 0


def test_many_consumers_and_producers_lose_nothing_and_none_waits_for_ever(leader):
    """Real threads on a clock that does not move: no poll times out, so every answer was caused by a wake-up."""
    records, producers, consumers = 1000, 2, 3
    seen = [[] for _ in range(consumers)]

    def produce(producer):
        for n in range(records):
            leader.produce(batch(b"%d-%d" % (producer, n)), acks=-1 if n % 2 else 1)

    def consume(into):
        offset = 0
        while offset < records * producers:
            answered = threading.Event()
            answer = Answer()

            def answer_and_tell(result, answer=answer, answered=answered):
                answer(result)
                answered.set()

            leader.replica_manager.fetch_messages(
                FetchParams(max_wait_ms=60_000), [(TP, FetchPartitionData(offset, 500))], answer_and_tell
            )
            assert answered.wait(60)
            for record in answer.result[0][1].records.records():
                if record.offset >= offset:
                    into.append(record.value)
                    offset = record.offset + 1

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(producers)]
    threads += [threading.Thread(target=consume, args=(into,)) for into in seen]
    for t in threads:
        t.start()
    for t in threads:
        t.join(200)
        assert not t.is_alive()
    assert all(len(into) == records * producers and len(set(into)) == len(into) for into in seen)
    assert seen[0] == seen[1] == seen[2]


# -- lookups


def test_offsets_by_time_are_below_the_end_that_the_reader_may_read(leader):
    leader.produce(batch(b"plain"))
    transaction = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    leader.produce(batch(b"open", **transaction))
    lookup = leader.replica_manager.get_partition(TP).fetch_offset_for_timestamp
    assert lookup(-1, FetchIsolation.HIGH_WATERMARK) == (-1, 2, 0)
    assert lookup(-1, FetchIsolation.TXN_COMMITTED) == (-1, 1, 0)
    assert lookup(-1, FetchIsolation.LOG_END) == (-1, 2, 0)
    assert lookup(-2, FetchIsolation.HIGH_WATERMARK)[:2] == (-1, 0)
    assert lookup(0, FetchIsolation.HIGH_WATERMARK) == (1_700_000_000_000, 0, 0)
    assert lookup(1_700_000_000_001, FetchIsolation.HIGH_WATERMARK) is None
    with pytest.raises(errors.UnknownLeaderEpoch):
        lookup(-1, FetchIsolation.HIGH_WATERMARK, 1)


def test_PART_24_the_end_offset_of_an_epoch_is_where_the_next_one_starts(node):
    node.lead(epoch=2)
    node.produce(batch(b"a", b"b"))
    node.lead(epoch=5)
    node.produce(batch(b"c"))
    lookup = node.replica_manager.get_partition(TP).last_offset_for_leader_epoch
    assert lookup(2) == (2, 2)
    assert lookup(4) == (2, 2)
    assert lookup(5) == (5, 3)
    with pytest.raises(errors.FencedLeaderEpoch):
        lookup(2, 4)


# -- DeleteRecords


def test_HW_05_RD_30_deleted_records_cannot_be_read_and_the_low_watermark_is_returned(leader):
    for n in range(4):
        leader.produce(batch(b"%d" % n))
    answer = Answer()
    leader.replica_manager.delete_records({TP: 3, UNKNOWN: 0}, answer)
    assert (answer.result[TP].error, answer.result[TP].low_watermark) == (None, 3)
    assert isinstance(answer.result[UNKNOWN].error, errors.UnknownTopicOrPartition)
    ((_, result),) = leader.fetch(2).result
    assert isinstance(result.error, errors.OffsetOutOfRange)
    ((_, result),) = leader.fetch(3).result
    assert (values(result.records), result.log_start_offset) == ([b"3"], 3)
    everything = Answer()
    leader.replica_manager.delete_records({TP: -1}, everything)
    assert everything.result[TP].low_watermark == 4


@pytest.mark.parametrize("offset", [2, -2])
def test_records_beyond_the_high_watermark_cannot_be_deleted(leader, offset):
    leader.produce(batch())
    answer = Answer()
    leader.replica_manager.delete_records({TP: offset}, answer)
    assert isinstance(answer.result[TP].error, errors.OffsetOutOfRange)
    assert answer.result[TP].low_watermark == -1


def test_records_of_compacted_and_internal_topics_cannot_be_deleted(tmp_path):
    node = Node(tmp_path, {"t": {"cleanup.policy": "compact"}})
    node.lead()
    offsets = TopicPartition("__consumer_offsets", 0)
    node.lead(offsets)
    answer = Answer()
    node.replica_manager.delete_records({TP: 0, offsets: 0}, answer)
    assert isinstance(answer.result[TP].error, errors.PolicyViolation)
    assert isinstance(answer.result[offsets].error, errors.InvalidTopicException)
    node.shutdown()


def test_shutdown_answers_all_waiting_requests(tmp_path):
    node = Node(tmp_path)
    node.lead()
    answer = node.fetch(0, max_wait_ms=500)
    node.shutdown()
    ((_, result),) = answer.result
    assert isinstance(result.error, errors.NotLeaderOrFollower)
