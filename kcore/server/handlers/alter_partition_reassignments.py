"""AlterPartitionReassignments (45)."""

from __future__ import annotations

from collections.abc import Mapping

from kcore.common.topic_partition import TopicPartition
from kcore.errors import NONE, ApiError, code_of
from kcore.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.NETWORK_THREAD  # the controller's thread answers

    def __init__(self, services: Services) -> None:
        self._partition_admin = services.partition_admin

    def handle(self, context: RequestContext, body: AlterPartitionReassignmentsRequest) -> None:
        targets = {
            TopicPartition(topic.name, partition.partition_index): partition.replicas
            for topic in body.topics
            for partition in topic.partitions
        }

        def respond(results: Mapping[TopicPartition, ApiError | None] | ApiError) -> None:
            if isinstance(results, ApiError):
                response = AlterPartitionReassignmentsResponse(error_code=results.code, error_message=str(results))
            else:
                response = AlterPartitionReassignmentsResponse(responses=_by_topic(results))
            response.allow_replication_factor_change = body.allow_replication_factor_change
            context.respond(response)

        self._partition_admin.alter_partition_reassignments(targets, respond)

    def error_response(
        self, body: AlterPartitionReassignmentsRequest, error_code: int, version: int
    ) -> AlterPartitionReassignmentsResponse:
        return AlterPartitionReassignmentsResponse(error_code=error_code)


def _by_topic(results: Mapping[TopicPartition, ApiError | None]) -> list[ReassignableTopicResponse]:
    topics: dict[str, list[ReassignablePartitionResponse]] = {}
    for (name, number), error in results.items():
        topics.setdefault(name, []).append(
            ReassignablePartitionResponse(
                partition_index=number,
                error_code=NONE if error is None else code_of(error),
                error_message=None if error is None else str(error),
            )
        )
    return [ReassignableTopicResponse(name=name, partitions=partitions) for name, partitions in topics.items()]
