"""A bulk load makes finished segments; a crash leaves all of it or nothing."""

import errno
import json
import os
import random
import shutil
from uuid import UUID

import pyarrow as pa
import pytest

import kcore
from kcore.bulk.bulk_commit import commit_load, discard_load, staging_directory
from kcore.bulk.bulk_load import BulkLoad, SegmentWriter
from kcore.common import file
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    ClusterMemberDirectory,
    CorruptFile,
    DirectoryInUse,
    InvalidPartitions,
    InvalidTimestamp,
    InvalidTopicException,
    MessageTooLarge,
)
from kcore.log import checkpoints, load_journal, meta_properties
from kcore.log.checkpoints import EpochEntry, OffsetCheckpointFile
from kcore.log.clean_shutdown import was_clean_shutdown
from kcore.log.directory_lock import DirectoryLock
from kcore.log.load_journal import JOURNAL_FILE, finish_interrupted_load
from kcore.log.log_config import LogConfig
from kcore.log.log_file_names import parse_partition_directory
from kcore.log.log_loader import load_log
from kcore.log.log_manager import LogManager
from kcore.log.log_segment import LogSegment
from kcore.log.partition_counts import PartitionCounts, partition_counts
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.reference.partitioner import partition_for_key

NOW = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=4096, index_interval_bytes=200)


@pytest.fixture(autouse=True)
def _no_fault_stays():
    yield
    file.clear_faults()


def random_rows(seed, count, *, topics=("orders",)):
    """(topic, key, value, timestamp, headers)"""
    rng = random.Random(seed)
    return [
        (
            rng.choice(topics),
            rng.choice([None, b"", b"key-%d" % rng.randrange(40)]),
            rng.choice([None, b"", rng.randbytes(rng.randint(1, 150))]),
            NOW + rng.randint(0, 10**6),
            rng.choice([None, [], [("source", b"web"), ("", None)]]),
        )
        for _ in range(count)
    ]


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def batch_of(rows, **columns):
    topic, key, value, timestamp, headers = zip(*rows, strict=True)
    return pa.record_batch(
        {
            "topic": pa.array(topic, pa.string()),
            "key": pa.array(key, pa.binary()),
            "value": pa.array(value, pa.binary()),
            "timestamp": pa.array([t * 1000 for t in timestamp], pa.timestamp("us", "UTC")),
            "headers": pa.array([h and [{"key": k, "value": v} for k, v in h] for h in headers], HEADERS),
        }
        | columns
    )


def load(data_dir, rows, *, per_batch=37, **options):
    with BulkLoad(data_dir, **{"config": SMALL, "batch_bytes": 500} | options) as bulk:
        for at in range(0, len(rows), per_batch):
            bulk.append(batch_of(rows[at : at + per_batch]))
        return bulk.commit()


def by_partition(rows, partitions, turns=None):
    """The model: topic and partition -> (key, value, timestamp, headers) in their order."""
    turns = {} if turns is None else turns
    records = {}
    for topic, key, value, timestamp, headers in rows:
        if key is None:
            partition = turns.get(topic, 0)
            turns[topic] = (partition + 1) % partitions
        else:
            partition = partition_for_key(key, partitions)
        record = (key, value, timestamp, list(headers or []))
        records.setdefault(TopicPartition(topic, partition), []).append(record)
    return records


def records_in(directory, **options):
    with kcore.open_log(directory, **options) as log:
        records = list(log.records())
        assert [r.offset for r in records] == list(range(log.log_start_offset, log.log_end_offset))
        return [(r.key, r.value, r.timestamp, list(r.headers)) for r in records]


def contents(data_dir):
    return {
        parse_partition_directory(path.name).topic_partition: records_in(path)
        for path in sorted(data_dir.iterdir())
        if path.is_dir() and not path.name.endswith("-delete")
    }


