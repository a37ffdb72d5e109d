"""Random logs, cleaned again and again, against tests/reference/cleaner.py."""

import itertools

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from kcore.log.log_cleaner import Cleaner
from kcore.log.log_cleaner_manager import find_log_to_clean
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.log.offset_map import OffsetMap
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.reference import cleaner as reference
from tests.unit.log.logs import Logs, marker

keys = st.sampled_from([b"a", b"b", b"c", b"d", b"a longer key than the others"])
values = st.one_of(st.none(), st.binary(max_size=12))
records = st.lists(st.tuples(keys, values, st.integers(0, 3000)), min_size=1, max_size=6)
codecs = st.sampled_from(["none", "none", "gzip", "lz4", "snappy", "zstd"])
operations = st.one_of(
    st.tuples(st.just("append"), records, codecs),
    st.tuples(st.just("append"), records, codecs),
    st.tuples(st.just("idempotent"), st.integers(0, 1), records, codecs),
    st.tuples(st.just("transactional"), st.integers(10, 12), records, codecs),
    st.tuples(st.just("transactional"), st.integers(10, 12), records, codecs),
    st.tuples(st.just("end"), st.integers(10, 12), st.booleans()),
    st.tuples(st.just("end"), st.integers(10, 12), st.booleans()),
    st.tuples(st.just("roll")),
    st.tuples(st.just("wait"), st.integers(1, 1500)),
    st.tuples(st.just("clean"), st.sampled_from([3, 1000])),
    st.tuples(st.just("reopen"), st.booleans()),
)


class Run:
    def __init__(self, directory, timestamp_type):
        self.logs = Logs(
            directory,
            cleanup_policy=("compact",),
            segment_bytes=700,
            delete_retention_ms=1000,
            message_timestamp_type=timestamp_type,
            index_interval_bytes=100,
        )
        self.log = self.logs.open()
        self.sequences = {}
        self.open_txns = set()
        self.first_dirty = 0

    def batch(self, records, codec, **options):
        builder = RecordBatchBuilder(compression=codec, **options)
        for key, value, age in records:
            builder.append(value, key, timestamp=self.logs.time.milliseconds() - age)
        return builder.build()

    def do(self, operation, *arguments):
        getattr(self, operation)(*arguments)

    def append(self, records, codec):
        self.log.append_as_leader(self.batch(records, codec))

    def idempotent(self, producer, records, codec, is_transactional=False):
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + len(records)
        self.log.append_as_leader(
            self.batch(
                records,
                codec,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                is_transactional=is_transactional,
            )
        )

    def transactional(self, producer, records, codec):
        self.open_txns.add(producer)
        self.idempotent(producer, records, codec, True)

    def end(self, producer, commit):
        if producer in self.open_txns:
            self.open_txns.discard(producer)
            self.log.append_as_leader(
                marker(producer, commit=commit, timestamp=self.logs.time.milliseconds()),
                origin=AppendOrigin.COORDINATOR,
            )

    def roll(self):
        if self.log.active_segment.size:
            self.log.roll()

    def wait(self, ms):
        self.logs.time.sleep(ms)

    def reopen(self, clean):
        state = dict(self.log.producer_state_manager.producers)
        before = reference.batches_of(self.log)
        self.log.close()
        self.log = self.logs.open(clean=clean, **({} if clean else {"recovery_point": 0}))
        assert reference.batches_of(self.log) == before
        # A marker that went took its coordinator epoch with it; only snapshots remember that.
        assert known_producers(self.log.producer_state_manager.producers, clean) == known_producers(state, clean)

    def clean(self, keys):
        log, now_ms = self.log, self.logs.time.milliseconds()
        cleanable, _ = find_log_to_clean(log, self.first_dirty, now_ms)
        before = reference.batches_of(log)
        committed = list(log.records(isolation="read_committed"))
        size = log.size
        producers = log.last_records_of_active_producers()
        end, _ = Cleaner(OffsetMap(24 * 2 * keys, 0.5), time=self.logs.time, io_buffer_size=400).clean(cleanable)
        note(f"cleaned [{cleanable.first_dirty_offset}, {end}) of {cleanable.first_uncleanable_offset}")
        after = reference.batches_of(log)
        if end == cleanable.first_uncleanable_offset:
            expected = before
            if cleanable.first_dirty_offset < end:
                expected = reference.clean(before, cleanable.first_dirty_offset, end, producers, now_ms, 1000)
            assert after == expected
        check_rules(log, before, after, committed, cleanable.first_uncleanable_offset, now_ms)
        if all(b.delete_horizon_ms is None for b in after):
            assert log.size <= size
        self.first_dirty = end
        again, _ = find_log_to_clean(log, None, now_ms)
        Cleaner(OffsetMap(24 * 2000), time=self.logs.time).clean(again)
        expected = after
        if again.first_uncleanable_offset > 0:
            expected = reference.clean(after, 0, again.first_uncleanable_offset, producers, now_ms, 1000)
        assert reference.batches_of(log) == expected
        if end == cleanable.first_uncleanable_offset and cleanable.first_dirty_offset == 0:
            # A marker may get its horizon the second time: only then is the data of its transaction gone.
            assert data(expected) == data(after)


def known_producers(producers, by_snapshot):
    """The same values from a snapshot."""
    return {
        producer_id: (
            e.producer_epoch,
            [b[:3] for b in e.batches[-1:]],
            e.current_txn_first_offset,
            e.coordinator_epoch if by_snapshot else None,
        )
        for producer_id, e in producers.items()
    }


def data(batches):
    return [b for b in batches if b.records and not b.is_control]


def last_values(records):
    latest = {}
    for record in records:
        latest[record.key] = record.value
    return {key: value for key, value in latest.items() if value is not None}


def check_rules(log, before, after, committed_before, end, now_ms):
    """What must hold independently of the model."""
    bounds = list(itertools.pairwise([*(s.base_offset for s in log.segments), log.log_end_offset]))
    for segment, (base, following) in zip(log.segments, bounds, strict=True):
        segment.sanity_check()
        assert segment.base_offset == base and segment.read_next_offset() <= following
        for n in range(len(segment.offset_index)):
            offset, position = segment.offset_index.entry(n)
            assert segment.translate_offset(offset).position == position
    offsets = [(b.base_offset, b.last_offset) for b in after]
    assert all(a[1] < b[0] for a, b in itertools.pairwise(offsets))
    assert [b for b in after if b.base_offset >= end] == [b for b in before if b.base_offset >= end]
    committed = list(log.records(isolation="read_committed"))
    assert last_values(committed) == last_values(committed_before)
    kept = {r.offset: r for r in committed_before}
    assert all(kept[r.offset] == r for r in committed)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(operations, min_size=3, max_size=40),
    timestamp_type=st.sampled_from(["CreateTime", "CreateTime", "LogAppendTime"]),
)
def test_any_log_is_cleaned_as_by_the_model(tmp_path_factory, steps, timestamp_type):
    run = Run(tmp_path_factory.mktemp("cleaner") / "orders-0", timestamp_type)
    try:
        for step in steps:
            run.do(*step)
        run.roll()
        run.clean(1000)
        run.reopen(True)
        run.wait(1000)
        run.first_dirty = 0
        run.clean(1000)
        run.reopen(False)
    finally:
        run.log.close()
