"""Where Kafka keeps ACLs in ZooKeeper, and how it writes them.  Source: ZkData, AclEntry, Kafka 3.9.

/kafka-acl/Topic/orders                      ACLs of a literal pattern, "*" included
/kafka-acl-extended/prefixed/Topic/orders-   ACLs of a prefix
/kafka-acl-changes/acl_changes_0000000001    TOPIC:orders: what has changed, for the other brokers
/kafka-acl-extended-changes/acl_changes_...  the same of prefixes, as JSON
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable

from kcore.metadata.store import MetadataStore, StoreError
from kcore.server.acl import (
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)

logger = logging.getLogger(__name__)

#: Of each type of patterns: the ACLs, and the parent of the sequential nodes that say what has changed.
ACLS = {PatternType.LITERAL: "/kafka-acl", PatternType.PREFIXED: "/kafka-acl-extended/prefixed"}
CHANGES = {PatternType.LITERAL: "/kafka-acl-changes", PatternType.PREFIXED: "/kafka-acl-extended-changes"}
_VERSION = 1


def path_of(pattern: ResourcePattern) -> str:
    return f"{ACLS[pattern.pattern_type]}/{pascal_case(pattern.resource_type.name)}/{pattern.name}"


def change_path(pattern: ResourcePattern) -> str:
    """Of a sequential node."""
    return f"{CHANGES[pattern.pattern_type]}/acl_changes_"


def encode_change(pattern: ResourcePattern) -> bytes:
    resource_type = pattern.resource_type.name
    if pattern.pattern_type is PatternType.LITERAL:
        return f"{resource_type}:{pattern.name}".encode()
    body = {"version": _VERSION, "resourceType": resource_type, "name": pattern.name, "patternType": "PREFIXED"}
    return json.dumps(body, separators=(",", ":")).encode()


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

    Raises StoreError.
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
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} has no ACLs that can be read: {error!r}") from error


def read_acls(store: MetadataStore) -> dict[ResourcePattern, frozenset[AccessControlEntry]]:
    """All that are stored.  Raises StoreError, also where some cannot be read: they may deny what others allow."""
    patterns = []
    for pattern_type, root in ACLS.items():
        for type_name in store.children(root):
            resource_type = ResourceType[_constant(type_name, ResourceType.__members__)]
            if resource_type is ResourceType.UNKNOWN:
                logger.warning("ACLs of the unknown resource type %s are not followed", type_name)
                continue
            patterns += [
                (ResourcePattern(resource_type, name, pattern_type), f"{root}/{type_name}/{name}")
                for name in store.children(f"{root}/{type_name}")
            ]
    nodes = store.get_many([path for _, path in patterns])
    return {
        pattern: entries
        for (pattern, path), node in zip(patterns, nodes, strict=True)
        if node is not None and (entries := decode_acls(path, node.data))
    }


def pascal_case(constant: str) -> str:
    """CLUSTER_ACTION -> ClusterAction."""
    return "".join(word.capitalize() for word in constant.split("_"))


def _constant(name: str, members: Iterable[str]) -> str:
    """ClusterAction -> CLUSTER_ACTION, in any case; UNKNOWN for a name that there is not."""
    wanted = _text(name).replace("_", "").upper()
    return next((member for member in members if member.replace("_", "") == wanted), "UNKNOWN")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value
