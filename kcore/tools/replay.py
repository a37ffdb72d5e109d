"""`kcore replay`: write the records of a topic, or of partition directories, to another topic in original timing."""

from __future__ import annotations

import heapq
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import click

from kcore.client.group_client import EARLIEST, LATEST, GroupClient
from kcore.client.topic_fetcher import READ_COMMITTED, READ_UNCOMMITTED, TopicFetcher
from kcore.client.topic_leaders import TopicLeaders
from kcore.common.text import json_line
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptFile
from kcore.inspect.log_files import is_partition_dir
from kcore.log.log_file_names import parse_partition_directory
from kcore.log.open_log import open_log
from kcore.log.unified_log import UnifiedLog
from kcore.record import record_lines
from kcore.record.compression import CODECS
from kcore.record.record_columns import columns_of
from kcore.tools.bootstrap import bootstrap_option
from kcore.tools.cluster_command import existing_partition, group_client, timeout_option
from kcore.tools.cluster_names import topic_argument, topic_names
from kcore.tools.command_line import Arguments, UsageError, json_option, positive, quiet_option
from kcore.tools.commands import command
from kcore.tools.delivery import IDLE_MS, REQUEST_MS, Delivery
from kcore.tools.offset_places import TIME_HELP, Place, log_starts, offsets_of, place
from kcore.tools.record_input import InputRecord

_CLIENT_ID = "kcore-replay"
_LEVELS = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}
#: Until it is looked whether to stop.
_WAIT_MS = 200.0


def _speed(text: str) -> float:
    """A factor, infinity for max.  Raises click.BadParameter."""
    if text == "max":
        return math.inf
    try:
        if 0 < (factor := float(text)) < math.inf:
            return factor
    except ValueError:
        pass
    raise click.BadParameter(f"{text!r}: expected a factor, as 1, 10 or 0.5, or max")


@command(
    help="Write the records of a topic, or of partition directories, to another topic, with their keys, headers and "
    "timestamps, each as long after the first one as it was.  It ends at the end that the source had at the start.",
    epilog="Exit status: 0 all records are acknowledged, 1 some were refused, the others are acknowledged, 2 it gave "
    "up, 130 after Ctrl-C.",
)
@click.argument(
    "sources",
    nargs=-1,
    required=True,
    shell_complete=topic_names,
    metavar="SOURCE...",
    help="a topic, or directories of partitions: what has a slash is a path, as ./orders-0",
)
@topic_argument("where the records go; it must exist")
@click.option("--speed", type=_speed, default="1", metavar="N", help="so many times as fast; max: without waiting")
@click.option(
    "--partition", "numbers", type=int, multiple=True, metavar="N", help="only this one of the source; repeatable"
)
@click.option(
    "--from",
    "start",
    type=place,
    default="earliest",
    metavar="PLACE",
    help=f"where to begin: earliest (default), latest, an offset, or {TIME_HELP}",
)
@click.option("--until", type=place, default="latest", metavar="PLACE", help="where to end, before this record")
@click.option("--max", type=positive, metavar="N", help="end after N records")
@click.option(
    "--isolation-level",
    type=click.Choice(list(_LEVELS)),
    default="read_committed",
    help="default: read_committed, without the records of transactions that are open or were aborted",
)
@click.option("--repartition", is_flag=True, help="keys choose the partitions anew; without, records keep theirs")
@click.option(
    "--compression",
    "--compression-codec",
    type=click.Choice(list(CODECS)),
    default="none",
    help="of the batches; default none",
)
@click.option(
    "--source-bootstrap",
    metavar="HOST:PORT[,...]",
    help="brokers of the cluster that has the source topic; default: that of --bootstrap",
)
@quiet_option("no summary where all went well")
@json_option("one JSON object a line for each partition that got records, in the place of the summary")
@bootstrap_option()
@timeout_option("give up when a record is not acknowledged, or a leader of the source is away, for so long", 60)
def run(args: Arguments) -> int:
    """Raises OSError, KafkaError, UsageError before the first record is sent; later ones are reported with what is
    acknowledged."""
    args.partition, args.quiet = None, args.quiet or args.json
    paths = [source for source in args.sources if os.sep in source]
    if paths and (len(paths) < len(args.sources) or args.source_bootstrap is not None):
        raise UsageError("expected one topic, or directories of partitions, as ./orders-0")
    if not paths and len(args.sources) > 1:
        raise UsageError("expected one SOURCE topic and the TOPIC that gets its records")
    if not paths and args.source_bootstrap is None and args.sources[0] == args.topic:
        raise UsageError(f"{args.topic} would get its own records again: name another topic")
    with group_client(args) as (client, errors), ExitStack() as stack:

        def leaders_of(client: GroupClient, topic: str, missing_hint: str | None = None) -> TopicLeaders:
            leaders = TopicLeaders(
                client,
                topic,
                client_id=_CLIENT_ID,
                request_timeout_ms=min(REQUEST_MS, args.timeout * 1000),
                on_silence=errors,
                missing_hint=missing_hint,
            )
            stack.callback(leaders.close)
            return leaders

        target = leaders_of(client, args.topic)
        count = len(target.wait_for_partitions(args.timeout * 1000))
        if paths:
            streams = _of_directories(args, paths, stack)
        else:
            source_args = Arguments(**vars(args) | {"bootstrap": args.source_bootstrap or args.bootstrap})
            source, _ = stack.enter_context(group_client(source_args))
            hint = "; `kcore topics list` shows those that are there"
            if os.path.isdir(args.sources[0]):
                hint = f"; a directory has a slash in its name, as ./{args.sources[0]}"
            streams = _of_topic(args, source, partial(leaders_of, missing_hint=hint))
        _check_target(args, client, count, streams)
        replay = _Replay(args, target, streams.values(), SYSTEM_TIME)
        status = replay.run()
    if args.json:
        for number in sorted(replay.acknowledged):
            first, last = replay.offsets.get(number, (None, None))
            fields = {"topic": args.topic, "partition": number, "records": replay.acknowledged[number]}
            print(json_line(fields | {"first_offset": first, "last_offset": last}))
    return status


