"""What is SQLite's own about the embedded store (test_store_contract.py has the rest), and Kafka's znodes."""

import contextlib
import json
import multiprocessing
import os
import sqlite3
import threading
import time
from uuid import UUID

import pytest

from kcore.common.random_source import SYSTEM_RANDOM
from kcore.common.time import MockTime
from kcore.metadata import embedded_store, store_schema, znodes
from kcore.metadata.embedded_store import FILE_NAME, SESSION_TIMEOUT_MS, EmbeddedStore
from kcore.metadata.store import Create, EventType, MultiFailed, StoreError, WatchEvent
from tests.waiting import wait_until


@pytest.fixture
def store(tmp_path):
    store = EmbeddedStore(str(tmp_path / FILE_NAME))
    yield store
    store.close()


def test_a_session_is_uncertain_once_its_last_heartbeat_is_older_than_its_timeout(tmp_path):
    """As the process that stood still finds it, before it has called the store."""
    clock = MockTime()
    store = EmbeddedStore(str(tmp_path / FILE_NAME), time=clock, poll_interval_ms=None)
    with contextlib.closing(store):
        assert store.is_session_certain  # no row, so nobody can end it
        store.create("/e", ephemeral=True)
        clock.sleep(SESSION_TIMEOUT_MS - 1)
        assert store.is_session_certain
        clock.sleep(1)
        assert not store.is_session_certain
        store.get("/e")  # it is alive all the same; but what counts is what the others see
        store.poll()
        assert store.is_session_certain
        with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as locking:
            locking.execute("BEGIN IMMEDIATE")
            clock.sleep(SESSION_TIMEOUT_MS)
            store.poll()  # a heartbeat that could not be written is none
            assert not store.is_session_certain
            locking.execute("ROLLBACK")
        store.poll()
        assert store.is_session_certain


def test_everything_is_there_after_reopening(tmp_path):
    path = str(tmp_path / FILE_NAME)
    store = EmbeddedStore(path)
    store.create_recursive("/a/b", b"\0\xff")
    store.set("/a/b", b"\0\xfe")
    store.close()
    again = EmbeddedStore(path)
    assert again.get("/a/b")[:2] == (b"\0\xfe", 1)
    again.close()


def test_polls_become_rare_once_no_node_has_changed_for_a_while_and_frequent_again_with_a_change_or_a_watch(tmp_path):
    clock = MockTime()
    store = EmbeddedStore(str(tmp_path / FILE_NAME), time=clock)
    other = EmbeddedStore(str(tmp_path / FILE_NAME))
    with contextlib.closing(store), contextlib.closing(other):
        store.create("/a")
        seen = threading.Event()
        store.get("/a", lambda event: seen.set())
        assert store._poll_delay_ms() == 100
        wait_until(lambda: store._watched_zxid >= 0)  # the first poll has seen the creation
        clock.sleep(embedded_store.QUIET_AFTER_MS)
        assert store._poll_delay_ms() == embedded_store.QUIET_POLL_MS
        store.get("/b", lambda event: None)
        assert store._poll_delay_ms() == 100
        clock.sleep(embedded_store.QUIET_AFTER_MS)
        other.set("/a", b"changed")
        assert seen.wait(60)
        assert store._poll_delay_ms() == 100


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
    store = EmbeddedStore(path, busy_timeout_ms=60_000)
    for _ in range(times):
        store.update("/n", lambda data: str(int(data or b"0") + 1).encode())
    store.close()


def test_threads_and_processes_share_a_store_without_losing_an_update(tmp_path):
    path = str(tmp_path / FILE_NAME)
    store = EmbeddedStore(path, busy_timeout_ms=60_000)

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


# Version 1's schema, as a broker of before has left it.
_VERSION_1 = """
CREATE TABLE node (path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL,
  version INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX node_parent ON node (parent);
INSERT INTO node VALUES ('/brokers', '/', x'', 0), ('/brokers/topics', '/brokers', x'', 0),
  ('/brokers/topics/t', '/brokers/topics', x'7b7d', 3), ('/cluster', '/', x'00ff', 1);
PRAGMA user_version=1;
"""


def test_a_file_of_schema_version_1_is_migrated_with_its_nodes(tmp_path):
    path = tmp_path / FILE_NAME
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(_VERSION_1)
    for _ in range(2):
        with contextlib.closing(EmbeddedStore(str(path))) as store:
            assert store.children("/") == ["brokers", "cluster"]
            assert store.get("/brokers/topics/t")[:2] == (b"{}", 3)
            assert store.get("/cluster")[:2] == (b"\0\xff", 1)
            assert store.children("/brokers/topics")[0] == "t"
    with contextlib.closing(EmbeddedStore(str(path))) as store:
        with pytest.raises(StoreError):
            store.delete("/brokers/topics")
        # The count of creations goes on above the children that were there.
        assert store.create("/brokers/s-", sequential=True) == "/brokers/s-0000000001"
        assert store.get("/brokers/s-0000000001").czxid > store.get("/brokers").czxid
        store.delete_recursive("/brokers")
        assert store.children("/") == ["cluster"]


