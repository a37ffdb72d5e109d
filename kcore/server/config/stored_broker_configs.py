"""StoredBrokerConfigs: the settings of brokers as the store has them (/config/brokers): read, followed and changed.

Source: DynamicBrokerConfig, BrokerConfigHandler, ZkAdminManager.alterBrokerConfigs, Kafka 3.9; KIP-226, KIP-339.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping

from kcore.common.config_def import ConfigType
from kcore.errors import InvalidConfig, InvalidRequest
from kcore.metadata import znodes
from kcore.metadata.store import MetadataStore, StoreError
from kcore.metadata.store_errors import store_errors_for_clients
from kcore.server.config.broker_settings import CHANGEABLE
from kcore.server.config.config_changes import ConfigOperation, announce_config_change, changes_of, store_config
from kcore.server.config.kafka_config import KafkaConfig

logger = logging.getLogger(__name__)


class StoredBrokerConfigs:
    """Thread-safe.  A consumer of changes of settings (ChangeNotifications).  Every method but is_cluster() waits for
    the store.

    The node of this broker and the one of all brokers are read at the start, and in a cluster when a change of one is
    announced.  A body that cannot be read is logged, and what was read before stays.
    """

    def __init__(self, broker_id: int, config: KafkaConfig, store: MetadataStore, *, is_member: bool) -> None:
        self._broker_id = broker_id
        self._config = config
        self._store = store
        self._is_member = is_member
        self._paths = {znodes.broker_config(str(broker_id)), znodes.broker_config(znodes.DEFAULT_ENTITY)}
        # From the reading of the nodes until they are in use: two threads that read end with the newest.
        self._lock = threading.Lock()

    def read_all(self) -> None:
        """Raises StoreError."""
        with self._lock:
            self._read()

    def read_changed(self, entities: Collection[str]) -> None:
        if not self._paths.isdisjoint(entities):
            self.read_all()

    def is_cluster(self, resource_name: str) -> bool:
        """Whether the resource of a request stands for all brokers; else it is this one.  Raises InvalidRequest."""
        if not resource_name:
            return True
        if not resource_name.isascii() or not resource_name.removeprefix("-").isdigit():
            raise InvalidRequest(f"Broker id must be an integer, but it is: {resource_name}")
        if int(resource_name) != self._broker_id:
            raise InvalidRequest(
                f"Unexpected broker id, expected {self._broker_id} or empty string, but received {resource_name}"
            )
        return False

    def alter(
        self,
        resource_name: str,
        operations: Iterable[ConfigOperation],
        validate_only: bool = False,
        replace: bool = False,
    ) -> None:
        """Set and delete settings of this broker, or with "" of all brokers; those that are not named stay, but with
        replace.

        When it returns, they are stored, and this broker follows them; the others of a cluster do so a moment later.
        Raises InvalidRequest, InvalidConfig, and what api_error() makes of an error of the store.
        """
        is_cluster = self.is_cluster(resource_name)
        entity = znodes.DEFAULT_ENTITY if is_cluster else str(self._broker_id)
        with self._lock, store_errors_for_clients("settings of brokers"):
            if self._is_member:
                self._read()  # another broker may have changed them just now
            levels = self._config.levels
            level = levels.cluster if is_cluster else levels.broker

            def list_items(name: str) -> Iterable[str] | None:
                key = CHANGEABLE.get(name)
                if key is None or key.type is not ConfigType.LIST:
                    return None
                items: list[str] = key.parse(level[name]) if name in level else self._config[name]
                return items

            changes = changes_of(operations, list_items)
            if replace:
                changes = {**dict.fromkeys(level), **changes}
            self._config.check_stored(changes, is_cluster=is_cluster)
            if (changes or replace) and not validate_only:
                path = znodes.broker_config(entity)
                if not replace:
                    self._check_readable(path)
                store_config(self._store, path, changes, replace)
                if self._is_member:
                    announce_config_change(self._store, path)
                logger.info("settings of broker %s changed: %s", entity, changes)
                self._read()
                level = self._config.levels.cluster if is_cluster else self._config.levels.broker
                left_out = sorted(name for name, value in changes.items() if value not in (None, level.get(name)))
                if left_out:
                    raise InvalidConfig(f"Other settings in the metadata store contradict {', '.join(left_out)}")

    def _check_readable(self, path: str) -> None:
        """Raises InvalidRequest: other settings in the node would be lost."""
        node = self._store.get(path)
        try:
            if node is not None and node.data:
                znodes.decode_config(node.data)
        except StoreError as error:
            raise InvalidRequest(f"The settings at {path} in the metadata store cannot be read: {error}") from error

    def _read(self) -> None:
        """With the lock held.  Raises StoreError."""
        levels = self._config.levels
        self._config.use_stored(
            broker=self._read_node(str(self._broker_id), levels.broker),
            cluster=self._read_node(znodes.DEFAULT_ENTITY, levels.cluster),
        )

    def _read_node(self, entity: str, present: Mapping[str, str]) -> Mapping[str, str]:
        """The stored settings, the present ones where the node's body cannot be read."""
        node = self._store.get(znodes.broker_config(entity))
        try:
            return znodes.decode_config(node.data) if node is not None and node.data else {}
        except StoreError as error:
            logger.error("the settings of broker %s in the store cannot be read: %s", entity, error)
            return present
