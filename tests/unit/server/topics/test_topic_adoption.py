"""TopicAdoption: what a start makes of directories, topic ids and notes of deletions."""

import shutil
from random import Random
from types import SimpleNamespace
from uuid import UUID

import pytest

import kcore
from kcore.common.topic_partition import TopicPartition
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore
from kcore.server.config.topic_configs import KEEP_ALL_RECORDS, TopicConfigs
from kcore.server.topics.topic_adoption import HostedLog, TopicAdoption

OLD, NEW = UUID(int=11), UUID(int=12)


class Logs:
    """A log manager with these logs."""

    def __init__(self, *logs):
        self.logs = [SimpleNamespace(topic_partition=tp, topic_id=topic_id, last_epoch=3) for tp, topic_id in logs]

    def all_logs(self):
        return list(self.logs)

    def async_delete_logs(self, topic_partitions):
        self.logs = [log for log in self.logs if log.topic_partition not in topic_partitions]
        return {}


def adoption_of(store, *logs, configs=None):
    return TopicAdoption(1, store, Logs(*logs), configs or TopicConfigs(), Random(1))


def store_with(*topics):
    store = MemoryStore()
    for name, topic_id in topics:
        store.create_recursive(znodes.topic(name), znodes.TopicZNode({0: [1]}, topic_id).encode())
    return store


@pytest.mark.parametrize(("directory", "expected"), [(OLD, True), (NEW, False), (None, False), (UUID(int=0), False)])
def test_a_directory_of_an_earlier_topic_of_the_name_is_a_stray(directory, expected):
    adoption = adoption_of(store_with(("t", NEW)))
    adoption.prepare({"t"})
    assert adoption.is_stray(TopicPartition("t", 0), directory) is expected
    assert adoption.is_stray(TopicPartition("unknown", 0), directory) is False


@pytest.mark.parametrize(
    ("replicas", "is_member", "expected"),
    [([2, 3], True, True), ([2, 1], True, False), ([2, 3], False, False), ([], True, False)],
)
def test_a_members_directory_of_a_partition_that_is_on_others_alone_is_a_stray(replicas, is_member, expected):
    """A reassignment has ended while this broker was down."""
    store = MemoryStore()
    node = znodes.TopicZNode({0: replicas, 1: [2]}, NEW)
    store.create_recursive(znodes.topic("t"), node.encode())
    adoption = TopicAdoption(1, store, Logs(), TopicConfigs(), Random(1), is_member=is_member)
    assert adoption.is_stray(TopicPartition("t", 0), NEW) is expected
    assert adoption.is_stray(TopicPartition("t", 2), NEW) is False  # the store does not know it


@pytest.mark.parametrize("body", [b"", b'{"partitions":{"0":[2', b"[]", b'{"version":3}'])
def test_a_topic_whose_node_cannot_be_read_keeps_its_directories(body):
    """Else they would be offline until the next start, although the node is written again soon."""
    store = MemoryStore()
    store.create_recursive(znodes.topic("t"), body)
    adoption = TopicAdoption(1, store, Logs((TopicPartition("t", 0), NEW)), TopicConfigs(), Random(1), is_member=True)
    assert not adoption.is_stray(TopicPartition("t", 0), NEW)
    assert adoption.partition_count("t") == 1


def test_a_start_reads_the_topics_of_all_directories_once(monkeypatch):
    store, reads = store_with(("t", NEW), ("u", OLD)), []
    get_many = store.get_many
    monkeypatch.setattr(store, "get_many", lambda paths: reads.append(sorted(paths)) or get_many(paths))
    adoption = adoption_of(store)
    adoption.prepare({"t", "u", "v"})
    get = store.get
    monkeypatch.setattr(store, "get", None)
    assert not any(adoption.is_stray(TopicPartition(name, 0), OLD) for name in "uv" for _ in range(5))
    monkeypatch.setattr(store, "get", get)
    assert adoption.is_stray(TopicPartition("t", 0), OLD)
    # Only of what seems to be a stray the topic is read once more, for it may have changed meanwhile.
    store.set(znodes.topic("t"), znodes.TopicZNode({0: [1]}, OLD).encode())
    assert not adoption.is_stray(TopicPartition("t", 0), OLD)
    assert reads == [["/brokers/topics/t", "/brokers/topics/u", "/brokers/topics/v"]]


@pytest.mark.parametrize("note", ["new", "old"])
def test_a_directory_whose_deletion_was_interrupted_is_deleted_and_no_stray(note):
    store = store_with(("t", NEW))
    if note == "new":
        store.create_recursive(znodes.topic_deletion(OLD), znodes.encode_deletion("t"))
    else:
        store.create_recursive("/admin/delete_topics/t", znodes.id_to_string(OLD).encode())
    store.create_recursive("/admin/delete_topics/other")  # an order to Kafka's controller
    adoption = adoption_of(store, (TopicPartition("t", 1), OLD), (TopicPartition("t", 0), NEW))
    adoption.prepare({"t"})
    assert not adoption.is_stray(TopicPartition("t", 1), OLD)
    adoption.finish_deletions()
    assert adoption.hosted_logs() == {"t": {0: HostedLog(NEW, 3)}}
    assert store.children(znodes.TOPIC_DELETIONS) == []
    assert store.children("/admin/delete_topics") == ["other"]


