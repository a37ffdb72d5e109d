"""spark.py: format("kcore") beside Spark's Kafka connector, in one session, on the same files.

A real Kafka is filled by its own producer (ProducerPerformance) and runs beside the connector, which reads and writes
through it; kcore reads the files that this broker wrote, and writes files of its own.  Each case runs a few times to
warm up, then in rounds that alternate, so that a slow moment of the machine meets both; both must give the same answer.
A query is timed from spark.read to its result.  Ratios are medians over pairs of neighbouring rounds, by the clock and
by the CPU seconds of all processes involved: the driver with its JVM and Python workers, and for the connector its
broker.
--quick has 220 MB of values in each topic and takes some ten minutes, the full run has 1 GB and takes half an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.conftest import machine_notes  # noqa: E402
from bench.peers import rounds, storage_data  # noqa: E402
from bench.peers.real_kafka import RealKafka, Unavailable, connector_jars  # noqa: E402
from bench.report import duration, rate  # noqa: E402
from bench.tables import markdown_table  # noqa: E402
from kcore.spark import jobs, local_session  # noqa: E402
from kcore.spark.catalog import find_partitions, log_bounds, log_end, segment_base_offsets  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 6
MASTER = "local[2]"
#: Rounds that do not count.  In the first ones the JVM's compilers take a fifth of all CPU time.
WARM_UP = 3
VERIFIED_BYTES = 4 << 30
MOST_COPIES = 40
HEADINGS = ["case", "kcore", "spread", "connector", "spread", "ratio", "kcore CPU", "connector CPU", "ratio", "goal"]
HEADINGS += ["verdict"]


@dataclass(frozen=True)
class Mode:
    rounds: int
    bytes: int  # of values, in each topic


QUICK = Mode(rounds=3, bytes=220_000_000)
FULL = Mode(rounds=5, bytes=1_000_000_000)


@dataclass(frozen=True)
class Dataset:
    """A topic."""

    value_size: int
    codec: str
    records: int

    @property
    def topic(self) -> str:
        return f"bytes-{self.value_size}-{self.codec}"

    @property
    def title(self) -> str:
        return f"{'1 KiB' if self.value_size == 1024 else f'{self.value_size} bytes'}, {self.codec}"


def datasets(mode: Mode) -> list[Dataset]:
    return [Dataset(size, codec, mode.bytes // size) for size in (100, 1024) for codec in ("none", "zstd")]


@dataclass(frozen=True)
class Row:
    path: str
    goal: float | None  # how many times as fast by the clock
    case: str = ""
    cpu_goal: float | None = None  # and by CPU seconds
    bytes_per_second: float | None = None  # in the place of a rival


def rows(dataset: Dataset) -> list[Row]:
    small = dataset.value_size == 100
    found = [
        Row("full scan, all columns", 4 if small else 3, "full", 3 if small else None),
        Row("needed column", 6 if small else 3, "column"),
        Row("10 % of offsets, WHERE", 12 if small else 6, "offsets"),
        Row("10 % of timestamps, WHERE", 12 if small else 6, "timestamps"),
        Row("bulk write", 2, "write"),
    ]
    return [Row(f"{row.path}: {dataset.title}", row.goal, row.case, row.cpu_goal) for row in found]


@dataclass
class Result:
    row: Row
    kcore: list[float] = field(default_factory=list)  # seconds by the clock, round by round
    connector: list[float] = field(default_factory=list)
    kcore_cpu: list[float] = field(default_factory=list)
    connector_cpu: list[float] = field(default_factory=list)
    bytes: int = 0  # that were gone through, where that counts

    @property
    def met(self) -> bool | None:
        row = self.row
        if row.bytes_per_second is not None:
            return self.bytes / statistics.median(self.kcore) >= row.bytes_per_second
        if row.goal is None or not self.connector:
            return None
        by_clock = rounds.ratio(self.kcore, self.connector) >= row.goal
        return by_clock and (row.cpu_goal is None or rounds.ratio(self.kcore_cpu, self.connector_cpu) >= row.cpu_goal)

    def cells(self) -> list[str]:
        row = self.row
        seconds = statistics.median(self.kcore)
        ours = rate(seconds / self.bytes, "byte") if self.bytes else duration(seconds)
        cells = [row.path, ours, rounds.spread(self.kcore)]
        goal = f">= {row.goal:g}x" if row.goal is not None else ""
        if row.bytes_per_second is not None:
            goal = f">= {rate(1 / row.bytes_per_second, 'byte')}"
        if row.cpu_goal is not None:
            goal += f", CPU >= {row.cpu_goal:g}x"
        cpu = duration(statistics.median(self.kcore_cpu))
        if not self.connector:
            return [*cells, "", "", "", cpu, "", "", goal, rounds.VERDICTS[self.met] if goal else ""]
        cells += [duration(statistics.median(self.connector)), rounds.spread(self.connector)]
        cells += [f"{rounds.ratio(self.kcore, self.connector):.2f}x", cpu]
        cells += [duration(statistics.median(self.connector_cpu))]
        cells += [f"{rounds.ratio(self.kcore_cpu, self.connector_cpu):.2f}x"]
        return [*cells, goal, rounds.VERDICTS[self.met]]


# -- CPU seconds ------------------------------------------------------------------------------------------------------


def cpu_ticks_below(root: int, without: int | None = None) -> dict[tuple[int, int], int]:
    """Of a process and all below it, by process id and start; one branch may be left out."""
    ticks: dict[int, tuple[int, int]] = {}
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            ticks[int(entry)] = int(stat[19]), int(stat[11]) + int(stat[12])
            children.setdefault(int(stat[1]), []).append(int(entry))
    found, left = {}, [root]
    while left:
        pid = left.pop()
        if pid != without and pid in ticks:
            start, used = ticks[pid]
            found[pid, start] = used
            left += children.get(pid, [])
    return found


class CpuMeter:
    """CPU seconds of this process and all below it, in a with block.

    Looks every quarter of a second, because Spark's Python workers end unseen: nobody waits for them, so that what they
    used is never added to what their parent's children did.
    """

    def __init__(self, without: int | None = None) -> None:
        self._without = without
        self._last: dict[tuple[int, int], int] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> CpuMeter:
        self._first = cpu_ticks_below(os.getpid(), self._without)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._done.wait(0.25):
            self._last |= cpu_ticks_below(os.getpid(), self._without)

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._last |= cpu_ticks_below(os.getpid(), self._without)

    @property
    def seconds(self) -> float:
        used = sum(ticks - self._first.get(process, 0) for process, ticks in self._last.items())
        return used / os.sysconf("SC_CLK_TCK")


# -- cases ------------------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """What one side does of a case; only run() counts."""

    run: Callable[[], Any]
    before: Callable[[], None] = lambda: None
    answer: Callable[[Any], Any] = lambda given: given
    after: Callable[[], None] = lambda: None


def records_in(data: Path, topic: str) -> int:
    """Offsets of all partitions of a topic, as their files tell."""
    return sum(
        log_end(directory, segment_base_offsets(directory))
        for tp, directory in find_partitions([str(data)]).items()
        if tp.topic == topic
    )


class Comparison:
    def __init__(self, spark: SparkSession, kafka: RealKafka, work: Path) -> None:
        self.spark = spark
        self.kafka = kafka
        self.work = work
        self.data = kafka.directory / "data"
        self._topics = 0
        self._times: dict[Dataset, tuple[int, ...]] = {}

    # What the connector reads through the broker, and kcore from its files.

    def frame(self, who: str, dataset: Dataset, schema: str | None = None) -> DataFrame:
        if who == "connector":
            reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.kafka.bootstrap_servers)
        else:
            reader = self.spark.read.format("kcore").option("path", str(self.data))
            if schema is not None:
                reader = reader.schema(schema)
        return reader.option("subscribe", dataset.topic).load()

    def full(self, who: str, dataset: Dataset, where: str = "true") -> Case:
        def run() -> tuple[Any, ...]:
            result = (
                self.frame(who, dataset)
                .where(where)
                .selectExpr(
                    "count(*)",
                    "sum(length(key))",
                    "sum(length(value))",
                    "sum(length(topic))",
                    "sum(partition)",
                    "max(offset)",
                    "max(timestamp)",
                    "max(timestampType)",
                )
            )
            return tuple(result.collect()[0])

        return Case(run)

    def column(self, who: str, dataset: Dataset) -> Case:
        return Case(
            lambda: tuple(self.frame(who, dataset, "value binary").selectExpr("sum(length(value))").collect()[0])
        )

    def offsets(self, who: str, dataset: Dataset) -> Case:
        """The same window of each partition, from the middle of the shortest one."""
        mine = [d for tp, d in find_partitions([str(self.data)]).items() if tp.topic == dataset.topic]
        end = min(log_end(directory, segment_base_offsets(directory)) for directory in mine)
        return self.full(who, dataset, f"offset >= {end * 45 // 100} and offset < {end * 55 // 100}")

    def timestamps(self, who: str, dataset: Dataset) -> Case:
        if dataset not in self._times:
            times = self.frame("kcore", dataset, "timestamp timestamp")
            at = "percentile_approx(unix_millis(timestamp), array(0.45D, 0.55D), 10000)"
            self._times[dataset] = tuple(times.selectExpr(at).collect()[0][0])
        start, end = (f"timestamp_millis({millisecond})" for millisecond in self._times[dataset])
        return self.full(who, dataset, f"timestamp >= {start} and timestamp < {end}")

    def write(self, who: str, dataset: Dataset) -> Case:
        """Of rows that lie in Spark's memory, into a new topic."""
        frame = self._cached(dataset)
        self._topics += 1
        topic = f"written-{self._topics}"
        if who == "connector":
            writer = frame.write.format("kafka").option("kafka.bootstrap.servers", self.kafka.bootstrap_servers)
            writer = writer.option("kafka.compression.type", dataset.codec).option("topic", topic)
            return Case(
                writer.save,
                lambda: create_topic(self.kafka.bootstrap_servers, topic),
                lambda _: records_in(self.data, topic),
                lambda: delete_topic(self.kafka.bootstrap_servers, topic),
            )
        target = self.work / "loaded"
        writer = frame.write.format("kcore").mode("append").option("path", str(target)).option("topic", topic)
        writer = writer.option("numPartitions", PARTITIONS).option("compression", dataset.codec)
        return Case(
            writer.save,
            lambda: shutil.rmtree(target, ignore_errors=True),
            lambda _: records_in(target, topic),
            lambda: shutil.rmtree(target, ignore_errors=True),
        )

    def _cached(self, dataset: Dataset) -> DataFrame:
        """Its values, computed when first asked for; Spark knows by the plan that it has them already."""
        frame = self.frame("kcore", dataset, "value binary").coalesce(2)
        if not frame.is_cached:
            from pyspark import StorageLevel

            frame.persist(StorageLevel.MEMORY_ONLY)
            frame.count()
        return frame

    def measure(self, who: str, case: Case) -> tuple[float, float, Any]:
        """Seconds by the clock, CPU seconds, the answer."""
        case.before()
        broker = None if who == "connector" else self.kafka.pid
        # What the round before has left to be written, which an fsync of this one would wait for, and the JVM to do.
        os.sync()
        time.sleep(0.2)
        with CpuMeter(without=broker) as cpu:
            start = time.perf_counter()
            given = case.run()
            seconds = time.perf_counter() - start
        answer = case.answer(given)
        case.after()
        return seconds, cpu.seconds, answer

    def run(self, row: Row, dataset: Dataset, count: int) -> Result:
        """Rounds to warm up, then those that count.  Raises RuntimeError when the two do not say the same."""
        result = Result(row)
        sides = {"connector": (result.connector, result.connector_cpu), "kcore": (result.kcore, result.kcore_cpu)}
        make = CASES[row.case]
        try:
            for n in range(WARM_UP + count):
                answers = {}
                for who, (by_clock, by_cpu) in sides.items():
                    seconds, cpu, answers[who] = self.measure(who, make(self, who, dataset))
                    if n >= WARM_UP:
                        by_clock.append(seconds)
                        by_cpu.append(cpu)
                if answers["kcore"] != answers["connector"]:
                    raise RuntimeError(f"{row.path}: kcore says {answers['kcore']}, the other {answers['connector']}")
        finally:
            self.spark.catalog.clearCache()
        return result


