"""StoredGroupConfigs: the settings that consumer groups have of their own, in the store (/config/groups).

Source: GroupConfig, GroupConfigManager, ConfigHelper, Kafka 4.3.  The nodes are kcore's: no Kafka has such settings in
ZooKeeper.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping

from kcore.common.config_def import ConfigDef, ConfigKey, ConfigType, at_least
from kcore.coordinator.group.group_config import ConsumerGroupSettings
from kcore.errors import InvalidConfig, InvalidRequest
from kcore.metadata import znodes
from kcore.metadata.store import MetadataStore, StoreError
from kcore.metadata.store_errors import store_errors_for_clients
from kcore.server.config.config_changes import (
    ConfigChanges,
    ConfigOperation,
    announce_config_change,
    changed_config,
    changes_of,
    store_config,
)
from kcore.server.config.kafka_config import KafkaConfig

logger = logging.getLogger(__name__)

SESSION_TIMEOUT, HEARTBEAT_INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"

#: A group without one of these has the broker's setting of the same name with "group." before it.
GROUP_CONFIG_DEF = ConfigDef(
    [
        ConfigKey(
            SESSION_TIMEOUT,
            ConfigType.INT,
            45_000,
            at_least(1),
            "A member with group.protocol=consumer is taken for dead after so long without a heartbeat.",
        ),
        ConfigKey(
            HEARTBEAT_INTERVAL,
            ConfigType.INT,
            5000,
            at_least(1),
            "How often members with group.protocol=consumer send heartbeats.",
        ),
        ConfigKey(
            ASSIGNMENT_INTERVAL,
            ConfigType.INT,
            0,
            at_least(0),
            "The least time between two assignments to members with group.protocol=consumer.",
        ),
    ]
)


class StoredGroupConfigs:
    """Thread-safe.  A consumer of changes of settings (ChangeNotifications).  read_*() and alter() wait for the store.

    A group needs not be there to have settings.  A body that cannot be read is logged, and what was read before stays.
    """

    def __init__(self, store: MetadataStore, config: KafkaConfig, *, is_member: bool) -> None:
        self._store = store
        self._config = config
        self._is_member = is_member
        # From the reading or writing of nodes until they are in force: two threads end with the newest.
        self._lock = threading.Lock()
        #: By group id.  Replaced whole.
        self._configs: Mapping[str, Mapping[str, str]] = {}

    def of_group(self, group_id: str) -> Mapping[str, str]:
        """Its own settings."""
        return self._configs.get(group_id, {})

    def group_ids(self) -> Collection[str]:
        """The groups that have settings of their own, also those that are not there."""
        return self._configs.keys()

    def settings(self, group_id: str) -> ConsumerGroupSettings:
        """What is in force."""
        own = self.of_group(group_id)
        names = (SESSION_TIMEOUT, HEARTBEAT_INTERVAL, ASSIGNMENT_INTERVAL)
        return ConsumerGroupSettings(*(self._value(name, own) for name in names))

    def _value(self, name: str, own: Mapping[str, str]) -> int:
        value: int = GROUP_CONFIG_DEF[name].parse(own[name]) if name in own else self._config[f"group.{name}"]
        return value

    def read_all(self) -> None:
        """Raises StoreError."""
        with self._lock:
            stored = [znodes.desanitized(node) for node in self._store.children(znodes.GROUP_CONFIGS)]
            self._read({*stored, *self._configs})

    def read_changed(self, entities: Collection[str]) -> None:
        prefix = znodes.group_config("")
        changed = [znodes.desanitized(path.removeprefix(prefix)) for path in entities if path.startswith(prefix)]
        if changed:
            with self._lock:
                self._read(changed)

    def alter(
        self,
        group_id: str,
        operations: Iterable[ConfigOperation],
        validate_only: bool = False,
        replace: bool = False,
    ) -> None:
        """Set and delete settings of a group; those that are not named stay, but with replace.

        When it returns, they are stored, and this broker follows them; the others of a cluster do so a moment later.
        Raises InvalidRequest, InvalidConfig, and what api_error() makes of an error of the store.
        """
        if not group_id:
            raise InvalidRequest("Default group resources are not allowed.")
        path = znodes.group_config(group_id)
        changes = changes_of(operations, lambda name: None)
        with self._lock, store_errors_for_clients("settings of groups"):
            if self._is_member:
                self._read([group_id])  # another broker may have changed them just now
            own = self.of_group(group_id)
            self._check(changes, {} if replace else own)
            if (changes or replace) and not validate_only:
                store_config(self._store, path, changes, replace, in_force=own)
                if self._is_member:
                    announce_config_change(self._store, path)
                logger.info("settings of group %s changed: %s", group_id, changes)
                self._read([group_id])

    def _check(self, changes: ConfigChanges, own: Mapping[str, str]) -> None:
        """Raises InvalidConfig.  Of what the group has already, only its sum with the changes counts."""
        for name in changes:
            if name not in GROUP_CONFIG_DEF:
                expected = ", ".join(GROUP_CONFIG_DEF.names())
                raise InvalidConfig(f"Unknown group config name: {name} (this broker has {expected})")
        after = changed_config(own, changes)
        for name in changes.keys() & after.keys():
            value = self._value(name, after)
            what = name.removeprefix("consumer.")
            least, most = (self._config[f"group.consumer.{limit}.{what}"] for limit in ("min", "max"))
            if not least <= value <= most:
                raise InvalidConfig(
                    f"{name} is {value}, and must be between group.consumer.min.{what} ({least}) and "
                    f"group.consumer.max.{what} ({most})"
                )
        session, heartbeat = (self._value(name, after) for name in (SESSION_TIMEOUT, HEARTBEAT_INTERVAL))
        if changes and session <= heartbeat:
            raise InvalidConfig(
                f"{SESSION_TIMEOUT} ({session}) must be greater than {HEARTBEAT_INTERVAL} ({heartbeat})"
            )

    def _read(self, group_ids: Iterable[str]) -> None:
        """With the lock held.  Raises StoreError."""
        names = list(group_ids)
        nodes = self._store.get_many([znodes.group_config(name) for name in names])
        configs = dict(self._configs)
        for name, node in zip(names, nodes, strict=True):
            config = _decoded(name, node.data if node is not None else b"", configs.get(name, {}))
            if config:
                configs[name] = config
            else:
                configs.pop(name, None)
        self._configs = configs


def _decoded(group_id: str, data: bytes, present: Mapping[str, str]) -> Mapping[str, str]:
    """Without what this broker does not know or cannot follow; the present settings where the body cannot be read."""
    try:
        stored = znodes.decode_config(data) if data else {}
    except (StoreError, KeyError, TypeError, AttributeError) as error:
        logger.error("the settings of group %s in the store cannot be read: %s", group_id, error)
        return present
    config = {}
    for name, value in stored.items():
        try:
            GROUP_CONFIG_DEF.parse({name: value})
        except InvalidConfig as error:
            logger.error("the setting %s=%s of group %s is not followed: %s", name, value, group_id, error)
            continue
        if name in GROUP_CONFIG_DEF:
            config[name] = value
    return config
