"""AlterReplicaLogDirs and DescribeLogDirs on a broker with two data directories."""

import errno
import os
import time

import pytest

import kcore
from kcore.common import file
from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaStorageError, LogDirNotFound, ReplicaNotAvailable, UnknownTopicOrPartition
from kcore.protocol.api_keys import SUPPORTED, ApiKey
from kcore.protocol.messages import alter_replica_log_dirs as a
from kcore.protocol.messages import describe_log_dirs as d
from kcore.replica.fetcher.fetchers import fetcher_id
from kcore.replica.moves.replica_alter_log_dirs_thread import ReplicaAlterLogDirsThread
from tests.unit.server.client import Client

DEADLINE_S = 60


@pytest.fixture
def dirs(tmp_path):
    return [str(tmp_path / "x"), str(tmp_path / "y")]


@pytest.fixture
def broker(dirs):
    with kcore.Broker(log_dirs=",".join(dirs)) as broker:
        broker.create_topic("t", partitions=2)
        for n in range(10):
            broker.produce("t", b"%d" % n, partition=0)
        yield broker


@pytest.fixture
def client(broker):
    with Client(broker) as client:
        yield client


def every_version(api_key):
    first, last = SUPPORTED[api_key]
    return pytest.mark.parametrize("version", range(first, last + 1))


def alter(client, path, *partitions, topic="t", version=2):
    """The error codes, by partition."""
    topics = [a.AlterReplicaLogDirTopic(name=topic, partitions=list(partitions))]
    request = a.AlterReplicaLogDirsRequest(dirs=[a.AlterReplicaLogDir(path=path, topics=topics)])
    (result,) = client.ask(request, version).results
    assert result.topic_name == topic
    return {partition.partition_index: partition.error_code for partition in result.partitions}


def described(client, topics=None, version=4):
    """{directory: {(topic, partition, is_future): (size, lag)}}"""
    response = client.ask(d.DescribeLogDirsRequest(topics=topics), version)
    assert response.error_code == 0 and {result.error_code for result in response.results} == {0}
    return {
        result.log_dir: {
            (topic.name, p.partition_index, p.is_future_key): (p.partition_size, p.offset_lag)
            for topic in result.topics
            for p in topic.partitions
        }
        for result in response.results
    }


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_so_many_threads_move_logs_as_the_setting_says_or_there_are_directories(dirs, monkeypatch, threads):
    names, start = set(), ReplicaAlterLogDirsThread.start

    def noting(self):
        names.add(self.name)
        start(self)

    monkeypatch.setattr(ReplicaAlterLogDirsThread, "start", noting)
    settings = {} if threads is None else {"num_replica_alter_log_dirs_threads": threads}
    with kcore.Broker(log_dirs=",".join(dirs), **settings) as broker, Client(broker) as client:
        broker.create_topic("t", partitions=12)
        for number in range(12):
            target = next(path for path in dirs if path != broker.log("t", number).parent_dir)
            assert alter(client, target, number) == {number: 0}
    expected = threads or len(dirs)
    assert {fetcher_id(TopicPartition("t", number), expected) for number in range(12)} == set(range(expected))
    assert names == {f"kcore-alter-log-dirs-{number}" for number in range(expected)}


def wait_until_moved(broker, path, partition=0):
    deadline = time.monotonic() + DEADLINE_S
    while broker.log("t", partition).parent_dir != path:
        assert time.monotonic() < deadline, f"it is still in {broker.log('t', partition).directory}"
        time.sleep(0.005)


@every_version(ApiKey.ALTER_REPLICA_LOG_DIRS)
def test_a_log_moves_and_is_described_where_it_is(broker, client, dirs, version):
    (source,) = [path for path in dirs if broker.log("t", 0).parent_dir == path]
    (target,) = {*dirs} - {source}
    size = broker.log("t", 0).size
    assert alter(client, target, 0, version=version) == {0: 0}
    wait_until_moved(broker, target)
    assert described(client)[target]["t", 0, False] == (size, 0)
    assert ("t", 0, False) not in described(client)[source]
    assert [bytes(record.value) for record in broker.log("t", 0).records()] == [b"%d" % n for n in range(10)]
    broker.produce("t", b"10", partition=0)
    broker.restart()
    assert broker.log("t", 0).parent_dir == target and broker.log("t", 0).log_end_offset == 11


