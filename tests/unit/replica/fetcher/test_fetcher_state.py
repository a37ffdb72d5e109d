"""The follower's fetcher as a function of replies: no thread, no socket, no file."""

from random import Random

import pytest

from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    CorruptMessage,
    DiskFull,
    FencedLeaderEpoch,
    InvalidRecord,
    InvalidRequest,
    KafkaStorageError,
    NetworkException,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    OffsetsOutOfOrder,
    UnexpectedAppendOffset,
    UnknownLeaderEpoch,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from kcore.replica.fetcher.fetcher_state import FetcherConfig, FetcherState, InitialFetchState, Wait
from kcore.replica.fetcher.leader_endpoint import (
    EpochEndOffset,
    EpochQuestion,
    FetchedPartition,
    FetchReply,
    FetchRequest,
    LeaderFeatures,
    ListedOffset,
    ListOffsetsReply,
    ListOffsetsRequest,
    OffsetForLeaderEpochReply,
    OffsetForLeaderEpochRequest,
    OffsetQuestion,
)
from kcore.replica.fetcher.partition_fetch_state import PartitionFetchState, Phase
from tests.unit.replica.fetchers import (
    BACKOFF,
    EARLIEST,
    LATEST,
    A,
    B,
    C,
    MemoryLog,
    MemoryLogs,
    fetcher,
    fetching,
    next_request,
    reply_to,
    topic_id,
)

# -- which partitions -------------------------------------------------------------------------------------------------


def test_FT_02_a_new_partition_has_no_lag_and_is_in_sync_only_by_an_answer():
    state = fetching()
    assert state.states[A] == PartitionFetchState(3, 5, Phase.FETCHING, lag=None, last_fetched_epoch=1)
    assert not state.states[A].is_in_sync and state.states[A].is_ready_for_fetch(0)
    reply_to(state, {A: FetchedPartition((5, 2), high_watermark=6, log_start_offset=0)})
    assert state.states[A].lag == 1 and not state.states[A].is_in_sync
    reply_to(state, {A: FetchedPartition(high_watermark=5, log_start_offset=0)})
    assert state.states[A].lag == 0 and state.states[A].is_in_sync


def test_FT_03_a_partition_added_again_with_its_leader_epoch_goes_on_as_it_was():
    state = fetching()
    before = state.states[A]
    state.add_partitions({A: InitialFetchState(0, 5)})
    assert state.states[A] is before
    state.add_partitions({A: InitialFetchState(2, 6)})
    # Not from the high watermark: the leader's first answer has the offset to which the log must be truncated.
    assert (state.states[A].fetch_offset, state.states[A].current_leader_epoch) == (3, 6)


@pytest.mark.parametrize(
    ("leader_start", "leader_end", "done", "offset"),
    [(0, 2, [("truncate_to", A, 2, True)], 2), (0, 9, [], 3), (7, 9, [("truncate_fully_and_start_at", A, 7)], 7)],
)
def test_FT_04_a_negative_initial_offset_is_looked_up_at_the_leader(leader_start, leader_end, done, offset):
    state = fetcher(a=MemoryLog([1, 1, 1]))
    state.add_partitions({A: InitialFetchState(-1, 5)})
    assert reply_to(state, {A: ListedOffset(leader_end)}).partitions == {A: OffsetQuestion(5, LATEST)}
    if leader_end >= 3:
        assert reply_to(state, {A: ListedOffset(leader_start)}).partitions == {A: OffsetQuestion(5, EARLIEST)}
    assert state.logs.done == done
    assert next_request(state).partitions[A].fetch_offset == offset


def test_FT_05_a_partition_begins_truncating_unless_its_fetch_can_carry_an_epoch():
    for on_fetch, epochs, phase in [
        (False, [1], Phase.TRUNCATING),
        (True, [1], Phase.FETCHING),
        (True, [], Phase.TRUNCATING),
    ]:
        state = fetcher(on_fetch=on_fetch, a=MemoryLog(epochs))
        state.add_partitions({A: InitialFetchState(0, 5)})
        assert state.states[A].phase is phase


