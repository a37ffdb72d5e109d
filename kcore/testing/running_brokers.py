"""The brokers of a test as one: which topics and groups they have, and which broker leads or coordinates what."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kcore.coordinator.group.group_metadata import GroupMetadata
from kcore.errors import UnknownTopicOrPartition
from kcore.metadata.metadata_cache import MetadataCache, PartitionInfo
from kcore.server.broker import Broker


class RunningBrokers:
    """running(): the brokers that run now, by id; one at least.  Thread-safe, as the brokers are."""

    def __init__(self, running: Callable[[], Mapping[int, Broker]]) -> None:
        self.running = running

    @property
    def metadata(self) -> MetadataCache:
        """As one of the brokers has them."""
        return next(iter(self.running().values())).metadata_cache

    def partitions(self, topic: str) -> Mapping[int, PartitionInfo]:
        """Raises UnknownTopicOrPartition."""
        info = self.metadata.topic(topic)
        if info is None:
            raise UnknownTopicOrPartition(f"{topic}: no such topic")
        return info.partitions

    def leader(self, topic: str, partition: int) -> Broker | None:
        """None for a partition that no running broker leads, and for one that does not exist."""
        info = self.metadata.topic(topic)
        state = info.partitions.get(partition) if info is not None else None
        return None if state is None else self.running().get(state.leader)

    def groups(self) -> list[GroupMetadata]:
        """By id, each as its coordinator has it."""
        by_id = {
            group.group_id: group
            for broker in self.running().values()
            for group in broker.group_coordinator.manager.groups()
        }
        return [by_id[group_id] for group_id in sorted(by_id)]

    def group(self, group_id: str) -> GroupMetadata | None:
        groups = (broker.group_coordinator.manager.get_group(group_id) for broker in self.running().values())
        return next((group for group in groups if group is not None), None)
