"""A history for each rule: it breaks no invariant with the rule, and one without it."""

from __future__ import annotations

import pytest

from kcore.log.log_hot_path import FetchDataInfo
from kcore.log.log_offset_metadata import LogOffsetMetadata
from kcore.log.offset_truncation import OffsetTruncationState
from kcore.record.memory_records import EMPTY
from kcore.replica import isr as isr_rules
from kcore.replica import partition, replica_manager
from kcore.replica.fetcher import fetcher_state
from kcore.replica.fetcher.fetcher_state import FetcherState
from kcore.replica.fetcher.follower_logs import AppendedRecords, ReplicaLogs
from kcore.replica.local_reads import LocalReads
from kcore.replica.partition import LogReadInfo, Partition
from kcore.replica.partition_state import PendingIsr
from kcore.replication.fetch_session_handler import FetchSessionHandler
from kcore.server.requests.fetch_session import CachedPartition
from tests.sim import clients, controller
from tests.sim.events import (
    CONSUMER,
    CONTROLLER,
    PRODUCER,
    Consume,
    Crash,
    Cut,
    Delay,
    DeleteRecords,
    Elect,
    Lose,
    Produce,
    ProduceIdempotent,
    Settings,
)

KILLED, LOSES_POWER = "is killed", "loses power"

ACKNOWLEDGED = "no_acknowledged_record_is_lost_or_reordered"
EQUAL = "replicas_are_equal_up_to_the_high_watermark"
EQUAL_AT_THE_END = "the_replicas_become_equal"
ONE_HISTORY = "a_consumer_reads_one_history"
TIMEOUT = "no_request_times_out_when_all_is_done"
MEMBERS = "the_high_watermark_never_passes_the_log_end_of_an_isr_member"


def cut_at_the_high_watermark(leader_epoch, leader_end_offset, *, initial_offset, log_end_offset, **others):
    """How followers truncated before KIP-101."""
    return OffsetTruncationState(min(initial_offset, log_end_offset), True)


def test_KIP_101_a_follower_does_not_lose_what_its_high_watermark_does_not_yet_cover(scenario):
    """The record is acknowledged, but the follower's high watermark is still below it; the follower leads next."""
    history = scenario(
        Settings(brokers=2, truncates_on_fetch=False),
        Produce(100, 0),
        Elect(200, 0, 0),
        Cut(205, 0, 1, 1000),
        Crash(250, 0, KILLED, down_ms=2000),
    )
    history.goes_well()
    history.breaks(ACKNOWLEDGED, fetcher_state, "offset_truncation_state", cut_at_the_high_watermark)


def test_KIP_101_replicas_do_not_diverge_when_both_crash_and_one_has_lost_its_tail(scenario):
    """The one with the shorter log comes first and writes another record where the other one's log goes on."""
    history = scenario(
        Settings(brokers=2, truncates_on_fetch=False, unclean=True, flush_checkpoint_ms=100_000),
        Produce(100, 0),
        Produce(200, 0),
        Crash(2000, 1, LOSES_POWER, down_ms=50, kept=0.5),
        Crash(2000, 0, KILLED, down_ms=500),
        Produce(2100, 0, acks=1),
    )
    history.goes_well()
    history.breaks(EQUAL_AT_THE_END, fetcher_state, "offset_truncation_state", cut_at_the_high_watermark)


def no_truncation(leader_epoch, leader_end_offset, *, log_end_offset, **others):
    return OffsetTruncationState(log_end_offset, True)


def without_the_leaders_epoch(leader_epoch, leader_end_offset, *, initial_offset, log_end_offset, **others):
    """How followers truncated after KIP-101 and before KIP-279: by the end offset alone."""
    end_offset = leader_end_offset if leader_end_offset >= 0 else initial_offset
    return OffsetTruncationState(min(end_offset, log_end_offset), True)