def test_FT_05_adding_a_failed_partition_clears_its_mark():
    state = fetching()
    reply_to(state, {A: FetchedPartition(error=FencedLeaderEpoch())})
    assert set(state.failed) == {A}
    state.add_partitions({A: InitialFetchState(3, 6)})
    assert not state.failed and next_request(state).partitions[A].current_leader_epoch == 6


def test_FMGR_07_removing_a_partition_returns_its_state_and_drops_its_failed_mark():
    state = fetching()
    before = state.states[A]
    assert state.remove_partitions([A, B]) == {A: before} and not state.states
    state.add_partitions({A: InitialFetchState(3, 5)})
    reply_to(state, {A: FetchedPartition(error=FencedLeaderEpoch())})
    assert state.remove_partitions([A]) == {} and not state.failed


def test_a_log_that_fails_while_it_is_added_is_failed_and_no_other():
    logs = {"a": MemoryLog([1]), "b": MemoryLog([1])}
    logs["a"].failures["latest_epoch"] = KafkaStorageError("a")
    state = fetcher(**logs)
    state.add_partitions({A: InitialFetchState(1, 5), B: InitialFetchState(1, 5)})
    assert set(state.failed) == {A} and set(state.states) == {B}


# -- fetching ---------------------------------------------------------------------------------------------------------


def test_FT_12_with_nothing_to_fetch_it_waits_for_the_back_off_and_no_longer_than_a_delay_lasts():
    assert fetcher().next_request(5) == Wait(5 + BACKOFF)
    state = fetching()
    reply_to(state, {A: FetchedPartition(error=NotLeaderOrFollower())}, now=5)
    assert state.next_request(105) == Wait(5 + BACKOFF)
    state.add_partitions({A: InitialFetchState(3, 6)})
    assert isinstance(state.next_request(106), FetchRequest)


def test_FT_13_while_a_request_is_in_flight_there_is_no_other():
    state = fetching()
    request = next_request(state)
    assert state.next_request(5) == Wait(5 + BACKOFF)
    state.on_reply(request, FetchReply({}), 6)
    assert isinstance(state.next_request(6), FetchRequest)


def test_FT_14_a_fetch_that_fails_delays_all_partitions_and_the_fetcher_goes_on():
    state = fetcher(a=MemoryLog([1]), b=MemoryLog([1]))
    state.add_partitions({A: InitialFetchState(1, 5)})
    request = next_request(state)
    state.add_partitions({B: InitialFetchState(1, 5)})
    state.on_failure(request, NetworkException("gone"), 10)
    assert state.next_request(10) == Wait(10 + BACKOFF)
    assert set(next_request(state, 10 + BACKOFF).partitions) == {A, B}


def removed(state):
    state.remove_partitions([A])


def moved_on(state):
    state.remove_partitions([A])
    state.logs.logs[A].epochs += [1]
    state.add_partitions({A: InitialFetchState(4, 5)})


def marked(state):
    state.mark_for_truncation(A, 3)


def of_a_new_leader(state):
    state.add_partitions({A: InitialFetchState(3, 6)})


@pytest.mark.parametrize("meanwhile", [removed, moved_on, marked, of_a_new_leader])
def test_FT_16_an_answer_is_stale_when_its_partition_was_removed_moved_or_got_another_leader(meanwhile):
    state = fetching()
    request = next_request(state)
    meanwhile(state)
    before = dict(state.states)
    state.on_reply(request, FetchReply({A: FetchedPartition((5, 2), 9, 2)}), 0)
    assert state.states == before and not state.logs.done


def test_FT_16_a_second_copy_of_an_answer_and_one_after_a_failure_change_nothing():
    state = fetching()
    first = next_request(state)
    answer = FetchReply({A: FetchedPartition((5, 2), 9, 0)})
    state.on_reply(first, answer, 0)
    done = list(state.logs.done)
    state.on_reply(first, answer, 0)
    second = next_request(state)
    state.on_reply(first, answer, 0)
    state.on_failure(second, NetworkException("late"), 0)
    state.on_reply(second, FetchReply({A: FetchedPartition((5, 2), 9, 0)}), 0)
    state.on_failure(first, NetworkException("late"), 5000)
    assert state.logs.done == done and state.states[A].delayed_until_ms == BACKOFF


