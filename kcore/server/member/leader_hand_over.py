"""LeaderHandOver: a member whose disk is full asks the controller for other leaders, until there is room again.

The broker's ephemeral node below /kcore/full_disks has the partitions to which it cannot append.  The active kcore
controller watches these nodes (controller/leader_elections.py): it lets another in-sync replica lead what the broker
leads of them, and does not bring the leadership back as long as the node has them.  The node is a state and no message,
so a controller that is elected later goes on with it, and it goes with the broker's session.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kcore.common.scheduler import Scheduler
from kcore.common.text import counted, some_of
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.metadata import znodes
from kcore.metadata.store import MetadataStore, NoNode, StoreError
from kcore.replica.disk_full_refusals import DiskFullRefusals

logger = logging.getLogger(__name__)

#: Between two looks at the partitions, while there are any without room.
_INTERVAL_MS = 1000
#: After the first refusals that count: others are likely to follow, and go with the same write.
_GATHER_MS = 300
#: A leader that no other replica could replace asks again after this time, then after twice as long and so on.
FIRST_ASK_AGAIN_MS = 10_000
LONGEST_ASK_AGAIN_MS = 300_000
#: How long a partition stays in the node at least; twice as long if room was found and was not enough, and so on.
FIRST_HOLD_MS = 10_000
LONGEST_HOLD_MS = 600_000
#: After so long with room, a disk that is full once more counts as full for the first time.
_QUIET_MS = 600_000
#: Partitions in the node: ZooKeeper takes no message above 1 MiB.
MAX_PARTITIONS = 3000


class AskedOver(NamedTuple):
    """A partition in the node.  leader_epoch, asks: in which epoch this broker leads it, and how often it has asked in
    it, the last time at asked_ms."""

    leader_epoch: int
    asks: int
    asked_ms: float


def ask_again_ms(asks: int) -> float:
    """How long a broker waits after it has asked so often for another leader in one epoch."""
    return min(FIRST_ASK_AGAIN_MS * 2 ** (asks - 1), LONGEST_ASK_AGAIN_MS)


def next_hold_ms(last_hold_ms: float, room_for_ms: float) -> float:
    """How long partitions stay in the node at least.  last_hold_ms: the last time, 0 for none; room_for_ms: since then.

    A disk with a little room that is full again at once does not have its leaders move to and fro.
    """
    if not last_hold_ms or room_for_ms >= _QUIET_MS:
        return FIRST_HOLD_MS
    return min(2 * last_hold_ms, LONGEST_HOLD_MS)


def asked_now(
    asked: Mapping[TopicPartition, AskedOver], needing: Mapping[TopicPartition, int], now_ms: float
) -> dict[TopicPartition, AskedOver]:
    """What is to be asked for now.  needing: partitions that need another leader, with the epochs in which this broker
    leads them."""
    result = {}
    for tp, leader_epoch in needing.items():
        before = asked.get(tp)
        if before is None or before.leader_epoch != leader_epoch:
            result[tp] = AskedOver(leader_epoch, 1, now_ms)
        elif now_ms - before.asked_ms >= ask_again_ms(before.asks):
            result[tp] = AskedOver(leader_epoch, before.asks + 1, now_ms)
    return result


class LeaderHandOver:
    """begin() and session_began() are called from any thread; everything else runs on the scheduler's."""

    def __init__(
        self, broker_id: int, store: MetadataStore, scheduler: Scheduler, time: Time, refusals: DiskFullRefusals
    ) -> None:
        self._broker_id = broker_id
        self._store = store
        self._scheduler = scheduler
        self._time = time
        self._refusals = refusals
        self._lock = threading.Lock()
        self._is_running = False
        self._is_closed = False
        self._is_stored = True
        # On the scheduler's thread only:
        self._asked: dict[TopicPartition, AskedOver] = {}
        self._hold_ms = 0.0
        self._hold_until_ms = 0.0
        self._last_room_ms = 0.0

    def begin(self) -> None:
        """A partition needs another leader.  Returns at once."""
        self._schedule(_GATHER_MS)

    def session_began(self) -> None:
        """The node went with the last session."""
        self._is_stored = False
        self._schedule(0)

    def close(self) -> None:
        """Ask for nothing more: the broker leaves the cluster, and the node goes with its session."""
        self._is_closed = True

    def _schedule(self, delay_ms: float) -> None:
        with self._lock:
            if self._is_running or self._is_closed:
                return
            self._is_running = True
        self._scheduler.schedule("leader-hand-over", self._run, delay_ms)

    def _run(self) -> None:
        with self._lock:
            self._is_running = False
        if self._is_closed:
            return
        now_ms = self._time.hi_res_clock_ms()
        self._ask(now_ms)
        self._withdraw(now_ms)
        if not self._is_stored:
            self._store_node()
        if self._asked or not self._is_stored:
            self._schedule(_INTERVAL_MS)

    def _ask(self, now_ms: float) -> None:
        needing = self._refusals.needing_another_leader()
        asked = asked_now(self._asked, needing, now_ms)
        if asked:
            new = asked.keys() - self._asked.keys()
            level = logging.WARNING if new else logging.INFO
            logger.log(
                level, "the disk is full: other brokers are to lead %s: %s", _partitions(asked), some_of(sorted(asked))
            )
            if not self._asked:
                self._hold_ms = next_hold_ms(self._hold_ms, now_ms - self._last_room_ms)
            if new:
                self._hold_until_ms = now_ms + self._hold_ms
            self._asked |= asked
            self._is_stored = False
        # What is still led in the same epoch, and needs no other leader any more, has accepted an append since.
        self._remove([tp for tp, over in self._asked.items() if tp not in needing and self._leads(tp, over)], now_ms)

    def _leads(self, topic_partition: TopicPartition, over: AskedOver) -> bool:
        return self._refusals.leader_epoch(topic_partition) == over.leader_epoch

    def _withdraw(self, now_ms: float) -> None:
        if self._asked and now_ms >= self._hold_until_ms:
            have_room = self._refusals.have_room(self._asked)
            self._refusals.remove(have_room)
            self._remove(have_room, now_ms)
            self._hold_until_ms = now_ms + self._hold_ms

    def _remove(self, topic_partitions: Iterable[TopicPartition], now_ms: float) -> None:
        removed = sorted(topic_partitions)
        if removed:
            logger.info("the disk has room again for %s: %s", _partitions(removed), some_of(removed))
            for tp in removed:
                del self._asked[tp]
            self._last_room_ms = now_ms
            self._is_stored = False

    def _in_order(self) -> list[TopicPartition]:
        """Those that this broker leads first: the others keep it from leading them again, which matters less."""
        return sorted(self._asked, key=lambda tp: (self._refusals.leader_epoch(tp) is None, tp))

    def _store_node(self) -> None:
        """Write the node, also if it is to have what it has: the controller is asked again by that."""
        path = znodes.full_disk(self._broker_id)
        self._is_stored = True  # before the write: a session that begins meanwhile says the opposite
        try:
            node = self._store.get(path)
            if node is not None and (not self._asked or node.ephemeral_owner != self._store.session_id):
                self._store.delete(path)
                node = None
            if self._asked:
                data = znodes.encode_partitions(self._in_order()[:MAX_PARTITIONS])
                if node is None:
                    self._store.ensure_path(znodes.FULL_DISKS)
                    self._store.create(path, data, ephemeral=True)
                else:
                    self._store.set(path, data)
        except NoNode:
            self._is_stored = False  # it went meanwhile, with an earlier session
        except StoreError as error:
            logger.warning("other leaders could not be asked for: %s", error)
            self._is_stored = False


def _partitions(topic_partitions: Iterable[TopicPartition]) -> str:
    return counted(len(list(topic_partitions)), "partition")