def check_indexes(directory, *, interval_bytes=SMALL.index_interval_bytes, from_segment=0):
    """They are byte for byte those that recovery builds, which are those of one stream of appends."""
    for path in sorted(directory.glob("*.log"))[from_segment:]:
        files = [path.with_suffix(extension) for extension in (".index", ".timeindex")]
        before = [f.read_bytes() for f in files]
        segment = LogSegment(str(directory), int(path.stem), index_interval_bytes=interval_bytes)
        segment.sanity_check()
        assert segment.recover().truncated_bytes == 0
        segment.close()
        assert [f.read_bytes() for f in files] == before


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_record_is_in_the_partition_of_its_key_in_the_order_of_its_coming(tmp_path, codec):
    rows = random_rows(codec, 1500, topics=("orders", "a.b-c"))
    offsets = load(tmp_path, rows, partitions=5, compression=codec)
    expected = by_partition(rows, 5)
    assert contents(tmp_path) == expected
    assert offsets == {tp: (0, len(records)) for tp, records in expected.items()}
    assert len(list(tmp_path.glob("*/*.log"))) > 2 * len(expected)
    for path in tmp_path.glob("*-[0-9]"):
        check_indexes(path)
        with kcore.open_log(path) as log:
            assert {b.compression for b in log.batches()} == {codec}
            assert log.leader_epoch_cache.entries == (EpochEntry(0, 0),)
    assert was_clean_shutdown(tmp_path)
    assert not list(tmp_path.glob("kcore-load*"))


def test_a_second_load_goes_on_where_the_first_ended(tmp_path):
    first, second = random_rows(1, 400), random_rows(2, 700)
    load(tmp_path, first, topic="orders", partitions=3)
    ends = load(tmp_path, second, topic="orders")
    expected, more = by_partition(first, 3), by_partition(second, 3)
    assert contents(tmp_path) == {tp: expected[tp] + more[tp] for tp in expected}
    assert ends == {tp: (len(expected[tp]), len(expected[tp]) + len(more[tp])) for tp in expected}
    for path in tmp_path.glob("orders-?"):
        check_indexes(path)


def test_the_marker_of_a_clean_stop_keeps_what_the_broker_wrote_into_it(tmp_path):
    marker = tmp_path / ".kafka_cleanshutdown"
    for text, kept in [('{"version":0,"brokerEpoch":41}', 41), ("", -1), ("[]", -1), ('{"brokerEpoch":true}', -1)]:
        marker.write_text(text)
        load(tmp_path, random_rows(1, 3))
        assert json.loads(marker.read_text()) == {"version": 0, "brokerEpoch": kept}


def test_a_load_is_appended_after_the_records_of_a_later_epoch(tmp_path):
    def one():
        builder = RecordBatchBuilder()
        builder.append(b"v", b"k", timestamp=NOW)
        return builder.build()

    with kcore.open_log(tmp_path / "orders-0", "a") as log:
        log.append_as_leader(one(), leader_epoch=4)
    rows = random_rows(3, 50)
    load(tmp_path, rows)
    assert records_in(tmp_path / "orders-0") == [
        (b"k", b"v", NOW, []),
        *by_partition(rows, 1)[TopicPartition("orders", 0)],
    ]
    with kcore.open_log(tmp_path / "orders-0") as log:
        assert log.leader_epoch_cache.entries == (EpochEntry(4, 0),)
        assert {batch.leader_epoch for batch in log.batches()} == {4}
        log_end = log.log_end_offset
    for name in (checkpoints.RECOVERY_POINT_CHECKPOINT, checkpoints.REPLICATION_OFFSET_CHECKPOINT):
        assert OffsetCheckpointFile(str(tmp_path / name)).read() == {TopicPartition("orders", 0): log_end}
    with kcore.open_log(tmp_path / "orders-0", "a") as log:
        log.append_as_leader(one(), leader_epoch=5)
        assert log.log_end_offset == log_end + 1


