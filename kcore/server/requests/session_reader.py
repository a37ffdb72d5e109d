"""What a fetch of a session reads, and what it is answered (SESS-08, SESS-15).  The state is in fetch_session.py.

A fetch of a session of many partitions costs what has changed, and not all its partitions.  A partition is idle once
its reader has all that it may read; then it is not read again before its watch reports a change.  Now and then all
partitions are read: a follower's last fetch is known only from a read.  For a follower repeats_idle_fetch() stands for
the read where nothing has changed.

    a full request, a small session -> all partitions; waits as a fetch without a session does
    a session with a view           -> SessionFetch: those that are not idle; waits for a change of any
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    ApiError,
    InvalidFetchSessionEpoch,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kcore.metadata.metadata_cache import MetadataSnapshot
from kcore.protocol.messages.fetch import FetchRequest
from kcore.replica.fetch_params import FetchInfos, FetchParams, FetchPartitionResult
from kcore.replica.partition_watch import PartitionWatch, WatchingFetch, is_idle, is_news, repeats_idle_fetch
from kcore.replica.replica_manager import ReplicaManager
from kcore.server.requests.fetch_reader import MAX_INLINE_PARTITIONS, FetchReader
from kcore.server.requests.fetch_session import (
    FIRST_VERSION_WITH_TOPIC_IDS,
    Answers,
    CachedPartition,
    FetchContext,
    FetchSessionCache,
    IncrementalFetchContext,
    SessionView,
)
from kcore.server.requests.request_context import RequestContext

#: From so many on a session remembers which partitions are idle.
MANY_PARTITIONS = 3

#: Names of topics, None for an id that has none -> the places of those that the request may not read.
Denied = Callable[[list[str | None]], Collection[int]]


class SessionRead:
    """What was read for one fetch of a session.  answers: each partition with its result."""

    __slots__ = ("_fetch", "_idle", "_view", "answers")

    def __init__(
        self,
        fetch: FetchContext,
        answers: Answers,
        idle: Collection[TopicPartition] = (),
        view: SessionView | None = None,
    ) -> None:
        self.answers = answers
        self._fetch = fetch
        self._idle = idle
        self._view = view

    def select(self) -> tuple[int, Answers]:
        """(session id, what of the answers the response has); the session notes it.

        Raises InvalidFetchSessionEpoch if another request has continued the session meanwhile.
        """
        return self._fetch.select(self.answers, self._idle)

    def put_back(self) -> None:
        """The client gets nothing of this now: the next fetch reads it again."""
        if self._view is not None and isinstance(self._fetch, IncrementalFetchContext):
            with self._fetch.session.lock:
                self._view.read_next(cached for cached, _ in self.answers)


Respond = Callable[[SessionRead], None]


class SessionReader:
    """Reads for the fetches of all sessions.  Thread-safe."""

    def __init__(
        self,
        sessions: FetchSessionCache,
        reader: FetchReader,
        replica_manager: ReplicaManager,
        time: Time,
        replica_lag_time_max_ms: int,
    ) -> None:
        self._sessions = sessions
        self._reader = reader
        self._replica_manager = replica_manager
        self._time = time
        #: A follower that lags must be seen long before replica.lag.time.max.ms.
        self._full_read_ms = min(5000, replica_lag_time_max_ms / 4)

    def reads_many(self, body: FetchRequest) -> bool:
        """Whether this request, which continues a session, is one for the pool."""
        session = self._sessions.get(body.session_id)
        return (
            session is not None
            and session.size > MAX_INLINE_PARTITIONS
            and (self._is_full_read(session.view, self._time.hi_res_clock_ms()) or session.gets_other_partitions(body))
        )

    def read(
        self,
        context: RequestContext,
        fetch: FetchContext,
        params: FetchParams,
        snapshot: MetadataSnapshot,
        denied: Denied | None,
        respond: Respond,
    ) -> None:
        """respond(what was read) now, or once there is something to answer.  denied: None if all may be read.

        Raises InvalidFetchSessionEpoch, without a response, if another request has continued the session.
        """
        version = context.api_version
        permitted: list[CachedPartition] | None = None
        refused: Answers = []
        if denied is not None:
            # All of the session, also what is not to be read now: a permission may have gone since the last fetch.
            permitted, refused = _permitted(fetch.partitions(), version, snapshot, denied)
        if isinstance(fetch, IncrementalFetchContext) and fetch.session.size >= MANY_PARTITIONS:
            if version >= 10 and params.min_bytes <= 1 and params.quota is None and not refused:
                to_read = self._take_changed(fetch, params, version, snapshot)
                if to_read is not None:
                    SessionFetch(fetch, *to_read, params, self._replica_manager, respond).start()
                    return
            else:
                with fetch.session.lock:
                    fetch.session.drop_view()
        readable, unreadable = self._resolve(fetch.partitions() if permitted is None else permitted, version, snapshot)
        refused = unreadable + refused
        if not readable:
            respond(SessionRead(fetch, refused))
            return

        def respond_to(results: list[tuple[TopicPartition, FetchPartitionResult]]) -> None:
            read = zip(readable, [result for _, result in results], strict=True)
            respond(SessionRead(fetch, [*refused, *read]))

        infos = [(cached.topic_partition, cached.data) for cached in readable]
        self._reader.read(context, params, infos, respond_to)

    def _is_full_read(self, view: SessionView | None, now_ms: float) -> bool:
        """Whether it is time to read all partitions of a session."""
        return view is None or now_ms - view.last_full_read_ms >= self._full_read_ms

    def _take_changed(
        self, fetch: IncrementalFetchContext, params: FetchParams, version: int, snapshot: MetadataSnapshot
    ) -> tuple[SessionView, list[CachedPartition]] | None:
        """The session's view, and what this fetch has to read of it: what has changed since the last fetch, or all.

        None where a partition is refused or the session was closed: then the view is gone, and all is to be read
        without one.  Raises InvalidFetchSessionEpoch if another request has continued the session.
        """
        session = fetch.session
        with session.lock:
            view = session.view
            if view is not None and view.watch.isolation is not params.isolation:
                session.drop_view()
                view = None
            if view is None:
                fetch.check_current()
            else:
                fetch.take_changed(view)
            now_ms = self._time.hi_res_clock_ms()
            is_full = self._is_full_read(view, now_ms)
            if view is None or (is_full and params.replica_id < 0):
                partitions = fetch.partitions()
            elif is_full:
                partitions = self._without_repeated(fetch.partitions(), view, params)
            else:
                partitions = list(view.to_read.values())
            readable, unreadable = self._resolve(partitions, version, snapshot)
            if unreadable or session.is_closed:
                session.drop_view()
                return None
            if view is None:
                watch = PartitionWatch.of(self._replica_manager, params.isolation)
                view = session.view = SessionView(readable, watch, now_ms)
            elif is_full:
                view.last_full_read_ms = now_ms
        return view, readable

    def _without_repeated(
        self, partitions: list[CachedPartition], view: SessionView, params: FetchParams
    ) -> list[CachedPartition]:
        """What has to be read so that this fetch of a follower is taken in for all of these."""
        hosted, fetch_time_ms = self._replica_manager.hosted_partitions, self._replica_manager.time.milliseconds()
        return [
            cached
            for cached in partitions
            if cached.topic_partition in view.to_read
            or not repeats_idle_fetch(cached.topic_partition, params, cached.data, fetch_time_ms, hosted)
        ]

    def _resolve(
        self, partitions: list[CachedPartition], version: int, snapshot: MetadataSnapshot
    ) -> tuple[list[CachedPartition], Answers]:
        """(what can be read, what cannot and why)."""
        readable: list[CachedPartition] = []
        unreadable: Answers = []
        by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
        may_refuse = self._reader.may_refuse[version]
        for cached in partitions:
            error: type[ApiError] | None = None
            if cached.found_in != snapshot.serial:
                if by_id and not cached.resolve(snapshot):
                    error = UnknownTopicId
                elif not snapshot.contains(cached.topic_partition):
                    error = UnknownTopicOrPartition
                else:
                    cached.found_in = snapshot.serial
            if error is None and may_refuse:
                error = self._reader.refusal(version, cached.topic_partition, cached.topic_id)
            if error is None:
                readable.append(cached)
            else:
                unreadable.append(_refused(cached, error(f"{cached.topic_partition}: {error.__name__}")))
        return readable, unreadable


class SessionFetch:
    """One fetch of a session that has a view: reads what is not idle; if there is nothing to answer, waits until there
    is, or for its deadline, and then reads what has changed and what is still not idle.  For the other partitions the
    last fetch's answers hold.

    params.min_bytes is 1 at most: any record is enough.
    """

    __slots__ = ("_fetch", "_idle", "_idle_answers", "_params", "_replica_manager", "_respond", "_to_read", "_view")

    def __init__(
        self,
        fetch: IncrementalFetchContext,
        view: SessionView,
        to_read: list[CachedPartition],
        params: FetchParams,
        replica_manager: ReplicaManager,
        respond: Respond,
    ) -> None:
        self._fetch = fetch
        self._view = view
        self._to_read = {cached.topic_partition: cached for cached in to_read}
        self._params = params
        self._replica_manager = replica_manager
        self._respond = respond
        #: Those of the answers that need no other read before they change.
        self._idle: set[TopicPartition] = set()
        self._idle_answers: Answers = []

    def start(self) -> None:
        """Answer now, on this thread, or later."""
        answers, has_news = self._read(self._replica_manager.fetch_now)
        params, view = self._params, self._view
        if params.max_wait_ms <= 0 or has_news:
            self._respond(SessionRead(self._fetch, answers, self._idle, view))
            return
        self._idle_answers = [answer for answer in answers if answer[0].topic_partition in self._idle]
        for topic_partition in self._idle:
            del self._to_read[topic_partition]
        wait = WatchingFetch(params, view.by_partition, view.watch, self._replica_manager, self._answer_after_wait)
        if not wait.begin():  # changes are not reported any more
            self._to_read = dict(view.by_partition)
            self._answer_after_wait()

    def _answer_after_wait(self) -> None:
        # Nothing has changed for this fetch if another one has continued the session, which then answers the changes.
        with self._fetch.session.lock, suppress(InvalidFetchSessionEpoch):
            self._to_read.update(self._fetch.take_changed(self._view))
        answers, _ = self._read(self._replica_manager.local_reads.read_again)
        unchanged = [answer for answer in self._idle_answers if answer[0].topic_partition not in self._to_read]
        self._respond(SessionRead(self._fetch, unchanged + answers, self._idle, self._view))

    def _read(
        self, read: Callable[[FetchParams, FetchInfos], list[tuple[TopicPartition, FetchPartitionResult]]]
    ) -> tuple[Answers, bool]:
        """(what there is to read, whether any of it is news); _idle has those of them that are."""
        params, manager, idle = self._params, self._replica_manager, self._idle
        infos = [(topic_partition, cached.data) for topic_partition, cached in self._to_read.items()]
        answers: Answers = []
        has_news = False
        for topic_partition, result in read(params, infos) if infos else ():
            cached = self._to_read[topic_partition]
            answers.append((cached, result))
            if is_news(result):
                has_news = True
                idle.discard(topic_partition)
            elif is_idle(topic_partition, params, cached.data, manager):
                idle.add(topic_partition)
            else:
                idle.discard(topic_partition)
        return answers, has_news


def _permitted(
    partitions: list[CachedPartition], version: int, snapshot: MetadataSnapshot, denied: Denied
) -> tuple[list[CachedPartition], Answers]:
    """(partitions that the request may read, those that it may not)."""
    by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
    places = denied(
        [cached.topic_partition.topic if not by_id or cached.resolve(snapshot) else None for cached in partitions]
    )
    if not places:
        return partitions, []
    return [cached for place, cached in enumerate(partitions) if place not in places], [
        _refused(cached, TopicAuthorizationFailed(f"not authorized to read {cached.topic_partition}"))
        for place, cached in enumerate(partitions)
        if place in places
    ]


def _refused(cached: CachedPartition, error: ApiError) -> tuple[CachedPartition, FetchPartitionResult]:
    return cached, FetchPartitionResult(error)
