"""ChangeNotifications: a broker follows what other clients of the store change, and reads only what has changed.

Who changes a node writes it, and then creates a sequential node that names it: below /config/changes for settings and
quotas, below /kafka-acl-changes and /kafka-acl-extended-changes for ACLs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from kcore.common.scheduler import Scheduler
from kcore.common.time import Time
from kcore.errors import KafkaError
from kcore.metadata.store import (
    ConnectionLost,
    Delete,
    InvalidPath,
    MetadataStore,
    SessionEvent,
    SessionExpired,
    StoreClosed,
    StoreError,
    WatchEvent,
    parent_of,
)

logger = logging.getLogger(__name__)

#: How long a notification stays at least: ZkNodeChangeNotificationListener's changeExpirationMs.
CHANGE_EXPIRATION_MS = 15 * 60 * 1000
#: After a reading that failed, before the next.
RETRY_MS = 1000
#: How many notifications are deleted at once: an embedded store is locked for other brokers meanwhile.
_AT_ONCE = 500

E = TypeVar("E", bound=Hashable)
_E_contra = TypeVar("_E_contra", bound=Hashable, contravariant=True)


class Consumer(Protocol[_E_contra]):
    """Reads entities from the store and puts them in force.  Called by one thread at a time.

    What raises StoreError is called again later; any other error ends that change, with a line in the log.
    """

    def read_all(self) -> None: ...

    def read_changed(self, entities: Sequence[_E_contra]) -> None:
        """Read those of the entities that are this consumer's."""


class ChangeNotifications(Generic[E]):
    """Thread-safe.  start() once.

    Each consumer reads everything at the start, after a lost session, and after a notification that cannot be read or
    was deleted before this broker has read it; else what the notifications name.  A notification is deleted at a later
    change, when this broker has known it for 15 minutes: by then every broker that lives has read it.

    what: what is followed, for the log.  prefixes: of the paths of the notifications, to which the store adds a number.
    decode(path, data): which entity a notification names, None for one that no consumer knows; it raises StoreError.
    time: of a clock that never steps.
    Source: ZkNodeChangeNotificationListener, Kafka 3.9, which passes over what it cannot read.
    """

    def __init__(
        self,
        what: str,
        prefixes: Sequence[str],
        decode: Callable[[str, bytes], E | None],
        store: MetadataStore,
        scheduler: Scheduler,
        time: Time,
    ) -> None:
        self._what = what
        self._prefixes = prefixes
        self._decode = decode
        self._store = store
        self._scheduler = scheduler
        self._time = time
        # Held while the store is read and consumers are called, before any lock of theirs.
        self._lock = threading.Lock()
        self._unread: list[_Unread[E]] = []
        #: The paths of the notifications, and when each was seen first.
        self._seen_ms: dict[str, float] = {}
        #: The delays of the readings that are scheduled.
        self._scheduled: set[float] = set()

    def start(self, consumers: Sequence[Consumer[E]]) -> None:
        """Have all read everything, and from then on what changes, on the scheduler's thread.  Raises StoreError."""
        for prefix in self._prefixes:
            self._store.ensure_path(parent_of(prefix))
        self._unread = list(map(_Unread, consumers))
        self._store.add_session_listener(self._session_changed)
        self.read()

    def read(self) -> None:
        """When it returns, all that was announced before the call is in force.  Raises StoreError."""
        with self._lock:
            self._read_notifications()
            failure: StoreError | None = None
            for unread in self._unread:
                try:
                    unread.read()
                except StoreError as error:
                    failure = error
            self._delete_old()
        if failure is not None:
            raise failure

    def read_later(self, entity: E) -> None:
        """Read an entity though nothing announces it.  Returns at once."""
        for unread in self._unread:
            unread.entities.add(entity)
        self._schedule()

    def note(self, path: str) -> None:
        """This broker has made the notification, and put in force what it says."""
        self._seen_ms[path] = self._time.hi_res_clock_ms()

    def _read_notifications(self) -> None:
        paths = [
            f"{parent_of(prefix)}/{name}"
            for prefix in self._prefixes
            for name in self._store.children(parent_of(prefix), self._changed)
            if _is_numbered(name, prefix.rpartition("/")[2])
        ]
        new = [path for path in paths if path not in self._seen_ms]
        if not all(unread.reads_all for unread in self._unread):
            self._add_entities(new)
        now_ms = self._time.hi_res_clock_ms()
        self._seen_ms = {path: self._seen_ms.get(path, now_ms) for path in paths}

    def _add_entities(self, new: Sequence[str]) -> None:
        entities = set()
        for path, node in zip(new, self._store.get_many(new), strict=True):
            try:
                if node is None:
                    raise StoreError(f"{path} was deleted before this broker has read it")
                entity = self._decode(path, node.data)
            except StoreError as error:
                logger.warning("all %s are read again: %s", self._what, error)
                self._read_all_later()
                return
            if entity is not None:
                entities.add(entity)
        for unread in self._unread:
            unread.entities |= entities

    def _read_all_later(self) -> None:
        for unread in self._unread:
            unread.reads_all = True

    def _delete_old(self) -> None:
        now_ms = self._time.hi_res_clock_ms()
        old = [path for path, seen_ms in self._seen_ms.copy().items() if now_ms - seen_ms > CHANGE_EXPIRATION_MS]
        for begin in range(0, len(old), _AT_ONCE):
            self._store.multi_many([[Delete(path)] for path in old[begin : begin + _AT_ONCE]])  # or another broker has

    def _changed(self, event: WatchEvent) -> None:
        self._schedule()

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            self._read_all_later()
        elif event is SessionEvent.CONNECTED:
            self._schedule()

    def _schedule(self, delay_ms: float = 0) -> None:
        """Read what has changed, once for all events until then."""
        if delay_ms not in self._scheduled:
            self._scheduled.add(delay_ms)
            self._scheduler.schedule("changes", partial(self._read_again, delay_ms), delay_ms)

    def _read_again(self, delay_ms: float) -> None:
        self._scheduled.discard(delay_ms)
        try:
            self.read()
        except (SessionExpired, StoreClosed):
            pass  # the next session reads everything
        except StoreError as error:
            logger.error("changes of %s could not be read, those that were read before apply: %s", self._what, error)
            self._schedule(RETRY_MS)


