"""DeleteRecords (21): let logs start later."""

from __future__ import annotations

from kcore.common.topic_partition import TopicPartition
from kcore.errors import NONE, TopicAuthorizationFailed, UnknownTopicOrPartition, code_of
from kcore.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kcore.replica.delayed.delayed_delete_records import DeleteRecordsResult
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services

_UNKNOWN = DeleteRecordsResult(UnknownTopicOrPartition("no such partition"))
_DENIED = DeleteRecordsResult(TopicAuthorizationFailed("not authorized to delete"))


class Handler:
    runs_on = RunsOn.POOL  # writes the leader epochs, and there may be many partitions

    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self._replica_manager = services.replica_manager
        self._auth = services.auth

    def handle(self, context: RequestContext, body: DeleteRecordsRequest) -> None:
        offsets = {
            TopicPartition(topic.name, p.partition_index): p.offset for topic in body.topics for p in topic.partitions
        }
        cache = self._cache.snapshot
        names = [topic.name for topic in body.topics]
        permitted = self._auth.filter_by_authorized(context, AclOperation.DELETE, ResourceType.TOPIC, names)
        existing = {tp: offset for tp, offset in offsets.items() if tp.topic in permitted and cache.contains(tp)}

        def respond(results: dict[TopicPartition, DeleteRecordsResult]) -> None:
            topics = []
            for topic in body.topics:
                partitions = []
                without_result = _UNKNOWN if topic.name in permitted else _DENIED
                for p in topic.partitions:
                    result = results.get(TopicPartition(topic.name, p.partition_index), without_result)
                    partitions.append(
                        DeleteRecordsPartitionResult(
                            partition_index=p.partition_index,
                            low_watermark=result.low_watermark,
                            error_code=NONE if result.error is None else code_of(result.error),
                        )
                    )
                topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=partitions))
            context.respond(DeleteRecordsResponse(topics=topics))

        self._replica_manager.delete_records(existing, respond, body.timeout_ms)

    def error_response(self, body: DeleteRecordsRequest, error_code: int, version: int) -> DeleteRecordsResponse:
        return DeleteRecordsResponse(
            topics=[
                DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=[
                        DeleteRecordsPartitionResult(
                            partition_index=p.partition_index, low_watermark=-1, error_code=error_code
                        )
                        for p in topic.partitions
                    ],
                )
                for topic in body.topics
            ]
        )
