"""Where Kafka keeps ACLs in ZooKeeper, and how it writes them.  Source: ZkData, AclEntry, Kafka 3.9.

/kafka-acl/Topic/orders                      ACLs of a literal pattern, "*" included
/kafka-acl-extended/prefixed/Topic/orders-   ACLs of a prefix
/kafka-acl-changes/acl_changes_0000000001    TOPIC:orders: what has changed, for the other brokers
/kafka-acl-extended-changes/acl_changes_...  the same of prefixes, as JSON
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kcore.errors import InvalidConfig
from kcore.metadata.store import InvalidPath, MetadataStore, StoreError, check_path
from kcore.security.acl import (
    SUPPORTED_OPERATIONS,
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)

logger = logging.getLogger(__name__)

#: Of each type of patterns: the ACLs, and the sequential nodes that say what has changed.
ACLS = {PatternType.LITERAL: "/kafka-acl", PatternType.PREFIXED: "/kafka-acl-extended/prefixed"}
CHANGES = {
    PatternType.LITERAL: "/kafka-acl-changes/acl_changes_",
    PatternType.PREFIXED: "/kafka-acl-extended-changes/acl_changes_",
}
_VERSION = 1


def pascal_case(constant: str) -> str:
    """CLUSTER_ACTION -> ClusterAction."""
    return "".join(word.capitalize() for word in constant.split("_"))


#: The parents of ACLs.
TYPES = [f"{root}/{pascal_case(kind.name)}" for root in ACLS.values() for kind in SUPPORTED_OPERATIONS]


class UnreadableAcls(StoreError):
    """A node below ACLS whose data are no ACLs."""


def path_of(pattern: ResourcePattern) -> str:
    return f"{ACLS[pattern.pattern_type]}/{pascal_case(pattern.resource_type.name)}/{pattern.name}"


def check_stored_name(pattern: ResourcePattern) -> None:
    """Raises InvalidConfig for a resource whose name no node's path can have; with ZooKeeper it is the same."""
    name = pattern.name
    try:
        check_path(path_of(pattern))
    except InvalidPath:
        wrong = [f"U+{ord(char):04X}" for char in dict.fromkeys(name) if _is_refused(char)]
        why = f"without {', '.join(wrong)}" if wrong else "that is none of '', '.' and '..'"
        raise InvalidConfig(
            f"ACLs of the {pattern.resource_type.name} {name!r} cannot be stored: the store needs a name {why}"
        ) from None


def _is_refused(char: str) -> bool:
    try:
        check_path(f"/x{char}x")
    except InvalidPath:
        return True
    return False


def change_path(pattern: ResourcePattern) -> str:
    """Of a sequential node."""
    return CHANGES[pattern.pattern_type]


def encode_change(pattern: ResourcePattern) -> bytes:
    resource_type = pattern.resource_type.name
    if pattern.pattern_type is PatternType.LITERAL:
        return f"{resource_type}:{pattern.name}".encode()
    body = {"version": _VERSION, "resourceType": resource_type, "name": pattern.name, "patternType": "PREFIXED"}
    return json.dumps(body, separators=(",", ":")).encode()


def decode_change(path: str, data: bytes) -> ResourcePattern | None:
    """None for a type of resources that a later release has.  Raises StoreError."""
    try:
        if path.startswith(CHANGES[PatternType.LITERAL]):
            type_name, separator, name = data.decode().partition(":")
            pattern_name = "LITERAL"
            if not separator:
                raise ValueError("no resource type")
        else:
            body = json.loads(data)
            type_name, name, pattern_name = (_text(body[key]) for key in ("resourceType", "name", "patternType"))
        pattern_type = PatternType[_constant(pattern_name, PatternType.__members__)]
        if not name or pattern_type not in ACLS:
            raise ValueError(f"a resource {name!r} of the pattern type {pattern_name}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"{path} does not say what has changed: {error!r}") from error
    resource_type = ResourceType[_constant(type_name, ResourceType.__members__)]
    return None if resource_type is ResourceType.UNKNOWN else ResourcePattern(resource_type, name, pattern_type)


def encode_acls(entries: Iterable[AccessControlEntry]) -> bytes:
    acls = [
        {
            "principal": entry.principal,
            "permissionType": pascal_case(entry.permission_type.name),
            "operation": pascal_case(entry.operation.name),
            "host": entry.host,
        }
        for entry in sorted(entries)
    ]
    return json.dumps({"version": _VERSION, "acls": acls}, separators=(",", ":")).encode()


def decode_acls(path: str, data: bytes) -> frozenset[AccessControlEntry]:
    """Operations and permissions of later releases are UNKNOWN, which allows and denies nothing, as in Kafka.

    Raises UnreadableAcls.
    """
    if not data:
        return frozenset()
    try:
        body = json.loads(data)
        if body["version"] != _VERSION:
            raise ValueError(f"version {body['version']}")
        return frozenset(
            AccessControlEntry(
                _text(acl["principal"]),
                _text(acl["host"]),
                AclOperation[_constant(acl["operation"], AclOperation.__members__)],
                AclPermissionType[_constant(acl["permissionType"], AclPermissionType.__members__)],
            )
            for acl in body["acls"]
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableAcls(f"{path} has no ACLs that can be read: {error!r}") from error


class StoredAcls(NamedTuple):
    """unreadable: the resources whose ACLs cannot be read."""

    entries: dict[ResourcePattern, frozenset[AccessControlEntry]]
    unreadable: dict[ResourcePattern, UnreadableAcls]


def read_acls(store: MetadataStore) -> StoredAcls:
    """All that are stored.  Raises StoreError."""
    patterns = []
    for pattern_type, root in ACLS.items():
        for type_name in store.children(root):
            resource_type = ResourceType[_constant(type_name, ResourceType.__members__)]
            if resource_type is ResourceType.UNKNOWN:
                logger.warning("ACLs of the unknown resource type %s are not followed", type_name)
                continue
            patterns += [
                ResourcePattern(resource_type, name, pattern_type) for name in store.children(f"{root}/{type_name}")
            ]
    return read_acls_of(store, patterns)


def read_acls_of(store: MetadataStore, patterns: Sequence[ResourcePattern]) -> StoredAcls:
    """Those of the resources; without entries for one that has none.  Raises StoreError."""
    acls = StoredAcls({}, {})
    paths = list(map(path_of, patterns))
    for pattern, path, node in zip(patterns, paths, store.get_many(paths), strict=True):
        try:
            entries = decode_acls(path, node.data) if node is not None else frozenset()
        except UnreadableAcls as error:
            acls.unreadable[pattern] = error
        else:
            if entries:
                acls.entries[pattern] = entries
    return acls


def _constant(name: str, members: Iterable[str]) -> str:
    """ClusterAction -> CLUSTER_ACTION, in any case; UNKNOWN for any other name."""
    wanted = _text(name).replace("_", "").upper()
    return next((member for member in members if member.replace("_", "") == wanted), "UNKNOWN")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value