class _Unread(Generic[E]):
    """What a consumer has yet to read.  Any thread may add to it."""

    def __init__(self, consumer: Consumer[E]) -> None:
        self.consumer = consumer
        self.reads_all = True
        self.entities: set[E] = set()

    def read(self) -> None:
        """Raises StoreError; what could not be read stays."""
        # What is added from now on is for the next reading.
        entities = list(self.entities)
        self.entities.difference_update(entities)
        if self.reads_all:
            self.reads_all = False
            try:
                self.consumer.read_all()
            except BaseException:
                self.reads_all = True
                self.entities.update(entities)
                raise
        if entities:
            self._read_changed(entities)

    def _read_changed(self, entities: Sequence[E]) -> None:
        """One that cannot be read keeps no other from being read."""
        try:
            self.consumer.read_changed(entities)
        except Exception as error:
            if len(entities) > 1 and not isinstance(error, (ConnectionLost, SessionExpired)):
                self._read_each(entities)
            elif isinstance(error, StoreError) and not isinstance(error, InvalidPath):
                self.entities.update(entities)
                raise
            else:
                is_known = isinstance(error, KafkaError)
                logger.error("a change of %s is passed over: %s", entities, error, exc_info=not is_known)

    def _read_each(self, entities: Sequence[E]) -> None:
        failure: StoreError | None = None
        for entity in entities:
            try:
                self._read_changed([entity])
            except StoreError as error:
                failure = error
        if failure is not None:
            raise failure


def _is_numbered(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and name.removeprefix(prefix).isdecimal()
