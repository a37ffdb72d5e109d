"""ControllerBrokerRequestBatch: gathers what brokers must learn of one change, and sends each at most one request of
each kind.

Source: AbstractControllerBrokerRequestBatch, Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TypeVar

from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.controller.controller_channel_manager import ControllerChannels
from kcore.controller.controller_context import ControllerContext, LiveBroker
from kcore.controller.election import LEADER_DURING_DELETE, LeaderAndIsr
from kcore.protocol.messages.leader_and_isr import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
)
from kcore.protocol.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
)
from kcore.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from kcore.protocol.schema import Message

#: StopReplica's leader epoch for a topic that is being deleted: no epoch is compared.
_EPOCH_DURING_DELETE = -2
_NO_EPOCH = -1
_PLAINTEXT = 0

_State = TypeVar("_State")

#: (broker as it was registered when the request was sent, error code of each partition, of the whole request).
OnLeaderAndIsr = Callable[[LiveBroker, Mapping[TopicPartition, int], int], None]
OnStopReplica = Callable[[LiveBroker, Mapping[TopicPartition, int], int], None]


class ControllerBrokerRequestBatch:
    """Used by the event thread: add_...() as often as needed, then send().

    on_leader_and_isr, on_stop_replica: called on a sender's thread.  on_stop_replica has only replicas that were to be
    deleted with their topics.
    """

    def __init__(
        self,
        controller_id: int,
        context: ControllerContext,
        channels: ControllerChannels,
        listener_name: str,
        on_leader_and_isr: OnLeaderAndIsr,
        on_stop_replica: OnStopReplica,
    ) -> None:
        self._controller_id = controller_id
        self._context = context
        self._channels = channels
        self._listener_name = listener_name
        self._on_leader_and_isr = on_leader_and_isr
        self._on_stop_replica = on_stop_replica
        self._leader_and_isr: dict[int, dict[TopicPartition, LeaderAndIsrPartitionState]] = {}
        self._stop_replica: dict[int, dict[TopicPartition, bool]] = {}
        self._metadata_brokers: set[int] = set()
        self._metadata_partitions: dict[TopicPartition, None] = {}

    def clear(self) -> None:
        """Discard all added requests, after an error in the middle of a change."""
        self._leader_and_isr.clear()
        self._stop_replica.clear()
        self._metadata_brokers.clear()
        self._metadata_partitions.clear()

    def add_leader_and_isr(
        self, broker_ids: Iterable[int], topic_partition: TopicPartition, state: LeaderAndIsr, *, is_new: bool
    ) -> None:
        """Add a LeaderAndIsr for these brokers, and an UpdateMetadata of the partition for all live brokers."""
        assignment = self._context.assignments[topic_partition]
        for broker_id in broker_ids:
            states = self._leader_and_isr.setdefault(broker_id, {})
            before = states.get(topic_partition)
            states[topic_partition] = LeaderAndIsrPartitionState(
                topic_name=topic_partition.topic,
                partition_index=topic_partition.partition,
                controller_epoch=state.controller_epoch,
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                isr=list(state.isr),
                partition_epoch=state.partition_epoch,
                replicas=list(assignment.replicas),
                adding_replicas=list(assignment.adding),
                removing_replicas=list(assignment.removing),
                is_new=is_new or (before is not None and before.is_new),
            )
        self.add_update_metadata(self._context.live_or_shutting_down_ids, [topic_partition])

    def add_stop_replica(self, broker_id: int, topic_partition: TopicPartition, *, delete: bool) -> None:
        partitions = self._stop_replica.setdefault(broker_id, {})
        partitions[topic_partition] = delete or partitions.get(topic_partition, False)

    def add_update_metadata(self, broker_ids: Iterable[int], topic_partitions: Iterable[TopicPartition]) -> None:
        """Add an UpdateMetadata for these brokers.  It has the live brokers, also where topic_partitions is empty."""
        self._metadata_brokers.update(broker_ids)
        self._metadata_partitions.update(dict.fromkeys(topic_partitions))

    def send(self) -> None:
        """Queue the requests: LeaderAndIsr, UpdateMetadata, StopReplica, in that order for each broker."""
        live = self._context.live_or_shutting_down_ids
        for broker_id, states in self._leader_and_isr.items():
            if broker_id in live:
                self._send_leader_and_isr(broker_id, states)
        self._send_update_metadata(sorted(self._metadata_brokers & live))
        for broker_id, partitions in self._stop_replica.items():
            if broker_id in live:
                self._send_stop_replica(broker_id, partitions)
        self.clear()

    # -- the three requests -----------------------------------------------------------------------------

    def _send_leader_and_isr(self, broker_id: int, states: Mapping[TopicPartition, LeaderAndIsrPartitionState]) -> None:
        context = self._context
        broker = context.live_brokers[broker_id]
        leaders = {state.leader for state in states.values()} & context.live_or_shutting_down_ids
        topic_ids = {tp.topic: context.topic_ids.get(tp.topic) or ZERO_UUID for tp in states}
        request = LeaderAndIsrRequest(
            controller_id=self._controller_id,
            controller_epoch=context.epoch,
            broker_epoch=broker.epoch,
            topic_states=[
                LeaderAndIsrTopicState(topic_name=name, topic_id=topic_ids[name], partition_states=partition_states)
                for name, partition_states in _by_topic(states).items()
            ],
            live_leaders=[
                LeaderAndIsrLiveLeader(broker_id=leader, host_name=host, port=port)
                for leader in sorted(leaders)
                for host, port in self._endpoints(leader)
            ],
        )
        names = {topic_id: name for name, topic_id in topic_ids.items()}

        def on_reply(reply: Message) -> None:
            assert isinstance(reply, LeaderAndIsrResponse)
            codes = {
                TopicPartition(error.topic_name, error.partition_index): error.error_code
                for error in reply.partition_errors
            }
            for topic in reply.topics:
                for error in topic.partition_errors:
                    codes[TopicPartition(names.get(topic.topic_id, ""), error.partition_index)] = error.error_code
            self._on_leader_and_isr(broker, codes, reply.error_code)

        self._channels.send_request(broker_id, request, on_reply)

    def _send_update_metadata(self, broker_ids: Collection[int]) -> None:
        if not broker_ids:
            return
        context = self._context
        states = {}
        for tp in self._metadata_partitions:
            state = self._metadata_state(tp)
            if state is not None:
                states[tp] = state
        topic_states = [
            UpdateMetadataTopicState(
                topic_name=name, topic_id=context.topic_ids.get(name) or ZERO_UUID, partition_states=partition_states
            )
            for name, partition_states in _by_topic(states).items()
        ]
        live_brokers = [
            UpdateMetadataBroker(
                id=broker.broker_id,
                endpoints=[
                    UpdateMetadataEndpoint(port=port, host=host, listener=listener, security_protocol=_PLAINTEXT)
                    for listener, (host, port) in broker.endpoints.items()
                ],
                rack=broker.rack,
            )
            for _, broker in sorted(context.live_brokers.items())
        ]
        for broker_id in broker_ids:
            request = UpdateMetadataRequest(
                controller_id=self._controller_id,
                controller_epoch=context.epoch,
                broker_epoch=context.live_brokers[broker_id].epoch,
                topic_states=topic_states,
                live_brokers=live_brokers,
            )
            self._channels.send_request(broker_id, request)

    def _metadata_state(self, tp: TopicPartition) -> UpdateMetadataPartitionState | None:
        context = self._context
        state = context.leadership.get(tp)
        is_deleted = context.is_queued_for_deletion(tp.topic)
        if state is None and not is_deleted:
            return None
        if state is None:
            state = LeaderAndIsr(LEADER_DURING_DELETE, 0, (), context.epoch)
        replicas = context.replicas_of(tp)
        return UpdateMetadataPartitionState(
            topic_name=tp.topic,
            partition_index=tp.partition,
            controller_epoch=state.controller_epoch,
            leader=LEADER_DURING_DELETE if is_deleted else state.leader,
            leader_epoch=state.leader_epoch,
            isr=list(state.isr),
            zk_version=state.partition_epoch,
            replicas=list(replicas),
            offline_replicas=[r for r in replicas if not context.is_online(r, tp, include_shutting_down=True)],
        )

    def _send_stop_replica(self, broker_id: int, partitions: Mapping[TopicPartition, bool]) -> None:
        context = self._context
        broker = context.live_brokers[broker_id]
        states = {}
        for tp, delete in partitions.items():
            state = context.leadership.get(tp)
            epoch = state.leader_epoch if state is not None else _NO_EPOCH
            states[tp] = StopReplicaPartitionState(
                partition_index=tp.partition,
                leader_epoch=_EPOCH_DURING_DELETE if context.is_queued_for_deletion(tp.topic) else epoch,
                delete_partition=delete,
            )
        request = StopReplicaRequest(
            controller_id=self._controller_id,
            controller_epoch=context.epoch,
            broker_epoch=broker.epoch,
            topic_states=[
                StopReplicaTopicState(topic_name=name, partition_states=partition_states)
                for name, partition_states in _by_topic(states).items()
            ],
        )
        deleted = self._deleted_with_their_topics(partitions)
        self._channels.send_request(broker_id, request, partial(self._stop_replica_answered, broker, deleted))

    def _deleted_with_their_topics(self, partitions: Mapping[TopicPartition, bool]) -> list[TopicPartition]:
        """Those whose answer a topic's deletion waits for.  Decided when the request is sent: a reassignment's answer
        may come after the deletion has begun, while the deletion's own request waits in the queue."""
        return [tp for tp, delete in partitions.items() if delete and self._context.is_queued_for_deletion(tp.topic)]

    def _stop_replica_answered(self, broker: LiveBroker, deleted: Collection[TopicPartition], reply: Message) -> None:
        assert isinstance(reply, StopReplicaResponse)
        codes = {TopicPartition(e.topic_name, e.partition_index): e.error_code for e in reply.partition_errors}
        if deleted:
            asked = {tp: codes.get(tp, reply.error_code) for tp in deleted}
            self._on_stop_replica(broker, asked, reply.error_code)

    def _endpoints(self, broker_id: int) -> list[tuple[str, int]]:
        """Where other brokers find a broker; empty if it has no address on the listener between brokers."""
        endpoint = self._context.live_brokers[broker_id].endpoints.get(self._listener_name)
        return [] if endpoint is None else [endpoint]


def _by_topic(states: Mapping[TopicPartition, _State]) -> dict[str, list[_State]]:
    topics: dict[str, list[_State]] = {}
    for tp, state in states.items():
        topics.setdefault(tp.topic, []).append(state)
    return topics
