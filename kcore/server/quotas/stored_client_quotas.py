"""StoredClientQuotas: the quotas of clients as the store has them (/config/users, clients and ips): read and changed.

Source: UserConfigHandler, ClientIdConfigHandler, IpConfigHandler, ZkAdminManager.alterClientQuotas, QuotaConfigs, Kafka
3.9; KIP-546.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from kcore.errors import InvalidRequest
from kcore.metadata import znodes
from kcore.metadata.store import InvalidPath, MetadataStore, StoreError
from kcore.server.config.config_changes import announce_config_change
from kcore.server.quotas.client_quota_manager import DEFAULT, EntityName, QuotaEntity
from kcore.server.quotas.client_quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
)

logger = logging.getLogger(__name__)

#: Quotas that are whole numbers, and the largest that each can be.
_WHOLE = {PRODUCER_BYTE_RATE: 2**63 - 1, CONSUMER_BYTE_RATE: 2**63 - 1, CONNECTION_CREATION_RATE: 2**31 - 1}
_CLIENT_KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
_IP_KEYS = (CONNECTION_CREATION_RATE,)


class QuotaChange(NamedTuple):
    """value None: the quota no longer holds."""

    key: str
    value: float | None


class StoredClientQuotas:
    """Thread-safe.  A consumer of changes of settings (ChangeNotifications).  Every method but check() waits for the
    store."""

    def __init__(self, store: MetadataStore, quotas: ClientQuotas, *, is_member: bool) -> None:
        self._store = store
        self._quotas = quotas
        self._is_member = is_member
        # From the reading or writing of nodes until they are in force: two threads end with the newest.
        self._lock = threading.Lock()
        #: The nodes that were there when they were read.
        self._paths: dict[QuotaEntity, str] = {}

    def read_all(self) -> None:
        """Raises StoreError."""
        with self._lock:
            paths: dict[QuotaEntity, str] = {}
            _add(paths, self._stored_paths())
            self._quotas.use(self._read(paths))
            self._paths = paths

    def read_changed(self, entities: Collection[str]) -> None:
        with self._lock:
            named = filter(None, map(_entity_of, entities))
            paths = {entity: self._paths[entity] for entity in named if entity in self._paths}
            _add(paths, entities)
            if paths:
                self._quotas.use({**self._quotas.entities, **self._read(paths)})
                self._paths.update(paths)

    def _stored_paths(self) -> list[str]:
        paths = []
        for user in self._store.children(znodes.USER_CONFIGS):
            path = f"{znodes.USER_CONFIGS}/{user}"
            paths.append(path)
            with suppress(InvalidPath):  # a user "." of an earlier version, without clients
                paths += [f"{path}/clients/{name}" for name in self._store.children(f"{path}/clients")]
        for parent in (znodes.CLIENT_CONFIGS, znodes.IP_CONFIGS):
            paths += [f"{parent}/{name}" for name in self._store.children(parent)]
        return paths

    def _read(self, paths: Mapping[QuotaEntity, str]) -> dict[QuotaEntity, Mapping[str, float]]:
        nodes = self._store.get_many(list(paths.values()))
        return {
            entity: _quotas_in(entity, node.data) if node is not None else {}
            for entity, node in zip(paths, nodes, strict=True)
        }

    def check(self, entity: QuotaEntity, changes: Sequence[QuotaChange]) -> None:
        """Raises InvalidRequest for a quota that the entity cannot have, and for a value that the quota cannot have."""
        for key, value in changes:
            if key not in _keys_of(entity):
                raise InvalidRequest(f"Invalid configuration key {key} (expected {', '.join(_keys_of(entity))})")
            if value is None:
                continue
            if not 0 < value < float("inf"):
                raise InvalidRequest(f"Quota {key} must be greater than 0")
            if key in _WHOLE and abs(value - round(value)) > 1e-6:
                raise InvalidRequest(f"Configuration {key} must be a Long value")
            if value > _WHOLE.get(key, float("inf")):
                raise InvalidRequest(f"Configuration {key} must not be greater than {_WHOLE[key]}")

    def alter(self, entity: QuotaEntity, changes: Sequence[QuotaChange]) -> None:
        """Store an entity's quotas and put them in force, and notify other brokers.  Raises as check() does, and
        StoreError."""
        self.check(entity, changes)
        with self._lock:
            path = self._paths.setdefault(entity, _path(entity))

            def change(data: bytes | None) -> bytes:
                # A user's node has his credentials too.
                config = znodes.decode_node(path, data, znodes.decode_config) if data else {}
                for key, value in changes:
                    if value is None:
                        config.pop(key, None)
                    else:
                        config[key] = str(round(value)) if key in _WHOLE else repr(float(value))
                return znodes.encode_config(config)

            stored = self._store.update(path, change)
            self._quotas.use({**self._quotas.entities, entity: _quotas_in(entity, stored)})
        if self._is_member:
            announce_config_change(self._store, path)


def _add(paths: dict[QuotaEntity, str], added: Iterable[str]) -> None:
    """Of two nodes for one name the one that _path() gives counts."""
    for path in added:
        entity = _entity_of(path)
        if entity is not None and paths.get(entity) != _path(entity):
            paths[entity] = path


def _entity_of(path: str) -> QuotaEntity | None:
    match path.split("/")[2:]:
        case ["users", user]:
            return QuotaEntity(_name(user), None)
        case ["users", user, "clients", client]:
            return QuotaEntity(_name(user), _name(client))
        case ["clients", client]:
            return QuotaEntity(None, _name(client))
        case ["ips", ip]:
            return QuotaEntity(None, None, _name(ip))
    return None


def _keys_of(entity: QuotaEntity) -> Sequence[str]:
    return _CLIENT_KEYS if entity.ip is None else _IP_KEYS


def _path(entity: QuotaEntity) -> str:
    if entity.ip is not None:
        return f"{znodes.IP_CONFIGS}/{_node(entity.ip)}"
    if entity.user is None:
        assert entity.client_id is not None
        return f"{znodes.CLIENT_CONFIGS}/{_node(entity.client_id)}"
    path = f"{znodes.USER_CONFIGS}/{_node(entity.user)}"
    return path if entity.client_id is None else f"{path}/clients/{_node(entity.client_id)}"


def _node(name: EntityName) -> str:
    return znodes.sanitized(name) if isinstance(name, str) else znodes.DEFAULT_ENTITY


def _name(node: str) -> EntityName:
    return DEFAULT if node == znodes.DEFAULT_ENTITY else znodes.desanitized(node)


def _quotas_in(entity: QuotaEntity, data: bytes) -> dict[str, float]:
    """What of a node are quotas; what cannot be read is logged and does not hold."""
    try:
        config = znodes.decode_config(data) if data else {}
        return {key: float(config[key]) for key in _keys_of(entity) if key in config}
    except (StoreError, KeyError, TypeError, ValueError, AttributeError) as error:
        logger.error("the quotas of %s cannot be read: %s", entity, error)
        return {}
