"""`kcore elect`: elect the leaders of partitions."""

from __future__ import annotations

import click

from kcore.common.text import json_line
from kcore.errors import ElectionNotNeeded
from kcore.tools.cluster_command import (
    admin_client,
    cluster_options,
    error_text,
    partitions,
    partitions_word,
    topics_of,
)
from kcore.tools.cluster_names import topic_names
from kcore.tools.command_line import DAMAGE, OK, Arguments, UsageError
from kcore.tools.commands import command


@command(example="kcore elect orders:0,3 --bootstrap localhost:9092")
@click.argument(
    "partitions",
    nargs=-1,
    type=partitions_word,
    shell_complete=topic_names,
    metavar="[TOPIC[:N[,N...]]]...",
    help="partitions; without numbers all of the topic",
)
@click.option("--all", is_flag=True, help="all partitions of the cluster")
@click.option(
    "--unclean",
    is_flag=True,
    help="give partitions without a leader one that is not in sync, if there is no other: records that were "
    "acknowledged are lost; without, the preferred leader is elected, the first of the replicas",
)
@cluster_options("one JSON object a line for each partition")
def run(args: Arguments) -> int:
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