def test_FT_17_FT_18_the_next_offset_follows_the_records_and_the_lag_is_what_is_missing_to_the_leaders_high_watermark():
    state = fetching()
    reply_to(state, {A: FetchedPartition((5, 2), high_watermark=9, log_start_offset=0)})
    assert (state.states[A].fetch_offset, state.states[A].lag, state.states[A].last_fetched_epoch) == (5, 4, 5)
    reply_to(state, {A: FetchedPartition((5, 0), high_watermark=3, log_start_offset=0)})
    assert (state.states[A].fetch_offset, state.states[A].lag, state.states[A].last_fetched_epoch) == (5, 0, 5)


def test_RFT_05_bytes_without_a_whole_batch_are_logged_at_growing_intervals_and_asked_for_again_later(caplog):
    state = fetching()
    for second in range(50):
        reply_to(state, {A: FetchedPartition((5, 0), high_watermark=9, log_start_offset=0)}, now=second * BACKOFF)
        assert state.next_request(second * BACKOFF) == Wait((second + 1) * BACKOFF)
    assert len([line for line in caplog.messages if "replica.fetch.max.bytes is too small" in line]) == 6
    assert "replica.fetch.max.bytes is too small" in state.delay_reason(A)
    assert (state.states[A].fetch_offset, state.states[A].lag, state.logs.logs[A].high_watermark) == (3, 6, 3)
    reply_to(state, {A: FetchedPartition(b"", high_watermark=9, log_start_offset=0)}, now=50 * BACKOFF)
    assert state.delay_reason(A) is None


def test_the_log_is_told_the_leader_epoch_of_the_fetch():
    state = fetching(leader_epoch=7)
    told = []
    state.logs.append = lambda tp, records, log_start, leader_epoch: told.append(leader_epoch)
    reply_to(state, {A: FetchedPartition((8, 1), high_watermark=3, log_start_offset=0)})
    assert told == [7]


def test_FT_19_a_partition_that_got_records_goes_to_the_end_of_the_order():
    state = fetcher(a=MemoryLog([1]), b=MemoryLog([1]), c=MemoryLog([1]))
    state.add_partitions({tp: InitialFetchState(1, 5) for tp in (A, B, C)})
    request = reply_to(state, {A: FetchedPartition((5, 1), 1, 0), B: FetchedPartition(b"", 1, 0)})
    assert list(request.partitions) == [A, B, C]
    assert list(next_request(state).partitions) == [B, C, A]


@pytest.mark.parametrize(
    "error",
    [CorruptMessage("crc"), InvalidRecord("key"), OffsetsOutOfOrder("base"), UnexpectedAppendOffset("base", 0, 3)],
)
def test_FT_20_damaged_records_are_fetched_again_later_and_others_go_on(error):
    state = fetcher(a=MemoryLog([1]), b=MemoryLog([1]))
    state.add_partitions({A: InitialFetchState(1, 5), B: InitialFetchState(1, 5)})
    state.logs.logs[A].failures["append"] = error
    reply_to(state, {A: FetchedPartition((5, 1), 1, 0), B: FetchedPartition((5, 1), 1, 0)})
    assert not state.failed and list(next_request(state).partitions) == [B]
    state.on_failure(state._in_flight, NetworkException("x"), 0)
    assert state.next_request(BACKOFF).partitions[A].fetch_offset == 1


