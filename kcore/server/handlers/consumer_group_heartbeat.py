"""ConsumerGroupHeartbeat (68): join, stay in and leave a consumer group of KIP-848."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kcore.common.random_source import SYSTEM_RANDOM, random_uuid
from kcore.coordinator.group.consumer_group import JOIN_EPOCH, LEAVE_STATIC_EPOCH, Heartbeat
from kcore.coordinator.group.consumer_group_coordinator import HeartbeatResult
from kcore.coordinator.group.consumer_group_records import by_topic
from kcore.errors import ApiError, InvalidRequest, TopicAuthorizationFailed
from kcore.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatAssignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatTopicPartitions,
)
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.coordinator_writes import group_writes_run_on
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.services import Services


class Handler:
    def __init__(self, services: Services) -> None:
        self.runs_on = group_writes_run_on(services.admin_manager)
        self._coordinator = services.group_coordinator.consumer_groups
        self._auth = services.auth

    def handle(self, context: RequestContext, body: ConsumerGroupHeartbeatRequest) -> None:
        try:
            _check(body, context.api_version)
            self._check_topics(context, body)
        except ApiError as error:
            context.respond(ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=str(error)))
            return

        def respond(result: HeartbeatResult) -> None:
            context.respond(self._response(body.group_id, result))

        if body.member_epoch < JOIN_EPOCH:
            self._coordinator.leave(body.group_id, body.member_id, body.member_epoch, body.instance_id, respond)
            return
        beat = Heartbeat(
            # Clients of version 0 have none when they join.
            body.member_id or str(random_uuid(SYSTEM_RANDOM)),
            body.member_epoch,
            body.instance_id,
            body.rack_id,
            body.rebalance_timeout_ms,
            # A member without names wants the topics of a regular expression.
            [] if body.subscribed_topic_names is None and body.member_epoch == 0 else body.subscribed_topic_names,
            body.server_assignor,
            None
            if body.topic_partitions is None
            else frozenset((topic.topic_id, number) for topic in body.topic_partitions for number in topic.partitions),
            context.client_id,
            f"/{context.client_address}",
            body.subscribed_topic_regex,
        )

        def permitted(names: Iterable[str]) -> Collection[str]:
            return self._auth.filter_by_authorized(
                context, AclOperation.DESCRIBE, ResourceType.TOPIC, names, log_if_denied=False
            )

        self._coordinator.heartbeat(body.group_id, beat, respond, permitted)

    def _check_topics(self, context: RequestContext, body: ConsumerGroupHeartbeatRequest) -> None:
        names = set(body.subscribed_topic_names or ())
        denied = names - set(
            self._auth.filter_by_authorized(context, AclOperation.DESCRIBE, ResourceType.TOPIC, sorted(names))
        )
        if denied:
            raise TopicAuthorizationFailed("Topic authorization failed.")

    def _response(self, group_id: str, result: HeartbeatResult) -> ConsumerGroupHeartbeatResponse:
        if result.error_code:
            return ConsumerGroupHeartbeatResponse(error_code=result.error_code, error_message=result.error_message)
        assignment = None
        if result.assignment is not None:
            assignment = ConsumerGroupHeartbeatAssignment(
                topic_partitions=[
                    ConsumerGroupHeartbeatTopicPartitions(topic_id=topic_id, partitions=numbers)
                    for topic_id, numbers in by_topic(result.assignment)
                ]
            )
        return ConsumerGroupHeartbeatResponse(
            member_id=result.member_id,
            member_epoch=result.member_epoch,
            heartbeat_interval_ms=self._coordinator.settings_of(group_id).heartbeat_interval_ms,
            assignment=assignment,
        )

    def error_response(
        self, body: ConsumerGroupHeartbeatRequest, error_code: int, version: int
    ) -> ConsumerGroupHeartbeatResponse:
        return ConsumerGroupHeartbeatResponse(error_code=error_code)


def _check(body: ConsumerGroupHeartbeatRequest, version: int) -> None:
    """Raises InvalidRequest.

    Source: GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid, Kafka 4.2.
    """
    if not body.group_id.strip():
        raise InvalidRequest("GroupId can't be empty.")
    for name, value in (("InstanceId", body.instance_id), ("RackId", body.rack_id)):
        if value is not None and not value.strip():
            raise InvalidRequest(f"{name} can't be empty.")
    if not body.member_id and (version >= 1 or body.member_epoch != JOIN_EPOCH):
        raise InvalidRequest("MemberId can't be empty.")
    if body.member_epoch < LEAVE_STATIC_EPOCH:
        raise InvalidRequest(f"MemberEpoch is {body.member_epoch}, but must be greater than or equal to -2.")
    if body.member_epoch == LEAVE_STATIC_EPOCH and body.instance_id is None:
        raise InvalidRequest("InstanceId can't be null for member epoch -2.")
    if body.member_epoch == JOIN_EPOCH:
        if body.rebalance_timeout_ms == -1:
            raise InvalidRequest("RebalanceTimeoutMs must be provided in first request.")
        if body.topic_partitions is None or body.topic_partitions:
            raise InvalidRequest("TopicPartitions must be empty when (re-)joining.")
        if body.subscribed_topic_names is None and body.subscribed_topic_regex is None:
            raise InvalidRequest("Either SubscribedTopicNames or SubscribedTopicRegex must be set.")
