"""Which broker of this machine a command asks about itself: by its data directory, or by its address."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import click

from kcore.client.admin_client import Address, ClusterDescription, Node, PartitionDescription
from kcore.client.broker_process import BrokerProcess, process_of_member
from kcore.client.monitor import MonitorError, ask_broker
from kcore.client.monitored_directory import directory_of_address, directory_of_process
from kcore.common.text import plain_error, printable
from kcore.common.topic_partition import TopicPartition
from kcore.tools.bootstrap import bootstrap_option
from kcore.tools.cluster_command import admin_client, ids_text, no_partition_text, timeout_option
from kcore.tools.command_line import DIRECTORY, Arguments, Decorator, UsageError, addresses, broker_id, several


def broker_options(default_broker: str) -> Decorator:
    """default_broker: the one that is asked without --broker, for --help."""
    return several(
        click.option(
            "--data",
            type=DIRECTORY,
            metavar="DIR",
            help="the broker's (first) data directory, instead of --bootstrap",
        ),
        bootstrap_option(),
        click.option(
            "--broker",
            type=broker_id,
            metavar="ID",
            help=f"which one, of those that run on this machine; default: {default_broker}",
        ),
        timeout_option("for the answer"),
    )


class MonitoredBroker:
    """The broker that the options name.  data_dir: its first data directory.

    Raises UsageError, KafkaError, OSError.
    """

    def __init__(self, args: Arguments, topic_partition: TopicPartition | None = None) -> None:
        """topic_partition: without --broker its leader is asked; None: the first broker of --bootstrap that answers."""
        self._timeout_s = args.timeout
        if args.data is not None:
            if args.bootstrap.is_given or args.broker is not None:
                raise UsageError("--data goes without --bootstrap and --broker: it is one broker's directory")
            self.data_dir = args.data
            return
        node = None if topic_partition is None and args.broker is None else _node(args, topic_partition)
        if isinstance(node, BrokerProcess):
            self.data_dir = directory_of_process(
                node, f"broker {args.broker}, which is not registered", None, args.timeout
            )
        elif node is None:
            self.data_dir = _first_that_answers(addresses(args.bootstrap), args.timeout)
        else:
            self.data_dir = directory_of_address((node.host, node.port), node, args.timeout)

    def ask(self, command: str, **arguments: Any) -> Any:
        """Raises MonitorError, OSError."""
        return ask_broker(self.data_dir, command, self._timeout_s, **arguments)


def _first_that_answers(bootstrap: Sequence[Address], timeout_s: float) -> str:
    """The directory of the first of these brokers that answers; stderr says of each one before it why it is not that.

    Raises MonitorError, OSError: those of the last one.
    """
    for (host, port), following in pairwise(bootstrap):
        try:
            data_dir = directory_of_address((host, port), None, timeout_s)
            ask_broker(data_dir, "ports", timeout_s)
        except (MonitorError, OSError) as error:
            next_one = f"{following[0]}:{following[1]}"
            print(printable(f"kcore: {plain_error(error)}.  {next_one} is asked instead"), file=sys.stderr)
        else:
            return data_dir
    return directory_of_address(bootstrap[-1], None, timeout_s)


def _node(args: Arguments, topic_partition: TopicPartition | None) -> Node | BrokerProcess:
    """The broker with the id of --broker, or the partition's leader; the process of one that is not registered.

    Raises UsageError, KafkaError, OSError.
    """
    with admin_client(args) as admin:
        if args.broker is not None or topic_partition is None:
            cluster = admin.describe_cluster(())
            broker = cluster.brokers.get(args.broker) or process_of_member(cluster.cluster_id, args.broker)
            if broker is None:
                raise UsageError(f"broker {args.broker} is not alive; alive: {ids_text(cluster.brokers)}")
            return broker
        cluster = admin.describe_cluster([topic_partition.topic])
    partition = cluster.topics[topic_partition.topic].partitions.get(topic_partition.partition)
    if partition is None:
        existing = cluster.topics[topic_partition.topic].partitions
        raise UsageError(no_partition_text(topic_partition.topic, existing, topic_partition.partition))
    if partition.leader not in cluster.brokers:
        alive = [replica for replica in partition.replicas if replica in cluster.brokers]
        explains = f".  --broker {alive[0]} explains its replica" if alive else ""
        raise UsageError(f"{why_nobody_leads(topic_partition, partition, cluster)}{explains}")
    return cluster.brokers[partition.leader]


def why_nobody_leads(
    topic_partition: TopicPartition, partition: PartitionDescription, cluster: ClusterDescription
) -> str:
    """Who may lead, who is there, and what helps."""
    alive = [replica for replica in partition.replicas if replica in cluster.brokers]
    why = (
        f"{topic_partition} has no leader: its replicas are on {ids_text(partition.replicas)}, in sync were last "
        f"{ids_text(partition.isr)}, alive are {ids_text(alive)}.  It is led again once one that was in sync is back"
    )
    if alive and not set(alive) & set(partition.isr):
        return (
            f"{why}; only if none of them comes back: kcore elect {topic_partition.topic}:{topic_partition.partition} "
            f"--unclean, which loses what {ids_text(alive)} did not copy"
        )
    return why
