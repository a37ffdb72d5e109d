"""`kcore elect`: elect the leaders of partitions."""

from __future__ import annotations

import argparse

from kcore.common.text import json_line
from kcore.errors import ElectionNotNeeded
from kcore.tools.cluster_command import add_cluster, admin_client, error_text, partitions, partitions_word, topics_of
from kcore.tools.command_line import DAMAGE, OK, UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "partitions",
        nargs="*",
        type=partitions_word,
        metavar="TOPIC[:N[,N...]]",
        help="partitions; without numbers all of the topic",
    )
    parser.add_argument("--all", action="store_true", help="all partitions of the cluster")
    parser.add_argument(
        "--unclean",
        action="store_true",
        help="give partitions without a leader one that is not in sync, if there is no other: records that were "
        "acknowledged are lost; without, the preferred leader is elected, the first of the replicas",
    )
    add_cluster(
        parser, "kcore elect orders:0,3 --bootstrap localhost:9092", "one JSON object a line for each partition"
    )


def run(args: argparse.Namespace) -> int:
    """0; 1 if a leader could not be elected.  Raises UsageError, OSError, KafkaError."""
    if args.all == bool(args.partitions):
        raise UsageError("expected either TOPIC or --all")
    with admin_client(args) as admin:
        wanted = None
        if not args.all:
            wanted = partitions(args.partitions, admin.describe_cluster(topics_of(args.partitions)))
        results = admin.elect_leaders(wanted, unclean=args.unclean)
    not_needed = ElectionNotNeeded.LEADER_IS_ALIVE if args.unclean else ElectionNotNeeded.PREFERRED_LEADS
    status = OK
    for tp, error in sorted(results.items()):
        failed = error is not None and not isinstance(error, ElectionNotNeeded)
        status = DAMAGE if failed else status
        if args.json:
            fields = {"is_elected": error is None, "error": error_text(error) if failed else None}
            print(json_line({"topic": tp.topic, "partition": tp.partition} | fields))
        elif failed:
            print(f"{tp}: {error_text(error)}")
        else:
            print(f"{tp}: {'a leader was elected' if error is None else not_needed}")
    if not args.json and not results:
        print(f"every partition: {not_needed}")
    return status
