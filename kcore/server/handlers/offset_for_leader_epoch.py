"""OffsetForLeaderEpoch (23): where an epoch ends in the leader's log."""

from __future__ import annotations

from collections.abc import Collection

from kcore.common.topic_partition import TopicPartition
from kcore.errors import NONE, ApiError, TopicAuthorizationFailed, UnknownTopicOrPartition, code_of
from kcore.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.NETWORK_THREAD

    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self._replica_manager = services.replica_manager
        self._auth = services.auth

    def handle(self, context: RequestContext, body: OffsetForLeaderEpochRequest) -> None:
        if body.replica_id >= 0:
            context.request_time = None  # a follower's requests count toward no quota
        permitted: Collection[str] = {topic.topic for topic in body.topics}
        # A follower's permission, or a consumer's (KIP-320).
        if not self._auth.authorize_cluster(context, AclOperation.CLUSTER_ACTION, log_if_denied=False):
            permitted = self._auth.filter_by_authorized(context, AclOperation.DESCRIBE, ResourceType.TOPIC, permitted)
        context.respond(
            OffsetForLeaderEpochResponse(
                topics=[
                    OffsetForLeaderTopicResult(
                        topic=topic.topic,
                        partitions=[
                            self._answer(TopicPartition(topic.topic, partition.partition), partition)
                            if topic.topic in permitted
                            else EpochEndOffset(partition=partition.partition, error_code=TopicAuthorizationFailed.code)
                            for partition in topic.partitions
                        ],
                    )
                    for topic in body.topics
                ]
            )
        )

    def _answer(self, topic_partition: TopicPartition, partition: OffsetForLeaderPartition) -> EpochEndOffset:
        try:
            if not self._cache.contains(topic_partition):
                raise UnknownTopicOrPartition(f"{topic_partition}: no such partition")
            hosted = self._replica_manager.get_partition_or_exception(topic_partition)
            epoch, end_offset = hosted.last_offset_for_leader_epoch(
                partition.leader_epoch, partition.current_leader_epoch
            )
        except ApiError as error:
            return EpochEndOffset(partition=partition.partition, error_code=code_of(error))
        return EpochEndOffset(partition=partition.partition, error_code=NONE, leader_epoch=epoch, end_offset=end_offset)

    def error_response(
        self, body: OffsetForLeaderEpochRequest, error_code: int, version: int
    ) -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[EpochEndOffset(partition=p.partition, error_code=error_code) for p in topic.partitions],
                )
                for topic in body.topics
            ]
        )
