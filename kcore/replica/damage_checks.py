"""DamageChecks: a leader whose readers do not get past an offset looks whether its own records there are damaged.

A reader that is sent a batch with a wrong CRC asks for it again and again, followers of kcore and Java alike, and
consumers at the latest when they are started again; none has a request to say why.  If the leader's records are
damaged, and another replica in sync is alive, this one gives its partition up: the log gets the mark of its lost
records, the partition is offline, and the controller elects another leader, whom this broker then follows.  Without
another replica it leads on, until one joins the ISR.  Not in Kafka.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from kcore.common.scheduler import Scheduler
from kcore.common.text import date_of, plain_error
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaError
from kcore.log.damage import Damage, find_damage
from kcore.replica.partition import Partition
from kcore.replica.partition_state import LeaderState
from kcore.replica.replica import RepeatedReads, Replica

logger = logging.getLogger(__name__)

#: A reader that is sent the same records for this long, and so often, may not be able to take them.
REPEATS = 3
REPEATS_MS = 3000
#: So long after a check of a segment it is not checked again.
CHECK_INTERVAL_MS = 60_000
#: Of so many offsets it is remembered how often consumers were sent records from them on.
MAX_CONSUMER_READS = 1000


def has_repeated(repeats: RepeatedReads, now_ms: int) -> bool:
    return repeats.count >= REPEATS and now_ms - repeats.since_ms >= REPEATS_MS


class KnownDamage(NamedTuple):
    """Of a partition that is led on although it is damaged.  asked_offset: of the reads that did not get on.  since_ms:
    when it was found."""

    partition: Partition
    asked_offset: int
    damage: Damage
    since_ms: int


class DamageChecks:
    """Thread-safe.  A log is read on the scheduler's thread, which may wait for a disk.

    give_up(partition, leader_epoch, damage): marks the log and takes the partition offline, unless it is another one or
    is not led in that epoch any more; whether it did.  Raises KafkaError if the log cannot be marked.
    """

    def __init__(self, scheduler: Scheduler, time: Time, give_up: Callable[[Partition, int, Damage], bool]) -> None:
        self._scheduler = scheduler
        self._time = time
        self._give_up = give_up
        self._lock = threading.Lock()
        #: By partition and base offset of the segment; infinity while a check is under way.
        self._next_check_ms: dict[tuple[TopicPartition, int], float] = {}
        #: By partition and offset, the one that was read last at the end.
        self._consumer_reads: dict[tuple[TopicPartition, int], RepeatedReads] = {}
        self._led_on: dict[TopicPartition, KnownDamage] = {}
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

    def note_read(self, partition: Partition, offset: int) -> None:
        """A consumer was sent records from an offset on: the first ones of the partition on its connection, or again
        from the same one, or it has gone back after it."""
        if not partition.is_leader:
            return
        key, now_ms = (partition.topic_partition, offset), self._time.milliseconds()
        with self._lock:
            reads = self._consumer_reads
            repeats = reads.pop(key, None) or RepeatedReads(offset, 0, now_ms)
            repeats.count += 1
            is_suspicious = has_repeated(repeats, now_ms)
            if not is_suspicious:
                reads[key] = repeats  # as the last one
                if len(reads) > MAX_CONSUMER_READS:
                    del reads[next(iter(reads))]
        if is_suspicious:
            self.suspect(partition, offset, "consumers ask again and again for the same records")

    def suspect(self, partition: Partition, offset: int, why: str) -> None:
        """Check what a read at offset returns if this broker leads, unless that segment was checked a short time ago.
        Returns at once."""
        segment = partition.log.segments.floor(offset)
        if segment is None or not partition.is_leader:
            return
        key, now_ms = (partition.topic_partition, segment.base_offset), self._time.milliseconds()
        with self._lock:
            if now_ms < self._next_check_ms.get(key, 0):
                return
            self._next_check_ms = {other: at_ms for other, at_ms in self._next_check_ms.items() if at_ms > now_ms}
            self._next_check_ms[key] = math.inf
        self._scheduler.schedule("check-records", lambda: self._check_segment(key, partition, offset, why))

    def known_damage(self, partition: Partition) -> KnownDamage | None:
        """What was found in a partition that this broker leads on; None if nothing was, or it is not in the log now."""
        known = self._led_on.get(partition.topic_partition)
        if known is None or known.partition is not partition or known.damage.offset < partition.log.log_start_offset:
            return None
        return known if partition.is_leader else None

    def reconsider(self) -> None:
        """Check the partitions again that are led on with damage, where another replica is in sync now."""
        for tp, (partition, offset, _, _) in list(self._led_on.items()):
            state = partition.state
            if isinstance(state, LeaderState) and not others_in_sync(partition, state):
                continue
            if self._led_on.pop(tp, None) is not None:
                why = "another replica is in sync"
                self._scheduler.schedule("check-records", partial(self._check, partition, offset, why))

    def _check_segment(self, key: tuple[TopicPartition, int], partition: Partition, offset: int, why: str) -> None:
        try:
            self._check(partition, offset, why)
        finally:
            with self._lock:
                self._next_check_ms[key] = self._time.milliseconds() + CHECK_INTERVAL_MS

    def _check(self, partition: Partition, offset: int, why: str) -> None:
        tp, log = partition.topic_partition, partition.log
        state = partition.state
        if not isinstance(state, LeaderState):
            return
        try:
            damage = find_damage(log, offset)
        except (KafkaError, OSError) as error:
            logger.warning("%s: its records from offset %d on could not be checked: %s", tp, offset, plain_error(error))
            return
        known = self._led_on.get(tp)
        if damage is None:
            if known is not None and known.asked_offset == offset:
                self._led_on.pop(tp, None)
            logger.info("%s: %s, but its records from offset %d on are sound here", tp, why, offset)
            return
        others = others_in_sync(partition, state)
        if not others:
            if known is None or known.partition is not partition or known.damage != damage:
                logger.error("%s: damaged from %s.  No other replica is in sync: it leads on", tp, damage)
                self._led_on[tp] = KnownDamage(partition, offset, damage, self._time.milliseconds())
            return
        try:
            has_given_up = self._give_up(partition, state.leader_epoch, damage)
        except KafkaError as error:
            logger.error("%s: damaged from %s, and the log could not be marked: %s", tp, damage, error)
            return
        if has_given_up:
            logger.error("%s: damaged from %s.  It goes offline, another of %s is to lead", tp, damage, others)
            self.on_given_up(tp)


def reason_given_up(damage: Damage, now_ms: int) -> str:
    """What is said of a partition that was given up, for people."""
    return (
        f"its log is damaged from {damage}; it was taken offline at {date_of(now_ms)}.  Once another broker leads, it "
        f"is cut at offset {damage.offset} and copies the rest from that leader"
    )


def others_in_sync(partition: Partition, state: LeaderState) -> list[int]:
    """The live members of the ISR but this broker."""
    members = sorted(state.isr.committed)
    return [member for member in members if member != partition.local_broker_id and partition.is_alive(member)]