def _check_target(args: Arguments, client: GroupClient, count: int, streams: Mapping[int, object]) -> None:
    """Raises UsageError where it has fewer partitions, unless they are chosen anew."""
    if not args.repartition and max(streams, default=-1) >= count:
        raise UsageError(
            f"{args.topic} has no partition {max(streams)}, and the source has: give --repartition, or "
            f"`kcore topics alter {args.topic} --partitions {max(streams) + 1}`"
        )
    kind = client.topic_configs([args.topic])[args.topic].get("message.timestamp.type")
    if kind is not None and kind.value == "LogAppendTime":
        print(
            f"kcore: {args.topic} has message.timestamp.type=LogAppendTime: its leaders replace the timestamps",
            file=sys.stderr,
        )


# -- what is read -----------------------------------------------------------------------------------------------------


#: Of a record: offset, timestamp, key, value, headers.
_Fields = tuple[int, int, bytes | None, bytes | None, Sequence[tuple[bytes | str, bytes | None]]]


class _Item(NamedTuple):
    """timestamp: -1 for none."""

    timestamp: int
    partition: int
    offset: int
    record: InputRecord


def _of_topic(
    args: Arguments, client: GroupClient, leaders_of: Callable[[GroupClient, str], TopicLeaders]
) -> dict[int, Iterator[_Item]]:
    """By partition.  Each has leaders of its own, so that none is read further than another one needs."""
    (topic,) = args.sources
    existing = leaders_of(client, topic).wait_for_partitions(args.timeout * 1000)
    numbers = sorted({existing_partition(topic, existing, number) for number in args.numbers} or existing)
    tps = {TopicPartition(topic, number): number for number in numbers}
    level = _LEVELS[args.isolation_level]
    starts = offsets_of(client, dict.fromkeys(tps, args.start), args.timeout, level)
    ends = offsets_of(client, dict.fromkeys(tps, Place()), args.timeout, level)
    untils = offsets_of(client, dict.fromkeys(tps, args.until), args.timeout, level)

    def stream(tp: TopicPartition) -> Iterator[_Fields]:
        fetcher = TopicFetcher(
            leaders_of(client, topic),
            {tp.partition: starts[tp]},
            {tp.partition: min(ends[tp], untils[tp])},
            timeout_ms=args.timeout * 1000,
            earliest=lambda number: log_starts(client, [tp], args.timeout)[tp],
            isolation_level=level,
        )
        while not fetcher.is_done:
            for fetched in fetcher.poll():
                columns = columns_of(
                    fetched.records,
                    columns=None,
                    start_offset=fetched.first_offset,
                    end_offset=fetched.end_offset,
                    aborted=fetched.aborted,
                )
                yield from zip(
                    record_lines.numbers(columns["offset"], None),
                    record_lines.numbers(columns["timestamp"], None),
                    record_lines.strings(columns["key"], None),
                    record_lines.strings(columns["value"], None),
                    record_lines.header_lists(columns, None),
                    strict=True,
                )

    return {number: _items(number, stream(tp)) for tp, number in tps.items()}


