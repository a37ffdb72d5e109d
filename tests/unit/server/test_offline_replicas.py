"""Replicas whose logs could not be opened, and how a member opens them later and has the controller notice."""

import errno
import threading
from uuid import UUID

import pytest

import kcore
from kcore.common import file
from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.errors import KafkaStorageError
from kcore.metadata.metadata_cache import MetadataSnapshot, PartitionInfo, TopicInfo
from kcore.replica.partition import Partition
from kcore.server.member.offline_replicas import OfflineReplicas, is_assigned
from tests.cluster_sessions import LONG_MS
from tests.unit.server.test_reassignment_between_brokers import alter, running
from tests.waiting import wait_until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ID, OTHER_ID = UUID(int=7), UUID(int=8)


class Member:
    """What OfflineReplicas sees of a broker.  A log with an entry in `broken` cannot be opened."""

    def __init__(self):
        self.assigned, self.hosted, self.broken = {T0, T1}, set(), {}
        self.notified = 0
        self.opened = []
        self.replicas = OfflineReplicas(
            lambda tp, topic_id: tp in self.assigned, lambda tp: tp in self.hosted, self._notify
        )

    def _notify(self):
        self.notified += 1

    def add(self, tp):
        self.replicas.add(tp, ID, lambda: self._open(tp))

    def _open(self, tp):
        if tp in self.broken:
            raise self.broken[tp]
        self.opened.append(tp)

    def retry(self):
        """What one retry has opened."""
        self.opened.clear()
        self.replicas.retry()
        return list(self.opened)


@pytest.fixture
def member():
    return Member()


@pytest.mark.parametrize("error", [KafkaStorageError("no room"), OSError(errno.ENOSPC, "no room")], ids=["api", "os"])
def test_a_log_is_tried_until_it_opens_and_then_the_controller_is_notified_once_for_all(member, error):
    member.broken = {T0: error, T1: error}
    member.add(T0)
    member.add(T1)
    assert member.retry() == [] and member.notified == 0
    member.broken.clear()
    assert member.retry() == [T0, T1] and member.notified == 1


def test_a_log_that_cannot_be_opened_yet_does_not_keep_the_others_closed(member):
    member.broken[T0] = KafkaStorageError("no room")
    member.add(T0)
    member.add(T1)
    assert member.retry() == [T1] and member.notified == 1


def test_a_replica_is_tried_again_until_it_is_hosted_twice_in_a_row(member):
    """The controller's order to stop, which follows from the earlier error, may come after the replica was opened."""
    member.add(T0)
    assert member.retry() == [T0]
    assert member.retry() == [T0]  # the controller did not answer yet
    member.hosted.add(T0)
    assert member.retry() == []
    member.hosted.clear()  # the late order
    assert member.retry() == [T0]
    member.hosted.add(T0)
    assert member.retry() == member.retry() == []
    member.hosted.clear()
    assert member.retry() == []
    assert member.notified == 3


def test_each_late_order_to_stop_has_the_replica_opened_again(member):
    member.add(T0)
    assert member.retry() == [T0]
    for _ in range(3):
        member.hosted.add(T0)
        assert member.retry() == []
        member.hosted.clear()
        assert member.retry() == [T0]


def test_a_log_is_not_made_again_while_its_deletion_holds_the_lock(member):
    """remove() would come between the look at the replica and the opening of its log."""
    could_remove = []

    def remove():
        could_remove.append(member.replicas.lock.acquire(blocking=False))

    def open_log():
        removing = threading.Thread(target=remove)
        removing.start()
        removing.join(60)

    member.replicas.add(T0, ID, open_log)
    member.replicas.retry()
    assert could_remove == [False]


def test_a_replica_that_is_not_assigned_any_more_is_not_opened(member):
    member.add(T0)
    member.assigned.clear()
    assert member.retry() == []
    member.assigned.add(T0)
    assert member.retry() == [] and member.notified == 0


def test_a_replica_whose_log_was_deleted_is_not_opened(member):
    member.add(T0)
    member.add(T1)
    member.replicas.remove([T0])
    assert member.retry() == [T1]


@pytest.mark.parametrize(
    ("topic_id", "of_the_metadata", "tp", "broker_id", "expected"),
    [
        (ID, ID, T0, 1, True),
        (ID, OTHER_ID, T0, 1, False),
        (None, OTHER_ID, T0, 1, True),
        (ZERO_UUID, OTHER_ID, T0, 1, True),
        (ID, ZERO_UUID, T0, 1, True),
        (ID, ID, T0, 3, False),
        (ID, ID, T1, 1, False),
        (ID, ID, TopicPartition("u", 0), 1, False),
    ],
)
def test_a_replica_is_assigned_if_the_metadata_have_it_for_the_same_topic(
    topic_id, of_the_metadata, tp, broker_id, expected
):
    topic = TopicInfo("t", of_the_metadata, {0: PartitionInfo(2, 0, (1, 2), (2,))})
    snapshot = MetadataSnapshot("c", 2).with_topics([topic])
    assert is_assigned(snapshot, broker_id, tp, topic_id) is expected


