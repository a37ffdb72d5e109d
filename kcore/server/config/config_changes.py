"""Changes of settings in the store: where they are written, and how other brokers notice them.

Source: ZkAdminManager.alterConfigs and incrementalAlterConfigs, AdminZkClient.changeTopicConfig, Kafka 3.9; KIP-133,
KIP-339.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kcore.common.config_def import ConfigType
from kcore.common.scheduler import Scheduler
from kcore.common.time import Time
from kcore.errors import InvalidConfig, InvalidRequest
from kcore.log.log_config import LOG_CONFIG_DEF, LogConfig
from kcore.metadata import znodes
from kcore.metadata.change_notifications import ChangeNotifications
from kcore.metadata.store import MetadataStore, UnreadableNode

logger = logging.getLogger(__name__)

#: Setting -> its new value, None for none of its own.
ConfigChanges = Mapping[str, str | None]


class AlterConfigOp(enum.IntEnum):
    """Of IncrementalAlterConfigs.  APPEND and SUBTRACT change a list."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigOperation(NamedTuple):
    """operation: an AlterConfigOp's number, as it came.  value: None with DELETE only."""

    name: str
    operation: int
    value: str | None


def topic_config_changes(
    current: Mapping[str, str], operations: Iterable[ConfigOperation], defaults: LogConfig
) -> dict[str, str | None]:
    """What operations on a topic with these settings of its own change.

    defaults: the broker's settings of logs, to which APPEND and SUBTRACT apply where the topic has none.
    Raises InvalidConfig for a setting or a value that no topic has, and InvalidRequest.
    """

    def list_items(name: str) -> Iterable[str] | None:
        key = LOG_CONFIG_DEF.get(name)
        if key is None or key.type is not ConfigType.LIST:
            return None
        whole = LogConfig.from_kafka({name: current[name]} if name in current else {}, defaults)
        items: tuple[str, ...] = getattr(whole, name.replace(".", "_"))
        return items

    changes = changes_of(operations, list_items)
    LogConfig.from_kafka(changed_config(current, changes), defaults)
    return changes


def changes_of(
    operations: Iterable[ConfigOperation], list_items: Callable[[str], Iterable[str] | None]
) -> dict[str, str | None]:
    """What operations change.  list_items(name): what a list has now, None for a setting that is no list.

    Raises InvalidConfig for APPEND and SUBTRACT on another setting, InvalidRequest for what no operation may be.
    """
    changes: dict[str, str | None] = {}
    for name, operation, value in operations:
        if name in changes:
            raise InvalidRequest(f"Error due to duplicate config keys: {name}")
        if operation == AlterConfigOp.DELETE:
            changes[name] = None
        elif value is None:
            raise InvalidRequest(f"Null value not supported for: {name}")
        elif operation == AlterConfigOp.SET:
            changes[name] = value
        elif operation in (AlterConfigOp.APPEND, AlterConfigOp.SUBTRACT):
            items = list_items(name)
            if items is None:
                raise InvalidConfig(f"Config value append is not allowed for config key: {name}")
            named = [item.strip() for item in value.split(",") if item.strip()]
            is_appended = operation == AlterConfigOp.APPEND
            left = [*items, *named] if is_appended else [item for item in items if item not in named]
            changes[name] = ",".join(dict.fromkeys(left))
        else:
            raise InvalidRequest(f"Unknown config operation: {operation}")
    return changes


def changed_config(config: Mapping[str, str], changes: ConfigChanges) -> dict[str, str]:
    merged: dict[str, str | None] = {**config, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def store_config(
    store: MetadataStore,
    path: str,
    changes: ConfigChanges,
    replace: bool = False,
    in_force: Mapping[str, str] | None = None,
) -> None:
    """Change settings in a node.  Others that are there stay, also those that this broker does not know; with replace
    they all go.

    in_force: what takes the place of others that cannot be read, so that the change does not end them.
    Raises StoreError; UnreadableNode without in_force.
    """

    def stored(data: bytes) -> Mapping[str, str]:
        try:
            return znodes.decode_node(path, data, znodes.decode_config)
        except UnreadableNode as error:
            if in_force is None:
                raise
            logger.warning("%s; it is replaced, from the settings in force: %s", error, in_force)
            return in_force

    def change(data: bytes | None) -> bytes:
        is_empty = data is None or (not data and in_force is None)
        kept = {} if is_empty or replace else stored(data or b"")
        return znodes.encode_config(changed_config(kept, changes))

    store.update(path, change)


def announce_config_change(store: MetadataStore, path: str) -> None:
    """Have every broker of a cluster read the node at `path`, as /config/topics/T.  ChangeNotifications deletes the
    notification."""
    store.ensure_path(znodes.CONFIG_CHANGES)
    store.create(znodes.CONFIG_CHANGE, znodes.encode_config_change(path), sequential=True)


def config_change_notifications(store: MetadataStore, scheduler: Scheduler, time: Time) -> ChangeNotifications[str]:
    """What announce_config_change() announces, at any broker: the entities are the paths."""

    def decode(path: str, data: bytes) -> str:
        return znodes.decode_node(path, data, znodes.decode_config_change)

    return ChangeNotifications("settings", [znodes.CONFIG_CHANGE], decode, store, scheduler, time)
