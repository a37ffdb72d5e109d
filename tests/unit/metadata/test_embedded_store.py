"""MetadataStore's verbs, as ZooKeeper has them, on the embedded store."""

import json
import multiprocessing
import os
import sqlite3
import threading
from uuid import UUID

import pytest

from kcore.common.random_source import SYSTEM_RANDOM
from kcore.metadata import znodes
from kcore.metadata.embedded_store import FILE_NAME, EmbeddedStore
from kcore.metadata.store import BadVersion, NodeExists, NoNode, NotEmpty, StoreError


@pytest.fixture
def store(tmp_path):
    store = EmbeddedStore(str(tmp_path / FILE_NAME))
    yield store
    store.close()


def test_a_node_is_created_once_under_a_parent_that_exists(store):
    with pytest.raises(NoNode):
        store.create("/a/b", b"x")
    store.create("/a")
    store.create("/a/b", b"x")
    assert store.get("/a/b") == (b"x", 0)
    assert store.get("/a/c") is None
    with pytest.raises(NodeExists):
        store.create("/a/b", b"y")
    with pytest.raises(NodeExists):
        store.create("/")


def test_set_counts_versions_and_checks_the_expected_one(store):
    store.create("/a", b"0")
    assert store.set("/a", b"1") == 1
    assert store.set("/a", b"2", expected_version=1) == 2
    with pytest.raises(BadVersion):
        store.set("/a", b"3", expected_version=1)
    with pytest.raises(NoNode):
        store.set("/b", b"")
    assert store.get("/a") == (b"2", 2)


def test_children_are_sorted_names_of_direct_children_only(store):
    for path in ("/t/b/x", "/t/a", "/t2/z", "/t/ab"):
        store.create_recursive(path)
    assert store.children("/t") == ["a", "ab", "b"]
    assert store.children("/") == ["t", "t2"]
    assert store.children("/none") == []


def test_delete_wants_the_right_version_and_no_children(store):
    store.create_recursive("/a/b/c")
    with pytest.raises(NotEmpty):
        store.delete("/a/b")
    store.set("/a/b/c", b"1")
    with pytest.raises(BadVersion):
        store.delete("/a/b/c", expected_version=0)
    store.delete("/a/b/c", expected_version=1)
    with pytest.raises(NoNode):
        store.delete("/a/b/c")
    assert store.delete_recursive("/a") is True
    assert store.delete_recursive("/a") is False
    assert store.children("/") == []


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/a\0b"])
def test_a_path_that_zookeeper_would_refuse_is_refused(store, path):
    with pytest.raises(StoreError):
        store.create(path)
    with pytest.raises(StoreError):
        store.get(path)


def test_a_transaction_happens_whole_or_not_at_all(store):
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.create_recursive("/a/b")
        with store.transaction():
            store.create("/c")
        raise ZeroDivisionError
    assert store.children("/") == []
    with store.transaction():
        store.create_recursive("/a/b")
    assert store.get("/a/b") is not None


def test_everything_is_there_after_reopening(tmp_path):
    path = str(tmp_path / FILE_NAME)
    store = EmbeddedStore(path)
    store.create_recursive("/a/b", b"\0\xff")
    store.set("/a/b", b"\0\xfe")
    store.close()
    again = EmbeddedStore(path)
    assert again.get("/a/b") == (b"\0\xfe", 1)
    again.close()


@pytest.mark.parametrize("content", [b"garbage that is no database at all" * 100, None])
def test_a_file_that_is_not_such_a_store_is_named_and_left_alone(tmp_path, content):
    path = tmp_path / FILE_NAME
    if content is None:
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version=77")
        db.close()
    else:
        path.write_bytes(content)
    with pytest.raises(StoreError, match=FILE_NAME):
        EmbeddedStore(str(path))
    if content:
        assert path.read_bytes() == content


def _count_up(path, times):
    store = EmbeddedStore(path)
    for _ in range(times):
        store.update("/n", lambda data: str(int(data or b"0") + 1).encode())
    store.close()


def test_threads_and_processes_share_a_store_without_losing_an_update(tmp_path):
    path = str(tmp_path / FILE_NAME)
    store = EmbeddedStore(path)

    def count():
        for _ in range(50):
            store.update("/n", lambda data: str(int(data or b"0") + 1).encode())

    threads = [threading.Thread(target=count) for _ in range(4)]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_count_up, args=(path, 50)) for _ in range(2)]
    for worker in threads + processes:
        worker.start()
    for worker in threads + processes:
        worker.join()
    assert store.get("/n").data == b"300"
    store.close()


def test_a_forked_child_leaves_the_parents_file_alone(store):
    store.create("/a")
    child = os.fork()
    if child == 0:
        store.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    store.create("/b")
    assert store.children("/") == ["a", "b"]


def test_nodes_have_kafkas_paths_and_bodies():
    topic_id = UUID("2422b0fc-b43d-4cb6-ab2b-d43c33790ad8")
    node = znodes.TopicZNode({1: [1, 2], 0: [2]}, topic_id)
    assert znodes.topic("orders") == "/brokers/topics/orders"
    assert node.encode() == (
        b'{"partitions":{"0":[2],"1":[1,2]},"topic_id":"JCKw_LQ9TLarK9Q8M3kK2A",'
        b'"adding_replicas":{},"removing_replicas":{},"version":3}'
    )
    assert znodes.TopicZNode.decode(node.encode()) == node
    # Version 1, before topic ids.
    assert znodes.TopicZNode.decode(b'{"version":1,"partitions":{"0":[0]}}') == znodes.TopicZNode({0: [0]})
    state = znodes.PartitionStateZNode(leader=1, leader_epoch=3, isr=[1], controller_epoch=5)
    assert znodes.partition_state("t", 0) == "/brokers/topics/t/partitions/0/state"
    assert json.loads(state.encode()) == {
        "controller_epoch": 5,
        "leader": 1,
        "version": 1,
        "leader_epoch": 3,
        "isr": [1],
    }
    assert znodes.PartitionStateZNode.decode(state.encode()) == state
    broker = znodes.BrokerZNode("h", 9092, "r1", 1700000000000)
    assert znodes.BrokerZNode.decode(broker.encode()) == broker
    assert json.loads(broker.encode())["endpoints"] == ["PLAINTEXT://h:9092"]
    block = znodes.ProducerIdBlock(0, 1000, 1999)
    assert block.encode() == b'{"version":1,"broker":0,"block_start":"1000","block_end":"1999"}'
    assert znodes.ProducerIdBlock.decode(block.encode()) == block
    assert znodes.decode_config(znodes.encode_config({"segment.bytes": "1024"})) == {"segment.bytes": "1024"}
    assert znodes.decode_cluster_id(znodes.encode_cluster_id("abc")) == "abc"


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff"])
def test_a_body_that_is_not_a_json_object_is_refused(data):
    with pytest.raises(StoreError):
        znodes.TopicZNode.decode(data)


def test_ids_are_written_as_kafka_writes_them():
    for _ in range(100):
        value = znodes.random_id(SYSTEM_RANDOM)
        text = znodes.id_to_string(value)
        assert len(text) == 22 and not text.startswith("-")
        assert znodes.id_from_string(text) == value
    with pytest.raises(StoreError):
        znodes.id_from_string("too short")
