"""Authorizer: the interface that decides who may do what.  An embedding program or the setting authorizer.class.name
gives a broker one (docs/embedding.md); `acl_authorizer.py` is the one that comes with the package.

Source: org.apache.kafka.server.authorizer.Authorizer, Kafka 3.9.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from kcore.common.scheduler import Scheduler
from kcore.common.time import SYSTEM_TIME, Time
from kcore.errors import ApiError, SecurityDisabled
from kcore.metadata.store import MetadataStore
from kcore.network.listener import KafkaPrincipal, SecurityProtocol
from kcore.security.acl import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
    canonical_host,
)


class AuthorizationResult(Enum):
    ALLOWED = 1
    DENIED = 2


class Action(NamedTuple):
    """What a client wants to do with one resource, of a literal pattern.

    resource_reference_count: how often the request names it.  log_if_allowed: False where nothing is done then, since
    the client only asks what it may do.  log_if_denied: False where it did not name the resource.
    """

    operation: AclOperation
    resource_pattern: ResourcePattern
    resource_reference_count: int = 1
    log_if_allowed: bool = True
    log_if_denied: bool = True


class AuthorizableRequestContext(Protocol):
    """Who asks for what over which listener."""

    @property
    def listener_name(self) -> str: ...

    @property
    def security_protocol(self) -> SecurityProtocol: ...

    @property
    def principal(self) -> KafkaPrincipal:
        """User:ANONYMOUS on a listener where no client has to authenticate."""

    @property
    def client_address(self) -> str:
        """The host, without the port."""

    @property
    def client_id(self) -> str:
        """Whatever the client calls itself: proves nothing."""

    @property
    def request_type(self) -> int:
        """The API key."""

    @property
    def request_version(self) -> int: ...

    @property
    def correlation_id(self) -> int: ...


class AuthorizerServerInfo(NamedTuple):
    """The broker that starts.  make_scheduler(name): one that runs until the broker stops.

    time: of a clock that never steps.
    """

    broker_id: int
    cluster_id: str
    store: MetadataStore
    make_scheduler: Callable[[str], Scheduler]
    time: Time = SYSTEM_TIME


class Authorizer(ABC):
    """Decides about actions.  Thread-safe: authorize() is called on the threads that serve clients, and must not wait.

    Lifetime: one that the setting authorizer.class.name names is made without arguments by each broker that starts,
    then come configure(), start(), authorize() for each request, and close() when the broker has stopped.  One that a
    program makes may serve several brokers, which call none but the methods for requests.  What it raises refuses the
    request with UNKNOWN_SERVER_ERROR.
    """

    def configure(self, settings: Mapping[str, Any]) -> None:  # noqa: B027
        """settings: what was given to the broker, by Kafka's names.  Raises InvalidConfig."""

    def start(self, server_info: AuthorizerServerInfo) -> None:  # noqa: B027
        """The broker starts, and asks from when this has returned.  What it raises ends the start."""

    def close(self) -> None:  # noqa: B027
        """The broker has stopped."""

    @abstractmethod
    def authorize(
        self, request_context: AuthorizableRequestContext, actions: Sequence[Action]
    ) -> list[AuthorizationResult]:
        """Whether each of the actions is allowed, in their order."""

    def acls(self, acl_filter: AclBindingFilter) -> Iterable[AclBinding]:
        """The ACLs that the filter matches; none for an authorizer that decides by other means."""
        return ()

    def create_acls(
        self, request_context: AuthorizableRequestContext, bindings: Sequence[AclBinding]
    ) -> list[ApiError | None]:
        """Make ACLs; what is wrong with each, in their order.  When it returns, they apply."""
        return [SecurityDisabled("this authorizer has no ACLs") for _ in bindings]

    def delete_acls(
        self, request_context: AuthorizableRequestContext, acl_filter: AclBindingFilter
    ) -> list[AclBinding]:
        """Delete the ACLs that a filter matches, and return them.  Raises ApiError."""
        raise SecurityDisabled("this authorizer has no ACLs")

    def authorize_by_resource_type(
        self, request_context: AuthorizableRequestContext, operation: AclOperation, resource_type: ResourceType
    ) -> AuthorizationResult:
        """Whether the operation is allowed on at least one resource of this type, whichever that is.

        Here: on one of an unusual name, or by acls().
        """
        unusual = Action(operation, ResourcePattern(resource_type, "hardcode"), 0, True, False)
        if self.authorize(request_context, [unusual]) == [AuthorizationResult.ALLOWED]:
            return AuthorizationResult.ALLOWED
        applying = [
            binding
            for binding in self.acls(AclBindingFilter(resource_type))
            if binding.entry.principal in (WILDCARD_PRINCIPAL, str(request_context.principal))
            and binding.entry.operation in (AclOperation.ALL, operation)
            and canonical_host(binding.entry.host) in (WILDCARD, canonical_host(request_context.client_address))
        ]
        return AuthorizationResult.ALLOWED if allow_some_resource(applying) else AuthorizationResult.DENIED


def allow_some_resource(bindings: Iterable[AclBinding]) -> bool:
    """Whether these ACLs, which all apply to one client, operation and type, leave a resource that is allowed."""
    patterns: dict[tuple[AclPermissionType, PatternType], set[str]] = {}
    for pattern, entry in bindings:
        patterns.setdefault((entry.permission_type, pattern.pattern_type), set()).add(pattern.name)
    denied = patterns.get((AclPermissionType.DENY, PatternType.LITERAL), set())
    denied_prefixes = patterns.get((AclPermissionType.DENY, PatternType.PREFIXED), set())
    allowed = patterns.get((AclPermissionType.ALLOW, PatternType.LITERAL), set())
    allowed_prefixes = patterns.get((AclPermissionType.ALLOW, PatternType.PREFIXED), set())
    if WILDCARD in denied:
        return False
    if WILDCARD in allowed:
        return True
    return any(
        not any(name.startswith(prefix) for prefix in denied_prefixes) for name in (allowed - denied) | allowed_prefixes
    )
