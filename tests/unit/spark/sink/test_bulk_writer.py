"""The sink's writers for files, driven as Spark drives them, without a session: pickled, tasks retried and lost."""

import pickle
from types import SimpleNamespace

import pyarrow as pa
import pytest

import kcore
from kcore.common.topic_partition import TopicPartition
from kcore.errors import DirectoryInUse, InvalidPartitions, InvalidTopicException, MessageTooLarge
from kcore.log import load_journal
from kcore.log.directory_lock import DirectoryLock
from kcore.spark.options import OptionError
from kcore.spark.sink import bulk_writer
from kcore.spark.sink.writer import make_stream_writer, make_writer
from tests.unit.bulk.test_bulk_load import batch_of, by_partition, contents, random_rows, records_in
from tests.unit.spark.schemas import schema_of

SCHEMA = schema_of("topic string, key binary, value binary, timestamp timestamp, headers headers")


@pytest.fixture
def task(monkeypatch):
    """What Spark would say of the task that runs: set its fields."""
    now = SimpleNamespace(number=0, query="q", batch=0)
    properties = {"sql.streaming.queryId": lambda: now.query, "streaming.sql.batchId": lambda: str(now.batch)}
    context = SimpleNamespace(partitionId=lambda: now.number, getLocalProperty=lambda name: properties[name]())
    monkeypatch.setattr(bulk_writer, "_task", lambda: context)
    return now


def attempt(writer, task, number, rows, *, fail=False):
    """One attempt at a task, in a process of its own: the writer comes there pickled, the message goes back so."""

    def batches():
        for at in range(0, len(rows), 13):
            yield batch_of(rows[at : at + 13])
        if fail:
            raise RuntimeError("the task died")

    task.number = number
    writer = pickle.loads(pickle.dumps(writer))
    return pickle.loads(pickle.dumps(writer.write(batches())))


def expected_of(task_rows, partitions):
    """The model: each task's records in its order, those without key in turn from the task's number on."""
    loaded = {}
    for number, rows in task_rows:
        turns = dict.fromkeys({row[0] for row in rows}, number % partitions)
        for tp, records in by_partition(rows, partitions, turns).items():
            loaded.setdefault(tp, []).extend(records)
    return loaded


def options_for(path, **options):
    return {"path": str(path), "numPartitions": "3", "segmentBytes": "4k", "batchBytes": "600"} | options


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_what_the_tasks_wrote_is_there_once_it_is_committed_in_the_order_of_the_tasks(tmp_path, task, codec):
    writer = make_writer(options_for(tmp_path, compression=codec), SCHEMA, False)
    rows = [random_rows(n, 150, topics=("orders", "others")) for n in range(3)]
    messages = {n: attempt(writer, task, n, rows[n]) for n in (2, 0, 1)}
    assert contents(tmp_path) == {}
    pickle.loads(pickle.dumps(writer)).commit([messages[n] for n in (2, 0, 1)])
    assert contents(tmp_path) == expected_of(enumerate(rows), 3)
    assert not list(tmp_path.glob("kcore-load*"))


def test_attempts_that_failed_or_lost_a_race_leave_no_record(tmp_path, task):
    writer = make_writer(options_for(tmp_path), SCHEMA, False)
    rows = [random_rows(n, 100) for n in range(2)]
    with pytest.raises(RuntimeError):
        attempt(writer, task, 0, rows[0], fail=True)
    attempt(writer, task, 1, rows[1])  # speculative: its message never comes
    messages = [attempt(writer, task, n, rows[n]) for n in range(2)]
    writer.commit(messages)
    assert contents(tmp_path) == expected_of(enumerate(rows), 3)
    assert not list(tmp_path.glob("kcore-load*"))