def test_KIP_279_replicas_do_not_diverge_after_fast_leader_changes(scenario):
    """Each leads twice without having the other's records: neither has the other's epochs."""
    history = scenario(
        Settings(brokers=2, truncates_on_fetch=False, unclean=True),
        Produce(100, 0),
        Cut(200, 0, 1, 1000),
        Produce(210, 0, acks=1),
        Elect(220, 0, 1),
        Produce(230, 0, acks=1),
        Elect(240, 0, 0),
        Produce(250, 0, acks=1),
        Produce(260, 0, acks=1),
        Elect(270, 0, 1),
        Produce(280, 0, acks=1),
    )
    history.goes_well()
    history.breaks(EQUAL_AT_THE_END, fetcher_state, "offset_truncation_state", without_the_leaders_epoch)


def test_KIP_320_a_fetcher_with_an_old_epoch_is_fenced(scenario, monkeypatch):
    """Broker 1 still copies from broker 0 by the first epoch, with a record that was truncated elsewhere."""
    read_records, of_broker = Partition.read_records, Partition.follower_replica

    def read_whatever_the_epoch(self, fetch_offset, max_bytes, isolation, min_one, current_leader_epoch=-1, *others):
        return read_records(self, fetch_offset, max_bytes, isolation, min_one, -1, *others)

    history = scenario(
        Settings(truncates_on_fetch=False),
        Delay(99, 0, 2, by_ms=105),
        Produce(100, 0, acks=1),
        Delay(190, CONTROLLER, 1, by_ms=1000, count=2),
        Elect(200, 0, 2),
        Produce(210, 0),
        Elect(230, 0, 0),
    )
    history.goes_well()
    monkeypatch.setattr(Partition, "follower_replica", lambda self, broker_id, epoch=-1: of_broker(self, broker_id))
    history.breaks(EQUAL, Partition, "read_records", read_whatever_the_epoch)


#: Broker 0 alone has three records, which a consumer reads; broker 1 is elected, and writes others.
ANOTHER_HISTORY = (
    Cut(50, 0, 1, 3000),
    Produce(100, 0, acks=1),
    Produce(110, 0, acks=1),
    Produce(120, 0, acks=1),
    Consume(2500, 0),
    Consume(2520, 0),
    Elect(2550, 0, 1),
    *(Produce(at_ms, 0, acks=1) for at_ms in range(2560, 2610, 10)),
)


def test_KIP_320_a_consumer_asks_a_new_leader_whether_its_log_is_the_one_that_it_has_read(scenario):
    """Without that it would read on in another history, at an offset that happens to be there."""
    history = scenario(
        Settings(brokers=2, unclean=True),
        *ANOTHER_HISTORY,
        Consume(4500, 0),
    )
    history.goes_well()
    history.breaks(ONE_HISTORY, clients, "must_validate", lambda *question: False)


def test_KIP_320_a_leader_that_answers_the_end_of_another_epoch_misleads_a_consumer(scenario):
    history = scenario(Settings(brokers=2, unclean=True), *ANOTHER_HISTORY, Consume(4500, 0))
    history.goes_well()
    of_its_own_epoch = lambda self, leader_epoch, *current: (leader_epoch, self.log.log_end_offset)  # noqa: E731
    history.breaks(ONE_HISTORY, Partition, "last_offset_for_leader_epoch", of_its_own_epoch)


def test_KIP_320_a_consumer_with_an_old_epoch_is_fenced(scenario):
    """Its fetch comes when its leader leads again, after another one, whose records are in its place now."""
    read_records = Partition.read_records

    def read_whatever_the_epoch(self, fetch_offset, max_bytes, isolation, min_one, current_leader_epoch=-1, *others):
        return read_records(self, fetch_offset, max_bytes, isolation, min_one, -1, *others)

    history = scenario(
        Settings(brokers=2, unclean=True),
        *ANOTHER_HISTORY,
        Delay(2545, CONSUMER, 0, by_ms=4000),
        Consume(2546, 0),
        Elect(5500, 0, 0),
        Produce(5600, 0),
    )
    history.goes_well()
    history.breaks(ONE_HISTORY, Partition, "read_records", read_whatever_the_epoch)