# -- in a cluster


@pytest.fixture(scope="module")
def cluster():
    settings = {"auto_leader_rebalance_enable": False, "zookeeper_session_timeout_ms": LONG_MS}
    with kcore.Cluster(3, offsets_topic_num_partitions=1, log_segment_delete_delay_ms=100, **settings) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _no_faults():
    yield
    file.clear_faults()


def fill_disk(cluster, broker_id, name):
    """The broker has no room for this partition's directory."""
    file.fail_next("mkdir", errno.ENOSPC, under=f"{cluster.data_dir}/{broker_id}/{name}", times=-1)


def is_offline(cluster, broker_id, tp):
    """As the metadata of all brokers have it."""
    return all(broker_id in broker.metadata_cache.offline(tp) for broker in cluster.brokers.values())


def leads(cluster, broker_id, tp):
    """Whether the broker knows that it leads."""
    hosted = cluster.brokers[broker_id].replica_manager.get_partition(tp)
    return isinstance(hosted, Partition) and hosted.is_leader


def retry_until(cluster, broker_id, condition):
    """The retries of a broker come more often here."""

    def is_reached():
        cluster.brokers[broker_id].cluster_member.offline_replicas.retry()
        return condition()

    wait_until(is_reached)


def test_a_replica_that_a_full_disk_kept_from_being_made_joins_the_isr_once_there_is_room(cluster):
    fill_disk(cluster, 2, "room-0")
    tp = TopicPartition("room", 0)
    cluster.create_topic("room", replication_factor=3)
    wait_until(lambda: cluster.isr("room") == [0, 1] and is_offline(cluster, 2, tp))
    broker = cluster.brokers[2]
    broker.cluster_member.offline_replicas.retry()
    assert not isinstance(broker.replica_manager.get_partition(tp), Partition)
    file.clear_faults()
    retry_until(cluster, 2, lambda: cluster.isr("room") == [0, 1, 2])
    assert isinstance(broker.replica_manager.get_partition(tp), Partition)
    wait_until(lambda: not any(b.metadata_cache.offline(tp) for b in cluster.brokers.values()))


def test_a_reassignment_to_a_broker_whose_disk_was_full_ends_once_there_is_room(cluster):
    cluster.create_topic("moved", replication_factor=3)
    assert alter(cluster, "moved", {0: [0, 1]}) == {0: 0}
    wait_until(lambda: running(cluster) == {} and cluster.isr("moved") == [0, 1])
    tp = TopicPartition("moved", 0)
    wait_until(lambda: cluster.brokers[2].replica_manager.get_partition(tp) is None)
    fill_disk(cluster, 2, "moved-0")
    assert alter(cluster, "moved", {0: [0, 2]}) == {0: 0}
    wait_until(lambda: is_offline(cluster, 2, tp))
    assert cluster.isr("moved") == [0, 1] and running(cluster)
    file.clear_faults()
    retry_until(cluster, 2, lambda: running(cluster) == {})
    assert cluster.isr("moved") == [0, 2]


def test_a_partition_whose_only_replica_could_not_be_made_gets_its_leader_once_there_is_room(cluster):
    for broker_id in range(3):
        fill_disk(cluster, broker_id, "alone-0")
    cluster.create_topic("alone", replication_factor=1)
    wait_until(lambda: cluster.leader("alone") is None and cluster.isr("alone"))
    (only,) = cluster.isr("alone")
    file.clear_faults()
    retry_until(cluster, only, lambda: cluster.leader("alone") == only)
    wait_until(lambda: leads(cluster, only, TopicPartition("alone", 0)))
    cluster.brokers[only].produce("alone", b"x")


def test_no_log_is_made_again_of_a_topic_that_was_deleted_meanwhile(cluster):
    fill_disk(cluster, 2, "deleted-0")
    cluster.create_topic("deleted", replication_factor=3)
    tp = TopicPartition("deleted", 0)
    wait_until(lambda: is_offline(cluster, 2, tp))
    cluster.brokers[0].delete_topic("deleted")
    wait_until(lambda: all(broker.metadata_cache.topic("deleted") is None for broker in cluster.brokers.values()))
    file.clear_faults()
    cluster.brokers[2].cluster_member.offline_replicas.retry()
    assert cluster.brokers[2].replica_manager.log_manager.get_log(tp) is None
