"""OffsetDelete (47): forget what a group has committed for some partitions."""

from __future__ import annotations

from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.group_admin import OffsetDeleteResult
from kcore.errors import TopicAuthorizationFailed, UnknownTopicOrPartition
from kcore.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.POOL  # may fsync, by flush.messages of the offsets topic

    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self._group_admin = services.group_coordinator.admin
        self._auth = services.auth

    def handle(self, context: RequestContext, body: OffsetDeleteRequest) -> None:
        partitions = [TopicPartition(topic.name, p.partition_index) for topic in body.topics for p in topic.partitions]
        cache = self._cache.snapshot
        names = [topic.name for topic in body.topics]
        permitted = self._auth.filter_by_authorized(context, AclOperation.READ, ResourceType.TOPIC, names)
        existing = [tp for tp in partitions if tp.topic in permitted and cache.contains(tp)]

        def respond(result: OffsetDeleteResult) -> None:
            if result.error_code:
                context.respond(OffsetDeleteResponse(error_code=result.error_code))
                return
            codes = result.partitions
            context.respond(
                OffsetDeleteResponse(
                    topics=[
                        OffsetDeleteResponseTopic(
                            name=topic.name,
                            partitions=[
                                OffsetDeleteResponsePartition(
                                    partition_index=p.partition_index,
                                    error_code=TopicAuthorizationFailed.code
                                    if topic.name not in permitted
                                    else codes.get(
                                        TopicPartition(topic.name, p.partition_index), UnknownTopicOrPartition.code
                                    ),
                                )
                                for p in topic.partitions
                            ],
                        )
                        for topic in body.topics
                    ]
                )
            )

        self._group_admin.delete_offsets(body.group_id, existing, respond)

    def error_response(self, body: OffsetDeleteRequest, error_code: int, version: int) -> OffsetDeleteResponse:
        return OffsetDeleteResponse(error_code=error_code)
