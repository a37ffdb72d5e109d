"""AuthHelper: how handlers ask the authorizer; and which requests need one permission as a whole.

Source: AuthHelper, KafkaApis, Kafka 3.9.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

from kcore.errors import ClusterAuthorizationFailed, GroupAuthorizationFailed, TopicAuthorizationFailed
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message
from kcore.security.acl import CLUSTER_NAME, SUPPORTED_OPERATIONS, AclOperation, ResourcePattern, ResourceType
from kcore.security.authorizer import Action, AuthorizationResult, Authorizer
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn

if TYPE_CHECKING:
    from kcore.server.requests.handler import Handler

_ALLOWED = AuthorizationResult.ALLOWED

logger = logging.getLogger(__name__)

#: What a response says of operations when the request did not ask.
NOT_ASKED = -(2**31)

#: Principals are few, but clients may choose them where no client authenticates.
_MAX_DENIED_BROKERS = 100

#: The error of a resource that the client may not use so.
DENIED = {
    ResourceType.TOPIC: TopicAuthorizationFailed,
    ResourceType.GROUP: GroupAuthorizationFailed,
    ResourceType.CLUSTER: ClusterAuthorizationFailed,
}


class AuthHelper:
    """Asks the authorizer; without one everything is allowed.  Thread-safe.

    Handlers of frequent requests look at is_enabled, once for each request.  denied_brokers: what the log has said of
    requests that only brokers send, by who sent them and the API, until they are allowed one.  What is no
    AuthorizationResult denies, as DENIED.
    """

    __slots__ = ("_has_named_result", "authorizer", "denied_brokers", "is_enabled")

    def __init__(self, authorizer: Authorizer | None) -> None:
        self.authorizer = authorizer
        self.is_enabled = authorizer is not None
        self.denied_brokers: dict[tuple[str, int], str] = {}
        self._has_named_result = False

    def _ask(self, context: RequestContext, actions: list[Action]) -> list[bool]:
        """Whether each is allowed."""
        assert self.authorizer is not None, "nothing is asked without one"
        results = self.authorizer.authorize(context, actions)
        allowed = [result is _ALLOWED for result in results]
        if not all(allowed):
            for result in results:
                self._check_result("authorize()", result)
        return allowed

    def _check_result(self, method: str, result: object) -> None:
        """Name a result that is none in the log, once."""
        if not isinstance(result, AuthorizationResult) and not self._has_named_result:
            self._has_named_result = True
            name = f"{type(self.authorizer).__qualname__}.{method}"
            logger.error("%s gives %r, which is no AuthorizationResult: it counts as DENIED", name, result)

    def authorize(
        self,
        context: RequestContext,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        log_if_denied: bool = True,
    ) -> bool:
        if self.authorizer is None:
            return True
        action = Action(operation, ResourcePattern(resource_type, name), 1, True, log_if_denied)
        is_allowed = self._ask(context, [action])[0]
        if operation is AclOperation.CLUSTER_ACTION and log_if_denied:
            if not is_allowed:
                self._warn_of_denied_broker(context)
            elif self.denied_brokers:
                principal = str(context.principal)
                for key in [key for key in list(self.denied_brokers) if key[0] == principal]:
                    self.denied_brokers.pop(key, None)
        return is_allowed

    def _warn_of_denied_broker(self, context: RequestContext) -> None:
        """Once: without such requests a cluster does not work, and the broker that sends them tries again for ever."""
        key = str(context.principal), context.request_type
        if key in self.denied_brokers or len(self.denied_brokers) >= _MAX_DENIED_BROKERS:
            return
        self.denied_brokers[key] = (
            f"{context.principal} may not send {ApiKey(context.request_type).name} as a broker: the authorizer denies "
            f"CLUSTER_ACTION on the cluster, which the brokers need (super.users, or an ACL)"
        )
        logger.warning("%s; its requests come from %s", self.denied_brokers[key], context.client_address)

    def authorize_cluster(
        self, context: RequestContext, operation: AclOperation, *, log_if_denied: bool = True
    ) -> bool:
        return self.authorize(context, operation, ResourceType.CLUSTER, CLUSTER_NAME, log_if_denied=log_if_denied)

    def authorize_by_resource_type(
        self, context: RequestContext, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """On at least one resource of the type."""
        if self.authorizer is None:
            return True
        result = self.authorizer.authorize_by_resource_type(context, operation, resource_type)
        self._check_result("authorize_by_resource_type()", result)
        return result is _ALLOWED

    def filter_by_authorized(
        self,
        context: RequestContext,
        operation: AclOperation,
        resource_type: ResourceType,
        names: Iterable[str],
        *,
        log_if_denied: bool = True,
    ) -> Collection[str]:
        """Those of the names on which the operation is allowed.  A name may come several times, as in the request."""
        if self.authorizer is None:
            return frozenset(names)
        counts = Counter(names)
        if not counts:
            return counts.keys()
        actions = [
            Action(operation, ResourcePattern(resource_type, name), count, True, log_if_denied)
            for name, count in counts.items()
        ]
        allowed = self._ask(context, actions)
        return {name for name, is_allowed in zip(counts, allowed, strict=True) if is_allowed}

    def authorized_operations(self, context: RequestContext, resource_type: ResourceType, name: str) -> int:
        """What the client may do with a resource, as bits by the operation's code."""
        operations = SUPPORTED_OPERATIONS[resource_type]
        if self.authorizer is not None:
            pattern = ResourcePattern(resource_type, name)
            actions = [Action(operation, pattern, 1, False, False) for operation in operations]
            allowed = self._ask(context, actions)
            operations = tuple(
                operation for operation, is_allowed in zip(operations, allowed, strict=True) if is_allowed
            )
        return sum(1 << operation for operation in operations)

    def cluster_operations(self, context: RequestContext) -> int:
        """The same of the cluster; none for a client that may not describe it."""
        if not self.authorize_cluster(context, AclOperation.DESCRIBE):
            return 0
        return self.authorized_operations(context, ResourceType.CLUSTER, CLUSTER_NAME)


