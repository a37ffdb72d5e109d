"""What ReplicaManager knows of the fetchers, without loading any: a broker alone has none."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kcore.common.topic_partition import TopicPartition

if TYPE_CHECKING:
    from kcore.replica.fetcher.partition_fetch_state import PartitionFetchState


class InitialFetchState(NamedTuple):
    """initial_offset: the high watermark (RM-21); a negative one is looked up at the leader (FT-04)."""

    initial_offset: int
    current_leader_epoch: int


class FetchSource(NamedTuple):
    """Which broker a partition is copied from, and from where on."""

    leader_id: int
    initial: InitialFetchState


class Fetchers(Protocol):
    """What ReplicaManager needs of the fetchers; a simulation has its own."""

    def add_partitions(self, partitions: Mapping[TopicPartition, FetchSource]) -> None:
        """Copy these from now on."""
        ...

    def remove_partitions(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionFetchState]:
        """No longer copy these: nothing is written to them once this has returned.  The states that they had."""
        ...

    def delay_reason(self, tp: TopicPartition) -> str | None:
        """Why a partition that is copied does not go on, as far as that is known: a sentence for people."""
        ...

    def shutdown_idle(self) -> None:
        """End what has no partition left (RM-12)."""
        ...

    def close(self) -> None:
        """Copy nothing any more."""
        ...


class NoFetchers:
    """Fetchers of a broker that follows no other."""

    def add_partitions(self, partitions: Mapping[TopicPartition, FetchSource]) -> None:
        pass

    def remove_partitions(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionFetchState]:
        return {}

    def delay_reason(self, tp: TopicPartition) -> str | None:
        return None

    def shutdown_idle(self) -> None:
        pass

    def close(self) -> None:
        pass


def fetcher_id(tp: TopicPartition, num_fetchers: int) -> int:
    """Which of the fetchers of its leader copies tp: the same in every process (FMGR-01)."""
    return (zlib.crc32(tp.topic.encode()) + tp.partition) % num_fetchers
