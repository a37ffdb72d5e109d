"""`kcore spark ...`: jobs over whole data directories, and load tests, on Spark.

Each command starts a session on this machine (--master), or joins the one that spark-submit has made.  Results go to
stdout, as text or as JSON lines; progress, and what Spark has to say, to stderr.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from kcore.common.text import bytes_of, counted, json_line, places
from kcore.spark.load.load_options import CODECS, MODES
from kcore.spark.packages import check_packages, confluent_kafka
from kcore.tools.command_line import (
    DAMAGE,
    FILE,
    OK,
    Arguments,
    Decorator,
    UsageError,
    json_option,
    paths_argument,
    positive,
    quiet_option,
    several,
)
from kcore.tools.commands import Group
from kcore.tools.diff import gaps_option
from kcore.tools.reindex import INDEX_CHOICES, index_options
from kcore.tools.verify import compacted_option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DIRECTORIES = "a partition directory or a data directory"
#: Spark's own words only when something is wrong.
_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %m%n%ex{0}
"""


spark = Group("spark")


def _session_options(master: str = "local[*]") -> Decorator:
    return several(
        click.option("--master", default=master, metavar="URL", help=f"Spark's master; default: {master}"),
        click.option(
            "--conf", multiple=True, type=_setting, metavar="NAME=VALUE", help="a setting of Spark; repeatable"
        ),
    )


def _work_options() -> Decorator:
    return several(
        _session_options(),
        click.option(
            "--tasks", type=positive, metavar="N", help="at least so many tasks; default: as many as run at a time"
        ),
        quiet_option(),
    )


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r}: expected NAME=VALUE")
    return name, value


@contextmanager
def session(args: Arguments) -> Iterator[SparkSession]:
    """A session for one command, stopped after it; that of spark-submit where the command runs there.

    Raises UsageError, of one line, for what went wrong in Spark inside the body; ImportError, which says what to
    install, when there is no Spark.
    """
    check_packages()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from kcore.spark.session import enable, local_session

    conf = dict(args.conf)
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError("the current directory is not there any more, and Spark needs one: cd to another") from None
    try:
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            spark = enable(SparkSession.builder.appName("kcore").getOrCreate())
        else:
            with _quiet_log4j(conf):
                spark = local_session(args.master, "kcore", conf, quiet=args.quiet)
    except RuntimeError as error:
        raise UsageError(str(error)) from None
    try:
        yield spark
    except (PySparkException, Py4JError) as error:
        raise UsageError(short_error(error)) from None
    finally:
        spark.stop()


@contextmanager
def _quiet_log4j(conf: dict[str, str]) -> Iterator[None]:
    """Settings that suppress the JVM's messages at start, unless the user has set spark.driver.extraJavaOptions."""
    name = "spark.driver.extraJavaOptions"
    if name in conf:
        yield
        return
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
        file.write(_LOG4J)
        file.flush()
        conf[name] = f"-Dlog4j2.configurationFile={file.name}"
        yield


def short_error(error: Exception) -> str:
    """What an error of Spark's is about, in a line: the exception in Python that caused it, where one did, or the first
    line that says something."""
    text = str(error)
    raised = re.findall(r"^(?!Traceback)([\w.]+(?:Error|Exception|[a-z]\w*): .*)$", text.partition("\n\tat ")[0], re.M)
    line = raised[-1] if "Traceback (most recent call last)" in text and raised else _first_line(text)
    kind, colon, rest = line.partition(": ")
    return rest if colon and re.fullmatch(r"[\w.]*\.[A-Z]\w*", kind) else line


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # "An error occurred while calling o12.x." is followed by the exception itself.
    messages = [line for line in lines if not line.startswith(("An error occurred while calling", ":")) or ": " in line]
    return (messages or lines or ["Spark failed without a message"])[0].removeprefix(": ")


def _existing(paths: list[str]) -> list[str]:
    """The paths; one that does not exist fails before Spark is started.  Raises OSError."""
    for path in paths:
        os.listdir(path)
    return paths


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


# -- verify -----------------------------------------------------------------------------------------------------------