def test_the_segments_of_several_tasks_follow_each_other_in_the_order_of_the_tasks(tmp_path):
    staging = staging_directory(str(tmp_path), "abc")
    logs, expected = [], {}
    for task in range(4):
        rows = random_rows(task, 300)
        writer = SegmentWriter(
            f"{staging}/{task}", PartitionCounts({"orders": 2}), config=SMALL, batch_bytes=500, turn=task
        )
        for at in range(0, 300, 50):
            writer.append(batch_of(rows[at : at + 50]))
        logs += writer.finish()
        for tp, records in by_partition(rows, 2, {"orders": task % 2}).items():
            expected.setdefault(tp, []).extend(records)
    commit_load(str(tmp_path), staging, logs, partitions={"orders": 3}, config=SMALL)
    assert contents(tmp_path) == expected | {TopicPartition("orders", 2): []}
    for path in tmp_path.glob("orders-?"):
        check_indexes(path)


@pytest.mark.parametrize("staged_after", [0, 300])
def test_what_many_tasks_with_few_records_staged_becomes_few_segments(tmp_path, staged_after):
    expected = {TopicPartition("t", p): [] for p in range(2)}
    if staged_after:
        rows = random_rows(99, staged_after, topics=("t",))
        load(tmp_path, rows, partitions=2, config=LogConfig())
        expected = by_partition(rows, 2)
    staging = staging_directory(str(tmp_path), "abc")
    logs, config = [], LogConfig(segment_bytes=30_000, index_interval_bytes=500)
    for task in range(40):
        rows = random_rows(task, 25, topics=("t",))
        writer = SegmentWriter(f"{staging}/{task}", PartitionCounts({"t": 2}), config=config, batch_bytes=500)
        writer.append(batch_of(rows))
        logs += writer.finish()
        for tp, records in by_partition(rows, 2).items():
            expected[tp].extend(records)
    commit_load(str(tmp_path), staging, logs, partitions={"t": 2}, config=config)
    assert contents(tmp_path) == expected
    for path in tmp_path.glob("t-?"):
        check_indexes(path, interval_bytes=500, from_segment=int(bool(staged_after)))
        sizes = [log.stat().st_size for log in sorted(path.glob("*.log"))][bool(staged_after) :]
        assert len(sizes) < 5 and all(27_000 < size <= 30_000 for size in sizes[:-1])
        with kcore.open_log(path) as log:
            for segment in log.segments[bool(staged_after) :]:
                assert len(segment.offset_index) > 5
                for offset in range(segment.base_offset, segment.read_next_offset(), 7):
                    assert segment.translate_offset(offset).offset >= offset
            timestamps = [record[2] for record in expected[log.topic_partition]]
            assert log.fetch_offset_by_timestamp(max(timestamps)).offset == timestamps.index(max(timestamps))


def test_segments_are_not_joined_over_the_time_that_a_segment_may_span(tmp_path):
    config = LogConfig(segment_ms=1000)
    staging = staging_directory(str(tmp_path), "abc")
    logs = []
    for task, second in enumerate((0, 0, 5, 5)):
        writer = SegmentWriter(f"{staging}/{task}", PartitionCounts(), config=config)
        writer.append(batch_of([("t", b"k", b"v", NOW + 1000 * second, None)]))
        logs += writer.finish()
    commit_load(str(tmp_path), staging, logs, partitions={}, config=config)
    with kcore.open_log(tmp_path / "t-0") as log:
        assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_an_empty_topic_gets_its_partitions_and_takes_a_load_later(tmp_path):
    with BulkLoad(tmp_path, topic="orders", partitions=2) as bulk:
        assert bulk.commit() == {TopicPartition("orders", p): (0, 0) for p in (0, 1)}
    assert contents(tmp_path) == {TopicPartition("orders", p): [] for p in (0, 1)}
    rows = random_rows(4, 100)
    load(tmp_path, rows, topic="orders", partitions=2)
    assert contents(tmp_path) == by_partition(rows, 2)