def test_settings_that_keep_data_are_stored_for_unknown_topics_alone():
    store, configs = store_with(("known", NEW)), TopicConfigs()
    configs.set("configured", {"retention.ms": "5"})
    adoption_of(store, configs=configs).prepare({"known", "found", "configured"})
    assert [configs.get(name) for name in ("known", "found", "configured")] == [
        {},
        KEEP_ALL_RECORDS,
        {"retention.ms": "5"},
    ]


def test_a_topic_is_adopted_with_its_directories_id_unless_another_topic_has_it():
    topics = {"t": znodes.TopicZNode({0: [1]}, NEW)}
    hosted = {
        "t": {0: HostedLog(NEW, None)},
        "a": {2: HostedLog(OLD, None), 0: HostedLog(None, None)},
        "b": {0: HostedLog(OLD, None)},  # a copy of a's directory under another name
        "c": {0: HostedLog(NEW, None)},
        "d": {0: HostedLog(None, None)},
    }
    adopted = adoption_of(MemoryStore()).adopted_topics(topics, hosted)
    assert list(adopted) == ["a", "b", "c", "d"]
    assert adopted["a"] == znodes.TopicZNode({0: [1], 1: [], 2: [1]}, OLD)
    ids = [node.topic_id for node in adopted.values()]
    assert len({*ids, NEW}) == 5 and None not in ids


def test_the_partitions_of_a_topic_are_counted_in_the_store_or_else_in_the_directories():
    adoption = adoption_of(store_with(("t", NEW)), (TopicPartition("t", 7), NEW), (TopicPartition("u", 4), None))
    assert [adoption.partition_count(name) for name in ("t", "u", "none")] == [1, 5, 0]


@pytest.mark.parametrize("name", [".", "..", "a\x7fb", "x\ue000", "\U0001f600", "a b"])
def test_a_directory_whose_name_no_topic_can_have_is_left_alone_and_the_others_are_served(tmp_path, name, caplog):
    with kcore.Broker(tmp_path) as broker:
        broker.create_topic("t")
    (tmp_path / f"{name}-0").mkdir()
    with kcore.Broker(tmp_path) as broker:
        assert broker.store.children("/brokers/topics") == ["t"]
        assert broker.log("t").log_end_offset == 0
        assert [log.topic_partition.topic for log in broker.replica_manager.log_manager.all_logs()] == ["t"]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname != "INFO"]
    assert f"{tmp_path}: leaving {f'{name}-0'!r} alone" in warning
    assert (tmp_path / f"{name}-0").is_dir() and list((tmp_path / f"{name}-0").iterdir()) == []


def test_a_topic_of_an_illegal_name_that_an_earlier_version_adopted_is_none_any_more_and_stays_on_the_disk(
    tmp_path, caplog
):
    with kcore.Broker(tmp_path) as broker:
        broker.create_topic("t")
        broker.produce("t", b"x")
        # As it was written when a directory "a b-0" was found.
        broker.store.create_recursive("/brokers/topics/a b", znodes.TopicZNode({0: [broker.broker_id]}).encode())
        broker.store.create_recursive("/config/topics/a b", znodes.encode_config({"retention.ms": "1"}))
    shutil.copytree(tmp_path / "t-0", tmp_path / "a b-0")
    files = {path.name: path.read_bytes() for path in (tmp_path / "a b-0").iterdir()}
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n2\na b 0 1\nt 0 1\n")
    for _ in range(2):
        caplog.clear()
        with kcore.Broker(tmp_path) as broker:
            assert [topic.name for topic in broker.metadata_cache.topics()] == ["t"]
            assert [record.value for record in broker.consume("t")] == [b"x"]
            assert broker.store.get("/brokers/topics/a b") is not None
    assert [record.getMessage() for record in caplog.records if record.levelname != "INFO"] == [
        f"{tmp_path}: leaving 'a b-0' alone, no topic can be called 'a b'; to use its records, rename the directory"
    ]
    assert {path.name: path.read_bytes() for path in (tmp_path / "a b-0").iterdir()} == files
    assert "a b" not in (tmp_path / "recovery-point-offset-checkpoint").read_text()


def test_the_store_says_which_partitions_are_not_of_this_broker(caplog):
    store = store_with(("t", NEW))  # partition 0 on broker 1
    store.create_recursive(znodes.topic("others"), znodes.TopicZNode({0: [2, 3]}, OLD).encode())
    store.create_recursive(znodes.topic("broken"), b"{")
    here, *others = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("others", 0)]
    others.append(TopicPartition("unknown", 0))
    broken = TopicPartition("broken", 0)
    adoption = adoption_of(store)
    assert adoption.not_of_this_broker([here, *others, broken]) == others
    assert "/brokers/topics/broken cannot be read" in caplog.text
    assert adoption.not_of_this_broker([]) == []
