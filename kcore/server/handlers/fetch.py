"""Fetch (1): read record batches, in a session (KIP-227) or without."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    NONE,
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kcore.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from kcore.replica.fetch_params import ClientMetadata, FetchInfos, FetchParams, FetchPartitionResult
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.fetch_reader import FetchReader
from kcore.server.requests.fetch_session import FINAL_EPOCH, INITIAL_EPOCH, Answers, fetch_partition_data
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import NETWORK_THREAD, RunsOn
from kcore.server.requests.services import Services
from kcore.server.requests.session_reader import SessionRead, SessionReader

_READ_COMMITTED = 1
_WITHOUT_RACK = ClientMetadata("", "")


class Handler:
    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self._max_bytes: int = services.config["fetch.max.bytes"]
        self._sessions = services.fetch_sessions
        self._leader_quota = services.replication_quotas.leader
        self._client_quotas = services.client_quotas
        self._auth = services.auth
        manager, pool = services.replica_manager, services.request_handler_pool
        lag_ms = services.config["replica.lag.time.max.ms"]
        self._reader = FetchReader(manager, pool, compares_topic_ids=services.cluster_member is not None)
        self._session_reader = SessionReader(self._sessions, self._reader, manager, services.time, lag_ms)

    def runs_on(self, context: RequestContext, body: FetchRequest) -> RunsOn:
        if body.session_epoch > INITIAL_EPOCH:
            return RunsOn.POOL if self._session_reader.reads_many(body) else NETWORK_THREAD
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
        infos: FetchInfos = []
        refused: dict[tuple[int, int], int] = {}
        denied: Collection[int] = ()
        if self._auth.is_enabled:
            names = [topic.topic if version < 13 else cache.topic_name(topic.topic_id) for topic in body.topics]
            denied = self._denied(context, body, names)
        may_refuse = self._reader.may_refuse[version]
        for t, topic in enumerate(body.topics):
            name = topic.topic if version < 13 else cache.topic_name(topic.topic_id)
            if name is None or t in denied:
                code = TopicAuthorizationFailed.code if t in denied else UnknownTopicId.code
                refused.update(((t, p), code) for p in range(len(topic.partitions)))
                continue
            for p, partition in enumerate(topic.partitions):
                topic_partition = TopicPartition(name, partition.partition)
                if not cache.contains(topic_partition):
                    refused[t, p] = UnknownTopicOrPartition.code
                elif may_refuse and (error := self._reader.refusal(version, topic_partition, topic.topic_id)):
                    refused[t, p] = error.code
                else:
                    infos.append((topic_partition, fetch_partition_data(partition)))

        def respond(results: list[tuple[TopicPartition, FetchPartitionResult]]) -> None:
            if self._client_quotas.is_enabled and (throttle_ms := self._throttle_ms(context, body, results)):
                context.respond(FetchResponse(), throttle_ms)
            else:
                context.respond(FetchResponse(responses=_responses(body.topics, results, refused)))

        if infos:
            self._reader.read(context, self._params(context, body), infos, respond)
        else:
            respond([])

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
        self, context: RequestContext, body: FetchRequest, results: Iterable[tuple[object, FetchPartitionResult]]
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
        max_bytes = body.max_bytes if body.max_bytes < self._max_bytes else self._max_bytes
        client_quota = self._client_quotas.fetch
        if client_quota.is_enabled and replica_id < 0:
            in_window = client_quota.max_amount_in_window(context.principal.name, context.client_id)
            max_bytes = int(min(max_bytes, in_window))
        client, sent_from = None, None
        if replica_id < 0:
            sent_from = context.request.connection.context.sent_from
            if version >= 11:
                client = ClientMetadata(body.rack_id, context.listener_name) if body.rack_id else _WITHOUT_RACK
        replica_epoch = body.replica_state.replica_epoch if version >= 15 else -1
        min_bytes = body.min_bytes if body.min_bytes < max_bytes else max_bytes
        isolation = FetchParams.isolation_of(replica_id, body.isolation_level == _READ_COMMITTED)
        hard_max_bytes = version <= 2
        quota = self._leader_quota if replica_id >= 0 and self._leader_quota.is_bounded else None
        # By position: names cost a third of a microsecond more.
        return FetchParams(
            replica_id,
            replica_epoch,
            body.max_wait_ms,
            min_bytes,
            max_bytes,
            isolation,
            hard_max_bytes,
            client,
            quota,
            sent_from,
        )

    def _handle_in_session(self, context: RequestContext, body: FetchRequest) -> None:
        """A fetch that begins or continues a session."""

        def respond(read: SessionRead) -> None:
            if self._client_quotas.is_enabled and (throttle_ms := self._throttle_ms(context, body, read.answers)):
                read.put_back()
                context.respond(FetchResponse(session_id=fetch.session_id), throttle_ms)
                return
            try:
                session_id, answers = read.select()
            except InvalidFetchSessionEpoch as error:
                context.respond(FetchResponse(error_code=error.code))
            else:
                context.respond(FetchResponse(session_id=session_id, responses=_session_responses(answers)))

        denied = partial(self._denied, context, body) if self._auth.is_enabled else None
        try:
            fetch = self._sessions.new_context(body, context.api_version, _replica_id(body, context.api_version) >= 0)
            self._session_reader.read(
                context, fetch, self._params(context, body), self._cache.snapshot, denied, respond
            )
        except (FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch) as error:
            context.respond(FetchResponse(error_code=error.code))

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


def _session_responses(answers: Answers) -> list[FetchableTopicResponse]:
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
