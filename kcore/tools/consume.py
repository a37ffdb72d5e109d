"""`kcore consume`: print the records of a topic of a running cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import click

from kcore.client.group_client import EARLIEST, LATEST, GroupClient
from kcore.client.topic_fetcher import READ_COMMITTED, READ_UNCOMMITTED, Fetched, TopicFetcher
from kcore.client.topic_leaders import TopicGone, TopicLeaders
from kcore.common.text import printable, some_of
from kcore.common.time import SYSTEM_TIME
from kcore.common.topic_partition import TopicPartition
from kcore.errors import GroupIdNotFound, NonEmptyGroup, OffsetOutOfRange, UnknownTopicOrPartition
from kcore.record import record_lines
from kcore.record.columns import RecordColumns
from kcore.record.record_columns import columns_of
from kcore.record.record_lines import Formatter
from kcore.tools import record_output
from kcore.tools.bootstrap import bootstrap_option
from kcore.tools.cluster_command import (
    existing_partition,
    group_client,
    members_text,
    one_topic,
    timeout_option,
    topic_options,
)
from kcore.tools.cluster_names import group_ids
from kcore.tools.command_line import (
    FILE,
    INTERRUPTED,
    OK,
    Arguments,
    UsageError,
    json_option,
    positive,
    protocol_string,
)
from kcore.tools.commands import command
from kcore.tools.offset_places import TIME_HELP, Place, listed, log_starts, offsets_of, place
from kcore.tools.parquet_output import ParquetRecords
from kcore.tools.record_filter import RECORD_NAMES, RecordFilter

_CLIENT_ID = "kcore-consume"
_LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
_COMMIT_MS = 5000
#: One request to a leader: less than --timeout, since another broker may lead by then.
_REQUEST_MS = 10_000


class _Span(NamedTuple):
    """The offsets of a partition to print; end: None with --follow."""

    start: int
    end: int | None


@command(
    help="Print the records of a topic: from the first one up to the end that its partitions had when the command "
    "started.  With --follow it goes on until Ctrl-C.",
    epilog="Without --json and --format a line for each value; null is an empty line.  "
    "Exit status: 0 all is printed, or Ctrl-C with --follow; 2 it gave up; 130 Ctrl-C without --follow.",
    one_of=[("--from", "--from-beginning", "--tail"), ("--json", "--format")],
)
@topic_options(kafkas_tool="kafka-console-consumer.sh")
@click.option("--partition", type=int, multiple=True, metavar="N", help="only this one; repeatable")
@click.option(
    "--from",
    "--offset",
    "-o",
    "start",
    type=place,
    metavar="PLACE",
    help=f"where to begin: earliest (default), latest, an offset, or {TIME_HELP}",
)
@click.option("--from-beginning", "start", flag_value="earliest", type=place, help="the same as --from earliest")
@click.option("--tail", type=positive, metavar="N", help="begin N offsets before the end of each partition")
@click.option(
    "--until",
    type=place,
    metavar="PLACE",
    help="where to end, in each partition before this record: end (default), an offset or a time",
)
@click.option("--max", "--max-messages", type=positive, metavar="N", help="end after N records")
@click.option("--follow", "-f", is_flag=True, help="wait for new records at the end, until Ctrl-C")
@click.option(
    "--group",
    type=protocol_string,
    shell_complete=group_ids,
    metavar="ID",
    help="begin where this consumer group has committed, and commit what was printed.  The command does not become a "
    "member: it is refused while the group has some",
)
@click.option("--key", metavar="K", help="only records with this key")
@click.option(
    "--header",
    multiple=True,
    metavar="K[=V]",
    help="only records with this header, with any value or this one; repeatable, then they need all",
)
@click.option(
    "--where",
    metavar="EXPR",
    help=f"only records for which this Python expression is true, as 'offset % 2 == 0 and json[\"price\"] > 9': "
    f"it has the names {', '.join(RECORD_NAMES)}, and re.  "
    "A record for which it fails, as one without a price, does not match",
)
@click.option(
    "--isolation-level",
    type=click.Choice(list(_LEVELS)),
    default="read_uncommitted",
    help="read_committed: without the records of transactions that are open or were aborted",
)
@json_option("one JSON object a line for each record, which kcore produce takes back")
@click.option(
    "--format",
    metavar="TEXT",
    help=f"as kcat: {record_output.FORMAT_HELP}.  json: the same as --json.  parquet: a Parquet file, --output",
)
@click.option("--output", type=FILE, metavar="FILE", help="where Parquet goes; it is there once it is complete")
@bootstrap_option()
@timeout_option("give up when a partition's leader is away for so long")
def run(args: Arguments) -> int:
    """0; 130 after Ctrl-C without --follow.  Raises OSError, KafkaError, UsageError."""
    if args.follow and args.until is not None and args.until.offset is None:
        raise UsageError("--follow goes on for ever: --until can only be an offset with it")
    args.topic = one_topic(args)
    _check_output(args)
    with closing(_Printer(args)) as printer, group_client(args) as (client, errors):
        leaders = TopicLeaders(
            client,
            args.topic,
            client_id=_CLIENT_ID,
            request_timeout_ms=min(_REQUEST_MS, args.timeout * 1000),
            on_silence=errors,
        )
        try:
            numbers = _partitions(args, leaders)
            if args.group is not None:
                # A commit waits where the store is locked, but before the first record nothing is lost by an end.
                with group_client(args, ends_where_locked=True) as (asking, _):
                    _check_without_members(asking, args.group)
            spans = _spans(args, client, numbers)
            commits = _Commits(client, args.group, args.topic)
            fetcher = TopicFetcher(
                leaders,
                {number: span.start for number, span in spans.items()},
                {number: span.end for number, span in spans.items() if span.end is not None},
                timeout_ms=args.timeout * 1000,
                earliest=lambda number: _first(client, TopicPartition(args.topic, number), args.timeout),
                isolation_level=_LEVELS[args.isolation_level],
                on_lost=lambda *lost: _print_lost(args.topic, *lost),
            )
            status = _print_all(fetcher, printer, commits, is_endless=args.follow)
        finally:
            leaders.close()
        if (problem := printer.problem) is not None:
            stays = "" if args.group is None else f"; what group {printable(args.group)} has committed stays as it is"
            print(f"kcore: {problem}{stays}", file=sys.stderr, flush=True)
        return status


def _partitions(args: Arguments, leaders: TopicLeaders) -> list[int]:
    existing = leaders.wait_for_partitions(args.timeout * 1000)
    return (
        existing
        if not args.partition
        else sorted({existing_partition(args.topic, existing, n) for n in args.partition})
    )


def _check_without_members(client: GroupClient, group_id: str) -> None:
    """Raises NonEmptyGroup: its coordinator would refuse the commit of what was printed."""
    try:
        group = client.describe_group(group_id)
    except GroupIdNotFound:  # the first commit makes it
        return
    if group.members:
        raise NonEmptyGroup(f"nothing is printed: {members_text(group)}. Stop them first")


def _spans(args: Arguments, client: GroupClient, numbers: Iterable[int]) -> dict[int, _Span]:
    tps = [TopicPartition(args.topic, number) for number in numbers]
    level = _LEVELS[args.isolation_level]
    ends = listed(client, dict.fromkeys(tps, LATEST), args.timeout, level)
    if args.tail is not None:
        firsts = log_starts(client, tps, args.timeout)
        starts = {tp: max(firsts[tp], ends[tp] - args.tail) for tp in tps}
    else:
        start = args.start or Place(timestamp=EARLIEST)
        committed = client.committed_offsets(args.group) if args.group is not None else {}
        starts = {tp: committed[tp] for tp in tps if tp in committed}
        starts |= offsets_of(client, {tp: start for tp in tps if tp not in starts}, args.timeout, level)
        for tp in committed.keys() & starts.keys():
            if committed[tp] > ends[tp]:
                raise OffsetOutOfRange(
                    f"{tp}: the group {args.group} has committed offset {committed[tp]}, the log ends at {ends[tp]}.  "
                    "Was the topic made again? `kcore groups reset` moves the offset"
                )
    if args.start is not None and args.start.offset is not None:
        _check_starts(args, client, {tp: starts[tp] for tp in tps if starts[tp] > ends[tp]}, len(tps))
    limits: dict[TopicPartition, int | None] = dict(ends)
    if args.follow:
        limits = dict.fromkeys(tps, None if args.until is None else args.until.offset)
    elif args.until is not None:
        untils = offsets_of(client, dict.fromkeys(tps, args.until), args.timeout, level)
        limits = {tp: min(ends[tp], untils[tp]) for tp in tps}
    return {tp.partition: _Span(starts[tp], limits[tp]) for tp in tps}


def _check_starts(args: Arguments, client: GroupClient, starts: Mapping[TopicPartition, int], count: int) -> None:
    """Raises OffsetOutOfRange if the offset of --from is after the end of the log in every partition that is read; with
    --follow, if it is so in one of them, since its leader would refuse the fetch.

    starts: the start of each partition in which it is above the last stable offset.  count: how many partitions are
    read in all.
    """
    log_ends = listed(client, dict.fromkeys(starts, LATEST), args.timeout) if starts else {}
    beyond = {tp: end for tp, end in log_ends.items() if starts[tp] > end}
    if len(beyond) == count or (beyond and args.follow):
        ends = some_of([f"{tp} ends at {end}" for tp, end in sorted(beyond.items())])
        raise OffsetOutOfRange(f"offset {args.start.offset} is after the end of the log: {ends}")


def _first(client: GroupClient, tp: TopicPartition, timeout_s: float) -> int:
    return log_starts(client, [tp], timeout_s)[tp]


def _print_lost(topic: str, partition: int, first: int, next_offset: int) -> None:
    print(
        f"kcore: {topic}-{partition}: offsets {first} to {next_offset - 1} are not in the log any more; "
        f"going on at {next_offset}",
        file=sys.stderr,
        flush=True,
    )


def _print_all(fetcher: TopicFetcher, printer: _Printer, commits: _Commits, *, is_endless: bool) -> int:
    def commit(*, is_last: bool = True) -> None:
        if printer.problem is None:  # else --where may be wrong, and what it should have chosen was not printed
            commits.commit(is_last=is_last)

    try:
        while not fetcher.is_done and not printer.is_full:
            came = fetcher.poll()
            printed = {item.partition: printer.print(item) for item in came if not printer.is_full}
            printer.flush()
            commits.note(printed)
            if printer.keeps_what_is_printed and (not came or commits.are_due):
                commit(is_last=False)
    except TopicGone:
        commits.forget()
        raise
    except KeyboardInterrupt:
        if not is_endless:
            return INTERRUPTED
    finally:
        if printer.keeps_what_is_printed:
            commit()
    if not printer.keeps_what_is_printed:
        printer.finish()
        commit()
    return OK


def _check_output(args: Arguments) -> None:
    if (args.format == "parquet") != (args.output is not None):
        if args.format not in (None, *record_output.NAMED_FORMATS):
            record_output.parsed_format(args.format)  # a name that is misspelt is no format
        raise UsageError("--format parquet and --output FILE go together")
    if args.output == "-":
        raise UsageError("--output -: Parquet is written to a file, not to stdout; name one (./- for a file called -)")


class _Printer:
    """Chooses the records that the options name, and writes them to stdout or to a Parquet file."""

    def __init__(self, args: Arguments) -> None:
        """Raises UsageError; ImportError, OSError for a Parquet file."""
        self._key = None if args.key is None else os.fsencode(args.key)
        self._headers = [_wanted_header(text) for text in args.header]
        self._where = None if args.where is None else RecordFilter(args.where, args.topic)
        self._left = args.max
        self._columns: Sequence[str] | None = None
        self._out = sys.stdout.buffer
        self._format: Formatter | None = None
        self._file: ParquetRecords | None = None
        if args.format == "parquet":
            self._file = ParquetRecords(args.output, args.topic)
        elif args.json or args.format == "json":
            is_utf8 = (sys.stdout.encoding or "").lower() == "utf-8"
            self._format = record_lines.json_lines(args.topic, ascii_only=not is_utf8)
        elif args.format is not None:
            self._format = record_output.formatted(args.topic, record_output.parsed_format(args.format))
        else:
            self._format = record_output.value_lines
            self._columns = record_output.VALUE_COLUMNS
        if self._left is not None or self._key is not None or self._headers or self._where is not None:
            self._columns = None

    @property
    def is_full(self) -> bool:
        """Whether --max records were printed."""
        return self._left == 0

    @property
    def problem(self) -> str | None:
        """What to say of --where if it could not be evaluated for any record."""
        return None if self._where is None else self._where.problem

    def print(self, fetched: Fetched) -> int:
        """The offset after what is done with."""
        columns = columns_of(
            fetched.records,
            columns=self._columns,
            start_offset=fetched.first_offset,
            end_offset=fetched.end_offset,
            aborted=fetched.aborted,
        )
        rows = self._chosen(columns, fetched.partition)
        count = len(columns) if rows is None else len(rows)
        next_offset = fetched.next_offset
        if self._left is not None:
            if count > self._left:
                rows = _first_rows(count, rows, self._left)
                next_offset = int(columns["offset"][rows[-1]]) + 1
            self._left -= min(count, self._left)
        if self._file is not None:
            self._file.write(columns, fetched.partition, rows)
        elif self._format is not None:
            self._write(self._format(columns, fetched.partition, rows))
        return next_offset

    def flush(self) -> None:
        self._out.flush()

    @property
    def keeps_what_is_printed(self) -> bool:
        """False for a file, of which nothing is left unless finish() is called."""
        return self._file is None

    def finish(self) -> None:
        """Raises OSError."""
        if self._file is not None:
            self._file.finish()
            self._file = None

    def close(self) -> None:
        if self._file is not None:
            self._file.discard()

    def _write(self, text: bytes) -> None:
        left = memoryview(text)
        while left:  # an unbuffered stdout may take a part of it, for one when its reader goes
            left = left[self._out.write(left) :]

    def _chosen(self, columns: RecordColumns, partition: int) -> Any:
        """Numbers of the records that the filters let pass, None for all."""
        rows = None
        if self._key is not None:
            rows = _rows_with(columns, self._key)
        for name, value in self._headers:
            rows = _rows_with_header(columns, rows, name, value)
        return rows if self._where is None else self._where.rows(columns, partition, rows)


def _first_rows(count: int, rows: Any, most: int) -> Any:
    import numpy as np

    return (np.arange(count) if rows is None else rows)[:most]


def _rows_with(columns: RecordColumns, key: bytes) -> Any:
    import numpy as np

    candidates = np.flatnonzero(columns["key"].size == len(key))
    keys = record_lines.strings(columns["key"], candidates)
    return candidates[[found == key for found in keys]] if len(candidates) else candidates


def _rows_with_header(columns: RecordColumns, rows: Any, name: bytes, value: bytes | None) -> Any:
    import numpy as np

    rows = np.arange(len(columns)) if rows is None else rows
    has_it = [
        any(k == name and (value is None or v == value) for k, v in pairs)
        for pairs in record_lines.header_lists(columns, rows)
    ]
    return rows[np.array(has_it, bool)]


def _wanted_header(text: str) -> tuple[bytes, bytes | None]:
    name, equals, value = text.partition("=")
    return os.fsencode(name), os.fsencode(value) if equals else None


class _Commits:
    """Commits what was printed for a group; without one does nothing."""

    def __init__(self, client: GroupClient, group: str | None, topic: str) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._offsets: dict[TopicPartition, int] = {}
        self._last_ms = SYSTEM_TIME.hi_res_clock_ms()

    def note(self, printed: Mapping[int, int]) -> None:
        """By partition, the offset after what was written."""
        self._offsets |= {TopicPartition(self._topic, number): offset for number, offset in printed.items()}

    @property
    def are_due(self) -> bool:
        return SYSTEM_TIME.hi_res_clock_ms() - self._last_ms >= _COMMIT_MS

    def forget(self) -> None:
        """The topic is gone: one of the same name has other records."""
        self._offsets = {}

    def commit(self, *, is_last: bool = True) -> None:
        """Raises what the coordinator answers, as UnknownMemberId while the group has members.

        Unless it is the last one, a topic that the coordinator does not know is left to the next commit: if it was
        deleted, the leaders' refresh says so.
        """
        self._last_ms = SYSTEM_TIME.hi_res_clock_ms()
        if self._group is None or not self._offsets:
            return
        offsets, self._offsets = self._offsets, {}
        for tp, error in self._client.commit_offsets(self._group, offsets).items():
            if isinstance(error, UnknownTopicOrPartition) and not is_last:
                self._offsets[tp] = offsets[tp]
            elif error is not None:
                raise type(error)(f"{printable(self._group)}: offset {offsets[tp]} of {tp} is not committed: {error}")