def test_a_replaced_topic_has_only_the_new_records_at_offsets_after_the_old(tmp_path):
    first, second = random_rows(5, 200), random_rows(6, 90)
    load(tmp_path, first, topic="orders", partitions=2)
    load(tmp_path, random_rows(7, 10, topics=("others",)), topic="others")
    topic_id = UUID(int=77)
    with kcore.open_log(tmp_path / "orders-1", "a") as log:
        log.assign_topic_id(topic_id)
        log.maybe_increment_log_start_offset(3)
    before = by_partition(first, 2)
    offsets = load(tmp_path, second, topic="orders", replace=True)
    after = by_partition(second, 2)
    assert offsets == {tp: (len(before[tp]), len(before[tp]) + len(after[tp])) for tp in before}
    assert {tp: rows for tp, rows in contents(tmp_path).items() if tp.topic == "orders"} == after
    with kcore.open_log(tmp_path / "orders-1", "a") as log:
        assert log.topic_id == topic_id
        assert log.log_start_offset == len(before[TopicPartition("orders", 1)])
    assert not list(tmp_path.glob("*-delete"))
    assert len(records_in(tmp_path / "others-0")) == 10


def test_records_without_timestamp_headers_or_key_get_now_none_and_turns(tmp_path):
    with BulkLoad(tmp_path, topic="t", partitions=2, time=MockTime(NOW)) as bulk:
        bulk.append(pa.record_batch({"value": pa.array(["a", "b", "c"])}))
        bulk.append(
            pa.record_batch(
                {
                    "value": pa.array([b"d", None]),
                    "timestamp": pa.array([None, 5000], pa.timestamp("us", "UTC")),
                    "partition": pa.array([None, 1], pa.int32()),
                    "other": pa.array([1, 2]),
                }
            )
        )
        bulk.commit()
    assert records_in(tmp_path / "t-0") == [(None, b"a", NOW, []), (None, b"c", NOW, [])]
    assert records_in(tmp_path / "t-1") == [(None, b"b", NOW, []), (None, b"d", NOW, []), (None, None, 5, [])]


def test_a_partition_that_a_record_names_comes_before_its_key(tmp_path):
    rows = random_rows(8, 60)
    partition_column = [random.Random(i).choice([None, 0, 1, 2]) for i in range(60)]
    with BulkLoad(tmp_path, partitions=3) as bulk:
        bulk.append(batch_of(rows, partition=pa.array(partition_column, pa.int32())))
        bulk.commit()
    for p in range(3):
        values = [row[2] for row, own in zip(rows, partition_column, strict=True) if own == p]
        loaded = [record[1] for record in records_in(tmp_path / f"orders-{p}")]
        assert [v for v in loaded if v in values] and set(map(str, values)) <= set(map(str, loaded))


def test_a_segment_is_rolled_when_its_bytes_or_its_time_are_up(tmp_path):
    config = LogConfig(segment_bytes=10_000, segment_ms=1000)
    rows = [("t", None, b"v" * 900, NOW + (5000 if n >= 30 else 0), None) for n in range(40)]
    load(tmp_path, rows, config=config, batch_bytes=1000)
    with kcore.open_log(tmp_path / "t-0") as log:
        assert [s.base_offset for s in log.segments] == [0, 10, 20, 30]
        assert all(s.size <= 10_000 for s in log.segments)


