"""The controller's work on a store without threads: brokers and topics that come and go, leaders and replicas."""

from random import Random

import pytest

from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_context import PartitionReplica, PartitionState, ReplicaState
from kcore.controller.controller_settings import ControllerSettings
from kcore.controller.election import LEADER_DURING_DELETE
from kcore.errors import BrokerNotAvailable, KafkaStorageError, NotController, StaleBrokerEpoch
from kcore.metadata import znodes
from kcore.metadata.store import SetData
from kcore.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from kcore.protocol.messages.stop_replica import StopReplicaRequest
from kcore.protocol.messages.update_metadata import UpdateMetadataRequest
from kcore.server.member.cluster_controller import elect_where_there_is_no_leader
from tests.unit.controller.world import partitions_of

T0 = TopicPartition("t", 0)


# -- brokers --------------------------------------------------------------------------------------------


def test_CTRL_20_the_partitions_of_a_dead_broker_get_leaders_and_its_replicas_leave_the_isr(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[3, 2, 1], [2, 3, 1], [3]])
    world.kill(3)
    assert world.state("t", 0)[:3] == (2, 1, [2, 1])
    # RSM-06: it only followed this one.
    assert (world.state("t", 1).leader, world.state("t", 1).isr) == (2, [2, 1])
    # Its only replica is gone; RSM-08 keeps it in the ISR.
    assert (world.state("t", 2).leader, world.state("t", 2).isr) == (-1, [3])
    assert world.requests.brokers.keys() == {1, 2}


def test_CTRL_20_a_broker_that_comes_back_gets_all_metadata_and_leads_partitions_that_only_it_has(world):
    world.start(1, 2)
    world.create_topic("t", [[2]])
    world.kill(2)
    assert world.state("t").leader == -1
    world.requests.take()
    world.start(2)
    assert (world.state("t").leader, world.state("t").isr) == (2, [2])
    sent = [request for broker, request in world.requests.take() if broker == 2]
    assert isinstance(sent[0], UpdateMetadataRequest) and T0 in partitions_of(sent[0])
    assert [broker.id for broker in sent[0].live_brokers] == [1, 2]
    orders = [request for request in sent if isinstance(request, LeaderAndIsrRequest)]
    assert partitions_of(orders[-1])[T0].leader == 2
    assert orders[-1].broker_epoch == world.admin.get(znodes.broker_id(2)).czxid


def test_CTRL_20_a_broker_that_has_registered_again_unseen_has_failed_and_come_back(world):
    world.start(1, 2)
    world.create_topic("t", [[2, 1]])
    epoch = world.state("t").leader_epoch
    world.end_session(world.stores.pop(2))
    del world.controllers[2], world.channels[2]
    world.start(2)
    assert (world.state("t").leader, world.state("t").isr) == (1, [1])
    assert world.state("t").leader_epoch == epoch + 1
    assert world.requests.brokers.keys() == {1, 2}
    replica = PartitionReplica(T0, 2)
    assert world.active.context.replica_state(replica) is ReplicaState.ONLINE


def test_CTRL_22_a_failed_log_directory_moves_the_leadership_of_the_partitions_in_it(world):
    world.start(1, 2)
    world.create_topic("t", [[2, 1], [2, 1]])
    world.requests.codes[2, "t", 0] = KafkaStorageError.code
    world.admin.create(
        f"{znodes.LOG_DIR_EVENT_NOTIFICATION}/log_dir_event_", znodes.encode_log_dir_event(2), sequential=True
    )
    world.settle()
    assert (world.state("t", 0).leader, world.state("t", 0).isr) == (1, [1])
    assert (world.state("t", 1).leader, world.state("t", 1).isr) == (2, [2, 1])
    assert world.admin.children(znodes.LOG_DIR_EVENT_NOTIFICATION) == []


def log_dir_event(world, broker_id):
    path = f"{znodes.LOG_DIR_EVENT_NOTIFICATION}/log_dir_event_"
    world.admin.create(path, znodes.encode_log_dir_event(broker_id), sequential=True)
    world.settle()


def test_CTRL_22_a_replica_that_its_broker_could_open_again_may_lead_again(world):
    world.start(1, 2)
    world.create_topic("t", [[2, 1]])
    world.requests.codes[2, "t", 0] = KafkaStorageError.code
    log_dir_event(world, 2)
    assert not world.active.context.is_online(2, T0)
    world.requests.codes.clear()
    world.requests.take()
    log_dir_event(world, 2)
    assert world.active.context.is_online(2, T0)
    metadata = [partitions_of(request) for _, request in world.requests.take(UpdateMetadataRequest)]
    assert [states[T0].offline_replicas for states in metadata if T0 in states][-1] == []