@pytest.mark.parametrize("error", [KafkaStorageError("disk"), RuntimeError("bug")])
def test_FT_21_an_append_that_fails_otherwise_fails_its_partition(error):
    state = fetcher(a=MemoryLog([1]), b=MemoryLog([1]))
    state.add_partitions({A: InitialFetchState(1, 5), B: InitialFetchState(1, 5)})
    state.logs.logs[A].failures["append"] = error
    reply_to(state, {A: FetchedPartition((5, 1), 1, 0), B: FetchedPartition((5, 1), 1, 0)})
    assert set(state.failed) == {A} and list(next_request(state).partitions) == [B]


def test_FT_21_a_full_disk_delays_its_partition_and_the_next_fetch_tries_again():
    state = fetcher(a=MemoryLog([1]), b=MemoryLog([1]))
    state.add_partitions({A: InitialFetchState(1, 5), B: InitialFetchState(1, 5)})
    state.logs.logs[A].failures["append"] = DiskFull("full")
    reply_to(state, {A: FetchedPartition((5, 1), 1, 0), B: FetchedPartition((5, 1), 1, 0)}, now=100)
    assert not state.failed and list(next_request(state, 100).partitions) == [B]
    state.on_failure(state._in_flight, NetworkException("x"), 100)
    request = next_request(state, 100 + BACKOFF)
    assert request.partitions[A].fetch_offset == 1


def test_a_disk_that_stays_full_is_logged_at_growing_intervals_for_all_partitions_together(caplog):
    """It was once a second for each."""
    caplog.set_level("INFO")
    state = fetcher(a=MemoryLog([1]), b=MemoryLog([1]))
    state.add_partitions({A: InitialFetchState(1, 5), B: InitialFetchState(1, 5)})
    for log in state.logs.logs.values():
        log.failures["append"] = DiskFull("No space left on device")
    for second in range(50):
        reply_to(state, {A: FetchedPartition((5, 1), 1, 0), B: FetchedPartition((5, 1), 1, 0)}, now=second * BACKOFF)
    lines = [line for line in caplog.messages if "No space left" in line]
    assert len(lines) == 6 and "a-0: fetched at 1: No space left on device" in lines[0]


@pytest.mark.parametrize(
    "error", [UnknownLeaderEpoch(), NotLeaderOrFollower(), UnknownTopicOrPartition(), UnknownServerError()]
)
def test_FT_23_FT_25_FT_26_an_error_delays_its_partition_once_puts_it_last_and_others_go_on(error):
    state = fetcher(a=MemoryLog([1]), b=MemoryLog([1]))
    state.add_partitions({A: InitialFetchState(1, 5), B: InitialFetchState(1, 5)})
    reply_to(state, {A: FetchedPartition(error=error)}, now=100)
    assert list(state.states) == [B, A] and state.states[A].delayed_until_ms == 100 + BACKOFF
    request = next_request(state, 200)
    assert list(request.partitions) == [B]
    state.on_failure(request, NetworkException("x"), 200)
    assert state.states[A].delayed_until_ms == 100 + BACKOFF  # not delayed again
    assert list(next_request(state, 100 + BACKOFF).partitions) == [A]


def test_FT_24_a_fenced_partition_is_failed_until_it_is_added_with_a_new_epoch():
    state = fetching()
    reply_to(state, {A: FetchedPartition(error=FencedLeaderEpoch())})
    assert set(state.failed) == {A} and state.next_request(0) == Wait(BACKOFF)


def test_an_answer_for_many_partitions_is_one_line_for_each_kind_of_error(caplog):
    state = fetcher(a=MemoryLog([1]), b=MemoryLog([1]), c=MemoryLog([1]))
    state.add_partitions({tp: InitialFetchState(1, 5) for tp in (A, B, C)})
    moved, fenced = FetchedPartition(error=NotLeaderOrFollower()), FetchedPartition(error=FencedLeaderEpoch())
    with caplog.at_level("INFO"):
        reply_to(state, {A: moved, B: fenced, C: moved})
    assert sorted(record.getMessage() for record in caplog.records) == [
        "the leader answers FencedLeaderEpoch, the controller will name a newer leader epoch, for 1 partition: b-1",
        "the leader answers NotLeaderOrFollower, asking again later, for 2 partitions: a-0, c-2",
    ]
    caplog.clear()
    with caplog.at_level("INFO"):
        reply_to(state, {A: moved}, now=BACKOFF)
    assert "for 1 partition: a-0" in caplog.text


