"""OffsetCommit (8): how far a group has read; from version 10 topics by id."""

from __future__ import annotations

from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.committed_offset import OffsetAndMetadata
from kcore.errors import TopicAuthorizationFailed, UnknownTopicId, UnknownTopicOrPartition
from kcore.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.coordinator_writes import group_writes_run_on
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.services import Services


class Handler:
    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self.runs_on = group_writes_run_on(services.admin_manager)
        self._group_coordinator = services.group_coordinator
        self._time = services.time
        self._auth = services.auth

    def handle(self, context: RequestContext, body: OffsetCommitRequest) -> None:
        cache = self._cache.snapshot
        now = self._time.milliseconds()
        by_id = context.api_version >= 10
        names = [cache.topic_name(topic.topic_id) if by_id else topic.name for topic in body.topics]
        known = [name for name in names if name is not None]
        permitted = self._auth.filter_by_authorized(context, AclOperation.READ, ResourceType.TOPIC, known)
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for topic, name in zip(body.topics, names, strict=True):
            if name is not None and name not in permitted:
                continue
            for partition in topic.partitions:
                topic_partition = TopicPartition(name or "", partition.partition_index)
                if name is None or not cache.contains(topic_partition):
                    continue
                committed = partition.commit_timestamp if partition.commit_timestamp >= 0 else now
                offsets[topic_partition] = OffsetAndMetadata(
                    partition.committed_offset,
                    partition.committed_metadata or "",
                    partition.committed_leader_epoch,
                    committed,
                    committed + body.retention_time_ms if body.retention_time_ms >= 0 else None,
                )

        def respond(codes: dict[TopicPartition, int]) -> None:
            context.respond(
                OffsetCommitResponse(
                    topics=[
                        OffsetCommitResponseTopic(
                            name=topic.name,
                            topic_id=topic.topic_id,
                            partitions=[
                                OffsetCommitResponsePartition(
                                    partition_index=partition.partition_index,
                                    error_code=UnknownTopicId.code
                                    if name is None
                                    else TopicAuthorizationFailed.code
                                    if name not in permitted
                                    else codes.get(
                                        TopicPartition(name, partition.partition_index), UnknownTopicOrPartition.code
                                    ),
                                )
                                for partition in topic.partitions
                            ],
                        )
                        for topic, name in zip(body.topics, names, strict=True)
                    ]
                )
            )

        if not offsets:
            respond({})
            return
        self._group_coordinator.offsets.commit(
            body.group_id,
            body.member_id,
            body.group_instance_id,
            body.generation_id_or_member_epoch,
            offsets,
            respond,
            has_member_epochs=context.api_version >= 9,
        )

    def error_response(self, body: OffsetCommitRequest, error_code: int, version: int) -> OffsetCommitResponse:
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        OffsetCommitResponsePartition(partition_index=p.partition_index, error_code=error_code)
                        for p in topic.partitions
                    ],
                )
                for topic in body.topics
            ]
        )
