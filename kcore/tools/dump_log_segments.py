"""`kcore dump`: what log files hold, for people, as JSON lines, as Arrow or as Parquet."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import chain
from typing import Any

import click

from kcore.common.moments import MOMENT_HELP, moment_ms
from kcore.common.optional_packages import missing_package
from kcore.common.text import bytes_text, counted, date_of, json_line, places
from kcore.common.time import SYSTEM_TIME
from kcore.inspect import log_files
from kcore.inspect.dump_events import EVERYTHING, Decoder, Event, Wanted, events_of
from kcore.log.log_file_names import LOG_SUFFIX
from kcore.tools.command_line import DAMAGE, FILE, OK, Arguments, UsageError, paths_argument, positive
from kcore.tools.commands import command

#: Formats that are files of tables.
_TABLES = ("arrow", "parquet")
#: Fields that are milliseconds since 1970.
_TIMES = ("timestamp", "maxTimestamp", "lastTimestamp", "deleteHorizonMs")


def offset_range(text: str) -> tuple[int, int]:
    """ "A:B" -> (A, B).  Raises click.BadParameter."""
    first, colon, end = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return _checked_range(int(first) if first else 0, int(end) if end else 1 << 63)
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected A:B, A: or :B, and an offset in it") from None


def _checked_range(first: int, end: int) -> tuple[int, int]:
    """Raises ValueError for a range without an offset."""
    if not 0 <= first < end:
        raise ValueError(f"offsets {first}:{end}: there is no offset in it")
    return first, end


def moment(text: str) -> int:
    """Milliseconds since 1970.  Raises click.BadParameter."""
    try:
        return moment_ms(text, SYSTEM_TIME.milliseconds())
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected {MOMENT_HELP}") from None


@command(one_of=[("--offsets-decoder", "--transaction-log-decoder")])
@paths_argument()
@click.option(
    "--format",
    type=click.Choice(["text", "json", *_TABLES]),
    default="text",
    help="text for people; json: one object a line, byte strings complete; arrow, parquet: tables, to the file of -o",
)
@click.option("--json", "format", flag_value="json", help="the same as --format json")
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="FILE",
    help="for arrow and parquet: the file to write; of arrow an IPC stream if its name ends in .arrows, or - for a "
    "stream to stdout; files of several kinds need a directory here, which is made, and gets one file for each kind",
)
@click.option(
    "--records/--no-records",
    "--deep-iteration/--no-deep-iteration",
    default=True,
    help="show the records inside batches",
)
@click.option(
    "--values/--no-values",
    "--print-data-log/--no-print-data-log",
    default=True,
    help="show the keys, values and headers of records",
)
@click.option(
    "--offsets",
    type=offset_range,
    default=f"{EVERYTHING.first_offset}:{EVERYTHING.end_offset}",
    metavar="A:B",
    help="only what holds offsets from A up to, not including, B; either may be left out",
)
@click.option("--start", type=int, metavar="A", help="the same as --offsets A:")
@click.option("--end", type=int, metavar="B", help="the same as --offsets :B")
@click.option("--key", metavar="K", help="only records with this key, and only what is in .log files")
@click.option(
    "--from",
    "from_ms",
    type=moment,
    metavar="TIME",
    help=f"only records with a timestamp of at least this: {MOMENT_HELP}; and only what is in .log files",
)
@click.option("--until", "until_ms", type=moment, metavar="TIME", help="the same for timestamps before this one")
@click.option("--max-bytes", type=positive, metavar="N", help="only the first N bytes of each .log")
@click.option("--offsets-decoder", is_flag=True, help="decode the records of __consumer_offsets")
@click.option("--transaction-log-decoder", is_flag=True, help="decode the records of __transaction_state")
def run(args: Arguments) -> int:
    """0, or 1 when damage was shown.  Raises OSError, CorruptFile for a path that cannot be examined at all."""
    first, end = args.offsets
    first, end = first if args.start is None else args.start, end if args.end is None else args.end
    try:
        _checked_range(first, end)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if args.output is not None and args.format not in _TABLES:
        raise UsageError("-o goes with --format arrow and parquet: text and JSON lines go to stdout")
    key = None if args.key is None else os.fsencode(args.key)
    wanted = Wanted(first, end, args.max_bytes, args.records, _decoder(args), key, args.from_ms, args.until_ms)
    files = [file for path in args.paths for file in log_files.files_under(path)]
    if wanted.chooses_records:
        files = [file for file in files if (kind := log_files.kind_of_named(file)) is None or kind.kind == LOG_SUFFIX]
    if args.format in _TABLES:
        try:
            from kcore.tools.dump_arrow import write_tables
        except ImportError as error:
            raise missing_package(f"--format {args.format}", "arrow", error) from None
        return DAMAGE if write_tables(files, wanted, args.output, args.format) else OK
    show = json_line if args.format == "json" else _as_text
    damaged = False
    for file in files:
        for event in _without_lone_files(events_of(file, wanted), wanted):
            damaged |= event["type"] == "damage"
            if not args.values:
                for name in ("key", "value", "headers"):
                    event.pop(name, None)
            print(show(event))
    return DAMAGE if damaged else OK


def _without_lone_files(events: Iterator[Event], wanted: Wanted) -> Iterator[Event]:
    """Without the line of a file from which no record was chosen."""
    if not wanted.chooses_records:
        return events
    file = next(events)
    return chain([file, event], events) if (event := next(events, None)) is not None else iter([])


def _decoder(args: Arguments) -> Decoder | None:
    if args.offsets_decoder or args.transaction_log_decoder:
        from kcore.tools import internal_topics

        if args.offsets_decoder:
            return internal_topics.decode_offsets_record
        return internal_topics.decode_transaction_record
    return None


def _as_text(event: Event) -> str:
    match event["type"]:
        case "file":
            return f"{event['file']}: {counted(event['size'], 'byte')}" + (
                f", {event['mark']}" if "mark" in event else ""
            )
        case "damage":
            return f"  DAMAGE {places(event['offset'], event['position'])}{event['problem']}"
        case "batch":
            return "  " + _batch_text(event)
        case "record":
            return "    " + _record_text(event)
    fields = {name: value for name, value in event.items() if name not in ("type", "file")}
    return "  " + " ".join(f"{name} {time_text(name, value)}" for name, value in fields.items())


def time_text(name: str, value: Any) -> str:
    """A field's value for people."""
    return date_of(value) if name in _TIMES and isinstance(value, int) else str(value)