def test_HW_05_a_waiting_DeleteRecords_is_tried_again_when_a_replica_dies(scenario):
    """Broker 1 is not in the ISR, so that its death changes no leadership and is only in the next UpdateMetadata."""
    history = scenario(
        Settings(brokers=2),
        Produce(50, 0),
        Crash(100, 1, KILLED, down_ms=50, noticed_ms=1),
        Cut(149, 0, 1, 10_000),
        Crash(299, 1, KILLED, down_ms=5000, noticed_ms=400),
        DeleteRecords(300, 0, share=1.0),
        Consume(2000, 0),
    )
    history.goes_well()
    history.breaks(TIMEOUT, replica_manager.ReplicaManager, "increment_high_watermarks", lambda self: None)


def test_KIP_497_the_high_watermark_waits_for_an_isr_that_may_be_stored(scenario):
    """Broker 1 is in the stored ISR, but its leader never gets that answer; then broker 1 leads."""
    history = scenario(
        Settings(brokers=2),
        Crash(100, 1, KILLED, down_ms=50, noticed_ms=1),
        Lose(152, CONTROLLER, 0, count=6),
        Cut(153, 0, 1, 10_000),
        Produce(2000, 0),
        Crash(2100, 0, KILLED, down_ms=5000),
    )
    history.goes_well()
    history.breaks(ACKNOWLEDGED, PendingIsr, "maximal", property(lambda pending: pending.committed))


def test_V22_11_a_follower_truncates_before_it_takes_the_leaders_high_watermark(scenario):
    """Broker 0 has a record of its own where the new leader has a committed one."""
    on_fetched = FetcherState._on_fetched

    def high_watermark_first(self, request, reply, now_ms):
        for tp, answer in reply.partitions.items():
            if answer.diverging_epoch is not None:
                self._logs.update_high_watermark(tp, answer.high_watermark)
        on_fetched(self, request, reply, now_ms)

    history = scenario(
        Settings(),
        Cut(50, 0, 1, 200),
        Cut(50, 0, 2, 200),
        Produce(100, 0, acks=1),
        Delay(109, CONTROLLER, 0, by_ms=500),
        Elect(110, 0, 1),
        Cut(120, 0, 1, 500),
        Crash(130, 0, KILLED, down_ms=2000),
        Produce(200, 0),
        Produce(210, 0),
    )
    history.goes_well()
    history.breaks(EQUAL, FetcherState, "_on_fetched", high_watermark_first)


def joins_by_the_high_watermark_alone(replica, isr, high_watermark, *others):
    pending = isinstance(isr, PendingIsr) or replica.broker_id in isr.committed
    return not pending and replica.state.log_end_offset >= high_watermark


def test_PART_13_a_follower_joins_the_isr_only_within_the_current_epoch(scenario):
    """The new leader's high watermark is below a record that was acknowledged under the old one."""
    history = scenario(
        Settings(),
        Crash(50, 2, LOSES_POWER, down_ms=300, noticed_ms=1),
        Produce(100, 0),
        Cut(199, 0, 1, 1000),
        Elect(200, 0, 1),
        Lose(351, 1, 2, count=3),
        Cut(355, 0, 2, 1000),
        Crash(360, 1, KILLED, down_ms=2000, noticed_ms=1),
        Elect(400, 0, 2),
    )
    history.goes_well()
    history.breaks(ACKNOWLEDGED, isr_rules, "may_join_isr", joins_by_the_high_watermark_alone)


