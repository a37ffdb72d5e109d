"""StopReplica (5): the controller takes replicas away from this broker, or its leadership, or deletes a topic."""

from __future__ import annotations

from collections.abc import Iterator

from kcore.common.topic_partition import TopicPartition
from kcore.errors import NONE, ApiError, code_of
from kcore.protocol.messages.stop_replica import StopReplicaPartitionError, StopReplicaRequest, StopReplicaResponse
from kcore.replica.partition_state import StopReplica
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.CONTROLLER_REQUESTS

    def __init__(self, services: Services) -> None:
        self._member = services.member

    def handle(self, context: RequestContext, body: StopReplicaRequest) -> None:
        try:
            self._member.registration.check_broker_epoch(body.broker_epoch)
            stops = {stop.topic_partition: stop for stop in _stops(body)}
            results = self._member.orders.stop_replicas(list(stops.values()), body.controller_epoch)
        except ApiError as error:
            context.respond(StopReplicaResponse(error_code=code_of(error)))
            return
        errors = [
            StopReplicaPartitionError(topic_name=topic, partition_index=number, error_code=code_of(error))
            for (topic, number), error in results.items()
        ]
        context.respond(StopReplicaResponse(error_code=NONE, partition_errors=errors))

    def error_response(self, body: StopReplicaRequest, error_code: int, version: int) -> StopReplicaResponse:
        return StopReplicaResponse(error_code=error_code)


def _stops(body: StopReplicaRequest) -> Iterator[StopReplica]:
    for state in body.ungrouped_partitions:
        yield StopReplica(TopicPartition(state.topic_name, state.partition_index), body.delete_partitions)
    for old_topic in body.topics:
        for number in old_topic.partition_indexes:
            yield StopReplica(TopicPartition(old_topic.name, number), body.delete_partitions)
    for topic in body.topic_states:
        for partition in topic.partition_states:
            topic_partition = TopicPartition(topic.topic_name, partition.partition_index)
            yield StopReplica(topic_partition, partition.delete_partition, partition.leader_epoch)
