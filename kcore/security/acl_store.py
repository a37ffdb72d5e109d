"""AclStore: the ACLs in the metadata store: read, followed and changed.

Source: kafka.security.authorizer.AclAuthorizer, Kafka 3.9.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from kcore.common.scheduler import Scheduler
from kcore.common.text import counted
from kcore.common.time import Time
from kcore.metadata.change_notifications import ChangeNotifications
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
    SetData,
    StoreError,
    WatchEvent,
    parent_of,
)
from kcore.security.acl import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    ResourcePattern,
)
from kcore.security.acl_authorizer import AclIndex
from kcore.security.acl_znodes import (
    CHANGES,
    TYPES,
    UnreadableAcls,
    change_path,
    decode_acls,
    decode_change,
    encode_acls,
    encode_change,
    path_of,
    read_acls,
    read_acls_of,
)

logger = logging.getLogger(__name__)

#: How many resources are changed at once: an embedded store is locked for other brokers meanwhile.
_AT_ONCE = 500

Entries = Set[AccessControlEntry]
Change = Callable[[Entries], Entries]

#: What is in force for a resource whose ACLs cannot be read, and were not before either.
DENIED_TO_ALL = frozenset({AccessControlEntry(WILDCARD_PRINCIPAL, WILDCARD, AclOperation.ALL, AclPermissionType.DENY)})


class AclStore:
    """Thread-safe.  start() once.  A consumer of changes of ACLs (ChangeNotifications): the entities are resources.

    use(index) puts all ACLs in force; one thread calls it at a time.  A resource whose ACLs cannot be read is named in
    the log: the ACLs that it had stay in force, and one that had none is denied to all but super users.
    """

    def __init__(self, store: MetadataStore, scheduler: Scheduler, time: Time, use: Callable[[AclIndex], None]) -> None:
        self._store = store
        self._use_index = use
        #: What is in force.
        self.index = AclIndex({})
        self._changes = ChangeNotifications("ACLs", list(CHANGES.values()), decode_change, store, scheduler, time)
        # A thread that stores or reads has put it in force before the next one does.
        self._lock = threading.Lock()
        #: The resources whose ACLs cannot be read, and what the log has said of them.
        self._unreadable: dict[ResourcePattern, str] = {}
        self._is_started = False

    def start(self) -> None:
        """Raises StoreError, also for ACLs that cannot be read."""
        for path in TYPES:
            self._store.ensure_path(path)
        self._changes.start([self])
        self._is_started = True

    # -- changes by this broker's clients ---------------------------------------------------------------

    def change(
        self, changes: Mapping[ResourcePattern, Change], replaces_unreadable: bool = False
    ) -> dict[ResourcePattern, StoreError]:
        """Store what each makes of its resource's ACLs, announce it and put it in force; what was not, and why.

        replaces_unreadable: what cannot be read is overwritten, starting from what is in force.
        """
        with self._lock:
            failed = self._change(changes, replaces_unreadable)
        for text, count in _counts(failed.values()).items():
            logger.warning("ACLs of %s were not changed: %s", counted(count, "resource"), text)
        return failed

    def _change(
        self, changes: Mapping[ResourcePattern, Change], replaces_unreadable: bool
    ) -> dict[ResourcePattern, StoreError]:
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
        return failed

    def _try_to_change(
        self,
        patterns: Sequence[ResourcePattern],
        changes: Mapping[ResourcePattern, Change],
        replaces_unreadable: bool,
        done: dict[ResourcePattern, frozenset[AccessControlEntry]],
        failed: dict[ResourcePattern, StoreError],
    ) -> list[ResourcePattern]:
        """Those that another broker has changed at the same time."""
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
                present = self.index.entries.get(pattern, DENIED_TO_ALL)
            entries = frozenset(changes[pattern](present))
            if entries == present:
                done[pattern] = entries
                continue
            announcement = Create(change_path(pattern), encode_change(pattern), sequential=True)
            wanted.append((pattern, entries))
            operations.append([_write(path, node, entries), announcement])
        again = []
        for (pattern, entries), answer in zip(wanted, self._multi_many(operations), strict=True):
            if not isinstance(answer, MultiFailed):
                done[pattern] = entries
                self._changes.note(str(answer[1]))
            elif isinstance(answer.cause, (BadVersion, NodeExists, NoNode)):
                again.append(pattern)
                self._store.ensure_path(parent_of(path_of(pattern)))
                self._store.ensure_path(parent_of(change_path(pattern)))
            else:
                failed[pattern] = answer.cause
        return again

    def _multi_many(self, changes: Sequence[Sequence[Operation]]) -> list[list[Result] | MultiFailed]:
        """One that is too large keeps none of the others from being made."""
        try:
            return self._store.multi_many(changes)
        except MultiTooLarge as error:
            if len(changes) == 1:
                return [MultiFailed(0, error)]
            return [answer for operations in changes for answer in self._multi_many([operations])]

    # -- changes by other brokers -----------------------------------------------------------------------

    def read_changes(self) -> None:
        """What other brokers have changed before the call is in force when it returns.  Raises StoreError."""
        self._changes.read()

    def read_all(self) -> None:
        with self._lock:
            entries, unreadable = read_acls(self._store)
            if not self._is_started:
                for error in unreadable.values():
                    raise error
            kept = {pattern: self.index.entries.get(pattern, DENIED_TO_ALL) for pattern in unreadable}
            self._set(AclIndex({**entries, **kept}))
            self._unreadable = {pattern: text for pattern, text in self._unreadable.items() if pattern in unreadable}
            self._watch_unreadable(unreadable)

    def read_changed(self, entities: Sequence[ResourcePattern]) -> None:
        with self._lock:
            patterns = sorted(entities)
            entries, unreadable = read_acls_of(self._store, patterns)
            readable = [pattern for pattern in patterns if pattern not in unreadable]
            self._use({pattern: entries.get(pattern, frozenset()) for pattern in readable})
            self._watch_unreadable(unreadable)

    def _use(self, entries: Mapping[ResourcePattern, frozenset[AccessControlEntry]]) -> None:
        if entries:
            self._set(self.index.replaced(entries))
            for pattern in entries:
                self._unreadable.pop(pattern, None)

    def _set(self, index: AclIndex) -> None:
        self.index = index
        self._use_index(index)

    def _watch_unreadable(self, unreadable: Iterable[ResourcePattern]) -> None:
        """Name them in the log, once, and read them again when they change, whether that is announced or not."""
        for pattern in unreadable:
            path = path_of(pattern)
            node = self._store.get(path, self._unreadable_changed)
            try:
                self._use({pattern: decode_acls(path, node.data if node is not None else b"")})
            except UnreadableAcls as error:
                self._keep(pattern, error)

    def _keep(self, pattern: ResourcePattern, error: UnreadableAcls) -> None:
        present = self.index.entries.get(pattern)
        if present is None:
            self._set(self.index.replaced({pattern: DENIED_TO_ALL}))
        if self._unreadable.get(pattern) != str(error):
            self._unreadable[pattern] = str(error)
            is_denied = present in (None, DENIED_TO_ALL)
            what = "it is denied to all but super users" if is_denied else "those that were read before apply"
            logger.error("%s: until they are repaired or all deleted %s", error, what)

    def _unreadable_changed(self, event: WatchEvent) -> None:
        for pattern in list(self._unreadable):
            if path_of(pattern) == event.path:
                self._changes.read_later(pattern)


def _write(path: str, node: Node | None, entries: Entries) -> Operation:
    if node is None:
        return Create(path, encode_acls(entries))
    return SetData(path, encode_acls(entries), node.version) if entries else Delete(path, node.version)


def _counts(errors: Iterable[StoreError]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for error in errors:
        counts[str(error)] = counts.get(str(error), 0) + 1
    return counts
