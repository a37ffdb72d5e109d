"""`kcore explain isr`, `fetch` and `lso`: why a running broker of this machine does what it does."""

from __future__ import annotations

import json
from typing import Any

import click

from kcore.common.topic_partition import TopicPartition
from kcore.tools.cluster_names import topic_argument
from kcore.tools.command_line import OK, Arguments, Decorator, json_option, several
from kcore.tools.commands import Group
from kcore.tools.monitored_broker import MonitoredBroker, broker_options

#: The answer is the answer, whatever it says: no exit status 1.
explain = Group(
    "explain",
    {
        "lso": (
            "kcore.tools.explain_lso:run",
            "say which transaction holds back the last stable offset, and since when",
        )
    },
    status_1=None,
)


def _partition_arguments() -> Decorator:
    return several(
        topic_argument(),
        click.argument("partition", type=int, required=False, default=0, metavar="[PARTITION]", help="default 0"),
        broker_options("the partition's leader"),
        json_option("one JSON object"),
    )


@explain.subcommand("isr", "say who is in sync and why, and what bounds the high watermark")
@_partition_arguments()
def _run_isr(args: Arguments) -> int:
    return _show(args, "explain_isr")


@explain.subcommand("fetch", "say what a fetch would get now, and what waiting requests wait for")
@_partition_arguments()
@click.option("--offset", type=int, default=0, metavar="N", help="where the fetch begins (default 0)")
@click.option(
    "--isolation",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    help="of a consumer",
)
@click.option("--replica", type=int, default=-1, metavar="ID", help="a follower's fetch, of this broker id")
@click.option("--min-bytes", type=int, default=1, metavar="N")
@click.option("--max-bytes", type=int, default=1 << 20, metavar="N")
@click.option("--max-wait", type=int, default=500, metavar="MS", help="default 500")
@click.option("--epoch", type=int, default=-1, metavar="N", help="the leader epoch that the client has")
def _run_fetch(args: Arguments) -> int:
    return _show(
        args,
        "explain_fetch",
        offset=args.offset,
        isolation=args.isolation,
        replica_id=args.replica,
        min_bytes=args.min_bytes,
        max_bytes=args.max_bytes,
        max_wait_ms=args.max_wait,
        leader_epoch=args.epoch,
    )


def _show(args: Arguments, command: str, **arguments: Any) -> int:
    broker = MonitoredBroker(args, TopicPartition(args.topic, args.partition))
    answer = broker.ask(command, topic=args.topic, partition=args.partition, **arguments)
    print(json.dumps(answer["value"], indent=1) if args.json else answer["text"])
    return OK
