"""to_arrow() and segment.columns() return the same records as records(), for logs of kcore and of Kafka."""

import random
import shutil
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcore.errors import CorruptMessage, KafkaError, LogClosed, OffsetOutOfRange
from kcore.log.log_columns import iterate_columns
from kcore.log.log_iteration import check_nothing_lost
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.log.open_log import open_log
from kcore.log.segment_file import RecoveryResult
from kcore.record.control_record import ControlRecordType, EndTransactionMarker
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.record.record_columns import ColumnsReader
from tests.golden_data import data_dir, expected, partition_dir, partitions
from tests.reference import record_batch as model
from tests.unit.log.logs import Logs, batch, idempotent, marker

pa = pytest.importorskip("pyarrow")

#: Kafka's consumer did not read its internal topics.
CONSUMED = [partition for partition in partitions() if expected()["partitions"][partition].get("consumer")]


def rows_of(log, start=None, end=None, isolation="read_uncommitted"):
    return [tuple(record) for record in log.records(start, end, isolation)]


def rows_of_table(table):
    timestamps = table["timestamp"].cast(pa.int64()).to_pylist()
    return [
        (
            row["offset"],
            -1 if timestamp is None else timestamp,
            ("CreateTime", "LogAppendTime")[row["timestampType"]],
            row["key"],
            row["value"],
            [(header["key"], header["value"]) for header in row["headers"]] or (),
        )
        for row, timestamp in zip(table.drop_columns(["timestamp"]).to_pylist(), timestamps, strict=True)
    ]


@pytest.mark.parametrize("columns", [None, ["offset"], ["value", "offset"]])
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_range_of_offsets_has_its_start_and_not_its_end_and_one_of_times_has_both(logs, columns, compression):
    log = logs.open()
    builder = RecordBatchBuilder(compression=compression)
    for n in range(8):
        builder.append(b"v", timestamp=1000 * n)
    log.append_as_leader(builder.build())
    segment = log.active_segment

    def offsets(**selection):
        selection = {"start_offset": 0, "end_offset": 8} | selection
        reader = ColumnsReader(columns, **selection)
        result = segment.read_columns(reader, selection["start_offset"], 2**62, 1 << 20)
        return result.offset.tolist()

    assert offsets() == list(range(8))
    assert offsets(start_offset=2, end_offset=6) == [2, 3, 4, 5]
    assert offsets(from_time=2000, to_time=4000) == [2, 3, 4]
    assert offsets(from_time=2001, to_time=3999) == [3]
    assert offsets(from_time=7000) == [7] and offsets(to_time=0) == [0]
    assert offsets(start_offset=3, from_time=2000, to_time=5000, end_offset=5) == [3, 4]


@pytest.mark.parametrize("partition", CONSUMED)
def test_a_table_is_what_kafkas_consumer_read(partition):
    def text(raw):
        return None if raw is None else raw.hex()

    consumer = expected()["partitions"][partition]["consumer"]
    with open_log(partition_dir(partition)) as log:
        table = log.to_arrow()
        epochs = log.to_arrow(columns=["leaderEpoch"])["leaderEpoch"].to_pylist()
        committed = log.to_arrow(columns=["offset"], isolation="read_committed")["offset"].to_pylist()
        topic, number = log.topic_partition.topic, log.topic_partition.partition
    rows = [
        [*row[:3], text(row[3]), text(row[4]), [[text(key.encode()), text(value)] for key, value in row[5]], epoch]
        for row, epoch in zip(rows_of_table(table), epochs, strict=True)
    ]
    assert rows == consumer["read_uncommitted"]["records"]
    assert committed == consumer["read_committed"]["offsets"]
    assert set(table["topic"].to_pylist()) <= {topic} and set(table["partition"].to_pylist()) <= {number}


@pytest.mark.parametrize("partition", partitions())
@pytest.mark.parametrize("batch_bytes", [1, 300, 5000])
def test_small_record_batches_hold_the_same_records(partition, batch_bytes):
    with open_log(partition_dir(partition)) as log:
        batches = list(log.iter_arrow(batch_bytes=batch_bytes))
        assert all(batch.num_rows for batch in batches)
        assert pa.Table.from_batches(batches, log.to_arrow().schema).equals(log.to_arrow())
        assert len(batches) > 1 or log.size < 2 * batch_bytes or log.to_arrow().num_rows < 20


