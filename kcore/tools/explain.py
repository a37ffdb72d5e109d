"""`kcore explain isr` and `kcore explain fetch`: why a running broker of this machine does what it does."""

from __future__ import annotations

import argparse
import json
from typing import Any, NamedTuple

from kcore.common.topic_partition import TopicPartition
from kcore.tools.command_line import OK, add_json, protocol_string
from kcore.tools.monitored_broker import MonitoredBroker, add_broker


class Command(NamedTuple):
    """In the place of a module: what kcore.tools.main needs of a command."""

    add_arguments: Any
    run: Any


def _add_partition(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", type=protocol_string, metavar="TOPIC")
    parser.add_argument("partition", metavar="PARTITION", type=int, nargs="?", default=0, help="default 0")
    add_broker(parser, "the partition's leader")
    add_json(parser, "one JSON object")


def _add_isr(parser: argparse.ArgumentParser) -> None:
    _add_partition(parser)


def _add_fetch(parser: argparse.ArgumentParser) -> None:
    _add_partition(parser)
    parser.add_argument("--offset", type=int, default=0, metavar="N", help="where the fetch begins (default 0)")
    parser.add_argument(
        "--isolation", choices=("read_uncommitted", "read_committed"), default="read_uncommitted", help="of a consumer"
    )
    parser.add_argument("--replica", type=int, default=-1, metavar="ID", help="a follower's fetch, of this broker id")
    parser.add_argument("--min-bytes", type=int, default=1, metavar="N")
    parser.add_argument("--max-bytes", type=int, default=1 << 20, metavar="N")
    parser.add_argument("--max-wait", type=int, default=500, metavar="MS", help="default 500")
    parser.add_argument("--epoch", type=int, default=-1, metavar="N", help="the leader epoch that the client has")


def _run_isr(args: argparse.Namespace) -> int:
    return _show(args, "explain_isr")


def _run_fetch(args: argparse.Namespace) -> int:
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


def _show(args: argparse.Namespace, command: str, **arguments: Any) -> int:
    broker = MonitoredBroker(args, TopicPartition(args.topic, args.partition))
    answer = broker.ask(command, topic=args.topic, partition=args.partition, **arguments)
    print(json.dumps(answer["value"], indent=1) if args.json else answer["text"])
    return OK


#: The answer is the answer, whatever it says.
STATUS_1 = None

COMMANDS = {
    "isr": (Command(_add_isr, _run_isr), "say who is in sync and why, and what bounds the high watermark"),
    "fetch": (Command(_add_fetch, _run_fetch), "say what a fetch would get now, and what waiting requests wait for"),
}
