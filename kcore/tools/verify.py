"""`kcore verify`: check the files of logs for damage."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import click

from kcore.common.progress import Progress
from kcore.common.text import bytes_of, counted, json_line, places
from kcore.inspect import log_files
from kcore.inspect.partition_checks import (
    Problem,
)
from kcore.inspect.verifier import Summary, problem_event, verify
from kcore.tools.command_line import (
    DAMAGE,
    INTERRUPTED,
    OK,
    Arguments,
    Decorator,
    json_option,
    paths_argument,
    reading_options,
)
from kcore.tools.commands import command

#: No rate is shown for a shorter time.
_SECONDS_OF_A_RATE = 0.1


def compacted_option() -> Decorator:
    return click.option(
        "--compacted",
        is_flag=True,
        help="gaps between offsets are no damage: the logs are compacted, though no file beside them says so",
    )


@command()
@paths_argument()
@json_option("one JSON object a line, the summary last")
@click.option(
    "--records/--no-records",
    default=True,
    help="look into the batches too: decompress, parse and count their records; without, the CRCs alone are checked, "
    "as fast as memory can be read",
)
@compacted_option()
@reading_options()
def run(args: Arguments) -> int:
    """0, or 1 when there is damage; warnings alone leave it 0; 130 after Ctrl-C, with the summary so far.  Raises
    OSError, CorruptFile for a path that cannot be examined at all."""
    summary = Summary()
    started = time.perf_counter()
    total = sum(log_files.size_of(file) for path in args.paths for file in log_files.files_under(path))
    progress = Progress("verify", total, quiet=args.quiet or args.json)
    try:
        for path in args.paths:
            for problem in verify(
                path, summary, records=args.records, compacted=args.compacted, jobs=args.jobs, progress=progress
            ):
                if problem.explained and not args.json:
                    continue  # one for each compacted partition; the summary has their number
                progress.clear()
                print(json_line(problem_event(problem)) if args.json else problem_text(problem), flush=True)
    except KeyboardInterrupt:
        summary.interrupted = True
    progress.clear()
    summary.seconds = time.perf_counter() - started
    print(json.dumps({"type": "summary", **vars(summary)}) if args.json else _summary_text(summary))
    if summary.interrupted:
        return INTERRUPTED
    return DAMAGE if summary.damaged else OK


def problem_text(problem: Problem) -> str:
    word = "warning: " if problem.warning else ""
    # The text of a gap has its offsets.
    where = places(None if problem.gaps else problem.offset, problem.position)
    return f"{problem.path}: {word}{where}{problem.text}"


def _summary_text(summary: Summary) -> str:
    so_far = "interrupted, so far: " if summary.interrupted else ""
    return so_far + summary_text(vars(summary))


def summary_text(counts: Mapping[str, Any]) -> str:
    """counts: what a Summary counts, by name."""
    what = ", ".join(
        [
            counted(counts["files"], "file"),
            counted(counts["bytes"], "byte"),
            counted(counts["batches"], "batch", "batches"),
            counted(counts["records"], "record"),
        ]
    )
    verdict = counted(counts["damaged"], "damaged place") if counts["damaged"] else "no damage"
    if counts["warnings"]:
        verdict += f", {counted(counts['warnings'], 'warning')}"
    if counts["gaps"]:
        verdict += f", {counted(counts['gaps'], 'gap')} left by compaction"
    if to_delete := counts.get("to_delete"):
        are = "is" if to_delete == 1 else "are"
        verdict += f"; {counted(to_delete, '.deleted file')} {are} still there, which a broker removes by itself"
    return f"{what} in {counts['seconds']:.3f} s{_rate_text(counts['read'], counts['seconds'])}: {verdict}"


def _rate_text(size: int, seconds: float) -> str:
    """Empty for a short run, in which most of the time is start-up."""
    return f" ({bytes_of(round(size / seconds))}/s)" if seconds >= _SECONDS_OF_A_RATE else ""
