"""A broker follows the settings of topics in the store, and leaves no old notes of their changes behind."""

import pytest

from kcore.common.time import MockTime
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore
from kcore.server.stored_topic_configs import CHANGE_EXPIRATION_MS, StoredTopicConfigs
from kcore.server.topic_configs import TopicConfigs


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