class Permission(NamedTuple):
    """What a request needs as a whole: an operation on the cluster, or on the group that it names."""

    operation: AclOperation
    resource_type: ResourceType = ResourceType.CLUSTER

    def name(self, body: Message) -> str:
        if self.resource_type is ResourceType.CLUSTER:
            return CLUSTER_NAME
        group_id: str = body.group_id  # type: ignore[attr-defined]
        return group_id


_CLUSTER_ACTION = Permission(AclOperation.CLUSTER_ACTION)
_READ_GROUP = Permission(AclOperation.READ, ResourceType.GROUP)

#: Such requests.  Those of the other APIs name several resources, and their handlers ask for each of them.
PERMISSIONS = {
    ApiKey.LEADER_AND_ISR: _CLUSTER_ACTION,
    ApiKey.STOP_REPLICA: _CLUSTER_ACTION,
    ApiKey.UPDATE_METADATA: _CLUSTER_ACTION,
    ApiKey.CONTROLLED_SHUTDOWN: _CLUSTER_ACTION,
    ApiKey.ALTER_PARTITION: _CLUSTER_ACTION,
    ApiKey.ALLOCATE_PRODUCER_IDS: _CLUSTER_ACTION,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Permission(AclOperation.ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Permission(AclOperation.DESCRIBE),
    ApiKey.ELECT_LEADERS: Permission(AclOperation.ALTER),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Permission(AclOperation.ALTER),
    ApiKey.DESCRIBE_LOG_DIRS: Permission(AclOperation.DESCRIBE),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Permission(AclOperation.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CLIENT_QUOTAS: Permission(AclOperation.ALTER_CONFIGS),
    ApiKey.LIST_CONFIG_RESOURCES: Permission(AclOperation.DESCRIBE_CONFIGS),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Permission(AclOperation.DESCRIBE),
    ApiKey.UPDATE_FEATURES: Permission(AclOperation.ALTER),
    ApiKey.DESCRIBE_ACLS: Permission(AclOperation.DESCRIBE),
    ApiKey.CREATE_ACLS: Permission(AclOperation.ALTER),
    ApiKey.DELETE_ACLS: Permission(AclOperation.ALTER),
    ApiKey.JOIN_GROUP: _READ_GROUP,
    ApiKey.SYNC_GROUP: _READ_GROUP,
    ApiKey.HEARTBEAT: _READ_GROUP,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _READ_GROUP,
    ApiKey.LEAVE_GROUP: _READ_GROUP,
    ApiKey.OFFSET_COMMIT: _READ_GROUP,
    ApiKey.OFFSET_DELETE: Permission(AclOperation.DELETE, ResourceType.GROUP),
}


class AuthorizedHandler:
    """A handler whose requests are refused where their client does not have the permission."""

    def __init__(self, handler: Handler, permission: Permission, auth: AuthHelper) -> None:
        self._handler = handler
        self._permission = permission
        self._auth = auth
        self.runs_on: RunsOn | Callable[[RequestContext, Message], RunsOn] = handler.runs_on
        self.error_response = handler.error_response

    def handle(self, context: RequestContext, body: Message) -> None:
        permission = self._permission
        if self._auth.authorize(context, permission.operation, permission.resource_type, permission.name(body)):
            self._handler.handle(context, body)
            return
        error_code = DENIED[permission.resource_type].code
        response = self.error_response(body, error_code, context.api_version)
        assert response is not None, f"{context!r}: only Produce has requests without an answer"
        context.respond(response)