@pytest.mark.parametrize(
    "columns, error, words",
    [
        ({"value": pa.array([b"x" * 3000])}, MessageTooLarge, "t-0.*3[0-9]{3} bytes.*2000"),
        ({"timestamp": pa.array([-2000], pa.timestamp("us", "UTC"))}, InvalidTimestamp, "-2 ms"),
        ({"timestamp": pa.array([-1500], pa.timestamp("us", "UTC"))}, InvalidTimestamp, "59.998500"),
        ({"timestamp": pa.array([-500], pa.timestamp("us", "UTC"))}, InvalidTimestamp, "59.999500"),
        (
            {"partition": pa.array([2], pa.int32())},
            ValueError,
            "topic t: column partition says 2, but the topic is made with 2 partitions: give option numPartitions .* "
            "or drop the column",
        ),
        ({"partition": pa.array([-1], pa.int32())}, ValueError, "-1"),
        ({"topic": pa.array([None], pa.string())}, InvalidTopicException, "no topic"),
        ({"topic": pa.array(["a/b"], pa.string())}, InvalidTopicException, "a/b"),
        ({"value": pa.array([1.5])}, pa.ArrowException, ""),
    ],
)
def test_a_record_that_no_log_can_have_fails_the_load_and_nothing_stays(tmp_path, columns, error, words):
    config = LogConfig(max_message_bytes=2000)
    with pytest.raises(error, match=words), BulkLoad(tmp_path, partitions=2, config=config) as bulk:
        bulk.append(batch_of([("t", b"k", b"v", NOW, None)]))
        bulk.append(batch_of([("t", b"k", b"v", NOW, None)], **columns))
        bulk.commit()
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == []


def test_a_partition_that_a_topic_does_not_have_is_reported_with_the_number_of_its_partitions(tmp_path):
    rows = random_rows(1, 5)
    load(tmp_path, rows, topic="orders")
    with BulkLoad(tmp_path, topic="orders") as bulk, pytest.raises(ValueError) as failure:
        bulk.append(batch_of(rows, partition=pa.array([0, None, 1, 0, None], pa.int32())))
        bulk.commit()
    message = "topic orders: column partition says 1, but the topic has 1 partition: drop the column"
    assert str(failure.value) == message


