"""A member whose session may have ended, or has, answers no offsets before the controller's next orders."""

import pytest

from kcore import errors
from kcore.coordinator.group.committed_offset import OffsetAndMetadata
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.protocol.messages import heartbeat as hb
from kcore.protocol.messages import offset_fetch as of
from kcore.server.member.leadership_certainty import LeadershipCertainty
from tests.unit.server.client import Client
from tests.unit.server.member.conftest import T0, with_broker_2
from tests.waiting import wait_until

OFFSETS = "__consumer_offsets"


@pytest.fixture
def leads(broker, controller):
    """The partition of group g, with an offset, under the broker's registration."""
    controller.broker_epoch = broker.cluster_member.broker_epoch
    controller.update_metadata({OFFSETS: {0: {}}}, with_broker_2(broker))
    controller.leader_and_isr({OFFSETS: [controller.state(0, leader_epoch=4)]})
    wait_until(lambda: broker.group_coordinator.manager.is_group_local("g"))
    results = []
    broker.group_coordinator.offsets.commit("g", "", None, -1, {T0: OffsetAndMetadata(42)}, results.append)
    assert results == [{T0: 0}]


def fetch(broker, version=8):
    groups = [of.OffsetFetchRequestGroup(group_id="g", topics=None)]
    with Client(broker) as client:
        (group,) = client.ask(of.OffsetFetchRequest(groups=groups), version).groups
    return group.error_code or group.topics[0].partitions[0].committed_offset


def test_while_the_session_is_uncertain_offsets_are_refused_and_members_go_on(broker, leads, monkeypatch):
    assert fetch(broker) == 42
    monkeypatch.setattr(MemoryStore, "is_session_certain", property(lambda self: False))
    assert fetch(broker) == errors.NotCoordinator.code
    with Client(broker) as client:
        beat = client.ask(hb.HeartbeatRequest(group_id="g", member_id="m", generation_id=1), 4)
    assert beat.error_code == errors.UnknownMemberId.code
    monkeypatch.undo()
    assert fetch(broker) == 42


def test_after_a_session_has_ended_offsets_are_refused_until_the_next_registration_has_its_orders(
    broker, controller, tree, store, leads
):
    """The next session is as good as any; but what this broker leads is what it led before."""
    epoch = broker.cluster_member.broker_epoch
    tree.expire(store.session_id)
    wait_until(lambda: broker.cluster_member.broker_epoch > epoch)
    assert store.is_session_certain
    assert fetch(broker) == errors.NotCoordinator.code
    # Sent to the registration before: it is late.
    stale = controller.leader_and_isr({"t": [controller.state()]})
    assert stale.error_code == errors.StaleBrokerEpoch.code
    assert fetch(broker) == errors.NotCoordinator.code
    controller.broker_epoch = broker.cluster_member.broker_epoch
    controller.controller_epoch -= 1
    controller.leader_and_isr({"t": [controller.state()]})
    assert fetch(broker) == errors.NotCoordinator.code
    controller.controller_epoch += 1
    controller.leader_and_isr({"t": [controller.state()]})
    assert fetch(broker) == 42


@pytest.mark.parametrize("version", [1, 7])
def test_orders_of_every_version_end_the_doubt(broker, controller, tree, store, leads, version):
    epoch = broker.cluster_member.broker_epoch
    tree.expire(store.session_id)
    wait_until(lambda: broker.cluster_member.broker_epoch > epoch)
    controller.broker_epoch = -1
    controller.leader_and_isr({"t": [controller.state()]}, version)
    assert fetch(broker) == 42


def test_late_orders_to_the_registration_that_has_ended_do_not_end_the_doubt():
    """They may still be carried out while the session ends."""
    is_certain = LeadershipCertainty(MemoryStore(MemoryTree()))
    assert is_certain()
    is_certain.session_ended(7)
    is_certain.orders_carried_out(7)
    assert not is_certain()
    is_certain.orders_carried_out(8)
    assert is_certain()
