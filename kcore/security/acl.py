"""ACLs as values: what they protect, whom they allow or deny what; with Kafka's names and codes.

Source: org.apache.kafka.common.acl, org.apache.kafka.common.resource, Kafka 3.9.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple


class AclOperation(IntEnum):
    UNKNOWN = 0
    #: In a filter: whichever.
    ANY = 1
    #: In an ACL: every operation.
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermissionType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class ResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How a pattern's name and a resource's are compared.  Patterns of ACLs are LITERAL or PREFIXED, the others are
    for filters: MATCH is whatever applies to a resource of this name."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


#: The name of the one resource of the type CLUSTER.
CLUSTER_NAME = "kafka-cluster"
#: As a literal pattern's name: every resource of the type; as a host: every host.
WILDCARD = "*"
#: As a principal: everybody.
WILDCARD_PRINCIPAL = "User:*"

#: What can be done with a resource.  Source: AclEntry.supportedOperations, Kafka 4.3.
SUPPORTED_OPERATIONS = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.DESCRIBE, AclOperation.WRITE, AclOperation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}


class ResourcePattern(NamedTuple):
    """A resource, or by a prefix or "*" many of them."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL

    def __str__(self) -> str:
        return f"{self.resource_type.name}:{self.pattern_type.name}:{self.name}"


class AccessControlEntry(NamedTuple):
    """principal: as User:alice; host: an address, or "*"."""

    principal: str
    host: str
    operation: AclOperation
    permission_type: AclPermissionType


class AclBinding(NamedTuple):
    """An ACL: an entry and what it is about.

    AclBinding.allow("User:alice", AclOperation.READ, ResourceType.TOPIC, "orders") says it in one line.
    """

    pattern: ResourcePattern
    entry: AccessControlEntry

    @classmethod
    def allow(
        cls,
        principal: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        pattern_type: PatternType = PatternType.LITERAL,
        host: str = WILDCARD,
    ) -> AclBinding:
        entry = AccessControlEntry(principal, host, operation, AclPermissionType.ALLOW)
        return cls(ResourcePattern(resource_type, name, pattern_type), entry)

    @classmethod
    def deny(
        cls,
        principal: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        pattern_type: PatternType = PatternType.LITERAL,
        host: str = WILDCARD,
    ) -> AclBinding:
        entry = AccessControlEntry(principal, host, operation, AclPermissionType.DENY)
        return cls(ResourcePattern(resource_type, name, pattern_type), entry)


class AclBindingFilter(NamedTuple):
    """Which ACLs: None and ANY stand for all.  Source: AclBindingFilter, Kafka 3.9."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission_type: AclPermissionType = AclPermissionType.ANY

    def matches(self, binding: AclBinding) -> bool:
        entry = binding.entry
        return (
            self.matches_pattern(binding.pattern)
            and self.principal in (None, entry.principal)
            and (self.host is None or canonical_host(self.host) == canonical_host(entry.host))
            and self.operation in (AclOperation.ANY, entry.operation)
            and self.permission_type in (AclPermissionType.ANY, entry.permission_type)
        )

    @property
    def matches_every_entry(self) -> bool:
        """Of the patterns that it matches."""
        return self[3:] == AclBindingFilter()[3:]

    def matches_pattern(self, pattern: ResourcePattern) -> bool:
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type is not PatternType.MATCH or pattern.name == self.name:
            return pattern.name == self.name
        if pattern.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(pattern.name)
        return pattern.name == WILDCARD


@lru_cache(1024)
def canonical_host(host: str) -> str:
    """An address in one spelling: 0:0:0:0:0:0:0:1, as Kafka writes it, is ::1, and ::ffff:10.0.0.1 is 10.0.0.1."""
    from ipaddress import IPv6Address, ip_address  # only where an authorizer compares them

    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)