def test_an_aborted_write_leaves_nothing(tmp_path, task):
    writer = make_writer(options_for(tmp_path), SCHEMA, False)
    message = attempt(writer, task, 0, random_rows(1, 100))
    with pytest.raises(RuntimeError):
        attempt(writer, task, 1, random_rows(1, 100), fail=True)
    writer.abort([message, None])
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_was_decided_outlives_an_abort(tmp_path, task, monkeypatch):
    writer = make_writer(options_for(tmp_path), SCHEMA, False)
    rows = random_rows(1, 100)
    message = attempt(writer, task, 0, rows)
    with monkeypatch.context() as patch:
        patch.setattr(load_journal, "apply_journal", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            writer.commit([message])
    writer.abort([message])
    with kcore.open_log(tmp_path / "orders-0", "a"):
        pass
    assert contents(tmp_path) == expected_of([(0, rows)], 3)


def test_a_topic_is_overwritten_with_its_offsets_going_on(tmp_path, task):
    options = options_for(tmp_path, topic="orders")
    first, second = random_rows(1, 80), random_rows(2, 50)
    for overwrite, rows in ((False, first), (True, second)):
        writer = make_writer(options, SCHEMA, overwrite)
        writer.commit([attempt(writer, task, 0, rows)])
    assert contents(tmp_path) == expected_of([(0, second)], 3)
    with kcore.open_log(tmp_path / "orders-0") as log:
        assert log.log_start_offset == len(expected_of([(0, first)], 3)[TopicPartition("orders", 0)])
    with pytest.raises(OptionError, match="overwriting needs option topic"):
        make_writer(options_for(tmp_path), SCHEMA, True)


def test_each_batch_of_a_stream_counts_once_even_if_its_first_try_died_before_or_after_the_commit(tmp_path, task):
    batches = [random_rows(n, 40) for n in range(3)]

    def run(batch, *, fail=False, commit=True):
        task.batch = batch
        writer = make_stream_writer(options_for(tmp_path, topic="orders"), SCHEMA, False)
        message = attempt(writer, task, 0, batches[batch], fail=fail)
        if commit:
            make_stream_writer(options_for(tmp_path, topic="orders"), SCHEMA, False).commit([message], batch)
        return writer, message

    run(0)
    writer, message = run(1, commit=False)
    writer.abort([message, None], 1)
    assert not list(tmp_path.glob("kcore-load-0*"))
    run(1, commit=False)  # the driver died: no abort
    with pytest.raises(RuntimeError):
        run(1, fail=True)
    run(1)
    run(1)  # the driver died after the commit, and the batch comes again
    run(2)
    assert contents(tmp_path) == expected_of([(0, rows) for rows in batches], 3)
    assert not list(tmp_path.glob("kcore-load-0*"))
    task.query = "another"  # its batches have numbers of their own
    run(0)
    assert sum(map(len, contents(tmp_path).values())) == 160


def test_output_mode_complete_keeps_the_last_batch_alone(tmp_path, task):
    batches = [random_rows(n, 30) for n in range(3)]
    for number, rows in enumerate(batches):
        task.batch = number
        writer = make_stream_writer(options_for(tmp_path, topic="orders"), SCHEMA, True)
        writer.commit([attempt(writer, task, 0, rows)], number)
    assert contents(tmp_path) == expected_of([(0, batches[2])], 3)
    with kcore.open_log(tmp_path / "orders-0") as log:
        assert log.log_start_offset == sum(
            len(expected_of([(0, rows)], 3).get(TopicPartition("orders", 0), [])) for rows in batches[:2]
        )


def test_an_empty_batch_of_a_stream_changes_nothing(tmp_path, task):
    make_stream_writer(options_for(tmp_path, topic="orders"), SCHEMA, False).commit([], 0)
    assert list(tmp_path.iterdir()) == []


def test_headers_are_left_out_when_they_are_not_wanted(tmp_path, task):
    rows = random_rows(1, 30)
    writer = make_writer(options_for(tmp_path, includeHeaders="false", numPartitions="1"), SCHEMA, False)
    writer.commit([attempt(writer, task, 0, rows)])
    assert {tuple(record[3]) for record in records_in(tmp_path / "orders-0")} == {()}


def test_a_record_too_large_fails_its_task_with_its_size_and_the_limit(tmp_path, task):
    writer = make_writer(options_for(tmp_path, maxMessageBytes="1000"), SCHEMA, False)
    rows = [("orders", b"k", b"v" * 5000, 0, None)]
    with pytest.raises(MessageTooLarge, match=r"5[0-9]{3} bytes.*1000"):
        attempt(writer, task, 0, rows)
    writer.abort([None])
    assert list(tmp_path.iterdir()) == []


def test_a_null_topic_fails_its_task(tmp_path, task):
    writer = make_writer(options_for(tmp_path), SCHEMA, False)
    with pytest.raises(InvalidTopicException, match="column topic is null"):
        attempt(writer, task, 0, [(None, b"k", b"v", 0, None)])


def test_a_directory_in_use_is_refused_before_any_task_and_again_at_the_commit(tmp_path, task):
    lock = DirectoryLock(str(tmp_path))
    with pytest.raises(DirectoryInUse, match=r"opened for writing in this process already.*kcore\.bootstrap\.servers"):
        make_writer(options_for(tmp_path), SCHEMA, False)
    lock.release()
    writer = make_writer(options_for(tmp_path), SCHEMA, False)
    message = attempt(writer, task, 0, random_rows(1, 10))
    lock = DirectoryLock(str(tmp_path))
    with pytest.raises(DirectoryInUse):
        writer.commit([message])
    lock.release()
    writer.abort([message])
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    "options, words",
    [
        ({"topik": "t"}, "unknown option topik; did you mean topic?"),
        ({"compression": "lzo"}, "'lzo' is none of none, gzip"),
        ({"compression": "zstd", "compressionLevel": "99"}, "compressionLevel 99: zstd has no level 99"),
        ({"compression": "lz4", "compressionLevel": "99"}, "lz4 has no level 99: they go from 0 to 17"),
        ({"compression": "snappy", "compressionLevel": "3"}, "compressionLevel 3: snappy has no levels"),
        ({"compressionLevel": "3"}, "compressionLevel 3: none has no levels"),
        ({"codec": "lz4"}, "unknown option codec; did you mean compression?"),
        ({"startingoffsets": "earliest"}, "option startingOffsets is not for this: it is an option for reading"),
        ({"numPartitions": "30000000000"}, "numPartitions 30000000000: the largest is 100000"),
        ({"path": __file__}, "option path: .*/test_bulk_writer.py is no directory"),
        ({"path": __file__ + "/data"}, "option path: the directory .*/test_bulk_writer.py/data cannot be made"),
        ({"compressionLevel": "high"}, "compressionLevel 'high'"),
        ({"numPartitions": "0"}, "numPartitions '0'"),
        ({"segmentBytes": "3g"}, "the largest is 2147483647"),
        ({"path": ""}, "expected one data directory"),
        ({"path": "/a,/b"}, "expected one data directory"),
        ({"kafka.compression.type": "lz4"}, "use compression"),
        ({"kafka.acks": "1"}, "without a producer"),
        ({"kafka.bootstrap.servers": "h:1"}, "kcore.bootstrap.servers"),
        ({"kcore.bootstrap.servers": "h:1"}, "exclude each other"),
        ({"includeHeaders": "perhaps"}, "neither true nor false"),
        ({"path": None}, "where to write is missing"),
    ],
)
def test_an_option_that_cannot_be_is_named(tmp_path, options, words):
    all_options = {name: value for name, value in (options_for(tmp_path) | options).items() if value is not None}
    if words.startswith("where"):
        all_options = {"topic": "t"}
    with pytest.raises(OptionError, match=words.replace("?", r"\?")):
        make_writer(all_options, SCHEMA, False)


