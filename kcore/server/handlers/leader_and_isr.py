"""LeaderAndIsr (4): the controller says which partitions this broker leads and follows (API-02, API-03)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from uuid import UUID

from kcore.common import topic_names
from kcore.common.text import counted, some_of
from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.errors import NONE, ApiError, InvalidPartitions, code_of
from kcore.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from kcore.replica.partition_state import LeaderAndIsrUpdate
from kcore.server.member.registration import NO_BROKER_EPOCH
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services

logger = logging.getLogger(__name__)


class Handler:
    runs_on = RunsOn.CONTROLLER_REQUESTS

    def __init__(self, services: Services) -> None:
        self._member = services.member

    def handle(self, context: RequestContext, body: LeaderAndIsrRequest) -> None:
        try:
            self._member.registration.check_broker_epoch(body.broker_epoch)
            updates, errors = _updates(body)
            results = self._member.orders.become_leader_or_follower(updates, body.controller_epoch)
            # Versions before 2 have no broker epoch.
            broker_epoch = body.broker_epoch if body.broker_epoch > NO_BROKER_EPOCH else self._member.broker_epoch
            self._member.leadership.orders_carried_out(broker_epoch)
            _log_changes(updates, results, body)
        except ApiError as error:
            context.respond(LeaderAndIsrResponse(error_code=code_of(error)))
            return
        # No quota delays the controller: its answer does not count towards any.
        context.respond(_response(body, errors | results, context.api_version))

    def error_response(self, body: LeaderAndIsrRequest, error_code: int, version: int) -> LeaderAndIsrResponse:
        return LeaderAndIsrResponse(error_code=error_code)


def _log_changes(
    updates: Iterable[LeaderAndIsrUpdate],
    results: Mapping[TopicPartition, ApiError | None],
    body: LeaderAndIsrRequest,
) -> None:
    """One line for each leader: a broker that dies changes those of thousands of partitions."""
    by_leader: dict[int, list[TopicPartition]] = {}
    for update in updates:
        if results[update.topic_partition] is None:
            by_leader.setdefault(update.leader, []).append(update.topic_partition)
    for leader, led in by_leader.items():
        by = f"broker {leader} leads" if leader >= 0 else "no broker leads"
        text = f"{by} {counted(len(led), 'partition')}: {some_of(led)}"
        logger.info("controller %d, epoch %d: %s", body.controller_id, body.controller_epoch, text)


def _updates(
    body: LeaderAndIsrRequest,
) -> tuple[list[LeaderAndIsrUpdate], dict[TopicPartition, ApiError | None]]:
    """What the request orders, each partition once; and the errors of partitions that cannot be."""
    updates: dict[TopicPartition, LeaderAndIsrUpdate] = {}
    errors: dict[TopicPartition, ApiError | None] = {}
    states = [(state.topic_name, ZERO_UUID, state) for state in body.ungrouped_partition_states]  # of old versions
    states += [
        (topic.topic_name, topic.topic_id, state) for topic in body.topic_states for state in topic.partition_states
    ]
    for topic, topic_id, state in states:
        topic_partition = TopicPartition(topic, state.partition_index)
        try:
            # The names of directories come from them.
            topic_names.validate(topic)
            if state.partition_index < 0:
                raise InvalidPartitions(f"{topic_partition}: partitions are numbered from 0")
        except ApiError as error:
            errors[topic_partition] = error
            continue
        updates[topic_partition] = LeaderAndIsrUpdate(
            topic_partition,
            state.leader,
            state.leader_epoch,
            tuple(state.isr),
            tuple(state.replicas),
            state.partition_epoch,
            topic_id if topic_id != ZERO_UUID else None,
            state.is_new,
            tuple(state.adding_replicas),
        )
    return list(updates.values()), errors


def _response(
    body: LeaderAndIsrRequest, results: Mapping[TopicPartition, ApiError | None], version: int
) -> LeaderAndIsrResponse:
    if version < 5:
        return LeaderAndIsrResponse(error_code=NONE, partition_errors=[_error(*item) for item in results.items()])
    topic_ids = {topic.topic_name: topic.topic_id for topic in body.topic_states}
    by_topic: dict[UUID, list[LeaderAndIsrPartitionError]] = {}
    for topic_partition, error in results.items():
        by_topic.setdefault(topic_ids[topic_partition.topic], []).append(_error(topic_partition, error))
    topics = [LeaderAndIsrTopicError(topic_id=topic_id, partition_errors=e) for topic_id, e in by_topic.items()]
    return LeaderAndIsrResponse(error_code=NONE, topics=topics)


def _error(topic_partition: TopicPartition, error: ApiError | None) -> LeaderAndIsrPartitionError:
    topic, number = topic_partition
    return LeaderAndIsrPartitionError(topic_name=topic, partition_index=number, error_code=code_of(error))
