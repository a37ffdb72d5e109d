"""ListPartitionReassignments (46)."""

from __future__ import annotations

from collections.abc import Mapping

from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_context import ReplicaAssignment
from kcore.errors import ApiError
from kcore.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.NETWORK_THREAD  # the controller's thread answers

    def __init__(self, services: Services) -> None:
        self._partition_admin = services.partition_admin

    def handle(self, context: RequestContext, body: ListPartitionReassignmentsRequest) -> None:
        wanted = None
        if body.topics is not None:
            wanted = [TopicPartition(topic.name, number) for topic in body.topics for number in topic.partition_indexes]

        def respond(running: Mapping[TopicPartition, ReplicaAssignment] | ApiError) -> None:
            if isinstance(running, ApiError):
                context.respond(ListPartitionReassignmentsResponse(error_code=running.code, error_message=str(running)))
                return
            topics: dict[str, list[OngoingPartitionReassignment]] = {}
            for (name, number), assignment in running.items():
                topics.setdefault(name, []).append(
                    OngoingPartitionReassignment(
                        partition_index=number,
                        replicas=list(assignment.replicas),
                        adding_replicas=list(assignment.adding),
                        removing_replicas=list(assignment.removing),
                    )
                )
            context.respond(
                ListPartitionReassignmentsResponse(
                    topics=[OngoingTopicReassignment(name=name, partitions=p) for name, p in topics.items()]
                )
            )

        self._partition_admin.list_partition_reassignments(wanted, respond)

    def error_response(
        self, body: ListPartitionReassignmentsRequest, error_code: int, version: int
    ) -> ListPartitionReassignmentsResponse:
        return ListPartitionReassignmentsResponse(error_code=error_code)
