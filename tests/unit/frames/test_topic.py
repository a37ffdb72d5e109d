"""open_topic(): a topic as one table.  A query gets what a filter over all records gets, and reads less."""

import datetime
import random
import re
import threading

import pytest

import kcore
from kcore.errors import CorruptFile, CorruptMessage
from kcore.inspect.parallel import in_order
from kcore.log.log_config import LogConfig
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.unit.log.logs import idempotent, marker

pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")
ds = pytest.importorskip("pyarrow.dataset")

SMALL = LogConfig(segment_bytes=20_000, index_interval_bytes=512)
FIELD = ds.field


def time_of(ms):
    return pa.scalar(ms, pa.timestamp("ms", tz="UTC"))


def write(directory, records, *, config=SMALL, per_batch=5, compression="none"):
    """records: (timestamp, key, value)."""
    with kcore.open_log(directory, "a", config=config) as log:
        for first in range(0, len(records), per_batch):
            builder = RecordBatchBuilder(compression=compression)
            for timestamp, key, value in records[first : first + per_batch]:
                builder.append(value, key, timestamp=timestamp)
            log.append_as_leader(builder.build())


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr("kcore.frames.topic._CHUNK_BYTES", 4000)
    monkeypatch.setattr("kcore.frames.topic._FINE_BYTES", 1000)


@pytest.fixture
def orders(tmp_path, small_chunks):
    """Three partitions of 600 records, the timestamps of each in another order."""
    rng = random.Random(7)
    for number in range(3):
        times = [-1 if n % 97 == 5 else 1_000_000 * number + 1000 * n for n in range(600)]
        if number == 1:
            rng.shuffle(times)
        records = [(time, f"k{n % 7}".encode(), b"v" * (n % 50) or None) for n, time in enumerate(times)]
        write(tmp_path / f"orders-{number}", records, compression="lz4" if number == 2 else "none")
    write(tmp_path / "orders2-0", [(1, b"another", b"topic")])
    with kcore.open_topic(tmp_path, "orders") as topic:
        yield topic


def test_a_topic_is_one_table_of_all_its_partitions_and_of_no_other_topic(orders):
    table = orders.to_table()
    assert table.column_names == list(orders.schema.names) and table.num_rows == orders.offsets == 1800
    one_by_one = pa.concat_tables([orders.partitions[number].to_arrow() for number in range(3)])
    # Each chunk of a table has a dictionary of its own for the column topic.
    assert table.unify_dictionaries().equals(one_by_one.unify_dictionaries())
    assert repr(orders) == "Topic('orders', 3 partitions, 1800 offsets)"


CONDITIONS = [
    FIELD("partition") == 1,
    FIELD("partition").isin([0, 2]) & (FIELD("offset") > 550),
    (FIELD("offset") >= 100) & (FIELD("offset") < 110),
    FIELD("timestamp") >= time_of(2_500_000),
    FIELD("timestamp") >= pa.scalar(datetime.datetime(1970, 1, 1, 0, 42, tzinfo=datetime.UTC)),
    FIELD("timestamp") < time_of(1_010_000),
    FIELD("timestamp").is_null(),
    (FIELD("timestamp") > time_of(2_590_000)) | (FIELD("offset") == 3),
    ~(FIELD("offset") < 590),
    FIELD("key") == b"k3",
    FIELD("value").is_null() & (FIELD("partition") != 0),
    pc.binary_length(FIELD("value")) > 45,
    FIELD("topic") == "orders",
    FIELD("topic") == "other",
    FIELD("offset") < 0,
]


@pytest.mark.parametrize("condition", CONDITIONS, ids=str)
@pytest.mark.parametrize("columns", [None, ["value"], ["offset", "partition"]], ids=str)
def test_a_filter_gives_what_it_gives_over_all_records(orders, condition, columns):
    everything = orders.to_table()
    expected = everything.filter(condition).select(columns or everything.column_names)
    found = orders.to_table(columns=columns, filter=condition)
    assert found.to_pylist() == expected.to_pylist()
    assert orders.count_rows(filter=condition) == orders.filter(condition).count_rows() == expected.num_rows


@pytest.mark.parametrize("seed", range(30))
def test_random_logs_and_bounds_agree_with_a_filter_over_all_records(tmp_path, small_chunks, seed):
    rng = random.Random(seed)
    for number in range(rng.randint(1, 3)):
        times = [rng.choice([-1, rng.randint(0, 1000), 500 + n]) for n in range(rng.randint(0, 500))]
        records = [(time, None, b"x" * rng.randint(0, 60)) for time in times]
        write(tmp_path / f"t-{number}", records, per_batch=rng.randint(1, 9))
    with kcore.open_topic(tmp_path, "t") as topic:
        everything = topic.to_table()
        for _ in range(20):
            low, high = sorted(rng.choices(range(1100), k=2))
            name = rng.choice(["offset", "timestamp"])
            bounds = [low, high] if name == "offset" else [time_of(low), time_of(high)]
            condition = rng.choice([FIELD(name) >= bounds[0], (FIELD(name) > bounds[0]) & (FIELD(name) <= bounds[1])])
            found = topic.to_table(filter=condition)
            assert found.to_pylist() == everything.filter(condition).to_pylist(), f"{seed=} {condition}"