def test_a_migration_that_is_killed_leaves_version_1(tmp_path, monkeypatch):
    path = tmp_path / FILE_NAME
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(_VERSION_1)
    with monkeypatch.context() as patch:
        statements = store_schema._FROM_VERSION_1
        patch.setattr(store_schema, "_FROM_VERSION_1", (*statements[:-1], "SELECT * FROM no_such_table"))
        with pytest.raises(StoreError, match="no_such_table"):
            EmbeddedStore(str(path))
    with contextlib.closing(EmbeddedStore(str(path))) as store:
        assert store.children("/") == ["brokers", "cluster"]


def _pollers():
    return [thread for thread in threading.enumerate() if thread.name == "kcore-metadata-poller"]


def test_a_store_without_watches_and_ephemeral_nodes_has_no_thread(store):
    store.create_recursive("/a/b")
    store.multi([Create("/c"), Create("/d", sequential=True)])
    store.update("/n", lambda data: b"1")
    store.get("/a")
    assert _pollers() == []
    store.get("/a", watch=print)
    assert len(_pollers()) == 1
    store.close()
    assert _pollers() == []


def test_the_poller_of_an_idle_store_with_ephemeral_nodes_only_keeps_them_alive(store, monkeypatch):
    """18 s of session: nothing happens in the first 6."""
    polls = []
    poll = EmbeddedStore.poll
    monkeypatch.setattr(EmbeddedStore, "poll", lambda self: polls.append(1) or poll(self))
    store.create("/e", ephemeral=True)
    time.sleep(0.4)
    assert len(polls) <= 3
    assert store._poll_delay_ms() == SESSION_TIMEOUT_MS / 3


def _change(path):
    store = EmbeddedStore(path)
    store.set("/n", b"1")
    store.create("/p/e", ephemeral=True)
    threading.Event().wait()  # until it is killed


def test_watches_see_another_process_and_its_death(tmp_path):
    path = str(tmp_path / FILE_NAME)
    store = EmbeddedStore(path, poll_interval_ms=10)
    store.ensure_path("/n")
    store.ensure_path("/p")
    events, came = [], threading.Semaphore(0)

    def watch(event):
        events.append(event)
        came.release()

    store.get("/n", watch=watch)
    store.get("/p/e", watch=watch)
    process = multiprocessing.get_context("spawn").Process(target=_change, args=(path,))
    process.start()
    for _ in range(2):
        assert came.acquire(timeout=60)
    assert sorted(events, key=str) == sorted(
        [WatchEvent(EventType.CHANGED, "/n"), WatchEvent(EventType.CREATED, "/p/e")], key=str
    )
    store.get("/p/e", watch=watch)
    process.kill()
    process.join()
    assert came.acquire(timeout=60)
    assert events[2:] == [WatchEvent(EventType.DELETED, "/p/e")]
    store.close()


def test_a_watch_of_an_own_change_does_not_wait_for_the_next_poll(tmp_path):
    store = EmbeddedStore(str(tmp_path / FILE_NAME), poll_interval_ms=1_000_000)
    came = threading.Event()
    store.get("/a", watch=lambda event: came.set())
    time.sleep(0.2)  # the poll that the watch itself has caused is over
    store.create("/a")
    assert came.wait(60)
    store.close()