def test_FT_24_one_that_got_a_new_epoch_meanwhile_is_only_delayed():
    state = fetching()
    request = next_request(state)
    state.add_partitions({A: InitialFetchState(3, 6)})
    state.on_reply(request, FetchReply({A: FetchedPartition(error=FencedLeaderEpoch())}), 0)
    assert not state.failed and state.next_request(0) == Wait(BACKOFF)
    assert next_request(state, BACKOFF).partitions[A].current_leader_epoch == 6


# -- what a reply does to the log, and what a fetch holds -----------------------------------------------------------


def test_RFT_02_RFT_12_a_fetch_carries_the_limits_and_each_partitions_offsets_epochs_and_topic_id():
    state = fetcher(a=MemoryLog([1, 1, 2], start=4))
    state.add_partitions({A: InitialFetchState(7, 5)})
    request = next_request(state)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (300, 7, 5000)
    data = request.partitions[A]
    assert (data.fetch_offset, data.max_bytes, data.log_start_offset) == (7, 400, 4)
    assert (data.current_leader_epoch, data.last_fetched_epoch, data.topic_id) == (5, 2, topic_id(A))


def test_RFT_12_to_a_leader_that_does_not_look_at_it_no_epoch_is_sent():
    assert next_request(fetching(on_fetch=False)).partitions[A].last_fetched_epoch == -1


def test_RFT_12_a_throttled_partition_is_left_out_unless_it_is_in_sync():
    throttled = set()
    state = fetcher(throttled=throttled, a=MemoryLog([1]), b=MemoryLog([1]))
    state.add_partitions({A: InitialFetchState(1, 5), B: InitialFetchState(1, 5)})
    reply_to(state, {A: FetchedPartition(b"", 1, 0)})  # A is in sync
    throttled |= {A, B}
    assert set(next_request(state).partitions) == {A}


def test_RFT_13_a_storage_error_while_a_fetch_is_built_delays_its_partition_alone():
    state = fetcher(a=MemoryLog([1]), b=MemoryLog([1]))
    state.add_partitions({A: InitialFetchState(1, 5), B: InitialFetchState(1, 5)})
    state.logs.logs[A].failures["start_and_topic_id"] = KafkaStorageError("disk")
    assert set(next_request(state).partitions) == {B}
    assert not state.failed and state.states[A].delayed_until_ms == BACKOFF


def test_RFT_03_an_answer_for_another_offset_than_the_logs_end_fails_its_partition_and_writes_nothing():
    state = fetching()
    request = next_request(state)
    state.logs.logs[A].epochs += [1]
    state.on_reply(request, FetchReply({A: FetchedPartition((5, 2), 9, 0)}), 0)
    assert set(state.failed) == {A} and not state.logs.done


def test_RFT_07_RFT_08_RFT_11_records_come_before_the_high_watermark_and_that_before_the_log_start():
    state = fetching()
    reply_to(state, {A: FetchedPartition((5, 2), high_watermark=4, log_start_offset=2)})
    names = [name for name, *_ in state.logs.done]
    assert names == ["append", "update_high_watermark", "maybe_increment_log_start_offset"]
    reply_to(state, {A: FetchedPartition(b"", high_watermark=5, log_start_offset=3)})
    log = state.logs.logs[A]
    assert (log.high_watermark, log.start, log.end) == (5, 3, 5)


def test_RFT_08_a_log_start_above_the_own_high_watermark_fails_the_partition():
    state = fetching()
    reply_to(state, {A: FetchedPartition(b"", high_watermark=2, log_start_offset=0)})
    reply_to(state, {A: FetchedPartition(b"", high_watermark=2, log_start_offset=3)})
    assert set(state.failed) == {A}


