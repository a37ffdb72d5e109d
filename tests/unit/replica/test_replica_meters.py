"""Changes of the ISR and partitions that are offline, in the metrics."""

import pytest

from kcore import errors
from kcore.common.metrics import one_by_one
from kcore.common.topic_partition import TopicPartition
from kcore.replica.partition_gauges import partition_gauges
from tests.batches import batch

from .conftest import TP, Node, update
from .test_follower_fetches import LAG, Store, follow

OTHER = TopicPartition("t", 1)


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def node(tmp_path, store):
    node = Node([tmp_path / "a", tmp_path / "b"], partition_state_store=store, replica_lag_time_max_ms=LAG)
    yield node
    node.shutdown()


def isr_counts(node):
    meters = node.replica_manager.meters
    return meters.isr_shrinks.count, meters.isr_expands.count, meters.failed_isr_updates.count


def gauges(node, *names):
    values = dict(one_by_one(partition_gauges(node.replica_manager.hosted_partitions)))
    return [values[f"kafka.server:type=ReplicaManager,name={name}"] for name in names]


def test_METRIC_01_changes_of_the_isr_are_counted_when_they_are_stored(node, store):
    partition = node.lead(epoch=4, isr=(0, 1))
    node.produce(batch(), acks=1)
    node.advance(LAG + 1)
    partition.maybe_shrink_isr()
    assert isr_counts(node) == (0, 0, 0)
    store.store_last()
    assert isr_counts(node) == (1, 0, 0)
    assert gauges(node, "UnderReplicatedPartitions", "AtMinIsrPartitionCount") == [1, 1]
    follow(node, 1, 1)
    store.store_last()
    assert isr_counts(node) == (1, 1, 0)
    assert gauges(node, "UnderReplicatedPartitions", "AtMinIsrPartitionCount") == [0, 0]


def test_METRIC_01_a_change_of_the_isr_that_is_refused_is_counted_as_failed(node, store):
    partition = node.lead(epoch=4, isr=(0, 1))
    node.produce(batch(), acks=1)
    node.advance(LAG + 1)
    partition.maybe_shrink_isr()
    store.changes[0][3](errors.OperationNotAttempted("another change came first"))
    assert isr_counts(node) == (0, 0, 1)


def test_RM_29_METRIC_01_partitions_of_a_failed_directory_are_counted_as_offline_replicas(node):
    node.become(update(), update(OTHER, leader=1, isr=(0, 1)))
    assert gauges(node, "PartitionCount", "LeaderCount", "OfflineReplicaCount") == [2, 1, 0]
    node.replica_manager.handle_log_dir_failure(node.replica_manager.get_partition(TP).log.parent_dir)
    assert gauges(node, "PartitionCount", "LeaderCount", "OfflineReplicaCount") == [2, 0, 1]
    assert not [
        name
        for name, _ in one_by_one(partition_gauges(node.replica_manager.hosted_partitions))
        if name.endswith("topic=t,partition=0")
    ]
