"""Incremental fetch sessions, the broker's side (SESS-05..09, SESS-14, SESS-15; KIP-227, KIP-516).

A client that fetches many partitions names them once.  After that its requests name only what has changed, and the
responses only the partitions that have something new.  Everything here is state; session_reader.py reads the logs.

    full request, epoch 0   -> FullFetchContext: all partitions are answered; a session is made if there is room
    full request, epoch -1  -> no context: FetchSessionCache.close() and a fetch without a session
    incremental, epoch n    -> IncrementalFetchContext over the session's partitions; the session's epoch becomes n + 1

Source: FetchSession, FetchManager, Kafka 2.4-4.x.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from random import Random
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from kcore.common.random_source import SYSTEM_RANDOM
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from kcore.replica.fetch_params import FetchPartitionData, FetchPartitionResult
from kcore.replica.partition_watch import PartitionWatch

if TYPE_CHECKING:
    from kcore.protocol.messages.fetch import FetchPartition, FetchRequest

#: The id of no session, and the epochs that ask for none, and for a new one (SESS-01).
INVALID_SESSION_ID = 0
FINAL_EPOCH, INITIAL_EPOCH = -1, 0
_MAX_EPOCH = 2**31 - 1
#: From this version on a fetch names topics by id.
FIRST_VERSION_WITH_TOPIC_IDS = 13
#: A session that was not used for so long, or is older than that, may be evicted.
EVICTION_MS = 120_000
#: A session loses its view if no fetch of it came or waited for this time; at the latest after twice as long.
VIEW_CHECK_MS = 5_000

#: A session's partition: the topic's name, or its id as a number from version 13 on; and the partition's number.
_Key = tuple[str | int, int]


def next_epoch(epoch: int) -> int:
    """1, 2, ..., 2^31 - 1, 1, ... (SESS-02)."""
    return 1 if epoch == _MAX_EPOCH else epoch + 1


class TopicNames(Protocol):
    """MetadataSnapshot's names by topic id."""

    def topic_name(self, topic_id: UUID) -> str | None: ...


class CachedPartition:
    """One partition of a session: what the client asks of it, and the offsets that it was last answered.

    topic is "" for a partition that the client names by its topic's id; topic_partition then has the name of the last
    resolve().  data is replaced, never changed.  found_in: the serial of the last metadata that had the partition.
    """

    __slots__ = (
        "data",
        "found_in",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "topic",
        "topic_id",
        "topic_partition",
    )

    def __init__(self, topic: str, topic_id: UUID, number: int, data: FetchPartitionData) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.topic_partition = TopicPartition(topic, number)
        self.data = data
        self.found_in = 0
        self.high_watermark = self.last_stable_offset = self.log_start_offset = -1

    @property
    def number(self) -> int:
        return self.topic_partition.partition

    def resolve(self, names: TopicNames) -> bool:
        """Look up the name of a topic id again; False if there is no topic of this id (now)."""
        name = names.topic_name(self.topic_id)
        if name is None:
            return False
        if name != self.topic_partition.topic:
            self.topic_partition = TopicPartition(name, self.number)
        return True

    def update(self, result: FetchPartitionResult) -> bool:
        """Note what the client is answered; whether an incremental response has to name the partition (SESS-08).

        An error is always answered, and has offsets of -1: so is the first answer after it.
        """
        is_changed = (
            result.high_watermark != self.high_watermark
            or result.last_stable_offset != self.last_stable_offset
            or result.log_start_offset != self.log_start_offset
        )
        if is_changed:
            self.high_watermark = result.high_watermark
            self.last_stable_offset = result.last_stable_offset
            self.log_start_offset = result.log_start_offset
        if result.diverging_epoch is not None:
            self.forget_answer()  # the follower truncates first, and takes nothing else from this answer
        return (
            is_changed
            or result.error is not None
            or result.records.size_in_bytes > 0
            or result.preferred_read_replica != -1
            or result.diverging_epoch is not None
        )

    def forget_answer(self) -> None:
        """Name the partition in the next answer, whatever it has.

        A follower that has received another leader epoch drops the answers to its fetches with the old one; what they
        said would never be said again as long as it does not change.  Kafka's sessions do not have this.
        """
        self.high_watermark = self.last_stable_offset = self.log_start_offset = -1

    def __repr__(self) -> str:
        return f"CachedPartition({self.topic_partition}, {self.data})"


#: Partitions with their results.
Answers = list[tuple[CachedPartition, FetchPartitionResult]]


