"""Fetch (1): read record batches, in a session (KIP-227) or without."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain

from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    NONE,
    ApiError,
    InvalidFetchSessionEpoch,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kcore.log.log_offset_metadata import FetchIsolation
from kcore.metadata.metadata_cache import MetadataSnapshot
from kcore.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from kcore.replica.fetch_params import ClientMetadata, FetchParams, FetchPartitionData, FetchPartitionResult
from kcore.replica.partition_watch import PartitionWatch, SessionFetch, repeats_idle_fetch
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.fetch_reader import MAX_INLINE_PARTITIONS, FetchReader
from kcore.server.requests.fetch_session import (
    FINAL_EPOCH,
    FIRST_VERSION_WITH_TOPIC_IDS,
    INITIAL_EPOCH,
    CachedPartition,
    IncrementalFetchContext,
    SessionView,
)
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import NETWORK_THREAD, RunsOn
from kcore.server.requests.services import Services

_READ_COMMITTED = 1
_WITHOUT_RACK = ClientMetadata("", "")
#: From so many on a session remembers which partitions are idle.
MANY_PARTITIONS = 3


class Handler:
    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self._replica_manager = services.replica_manager
        self._config = services.config
        self._sessions = services.fetch_sessions
        self._time = services.time
        #: A follower that lags must be seen long before replica.lag.time.max.ms.
        self._full_read_ms = min(5000, services.config["replica.lag.time.max.ms"] / 4)
        self._leader_quota = services.replication_quotas.leader
        self._client_quotas = services.client_quotas
        self._auth = services.auth
        self._reader = FetchReader(
            services.replica_manager,
            services.request_handler_pool,
            compares_topic_ids=services.cluster_member is not None,
        )

    def runs_on(self, context: RequestContext, body: FetchRequest) -> RunsOn:
        if body.session_epoch > INITIAL_EPOCH:
            session = self._sessions.get(body.session_id)
            reads_many = (
                session is not None
                and session.size > MAX_INLINE_PARTITIONS
                and (self._reads_all(session.view) or session.gets_other_partitions(body))
            )
            return RunsOn.POOL if reads_many else NETWORK_THREAD
        # Below version 4 record batches become old messages.
        return RunsOn.POOL if context.api_version < 4 else NETWORK_THREAD

    def handle(self, context: RequestContext, body: FetchRequest) -> None:
        version = context.api_version
        if body.session_epoch != FINAL_EPOCH:
            self._handle_in_session(context, body)
            return
        if body.session_id:
            self._sessions.close(body.session_id)
        cache = self._cache.snapshot
        infos: list[tuple[TopicPartition, FetchPartitionData]] = []
        refused: dict[tuple[int, int], int] = {}
        denied: Collection[int] = ()
        if self._auth.is_enabled:
            names = [t.topic if version < 13 else cache.topic_name(t.topic_id) for t in body.topics]
            denied = self._denied(context, body, names)
        for t, topic in enumerate(body.topics):
            name: str | None = topic.topic
            if version >= 13:
                name = cache.topic_name(topic.topic_id)
            if denied and t in denied:
                refused.update(((t, p), TopicAuthorizationFailed.code) for p in range(len(topic.partitions)))
                continue
            for p, partition in enumerate(topic.partitions):
                if name is None:
                    refused[t, p] = UnknownTopicId.code
                    continue
                topic_partition = TopicPartition(name, partition.partition)
                if not cache.contains(topic_partition):
                    refused[t, p] = UnknownTopicOrPartition.code
                elif (refusal := self._reader.refusal(version, topic_partition, topic.topic_id)) is not None:
                    refused[t, p] = refusal.code
                else:
                    infos.append(
                        (
                            topic_partition,
                            FetchPartitionData(
                                partition.fetch_offset,
                                partition.partition_max_bytes,
                                partition.log_start_offset,
                                partition.current_leader_epoch,
                                partition.last_fetched_epoch,
                            ),
                        )
                    )
        topics = body.topics
        quotas = self._client_quotas

        def respond(results: list[tuple[TopicPartition, FetchPartitionResult]]) -> None:
            if quotas.is_enabled and (throttle_ms := self._throttle_ms(context, body, results)):
                context.respond(FetchResponse(), throttle_ms)
            else:
                context.respond(FetchResponse(responses=_responses(topics, results, refused)))

        if not infos:
            respond([])
            return
        self._reader.read(context, self._params(context, body), infos, respond)

    def _denied(self, context: RequestContext, body: FetchRequest, names: list[str | None]) -> Collection[int]:
        """Which of these topics the request may not read; None, the name of an unknown id, only followers may not.

        Source: KafkaApis.handleFetchRequest, Kafka 3.9 (API-06, API-07).
        """
        if _replica_id(body, context.api_version) >= 0:
            is_permitted = self._auth.authorize_cluster(context, AclOperation.CLUSTER_ACTION)
            return () if is_permitted else range(len(names))
        known = [name for name in names if name is not None]
        permitted = self._auth.filter_by_authorized(context, AclOperation.READ, ResourceType.TOPIC, known)
        return {number for number, name in enumerate(names) if name is not None and name not in permitted}

    def _throttle_ms(
        self,
        context: RequestContext,
        body: FetchRequest,
        results: list[tuple[TopicPartition, FetchPartitionResult]],
    ) -> int:
        """How long a consumer has to wait, 0 for one within its quotas and for a follower.

        The response then has no records, and those that were read do not count (QUOTA-07).
        """
        if _replica_id(body, context.api_version) >= 0:
            context.request_time = None
            return 0
        user, client_id = context.principal.name, context.client_id
        size = sum(result.records.size_in_bytes for _, result in results)
        quota = self._client_quotas.fetch
        throttle_ms = max(quota.record(user, client_id, size), context.record_request_time())
        if throttle_ms:
            quota.unrecord(user, client_id, size)
        return throttle_ms

    def _params(self, context: RequestContext, body: FetchRequest) -> FetchParams:
        version = context.api_version
        replica_id = _replica_id(body, version)
        limit: int = self._config["fetch.max.bytes"]
        max_bytes = body.max_bytes if body.max_bytes < limit else limit
        quota = self._client_quotas.fetch
        if quota.is_enabled and replica_id < 0:
            in_window = quota.max_amount_in_window(context.principal.name, context.client_id)
            max_bytes = int(min(max_bytes, in_window))
        client = None
        if version >= 11 and replica_id < 0:
            client = ClientMetadata(body.rack_id, context.listener_name) if body.rack_id else _WITHOUT_RACK
        is_throttled = replica_id >= 0 and self._leader_quota.is_bounded
        return FetchParams(
            replica_id=replica_id,
            replica_epoch=body.replica_state.replica_epoch if version >= 15 else -1,
            max_wait_ms=body.max_wait_ms,
            min_bytes=body.min_bytes if body.min_bytes < max_bytes else max_bytes,
            max_bytes=max_bytes,
            isolation=FetchIsolation.LOG_END
            if replica_id >= 0
            else FetchParams.isolation_of(replica_id, body.isolation_level == _READ_COMMITTED),
            hard_max_bytes=version <= 2,
            client=client,
            quota=self._leader_quota if is_throttled else None,
        )

    def _handle_in_session(self, context: RequestContext, body: FetchRequest) -> None:
        """A fetch that begins or continues a session: what to read is the session's, and so is what to answer."""
        version = context.api_version
        try:
            fetch = self._sessions.new_context(body, version, _replica_id(body, version) >= 0)
        except ApiError as error:
            context.respond(FetchResponse(error_code=error.code))
            return
        snapshot = self._cache.snapshot
        permitted: list[CachedPartition] | None = None
        denied: list[CachedPartition] = []
        if self._auth.is_enabled:
            # All of the session, also what is not to be read now: a permission may have gone since the last fetch.
            permitted, denied = self._permitted(context, body, fetch.partitions(), snapshot)
        if isinstance(fetch, IncrementalFetchContext) and fetch.session.size >= MANY_PARTITIONS:
            params = self._params(context, body)
            if version >= 10 and params.min_bytes <= 1 and params.quota is None and not denied:
                try:
                    changed = self._take_changed(fetch, params, version, snapshot)
                except InvalidFetchSessionEpoch as error:
                    context.respond(FetchResponse(error_code=error.code))
                    return
                if changed is not None:
                    self._fetch_what_changed(context, body, fetch, params, *changed)
                    return
            else:
                with fetch.session.lock:
                    fetch.session.drop_view()
        partitions = fetch.partitions() if permitted is None else permitted
        readable, refused = self._resolve(partitions, version, snapshot)
        refused += [(cached, _denial(cached)) for cached in denied]

        def respond(results: list[tuple[TopicPartition, FetchPartitionResult]]) -> None:
            if self._client_quotas.is_enabled and (throttle_ms := self._throttle_ms(context, body, results)):
                context.respond(FetchResponse(session_id=fetch.session_id), throttle_ms)
                return
            answers = chain(refused, zip(readable, [result for _, result in results], strict=True))
            try:
                session_id, selected = fetch.select(answers)
            except ApiError as error:
                context.respond(FetchResponse(error_code=error.code))
                return
            context.respond(FetchResponse(session_id=session_id, responses=_session_responses(selected)))

        if not readable:
            respond([])
            return
        infos = [(cached.topic_partition, cached.data) for cached in readable]
        self._reader.read(context, self._params(context, body), infos, respond)

    def _permitted(
        self,
        context: RequestContext,
        body: FetchRequest,
        partitions: list[CachedPartition],
        snapshot: MetadataSnapshot,
    ) -> tuple[list[CachedPartition], list[CachedPartition]]:
        """(partitions that the request may read, those that it may not)."""
        by_id = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
        names = [
            cached.topic_partition.topic if not by_id or cached.resolve(snapshot) else None for cached in partitions
        ]
        denied = self._denied(context, body, names)
        if not denied:
            return partitions, []
        return (
            [cached for number, cached in enumerate(partitions) if number not in denied],
            [cached for number, cached in enumerate(partitions) if number in denied],
        )

    def _reads_all(self, view: SessionView | None) -> bool:
        """Whether it is time to read all partitions of a session."""
        return view is None or self._time.hi_res_clock_ms() - view.last_full_read_ms >= self._full_read_ms

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
            is_full = view is None or now_ms - view.last_full_read_ms >= self._full_read_ms
            if view is None or (is_full and params.replica_id < 0):
                partitions = fetch.partitions()
            elif is_full:
                partitions = self._without_repeated(fetch.partitions(), view, params)
            else:
                partitions = [view.by_partition[topic_partition] for topic_partition in view.to_read]
            readable, refused = self._resolve(partitions, version, snapshot)
            if refused or session.is_closed:
                session.drop_view()
                return None
            if view is None:
                watch = PartitionWatch.of(self._replica_manager, params.isolation)
                view = session.view = SessionView(readable, watch, now_ms)
                watch.cover(view.by_partition)
            elif is_full:
                view.last_full_read_ms = now_ms
        return view, readable

    def _fetch_what_changed(
        self,
        context: RequestContext,
        body: FetchRequest,
        fetch: IncrementalFetchContext,
        params: FetchParams,
        view: SessionView,
        to_read: list[CachedPartition],
    ) -> None:
        """Read these and respond, now or once there is something to answer.  For the other partitions of the view the
        last fetch's answers hold until they change."""
        by_partition = view.by_partition

        def respond(results: list[tuple[TopicPartition, FetchPartitionResult]]) -> None:
            if self._client_quotas.is_enabled and (throttle_ms := self._throttle_ms(context, body, results)):
                with fetch.session.lock:
                    view.to_read.update((topic_partition, None) for topic_partition, _ in results)
                context.respond(FetchResponse(session_id=fetch.session_id), throttle_ms)
                return
            answers = [(by_partition[topic_partition], result) for topic_partition, result in results]
            try:
                session_id, selected = fetch.select(answers, session_fetch.idle)
            except ApiError as error:
                context.respond(FetchResponse(error_code=error.code))
                return
            context.respond(FetchResponse(session_id=session_id, responses=_session_responses(selected)))

        session_fetch = SessionFetch(
            params,
            view.data,
            [cached.topic_partition for cached in to_read],
            view.watch,
            lambda: fetch.take_changed_after_wait(view),
            self._replica_manager,
            respond,
        )
        session_fetch.start()

    def _without_repeated(
        self, partitions: list[CachedPartition], view: SessionView, params: FetchParams
    ) -> list[CachedPartition]:
        """What has to be read so that this fetch of a follower is taken in for all of these."""
        manager, fetch_time_ms = self._replica_manager, self._replica_manager.time.milliseconds()
        return [
            cached
            for cached in partitions
            if cached.topic_partition in view.to_read
            or not repeats_idle_fetch(cached.topic_partition, params, cached.data, fetch_time_ms, manager)
        ]

    def _resolve(
        self, partitions: list[CachedPartition], version: int, snapshot: MetadataSnapshot
    ) -> tuple[list[CachedPartition], list[tuple[CachedPartition, FetchPartitionResult]]]:
        """(what can be read, what is refused and why)."""
        readable: list[CachedPartition] = []
        refused: list[tuple[CachedPartition, FetchPartitionResult]] = []
        by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
        for cached in partitions:
            error: type[ApiError] | None = None
            if cached.found_in != snapshot.serial:
                if by_id and not cached.resolve(snapshot):
                    error = UnknownTopicId
                elif not snapshot.contains(cached.topic_partition):
                    error = UnknownTopicOrPartition
                else:
                    cached.found_in = snapshot.serial
            if error is None and (by_id or version < 10):
                error = self._reader.refusal(version, cached.topic_partition, cached.topic_id)
            if error is None:
                readable.append(cached)
            else:
                refused.append((cached, FetchPartitionResult(error(f"{cached.topic_partition}: {error.__name__}"))))
        return readable, refused

    def error_response(self, body: FetchRequest, error_code: int, version: int) -> FetchResponse:
        refused = {(t, p): error_code for t, topic in enumerate(body.topics) for p in range(len(topic.partitions))}
        return FetchResponse(error_code=error_code, responses=_responses(body.topics, [], refused))


