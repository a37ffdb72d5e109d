"""StoredGroupConfigs: the settings that consumer groups have of their own, in the store (/config/groups).

Source: GroupConfig, GroupConfigManager, ConfigHelper, Kafka 4.3.  The nodes are kcore's: no Kafka has such settings in
ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcore.common.config_def import ConfigDef, ConfigKey, ConfigType, at_least
from kcore.coordinator.group.group_config import ConsumerGroupSettings
from kcore.errors import InvalidConfig
from kcore.metadata import znodes
from kcore.metadata.store import MetadataStore
from kcore.server.config.config_changes import ConfigChanges, changed_config
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.config.stored_resource_configs import StoredResourceConfigs

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


class StoredGroupConfigs(StoredResourceConfigs):
    """Of a group without settings of its own, those of the broker are in force."""

    what = "group"
    no_name = "Default group resources are not allowed."
    directory = znodes.GROUP_CONFIGS
    config_def = GROUP_CONFIG_DEF

    def __init__(self, store: MetadataStore, config: KafkaConfig, *, is_member: bool) -> None:
        super().__init__(store, is_member=is_member)
        self._config = config

    def settings(self, group_id: str) -> ConsumerGroupSettings:
        """What is in force."""
        own = self.config_of(group_id)
        names = (SESSION_TIMEOUT, HEARTBEAT_INTERVAL, ASSIGNMENT_INTERVAL)
        return ConsumerGroupSettings(*(self._value(name, own) for name in names))

    def _value(self, name: str, own: Mapping[str, str]) -> int:
        value: int = GROUP_CONFIG_DEF[name].parse(own[name]) if name in own else self._config[f"group.{name}"]
        return value

    def _check(self, changes: ConfigChanges, own: Mapping[str, str]) -> None:
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
