"""Each coordinator hears of the partitions of its own internal topic, and all of them of deletions."""

from types import SimpleNamespace

import pytest

from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.coordinators import Coordinators

OTHER = TopicPartition("orders", 7)


class Recorded:
    def __init__(self):
        self.calls = []

    def on_election(self, partition, epoch):
        self.calls.append(("elected", partition, epoch))

    def on_resignation(self, partition, epoch):
        self.calls.append(("resigned", partition, epoch))

    def partitions_deleted(self, topic_partitions):
        self.calls.append(("deleted", list(topic_partitions)))


@pytest.fixture
def groups():
    return Recorded()


@pytest.fixture
def transactions():
    return Recorded()


@pytest.fixture
def coordinators(groups, transactions):
    return Coordinators({"__consumer_offsets": groups, "__transaction_state": transactions})


def led(topic, number, epoch):
    return SimpleNamespace(topic_partition=TopicPartition(topic, number), leader_epoch=epoch)


def test_a_change_of_leaders_comes_to_the_coordinator_of_the_topic(coordinators, groups, transactions):
    coordinators.leadership_changed(
        [led("__consumer_offsets", 1, 5), led("orders", 7, 1)],
        [led("__transaction_state", 2, 6), led("__consumer_offsets", 3, 4)],
    )
    # What an earlier election has left is forgotten first: another broker may have led since.
    assert groups.calls == [("resigned", 1, 5), ("elected", 1, 5), ("resigned", 3, 4)]
    assert transactions.calls == [("resigned", 2, 6)]


def test_a_lost_partition_is_resigned_from_whoever_leads_it(coordinators, groups, transactions):
    coordinators.partitions_lost([OTHER, TopicPartition("__transaction_state", 0)])
    assert groups.calls == []
    assert transactions.calls == [("resigned", 0, None)]


def test_of_deleted_partitions_every_coordinator_hears_after_it_has_resigned_from_its_own(
    coordinators, groups, transactions
):
    deleted = [TopicPartition("__consumer_offsets", 1), OTHER]
    coordinators.partitions_deleted(deleted)
    assert groups.calls == [("resigned", 1, None), ("deleted", deleted)]
    assert transactions.calls == [("deleted", deleted)]


def test_nobody_hears_of_an_update_that_deletes_nothing(coordinators, groups, transactions):
    coordinators.partitions_deleted([])
    assert groups.calls == transactions.calls == []