@spark.subcommand("verify", "check data directories for damage, in parallel")
@paths_argument(_DIRECTORIES)
@json_option("the lines of `kcore verify --json`")
@click.option("--records/--no-records", default=True, help="look into the batches too")
@compacted_option()
@_work_options()
def _verify(args: Arguments) -> int:
    """1 when there is damage; warnings alone leave it 0."""
    _existing(args.paths)
    from kcore.tools.verify import summary_text

    with session(args) as spark:
        from kcore.spark import jobs

        started = time.perf_counter()
        frame = jobs.verify(
            spark, *args.paths, records=args.records, compacted=args.compacted, tasks=args.tasks, quiet=args.quiet
        )
        rows = _rows(frame)
        seconds = time.perf_counter() - started
    names = ("files", "bytes", "read", "batches", "records", "damaged", "warnings", "gaps")
    summary = {name: sum(row[name] for row in rows) for name in names}
    for finding in (finding for row in rows for finding in row["findings"]):
        if args.json:
            print(json_line(finding))
        elif finding["type"] != "gap":
            word = "warning: " if finding["type"] == "warning" else ""
            where = places(None if finding["kind"] else finding["offset"], finding["position"])
            print(f"{finding['file']}: {word}{where}{finding['problem']}")
    if args.json:
        print(json_line({"type": "summary", **summary, "seconds": seconds}))
    else:
        print(summary_text({**summary, "seconds": seconds}))
    return DAMAGE if summary["damaged"] else OK


# -- reindex ----------------------------------------------------------------------------------------------------------


@spark.subcommand("reindex", "rebuild the indexes of closed logs, in parallel", one_of=INDEX_CHOICES)
@paths_argument(f"{_DIRECTORIES}, closed")
@json_option("the lines of `kcore reindex --json`")
@index_options()
@_work_options()
def _reindex(args: Arguments) -> int:
    """1 when --check found a contradiction, or a log is damaged."""
    _existing(args.paths)
    with session(args) as spark:
        from kcore.spark import jobs

        frame = jobs.reindex(
            spark,
            *args.paths,
            mode="check" if args.check else "dry-run" if args.dry_run else "write",
            index_interval_bytes=args.index_interval_bytes,
            tasks=args.tasks,
            quiet=args.quiet,
        )
        rows = _rows(frame)
    for row in rows:
        if args.json:
            print(json_line({"type": "index", **{name: value for name, value in row.items() if name != "directory"}}))
        elif row["done"] != "left" or args.check:
            problem = f": {row['problem']}" if row["problem"] else ""
            print(f"{row['file']}: {row['status']}{problem}; {row['done']}")
    if not args.json and not args.check:
        written = sum(row["done"] in ("written", "would write") for row in rows)
        print(f"{counted(written, 'file')} {'to write' if args.dry_run else 'written'}")
    wrong = [row for row in rows if args.check and row["status"] not in ("identical", "agrees")]
    return DAMAGE if wrong or any(row["done"] == "refused" for row in rows) else OK


# -- recompress -------------------------------------------------------------------------------------------------------


@spark.subcommand("recompress", "rewrite a closed directory with another codec")
@click.argument("path", type=FILE, metavar="PATH", help=f"{_DIRECTORIES}, closed; it is only read")
@click.argument("output", type=FILE, metavar="OUTPUT", help="the directory to make; it must not exist")
@click.option("--codec", required=True, help="none, gzip, snappy, lz4 or zstd")
@click.option("--level", type=int, metavar="N", help="on the codec's own scale; default: the codec's own")
@click.option(
    "--segment-bytes",
    type=positive,
    default=1 << 30,
    metavar="N",
    help="a segment that outgrows it becomes several",
)
@json_option("one JSON object a line for each segment, the summary last")
@_work_options()
def _recompress(args: Arguments) -> int:
    _existing([args.path])
    with session(args) as spark:
        from kcore.spark import jobs

        try:
            frame = jobs.recompress(
                spark,
                args.path,
                args.output,
                codec=args.codec,
                level=args.level,
                segment_bytes=args.segment_bytes,
                tasks=args.tasks,
                quiet=args.quiet,
            )
        except ValueError as error:
            raise UsageError(str(error)) from None
        rows = _rows(frame)
    for row in rows:
        if args.json:
            print(json_line({"type": "segment", **row}))
        else:
            sizes = f"{bytes_of(row['bytes_before'])} -> {bytes_of(row['bytes_after'])}"
            batches = counted(row["batches"], "batch", "batches")
            print(f"{row['file']}: {row['recompressed']} of {batches}, {sizes}")
    names = ("segments", "batches", "recompressed", "records", "bytes_before", "bytes_after")
    total = {name: sum(row[name] for row in rows) for name in names}
    if args.json:
        print(json_line({"type": "summary", **total}))
    else:
        print(f"{args.output}: {bytes_of(total['bytes_before'])} -> {bytes_of(total['bytes_after'])}")
    return OK