def test_a_query_reads_only_the_chunks_that_its_conditions_leave(orders):
    read = orders.chunks
    assert len(read()) > 15
    assert {number for number, _ in read(FIELD("partition") == 1)} == {1}
    assert read(FIELD("topic") == "other") == read(FIELD("offset") >= 600) == []
    few = read((FIELD("offset") >= 300) & (FIELD("offset") < 310) & (FIELD("partition") == 0))
    assert 1 <= len(few) <= 2 and few[0][1].start <= 300 and few[-1][1].end >= 310
    assert sum(chunk.end - chunk.start for _, chunk in few) <= 50
    late = read(FIELD("timestamp") > time_of(2_550_000))
    # Of the end of a last segment whose latest record is not its last one the indexes say nothing.
    for number, at_most in enumerate([0, 0.25, 0.25]):
        assert len([n for n, _ in late if n == number]) <= at_most * len(read(FIELD("partition") == number))
    assert read(FIELD("value") == b"v") == read()  # no index knows of values


def test_only_the_columns_are_read_that_a_query_names(orders, monkeypatch):
    asked = []
    iter_arrow = type(orders.partitions[0]).iter_arrow

    def note(log, start, end, columns, *args):
        asked.append(sorted(columns))
        return iter_arrow(log, start, end, columns, *args)

    monkeypatch.setattr(type(orders.partitions[0]), "iter_arrow", note)
    orders.to_table(columns=["offset"], filter=FIELD("key") == b"k1")
    assert {*map(tuple, asked)} == {("key", "offset")}
    asked.clear()
    assert orders.to_table(columns={"size": pc.binary_length(FIELD("value"))}).column_names == ["size"]
    assert {*map(tuple, asked)} == {("value",)}


def test_the_methods_of_a_dataset_work(orders):
    first = orders.head(3, columns=["offset"])
    assert first.to_pylist() == [{"offset": 0}, {"offset": 1}, {"offset": 2}]
    assert orders.take([5, 700], columns=["partition", "offset"]).to_pylist() == [
        {"partition": 0, "offset": 5},
        {"partition": 1, "offset": 100},
    ]
    assert sum(batch.num_rows for batch in orders.to_batches(columns=["key"], batch_size=64)) == 1800
    last = orders.filter(FIELD("offset") >= 599).sort_by([("partition", "descending")]).to_table(columns=["partition"])
    assert last["partition"].to_pylist() == [2, 1, 0]
    with pytest.raises(NotImplementedError, match="chunks"):
        orders.get_fragments()
    narrow = orders.replace_schema(orders.schema.remove(0).remove(0))
    assert narrow.head(1).column_names == orders.schema.names[2:]
    with pytest.raises(ValueError, match="the columns of a log are"):
        orders.replace_schema(pa.schema([("offset", pa.int8())]))
    with pytest.raises(ValueError, match="column 'price' is none of key, value"):
        orders.to_table(columns=["price"])


def test_columns_of_batches_are_there_if_they_are_asked_for(tmp_path):
    write(tmp_path / "t-0", [(1, b"k", b"v")] * 3)
    with kcore.open_topic(tmp_path, "t", columns=["offset", "leaderEpoch", "producerId"]) as topic:
        assert topic.to_table(filter=FIELD("producerId") == -1).to_pylist()[2] == {
            "offset": 2,
            "leaderEpoch": 0,
            "producerId": -1,
        }


def test_read_committed_leaves_out_aborted_transactions_and_ends_at_the_last_stable_offset(tmp_path):
    with kcore.open_log(tmp_path / "t-0", "a") as log:
        log.append_as_leader(idempotent(1, 0, 2, is_transactional=True))
        log.append_as_leader(marker(1, commit=False), origin=AppendOrigin.COORDINATOR)
        log.append_as_leader(idempotent(2, 0, 2, is_transactional=True))
        log.append_as_leader(marker(2, commit=True), origin=AppendOrigin.COORDINATOR)
        log.append_as_leader(idempotent(3, 0, 2, is_transactional=True))

    def offsets(isolation):
        with kcore.open_topic(tmp_path, "t", isolation=isolation) as topic:
            return topic.to_table(columns=["offset"])["offset"].to_pylist()

    assert offsets("read_committed") == [3, 4]
    assert offsets("read_uncommitted") == [0, 1, 3, 4, 6, 7]


