"""DamageChecks: a leader whose followers do not get past an offset looks whether its own records there are damaged.

A follower that is sent a batch with a wrong CRC asks for it again and again, a kcore follower and a Java one alike; it
has no request to say why.  If the leader's records are damaged, and another replica in sync is alive, this one gives
its partition up: the log gets the mark of its lost records, the partition is offline, and the controller elects
another leader, whom this broker then follows.  Not in Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kcore.common.scheduler import Scheduler
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaError
from kcore.log.damage import find_damage
from kcore.replica.partition import Partition
from kcore.replica.partition_state import LeaderState

if TYPE_CHECKING:
    from kcore.replica.replica import Replica

logger = logging.getLogger(__name__)

#: A follower that is sent the same records for this long, and so often, may not be able to take them.
REPEATS = 3
REPEATS_MS = 3000
#: A log is checked at most so often.
CHECK_INTERVAL_MS = 60_000


@dataclass(slots=True)
class RepeatedReads:
    """How often a follower was sent records from the same offset on, and since when (ms)."""

    offset: int
    count: int
    since_ms: int


def has_repeated(repeats: RepeatedReads, now_ms: int) -> bool:
    return repeats.count >= REPEATS and now_ms - repeats.since_ms >= REPEATS_MS


class DamageChecks:
    """Thread-safe.  A log is read on the scheduler's thread, which may wait for a disk.

    give_up(partition, reason): takes a partition offline unless it is another one or is not led any more; whether it
    did.
    """

    def __init__(self, scheduler: Scheduler, time: Time, give_up: Callable[[Partition, str], bool]) -> None:
        self._scheduler = scheduler
        self._time = time
        self._give_up = give_up
        self._next_check_ms: dict[TopicPartition, int] = {}
        #: Called after a partition was given up.
        self.on_given_up: Callable[[TopicPartition], None] = lambda topic_partition: None

    def note_repeat(self, partition: Partition, replica: Replica, offset: int, now_ms: int) -> None:
        """The follower was sent records from an offset on, and again from the same one."""
        repeats = replica.repeats
        if repeats is None or repeats.offset != offset:
            replica.repeats = RepeatedReads(offset, 1, now_ms)
            return
        repeats.count += 1
        if has_repeated(repeats, now_ms):
            replica.repeats = None
            self.suspect(partition, offset, f"broker {replica.broker_id} asks again and again for the same records")

    def suspect(self, partition: Partition, offset: int, why: str) -> None:
        """Check what a read at offset returns, unless this log was checked a short time ago.  Returns at once."""
        tp = partition.topic_partition
        now_ms = self._time.milliseconds()
        if now_ms < self._next_check_ms.get(tp, 0):
            return
        self._next_check_ms[tp] = now_ms + CHECK_INTERVAL_MS
        self._scheduler.schedule("check-records", lambda: self._check(partition, offset, why))

    def _check(self, partition: Partition, offset: int, why: str) -> None:
        tp, log = partition.topic_partition, partition.log
        state = partition.state
        if not isinstance(state, LeaderState):
            return
        try:
            damage = find_damage(log, offset)
        except (KafkaError, OSError) as error:
            logger.warning("%s: its records from offset %d on could not be checked: %s", tp, offset, error)
            return
        if damage is None:
            logger.info("%s: %s, but its records from offset %d on are sound here", tp, why, offset)
            return
        others = [
            member
            for member in sorted(state.isr.committed)
            if member != partition.local_broker_id and partition.is_alive(member)
        ]
        if not others:
            logger.error("%s: damaged from %s.  No other replica is in sync: it leads on", tp, damage)
            return
        try:
            log.mark_lost_records(damage.offset)
        except KafkaError as error:
            logger.error("%s: damaged from %s, and the log could not be marked: %s", tp, damage, error)
            return
        if self._give_up(partition, f"its log is damaged from {damage}"):
            logger.error("%s: damaged from %s.  It goes offline, another of %s is to lead", tp, damage, others)
            self.on_given_up(tp)