# -- compaction -------------------------------------------------------------------------------------------------------


@spark.subcommand("compaction", "count the keys and dead records of each partition")
@paths_argument(_DIRECTORIES)
@json_option("one JSON object a line for each partition")
@_work_options()
def _compaction(args: Arguments) -> int:
    _existing(args.paths)
    with session(args) as spark:
        from kcore.spark import jobs

        rows = _rows(jobs.compaction_statistics(spark, *args.paths, tasks=args.tasks, quiet=args.quiet))
    for row in rows:
        if args.json:
            print(json_line({"type": "partition", **row}))
        else:
            print(
                f"{row['directory']}: {counted(row['records'], 'record')}, {counted(row['keys'], 'key')} "
                f"({row['deleted_keys']} deleted); "
                f"{row['dead']} dead ({row['dead_ratio']:.1%}, {bytes_of(row['dead_bytes'])} of "
                f"{bytes_of(row['bytes'])}), {row['without_key']} without key, {row['aborted']} aborted"
            )
    return OK


# -- diff -------------------------------------------------------------------------------------------------------------


@spark.subcommand("diff", "show the first difference of two data directories, and explain it")
@click.argument("a", type=FILE, metavar="A", help=_DIRECTORIES)
@click.argument("b", type=FILE, metavar="B", help="what to hold against it: of the same kind")
@json_option("the lines of `kcore diff --json`")
@gaps_option()
@_work_options()
def _diff(args: Arguments) -> int:
    """1 when a partition differs, or only one side has it."""
    _existing([args.a, args.b])
    with session(args) as spark:
        from kcore.spark import jobs
        from kcore.tools.diff import gap_texts, notes

        frame = jobs.diff(
            spark, args.a, args.b, gaps_are_cleaning=args.gaps_are_cleaning, tasks=args.tasks, quiet=args.quiet
        )
        rows = _rows(frame)
    for row in rows:
        if args.json:
            one_sided = {"type": "partition", "a": row["a"], "b": row["b"], "equal": False}
            print(row["detail"] or json_line(one_sided | ({"damage": row["damage"]} if row["damage"] else {})))
        else:
            print(f"{row['partition']}: {_difference(row)}")
            detail = json.loads(row["detail"]) if row["detail"] else None
            for line in (*gap_texts(detail), *(f"note: {note}" for note in notes(detail))) if detail else ():
                print(f"  {line}")
    different = sum(not row["equal"] for row in rows)
    if args.json:
        print(json_line({"type": "summary", "partitions": len(rows), "different": different}))
    else:
        print(f"{counted(len(rows), 'partition')}, {different} different")
    return DAMAGE if different else OK


def _difference(row: dict[str, Any]) -> str:
    if row["a"] is None or row["b"] is None:
        return f"only {'A' if row['b'] is None else 'B'} has this partition"
    if row["detail"] is None:
        return f"cannot be compared: {'; '.join(row['damage'])}"
    but = " but for the gaps" if json.loads(row["detail"])["gaps"] else ""
    same = f"the same{but} from offset {row['start']} to below {row['common_end']}"
    if row["equal"]:
        return same
    parts = [same]
    if row["first_difference"] is not None:
        fields = ", ".join(row["batch_fields"] + row["record_fields"])
        parts.append(f"first difference at offset {row['first_difference']} ({fields})")
    only = {side: row[f"records_only_{side}"] for side in "ab"}
    parts += [f"{counted(count, 'record')} only in {side.upper()}" for side, count in only.items() if count]
    return "; ".join([*parts, *row["damage"]])


# -- load -------------------------------------------------------------------------------------------------------------

#: As many cores as there are tasks at a time.
_MASTER_FOR_TASKS = "local[TASKS]"


