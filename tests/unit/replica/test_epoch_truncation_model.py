"""Three logs, a small replicator that follows the rules of offset_truncation, and leaders that change at any moment."""

import pathlib
import shutil
import tempfile
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kcore.errors import OffsetOutOfRange
from kcore.log.log_offset_metadata import AppendOrigin, LogOffsetMetadata
from kcore.log.offset_truncation import diverging_epoch, offset_truncation_state, out_of_range
from tests.unit.log.logs import Logs, batch, idempotent, marker

REPLICAS = (0, 1, 2)
ENOUGH = 1 << 20


class Cluster:
    """One partition on three replicas.  by_fetch: the follower's epoch travels with its fetch (Fetch 12+), instead of
    a question before it."""

    def __init__(self, folder: pathlib.Path, by_fetch: bool, **config) -> None:
        self.by_fetch = by_fetch
        self.homes = [Logs(folder / f"r{n}-0", **config) for n in REPLICAS]
        self.logs = [home.open(sole_replica=False) for home in self.homes]
        self.epoch = 0
        self.elect(0)

    def elect(self, replica: int) -> None:
        self.leader = replica
        self.epoch += 1
        log = self.logs[replica]
        log.maybe_assign_epoch_start_offset(self.epoch, log.log_end_offset)
        self.ends = {replica: log.log_end_offset}  # what the leader knows of its followers
        self.truncated = {replica}

    def append(self, records: bytearray, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
        self.logs[self.leader].append_as_leader(records, self.epoch, origin)

    def _truncate(self, log, leader_epoch: int, leader_end_offset: int) -> bool:
        state = offset_truncation_state(
            leader_epoch,
            leader_end_offset,
            initial_offset=log.high_watermark,
            log_end_offset=log.log_end_offset,
            end_offset_for_epoch=log.end_offset_for_epoch,
        )
        log.truncate_to(state.offset)
        return state.completed

    def _ask_and_truncate(self, replica: int) -> None:
        log, leader = self.logs[replica], self.logs[self.leader]
        for _ in range(2 * self.epoch + 2):  # each question brings an older epoch
            epoch = log.last_epoch
            if epoch == -1:
                log.truncate_to(log.high_watermark)
                return
            if self._truncate(log, *leader.end_offset_for_epoch(epoch)):
                return
        raise AssertionError(f"{log}: no end to the questions")

    def fetch(self, replica: int, max_bytes: int = ENOUGH) -> bool:
        """One fetch of a follower; whether it changed anything."""
        log, leader = self.logs[replica], self.logs[self.leader]
        if replica not in self.truncated and not self.by_fetch:
            self._ask_and_truncate(replica)
            self.truncated.add(replica)
        offset = log.log_end_offset
        try:
            if self.by_fetch:
                diverging = diverging_epoch(offset, log.last_epoch, leader.end_offset_for_epoch)
                if diverging is not None:
                    # V22-11: only the truncation; high watermark and log start wait for an answer of a log like ours.
                    before = (offset, log.leader_epoch_cache.entries)
                    self._truncate(log, *diverging)
                    assert (log.log_end_offset, log.leader_epoch_cache.entries) != before
                    return True
            read = leader.read(offset, max_bytes)
        except OffsetOutOfRange:
            answer = out_of_range(offset, leader.log_start_offset, leader.log_end_offset)
            if answer.truncates:
                log.truncate_to(answer.offset)
            elif answer.starts_anew:
                log.truncate_fully_and_start_at(answer.offset)
            return log.log_end_offset != offset
        self.ends[replica] = offset
        if len(self.ends) == len(REPLICAS):
            end = min(self.ends.values())
            self.ends[self.leader] = leader.log_end_offset
            if leader.high_watermark < end:
                leader.maybe_increment_high_watermark(LogOffsetMetadata(end))
        high_watermark = log.high_watermark
        data = read.records.read() if read.records.size_in_bytes else b""
        log.append_as_follower(data)
        log.update_high_watermark(leader.high_watermark)
        log.maybe_increment_log_start_offset(min(leader.log_start_offset, log.high_watermark))
        return (log.log_end_offset, log.high_watermark) != (offset, high_watermark)

    def settle(self) -> None:
        for _ in range(20 * len(REPLICAS) * (self.epoch + 2)):
            changed = [self.fetch(replica) for replica in REPLICAS if replica != self.leader]
            if not any(changed):
                return
        raise AssertionError("the replicas do not settle")

    def contents(self, replica: int) -> bytes:
        """Every byte from where the last of the logs starts."""
        first = max(log.log_start_offset for log in self.logs)
        data = b"".join(bytes(segment.slice(0, segment.size).read()) for segment in self.logs[replica].segments)
        at = 0
        while at < len(data):
            size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            if int.from_bytes(data[at : at + 8], "big") + int.from_bytes(data[at + 23 : at + 27], "big") >= first:
                break
            at += size
        return data[at:]

    def assert_identical(self) -> None:
        leader = self.logs[self.leader]
        for replica in REPLICAS:
            log = self.logs[replica]
            assert self.contents(replica) == self.contents(self.leader)
            assert (log.log_end_offset, log.high_watermark) == (leader.log_end_offset, leader.log_end_offset)
            if any(log.log_start_offset for log in self.logs):
                continue  # a new leader may have got a deletion later than its followers
            assert log.last_stable_offset == leader.last_stable_offset
            epochs = [
                entry for entry in leader.leader_epoch_cache.entries if entry.start_offset < leader.log_end_offset
            ]
            own_epochs = [entry for entry in log.leader_epoch_cache.entries if entry.start_offset < log.log_end_offset]
            assert own_epochs == epochs
            assert self.producers(log) == self.producers(leader)

    @staticmethod
    def producers(log):
        """What is left of older batches differs between a log that wrote them and one that was truncated."""
        return {
            pid: (entry.producer_epoch, entry.last_sequence, entry.current_txn_first_offset, entry.coordinator_epoch)
            for pid, entry in log.producer_state_manager.producers.items()
        }

    def close(self) -> None:
        for log in self.logs:
            log.close()


@pytest.fixture(params=[False, True], ids=["asking", "by fetch"])
def cluster(tmp_path, request):
    made = Cluster(tmp_path, request.param)
    yield made
    made.close()


def test_EPOCH_12_A_leads_B_leads_A_leads_with_unequal_tails(cluster):
    """KIP-279's example: each leader writes records that no follower gets, and the next leader does not have them."""
    cluster.append(batch(2))
    cluster.settle()
    for leader, tail in ((0, 3), (1, 1), (0, 2), (2, 4), (1, 2), (0, 1)):
        cluster.elect(leader)
        for _ in range(tail):
            cluster.append(batch(2, size=10 + leader))
    cluster.settle()
    cluster.assert_identical()


def test_EPOCH_11_after_a_truncation_the_follower_fetches_from_where_it_was_cut(cluster):
    cluster.append(batch(4))
    cluster.settle()
    cluster.append(batch(3))
    cluster.elect(1)
    cluster.append(batch(2, size=33))
    while cluster.logs[0].log_end_offset != 4:
        assert cluster.logs[0].log_end_offset == 7
        cluster.fetch(0, max_bytes=0)
        if not cluster.by_fetch:
            break
    cluster.fetch(0)
    assert cluster.logs[0].log_end_offset == 6
    assert [len(r.value) for r in cluster.logs[0].records()] == [20, 20, 20, 20, 33, 33]


def test_V22_11_a_diverging_answer_truncates_before_high_watermark_and_log_start_are_taken(tmp_path):
    cluster = Cluster(tmp_path, by_fetch=True)
    cluster.append(batch(4))
    cluster.settle()
    cluster.append(batch(3))
    cluster.elect(1)
    cluster.append(batch(2))
    cluster.fetch(2)
    cluster.logs[1].update_high_watermark(6)  # as if replica 0 had left the ISR
    cluster.logs[1].maybe_increment_log_start_offset(3)
    cluster.fetch(0)
    # Its records 4 to 6 are not the leader's: neither offset of the reply may be applied to them.
    log = cluster.logs[0]
    assert (log.log_end_offset, log.high_watermark, log.log_start_offset) == (4, 4, 0)
    cluster.settle()
    cluster.assert_identical()


def test_V22_06_the_high_watermark_is_only_the_fall_back(cluster):
    """A follower without the leader's latest high watermark keeps the records that the leader has too."""
    cluster.append(batch(5))
    for _ in range(2):
        cluster.fetch(1)
        cluster.fetch(2)
    cluster.logs[1].update_high_watermark(0)
    cluster.elect(2)
    size = cluster.logs[1].size
    cluster.fetch(1, max_bytes=0)
    assert (cluster.logs[1].log_end_offset, cluster.logs[1].size) == (5, size)


@dataclass
class Producer:
    sequence: int = 0
    in_transaction: bool = False


class ReplicationMachine(RuleBasedStateMachine):
    @initialize(by_fetch=st.booleans(), segment_bytes=st.sampled_from([400, 100_000]))
    def start(self, by_fetch, segment_bytes):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kcore-epochs-"))
        config = {"segment_bytes": segment_bytes, "index_interval_bytes": 100, "retention_ms": -1}
        self.cluster = Cluster(self.folder, by_fetch, **config)
        self.committed = {}

    def teardown(self):
        if hasattr(self, "cluster"):
            self.cluster.close()
            shutil.rmtree(self.folder)

    @rule(count=st.integers(1, 3), size=st.integers(0, 60))
    def append(self, count, size):
        self.cluster.append(batch(count, size=size))

    @rule(count=st.integers(1, 2), transactional=st.booleans())
    def append_of_a_producer(self, count, transactional):
        """The sequence continues from this leader's state, as that of a producer that lost an acknowledgement."""
        log = self.cluster.logs[self.cluster.leader]
        entry = log.producer_state_manager.producers.get(7)
        sequence = entry.last_sequence + 1 if entry is not None else 0
        transactional = transactional or (entry is not None and entry.current_txn_first_offset is not None)
        self.cluster.append(idempotent(7, sequence, count, is_transactional=transactional))

    @rule(commit=st.booleans())
    def end_the_transaction(self, commit):
        self.cluster.append(marker(7, commit=commit), AppendOrigin.COORDINATOR)

    @rule(replica=st.sampled_from(REPLICAS), max_bytes=st.sampled_from([1, 200, ENOUGH]))
    def fetch(self, replica, max_bytes):
        if replica != self.cluster.leader:
            self.cluster.fetch(replica, max_bytes)

    @rule(replica=st.sampled_from(REPLICAS))
    def elect(self, replica):
        self.cluster.elect(replica)

    @rule(replica=st.sampled_from(REPLICAS), clean=st.booleans())
    def restart(self, replica, clean):
        cluster, home, log = self.cluster, self.cluster.homes[replica], self.cluster.logs[replica]
        kept = {
            "high_watermark": log.high_watermark,
            "log_start_offset": log.log_start_offset,
            "recovery_point": log.recovery_point,
        }
        if clean:
            log.close()
            kept["recovery_point"] = log.recovery_point
        cluster.logs[replica] = home.open(clean=clean, sole_replica=False, **kept)
        if not clean:
            for segment in log.segments:
                segment.close(trim=False)
        cluster.truncated.discard(replica)
        if replica == cluster.leader:
            cluster.elect(replica)

    @precondition(lambda self: self.cluster.logs[self.cluster.leader].high_watermark > 0)
    @rule(share=st.floats(0, 1))
    def delete_records(self, share):
        log = self.cluster.logs[self.cluster.leader]
        log.maybe_increment_log_start_offset(int(share * log.high_watermark))
        log.delete_old_segments()

    @rule()
    def settle(self):
        self.cluster.settle()
        self.cluster.assert_identical()

    @invariant()
    def nothing_below_the_high_watermark_is_ever_lost(self):
        """Every replica is in the ISR here, so any of them may be elected."""
        if not hasattr(self, "cluster"):
            return
        log = self.cluster.logs[self.cluster.leader]
        for record in log.records(end_offset=log.high_watermark):
            assert self.committed.setdefault(record.offset, record.value) == record.value
        offsets = {record.offset for record in log.records()}
        assert {offset for offset in self.committed if offset >= log.log_start_offset} <= offsets


ReplicationMachine.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
test_EPOCH_12_replicas_are_identical_after_any_sequence_of_leaders = ReplicationMachine.TestCase
