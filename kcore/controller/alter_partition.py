"""AlterPartition: the controller changes ISRs for leaders that do not write their state nodes themselves.

Java brokers send it from inter.broker.protocol.version 2.7 on.  Source: KafkaController.processAlterPartition, Kafka
3.9; KIP-497, KIP-841, KIP-903.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from uuid import UUID

from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_context import ControllerContext
from kcore.controller.controller_request_batch import ControllerBrokerRequestBatch
from kcore.controller.controller_store import ControllerStore
from kcore.controller.election import LeaderAndIsr
from kcore.errors import (
    ApiError,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    NotController,
    StaleBrokerEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)

logger = logging.getLogger(__name__)


class IsrChange(NamedTuple):
    """What a leader asks for.  topic: its name or its id.  broker_epochs: of the ISR's members, as far as the leader
    knows them.  is_recovering: the leader was elected uncleanly and has not recovered."""

    topic: str | UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    broker_epochs: Mapping[int, int] = {}
    is_recovering: bool = False


#: For each change, in the same order: the state that is stored now, or why it was not changed.
IsrAnswers = Sequence[LeaderAndIsr | ApiError]
#: Gets the answers, or the error of the whole request.
OnIsrsAltered = Callable[[IsrAnswers | ApiError], None]


def checked_isr_change(
    change: IsrChange, broker_id: int, current: LeaderAndIsr | None, eligible: Mapping[int, int]
) -> LeaderAndIsr | ApiError:
    """The state to store, which is `current` itself if it has this ISR already; or why it is not stored.

    eligible: brokers that may join the ISR -> their epochs.
    """
    if current is None:
        return UnknownTopicOrPartition("the partition has no leader")
    if change.partition_epoch > current.partition_epoch or change.leader_epoch > current.leader_epoch:
        return NotController("the leader knows a later state than this controller")
    if change.leader_epoch < current.leader_epoch or broker_id != current.leader:
        return FencedLeaderEpoch(f"broker {current.leader} leads with epoch {current.leader_epoch}")
    if set(change.isr) == set(current.isr) and not change.is_recovering:
        return current
    if change.partition_epoch < current.partition_epoch:
        return InvalidUpdateVersion(f"partition epoch {current.partition_epoch}, not {change.partition_epoch}")
    if change.is_recovering or broker_id not in change.isr:
        return InvalidRequest("a leader is in its own ISR, and one that recovers does not change it")
    for replica in change.isr:
        if replica in current.isr and replica not in change.broker_epochs:
            continue
        if replica not in eligible or change.broker_epochs.get(replica, -1) not in (-1, eligible[replica]):
            return IneligibleReplica(f"broker {replica} is not registered with this epoch, or shuts down")
    return replace(current, isr=change.isr)


#: KafkaController.put_call(): (name, what the active controller does, called with its result or its error).
PutCall = Callable[[str, Callable[[], IsrAnswers], OnIsrsAltered], None]


class IsrChanges:
    """request() is called from any thread; everything else is done on the event thread."""

    def __init__(
        self, context: ControllerContext, store: ControllerStore, batch: ControllerBrokerRequestBatch, put_call: PutCall
    ) -> None:
        self._context = context
        self._store = store
        self._batch = batch
        self._put_call = put_call

    def request(self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange], on_done: OnIsrsAltered) -> None:
        """on_done is called once, on any thread; with NotController, StaleBrokerEpoch, UnknownServerError for all."""
        self._put_call("AlterPartition", partial(self._alter, broker_id, broker_epoch, changes), on_done)

    def _alter(self, broker_id: int, broker_epoch: int, changes: Iterable[IsrChange]) -> IsrAnswers:
        context = self._context
        leader = context.live_brokers.get(broker_id)
        if leader is None or leader.epoch != broker_epoch:
            raise StaleBrokerEpoch(f"broker {broker_id} is not registered with epoch {broker_epoch}")
        names = {topic_id: name for name, topic_id in context.topic_ids.items() if topic_id is not None}
        eligible = {
            number: broker.epoch
            for number, broker in context.live_brokers.items()
            if number not in context.shutting_down
        }
        partitions: list[TopicPartition | None] = []
        answers: list[LeaderAndIsr | ApiError] = []
        writes: dict[TopicPartition, LeaderAndIsr] = {}
        for change in changes:
            name = names.get(change.topic) if isinstance(change.topic, UUID) else change.topic
            if name is None:
                partitions.append(None)
                answers.append(UnknownTopicId(f"{change.topic}"))
                continue
            tp = TopicPartition(name, change.partition)
            current = context.leadership.get(tp)
            answer = checked_isr_change(change, broker_id, current, eligible)
            partitions.append(tp)
            answers.append(answer)
            if isinstance(answer, LeaderAndIsr) and answer is not current:
                writes[tp] = replace(answer, controller_epoch=context.epoch)
        stored: dict[TopicPartition, LeaderAndIsr] = {}
        for tp, error in self._store.change_states(writes).items():
            if error is None:
                stored[tp] = replace(writes[tp], partition_epoch=writes[tp].partition_epoch + 1)
            else:
                logger.info("%s: its ISR was not changed: %s", tp, error)
        context.leadership.update(stored)
        if stored:
            self._batch.add_update_metadata(context.live_or_shutting_down_ids, stored)
            self._batch.send()
        return [
            answer if tp not in writes else stored.get(tp, InvalidUpdateVersion(f"{tp}: its state has changed"))
            for tp, answer in zip(partitions, answers, strict=True)
        ]
