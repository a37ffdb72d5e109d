"""StoredResourceConfigs: the settings of named resources of one type, in the store below /config."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import ClassVar

from kcore.common.config_def import ConfigDef, ConfigType
from kcore.errors import InvalidConfig, InvalidRequest
from kcore.metadata import znodes
from kcore.metadata.store import MetadataStore, StoreError
from kcore.metadata.store_errors import store_errors_for_clients
from kcore.server.config.config_changes import (
    ConfigChanges,
    ConfigOperation,
    announce_config_change,
    changes_of,
    store_config,
)

logger = logging.getLogger(__name__)


class StoredResourceConfigs(ABC):
    """Thread-safe.  A consumer of changes of settings (ChangeNotifications).  read_*() and alter() wait for the store.

    A resource needs not be there to have settings.  A body that cannot be read is logged, and what was read before
    stays.
    """

    #: What a resource is, and what is said of one without a name.
    what: ClassVar[str]
    no_name: ClassVar[str]
    #: The node whose children are the resources.
    directory: ClassVar[str]
    config_def: ClassVar[ConfigDef]

    def __init__(self, store: MetadataStore, *, is_member: bool) -> None:
        self._store = store
        self._is_member = is_member
        # From the reading or writing of nodes until they are in force: two threads end with the newest.
        self._lock = threading.Lock()
        #: Of each resource that has settings of its own, by name.  Replaced whole when something has changed.
        self.configs: Mapping[str, Mapping[str, str]] = {}

    def config_of(self, name: str) -> Mapping[str, str]:
        """Its own settings."""
        return self.configs.get(name, {})

    def read_all(self) -> None:
        """Raises StoreError."""
        with self._lock:
            stored = [znodes.desanitized(node) for node in self._store.children(self.directory)]
            self._read({*stored, *self.configs})

    def read_changed(self, entities: Collection[str]) -> None:
        prefix = f"{self.directory}/"
        changed = [znodes.desanitized(path.removeprefix(prefix)) for path in entities if path.startswith(prefix)]
        if changed:
            with self._lock:
                self._read(changed)

    def alter(
        self, name: str, operations: Iterable[ConfigOperation], validate_only: bool = False, replace: bool = False
    ) -> None:
        """Set and delete settings of a resource; those that are not named stay, but with replace.

        When it returns, they are stored, and this broker follows them; the others of a cluster do so a moment later.
        Raises InvalidRequest, InvalidConfig, and what api_error() makes of an error of the store.
        """
        if not name:
            raise InvalidRequest(self.no_name)
        path = self._path(name)
        with self._lock, store_errors_for_clients(f"settings of {self.what}s"):
            if self._is_member:
                self._read([name])  # another broker may have changed them just now
            own = self.config_of(name)
            changes = changes_of(operations, lambda setting: self._list_items(setting, {} if replace else own))
            self._check(changes, {} if replace else own)
            if (changes or replace) and not validate_only:
                store_config(self._store, path, changes, replace, in_force=own)
                if self._is_member:
                    announce_config_change(self._store, path)
                logger.info("settings of %s %s changed: %s", self.what, name, changes)
                self._read([name])

    @abstractmethod
    def _check(self, changes: ConfigChanges, own: Mapping[str, str]) -> None:
        """Raises InvalidConfig, InvalidRequest.  own: what the resource has already; only its sum with the changes
        counts."""

    def _list_items(self, setting: str, own: Mapping[str, str]) -> Iterable[str] | None:
        key = self.config_def.get(setting)
        if key is None or key.type is not ConfigType.LIST:
            return None
        items: list[str] = key.parse(own[setting]) if setting in own else key.default
        return items

    def _path(self, name: str) -> str:
        return f"{self.directory}/{znodes.sanitized(name)}"

    def _read(self, names: Iterable[str]) -> None:
        """With the lock held.  Raises StoreError."""
        listed = list(names)
        nodes = self._store.get_many([self._path(name) for name in listed])
        configs = dict(self.configs)
        for name, node in zip(listed, nodes, strict=True):
            config = self._decoded(name, node.data if node is not None else b"", configs.get(name, {}))
            if config:
                configs[name] = config
            else:
                configs.pop(name, None)
        if configs != self.configs:
            self.configs = configs

    def _decoded(self, resource: str, data: bytes, present: Mapping[str, str]) -> Mapping[str, str]:
        """Without what this broker does not know or cannot follow; the present settings where the body cannot be
        read."""
        try:
            stored = znodes.decode_config(data) if data else {}
        except (StoreError, KeyError, TypeError, AttributeError) as error:
            logger.error("the settings of %s %s in the store cannot be read: %s", self.what, resource, error)
            return present
        config = {}
        for name, value in stored.items():
            try:
                self.config_def.parse({name: value})
            except InvalidConfig as error:
                logger.error("the setting %s=%s of %s %s is not followed: %s", name, value, self.what, resource, error)
                continue
            if name in self.config_def:
                config[name] = value
        return config
