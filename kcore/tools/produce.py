"""`kcore produce`: write lines of stdin or of files as records to a topic of a running cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from kcore.client.topic_leaders import TopicLeaders
from kcore.record.compression import CODECS
from kcore.tools.bootstrap import bootstrap_option
from kcore.tools.cluster_command import existing_partition, group_client, one_topic, timeout_option, topic_options
from kcore.tools.command_line import (
    FILE,
    Arguments,
    UsageError,
    quiet_option,
)
from kcore.tools.commands import command
from kcore.tools.delivery import IDLE_MS, REQUEST_MS, Delivery
from kcore.tools.record_input import InputError, json_record, line_reader, lines_of
from kcore.tools.record_output import unescaped

_CLIENT_ID = "kcore-produce"
#: Until it is looked whether to stop, while nothing can be read and nothing is under way.
_WAIT_S = 0.2


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
@topic_options(kafkas_tool="kafka-console-producer.sh")
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
    if args.topic is not None and args.named_topic is not None:
        args.topic, args.files = None, [args.topic, *args.files]
    args.topic = one_topic(args)
    if args.key_separator is not None and (args.format == "json" or not args.key_separator):
        raise UsageError("--key-separator is a text that separates keys and values in lines")
    with group_client(args) as (client, errors):
        leaders = TopicLeaders(
            client,
            args.topic,
            client_id=_CLIENT_ID,
            request_timeout_ms=min(REQUEST_MS, args.timeout * 1000),
            on_silence=errors,
        )
        try:
            existing = leaders.wait_for_partitions(args.timeout * 1000)
            if args.partition is not None:
                existing_partition(args.topic, existing, args.partition)
            return _Production(args, leaders).run()
        finally:
            leaders.close()


class _Production(Delivery):
    """One run of the command."""

    def __init__(self, args: Arguments, leaders: TopicLeaders) -> None:
        super().__init__(args, leaders, args.compression)
        self._read = json_record if args.format == "json" else line_reader(_separator(args.key_separator))
        self._headers = args.header

    def _produce_all(self) -> None:
        for number in range(len(self._args.files) or 1):
            self._produce_file(number)

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

    def _idle(self) -> float | None:
        """Nothing can be read now: send what there is."""
        if self._stop.is_set():
            return None
        self._producer.close_batches()
        if not self._producer.pending_bytes:
            return _WAIT_S
        self._producer.poll(IDLE_MS)
        return 0.0

    def _place(self, tag: tuple[int, int]) -> str:
        number, line = tag
        return f"{self._args.files[number]}, line {line}" if self._args.files else f"line {line}"


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
