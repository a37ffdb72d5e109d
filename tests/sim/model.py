"""A simulation's copy of its replicas: the batches of each, and the changes of a step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptMessage
from kcore.log.unified_log import UnifiedLog
from kcore.replica.partition import Partition
from kcore.replica.partition_state import LeaderState, PartitionState
from tests.sim.node import Node

#: Of a batch: base offset, length and leader epoch stand before the CRC, and are the leader's to write.
CRC_AT = 17


class Batch(NamedTuple):
    base_offset: int
    last_offset: int
    leader_epoch: int
    data: bytes

    @property
    def payload(self) -> bytes:
        """What the producer has sent of it."""
        return self.data[CRC_AT:]

    def __str__(self) -> str:
        offsets = (
            f"{self.base_offset}" if self.base_offset == self.last_offset else f"{self.base_offset}-{self.last_offset}"
        )
        return f"{offsets}@{self.leader_epoch}"


class Batches:
    """Batches in the order of offsets."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._batches: list[Batch] = []

    def append(self, batch: Batch) -> None:
        self._bases.append(batch.base_offset)
        self._batches.append(batch)

    def since(self, offset: int) -> Iterator[Batch]:
        """Those whose last offset is at or above offset."""
        at = max(bisect_left(self._bases, offset) - 1, 0)
        for index in range(at, len(self._batches)):
            if self._batches[index].last_offset >= offset:
                yield self._batches[index]

    def at(self, base_offset: int) -> Batch | None:
        at = bisect_left(self._bases, base_offset)
        return self._batches[at] if at < len(self._bases) and self._bases[at] == base_offset else None

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


@dataclass(slots=True)
class Copy:
    """One broker's replica as it was after the last step."""

    broker: int
    topic_partition: TopicPartition
    log: UnifiedLog
    state: PartitionState
    truncations: int = -1
    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: int = 0
    batches: Batches = field(default_factory=Batches)

    @property
    def leads(self) -> bool:
        return isinstance(self.state, LeaderState)

    @property
    def is_the_leader_of(self) -> int | None:
        """The leader epoch, if this replica leads."""
        return self.state.leader_epoch if isinstance(self.state, LeaderState) else None

    def __str__(self) -> str:
        role = "leader" if self.leads else "follower"
        batches = " ".join(str(batch) for batch in self.batches.since(self.log_start_offset))
        return (
            f"broker {self.broker}, {role} with epoch {self.state.leader_epoch}: "
            f"[{self.log_start_offset}, {self.log_end_offset}) committed to {self.high_watermark}: {batches}"
        )


@dataclass(slots=True)
class Change:
    """What one step has changed of one replica; copy is as it is now.

    old_*: as they were; -1 and None for a replica that has just been opened.  was_rewritten: the log was truncated, or
    opened: its batches were read anew.
    """

    copy: Copy
    appended: list[Batch]
    was_rewritten: bool
    old_state: PartitionState | None
    old_log_start_offset: int
    old_log_end_offset: int
    old_high_watermark: int

    @property
    def was_opened(self) -> bool:
        return self.old_state is None

    @property
    def begins_to_lead(self) -> bool:
        """With this leader epoch."""
        copy, old = self.copy, self.old_state
        return copy.leads and not (isinstance(old, LeaderState) and old.leader_epoch == copy.state.leader_epoch)

    @property
    def goes_on_to_lead(self) -> bool:
        return self.copy.leads and not self.begins_to_lead


class Observer:
    """Compares each replica with what it was after the last step."""

    def __init__(self) -> None:
        self.copies: dict[tuple[int, TopicPartition], Copy] = {}

    def of(self, tp: TopicPartition) -> list[Copy]:
        return [copy for (_, other), copy in self.copies.items() if other == tp]

    def forget(self, broker: int) -> None:
        """The broker is down."""
        for key in [key for key in self.copies if key[0] == broker]:
            del self.copies[key]

    def read_again(self, broker: int, tp: TopicPartition) -> None:
        """All of a log whose disk is well again: it may have been read while a batch was damaged."""
        copy = self.copies.get((broker, tp))
        if copy is not None:
            copy.truncations = -1

    def changes(self, nodes: Mapping[int, Node]) -> list[Change]:
        changes = []
        for broker, node in nodes.items():
            for partition in node.replica_manager.partitions():
                copy = self.copies.get((broker, partition.topic_partition))
                if copy is None or copy.log is not partition.log:
                    changes.append(self._opened(broker, partition))
                    continue
                log = copy.log
                if (
                    copy.log_end_offset != log.log_end_offset
                    or copy.high_watermark != log.high_watermark
                    or copy.state is not partition.state
                    or copy.truncations != log._truncations
                    or copy.log_start_offset != log.log_start_offset
                ):
                    changes.append(self._changed(copy, partition))
        return changes

    def _opened(self, broker: int, partition: Partition) -> Change:
        copy = Copy(broker, partition.topic_partition, partition.log, partition.state)
        self.copies[broker, partition.topic_partition] = copy
        change = Change(copy, [], True, None, -1, -1, -1)
        _take_over(copy, partition, change)
        return change

    def _changed(self, copy: Copy, partition: Partition) -> Change:
        was_rewritten = copy.truncations != copy.log._truncations
        change = Change(
            copy, [], was_rewritten, copy.state, copy.log_start_offset, copy.log_end_offset, copy.high_watermark
        )
        _take_over(copy, partition, change)
        return change


def _take_over(copy: Copy, partition: Partition, change: Change) -> None:
    log = copy.log
    if change.was_rewritten:
        copy.batches = Batches()
    read_from = log.log_start_offset if change.was_rewritten else max(copy.log_end_offset, log.log_start_offset)
    if read_from < log.log_end_offset:
        with suppress(CorruptMessage):  # a log whose damage is not cut off yet
            for batch in log.batches(read_from):
                appended = Batch(batch.base_offset, batch.last_offset, batch.leader_epoch, bytes(batch.buffer))
                copy.batches.append(appended)
                change.appended.append(appended)
    copy.state = partition.state
    copy.truncations = log._truncations
    copy.log_start_offset = log.log_start_offset
    copy.log_end_offset = log.log_end_offset
    copy.high_watermark = log.high_watermark