def test_CTRL_22_a_partition_without_a_leader_gets_one_when_its_replica_could_be_opened_again(world):
    world.start(1, 2)
    world.create_topic("t", [[2]])
    world.requests.codes[2, "t", 0] = KafkaStorageError.code
    log_dir_event(world, 2)
    assert world.state("t").leader == -1
    world.requests.codes.clear()
    log_dir_event(world, 2)
    assert (world.state("t").leader, world.state("t").isr) == (2, [2])


def test_CTRL_23_an_isr_change_reaches_the_metadata_of_all_brokers(world):
    world.start(1, 2)
    world.create_topic("t", [[1, 2]])
    world.requests.take()
    world.set_isr("t", 0, [1])
    name = f"{znodes.ISR_CHANGE_NOTIFICATION}/isr_change_"
    world.admin.create(name, znodes.encode_partitions([T0, TopicPartition("unknown", 3)]), sequential=True)
    world.settle()
    sent = world.requests.take()
    assert [(broker, partitions_of(request)[T0].isr) for broker, request in sent] == [(1, [1]), (2, [1])]
    assert world.active.context.leadership[T0].isr == (1,)
    assert world.admin.children(znodes.ISR_CHANGE_NOTIFICATION) == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"partitions": [{"topic": 1}]}'])
def test_a_notification_that_cannot_be_read_is_deleted_and_the_controller_goes_on(world, body):
    world.start(1)
    world.admin.create(f"{znodes.ISR_CHANGE_NOTIFICATION}/isr_change_", body, sequential=True)
    world.admin.create(f"{znodes.LOG_DIR_EVENT_NOTIFICATION}/log_dir_event_", body, sequential=True)
    world.admin.create(znodes.PREFERRED_REPLICA_ELECTION, body)
    world.settle()
    assert world.admin.children(znodes.ISR_CHANGE_NOTIFICATION) == []
    assert world.admin.get(znodes.PREFERRED_REPLICA_ELECTION) is None
    world.create_topic("t", [[1]])
    assert world.state("t").leader == 1


# -- topics ---------------------------------------------------------------------------------------------


def test_CTRL_21_a_new_topic_gets_leaders_and_its_brokers_hear_that_it_is_new(world):
    world.start(1, 2, 3)
    world.requests.take()
    world.create_topic("t", [[2, 3], [3, 1]])
    assert world.state("t", 0) == (2, 0, [2, 3], 1)
    assert world.state("t", 1) == (3, 0, [3, 1], 1)
    orders = {(b, tp): s for b, r in world.requests.take(LeaderAndIsrRequest) for tp, s in partitions_of(r).items()}
    assert {(broker, tp.partition) for broker, tp in orders} == {(2, 0), (3, 0), (3, 1), (1, 1)}
    assert all(state.is_new for state in orders.values())


def test_CTRL_21_partitions_that_are_added_get_leaders(world):
    world.start(1, 2)
    world.create_topic("t", [[1, 2]])
    node = world.admin.get(znodes.topic("t"))
    topic = znodes.TopicZNode.decode(node.data)
    world.admin.set(znodes.topic("t"), topic._replace(assignment={0: [1, 2], 1: [2, 1]}).encode(), node.version)
    world.settle()
    assert world.state("t", 1) == (2, 0, [2, 1], 1)
    assert world.state("t", 0).leader_epoch == 0


def test_a_topic_whose_node_cannot_be_read_does_not_prevent_the_creation_of_others(world):
    world.start(1)
    world.admin.create(znodes.topic("broken"), b'{"partitions": {"x": 1}}')
    world.create_topic("t", [[1]])
    assert world.state("t").leader == 1


def test_many_partitions_are_created_with_few_writes(world, monkeypatch):
    world.start(1)
    store, writes = world.stores[1], []
    real = store.multi
    monkeypatch.setattr(store, "multi", lambda operations: writes.append(len(operations)) or real(operations))
    world.create_topic("t", [[1]] * 300)
    assert world.state("t", 299).leader == 1
    assert len(writes) <= 2


