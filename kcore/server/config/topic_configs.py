"""TopicConfigs: the settings that each topic has of its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kcore.errors import InvalidConfig
from kcore.log.log_config import LogConfig
from kcore.metadata import znodes
from kcore.metadata.store import MetadataStore, StoreError

logger = logging.getLogger(__name__)


#: The settings of a topic whose own are not known: by the defaults records might be deleted that its own keep.
KEEP_ALL_RECORDS = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}


def stored_config(store: MetadataStore, topic: str) -> dict[str, str] | None:
    """A topic's settings in the store, without those that this broker cannot follow: another one may know more of them.

    Empty if it has none, None if they cannot be read.  Raises what the store raises.
    """
    node = store.get(znodes.topic_config(topic))
    try:
        stored = znodes.decode_config(node.data) if node is not None else {}
    except (StoreError, KeyError, TypeError, AttributeError) as error:
        logger.error("the settings of topic %s cannot be read: %s", topic, error)
        return None
    config = {key: value for key, value in stored.items() if _is_valid(topic, {key: value})}
    return config if _is_valid(topic, config) else None


def _is_valid(topic: str, settings: Mapping[str, str]) -> bool:
    try:
        LogConfig.from_kafka(settings)
    except InvalidConfig as error:
        logger.error("topic %s: %s is ignored: %s", topic, settings, error)
        return False
    return True


class TopicConfigs:
    """Settings by Kafka's names.  Thread-safe, without a lock: a topic's settings are replaced whole."""

    def __init__(self) -> None:
        self._configs: dict[str, Mapping[str, str]] = {}
        #: Topics with flush.messages.
        self.flushing: set[str] = set()

    def load(self, store: MetadataStore) -> None:
        """Take over what the store has of each topic.  Before the logs are opened, which need it."""
        for name in store.children(znodes.TOPIC_CONFIGS):
            config = stored_config(store, name)
            self.set(name, KEEP_ALL_RECORDS if config is None else config)

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