def _batch_text(event: Event) -> str:
    parts = [
        f"batch {event['baseOffset']}..{event['lastOffset']}",
        f"position {event['position']} size {event['size']}",
        f"records {event['count']}",
        f"{event['timestampType']} {date_of(event['maxTimestamp'])}",
        event["compresscodec"],
        f"epoch {event['partitionLeaderEpoch']}",
    ]
    if event["producerId"] >= 0:
        parts.append(f"producer {event['producerId']}/{event['producerEpoch']}")
    if event["baseSequence"] >= 0:
        parts.append(f"sequence {event['baseSequence']}..{event['lastSequence']}")
    parts += [word for name, word in (("isTransactional", "transactional"), ("isControl", "control")) if event[name]]
    if event["deleteHorizonMs"] is not None:
        parts.append(f"delete horizon {date_of(event['deleteHorizonMs'])}")
    return ", ".join([*parts, f"crc {event['crc']:#010x}"])


def _record_text(event: Event) -> str:
    parts = [f"{event['offset']}: {date_of(event['timestamp'])}"]
    if event["sequence"] >= 0:
        parts.append(f"sequence {event['sequence']}")
    for name in ("endTxnMarker", "coordinatorEpoch", "controlType"):
        if name in event:
            parts.append(f"{name} {event[name]}")
    parts += [f"{name} {_shown(event[name])}" for name in ("key", "value") if name in event]
    if event.get("headers"):
        names = [name if isinstance(name, str) else _shown(name) for name, _ in event["headers"]]
        values = [_shown(value) for _, value in event["headers"]]
        parts.append("headers " + " ".join(f"{name}={value}" for name, value in zip(names, values, strict=True)))
    return ", ".join(parts)


def _shown(value: Any) -> str:
    """A key or value, as bytes or decoded."""
    return bytes_text(value) if value is None or isinstance(value, bytes) else json.dumps(value, ensure_ascii=False)
