"""Plans and reads without a Spark session: what the tasks of a query run."""

import datetime
import os
import shutil
import threading
import time
from itertools import pairwise

import pyarrow as pa
import pytest
from pyspark.sql.datasource import GreaterThanOrEqual

from kcore.bulk.bulk_load import BulkLoad
from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptFile, CorruptMessage
from kcore.log import load_journal
from kcore.log.directory_lock import DirectoryLock
from kcore.log.log_config import LogConfig
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.log.open_log import open_log
from kcore.spark import catalog
from kcore.spark.catalog import Bounds, find_partitions
from kcore.spark.options import COLUMNS, OptionError, read_options
from kcore.spark.source import partition_plan
from kcore.spark.source.batch_plan import BatchPlan, offset_at
from kcore.spark.source.data_loss import DataLoss
from kcore.spark.source.reader import read_ranges
from tests import golden_data
from tests.unit.log.logs import batch, idempotent, marker, old_message, old_wrapper
from tests.unit.spark.data import FIRST_TIMESTAMP, make_records, schema_of, write_partition


def plan_of(path, **options):
    return BatchPlan(read_options({"path": str(path), **options}, streaming=False))


def read(path, columns=COLUMNS, *, tasks=None, batch_bytes=1 << 20, **options):
    """All rows as one Arrow table, task by task."""
    plan, schema = plan_of(path, **options), schema_of(*columns)
    batches = [
        batch
        for ranges in (plan.tasks() if tasks is None else tasks)
        for batch in read_ranges(
            ranges, schema, fail_on_data_loss=plan.options.fail_on_data_loss, batch_bytes=batch_bytes
        )
    ]
    return pa.Table.from_batches(batches, schema)


def read_offsets(path, **options):
    return read(path, ["offset"], **options)["offset"].to_pylist()


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    return directory, write_partition(directory, make_records("orders", 0, 1000), codecs=("none", "zstd", "none"))


def test_what_kafka_wrote_is_read_as_kafkas_consumer_reads_it():
    path = golden_data.data_dir()
    for name, described in golden_data.expected()["partitions"].items():
        if name.startswith("__"):
            continue
        topic, partition = name.rsplit("-", 1)
        assigned = f'{{"{topic}":[{partition}]}}'
        committed = read_offsets(path, assign=assigned, **{"kafka.isolation.level": "read_committed"})
        assert committed == described["consumer"]["read_committed"]["offsets"], name
        rows = read(path, assign=assigned).to_pylist()
        expected = described["consumer"]["read_uncommitted"]["records"]
        assert len(rows) == len(expected), name
        for row, (offset, timestamp, kind, key, value, headers, _) in zip(rows, expected, strict=True):
            assert (row["topic"], row["partition"], row["offset"]) == (topic, int(partition), offset)
            assert round(row["timestamp"].timestamp() * 1000) == timestamp, (name, offset)
            assert row["timestampType"] == ["CreateTime", "LogAppendTime"].index(kind), (name, offset)
            assert (row["key"], row["value"]) == tuple(None if x is None else bytes.fromhex(x) for x in (key, value))
            assert len(row["headers"] or ()) == len(headers), (name, offset)


@pytest.mark.parametrize("batch_bytes", [1, 1000, 1 << 20])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"maxRecordsPerPartition": "7"},
        {"maxBytesPerPartition": "1000"},
        {"minPartitions": "5"},
        {"minPartitions": "2000"},
        {"startingOffsets": '{"orders":{"0":3}}', "endingOffsets": '{"orders":{"0":777}}', "minPartitions": "3"},
    ],
    ids=str,
)
def test_each_record_is_in_one_task_however_the_work_is_cut(rows, options, batch_bytes):
    directory, expected = rows
    first, last = (3, 777) if "startingOffsets" in options else (0, 1000)
    tasks = plan_of(directory, **options).tasks()
    rows = read(directory, batch_bytes=batch_bytes, tasks=tasks, **options).to_pylist()
    assert [row["offset"] for row in rows] == list(range(first, last))
    assert [row["value"] for row in rows] == [row.value for row in expected[first:last]]
    assert [row["key"] for row in rows] == [row.key for row in expected[first:last]]
    if "maxRecordsPerPartition" in options:
        assert max(sum(map(len, ranges)) for ranges in tasks) <= 7
    if "minPartitions" in options:
        assert len(tasks) >= min(int(options["minPartitions"]), 1000)


