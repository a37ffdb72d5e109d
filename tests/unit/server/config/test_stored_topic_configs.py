"""A broker applies changes of topic settings in the store, and deletes the old nodes below /config/changes."""

import pytest

from kcore.common.time import MockTime
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore
from kcore.metadata.store import ConnectionLost
from kcore.server.config.stored_topic_configs import CHANGE_EXPIRATION_MS, StoredTopicConfigs
from kcore.server.config.topic_configs import KEEP_ALL_RECORDS, TopicConfigs


class Logs:
    def reconfigure_topic(self, name):
        pass


class Member:
    """A broker of a cluster, as far as it follows settings."""

    def __init__(self, tree=None):
        self.store = MemoryStore(tree)
        self.store.ensure_path(znodes.CONFIG_CHANGES)
        self.time = MockTime()
        self.topic_configs = TopicConfigs()
        self.configs = StoredTopicConfigs(self.store, self.topic_configs, Logs(), self.time)
        self.configs.load(self.changed)

    def changed(self, event):
        self.configs.read_changes(self.changed)

    def change(self, topic, retention_ms):
        self.store.create_or_set(znodes.topic_config(topic), znodes.encode_config({"retention.ms": str(retention_ms)}))
        note = znodes.encode_config_change(f"topics/{topic}")
        return self.store.create(znodes.CONFIG_CHANGE, note, sequential=True).rpartition("/")[2]

    def notes(self):
        return self.store.children(znodes.CONFIG_CHANGES)


@pytest.fixture
def member():
    member = Member()
    member.store.ensure_path(znodes.TOPIC_CONFIGS)
    yield member
    member.store.close()


def test_a_note_of_a_change_is_deleted_15_minutes_after_it_was_read(member):
    notes = [member.change("t", 1)]
    member.store.pump()
    member.time.sleep(CHANGE_EXPIRATION_MS)
    notes.append(member.change("t", 2))
    member.store.pump()
    assert member.notes() == notes
    member.time.sleep(1)
    notes.append(member.change("u", 3))
    member.store.pump()
    assert member.notes() == notes[1:]
    assert member.topic_configs.get("t") == {"retention.ms": "2"}
    assert member.topic_configs.get("u") == {"retention.ms": "3"}


def test_notes_from_before_a_start_stay_15_minutes_too(member):
    """Others may not have read them."""
    old = member.change("t", 1)
    late = Member(member.store.tree)
    late.time.sleep(CHANGE_EXPIRATION_MS)
    new = late.change("t", 2)
    late.store.pump()
    assert late.notes() == [old, new]
    late.time.sleep(1)
    newer = late.change("t", 3)
    late.store.pump()
    assert late.notes() == [new, newer]
    late.store.close()


def test_a_new_topic_keeps_all_records_until_its_settings_can_be_read(member, monkeypatch):
    """With the broker's retention in their place acknowledged records were deleted."""
    member.store.create(znodes.topic_config("t"), znodes.encode_config({"max.message.bytes": "9000"}))
    with monkeypatch.context() as store_is_away:
        store_is_away.setattr(member.store, "get", _connection_lost)
        member.configs.load_topics(["t"], ["t"])
        assert member.topic_configs.get("t") == KEEP_ALL_RECORDS
        assert member.configs.has_unread
        with pytest.raises(ConnectionLost):
            member.configs.read_changes(member.changed)
        assert member.topic_configs.get("t") == KEEP_ALL_RECORDS
    member.configs.read_changes(member.changed)
    assert member.topic_configs.get("t") == {"max.message.bytes": "9000"}
    assert not member.configs.has_unread


def test_a_new_session_reads_the_settings_that_could_not_be_read(member, monkeypatch):
    """Of a topic without settings of its own too."""
    with monkeypatch.context() as store_is_away:
        store_is_away.setattr(member.store, "get", _connection_lost)
        member.configs.load_topics(["t"], ["t"])
    member.configs.load(member.changed)
    assert member.topic_configs.get("t") == {}


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("config_change_", b'{"version":2,"entity_path":"topics//x"}'),
        ("config_change_", b'{"version":2,"entity_path":"topics/.."}'),
        ("config_change_", b'{"version":2}'),
        ("config_change_", b"[" * 100_000),
        ("config_change_", b"\xff"),
        ("zzz_", znodes.encode_config_change("topics/t")),
    ],
)
def test_a_change_that_cannot_be_read_is_passed_over(member, name, body):
    """It stopped all later changes."""
    member.store.create(f"{znodes.CONFIG_CHANGES}/{name}", body, sequential=True)
    member.store.pump()
    member.change("t", 1)
    member.store.pump()
    assert member.topic_configs.get("t") == {"retention.ms": "1"}


def _connection_lost(*_):
    raise ConnectionLost("away")