@spark.subcommand("load", "measure throughput and latency of many tasks at once")
@click.argument(
    "paths",
    nargs=-1,
    type=FILE,
    metavar="[PATH]...",
    help="append: where the tasks may make data directories (several disks: several paths); read, verify: data or "
    "partition directories",
)
@click.option("--mode", required=True, type=click.Choice(MODES), help="what each task does over and over")
@click.option("--tasks", default="1", metavar="N[,N...]", help="tasks at a time; several numbers: a run each")
@click.option("--seconds", type=float, default=10.0, metavar="S", help="how long to measure; default: 10")
@click.option("--warm-up", type=float, default=2.0, metavar="S", help="work before that; default: 2")
@click.option("--record-size", type=int, default=100, metavar="BYTES", help="of a value; default: 100")
@click.option(
    "--batch-size",
    type=int,
    default=16 << 10,
    metavar="BYTES",
    help="of a batch before compression (append, produce); default: 16384",
)
@click.option("--codec", default="none", type=click.Choice(CODECS), help="of batches written; default: none")
@click.option(
    "--fetch-size",
    type=int,
    default=1 << 20,
    metavar="BYTES",
    help="of a slice (read) or a partition's part of a fetch; default: 1048576",
)
@click.option(
    "--log-size",
    type=int,
    default=1 << 30,
    metavar="BYTES",
    help="append: the oldest segments of a task's log go beyond this; default: 1 GiB",
)
@click.option("--keep", is_flag=True, help="append: leave the logs where they are")
@click.option("--bootstrap-servers", metavar="HOST:PORT,...", help="produce, fetch: the broker")
@click.option("--topic", metavar="NAME", help="produce, fetch: the topic")
@click.option(
    "--client",
    multiple=True,
    metavar="NAME=VALUE",
    help="produce, fetch: a setting of confluent-kafka; may be repeated",
)
@click.option("--json", type=FILE, metavar="FILE", help="write JSON lines: a row for each task, then the run's totals")
@click.option("--plot", type=FILE, metavar="FILE", help="draw throughput and latencies: .png or .svg")
@_session_options(_MASTER_FOR_TASKS)
@quiet_option()
def _load(args: Arguments) -> int:
    """1 when a task had errors."""
    check_packages()
    from kcore.spark.load.load_options import BROKER_MODES, LoadOptions
    from kcore.spark.load.load_test import SESSION_CONF, LoadFailed, LoadRun, run
    from kcore.spark.load.plot import check_plot, plot
    from kcore.spark.options import OptionError

    try:
        options = LoadOptions.from_arguments(args)
        if args.plot:
            check_plot(args.plot)
    except OptionError as error:
        raise UsageError(str(error)) from None
    if args.master == _MASTER_FOR_TASKS:
        args.master = f"local[{max(options.tasks)}]"
    if options.mode in BROKER_MODES and args.master.startswith("local"):
        confluent_kafka(f"--mode {options.mode}")
    args.conf = [*SESSION_CONF.items(), *args.conf]
    with open(args.json or os.devnull, "w") as lines, session(args) as spark:

        def show(load_run: LoadRun) -> None:
            print("\n".join(load_run.lines()), flush=True)
            lines.writelines(f"{line}\n" for line in load_run.json_lines())
            lines.flush()

        try:
            runs = run(spark, options, progress=None if args.quiet else sys.stderr, on_run=show).runs
        except LoadFailed as error:
            raise UsageError(str(error)) from None
    if args.plot:
        plot(runs, args.plot)
    return DAMAGE if any(load_run.errors for load_run in runs) else OK


# -- archive ----------------------------------------------------------------------------------------------------------


@spark.subcommand("archive", "pack kcore for the executors of a cluster")
@click.argument("output", type=FILE, metavar="OUT.tgz", help="the archive to write")
def _archive(args: Arguments) -> int:
    from kcore.spark.archive import made_for, usage, write_archive

    try:
        names = write_archive(args.output)
    except ValueError as error:
        raise UsageError(str(error)) from None
    print(
        f"{args.output}: {counted(len(names), 'file')}, for {made_for()}; give executors this installation's kcore with"
    )
    print("\n".join(f"  {line}" for line in usage(args.output)))
    return OK
