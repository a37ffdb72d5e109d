"""What the partitions of a Cluster still lack: a leader that every broker has in its metadata, replicas in sync."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from kcore.common.topic_partition import TopicPartition
from kcore.controller.leader_elections import ElectionType
from kcore.errors import ApiError, ElectionNotNeeded, KafkaError, NotController, RequestTimedOut
from kcore.metadata.metadata_cache import TopicInfo
from kcore.replica.partition import Partition
from kcore.server.broker import Broker
from kcore.server.topics.partition_admin import PartitionAdmin

#: How long a controller may take to answer.
_ANSWER_S = 30

_Call = Callable[[PartitionAdmin, Callable[[Any], None]], None]


class RunningCluster(Protocol):
    """The calls of Cluster that are needed here."""

    @property
    def brokers(self) -> Mapping[int, Broker]: ...

    def leader(self, topic: str, partition: int = 0) -> int | None: ...

    def isr(self, topic: str, partition: int = 0) -> list[int]: ...


class ClusterPartitions:
    """Thread-safe, as the cluster is."""

    def __init__(self, cluster: RunningCluster) -> None:
        self._cluster = cluster

    def unled(self, topic: str, partition: int | None = None) -> dict[TopicPartition, str]:
        """Partition -> why a client cannot use it yet, whichever broker it asks; of one partition, or for None of all
        that the topic has.  Empty if it can use them."""
        info = self._info(topic)
        if info is None:
            return {TopicPartition(topic, partition or 0): "no running broker has the topic in its metadata"}
        numbers: Iterable[int] = sorted(info.partitions) if partition is None else [partition]
        reasons = {TopicPartition(topic, number): self._why_unled(topic, number) for number in numbers}
        return {tp: reason for tp, reason in reasons.items() if reason is not None}

    def out_of_sync(self, topic: str) -> dict[TopicPartition, str]:
        """Partition -> why not all its replicas are in sync; empty if they are.  A replica whose broker does not run is
        not, though it stays in the ISR until the controller has seen that it is gone."""
        reasons, running = self.unled(topic), set(self._cluster.brokers)
        for number in self.partitions(topic):
            tp = TopicPartition(topic, number)
            out = sorted(set(self.replicas(topic, number)) - (running & set(self._cluster.isr(topic, number))))
            if tp not in reasons and out:
                reasons[tp] = "; ".join(self._why_out(tp, broker_id) for broker_id in out)
        return reasons

    def partitions(self, topic: str) -> list[int]:
        """Empty for an unknown topic."""
        info = self._info(topic)
        return [] if info is None else sorted(info.partitions)

    def replicas(self, topic: str, partition: int) -> tuple[int, ...]:
        """The preferred leader first; empty for an unknown partition."""
        info = self._info(topic)
        state = None if info is None else info.partitions.get(partition)
        return () if state is None else tuple(state.replicas)

    # -- changes ----------------------------------------------------------------------------------------

    def prefer(self, tp: TopicPartition, broker_id: int) -> None:
        """Make one of its replicas the preferred leader.  Raises what the controller answers."""
        # Also where it is the preferred one in the metadata: they may be older than the last change.
        target = (broker_id, *(replica for replica in self.replicas(*tp) if replica != broker_id))
        self._ask_controller(tp, lambda controller, done: controller.alter_partition_reassignments({tp: target}, done))

    def elect_preferred(self, tp: TopicPartition) -> None:
        """Raises what the controller answers, unless the preferred replica leads."""
        try:
            self._ask_controller(
                tp, lambda controller, done: controller.elect_leaders(ElectionType.PREFERRED, [tp], done)
            )
        except ElectionNotNeeded:
            pass

    def _ask_controller(self, tp: TopicPartition, call: _Call) -> None:
        for broker in self._cluster.brokers.values():
            answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
            call(broker.cluster_member.controller, answers.put)
            try:
                answer = answers.get(timeout=_ANSWER_S)
            except queue.Empty:
                raise RequestTimedOut(f"{tp}: broker {broker.broker_id}, the controller, does not answer") from None
            if isinstance(answer, NotController):
                continue
            error = answer if isinstance(answer, ApiError) else answer.get(tp)
            if isinstance(error, ApiError):
                raise error
            return
        raise NotController(f"{tp}: no running broker is the controller")

    # -- reasons ----------------------------------------------------------------------------------------

    def _info(self, topic: str) -> TopicInfo | None:
        """As one of the brokers has it that have it."""
        infos = (broker.metadata_cache.topic(topic) for broker in self._cluster.brokers.values())
        return next((info for info in infos if info is not None), None)

    def _why_unled(self, topic: str, partition: int) -> str | None:
        tp = TopicPartition(topic, partition)
        leader, brokers = self._cluster.leader(topic, partition), self._cluster.brokers
        if leader is None:
            return f"no leader; ISR {self._cluster.isr(topic, partition)}, running {sorted(brokers)}"
        if leader not in brokers:
            return f"its leader, broker {leader}, does not run in this process"
        behind = [number for number, broker in brokers.items() if _leader_in(broker, tp) != leader]
        if behind:
            return f"broker {leader} leads; not in the metadata of broker {', '.join(map(str, behind))} yet"
        hosted = brokers[leader].replica_manager.get_partition(tp)
        if not isinstance(hosted, Partition) or not hosted.is_leader:
            return f"broker {leader} is elected and does not lead yet"
        return None

    def _why_out(self, tp: TopicPartition, broker_id: int) -> str:
        brokers = self._cluster.brokers
        if broker_id not in brokers:
            return f"broker {broker_id} does not run"
        leader_id = self._cluster.leader(*tp)
        leader = None if leader_id is None else brokers.get(leader_id)
        try:
            replicas = leader.explain_isr(*tp).replicas if leader is not None else ()
        except (KafkaError, RuntimeError):  # it leads no more, or has stopped
            replicas = ()
        rules = [replica.rule for replica in replicas if replica.broker_id == broker_id]
        return f"broker {broker_id}: {rules[0] if rules else 'it is not in the ISR'}"


def _leader_in(broker: Broker, tp: TopicPartition) -> int | None:
    info = broker.metadata_cache.topic(tp.topic)
    state = None if info is None else info.partitions.get(tp.partition)
    return None if state is None else state.leader


def reasons_text(reasons: Mapping[TopicPartition, str]) -> str:
    return "; ".join(f"{tp}: {reason}" for tp, reason in reasons.items())