def _responses(
    topics: list[FetchTopic],
    results: list[tuple[TopicPartition, FetchPartitionResult]],
    refused: dict[tuple[int, int], int],
) -> list[FetchableTopicResponse]:
    """Every partition of the request, in its order; results holds the partitions that were not refused."""
    responses = []
    following = iter(results)
    for t, topic in enumerate(topics):
        partitions = []
        for p, partition in enumerate(topic.partitions):
            if refused and (t, p) in refused:
                partitions.append(_refusal(partition.partition, refused[t, p]))
                continue
            partitions.append(_partition_data(partition.partition, next(following)[1]))
        responses.append(FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=partitions))
    return responses


def _session_responses(
    answers: Iterable[tuple[CachedPartition, FetchPartitionResult]],
) -> list[FetchableTopicResponse]:
    """The partitions in this order; neighbours of one topic are in one element."""
    responses: list[FetchableTopicResponse] = []
    topic: FetchableTopicResponse | None = None
    for cached, result in answers:
        if topic is None or cached.topic != topic.topic or cached.topic_id != topic.topic_id:
            topic = FetchableTopicResponse(topic=cached.topic, topic_id=cached.topic_id, partitions=[])
            responses.append(topic)
        topic.partitions.append(_partition_data(cached.number, result))
    return responses


