"""TopicConfigs: the settings that each topic has of its own."""

from __future__ import annotations

from collections.abc import Mapping

from kcore.metadata import znodes
from kcore.metadata.store import MetadataStore


class TopicConfigs:
    """Settings by Kafka's names.  Thread-safe, without a lock: a topic's settings are replaced whole."""

    def __init__(self) -> None:
        self._configs: dict[str, Mapping[str, str]] = {}
        #: Topics with flush.messages.
        self.flushing: set[str] = set()

    def load(self, store: MetadataStore) -> None:
        """Take over what the store has of each topic.  Before the logs are opened, which need it."""
        for name in store.children(znodes.TOPIC_CONFIGS):
            node = store.get(znodes.topic_config(name))
            if node is not None:
                self.set(name, znodes.decode_config(node.data))

    def get(self, topic: str) -> Mapping[str, str]:
        """Empty for a topic that has none."""
        return self._configs.get(topic, {})

    def set(self, topic: str, config: Mapping[str, str]) -> None:
        self._configs[topic] = dict(config)
        if "flush.messages" in config:
            self.flushing.add(topic)
        else:
            self.flushing.discard(topic)

    def remove(self, topic: str) -> None:
        self._configs.pop(topic, None)
        self.flushing.discard(topic)