def test_large_partitions_are_cut_and_small_ones_share_a_task(tmp_path):
    for partition in range(20):
        write_partition(tmp_path, make_records("small", partition, 3))
    assert len(plan_of(tmp_path).tasks()) == 2, "what a log costs is counted as 4 MiB of 64"
    write_partition(tmp_path, make_records("large", 0, 3000))
    sizes = [sum(piece.size for piece in task) for task in plan_of(tmp_path, maxBytesPerPartition="64k").tasks()]
    assert max(sizes) < 100_000 and len(sizes) >= 5


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_compressed_bytes_are_cut_into_tasks_as_what_comes_out_of_them(tmp_path, monkeypatch, codec):
    monkeypatch.setattr(partition_plan, "LEAST_TARGET_BYTES", 64_000)
    monkeypatch.setattr(partition_plan, "TARGET_BYTES", 64_000)
    write_partition(tmp_path, make_records("orders", 0, 5000), codecs=(codec,))
    size = sum(os.path.getsize(file) for file in (tmp_path / "orders-0").glob("*.log"))
    counted = size if codec == "none" else 4 * size
    assert len(plan_of(tmp_path).tasks()) == pytest.approx(counted / 64_000, abs=1)
    tasks = plan_of(tmp_path, maxBytesPerPartition="64000").tasks()
    assert len(tasks) == pytest.approx(size / 64_000, abs=1), "an explicit number means bytes of files"


@pytest.mark.parametrize("magic", [0, 1])
def test_old_wrappers_count_as_compressed_and_old_messages_do_not(tmp_path, magic):
    for topic, data in (("plain", old_message(0, magic=magic)), ("wrapped", old_wrapper(0, 3, magic=magic))):
        os.makedirs(tmp_path / f"{topic}-0")
        (tmp_path / f"{topic}-0" / f"{0:020d}.log").write_bytes(data)
        ((piece,),) = plan_of(tmp_path, subscribe=topic).tasks()
        assert piece.size == (len(data) if topic == "plain" else 4 * len(data))


def test_however_small_the_tasks_are_to_be_they_are_no_more_than_index_entries(tmp_path):
    write_partition(tmp_path, make_records("orders", 0, 1000))
    smallest = [plan_of(tmp_path, maxBytesPerPartition=size).tasks() for size in ("1", "100")]
    assert smallest[0] == smallest[1]
    pieces = [piece for task in smallest[0] for piece in task]
    assert (pieces[0].start, pieces[-1].end) == (0, 1000)
    assert all(before.end == piece.start for before, piece in pairwise(pieces))


@pytest.mark.parametrize("at", [0, 1, 499, 999])
def test_a_timestamp_is_where_the_first_record_as_late_is(rows, at):
    directory, _ = rows
    assert read_offsets(directory, startingTimestamp=str(FIRST_TIMESTAMP + 1000 * at))[0] == at
    timestamps = f'{{"orders":{{"0":{FIRST_TIMESTAMP + 1000 * at - 999}}}}}'
    assert read_offsets(directory, startingOffsetsByTimestamp=timestamps)[0] == at
    assert len(read_offsets(directory, endingOffsetsByTimestamp=timestamps)) == at


def test_a_timestamp_later_than_all_records_is_an_error_unless_the_strategy_says_latest(rows):
    late = {"startingTimestamp": str(FIRST_TIMESTAMP * 2)}
    with pytest.raises(OptionError, match="no record of orders-0 has a timestamp of"):
        read_offsets(rows[0], **late)
    assert read_offsets(rows[0], **late, startingOffsetsByTimestampStrategy="latest") == []
    assert len(read_offsets(rows[0], endingTimestamp=str(FIRST_TIMESTAMP * 2))) == 1000


def test_offsets_must_be_given_for_all_partitions_and_no_others(rows):
    with pytest.raises(OptionError, match=r"must name all .*: missing orders-0; unknown orders-7"):
        read_offsets(rows[0], startingOffsets='{"orders":{"7":3}}')


