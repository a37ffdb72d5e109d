"""PartitionStateStore over the metadata store: the leader writes its partition's state node itself.

Source: ZkAlterPartitionManager and ReplicationUtils.updateLeaderAndIsr, Kafka 3.9.
"""

from __future__ import annotations

import logging

from kcore.common.scheduler import Scheduler
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, FencedLeaderEpoch, UnknownServerError, UnknownTopicOrPartition
from kcore.metadata import znodes
from kcore.metadata.store import BadVersion, MetadataStore, NoNode, StoreError
from kcore.replica.partition_state_store import OnIsrChanged, StoredIsr

logger = logging.getLogger(__name__)


class MetadataPartitionStateStore:
    """Thread-safe.  The store is called on the scheduler's thread only."""

    def __init__(self, broker_id: int, store: MetadataStore, scheduler: Scheduler) -> None:
        self._broker_id = broker_id
        self._store = store
        self._scheduler = scheduler

    def change_isr(
        self, topic_partition: TopicPartition, isr: frozenset[int], expected_version: int, on_done: OnIsrChanged
    ) -> None:
        """See PartitionStateStore.change_isr."""

        def change() -> None:
            on_done(self._changed(topic_partition, isr, expected_version))

        self._scheduler.schedule(f"change-isr-{topic_partition}", change, 0)

    def _changed(self, tp: TopicPartition, isr: frozenset[int], expected_version: int) -> StoredIsr | ApiError:
        path = znodes.partition_state(tp.topic, tp.partition)
        try:
            node = self._store.get(path)
            if node is None:
                return UnknownTopicOrPartition(f"{tp}: its state is not stored")
            state = znodes.PartitionStateZNode.decode(node.data)
            if state.leader != self._broker_id:
                return FencedLeaderEpoch(f"{tp}: broker {state.leader} leads with epoch {state.leader_epoch}")
            if node.version != expected_version:
                # The reply to an earlier change was lost, or an operator wrote the node: what is stored counts.
                return StoredIsr(frozenset(state.isr), node.version)
            version = self._store.set(path, state._replace(isr=sorted(isr)).encode(), expected_version)
            return StoredIsr(isr, version)
        except (BadVersion, NoNode):
            return self._changed(tp, isr, expected_version)  # changed since get(): look again
        except StoreError as error:
            logger.error("%s: its ISR could not be stored: %s", tp, error)
            return UnknownServerError(f"{tp}: {error}")
