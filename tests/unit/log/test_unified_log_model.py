"""Random operations on a log and on a list of batches: the same records, offsets and epochs after each."""

import os
import pathlib
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kcore.errors import OutOfOrderSequenceNumber, UnexpectedAppendOffset
from kcore.log.open_log import open_log
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.reference.log import ReferenceLog
from tests.unit.log.logs import Logs

VALUES = st.lists(st.binary(max_size=40), min_size=1, max_size=4)
PRODUCERS = st.sampled_from([-1, 5, 6])


def build(values, **options):
    builder = RecordBatchBuilder(**options)
    for i, value in enumerate(values):
        builder.append(value, timestamp=1_700_000_000_000 + i)
    return builder.build()


class LogMachine(RuleBasedStateMachine):
    @initialize(segment_bytes=st.sampled_from([300, 700, 100_000]), interval=st.sampled_from([0, 200, 4096]))
    def open(self, segment_bytes, interval):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kcore-model-"))
        self.logs = Logs(
            self.folder / "orders-0",
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            segment_index_bytes=240,
            segment_ms=10**15,
            retention_ms=-1,
        )
        self.log = self.logs.open()
        self.model = ReferenceLog()
        self.epoch = 0

    def teardown(self):
        if hasattr(self, "log"):
            self.log.close()
            shutil.rmtree(self.folder)

    @rule(values=VALUES, producer=PRODUCERS, rise=st.integers(0, 1))
    def append_as_leader(self, values, producer, rise):
        self.epoch += rise
        options = {}
        sequence = -1
        if producer >= 0:
            sequence = self.model.last_sequence(producer) + 1
            options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
        info = self.log.append_as_leader(build(values, **options), self.epoch)
        assert info.first_offset == self.model.append_as_leader(values, self.epoch, producer, sequence)
        assert not info.is_duplicate

    @rule(producer=st.sampled_from([5, 6]))
    def repeat_the_last_batch_of_a_producer(self, producer):
        mine = [batch for batch in self.model.batches if batch.producer_id == producer]
        if mine and mine[-1].last_offset >= self.model.start:
            last = mine[-1]
            again = build(last.values, producer_id=producer, producer_epoch=0, base_sequence=last.base_sequence)
            info = self.log.append_as_leader(again, self.epoch)
            assert info.is_duplicate
            assert (info.first_offset, info.last_offset) == (last.base_offset, last.last_offset)

    @rule(producer=st.sampled_from([5, 6]))
    def leave_a_gap_in_the_sequence(self, producer):
        last = self.model.last_sequence(producer, self.model.start)
        if last >= 0:
            with pytest.raises(OutOfOrderSequenceNumber):
                self.log.append_as_leader(
                    build([b"x"], producer_id=producer, producer_epoch=0, base_sequence=last + 2), self.epoch
                )

    @rule(values=VALUES, gap=st.integers(0, 5), rise=st.integers(0, 1))
    def append_as_follower(self, values, gap, rise):
        self.epoch += rise
        base_offset = self.model.end + gap
        self.log.append_as_follower(build(values, base_offset=base_offset, leader_epoch=self.epoch))
        self.model.append_as_follower(base_offset, values, self.epoch)

    @rule(below=st.integers(1, 5))
    def append_as_follower_below_the_end(self, below):
        if self.model.end >= below:
            with pytest.raises(UnexpectedAppendOffset):
                self.log.append_as_follower(build([b"x"], base_offset=self.model.end - below))

    @rule()
    def roll(self):
        self.log.roll()

    @rule()
    def flush(self):
        self.log.flush()
        assert self.log.recovery_point == self.model.end

    @rule()
    def background_work(self):
        self.logs.time.sleep(60_000)
        self.logs.scheduler.tick()

    @rule(back=st.integers(-2, 12))
    def truncate(self, back):
        target = max(self.model.end - back, 0)
        assert self.log.truncate_to(target) == (target < self.model.end)
        self.model.truncate_to(target)

    @rule(offset=st.integers(0, 60))
    def truncate_fully(self, offset):
        self.log.truncate_fully_and_start_at(offset)
        self.model.truncate_fully_and_start_at(offset)

    @rule(share=st.floats(0, 1))
    def raise_the_start(self, share):
        offset = self.model.start + int(share * (self.model.end - self.model.start))
        self.log.maybe_increment_log_start_offset(offset)
        self.model.increment_start(offset)
        self.log.delete_old_segments()

    @rule()
    def stop_cleanly_and_reopen(self):
        self.log.close()
        self.log = self.logs.open(log_start_offset=self.model.start)
        self.forget_a_gap_at_the_end()
        assert self.log.recovery_point == self.model.end

    @rule()
    def crash_and_reopen(self):
        """Nothing is closed; what the page cache has is what the next process finds."""
        crashed = self.log
        self.log = self.logs.open(clean=False, recovery_point=crashed.recovery_point, log_start_offset=self.model.start)
        for segment in crashed.segments:
            segment.close(trim=False)
        self.forget_a_gap_at_the_end()
        if not self.model.epochs and self.model.batches and not self.model.records():
            # Rebuilt from records below the log start, which the cache had forgotten.
            rebuilt = list(self.log.leader_epoch_cache.entries)
            assert rebuilt in ([], [(self.model.batches[-1].epoch, self.model.start)])
            self.model.epochs = rebuilt

    def forget_a_gap_at_the_end(self):
        """No file says that a log ends behind its last record, except the name of an empty segment."""
        last = self.model.batches[-1].last_offset + 1 if self.model.batches else 0
        found = self.log.log_end_offset
        if found != self.model.end:
            assert found in (last, self.log.active_segment.base_offset, self.model.start)
            assert last <= found < self.model.end
            self.model.end = found
            self.model.epochs = [e for e in self.model.epochs if e[1] <= found]

    @invariant()
    def log_and_model_agree(self):
        if not hasattr(self, "log"):
            return
        found = [
            (record.offset, record.value, batch.leader_epoch)
            for batch in self.log.batches()
            for record in batch.records()
            if record.offset >= self.log.log_start_offset
        ]
        assert found == self.model.records()
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.model.start, self.model.end)
        assert list(self.log.leader_epoch_cache.entries) == self.model.epochs
        for producer in (5, 6):
            entry = self.log.producer_state_manager.producers.get(producer)
            sequence = entry.last_sequence if entry is not None else -1
            # What lies below the log start may be remembered, until a rebuild.
            visible, ever = self.model.last_sequence(producer, self.model.start), self.model.last_sequence(producer)
            assert sequence == visible or (visible == -1 and sequence == ever)
        for segment in self.log.segments:
            index = segment.offset_index
            entries = [index.entry(n) for n in range(index.entries)]
            assert entries == sorted(set(entries))
            assert all(position < segment.size for _, position in entries)
        with open_log(self.logs.directory) as reader:
            assert [(r.offset, r.value) for r in reader.records() if r.offset >= self.model.start] == [
                (offset, value) for offset, value, _ in self.model.records()
            ]


LogMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("KCORE_EXAMPLES", "40")),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
test_UnifiedLog_and_the_reference_agree_after_any_operations = LogMachine.TestCase
