"""`kcore cluster`: the brokers of a running cluster, what each leads, and what is wrong with partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import click

from kcore.client.admin_client import AdminClient, ClusterDescription, PartitionDescription
from kcore.client.broker_process import BrokerProcess, process_of_address, process_of_member
from kcore.common.text import counted, json_line
from kcore.common.topic_partition import TopicPartition
from kcore.tools.cluster_command import (
    admin_client,
    cluster_options,
    ids_text,
    is_in_sync,
    leader_text,
    store_lock_of,
)
from kcore.tools.cluster_names import nearest_topic, topic_names
from kcore.tools.command_line import DAMAGE, OK, Arguments, UsageError, broker_id, protocol_string
from kcore.tools.commands import command


@command(example="kcore cluster --bootstrap localhost:9092")
@click.argument(
    "topics",
    nargs=-1,
    type=protocol_string,
    shell_complete=topic_names,
    metavar="[TOPIC]...",
    help="only partitions of these; default: of all",
)
@click.option("--broker", type=broker_id, metavar="ID", help="only partitions that have a replica on this broker")
@click.option(
    "--internal",
    is_flag=True,
    help="each partition of internal topics, which are summed up otherwise; --json has each of them anyway",
)
@cluster_options("one JSON object a line")
def run(args: Arguments) -> int:
    """0; 1 if a broker does not answer or runs without a session, a partition has no leader, or fewer replicas in sync
    than it has, or the metadata store is locked."""
    with admin_client(args, ends_where_locked=True) as admin:
        state = look_at(admin, args.topics)
    cluster, partitions, brokers, silent, _, problems, lock = state
    if args.broker is not None and args.broker not in brokers:
        raise UsageError(f"there is no broker {args.broker}, and no replica on it; brokers: {ids_text(brokers)}")
    problems = [
        problem
        for problem in problems
        if (not args.topics or problem.topic_partition.topic in args.topics)
        and (args.broker is None or args.broker in problem.partition.replicas)
    ]
    summary = _summary(cluster, partitions) | {"store_lock": lock}
    broker_events = [_broker(number, cluster, partitions, silent) for number in brokers]
    if args.json:
        for event in (summary, *broker_events, *(problem.event() for problem in problems)):
            print(json_line(event))
    else:
        print(_summary_text(summary))
        if lock is not None:
            print(f"  {lock}")
        print(*map(_broker_text, broker_events), sep="\n")
        for line in _problem_lines(problems, cluster, args.internal):
            print(line)
    return DAMAGE if problems or silent or lock is not None else OK


class ClusterState(NamedTuple):
    """brokers: ids, also of those that are not alive and have replicas.  silent: why a broker does not answer, or what
    its process does where it is not registered.  to_continue: how, of brokers whose processes stand still.  problems:
    the partitions that are not in order.  store_lock: who has locked the metadata store, None if it is not."""

    cluster: ClusterDescription
    partitions: Mapping[TopicPartition, PartitionDescription]
    brokers: list[int]
    silent: Mapping[int, str]
    to_continue: Mapping[int, str]
    problems: list[PartitionProblem]
    store_lock: str | None


def look_at(admin: AdminClient, topics: Iterable[str] = ()) -> ClusterState:
    """Raises UsageError unless all these topics are there, OSError, KafkaError."""
    cluster = admin.describe_cluster()
    for name in topics:
        if name not in cluster.topics:
            raise UsageError(f"there is no topic {name!r}{nearest_topic(name, cluster.topics)}")
    silences = admin.note_silent_brokers(cluster.brokers.values())
    partitions = {
        TopicPartition(topic.name, number): partition
        for topic in cluster.topics.values()
        for number, partition in topic.partitions.items()
    }
    brokers = sorted({*cluster.brokers, *(replica for p in partitions.values() for replica in p.replicas)})
    # The cluster has ended their sessions; their processes may be here all the same.
    processes = {number: process_of_member(cluster.cluster_id, number) for number in {*brokers} - {*cluster.brokers}}
    silent = {number: silence.reason for number, silence in silences.items()}
    silent |= {number: _process_text(process) for number, process in processes.items() if process is not None}
    processes |= {number: process_of_address(*cluster.brokers[number][1:3]) for number in silences}
    to_continue = {
        number: text
        for number, process in processes.items()
        if process is not None and (text := process.how_to_continue()) is not None
    }
    internal = {topic.name for topic in cluster.topics.values() if topic.is_internal}
    problems = [
        PartitionProblem(tp, partition, tp.topic in internal)
        for tp, partition in sorted(partitions.items())
        if not is_in_sync(partition)
    ]
    lock = store_lock_of(cluster, silences)
    return ClusterState(cluster, partitions, brokers, silent, to_continue, problems, lock)


def _process_text(process: BrokerProcess) -> str:
    """What the process of a broker that is not registered does."""
    runs = f"its process {process.pid} runs: it is starting, or its session has ended and it has no new one yet"
    return process.stopped_reason() or "; ".join(filter(None, [runs, process.locked_reason()]))


class PartitionProblem(NamedTuple):
    """A partition without a leader, or with a replica that is not in sync."""

    topic_partition: TopicPartition
    partition: PartitionDescription
    is_internal: bool

    @property
    def is_offline(self) -> bool:
        return self.partition.leader < 0

    @property
    def not_in_sync(self) -> tuple[int, ...]:
        """Brokers."""
        return tuple(sorted({*self.partition.replicas} - {*self.partition.isr}))

    def event(self) -> dict[str, object]:
        return {
            "type": "partition",
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "is_internal": self.is_internal,
            "problem": "offline" if self.is_offline else "under replicated",
            "leader": self.partition.leader,
            "replicas": self.partition.replicas,
            "isr": self.partition.isr,
            "not_in_sync": self.not_in_sync,
        }

    def text(self) -> str:
        leader = "" if self.is_offline else f"leader {self.partition.leader}, "
        replicas, isr = ids_text(self.partition.replicas), ids_text(self.partition.isr)
        return f"{self.topic_partition}: {leader}replicas {replicas}, ISR {isr}"


def _summary(
    cluster: ClusterDescription, partitions: Mapping[TopicPartition, PartitionDescription]
) -> dict[str, object]:
    return {
        "type": "cluster",
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id,
        "brokers": len(cluster.brokers),
        "topics": len(cluster.topics),
        "partitions": len(partitions),
        "offline": sum(partition.leader < 0 for partition in partitions.values()),
        "under_replicated": sum(len(partition.isr) < len(partition.replicas) for partition in partitions.values()),
    }


def _broker(
    number: int,
    cluster: ClusterDescription,
    partitions: Mapping[TopicPartition, PartitionDescription],
    silent: Mapping[int, str],
) -> dict[str, object]:
    node = cluster.brokers.get(number)
    hosted = [partition for partition in partitions.values() if number in partition.replicas]
    return {
        "type": "broker",
        "broker": number,
        "address": None if node is None else f"{node.host}:{node.port}",
        "rack": None if node is None else node.rack,
        "is_alive": node is not None,
        "no_answer": silent.get(number),
        "is_controller": number == cluster.controller_id,
        "replicas": len(hosted),
        "leaders": sum(partition.leader == number for partition in hosted),
        "preferred_leaders": sum(partition.replicas[0] == number for partition in hosted),
        "in_sync": sum(number in partition.isr for partition in hosted),
    }


def _summary_text(event: Mapping[str, object]) -> str:
    return (
        f"cluster {event['cluster_id']}, controller {leader_text(_int(event['controller']))}: "
        f"{counted(_int(event['brokers']), 'broker')}, {counted(_int(event['topics']), 'topic')}, "
        f"{counted(_int(event['partitions']), 'partition')}, {event['offline']} offline, "
        f"{event['under_replicated']} under replicated"
    )


def _broker_text(event: Mapping[str, object]) -> str:
    at = f"at {event['address']}" if event["is_alive"] else "not alive"
    rack = f", rack {event['rack']}" if event["rack"] else ""
    controller = ", controller" if event["is_controller"] else ""
    verb = "it does not answer: " if event["is_alive"] else ""
    silence = "" if event["no_answer"] is None else f"; {verb}{event['no_answer']}"
    return (
        f"  broker {event['broker']} {at}{rack}{controller}: leads {event['leaders']} "
        f"(preferred leader of {event['preferred_leaders']}), in sync for {event['in_sync']} "
        f"of {counted(_int(event['replicas']), 'replica')}{silence}"
    )


def _problem_lines(problems: list[PartitionProblem], cluster: ClusterDescription, with_internal: bool) -> Iterator[str]:
    """Partitions of one heading below each other; of an internal topic one line for each heading, unless all its
    partitions are wanted."""
    headings: dict[str, list[PartitionProblem]] = {}
    for problem in sorted(problems, key=lambda problem: (not problem.is_offline, problem.not_in_sync)):
        headings.setdefault(_heading(problem), []).append(problem)
    for heading, group in headings.items():
        yield f"  {heading}: {counted(len(group), 'partition')}"
        summed: dict[str, int] = {}
        for problem in group:
            if problem.is_internal and not with_internal:
                summed[problem.topic_partition.topic] = summed.get(problem.topic_partition.topic, 0) + 1
            else:
                yield f"    {problem.text()}"
        for name, count in summed.items():
            yield f"    {name} (internal): {count} of {counted(len(cluster.topics[name].partitions), 'partition')}"


def _heading(problem: PartitionProblem) -> str:
    if problem.is_offline:
        return "offline, without a leader"
    return (
        f"under replicated, not in sync on broker{'s' * (len(problem.not_in_sync) > 1)} {ids_text(problem.not_in_sync)}"
    )


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
