"""StoredTopicConfigs: a broker's topic settings follow those in the store (/config/topics)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping

from kcore.common import topic_names
from kcore.errors import InvalidConfig
from kcore.log.log_manager import LogManager
from kcore.metadata import znodes
from kcore.metadata.store import MetadataStore, StoreError
from kcore.server.config.topic_configs import KEEP_ALL_RECORDS, TopicConfigs, stored_config

logger = logging.getLogger(__name__)

_PREFIX = znodes.topic_config("")


class StoredTopicConfigs:
    """Thread-safe.  A consumer of changes of settings (ChangeNotifications).  Every method may wait for the store.

    A body that cannot be read is logged: the topic keeps the settings that it has, and one that has none keeps all
    records.  So does a new topic while the store cannot be read: read_later() has its node read again.
    Source: ZkConfigManager, TopicConfigHandler, Kafka 3.9.
    """

    def __init__(
        self,
        store: MetadataStore,
        topic_configs: TopicConfigs,
        log_manager: LogManager,
        read_later: Callable[[str], None],
    ) -> None:
        self._store = store
        self._topic_configs = topic_configs
        self._log_manager = log_manager
        self._read_later = read_later
        #: Topics whose settings are the stored ones; others have the defaults, or those of an adopted directory.
        self._loaded: set[str] = set()
        # From the reading of a topic's settings until they are in use: two threads that read end with the newest.
        self._lock = threading.Lock()

    def read_all(self) -> None:
        for name in self._store.children(znodes.TOPIC_CONFIGS):
            self._read(name)

    def read_changed(self, entities: Collection[str]) -> None:
        for path in entities:
            if path.startswith(_PREFIX):
                name = path.removeprefix(_PREFIX)
                topic_names.validate(name)
                self._read(name)

    def load_topics(self, names: Iterable[str], created: Collection[str] = ()) -> None:
        """Read the settings of topics that have none yet; of `created` in any case: nothing announces the settings of a
        topic that is just made.

        Raises nothing: without the store a topic keeps all records until its settings can be read.
        """
        for name in names:
            if name not in self._loaded or name in created:
                try:
                    self._read(name)
                except StoreError as error:
                    logger.error("topic %s keeps all records until its settings can be read: %s", name, error)
                    with self._lock:
                        self._loaded.discard(name)
                        self._use(name, KEEP_ALL_RECORDS)
                    self._read_later(znodes.topic_config(name))

    def remove(self, name: str) -> None:
        """The topic was deleted."""
        with self._lock:
            self._loaded.discard(name)
            self._topic_configs.remove(name)

    def _read(self, name: str) -> None:
        with self._lock:
            config = stored_config(self._store, name)
            if config is None:
                if name in self._loaded:
                    return
                config = KEEP_ALL_RECORDS
            self._loaded.add(name)
            self._use(name, config)

    def _use(self, name: str, config: Mapping[str, str]) -> None:
        if config != self._topic_configs.get(name):
            self._topic_configs.set(name, config)
            try:
                self._log_manager.reconfigure_topic(name)
            except InvalidConfig as error:
                logger.error("topic %s: its logs do not follow its settings: %s", name, error)