def _partition_data(number: int, result: FetchPartitionResult) -> PartitionData:
    if result.error is not None:
        return _refusal(number, result.error.code, result)
    aborted = result.aborted_transactions
    answer = PartitionData(
        partition_index=number,
        error_code=NONE,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        aborted_transactions=None
        if aborted is None
        else [AbortedTransaction(producer_id=a.producer_id, first_offset=a.first_offset) for a in aborted],
        preferred_read_replica=result.preferred_read_replica,
        records=result.converted or (result.records if result.records.size_in_bytes else b""),
    )
    if result.diverging_epoch is not None:
        epoch, end_offset = result.diverging_epoch
        answer.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return answer


def _denial(cached: CachedPartition) -> FetchPartitionResult:
    return FetchPartitionResult(TopicAuthorizationFailed(f"not authorized to read {cached.topic_partition}"))


def _replica_id(body: FetchRequest, version: int) -> int:
    """-1 for a consumer."""
    return body.replica_id if version < 15 else body.replica_state.replica_id


def _refusal(number: int, error_code: int, result: FetchPartitionResult | None = None) -> PartitionData:
    return PartitionData(
        partition_index=number,
        error_code=error_code,
        high_watermark=result.high_watermark if result is not None else -1,
        log_start_offset=result.log_start_offset if result is not None else -1,
        aborted_transactions=[],
        records=b"",
    )
