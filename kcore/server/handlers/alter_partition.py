"""AlterPartition (56): a leader that is a Java broker has the controller change its partitions' ISRs."""

from __future__ import annotations

from uuid import UUID

from kcore.controller.alter_partition import IsrAnswers, IsrChange
from kcore.controller.election import LeaderAndIsr
from kcore.errors import ApiError, code_of
from kcore.protocol.messages.alter_partition import (
    AlterPartitionPartitionData,
    AlterPartitionPartitionState,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopicState,
)
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services

#: The first version that has topic ids instead of names.
_WITH_IDS = 2
_WITH_EPOCHS = 3


class Handler:
    # Not CONTROLLER_REQUESTS: the controller sends some to this broker before it answers.
    runs_on = RunsOn.POOL

    def __init__(self, services: Services) -> None:
        self._member = services.member

    def handle(self, context: RequestContext, body: AlterPartitionRequest) -> None:
        version = context.api_version
        topics = [topic.topic_id if version >= _WITH_IDS else topic.topic_name for topic in body.topics]
        changes = [
            _change(name, partition, version)
            for name, topic in zip(topics, body.topics, strict=True)
            for partition in topic.partitions
        ]

        def on_done(answers: IsrAnswers | ApiError) -> None:
            if isinstance(answers, ApiError):
                context.respond(AlterPartitionResponse(error_code=code_of(answers)))
                return
            remaining = iter(zip(changes, answers, strict=True))
            context.respond(
                AlterPartitionResponse(
                    topics=[
                        AlterPartitionTopicState(
                            topic_name=topic.topic_name,
                            topic_id=topic.topic_id,
                            partitions=[_answer(*next(remaining)) for _ in topic.partitions],
                        )
                        for topic in body.topics
                    ]
                )
            )

        self._member.controller.isr_changes.request(body.broker_id, body.broker_epoch, changes, on_done)

    def error_response(self, body: AlterPartitionRequest, error_code: int, version: int) -> AlterPartitionResponse:
        return AlterPartitionResponse(error_code=error_code)


def _change(topic: str | UUID, partition: AlterPartitionPartitionData, version: int) -> IsrChange:
    if version >= _WITH_EPOCHS:
        isr = tuple(state.broker_id for state in partition.new_isr_with_epochs)
        epochs = {s.broker_id: s.broker_epoch for s in partition.new_isr_with_epochs if s.broker_epoch >= 0}
    else:
        isr, epochs = tuple(partition.new_isr), {}
    return IsrChange(
        topic,
        partition.partition_index,
        partition.leader_epoch,
        partition.partition_epoch,
        isr,
        epochs,
        partition.leader_recovery_state != 0,
    )


def _answer(change: IsrChange, answer: LeaderAndIsr | ApiError) -> AlterPartitionPartitionState:
    if isinstance(answer, ApiError):
        return AlterPartitionPartitionState(partition_index=change.partition, error_code=code_of(answer))
    return AlterPartitionPartitionState(
        partition_index=change.partition,
        leader_id=answer.leader,
        leader_epoch=answer.leader_epoch,
        isr=list(answer.isr),
        partition_epoch=answer.partition_epoch,
    )
