"""Random operations, a crash at every system call that changes the disk, and what a fresh process then finds.

KCORE_CRASH_SEEDS=500 runs that many seeds instead of a few, with a crash at every call instead of some."""

import os
import random
import shutil
import tempfile

import pytest

from kcore.common import file
from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaError
from kcore.log.log_cleaner import Cleaner
from kcore.log.log_cleaner_manager import find_log_to_clean
from kcore.log.log_config import LogConfig
from kcore.log.log_manager import LogManager
from kcore.log.log_manager_config import LogManagerConfig
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.log.offset_map import OffsetMap
from tests.reference.disk import Disk, recorded
from tests.unit.log.logs import batch, idempotent, marker

TP = TopicPartition("t", 0)
LONG = int(os.environ.get("KCORE_CRASH_SEEDS", "0"))
SEEDS = range(LONG or 4)
POINTS = 10**9 if LONG else 45


class Plain:
    """The log as a list of records (offset, value, epoch, producer id, sequence), and what surely is on the disk.

    producers: those that any record or marker since the log was last emptied was of.
    """

    def __init__(self):
        self.records = []
        self.start = self.end = self.flushed = 0
        self.producers = set()

    def copy(self):
        other = Plain()
        other.records, other.start, other.end, other.flushed = list(self.records), self.start, self.end, self.flushed
        other.producers = set(self.producers)
        return other

    def truncate(self, offset):
        self.records = [record for record in self.records if record[0] < offset]
        self.end, self.flushed, self.start = offset, min(self.flushed, offset), min(self.start, offset)