def test_requested_partitions_that_do_not_exist_are_named(rows, tmp_path):
    with pytest.raises(OptionError, match="no partition of topic 'returns' in"):
        read_offsets(rows[0], subscribe="orders,returns")
    with pytest.raises(OptionError, match="assign: no orders-1, orders-2 in"):
        read_offsets(rows[0], assign='{"orders":[0,1,2]}')
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_offsets(tmp_path / "nowhere")
    with pytest.raises(OptionError, match="there is no partition's directory in"):
        read_offsets(tmp_path)


def test_a_pattern_finds_no_internal_topic_and_a_name_does(rows, tmp_path):
    for name in ("__consumer_offsets-0", "__transaction_state-1", "__cluster_metadata-0", "__mine-0", "orders-0"):
        shutil.copytree(rows[0] / "orders-0", tmp_path / name)
    ranges = BatchPlan(read_options({"path": str(tmp_path), "subscribePattern": ".*"}, streaming=False)).ranges()
    assert [piece.topic_partition.topic for piece in ranges] == ["__mine", "orders"]
    assert len(read_offsets(tmp_path, subscribe="__consumer_offsets")) == 1000


def test_a_partitions_own_directory_can_be_the_path(rows):
    assert len(read_offsets(rows[0] / "orders-0")) == 1000


def test_of_two_directories_each_has_its_partitions_and_none_the_same(rows, tmp_path):
    write_partition(tmp_path, make_records("orders", 1, 5))
    both = f"{rows[0]},{tmp_path}"
    assert sorted(find_partitions(both.split(","))) == [TopicPartition("orders", 0), TopicPartition("orders", 1)]
    assert len(read_offsets(both)) == 1005
    shutil.copytree(rows[0] / "orders-0", tmp_path / "orders-0")
    with pytest.raises(OptionError, match="orders-0 is both in"):
        read_offsets(both)


def test_records_above_the_high_watermark_of_the_directory_are_not_read(rows, tmp_path):
    shutil.copytree(rows[0], tmp_path / "data")
    (tmp_path / "data" / "replication-offset-checkpoint").write_text("0\n1\norders 0 800\n")
    (tmp_path / "data" / "log-start-offset-checkpoint").write_text("0\n1\norders 0 300\n")
    assert read_offsets(tmp_path / "data") == list(range(300, 800))


def test_a_partition_that_the_running_broker_does_not_have_yet_is_left_out_with_a_warning(rows, tmp_path, caplog):
    shutil.copytree(rows[0], tmp_path / "data")
    (tmp_path / "data" / "replication-offset-checkpoint").write_text("0\n1\nreturns 0 800\n")
    (tmp_path / "data" / ".kafka_cleanshutdown").unlink()
    lock = DirectoryLock(tmp_path / "data")
    try:
        assert read_offsets(tmp_path / "data") == []
    finally:
        lock.release()
    assert "orders-0: offsets 0 to 999 are not read" in caplog.text
    caplog.clear()
    assert read_offsets(tmp_path / "data") == list(range(1000)), "the broker is gone: nobody can take anything back"
    assert not caplog.records


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("how", ["a load", "open_log"])
def test_what_was_copied_here_is_still_read_after_another_topic_was_written_beside_it(rows, tmp_path, how, isolation):
    shutil.copytree(rows[0] / "orders-0", tmp_path / "orders-0")
    if how == "a load":
        with BulkLoad(tmp_path, topic="returns") as load:
            load.append(pa.record_batch({"value": [b"x"]}))
            load.commit()
    else:
        write_partition(tmp_path, make_records("returns", 0, 1))
    assert "returns" in (tmp_path / "replication-offset-checkpoint").read_text()
    options = {"subscribe": "orders", "kafka.isolation.level": isolation}
    assert read_offsets(tmp_path, **options) == list(range(1000))
    assert read_offsets(tmp_path, **{**options, "subscribe": "returns"}) == [0]