def test_several_data_directories_are_one_topic(tmp_path):
    for number, place in enumerate(["a", "b"]):
        (tmp_path / place).mkdir()
        write(tmp_path / place / f"t-{number}", [(1, None, place.encode())])
    with kcore.open_topic([tmp_path / "a", tmp_path / "b"], "t") as topic:
        assert topic.to_table(columns=["partition", "value"]).to_pylist() == [
            {"partition": 0, "value": b"a"},
            {"partition": 1, "value": b"b"},
        ]
    write(tmp_path / "b" / "t-0", [(1, None, b"again")])
    with pytest.raises(CorruptFile, match=r"t-0 is both in .*a/t-0 and in .*b/t-0"):
        kcore.open_topic([tmp_path / "a", tmp_path / "b"], "t")


def test_a_topic_that_is_not_there_is_an_error_that_names_the_nearest_one(tmp_path):
    write(tmp_path / "orders-0", [(1, None, b"v")])
    (tmp_path / "payments-0.0123456789abcdef0123456789abcdef-delete").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no partition of topic 'order'.*orders"):
        kcore.open_topic(tmp_path, "order")
    with pytest.raises(FileNotFoundError, match="no partition of topic 'payments'"):
        kcore.open_topic(tmp_path, "payments")
    with pytest.raises(FileNotFoundError):
        kcore.open_topic(tmp_path / "nowhere", "orders")


@pytest.mark.parametrize(
    ("directories", "topic", "says"),
    [
        (5, "orders", "directories must be a path, or a list of them, not 5"),
        (["a", 5], "orders", "directories must be a path, or a list of them, not ['a', 5]"),
        ("a", 5, "topic must be a str, not 5"),
        ("a", None, "topic must be a str, not None"),
    ],
)
def test_arguments_of_other_types_are_refused(directories, topic, says):
    with pytest.raises(TypeError, match=f"^{re.escape(says)}$"):
        kcore.open_topic(directories, topic)


def test_the_directory_of_a_partition_in_the_place_of_a_data_directory_says_so(tmp_path):
    write(tmp_path / "orders-0", [(1, None, b"v")])
    says = "no partition of topic 'orders': it is the directory of a partition; name the data directory around it"
    with pytest.raises(FileNotFoundError, match=says):
        kcore.open_topic(tmp_path / "orders-0", "orders")


def test_an_interrupted_load_is_refused(tmp_path):
    write(tmp_path / "t-0", [(1, None, b"v")])
    (tmp_path / "kcore-load-journal").write_bytes(b"")
    with pytest.raises(CorruptFile, match="a load is not finished"):
        kcore.open_topic(tmp_path, "t")


def test_damage_is_an_error_of_the_query_that_meets_it(tmp_path, small_chunks):
    write(tmp_path / "t-0", [(1, None, b"v" * 40)] * 400, config=LogConfig(index_interval_bytes=512))
    path = tmp_path / "t-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    with kcore.open_topic(tmp_path, "t") as topic:
        assert topic.count_rows(filter=FIELD("offset") < 100) == 100
        with pytest.raises(CorruptMessage, match=r"00000\.log") as raised:
            topic.count_rows()
        assert raised.value.position > 10_000 and "offset 395" in str(raised.value)


def test_a_reader_that_leaves_early_stops_the_threads(orders):
    before = orders.scanner().to_reader()
    assert before.read_next_batch().num_rows > 0
    del before
    assert orders.count_rows() == 1800


@pytest.mark.parametrize(
    "query",
    [
        lambda topic: topic.to_table(filter=FIELD("offset") > 5),
        lambda topic: list(topic.to_batches(columns=["key"])),
        lambda topic: topic.head(1),
        lambda topic: topic.take([3]),
        lambda topic: topic.count_rows(),
        lambda topic: topic.scanner().to_reader().read_all(),
    ],
    ids=["to_table", "to_batches", "head", "take", "count_rows", "to_reader"],
)
def test_no_thread_of_arrow_runs_python_for_a_query(orders, monkeypatch, query):
    """Such a thread may still want the GIL when the program exits, and then the process dies with SIGABRT."""
    threads = set()

    def note_thread(*args):
        threads.add(threading.get_ident())
        yield from in_order(*args)

    monkeypatch.setattr("kcore.frames.topic.in_order", note_thread)
    query(orders)
    assert threads == {threading.get_ident()}


