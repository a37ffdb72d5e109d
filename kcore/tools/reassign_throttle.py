"""`kcore reassign --throttle`: the moved partitions' replication gets a rate while they move.

Source: ReassignPartitionsCommand (--throttle, and --verify, which removes it), Kafka 3.9; KIP-73.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kcore.client.admin_client import AdminClient, ClusterDescription, ConfigValue
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError

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


class Throttle:
    """The limit of one call's moves: what that call sets, and how it is taken back.  For one thread."""

    def __init__(self, admin: AdminClient, cluster: ClusterDescription) -> None:
        self._admin = admin
        self._cluster = cluster
        #: Broker -> its rates of before, None for one that it did not have.
        self._old_rates: dict[int, dict[str, str | None]] = {}
        #: Topic -> setting -> (items that were in it, items that were added).
        self._added: dict[str, dict[str, tuple[list[str], list[str]]]] = {}

    def set(
        self,
        targets: Mapping[TopicPartition, Sequence[int]],
        present: Mapping[TopicPartition, Sequence[int]],
        bytes_per_second: int,
    ) -> None:
        """Limit what the moves copy, for each broker that sends or gets records.  Raises what the brokers answer, and
        then has taken back what was set before."""
        try:
            # First: a rate that a broker refuses leaves the topics as they are.
            self._set_rates({broker for tp in targets for broker in (*targets[tp], *present[tp])}, bytes_per_second)
            for topic, lists in throttled_replicas(targets, present).items():
                self._add(topic, lists)
        except ApiError:
            self.undo()
            raise

    def undo(self, kept: Collection[TopicPartition] = ()) -> bool:
        """Take back what set() has changed, and nothing else: a throttle of before is there again, unless some move
        needs the new rates.  kept: the partitions that do move.

        Returns whether there was anything to take back.
        """
        has_changed = bool(self._old_rates or self._added)
        for topic, lists in self._added.items():
            # The brokers may not have read yet what set() has stored, so start from that, not from their answers.
            changes: dict[str, str | None] = {}
            for name, (old, added) in lists.items():
                left = [item for item in added if TopicPartition(topic, int(item.partition(":")[0])) in kept]
                if len(left) < len(added):
                    changes[name] = ",".join([*old, *left]) or None
            if changes:
                self._admin.alter_topic_config(topic, changes)
        if not kept:
            for broker, rates in self._old_rates.items():
                self._admin.alter_broker_config(self._cluster.brokers[broker], rates)
        return has_changed

    def _set_rates(self, brokers: Collection[int], bytes_per_second: int) -> None:
        for broker in _alive(self._cluster, brokers):
            node = self._cluster.brokers[broker]
            config = self._admin.broker_config(node)
            self._admin.alter_broker_config(node, dict.fromkeys(RATES, str(bytes_per_second)))
            self._old_rates[broker] = {name: _own(config, name) or None for name in RATES}

    def _add(self, topic: str, lists: Mapping[str, Sequence[str]]) -> None:
        config = self._admin.topic_configs([topic])[topic]
        added = {}
        for name, items in lists.items():
            old = _items(config, name)
            if "*" not in old and (new := [item for item in dict.fromkeys(items) if item not in old]):
                added[name] = (old, new)
        if added:
            changes = {name: ",".join([*old, *new]) for name, (old, new) in added.items()}
            self._admin.alter_topic_config(topic, changes)
            self._added[topic] = added


def throttled_topics(admin: AdminClient, topics: Collection[str]) -> list[str]:
    """Those that have a list, of an earlier move or somebody's own."""
    configs = admin.topic_configs(topics)
    return [topic for topic in topics if any(_own(configs[topic], name) for name in LISTS)]


def remove_throttle(
    admin: AdminClient, cluster: ClusterDescription, ended: Mapping[str, Collection[int] | None]
) -> bool:
    """Delete the lists of whole topics (None), and of others what is in them of these partitions; and, unless
    partitions are still being moved, the rates of all live brokers.

    A `*`, which is of all partitions, stays unless the whole topic is meant.  Returns whether the rates were deleted.
    Raises what the brokers answer.
    """
    for topic, numbers in ended.items():
        changes: dict[str, str | None] = dict.fromkeys(LISTS)
        if numbers is not None:
            config = admin.topic_configs([topic])[topic]
            gone = set(map(str, numbers))
            for name in LISTS:
                kept = [item for item in _items(config, name) if item.partition(":")[0].strip() not in gone]
                changes[name] = ",".join(kept) or None
        admin.alter_topic_config(topic, changes)
    if admin.reassignments():
        return False
    for broker in cluster.brokers.values():
        admin.alter_broker_config(broker, dict.fromkeys(RATES, None))
    return True


def _own(config: Mapping[str, ConfigValue], name: str) -> str:
    """A topic's own list or a broker's own rate, empty for none."""
    return (config[name].value or "") if name in config and config[name].is_own else ""


def _items(config: Mapping[str, ConfigValue], name: str) -> list[str]:
    """Of a topic's own list."""
    return [item.strip() for item in _own(config, name).split(",") if item.strip()]


def _alive(cluster: ClusterDescription, brokers: Collection[int]) -> list[int]:
    """A broker changes its own settings, so that those that are not alive keep theirs."""
    return sorted(cluster.brokers.keys() & set(brokers))