def test_deleted_records_are_lost_even_while_their_segment_is_there(rows, tmp_path):
    shutil.copytree(rows[0], tmp_path / "data")
    (tmp_path / "data" / "log-start-offset-checkpoint").write_text("0\n1\norders 0 3\n")
    from_1 = {"startingOffsets": '{"orders":{"0":1}}', "endingOffsets": '{"orders":{"0":6}}'}
    with pytest.raises(DataLoss, match=r"offsets 1 to 2 are no longer in .*: the log now starts at 3"):
        read_offsets(tmp_path / "data", **from_1)
    assert read_offsets(tmp_path / "data", **from_1, failOnDataLoss="false") == [3, 4, 5]


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": '{"orders":{"0":1001}}'},
        {"startingOffsets": '{"orders":{"0":7}}', "endingOffsets": '{"orders":{"0":6}}'},
        {"startingTimestamp": str(FIRST_TIMESTAMP + 7000), "endingTimestamp": str(FIRST_TIMESTAMP + 6000)},
    ],
)
def test_a_start_after_the_end_is_refused(rows, options):
    with pytest.raises(OptionError, match=r"orders-0: starting\w+ is offset \d+, after ending\w+, offset \d+"):
        read_offsets(rows[0], **options)
    assert read_offsets(rows[0], startingOffsets='{"orders":{"0":1000}}') == []


def test_a_transaction_that_is_open_ends_what_a_committed_reader_sees(tmp_path):
    with open_log(tmp_path / "orders-0", "a") as log:
        log.append_as_leader(idempotent(1, 0, 3, is_transactional=True))
        log.append_as_leader(marker(1, commit=False), origin=AppendOrigin.COORDINATOR)
        log.append_as_leader(idempotent(2, 0, 2, is_transactional=True))
        log.append_as_leader(marker(2, commit=True), origin=AppendOrigin.COORDINATOR)
        log.append_as_leader(idempotent(3, 0, 4, is_transactional=True))
        log.append_as_leader(batch(2))
    assert read_offsets(tmp_path) == [0, 1, 2, 4, 5, *range(7, 13)]
    committed = {"kafka.isolation.level": "read_committed"}
    assert read_offsets(tmp_path, **committed) == [4, 5]
    assert read_offsets(tmp_path, **committed, maxRecordsPerPartition="1") == [4, 5]


def test_old_messages_are_read_with_their_offsets_and_times(tmp_path):
    os.makedirs(tmp_path / "orders-0")
    data = old_message(0, magic=0) + old_message(1) + old_wrapper(2, 3) + old_wrapper(5, 2, magic=0)
    (tmp_path / "orders-0" / f"{0:020d}.log").write_bytes(data)
    table = read(tmp_path)
    assert table["offset"].to_pylist() == list(range(7))
    assert table["timestampType"].to_pylist() == [-1, 0, 0, 0, 0, -1, -1]
    milliseconds = table["timestamp"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()).to_pylist()
    assert milliseconds == [-1, *[1_700_000_000_000] * 4, -1, -1], "without a timestamp it is -1, as in the connector"


def test_gaps_that_compaction_leaves_are_no_loss(tmp_path):
    size = len(batch(5))
    with open_log(tmp_path / "orders-0", "a", config=LogConfig(segment_bytes=3 * size)) as log:
        for at in range(10):
            log.append_as_leader(batch(5, key=b"%d" % at))
    logs = sorted((tmp_path / "orders-0").glob("*.log"))
    assert len(logs) == 4
    # As the cleaner leaves it: a segment whose records are all gone, and one that begins later than its name.
    logs[1].write_bytes(b"")
    logs[2].write_bytes(logs[2].read_bytes()[size:])
    for path in (tmp_path / "orders-0").glob("*index"):
        path.unlink()
    assert read_offsets(tmp_path) == [*range(15), *range(35, 50)]


@pytest.fixture
def planned(rows, tmp_path):
    """A copy, and the tasks that were planned before something happens to it."""
    shutil.copytree(rows[0], tmp_path / "data")
    return tmp_path / "data", plan_of(tmp_path / "data", maxRecordsPerPartition="100").tasks()


def segments(directory):
    return sorted((directory / "orders-0").glob("*.log"))


def remove_segment(path):
    for suffix in ("log", "index", "timeindex"):
        path.with_suffix(f".{suffix}").unlink()


