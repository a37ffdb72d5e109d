"""ElectLeaders (43): answered once this broker's metadata have the new leaders."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kcore.common.topic_partition import TopicPartition
from kcore.controller.leader_elections import ElectionType
from kcore.errors import NONE, ApiError, ElectionNotNeeded, InvalidRequest, RequestTimedOut, code_of
from kcore.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services
from kcore.server.topics.topic_changes import has_leader


class Handler:
    def __init__(self, services: Services) -> None:
        self._partition_admin = services.partition_admin
        self._cache = services.metadata_cache
        self._admin = services.admin_manager

    def runs_on(self, context: RequestContext, body: ElectLeadersRequest) -> RunsOn:
        """All partitions can be many; else the controller's thread answers."""
        return RunsOn.POOL if body.topic_partitions is None else RunsOn.NETWORK_THREAD

    def handle(self, context: RequestContext, body: ElectLeadersRequest) -> None:
        if body.election_type not in ElectionType.__members__.values():
            context.respond(self.error_response(body, InvalidRequest.code, context.api_version))
            return
        wanted = self._wanted(body)

        def respond(results: Mapping[TopicPartition, int | ApiError] | ApiError) -> None:
            if isinstance(results, ApiError):
                # As Kafka: the error stands with each partition.
                results = dict.fromkeys(wanted, results)
            leaders = {tp: leader for tp, leader in results.items() if isinstance(leader, int)}
            errors = {tp: error for tp, error in results.items() if not isinstance(error, int)}
            if body.topic_partitions is None:
                errors = {tp: e for tp, e in errors.items() if not isinstance(e, ElectionNotNeeded)}
            changes = {str(tp): has_leader(tp, leader) for tp, leader in leaders.items()}

            def respond_when_known(missing: Collection[str]) -> None:
                late = RequestTimedOut("The metadata do not have the new leader yet.")
                known: dict[TopicPartition, ApiError | None] = {
                    tp: late if str(tp) in missing else None for tp in leaders
                }
                context.respond(ElectLeadersResponse(replica_election_results=_by_topic(errors | known)))

            self._admin.when_done(changes, body.timeout_ms, respond_when_known)

        self._partition_admin.elect_leaders(ElectionType(body.election_type), wanted, respond)

    def _wanted(self, body: ElectLeadersRequest) -> list[TopicPartition]:
        if body.topic_partitions is None:
            return [TopicPartition(topic.name, number) for topic in self._cache.topics() for number in topic.partitions]
        asked = [TopicPartition(t.topic, number) for t in body.topic_partitions for number in t.partitions]
        return list(dict.fromkeys(asked))

    def error_response(self, body: ElectLeadersRequest, error_code: int, version: int) -> ElectLeadersResponse:
        if version > 0:
            return ElectLeadersResponse(error_code=error_code)
        return ElectLeadersResponse(
            replica_election_results=[
                ReplicaElectionResult(
                    topic=topic.topic,
                    partition_result=[
                        PartitionResult(partition_id=number, error_code=error_code) for number in topic.partitions
                    ],
                )
                for topic in body.topic_partitions or ()
            ]
        )


def _by_topic(results: Mapping[TopicPartition, ApiError | None]) -> list[ReplicaElectionResult]:
    topics: dict[str, list[PartitionResult]] = {}
    for (name, number), error in results.items():
        topics.setdefault(name, []).append(
            PartitionResult(
                partition_id=number,
                error_code=NONE if error is None else code_of(error),
                error_message=None if error is None else str(error),
            )
        )
    return [ReplicaElectionResult(topic=name, partition_result=partitions) for name, partitions in topics.items()]