def test_a_codec_or_level_that_does_not_exist_is_refused_before_anything_is_staged(tmp_path):
    for settings, words in (
        ({"compression": "snappy", "level": 3}, "snappy has no levels"),
        ({"compression": "zstd", "level": 23}, "zstd has no level 23"),
        ({"compression": "brotli"}, "'brotli' is none of"),
    ):
        with pytest.raises(ValueError, match=words):
            BulkLoad(tmp_path, topic="orders", **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_use_is_refused(tmp_path):
    lock = DirectoryLock(str(tmp_path))
    with pytest.raises(DirectoryInUse, match="opened for writing in this process already"):
        BulkLoad(tmp_path)
    lock.release()
    with BulkLoad(tmp_path) as bulk:
        bulk.append(batch_of(random_rows(1, 5)))
        lock = DirectoryLock(str(tmp_path))
        with pytest.raises(DirectoryInUse):
            bulk.commit()
        lock.release()
    assert contents(tmp_path) == {}


def test_a_directory_of_a_clusters_member_is_refused(tmp_path):
    """Also one that joined a cluster while the records were staged."""
    with BulkLoad(tmp_path) as bulk:
        bulk.append(batch_of(random_rows(1, 5)))
        meta_properties.write(str(tmp_path), "c", 4)
        meta_properties.mark_as_member(str(tmp_path))
        with pytest.raises(ClusterMemberDirectory):
            bulk.commit()
    assert contents(tmp_path) == {}
    with pytest.raises(ClusterMemberDirectory, match="broker 4 of cluster c"):
        BulkLoad(tmp_path)


def test_the_number_of_partitions_is_that_of_the_directory(tmp_path):
    load(tmp_path, random_rows(1, 20), partitions=4)
    assert partition_counts(str(tmp_path)).known == {"orders": 4}
    with pytest.raises(InvalidPartitions, match="has 4 partitions, not 6"):
        BulkLoad(tmp_path, topic="orders", partitions=6)
    shutil.rmtree(tmp_path / "orders-2")
    with pytest.raises(InvalidPartitions, match="orders there is partition 3, and of those before it not all"):
        BulkLoad(tmp_path, topic="orders")
    with pytest.raises(InvalidPartitions, match="orders"):
        load(tmp_path, random_rows(1, 20, topics=("others", "orders")))
    load(tmp_path, random_rows(1, 20, topics=("others",)))
    assert len(records_in(tmp_path / "others-0")) == 20


def test_of_two_loads_of_a_new_topic_at_once_the_later_is_refused_when_it_spread_keys_otherwise(tmp_path):
    rows = random_rows(1, 60)
    loads = {n: BulkLoad(tmp_path, topic="orders", partitions=n) for n in (2, 4, 1)}
    same = BulkLoad(tmp_path, topic="orders", partitions=2)
    for bulk in (*loads.values(), same):
        bulk.append(batch_of(rows))
    loads[2].commit()
    for n in (4, 1):
        with loads[n] as bulk, pytest.raises(InvalidPartitions, match=f"orders has 2 partitions, not {n}"):
            bulk.commit()
    assert contents(tmp_path) == by_partition(rows, 2)
    same.commit()
    assert contents(tmp_path) == {tp: 2 * records for tp, records in by_partition(rows, 2).items()}
    assert not list(tmp_path.glob("kcore-load*"))


@pytest.mark.parametrize("number", [-1, 0, 30_000_000_000])
def test_a_topic_is_made_with_no_number_of_partitions_that_cannot_be_meant(tmp_path, number):
    with pytest.raises(InvalidPartitions, match=f"^{number} partitions: a topic is made with 1 to 100000$"):
        BulkLoad(tmp_path, topic="t", partitions=number)


def staged_stream_batch(data_dir, name, rows):
    staging = staging_directory(str(data_dir), name)
    writer = SegmentWriter(f"{staging}/0", PartitionCounts(), config=SMALL)
    writer.append(batch_of(rows))
    return staging, writer.finish()


def test_a_batch_of_a_stream_is_loaded_once_however_often_it_comes(tmp_path):
    batches = [random_rows(n, 20) for n in range(3)]
    for stream, number in [("q", 0), ("q", 0), ("q", 1), ("q", 0), ("other", 0), ("q", 2), ("q", 2)]:
        staging, logs = staged_stream_batch(tmp_path, f"{stream}{number}", batches[number])
        commit_load(str(tmp_path), staging, logs, partitions={}, stream=(stream, number))
    assert [r[1] for r in records_in(tmp_path / "orders-0")] == [
        row[2] for rows in (batches[0], batches[1], batches[0], batches[2]) for row in rows
    ]
    assert not list(tmp_path.glob("kcore-load-0*"))


def test_an_unclean_directory_is_recovered_where_it_is_loaded_into_and_stays_unclean(tmp_path):
    first = random_rows(1, 50)
    load(tmp_path, first, topic="orders")
    load(tmp_path, random_rows(2, 50, topics=("others",)), topic="others")
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / checkpoints.RECOVERY_POINT_CHECKPOINT).unlink()
    last = max((tmp_path / "orders-0").glob("*.log"))
    last.write_bytes(last.read_bytes() + b"\0" * 40)
    second = random_rows(3, 50)
    load(tmp_path, second, topic="orders")
    assert records_in(tmp_path / "orders-0") == by_partition(first + second, 1)[TopicPartition("orders", 0)]
    assert not was_clean_shutdown(tmp_path)


def test_a_load_removes_what_others_left_a_day_ago_and_nothing_that_still_changes(tmp_path):
    load(tmp_path, random_rows(1, 5))
    left, running = (staging_directory(str(tmp_path), name) for name in ("left", "running"))
    for staging in (left, running):
        SegmentWriter(f"{staging}/0", PartitionCounts(), config=SMALL).append(batch_of(random_rows(2, 5)))
        (tmp_path / staging / "0" / "part").write_bytes(b"x")
    others = [tmp_path / name for name in ("orders-1.0123-delete", "kcore-load-0.log", "kcore-load-1.0123-delete")]
    for other in others:
        other.mkdir()
    for path in [path for path in tmp_path.rglob("*") if path.name != ".lock"]:
        os.utime(path, times=(0, path.stat().st_mtime - 25 * 3600))
    os.utime(f"{running}/0/part")  # all that a task does for a day may be to write one file
    load(tmp_path, random_rows(3, 5), topic="new")
    assert not os.path.exists(left) and os.path.exists(f"{running}/0/part")
    assert all(other.is_dir() for other in others)
    own = BulkLoad(tmp_path, topic="new")
    own.append(batch_of(random_rows(4, 5)))
    for path in [*tmp_path.glob("kcore-load-0.*-delete"), *tmp_path.glob("kcore-load-0.*-delete/**/*")]:
        os.utime(path, times=(0, path.stat().st_mtime - 25 * 3600))
    own.commit()
    assert not os.path.exists(running) and len(records_in(tmp_path / "new-0")) == 10


