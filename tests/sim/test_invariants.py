"""Each invariant notices what it is for: the product is broken in one place, and the invariant alone is looked at."""

import pytest

from kcore.log.log_hot_path import LogHotPath
from kcore.log.log_offset_metadata import FetchIsolation, LogOffsetMetadata
from kcore.log.offset_truncation import OffsetTruncationState
from kcore.log.unified_log import UnifiedLog
from kcore.replica import isr as isr_rules
from kcore.replica import partition
from kcore.replica.delayed.delayed_fetch import DelayedFetch
from kcore.replica.delayed.delayed_produce import DelayedProduce
from kcore.replica.fetcher import fetcher_state
from kcore.replica.partition import Partition
from kcore.replica.replica_manager import ReplicaManager
from tests.sim import clients, invariants
from tests.sim.events import random_history
from tests.sim.rules import rules
from tests.sim.shrink import run_history

OF_ANSWERS = (
    "an_acknowledged_record_is_committed",
    "a_consumer_gets_committed_records",
    "a_waiting_request_is_answered_once",
    "a_consumer_reads_one_history",
    "no_request_times_out_when_all_is_done",
    "an_idempotent_record_is_there_once",
    "the_replicas_become_equal",
    *invariants.OF_DECISIONS,
)


def assert_noticed(monkeypatch, name: str, *, unclean: bool = False, seeds: int = 60) -> None:
    """Only the invariant of this name is checked, and one of the first seeds breaks it."""
    for group in ("OF_CHANGES", "OF_CHANGES_AFTER_CLEAN_ELECTIONS"):
        monkeypatch.setattr(invariants, group, [f for f in getattr(invariants, group) if f.__name__ == name])
    for other in OF_ANSWERS:
        if other != name:
            monkeypatch.setattr(invariants, other, lambda *arguments: None)
    assert hasattr(invariants, name)
    for seed in range(seeds):
        failure = run_history(random_history(seed, unclean=unclean))
        if failure is not None and failure.name == name:
            return
    pytest.fail(f"{seeds} seeds, and {name} notices nothing")


def no_truncation(leader_epoch, leader_end_offset, *, log_end_offset, **others):
    return OffsetTruncationState(log_end_offset, True)


def truncates_nothing(monkeypatch):
    monkeypatch.setattr(fetcher_state, "offset_truncation_state", no_truncation)
    monkeypatch.setattr(partition, "diverging_epoch", lambda *question: None)


def joins_below_the_epochs_start(monkeypatch):
    def may_join_isr(replica, isr, high_watermark, *others):
        return replica.broker_id not in isr.maximal and replica.state.log_end_offset >= high_watermark

    monkeypatch.setattr(isr_rules, "may_join_isr", may_join_isr)


def test_offsets_are_in_order(monkeypatch):
    """A follower takes its leader's high watermark over as it is."""
    monkeypatch.setattr(
        UnifiedLog,
        "update_high_watermark",
        lambda log, offset: log._update_high_watermark_metadata(LogOffsetMetadata(offset)),
    )
    assert_noticed(monkeypatch, "offsets_are_in_order")


def test_the_high_watermark_of_a_leader_never_goes_back(monkeypatch):
    def set_high_watermark(self, log, state):
        candidate = isr_rules.high_watermark_candidate(log.log_end_offset_metadata, state.isr, state.replicas, 0, 0)
        return log.update_high_watermark(max(0, candidate.message_offset)) > 0

    monkeypatch.setattr(Partition, "_maybe_increment_leader_hw", set_high_watermark)
    assert_noticed(monkeypatch, "the_high_watermark_of_a_leader_never_goes_back")


def test_a_leader_epoch_has_one_leader(monkeypatch):
    """Every broker leads, also those that were not elected."""

    def lead(self, hosted, update, controller_epoch):
        return hosted.make_leader(update, controller_epoch)

    monkeypatch.setattr(ReplicaManager, "_change_state", lead)
    assert_noticed(monkeypatch, "a_leader_epoch_has_one_leader")


def test_a_leader_epoch_never_goes_back(monkeypatch):
    """A broker takes any update, whatever its leader epoch and its partition epoch."""

    def whatever_the_partition_epoch(make):
        def make_whatever(self, update, controller_epoch):
            self._state = self._state._replace(partition_epoch=-1)
            return make(self, update, controller_epoch)

        return make_whatever

    monkeypatch.setattr(ReplicaManager, "_check_update", lambda self, update: None)
    for name in ("make_leader", "make_follower"):
        monkeypatch.setattr(Partition, name, whatever_the_partition_epoch(getattr(Partition, name)))
    assert_noticed(monkeypatch, "a_leader_epoch_never_goes_back")


