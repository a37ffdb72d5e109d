"""TopicDeletionManager: deletes topics once all their replicas can be deleted.

A topic with a replica on a dead broker waits until the broker is back (ineligible).  Of one whose node cannot be read
no replica is known: its nodes alone are deleted.  Source: TopicDeletionManager, Kafka 3.9.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from kcore.controller.controller_context import (
    ControllerContext,
    PartitionReplica,
    PartitionState,
    ReplicaState,
)
from kcore.controller.controller_request_batch import ControllerBrokerRequestBatch
from kcore.controller.controller_store import ControllerStore
from kcore.controller.partition_state_machine import PartitionStateMachine
from kcore.controller.replica_state_machine import ReplicaStateMachine
from kcore.metadata import znodes

logger = logging.getLogger(__name__)


class TopicDeletionManager:
    """Used by the event thread.  is_enabled: delete.topic.enable."""

    def __init__(
        self,
        context: ControllerContext,
        store: ControllerStore,
        batch: ControllerBrokerRequestBatch,
        replicas: ReplicaStateMachine,
        partitions: PartitionStateMachine,
        is_enabled: bool,
    ) -> None:
        self._context = context
        self._store = store
        self._batch = batch
        self._replicas = replicas
        self._partitions = partitions
        self.is_enabled = is_enabled

    def init(self, queued: Collection[str], ineligible: Iterable[str]) -> None:
        """CTRL-15."""
        if self.is_enabled:
            self._context.topics_to_delete = set(queued)
            self._context.topics_ineligible_for_deletion = set(ineligible) & self._context.topics_to_delete
        else:
            logger.info("topics are not deleted, delete.topic.enable is false: %s", sorted(queued))
            self._store.delete_children(znodes.DELETE_TOPICS, queued)

    def enqueue(self, names: Iterable[str]) -> None:
        self._context.topics_to_delete.update(names)
        self.resume()

    def mark_ineligible(self, names: Iterable[str], reason: str) -> None:
        context = self._context
        stopped = context.topics_to_delete.intersection(names)
        if stopped:
            context.topics_ineligible_for_deletion |= stopped
            logger.info("the deletion of %s waits: %s", sorted(stopped), reason)

    def resume_for(self, names: Iterable[str]) -> None:
        """What kept these topics from being deleted has passed."""
        eligible = self._context.topics_to_delete.intersection(names)
        if eligible:
            self._context.topics_ineligible_for_deletion -= eligible
            self.resume()

    def fail_replicas(self, replicas: Iterable[PartitionReplica]) -> None:
        """Replicas of topics that are being deleted cannot be reached, or could not delete their logs."""
        failed = [r for r in replicas if self._context.is_queued_for_deletion(r.topic_partition.topic)]
        if failed:
            started = [r for r in failed if self._context.replica_state(r) is ReplicaState.DELETION_STARTED]
            self._replicas.handle_state_changes(started, ReplicaState.DELETION_INELIGIBLE)
            names = {r.topic_partition.topic for r in failed}
            self.mark_ineligible(names, f"replicas could not be deleted on {_brokers_text(failed)}")
            self.resume()

    def complete_replicas(self, replicas: Iterable[PartitionReplica]) -> None:
        """Brokers have deleted their logs."""
        started = [r for r in replicas if self._context.replica_state(r) is ReplicaState.DELETION_STARTED]
        self._replicas.handle_state_changes(started, ReplicaState.DELETION_SUCCESSFUL)
        self.resume()

    def resume(self) -> None:
        """Do the next step of each deletion that can go on."""
        context = self._context
        for name in sorted(context.topics_to_delete):
            if name not in context.topics_to_delete:
                continue  # _start() of one without replicas has come here again
            replicas = context.replicas_for(context.partitions_of(name))
            states = {context.replica_state(replica) for replica in replicas}
            if states <= {ReplicaState.DELETION_SUCCESSFUL} and name in context.topics_with_deletion_started:
                self._complete(name, replicas)
                continue
            if ReplicaState.DELETION_STARTED in states:
                continue  # answers are on their way
            if name in context.topics_ineligible_for_deletion:
                continue
            failed = context.replicas_in_state(name, ReplicaState.DELETION_INELIGIBLE)
            self._replicas.handle_state_changes(failed, ReplicaState.OFFLINE)
            self._start(name)

    def _start(self, name: str) -> None:
        """Clients see the topic no more; its live replicas are to delete their logs."""
        context = self._context
        partitions = context.partitions_of(name)
        context.topics_with_deletion_started.add(name)
        self._batch.add_update_metadata(context.live_or_shutting_down_ids, partitions)
        self._batch.send()
        existing = [tp for tp in partitions if context.partition_state(tp) is not PartitionState.NON_EXISTENT]
        self._partitions.handle_state_changes(existing, PartitionState.OFFLINE)
        self._partitions.handle_state_changes(existing, PartitionState.NON_EXISTENT)
        replicas = [
            replica
            for replica in context.replicas_for(partitions)
            if context.replica_state(replica) is not ReplicaState.DELETION_SUCCESSFUL
        ]
        dead = [r for r in replicas if not context.is_online(r.broker_id, r.topic_partition)]
        live = [r for r in replicas if context.is_online(r.broker_id, r.topic_partition)]
        # From every state, a new replica's included, the way to a deletion leads over OFFLINE.
        self._replicas.handle_state_changes(replicas, ReplicaState.OFFLINE)
        self._replicas.handle_state_changes(dead, ReplicaState.DELETION_INELIGIBLE)
        self._replicas.handle_state_changes(live, ReplicaState.DELETION_STARTED)
        if dead:
            self.mark_ineligible([name], self._why_not_online(dead))
        elif not live:
            self.resume()

    def _why_not_online(self, replicas: Collection[PartitionReplica]) -> str:
        live = self._context.live_ids
        gone = [replica for replica in replicas if replica.broker_id not in live]
        failed = [replica for replica in replicas if replica.broker_id in live]
        reasons = [f"it has replicas on {_brokers_text(gone)}, not alive now"] if gone else []
        reasons += [f"a data directory with replicas has failed on {_brokers_text(failed)}"] if failed else []
        return "; ".join(reasons)

    def _complete(self, name: str, replicas: Collection[PartitionReplica]) -> None:
        self._store.delete_topic(name)
        self._replicas.handle_state_changes(replicas, ReplicaState.NON_EXISTENT)
        self._context.remove_topic(name)
        logger.info("topic %s is deleted%s", name, "" if replicas else "; it has no replicas that are known")


def _brokers_text(replicas: Iterable[PartitionReplica]) -> str:
    ids = sorted({replica.broker_id for replica in replicas})
    return f"{'broker' if len(ids) == 1 else 'brokers'} {', '.join(map(str, ids))}"