def _of_directories(args: Arguments, paths: Iterable[str], stack: ExitStack) -> dict[int, Iterator[_Item]]:
    """By partition.  Raises UsageError, OSError, KafkaError."""
    streams: dict[int, Iterator[_Item]] = {}
    for path in paths:
        os.stat(path)
        name = parse_partition_directory(os.path.basename(os.path.normpath(path)))
        if name is None or not is_partition_dir(path):
            raise CorruptFile(f"{path} is no directory of a partition, as DATA_DIR/orders-0")
        number = name.topic_partition.partition
        if args.numbers and number not in args.numbers:
            continue
        if number in streams:
            raise UsageError(f"{path}: another SOURCE is a partition {number} too")
        log = stack.enter_context(open_log(path))
        start, end = _offset_in(log, args.start), _offset_in(log, args.until)
        records = log.records(max(start, log.log_start_offset), end, args.isolation_level)
        streams[number] = _items(number, ((r.offset, r.timestamp, r.key, r.value, r.headers) for r in records))
    return streams


def _offset_in(log: UnifiedLog, place: Place) -> int:
    if place.offset is not None:
        return min(place.offset, log.log_end_offset)
    if place.timestamp == EARLIEST:
        return log.log_start_offset
    found = None if place.timestamp == LATEST else log.fetch_offset_by_timestamp(place.timestamp)
    return log.log_end_offset if found is None else found.offset


def _items(number: int, records: Iterable[_Fields]) -> Iterator[_Item]:
    for offset, timestamp, key, value, headers in records:
        names = [(name if isinstance(name, str) else name.decode("utf-8", "surrogateescape"), v) for name, v in headers]
        yield _Item(timestamp, number, offset, InputRecord(key, value, names, timestamp, number))


# -- what is written --------------------------------------------------------------------------------------------------


class _Replay(Delivery):
    noun = "record"

    def __init__(self, args: Arguments, target: TopicLeaders, streams: Iterable[Iterator[_Item]], time: Time) -> None:
        super().__init__(args, target, args.compression)
        self._streams = [*streams]
        self._time = time
        #: (timestamp of the first record, when it was sent)
        self._first: tuple[int, float] | None = None

    def _produce_all(self) -> None:
        # A record that is older than the one before it in its partition is late by then: it comes next.
        merged = heapq.merge(*self._streams, key=lambda item: item.timestamp)
        for number, item in enumerate(merged):
            if number == self._args.max:
                return
            if not math.isinf(self._args.speed) and item.timestamp >= 0:
                self._wait_until_due(item.timestamp)
            if self._stop.is_set():
                return
            self._produce((item.partition, item.offset), item.record)

    def _wait_until_due(self, timestamp: int) -> None:
        """Send what there is, and wait.  Raises OSError, KafkaError."""
        if self._first is None:
            self._first = timestamp, self._time.hi_res_clock_ms()
        first_timestamp, first_ms = self._first
        due_ms = first_ms + (timestamp - first_timestamp) / self._args.speed
        while (left_ms := due_ms - self._time.hi_res_clock_ms()) > 0 and not self._stop.is_set():
            self._producer.close_batches()
            if self._producer.pending_bytes:
                self._producer.poll(min(left_ms, IDLE_MS))
            else:
                self._time.sleep(min(left_ms, _WAIT_MS))

    def _place(self, tag: tuple[int, int]) -> str:
        partition, offset = tag
        return f"partition {partition}, offset {offset}"
