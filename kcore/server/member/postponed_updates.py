"""PostponedUpdates: the controller's updates that could not be judged when they came, since the store was away."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from uuid import UUID

from kcore.common.topic_partition import TopicPartition
from kcore.replica.partition_state import LeaderAndIsrUpdate


class PostponedUpdates:
    """Thread-safe.  Of each partition and topic id the latest update is kept: an earlier one is over.

    Updates for different topic ids of one name are all kept; the store says later which topic is there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._updates: dict[tuple[TopicPartition, UUID | None], tuple[int, LeaderAndIsrUpdate]] = {}

    def add(self, updates: Iterable[LeaderAndIsrUpdate], controller_epoch: int) -> None:
        """controller_epoch: of the request that the updates came with.  They may come in any order."""
        with self._lock:
            for update in updates:
                key = (update.topic_partition, update.topic_id)
                kept = self._updates.get(key)
                if kept is None or (kept[0], kept[1].leader_epoch) <= (controller_epoch, update.leader_epoch):
                    self._updates[key] = (controller_epoch, update)

    def remove(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """The controller has ordered since to stop these partitions."""
        removed = set(topic_partitions)
        with self._lock:
            self._updates = {key: kept for key, kept in self._updates.items() if key[0] not in removed}

    def take(self) -> list[tuple[int, list[LeaderAndIsrUpdate]]]:
        """All of them, which are not kept any more: (controller epoch, its updates), the lowest epoch first."""
        with self._lock:
            taken, self._updates = self._updates, {}
        by_epoch: dict[int, list[LeaderAndIsrUpdate]] = {}
        for controller_epoch, update in taken.values():
            by_epoch.setdefault(controller_epoch, []).append(update)
        return sorted(by_epoch.items())
