"""Topic names, meta.properties, the metadata cache."""

import threading
from types import SimpleNamespace
from uuid import UUID

import pytest

from kcore.common import topic_names
from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.errors import CorruptFile, InvalidTopicException
from kcore.log import meta_properties
from kcore.metadata.metadata_cache import (
    BrokerInfo,
    Endpoint,
    MetadataCache,
    MetadataSnapshot,
    PartitionInfo,
    TopicInfo,
)
from kcore.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kcore.server.handlers import metadata
from kcore.server.requests.auth_helper import AuthHelper


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"])
def test_legal_topic_names_are_accepted(name):
    topic_names.validate(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\0", "a\n", "a,b"])
def test_other_topic_names_are_refused(name):
    with pytest.raises(InvalidTopicException, match="Topic name is invalid"):
        topic_names.validate(name)


def test_names_that_differ_only_in_dot_and_underscore_collide():
    existing = ["a.b", "c", "a_b_c"]
    assert topic_names.colliding_topics("a_b", existing) == ["a.b"]
    assert topic_names.colliding_topics("a.b.c", existing) == ["a_b_c"]
    assert topic_names.colliding_topics("a.b", existing) == []
    assert topic_names.colliding_topics("c", existing) == []


def test_meta_properties_of_zookeeper_and_of_kraft_are_read(tmp_path):
    assert meta_properties.read(str(tmp_path)) is None
    meta_properties.write(str(tmp_path), "CnicigT2Tj6S8vTq1Po1SA", 3)
    assert meta_properties.read(str(tmp_path)) == (0, "CnicigT2Tj6S8vTq1Po1SA", 3, None, False)
    text = "#\n#Sat Nov 21\nnode.id=1\ndirectory.id=7Nl1SiE0GxT4yu_wdvLaUg\nversion=1\ncluster.id=abc\n"
    (tmp_path / "meta.properties").write_text(text)
    assert meta_properties.read(str(tmp_path)) == (1, "abc", 1, "7Nl1SiE0GxT4yu_wdvLaUg", False)


@pytest.mark.parametrize("content", [b"version=x\n", b"version=0\nbroker.id=one\n", b"\xff\xfe", b"", b"broker.id=1\n"])
def test_a_damaged_meta_properties_is_named(tmp_path, content):
    (tmp_path / "meta.properties").write_bytes(content)
    with pytest.raises(CorruptFile, match=r"meta\.properties"):
        meta_properties.read(str(tmp_path))


def test_a_snapshot_finds_topics_by_name_and_by_id_until_they_are_removed():
    one, two = UUID(int=11), UUID(int=12)
    info = PartitionInfo(1, 0, (1,), (1,))
    first = MetadataSnapshot("cluster", 1).with_topics([TopicInfo("t", one, {0: info})])
    assert first.topic_name(one) == "t" and first.topic_id("t") == one
    assert first.contains(TopicPartition("t", 0)) and not first.contains(TopicPartition("t", 1))
    second = first.with_topics([TopicInfo("t", two, {0: info, 1: info})])  # deleted and made again
    assert second.topic_name(one) is None and second.topic_by_id(one) is None and second.topic_name(two) == "t"
    assert second.topic_by_id(two) is second.topic("t")
    third = second.without_topic("t").without_topic("none")
    assert third.topic("t") is None and third.topic_name(two) is None and third.topic_id("t") == ZERO_UUID
    # None of these calls has changed the snapshot that a reader may be using.
    assert first.topic_name(one) == "t" and len(first.topic("t").partitions) == 1 and first.topic_name(two) is None


def test_a_snapshot_has_every_brokers_listeners():
    brokers = [
        BrokerInfo(2, {"PLAINTEXT": Endpoint("b", 9092), "INSIDE": Endpoint("b.inside", 9093)}, "r1"),
        BrokerInfo(1, {"PLAINTEXT": Endpoint("a", 9092)}),
    ]
    snapshot = MetadataSnapshot("cluster", 1).with_brokers(brokers)
    assert snapshot.broker_ids() == [1, 2] and snapshot.broker(2).rack == "r1" and snapshot.broker(3) is None
    assert snapshot.endpoint(2, "INSIDE") == ("b.inside", 9093)
    assert snapshot.endpoint(1, "INSIDE") is None and snapshot.endpoint(3, "PLAINTEXT") is None
    assert [(broker.node_id, endpoint.host) for broker, endpoint in snapshot.endpoints("PLAINTEXT")] == [
        (1, "a"),
        (2, "b"),
    ]
    assert [broker.node_id for broker, _ in snapshot.endpoints("INSIDE")] == [2]
    assert snapshot.with_brokers(brokers[:1]).broker_ids() == [2]


def test_updates_of_the_cache_from_several_threads_are_all_in_its_last_snapshot():
    cache = MetadataCache("cluster", 1)
    start = threading.Barrier(4)

    def add(thread):
        start.wait()
        for n in range(50):
            topic = TopicInfo(f"t-{thread}-{n}", UUID(int=thread * 1000 + n + 1), {})
            cache.update(lambda snapshot, topic=topic: snapshot.with_topics([topic]))

    threads = [threading.Thread(target=add, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cache.snapshot.topics()) == 200


class RestlessCache(MetadataCache):
    """Another cluster at each look."""

    looks = 0

    @property
    def snapshot(self):
        self.looks += 1
        n = self.looks
        info = PartitionInfo(n, n, (n,), (n,))
        return (
            MetadataSnapshot(f"cluster-{n}", n)
            .with_brokers([BrokerInfo(n, {"PLAINTEXT": Endpoint(f"host-{n}", n)})])
            .with_topics([TopicInfo("t", UUID(int=n), {0: info})])
        )

    @snapshot.setter
    def snapshot(self, value):
        pass


@pytest.mark.parametrize("topics", [None, [MetadataRequestTopic(name="t")]])
def test_a_metadata_answer_is_of_one_snapshot(topics):
    answers = []
    context = SimpleNamespace(api_version=12, listener_name="PLAINTEXT", respond=answers.append)
    config = {"auto.create.topics.enable": False}
    cache, auth = RestlessCache("c", 1), AuthHelper(None)
    services = SimpleNamespace(metadata_cache=cache, admin_manager=None, config=config, auth=auth)
    metadata.Handler(services).handle(context, MetadataRequest(topics=topics))
    (answer,) = answers
    n = answer.controller_id
    assert answer.cluster_id == f"cluster-{n}"
    assert [(broker.node_id, broker.host) for broker in answer.brokers] == [(n, f"host-{n}")]
    (topic,) = answer.topics
    assert topic.topic_id == UUID(int=n)
    assert (topic.partitions[0].leader_id, topic.partitions[0].offline_replicas) == (n, [])