def test_a_watch_may_close_the_store(tmp_path):
    store = EmbeddedStore(str(tmp_path / FILE_NAME))
    closed = threading.Event()

    def close(event):
        store.close()
        closed.set()

    store.get("/a", watch=close)
    store.create("/a")
    assert closed.wait(60)
    with pytest.raises(StoreError):
        store.get("/a")


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
    # What a 3.9 broker with two listeners writes.
    broker = znodes.BrokerZNode(
        {"PLAINTEXT": ("h", 9092), "SECURE": ("::1", 9093)},
        "r1",
        1700000000000,
        {"PLAINTEXT": "PLAINTEXT", "SECURE": "SSL"},
    )
    assert znodes.broker_id(3) == "/brokers/ids/3"
    assert broker.encode() == (
        b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT","SECURE":"SSL"},'
        b'"endpoints":["PLAINTEXT://h:9092","SECURE://[::1]:9093"],"jmx_port":-1,"port":9092,"host":"h","version":5,'
        b'"timestamp":"1700000000000","rack":"r1"}'
    )
    assert znodes.BrokerZNode.decode(broker.encode()) == broker
    secure = znodes.BrokerZNode({"SECURE": ("h", 9093)}, None, 1, {"SECURE": "SSL"})
    assert json.loads(secure.encode())["port"] == -1 and json.loads(secure.encode())["host"] is None
    assert znodes.BrokerZNode.decode(secure.encode()) == secure
    first = znodes.BrokerZNode.decode(b'{"version":1,"host":"h","port":9092,"jmx_port":9999,"timestamp":"2233345666"}')
    assert first.endpoints == {"PLAINTEXT": ("h", 9092)} and first.security_protocols == {"PLAINTEXT": "PLAINTEXT"}
    for bad in (
        b"{}",
        b'{"version":5,"endpoints":["h:1"]}',
        b'{"version":5,"endpoints":7}',
        b'{"version":1,"host":"h"}',
    ):
        with pytest.raises(StoreError):
            znodes.BrokerZNode.decode(bad)
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


def test_nodes_of_one_multi_are_written_by_few_statements_and_not_looked_for_below_new_ones(store):
    """A CreateTopics of many partitions shares the GIL with the network thread: each statement is a hand-over."""
    operations = [Create("/topic", b"t")]
    for number in range(1000):
        operations += [Create(f"/topic/{number}"), Create(f"/topic/{number}/state", b"%d" % number)]
    statements = []
    store._db.set_trace_callback(statements.append)
    store.multi(operations)
    store._db.set_trace_callback(None)
    assert len(statements) < 2 * len(operations) / embedded_store._MANY + 100
    assert store.get("/topic/999/state")[:2] == (b"999", 0)
    assert len(store.children("/topic")) == 1000
    with pytest.raises(MultiFailed):
        store.multi([Create("/other"), Create("/other/x"), Create("/other/x")])
    assert store.get("/other") is None


def test_a_poll_is_one_statement_without_writes_and_one_that_fails_is_repeated(tmp_path, monkeypatch):
    path, events, statements = str(tmp_path / FILE_NAME), [], []
    store, other = (EmbeddedStore(path, poll_interval_ms=None) for _ in range(2))
    store.create("/a")
    store.get("/a", events.append)
    store.poll()
    store._db.set_trace_callback(statements.append)
    store.poll()
    assert statements == ["PRAGMA data_version"] and events == []
    other.set("/a", b"x")
    with monkeypatch.context() as patch:
        patch.setattr(store._watches, "take_due", lambda paths, row_of: (_ for _ in ()).throw(StoreError("I/O error")))
        with pytest.raises(StoreError):
            store.poll()
    assert events == []
    store.poll()
    assert [event.path for event in events] == ["/a"]
    store.get("/a", events.append)
    store.set("/a", b"y")  # its own, which data_version does not count
    store.poll()
    assert len(events) == 2
    store.close()
    other.close()


def test_a_child_that_another_process_creates_during_children_is_listed_or_reported(tmp_path, monkeypatch):
    """Created just before the node's row is read: if the names were read before that, the watch would compare with a
    row that counts the child already."""
    path, events = str(tmp_path / FILE_NAME), []
    store, other = (EmbeddedStore(path, poll_interval_ms=None) for _ in range(2))
    with contextlib.closing(store), contextlib.closing(other):
        store.create("/a")
        row_of = store._row

        def late_row(node_path):
            monkeypatch.setattr(store, "_row", row_of)
            other.create("/a/b")
            return row_of(node_path)

        monkeypatch.setattr(store, "_row", late_row)
        names = store.children("/a", events.append)
        store.poll()
        assert names == ["b"] or [event.path for event in events] == ["/a"]


def test_the_silence_before_a_failed_poll_does_not_end_a_session(tmp_path, monkeypatch):
    """The file could not be read, so the session's owner may have been unable to write its heartbeat too."""
    clock, path = MockTime(), str(tmp_path / FILE_NAME)
    store, other = (EmbeddedStore(path, time=clock, poll_interval_ms=None) for _ in range(2))
    with contextlib.closing(store), contextlib.closing(other):
        other.create("/e", ephemeral=True)
        step_ms = SESSION_TIMEOUT_MS / 4

        def poll():
            clock.sleep(step_ms)
            store.poll()

        for _ in range(4):
            poll()
        with monkeypatch.context() as patch:
            patch.setattr(store, "_check_file", lambda: (_ for _ in ()).throw(StoreError("I/O error")))
            with pytest.raises(StoreError):
                poll()
        for _ in range(4):
            poll()
        assert store.get("/e") is not None
        for _ in range(2):
            poll()
        assert store.get("/e") is None