class Run:
    def __init__(self, directory, rng):
        self.rng = rng
        self.directory = directory
        self.time = MockTime()
        self.scheduler = MockScheduler(self.time)
        self.options = {
            "segment_bytes": rng.choice([400, 900, 5000]),
            "index_interval_bytes": rng.choice([0, 150]),
            "segment_index_bytes": 120,
            "retention_bytes": rng.choice([-1, 1500]),
            "retention_ms": -1,
            "cleanup_policy": rng.choice([("delete",), ("compact",)]),
            "delete_retention_ms": 1000,
        }
        self.plain = Plain()
        self.epoch = 0
        self.sequences = {}
        self.open_txns = set()
        self.manager = manager_of(directory, self.options, self.time, self.scheduler)
        self.manager.startup()
        self.log = self.manager.get_or_create_log(TP)

    def step(self):
        operation = self.rng.choice(
            [self.append] * 6
            + [self.append_idempotent] * 3
            + [self.transaction] * 3
            + [self.follow] * 2
            + [self.roll, self.truncate, self.truncate, self.truncate_fully, self.retain, self.raise_start]
            + ([self.compact] * 3 if self.options["cleanup_policy"] == ("compact",) else [])
            + [self.flush] * 2
            + [self.checkpoint] * 2
            + [self.pass_time]
            + [self.restart]
        )
        operation()
        self.plain.start = max(self.plain.start, self.log.log_start_offset)
        self.plain.records = [record for record in self.plain.records if record[0] >= self.plain.start]
        # A roll flushes what comes before it, in the background.
        self.scheduler.tick()
        self.plain.flushed = max(self.plain.flushed, min(self.log.recovery_point, self.plain.end))
        return operation.__name__

    def restart(self):
        """A clean stop: what follows begins with its marker, and with segments below the recovery point."""
        self.manager.shutdown()
        self.manager = manager_of(self.directory, self.options, self.time, self.scheduler)
        self.manager.startup()
        self.log = self.manager.get_log(TP)
        # After a truncation inside a batch the log ended above its data.
        self.plain.start, self.plain.end = self.log.log_start_offset, self.log.log_end_offset
        self.plain.flushed = self.plain.end
        self.forget_producers()

    def add(self, first, values, producer_id=-1, sequence=-1):
        if producer_id >= 0:
            self.plain.producers.add(producer_id)
        for i, value in enumerate(values):
            self.plain.records.append(
                (first + i, value, self.epoch, producer_id, sequence + i if sequence >= 0 else -1)
            )
        self.plain.end = first + len(values)
        self.log.update_high_watermark(self.plain.end)

    def append(self, **options):
        if self.rng.random() < 0.15:
            self.epoch += self.rng.randint(1, 3)
        count, size = self.rng.randint(1, 4), self.rng.randint(1, 60)
        records = batch(count, size=size, key=self.rng.choice([b"a", b"b", b"c"]), **options)
        info = self.log.append_as_leader(records, self.epoch)
        self.add(info.first_offset, [b"v" * size] * count)

    def append_idempotent(self, producer_id=None):
        producer_id = producer_id or self.rng.choice([5, 6])
        sequence = self.sequences.get(producer_id, 0)
        count, size = self.rng.randint(1, 3), self.rng.randint(1, 60)
        transactional = producer_id in self.open_txns
        records = idempotent(producer_id, sequence, count, size=size, is_transactional=transactional)
        info = self.log.append_as_leader(records, self.epoch)
        self.add(info.first_offset, [b"v" * size] * count, producer_id, sequence)
        self.sequences[producer_id] = sequence + count

    def transaction(self):
        if self.open_txns and self.rng.random() < 0.6:
            producer_id = self.open_txns.pop()
            self.plain.producers.add(producer_id)
            end = marker(producer_id, commit=self.rng.random() < 0.5)
            info = self.log.append_as_leader(end, self.epoch, AppendOrigin.COORDINATOR)
            self.plain.end = info.last_offset + 1
            self.log.update_high_watermark(self.plain.end)
        else:
            producer_id = self.rng.choice([7, 8])
            self.open_txns.add(producer_id)
            self.append_idempotent(producer_id)

    def follow(self):
        base = self.plain.end + self.rng.choice([0, 0, 3])
        records = batch(2, size=30)
        records[0:8] = base.to_bytes(8, "big")
        records[12:16] = self.epoch.to_bytes(4, "big")
        self.log.append_as_follower(records)
        self.add(base, [b"v" * 30] * 2)

    def roll(self):
        if self.log.active_segment.size:
            self.log.roll()

    def truncate(self):
        offset = self.rng.randint(max(0, self.plain.end - 25), self.plain.end)
        # A batch that spans the offset goes whole.
        batches = [(b.base_offset, b.last_offset) for b in self.log.batches()]
        cut = min(offset, next((first for first, last in batches if last >= offset), offset))
        self.manager.truncate_to({TP: offset})
        self.plain.truncate(cut if offset < self.plain.end else offset)
        self.plain.end = self.log.log_end_offset
        self.forget_producers()

    def truncate_fully(self):
        offset = self.plain.end + self.rng.choice([0, 10])
        self.manager.truncate_fully_and_start_at(TP, offset)
        self.plain.records, self.plain.start, self.plain.end, self.plain.flushed = [], offset, offset, 0
        self.plain.producers.clear()
        self.forget_producers()

    def forget_producers(self):
        self.log.update_high_watermark(self.plain.end)
        producers = self.log.producer_state_manager.producers
        self.sequences = {pid: entry.last_sequence + 1 for pid, entry in producers.items() if entry.last_sequence >= 0}
        self.open_txns = {
            pid for pid in self.open_txns if pid in producers and producers[pid].current_txn_first_offset is not None
        }

    def retain(self):
        self.manager.maintenance.cleanup_logs()

    def raise_start(self):
        self.log.maybe_increment_log_start_offset(self.rng.randint(self.plain.start, self.plain.end))
        if self.rng.random() < 0.5:
            self.manager.checkpoint_log_start_offsets()

    def flush(self):
        self.log.flush()

    def checkpoint(self):
        self.manager.checkpoint_recovery_offsets()
        self.manager.checkpoint_high_watermarks({TP: self.log.high_watermark})

    def compact(self):
        cleanable, _ = find_log_to_clean(self.log, self.plain.start, self.time.milliseconds())
        if cleanable.cleanable_bytes > 0:
            Cleaner(OffsetMap(48 * 1000, 0.5), time=self.time).clean(cleanable)
        # Which records a cleaning keeps is tested by the cleaner's model; here they are read from the log after it.
        records = plain_records(self.log)
        assert set(records) <= set(self.plain.records)
        self.plain.records = records

    def pass_time(self):
        self.time.sleep(61_000)
        self.scheduler.tick()


