"""Which of the updates that came while the store was away are carried out later."""

from uuid import UUID

import pytest

from kcore.common.topic_partition import TopicPartition
from kcore.server.member.postponed_updates import PostponedUpdates
from tests.unit.replica.conftest import update

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ID, NEXT_ID = UUID(int=7), UUID(int=8)


@pytest.fixture
def postponed():
    return PostponedUpdates()


def of(tp=T0, epoch=0, topic_id=ID):
    return update(tp, epoch=epoch, topic_id=topic_id)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_latest_update_of_a_partition_is_kept_in_whichever_order_they_come(postponed, reverse):
    for controller_epoch, leader_epoch in sorted([(1, 5), (2, 3), (2, 4)], reverse=reverse):
        postponed.add([of(epoch=leader_epoch)], controller_epoch)
    assert postponed.take() == [(2, [of(epoch=4)])]
    assert postponed.take() == []


def test_of_two_updates_with_the_same_epochs_the_later_one_is_kept(postponed):
    """The ISR may have changed in between, which raises no epoch."""
    shrunk = update(T0, epoch=4, topic_id=ID, isr=(0,), replicas=(0, 1), partition_epoch=8)
    postponed.add([update(T0, epoch=4, topic_id=ID, isr=(0, 1), replicas=(0, 1), partition_epoch=7)], 1)
    postponed.add([shrunk], 1)
    assert postponed.take() == [(1, [shrunk])]


def test_updates_of_several_topics_of_one_name_are_all_kept(postponed):
    postponed.add([of(topic_id=NEXT_ID), of(T1)], 1)
    postponed.add([of(epoch=9)], 1)
    assert postponed.take() == [(1, [of(topic_id=NEXT_ID), of(T1), of(epoch=9)])]


def test_updates_come_back_by_controller_epoch(postponed):
    postponed.add([of(T1)], 3)
    postponed.add([of(T0)], 2)
    assert postponed.take() == [(2, [of(T0)]), (3, [of(T1)])]


def test_an_update_of_a_partition_that_was_stopped_since_is_not_kept(postponed):
    postponed.add([of(T0), of(T0, topic_id=NEXT_ID), of(T1)], 1)
    postponed.remove([T0])
    assert postponed.take() == [(1, [of(T1)])]
