"""The object that the fixture `kafka` returns: a broker, the settings of clients for it, and waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kcore.coordinator.group.group_metadata import GroupMetadata
from kcore.errors import KafkaError
from kcore.protocol.messages.consumer_protocol import assigned_partitions
from kcore.server.broker import Broker

__all__ = ["KafkaFixture", "WaitTimedOut"]

#: Of a wait, between two looks at the broker.
PAUSE_S = 0.003


class WaitTimedOut(AssertionError):
    """What a test waited for did not happen in time.  The message says what there was at the end."""


class KafkaFixture:
    """A running broker in a test.  Thread-safe; whoever made the broker stops it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    @property
    def bootstrap_servers(self) -> str:
        """host:port, which FastStream takes as it is."""
        return self.broker.bootstrap_servers

    def confluent(self, **settings: Any) -> dict[str, Any]:
        """Settings for a producer or an admin client of confluent-kafka; `settings` with _ for each dot are added."""
        added = {key.replace("_", "."): value for key, value in settings.items()}
        return {"bootstrap.servers": self.bootstrap_servers, "reconnect.backoff.ms": 10} | added

    def confluent_consumer(self, group_id: str, **settings: Any) -> dict[str, Any]:
        """Settings for a consumer of confluent-kafka that reads from the first record."""
        defaults = {"group_id": group_id, "auto_offset_reset": "earliest", "topic_metadata_refresh_interval_ms": 500}
        return self.confluent(**defaults | settings)

    def wait_for_group(
        self, group_id: str, state: str = "Stable", partitions: int | None = None, timeout: float = 30
    ) -> None:
        """Wait until the group has this state (Kafka's name) and its members are assigned this many partitions.

        Raises WaitTimedOut with the group's state, generation and members after `timeout` seconds.
        """
        wanted = f"group {group_id} to be {state}" + ("" if partitions is None else f" with {partitions} partitions")

        def reached() -> bool:
            group = self.broker.group_coordinator.manager.get_group(group_id)
            if group is None:
                return False
            with group:
                assigned = partitions is None or _assigned_partitions(group) == partitions
                return group.state.value == state and not group.pending_sync_members and assigned

        _wait(reached, wanted, lambda: self._describe_group(group_id), timeout)

    def wait_for_records(self, topic: str, count: int, timeout: float = 30) -> None:
        """Wait until a consumer can read `count` records of the topic, which must exist.

        Raises WaitTimedOut with their number after `timeout` seconds.
        """

        def readable() -> int:
            return sum(1 for _ in self.broker.consume(topic))

        _wait(
            lambda: readable() >= count,
            f"{count} records in {topic}",
            lambda: f"it has {readable()}",
            timeout,
        )

    def _describe_group(self, group_id: str) -> str:
        group = self.broker.group_coordinator.manager.get_group(group_id)
        if group is None:
            return "there is no such group"
        with group:
            return (
                f"it is {group.state.value}, generation {group.generation_id}, members {sorted(group.members)}, "
                f"{_assigned_partitions(group)} partitions assigned, "
                f"waiting for SyncGroup of {sorted(group.pending_sync_members)}"
            )


def _wait(reached: Callable[[], bool], wanted: str, now: Callable[[], str], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not reached():
        if time.monotonic() >= deadline:
            raise WaitTimedOut(f"waited {timeout:g} s for {wanted}: {now()}")
        time.sleep(PAUSE_S)


def _assigned_partitions(group: GroupMetadata) -> int:
    return sum(_partitions_in(bytes(member.assignment)) for member in group.members.values())


def _partitions_in(assignment: bytes) -> int:
    """0 for bytes that are no assignment of partitions, as of another protocol."""
    try:
        return sum(len(topic.partitions) for topic in assigned_partitions(assignment))
    except KafkaError:
        return 0
