"""StoredAclAuthorizer: the ACLs that are in the metadata store, under Kafka's paths, for all brokers of a cluster.

Source: kafka.security.authorizer.AclAuthorizer, Kafka 3.9.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Set

from kcore.common.scheduler import Scheduler
from kcore.common.time import SYSTEM_TIME, Time
from kcore.metadata.store import (
    BadVersion,
    MetadataStore,
    NodeExists,
    NoNode,
    SessionEvent,
    SessionExpired,
    StoreError,
    WatchEvent,
)
from kcore.server.acl import AccessControlEntry, AclBinding, AclBindingFilter, ResourcePattern
from kcore.server.acl_authorizer import AclAuthorizer, AclIndex, checked
from kcore.server.acl_znodes import (
    ACLS,
    CHANGES,
    change_path,
    decode_acls,
    encode_acls,
    encode_change,
    path_of,
    read_acls,
)
from kcore.server.authorizer import AuthorizerServerInfo

logger = logging.getLogger(__name__)

#: How long a node that announces a change stays at least: ZkNodeChangeNotificationListener's changeExpirationMs.
CHANGE_EXPIRATION_MS = 15 * 60 * 1000
_RETRY_MS = 1000

_Entries = Set[AccessControlEntry]


class StoredAclAuthorizer(AclAuthorizer):
    """AclAuthorizer with the ACLs of the store: authorizer.class.name=kcore.StoredAclAuthorizer.

    Clients change them with CreateAcls and DeleteAcls (kafka-acls), and each broker of the cluster follows; so do Java
    brokers with Kafka's AclAuthorizer.  Those read only what announcements of changes name: an announcement is deleted
    at a later change, when this broker has known it for 15 minutes.  add_acls() and remove_acls() store, and raise
    StoreError.  A start fails where stored ACLs cannot be read; later such a change is logged, and those that were read
    before stay.
    """

    def __init__(self) -> None:
        super().__init__()
        self._store: MetadataStore | None = None
        self._scheduler: Scheduler | None = None
        self._time: Time = SYSTEM_TIME
        #: The nodes that announce changes, and when each was seen first.
        self._seen_ms: dict[str, float] = {}

    def start(self, server_info: AuthorizerServerInfo) -> None:
        """Raises StoreError."""
        store = self._store = server_info.store
        for path in (*ACLS.values(), *CHANGES.values()):
            store.ensure_path(path)
        self._scheduler = server_info.make_scheduler("acls")
        self._time = server_info.time
        store.add_session_listener(self._session_changed)
        self._read()

    def add_acls(self, acls: Iterable[AclBinding]) -> None:
        by_pattern: dict[ResourcePattern, set[AccessControlEntry]] = {}
        for pattern, entry in map(checked, acls):
            by_pattern.setdefault(pattern, set()).add(entry)
        for pattern, entries in by_pattern.items():
            self._change(pattern, entries.union)
        if by_pattern:
            self._read()

    def remove_acls(self, acl_filter: AclBindingFilter) -> list[AclBinding]:
        self._read()  # another broker may have added some just now
        removed = [
            AclBinding(pattern, entry)
            for pattern in self._index.entries
            for entry in self._remove_matching(pattern, acl_filter)
        ]
        if removed:
            self._read()
        return removed

    def _remove_matching(self, pattern: ResourcePattern, acl_filter: AclBindingFilter) -> list[AccessControlEntry]:
        removed: list[AccessControlEntry] = []

        def left(present: _Entries) -> _Entries:
            nonlocal removed
            removed = sorted(entry for entry in present if acl_filter.matches(AclBinding(pattern, entry)))
            return present - set(removed)

        self._change(pattern, left)
        return removed

    def _change(self, pattern: ResourcePattern, change: Callable[[_Entries], _Entries]) -> None:
        """Store what `change` makes of the pattern's ACLs, again after each conflict, and announce it."""
        assert self._store is not None, "not started"
        store, path = self._store, path_of(pattern)
        while True:
            node = store.get(path)
            present: _Entries = decode_acls(path, node.data) if node is not None else frozenset()
            entries = change(present)
            if entries == present:
                return
            try:
                if node is None:
                    store.create_recursive(path, encode_acls(entries))
                elif entries:
                    store.set(path, encode_acls(entries), node.version)
                else:
                    store.delete(path, node.version)
                break
            except (BadVersion, NodeExists, NoNode):
                pass  # another broker was faster
        store.create(change_path(pattern), encode_change(pattern), sequential=True)

    # -- changes by other brokers -----------------------------------------------------------------------

    def _read(self) -> None:
        assert self._store is not None, "not started"
        with self._lock:  # two threads that read end with the newest
            paths = CHANGES.values()
            changes = [f"{path}/{name}" for path in paths for name in self._store.children(path, self._changed)]
            self._index = AclIndex(read_acls(self._store))
            now_ms = self._time.hi_res_clock_ms()
            self._seen_ms = {change: self._seen_ms.get(change, now_ms) for change in changes}
            for change, seen_ms in self._seen_ms.items():
                if now_ms - seen_ms > CHANGE_EXPIRATION_MS:
                    self._store.delete_recursive(change)

    def _changed(self, event: WatchEvent) -> None:
        assert self._scheduler is not None
        self._scheduler.schedule("acls", self._read_again)

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED and self._scheduler is not None:
            self._scheduler.schedule("acls", self._read_again)

    def _read_again(self) -> None:
        assert self._scheduler is not None
        try:
            self._read()
        except SessionExpired:
            pass  # the next session reads them
        except StoreError as error:
            logger.error("changes of ACLs could not be read, those that were read before apply: %s", error)
            self._scheduler.schedule("acls", self._read_again, _RETRY_MS)