def test_PART_04_a_leader_that_missed_another_one_does_not_know_what_its_followers_have(scenario):
    """Broker 2 led in between, and broker 1 truncated for it; broker 0 never got that update (seed 386770297)."""
    history = scenario(
        Settings(segment_bytes=100000, retention_ms=2000, latency_ms=10),
        Delay(598, CONTROLLER, 0, by_ms=1000),
        Delay(803, 0, 2, by_ms=1000),
        Produce(813, 0),
        Elect(1130, 0, 2),
        Crash(1642, 2, "stops", down_ms=20, noticed_ms=10),
    )
    history.goes_well()
    history.breaks(MEMBERS, partition, "may_have_missed_a_leader", lambda old_epoch, new_epoch: False)


def test_V22_15_a_failed_read_does_not_move_the_followers_state(scenario):
    """A fetch of an old epoch comes late, with an offset that the follower has truncated since."""
    read = LocalReads.read

    def moved_by_a_failed_read(self, params, fetch_infos, fetch_time_ms):
        result = read(self, params, fetch_infos, fetch_time_ms)
        requested = dict(fetch_infos)
        for tp, answer in result.answers:
            hosted = self.hosted_partitions.get(tp)
            if fetch_time_ms is not None and answer.error is not None and hosted is not None and hosted.is_leader:
                metadata = LogOffsetMetadata(requested[tp].fetch_offset)
                seen = LogReadInfo(FetchDataInfo(metadata, EMPTY), 0, 0, hosted.log.log_end_offset, 0)
                replica = hosted.follower_replica(params.replica_id)
                if hosted.update_follower_fetch_state(replica, seen, 0, fetch_time_ms):
                    result.advanced.append(tp)
        return result

    history = scenario(
        Settings(),
        Delay(99, 0, 2, by_ms=250),
        Produce(100, 0, acks=1),
        Delay(102, 1, 0, by_ms=600),
        Elect(200, 0, 2),
        Elect(300, 0, 0),
        Produce(400, 0),
    )
    history.goes_well()
    history.breaks(MEMBERS, LocalReads, "read", moved_by_a_failed_read)


def test_KIP_903_an_isr_change_does_not_let_in_a_replica_that_has_started_again_since(scenario):
    """The change is on its way for half a second; meanwhile its new member loses the record it had."""
    history = scenario(
        Settings(brokers=2, flush_checkpoint_ms=5000),
        Crash(50, 1, KILLED, down_ms=100, noticed_ms=1),
        Produce(100, 0),
        Delay(154, 0, CONTROLLER, by_ms=500, count=4),
        Crash(200, 1, LOSES_POWER, down_ms=50, noticed_ms=1),
        Cut(201, 0, 1, 5000),
        Crash(700, 0, KILLED, down_ms=2000, noticed_ms=1),
    )
    history.goes_well()
    history.breaks(ACKNOWLEDGED, controller, "is_outdated", lambda broker_epoch, proposed_epoch: False)


@pytest.mark.parametrize("truncates_on_fetch", [True, False])
def test_EPOCH_12_replicas_become_equal_when_leadership_goes_to_and_fro_over_unequal_tails(
    scenario, truncates_on_fetch
):
    """0 leads, 1 leads, 0 leads; each wrote records that the other one never got."""
    history = scenario(
        Settings(brokers=2, truncates_on_fetch=truncates_on_fetch),
        Cut(90, 0, 1, 500),
        Produce(100, 0, acks=1),
        Produce(105, 0, acks=1),
        Elect(110, 0, 1),
        Produce(120, 0, acks=1),
        Elect(130, 0, 0),
    )
    history.goes_well()
    if truncates_on_fetch:
        history.breaks(EQUAL_AT_THE_END, partition, "diverging_epoch", lambda *question: None)
    else:
        history.breaks(EQUAL_AT_THE_END, fetcher_state, "offset_truncation_state", no_truncation)


def test_RFT_08_a_followers_log_starts_where_its_leaders_does(scenario):
    """Records are deleted while the follower is away."""
    history = scenario(
        Settings(brokers=2),
        Produce(100, 0),
        Produce(110, 0),
        Produce(120, 0),
        DeleteRecords(200, 0, share=0.7),
    )
    history.goes_well()
    history.breaks(EQUAL_AT_THE_END, ReplicaLogs, "maybe_increment_log_start_offset", lambda self, tp, offset: None)


