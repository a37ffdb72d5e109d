"""A broker applies changes of topic settings in the store, and deletes the old nodes below /config/changes."""

import pytest

from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.metadata import znodes
from kcore.metadata.change_notifications import CHANGE_EXPIRATION_MS, RETRY_MS
from kcore.metadata.memory_store import MemoryStore
from kcore.metadata.store import ConnectionLost
from kcore.server.config.config_changes import config_change_notifications
from kcore.server.config.stored_topic_configs import StoredTopicConfigs
from kcore.server.config.topic_configs import KEEP_ALL_RECORDS, TopicConfigs


class Logs:
    def reconfigure_topic(self, name):
        pass


class Member:
    """A broker of a cluster, as far as it follows settings."""

    def __init__(self, tree=None):
        self.store = MemoryStore(tree)
        self.time = MockTime()
        self.scheduler = MockScheduler(self.time)
        self.topic_configs = TopicConfigs()
        changes = config_change_notifications(self.store, self.scheduler, self.time)
        self.configs = StoredTopicConfigs(self.store, self.topic_configs, Logs(), changes.read_later)
        changes.start([self.configs])

    def follow(self):
        self.store.pump()
        self.scheduler.tick()

    def change(self, topic, retention_ms):
        self.store.create_or_set(znodes.topic_config(topic), znodes.encode_config({"retention.ms": str(retention_ms)}))
        note = znodes.encode_config_change(znodes.topic_config(topic))
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
    member.follow()
    member.time.sleep(CHANGE_EXPIRATION_MS)
    notes.append(member.change("t", 2))
    member.follow()
    assert member.notes() == notes
    member.time.sleep(1)
    notes.append(member.change("u", 3))
    member.follow()
    assert member.notes() == notes[1:]
    assert member.topic_configs.get("t") == {"retention.ms": "2"}
    assert member.topic_configs.get("u") == {"retention.ms": "3"}


def test_notes_from_before_a_start_stay_15_minutes_too(member):
    """Others may not have read them."""
    old = member.change("t", 1)
    late = Member(member.store.tree)
    late.time.sleep(CHANGE_EXPIRATION_MS)
    new = late.change("t", 2)
    late.follow()
    assert late.notes() == [old, new]
    late.time.sleep(1)
    newer = late.change("t", 3)
    late.follow()
    assert late.notes() == [new, newer]
    late.store.close()


def test_a_new_topic_keeps_all_records_until_its_settings_can_be_read(member, monkeypatch):
    """With the broker's retention in their place acknowledged records were deleted."""
    member.store.create(znodes.topic_config("t"), znodes.encode_config({"max.message.bytes": "9000"}))
    with monkeypatch.context() as store_is_away:
        store_is_away.setattr(member.store, "get", _connection_lost)
        member.configs.load_topics(["t"], ["t"])
        assert member.topic_configs.get("t") == KEEP_ALL_RECORDS
        member.follow()
        assert member.topic_configs.get("t") == KEEP_ALL_RECORDS
    member.follow()
    assert member.topic_configs.get("t") == KEEP_ALL_RECORDS, "the store is asked without a pause"
    member.time.sleep(RETRY_MS)
    member.follow()
    assert member.topic_configs.get("t") == {"max.message.bytes": "9000"}


def test_a_new_session_reads_the_settings_that_could_not_be_read(member, monkeypatch):
    """Of a topic without settings of its own too."""
    member.store.tree.expire(member.store.session_id)
    with monkeypatch.context() as store_is_away:
        store_is_away.setattr(member.store, "get", _connection_lost)
        member.configs.load_topics(["t"], ["t"])
        member.follow()
    member.store.new_session()
    member.follow()
    assert member.topic_configs.get("t") == {}


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("config_change_", b'{"version":2,"entity_path":"topics//x"}'),
        ("config_change_", b'{"version":2,"entity_path":"topics/.."}'),
        ("zzz_", znodes.encode_config_change("/config/topics/t")),
    ],
)
def test_a_change_of_no_topic_is_passed_over(member, name, body):
    """It stopped all later changes."""
    member.store.create(f"{znodes.CONFIG_CHANGES}/{name}", body, sequential=True)
    member.follow()
    member.change("t", 1)
    member.follow()
    assert member.topic_configs.get("t") == {"retention.ms": "1"}


def _connection_lost(*_):
    raise ConnectionLost("away")
