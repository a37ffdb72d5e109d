"""Random operations on a log and on a list of batches: the same records, epochs and transactions after each."""

import os
import pathlib
import shutil
import tempfile
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kcore.errors import InvalidTxnState, OffsetOutOfRange, OutOfOrderSequenceNumber, UnexpectedAppendOffset
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation
from kcore.log.open_log import open_log
from kcore.record.control_record import ControlRecordType, EndTransactionMarker
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.reference.log import ReferenceLog
from tests.unit.log.logs import Logs, seen_by_a_committed_consumer

VALUES = st.lists(st.binary(max_size=40), min_size=1, max_size=4)
#: Of the idempotent producers 5 and 6, of the transactional ones 7 and 8.
PRODUCERS = st.sampled_from([-1, 5, 6])
TRANSACTIONAL = st.sampled_from([7, 8, 9])
TIMES = st.integers(0, 200)
BEGINNING = 1_700_000_000_000
COORDINATOR_EPOCH = 3


def build(values, timestamps, **options):
    builder = RecordBatchBuilder(**options)
    for value, timestamp in zip(values, timestamps, strict=True):
        builder.append(value, timestamp=timestamp)
    return builder.build()


def build_marker(end, producer, epoch, timestamp, **options):
    builder = RecordBatchBuilder(
        producer_id=producer, producer_epoch=epoch, is_transactional=True, is_control=True, **options
    )
    builder.append(end.value(), end.key(), timestamp=timestamp)
    return builder.build()


