"""ACLs and filters as DescribeAcls, CreateAcls and DeleteAcls have them.  Source: AclApis, Kafka 3.9."""

from __future__ import annotations

from typing import Protocol, TypeVar

from kcore.errors import InvalidRequest
from kcore.protocol.messages.create_acls import AclCreation
from kcore.security.acl import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)

E = TypeVar("E", AclOperation, AclPermissionType, PatternType, ResourceType)

#: The error message of a broker that has none.
NO_AUTHORIZER = "No Authorizer is configured on the broker"


class FilterFields(Protocol):
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def acl_filter(fields: FilterFields) -> AclBindingFilter:
    """Raises InvalidRequest for a code that Kafka does not have."""
    return AclBindingFilter(
        _known(ResourceType, fields.resource_type_filter),
        fields.resource_name_filter,
        _known(PatternType, fields.pattern_type_filter),
        fields.principal_filter,
        fields.host_filter,
        _known(AclOperation, fields.operation),
        _known(AclPermissionType, fields.permission_type),
    )


def acl_binding(creation: AclCreation) -> AclBinding:
    """Raises InvalidRequest for a code that Kafka does not have."""
    pattern = ResourcePattern(
        _known(ResourceType, creation.resource_type),
        creation.resource_name,
        _known(PatternType, creation.resource_pattern_type),
    )
    operation, permission = (
        _known(AclOperation, creation.operation),
        _known(AclPermissionType, creation.permission_type),
    )
    return AclBinding(pattern, AccessControlEntry(creation.principal, creation.host, operation, permission))


def _known(kind: type[E], code: int) -> E:
    if code == 0 or code not in kind.__members__.values():
        raise InvalidRequest(f"{kind.__name__} {code} is unknown")
    return kind(code)
