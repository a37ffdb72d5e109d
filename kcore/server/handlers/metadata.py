"""Metadata (3): brokers, topics, leaders; creates requested topics that are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple
from uuid import UUID

from kcore.common import topic_names
from kcore.common.topic_partition import ZERO_UUID
from kcore.errors import (
    NONE,
    ApiError,
    InvalidRequest,
    LeaderNotAvailable,
    ListenerNotFound,
    PolicyViolation,
    ReplicaNotAvailable,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
    code_of,
)
from kcore.metadata.metadata_cache import NO_LEADER, MetadataSnapshot, TopicInfo
from kcore.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.auth_helper import NOT_ASKED
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services
from kcore.server.topics.admin_manager import check_num_partitions

#: Partitions in an answer of half a millisecond.
_MAX_INLINE_PARTITIONS = 300


#: A requested topic: its id, zero for none, and its name.
_Key = tuple[UUID, str | None]


class _View(NamedTuple):
    """What one client sees of a snapshot.  broker_ids: those in the response, which have a listener of the client's."""

    snapshot: MetadataSnapshot
    broker_ids: frozenset[int]
    version: int
    #: Of a topic by name, as bits; None where the request did not ask.
    operations: Callable[[str], int] | None

    @classmethod
    def of(cls, snapshot: MetadataSnapshot, context: RequestContext, operations: Callable[[str], int] | None) -> _View:
        endpoints = snapshot.endpoints(context.listener_name)
        return cls(snapshot, frozenset(broker.node_id for broker, _ in endpoints), context.api_version, operations)


class Handler:
    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self._admin = services.admin_manager
        self._config = services.config
        self._auth = services.auth

    def runs_on(self, context: RequestContext, body: MetadataRequest) -> RunsOn:
        """By whether a topic is to be created, or the answer is a large one."""
        cache = self._cache.snapshot
        num_partitions = 0
        if body.topics is None or (context.api_version == 0 and not body.topics):
            for topic in cache.topics():
                num_partitions += len(topic.partitions)
                if num_partitions > _MAX_INLINE_PARTITIONS:
                    break
        else:
            creates = self._config["auto.create.topics.enable"] and body.allow_auto_topic_creation
            for requested in body.topics:
                is_by_name = requested.topic_id == ZERO_UUID
                name = (requested.name if is_by_name else cache.topic_name(requested.topic_id)) or ""
                topic_info = cache.topic(name)
                if topic_info is not None:
                    num_partitions += len(topic_info.partitions)
                elif creates and is_by_name and topic_names.is_legal(name):
                    return RunsOn.TOPIC_CHANGES
        return RunsOn.POOL if num_partitions > _MAX_INLINE_PARTITIONS else RunsOn.NETWORK_THREAD

    def handle(self, context: RequestContext, body: MetadataRequest) -> None:
        if self._cache.snapshot.broker_ids():
            self._respond(context, body)
        else:
            # A member of a cluster before the controller's first request.  librdkafka forgets all brokers when a
            # response names none, and may then hang for ever.
            self._admin.when_there_are_brokers(lambda: self._respond(context, body, may_create=False))

    def _respond(self, context: RequestContext, body: MetadataRequest, *, may_create: bool = True) -> None:
        """may_create=False: on a thread that must not wait for the store."""
        version = context.api_version
        operations = None
        if body.include_topic_authorized_operations:
            operations = partial(self._auth.authorized_operations, context, ResourceType.TOPIC)
        if body.topics is None or (version == 0 and not body.topics):
            snapshot = self._cache.snapshot
            view = _View.of(snapshot, context, operations)
            described = list(snapshot.topics())
            if self._auth.is_enabled:
                names = [topic.name for topic in described]
                permitted = self._auth.filter_by_authorized(
                    context, AclOperation.DESCRIBE, ResourceType.TOPIC, names, log_if_denied=False
                )
                described = [topic for topic in described if topic.name in permitted]
            topics = [_describe(topic, view) for topic in described]
        else:
            if version < 12 and any(topic.name is None or topic.topic_id != ZERO_UUID for topic in body.topics):
                # The field is in versions 10 and 11, but Kafka's brokers learnt to answer it with 12.
                context.respond(self.error_response(body, InvalidRequest.code, context.api_version))
                return
            creates = self._config["auto.create.topics.enable"] and body.allow_auto_topic_creation
            # Each topic once, as in Kafka: a request with one name a million times would make a response of a gigabyte.
            requested = {(topic.topic_id, topic.name): topic for topic in body.topics}
            requested_keys = list(requested)
            denied: dict[_Key, MetadataResponseTopic] = {}
            if self._auth.is_enabled:
                denied = self._denied(context, requested_keys, creates=creates)
                requested = {key: topic for key, topic in requested.items() if key not in denied}
            refused: Mapping[str, ApiError] = {}
            if not self._cache.snapshot.broker_ids():
                # There is no controller.  This broker does not know which topics exist, and a client raises an error
                # for "unknown topic", but asks again for "no leader".
                refused = {name: LeaderNotAvailable(name) for _, name in requested if name}
            elif creates and may_create:
                refused = self._create_missing(context, requested.values())
            elif creates:
                refused = {name: LeaderNotAvailable(name) for _, name in requested if name and not self._has(name)}
            # One snapshot for the whole answer, taken after the missing topics were created.
            snapshot = self._cache.snapshot
            view = _View.of(snapshot, context, operations)
            topics = [denied.get(key) or _answer(requested[key], refused, view) for key in requested_keys]
        context.respond(
            MetadataResponse(
                brokers=[
                    MetadataResponseBroker(
                        node_id=broker.node_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                    )
                    for broker, endpoint in snapshot.endpoints(context.listener_name)
                ],
                cluster_id=snapshot.cluster_id,
                controller_id=snapshot.controller_id,
                topics=topics,
                cluster_authorized_operations=(
                    self._auth.cluster_operations(context) if body.include_cluster_authorized_operations else NOT_ASKED
                ),
            )
        )

    def _denied(
        self, context: RequestContext, requested: list[_Key], *, creates: bool
    ) -> dict[_Key, MetadataResponseTopic]:
        """The answers for topics that the client may not see, whether they exist or not, or that it may not create.

        Source: KafkaApis.handleTopicMetadataRequest, Kafka 3.9.
        """
        snapshot = self._cache.snapshot
        names = {key: key[1] if key[0] == ZERO_UUID else snapshot.topic_name(key[0]) for key in requested}
        known = [name for name in names.values() if name]
        permitted = self._auth.filter_by_authorized(context, AclOperation.DESCRIBE, ResourceType.TOPIC, known)
        may_create = permitted
        missing = [name for name in permitted if snapshot.topic(name) is None]
        if creates and missing and not self._auth.authorize_cluster(context, AclOperation.CREATE, log_if_denied=False):
            may_create = self._auth.filter_by_authorized(context, AclOperation.CREATE, ResourceType.TOPIC, missing)
        denied = {}
        for (topic_id, asked_name), name in names.items():
            if topic_id != ZERO_UUID and name is None:
                # It stays unknown, also if another client makes it meanwhile.
                error_code = UnknownTopicId.code
            elif name and (name not in permitted or (snapshot.topic(name) is None and name not in may_create)):
                error_code = TopicAuthorizationFailed.code
            else:
                continue
            is_internal = name is not None and name in permitted and topic_names.is_internal(name)
            denied[topic_id, asked_name] = MetadataResponseTopic(
                error_code=error_code,
                name=None if topic_id != ZERO_UUID else name,
                topic_id=topic_id,
                is_internal=is_internal,
            )
        return denied

    def _has(self, name: str) -> bool:
        return self._cache.topic(name) is not None

    def _create_missing(
        self, context: RequestContext, topics: Iterable[MetadataRequestTopic]
    ) -> Mapping[str, ApiError]:
        """Create the topics that are requested by name and missing.  Returns the errors by topic name."""
        names = [topic.name or "" for topic in topics if topic.topic_id == ZERO_UUID]
        missing = [name for name in names if topic_names.is_legal(name) and not self._has(name)]
        counts = {name: self._admin.num_auto_created(name) for name in missing}
        refused: dict[str, ApiError] = {}
        try:
            check_num_partitions(sum(counts.values()))
        except PolicyViolation as error:
            return {name: error for name, count in counts.items() if count}
        for name in missing:
            if context.is_abandoned:
                break
            try:
                if self._admin.auto_create_topic(name):
                    # In a cluster it is in the metadata once the controller has elected leaders.
                    refused[name] = LeaderNotAvailable(name)
            except ApiError as error:
                refused[name] = error
        return refused

    def error_response(self, body: MetadataRequest, error_code: int, version: int) -> MetadataResponse:
        return MetadataResponse(
            error_code=error_code,
            topics=[
                MetadataResponseTopic(error_code=error_code, name=topic.name or "", topic_id=topic.topic_id)
                for topic in body.topics or ()
            ],
        )


