"""StoredAclAuthorizer: the ACLs that are in the metadata store, under Kafka's paths, for all brokers of a cluster.

Source: kafka.security.authorizer.AclAuthorizer, Kafka 3.9.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from kcore.common.scheduler import Scheduler
from kcore.common.text import counted
from kcore.common.time import SYSTEM_TIME, Time
from kcore.errors import ApiError, InvalidConfig, InvalidRequest, UnknownServerError
from kcore.metadata.api_errors import api_error
from kcore.metadata.store import (
    BadVersion,
    Create,
    Delete,
    MetadataStore,
    MultiFailed,
    MultiTooLarge,
    Node,
    NodeExists,
    NoNode,
    Operation,
    Result,
    SessionEvent,
    SessionExpired,
    SetData,
    StoreError,
    WatchEvent,
    parent_of,
)
from kcore.security.acl import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePattern,
)
from kcore.security.acl_authorizer import AclAuthorizer, AclIndex, by_pattern, several
from kcore.security.acl_checks import check_filter, checked
from kcore.security.acl_znodes import (
    CHANGES,
    TYPES,
    UnreadableAcls,
    change_path,
    check_stored_name,
    decode_acls,
    decode_change,
    encode_acls,
    encode_change,
    path_of,
    read_acls,
    read_acls_of,
)
from kcore.security.authorizer import AuthorizableRequestContext, AuthorizerServerInfo

logger = logging.getLogger(__name__)

#: How long a node that announces a change stays at least: ZkNodeChangeNotificationListener's changeExpirationMs.
CHANGE_EXPIRATION_MS = 15 * 60 * 1000
_RETRY_MS = 1000
#: How many resources are changed at once: an embedded store is locked for other brokers meanwhile.
_AT_ONCE = 500

_Entries = Set[AccessControlEntry]
_Change = Callable[[_Entries], _Entries]

#: What is in force for a resource whose ACLs cannot be read, and were not before either.
DENIED_TO_ALL = frozenset({AccessControlEntry(WILDCARD_PRINCIPAL, WILDCARD, AclOperation.ALL, AclPermissionType.DENY)})


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
        self._store: MetadataStore | None = None
        self._scheduler: Scheduler | None = None
        self._time: Time = SYSTEM_TIME
        # What follows is used with the lock held: a thread that stores or reads has put it in force before the next one
        # does.
        #: The nodes that announce changes, and when each was seen first.
        self._seen_ms: dict[str, float] = {}
        #: The resources whose ACLs cannot be read, and what the log has said of them.
        self._unreadable: dict[ResourcePattern, str] = {}
        # The rest by any thread.
        #: Resources to read though nothing announces it.
        self._to_read: set[ResourcePattern] = set()
        #: Whether announcements may have been missed.
        self._reads_all = False
        self._is_scheduled = False

    def start(self, server_info: AuthorizerServerInfo) -> None:
        """Raises StoreError."""
        store = self._store = server_info.store
        for path in (*TYPES, *CHANGES.values()):
            store.ensure_path(path)
        self._scheduler = server_info.make_scheduler("acls")
        self._time = server_info.time
        store.add_session_listener(self._session_changed)
        with self._lock:
            self._read_all(is_start=True)

    # -- changes by this broker's clients ---------------------------------------------------------------

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
        changes: dict[ResourcePattern, _Change] = {
            pattern: entries.union for pattern, entries in by_pattern(acls).items()
        }
        if not changes:
            return {}
        with self._lock:
            return self._change(changes)

    def remove_acls(self, acl_filter: AclBindingFilter) -> list[AclBinding]:
        check_filter(acl_filter)
        removed: dict[ResourcePattern, list[AclBinding]] = {}

        def change_of(pattern: ResourcePattern) -> _Change:
            def left(present: _Entries) -> _Entries:
                bindings = [AclBinding(pattern, entry) for entry in sorted(present)]
                removed[pattern] = list(filter(acl_filter.matches, bindings))
                return present - {entry for _, entry in removed[pattern]}

            return left

        with self._lock:
            self._read_changes()  # another broker may have added some just now
            patterns = [pattern for pattern in self._index.entries if acl_filter.matches_pattern(pattern)]
            failed = self._change(
                {pattern: change_of(pattern) for pattern in patterns},
                replaces_unreadable=acl_filter.matches_every_entry,
            )
        result = [binding for pattern, bindings in removed.items() if pattern not in failed for binding in bindings]
        for error in failed.values():
            raise _with_count(error, len(result)) from error
        return result

    def _change(
        self, changes: Mapping[ResourcePattern, _Change], replaces_unreadable: bool = False
    ) -> dict[ResourcePattern, StoreError]:
        """Store what each makes of its resource's ACLs, announce it and put it in force; what was not, and why.

        replaces_unreadable: what cannot be read is overwritten, starting from what is in force.
        """
        done: dict[ResourcePattern, frozenset[AccessControlEntry]] = {}
        failed: dict[ResourcePattern, StoreError] = {}
        patterns = list(changes)
        for begin in range(0, len(patterns), _AT_ONCE):
            left = patterns[begin : begin + _AT_ONCE]
            try:
                while left:
                    left = self._try_to_change(left, changes, replaces_unreadable, done, failed)
            except StoreError as error:  # the store cannot be reached: what it may have taken will be read
                unknown = [pattern for pattern in patterns[begin:] if pattern not in done and pattern not in failed]
                failed.update(dict.fromkeys(unknown, error))
                break
        self._use(done)
        try:
            self._forget_old_changes()
        except StoreError as error:
            logger.info("old announcements of changes of ACLs stay: %s", error)
        for text, count in _counts(failed.values()).items():
            logger.warning("ACLs of %s were not changed: %s", counted(count, "resource"), text)
        return failed

    def _try_to_change(
        self,
        patterns: Sequence[ResourcePattern],
        changes: Mapping[ResourcePattern, _Change],
        replaces_unreadable: bool,
        done: dict[ResourcePattern, frozenset[AccessControlEntry]],
        failed: dict[ResourcePattern, StoreError],
    ) -> list[ResourcePattern]:
        """Those that another broker has changed at the same time."""
        assert self._store is not None, "not started"
        wanted: list[tuple[ResourcePattern, frozenset[AccessControlEntry]]] = []
        operations: list[list[Operation]] = []
        for pattern, node in zip(patterns, self._store.get_many(list(map(path_of, patterns))), strict=True):
            path = path_of(pattern)
            try:
                present = decode_acls(path, node.data) if node is not None else frozenset()
            except UnreadableAcls as error:
                if not replaces_unreadable:
                    failed[pattern] = error
                    continue
                present = self._index.entries.get(pattern, DENIED_TO_ALL)
            entries = frozenset(changes[pattern](present))
            if entries == present:
                done[pattern] = entries
                continue
            announcement = Create(change_path(pattern), encode_change(pattern), sequential=True)
            wanted.append((pattern, entries))
            operations.append([_write(path, node, entries), announcement])
        again = []
        now_ms = self._time.hi_res_clock_ms()
        for (pattern, entries), answer in zip(wanted, self._multi_many(operations), strict=True):
            if not isinstance(answer, MultiFailed):
                done[pattern] = entries
                self._seen_ms[str(answer[1])] = now_ms
            elif isinstance(answer.cause, (BadVersion, NodeExists, NoNode)):
                again.append(pattern)
                self._store.ensure_path(parent_of(path_of(pattern)))
                self._store.ensure_path(parent_of(change_path(pattern)))
            else:
                failed[pattern] = answer.cause
        return again

    def _multi_many(self, changes: Sequence[Sequence[Operation]]) -> list[list[Result] | MultiFailed]:
        """One that is too large keeps none of the others from being made."""
        assert self._store is not None, "not started"
        try:
            return self._store.multi_many(changes)
        except MultiTooLarge as error:
            if len(changes) == 1:
                return [MultiFailed(0, error)]
            return [answer for operations in changes for answer in self._multi_many([operations])]

    def _use(self, entries: Mapping[ResourcePattern, frozenset[AccessControlEntry]]) -> None:
        if entries:
            self._index = self._index.replaced(entries)
            for pattern in entries:
                self._unreadable.pop(pattern, None)

    def _forget_old_changes(self) -> None:
        assert self._store is not None, "not started"
        now_ms = self._time.hi_res_clock_ms()
        old = [change for change, seen_ms in self._seen_ms.items() if now_ms - seen_ms > CHANGE_EXPIRATION_MS]
        for begin in range(0, len(old), _AT_ONCE):
            some = old[begin : begin + _AT_ONCE]
            self._store.multi_many([[Delete(change)] for change in some])  # or another broker has
            for change in some:
                del self._seen_ms[change]

    # -- changes by other brokers -----------------------------------------------------------------------

    def _read_all(self, is_start: bool = False) -> None:
        """With the lock held.  Raises StoreError, at the start also for ACLs that cannot be read."""
        assert self._store is not None, "not started"
        self._reads_all = False
        try:
            changes = self._announcements()
            entries, unreadable = read_acls(self._store)
            if is_start:
                for error in unreadable.values():
                    raise error
            previous = self._index.entries
            kept = {pattern: previous.get(pattern, DENIED_TO_ALL) for pattern in unreadable}
            self._index = AclIndex({**entries, **kept})
            self._unreadable = {pattern: text for pattern, text in self._unreadable.items() if pattern in unreadable}
            self._watch_unreadable(unreadable)
        except StoreError:
            self._reads_all = True
            raise
        self._note(changes)

    def _read_changes(self) -> None:
        """What was announced since the last time.  With the lock held.  Raises StoreError."""
        assert self._store is not None, "not started"
        if self._reads_all:
            self._read_all()
            return
        changes = self._announcements()
        new = [change for change in changes if change not in self._seen_ms]
        patterns = set()
        for change, node in zip(new, self._store.get_many(new), strict=True):
            try:
                if node is None:
                    raise StoreError(f"{change} was deleted before this broker has read it")
                pattern = decode_change(change, node.data)
            except StoreError as error:
                logger.warning("all ACLs are read again: %s", error)
                self._read_all()
                return
            if pattern is not None:
                patterns.add(pattern)
        again = set(self._to_read)
        self._to_read -= again  # an event from now on is for the next reading
        try:
            self._read_resources(sorted(patterns | again))
        except StoreError:
            self._to_read |= again
            raise
        self._note(changes)
        self._forget_old_changes()

    def _read_resources(self, patterns: Sequence[ResourcePattern]) -> None:
        assert self._store is not None, "not started"
        entries, unreadable = read_acls_of(self._store, patterns)
        readable = [pattern for pattern in patterns if pattern not in unreadable]
        self._use({pattern: entries.get(pattern, frozenset()) for pattern in readable})
        self._watch_unreadable(unreadable)

    def _watch_unreadable(self, unreadable: Mapping[ResourcePattern, UnreadableAcls]) -> None:
        """Name them in the log, once, and read them again when they change, whether that is announced or not."""
        assert self._store is not None, "not started"
        for pattern in unreadable:
            path = path_of(pattern)
            node = self._store.get(path, self._unreadable_changed)
            try:
                self._use({pattern: decode_acls(path, node.data if node is not None else b"")})
            except UnreadableAcls as error:
                self._keep(pattern, error)

    def _keep(self, pattern: ResourcePattern, error: UnreadableAcls) -> None:
        present = self._index.entries.get(pattern)
        if present is None:
            self._index = self._index.replaced({pattern: DENIED_TO_ALL})
        if self._unreadable.get(pattern) != str(error):
            self._unreadable[pattern] = str(error)
            is_denied = present in (None, DENIED_TO_ALL)
            what = "it is denied to all but super users" if is_denied else "those that were read before apply"
            logger.error("%s: until they are repaired or all deleted %s", error, what)

    def _announcements(self) -> list[str]:
        """Their paths; the next one is reported."""
        assert self._store is not None, "not started"
        return [f"{path}/{name}" for path in CHANGES.values() for name in self._store.children(path, self._changed)]

    def _note(self, changes: Iterable[str]) -> None:
        now_ms = self._time.hi_res_clock_ms()
        self._seen_ms = {change: self._seen_ms.get(change, now_ms) for change in changes}

    def _changed(self, event: WatchEvent) -> None:
        self._schedule()

    def _unreadable_changed(self, event: WatchEvent) -> None:
        self._to_read.update(pattern for pattern in list(self._unreadable) if path_of(pattern) == event.path)
        self._schedule()

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED and self._scheduler is not None:
            self._reads_all = True
            self._schedule()

    def _schedule(self, delay_ms: float = 0) -> None:
        """Read what has changed, once for all events until then."""
        assert self._scheduler is not None
        if delay_ms or not self._is_scheduled:
            self._is_scheduled = not delay_ms
            self._scheduler.schedule("acls", self._read_again, delay_ms)

    def _read_again(self) -> None:
        self._is_scheduled = False
        try:
            with self._lock:
                self._read_changes()
        except SessionExpired:
            pass  # the next session reads them
        except StoreError as error:
            logger.error("changes of ACLs could not be read, those that were read before apply: %s", error)
            self._schedule(_RETRY_MS)


def _write(path: str, node: Node | None, entries: _Entries) -> Operation:
    if node is None:
        return Create(path, encode_acls(entries))
    return SetData(path, encode_acls(entries), node.version) if entries else Delete(path, node.version)


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


def _counts(errors: Iterable[StoreError]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for error in errors:
        counts[str(error)] = counts.get(str(error), 0) + 1
    return counts
