"""AlterPartition: which ISRs a controller stores for a leader, and what it answers."""

from uuid import UUID

import pytest

from kcore.common.topic_partition import TopicPartition
from kcore.controller.alter_partition import IsrChange, checked_isr_change
from kcore.controller.election import LeaderAndIsr
from kcore.errors import (
    ApiError,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    NotController,
    StaleBrokerEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kcore.protocol.messages.update_metadata import UpdateMetadataRequest

CURRENT = LeaderAndIsr(leader=1, leader_epoch=5, isr=(1, 2), controller_epoch=3, partition_epoch=7)
ELIGIBLE = {1: 100, 2: 200, 3: 300}


def change(isr, *, leader_epoch=5, partition_epoch=7, epochs=None, is_recovering=False):
    return IsrChange("t", 0, leader_epoch, partition_epoch, tuple(isr), epochs or {}, is_recovering)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (change([1, 2, 3]), (1, 2, 3)),
        (change([1]), (1,)),
        (change([1, 2, 3], epochs={1: 100, 2: 200, 3: 300}), (1, 2, 3)),
        (change([2, 1]), None),  # so it is already
        (change([2, 1], partition_epoch=6), None),
        (change([1], partition_epoch=6), InvalidUpdateVersion),
        (change([1], partition_epoch=8), NotController),
        (change([1], leader_epoch=6), NotController),
        (change([1], leader_epoch=4), FencedLeaderEpoch),
        (change([1, 2, 4]), IneligibleReplica),
        (change([1, 2, 3], epochs={3: 299}), IneligibleReplica),
        (change([1, 2], epochs={2: 199}, partition_epoch=7), None),
        (change([1, 2, 3], epochs={2: 199}), IneligibleReplica),
        (change([2]), InvalidRequest),
        (change([1], is_recovering=True), InvalidRequest),
        (change([1, 2], is_recovering=True), InvalidRequest),
    ],
)
def test_an_isr_is_stored_that_the_leader_may_have(asked, expected):
    answer = checked_isr_change(asked, 1, CURRENT, ELIGIBLE)
    if expected is None:
        assert answer is CURRENT
    elif isinstance(expected, tuple):
        assert (answer.isr, answer.leader, answer.leader_epoch, answer.partition_epoch) == (expected, 1, 5, 7)
    else:
        assert type(answer) is expected


def test_another_broker_than_the_leader_and_an_unknown_partition_are_refused():
    assert type(checked_isr_change(change([1]), 2, CURRENT, ELIGIBLE)) is FencedLeaderEpoch
    assert type(checked_isr_change(change([1]), 1, None, ELIGIBLE)) is UnknownTopicOrPartition
    # A member of the ISR that is not alive any more may stay in it until the controller has taken it out.
    assert checked_isr_change(change([1, 2, 3]), 1, CURRENT, {1: 100, 3: 300}).isr == (1, 2, 3)


def ask(world, broker_id, changes, epoch=None):
    answers = []
    controller = world.active
    epoch = controller.context.live_brokers[broker_id].epoch if epoch is None else epoch
    controller.isr_changes.request(broker_id, epoch, changes, answers.append)
    world.settle()
    (answer,) = answers
    return (answer, ()) if isinstance(answer, ApiError) else (None, answer)


def test_a_leaders_isr_is_stored_and_made_known_and_the_next_depends_on_it(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[2, 1, 3]])
    before = world.active.context.leadership[TopicPartition("t", 0)]
    world.requests.take()
    smaller = IsrChange("t", 0, before.leader_epoch, before.partition_epoch, (2, 3))
    error, (answer,) = ask(world, 2, [smaller])
    assert error is None and answer.isr == (2, 3) and answer.partition_epoch == before.partition_epoch + 1
    assert world.state("t").isr == [2, 3]
    sent = world.requests.take(UpdateMetadataRequest)
    assert {broker for broker, _ in sent} == {1, 2, 3}
    assert sent[0][1].topic_states[0].partition_states[0].isr == [2, 3]
    # The same again: its answer was lost.  Another on the old state: refused.
    error, (answer,) = ask(world, 2, [smaller])
    assert error is None and answer.partition_epoch == before.partition_epoch + 1
    error, (answer,) = ask(world, 2, [smaller._replace(isr=(2,))])
    assert type(answer) is InvalidUpdateVersion and world.state("t").isr == [2, 3]


def test_topics_go_by_name_or_by_id_and_each_partition_has_its_own_answer(world):
    world.start(1, 2)
    world.create_topic("t", [[1, 2], [1, 2]])
    topic_id = world.active.context.topic_ids["t"]
    states = world.active.context.leadership
    first = IsrChange(topic_id, 0, 0, states[TopicPartition("t", 0)].partition_epoch, (1,))
    second = IsrChange("t", 1, 9, states[TopicPartition("t", 1)].partition_epoch, (1,))
    error, answers = ask(world, 1, [first, second, first._replace(topic=UUID(int=7)), second._replace(partition=5)])
    assert error is None and answers[0].isr == (1,)
    assert [type(answer) for answer in answers[1:]] == [NotController, UnknownTopicId, UnknownTopicOrPartition]
    assert (world.state("t", 0).isr, world.state("t", 1).isr) == ([1], [1, 2])


def test_a_state_that_somebody_else_has_written_is_not_overwritten(world):
    world.start(1, 2)
    world.create_topic("t", [[1, 2]])
    epoch = world.active.context.leadership[TopicPartition("t", 0)].partition_epoch
    world.set_isr("t", 0, [1])  # the controller does not know of it yet
    error, (answer,) = ask(world, 1, [IsrChange("t", 0, 0, epoch, (1,))])
    assert error is None and type(answer) is InvalidUpdateVersion


def test_brokers_of_an_earlier_registration_and_brokers_that_shut_down_are_refused(world):
    world.start(1, 2)
    world.create_topic("t", [[1, 2]])
    controller = world.active
    asked = [IsrChange("t", 0, 0, controller.context.leadership[TopicPartition("t", 0)].partition_epoch, (1,))]
    epoch = controller.context.live_brokers[1].epoch
    for broker_id, broker_epoch in ((1, epoch - 1), (1, -1), (3, epoch)):
        error, answers = ask(world, broker_id, asked, broker_epoch)
        assert type(error) is StaleBrokerEpoch and not answers
    other = next(c for c in world.controllers.values() if not c.is_active)
    answers = []
    other.isr_changes.request(1, epoch, asked, answers.append)
    other.events.process_all()
    assert type(answers[0]) is NotController
    assert ask(world, 1, asked)[1][0].isr == (1,)
    controller.context.shutting_down.add(2)
    back = asked[0]._replace(partition_epoch=asked[0].partition_epoch + 1, isr=(1, 2))
    assert type(ask(world, 1, [back])[1][0]) is IneligibleReplica


def test_an_isr_change_is_stored_with_the_epoch_of_the_controller_that_stores_it(world):
    """Not with that of the controller before, which elected the leader."""
    world.start(1, 2, 3)
    world.create_topic("t", [[2, 3]])
    world.kill(1)
    state, context = world.state("t"), world.active.context
    assert (state.controller_epoch, context.epoch) == (1, 2)
    partition_epoch = context.leadership[TopicPartition("t", 0)].partition_epoch
    ask(world, 2, [change((2,), leader_epoch=state.leader_epoch, partition_epoch=partition_epoch)])
    assert (world.state("t").isr, world.state("t").controller_epoch) == ([2], 2)