def test_a_deleted_topic_leaves_no_trace(world):
    world.start(1, 2)
    world.create_topic("t", [[1, 2], [2, 1]])
    world.requests.take()
    world.delete_topic("t")
    assert world.admin.get(znodes.topic("t")) is None
    assert world.admin.get(znodes.topic_config("t")) is None
    assert world.admin.children(znodes.DELETE_TOPICS) == []
    context = world.active.context
    assert not context.assignments and not context.replica_states and not context.partition_states
    sent = world.requests.take()
    # UpdateMetadata comes first: clients must see that the topic is deleted.
    first = next(request for _, request in sent if isinstance(request, UpdateMetadataRequest))
    assert {state.leader for state in partitions_of(first).values()} == {LEADER_DURING_DELETE}
    deleted = [
        (broker, tp.partition, state.leader_epoch)
        for broker, request in sent
        if isinstance(request, StopReplicaRequest)
        for tp, state in partitions_of(request).items()
        if state.delete_partition
    ]
    assert sorted(deleted) == [(1, 0, -2), (1, 1, -2), (2, 0, -2), (2, 1, -2)]
    world.create_topic("t", [[2]])
    assert world.state("t") == (2, 0, [2], 1)


def test_RSM_07_a_topic_with_a_replica_on_a_dead_broker_is_deleted_when_the_broker_is_back(world, caplog):
    caplog.set_level("INFO")
    world.start(1, 2)
    world.create_topic("t", [[1, 2]])
    world.kill(2)
    world.delete_topic("t")
    assert "the deletion of ['t'] waits: it has replicas on broker 2, not alive now" in caplog.messages
    context = world.active.context
    assert context.topics_ineligible_for_deletion == {"t"}
    assert context.replica_state(PartitionReplica(T0, 2)) is ReplicaState.DELETION_INELIGIBLE
    assert context.replica_state(PartitionReplica(T0, 1)) is ReplicaState.DELETION_SUCCESSFUL
    world.start(2)
    assert world.admin.get(znodes.topic("t")) is None
    assert not world.active.context.topics_to_delete


def test_RSM_07_a_replica_that_could_not_be_deleted_is_ineligible_until_its_broker_starts_again(world, caplog):
    caplog.set_level("INFO")
    world.start(1, 2)
    world.create_topic("t", [[1, 2]])
    world.requests.codes[2, "t", 0] = KafkaStorageError.code
    world.delete_topic("t")
    assert world.active.context.replica_state(PartitionReplica(T0, 2)) is ReplicaState.DELETION_INELIGIBLE
    assert world.admin.get(znodes.topic("t")) is not None
    assert "the deletion of ['t'] waits: replicas could not be deleted on broker 2" in caplog.messages
    world.requests.codes.clear()
    world.kill(2)
    world.start(2)
    assert world.admin.get(znodes.topic("t")) is None


def test_the_log_names_the_broker_whose_data_directory_keeps_a_topic_from_being_deleted(world, caplog):
    caplog.set_level("INFO")
    world.start(1, 2, 3)
    world.create_topic("t", [[1, 2, 3]])
    world.kill(3)
    world.active.context.offline_dirs[2] = {T0}
    world.delete_topic("t")
    reasons = "it has replicas on broker 3, not alive now; a data directory with replicas has failed on broker 2"
    assert f"the deletion of ['t'] waits: {reasons}" in caplog.messages


def test_a_deletion_goes_on_under_the_next_controller(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[2, 3]])
    world.requests.send_request = lambda *args: None  # no order arrives
    world.delete_topic("t")
    world.kill(1)
    assert world.admin.get(znodes.topic("t")) is None
    assert world.admin.children(znodes.DELETE_TOPICS) == []


def test_deleted_topics_without_partitions_leave_no_trace_for_later_ones_of_their_names(world):
    world.start(1, 2)
    for name in ("t", "u"):
        world.admin.create_recursive(znodes.topic(name), znodes.TopicZNode({}, znodes.random_id(Random(name))).encode())
    world.settle()
    for name in ("t", "u"):  # both are read at once
        world.admin.create(znodes.delete_topic(name))
    world.settle()
    assert world.admin.children(znodes.TOPICS) == world.admin.children(znodes.DELETE_TOPICS) == []
    assert world.active.context.topics_with_deletion_started == set()
    for name in ("t", "u"):
        world.create_topic(name, [[1, 2]])
    world.kill(2)
    world.start(2)
    states = world.active.context.replica_states
    assert {states[PartitionReplica(TopicPartition(name, 0), 2)] for name in ("t", "u")} == {ReplicaState.ONLINE}


