"""What the fixtures return: brokers, the settings of clients for them, and waits."""

from __future__ import annotations

from kcore.coordinator.group.group_metadata import GroupMetadata
from kcore.errors import KafkaError
from kcore.protocol.messages.consumer_protocol import assigned_partitions
from kcore.server.broker import Broker
from kcore.server.cluster import Cluster
from kcore.server.in_process_client import ConsumerRecord
from kcore.testing.client_settings import ClientSettings
from kcore.testing.running_brokers import RunningBrokers
from kcore.testing.topic_reader import TopicReader
from kcore.testing.waits import Wait, WaitTimedOut

__all__ = ["KafkaClusterFixture", "KafkaFixture", "WaitTimedOut"]


class KafkaTestSupport(ClientSettings):
    """What a test has of one broker and of several.  Thread-safe."""

    def __init__(self, brokers: RunningBrokers) -> None:
        self._brokers = brokers

    # -- topics -----------------------------------------------------------------------------------------

    def clear_topic(self, topic: str) -> None:
        """Delete its records.  Offsets go on: the next record has the offset that it would have had.

        Raises UnknownTopicOrPartition, PolicyViolation for a topic that only compacts, LeaderNotAvailable,
        RequestTimedOut.
        """
        self._brokers.clear(topic)

    # -- waits ------------------------------------------------------------------------------------------

    def wait_for_group(
        self, group_id: str, state: str = "Stable", partitions: int | None = None, timeout: float = 30
    ) -> None:
        """Wait until the group has this state (Kafka's name) and its members are assigned this many partitions.

        Raises WaitTimedOut with the group's state, generation and members after `timeout` seconds.
        """
        wanted = f"group {group_id} to be {state}" + ("" if partitions is None else f" with {partitions} partitions")

        def reached() -> bool:
            group = self._brokers.group(group_id)
            if group is None:
                return False
            with group:
                assigned = partitions is None or _assigned_partitions(group) == partitions
                return group.state.value == state and not group.pending_sync_members and assigned

        Wait(reached, wanted, lambda: self._describe_group(group_id)).run(timeout)

    def wait_for_records(self, topic: str, count: int, timeout: float = 30) -> list[ConsumerRecord]:
        """Wait until a consumer can read `count` records of the topic, which must exist, and return them.

        Each record is read once, and no more than `count`.  Raises WaitTimedOut with their number after `timeout`
        seconds.
        """
        reader = TopicReader(self._brokers, topic, count)
        Wait(reader.read, f"{count} records in {topic}", lambda: f"it has {len(reader.records)}").run(timeout)
        return reader.records

    def _describe_group(self, group_id: str) -> str:
        group = self._brokers.group(group_id)
        if group is None:
            return "there is no such group"
        with group:
            return (
                f"it is {group.state.value}, generation {group.generation_id}, members {sorted(group.members)}, "
                f"{_assigned_partitions(group)} partitions assigned, "
                f"waiting for SyncGroup of {sorted(group.pending_sync_members)}"
            )


class KafkaFixture(KafkaTestSupport):
    """A running broker in a test; whoever made the broker stops it."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(RunningBrokers(lambda: {broker.broker_id: broker}))
        self.broker = broker

    @property
    def bootstrap_servers(self) -> str:
        return self.broker.bootstrap_servers


class KafkaClusterFixture(KafkaTestSupport):
    """A running cluster in a test; whoever made the cluster stops it."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(RunningBrokers(lambda: cluster.brokers))
        self.cluster = cluster

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers


def _assigned_partitions(group: GroupMetadata) -> int:
    return sum(_partitions_in(bytes(member.assignment)) for member in group.members.values())


def _partitions_in(assignment: bytes) -> int:
    """0 for bytes that are no assignment of partitions, as of another protocol."""
    try:
        return sum(len(topic.partitions) for topic in assigned_partitions(assignment))
    except KafkaError:
        return 0
