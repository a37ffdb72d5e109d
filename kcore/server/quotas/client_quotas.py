"""ClientQuotas: the quotas of clients as the store has them (/config/users, /config/clients), and who measures them.

Source: UserConfigHandler, ClientIdConfigHandler, ZkAdminManager.alterClientQuotas, QuotaConfigs, Kafka 3.9; KIP-546.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from kcore.common.scheduler import Scheduler
from kcore.common.time import Time
from kcore.errors import InvalidRequest
from kcore.metadata import znodes
from kcore.metadata.store import InvalidPath, MetadataStore, SessionEvent, SessionExpired, StoreError, WatchEvent
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.quotas.client_quota_manager import DEFAULT, ClientQuotaManager, EntityName, QuotaEntity

logger = logging.getLogger(__name__)

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
#: Quotas that are whole numbers, and all of them.
_WHOLE = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)
KEYS = (*_WHOLE, REQUEST_PERCENTAGE)
#: Nodes below /config/changes that stay in the store of a broker alone, where no broker reads them.
_KEPT_CHANGES = 100
_RETRY_MS = 1000


class QuotaChange(NamedTuple):
    """value None: the quota no longer holds."""

    key: str
    value: float | None


class ClientQuotas:
    """Thread-safe.  load(), alter() and what follow() schedules wait for the store.

    is_enabled is False while no quota is set at all, so that requests cost nothing but to look at it.
    """

    def __init__(self, config: KafkaConfig, store: MetadataStore, time: Time) -> None:
        samples, seconds = config["quota.window.num"], config["quota.window.size.seconds"]
        self.is_enabled = False
        self.time = time
        self.produce = ClientQuotaManager(samples, seconds, time)
        self.fetch = ClientQuotaManager(samples, seconds, time)
        self.request = ClientQuotaManager(samples, seconds, time, max_throttle_ms=seconds * 1000)
        self._store = store
        self._lock = threading.Lock()
        self._entities: Mapping[QuotaEntity, Mapping[str, float]] = {}
        #: The nodes that were there at the last load().
        self._paths: Mapping[QuotaEntity, str] = {}
        self._scheduler: Scheduler | None = None

    @property
    def entities(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        """Who has which quotas."""
        return self._entities

    def load(self) -> None:
        """Read all quotas.  Raises StoreError."""
        with self._lock:
            entities = {}
            paths = self._stored_entities()
            for entity, path in paths.items():
                node = self._store.get(path)
                quotas = _quotas_in(entity, node.data) if node is not None else {}
                if quotas:
                    entities[entity] = quotas
            self._entities, self._paths = entities, paths
            for key, manager in (
                (PRODUCER_BYTE_RATE, self.produce),
                (CONSUMER_BYTE_RATE, self.fetch),
                (REQUEST_PERCENTAGE, self.request),
            ):
                manager.update({entity: quotas[key] for entity, quotas in entities.items() if key in quotas})
            self.is_enabled = bool(entities)

    def _stored_entities(self) -> dict[QuotaEntity, str]:
        """Each with its node's path.  Of two nodes for one name the one that _path() gives counts."""
        paths: dict[QuotaEntity, str] = {}

        def add(entity: QuotaEntity, path: str) -> None:
            if paths.get(entity) != _path(entity):
                paths[entity] = path

        for user_node in self._store.children(znodes.USER_CONFIGS):
            user, path = _name(user_node), f"{znodes.USER_CONFIGS}/{user_node}"
            add(QuotaEntity(user, None), path)
            with suppress(InvalidPath):  # a user "." of an earlier version, without clients
                for client_node in self._store.children(f"{path}/clients"):
                    add(QuotaEntity(user, _name(client_node)), f"{path}/clients/{client_node}")
        for client_node in self._store.children(znodes.CLIENT_CONFIGS):
            add(QuotaEntity(None, _name(client_node)), f"{znodes.CLIENT_CONFIGS}/{client_node}")
        return paths

    # -- changes by other brokers -----------------------------------------------------------------------

    def follow(self, scheduler: Scheduler) -> None:
        """Take over what other brokers of the cluster change; reads on the scheduler's thread.  Raises StoreError."""
        self._scheduler = scheduler
        self._store.ensure_path(znodes.CONFIG_CHANGES)
        self._store.children(znodes.CONFIG_CHANGES, self._changed)
        self._store.add_session_listener(self._session_changed)
        self.load()

    def _changed(self, event: WatchEvent) -> None:
        assert self._scheduler is not None
        self._scheduler.schedule("client-quotas", self._read_again)

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED and self._scheduler is not None:
            self._scheduler.schedule("client-quotas", self._read_again)

    def _read_again(self) -> None:
        assert self._scheduler is not None
        try:
            self._store.children(znodes.CONFIG_CHANGES, self._changed)
            self.load()
        except SessionExpired:
            pass  # the next session reads them
        except StoreError as error:
            logger.error("changes of client quotas could not be read: %s", error)
            self._scheduler.schedule("client-quotas", self._read_again, _RETRY_MS)

    # -- changes by this broker -------------------------------------------------------------------------

    def check(self, changes: list[QuotaChange]) -> None:
        """Raises InvalidRequest for an unknown quota, and a value that it cannot have."""
        for key, value in changes:
            if key not in KEYS:
                raise InvalidRequest(f"Invalid configuration key {key}")
            if value is None:
                continue
            if not 0 < value < float("inf"):
                raise InvalidRequest(f"Quota {key} must be greater than 0")
            if key in _WHOLE and abs(value - round(value)) > 1e-6:
                raise InvalidRequest(f"Configuration {key} must be a Long value")

    def alter(self, entity: QuotaEntity, changes: list[QuotaChange]) -> None:
        """Store and follow an entity's quotas, and notify other brokers.  Raises as check() does, and StoreError."""
        self.check(changes)
        path = self._paths.get(entity) or _path(entity)

        def change(data: bytes | None) -> bytes:
            # A user's node has his credentials too.
            config = znodes.decode_node(path, data, znodes.decode_config) if data else {}
            for key, value in changes:
                if value is None:
                    config.pop(key, None)
                else:
                    config[key] = str(round(value)) if key in _WHOLE else repr(float(value))
            return znodes.encode_config(config)

        self._store.update(path, change)
        self._store.ensure_path(znodes.CONFIG_CHANGES)
        self._store.create(
            znodes.CONFIG_CHANGE, znodes.encode_config_change(path.removeprefix("/config/")), sequential=True
        )
        if self._scheduler is None:  # in a cluster StoredTopicConfigs deletes them
            for name in self._store.children(znodes.CONFIG_CHANGES)[:-_KEPT_CHANGES]:
                self._store.delete_recursive(f"{znodes.CONFIG_CHANGES}/{name}")
        self.load()