def test_RFT_08_a_log_that_was_not_compared_with_the_leaders_starts_anew_at_its_log_start():
    """The first answer after a change of the leader has a log start at our end: all our records are below it."""
    state = fetching()
    log = state.logs.logs[A]
    end = log.end
    reply_to(state, {A: FetchedPartition(b"", high_watermark=end, log_start_offset=end)})
    assert (log.start, log.end, log.high_watermark) == (end, end, end)
    assert state.states[A].last_fetched_epoch == -1 and not state.failed


def test_RFT_08_a_log_that_was_compared_keeps_its_records_below_the_leaders_log_start():
    """Its producers' batches are committed ones, and must be recognised when they come again."""
    state = fetching()
    log = state.logs.logs[A]
    end = log.end
    reply_to(state, {A: FetchedPartition(b"", high_watermark=end, log_start_offset=0)})
    reply_to(state, {A: FetchedPartition(b"", high_watermark=end, log_start_offset=end)})
    assert (log.start, log.end) == (end, end)
    assert not any(call[0] == "truncate_fully_and_start_at" for call in state.logs.done)


# -- what a request costs ---------------------------------------------------------------------------------------------


def test_a_fetch_looks_only_at_the_partitions_that_have_changed_and_names_them():
    tps = [TopicPartition("t", number) for number in range(50)]
    state = fetcher()
    state.logs.logs = {tp: MemoryLog([1]) for tp in tps}
    looked_at = []
    start_and_topic_id = state.logs.start_and_topic_id
    state.logs.start_and_topic_id = lambda tp: looked_at.append(tp) or start_and_topic_id(tp)
    state.add_partitions({tp: InitialFetchState(1, 5) for tp in tps})
    first = reply_to(state, {tp: FetchedPartition(b"", 1, 0) for tp in tps})
    assert first.changed is None and list(first.partitions) == tps == looked_at
    second = reply_to(state, {})
    looked_at.clear()
    third = reply_to(state, {tps[7]: FetchedPartition((5, 2), 3, 0)})
    assert (second.changed, third.changed, looked_at) == ([], [], [])
    assert third.partitions == first.partitions
    state.remove_partitions([tps[3]])
    state.add_partitions({tps[3]: InitialFetchState(0, 6)})
    state.remove_partitions([tps[4]])
    fourth = next_request(state)
    assert set(fourth.changed) == {tps[7], tps[4], tps[3]} and set(looked_at) == {tps[7], tps[3]}
    assert list(fourth.partitions)[-2:] == [tps[7], tps[3]] and tps[4] not in fourth.partitions
    assert first.partitions[tps[7]].fetch_offset == 1, "a request that was sent does not change any more"


def test_a_log_start_that_retention_has_raised_is_sent_within_half_a_minute():
    state = fetching()
    reply_to(state, {}, now=0)
    del state.logs.logs[A].epochs[:1]
    state.logs.logs[A].start = 1
    assert reply_to(state, {}, now=29_000).changed == []
    request = next_request(state, now=30_000)
    assert request.changed == [A] and request.partitions[A].log_start_offset == 1