class SessionView:
    """A session of many partitions by partition, so that a fetch looks at those that have changed.

    The session's lock guards it.  by_partition: all of the session, watched from now on.  to_read: of these what the
    next fetch reads, in this order; the others are idle (session_reader.py).  last_full_read_ms: when all of them were
    read last.
    """

    __slots__ = ("_checked_epoch", "by_partition", "last_full_read_ms", "to_read", "watch")

    def __init__(self, partitions: Iterable[CachedPartition], watch: PartitionWatch, now_ms: float) -> None:
        self.by_partition = {cached.topic_partition: cached for cached in partitions}
        self.to_read = self.by_partition.copy()
        self.last_full_read_ms = now_ms
        self.watch = watch
        #: The session's epoch at the last is_unused() that found no fetch waiting.
        self._checked_epoch = -1
        watch.cover(self.by_partition)

    def take_changed(self) -> dict[TopicPartition, CachedPartition]:
        """The partitions that have changed since the last call, from now on to_read."""
        by_partition, to_read, changed = self.by_partition, self.to_read, {}
        for topic_partition in self.watch.take_changed():
            changed[topic_partition] = to_read[topic_partition] = by_partition[topic_partition]
        return changed

    def read_next(self, partitions: Iterable[CachedPartition]) -> None:
        """The next fetch reads these, whether they have changed or not."""
        self.to_read.update((cached.topic_partition, cached) for cached in partitions)

    def note_answers(self, answers: Answers, idle: Collection[TopicPartition]) -> None:
        """Those of the answers that are idle are not to be read; those with records are read last."""
        to_read = self.to_read
        for cached, result in answers:
            topic_partition = cached.topic_partition
            is_idle = topic_partition in idle
            if is_idle or result.records.size_in_bytes:
                to_read.pop(topic_partition, None)
            if not is_idle:
                to_read[topic_partition] = cached

    def is_unused(self, epoch: int) -> bool:
        """Whether no fetch of the session waits, and none has come since the last call.  epoch: the session's."""
        if self.watch.waiting:
            return False
        checked_epoch, self._checked_epoch = self._checked_epoch, epoch
        return checked_epoch == epoch


class FetchSession:
    """The partitions of one client, in the order in which they are read.

    is_privileged: the client is a follower.  `lock` guards partitions and epoch; the cache's lock guards the rest.
    view: of its incremental fetches; None before the first, and when partitions have come or gone.
    """

    __slots__ = (
        "created_ms",
        "epoch",
        "is_closed",
        "is_privileged",
        "last_used_ms",
        "lock",
        "partitions",
        "session_id",
        "size",
        "uses_topic_ids",
        "view",
    )

    def __init__(
        self,
        session_id: int,
        partitions: dict[_Key, CachedPartition],
        *,
        is_privileged: bool,
        uses_topic_ids: bool,
        now_ms: float,
    ) -> None:
        self.session_id = session_id
        self.partitions = partitions
        self.is_privileged = is_privileged
        self.uses_topic_ids = uses_topic_ids
        self.created_ms = self.last_used_ms = now_ms
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.size = len(partitions)
        self.lock = threading.Lock()
        self.is_closed = False
        self.view: SessionView | None = None

    def drop_view(self) -> None:
        """The next fetch reads all partitions."""
        view, self.view = self.view, None
        if view is not None:
            view.watch.close()

    def drop_view_if_unused(self) -> None:
        """Drop the view if no fetch of the session waits, and none has come since the last call.  The lock is held.

        The session stays: its client may have closed its connection and come back on another one.
        """
        if self.view is not None and self.view.is_unused(self.epoch):
            self.drop_view()

    def gets_other_partitions(self, body: FetchRequest) -> bool:
        """Whether update_partitions() will drop the view: the request adds partitions, or forgets some."""
        return bool(body.forgotten_topics_data) or any(
            key not in self.partitions for key, *_ in _requested(body, self.uses_topic_ids)
        )

    def update_partitions(self, body: FetchRequest) -> None:
        """Add and change what the request names, drop what it forgets (SESS-15).  The lock is held."""
        partitions = self.partitions
        for key, topic, topic_id, partition in _requested(body, self.uses_topic_ids):
            cached = partitions.get(key)
            if cached is None:
                self.drop_view()
                partitions[key] = CachedPartition(topic, topic_id, key[1], fetch_partition_data(partition))
            else:
                data = fetch_partition_data(partition)
                if data.current_leader_epoch != cached.data.current_leader_epoch:
                    cached.forget_answer()
                cached.data = data
                if self.view is not None:
                    self.view.to_read[cached.topic_partition] = cached
        for forgotten in body.forgotten_topics_data:
            name = forgotten.topic_id.int if self.uses_topic_ids else forgotten.topic
            for number in forgotten.partitions:
                if partitions.pop((name, number), None) is not None:
                    self.drop_view()
        self.size = len(partitions)