def _path(entity: QuotaEntity) -> str:
    if entity.user is None:
        assert entity.client_id is not None
        return f"{znodes.CLIENT_CONFIGS}/{_node(entity.client_id)}"
    path = f"{znodes.USER_CONFIGS}/{_node(entity.user)}"
    return path if entity.client_id is None else f"{path}/clients/{_node(entity.client_id)}"


def _node(name: EntityName) -> str:
    """A name in a path.  Source: Sanitizer, Kafka, but for "." and "..", which Kafka writes as they are and ZooKeeper
    refuses; as they are written here, Kafka reads them."""
    if not isinstance(name, str):
        return znodes.DEFAULT_ENTITY
    from urllib.parse import quote  # not at the top: few brokers have quotas

    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="-._").replace("~", "%7E")


def _name(node: str) -> EntityName:
    from urllib.parse import unquote

    return DEFAULT if node == znodes.DEFAULT_ENTITY else unquote(node)


def _quotas_in(entity: QuotaEntity, data: bytes) -> dict[str, float]:
    """What of a node are quotas; what cannot be read is logged and does not hold."""
    try:
        config = znodes.decode_config(data) if data else {}
        return {key: float(config[key]) for key in KEYS if key in config}
    except (StoreError, KeyError, TypeError, ValueError, AttributeError) as error:
        logger.error("the quotas of %s cannot be read: %s", entity, error)
        return {}
