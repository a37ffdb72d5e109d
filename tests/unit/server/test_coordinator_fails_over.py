"""Three brokers with a controller of their own: a group's coordinator loses the data directory with its partition."""

import threading
from contextlib import ExitStack

import pytest

import kcore
from kcore import errors
from kcore.common.topic_names import GROUP_METADATA_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.committed_offset import OffsetAndMetadata
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from tests.unit.server.test_session_expiry import run_now
from tests.waiting import wait_until

OFFSETS_0 = TopicPartition(GROUP_METADATA_TOPIC, 0)
T0 = TopicPartition("t", 0)


@pytest.fixture
def brokers(tmp_path):
    tree = MemoryTree()
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(
                kcore.Broker(
                    store=MemoryStore(tree, executor=run_now),
                    broker_id=number,
                    log_dirs=f"{tmp_path}/{number}a,{tmp_path}/{number}b",
                    offsets_topic_num_partitions=1,
                    offsets_topic_replication_factor=3,
                    **{"zookeeper.session.timeout.ms": 4000, "controlled.shutdown.retry.backoff.ms": 200},
                )
            )
            for number in (1, 2, 3)
        ]
        wait_until(lambda: all(broker.metadata_cache.snapshot.broker_ids() == [1, 2, 3] for broker in brokers))
        yield brokers


def fetch(broker):
    try:
        return broker.group_coordinator.offsets.fetch("g", [T0])[T0].offset
    except errors.ApiError as error:
        return error.code


def commit(broker, offset):
    done, results = threading.Event(), []
    broker.group_coordinator.offsets.commit(
        "g", "", None, -1, {T0: OffsetAndMetadata(offset)}, lambda codes: (results.append(codes), done.set())
    )
    assert done.wait(60)
    return results[0][T0]


def test_after_a_data_directory_has_failed_a_group_has_one_coordinator(brokers):
    brokers[0].admin_manager.auto_create_topic(GROUP_METADATA_TOPIC)
    wait_until(lambda: sum(commit(broker, 4242) == 0 for broker in brokers) == 1)
    (first,) = (broker for broker in brokers if fetch(broker) == 4242)
    partition = first.replica_manager.get_partition(OFFSETS_0)
    wait_until(lambda: partition.isr == {1, 2, 3})
    first.replica_manager.log_manager.log_dir_failure_channel.maybe_add_offline_log_dir(
        partition.log.parent_dir, OSError("the disk has failed")
    )
    others = [broker for broker in brokers if broker is not first]
    wait_until(lambda: 4242 in map(fetch, others))
    wait_until(lambda: fetch(first) == errors.NotCoordinator.code)
    assert sorted(map(fetch, brokers)) == [errors.NotCoordinator.code] * 2 + [4242]
    with pytest.raises(errors.NotCoordinator):
        first.group_coordinator.heartbeat("g", "m", None, 1)
    assert first.group_coordinator.admin.list_groups() == (0, [])


def test_a_coordinator_whose_data_directory_has_failed_stops_without_an_order_of_a_controller(tmp_path):
    """Else it would answer from memory for as long as no controller is there, and the next one beside it after that."""
    with kcore.Broker(log_dirs=f"{tmp_path}/a,{tmp_path}/b", offsets_topic_num_partitions=1) as broker:
        broker.admin_manager.auto_create_topic(GROUP_METADATA_TOPIC)
        wait_until(lambda: commit(broker, 4242) == 0)
        assert fetch(broker) == 4242
        log = broker.replica_manager.get_partition(OFFSETS_0).log
        broker.replica_manager.log_manager.log_dir_failure_channel.maybe_add_offline_log_dir(
            log.parent_dir, OSError("the disk has failed")
        )
        wait_until(lambda: fetch(broker) == errors.NotCoordinator.code)
        assert broker.group_coordinator.admin.list_groups() == (0, [])
