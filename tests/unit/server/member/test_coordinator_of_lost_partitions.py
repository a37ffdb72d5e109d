"""A broker of a cluster that loses a partition of __consumer_offsets otherwise than by following another leader."""

import pytest

import kcore
from kcore import errors
from kcore.coordinator.group.committed_offset import OffsetAndMetadata
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.messages import heartbeat as hb
from kcore.protocol.messages import join_group as jg
from tests.unit.server.client import Client
from tests.unit.server.controller_client import codes
from tests.unit.server.member.conftest import T0, partition, with_broker_2
from tests.waiting import wait_until

OFFSETS = "__consumer_offsets"
OFFSETS_0 = T0._replace(topic=OFFSETS)


@pytest.fixture
def broker(store, tmp_path):
    dirs = ",".join(str(tmp_path / name) for name in "ab")
    settings = {"offsets_topic_num_partitions": 1, "group_initial_rebalance_delay_ms": 300_000}
    with kcore.Broker(store=store, log_dirs=dirs, **settings) as broker:
        yield broker


@pytest.fixture
def offsets_dir(broker, controller):
    """The data directory of the partition that this broker leads, with a committed offset."""
    controller.update_metadata({OFFSETS: {0: {}}}, with_broker_2(broker))
    controller.leader_and_isr({OFFSETS: [controller.state(0, leader_epoch=4)]})
    wait_until(lambda: fetched(broker) == 0)
    results = []
    broker.group_coordinator.offsets.commit("g", "", None, -1, {T0: OffsetAndMetadata(42)}, results.append)
    assert results == [{T0: 0}]
    return partition(broker, OFFSETS_0).log.parent_dir


def heartbeat(broker):
    with Client(broker) as client:
        return client.ask(hb.HeartbeatRequest(group_id="g", member_id="m", generation_id=1), 4).error_code


def fetched(broker):
    """The error code."""
    try:
        broker.group_coordinator.offsets.fetch("g", [T0])
    except errors.ApiError as error:
        return error.code
    return 0


def test_the_groups_of_a_failed_data_directory_are_not_coordinated_here_any_more(broker, offsets_dir):
    """The controller elects another leader, and never names this broker again as one that follows."""
    assert (fetched(broker), heartbeat(broker)) == (0, errors.UnknownMemberId.code)
    join = jg.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=300_000,
        protocol_type="consumer",
        protocols=[jg.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    with Client(broker) as client:
        client.send(join, 3)  # parked for group.initial.rebalance.delay.ms
        wait_until(lambda: broker.group_coordinator.admin.list_groups()[1][0].state == "PreparingRebalance")
        broker.replica_manager.log_manager.log_dir_failure_channel.maybe_add_offline_log_dir(offsets_dir, OSError("x"))
        assert client.receive(ApiKey.JOIN_GROUP, 3).error_code == errors.NotCoordinator.code
    assert fetched(broker) == heartbeat(broker) == errors.NotCoordinator.code
    assert broker.group_coordinator.admin.list_groups() == (0, [])


def test_a_broker_alone_does_not_coordinate_the_groups_of_a_failed_data_directory(tmp_path):
    dirs = ",".join(str(tmp_path / name) for name in "ab")
    with kcore.Broker(log_dirs=dirs, offsets_topic_num_partitions=1) as broker:
        broker.admin_manager.auto_create_topic(OFFSETS)
        wait_until(lambda: fetched(broker) == 0)
        failed = partition(broker, OFFSETS_0).log.parent_dir
        broker.replica_manager.log_manager.log_dir_failure_channel.maybe_add_offline_log_dir(failed, OSError("x"))
        wait_until(lambda: fetched(broker) == errors.NotCoordinator.code)


def test_a_stop_replica_that_meets_an_offline_partition_ends_the_coordination_of_its_groups(
    broker, controller, offsets_dir
):
    broker.replica_manager.handle_log_dir_failure(offsets_dir)
    assert fetched(broker) == 0
    assert codes(controller.stop_replica(OFFSETS, 0, 3, delete=True)) == {(OFFSETS, 0): errors.KafkaStorageError.code}
    # The leader epoch of an offline partition is not known: an older one cannot be refused.
    assert fetched(broker) == errors.NotCoordinator.code


@pytest.mark.parametrize("delete", [False, True])
def test_a_stopped_replica_does_not_coordinate_and_an_old_order_changes_nothing(
    broker, controller, offsets_dir, delete
):
    assert codes(controller.stop_replica(OFFSETS, 0, 3, delete)) == {(OFFSETS, 0): errors.FencedLeaderEpoch.code}
    assert fetched(broker) == 0
    assert codes(controller.stop_replica(OFFSETS, 0, 4, delete)) == {(OFFSETS, 0): 0}
    assert fetched(broker) == errors.NotCoordinator.code


def test_a_leader_whose_successor_is_not_alive_yet_does_not_coordinate(broker, controller, offsets_dir):
    """It leads no more, and follows once the metadata have the other broker."""
    state = controller.state(0, leader=3, leader_epoch=5, isr=(3, 1), replicas=(1, 3))
    assert set(codes(controller.leader_and_isr({OFFSETS: [state]})).values()) == {0}
    assert not partition(broker, OFFSETS_0).is_leader
    assert fetched(broker) == errors.NotCoordinator.code
