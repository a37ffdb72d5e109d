import json
import shutil

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from kcore.common.topic_partition import TopicPartition
from kcore.spark import lag
from kcore.spark.options import OptionError, read_options
from kcore.spark.source.data_loss import DataLoss
from kcore.spark.source.stream_reader import StreamReader, offsets_from_json, shares
from tests.unit.spark.data import make_records, schema_of, write_partition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def reader(path, **options):
    return StreamReader(
        read_options({"path": str(path), **options}, streaming=True), schema_of("topic", "partition", "offset")
    )


def rows_of(stream, start, end):
    return [
        tuple(row.values())
        for task in stream.partitions(start, end)
        for batch in stream.read(task)
        for row in batch.to_pylist()
    ]


@pytest.fixture
def directory(tmp_path):
    write_partition(tmp_path, make_records("orders", 0, 100))
    return tmp_path


def test_a_stream_begins_at_its_starting_offset_and_goes_to_the_end(directory):
    assert reader(directory).initialOffset() == {"orders": {"0": 100}}
    stream = reader(directory, startingOffsets='{"orders":{"0":30}}')
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert (start, end) == ({"orders": {"0": 30}}, {"orders": {"0": 100}})
    assert [row[2] for row in rows_of(stream, start, end)] == list(range(30, 100))
    assert stream.reportLatestOffset() == end
    assert stream.latestOffset(end, stream.getDefaultReadLimit()) == end


def test_a_partition_that_is_new_is_read_from_its_beginning(directory):
    stream = reader(directory)
    start = stream.initialOffset()
    write_partition(directory, make_records("orders", 1, 10))
    end = stream.latestOffset(start, ReadAllAvailable())
    assert end == {"orders": {"0": 100, "1": 10}}
    assert rows_of(stream, start, end) == [("orders", 1, offset) for offset in range(10)]


