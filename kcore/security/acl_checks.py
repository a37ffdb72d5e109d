"""Which ACLs, filters and principals make sense: what would silently allow or deny nothing is refused."""

from __future__ import annotations

from ipaddress import ip_address

from kcore.errors import InvalidConfig
from kcore.network.listener import KafkaPrincipal
from kcore.security.acl import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)

#: What kafka-acls knows beside SUPPORTED_OPERATIONS, since groups have settings in some releases.
_OPERATIONS_OF_OTHER_RELEASES = {
    ResourceType.GROUP: (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS),
}


def parse_principal(text: str) -> KafkaPrincipal:
    """User:alice; blanks around it do not count.  Raises InvalidConfig."""
    kind, separator, name = text.strip().partition(":")
    if not (kind and separator and name):
        raise InvalidConfig(f"{text!r} is not a principal: expected a type and a name, as User:alice")
    return KafkaPrincipal(kind, name)


def checked(binding: AclBinding) -> AclBinding:
    """The binding.  Raises InvalidConfig for an ACL that can never apply, TypeError for what is none."""
    _check_types(binding)
    pattern, entry = binding
    if pattern.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        raise InvalidConfig(f"{_text(binding)}: the resource type is for filters only")
    if pattern.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidConfig(f"{_text(binding)}: patterns of ACLs are LITERAL or PREFIXED")
    if entry.permission_type not in (AclPermissionType.ALLOW, AclPermissionType.DENY):
        raise InvalidConfig(f"{_text(binding)}: an ACL either allows or denies")
    _check_name(binding)
    _check_operation(binding)
    if entry.principal != entry.principal.strip():
        raise InvalidConfig(f"{_text(binding)}: the principal {entry.principal!r} has blanks around it")
    parse_principal(entry.principal)
    if entry.host != WILDCARD and not _is_address(entry.host):
        raise InvalidConfig(
            f"{_text(binding)}: the host {entry.host!r} is neither an IP address nor *; names and networks never match"
        )
    return binding


def check_filter(acl_filter: AclBindingFilter) -> AclBindingFilter:
    """The filter.  Raises TypeError for one that would match nothing because of a value of another type."""
    if not isinstance(acl_filter, AclBindingFilter):
        raise TypeError(f"expected an AclBindingFilter, not {acl_filter!r}")
    _check_type(acl_filter, "resource_type", acl_filter.resource_type, ResourceType)
    _check_type(acl_filter, "pattern_type", acl_filter.pattern_type, PatternType)
    _check_type(acl_filter, "operation", acl_filter.operation, AclOperation)
    _check_type(acl_filter, "permission_type", acl_filter.permission_type, AclPermissionType)
    for name in ("name", "principal", "host"):
        if getattr(acl_filter, name) is not None:
            _check_type(acl_filter, name, getattr(acl_filter, name), str)
    return acl_filter


def _check_types(binding: AclBinding) -> None:
    if not (
        isinstance(binding, AclBinding)
        and isinstance(binding.pattern, ResourcePattern)
        and isinstance(binding.entry, AccessControlEntry)
    ):
        raise TypeError(f"expected an AclBinding, not {binding!r}")
    pattern, entry = binding
    _check_type(binding, "resource_type", pattern.resource_type, ResourceType)
    _check_type(binding, "name", pattern.name, str)
    _check_type(binding, "pattern_type", pattern.pattern_type, PatternType)
    _check_type(binding, "principal", entry.principal, str)
    _check_type(binding, "host", entry.host, str)
    _check_type(binding, "operation", entry.operation, AclOperation)
    _check_type(binding, "permission_type", entry.permission_type, AclPermissionType)


def _check_type(where: object, name: str, value: object, expected: type) -> None:
    if not isinstance(value, expected):
        raise TypeError(f"{where}: {name} must be a {expected.__name__}, not {value!r}")


def _check_operation(binding: AclBinding) -> None:
    resource_type, operation = binding.pattern.resource_type, binding.entry.operation
    if operation in (AclOperation.UNKNOWN, AclOperation.ANY):
        raise InvalidConfig(f"{_text(binding)}: the operation is for filters only; AclOperation.ALL stands for all")
    supported = (*SUPPORTED_OPERATIONS[resource_type], *_OPERATIONS_OF_OTHER_RELEASES.get(resource_type, ()))
    if operation not in (AclOperation.ALL, *supported):
        names = ", ".join(each.name for each in supported)
        raise InvalidConfig(f"{_text(binding)}: the operations of a {resource_type.name} are ALL, {names}")


def _check_name(binding: AclBinding) -> None:
    resource_type, name, pattern_type = binding.pattern
    if not name:
        raise InvalidConfig(f"{_text(binding)}: the name is empty")
    if "/" in name:
        raise InvalidConfig(f"{_text(binding)}: the name {name!r} has a slash, with which ACLs cannot be stored")
    if resource_type is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise InvalidConfig(f"{_text(binding)}: the only name of the cluster is {CLUSTER_NAME}")
    if resource_type is ResourceType.USER and pattern_type is PatternType.LITERAL and name != WILDCARD:
        parse_principal(name)


def _text(binding: AclBinding) -> str:
    pattern, entry = binding
    permission, operation = entry.permission_type.name, entry.operation.name
    return f"the ACL {permission} {entry.principal!r} {operation} from {entry.host!r} on {str(pattern)!r}"


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