CASES: dict[str, Callable[[Comparison, str, Dataset], Case]] = {
    "full": Comparison.full,
    "column": Comparison.column,
    "offsets": Comparison.offsets,
    "timestamps": Comparison.timestamps,
    "write": Comparison.write,
}


def admin(bootstrap_servers: str) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 3})


def create_topic(bootstrap_servers: str, topic: str) -> None:
    from confluent_kafka.admin import NewTopic

    client = admin(bootstrap_servers)
    client.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    # Until the broker itself knows who leads them, so that no producer has to wait for that.
    deadline = time.monotonic() + 30
    while True:
        known = client.list_topics(topic, timeout=10).topics[topic]
        if not known.error and [p.leader for p in known.partitions.values()] == [1] * PARTITIONS:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{topic}: its partitions have no leader after 30 s")
        time.sleep(0.1)


def delete_topic(bootstrap_servers: str, topic: str) -> None:
    client = admin(bootstrap_servers)
    client.delete_topics([topic])[topic].result(30)


def produce(kafka: RealKafka, work: Path, dataset: Dataset) -> None:
    """By Kafka's own producer with its defaults, as fast as it goes."""
    values = work / "values"
    values.write_bytes(b"\n".join(storage_data.values(dataset.value_size)) + b"\n")
    create_topic(kafka.bootstrap_servers, dataset.topic)
    options = ["--topic", dataset.topic, "--num-records", str(dataset.records), "--throughput", "-1"]
    options += ["--payload-file", str(values), "--bootstrap-server", kafka.bootstrap_servers]
    kafka.tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *options,
        "--command-property",
        f"compression.type={dataset.codec}",
    )
    # kcore is not told of the broker and goes by the high watermarks that lie beside the logs.
    deadline = time.monotonic() + 60
    places = find_partitions([str(kafka.directory / "data")])
    mine = {tp: place for tp, place in places.items() if tp.topic == dataset.topic}
    while sum(found.end for found in log_bounds(mine, "read_uncommitted").values()) < dataset.records:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{dataset.topic}: Kafka's high watermarks do not get to {dataset.records} records")
        time.sleep(0.2)