@pytest.mark.parametrize("seed", range(30))
def test_a_fetch_has_each_partition_as_a_walk_over_all_states_gives_it(seed):
    random = Random(seed)
    tps = [TopicPartition("t", number) for number in range(6)]
    throttled = set()
    state = fetcher(on_fetch=random.random() < 0.7, throttled=throttled if seed % 2 else None)
    logs = state.logs.logs = {tp: MemoryLog([1] * random.randrange(3)) for tp in tps}
    now, last = 0, {}
    for _ in range(120):
        now += random.choice([0, 0, 300, 1000])
        tp = random.choice(tps)
        action = random.randrange(6)
        if action == 0:
            state.add_partitions({tp: InitialFetchState(random.choice([-1, 0]), random.randrange(4))})
        elif action == 1:
            state.remove_partitions([tp])
        elif action == 2:
            state.mark_for_truncation(tp, 0)
        elif action == 3:
            throttled ^= {tp}
        request = state.next_request(now)
        if isinstance(request, Wait):
            continue
        if isinstance(request, FetchRequest):
            ready = {
                tp: (s.fetch_offset, s.current_leader_epoch)
                for tp, s in state.states.items()
                if s.is_ready_for_fetch(now) and not (seed % 2 and not s.is_in_sync and tp in throttled)
            }
            sent = {tp: (data.fetch_offset, data.current_leader_epoch) for tp, data in request.partitions.items()}
            assert sent == ready, f"seed={seed}"
            if request.changed is not None:
                differing = {tp for tp in tps if last.get(tp) != request.partitions.get(tp)}
                assert differing <= set(request.changed), f"seed={seed}"
            last = request.partitions
        answers = {}
        for tp in request.partitions:
            log = logs[tp]
            if isinstance(request, ListOffsetsRequest):
                answers[tp] = ListedOffset(random.choice([-1, log.end]))
            elif isinstance(request, OffsetForLeaderEpochRequest):
                answers[tp] = EpochEndOffset(1, log.end)
            elif random.random() < 0.5:
                error = random.choice([None, None, NotLeaderOrFollower(), OffsetOutOfRange(), FencedLeaderEpoch()])
                answers[tp] = FetchedPartition((1, random.randrange(2)), random.choice([log.end, 99]), 0, error=error)
        kind = {FetchRequest: FetchReply, ListOffsetsRequest: ListOffsetsReply}.get(
            type(request), OffsetForLeaderEpochReply
        )
        if random.random() < 0.1:
            state.on_failure(request, NetworkException(), now)
        else:
            state.on_reply(request, kind(answers), now)


# -- sessions, other fetchers, other leaders --------------------------------------------------------------------------


def test_RFT_14_partitions_to_forget_are_sent_once_also_without_others():
    state = fetching(uses_sessions=True)
    reply_to(state, {})
    state.remove_partitions([A])
    request = reply_to(state, {})
    assert (request.partitions, request.changed) == ({}, [A])
    assert isinstance(state.next_request(0), Wait)


def test_RFT_14_nothing_to_send_and_nothing_to_forget_is_no_request():
    state = fetcher(uses_sessions=True)
    assert isinstance(state.next_request(0), Wait)
    state = fetching(uses_sessions=False)
    reply_to(state, {})
    state.remove_partitions([A])
    assert isinstance(state.next_request(0), Wait)


def test_FMGR_10_another_fetcher_goes_on_at_the_same_offset():
    state = fetching()
    reply_to(state, {A: FetchedPartition((1, 2), 5, 0)})
    other = fetcher(a=state.logs.logs[A])
    other.add_states(state.remove_partitions([A]))
    assert next_request(other).partitions[A].fetch_offset == 5


def test_a_request_that_the_leader_answers_wrongly_is_logged_at_growing_intervals(caplog):
    state = fetching()
    for second in range(50):
        now = second * BACKOFF
        state.on_failure(next_request(state, now), InvalidRequest("an answer for another topic"), now)
    assert caplog.messages == ["a request to the leader failed: an answer for another topic"] * 6
    assert {record.exc_info for record in caplog.records} == {None}


def test_a_leader_that_is_down_is_logged_once(caplog):
    state = fetching(uses_sessions=True)
    with caplog.at_level("INFO"):
        for now in (0, BACKOFF, 2 * BACKOFF):
            state.on_failure(state.next_request(now), ConnectionRefusedError("refused"), now)
            assert reply_to(state, {}, now).partitions == {}  # the session forgets what is delayed
        assert len(caplog.records) == 1
        reply_to(state, {}, now=3 * BACKOFF)
        state.on_failure(state.next_request(3 * BACKOFF), ConnectionRefusedError("refused"), 3 * BACKOFF)
    assert len(caplog.records) == 2


