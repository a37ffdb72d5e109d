"""When the follower's fetcher truncates its log, and where to: by epochs, and at an offset that is out of range."""

import pytest

from kcore.errors import (
    FencedLeaderEpoch,
    KafkaStorageError,
    NetworkException,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from kcore.replica.fetcher.fetcher_state import InitialFetchState, Wait
from kcore.replica.fetcher.leader_endpoint import (
    EpochEndOffset,
    EpochQuestion,
    FetchedPartition,
    FetchReply,
    FetchRequest,
    ListedOffset,
    OffsetForLeaderEpochReply,
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
    fetcher,
    fetching,
    next_request,
    reply_to,
)

# -- truncating -------------------------------------------------------------------------------------------------------


def truncating(**logs):
    state = fetcher(on_fetch=False, **logs)
    names = {"a": A, "b": B, "c": C}
    state.add_partitions({names[name]: InitialFetchState(log.high_watermark, 5) for name, log in logs.items()})
    return state


def test_FT_01_FT_06_truncation_comes_before_the_fetch_and_looks_up_all_logs_with_epochs_at_once():
    state = truncating(a=MemoryLog([1, 2]), b=MemoryLog([-1, -1], high_watermark=1), c=MemoryLog([4]))
    request = reply_to(state, {A: EpochEndOffset(2, 2), C: EpochEndOffset(4, 1)})
    assert request.partitions == {A: EpochQuestion(5, 2), C: EpochQuestion(5, 4)}
    assert isinstance(next_request(state), FetchRequest)


def test_FT_07_FT_08_a_log_without_epochs_is_cut_at_its_high_watermark_without_a_question():
    state = truncating(a=MemoryLog([-1, -1, -1], high_watermark=2))
    request = next_request(state)
    assert isinstance(request, FetchRequest) and request.partitions[A].fetch_offset == 2
    assert state.logs.done == [("truncate_to", A, 2, True)]


def test_FT_06_without_epoch_lookups_the_high_watermark_decides_for_all():
    state = fetcher(on_fetch=False, looks_up_epochs=False, a=MemoryLog([1, 1, 1]))
    state.add_partitions({A: InitialFetchState(2, 5)})
    assert next_request(state).partitions[A].fetch_offset == 2


def test_FT_09_an_answer_for_another_leader_epoch_is_dropped():
    state = truncating(a=MemoryLog([1, 2]), b=MemoryLog([3]))
    request = next_request(state)
    state.add_partitions({A: InitialFetchState(0, 6)})
    state.on_reply(request, OffsetForLeaderEpochReply({A: EpochEndOffset(2, 1), B: EpochEndOffset(3, 1)}), 0)
    assert state.logs.done == [("truncate_to", B, 1, True)]
    assert next_request(state).partitions == {A: EpochQuestion(6, 2)}


def test_FT_09_an_answer_about_a_partition_that_was_not_requested_is_a_failure():
    state = truncating(a=MemoryLog([1, 2]))
    request = next_request(state)
    state.on_reply(request, OffsetForLeaderEpochReply({A: EpochEndOffset(2, 1), B: EpochEndOffset(3, 1)}), 0)
    assert not state.logs.done and state.next_request(0) == Wait(BACKOFF)
    assert next_request(state, BACKOFF).partitions == {A: EpochQuestion(5, 2)}


def test_a_reply_of_another_kind_than_the_request_is_a_failure():
    state = truncating(a=MemoryLog([1, 2]))
    state.on_reply(next_request(state), FetchReply({A: FetchedPartition()}), 0)
    assert not state.logs.done and state.next_request(0) == Wait(BACKOFF)


def test_FT_10_EPOCH_09_an_unknown_epoch_truncates_and_looks_up_the_one_before_until_both_have_it():
    state = truncating(a=MemoryLog([1, 1, 2, 4, 4]), b=MemoryLog([3]))
    b_before = None
    reply_to(state, {A: EpochEndOffset(3, 9)})  # B is left out of the answer
    b_before = state.states[B]
    assert state.logs.done == [("truncate_to", A, 3, False)]
    assert state.states[A].phase is Phase.TRUNCATING and state.states[A].fetch_offset == 3
    request = reply_to(state, {A: EpochEndOffset(2, 3)})
    assert request.partitions[A] == EpochQuestion(5, 2)
    assert state.states[A].phase is Phase.FETCHING and state.states[B] is b_before


def test_EPOCH_06_EPOCH_11_without_an_epoch_of_the_leader_it_truncates_to_its_high_watermark_and_fetches_there():
    state = truncating(a=MemoryLog([1, 1, 2, 2], high_watermark=1))
    reply_to(state, {A: EpochEndOffset()})
    assert state.logs.done == [("truncate_to", A, 1, True)] and next_request(state).partitions[A].fetch_offset == 1


@pytest.mark.parametrize("error", [KafkaStorageError("disk"), RuntimeError("bug")])
def test_FT_11_a_truncation_that_fails_fails_its_partition_alone(error):
    state = truncating(a=MemoryLog([1, 2]), b=MemoryLog([3]))
    state.logs.logs[A].failures["truncate_to"] = error
    reply_to(state, {A: EpochEndOffset(2, 1), B: EpochEndOffset(3, 1)})
    assert set(state.failed) == {A} and set(state.states) == {B}
    assert set(next_request(state).partitions) == {B}


def test_FT_09_errors_of_an_epoch_lookup_delay_or_fence_each_partition_by_itself():
    state = truncating(a=MemoryLog([1]), b=MemoryLog([1]), c=MemoryLog([1]))
    answers = {A: EpochEndOffset(error=FencedLeaderEpoch()), B: EpochEndOffset(error=UnknownLeaderEpoch())}
    reply_to(state, {**answers, C: EpochEndOffset(1, 1)})
    assert set(state.failed) == {A}
    assert set(next_request(state).partitions) == {C}


def test_RFT_16_an_epoch_lookup_that_fails_as_a_whole_delays_each_of_its_partitions():
    state = truncating(a=MemoryLog([1]), b=MemoryLog([1]))
    state.on_failure(next_request(state), NetworkException("gone"), 10)
    assert state.next_request(10) == Wait(10 + BACKOFF)
    assert set(next_request(state, 10 + BACKOFF).partitions) == {A, B}


def test_RFT_15_only_a_completed_truncation_reaches_the_log_dir_move():
    state = truncating(a=MemoryLog([1, 2]))
    reply_to(state, {A: EpochEndOffset(1, 9)})
    assert state.logs.done == [("truncate_to", A, 1, True)]
    state = truncating(a=MemoryLog([1, 3]))
    reply_to(state, {A: EpochEndOffset(2, 9)})
    assert state.logs.done == [("truncate_to", A, 1, False)]


def test_V22_11_a_diverging_epoch_cuts_the_log_and_takes_neither_high_watermark_nor_log_start():
    state = fetching(epochs=(1, 1, 3, 3))
    assert next_request(state).partitions[A].last_fetched_epoch == 3
    state.on_reply(state._in_flight, FetchReply({A: FetchedPartition((5, 1), 4, 4, diverging_epoch=(2, 9))}), 0)
    assert state.logs.done == [("truncate_to", A, 2, False)]
    request = next_request(state)
    assert (request.partitions[A].fetch_offset, request.partitions[A].last_fetched_epoch) == (2, 1)


@pytest.mark.parametrize("diverging", [(3, 9), (4, 9), (9, 9)])
def test_a_diverging_epoch_that_cuts_nothing_delays_its_partition_alone(diverging):
    """Only a leader that contradicts itself sends one: it would get the same request again and again."""
    state = fetching(epochs=(1, 1, 3, 3))
    state.logs.logs[B] = MemoryLog([1])
    state.add_partitions({B: InitialFetchState(1, 5)})
    request = next_request(state)
    state.on_reply(request, FetchReply({A: FetchedPartition(diverging_epoch=diverging)}), 0)
    assert set(next_request(state).partitions) == {B}
    state.on_failure(state._in_flight, NetworkException("gone"), 0)
    again = next_request(state, BACKOFF).partitions[A]
    assert (again.fetch_offset, again.last_fetched_epoch) == (4, 3)


# -- out of range -----------------------------------------------------------------------------------------------------


def out_of_range(**more):
    state = fetching(**more)
    reply_to(state, {A: FetchedPartition(error=OffsetOutOfRange())})
    return state


def test_FT_22_FT_27_a_leader_that_ends_lower_was_elected_uncleanly_the_log_is_cut_there():
    state = out_of_range(epochs=(1, 2, 2))
    assert reply_to(state, {A: ListedOffset(1)}).partitions == {A: OffsetQuestion(5, LATEST)}
    assert state.logs.done == [("truncate_to", A, 1, True)]
    assert state.states[A] == PartitionFetchState(1, 5, Phase.FETCHING, lag=0, last_fetched_epoch=1)
    assert next_request(state).partitions[A].fetch_offset == 1  # without a delay


def test_FT_28_FT_29_a_leader_that_starts_above_our_end_begins_our_log_anew():
    state = out_of_range()
    reply_to(state, {A: ListedOffset(20)})
    assert reply_to(state, {A: ListedOffset(10)}).partitions == {A: OffsetQuestion(5, EARLIEST)}
    assert state.logs.done == [("truncate_fully_and_start_at", A, 10)]
    assert state.states[A] == PartitionFetchState(10, 5, Phase.FETCHING, lag=10, last_fetched_epoch=-1)


@pytest.mark.parametrize("leader_start", [0, 3])
def test_FT_29_if_our_end_is_in_the_leaders_range_our_log_is_kept_and_the_fetch_is_repeated_later(leader_start):
    state = out_of_range()
    for now in (0, BACKOFF):
        reply_to(state, {A: ListedOffset(3)}, now)
        reply_to(state, {A: ListedOffset(leader_start)}, now)
        assert state.next_request(now) == Wait(now + BACKOFF)
        assert reply_to(state, {A: FetchedPartition(error=OffsetOutOfRange())}, now + BACKOFF).partitions.keys() == {A}
        assert state.states[A].fetch_offset == 3
    assert not state.logs.done


def test_FT_30_the_leaders_log_start_may_move_again_any_number_of_times():
    state = fetching()
    for start in (10, 30, 50):
        reply_to(state, {A: FetchedPartition(error=OffsetOutOfRange())})
        reply_to(state, {A: ListedOffset(100)})
        reply_to(state, {A: ListedOffset(start)})
        assert state.states[A].fetch_offset == start and state.states[A].lag == 100 - start


@pytest.mark.parametrize("answers", [0, 1])
def test_FT_31_errors_of_an_offset_lookup_delay_it_and_then_it_begins_again(answers):
    state = out_of_range()
    if answers:
        reply_to(state, {A: ListedOffset(20)})
    reply_to(state, {A: ListedOffset(error=UnknownLeaderEpoch())})
    assert state.next_request(0) == Wait(BACKOFF)
    assert next_request(state, BACKOFF).partitions == {A: OffsetQuestion(5, LATEST)}
    state.on_failure(state._in_flight, NetworkException("gone"), BACKOFF)
    assert state.next_request(BACKOFF) == Wait(2 * BACKOFF)


def test_FT_31_a_fenced_offset_lookup_fails_its_partition():
    state = out_of_range()
    reply_to(state, {A: ListedOffset(error=FencedLeaderEpoch())})
    assert set(state.failed) == {A}


def test_a_log_that_starts_above_the_leaders_end_starts_anew_at_the_leaders_log_start():
    """Cut at the leader's end it would be empty, and count as in sync without what the leader has below."""
    state = fetcher(a=MemoryLog([1, 1], start=40))
    state.add_partitions({A: InitialFetchState(40, 5)})
    reply_to(state, {A: FetchedPartition(error=OffsetOutOfRange())})
    reply_to(state, {A: ListedOffset(30)})
    assert not state.logs.done
    request = reply_to(state, {A: ListedOffset(10)})
    assert request.partitions[A].timestamp == EARLIEST
    assert state.logs.done == [("truncate_fully_and_start_at", A, 10)]
    assert (state.states[A].fetch_offset, state.states[A].lag, state.states[A].last_fetched_epoch) == (10, 20, -1)


def test_an_offset_lookup_without_an_offset_is_sent_again_later():
    state = out_of_range()
    reply_to(state, {A: ListedOffset(-1)})
    assert not state.failed and state.next_request(0) == Wait(BACKOFF)


@pytest.mark.parametrize("call", ["log_end_offset", "truncate_fully_and_start_at", "latest_epoch"])
def test_FT_11_a_log_that_fails_after_an_offset_lookup_fails_its_partition(call):
    state = out_of_range()
    state.logs.logs[A].failures[call] = KafkaStorageError("disk")
    reply_to(state, {A: ListedOffset(20)})
    if call != "log_end_offset":
        reply_to(state, {A: ListedOffset(10)})
    assert set(state.failed) == {A} and not state.states


def test_FT_32_marking_for_truncation_cuts_no_later_than_the_fetch_offset():
    state = fetching(on_fetch=False)
    reply_to(state, {A: FetchedPartition(high_watermark=9, log_start_offset=0)})
    state.mark_for_truncation(A, 9)
    assert state.states[A] == PartitionFetchState(3, 5, Phase.TRUNCATING, lag=6)
    state.mark_for_truncation(A, 1)
    assert state.states[A].fetch_offset == 1
    state.mark_for_truncation(B, 1)
    assert set(state.states) == {A}


# -- a leader that contradicts itself -------------------------------------------------------------------------------


@pytest.mark.parametrize("log_start_offset", [4, 1 << 40])
@pytest.mark.parametrize("high_watermark", [3, 1 << 41])
def test_a_first_answer_that_contradicts_itself_removes_nothing_and_an_honest_one_is_taken(
    caplog, log_start_offset, high_watermark
):
    """A log start above the high watermark, or above the offset of a fetch that was not refused as out of range."""
    state = fetching()
    log = state.logs.logs[A]
    answer = FetchedPartition(b"", high_watermark, log_start_offset)
    for second in range(20):
        reply_to(state, {A: answer}, now=second * BACKOFF)
    assert (log.start, log.epochs, log.high_watermark) == (0, [1, 1, 1], 0)
    assert not state.logs.done and not state.failed
    assert f"starts at {log_start_offset}" in state.delay_reason(A)
    assert len([line for line in caplog.messages if "contradicts itself" in line]) == 5  # at growing intervals
    reply_to(state, {A: FetchedPartition((5, 2), high_watermark=5, log_start_offset=2)}, now=20 * BACKOFF)
    assert (log.start, log.epochs, log.high_watermark) == (2, [1, 5, 5], 5)
    assert state.states[A].is_in_sync and state.delay_reason(A) is None


def test_a_leader_whose_log_would_start_above_its_end_does_not_make_ours_start_anew():
    state = out_of_range()
    reply_to(state, {A: ListedOffset(20)})
    reply_to(state, {A: ListedOffset(1 << 40)})
    assert not state.logs.done and not state.failed and state.next_request(0) == Wait(BACKOFF)
    assert "starts at 1099511627776 and ends at 20" in state.delay_reason(A)
    request = reply_to(state, {A: ListedOffset(20)}, now=BACKOFF)
    assert request.partitions[A].timestamp == LATEST
    reply_to(state, {A: ListedOffset(10)}, now=BACKOFF)
    assert state.logs.logs[A].start == 10


@pytest.mark.parametrize("epoch_end", [(1, -9), (-9, 2), (-9, -9)])
@pytest.mark.parametrize("on_fetch", [True, False])
def test_an_epoch_end_that_cannot_be_cuts_nothing(caplog, epoch_end, on_fetch):
    state = fetching() if on_fetch else truncating(a=MemoryLog([1, 1, 1]))
    answer = FetchedPartition(diverging_epoch=epoch_end) if on_fetch else EpochEndOffset(*epoch_end)
    reply_to(state, {A: answer})
    assert not state.logs.done and not state.failed and state.next_request(0) == Wait(BACKOFF)
    assert f"ends at {epoch_end[1]}" in state.delay_reason(A)