# -- crashes -----------------------------------------------------------------------------------------------------------


def as_another_broker_finds_it(data_dir, copy):
    """The records of each partition as a loader reads them that ignores the journal of loads."""
    shutil.copytree(data_dir, copy)
    records = {}
    for path in sorted(copy.iterdir()):
        if path.is_dir() and not path.name.endswith("-delete"):
            tp = parse_partition_directory(path.name).topic_partition
            log = load_log(str(path), tp, LogConfig(), had_clean_shutdown=was_clean_shutdown(str(copy)))
            records[tp] = [(r.key, r.value, r.timestamp, list(r.headers)) for r in log.records()]
            log.close()
    shutil.rmtree(copy)
    return records


@pytest.mark.parametrize("replace", [False, True])
def test_a_crash_at_any_step_of_the_commit_leaves_each_partition_old_or_new_and_kcore_all_of_them(
    tmp_path, replace, seed
):
    origin = tmp_path / "origin"
    first, second = random_rows(11, 60), random_rows(12, 160, topics=("orders", "others"))
    load(origin, first, topic="orders", partitions=2)
    old, more = by_partition(first, 2), by_partition(second, 2)
    new = {tp: records if replace else old.get(tp, []) + records for tp, records in more.items()}
    assert len(old) == 2 and len(new) == 4

    def commit(data_dir):
        staging = staging_directory(str(data_dir), "abc")
        writer = SegmentWriter(f"{staging}/0", PartitionCounts(new=2), config=SMALL, batch_bytes=500)
        writer.append(batch_of(second))
        logs = writer.finish()
        file.count_calls()
        yield
        replaced = {"orders"} if replace else ()
        partitions = {"orders": 2, "others": 2}
        commit_load(str(data_dir), staging, logs, partitions=partitions, replaced=replaced, stream=("q", 1))

    def run(data_dir, step):
        shutil.copytree(origin, data_dir)
        steps = commit(data_dir)
        next(steps)
        if step is not None:
            file.fail_next(file.CHANGES, errno.EIO, times=-1, skip=step)
        next(steps, None)

    run(tmp_path / "whole", None)
    changes = sum(file.calls(call) for call in file.CHANGES)
    assert contents(tmp_path / "whole") == new
    seen = set()
    every = 1 if {"KCORE_LONG", "KCORE_CRASH_SEEDS"} & os.environ.keys() else changes // 20
    for step in range(random.Random(seed).randrange(every), changes, every):
        data_dir = tmp_path / f"step-{step}"
        try:
            run(data_dir, step)
        except (OSError, kcore.errors.KafkaError):
            pass
        file.clear_faults()
        decided = (data_dir / JOURNAL_FILE).exists()
        for tp, records in as_another_broker_finds_it(data_dir, tmp_path / "copy").items():
            assert records in ([old.get(tp, []), new[tp]]), step
        with kcore.open_log(data_dir / "spare-0", "a"):  # opening the directory finishes the load
            pass
        current = {tp: records for tp, records in contents(data_dir).items() if tp.topic != "spare"}
        seen.add(current == new)
        assert current in (old, new), step
        assert current == new or not decided, step
        if current == new:
            assert load_journal.last_batches(str(data_dir)) == {"q": 1}
        else:
            discard_load(str(data_dir), staging_directory(str(data_dir), "abc"))
            next(again := commit(data_dir))
            next(again, None)
            assert {tp: r for tp, r in contents(data_dir).items() if tp.topic != "spare"} == new, step
        assert not (data_dir / JOURNAL_FILE).exists()
        shutil.rmtree(data_dir)
    assert seen == {False, True}


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """A load of two topics, one of them new, that died when it was decided."""
    load(tmp_path, random_rows(1, 30), topic="orders")
    with monkeypatch.context() as patch:
        patch.setattr(load_journal, "apply_journal", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError) as failure:
            load(tmp_path, random_rows(2, 90, topics=("orders", "others")))
        assert "decided all the same" in failure.value.__notes__[0]
    return tmp_path