# -- verify -----------------------------------------------------------------------------------------------------------


def verify_rows() -> Iterator[tuple[Row, bool]]:
    yield Row("verify: CRCs, indexes, counts", None, bytes_per_second=5e9), False
    yield Row("verify: the same, and each record", None), True


def linked_copies(data: Path, topics: list[str], target: Path) -> int:
    """Directories with the logs of these topics as hard links, again and again up to VERIFIED_BYTES; their bytes."""
    places = [place for tp, place in find_partitions([str(data)]).items() if tp.topic in topics]
    size = sum(file.stat().st_size for place in places for file in Path(place).iterdir())
    copies = min(-(-VERIFIED_BYTES // size), MOST_COPIES)
    for n in range(copies):
        for place in places:
            copy = target / f"copy-{n}" / Path(place).name
            copy.mkdir(parents=True)
            storage_data.linked(Path(place), copy)
    return size * copies


def verify(spark: SparkSession, row: Row, copies: Path, size: int, records: bool, count: int) -> Result:
    result = Result(row, bytes=size)
    for n in range(WARM_UP + count):
        with CpuMeter() as cpu:
            start = time.perf_counter()
            found = jobs.verify(spark, *map(str, sorted(copies.iterdir())), records=records, quiet=True)
            damaged, seen = found.selectExpr("sum(damaged)", "sum(bytes)").collect()[0]
            seconds = time.perf_counter() - start
        if n >= WARM_UP:
            result.kcore.append(seconds)
            result.kcore_cpu.append(cpu.seconds)
        if damaged or not seen:
            raise RuntimeError(f"{row.path}: {damaged} damaged in {seen} bytes")
    return result


# -- the run ----------------------------------------------------------------------------------------------------------


@contextmanager
def session(work: Path, jars: list[str]) -> Iterator[SparkSession]:
    conf = {
        "spark.jars": ",".join(jars),
        "spark.driver.memory": "8g",  # bulk writes are of rows that lie in Spark's memory
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
        "spark.local.dir": str(work / "spark"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
    }
    spark = local_session(MASTER, "kcore beside Spark's connector", conf)
    try:
        yield spark
    finally:
        spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three rounds, 220 MB of values in each topic")
    parser.add_argument("--only", metavar="TEXT", default="", help="the cases whose name contains it")
    parser.add_argument("--rounds", type=int, help="that count, of both sides")
    parser.add_argument("--bytes", type=int, help="of values in each topic")
    parser.add_argument("--json", default=str(ROOT / "build" / "peers-spark.json"), metavar="FILE")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a goal is missed")
    args = parser.parse_args()
    mode = QUICK if args.quick else FULL
    mode = Mode(args.rounds or mode.rounds, args.bytes or mode.bytes)

    notes = machine_notes()
    print(", ".join(f"{name} {value}" for name, value in notes.items() if value is not None))
    os.environ["PYTHONPATH"] = str(ROOT)  # of Spark's Python processes
    try:
        jars = connector_jars()
    except Unavailable as missing:
        print(f"{missing}: Spark's connector and its broker cannot run here, nothing is compared", file=sys.stderr)
        return 0
    results: list[Result] = []
    failures: list[str] = []

    def add(row: Row, measured: Callable[[], Result]) -> None:
        """A case that fails is told, and the others go on."""
        try:
            results.append(measured())
            print("  ".join(cell for cell in results[-1].cells() if cell), flush=True)
        except Exception as error:
            failures.append(f"{row.path}: FAILED: {type(error).__name__}: {str(error)[:1000]}")
            print(failures[-1], flush=True)

    with tempfile.TemporaryDirectory(prefix="kcore-peers-", dir=os.environ.get("BENCH_DIR")) as directory:
        work = Path(directory)
        wanted = {dataset: [row for row in rows(dataset) if args.only in row.path] for dataset in datasets(mode)}
        checks = [(row, records) for row, records in verify_rows() if args.only in row.path]
        with session(work, jars) as spark:
            broker = {"log_segment_delete_delay_ms": 1000, "replica_high_watermark_checkpoint_interval_ms": 500}
            with RealKafka(work / "kafka", **broker) as kafka:
                comparison = Comparison(spark, kafka, work)
                for dataset, cases in wanted.items():
                    if cases or checks:
                        produce(kafka, work, dataset)
                    for row in cases:
                        add(row, partial(comparison.run, row, dataset, mode.rounds))
            if checks:  # of logs that are closed
                copies = work / "copies"
                size = linked_copies(work / "kafka" / "data", [dataset.topic for dataset in wanted], copies)
                for row, records in checks:
                    add(row, partial(verify, spark, row, copies, size, records, mode.rounds))
    document = {
        "machine": notes,
        "mode": vars(mode),
        "failures": failures,
        "rows": [vars(result) | {"row": vars(result.row)} for result in results],
    }
    Path(args.json).parent.mkdir(parents=True, exist_ok=True)
    Path(args.json).write_text(json.dumps(document, indent=1))
    print(f"\n{MASTER}, {PARTITIONS} partitions, {mode.bytes / 1e6:,.0f} MB of values in each topic")
    print(f"\n{markdown_table(HEADINGS, [result.cells() for result in results])}\n")
    missed = sum(result.met is False for result in results)
    met = sum(result.met is True for result in results)
    print("".join(f"{failure}\n\n" for failure in failures) + f"{met} goals met, {missed} missed.")
    return 1 if failures or (args.strict and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