def test_a_topic_that_cannot_be_is_named(tmp_path):
    with pytest.raises(InvalidTopicException, match="'a b'"):
        make_writer(options_for(tmp_path, topic="a b"), SCHEMA, False)


def test_another_number_of_partitions_than_the_topic_has_is_refused(tmp_path, task):
    writer = make_writer(options_for(tmp_path, topic="orders"), SCHEMA, False)
    writer.commit([])
    with pytest.raises(InvalidPartitions, match="has 3 partitions, not 5"):
        make_writer(options_for(tmp_path, topic="orders", numPartitions="5"), SCHEMA, False)


@pytest.mark.parametrize("kind", ["batch", "stream"])
@pytest.mark.parametrize("topic", [{"topic": "orders"}, {}])
def test_a_topic_that_another_load_made_with_other_partitions_meanwhile_is_refused(tmp_path, task, kind, topic):
    rows, late = random_rows(1, 50), random_rows(2, 50)
    options = options_for(tmp_path, **topic)
    make = make_writer if kind == "batch" else make_stream_writer
    writer = make(options, SCHEMA, False)
    message = attempt(writer, task, 0, late)
    first = make_writer(options | {"numPartitions": "2"}, SCHEMA, False)
    first.commit([attempt(first, task, 0, rows)])
    with pytest.raises(InvalidPartitions, match="orders has 2 partitions, not 3"):
        if kind == "batch":
            writer.commit([message])
        else:  # Spark makes another one to commit
            make(options, SCHEMA, False).commit([message], 0)
    assert contents(tmp_path) == expected_of([(0, rows)], 2)