def test_what_is_decided_is_not_discarded(interrupted):
    (staging,) = interrupted.glob("kcore-load-0.*-delete")
    discard_load(str(interrupted), str(staging))
    finish_interrupted_load(str(interrupted))
    assert sum(map(len, contents(interrupted).values())) == 120
    assert not staging.exists()


def test_a_broker_finishes_what_was_interrupted_when_it_starts(interrupted):
    manager = LogManager([interrupted])
    manager.startup()
    assert sum(log.log_end_offset for log in manager.all_logs()) == 120
    manager.shutdown()


def test_half_a_load_of_another_broker_is_logged_and_prevents_no_broker_from_starting(interrupted, caplog):
    for path in interrupted.glob("*/*.cleaned"):
        path.unlink()
    with pytest.raises(CorruptFile, match=r"another broker.*Remove .*kcore-load-journal"):
        load(interrupted, random_rows(3, 5))
    manager = LogManager([interrupted])
    manager.startup()
    assert "another broker has opened the directory" in caplog.text
    assert manager.get_log(TopicPartition("orders", 0)).log_end_offset == 30
    manager.shutdown()
    (interrupted / JOURNAL_FILE).unlink()
    load(interrupted, random_rows(3, 5))


@pytest.mark.parametrize("name", [JOURNAL_FILE, load_journal.STREAMS_FILE])
def test_a_flipped_byte_in_a_file_of_the_loads_is_reported_with_the_file_name(tmp_path, name, interrupted):
    if name != JOURNAL_FILE:
        finish_interrupted_load(str(tmp_path))
        staging, logs = staged_stream_batch(tmp_path, "a", random_rows(1, 3))
        commit_load(str(tmp_path), staging, logs, partitions={}, stream=("q", 1))
    path = tmp_path / name
    whole = path.read_bytes()
    before = {p.name: p.read_bytes() for p in tmp_path.glob("orders-0/*")}
    for at in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(CorruptFile, match=name):
            commit_load(str(tmp_path), staging_directory(str(tmp_path), "b"), [], partitions={}, stream=("q", 1))
    for cut in (0, 5, len(whole) // 2):
        path.write_bytes(whole[:cut])
        with pytest.raises(CorruptFile, match=name):
            commit_load(str(tmp_path), staging_directory(str(tmp_path), "b"), [], partitions={}, stream=("q", 1))
    assert {p.name: p.read_bytes() for p in tmp_path.glob("orders-0/*")} == before


def test_staged_files_that_are_gone_or_cut_fail_the_commit_and_the_directory_is_as_it_was(tmp_path):
    load(tmp_path, random_rows(1, 30), topic="orders")
    before = contents(tmp_path)
    for damage in (lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-1])):
        staging, logs = staged_stream_batch(tmp_path, "abc", random_rows(2, 200))
        damage(max(tmp_path.glob("kcore-load-0*/0/orders-0/*.log")))
        with pytest.raises((FileNotFoundError, CorruptFile), match="staged"):
            commit_load(str(tmp_path), staging, logs, partitions={})
        discard_load(str(tmp_path), staging)
        assert contents(tmp_path) == before and was_clean_shutdown(tmp_path)