@pytest.mark.parametrize("is_waiting", [False, True])
def test_partitions_that_are_added_while_their_topic_is_deleted_do_not_keep_it(world, is_waiting):
    """Whichever of the two changes of the store the controller processes first."""
    world.start(1, 2)
    world.create_topic("t", [[1, 2]])
    node = world.admin.get(znodes.topic("t"))
    grown = znodes.TopicZNode.decode(node.data)._replace(assignment={0: [1, 2], 1: [2, 1]}).encode()
    if is_waiting:
        world.kill(2)
        world.delete_topic("t")
        world.admin.set(znodes.topic("t"), grown)
        world.settle()
        assert not [tp for tp in world.active.context.assignments if tp.partition]
        world.start(2)
    else:
        world.admin.create_recursive(znodes.delete_topic("t"))
        world.admin.set(znodes.topic("t"), grown)
        world.settle()
    assert world.admin.get(znodes.topic("t")) is None and world.admin.children(znodes.DELETE_TOPICS) == []
    context = world.active.context
    assert not context.assignments and not context.replica_states and not context.partition_states
    world.create_topic("t", [[2]])
    assert world.state("t").leader == 2


def test_an_order_to_delete_an_unknown_topic_is_removed(world):
    world.start(1)
    world.delete_topic("unknown")
    assert world.admin.children(znodes.DELETE_TOPICS) == []


# -- controlled shutdown --------------------------------------------------------------------------------


def shut_down(world, controller, broker_id, epoch=-1):
    answers = []
    controller.controlled_shutdown(broker_id, epoch, lambda error, remaining: answers.append((error, remaining)))
    world.settle()
    return answers


def test_PSM_12_a_controlled_shutdown_moves_leaders_without_an_offline_moment(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[2, 3, 1], [3, 2, 1], [2]])
    world.requests.take()
    assert shut_down(world, world.active, 2) == [(None, [])]
    assert world.state("t", 0)[:3] == (3, 1, [3, 1])
    assert (world.state("t", 1).leader, world.state("t", 1).isr) == (3, [3, 1])
    # Nobody else can lead the third: it leads until it is gone.
    assert world.state("t", 2).leader == 2
    stops = [(b, tp.partition) for b, r in world.requests.take(StopReplicaRequest) for tp in partitions_of(r)]
    assert stops == [(2, 1)]


def test_PSM_08_a_leader_whose_followers_are_not_in_sync_remains(world):
    world.start(1, 2)
    world.create_topic("t", [[2, 1]])
    world.set_isr("t", 0, [2])
    assert shut_down(world, world.active, 2) == [(None, [T0])]
    assert world.state("t").leader == 2


def test_a_controlled_shutdown_is_refused_for_the_wrong_controller_broker_or_epoch(world):
    world.start(1, 2)
    epoch = world.admin.get(znodes.broker_id(2)).czxid
    errors = [
        shut_down(world, world.controllers[2], 2)[0][0],
        shut_down(world, world.active, 9)[0][0],
        shut_down(world, world.active, 2, epoch - 1)[0][0],
        shut_down(world, world.active, 2, epoch)[0][0],
    ]
    assert [type(error) for error in errors] == [NotController, BrokerNotAvailable, StaleBrokerEpoch, type(None)]


# -- partitions -----------------------------------------------------------------------------------------


def test_PSM_02_and_PSM_03_a_new_controller_elects_leaders_where_there_are_none(world):
    world.start(1, 2, 3)
    world.create_topic("led", [[3, 2]])
    world.create_topic("dead", [[1, 2]])
    world.controllers[1].events.close()
    world.admin.create_recursive(znodes.topic("unled"), znodes.TopicZNode({0: [2, 3]}, None).encode())
    world.kill(1)
    assert world.state("led")[:2] == (3, 0)
    # Once without a leader and without the dead replica, once with the new leader.
    assert world.state("dead")[:3] == (2, 2, [2])
    assert world.state("unled") == (2, 0, [2, 3], 2)
    assert set(world.active.context.partition_states.values()) == {PartitionState.ONLINE}


def test_PSM_05_an_unclean_leader_only_where_the_topic_allows_it(world):
    world.start(1, 2, 3)
    world.create_topic("safe", [[3, 2]])
    world.create_topic("unsafe", [[3, 2]], {"unclean.leader.election.enable": "true"})
    for topic in ("safe", "unsafe"):
        world.set_isr(topic, 0, [3])
    world.kill(3)
    assert (world.state("safe").leader, world.state("safe").isr) == (-1, [3])
    assert (world.state("unsafe").leader, world.state("unsafe").isr) == (2, [2])
    assert world.active.unclean_leader_elections == 1