def test_a_scanner_can_be_read_again_and_says_its_columns(orders):
    scanner = orders.scanner({"size": pc.binary_length(FIELD("value"))}, FIELD("offset") < 2)
    assert isinstance(scanner, ds.Scanner)
    assert scanner.projected_schema == pa.schema([("size", pa.int32())])
    assert scanner.dataset_schema.names == ["value", "offset"]
    assert (
        scanner.to_table().to_pylist()
        == scanner.to_reader().read_all().to_pylist()
        == [{"size": None}, {"size": 1}] * 3
    )
    assert scanner.head(0).num_rows == 0 and scanner.head(100).num_rows == scanner.count_rows() == 6
    with pytest.raises(NotImplementedError, match="to_batches"):
        scanner.scan_batches()


def test_duckdb_reads_the_columns_and_chunks_that_a_query_needs(orders, monkeypatch):
    duckdb = pytest.importorskip("duckdb")
    seen = []
    chunks = type(orders).chunks
    monkeypatch.setattr(type(orders), "chunks", lambda self, filter=None: seen.append(chunks(self, filter)) or seen[-1])
    query = 'SELECT count(*), min("offset"), max(timestamp) FROM orders WHERE partition = 2 AND "offset" >= 590'
    assert duckdb.sql(query).fetchall()[0][:2] == (10, 590)
    assert len(seen) == 1 and 1 <= len(seen[0]) <= 3
    per_key = dict(duckdb.sql("SELECT decode(key), count(*) FROM orders GROUP BY ALL").fetchall())
    assert sum(per_key.values()) == 1800 and per_key["k0"] == 258
    late = "SELECT count(*) FROM orders WHERE timestamp >= TIMESTAMPTZ '1970-01-01 00:43:00+00'"
    assert duckdb.sql(late).fetchall()[0] == (
        sum(1 for n in range(600) if n % 97 != 5 and 2_000_000 + n * 1000 >= 2_580_000),
    )
    assert len(seen[-1]) < 10
    assert duckdb.sql("SELECT \"offset\" FROM orders WHERE value IS NULL AND topic = 'orders' LIMIT 2").fetchall() == [
        (0,),
        (50,),
    ]


def test_polars_scans_it_lazily(orders, monkeypatch):
    pl = pytest.importorskip("polars")
    frame = pl.scan_pyarrow_dataset(orders)
    assert frame.collect_schema().names() == orders.schema.names
    seen = []
    chunks = type(orders).chunks
    monkeypatch.setattr(type(orders), "chunks", lambda self, filter=None: seen.append(chunks(self, filter)) or seen[-1])
    few = frame.filter((pl.col("partition") == 2) & pl.col("offset").is_between(100, 102)).select("offset").collect()
    assert few["offset"].to_list() == [100, 101, 102]
    assert len(seen) == 1 and 1 <= len(seen[0]) <= 2
    counts = frame.group_by("partition").agg(pl.len(), pl.col("offset").max()).sort("partition").collect()
    assert counts.rows() == [(0, 600, 599), (1, 600, 599), (2, 600, 599)]
    assert frame.head(5).collect().height == 5


def test_a_chunk_whose_last_record_alone_is_late_enough_is_read(tmp_path, small_chunks):
    """Each record has its own entry in the time index: the bound of a chunk is the time of its last record."""
    config = LogConfig(index_interval_bytes=1)
    write(tmp_path / "t-0", [(1000 + n, None, b"x" * 100) for n in range(200)], config=config, per_batch=1)
    with kcore.open_topic(tmp_path, "t") as topic:
        for _, chunk in topic.chunks():
            assert chunk.max_timestamp == 1000 + chunk.end - 1
            found = topic.to_table(columns=["offset"], filter=FIELD("timestamp") >= time_of(chunk.max_timestamp))
            assert found["offset"].to_pylist() == list(range(chunk.end - 1, 200))


def test_a_partition_without_records_adds_none(tmp_path):
    write(tmp_path / "orders-0", [(1, b"k", b"v")])
    write(tmp_path / "orders-1", [])
    write(tmp_path / "orders-2", [(1, b"k", b"v")])
    with kcore.open_log(tmp_path / "orders-2", "a") as log:
        log.update_high_watermark(1)
        log.maybe_increment_log_start_offset(1)
    with kcore.open_topic(tmp_path, "orders") as topic:
        assert topic.count_rows() == topic.to_table().num_rows == 1
        assert topic.to_table(filter=FIELD("partition") > 0).num_rows == 0


def test_the_end_of_a_read_committed_topic_is_its_last_stable_offset(tmp_path):
    with kcore.open_log(tmp_path / "t-0", "a") as log:
        log.append_as_leader(idempotent(1, 0, 2))
        log.append_as_leader(idempotent(3, 0, 2, is_transactional=True))
    with kcore.open_topic(tmp_path, "t", isolation="read_committed") as topic:
        assert topic.offsets == 2 and [chunk.end for _, chunk in topic.chunks()] == [2]