def test_segments_deleted_between_plan_and_read_are_reported_with_their_offsets(planned):
    directory, tasks = planned
    remove_segment(segments(directory)[0])
    start = int(segments(directory)[0].stem)
    with pytest.raises(
        DataLoss, match=rf"orders-0: offsets 0 to {min(start, 100) - 1} are no longer in .*failOnDataLoss"
    ):
        read(directory, tasks=tasks)
    offsets = read(directory, ["offset"], tasks=tasks, failOnDataLoss="false")["offset"].to_pylist()
    assert offsets == list(range(start, 1000))


def test_a_log_that_was_truncated_between_plan_and_read_is_reported_with_its_end(planned):
    directory, tasks = planned
    end = int(segments(directory)[-1].stem)
    remove_segment(segments(directory)[-1])
    with pytest.raises(DataLoss, match=rf"offsets {end} to {-(-end // 100) * 100 - 1} .* it now ends at {end}"):
        read(directory, tasks=tasks)
    assert read(directory, ["offset"], tasks=tasks, failOnDataLoss="false").num_rows == end


def test_a_directory_that_is_removed_between_plan_and_read_is_reported(planned):
    directory, tasks = planned
    shutil.rmtree(directory / "orders-0")
    with pytest.raises(DataLoss, match=r"offsets 0 to 99 are no longer in .* it is gone"):
        read(directory, tasks=tasks)


def test_a_log_that_rolled_or_was_compacted_between_plan_and_read_is_read_on(planned):
    directory, tasks = planned
    first, second = segments(directory)[:2]
    data = first.read_bytes() + second.read_bytes()
    remove_segment(second)
    first.write_bytes(data)  # merged, as the cleaner merges small segments
    for suffix in (".index", ".timeindex"):
        first.with_suffix(suffix).unlink()
    assert read(directory, ["offset"], tasks=tasks)["offset"].to_pylist() == list(range(1000))


def test_a_segment_that_leads_nowhere_is_an_error_not_a_wait_for_ever(planned):
    directory, tasks = planned
    path = segments(directory)[1]
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match=path.name):
        read(directory, tasks=tasks)


def test_an_interrupted_cleaning_is_reported_as_such_and_not_as_a_gap(planned):
    directory, tasks = planned
    path = segments(directory)[1]
    path.rename(f"{path}.swap")
    with pytest.raises(CorruptFile, match=r"\.log\.swap: a cleaning was interrupted here"):
        read(directory, tasks=tasks)


def load_returns(data_dir):
    """50 records, for a topic that is there and one that is not."""
    with BulkLoad(data_dir) as load:
        topics = pa.array(["orders", "returns"] * 25)
        load.append(pa.record_batch({"topic": topics, "value": [b"x"] * 50}))
        load.commit()