@pytest.mark.parametrize(
    "schema, topic, words",
    [
        ("key binary", "t", "column value is missing"),
        ("value int", "t", "column value is int, it has to be binary or string"),
        ("value string, key bigint", "t", "column key is bigint"),
        ("value string, topic binary", None, "column topic is binary"),
        ("value string, partition bigint", "t", "column partition is bigint, it has to be int"),
        ("value string, timestamp bigint", "t", "column timestamp is bigint"),
        ("value string, headers array<string>", "t", "column headers is array<string>"),
        ("value string, header string", "t", "column 'header' cannot be written; did you mean headers?"),
        ("value string, price double", "t", "column 'price' cannot be written; records have key, value"),
        ("value string", None, "no topic: give"),
    ],
)
def test_columns_that_cannot_be_written_are_named(tmp_path, schema, topic, words):
    options = options_for(tmp_path) | ({} if topic is None else {"topic": topic})
    for make in (make_writer, make_stream_writer):
        with pytest.raises(OptionError, match=words.replace("?", r"\?")):
            make(options, schema_of(schema), False)


def test_what_the_source_reads_can_be_written_as_it_is(tmp_path, task):
    schema = schema_of(
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
    )
    writer = make_writer(options_for(tmp_path), schema, False)
    task.number = 0
    batch = pa.record_batch(
        {
            "key": pa.array([b"a", None]),
            "value": pa.array([None, b"v"], pa.binary()),
            "topic": ["t", "t"],
            "partition": pa.array([2, 0], pa.int32()),
            "offset": [17, 18],
            "timestamp": pa.array([1000, 2000], pa.timestamp("us", "UTC")),
            "timestampType": pa.array([0, 0], pa.int32()),
        }
    )
    writer.commit([writer.write(iter([batch]))])
    assert contents(tmp_path) == {
        TopicPartition("t", 0): [(None, b"v", 2, [])],
        TopicPartition("t", 1): [],
        TopicPartition("t", 2): [(b"a", None, 1, [])],
    }


def test_nothing_is_written_into_one_partitions_own_directory(tmp_path):
    with kcore.open_log(tmp_path / "t-0", "a"):
        pass
    before = sorted(path.name for path in (tmp_path / "t-0").iterdir())
    with pytest.raises(OptionError, match="t-0 is one partition's directory; give the data directory above it"):
        make_writer({"path": str(tmp_path / "t-0"), "topic": "u"}, schema_of("value string"), False)
    assert sorted(path.name for path in (tmp_path / "t-0").iterdir()) == before
