"""Topic names, meta.properties, the metadata cache, producer ids."""

import contextlib
import threading
from uuid import UUID

import pytest

from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.errors import CorruptFile, InvalidTopicException
from kcore.metadata.embedded_store import EmbeddedStore
from kcore.server import meta_properties, topic_names
from kcore.server.metadata_cache import BrokerInfo, MetadataCache, PartitionInfo, TopicInfo
from kcore.server.producer_ids import BLOCK_SIZE, ProducerIdManager


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
    assert meta_properties.read(str(tmp_path)) == (0, "CnicigT2Tj6S8vTq1Po1SA", 3, None)
    text = "#\n#Sat Nov 21\nnode.id=1\ndirectory.id=7Nl1SiE0GxT4yu_wdvLaUg\nversion=1\ncluster.id=abc\n"
    (tmp_path / "meta.properties").write_text(text)
    assert meta_properties.read(str(tmp_path)) == (1, "abc", 1, "7Nl1SiE0GxT4yu_wdvLaUg")


@pytest.mark.parametrize("content", [b"version=x\n", b"broker.id=one\n", b"\xff\xfe"])
def test_a_damaged_meta_properties_is_named(tmp_path, content):
    (tmp_path / "meta.properties").write_bytes(content)
    with pytest.raises(CorruptFile, match=r"meta\.properties"):
        meta_properties.read(str(tmp_path))


def test_the_cache_finds_topics_by_name_and_by_id_until_they_are_removed():
    cache = MetadataCache("cluster", 1)
    cache.update_broker(BrokerInfo(1, "h", 9092))
    one, two = UUID(int=11), UUID(int=12)
    info = PartitionInfo(1, 0, (1,), (1,))
    cache.update_topic(TopicInfo("t", one, {0: info}))
    assert cache.topic_name(one) == "t" and cache.topic_id("t") == one
    assert cache.contains(TopicPartition("t", 0)) and not cache.contains(TopicPartition("t", 1))
    cache.update_topic(TopicInfo("t", two, {0: info, 1: info}))  # deleted and made again
    assert cache.topic_name(one) is None and cache.topic_name(two) == "t"
    cache.remove_topic("t")
    assert cache.topic("t") is None and cache.topic_name(two) is None and cache.topic_id("t") == ZERO_UUID
    assert cache.broker(1).port == 9092 and cache.broker_ids() == [1]


def test_producer_ids_have_no_gaps_while_the_broker_runs_and_cost_a_write_per_block(tmp_path):
    with contextlib.closing(EmbeddedStore(str(tmp_path / "db"))) as store:
        writes = []
        update = store.update
        store.update = lambda *args: writes.append(args) or update(*args)
        manager = ProducerIdManager(1, store)
        assert [manager.generate_producer_id() for _ in range(2 * BLOCK_SIZE)] == list(range(2 * BLOCK_SIZE))
        assert len(writes) == 2
        assert manager.generate_producer_id() == 2 * BLOCK_SIZE


def test_producer_ids_are_never_given_twice_not_even_after_a_restart(tmp_path):
    path = str(tmp_path / "db")
    store = EmbeddedStore(path)
    manager = ProducerIdManager(1, store)
    given = []

    def take():
        given.extend(manager.generate_producer_id() for _ in range(600))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    store = EmbeddedStore(path)
    given.append(ProducerIdManager(1, store).generate_producer_id())
    assert len(set(given)) == len(given)
    assert max(given) == given[-1] == 3 * BLOCK_SIZE
    other = ProducerIdManager(2, store)
    other.reserve_up_to(123_456)
    other.reserve_up_to(5)
    assert other.generate_producer_id() == 123_457
    store.close()