def _answer(requested: MetadataRequestTopic, refused: Mapping[str, ApiError], view: _View) -> MetadataResponseTopic:
    """One requested topic, by id if it has one."""
    snapshot = view.snapshot
    if requested.topic_id != ZERO_UUID:
        by_id = snapshot.topic_by_id(requested.topic_id)
        if by_id is None:
            return MetadataResponseTopic(error_code=UnknownTopicId.code, name=None, topic_id=requested.topic_id)
        return _describe(by_id, view)
    name = requested.name or ""
    topic = snapshot.topic(name)
    if topic is not None:
        return _describe(topic, view)
    error = refused.get(name) or _name_error(name)
    error_code = code_of(error) if error is not None else UnknownTopicOrPartition.code
    return MetadataResponseTopic(error_code=error_code, name=name, is_internal=topic_names.is_internal(name))


def _name_error(name: str) -> ApiError | None:
    try:
        topic_names.validate(name)
    except ApiError as error:
        return error
    return None


def _describe(topic: TopicInfo, view: _View) -> MetadataResponseTopic:
    partitions = []
    for number, info in topic.partitions.items():
        error_code, leader = NONE, info.leader
        if leader not in view.broker_ids:
            # From version 6 on there is an error of its own for a live leader without a listener of the client's name.
            is_alive = view.version >= 6 and view.snapshot.broker(leader) is not None
            error_code, leader = (ListenerNotFound if is_alive else LeaderNotAvailable).code, NO_LEADER
        replicas, isr = list(info.replicas), list(info.isr)
        if view.version == 0:
            # The first clients take a replica that is not among the response's brokers for an error.
            replicas, isr = [r for r in replicas if r in view.broker_ids], [r for r in isr if r in view.broker_ids]
            if error_code == NONE and len(replicas) + len(isr) < len(info.replicas) + len(info.isr):
                error_code = ReplicaNotAvailable.code
        partitions.append(
            MetadataResponsePartition(
                error_code=error_code,
                partition_index=number,
                leader_id=leader,
                leader_epoch=info.leader_epoch,
                replica_nodes=replicas,
                isr_nodes=isr,
                offline_replicas=list(info.offline_replicas),
            )
        )
    return MetadataResponseTopic(
        error_code=NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic_names.is_internal(topic.name),
        partitions=partitions,
        topic_authorized_operations=NOT_ASKED if view.operations is None else view.operations(topic.name),
    )
