"""What a ReplicaManager is made with: its settings, its schedulers and what it asks about the cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kcore.common.scheduler import Scheduler
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.purgatory.timer import Timer
from kcore.replica.partition import DEFAULT_REPLICA_LAG_TIME_MAX_MS
from kcore.replica.partition_state_store import PartitionStateStore
from kcore.replica.replica_selector import PreferredReadReplica


def _no_other_partition(topic_partition: TopicPartition) -> bool:
    return False


def _every_broker_is_alive(broker_id: int) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ReplicaManagerConfig:
    high_watermark_checkpoint_interval_ms: int = 5000
    replica_lag_time_max_ms: int = DEFAULT_REPLICA_LAG_TIME_MAX_MS


@dataclass(frozen=True, slots=True)
class ReplicaSchedulers:
    """disk: tasks that may wait for a disk; clock: tasks that a slow disk must not delay; timer: delayed operations."""

    time: Time
    disk: Scheduler
    clock: Scheduler
    timer: Timer


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What the cluster knows; the defaults are those of a broker alone.

    is_known_topic_partition: whether the cluster's metadata have a partition that is not hosted here.
    is_alive: whether they have a broker.
    """

    is_known_topic_partition: Callable[[TopicPartition], bool] = _no_other_partition
    is_alive: Callable[[int], bool] = _every_broker_is_alive
    partition_state_store: PartitionStateStore | None = None
    preferred_read_replica: PreferredReadReplica | None = None


ALONE = ClusterView()
DEFAULT_CONFIG = ReplicaManagerConfig()