@pytest.mark.parametrize("partition", partitions())
def test_the_columns_of_the_segments_together_are_the_log(partition):
    with open_log(partition_dir(partition)) as log:
        offsets = [offset for segment in log.segments for offset in segment.columns().offset.tolist()]
        assert [o for o in offsets if o >= log.log_start_offset] == [record.offset for record in log.records()]
        for segment in log.segments:
            columns = segment.columns(segment.base_offset + 3, segment.base_offset + 9, ["offset", "value"])
            assert columns.key is None
            wanted = [(r.offset, r.value) for r in segment.slice(0, segment.size).records()]
            rows = list(zip(columns.offset.tolist(), columns.value, strict=True))
            control = {o for b in log.batches() if b.is_control for o in range(b.base_offset, b.last_offset + 1)}
            assert rows == [row for row in wanted if 3 <= row[0] - segment.base_offset < 9 and row[0] not in control]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Several segments; all codecs, transactions that were aborted, went through and are still open, markers."""
    rng = random.Random(5)
    with Logs(tmp_path_factory.mktemp("log") / "orders-0", segment_bytes=3000, index_interval_bytes=100).open() as log:
        sequences = {}
        for _ in range(120):
            producer = rng.choice([1, 2, 3])
            if producer in sequences and rng.random() < 0.3:
                log.append_as_leader(marker(producer, commit=rng.random() < 0.5), origin=AppendOrigin.COORDINATOR)
                del sequences[producer]
            elif rng.random() < 0.3:
                log.append_as_leader(batch(rng.randint(1, 5), compression=rng.choice(model.CODECS), size=60))
            else:
                sequence = sequences.get(producer, log_sequence(log, producer))
                count = rng.randint(1, 4)
                data = idempotent(
                    producer, sequence, count, is_transactional=True, compression=rng.choice(model.CODECS)
                )
                log.append_as_leader(data)
                sequences[producer] = sequence + count
        yield log


def log_sequence(log, producer):
    last = [b.last_sequence for b in log.batches() if b.producer_id == producer and not b.is_control]
    return last[-1] + 1 if last else 0


@settings(max_examples=200)
@given(st.data())
def test_any_range_is_cut_exactly(log, data):
    start = data.draw(st.integers(0, log.log_end_offset) | st.none(), "start")
    end = data.draw(st.integers(0, log.log_end_offset + 3) | st.none(), "end")
    isolation = data.draw(st.sampled_from(["read_uncommitted", "read_committed"]), "isolation")
    batch_bytes = data.draw(st.sampled_from([1, 200, 4000, 1 << 24]), "batch_bytes")
    assert rows_of_table(log.to_arrow(start, end, isolation=isolation)) == rows_of(log, start, end, isolation)
    pieces = [
        row
        for piece in log.iter_arrow(start, end, isolation=isolation, batch_bytes=batch_bytes)
        for row in rows_of_table(pa.Table.from_batches([piece]))
    ]
    assert pieces == rows_of(log, start, end, isolation)


def test_the_log_of_this_file_has_what_the_test_above_needs(log):
    assert len(log.segments) > 3
    assert log.last_stable_offset < log.log_end_offset
    assert len(rows_of(log, isolation="read_committed")) < len(rows_of(log, end=log.last_stable_offset))


def test_a_range_outside_the_log_is_refused(log):
    for offset in (-1, log.log_end_offset + 1):
        with pytest.raises(OffsetOutOfRange):
            log.to_arrow(offset)
    assert log.to_arrow(log.log_end_offset).num_rows == 0


def test_wrong_columns_and_sizes_are_refused_before_anything_is_read(log):
    with pytest.raises(ValueError, match="'timestmap'"):
        log.iter_arrow(columns=["timestmap"])
    with pytest.raises(ValueError, match="batch_bytes 0"):
        log.iter_arrow(batch_bytes=0)


def test_a_closed_log_raises_log_closed(tmp_path):
    log = Logs(tmp_path / "orders-0").open()
    log.append_as_leader(batch(3))
    log.close()
    with pytest.raises(LogClosed):
        log.to_arrow()


def test_what_compresses_well_does_not_come_all_at_once(tmp_path):
    with Logs(tmp_path / "orders-0").open() as log:
        for _ in range(20):
            log.append_as_leader(batch(10, size=100_000, compression="zstd"))
        assert log.size < 100_000
        sizes = [piece.nbytes for piece in log.iter_arrow(batch_bytes=3_000_000)]
        assert len(sizes) > 5 and max(sizes) < 5_000_000 and sum(sizes) > 20_000_000


def test_columns_do_not_depend_on_the_file_any_more(tmp_path):
    with Logs(tmp_path / "orders-0").open() as log:
        for _ in range(1000):
            log.append_as_leader(batch(10, size=100))
        columns = log.segments[0].columns()
        table = log.to_arrow()
        log.truncate_to(0)
        assert set(columns.value) == {b"v" * 100} and set(columns.key) == {b"k"}
        assert table["offset"].to_pylist() == columns.offset.tolist() == list(range(10_000))


@pytest.fixture
def copy(tmp_path):
    def make(partition):
        return shutil.copytree(data_dir() / partition, tmp_path / partition)

    return make


def test_each_flipped_byte_is_refused_as_by_records_or_gives_the_same_records(copy):
    directory = copy("g-lz4-0")
    path = directory / "00000000000000000000.log"
    whole = path.read_bytes()
    rng = random.Random(7)
    for position in rng.sample(range(len(whole)), 150):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with open_log(directory) as log:
            try:
                rows = rows_of(log)
            except KafkaError as error:
                with pytest.raises(type(error), match=f"{path.name}.*position"):
                    log.to_arrow()
            else:
                assert rows_of_table(log.to_arrow()) == rows, position


def test_a_segment_that_ends_inside_a_batch_is_reported_with_the_position(tmp_path):
    logs = Logs(tmp_path / "orders-0")
    with logs.open() as log:
        for _ in range(3):
            log.append_as_leader(batch(2))
        size, path = log.size, log.segments[0].log_path
    for cut in (size - 1, size * 2 // 3 + 5):
        with open(path, "r+b") as file:
            file.truncate(cut)
        with open_log(tmp_path / "orders-0") as log:
            segment = log.segments[0]
            with pytest.raises(CorruptMessage, match=f"inside the batch at position {size * 2 // 3}.*offset 3"):
                segment.columns()
            with pytest.raises(CorruptMessage, match=f"inside the batch at position {size * 2 // 3}"):
                segment.columns(5)
            assert segment.columns(end_offset=4).offset.tolist() == [0, 1, 2, 3]
            # The log ends where the whole batches do.
            assert log.to_arrow()["offset"].to_pylist() == [0, 1, 2, 3]


def test_a_segment_without_records_has_empty_columns(tmp_path):
    with Logs(tmp_path / "orders-0").open() as log:
        assert len(log.active_segment.columns()) == 0
        assert log.to_arrow().num_rows == 0
        builder = RecordBatchBuilder(is_control=True, is_transactional=True, producer_id=1, producer_epoch=0)
        end = EndTransactionMarker(ControlRecordType.COMMIT, 0)
        builder.append(end.value(), end.key())
        log.append_as_leader(builder.build(), origin=AppendOrigin.COORDINATOR)
        assert len(log.active_segment.columns()) == 0 and log.to_arrow().num_rows == 0


def test_a_log_that_is_cut_while_it_is_read_gives_a_part_of_it_and_never_anything_else(tmp_path):
    logs = Logs(tmp_path / "orders-0", segment_bytes=200_000)
    with logs.open() as log:
        data = bytes(batch(50, size=200))
        failures, done = [], threading.Event()

        def read():
            while not done.is_set():
                try:
                    offsets = log.to_arrow(0, columns=["offset", "value"])["offset"].to_pylist()
                    if offsets != list(range(len(offsets))):
                        failures.append(offsets)
                except Exception as error:
                    failures.append(error)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        rng = random.Random(3)
        for _ in range(30):
            for _ in range(40):
                log.append_as_leader(bytearray(data))
            log.truncate_to(rng.randrange(0, log.log_end_offset, 50))  # between batches: no gap
        done.set()
        for reader in readers:
            reader.join()
        assert failures == []


class _Interrupted:
    """A log, or one of its segments, of whose methods one does something else first, once."""

    def __init__(self, inner, **replaced):
        self._inner, self._replaced = inner, replaced

    def __getattr__(self, name):
        return self._replaced.get(name) or getattr(self._inner, name)


def interrupted(log, read_columns=None, scan=None):
    """The log, whose first segment calls these, once, in place of its methods."""
    left = {"read_columns": read_columns, "scan": scan}

    def once(segment, name):
        def call(*args, **options):
            instead = left.pop(name, None)
            return instead(segment) if instead else getattr(segment, name)(*args, **options)

        return call

    def wrapped(segment):
        if segment is None or segment.base_offset:
            return segment
        return _Interrupted(segment, read_columns=once(segment, "read_columns"), scan=once(segment, "scan"))

    segments = _Interrupted(
        log.segments,
        floor=lambda offset: wrapped(log.segments.floor(offset)),
        from_floor=lambda offset: map(wrapped, log.segments.from_floor(offset)),
    )
    return _Interrupted(log, segments=segments)


def test_a_reader_that_finds_nothing_since_the_log_was_cut_does_not_go_on_after_records_that_came_then(tmp_path):
    logs = Logs(tmp_path / "orders-0", segment_bytes=2_000)
    with logs.open() as log:
        for _ in range(60):
            log.append_as_leader(batch(1, size=200))

        def cut_and_grown(segment):
            log.truncate_to(0)
            for _ in range(60):
                log.append_as_leader(batch(1, size=200))

        chunks = iterate_columns(interrupted(log, read_columns=cut_and_grown), 0, None, ["offset"], False, 1 << 20)
        offsets = [offset for chunk in chunks for offset in chunk.offset.tolist()]
        assert offsets == list(range(len(offsets))) and offsets


def test_a_log_that_grows_while_it_is_walked_for_lost_records_has_lost_none(tmp_path):
    logs = Logs(tmp_path / "orders-0", segment_bytes=2_000)
    with logs.open() as log:
        for _ in range(60):
            log.append_as_leader(batch(1, size=200))
        half_a_batch = RecoveryResult(100, 50, None, 3)  # what a walk finds while another thread cuts and appends
        log = interrupted(log, read_columns=lambda segment: None, scan=lambda segment: half_a_batch)
        list(iterate_columns(log, 0, None, ["offset"], False, 1 << 20))


WHOLE, HALF = RecoveryResult(100, 0, None, 9), RecoveryResult(100, 50, None, 9)


def log_of(*walks, cut_to=30):
    """Segments of ten offsets each, and what the walks of each find; another thread cuts the log before the lock."""

    class Lock:
        def __enter__(self):
            log.log_end_offset = cut_to

        def __exit__(self, *_):
            pass

    def segment(number, found):
        left = list(found)
        return SimpleNamespace(base_offset=10 * number, log_path=f"{number}.log", scan=lambda *_, **__: left.pop(0))

    segments = [segment(number, found) for number, found in enumerate(walks)]
    log = SimpleNamespace(
        log_end_offset=30, lock=Lock(), segments=SimpleNamespace(from_floor=lambda offset: segments[offset // 10 :])
    )
    return log


def test_lost_records_are_looked_for_in_each_segment_before_the_place_where_the_log_goes_on():
    with pytest.raises(CorruptMessage, match=r"1\.log: nothing can be read after position 100"):
        check_nothing_lost(log_of([WHOLE], [HALF, HALF], [WHOLE]), 5, 25)
    check_nothing_lost(log_of([WHOLE], [WHOLE], [HALF, HALF]), 5, 20)  # what is lost, if anything, is beyond
    check_nothing_lost(log_of([WHOLE], [HALF, WHOLE], [WHOLE]), 5, 25)  # it was being written
    check_nothing_lost(log_of([WHOLE], [HALF, HALF], [WHOLE], cut_to=24), 5, 25)


@pytest.mark.parametrize("base_offset", [16, 17, 1000, 2**62])
def test_a_base_offset_that_is_too_high_is_refused_however_many_batches_follow(tmp_path, base_offset):
    logs = Logs(tmp_path / "orders-0")
    log = logs.open()
    for _ in range(40):
        log.append_as_leader(batch())
    path = log.active_segment.log_path
    log.close()
    with open(path, "r+b") as file:
        file.write(base_offset.to_bytes(8, "big"))
    with open_log(str(logs.directory)) as again, pytest.raises(CorruptMessage, match="offset"):
        again.active_segment.columns()