def test_an_interrupted_load_is_reported_together_with_what_finishes_it(planned, monkeypatch):
    directory, tasks = planned
    monkeypatch.setattr(load_journal, "apply_journal", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        load_returns(directory)
    monkeypatch.undo()
    message = r"a load was interrupted here \(kcore-load-journal\).*open_log\(path, 'a'\)"
    for path in (directory, directory / "orders-0"):
        with pytest.raises(CorruptFile, match=message):
            read_offsets(path)
    (new,) = (directory / "orders-0").glob("*.log.cleaned")
    new.rename(new.with_suffix(".swap"))
    with pytest.raises(CorruptFile, match=message):
        read(directory, tasks=tasks)
    new.with_suffix(".swap").rename(new)
    open_log(directory / "spare-0", "a").close()
    assert read_offsets(directory / "orders-0") == list(range(1025))
    assert read_offsets(directory, subscribe="returns") == list(range(25))
    assert len(read(directory, tasks=tasks)) == 1000


def test_a_load_that_runs_is_waited_for(planned, monkeypatch):
    directory, _ = planned
    decided, looked = threading.Event(), threading.Event()
    apply, sleep = load_journal.apply_journal, time.sleep

    def slowly(*arguments):
        decided.set()
        assert looked.wait(60)
        apply(*arguments)

    def waiting(seconds):
        looked.set()
        sleep(seconds)

    monkeypatch.setattr(load_journal, "apply_journal", slowly)
    monkeypatch.setattr(catalog.time, "sleep", waiting)
    loading = threading.Thread(target=load_returns, args=[directory])
    loading.start()
    try:
        assert decided.wait(60)
        assert len(read_offsets(directory)) == 1050
    finally:
        looked.set()
        loading.join()


def test_a_load_that_does_not_end_is_not_waited_for_for_ever(planned, monkeypatch):
    directory, _ = planned
    (directory / load_journal.JOURNAL_FILE).write_text("")
    monkeypatch.setattr(catalog, "_LOAD_SECONDS", 0.1)
    lock = DirectoryLock(directory)
    try:
        with pytest.raises(CorruptFile, match=r"a load is not finished \(kcore-load-journal\)"):
            read_offsets(directory)
    finally:
        lock.release()


def test_requested_offsets_beyond_the_high_watermark_are_data_loss(rows, tmp_path):
    shutil.copytree(rows[0], tmp_path / "data")
    (tmp_path / "data" / "replication-offset-checkpoint").write_text("0\n1\norders 0 800\n")
    to_900 = {"endingOffsets": '{"orders":{"0":900}}'}
    with pytest.raises(DataLoss, match=r"offsets 800 to 899 .* it can be read up to 800"):
        read_offsets(tmp_path / "data", **to_900)
    assert read_offsets(tmp_path / "data", **to_900, failOnDataLoss="false") == list(range(800))


def test_a_flipped_bit_is_an_error_with_file_position_and_offset(planned):
    directory, tasks = planned
    path = segments(directory)[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    with pytest.raises(CorruptMessage, match=path.name) as caught:
        read(directory, tasks=tasks)
    assert caught.value.position is not None


def test_a_segment_cut_inside_a_batch_is_an_error_not_an_end(planned):
    directory, tasks = planned
    path = segments(directory)[1]
    os.truncate(path, path.stat().st_size - 10)
    with pytest.raises(CorruptMessage, match=path.name):
        read(directory, tasks=tasks)


def test_indexes_that_are_gone_or_damaged_change_nothing(planned):
    directory, _ = planned
    names = sorted((directory / "orders-0").glob("*index"))
    for number, path in enumerate(names):
        if number % 2:
            path.unlink()
        else:
            path.write_bytes(os.urandom(path.stat().st_size // 12 * 12 or 24))
    assert read_offsets(directory, minPartitions="7") == list(range(1000))


@pytest.mark.parametrize("entries_left", [0, 1, -1], ids=["none", "the first", "all but the last"])
def test_a_time_index_that_is_short_of_entries_loses_no_record(planned, entries_left):
    directory, _ = planned
    for path in (directory / "orders-0").glob("*.timeindex"):
        size = path.stat().st_size
        assert size >= 24
        os.truncate(path, 12 * entries_left if entries_left >= 0 else size - 12)
    for base in [int(path.stem) for path in segments(directory)]:
        for first in range(max(0, base - 12), min(base + 12, 1000)):
            at = FIRST_TIMESTAMP + 1000 * first
            assert offset_at(str(directory / "orders-0"), at, Bounds(0, 1000)) == first
            with open_log(directory / "orders-0") as log:
                assert log.fetch_offset_by_timestamp(at).offset == first
    assert read_offsets(directory, startingTimestamp=str(FIRST_TIMESTAMP + 999_000)) == [999]
    assert read_offsets(directory, endingTimestamp=str(FIRST_TIMESTAMP + 999_000)) == list(range(999))
    plan = plan_of(directory)
    plan.push(
        [
            GreaterThanOrEqual(
                ("timestamp",), datetime.datetime.fromtimestamp(FIRST_TIMESTAMP // 1000 + 777, datetime.UTC)
            )
        ]
    )
    assert read(directory, ["offset"], tasks=plan.tasks())["offset"].to_pylist() == list(range(777, 1000))
    assert offset_at(str(directory / "orders-0"), FIRST_TIMESTAMP + 999_001, Bounds(0, 1000)) is None


def test_only_the_requested_columns_are_returned_in_the_requested_order(rows):
    table = read(rows[0], ["offset", "topic"])
    assert table.schema.names == ["offset", "topic"]
    assert table["topic"].unique().to_pylist() == ["orders"]
    assert read(rows[0], ["partition"]).num_rows == 1000
