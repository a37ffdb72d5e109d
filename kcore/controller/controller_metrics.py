"""What a broker's controller measures, under Kafka's names (METRIC-01).

Read on the asker's thread: the numbers of a controller that changes meanwhile may be of before or after a change.
Source: KafkaController.updateMetrics, ControllerChannelManager, ControllerEventManager, Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Iterator

from kcore.common.metrics import Measured, MetricName, count
from kcore.controller.controller_context import (
    ControllerContext,
    PartitionState,
    ReplicaAssignment,
    ReplicaState,
)
from kcore.controller.election import LeaderAndIsr
from kcore.controller.kafka_controller import KafkaController


def controller_metrics(controller: KafkaController) -> Iterator[tuple[MetricName, Measured]]:
    """Of a broker that stands for election; what only the active controller knows is 0 for the others, as in Kafka."""
    is_active = controller.is_active
    values = _of_the_cluster(controller.context if is_active else ControllerContext())
    values["ActiveControllerCount"] = int(is_active)
    for name, value in values.items():
        yield MetricName("kafka.controller", "KafkaController", name), float(value)
    elections = count(controller.unclean_leader_elections)
    yield MetricName("kafka.controller", "ControllerStats", "UncleanLeaderElectionsPerSec"), elections
    yield (
        MetricName("kafka.controller", "ControllerEventManager", "EventQueueSize"),
        float(controller.events.queue_size),
    )
    queue_sizes = controller.queue_sizes()
    for broker_id, size in queue_sizes.items():
        tags = {"broker-id": broker_id}
        yield MetricName("kafka.controller", "ControllerChannelManager", "QueueSize", **tags), float(size)
    total = float(sum(queue_sizes.values()))
    yield MetricName("kafka.controller", "ControllerChannelManager", "TotalQueueSize"), total


def _of_the_cluster(context: ControllerContext) -> dict[str, int]:
    # Copies, which the GIL makes without a break: the event thread may change what it copies.
    queued = set(context.topics_to_delete)
    to_delete = [s for replica, s in list(context.replica_states.items()) if replica.topic_partition.topic in queued]
    states = [state for tp, state in list(context.partition_states.items()) if tp.topic not in queued]
    assignments, leadership = dict(context.assignments), list(context.leadership.items())
    led = [(assignments[tp], state) for tp, state in leadership if tp in assignments and tp.topic not in queued]
    return {
        "ActiveBrokerCount": len(context.live_brokers),
        "GlobalTopicCount": len(context.topics),
        "GlobalPartitionCount": len(assignments),
        "OfflinePartitionsCount": states.count(PartitionState.OFFLINE),
        "PreferredReplicaImbalanceCount": sum(not _has_preferred_leader(*partition) for partition in led),
        "TopicsToDeleteCount": len(queued),
        "TopicsIneligibleToDeleteCount": len(context.topics_ineligible_for_deletion),
        "ReplicasToDeleteCount": len(to_delete) - to_delete.count(ReplicaState.DELETION_SUCCESSFUL),
        "ReplicasIneligibleToDeleteCount": to_delete.count(ReplicaState.DELETION_INELIGIBLE),
    }


def _has_preferred_leader(assignment: ReplicaAssignment, state: LeaderAndIsr) -> bool:
    """A replica that a reassignment adds counts as preferred once it is in the ISR."""
    preferred = assignment.replicas[0]
    return preferred not in state.isr if preferred in assignment.adding else state.leader == preferred
