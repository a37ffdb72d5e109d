"""Where a leader makes a change of its ISR durable: an interface, since replica/ knows no metadata store and no socket.

Source: AlterPartitionManager, Kafka 3.9; KIP-497.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, OperationNotAttempted


class StoredIsr(NamedTuple):
    """The ISR that is stored now, and the partition epoch (the stored state's version) that it has."""

    isr: frozenset[int]
    partition_epoch: int


#: Called once, on any thread, with none of the partition's locks held.
OnIsrChanged = Callable[[StoredIsr | ApiError], None]


class PartitionStateStore(Protocol):
    def change_isr(
        self,
        topic_partition: TopicPartition,
        isr: frozenset[int],
        expected_version: int,
        on_done: OnIsrChanged,
        *,
        broker_epochs: Mapping[int, int] | None = None,
        leader_epoch: int = -1,
    ) -> None:
        """Store isr, if the stored state still has expected_version; on_done gets what is stored then.

        broker_epochs: of followers in isr, the registration that their last fetch came from.  One that has registered
        again since may have lost what it had: IneligibleReplica (KIP-903).
        leader_epoch: with which this broker leads, -1 if it does not say.  If another one is stored, a controller has
        since elected this broker again or another one: FencedLeaderEpoch.
        What is stored differs from the requested ISR if it had changed meanwhile and this broker still leads.
        OperationNotAttempted and IneligibleReplica mean that nothing was stored.  With any other error the outcome is
        not known, or this broker no longer leads: the partition then waits for the controller's next update.
        Returns at once: the work is done on another thread, which tries again as long as the store cannot be reached or
        refuses the change; on_done is called when it does no more.  Raises nothing.
        """

    def look_up_registration(self, broker_id: int, on_found: Callable[[int], None]) -> None:
        """on_found gets the broker epoch with which a broker is registered; it is not called if there is none, or if
        the store does not answer.  Returns at once, as change_isr() does.  Raises nothing."""


class RefusingStateStore:
    """For a broker without a metadata store: the ISR stays what updates say."""

    def change_isr(
        self,
        topic_partition: TopicPartition,
        isr: frozenset[int],
        expected_version: int,
        on_done: OnIsrChanged,
        *,
        broker_epochs: Mapping[int, int] | None = None,
        leader_epoch: int = -1,
    ) -> None:
        on_done(OperationNotAttempted(f"{topic_partition}: this broker has no store for ISR {sorted(isr)}"))

    def look_up_registration(self, broker_id: int, on_found: Callable[[int], None]) -> None:
        """There is no registration to find."""