class LogMachine(RuleBasedStateMachine):
    @initialize(
        segment_bytes=st.sampled_from([300, 700, 100_000]),
        interval=st.sampled_from([0, 200, 4096]),
        sole=st.booleans(),
        older_rule=st.booleans(),
    )
    def open(self, segment_bytes, interval, sole, older_rule):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kcore-model-"))
        self.logs = Logs(
            self.folder / "orders-0",
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            segment_index_bytes=240,
            segment_ms=10**15,
            retention_ms=-1,
            per_append_index=older_rule,
        )
        self.sole = sole
        self.log = self.logs.open(sole_replica=sole)
        self.model = ReferenceLog()
        self.epoch = 0
        # Below it the log may lack transactions: its state was rebuilt since.
        self.remembered_from = 0

    def teardown(self):
        if hasattr(self, "log"):
            self.log.close()
            shutil.rmtree(self.folder)

    # -- appends --------------------------------------------------------------------------------------------------

    @rule(values=VALUES, producer=PRODUCERS, rise=st.integers(0, 1), time=TIMES)
    def append_as_leader(self, values, producer, rise, time):
        self.epoch += rise
        options = {}
        sequence = -1
        if producer >= 0:
            sequence = self.model.last_sequence(producer) + 1
            options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
        times = [BEGINNING + time + i for i in range(len(values))]
        info = self.log.append_as_leader(build(values, times, **options), self.epoch)
        wanted = self.model.append_as_leader(values, self.epoch, producer, sequence, timestamps=times)
        assert info.first_offset == wanted
        assert not info.is_duplicate

    @rule(producer=st.sampled_from([5, 6]))
    def repeat_the_last_batch_of_a_producer(self, producer):
        mine = [batch for batch in self.model.batches if batch.producer_id == producer]
        if mine and mine[-1].last_offset >= self.model.start:
            last = mine[-1]
            options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": last.base_sequence}
            info = self.log.append_as_leader(build(last.values, last.timestamps, **options), self.epoch)
            assert info.is_duplicate
            assert (info.first_offset, info.last_offset) == (last.base_offset, last.last_offset)

    @rule(producer=st.sampled_from([5, 6]))
    def leave_a_gap_in_the_sequence(self, producer):
        last = self.model.last_sequence(producer, self.model.start)
        if last >= 0:
            options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": last + 2}
            with pytest.raises(OutOfOrderSequenceNumber):
                self.log.append_as_leader(build([b"x"], [BEGINNING], **options), self.epoch)

    @rule(values=VALUES, gap=st.integers(0, 5), rise=st.integers(0, 1), time=TIMES)
    def append_as_follower(self, values, gap, rise, time):
        self.epoch += rise
        base_offset = self.model.end + gap
        times = [BEGINNING + time] * len(values)
        self.log.append_as_follower(build(values, times, base_offset=base_offset, leader_epoch=self.epoch))
        self.model.append_as_follower(base_offset, values, self.epoch, timestamps=times)

    @rule(below=st.integers(1, 5))
    def append_as_follower_below_the_end(self, below):
        if self.model.end >= below:
            with pytest.raises(UnexpectedAppendOffset):
                self.log.append_as_follower(build([b"x"], [BEGINNING], base_offset=self.model.end - below))

    # -- transactions ---------------------------------------------------------------------------------------------

    def next_of(self, producer):
        """(epoch, sequence) that the log expects next."""
        entry = self.log.producer_state_manager.producers.get(producer)
        return (entry.producer_epoch, entry.last_sequence + 1) if entry is not None else (0, 0)

    def transactional(self, producer, values, time, epoch, sequence):
        """Options of a batch, and the fields of the model's."""
        times = [BEGINNING + time] * len(values)
        builder = {
            "producer_id": producer,
            "producer_epoch": epoch,
            "base_sequence": sequence,
            "is_transactional": True,
        }
        return times, builder, {"timestamps": times, "is_transactional": True, "producer_epoch": epoch}

    @rule(values=VALUES, producer=TRANSACTIONAL, time=TIMES)
    def append_in_a_transaction(self, values, producer, time):
        epoch, sequence = self.next_of(producer)
        times, builder, fields = self.transactional(producer, values, time, epoch, sequence)
        info = self.log.append_as_leader(build(values, times, **builder), self.epoch)
        assert info.first_offset == self.model.append_as_leader(values, self.epoch, producer, sequence, **fields)
        with pytest.raises(InvalidTxnState):
            builder |= {"is_transactional": False, "base_sequence": sequence + len(values)}
            self.log.append_as_leader(build(values, times, **builder), self.epoch)

    @rule(producer=TRANSACTIONAL, commit=st.booleans(), bump=st.integers(0, 1), time=TIMES)
    def end_a_transaction(self, producer, commit, bump, time):
        epoch = self.next_of(producer)[0] + bump
        end = EndTransactionMarker(ControlRecordType.COMMIT if commit else ControlRecordType.ABORT, COORDINATOR_EPOCH)
        timestamp = BEGINNING + time
        self.log.append_as_leader(build_marker(end, producer, epoch, timestamp), self.epoch, AppendOrigin.COORDINATOR)
        self.model.append_as_leader(
            [end.value()],
            self.epoch,
            producer,
            timestamps=[timestamp],
            is_transactional=True,
            marker=end.type.name,
            producer_epoch=epoch,
        )

    @rule(
        steps=st.lists(st.tuples(TRANSACTIONAL, st.sampled_from(["data", "COMMIT", "ABORT"])), min_size=1, max_size=7)
    )
    def replicate_transactions_in_one_append(self, steps):
        data = b""
        sequences = {}
        for producer, what in steps:
            offset = self.model.end
            epoch, sequence = sequences.get(producer) or self.next_of(producer)
            common = {"base_offset": offset, "leader_epoch": self.epoch}
            if what == "data":
                times, builder, fields = self.transactional(producer, [b"r"], 7, epoch, sequence)
                data += build([b"r"], times, **builder, **common)
                self.model.append_as_follower(offset, [b"r"], self.epoch, producer, sequence, **fields)
                sequence += 1
            else:
                end = EndTransactionMarker(ControlRecordType[what], COORDINATOR_EPOCH)
                data += build_marker(end, producer, epoch, BEGINNING, **common)
                fields = {"timestamps": [BEGINNING], "is_transactional": True, "producer_epoch": epoch}
                self.model.append_as_follower(offset, [end.value()], self.epoch, producer, marker=what, **fields)
            sequences[producer] = epoch, sequence
        self.log.append_as_follower(data)

    @rule(share=st.floats(0, 1))
    def replicate_up_to(self, share):
        if not self.sole:
            self.log.update_high_watermark(int(share * self.model.end))

    # -- the rest -------------------------------------------------------------------------------------------------

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
        if target < self.model.end:
            self.remembered_from = self.model.start
        active = max((s.base_offset for s in self.log.segments if s.base_offset <= target), default=target)
        is_shorter = target < self.model.end
        assert self.log.truncate_to(target) == is_shorter
        self.model.truncate_to(target)
        if is_shorter and max(active, self.model.data_end) < self.model.start:
            # A batch that spanned the target is gone, and nothing is left from the log start on.
            self.model.increment_start(target)

    @rule(offset=st.integers(0, 60))
    def truncate_fully(self, offset):
        self.log.truncate_fully_and_start_at(offset)
        self.model.truncate_fully_and_start_at(offset)

    @rule(share=st.floats(0, 1))
    def raise_the_start(self, share):
        offset = self.model.start + int(share * (self.model.end - self.model.start))
        if offset > self.log.high_watermark:
            with pytest.raises(OffsetOutOfRange):
                self.log.maybe_increment_log_start_offset(offset)
            return
        self.log.maybe_increment_log_start_offset(offset)
        self.model.increment_start(offset)
        self.log.delete_old_segments()

    @rule(retention_bytes=st.integers(0, 2000))
    def retain_by_size(self, retention_bytes):
        before = [(segment.base_offset, segment.size) for segment in self.log.segments]
        end, high_watermark = self.log.log_end_offset, self.log.high_watermark
        self.log.config = replace(self.logs.config, retention_bytes=retention_bytes)
        self.log.delete_old_segments()
        self.log.config = self.logs.config
        excess, start = sum(size for _, size in before) - retention_bytes, self.model.start
        for (_, size), following in zip(before, [*before[1:], (end, 0)], strict=True):
            is_last = following == (end, 0)
            below = not is_last and following[0] <= self.model.start
            if following[0] > high_watermark or (is_last and size == 0) or not (excess >= size or below):
                break
            excess -= size
            start = max(start, following[0])
        assert self.log.log_start_offset == start
        self.model.increment_start(start)

    @rule(time=st.integers(-1, 210))
    def look_for_a_time(self, time):
        assert self.log.fetch_offset_by_timestamp(BEGINNING + time) == self.model.first_at_or_after(BEGINNING + time)

    @rule(
        share=st.floats(0, 1),
        size=st.sampled_from([0, 100, 300, 100_000]),
        isolation=st.sampled_from(FetchIsolation),
        at_least_one=st.booleans(),
    )
    def read(self, share, size, isolation, at_least_one):
        start = self.model.start + int(share * (self.model.end - self.model.start))
        info = self.log.read(start, size, isolation, at_least_one)
        limit = {
            FetchIsolation.LOG_END: self.model.end,
            FetchIsolation.HIGH_WATERMARK: self.log.high_watermark,
            FetchIsolation.TXN_COMMITTED: self.log.last_stable_offset,
        }[isolation]
        data = info.records.read() if info.records.size_in_bytes else b""
        base_offsets = [batch.base_offset for batch in MemoryRecords(data).batches]
        visible = [b.base_offset for b in self.model.batches if b.last_offset >= start and b.last_offset < limit]
        assert base_offsets == visible[: len(base_offsets)]
        if visible and (at_least_one or size == 100_000):
            assert base_offsets
        assert (info.aborted_transactions is None) == (isolation is not FetchIsolation.TXN_COMMITTED)
        if info.aborted_transactions is not None:
            last = MemoryRecords(data).last_offset if base_offsets else -1
            wanted = [o for o in self.model.committed(limit) if start <= o <= last]
            assert [o for o in seen_by_a_committed_consumer(data, info.aborted_transactions) if o >= start] == wanted

    # -- restarts -------------------------------------------------------------------------------------------------

    def producers(self):
        """What a restart keeps: of five batches it may be one, with the timestamp of a marker that came later."""
        return {
            pid: (
                e.producer_epoch,
                [b[:3] for b in e.batches[-1:]],
                e.last_timestamp,
                e.coordinator_epoch,
                e.current_txn_first_offset,
            )
            for pid, e in self.log.producer_state_manager.producers.items()
        }

    @rule()
    def stop_cleanly_and_reopen(self):
        before = self.producers()
        high_watermark = self.log.high_watermark
        self.log.close()
        self.log = self.logs.open(
            log_start_offset=self.model.start, high_watermark=high_watermark, sole_replica=self.sole
        )
        self.after_a_restart(before)
        assert self.log.recovery_point == self.model.end

    @rule()
    def crash_and_reopen(self):
        """Nothing is closed; what the page cache has is what the next process finds."""
        crashed, before = self.log, self.producers()
        self.log = self.logs.open(
            clean=False,
            recovery_point=crashed.recovery_point,
            log_start_offset=self.model.start,
            high_watermark=crashed.high_watermark,
            sole_replica=self.sole,
        )
        for segment in crashed.segments:
            segment.close(trim=False)
        self.after_a_restart(before)
        if not self.model.epochs and self.model.batches and not self.model.records():
            # Rebuilt from records below the log start, whose epochs the cache had removed.
            rebuilt = list(self.log.leader_epoch_cache.entries)
            assert rebuilt in ([], [(self.model.batches[-1].epoch, self.model.start)])
            self.model.epochs = rebuilt

    def after_a_restart(self, producers):
        self.remembered_from = self.model.start
        if self.model.start == 0:
            assert self.producers() == producers
        self.forget_a_gap_at_the_end()

    def forget_a_gap_at_the_end(self):
        """Only the name of an empty segment shows that a log ends after its last record."""
        last = self.model.data_end
        recovered_end = self.log.log_end_offset
        if recovered_end != self.model.end:
            assert recovered_end in (last, self.log.active_segment.base_offset, self.model.start)
            assert last <= recovered_end < self.model.end
            self.model.end = recovered_end
            if self.sole:
                self.model.epochs = [e for e in self.model.epochs if e[1] <= recovered_end]
        if not self.sole:
            # Among replicas an epoch without a record may contradict the leader's.
            self.model.epochs = [e for e in self.model.epochs if e[1] < recovered_end]

    # -- what holds after each ------------------------------------------------------------------------------------

    @invariant()
    def log_and_model_agree(self):
        if not hasattr(self, "log"):
            return
        records = [
            (record.offset, record.value, batch.leader_epoch)
            for batch in self.log.batches()
            for record in batch.records()
            if record.offset >= self.log.log_start_offset
        ]
        assert records == self.model.records()
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.model.start, self.model.end)
        assert self.log.log_start_offset <= self.log.high_watermark <= self.log.log_end_offset
        assert not self.sole or self.log.high_watermark == self.log.log_end_offset
        assert list(self.log.leader_epoch_cache.entries) == self.model.epochs
        for producer in (5, 6):
            entry = self.log.producer_state_manager.producers.get(producer)
            sequence = entry.last_sequence if entry is not None else -1
            # Entries below the log start may be kept until a rebuild.
            visible, ever = self.model.last_sequence(producer, self.model.start), self.model.last_sequence(producer)
            assert sequence == visible or (visible == -1 and sequence == ever)
        for segment in self.log.segments:
            index = segment.offset_index
            entries = [index.entry(n) for n in range(index.entries)]
            assert entries == sorted(set(entries))
            assert all(position < segment.size for _, position in entries)

    @invariant()
    def transactions_agree(self):
        if not hasattr(self, "log"):
            return
        log, model = self.log, self.model
        lowest = model.last_stable_offset(log.high_watermark)
        still_open = {txn.first_offset for txn in model.transactions(self.remembered_from) if txn.marker_offset is None}
        if model.start == 0 and self.sole:
            assert log.last_stable_offset == lowest
        else:
            # A snapshot has no transactions that ended above the high watermark or began below the log start.
            highest = min([max(first, model.start) for first in still_open] + [log.high_watermark])
            assert lowest <= log.last_stable_offset <= highest
        committed = model.committed(log.last_stable_offset)
        assert [record.offset for record in log.records(isolation="read_committed")] == committed
        if model.start == 0:
            noted = [txn for s in log.segments if (i := log.local._txn_indexes.get(s.base_offset)) for txn in i.entries]
            wanted = [txn for txn in model.transactions() if txn.is_aborted]
            wanted.sort(key=lambda txn: txn.marker_offset)
            assert noted == [
                (txn.producer_id, txn.first_offset, txn.marker_offset, txn.last_stable_offset) for txn in wanted
            ]
        with open_log(self.logs.directory) as reader:
            assert [(r.offset, r.value) for b in reader.batches() for r in b.records() if r.offset >= model.start] == [
                (offset, value) for offset, value, _ in model.records()
            ]
            below = [o for o in model.committed(reader.last_stable_offset) if o >= reader.log_start_offset]
            assert [r.offset for r in reader.records(isolation="read_committed") if r.offset >= model.start] == below


LogMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("KCORE_EXAMPLES", "200" if "KCORE_LONG" in os.environ else "40")),
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
)
test_UnifiedLog_and_the_reference_agree_after_any_operations = LogMachine.TestCase
