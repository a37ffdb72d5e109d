"""`kcore reassign --throttle`: the moved partitions' replication gets a rate while they move.

Source: ReassignPartitionsCommand (--throttle, and --verify, which removes it), Kafka 3.9; KIP-73.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from kcore.client.admin_client import AdminClient, ClusterDescription, ConfigValue
from kcore.common.topic_partition import TopicPartition

#: Settings of brokers, and the topics' lists of what they limit: `partition:broker`, ...
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADER_LIST, FOLLOWER_LIST = LISTS = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)


def throttled_replicas(
    targets: Mapping[TopicPartition, Sequence[int]], present: Mapping[TopicPartition, Sequence[int]]
) -> dict[str, dict[str, list[str]]]:
    """Topic -> setting -> items: any present replica may lead, and the replicas that are added follow."""
    topics: dict[str, dict[str, list[str]]] = {}
    for tp, target in targets.items():
        lists = topics.setdefault(tp.topic, {LEADER_LIST: [], FOLLOWER_LIST: []})
        lists[LEADER_LIST] += [f"{tp.partition}:{broker}" for broker in present[tp]]
        lists[FOLLOWER_LIST] += [f"{tp.partition}:{broker}" for broker in target if broker not in present[tp]]
    return topics


def throttle(
    admin: AdminClient,
    cluster: ClusterDescription,
    targets: Mapping[TopicPartition, Sequence[int]],
    present: Mapping[TopicPartition, Sequence[int]],
    bytes_per_second: int,
) -> None:
    """Limit what the moves copy, for each broker that sends or gets records.  Raises what the brokers answer."""
    involved = {broker for replicas in (*targets.values(), *present.values()) for broker in replicas}
    # First: a rate that a broker refuses leaves the topics as they are.
    _set_rates(admin, cluster, involved, str(bytes_per_second))
    for topic, lists in throttled_replicas(targets, present).items():
        config = admin.topic_configs([topic])[topic]
        changes = {}
        for name, items in lists.items():
            own = _own(config, name)
            changes[name] = own if own == "*" else ",".join(dict.fromkeys([*filter(None, own.split(",")), *items]))
        admin.alter_topic_config(topic, changes)


def throttled_topics(admin: AdminClient, topics: Collection[str]) -> list[str]:
    """Those that have a list, of an earlier move or somebody's own."""
    configs = admin.topic_configs(topics)
    return [topic for topic in topics if any(_own(configs[topic], name) for name in LISTS)]


def remove_throttle(
    admin: AdminClient, cluster: ClusterDescription, topic_partitions: Iterable[TopicPartition]
) -> bool:
    """Delete the lists of these partitions' topics, but for what is in them of others that are still being moved; and,
    unless partitions are still being moved, the rates of all live brokers.

    Returns whether the rates were deleted.  Raises what the brokers answer.
    """
    ended: dict[str, set[int]] = {}
    for topic, number in topic_partitions:
        ended.setdefault(topic, set()).add(number)
    running = admin.reassignments()
    for topic, numbers in ended.items():
        moving = {str(tp.partition) for tp in running if tp.topic == topic and tp.partition not in numbers}
        config = admin.topic_configs([topic])[topic] if moving else {}
        changes: dict[str, str | None] = {}
        for name in LISTS:
            own = _own(config, name) if moving else ""
            kept = [
                item for item in own.split(",") if item == "*" or item.partition(":")[0].strip() in map(str, moving)
            ]
            changes[name] = ",".join(kept) or None
        admin.alter_topic_config(topic, changes)
    if admin.reassignments():
        return False
    _set_rates(admin, cluster, cluster.brokers, None)
    return True


def _own(config: Mapping[str, ConfigValue], name: str) -> str:
    """A topic's own list, empty for none."""
    return (config[name].value or "") if name in config and config[name].is_own else ""


def _set_rates(admin: AdminClient, cluster: ClusterDescription, brokers: Collection[int], rate: str | None) -> None:
    """Of those that are alive: a broker changes its own settings."""
    for broker in sorted(cluster.brokers.keys() & set(brokers)):
        admin.alter_broker_config(cluster.brokers[broker], dict.fromkeys(RATES, rate))