def test_an_offset_has_one_content_in_one_epoch(monkeypatch):
    """All leaders write the same epoch into their batches."""

    def append_with_epoch_0(log, records, leader_epoch, *others):
        return LogHotPath.append_as_leader(log, records, 0, *others)

    monkeypatch.setattr(UnifiedLog, "append_as_leader", append_with_epoch_0, raising=False)
    assert_noticed(monkeypatch, "an_offset_has_one_content_in_one_epoch")


def test_the_isr_is_never_empty(monkeypatch):
    """The leader counts itself among those who are late."""
    monkeypatch.setattr(isr_rules, "out_of_sync_replicas", lambda leader_id, end, isr, *others: isr.maximal)
    assert_noticed(monkeypatch, "the_isr_is_never_empty")


def test_the_high_watermark_never_passes_the_log_end_of_an_isr_member(monkeypatch):
    monkeypatch.setattr(isr_rules, "high_watermark_candidate", lambda leader_end, *others: leader_end)
    assert_noticed(monkeypatch, "the_high_watermark_never_passes_the_log_end_of_an_isr_member")


def test_replicas_are_equal_up_to_the_high_watermark(monkeypatch):
    truncates_nothing(monkeypatch)
    assert_noticed(monkeypatch, "replicas_are_equal_up_to_the_high_watermark")


def test_no_acknowledged_record_is_lost_or_reordered(monkeypatch):
    joins_below_the_epochs_start(monkeypatch)
    monkeypatch.setattr(isr_rules, "high_watermark_candidate", lambda leader_end, *others: leader_end)
    assert_noticed(monkeypatch, "no_acknowledged_record_is_lost_or_reordered")


def test_a_record_that_a_consumer_saw_stays(monkeypatch):
    monkeypatch.setattr(isr_rules, "high_watermark_candidate", lambda leader_end, *others: leader_end)
    assert_noticed(monkeypatch, "a_record_that_a_consumer_saw_stays")


def test_an_acknowledged_record_is_committed(monkeypatch):
    monkeypatch.setattr(Partition, "check_enough_replicas_reach_offset", lambda self, *record: True)
    assert_noticed(monkeypatch, "an_acknowledged_record_is_committed")


def test_a_consumer_gets_committed_records(monkeypatch):
    read_records = Partition.read_records

    def read_to_the_end(self, fetch_offset, max_bytes, isolation, *others):
        return read_records(self, fetch_offset, max_bytes, FetchIsolation.LOG_END, *others)

    monkeypatch.setattr(Partition, "read_records", read_to_the_end)
    assert_noticed(monkeypatch, "a_consumer_gets_committed_records")


def test_a_waiting_request_is_answered_once_not_twice(monkeypatch):
    on_complete = DelayedFetch.on_complete

    def twice(self):
        on_complete(self)
        on_complete(self)

    monkeypatch.setattr(DelayedFetch, "on_complete", twice)
    assert_noticed(monkeypatch, "a_waiting_request_is_answered_once")


def test_a_waiting_request_is_answered_once_not_never(monkeypatch):
    monkeypatch.setattr(DelayedProduce, "on_complete", lambda self: None)
    assert_noticed(monkeypatch, "a_waiting_request_is_answered_once")


def test_a_consumer_reads_one_history(monkeypatch):
    monkeypatch.setattr(clients, "must_validate", lambda *question: False)
    assert_noticed(monkeypatch, "a_consumer_reads_one_history", unclean=True)


def test_no_request_times_out_when_all_is_done(monkeypatch):
    """A high watermark that rises completes no request."""
    monkeypatch.setattr(ReplicaManager, "complete_waiting", lambda self, topic_partition: None)
    assert_noticed(monkeypatch, "no_request_times_out_when_all_is_done")


def test_an_idempotent_record_is_there_once(monkeypatch):
    """A broker loses the state of a producer."""

    def append_without_producers(log, records, leader_epoch, *others):
        log.producer_state_manager.truncate_fully_and_start_at(log.log_end_offset)
        return LogHotPath.append_as_leader(log, records, leader_epoch, *others)

    monkeypatch.setattr(UnifiedLog, "append_as_leader", append_without_producers, raising=False)
    assert_noticed(monkeypatch, "an_idempotent_record_is_there_once")


def test_the_replicas_become_equal(monkeypatch):
    truncates_nothing(monkeypatch)
    assert_noticed(monkeypatch, "the_replicas_become_equal", unclean=True)


def test_each_invariant_has_a_test():
    """Here, or a scenario that breaks it without its rule."""
    of_scenarios = {rule.invariant for rule in rules()}
    names = [f.__name__ for f in (*invariants.OF_CHANGES, *invariants.OF_CHANGES_AFTER_CLEAN_ELECTIONS)]
    for name in (*names, *OF_ANSWERS):
        assert getattr(invariants, name).__doc__, f"{name} has no sentence"
        has_test = any(test.startswith(f"test_{name}") for test in globals())
        assert has_test or name in of_scenarios, f"{name} has no test"