def test_a_batch_takes_no_more_offsets_than_it_may(directory):
    stream = reader(directory, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    assert stream.getDefaultReadLimit() == ReadMaxRows(40)
    offset, sizes = stream.initialOffset(), []
    while (after := stream.latestOffset(offset, stream.getDefaultReadLimit())) != offset:
        sizes.append(len(rows_of(stream, offset, after)))
        offset = after
    assert sizes == [40, 40, 20]


def test_a_batch_waits_until_there_is_enough_or_time_has_passed(directory):
    stream = reader(directory, startingOffsets="earliest", minOffsetsPerTrigger="101")
    start = stream.initialOffset()
    assert stream.getDefaultReadLimit() == ReadMinRows(101)
    assert stream.latestOffset(start, stream.getDefaultReadLimit()) == start
    assert stream.latestOffset(start, ReadAllAvailable()) == {"orders": {"0": 100}}
    impatient = reader(directory, startingOffsets="earliest", minOffsetsPerTrigger="101", maxTriggerDelay="0ms")
    assert impatient.latestOffset(start, impatient.getDefaultReadLimit()) == {"orders": {"0": 100}}


def test_available_now_ends_where_the_log_ended_when_it_began(directory):
    stream = reader(directory, startingOffsets="earliest", minOffsetsPerTrigger="1000")
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    write_partition(directory, make_records("orders", 1, 10))
    write_partition(directory, make_records("orders", 0, 50))
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert end == {"orders": {"0": 100}}, "more is there, and is for the next run"


def test_records_that_were_read_and_are_deleted_since_are_reported(directory):
    stream, careless = reader(directory), reader(directory, failOnDataLoss="false")
    start = {"orders": {"0": 200}}
    with pytest.raises(DataLoss, match="orders-0 was read up to offset 200 and now ends at 100"):
        stream.latestOffset(start, ReadAllAvailable())
    end = careless.latestOffset(start, ReadAllAvailable())
    assert end == {"orders": {"0": 100}} and rows_of(careless, start, end) == []
    shutil.rmtree(directory / "orders-0")
    write_partition(directory, make_records("returns", 0, 1))
    with pytest.raises(DataLoss, match="orders-0 was read up to offset 200 and is no longer in"):
        stream.latestOffset(start, ReadAllAvailable())
    assert careless.latestOffset(start, ReadAllAvailable())["orders"] == {"0": 200}
    with pytest.raises(DataLoss, match="orders-0: offsets 3 to 8 are no longer there"):
        stream.partitions({"orders": {"0": 3}}, {"orders": {"0": 9}})


@pytest.mark.parametrize("how", [{"subscribe": "orders,returns"}, {"assign": '{"orders":[0],"returns":[0]}'}, {}])
def test_a_topic_that_is_deleted_while_it_is_read_is_reported_and_the_others_go_on(directory, caplog, how):
    write_partition(directory, make_records("returns", 0, 5))
    stream_options = {**how, "startingOffsets": "earliest"}
    start = reader(directory, **stream_options).initialOffset()
    shutil.rmtree(directory / "returns-0")
    with pytest.raises(DataLoss, match="returns-0 was read up to offset 0 and is no longer in"):
        reader(directory, **stream_options).latestOffset(start, ReadAllAvailable())
    stream = reader(directory, **stream_options, failOnDataLoss="false")
    stream.prepareForTriggerAvailableNow()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert end == {"orders": {"0": 100}, "returns": {"0": 0}} == stream.reportLatestOffset() | {"returns": {"0": 0}}
    assert len(rows_of(stream, start, end)) == 100
    assert "returns-0 was read up to offset 0" in caplog.text
    shutil.rmtree(directory / "orders-0")
    assert rows_of(stream, start, end) == []
    assert "orders-0: offsets 0 to 99 are no longer there" in caplog.text
    with pytest.raises(OptionError, match="no partition of topic 'nowhere'"):
        reader(directory, subscribe="orders,nowhere").latestOffset(start, ReadAllAvailable())


def test_a_checkpoint_of_another_source_is_refused():
    with pytest.raises(OptionError, match="these are no offsets of format kcore"):
        offsets_from_json({"orders": [1, 2]})


@pytest.mark.parametrize("rows", [1, 2, 3, 10, 11, 109, 110, 500])
def test_shares_of_a_batch_are_proportional_to_the_lag_and_starve_no_partition(rows):
    starts, ends = {A: 5, B: 0}, {A: 105, B: 10}
    batches = 0
    while starts != ends:
        taken = shares(starts, ends, rows)
        assert sum(taken.values()) - sum(starts.values()) == min(rows, sum(ends.values()) - sum(starts.values()))
        assert all(starts[tp] <= taken[tp] <= ends[tp] for tp in ends)
        starts = taken
        batches += 1
    assert batches == -(-110 // rows)


def test_a_query_goes_on_from_its_checkpoint_and_shows_its_lag(spark, tmp_path):
    data, checkpoint, out = tmp_path / "data", tmp_path / "checkpoint", tmp_path / "out"
    data.mkdir()
    expected = write_partition(data, make_records("orders", 0, 100))

    def run():
        stream = (
            spark.readStream.format("kcore")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "60")
            .load(str(data))
        )
        query = (
            stream.writeStream.format("parquet")
            .option("path", str(out))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)
        return [progress for progress in query.recentProgress if progress.numInputRows]

    first = run()
    assert [progress.numInputRows for progress in first] == [60, 40]
    assert json.loads(first[0].sources[0].endOffset) == {"orders": {"0": 60}}
    assert [lag(progress) for progress in first] == [{"orders": {"0": 40}}, {"orders": {"0": 0}}]
    expected += write_partition(data, make_records("orders", 1, 30))
    assert [progress.numInputRows for progress in run()] == [30]
    last = sorted((checkpoint / "offsets").iterdir(), key=lambda path: int(path.name) if path.name.isdigit() else -1)[
        -1
    ]
    assert last.read_text().splitlines()[-1] == '{"orders": {"0": 100, "1": 30}}'
    rows = [
        (row.topic, row.partition, row.offset, round(row.timestamp.timestamp() * 1000))
        for row in spark.read.parquet(str(out)).collect()
    ]
    assert sorted(rows) == sorted(row[:4] for row in expected)