class FullFetchContext:
    """A request that names all its partitions and asks for a session."""

    def __init__(
        self, cache: FetchSessionCache, body: FetchRequest, *, uses_topic_ids: bool, is_follower: bool
    ) -> None:
        self._cache = cache
        self._uses_topic_ids = uses_topic_ids
        self._is_follower = is_follower
        self._partitions = {
            key: CachedPartition(topic, topic_id, key[1], fetch_partition_data(partition))
            for key, topic, topic_id, partition in _requested(body, uses_topic_ids)
        }

    @property
    def session_id(self) -> int:
        """What a response without partitions says."""
        return INVALID_SESSION_ID

    def partitions(self) -> list[CachedPartition]:
        """What to read, in order."""
        return list(self._partitions.values())

    def select(self, answers: Answers, idle: Collection[TopicPartition] = ()) -> tuple[int, Answers]:
        """(session id, what to answer): everything; the id is 0 if there is no room for the session (SESS-06)."""
        for cached, result in answers:
            cached.update(result)
        session_id = self._cache.maybe_create_session(self._partitions, self._is_follower, self._uses_topic_ids)
        return session_id, answers


class IncrementalFetchContext:
    """A request that continues a session."""

    def __init__(self, session: FetchSession) -> None:
        self.session = session
        self._current_epoch = session.epoch

    @property
    def session_id(self) -> int:
        """What a response without partitions says."""
        return self.session.session_id

    def partitions(self) -> list[CachedPartition]:
        """All of the session, in the order in which they are read."""
        return list(self.session.partitions.values())

    def check_current(self) -> None:
        """Raises InvalidFetchSessionEpoch if another request has continued the session.  The session's lock is held."""
        session = self.session
        if session.epoch != self._current_epoch:
            raise InvalidFetchSessionEpoch(f"session {session.session_id} has epoch {session.epoch}")

    def take_changed(self, view: SessionView) -> dict[TopicPartition, CachedPartition]:
        """The partitions that have changed since the last call, from now on to_read.  The session's lock is held.

        Raises what check_current() raises: the changes are for the request that continued the session.
        """
        self.check_current()
        return view.take_changed()

    def select(self, answers: Answers, idle: Collection[TopicPartition] = ()) -> tuple[int, Answers]:
        """(session id, what to answer): what has something new.  Partitions with records are read last from now on.

        idle: those of the answers that are.  Raises InvalidFetchSessionEpoch, and notes nothing, if another request has
        continued the session meanwhile.
        """
        session = self.session
        with session.lock:
            self.check_current()
            if session.view is not None:
                session.view.note_answers(answers, idle)
            selected = []
            partitions = session.partitions
            for answer in answers:
                cached, result = answer
                if not cached.update(result):
                    continue
                selected.append(answer)
                if result.records.size_in_bytes and len(partitions) > 1:
                    key = (
                        cached.topic_id.int if session.uses_topic_ids else cached.topic,
                        cached.topic_partition.partition,
                    )
                    partitions[key] = partitions.pop(key)
        return session.session_id, selected


FetchContext = FullFetchContext | IncrementalFetchContext


