"""partition_states: the partitions of a LeaderAndIsr or UpdateMetadata request, which newer versions group by topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar
from uuid import UUID

from kcore.common.topic_partition import ZERO_UUID


class State(Protocol):
    topic_name: str


StateT = TypeVar("StateT", bound=State)
StateT_co = TypeVar("StateT_co", bound=State, covariant=True)


class TopicStates(Protocol[StateT_co]):
    topic_name: str
    topic_id: UUID

    @property
    def partition_states(self) -> Sequence[StateT_co]: ...


def partition_states(
    ungrouped: Iterable[StateT], topics: Iterable[TopicStates[StateT]]
) -> Iterator[tuple[str, UUID, StateT]]:
    """(topic, its id or ZERO_UUID, state) of each partition."""
    for state in ungrouped:
        yield state.topic_name, ZERO_UUID, state
    for topic in topics:
        for state in topic.partition_states:
            yield topic.topic_name, topic.topic_id, state
