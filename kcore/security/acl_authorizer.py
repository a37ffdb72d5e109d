"""AclAuthorizer: decides by ACLs, as Kafka's AclAuthorizer and StandardAuthorizer do.

Source: kafka.security.authorizer.AclAuthorizer, Kafka 3.9.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kcore.errors import ApiError, InvalidConfig, InvalidRequest
from kcore.protocol.api_keys import ApiKey
from kcore.security.acl import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
    canonical_host,
)
from kcore.security.acl_checks import check_filter, checked, parse_principal
from kcore.security.authorizer import (
    Action,
    AuthorizableRequestContext,
    AuthorizationResult,
    Authorizer,
    allow_some_resource,
)
from kcore.security.authorizer_settings import AUTHORIZER_CONFIG_DEF

#: What was allowed (DEBUG) and denied (INFO), a line each; what no request has asked for by name is at TRACE.
logger = logging.getLogger("kcore.authorizer")
_TRACE = 5

_ALLOW, _DENY = AclPermissionType.ALLOW, AclPermissionType.DENY

#: Operation -> those whose permission includes it.
_IMPLIED_BY = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}),
}


class AclAuthorizer(Authorizer):
    """Allows what an ACL allows and none denies; super users everything.

        acls = [AclBinding.allow("User:*", AclOperation.READ, ResourceType.TOPIC, "orders", host="10.0.0.7")]
        broker = kcore.Broker(authorizer=kcore.AclAuthorizer(acls))

    Where no ACL is about a resource, by its name, a prefix or "*", allow_everyone_if_no_acl_found decides.  READ,
    WRITE, DELETE and ALTER include DESCRIBE, ALTER_CONFIGS includes DESCRIBE_CONFIGS.  super_users: as "User:admin".
    Thread-safe: add_acls() and remove_acls() replace an index that authorize() reads without a lock.
    The constructor and add_acls() raise InvalidConfig for an ACL or a super user that can never apply: a principal
    without a type, a host that is no address, an operation that the resource does not have.  TypeError for what is no
    ACL, as one with a string in the place of an AclOperation.
    """

    def __init__(
        self,
        acls: Iterable[AclBinding] = (),
        *,
        super_users: Iterable[str] = (),
        allow_everyone_if_no_acl_found: bool = False,
    ) -> None:
        if isinstance(super_users, str):
            raise TypeError(f"super_users: expected several principals, as [{super_users!r}]")
        self._super_users = frozenset(map(parse_principal, super_users))
        self._allow_everyone_if_no_acl_found = allow_everyone_if_no_acl_found
        self._lock = threading.Lock()
        self._index = AclIndex({})
        self.add_acls(acls)

    def configure(self, settings: Mapping[str, Any]) -> None:
        """super.users: separated by semicolons, since a name may have commas; allow.everyone.if.no.acl.found."""
        for name in settings:
            if name.startswith("authorizer.") and name != "authorizer.class.name":
                raise InvalidConfig(f"{name} is not supported here, and must not be ignored: remove it")
        users = settings.get("super.users")
        if users is not None:
            self._super_users = frozenset(parse_principal(user) for user in str(users).split(";") if user.strip())
        everyone = settings.get("allow.everyone.if.no.acl.found")
        if everyone is not None:
            key = AUTHORIZER_CONFIG_DEF["allow.everyone.if.no.acl.found"]
            self._allow_everyone_if_no_acl_found = key.parse(everyone)

    def add_acls(self, acls: Iterable[AclBinding]) -> None:
        """Those that are there already stay."""
        added = by_pattern(map(checked, several(acls)))
        with self._lock:
            present = self._index.entries
            self._index = self._index.replaced(
                {pattern: present.get(pattern, frozenset()) | entries for pattern, entries in added.items()}
            )

    def remove_acls(self, acl_filter: AclBindingFilter) -> list[AclBinding]:
        """Those that it matches; they are gone when this returns."""
        check_filter(acl_filter)
        with self._lock:
            present = self._index.entries
            removed = [binding for binding in self._index.bindings() if acl_filter.matches(binding)]
            self._index = self._index.replaced(
                {pattern: present[pattern] - entries for pattern, entries in by_pattern(removed).items()}
            )
        return removed

    def acls(self, acl_filter: AclBindingFilter = AclBindingFilter()) -> list[AclBinding]:  # noqa: B008
        check_filter(acl_filter)
        return [binding for binding in self._index.bindings() if acl_filter.matches(binding)]

    def create_acls(
        self, request_context: AuthorizableRequestContext, bindings: Sequence[AclBinding]
    ) -> list[ApiError | None]:
        results: list[ApiError | None] = []
        for binding in bindings:
            try:
                checked(binding)
                results.append(None)
            except InvalidConfig as error:
                results.append(InvalidRequest(str(error)))
        self.add_acls(binding for binding, error in zip(bindings, results, strict=True) if error is None)
        return results

    def delete_acls(
        self, request_context: AuthorizableRequestContext, acl_filter: AclBindingFilter
    ) -> list[AclBinding]:
        return self.remove_acls(acl_filter)

    def is_super_user(self, request_context: AuthorizableRequestContext) -> bool:
        """May be overridden: where brokers have a listener of their own, and no client authenticates, the listener
        tells them from clients."""
        return request_context.principal in self._super_users

    def authorize(
        self, request_context: AuthorizableRequestContext, actions: Sequence[Action]
    ) -> list[AuthorizationResult]:
        is_super_user, index, client = self.is_super_user(request_context), self._index, _Client.of(request_context)
        results = []
        for action in actions:
            is_allowed = is_super_user or self._allows(index, client, action)
            _log(request_context, action, is_allowed)
            results.append(AuthorizationResult.ALLOWED if is_allowed else AuthorizationResult.DENIED)
        return results

    def authorize_by_resource_type(
        self, request_context: AuthorizableRequestContext, operation: AclOperation, resource_type: ResourceType
    ) -> AuthorizationResult:
        is_allowed = self.is_super_user(request_context) or self._allows_some(request_context, operation, resource_type)
        _log(request_context, Action(operation, ResourcePattern(resource_type, "any one")), is_allowed)
        return AuthorizationResult.ALLOWED if is_allowed else AuthorizationResult.DENIED

    def _allows(self, index: AclIndex, client: _Client, action: Action) -> bool:
        resource_type, name, _ = action.resource_pattern
        entries = list(index.about(resource_type, name))
        if not entries:
            return self._allow_everyone_if_no_acl_found
        operation = action.operation
        allowing = _IMPLIED_BY.get(operation, (operation,))
        applying = [entry for entry in entries if client.is_meant_by(entry)]
        return not any(
            entry.permission_type is _DENY and entry.operation in (operation, AclOperation.ALL) for entry in applying
        ) and any(
            entry.permission_type is _ALLOW and (entry.operation in allowing or entry.operation is AclOperation.ALL)
            for entry in applying
        )

    def _allows_some(
        self, context: AuthorizableRequestContext, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        client = _Client.of(context)
        applying = [
            binding
            for binding in self._index.bindings()
            if binding.pattern.resource_type is resource_type
            and binding.entry.operation in (operation, AclOperation.ALL)
            and client.is_meant_by(binding.entry)
        ]
        if not self._allow_everyone_if_no_acl_found:
            return allow_some_resource(applying)
        # No ACL can deny every name, but by "*".
        everything = ResourcePattern(resource_type, WILDCARD)
        return not any(pattern == everything and entry.permission_type is _DENY for pattern, entry in applying)


class _Client(NamedTuple):
    """As entries name it."""

    principal: str
    host: str

    @classmethod
    def of(cls, context: AuthorizableRequestContext) -> _Client:
        return cls(str(context.principal), canonical_host(context.client_address))

    def is_meant_by(self, entry: AccessControlEntry) -> bool:
        return entry.principal in (self.principal, WILDCARD_PRINCIPAL) and (
            entry.host == WILDCARD or canonical_host(entry.host) == self.host
        )


class AclIndex:
    """ACLs by the resources that they are about; never changed."""

    def __init__(
        self,
        entries: Mapping[ResourcePattern, frozenset[AccessControlEntry]],
        prefix_lengths: Mapping[ResourceType, Sequence[int]] | None = None,
    ) -> None:
        self.entries = entries
        #: Of the prefixes of each type, the longest first.
        self._prefix_lengths = _prefix_lengths(entries) if prefix_lengths is None else prefix_lengths

    def replaced(self, changes: Mapping[ResourcePattern, frozenset[AccessControlEntry]]) -> AclIndex:
        """With other entries for these patterns, without them where there are none."""
        entries = {**self.entries, **changes}
        for pattern, present in changes.items():
            if not present:
                del entries[pattern]
        have_prefixes = any(pattern.pattern_type is PatternType.PREFIXED for pattern in changes)
        return AclIndex(entries, None if have_prefixes else self._prefix_lengths)

    def bindings(self) -> Iterator[AclBinding]:
        for pattern, entries in self.entries.items():
            for entry in entries:
                yield AclBinding(pattern, entry)

    def about(self, resource_type: ResourceType, name: str) -> Iterator[AccessControlEntry]:
        """The entries of all patterns that the resource fits."""
        entries = self.entries
        yield from entries.get(ResourcePattern(resource_type, name), ())
        if name != WILDCARD:
            yield from entries.get(ResourcePattern(resource_type, WILDCARD), ())
        for length in self._prefix_lengths.get(resource_type, ()):
            if length <= len(name):
                yield from entries.get(ResourcePattern(resource_type, name[:length], PatternType.PREFIXED), ())


def _prefix_lengths(patterns: Iterable[ResourcePattern]) -> dict[ResourceType, list[int]]:
    lengths: dict[ResourceType, set[int]] = {}
    for resource_type, name, pattern_type in patterns:
        if pattern_type is PatternType.PREFIXED:
            lengths.setdefault(resource_type, set()).add(len(name))
    return {resource_type: sorted(of_type, reverse=True) for resource_type, of_type in lengths.items()}


def several(acls: Iterable[AclBinding]) -> Iterable[AclBinding]:
    """Raises TypeError for a single one, which is a tuple of other things."""
    if isinstance(acls, AclBinding):
        raise TypeError(f"expected several ACLs, not one: write [{acls.pattern}...]")
    return acls


def by_pattern(acls: Iterable[AclBinding]) -> dict[ResourcePattern, set[AccessControlEntry]]:
    entries: dict[ResourcePattern, set[AccessControlEntry]] = {}
    for pattern, entry in acls:
        entries.setdefault(pattern, set()).add(entry)
    return entries


def _log(context: AuthorizableRequestContext, action: Action, is_allowed: bool) -> None:
    if is_allowed:
        level = logging.DEBUG if action.log_if_allowed else _TRACE
    else:
        level = logging.INFO if action.log_if_denied else _TRACE
    if logger.isEnabledFor(level):
        logger.log(
            level,
            "Principal = %s is %s Operation = %s from host = %s on resource = %s for request = %s "
            "with resourceRefCount = %d",
            context.principal,
            "Allowed" if is_allowed else "Denied",
            action.operation.name,
            context.client_address,
            action.resource_pattern,
            ApiKey(context.request_type).name,
            action.resource_reference_count,
        )
