"""A leader's change of its ISR, in the partition's state node."""

import pytest

from kcore import errors
from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.metadata import znodes
from kcore.metadata.embedded_store import FILE_NAME, EmbeddedStore
from kcore.metadata.store import StoreError
from kcore.replica.partition_state_store import StoredIsr
from kcore.server.metadata_partition_state_store import MetadataPartitionStateStore

TP = TopicPartition("t", 3)
PATH = znodes.partition_state("t", 3)


class Stored:
    def __init__(self, path):
        self.store = EmbeddedStore(str(path))
        self.store.create_recursive(PATH, znodes.PartitionStateZNode(0, 5, [0, 1], 2).encode())
        self.scheduler = MockScheduler(MockTime())
        self.state_store = MetadataPartitionStateStore(0, self.store, self.scheduler)

    def change(self, isr, version):
        answers = []
        self.state_store.change_isr(TP, frozenset(isr), version, answers.append)
        assert answers == []  # nothing is stored on the caller's thread
        self.scheduler.tick()
        (answer,) = answers
        return answer

    def node(self):
        node = self.store.get(PATH)
        return znodes.PartitionStateZNode.decode(node.data), node.version


@pytest.fixture
def stored(tmp_path):
    stored = Stored(tmp_path / FILE_NAME)
    yield stored
    stored.store.close()


def test_PART_17_the_isr_is_stored_and_nothing_else_changes(stored):
    assert stored.change({0}, 0) == StoredIsr(frozenset({0}), 1)
    assert stored.node() == (znodes.PartitionStateZNode(0, 5, [0], 2), 1)
    assert stored.change({0, 2, 1}, 1) == StoredIsr(frozenset({0, 1, 2}), 2)


def test_PART_17_at_another_version_nothing_is_written_and_what_is_stored_comes_back(stored):
    stored.change({0}, 0)
    assert stored.change({0, 1, 2}, 0) == StoredIsr(frozenset({0}), 1)
    assert stored.node()[0].isr == [0]


def test_a_change_between_look_and_write_is_seen(stored, monkeypatch):
    get = stored.store.get

    def get_then_change(path):
        node = get(path)
        monkeypatch.undo()
        stored.store.set(PATH, znodes.PartitionStateZNode(0, 5, [0, 7], 2).encode())
        return node

    monkeypatch.setattr(stored.store, "get", get_then_change)
    assert stored.change({0}, 0) == StoredIsr(frozenset({0, 7}), 1)


def test_who_leads_no_more_or_whose_topic_is_gone_is_told(stored):
    stored.store.set(PATH, znodes.PartitionStateZNode(1, 6, [1], 2).encode())
    assert isinstance(stored.change({0}, 1), errors.FencedLeaderEpoch)
    stored.store.delete(PATH)
    assert isinstance(stored.change({0}, 1), errors.UnknownTopicOrPartition)


def test_a_store_that_fails_is_an_unknown_outcome(stored, monkeypatch):
    def fail(*args):
        raise StoreError("disk I/O error")

    monkeypatch.setattr(stored.store, "set", fail)
    assert isinstance(stored.change({0}, 0), errors.UnknownServerError)
