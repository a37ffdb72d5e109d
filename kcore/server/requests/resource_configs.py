"""ResourceConfigs: whose settings the resources of AlterConfigs and IncrementalAlterConfigs are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from kcore.errors import ApiError, InvalidRequest, code_of
from kcore.security.acl import AclOperation
from kcore.server.config.config_changes import ConfigOperation
from kcore.server.requests.config_access import check_config_access
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services

_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32


class Resource(Protocol):
    resource_type: int
    resource_name: str


R = TypeVar("R", bound=Resource)
ResponseT = TypeVar("ResponseT")


def responses(make: Callable[..., ResponseT], results: Iterable[tuple[Resource, ApiError | None]]) -> list[ResponseT]:
    """What ResourceConfigs.alter() has returned.  make: the request's own class for the response about a resource."""
    return [_response(make, resource, code_of(error), error) for resource, error in results]


def refusals(make: Callable[..., ResponseT], resources: Iterable[Resource], error_code: int) -> list[ResponseT]:
    """The same error for each resource."""
    return [_response(make, resource, error_code, None) for resource in resources]


def _response(make: Callable[..., ResponseT], resource: Resource, code: int, error: ApiError | None) -> ResponseT:
    return make(
        error_code=code,
        error_message=None if error is None else str(error),
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


class ResourceConfigs:
    """Thread-safe.  Waits for the store."""

    def __init__(self, services: Services) -> None:
        self._admin = services.admin_manager
        self._broker_configs = services.broker_configs
        self._broker_loggers = services.broker_loggers
        self._group_configs = services.group_configs
        self._client_metrics = services.client_metrics
        self._auth = services.auth

    def runs_on(self, resources: Iterable[Resource]) -> RunsOn:
        """Settings of topics are changed under AdminManager's lock; those of brokers must not wait for it."""
        is_topic = any(resource.resource_type == _TOPIC for resource in resources)
        return RunsOn.TOPIC_CHANGES if is_topic else RunsOn.SETTING_CHANGES

    def alter(
        self,
        context: RequestContext,
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
                check_config_access(self._auth, context, AclOperation.ALTER_CONFIGS, resource)
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
        elif kind == _GROUP:
            self._group_configs.alter(name, operations, validate_only, replace)
        elif kind == _CLIENT_METRICS:
            self._client_metrics.alter(name, operations, validate_only, replace)
        elif kind == _BROKER_LOGGER and replace:
            raise InvalidRequest("Levels of loggers are only changed one by one, by IncrementalAlterConfigs")
        elif kind == _BROKER_LOGGER:
            self._broker_loggers.alter(name, operations, validate_only)
        else:
            known = "topics, brokers, loggers, client metrics and groups"
            raise InvalidRequest(f"Only settings of {known} can be changed, not of resource type {kind}")