def manager_of(directory, options, time, scheduler):
    return LogManager([directory], LogConfig(**options), LogManagerConfig(1), time=time, scheduler=scheduler)


def plain_records(log):
    return [
        (
            r.offset,
            bytes(r.value),
            b.leader_epoch,
            b.producer_id,
            b.base_sequence + r.offset - b.base_offset if b.base_sequence >= 0 else -1,
        )
        for b in log.batches()
        if not b.is_control
        for r in b.records()
        if r.offset >= log.log_start_offset
    ]


def check(directory, options, before, after, ever, power, context):
    """What a fresh process finds, against the states between which the crash came."""
    time = MockTime()
    scheduler = MockScheduler(time)
    options = {**options, "retention_bytes": -1}  # nothing may be missing because of retention
    manager = manager_of(directory, options, time, scheduler)
    manager.startup()
    assert not manager.offline_log_dirs, context
    log = manager.get_log(TP)
    if log is None:
        # Killed while it was made; or its name was never synced, and so nothing was flushed either.
        assert not manager._not_loaded and not (min(before.flushed, after.flushed) if power else after.records), (
            context,
            manager._not_loaded,
        )
        log = manager.get_or_create_log(TP)
    log_records = plain_records(log)
    assert set(log_records) <= ever, (context, set(log_records) - ever)
    kept = set(before.records) & set(after.records)
    if power:
        kept = {record for record in kept if record[0] < min(before.flushed, after.flushed)}
    else:
        assert set(log_records) <= set(before.records) | set(after.records) | {
            r for r in ever if r[0] < max(before.start, after.start)
        }, context
        assert log.log_start_offset <= max(before.start, after.start), context
    missing = {record for record in kept if record[0] >= log.log_start_offset} - set(log_records)
    assert not missing, (context, missing)
    offsets = [record[0] for record in log_records]
    assert offsets == sorted(set(offsets)) and (not offsets or log.log_end_offset > offsets[-1]), context
    if set(log_records) <= set(before.records) | set(after.records):
        # Else the lost power undid a truncation whose leader epochs were synced.
        check_state(log, log_records, max(before.start, after.start) if power else 0, context)
        # (A lost power may take a segment that was not flushed and leave the next one, and the log cannot know that the
        # gap is none of a compaction.)
        assert (
            not log_records
            or power
            or log.config.compact
            or any(is_without_gap(log_records, state) for state in (before, after))
        ), (context, log_records)
        if log.log_start_offset == log.log_end_offset:
            assert not log.producer_state_manager.producers, context
            assert log.last_stable_offset == log.high_watermark, context
        if not log.config.compact and before.start == after.start == 0:
            check_exactly(log, context)
        elif not power:
            assert set(log.producer_state_manager.producers) <= before.producers | after.producers, context
    # No file of the crash is left, the log can be appended to, and a clean stop keeps it.
    epoch = max(log.last_epoch, 0)
    first = log.append_as_leader(batch(2), epoch).first_offset
    for pause_ms in (400_000, 61_000):  # retention, then the delay before files go
        time.sleep(pause_ms)
        scheduler.tick()
    expected = [*log_records, (first, b"v" * 20, epoch, -1, -1), (first + 1, b"v" * 20, epoch, -1, -1)]
    assert plain_records(log) == expected, context
    manager.shutdown()
    left = [
        name
        for name in os.listdir(os.path.join(directory, "t-0"))
        if name.endswith((".deleted", ".cleaned", ".swap", ".tmp"))
    ]
    assert not left and not [name for name in os.listdir(directory) if name.endswith("-delete")], (context, left)
    again = manager_of(directory, options, time, scheduler)
    again.startup()
    assert plain_records(again.get_log(TP)) == expected, context
    again.shutdown()


def is_without_gap(log_records, state):
    """Whether all records of the log are of this state, with none of it missing in between."""
    offsets = {record[0] for record in log_records}
    return set(log_records) <= set(state.records) and all(
        record[0] in offsets for record in state.records if min(offsets) < record[0] < max(offsets)
    )