def test_PART_21_a_follower_of_a_log_that_starts_inside_a_batch_starts_with_the_whole_batch(scenario):
    """Records are deleted up to the middle of a batch while the follower has none."""

    def append_or_fail(self, tp, records, *rest):
        info = self._partition_of(tp).append_records_to_follower_or_future_replica(records, is_future=False)
        return AppendedRecords(info.last_offset, info.last_leader_epoch)

    history = scenario(
        Settings(brokers=2),
        Crash(50, 1, KILLED, down_ms=1000, noticed_ms=1),
        Produce(100, 0, records=3),
        DeleteRecords(200, 0, share=0.7),
    )
    history.goes_well()
    history.breaks(EQUAL_AT_THE_END, ReplicaLogs, "append", append_or_fail)


def test_a_producers_batch_below_the_leaders_log_start_is_not_taken_for_a_committed_one(scenario):
    """Broker 0 has a batch that was never committed, and the leader's log starts above it: no epochs are compared.

    Elected, it would acknowledge the batch when its producer sends it again (seed 10998).
    """
    history = scenario(
        Settings(brokers=2),
        Produce(100, 0),
        Cut(109, 0, 1, 500),
        ProduceIdempotent(120, 0, producer=0),
        Crash(150, 0, "stops", down_ms=600, noticed_ms=1),
        Produce(200, 0),
        DeleteRecords(210, 0, share=1.0),
        Lose(440, PRODUCER, 1),
        Elect(1500, 0, 0),
    )
    history.goes_well()
    history.breaks("an_acknowledged_record_is_committed", fetcher_state, "none_is_compared", lambda *answer: False)


def test_a_follower_with_records_below_the_leaders_log_start_alone_joins_the_isr_after_it_has_started_anew(scenario):
    """Broker 0 has another record than the leader had at the end of what was deleted; its first fetch waits."""
    may_join_isr = isr_rules.may_join_isr
    history = scenario(
        Settings(brokers=2),
        Produce(100, 0),
        Cut(109, 0, 1, 500),
        Produce(120, 0),
        Crash(150, 0, "stops", down_ms=600, noticed_ms=1),
        Produce(200, 0),
        DeleteRecords(210, 0, share=1.0),
        Elect(1000, 0, 0),
    )
    history.goes_well()
    history.breaks(EQUAL, isr_rules, "may_join_isr", lambda *question: may_join_isr(*question[:4]))


def test_SESS_08_a_session_says_again_what_it_said_to_a_fetch_with_another_leader_epoch(scenario):
    """Broker 2 drops an answer with a high watermark: it has just got the next epoch (seed 24)."""
    history = scenario(
        Settings(partitions=2, segment_bytes=300, fetch_bytes=5000),
        Crash(414, 1, "stops", down_ms=2500, noticed_ms=1),
        Lose(3901, 1, 0),
        Lose(3926, 0, 1, count=3),
        Elect(6249, 0, 1),
        ProduceIdempotent(7211, 1, producer=1),
        Elect(7322, 1, 1),
        Delay(7953, 1, 2, by_ms=100),
    )
    history.goes_well()
    history.breaks(EQUAL_AT_THE_END, CachedPartition, "forget_answer", lambda self: None)


def test_SESS_11_a_follower_whose_answer_is_lost_begins_another_session(scenario):
    """The leader has counted the lost answer, and refuses the epoch that the follower would go on with."""
    history = scenario(Settings(brokers=2), Lose(900, 0, 1), Produce(910, 0), Consume(5000, 0))
    history.goes_well()
    history.breaks(EQUAL_AT_THE_END, FetchSessionHandler, "_close_and_begin_anew", lambda self: None)
