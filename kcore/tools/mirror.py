"""`kcore mirror`: copy a topic of a running cluster into a data directory, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click
from click.shell_completion import CompletionItem

from kcore.client.admin_client import Address, AdminClient, Silence
from kcore.common.text import counted, json_line
from kcore.mirror.topic_mirror import MirroredPartition, TopicMirror
from kcore.tools.bootstrap import bootstrap_option
from kcore.tools.cluster_command import print_silence
from kcore.tools.cluster_names import topic_argument, topic_names
from kcore.tools.command_line import (
    DIRECTORY,
    INTERRUPTED,
    OK,
    Arguments,
    UsageError,
    addresses,
    json_option,
    positive,
)
from kcore.tools.commands import command
from kcore.tools.stop_signals import stop_on_signal


def _numbers(text: str) -> list[int]:
    """Raises click.BadParameter."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [-1]
    if min(numbers) < 0:
        raise click.BadParameter(f"{text!r}: expected partition numbers, as 0,3,7")
    return numbers


def _at_most_one(ctx: click.Context, param: click.Parameter, words: Sequence[str]) -> str | None:
    """Raises click.UsageError."""
    if len(words) > 1 and not ctx.resilient_parsing:
        raise click.UsageError("expected BOOTSTRAP TOPIC DIR, or TOPIC DIR", ctx)
    return words[0] if words else None


def _topics_or_directories(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Of any word: the first one may be left out, so a shell does not know which argument a word is."""
    names = topic_names(ctx, param, incomplete)
    return [CompletionItem(name) for name in names] or [CompletionItem(incomplete, type="dir")]


@command(epilog="Exit status: 0 all is copied, or Ctrl-C with --follow; 2 it gave up; 130 Ctrl-C without --follow.")
@click.argument(
    "address",
    nargs=-1,
    callback=_at_most_one,
    shell_complete=_topics_or_directories,
    metavar="[BOOTSTRAP]",
    help="HOST:PORT[,...] of brokers, in the place of --bootstrap",
)
@topic_argument("the topic to copy; it keeps its name")
@click.argument(
    "data_dir",
    type=DIRECTORY,
    metavar="DIR",
    help="a data directory that no broker has open, made if it is missing; a copy in it goes on where it ended",
)
@bootstrap_option()
@click.option("--partitions", type=_numbers, metavar="N[,N...]", help="only these; without, all that the topic has")
@click.option("--follow", is_flag=True, help="go on until Ctrl-C; without, up to the end there is now")
@click.option(
    "--timeout", type=positive, default=60, metavar="S", help="give up after S seconds without a record; default 60"
)
@json_option("one JSON object a line for each partition")
def run(args: Arguments) -> int:
    """0, or 130 after Ctrl-C without --follow.  Raises OSError, KafkaError, UsageError."""
    if args.address is not None and args.bootstrap.is_given:
        raise UsageError("BOOTSTRAP and --bootstrap are the same: give one of them")
    args.bootstrap = args.address or args.bootstrap
    mirror = TopicMirror(answering_brokers(args), args.topic, args.data_dir, args.partitions)
    with stop_on_signal(mirror.stop) as stopped, mirror:
        mirror.wait_until_caught_up(args.timeout * 1000)
        if args.follow:
            mirror.keep_up()
    for copy in mirror.partitions():  # after a signal an append may have ended only in close()
        print(_json(copy) if args.json else _text(copy))
    return INTERRUPTED if stopped.is_set() and not args.follow else OK


def answering_brokers(args: Arguments) -> list[Address]:
    """The cluster's brokers that answer; the others are named on stderr.  Raises OSError if none does, UsageError."""
    silent: dict[Address, Silence] = {}
    bootstrap, timeout_ms = addresses(args.bootstrap), int(args.timeout * 1000)
    with AdminClient(bootstrap, client_id="kcore", timeout_ms=timeout_ms, on_silence=silent.__setitem__) as admin:
        brokers = admin.describe_cluster(()).brokers
        silences = admin.silent_brokers(brokers.values())
    by_id = {broker_id: (node.host, node.port) for broker_id, node in brokers.items()}
    silent |= {by_id[broker_id]: silence for broker_id, silence in silences.items()}
    for address, silence in silent.items():
        print_silence(address, silence)
    return [address for address in by_id.values() if address not in silent] or bootstrap


def _json(copy: MirroredPartition) -> str:
    fields = asdict(copy)
    tp = copy.topic_partition
    del fields["topic_partition"]
    return json_line({"topic": tp.topic, "partition": tp.partition} | fields)


def _text(copy: MirroredPartition) -> str:
    copied = counted(max(0, copy.log_end_offset - max(copy.previous_end_offset, copy.log_start_offset)), "offset")
    lag = "" if not copy.lag else f", {counted(copy.lag, 'offset')} short of the leader's high watermark"
    return (
        f"{copy.topic_partition}: {copied} copied from broker {copy.leader_id}, "
        f"now {copy.log_start_offset} to {copy.log_end_offset}{lag}"
    )
