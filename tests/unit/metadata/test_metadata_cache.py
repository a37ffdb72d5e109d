"""What the observers of the cluster's metadata hear of its changes."""

from uuid import UUID

from kcore.common.topic_partition import TopicPartition
from kcore.metadata.metadata_cache import MetadataCache, PartitionInfo, TopicInfo

INFO = PartitionInfo(1, 0, (1,), (1,))


def topic(name, partitions):
    return TopicInfo(name, UUID(int=len(name)), dict.fromkeys(range(partitions), INFO))


def cache_with(*topics):
    cache = MetadataCache("cluster", 1)
    cache.update(lambda snapshot: snapshot.with_topics(topics))
    return cache


def test_an_observer_hears_of_each_update_once_when_it_is_announced():
    cache = cache_with(topic("a", 1))
    heard = []
    cache.add_observer(lambda before, after: heard.append((before.controller_id, after.controller_id)))
    for controller_id in (2, 3):
        cache.update(lambda snapshot, controller_id=controller_id: snapshot.with_controller(controller_id))
    assert heard == []
    cache.announce()
    cache.announce()
    assert heard == [(1, 2), (2, 3)]


def test_a_topic_that_is_deleted_and_made_again_before_the_announcement_is_gone_once():
    cache = cache_with(topic("a", 2), topic("b", 1))
    gone = []
    cache.add_observer(lambda before, after: gone.append(before.partitions_gone(after)))
    cache.update(lambda snapshot: snapshot.without_topic("a"))
    cache.update(lambda snapshot: snapshot.with_topics([topic("a", 2)]))
    cache.announce()
    assert gone == [[TopicPartition("a", 0), TopicPartition("a", 1)], []]


def test_partitions_gone_are_those_that_a_later_snapshot_does_not_have():
    before = cache_with(topic("a", 3), topic("b", 2), topic("c", 1)).snapshot
    after = before.with_topics([topic("a", 2), topic("c", 4)], without=["b"])
    assert before.partitions_gone(after) == [("a", 2), ("b", 0), ("b", 1)]
    assert after.partitions_gone(before) == [("c", 1), ("c", 2), ("c", 3)]
    assert before.partitions_gone(before.with_controller(5)) == []
