"""`kcore reindex`: rebuild indexes, transaction indexes and damaged producer snapshots from the log."""

from __future__ import annotations

import click

from kcore.common.progress import Progress
from kcore.common.text import counted, json_line, plain_error
from kcore.errors import CorruptFile
from kcore.inspect import log_files
from kcore.inspect.directories import closed_directory, partitions_under
from kcore.inspect.index_files import IndexFile, examine_index_files, write_index
from kcore.inspect.rebuild import DEFAULT_INDEX_INTERVAL_BYTES
from kcore.tools.command_line import (
    DAMAGE,
    OK,
    Arguments,
    Decorator,
    json_option,
    paths_argument,
    positive,
    reading_options,
    several,
)
from kcore.tools.commands import command

_WORDS = {
    "identical": "identical to what a rebuild from the log gives",
    "agrees": "agrees with the log, but is not byte for byte what a rebuild gives",
    "contradicts": "contradicts the log",
    "missing": "missing",
    "orphan": "no .log beside it",
    "unknown": "cannot be rebuilt: what the producers did before the log's start is not known",
    "damaged": "nothing is rebuilt from a log that is damaged or cannot be read",
}
_SOUND = ("identical", "agrees")


#: Of what is done with an index, here and in `kcore spark reindex`.
INDEX_CHOICES = [("--check", "--dry-run", "--apply")]


def index_options() -> Decorator:
    """What is to be done, here and by `kcore spark reindex`."""
    return several(
        click.option("--apply", is_flag=True, help="write: so it does without this option too"),
        click.option("--check", is_flag=True, help="only compare; exit 1 when a file contradicts the log"),
        click.option("--dry-run", is_flag=True, help="list what would be written, write nothing"),
        click.option(
            "--index-interval-bytes",
            type=positive,
            default=DEFAULT_INDEX_INTERVAL_BYTES,
            metavar="N",
            help=f"bytes between entries, as index.interval.bytes of the topic; default {DEFAULT_INDEX_INTERVAL_BYTES}",
        ),
    )


@command(one_of=INDEX_CHOICES)
@paths_argument("a partition directory or a data directory, closed")
@json_option("one JSON object a line for each file")
@index_options()
@reading_options()
def run(args: Arguments) -> int:
    """0; 1 when --check found a contradiction, or a log is damaged or cannot be read.  Raises OSError, DirectoryInUse,
    CorruptFile."""
    bad = written = 0
    directories = [directory for path in args.paths for directory in partitions_under(path)]
    progress = Progress("reindex", log_files.log_size_under(directories), quiet=args.quiet or args.json)
    only_look = args.check or args.dry_run
    for path in args.paths:
        with closed_directory(path, write=not only_look):
            for directory in partitions_under(path):
                try:
                    files = examine_index_files(
                        directory, index_interval_bytes=args.index_interval_bytes, jobs=args.jobs, progress=progress
                    )
                except (CorruptFile, OSError) as error:
                    progress.clear()
                    bad += 1
                    progress.findings += 1
                    print(_line(IndexFile(directory, "damaged", problem=plain_error(error)), "refused", args.json))
                    continue
                progress.clear()
                for file in files:
                    bad += args.check and file.status not in _SOUND
                    write = file.to_write and not args.check
                    if write and not args.dry_run:
                        write_index(file)
                    written += write
                    done = ("would write" if args.dry_run else "written") if write else "left"
                    if not args.json and done == "left" and file.status in _SOUND and not args.check:
                        continue
                    print(_line(file, done, args.json))
    if not args.json and not args.check:
        print(f"{counted(written, 'file')} {'to write' if args.dry_run else 'written'}")
    return DAMAGE if bad else OK


def _line(file: IndexFile, done: str, as_json: bool) -> str:
    if as_json:
        size = None if file.content is None else len(file.content)
        event = {"type": "index", "file": file.path, "status": file.status, "done": done, "size": size}
        return json_line(event | {"problem": file.problem})
    problem = f": {file.problem}" if file.problem else ""
    return f"{file.path}: {_WORDS[file.status]}{problem}; {done}"
