"""`kcore produce`: write lines of stdin or of files as records to a topic of a running cluster."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

from kcore.client.topic_leaders import TopicGone, TopicLeaders
from kcore.client.topic_producer import Record, TopicProducer
from kcore.common.random_source import SYSTEM_RANDOM
from kcore.common.text import counted, printable, some_of
from kcore.common.time import SYSTEM_TIME
from kcore.errors import ApiError, KafkaError
from kcore.record.compression import CODECS
from kcore.record.partitioner import partition_for_key
from kcore.tools.bootstrap import bootstrap_option, note_origin
from kcore.tools.cluster_command import existing_partition, group_client, no_partition_text, timeout_option
from kcore.tools.cluster_names import topic_argument
from kcore.tools.command_line import (
    DAMAGE,
    FILE,
    INTERRUPTED,
    OK,
    USAGE,
    Arguments,
    UsageError,
    quiet_option,
    with_notes,
)
from kcore.tools.commands import command
from kcore.tools.record_input import InputError, InputRecord, json_record, line_reader, lines_of
from kcore.tools.record_output import unescaped
from kcore.tools.stop_signals import stop_on_signal

_CLIENT_ID = "kcore-produce"
#: One request to a leader: less than --timeout, since another broker may lead by then.
_REQUEST_MS = 10_000
#: Of records that are not acknowledged: reading goes on when some are.
_MOST_PENDING_BYTES = 32 << 20
#: For answers, while nothing can be read.
_IDLE_MS = 50
#: Until it is looked whether to stop, while nothing can be read and nothing is under way.
_WAIT_S = 0.2
#: Said when the topic is gone: where the records are.
_WITH_THE_TOPIC = "what was written is gone with the topic that was deleted; nothing is in a new one of its name"
_PERHAPS_IN_THE_NEW_ONE = (
    "the leaders take records by the name of a topic, not by its id: what was acknowledged in the last second may be "
    "in a new topic of the name, everything else was written to the one that was deleted"
)


def _header(text: str) -> tuple[str, bytes]:
    """Raises click.BadParameter."""
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r}: expected NAME=VALUE")
    return name, os.fsencode(value)


@command(
    help="Write the lines of stdin, or of files, as records to a topic, and wait until all replicas in sync have them. "
    " A summary goes to stderr.",
    epilog="Exit status: 0 all records are acknowledged, 1 some lines are no records or were refused, the others are "
    "acknowledged, 2 it gave up, 130 after Ctrl-C.",
    one_of=[("--format", "--json"), ("--partition", "--repartition")],
)
@topic_argument()
@click.argument("files", nargs=-1, type=FILE, metavar="[FILE]...", help="default: stdin")
@click.option(
    "--format",
    type=click.Choice(["lines", "json"]),
    default="lines",
    help="lines: each is a value.  json: objects with value, and key, headers, timestamp, partition, as kcore consume "
    "--json and kcore dump --json print them",
)
@click.option("--json", "format", flag_value="json", help="the same as --format json")
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="of lines: what is before the first one is the key; with the escapes \\t \\\\ \\xNN",
)
@click.option("--partition", type=int, metavar="N", help="all records to this one")
@click.option("--repartition", is_flag=True, help="pass over the partitions in the records: their keys choose anew")
@click.option("--header", multiple=True, type=_header, metavar="K=V", help="for each record; repeatable")
@click.option(
    "--compression",
    "--compression-codec",
    type=click.Choice(list(CODECS)),
    default="none",
    help="of the batches; default none",
)
@quiet_option("no summary where all went well")
@bootstrap_option()
@timeout_option("give up when a record is not acknowledged for so long", 60)
def run(args: Arguments) -> int:
    """Raises OSError, KafkaError, UsageError before the first record is sent; later ones are reported with what is
    acknowledged."""
    if args.key_separator is not None and (args.format == "json" or not args.key_separator):
        raise UsageError("--key-separator is a text that separates keys and values in lines")
    with group_client(args) as (client, errors):
        leaders = TopicLeaders(
            client,
            args.topic,
            client_id=_CLIENT_ID,
            request_timeout_ms=min(_REQUEST_MS, args.timeout * 1000),
            on_silence=errors,
        )
        try:
            existing = leaders.wait_for_partitions(args.timeout * 1000)
            if args.partition is not None:
                existing_partition(args.topic, existing, args.partition)
            return _Production(args, leaders).run()
        finally:
            leaders.close()


class _Production:
    """One run of the command."""

    def __init__(self, args: Arguments, leaders: TopicLeaders) -> None:
        self._args = args
        self._read = json_record if args.format == "json" else line_reader(_separator(args.key_separator))
        self._stop = threading.Event()
        self._started_ms = SYSTEM_TIME.hi_res_clock_ms()
        self._acknowledged: dict[int, int] = {}
        self._offsets: dict[int, tuple[int, int]] = {}
        self._refused = 0
        self._chooser = _PartitionChooser(args, leaders)
        request_ms = min(_REQUEST_MS, args.timeout * 1000)
        self._producer = TopicProducer(
            leaders,
            timeout_ms=args.timeout * 1000,
            request_timeout_ms=request_ms,
            on_acknowledged=self._note_acknowledged,
            on_refused=self._refuse,
            compression=args.compression,
        )

    def run(self) -> int:
        try:
            with stop_on_signal(self._stop.set), _rare_collections():
                for number in range(len(self._args.files) or 1):
                    self._produce_file(number)
                self._producer.close_batches()
                while self._producer.pending_bytes and not self._stop.is_set():
                    self._producer.poll(_IDLE_MS)
                self._producer.finish_requests()
        except (OSError, KafkaError, UsageError) as error:
            note_origin(self._args, error)
            self._say(with_notes(error))
            is_gone = isinstance(error, TopicGone)
            self._summarize(is_whole=False, is_gone=is_gone)
            if is_gone:
                self._say(_WITH_THE_TOPIC if self._producer.is_by_id else _PERHAPS_IN_THE_NEW_ONE)
            return USAGE
        is_whole = not self._stop.is_set()
        self._summarize(is_whole)
        if not is_whole:
            return INTERRUPTED
        return DAMAGE if self._refused else OK

    def _produce_file(self, number: int) -> None:
        """Raises OSError, KafkaError."""
        with _descriptor(self._args.files[number] if self._args.files else None) as descriptor:
            for line_number, line in enumerate(lines_of(descriptor, self._idle), 1):
                if self._stop.is_set():
                    return
                tag = number, line_number
                try:
                    read = self._read(line)
                    if read is not None:
                        self._produce(tag, read)
                except InputError as error:
                    self._refuse_line(tag, str(error))

    def _produce(self, tag: tuple[int, int], read: InputRecord) -> None:
        """Raises InputError, OSError, KafkaError."""
        partition = self._chooser.partition(read)
        timestamp = SYSTEM_TIME.milliseconds() if read.timestamp is None else read.timestamp
        headers = [*read.headers, *self._args.header]
        if self._producer.append(partition, Record(tag, read.key, read.value, headers, timestamp)):
            self._chooser.on_full_batch()
            self._producer.poll(0)
        while self._producer.pending_bytes > _MOST_PENDING_BYTES and not self._stop.is_set():
            self._producer.close_batches()
            self._producer.poll(_IDLE_MS)

    def _idle(self) -> float | None:
        """Nothing can be read now: send what there is."""
        if self._stop.is_set():
            return None
        self._producer.close_batches()
        if not self._producer.pending_bytes:
            return _WAIT_S
        self._producer.poll(_IDLE_MS)
        return 0.0

    # -- what is said -------------------------------------------------------------------------------------------

    def _note_acknowledged(self, partition: int, base_offset: int, count: int) -> None:
        self._acknowledged[partition] = self._acknowledged.get(partition, 0) + count
        if base_offset >= 0:
            first, last = self._offsets.get(partition, (base_offset, base_offset))
            self._offsets[partition] = min(first, base_offset), max(last, base_offset + count - 1)

    def _refuse(self, record: Record, error: ApiError) -> None:
        self._refuse_line(record.tag, str(error))

    def _refuse_line(self, tag: tuple[int, int], reason: str) -> None:
        self._refused += 1
        self._say(f"{self._place(tag)}: {reason}")

    def _place(self, tag: tuple[int, int]) -> str:
        number, line = tag
        return f"{self._args.files[number]}, line {line}" if self._args.files else f"line {line}"

    def _say(self, text: str) -> None:
        print(printable(f"kcore: {text}"), file=sys.stderr, flush=True)

    def _summarize(self, is_whole: bool, is_gone: bool = False) -> None:
        """is_gone: the topic is."""
        if self._producer.uncertain_retries and not self._producer.is_idempotent:
            self._say("some batches were sent again without a producer id: their records may be there twice")
        if self._args.quiet and is_whole and not self._refused:
            return
        count = sum(self._acknowledged.values())
        seconds = max(0.001, (SYSTEM_TIME.hi_res_clock_ms() - self._started_ms) / 1000)
        partitions = [self._partition_text(number) for number in sorted(self._acknowledged)]
        where = f": {some_of(partitions)}" if partitions else ""
        self._say(f"{counted(count, 'record')} acknowledged in {seconds:.3g} s{where}")
        if self._refused:
            self._say(f"{counted(self._refused, 'line')} not written")
        if (first := self._producer.first_pending()) is not None:
            later = "" if is_gone and self._producer.is_by_id else "; later ones may be written"
            self._say(f"{self._place(first)} is the first that is not acknowledged{later}")
        elif not is_whole:
            self._say("all that was read is acknowledged")

    def _partition_text(self, number: int) -> str:
        text = f"{self._args.topic}-{number} {self._acknowledged[number]}"
        if number not in self._offsets:
            return text
        first, last = self._offsets[number]
        return f"{text} (offset {first})" if first == last else f"{text} (offsets {first} to {last})"


class _PartitionChooser:
    """Which partition a record goes to: that of --partition, its own, its key's as Kafka's Java producer chooses it, or
    without a key one after the other, a full batch each."""

    def __init__(self, args: Arguments, leaders: TopicLeaders) -> None:
        self._topic = args.topic
        self._fixed: int | None = args.partition
        self._uses_own = not args.repartition
        self._leaders = leaders
        self._count = len(leaders.partitions)
        self._sticky = SYSTEM_RANDOM.randrange(self._count)
        self.on_full_batch()

    def partition(self, read: InputRecord) -> int:
        """Raises InputError."""
        if self._fixed is not None:
            return self._fixed
        if read.partition is not None and self._uses_own:
            if read.partition >= self._count:
                raise InputError(no_partition_text(self._topic, range(self._count), read.partition))
            return read.partition
        return self._sticky if read.key is None else partition_for_key(read.key, self._count)

    def on_full_batch(self) -> None:
        """The next one that has a leader."""
        for step in range(1, self._count + 1):
            number = (self._sticky + step) % self._count
            if self._leaders.leader(number) is not None:
                self._sticky = number
                return


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Records are no part of a cycle: to look for cycles among them every 700 objects takes 40 % of the time."""
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def _separator(text: str | None) -> bytes | None:
    """Raises UsageError."""
    return None if text is None else unescaped(text)


@contextmanager
def _descriptor(path: str | None) -> Iterator[int]:
    """Of a file, or of stdin for None and "-".  Raises OSError, UsageError."""
    if path is None or path == "-":
        if sys.stdin is None:
            raise UsageError("stdin is closed: there is nothing to read")
        yield sys.stdin.fileno()
        return
    with open(path, "rb", buffering=0) as file:
        yield file.fileno()