def test_unclean_elections_that_are_enabled_for_all_topics_are_held_at_once(world):
    is_enabled = []
    settings = ControllerSettings(unclean_leader_election_enable=lambda: bool(is_enabled))
    world.start(1, 2, 3, settings=settings)
    world.create_topic("t", [[3, 2]])
    world.create_topic("safe", [[3, 2]], {"unclean.leader.election.enable": "false"})
    for topic in ("t", "safe"):
        world.set_isr(topic, 0, [3])
    world.kill(3)
    assert world.state("t").leader == -1
    is_enabled.append(True)
    for controller in world.controllers.values():
        elect_where_there_is_no_leader(controller)
    world.settle()
    assert (world.state("t").leader, world.state("t").isr) == (2, [2])
    assert world.state("safe").leader == -1


def test_PSM_07_an_order_brings_the_leader_back_to_the_preferred_replica(world):
    world.start(1, 2)
    world.create_topic("t", [[2, 1]])
    world.kill(2)
    world.start(2)
    world.set_isr("t", 0, [1, 2])
    world.admin.create(znodes.PREFERRED_REPLICA_ELECTION, znodes.encode_partitions([T0]))
    world.settle()
    assert world.state("t").leader == 2
    assert world.admin.get(znodes.PREFERRED_REPLICA_ELECTION) is None


def test_PSM_09_an_isr_change_between_read_and_write_is_not_overwritten(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[3, 1, 2]])
    store = world.active._store
    real, interfered = store.change_states, []

    def change_after_the_leader(states):
        if not interfered:
            interfered.append(1)
            world.set_isr("t", 0, [3, 2])
        return real(states)

    store.change_states = change_after_the_leader
    world.kill(3)
    # Broker 1 had left the ISR: had the election not read again, it would lead.
    assert (world.state("t").leader, world.state("t").isr) == (2, [2])


def test_PSM_10_an_election_reaches_the_live_replicas_and_the_metadata_of_every_broker(world):
    world.start(1, 2, 3, 4)
    world.create_topic("t", [[4, 2, 3]])
    world.requests.take()
    world.kill(4)
    sent = world.requests.take()
    assert {broker for broker, r in sent if isinstance(r, LeaderAndIsrRequest)} == {2, 3}
    last = {
        b: partitions_of(r)[T0].leader for b, r in sent if isinstance(r, UpdateMetadataRequest) and partitions_of(r)
    }
    assert last == {1: 2, 2: 2, 3: 2}


def test_PSM_11_a_controller_that_finds_a_newer_controllers_state_leaves_it(world):
    world.start(1, 2)
    world.create_topic("t", [[2, 1]])
    stored = world.state("t")._replace(controller_epoch=9)
    world.admin.set(znodes.partition_state("t", 0), stored.encode())
    world.kill(2)
    assert world.state("t") == stored


def test_CTRL_10_what_a_replaced_controller_writes_does_not_take_effect(world):
    world.start(1, 2)
    world.create_topic("t", [[2, 1]])
    old = world.controllers[1]
    # Another one was elected, and the old one has not noticed.
    node = world.admin.get(znodes.CONTROLLER_EPOCH)
    body = znodes.ControllerZNode(2, 0).encode()
    world.admin.multi([SetData(znodes.CONTROLLER_EPOCH, b"2", node.version), SetData(znodes.CONTROLLER, body)])
    before = world.state("t")
    old._put("BrokerChange", lambda: old._on_replicas_offline([PartitionReplica(T0, 1)]))
    old.events.process_all()
    assert world.state("t") == before
    assert not old.is_active and old.context.assignments == {}


# -- replicas -------------------------------------------------------------------------------------------


def test_RSM_02_and_RSM_03_at_the_start_of_a_term_live_replicas_hear_their_partitions_in_one_request_each(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[2, 3], [3, 2], [1, 2]])
    world.kill(1)
    context = world.active.context
    states = {replica: context.replica_state(replica) for replica in context.replicas_for(context.assignments)}
    assert {r.broker_id for r, state in states.items() if state is ReplicaState.ONLINE} == {2, 3}
    assert states[TopicPartition("t", 2), 1] is ReplicaState.OFFLINE
    first = {}
    for broker, request in world.requests.take(LeaderAndIsrRequest):
        first.setdefault(broker, request)
    assert partitions_of(first[3]).keys() == {T0, TopicPartition("t", 1)}
    assert not any(state.is_new for state in partitions_of(first[2]).values())