class FetchSessionCache:
    """At most `slots` sessions, by id (SESS-14).  Thread-safe; its lock may be held while a session's is taken.

    When all slots are taken, a new session takes the place of one that was unused for EVICTION_MS, else of the one
    with the least value, if its own is greater: a follower's is worth more than a consumer's, and then more partitions
    are worth more than fewer.  A follower may evict any consumer's session, everyone else only such as are older than
    EVICTION_MS.  Source: FetchSessionCache, Kafka 2.4-3.9.
    """

    def __init__(self, slots: int, time: Time, random: Random = SYSTEM_RANDOM) -> None:
        self._slots = slots
        self._time = time
        self._random = random
        self._lock = threading.Lock()
        #: The one that was not used for the longest time first.
        self._sessions: dict[int, FetchSession] = {}
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    def close(self, session_id: int) -> None:
        """SESS-05: a full request ends the session that it names, if there is one."""
        with self._lock:
            session = self._sessions.pop(session_id, None)
            if session is not None:
                with session.lock:
                    session.is_closed = True
                    session.drop_view()

    def drop_unused_views(self) -> None:
        """Free appends from reporting to sessions that nobody uses.  To be called every VIEW_CHECK_MS."""
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            with session.lock:
                session.drop_view_if_unused()

    def new_context(self, body: FetchRequest, version: int, is_follower: bool) -> FetchContext:
        """The context of a request whose epoch is not FINAL_EPOCH.

        An incremental request brings its session up to date.  Raises FetchSessionIdNotFound, InvalidFetchSessionEpoch
        (SESS-07), and FetchSessionTopicIdError where a session began with names and goes on with ids, or the reverse.
        """
        uses_topic_ids = version >= FIRST_VERSION_WITH_TOPIC_IDS
        if body.session_epoch == INITIAL_EPOCH:
            if body.session_id != INVALID_SESSION_ID:
                self.close(body.session_id)
            return FullFetchContext(self, body, uses_topic_ids=uses_topic_ids, is_follower=is_follower)
        with self._lock:
            session = self._sessions.get(body.session_id)
            if session is None:
                raise FetchSessionIdNotFound(f"no session {body.session_id}")
            with session.lock:
                if session.epoch != body.session_epoch:
                    raise InvalidFetchSessionEpoch(
                        f"session {session.session_id}: epoch {body.session_epoch}, expected {session.epoch}"
                    )
                if session.uses_topic_ids != uses_topic_ids:
                    raise FetchSessionTopicIdError(f"session {session.session_id} mixes topic names and ids")
                session.update_partitions(body)
                session.epoch = next_epoch(session.epoch)
                if not session.size:
                    session.is_closed = True
            del self._sessions[session.session_id]
            if not session.size:  # SESS-09: a session without partitions ends.
                return FullFetchContext(self, body, uses_topic_ids=uses_topic_ids, is_follower=is_follower)
            session.last_used_ms = self._time.hi_res_clock_ms()
            self._sessions[session.session_id] = session
            return IncrementalFetchContext(session)

    def maybe_create_session(
        self, partitions: dict[_Key, CachedPartition], is_privileged: bool, uses_topic_ids: bool
    ) -> int:
        """The id of a new session over these partitions; INVALID_SESSION_ID if there is no room, or no partition."""
        if not partitions:
            return INVALID_SESSION_ID
        with self._lock:
            now_ms = self._time.hi_res_clock_ms()
            if len(self._sessions) >= self._slots and not self._evict_for(is_privileged, len(partitions), now_ms):
                return INVALID_SESSION_ID
            session_id = INVALID_SESSION_ID
            while session_id == INVALID_SESSION_ID or session_id in self._sessions:
                session_id = self._random.randrange(1, 2**31)
            self._sessions[session_id] = FetchSession(
                session_id, partitions, is_privileged=is_privileged, uses_topic_ids=uses_topic_ids, now_ms=now_ms
            )
            return session_id

    def _evict_for(self, is_privileged: bool, size: int, now_ms: float) -> bool:
        """Whether a session has made room for one of this value."""
        if not self._sessions:
            return False
        victim = next(iter(self._sessions.values()))
        if now_ms - victim.last_used_ms <= EVICTION_MS:
            evictable = [
                session
                for session in self._sessions.values()
                if now_ms - session.created_ms > EVICTION_MS or (is_privileged and not session.is_privileged)
            ]
            if not evictable:
                return False
            victim = min(evictable, key=lambda session: (session.is_privileged, session.size))
            if (is_privileged, size) <= (victim.is_privileged, victim.size):
                return False
        del self._sessions[victim.session_id]
        with victim.lock:
            victim.is_closed = True
            victim.drop_view()
        self.evictions += 1
        return True


def _requested(body: FetchRequest, uses_topic_ids: bool) -> Iterator[tuple[_Key, str, UUID, FetchPartition]]:
    for topic in body.topics:
        name: str | int = topic.topic_id.int if uses_topic_ids else topic.topic
        for partition in topic.partitions:
            yield (name, partition.partition), topic.topic, topic.topic_id, partition


def fetch_partition_data(partition: FetchPartition) -> FetchPartitionData:
    return FetchPartitionData(
        partition.fetch_offset,
        partition.partition_max_bytes,
        partition.log_start_offset,
        partition.current_leader_epoch,
        partition.last_fetched_epoch,
    )
