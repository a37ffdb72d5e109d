"""The name of a partition."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

#: "No topic id": what Kafka sends for a topic that has none.
ZERO_UUID = UUID(int=0)


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