def test_RSM_01_an_illegal_change_is_left_out_and_the_others_of_the_batch_go_on(world):
    world.start(1, 2)
    world.create_topic("t", [[1, 2]])
    machine, context = world.active.replica_state_machine, world.active.context
    online, unknown = PartitionReplica(T0, 2), PartitionReplica(T0, 9)
    machine.handle_state_changes([unknown, online], ReplicaState.OFFLINE)
    assert context.replica_state(online) is ReplicaState.OFFLINE
    assert context.replica_state(unknown) is ReplicaState.NON_EXISTENT


def test_RSM_04_and_RSM_05_an_added_replica_gets_a_leader_and_isr_but_the_leader_cannot_be_added(world):
    world.start(1, 2)
    world.create_topic("t", [[1]])
    world.requests.take()
    controller = world.active
    machine, context = controller.replica_state_machine, controller.context
    machine.handle_state_changes([PartitionReplica(T0, 2)], ReplicaState.NEW)
    ((broker, request),) = world.requests.take(LeaderAndIsrRequest)
    assert broker == 2 and partitions_of(request)[T0].is_new and partitions_of(request)[T0].leader == 1
    context.set_replica_state(PartitionReplica(T0, 1), ReplicaState.NON_EXISTENT)
    machine.handle_state_changes([PartitionReplica(T0, 1)], ReplicaState.NEW)
    assert context.replica_state(PartitionReplica(T0, 1)) is ReplicaState.NON_EXISTENT
    # RSM-05: online, it belongs to the assignment.
    machine.handle_state_changes([PartitionReplica(T0, 2)], ReplicaState.ONLINE)
    assert context.replicas_of(T0) == (1, 2)


def test_RSM_06_a_replica_that_goes_offline_is_stopped_and_the_others_get_the_smaller_isr(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[1, 2, 3]])
    world.requests.take()
    world.active.replica_state_machine.handle_state_changes([PartitionReplica(T0, 2)], ReplicaState.OFFLINE)
    sent = world.requests.take()
    stops = [(b, partitions_of(r)[T0].delete_partition) for b, r in sent if isinstance(r, StopReplicaRequest)]
    assert stops == [(2, False)]
    assert {b: partitions_of(r)[T0].isr for b, r in sent if isinstance(r, LeaderAndIsrRequest)} == {
        1: [1, 3],
        3: [1, 3],
    }
    assert world.state("t").isr == [1, 3]


def test_RSM_06_all_brokers_get_the_metadata_of_a_replica_that_goes_offline(world):
    world.start(1, 2, 3, 4)
    world.create_topic("t", [[1, 2, 3]])
    world.requests.take()
    world.active.replica_state_machine.handle_state_changes([PartitionReplica(T0, 2)], ReplicaState.OFFLINE)
    metadata = [(b, partitions_of(r)) for b, r in world.requests.take() if isinstance(r, UpdateMetadataRequest)]
    isrs = {broker: partitions[T0].isr for broker, partitions in metadata if T0 in partitions}
    assert isrs == {broker: [1, 3] for broker in (1, 2, 3, 4)}


def test_RSM_06_a_replica_outside_the_isr_that_goes_offline_has_the_stored_isr_reach_the_brokers(world):
    """Nobody has notified the controller of the ISR yet."""
    world.start(1, 2, 3)
    world.create_topic("t", [[1, 2, 3]])
    world.set_isr("t", 0, [1, 3])
    world.requests.take()
    world.kill(2)
    assert world.active.context.leadership[T0].isr == (1, 3)
    metadata = [(b, partitions_of(r)) for b, r in world.requests.take() if isinstance(r, UpdateMetadataRequest)]
    isrs = {broker: partitions[T0].isr for broker, partitions in metadata if T0 in partitions}
    assert isrs == {1: [1, 3], 3: [1, 3]}


def test_RSM_06_a_leader_hears_of_a_replica_that_left_the_isr_itself_before_the_controller_saw_it_go(world):
    """One that lost records does, after a time without a controller."""
    world.start(1, 2, 3)
    world.create_topic("t", [[1, 2, 3]])
    before = world.state("t").leader_epoch
    world.set_isr("t", 0, [1, 3])
    world.requests.take()
    world.kill(2)
    told = {b: partitions_of(r)[T0] for b, r in world.requests.take() if isinstance(r, LeaderAndIsrRequest)}
    assert {b: (state.isr, state.leader_epoch) for b, state in told.items()} == {
        1: ([1, 3], before + 1),
        3: ([1, 3], before + 1),
    }
    assert world.state("t").leader_epoch == before + 1
