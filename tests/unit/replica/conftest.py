import pytest

from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_config import LogConfig
from kcore.log.log_manager import LogManager
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation
from kcore.purgatory.timer import Timer
from kcore.replica.fetch_params import FetchParams, FetchPartitionData
from kcore.replica.partition import DEFAULT_REPLICA_LAG_TIME_MAX_MS
from kcore.replica.partition_state import LeaderAndIsrUpdate, StopReplica
from kcore.replica.replica_manager import ReplicaManager
from kcore.replica.replica_manager_config import ClusterView, ReplicaManagerConfig, ReplicaSchedulers

TP = TopicPartition("t", 0)


def update(topic_partition=TP, leader=0, epoch=0, isr=(0,), replicas=None, **fields):
    """A controller's decision about one partition; its replicas are the ISR unless given."""
    return LeaderAndIsrUpdate(topic_partition, leader, epoch, isr, isr if replicas is None else replicas, **fields)


class Answer:
    """A response callback; .result is None until it is called, and it must be called once."""

    def __init__(self):
        self.result = None
        self.calls = 0

    def __call__(self, result):
        self.calls += 1
        assert self.calls == 1, "answered twice"
        self.result = result

    @property
    def waits(self):
        return self.calls == 0


class Node:
    """A replica manager over real logs in a directory, on MockTime.  cluster: fields of ClusterView."""

    def __init__(
        self,
        directory,
        topic_configs=None,
        topic_partitions=(),
        *,
        clock_scheduler=None,
        replica_lag_time_max_ms=DEFAULT_REPLICA_LAG_TIME_MAX_MS,
        fetchers=None,
        **cluster,
    ):
        self.time = MockTime()
        self.scheduler = MockScheduler(self.time)
        self.timer = Timer(self.time)
        self.topic_configs = topic_configs or {}
        self.log_manager = LogManager(
            [str(path) for path in (directory if isinstance(directory, list) else [directory])],
            LogConfig(),
            topic_configs=lambda topic: self.topic_configs.get(topic, {}),
            time=self.time,
            scheduler=self.scheduler,
        )
        self.log_manager.startup()
        self.replica_manager = ReplicaManager(
            0,
            self.log_manager,
            ReplicaSchedulers(self.time, self.scheduler, clock_scheduler or self.scheduler, self.timer),
            config=ReplicaManagerConfig(replica_lag_time_max_ms=replica_lag_time_max_ms),
            cluster=ClusterView(is_known_topic_partition=set(topic_partitions).__contains__, **cluster),
            fetchers=fetchers,
        )

    def advance(self, ms):
        self.time.sleep(ms)
        self.timer.advance()
        self.scheduler.tick()

    def lead(self, topic_partition=TP, epoch=0, isr=(0,), replicas=None):
        """Lead; the partition."""
        assert self.become(update(topic_partition, 0, epoch, isr, replicas)) == {topic_partition: None}
        return self.replica_manager.get_partition(topic_partition)

    def become(self, *updates, controller_epoch=1):
        """The results: {partition: None or the class of its error}."""
        results = self.replica_manager.become_leader_or_follower(updates, controller_epoch)
        return {tp: error and type(error) for tp, error in results.items()}

    def stop(self, *topic_partitions, delete=False, controller_epoch=1):
        stops = [StopReplica(tp, delete) for tp in topic_partitions]
        results = self.replica_manager.stop_replicas(stops, controller_epoch)
        return {tp: error and type(error) for tp, error in results.items()}

    def produce(self, entries, acks=-1, timeout_ms=1000, internal=False, origin=AppendOrigin.CLIENT):
        answer = Answer()
        if not isinstance(entries, dict):
            entries = {TP: entries}
        self.replica_manager.append_records(timeout_ms, acks, internal, origin, entries, answer)
        return answer

    def fetch(self, offsets, isolation=FetchIsolation.HIGH_WATERMARK, partition_max_bytes=1 << 20, epoch=-1, **params):
        """offsets: {partition: offset} or an offset of TP"""
        answer = Answer()
        if isinstance(offsets, int):
            offsets = {TP: offsets}
        infos = [
            (tp, FetchPartitionData(offset, partition_max_bytes, current_leader_epoch=epoch))
            for tp, offset in offsets.items()
        ]
        self.replica_manager.fetch_messages(FetchParams(isolation=isolation, **params), infos, answer)
        return answer

    def shutdown(self):
        self.replica_manager.shutdown()
        self.log_manager.shutdown()


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path, topic_partitions=[TopicPartition("elsewhere", 0)])
    yield node
    node.shutdown()


@pytest.fixture
def leader(node):
    node.lead()
    return node
