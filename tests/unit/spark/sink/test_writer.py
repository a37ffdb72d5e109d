"""The sink in a session: what Spark itself does with the writers."""

import shutil

import pytest

import kcore
from kcore.common.topic_partition import TopicPartition
from kcore.log.directory_lock import DirectoryLock
from tests.reference.partitioner import partition_for_key
from tests.unit.bulk.test_bulk_load import NOW, contents, records_in


def rows_of(spark, count, tasks=3):
    """key-0 .. with a value, a header and a timestamp; every fifth without key."""
    return spark.range(0, count, 1, tasks).selectExpr(
        "if(id % 5 = 0, null, concat('key-', id)) AS key",
        "cast(concat('value-', id) AS binary) AS value",
        "array(named_struct('key', 'h', 'value', cast(cast(id AS string) AS binary))) AS headers",
        f"timestamp_millis({NOW} + id) AS timestamp",
    )


def write(frame, path, mode="append", **options):
    frame.write.format("kcore").mode(mode).options(path=str(path), **options).save()


def test_a_frame_becomes_a_topic_and_another_is_appended_after_it(spark, tmp_path):
    write(rows_of(spark, 3000), tmp_path, topic="t", numPartitions=4, compression="zstd")
    write(rows_of(spark, 500), tmp_path, topic="t")
    loaded = contents(tmp_path)
    assert set(loaded) == {TopicPartition("t", p) for p in range(4)}
    keyed = [i for i in [*range(3000), *range(500)] if i % 5]
    for p in range(4):
        expected = [
            (b"key-%d" % i, b"value-%d" % i, NOW + i, [("h", b"%d" % i)])
            for i in keyed
            if partition_for_key(b"key-%d" % i, 4) == p
        ]
        assert [record for record in loaded[TopicPartition("t", p)] if record[0] is not None] == expected
    without = [record for records in loaded.values() for record in records if record[0] is None]
    assert sorted(record[1] for record in without) == sorted(
        b"value-%d" % i for i in [*range(0, 3000, 5), *range(0, 500, 5)]
    )


def test_what_the_source_reads_the_sink_writes(spark, tmp_path):
    write(rows_of(spark, 400), tmp_path / "a", topic="t", numPartitions=3)
    source = spark.read.format("kcore").option("path", str(tmp_path / "a")).option("includeHeaders", "true").load()
    write(source, tmp_path / "b", numPartitions=3)
    assert {tp: sorted(map(repr, r)) for tp, r in contents(tmp_path / "a").items()} == {
        tp: sorted(map(repr, r)) for tp, r in contents(tmp_path / "b").items()
    }


def test_a_task_that_dies_leaves_the_directory_as_it_was(spark, tmp_path):
    def names():
        # A task that Spark has not ended yet may make the staging directory again; a later load removes it.
        return {path.name for path in tmp_path.rglob("*") if "kcore-load-" not in str(path)}

    write(rows_of(spark, 100), tmp_path, topic="t")
    before = names()
    bad = rows_of(spark, 30000).selectExpr("key", "if(key = 'key-29999', raise_error('no'), value) AS value")
    with pytest.raises(Exception, match="no"):
        write(bad, tmp_path, topic="t")
    assert names() == before
    assert len(records_in(tmp_path / "t-0")) == 100


@pytest.mark.parametrize(
    "options, words",
    [
        ({"topic": "t", "numPartition": "2"}, "unknown option numPartition; did you mean numPartitions"),
        ({}, "give option topic or a column topic"),
        ({"topic": "t", "maxMessageBytes": "50"}, "max.message.bytes"),
    ],
)
def test_the_exception_that_the_user_sees_has_the_reason(spark, tmp_path, options, words):
    with pytest.raises(Exception, match=words):
        write(rows_of(spark, 10), tmp_path, **options)
    assert contents(tmp_path) == {}


def test_a_directory_in_use_is_refused_by_name(spark, tmp_path):
    lock = DirectoryLock(str(tmp_path))
    with pytest.raises(Exception, match=rf"{tmp_path}: another process holds its .lock"):
        write(rows_of(spark, 10), tmp_path, topic="t")
    lock.release()


def test_mode_overwrite_replaces_the_topic_of_the_option(spark, tmp_path):
    write(rows_of(spark, 50), tmp_path, topic="t")
    write(rows_of(spark, 20), tmp_path, "overwrite", topic="t")
    assert len(records_in(tmp_path / "t-0")) == 20
    with kcore.open_log(tmp_path / "t-0") as log:
        assert (log.log_start_offset, log.log_end_offset) == (50, 70)


def test_a_stream_that_repeats_its_last_batch_writes_it_once(spark, tmp_path):
    for n in range(3):
        spark.range(n * 10, n * 10 + 10, 1, 1).selectExpr("cast(id AS string) AS value").write.mode("append").parquet(
            str(tmp_path / "in")
        )

    def run():
        reader = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1)
        query = (
            reader.parquet(str(tmp_path / "in"))
            .writeStream.format("kcore")
            .options(path=str(tmp_path / "out"), topic="t", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    for path in (tmp_path / "checkpoint" / "commits").glob("*2*"):
        path.unlink()  # the driver died between the sink's commit and its own note of it
    run()
    values = [record[1] for record in records_in(tmp_path / "out" / "t-0")]
    assert sorted(values, key=int) == [b"%d" % i for i in range(30)]
    shutil.rmtree(tmp_path / "checkpoint")  # another query: its id differs
    run()
    assert len(records_in(tmp_path / "out" / "t-0")) == 60


def test_a_frame_goes_through_a_broker(spark, tmp_path):
    with kcore.Broker(tmp_path) as broker:
        broker.create_topic("t", 2)
        rows_of(spark, 1000).write.format("kcore").mode("append").options(
            **{"kcore.bootstrap.servers": broker.bootstrap_servers, "topic": "t"}
        ).save()
    loaded = contents(tmp_path)
    assert sorted(r[1] for records in loaded.values() for r in records) == sorted(b"value-%d" % i for i in range(1000))
