"""`kcore cluster`: the brokers of a running cluster, what each leads, and what is wrong with partitions."""

from __future__ import annotations

import argparse

from kcore.client.admin_client import ClusterDescription
from kcore.common.text import counted, json_line
from kcore.common.topic_partition import TopicPartition
from kcore.tools.cluster_command import add_cluster, admin_client, ids_text, leader_text
from kcore.tools.command_line import DAMAGE, OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster(parser, "kcore cluster --bootstrap localhost:9092", "one JSON object a line")


def run(args: argparse.Namespace) -> int:
    """0; 1 if a partition has no leader, or fewer replicas in sync than it has."""
    with admin_client(args) as admin:
        cluster = admin.describe_cluster()
    events = _events(cluster)
    for event in events:
        print(json_line(event) if args.json else _text(event))
    return DAMAGE if any(event["type"] == "partition" for event in events) else OK


def _events(cluster: ClusterDescription) -> list[dict[str, object]]:
    partitions = {
        TopicPartition(topic.name, number): partition
        for topic in cluster.topics.values()
        for number, partition in topic.partitions.items()
    }
    offline = {tp for tp, partition in partitions.items() if partition.leader < 0}
    under_replicated = {tp for tp, partition in partitions.items() if len(partition.isr) < len(partition.replicas)}
    events: list[dict[str, object]] = [
        {
            "type": "cluster",
            "cluster_id": cluster.cluster_id,
            "controller": cluster.controller_id,
            "brokers": len(cluster.brokers),
            "topics": len(cluster.topics),
            "partitions": len(partitions),
            "offline": len(offline),
            "under_replicated": len(under_replicated),
        }
    ]
    # Also those that are not alive, if they have replicas.
    broker_ids = sorted({*cluster.brokers, *(replica for p in partitions.values() for replica in p.replicas)})
    for broker_id in broker_ids:
        node = cluster.brokers.get(broker_id)
        hosted = [partition for partition in partitions.values() if broker_id in partition.replicas]
        events.append(
            {
                "type": "broker",
                "broker": broker_id,
                "address": None if node is None else f"{node.host}:{node.port}",
                "rack": None if node is None else node.rack,
                "is_alive": node is not None,
                "is_controller": broker_id == cluster.controller_id,
                "replicas": len(hosted),
                "leaders": sum(partition.leader == broker_id for partition in hosted),
                "preferred_leaders": sum(partition.replicas[0] == broker_id for partition in hosted),
                "in_sync": sum(broker_id in partition.isr for partition in hosted),
            }
        )
    events += [
        {
            "type": "partition",
            "topic": tp.topic,
            "partition": tp.partition,
            "problem": "offline" if tp in offline else "under replicated",
            "leader": partitions[tp].leader,
            "replicas": partitions[tp].replicas,
            "isr": partitions[tp].isr,
        }
        for tp in sorted(offline | under_replicated)
    ]
    return events


def _text(event: dict[str, object]) -> str:
    if event["type"] == "cluster":
        return (
            f"cluster {event['cluster_id']}, controller {leader_text(_int(event['controller']))}: "
            f"{counted(_int(event['brokers']), 'broker')}, {counted(_int(event['topics']), 'topic')}, "
            f"{counted(_int(event['partitions']), 'partition')}, {event['offline']} offline, "
            f"{event['under_replicated']} under replicated"
        )
    if event["type"] == "broker":
        at = f"at {event['address']}" if event["is_alive"] else "not alive"
        rack = f", rack {event['rack']}" if event["rack"] else ""
        controller = ", controller" if event["is_controller"] else ""
        return (
            f"  broker {event['broker']} {at}{rack}{controller}: leads {event['leaders']} "
            f"(preferred leader of {event['preferred_leaders']}), in sync for {event['in_sync']} "
            f"of {counted(_int(event['replicas']), 'replica')}"
        )
    return (
        f"  {event['topic']}-{event['partition']} {event['problem']}: leader {leader_text(_int(event['leader']))}, "
        f"replicas {ids_text(event['replicas'])}, ISR {ids_text(event['isr'])}"  # type: ignore[arg-type]
    )


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
