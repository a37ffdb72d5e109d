"""StoredTopicConfigs: a broker's topic settings follow those in the store (/config/topics, /config/changes)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping

from kcore.common import topic_names
from kcore.common.time import Time
from kcore.errors import ApiError, InvalidConfig
from kcore.log.log_manager import LogManager
from kcore.metadata import znodes
from kcore.metadata.store import ConnectionLost, MetadataStore, SessionExpired, StoreError, Watch
from kcore.server.config.topic_configs import KEEP_ALL_RECORDS, TopicConfigs, stored_config

logger = logging.getLogger(__name__)

#: How long a node below /config/changes stays at least: ZkNodeChangeNotificationListener's changeExpirationMs.
CHANGE_EXPIRATION_MS = 15 * 60 * 1000


class StoredTopicConfigs:
    """Thread-safe.  Every method may wait for the store.

    The broker that changes a topic's settings writes them, and then a sequential node below /config/changes that names
    the topic.  Such a node is deleted at a later change, when this broker has known it for 15 minutes: by then every
    broker that lives has read it.  A body that cannot be read is logged: the topic keeps the settings that it has, and
    one that has none keeps all records.  So does a new topic while the store cannot be read; its settings are read
    again.  time: of a clock that never steps.
    Source: ZkNodeChangeNotificationListener, ZkConfigManager, Kafka 3.9.
    """

    def __init__(self, store: MetadataStore, topic_configs: TopicConfigs, log_manager: LogManager, time: Time) -> None:
        self._store = store
        self._time = time
        self._topic_configs = topic_configs
        self._log_manager = log_manager
        #: Topics whose settings are the stored ones; others have the defaults, or those of an adopted directory.
        self._loaded: set[str] = set()
        #: Topics whose settings are to be read again, because the store could not be read.
        self._unread: set[str] = set()
        self._last_change = ""
        # From the reading of a topic's settings until they are in use: two threads that read end with the newest.
        self._lock = threading.Lock()
        #: The nodes below /config/changes, and when each was seen first.
        self._seen_ms: dict[str, float] = {}

    def load(self, watch: Watch) -> None:
        """Read the settings of all topics; the watch is called at the next change.  Raises StoreError."""
        changes = self._changes(watch)
        self._last_change = max(changes, default="")
        self._note(changes)
        for name in self._store.children(znodes.TOPIC_CONFIGS):
            self._read(name)
        self._read_unread()

    def read_changes(self, watch: Watch) -> None:
        """Read the settings of the topics that have changed, and those that could not be read; the watch is called at
        the next change.  Raises StoreError."""
        changes = self._changes(watch)
        for change in changes:
            if change <= self._last_change:
                continue
            node = self._store.get(f"{znodes.CONFIG_CHANGES}/{change}")
            topic = _topic_of(change, node.data) if node is not None else None
            if topic is not None:
                self._read_changed(topic)
            self._last_change = change
        now_ms = self._note(changes)
        for change, seen_ms in self._seen_ms.items():
            if now_ms - seen_ms > CHANGE_EXPIRATION_MS:
                self._store.delete_recursive(f"{znodes.CONFIG_CHANGES}/{change}")
        self._read_unread()

    @property
    def has_unread(self) -> bool:
        """Whether settings could not be read: read_changes() tries again."""
        return bool(self._unread)

    def _changes(self, watch: Watch) -> list[str]:
        """In order; without nodes that are no changes."""
        prefix = znodes.CONFIG_CHANGE.rpartition("/")[2]
        names = self._store.children(znodes.CONFIG_CHANGES, watch)
        return sorted(name for name in names if name.startswith(prefix) and name.removeprefix(prefix).isdecimal())

    def _read_changed(self, name: str) -> None:
        """Raises ConnectionLost and SessionExpired; what is wrong with one topic does not keep others from changing."""
        try:
            self._read(name)
        except (ConnectionLost, SessionExpired):
            raise
        except StoreError as error:
            logger.error("the settings of topic %s could not be read: %s", name, error)
            self._unread.add(name)
        except Exception:
            logger.exception("the settings of topic %s do not change", name)

    def _read_unread(self) -> None:
        """Raises the last topic's StoreError."""
        failure: StoreError | None = None
        for name in list(self._unread):
            try:
                with self._lock:
                    if name in self._unread:
                        self._read_locked(name)
            except (ConnectionLost, SessionExpired):
                raise
            except StoreError as error:
                failure = error
        if failure is not None:
            raise failure

    def _note(self, changes: Iterable[str]) -> float:
        """Since when these are there; now, in ms."""
        now_ms = self._time.hi_res_clock_ms()
        self._seen_ms = {change: self._seen_ms.get(change, now_ms) for change in changes}
        return now_ms

    def load_topics(self, names: Iterable[str], created: Collection[str] = ()) -> None:
        """Read the settings of topics that have none yet; of `created` in any case: nothing under /config/changes names
        a topic that is just made.

        Raises nothing: without the store a topic keeps all records until has_unread is false again.
        """
        for name in names:
            if name not in self._loaded or name in created:
                try:
                    self._read(name)
                except StoreError as error:
                    logger.error("topic %s keeps all records until its settings can be read: %s", name, error)
                    with self._lock:
                        self._loaded.discard(name)
                        self._unread.add(name)
                        self._use(name, KEEP_ALL_RECORDS)

    def remove(self, name: str) -> None:
        """The topic was deleted."""
        with self._lock:
            self._loaded.discard(name)
            self._unread.discard(name)
            self._topic_configs.remove(name)

    def _read(self, name: str) -> None:
        with self._lock:
            self._read_locked(name)

    def _read_locked(self, name: str) -> None:
        config = stored_config(self._store, name)
        self._unread.discard(name)
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


def _topic_of(change: str, data: bytes) -> str | None:
    """The topic that a change is about; None for another kind of entity, and, with a line in the log, for nonsense."""
    try:
        topic = znodes.topic_of_config_change(data)
        if topic is not None:
            topic_names.validate(topic)
    except (StoreError, ApiError) as error:
        logger.error("the change of settings %s is passed over: %s", change, error)
        return None
    return topic
