"""ResourceConfigs: whose settings the resources of AlterConfigs and IncrementalAlterConfigs are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from kcore.errors import ApiError, InvalidRequest
from kcore.server.admin_manager import AdminManager
from kcore.server.config_changes import ConfigOperation
from kcore.server.stored_broker_configs import StoredBrokerConfigs

_TOPIC, _BROKER = 2, 4
_OTHERS = {8: "a broker's loggers", 16: "client metrics", 32: "a group"}


class Resource(Protocol):
    resource_type: int
    resource_name: str


R = TypeVar("R", bound=Resource)


class ResourceConfigs:
    """Thread-safe.  Waits for the store."""

    def __init__(self, admin_manager: AdminManager, broker_configs: StoredBrokerConfigs) -> None:
        self._admin = admin_manager
        self._broker_configs = broker_configs

    def alter(
        self,
        resources: Sequence[R],
        operations: Callable[[R], Iterable[ConfigOperation]],
        validate_only: bool,
        replace: bool = False,
    ) -> list[tuple[R, ApiError | None]]:
        """Carry out the operations on each resource; what is wrong with one does not keep the others from changing.

        replace: the resource has no other settings afterwards.  A resource that is there twice is answered once.
        """
        counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
        last = {(resource.resource_type, resource.resource_name): resource for resource in resources}
        results: list[tuple[R, ApiError | None]] = []
        for key, resource in last.items():
            try:
                if counts[key] > 1:
                    raise InvalidRequest("Each resource must appear at most once.")
                self._alter(*key, operations(resource), validate_only, replace)
                results.append((resource, None))
            except ApiError as error:
                results.append((resource, error))
        return results

    def _alter(
        self, kind: int, name: str, operations: Iterable[ConfigOperation], validate_only: bool, replace: bool
    ) -> None:
        if kind == _TOPIC:
            self._admin.alter_topic_config(name, operations, validate_only, replace)
        elif kind == _BROKER:
            self._broker_configs.alter(name, operations, validate_only, replace)
        else:
            what = _OTHERS.get(kind, f"resource type {kind}")
            raise InvalidRequest(f"Only settings of topics and brokers can be changed, not of {what}")
