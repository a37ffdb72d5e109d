"""What a page keeps of a cluster's metadata: a line for each topic, and the replicas that are out of the ISR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kcore.client.admin_client import ClusterDescription, TopicDescription
from kcore.common.text import date_of
from kcore.common.topic_partition import TopicPartition


class TopicSummary(NamedTuple):
    """replicas: the most that a partition has.  not_in_sync: partitions with a replica that is out of the ISR.
    leaderless: partitions without a leader."""

    name: str
    is_internal: bool
    partitions: int
    replicas: int
    not_in_sync: int
    leaderless: int


class Catalog(NamedTuple):
    """at_ms: when the cluster was asked.  out_since: (partition, broker id) of each replica that is out of the ISR ->
    since when it was seen to be."""

    at_ms: int
    topics: Mapping[str, TopicSummary]
    out_since: Mapping[tuple[TopicPartition, int], int]

    @property
    def partitions(self) -> int:
        return sum(topic.partitions for topic in self.topics.values())

    @property
    def not_in_sync(self) -> int:
        return sum(topic.not_in_sync for topic in self.topics.values())

    @property
    def leaderless(self) -> int:
        return sum(topic.leaderless for topic in self.topics.values())


def catalog_of(cluster: ClusterDescription, now_ms: int, before: Catalog | None) -> Catalog:
    """before: the last one; a replica that was out there keeps its time."""
    known = {} if before is None else before.out_since
    out_since = {}
    for topic in cluster.topics.values():
        for number, partition in topic.partitions.items():
            if len(partition.isr) < len(partition.replicas):
                tp = TopicPartition(topic.name, number)
                for replica in set(partition.replicas) - set(partition.isr):
                    out_since[tp, replica] = known.get((tp, replica), now_ms)
    return Catalog(now_ms, {topic.name: _summary(topic) for topic in cluster.topics.values()}, out_since)


def since_text(out: tuple[TopicPartition, int], catalog: Catalog | None, first_look_ms: int | None) -> str:
    """Since when a replica is out of the ISR, for brokers that do not explain the reason.

    out: the partition and the broker.  first_look_ms: when the first catalog was made.  A replica that was out of the
    ISR then may have left it long before.
    """
    if catalog is None:
        return "behind"
    since_ms = catalog.out_since.get(out, catalog.at_ms)  # at the last look it was not out yet
    was_out = since_ms == first_look_ms and out in catalog.out_since
    return f"behind since {date_of(since_ms)}{' at least, when this page first looked' if was_out else ''}"


def _summary(topic: TopicDescription) -> TopicSummary:
    partitions = topic.partitions.values()
    return TopicSummary(
        topic.name,
        topic.is_internal,
        len(partitions),
        max((len(partition.replicas) for partition in partitions), default=0),
        sum(len(partition.isr) < len(partition.replicas) for partition in partitions),
        sum(partition.leader < 0 for partition in partitions),
    )