def test_RD_27_a_move_neither_waits_for_the_quotas_of_replication_nor_counts_for_them(dirs):
    throttled = {f"{side}.replication.throttled.replicas": "*" for side in ("leader", "follower")}
    rates = {f"{side}_replication_throttled_rate": 1 for side in ("leader", "follower")}
    with kcore.Broker(log_dirs=",".join(dirs), **rates) as broker, Client(broker) as client:
        broker.create_topic("t", **throttled)
        broker.produce("t", b"x" * 1000, partition=0)
        quotas = broker.running.services.replication_quotas.leader, broker.running.services.replication_quotas.follower
        assert all(quota.is_throttled(TopicPartition("t", 0)) and quota.is_bounded for quota in quotas)
        for quota in quotas:
            quota.record(10**9)
        (target,) = {*dirs} - {broker.log("t", 0).parent_dir}
        recorded = []
        for quota in quotas:
            quota.record = recorded.append
        assert all(quota.is_quota_exceeded() for quota in quotas)
        assert alter(client, target, 0) == {0: 0}
        wait_until_moved(broker, target)
        assert recorded == []


@every_version(ApiKey.DESCRIBE_LOG_DIRS)
def test_log_dirs_are_described_in_every_version(broker, client, dirs, version):
    everything = described(client, version=version)
    assert sorted(everything) == sorted(dirs)
    assert sorted(key for logs in everything.values() for key in logs) == [("t", 0, False), ("t", 1, False)]
    assert everything[broker.log("t", 0).parent_dir]["t", 0, False] == (broker.log("t", 0).size, 0)
    one = [d.DescribableLogDirTopic(topic="t", partitions=[1]), d.DescribableLogDirTopic(topic="u", partitions=[0])]
    assert sorted(key for logs in described(client, one, version).values() for key in logs) == [("t", 1, False)]
    response = client.ask(d.DescribeLogDirsRequest(topics=[]), version)
    assert [result.topics for result in response.results] == [[], []]
    for result in response.results:
        if version >= 4:
            assert 0 < result.usable_bytes < result.total_bytes
        else:
            assert result.usable_bytes == result.total_bytes == -1


def test_what_cannot_be_moved_has_its_error_and_the_rest_moves(broker, client, dirs):
    assert alter(client, "/no/such/directory", 0) == {0: LogDirNotFound.code}
    assert alter(client, os.path.relpath(dirs[0]), 0) == {0: LogDirNotFound.code}
    (target,) = {*dirs} - {broker.log("t", 0).parent_dir}
    assert alter(client, target, 0, 7) == {0: 0, 7: UnknownTopicOrPartition.code}
    assert alter(client, target, 0, topic="no-such-topic") == {0: UnknownTopicOrPartition.code}
    wait_until_moved(broker, target)


def test_a_directory_that_has_failed_is_described_as_such_and_nothing_moves_there(broker, client, dirs):
    target = {*dirs} - {broker.log("t", 0).parent_dir}
    (target,) = target
    broker.replica_manager.log_manager.log_dir_failure_channel.maybe_add_offline_log_dir(
        target, OSError(errno.EIO, "broken")
    )
    try:
        assert alter(client, target, 0) == {0: KafkaStorageError.code}
        response = client.ask(d.DescribeLogDirsRequest(topics=None), 4)
        assert {result.log_dir: result.error_code for result in response.results} == {
            target: KafkaStorageError.code,
            broker.log("t", 0).parent_dir: 0,
        }
    finally:
        file.clear_faults()


def test_a_partition_that_is_known_but_not_here_is_not_available(broker, client, dirs, monkeypatch):
    monkeypatch.setattr(broker.replica_manager.hosted_partitions, "_is_known", lambda topic_partition: True)
    assert alter(client, dirs[0], 5) == {5: ReplicaNotAvailable.code}
