"""Metadata (3): brokers, topics, leaders; creates topics that are asked for and missing."""

from __future__ import annotations

from kcore.common.topic_partition import ZERO_UUID
from kcore.errors import (
    NONE,
    ApiError,
    InvalidRequest,
    LeaderNotAvailable,
    UnknownTopicId,
    UnknownTopicOrPartition,
    code_of,
)
from kcore.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kcore.server import topic_names
from kcore.server.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from kcore.server.handlers import Services
from kcore.server.metadata_cache import NO_LEADER, TopicInfo
from kcore.server.request_context import RequestContext

#: Partitions in an answer of half a millisecond.
_MAX_INLINE_PARTITIONS = 300


class Handler:
    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self._admin = services.admin_manager
        self._config = services.config

    def may_block(self, context: RequestContext, body: MetadataRequest) -> bool:
        """Whether a topic is to be created, or the answer is a large one."""
        cache = self._cache
        left = _MAX_INLINE_PARTITIONS
        if body.topics is None or (context.api_version == 0 and not body.topics):
            for topic in cache.topics():
                left -= len(topic.partitions)
                if left < 0:
                    return True
            return False
        for asked in body.topics:
            name = asked.name if asked.topic_id == ZERO_UUID else cache.topic_name(asked.topic_id)
            topic_info = cache.topic(name or "")
            if topic_info is None:
                if self._config["auto.create.topics.enable"] and body.allow_auto_topic_creation:
                    return True
            else:
                left -= len(topic_info.partitions)
                if left < 0:
                    return True
        return False

    def handle(self, context: RequestContext, body: MetadataRequest) -> None:
        version = context.api_version
        operations = TOPIC_OPERATIONS if body.include_topic_authorized_operations else NOT_ASKED
        if body.topics is None or (version == 0 and not body.topics):
            topics = [self._describe(topic, operations) for topic in self._cache.topics()]
        else:
            if version < 12 and any(topic.name is None or topic.topic_id != ZERO_UUID for topic in body.topics):
                # The field is in versions 10 and 11, but Kafka's brokers learnt to answer it with 12.
                context.respond(self.error_response(body, InvalidRequest.code, context.api_version))
                return
            may_create = self._config["auto.create.topics.enable"] and body.allow_auto_topic_creation
            # Each topic once, as in Kafka: asked for a million times, one name would make a gigabyte of answer.
            asked = {(topic.topic_id, topic.name): topic for topic in body.topics}
            topics = [self._answer(topic, may_create, operations) for topic in asked.values()]
        context.respond(
            MetadataResponse(
                brokers=[
                    MetadataResponseBroker(node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
                    for broker in self._cache.brokers()
                ],
                cluster_id=self._cache.cluster_id,
                controller_id=self._cache.controller_id,
                topics=topics,
                cluster_authorized_operations=(
                    CLUSTER_OPERATIONS if body.include_cluster_authorized_operations else NOT_ASKED
                ),
            )
        )

    def _answer(self, asked: MetadataRequestTopic, may_create: bool, operations: int) -> MetadataResponseTopic:
        """One requested topic, by id if it has one."""
        if asked.topic_id != ZERO_UUID:
            name = self._cache.topic_name(asked.topic_id)
            topic = self._cache.topic(name) if name is not None else None
            if topic is None:
                return MetadataResponseTopic(error_code=UnknownTopicId.code, name=None, topic_id=asked.topic_id)
            return self._describe(topic, operations)
        name = asked.name or ""
        topic = self._cache.topic(name)
        if topic is None:
            try:
                topic_names.validate(name)
                topic = self._admin.auto_create_topic(name) if may_create else None
            except ApiError as error:
                return MetadataResponseTopic(
                    error_code=code_of(error), name=name, is_internal=topic_names.is_internal(name)
                )
        if topic is None:
            return MetadataResponseTopic(
                error_code=UnknownTopicOrPartition.code, name=name, is_internal=topic_names.is_internal(name)
            )
        return self._describe(topic, operations)

    def _describe(self, topic: TopicInfo, operations: int) -> MetadataResponseTopic:
        alive = self._cache.broker_ids()
        return MetadataResponseTopic(
            error_code=NONE,
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic_names.is_internal(topic.name),
            partitions=[
                MetadataResponsePartition(
                    error_code=NONE if info.leader != NO_LEADER else LeaderNotAvailable.code,
                    partition_index=number,
                    leader_id=info.leader,
                    leader_epoch=info.leader_epoch,
                    replica_nodes=list(info.replicas),
                    isr_nodes=list(info.isr),
                    offline_replicas=[
                        replica for replica in info.replicas if info.leader == NO_LEADER or replica not in alive
                    ],
                )
                for number, info in topic.partitions.items()
            ],
            topic_authorized_operations=operations,
        )

    def error_response(self, body: MetadataRequest, error_code: int, version: int) -> MetadataResponse:
        return MetadataResponse(
            error_code=error_code,
            topics=[
                MetadataResponseTopic(error_code=error_code, name=topic.name or "", topic_id=topic.topic_id)
                for topic in body.topics or ()
            ],
        )
