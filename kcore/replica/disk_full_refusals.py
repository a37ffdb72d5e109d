"""DiskFullRefusals: appends that a leader refused because its disk is full, and when another broker should lead.

Not in Kafka, where a full disk takes the data directory offline.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.log.disk_room import has_room
from kcore.replica.hosted_partitions import HostedPartitions
from kcore.replica.partition import Partition
from kcore.replica.partition_state import LeaderState

#: How long a row of refusals lasts before another broker should lead.
HAND_OVER_AFTER_MS = 3000


class RefusedAppends(NamedTuple):
    """A row of refused appends to one partition; no append was accepted in between.

    log_end_offset: at the first of them.  first_ms, last_ms: when the first and the last one came.
    """

    leader_epoch: int
    log_end_offset: int
    first_ms: float
    last_ms: float


def after_refusal(row: RefusedAppends | None, leader_epoch: int, log_end_offset: int, now_ms: float) -> RefusedAppends:
    """The row with one more refusal; a new row if an append was accepted since, or another leader epoch has begun."""
    if row is None or not is_unbroken(row, leader_epoch, log_end_offset):
        return RefusedAppends(leader_epoch, log_end_offset, now_ms, now_ms)
    return row._replace(last_ms=max(row.last_ms, now_ms))


def is_unbroken(row: RefusedAppends, leader_epoch: int, log_end_offset: int) -> bool:
    """Whether nothing was appended since the row began, and it is of this leader epoch."""
    return (row.leader_epoch, row.log_end_offset) == (leader_epoch, log_end_offset)


def needs_another_leader(row: RefusedAppends) -> bool:
    """Whether producers have tried in vain for long enough.  A single refusal is not enough, however old it is."""
    return row.last_ms - row.first_ms >= HAND_OVER_AFTER_MS


class DiskFullRefusals:
    """Thread-safe.  note() is called on network threads, has_room() waits for a disk.

    on_needed: called by note(), on its thread, when a partition needs another leader; must not wait.
    """

    def __init__(self, time: Time, hosted_partitions: HostedPartitions) -> None:
        self._time = time
        self._hosted_partitions = hosted_partitions
        self._lock = threading.Lock()
        self._rows: dict[TopicPartition, RefusedAppends] = {}
        self.on_needed: Callable[[], None] = lambda: None

    def note(self, partition: Partition) -> None:
        """An append to this partition was refused because the disk is full."""
        tp = partition.topic_partition
        with self._lock:
            row = after_refusal(
                self._rows.get(tp), partition.leader_epoch, partition.log.log_end_offset, self._time.hi_res_clock_ms()
            )
            self._rows[tp] = row
        if needs_another_leader(row):
            self.on_needed()

    def needing_another_leader(self) -> dict[TopicPartition, int]:
        """The partitions that this broker leads and cannot append to, with their leader epochs.

        Forgets the rows that have ended.
        """
        needing = {}
        with self._lock:
            rows = dict(self._rows)
        for tp, row in rows.items():
            partition, leader_epoch = self._hosted_partitions.get(tp), self.leader_epoch(tp)
            if (
                isinstance(partition, Partition)
                and leader_epoch is not None
                and is_unbroken(row, leader_epoch, partition.log.log_end_offset)
            ):
                if needs_another_leader(row):
                    needing[tp] = row.leader_epoch
            else:
                self._remove_row(tp, row)
        return needing

    def _remove_row(self, tp: TopicPartition, row: RefusedAppends) -> None:
        with self._lock:
            if self._rows.get(tp) is row:
                del self._rows[tp]

    def remove(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Count anew: the disk of these has room, as far as is known."""
        with self._lock:
            for tp in topic_partitions:
                self._rows.pop(tp, None)

    def have_room(self, topic_partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Of these the partitions whose data directory has room, or that are not hosted any more.

        Each directory is tried once.
        """
        room: dict[str, bool] = {}
        have = set()
        for tp in topic_partitions:
            partition = self._hosted_partitions.get(tp)
            if not isinstance(partition, Partition):
                have.add(tp)
                continue
            directory = partition.log.parent_dir
            if directory not in room:
                room[directory] = has_room(directory)
            if room[directory]:
                have.add(tp)
        return have

    def leader_epoch(self, topic_partition: TopicPartition) -> int | None:
        """The epoch in which this broker leads the partition; None if it does not lead it."""
        partition = self._hosted_partitions.get(topic_partition)
        state = partition.state if isinstance(partition, Partition) else None
        return state.leader_epoch if isinstance(state, LeaderState) else None
