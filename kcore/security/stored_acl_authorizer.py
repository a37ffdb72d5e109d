"""StoredAclAuthorizer: the ACLs that are in the metadata store, under Kafka's paths, for all brokers of a cluster.

Source: kafka.security.authorizer.AclAuthorizer, Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kcore.common.text import counted
from kcore.errors import ApiError, InvalidConfig, InvalidRequest, UnknownServerError
from kcore.metadata.api_errors import api_error
from kcore.metadata.store import StoreError
from kcore.security.acl import AclBinding, AclBindingFilter, ResourcePattern
from kcore.security.acl_authorizer import AclAuthorizer, AclIndex, by_pattern, several
from kcore.security.acl_checks import check_filter, checked
from kcore.security.acl_store import AclStore, Change, Entries
from kcore.security.acl_znodes import UnreadableAcls, check_stored_name
from kcore.security.authorizer import AuthorizableRequestContext, AuthorizerServerInfo


class StoredAclAuthorizer(AclAuthorizer):
    """AclAuthorizer with the ACLs of the store: authorizer.class.name=kcore.StoredAclAuthorizer.

    Clients change them with CreateAcls and DeleteAcls (kafka-acls), and each broker of the cluster follows; so do Java
    brokers with Kafka's AclAuthorizer.  All read only what announcements of changes name: an announcement is deleted
    at a later change, when this broker has known it for 15 minutes.  add_acls() and remove_acls() store, and raise
    StoreError; what they could not store is not in force.  add_acls() also raises InvalidConfig for a resource whose
    name cannot be stored.

    A start fails where stored ACLs cannot be read.  Later such a resource is named in the log: the ACLs that it had
    stay in force, and one that had none is denied to all but super users.  All others change.  Its ACLs are read again
    when they change, and deleted by a filter for all that it has.
    """

    def __init__(self) -> None:
        super().__init__()
        self._acl_store: AclStore | None = None

    def start(self, server_info: AuthorizerServerInfo) -> None:
        """Raises StoreError."""
        scheduler = server_info.make_scheduler("acls")
        self._acl_store = AclStore(server_info.store, scheduler, server_info.time, self._use)
        self._acl_store.start()

    def _use(self, index: AclIndex) -> None:
        self._index = index

    @property
    def _stored(self) -> AclStore:
        assert self._acl_store is not None, "not started"
        return self._acl_store

    def create_acls(
        self, request_context: AuthorizableRequestContext, bindings: Sequence[AclBinding]
    ) -> list[ApiError | None]:
        """Each is stored, or refused with the reason, whatever becomes of the others."""
        results = list(map(_problem, bindings))
        good = (binding for binding, problem in zip(bindings, results, strict=True) if problem is None)
        failed = {pattern: _answer(error) for pattern, error in self._add(good).items()}
        return [problem or failed.get(binding.pattern) for binding, problem in zip(bindings, results, strict=True)]

    def delete_acls(
        self, request_context: AuthorizableRequestContext, acl_filter: AclBindingFilter
    ) -> list[AclBinding]:
        try:
            return self.remove_acls(acl_filter)
        except StoreError as error:
            raise _answer(error) from error

    def add_acls(self, acls: Iterable[AclBinding]) -> None:
        added = list(map(checked, several(acls)))
        for binding in added:
            check_stored_name(binding.pattern)
        for error in self._add(added).values():
            raise error

    def _add(self, acls: Iterable[AclBinding]) -> dict[ResourcePattern, StoreError]:
        """What could not be stored, and why."""
        changes: dict[ResourcePattern, Change] = {
            pattern: entries.union for pattern, entries in by_pattern(acls).items()
        }
        return self._stored.change(changes) if changes else {}

    def remove_acls(self, acl_filter: AclBindingFilter) -> list[AclBinding]:
        check_filter(acl_filter)
        removed: dict[ResourcePattern, list[AclBinding]] = {}

        def change_of(pattern: ResourcePattern) -> Change:
            def left(present: Entries) -> Entries:
                bindings = [AclBinding(pattern, entry) for entry in sorted(present)]
                removed[pattern] = list(filter(acl_filter.matches, bindings))
                return present - {entry for _, entry in removed[pattern]}

            return left

        self._stored.read_changes()  # another broker may have added some just now
        patterns = [pattern for pattern in self._index.entries if acl_filter.matches_pattern(pattern)]
        failed = self._stored.change(
            {pattern: change_of(pattern) for pattern in patterns},
            replaces_unreadable=acl_filter.matches_every_entry,
        )
        result = [binding for pattern, bindings in removed.items() if pattern not in failed for binding in bindings]
        for error in failed.values():
            raise _with_count(error, len(result)) from error
        return result


def _problem(binding: AclBinding) -> ApiError | None:
    """Why an ACL is refused whatever the store has."""
    try:
        check_stored_name(checked(binding).pattern)
    except InvalidConfig as error:
        return InvalidRequest(str(error))
    return None


def _answer(error: StoreError) -> ApiError:
    if isinstance(error, UnreadableAcls):
        return UnknownServerError(f"{error}; deleting all ACLs of this resource, whatever they are, removes them")
    return api_error(error)


def _with_count(error: StoreError, removed: int) -> StoreError:
    if not removed:
        return error
    return type(error)(f"{error} ({counted(removed, 'other ACL')} {'was' if removed == 1 else 'were'} removed)")
