from kcore.common.topic_partition import TopicPartition
from kcore.replica import hosted_partitions
from kcore.replica.partition import Partition

from .conftest import TP

OTHER = TopicPartition("t", 1)


def test_the_partitions_are_listed_while_another_thread_adds_one(node, monkeypatch):
    node.lead()
    added = [OTHER]

    class AddsOne(type):
        def __instancecheck__(cls, hosted):
            if added:
                node.lead(added.pop())
            return isinstance(hosted, Partition)

    monkeypatch.setattr(hosted_partitions, "Partition", AddsOne("Partition", (), {}))
    assert [partition.topic_partition for partition in node.replica_manager.hosted_partitions.online()] == [TP]
    assert [partition.topic_partition for partition in node.replica_manager.hosted_partitions.online()] == [TP, OTHER]
