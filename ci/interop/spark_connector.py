"""spark_connector.py [--verbose]: the same queries through Spark's Kafka connector and through format("kcore").

A real Kafka is written to by confluent-kafka: several partitions and segments, all codecs, null and empty and large
keys and values, headers, transactions that overlap, are aborted and still open, a topic that Kafka's cleaner has
compacted, one whose beginning was deleted, one with LogAppendTime, an empty one.  The connector reads through that
broker, kcore reads the broker's files.  Of each query both must give the same rows: per partition their count, lengths,
checksums over all columns, offsets, timestamps; or both must fail.  Any difference ends with status 1.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.peers.real_kafka import RealKafka, Unavailable, connector_jars  # noqa: E402
from kcore.log.checkpoints import OffsetCheckpointFile  # noqa: E402
from kcore.spark import local_session  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CODECS = ("none", "lz4", "zstd", "gzip", "snappy")
START = 1_700_000_000_000
RECORDS = 3000  # of each partition of `plain`
MOVED_TO = 700  # where the log of `moved` begins
AT_A_TIME = 4  # queries: most of each is waiting for planners, workers, consumers

#: Seconds are too long for a check, and segments of a megabyte are the smallest that Kafka makes.
BROKER = {
    "replica_high_watermark_checkpoint_interval_ms": 300,
    "log_flush_start_offset_checkpoint_interval_ms": 300,
    "log_cleaner_backoff_ms": 200,
    "log_cleaner_min_cleanable_ratio": "0.01",
    "log_segment_bytes": 1 << 20,
    "log_retention_ms": -1,
    "transaction_max_timeout_ms": 3_600_000,
}


# -- what is written --------------------------------------------------------------------------------------------------


def write(bootstrap_servers: str, data: Path) -> list[Any]:
    """Fill the topics; gives back the producers whose transactions stay open."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 3})
    compact = {"cleanup.policy": "compact", "min.compaction.lag.ms": "0"}
    topics = [
        NewTopic("plain", 3, 1),
        NewTopic("transactions", 2, 1),
        NewTopic("compacted", 2, 1, config=compact),
        NewTopic("moved", 1, 1),
        NewTopic("appendtime", 2, 1, config={"message.timestamp.type": "LogAppendTime"}),
        NewTopic("empty", 2, 1),
    ]
    for created in admin.create_topics(topics).values():
        created.result(30)
    settings = {"bootstrap.servers": bootstrap_servers, "linger.ms": 5, "log_level": 3}
    rng = random.Random(5)
    write_plain(settings, rng)
    write_compacted(settings, rng)
    write_some(settings, rng, "moved", 1, 2000)
    write_some(settings, rng, "appendtime", 2, 500)
    for moved in admin.delete_records([TopicPartition("moved", 0, MOVED_TO)]).values():
        moved.result(30)
    still_open = write_transactions(settings, rng)
    wait_until("compaction", lambda: compacted_up_to(data) == 2)
    starts, ends = data / "log-start-offset-checkpoint", data / "replication-offset-checkpoint"
    wait_until("the log start", lambda: checkpointed(starts).get(("moved", 0)) == MOVED_TO)
    wait_until("the high watermarks", lambda: checkpointed(ends).get(("plain", 2)) == RECORDS)
    time.sleep(1)  # one more checkpoint, for those that were written last
    return still_open


def send(producer: Any, topic: str, partition: int, value: bytes | None, key: bytes | None = None, **more: Any) -> None:
    while True:
        try:
            producer.produce(topic, value, key, partition, **more)
            return
        except BufferError:
            producer.poll(0.05)


class NotSentError(RuntimeError):
    """The client has kept records for minutes."""


def sent(producer: Any) -> None:
    if producer.flush(90):
        raise NotSentError("Kafka did not take the records")


