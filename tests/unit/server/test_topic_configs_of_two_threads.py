"""StoredTopicConfigs: what several threads read at the same time."""

import threading

from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore
from kcore.server.stored_topic_configs import StoredTopicConfigs
from kcore.server.topic_configs import TopicConfigs

DEADLINE_S = 60


class Logs:
    """A log manager without logs."""

    def reconfigure_topic(self, name):
        pass


class SlowStore(MemoryStore):
    """Its first answer about a topic's settings is on its way until `arrives` is set."""

    def __init__(self):
        super().__init__()
        self.is_read, self.arrives = threading.Event(), threading.Event()

    def get(self, path, watch=None):
        node = super().get(path, watch)
        if path == znodes.topic_config("t") and not self.is_read.is_set():
            self.is_read.set()
            assert self.arrives.wait(DEADLINE_S)
        return node


def test_settings_that_are_read_while_they_change_end_as_the_new_ones():
    store = SlowStore()
    store.create_recursive(znodes.topic_config("t"), znodes.encode_config({"segment.bytes": "1024"}))
    store.ensure_path(znodes.CONFIG_CHANGES)
    topic_configs = TopicConfigs()
    configs = StoredTopicConfigs(store, topic_configs, Logs())
    first = threading.Thread(target=configs.load_topics, args=(["t"],))
    first.start()
    assert store.is_read.wait(DEADLINE_S)
    store.set(znodes.topic_config("t"), znodes.encode_config({"segment.bytes": "2048"}))
    store.create(f"{znodes.CONFIG_CHANGES}/config_change_", b'{"version":2,"entity_path":"topics/t"}', sequential=True)
    second = threading.Thread(target=configs.read_changes, args=(lambda event: None,))
    second.start()
    second.join(0.2)  # by then it is done, or waits for the first
    store.arrives.set()
    for thread in (first, second):
        thread.join(DEADLINE_S)
    assert topic_configs.get("t") == {"segment.bytes": "2048"}