def test_the_log_names_the_leader_that_a_request_goes_to(caplog):
    state = FetcherState(MemoryLogs(a=MemoryLog([1])), FetcherConfig(), leader="leader broker 7")
    state.add_partitions({A: InitialFetchState(1, 5)})
    with caplog.at_level("INFO"):
        state.on_failure(state.next_request(0), TimeoutError(110, "h:9092: no answer"), 0)
        reply_to(state, {A: FetchedPartition(error=NotLeaderOrFollower())}, now=2 * BACKOFF)
    failed, refused = (record.getMessage() for record in caplog.records)
    assert failed == "a request to leader broker 7 failed: h:9092: no answer"
    assert refused.startswith("leader broker 7 answers NotLeaderOrFollower")


def test_what_keeps_a_partition_from_going_on_is_told_until_it_goes_on():
    log = MemoryLog([1])
    state = fetcher(a=log, b=MemoryLog([1]), uses_sessions=True)
    state.add_partitions({A: InitialFetchState(1, 5), B: InitialFetchState(1, 5)})
    assert (state.delay_reason(A), state.delay_reason(B)) == (None, None)
    log.failures["append"] = DiskFull("No space left on device")
    reply_to(state, {A: FetchedPartition((5, 1), 2, 0)})
    assert (state.delay_reason(A), state.delay_reason(B)) == ("the disk is full: No space left on device", None)
    del log.failures["append"]
    reply_to(state, {A: FetchedPartition(error=NotLeaderOrFollower())}, now=BACKOFF)
    assert state.delay_reason(A) == "the leader answers NotLeaderOrFollower"
    now = 2 * BACKOFF
    state.on_failure(next_request(state, now), TimeoutError("h:1: no answer"), now)
    assert state.delay_reason(A) == state.delay_reason(B) == "a request to the leader failed: h:1: no answer"
    reply_to(state, {}, now=3 * BACKOFF)  # the session has no news of them
    reply_to(state, {}, now=3 * BACKOFF)
    assert (state.delay_reason(A), state.delay_reason(B)) == (None, None)
    log.failures["append"] = KafkaStorageError("the directory has failed")
    reply_to(state, {A: FetchedPartition((5, 1), 2, 0)}, now=4 * BACKOFF)
    assert "not copied any more" in state.delay_reason(A) and "the directory has failed" in state.delay_reason(A)
    state.remove_partitions([A])
    assert state.delay_reason(A) is None


def test_QUOTA_02_a_partition_that_the_followers_throttle_holds_back_says_so():
    throttled = set()
    state = fetcher(throttled=throttled, a=MemoryLog([1]), b=MemoryLog([1]))
    state.add_partitions({A: InitialFetchState(1, 5), B: InitialFetchState(1, 5)})
    reply_to(state, {A: FetchedPartition(b"", 1, 0)})  # A is in sync
    assert (state.delay_reason(A), state.delay_reason(B)) == (None, None)
    throttled |= {A, B}
    assert state.delay_reason(A) is None
    assert "follower.replication.throttled.rate" in state.delay_reason(B)


def test_fetchers_that_share_the_failed_partitions_clear_each_others_marks():
    failed = set()
    one, other = fetching(failed=failed), fetcher(failed=failed, a=MemoryLog([1]))
    reply_to(one, {A: FetchedPartition(error=FencedLeaderEpoch())})
    assert failed == {A}
    other.add_partitions({A: InitialFetchState(0, 6)})
    assert failed == set()


def test_at_a_leader_that_does_not_truncate_on_fetch_epochs_are_looked_up_first():
    state = fetching(epochs=(1, 1, 1))
    state.logs.logs[A].high_watermark = 2
    state.use_features(LeaderFeatures(truncates_on_fetch=False))
    assert next_request(state).partitions == {A: EpochQuestion(5, 1)}
    state.on_reply(state._in_flight, OffsetForLeaderEpochReply({A: EpochEndOffset(-1, -1)}), 0)
    request = next_request(state)
    assert (request.partitions[A].fetch_offset, request.partitions[A].last_fetched_epoch) == (2, -1)
    state.on_reply(request, FetchReply(), 0)
    state.use_features(LeaderFeatures())
    assert next_request(state).partitions[A].last_fetched_epoch == 1
