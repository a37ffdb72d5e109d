"""What `kcore reassign --wait` waits for, against scripted answers of the controller and of the metadata."""

import pytest

from kcore.client.admin_client import Node, PartitionDescription, Reassignment, TopicDescription
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.errors import UnknownTopicOrPartition
from kcore.tools import reassign
from kcore.tools.main import main

TP = TopicPartition("t", 0)
#: From 1,2 to 3.
MOVES = Reassignment((3, 1, 2), (3,), (1, 2))


class Admin:
    """answers: (what runs for TP or None, the replicas of the metadata or None), one a poll; the last one stays."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def reassignments(self, topic_partitions):
        running, self.replicas = self.answers[0]
        self.answers[:] = self.answers[1:] or self.answers
        return {} if running is None else {TP: running}

    def describe_cluster(self, topics):
        if self.replicas is None:
            raise UnknownTopicOrPartition("there is no topic 't'")
        partition = PartitionDescription(1, 0, self.replicas, self.replicas, ())
        topic = TopicDescription("t", None, False, {0: partition})
        brokers = {n: Node(n, "h", 1, None) for n in range(5)}
        return type("Cluster", (), {"topics": {"t": topic}, "brokers": brokers})

    def topic_configs(self, names):
        return {name: {} for name in names}

    def alter_reassignments(self, targets):
        return dict.fromkeys(targets)


def elsewhere(*answers):
    return reassign.await_moves(Admin(*answers), {TP: (3,)}, MockTime())


def test_a_move_is_done_once_the_metadata_has_the_target():
    assert elsewhere((MOVES, (3, 1, 2)), (None, (3, 1, 2)), (None, (3,))) == {}


def test_a_move_that_is_cancelled_meanwhile_ended_elsewhere():
    assert elsewhere((MOVES, (3, 1, 2)), (None, (1, 2))) == {TP: (1, 2)}


def test_a_move_that_another_one_replaces_ended_elsewhere_at_once():
    assert elsewhere((MOVES, (3, 1, 2)), (Reassignment((4, 1, 2), (4,), (1, 2)), (4, 1, 2))) == {TP: (4,)}


def test_a_topic_that_is_deleted_meanwhile_ends_the_wait_although_the_move_is_still_listed():
    with pytest.raises(UnknownTopicOrPartition):
        elsewhere((MOVES, (3, 1, 2)), (MOVES, None))


def test_a_partition_that_ended_elsewhere_is_named_and_the_status_is_1(monkeypatch, capsys):
    admin = Admin((None, (1, 2)), (Reassignment((4, 1, 2), (4,), (1, 2)), (4, 1, 2)))
    admin.replicas = (1, 2)
    monkeypatch.setattr(reassign, "admin_client", lambda args: admin)
    assert main(["reassign", "t", "--to", "3", "--wait"]) == 1
    assert capsys.readouterr().out == (
        "t-0 moves to 3\nt-0 is not moved: it was cancelled or moved again: replicas 4, not 3\n0 partitions moved\n"
    )
