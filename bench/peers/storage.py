"""storage.py: kcore's storage beside Apache Kafka's own classes, path by path, on the same bytes in one run.

Each path runs in a process of kcore's and in a JVM of Kafka's (java/StorageBench.java), both warm, one of them idle
while the other works; rounds alternate, so that a slow moment of the machine meets both.  The ratio is the median over
the pairs of neighbouring rounds, by the CPU time of the one thread that works: nothing here waits, and what else runs
on the machine disturbs that least.  What a JVM does in threads of its own (collecting garbage, compiling) counts for
nothing.  The ratio by the clock stands beside it.  Appends have a third process, which does nothing but os.pwrite of
the same bytes: the limit, and the ratio to Kafka that it reaches.  Recovery is there twice: by one thread, and, by the
clock only, as a broker does it that has a second one with nothing else to do.  --quick takes some five minutes, the
full run about twenty.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.conftest import machine_notes  # noqa: E402
from bench.peers import rounds, storage_data  # noqa: E402
from bench.peers.real_kafka import Unavailable, jars  # noqa: E402
from bench.report import duration, rate  # noqa: E402
from bench.tables import markdown_table  # noqa: E402

MIB = 1 << 20
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Row:
    """One path: what kcore runs, what the rival runs, and how many times as fast kcore has to be."""

    path: str
    unit: str
    kcore: str
    goal: float
    peer: str | None = None  # None: the same case
    rival: str = "Kafka"
    at_most_ns: float | None = None  # in the place of the goal: kcore's time per unit
    limit: str | None = None  # the case of kcore's that does only what no other way can leave out
    by_clock: bool = False  # more than one thread of kcore's works, so that one's CPU time says nothing


def append(path: str, kcore: str, goal: float, peer: str | None = None) -> Row:
    """Of the set file that the case names, and in groups of as many batches."""
    _, name, *options = kcore.split(":")
    limit = ":".join(["plain_write", name, *(option for option in options if option.isdigit())])
    return Row(path, "byte", kcore, goal, peer, limit=limit)


def rows() -> list[Row]:
    found = [
        append("LogSegment.append, 1 KiB batches", "segment_append:1KiB_one", 1.8),
        append("LogSegment.append, 16 KiB batches", "segment_append:16KiB", 1.3),
        append("group append, 64 x 1 KiB", "segment_append:1KiB_one:64", 6, "segment_append:1KiB_one"),
        append("group append, 16 x 16 KiB", "segment_append:16KiB:16", 2.5, "segment_append:16KiB"),
        append("append_as_leader, 1 KiB", "leader_append:1KiB", 1.5),
        append("append_as_leader, 16 KiB", "leader_append:16KiB", 1.5),
        append("append_as_leader, idempotent, 1 KiB", "leader_append:1KiB:idempotent", 1.5),
        append("append_as_leader, idempotent, 16 KiB", "leader_append:16KiB:idempotent", 1.5),
        append("append_as_follower, 1 KiB", "follower_append:1KiB", 1.5),
        append("append_as_follower, 16 KiB", "follower_append:16KiB", 1.5),
        Row("recover, 1 KiB batches", "byte", "recover:segment_1KiB", 20, limit="one_crc:segment_1KiB"),
        Row("recover, 16 KiB batches", "byte", "recover:segment_16KiB", 4, limit="one_crc:segment_16KiB"),
        Row("recover, 1 KiB, two threads", "byte", "recover:segment_1KiB:2", 20, "recover:segment_1KiB", by_clock=True),
        Row("header scan, 1 KiB batches", "batch", "header_scan:segment_1KiB", 0, at_most_ns=1e9 / 60e6),
        Row("index lookup, hot", "op", "index_lookup:hot", 0, at_most_ns=90),
        Row("index lookup, random", "op", "index_lookup:random", 0, at_most_ns=400),
        Row("translate_offset, random", "op", "translate_offset:segment_1KiB", 6),
        Row("log.read, random", "op", "log_read:segment_1KiB", 2),
        Row("validate with CRC, 16 KiB", "record", "validate:16KiB:none", 3),
        Row("validate with CRC, 1 MiB", "record", "validate:1MiB:none", 3),
    ]
    for codec in storage_data.CODECS:
        found.append(Row(f"validate {codec}, 16 KiB", "record", f"validate:16KiB_{codec}:{codec}", 1.3))
        found.append(Row(f"validate {codec}, 1 MiB", "record", f"validate:1MiB_{codec}:{codec}", 1.3))
    read, build = "records_to_columns:16KiB", "columns_to_batches:16KiB"
    return [
        *found,
        Row("convert magic 1 to 2, 16 KiB", "record", "convert:16KiB_v1", 3),
        Row("records to columns", "record", read, 2),
        Row("records to columns", "record", read, 15, "aiokafka_iteration:16KiB", "aiokafka"),
        Row("columns to batches", "record", build, 3),
        Row("columns to batches", "record", build, 12, "aiokafka_building:16KiB", "aiokafka"),
        Row("cleaner, 256 MiB", "byte", "clean", 4),
        Row("offset map, put", "op", "offset_map:put", 3),
        Row("offset map, get", "op", "offset_map:get", 3),
    ]


@dataclass
class Result:
    row: Row
    kcore: list[float] = field(default_factory=list)  # CPU seconds a unit, round by round, unless it goes by the clock
    rival: list[float] = field(default_factory=list)
    kcore_clock: list[float] = field(default_factory=list)  # the same by the clock
    rival_clock: list[float] = field(default_factory=list)
    limit: list[float] = field(default_factory=list)
    limit_clock: list[float] = field(default_factory=list)

    @property
    def ratio_of_limit(self) -> float:
        """How many times as fast as the rival the bare system calls are."""
        return rounds.ratio(self.limit, self.rival)

    @property
    def ratio(self) -> float:
        return rounds.ratio(self.kcore, self.rival)

    @property
    def ratio_by_clock(self) -> float:
        return rounds.ratio(self.kcore_clock, self.rival_clock)

    @property
    def met(self) -> bool | None:
        if self.row.at_most_ns is not None:
            return statistics.median(self.kcore) * 1e9 <= self.row.at_most_ns
        return self.ratio >= self.row.goal if self.rival else None

    def cells(self) -> list[str]:
        goal = f">= {self.row.goal:g}x"
        if self.row.at_most_ns is not None:
            seconds = self.row.at_most_ns * 1e-9
            goal = f"<= {duration(seconds)}" if self.row.unit == "op" else f">= {rate(seconds, self.row.unit)}"
        verdict = rounds.VERDICTS[self.met]
        rival = self._figure(self.rival) if self.rival else ["", ""]
        if self.row.rival != "Kafka" and self.rival:
            rival[0] = f"{self.row.rival} {rival[0]}"
        ratios = [f"{self.ratio:.2f}x", f"{self.ratio_by_clock:.2f}x"] if self.rival else ["", ""]
        limit = [self._figure(self.limit)[0] if self.limit else "", ""]
        if self.limit and self.rival:
            limit[1] = f"{self.ratio_of_limit:.2f}x"
            if self.met is False and self.ratio_of_limit < self.row.goal:
                verdict = "MISSED: above the limit"
        return [self.row.path, *self._figure(self.kcore), *rival, *ratios, *limit, goal, verdict]

    def _figure(self, taken: list[float]) -> list[str]:
        """Median and interquartile range."""
        median = statistics.median(taken)
        return [duration(median) if self.row.unit == "op" else rate(median, self.row.unit), rounds.spread(taken)]


HEADINGS = ["path", "kcore", "spread", "Kafka", "spread", "ratio", "by clock", "limit", "its ratio", "goal", "verdict"]


class Worker:
    """A process that runs one case, a round at a time."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._command = command
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | environment
        )
        if self._line() != "ready":
            raise RuntimeError(f"{' '.join(command)}: not ready")

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(self._command)}: ended with status {self._process.wait()}")
        return line.strip()

    def round(self) -> tuple[float, float]:
        """CPU seconds a unit, and by the clock."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        seconds, cpu, units = self._line().split()
        return float(cpu) / int(units), float(seconds) / int(units)

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


@dataclass
class Mode:
    rounds: int
    warm_java: float
    warm_kcore: float
    seconds: float  # of CPU time, of each round
    segment_bytes: int


QUICK = Mode(rounds=5, warm_java=3, warm_kcore=0.2, seconds=0.25, segment_bytes=256 * MIB)
FULL = Mode(rounds=15, warm_java=5, warm_kcore=0.5, seconds=1, segment_bytes=1024 * MIB)


class Comparison:
    def __init__(self, work: Path, mode: Mode, kafka_jars: Path | None) -> None:
        self.work = work
        self.mode = mode
        self.data = work / "data"
        self.java: list[str] | None = None
        if kafka_jars is not None:
            classes = ROOT / "build" / "peers-classes"
            classes.mkdir(parents=True, exist_ok=True)
            source = HERE / "java" / "StorageBench.java"
            subprocess.run(
                [
                    "javac",
                    "-encoding",
                    "UTF-8",
                    "-nowarn",
                    "-proc:none",
                    "-cp",
                    f"{kafka_jars}/*",
                    "-d",
                    str(classes),
                    str(source),
                ],
                check=True,
            )
            log4j = ROOT / "ci" / "interop" / "log4j2.xml"
            self.java = ["java", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", f"-Dlog4j2.configurationFile={log4j}"]
            self.java += ["-cp", f"{kafka_jars}/*:{classes}", "StorageBench"]

    def prepare(self) -> None:
        self.data.mkdir()
        storage_data.write_all(self.data, self.mode.segment_bytes)

    def _worker(self, who: str, case: str) -> Worker:
        work = self.work / who
        if who == "Kafka":
            assert self.java is not None
            start, warm = self.java, self.mode.warm_java
        else:
            start, warm = [sys.executable, "-m", "bench.peers.storage_cases"], self.mode.warm_kcore
        arguments = [case, str(self.data), str(work), str(warm), str(self.mode.seconds)]
        try:
            return Worker([*start, *arguments], {"PYTHONPATH": str(ROOT), "LC_ALL": "C"})
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise

    def run(self, row: Row) -> Result:
        result = Result(row)
        workers = []
        if row.rival != "Kafka" or self.java is not None:
            workers.append((self._worker(row.rival, row.peer or row.kcore), result.rival, result.rival_clock))
        workers.append((self._worker("kcore", row.kcore), result.kcore, result.kcore_clock))
        if row.limit is not None:
            workers.append((self._worker("limit", row.limit), result.limit, result.limit_clock))
        try:
            for _ in range(self.mode.rounds):
                for worker, by_cpu, by_clock in workers:
                    cpu, clock = worker.round()
                    by_cpu.append(clock if row.by_clock else cpu)
                    by_clock.append(clock)
        finally:
            for worker, _, _ in workers:
                worker.stop()
            for who in (row.rival, "kcore", "limit"):
                shutil.rmtree(self.work / who, ignore_errors=True)
        return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, segments of 256 MiB")
    parser.add_argument("--only", metavar="TEXT", default="", help="the paths whose name contains it")
    parser.add_argument("--json", default=str(ROOT / "build" / "peers-storage.json"), metavar="FILE")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a goal is missed")
    args = parser.parse_args()

    notes = machine_notes()
    print(", ".join(f"{name} {value}" for name, value in notes.items() if value is not None))
    try:
        kafka_jars: Path | None = jars()
    except Unavailable as missing:
        print(f"{missing}: kcore is measured alone", file=sys.stderr)
        kafka_jars = None
    results = []
    with tempfile.TemporaryDirectory(prefix="kcore-peers-", dir=os.environ.get("BENCH_DIR")) as directory:
        comparison = Comparison(Path(directory), QUICK if args.quick else FULL, kafka_jars)
        comparison.prepare()
        for row in rows():
            if args.only in row.path:
                results.append(comparison.run(row))
                print("  ".join(cell for cell in results[-1].cells() if cell), flush=True)
    document = {
        "machine": notes,
        "mode": "quick" if args.quick else "full",
        "rows": [vars(r) | {"row": vars(r.row)} for r in results],
    }
    Path(args.json).parent.mkdir(parents=True, exist_ok=True)
    Path(args.json).write_text(json.dumps(document, indent=1))
    print(f"\n{markdown_table(HEADINGS, [result.cells() for result in results])}\n")
    missed = sum(result.met is False for result in results)
    met = sum(result.met is True for result in results)
    print(f"{met} of {len(results)} goals met, {missed} missed, {len(results) - met - missed} not measured.")
    return 1 if args.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