def check_exactly(log, context):
    """The leader epochs, the producers and the last stable offset are those of the batches, of which all are there."""
    epochs, producers, first_of_open = [], {}, {}
    for log_batch in log.batches():
        if not epochs or epochs[-1][0] != log_batch.leader_epoch:
            epochs.append((log_batch.leader_epoch, log_batch.base_offset))
        if log_batch.producer_id < 0:
            continue
        if log_batch.is_control:
            first_of_open.pop(log_batch.producer_id, None)
            sequence, coordinator_epoch = producers.get(log_batch.producer_id, (-1, -1))
            producers[log_batch.producer_id] = sequence, 0
        else:
            _, coordinator_epoch = producers.get(log_batch.producer_id, (-1, -1))
            producers[log_batch.producer_id] = log_batch.last_sequence, coordinator_epoch
            if log_batch.is_transactional:
                first_of_open.setdefault(log_batch.producer_id, log_batch.base_offset)
    assert [tuple(entry) for entry in log.leader_epoch_cache.entries] == epochs, context
    entries = log.producer_state_manager.producers
    assert {pid: (entry.last_sequence, entry.coordinator_epoch) for pid, entry in entries.items()} == producers, context
    assert {
        pid: entry.current_txn_first_offset
        for pid, entry in entries.items()
        if entry.current_txn_first_offset is not None
    } == first_of_open, context
    high_watermark = log.high_watermark
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == min([*first_of_open.values(), log.log_end_offset]), (context, high_watermark)


def check_state(log, records, start, context):
    for record in records:
        if record[0] < start:
            continue  # a lost power may have brought back segments that were deleted
        epochs = [entry.epoch for entry in log.leader_epoch_cache.entries if entry.start_offset <= record[0]]
        assert epochs and epochs[-1] == record[2], (context, record, log.leader_epoch_cache.entries)
    last = {record[3]: record for record in records if record[3] >= 0}
    for producer_id, record in last.items():
        # Its last records may have been compacted away.
        compacted = log.config.compact
        last_sequence = log.producer_state_manager.producers[producer_id].last_sequence
        assert last_sequence == record[4] or (compacted and last_sequence > record[4]), (context, record)
    for segment in log.segments:
        index = segment.offset_index
        for offset, position in (index.entry(n) for n in range(len(index))):
            assert segment.translate_offset(offset, position)[:2] == (offset, position), (context, offset)
            assert segment.translate_offset(offset)[1] == position, (context, offset)


@pytest.mark.parametrize("seed", SEEDS)
def test_TRUNC_11_a_crash_at_any_system_call_loses_nothing_durable(seed):
    rng = random.Random(seed)
    root = tempfile.mkdtemp(prefix="kcore-crash-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    try:
        with recorded() as record:
            run = Run(os.path.join(root, "d"), rng)
            history = [(record.size, "open", run.plain.copy())]
            for _ in range(rng.randint(10, 40)):
                name = run.step()
                history.append((record.size, name, run.plain.copy()))
                assert plain_records(run.log) == run.plain.records, f"seed {seed}: {[name for _, name, _ in history]}"
            run.manager.shutdown()
            history.append((record.size, "shutdown", run.plain.copy()))
            changes = record.changes()
        ever = {r for _, _, state in history for r in state.records}
        points = [n for n, change in enumerate(changes) if change.call != "stores"]
        chosen = set(rng.sample(points, min(POINTS, len(points))))
        disk = Disk(os.path.join(root, "d"))
        step = 0
        for n, change in enumerate(changes):
            if n in chosen:
                while history[step][0] < change.end:
                    step += 1
                before = history[max(step - 1, 0)][2]
                after = history[step][2]
                for power in (False, True):
                    target = os.path.join(root, "crashed")
                    os.mkdir(target)
                    disk.write_to(target, random.Random(f"{seed} {n}") if power else None)
                    context = (
                        f"seed {seed}, call {n} {change.call} {change.paths}, in {history[step][1]}, power {power}"
                    )
                    with recorded():  # so that nothing waits for a real disk
                        try:
                            check(target, run.options, before, after, ever, power, context)
                        except KafkaError as error:
                            raise AssertionError(context) from error
                    shutil.rmtree(target)
            disk.apply(change)
    finally:
        file.clear_faults()
        shutil.rmtree(root)
