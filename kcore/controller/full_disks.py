"""FullDisks: brokers whose disks are full do not lead the partitions to which they cannot append.

Each such broker has an ephemeral node below /kcore/full_disks with these partitions
(server/member/leader_hand_over.py).  Not in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable

from kcore.controller.controller_context import ControllerContext, PartitionState
from kcore.controller.controller_store import ControllerStore
from kcore.controller.election import ElectionStrategy
from kcore.controller.partition_state_machine import PartitionStateMachine
from kcore.metadata.store import Watch


class FullDisks:
    """Used by the event thread.  watch(name, process): a watch that puts an event of that name."""

    def __init__(
        self,
        context: ControllerContext,
        store: ControllerStore,
        partitions: PartitionStateMachine,
        watch: Callable[[str, Callable[[], None]], Watch],
    ) -> None:
        self._context = context
        self._store = store
        self._partitions = partitions
        self._watch = watch

    def read(self) -> None:
        """Read the nodes, and watch them."""
        self._context.full_disks = self._store.full_disks(self._watch("FullDisksChange", self._changed))

    def _changed(self) -> None:
        """A broker has asked for other leaders, or asks again, or has room again."""
        self.read()
        self.hand_over()

    def hand_over(self) -> None:
        """Let other replicas lead where the leader's disk is full.

        Only one that is in sync and whose disk is not known to be full; else the leader stays.  The ISR stays.
        """
        context = self._context
        led = [
            tp
            for broker_id, topic_partitions in context.full_disks.items()
            for tp in sorted(topic_partitions)
            if tp in context.leadership
            and context.leadership[tp].leader == broker_id
            and not context.is_queued_for_deletion(tp.topic)
        ]
        if led:
            self._partitions.handle_state_changes(led, PartitionState.ONLINE, ElectionStrategy.FULL_DISK)