@contextmanager
def written_kafka(work: Path) -> Iterator[tuple[RealKafka, Path, list[Any]]]:
    """A real Kafka with the records, its data directory, and the producers with open transactions.

    librdkafka has once kept a transaction's records for three minutes while Kafka ran: then all is written again, to
    another one.
    """
    for attempt in (1, 2):
        directory = work / f"kafka-{attempt}"
        with RealKafka(directory, **BROKER) as kafka:
            try:
                still_open = write(kafka.bootstrap_servers, directory / "data")
            except NotSentError as error:
                if attempt == 2:
                    raise
                print(f"{error}: once more, with another broker", flush=True)
                continue
            yield kafka, directory / "data", still_open
            return


def odd_value(rng: random.Random) -> bytes | None:
    return rng.choice(
        [None, b"", rng.randbytes(100), rng.randbytes(rng.randint(1, 300)), b"text " * rng.randint(1, 400)]
    )


def odd_headers(rng: random.Random) -> list[tuple[str, bytes | None]]:
    many = [("a", b"1"), ("a", b"2"), ("snowman \u2603", bytes(200))]
    return rng.choice([[], [], [("source", b"web")], [("", b""), ("none", None)], many])


def write_plain(settings: Mapping[str, Any], rng: random.Random) -> None:
    """Codecs in turn; timestamps rise, with some out of order; a few records of 50 kB."""
    from confluent_kafka import Producer

    step = 200
    for first in range(0, RECORDS, step):
        codec = CODECS[first // step % len(CODECS)]
        producer = Producer({**settings, "compression.type": codec, "batch.size": 20_000})
        for n in range(first, first + step):
            for partition in range(3):
                late = rng.choice([0, 0, 0, 0, -2500, 3700])
                value = rng.randbytes(50_000) if n % 97 == 0 else odd_value(rng)
                key = rng.choice([None, b"", f"key-{n}".encode()])
                when = START + 1000 * n + 7 * partition + late
                send(producer, "plain", partition, value, key, timestamp=when, headers=odd_headers(rng))
        sent(producer)


def write_some(settings: Mapping[str, Any], rng: random.Random, topic: str, partitions: int, count: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({**settings, "compression.type": "zstd", "batch.size": 4000})
    for n in range(count):
        send(producer, topic, n % partitions, odd_value(rng), b"k", timestamp=START + n, headers=odd_headers(rng))
    sent(producer)


def write_compacted(settings: Mapping[str, Any], rng: random.Random) -> None:
    """Some 2.5 segments of each partition, of 300 keys; tombstones among them."""
    from confluent_kafka import Producer

    producer = Producer({**settings, "compression.type": "lz4", "batch.size": 10_000})
    for n in range(5000):
        key = f"key-{rng.randrange(300)}".encode()
        value = None if rng.random() < 0.05 else rng.randbytes(1000)
        send(producer, "compacted", n % 2, value, key, timestamp=START + n)
    sent(producer)


def write_transactions(settings: Mapping[str, Any], rng: random.Random) -> list[Any]:
    """Of two producers, overlapping, every third aborted; records without a transaction among them.  Behind them one
    that stays open, and more records."""
    from confluent_kafka import Producer

    common = {**settings, "transaction.timeout.ms": 3_000_000}
    producers = [Producer({**common, "transactional.id": f"t{n}", "compression.type": CODECS[n]}) for n in range(3)]
    for producer in producers:
        producer.init_transactions(30)
    plain = Producer(dict(settings))

    def some(producer: Any, count: int) -> None:
        for n in range(count):
            send(producer, "transactions", n % 2, odd_value(rng), f"{n}".encode(), timestamp=START + n)

    for n in range(12):
        for producer in producers[:2]:
            producer.begin_transaction()
        for _ in range(3):
            for producer in producers[:2]:
                some(producer, 20)
                sent(producer)
            some(plain, 6)
            sent(plain)
        for which, producer in enumerate(producers[:2]):
            if (n + which) % 3:
                producer.commit_transaction(30)
            else:
                producer.abort_transaction(30)
    producers[2].begin_transaction()
    some(producers[2], 50)
    sent(producers[2])
    some(plain, 50)
    sent(plain)
    return producers


def wait_until(what: str, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: Kafka did not get there in a minute")
        time.sleep(0.1)


def checkpointed(file: Path) -> dict[tuple[str, int], int]:
    return {(tp.topic, tp.partition): offset for tp, offset in OffsetCheckpointFile(str(file)).read().items()}


def compacted_up_to(data: Path) -> int:
    """How many partitions have been compacted."""
    found = checkpointed(data / "cleaner-offset-checkpoint")
    return sum(topic == "compacted" and offset > 0 for (topic, _), offset in found.items())


# -- what is asked ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Query:
    name: str
    options: dict[str, str]
    where: str | None = None
    alone: bool = False  # kcore is not told of the broker: the files must be enough
    schema: bool = False  # compare schemas instead


def at(second: float) -> str:
    """A timestamp in SQL, to the microsecond."""
    return f"timestamp_micros({START * 1000 + round(second * 1_000_000)})"


def short(predicate: str) -> str:
    return re.sub(r"timestamp_micros\((\d+)\)", lambda found: f"t{int(found[1]) / 1e6 - START / 1e3:+g}s", predicate)


#: On `plain`, whose timestamps go from START on, a second from record to record.
PREDICATES = [
    "offset = 1234",
    "offset in (0, 5, 2999, 3000, -7)",
    "offset between 800 and 1100",
    "offset > 2990 or offset < 10",
    "offset < -1",
    "offset >= -5 and offset <= 3",
    "offset >= 3000",
    "offset > 9223372036854775806",
    "offset <> 17",
    "not (offset < 2900)",
    "partition = 1 and offset >= 2000",
    "partition in (0, 2) and offset < 100",
    "partition > 0",
    "partition = -1",
    "partition is null",
    "topic = 'plain' and partition <> 1",
    "topic like 'pl%'",
    "topic = 'moved'",
    f"timestamp >= {at(1000)} and timestamp < {at(1200)}",
    f"timestamp = {at(1000)}",
    f"timestamp > {at(999.9995)} and timestamp <= {at(1010.0005)}",
    f"timestamp in ({at(3)}, {at(2000.007)}, {at(-1)})",
    f"timestamp < {at(-100)}",
    "timestamp < timestamp'1960-01-01'",
    f"timestamp > {at(1_000_000)}",
    f"timestamp between {at(500)} and {at(700)} and offset > 600 and partition = 2",
    f"timestamp <> {at(1000)}",
    "key is null and value is not null",
    "length(value) > 10000 and offset > 1000",
    "timestampType = 0 and offset < 7",
]


def queries() -> Iterator[Query]:
    plain = {"subscribe": "plain"}
    everything = {"subscribe": "plain,transactions,compacted,moved,appendtime,empty"}
    headers = {"includeHeaders": "true"}
    committed = {"kafka.isolation.level": "read_committed"}
    yield Query("schema", plain, schema=True)
    yield Query("schema with headers", plain | headers, schema=True)
    yield Query("all columns", everything)
    yield Query("all columns, headers", everything | headers)
    yield Query("all columns, headers, files alone", everything | headers, alone=True)
    yield Query("read_committed", everything | committed)
    yield Query("read_committed, headers, files alone", everything | committed | headers, alone=True)
    yield Query("subscribePattern", {"subscribePattern": "(pl|comp).*ed|plain"})
    yield Query("subscribePattern, of all that is no internal topic", {"subscribePattern": ".*"})
    yield Query("subscribePattern, of internal topics", {"subscribePattern": "__.*"})
    yield Query("subscribePattern, of nothing", {"subscribePattern": "nothing.*"})
    yield Query("subscribe, a topic that is not there", {"subscribe": "absent"})
    yield Query("assign", {"assign": json.dumps({"plain": [0, 2], "moved": [0]})})
    for n in (2, 7, 30):
        yield Query(f"minPartitions {n}", plain | {"minPartitions": str(n)})
    yield Query("maxRecordsPerPartition 250", plain | {"maxRecordsPerPartition": "250"})

    def offsets(found: list[int], topic: str = "plain") -> str:
        return json.dumps({topic: {str(n): offset for n, offset in enumerate(found)}})

    some = {"startingOffsets": offsets([100, -2, 2999]), "endingOffsets": offsets([101, 700, -1])}
    yield Query("startingOffsets, endingOffsets", plain | some | headers)
    yield Query("startingOffsets = endingOffsets", plain | some | {"endingOffsets": offsets([100, 0, 2999])})
    yield Query("startingOffsets of some partitions", plain | {"startingOffsets": offsets([5, 6])})
    yield Query("startingOffsets behind the end", plain | {"startingOffsets": offsets([3100, 0, 0])})
    yield Query("endingOffsets behind the end", plain | {"endingOffsets": offsets([3100, -1, -1])})
    yield Query(
        "startingOffsets above endingOffsets",
        plain | {"startingOffsets": offsets([9, 9, 9])} | {"endingOffsets": offsets([9, 5, 9])},
    )
    below = {"subscribe": "moved", "startingOffsets": offsets([10], "moved")}
    yield Query("startingOffsets that were deleted", below)
    yield Query("the same, failOnDataLoss=false", below | {"failOnDataLoss": "false"})
    for name, moved in (("committed", committed), ("uncommitted", {})):
        pieces = {
            "startingOffsets": offsets([33, 77], "transactions"),
            "endingOffsets": offsets([500, -1], "transactions"),
        }
        yield Query(f"transactions, a piece, {name}", {"subscribe": "transactions"} | pieces | moved)

    second = {"startingTimestamp": str(START + 1_000_000)}
    third = {"endingTimestamp": str(START + 2_000_000)}
    yield Query("startingTimestamp", plain | second)
    yield Query("startingTimestamp, endingTimestamp", plain | second | third)
    yield Query(
        "startingTimestamp above endingTimestamp",
        plain | {"startingTimestamp": str(START + 2_000_000), "endingTimestamp": str(START + 1_000_000)},
    )
    yield Query("startingTimestamp behind the end", plain | {"startingTimestamp": str(START + 10**9)})
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    yield Query("the same, strategy latest", plain | {"startingTimestamp": str(START + 10**9)} | latest)
    yield Query("endingTimestamp behind the end", plain | {"endingTimestamp": str(START + 10**9)})
    times = {
        "startingOffsetsByTimestamp": offsets([START, START + 500_001, START + 2_998_000]),
        "endingOffsetsByTimestamp": offsets([START + 1, START + 500_002, START + 2_999_999]),
    }
    yield Query("offsets by timestamp", plain | times)
    yield Query("startingTimestamp, compacted", {"subscribe": "compacted", "startingTimestamp": str(START + 2000)})

    for predicate in PREDICATES:
        yield Query(f"where {short(predicate)}", plain, predicate)
    yield Query("where, compacted", {"subscribe": "compacted"}, "offset between 1000 and 2000")
    yield Query("where, read_committed", {"subscribe": "transactions"} | committed, "offset between 50 and 400")
    yield Query("where, append time", {"subscribe": "appendtime"}, "timestampType = 1 and offset >= 100")
    yield Query("where, several topics", everything | headers, f"offset > 900 and timestamp < {at(1500)}")


# -- answers ----------------------------------------------------------------------------------------------------------


@dataclass
class Answer:
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    error: str | None = None

    @property
    def records(self) -> int:
        return sum(row[2] for row in self.rows)


def ask(frame: Callable[[], DataFrame], query: Query) -> Answer:
    """What a source answers: lines that are equal where every record is."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    try:
        found = frame()
        if query.schema:
            # Not whether they can be null: the connector says so of all columns, kcore of those that can.
            return Answer([(field.name, field.dataType.simpleString()) for field in found.schema])
        if query.where:
            found = found.where(query.where)
        length = {name: f.coalesce(f.length(name), f.lit(0)) for name in ("key", "value")}
        result = found.groupBy("topic", "partition").agg(
            f.count("*"),
            f.count("key"),
            f.count("value"),
            *(f.sum(length[name]) for name in ("key", "value")),
            *(f.sum(f.crc32(name)) for name in ("key", "value")),
            f.min("offset"),
            f.max("offset"),
            *(f.unix_micros(end("timestamp")) for end in (f.min, f.max)),
            f.min("timestampType"),
            f.max("timestampType"),
            # Offsets are among them, so that no two records cancel out.
            f.bit_xor(f.xxhash64(*found.columns)),
            f.sum(f.xxhash64(*found.columns).cast("decimal(38,0)")),
        )
        return Answer(sorted(tuple(row) for row in result.collect()))
    except (PySparkException, Py4JJavaError) as error:
        return Answer(error=f"{type(error).__name__}: {error}")


COLUMNS = (
    *("topic", "partition", "records", "keys", "values", "bytes of keys", "bytes of values", "crc32 of keys"),
    *("crc32 of values", "first offset", "last offset", "first timestamp", "last timestamp", "least timestampType"),
    *("greatest timestampType", "xor of hashes", "sum of hashes"),
)


def difference(theirs: Answer, ours: Answer) -> str | None:
    """None if there is none."""
    if theirs.error and ours.error:
        return None
    if theirs.error or ours.error:
        return f"connector: {theirs.error or f'{theirs.records} records'}\n      kcore: {ours.error or ours.records}"
    if theirs.rows == ours.rows:
        return None
    for n in range(max(len(theirs.rows), len(ours.rows))):
        a, b = (rows[n] if n < len(rows) else None for rows in (theirs.rows, ours.rows))
        if a != b:
            if a is None or b is None or a[:2] != b[:2]:
                return f"connector: {a}\n      kcore:     {b}"
            unlike = [f"{name} {x} / {y}" for name, x, y in zip(COLUMNS, a, b, strict=False) if x != y]
            return f"{a[0]}-{a[1]}, connector / kcore: {', '.join(unlike)}"
    raise AssertionError


def compare(
    spark: SparkSession, bootstrap_servers: str, data: Path, query: Query
) -> tuple[Query, Answer, Answer, float]:
    """What both say, and the seconds that took."""
    start = time.perf_counter()

    def connector() -> DataFrame:
        # Where it waits for records that will not come, it would wait two minutes.
        options = {"kafka.bootstrap.servers": bootstrap_servers, "kafkaConsumer.pollTimeoutMs": "3000"} | query.options
        return spark.read.format("kafka").options(**options).load()

    def kcore() -> DataFrame:
        options = {"path": str(data)} | query.options
        if not query.alone:
            options["kcore.bootstrap.servers"] = bootstrap_servers
        return spark.read.format("kcore").options(**options).load()

    theirs, ours = ask(connector, query), ask(kcore, query)
    return query, theirs, ours, time.perf_counter() - start


def streamed(spark: SparkSession, options: Mapping[str, str], source: str, name: str) -> list[tuple[Any, ...]]:
    """All that a stream brings, in batches of 700 records."""
    from pyspark.sql import functions as f

    reader = spark.readStream.format(source).options(**options)
    stream = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "700").load()
    hashed = stream.select("topic", "partition", "offset", f.xxhash64(*stream.columns))
    query = hashed.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
    query.awaitTermination()
    return sorted(tuple(row) for row in spark.table(name).collect())


def compare_streams(spark: SparkSession, bootstrap_servers: str, data: Path, isolation: str) -> tuple[int, str | None]:
    common = {"subscribe": "transactions,moved", "kafka.isolation.level": isolation, "includeHeaders": "true"}
    servers = {"kafka.bootstrap.servers": bootstrap_servers}
    files = {"path": str(data), "kcore.bootstrap.servers": bootstrap_servers}
    theirs = streamed(spark, common | servers, "kafka", f"connector_{isolation}")
    ours = streamed(spark, common | files, "kcore", f"kcore_{isolation}")
    if theirs == ours:
        return len(theirs), None
    unlike = sorted(set(theirs) ^ set(ours))
    return len(theirs), f"connector {len(theirs)} records, kcore {len(ours)}, unlike: {unlike[:4]}"


def write_in_transactions(spark: SparkSession, bootstrap_servers: str) -> tuple[int, str | None]:
    """Four tasks, then four of which the last fails before its end, then four again: those who read committed records
    see whole tasks, the others also what the failed one had sent."""
    where = {"kcore.bootstrap.servers": bootstrap_servers, "topic": "sunk"}
    # Few records wait in the client: most of the failed task's have been sent when it fails.
    how = {"kafka.transactional.id": "sink", "kafka.linger.ms": "0", "kafka.queue.buffering.max.messages": "1000"}
    for fails in (False, True, False):
        value = "if(id = 39999, repeat('x', 3000000), cast(id as string))" if fails else "cast(id as string)"
        writer = spark.range(0, 40_000, 1, 4).selectExpr(f"{value} as value").write.format("kcore").mode("append")
        try:
            writer.options(**where, **how).save()
        except Exception:
            if not fails:
                raise
        else:
            if fails:
                return 0, "the task that fails did not fail"

    def read(isolation: str) -> int:
        options = {"kafka.bootstrap.servers": bootstrap_servers, "kafka.isolation.level": isolation}
        return spark.read.format("kafka").options(**options, subscribe="sunk").load().count()

    committed, all_records = read("read_committed"), read("read_uncommitted")
    if committed % 10_000 or not 80_000 <= committed <= 110_000 or all_records <= committed:
        return committed, f"{committed} of {all_records} records are committed, expected 80 to 110 thousand, not all"
    return committed, None


def main() -> None:
    verbose = "--verbose" in sys.argv[1:]
    os.environ["PYTHONPATH"] = str(ROOT)  # of Spark's Python processes
    try:
        jars = connector_jars()
    except Unavailable as missing:
        print(f"Spark's connector: skipped, {missing}")
        return
    bad: list[str] = []
    count = 0

    def report(name: str, records: object, wrong: str | None, took: str = "") -> None:
        nonlocal count
        count += 1
        print(f"  {name:<84} {records:>8}  {'DIFFERS' if wrong else 'alike'}{took}", flush=True)
        if wrong:
            bad.append(f"{name}:\n      {wrong}")

    with tempfile.TemporaryDirectory(prefix="kcore-connector-") as temporary:
        work = Path(temporary)
        conf = {
            "spark.jars": ",".join(jars),
            "spark.sql.shuffle.partitions": "1",
            "spark.driver.memory": "1g",
            "spark.log.level": "OFF",
            "spark.local.dir": str(work / "spark"),
            "spark.sql.warehouse.dir": str(work / "warehouse"),
        }
        spark = local_session(f"local[{AT_A_TIME}]", "kcore beside Spark's connector", conf)
        try:
            with written_kafka(work) as (kafka, data, still_open), ThreadPoolExecutor(AT_A_TIME) as pool:
                print(f"  {'query':<84} {'records':>8}", flush=True)
                for query, theirs, ours, seconds in pool.map(
                    partial(compare, spark, kafka.bootstrap_servers, data), queries()
                ):
                    both_fail = theirs.error is not None and ours.error is not None
                    records = "schema" if query.schema else "fails" if both_fail else theirs.records
                    took = f"  {seconds:.1f} s" if verbose else ""
                    report(query.name, records, difference(theirs, ours), took)
                    if verbose and both_fail:
                        for told in (theirs.error, ours.error):
                            print(f"      {(told or '')[:1200]}")
                for isolation in ("read_uncommitted", "read_committed"):
                    records, wrong = compare_streams(spark, kafka.bootstrap_servers, data, isolation)
                    report(f"stream, AvailableNow, maxOffsetsPerTrigger 700, {isolation}", records, wrong)
                still_open.clear()
                report(
                    "a sink with a transactional id, one task of which fails",
                    *write_in_transactions(spark, kafka.bootstrap_servers),
                )
        finally:
            spark.stop()
    if bad:
        sys.exit("\n".join([f"\n{len(bad)} differences from Spark's connector:", *bad]))
    print(f"Spark's connector: {count} queries, no difference")


if __name__ == "__main__":
    main()
