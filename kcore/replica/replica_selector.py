"""Which replica a consumer reads from best (KIP-392, RD-25): rules over values, and their use by a leader.

Source: ReplicaSelector, RackAwareReplicaSelector, ReplicaManager.findPreferredReadReplica, Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kcore.common.time import Time
from kcore.replica.fetch_params import ClientMetadata
from kcore.replica.partition import Partition
from kcore.replica.partition_state import LeaderState

#: The answer for a consumer that reads from the leader.
NO_PREFERRED_REPLICA = -1


class ReplicaView(NamedTuple):
    """A replica that has the consumer's offset.

    rack: "" for none.  lag_ms: since it had all records, 0 for the leader.
    """

    broker_id: int
    rack: str
    log_end_offset: int
    lag_ms: int


#: (the consumer, the leader, the followers that it could read from) -> where it reads from.
ReplicaSelector = Callable[[ClientMetadata, ReplicaView, Sequence[ReplicaView]], ReplicaView]


def leader_of(client: ClientMetadata, leader: ReplicaView, followers: Sequence[ReplicaView]) -> ReplicaView:
    """Always the leader."""
    return leader


def rack_aware(client: ClientMetadata, leader: ReplicaView, followers: Sequence[ReplicaView]) -> ReplicaView:
    """A replica in the client's rack: the leader if it is there, else the follower with the highest log end, of equal
    ones the least lag.  The leader if no replica is there."""
    if not client.rack or leader.rack == client.rack:
        return leader
    same_rack = [follower for follower in followers if follower.rack == client.rack]
    return max(
        same_rack, key=lambda follower: (follower.log_end_offset, -follower.lag_ms, follower.broker_id), default=leader
    )


#: replica.selector.class -> rule.  Kafka's own classes only: others are Java code, which cannot be loaded here.
SELECTORS: dict[str, ReplicaSelector] = {
    "org.apache.kafka.common.replica.LeaderSelector": leader_of,
    "org.apache.kafka.common.replica.RackAwareReplicaSelector": rack_aware,
}


class PreferredReadReplica:
    """Asks a selector for one consumer's partition.  Thread-safe.

    rack_of(broker id, listener name): the broker's rack, "" without one; None if clients of this listener cannot reach
    it now.
    """

    def __init__(self, select: ReplicaSelector, rack_of: Callable[[int, str], str | None], time: Time) -> None:
        self._select = select
        self._rack_of = rack_of
        self._time = time

    def __call__(self, partition: Partition, client: ClientMetadata, fetch_offset: int) -> int:
        """The follower that this consumer should read from, or NO_PREFERRED_REPLICA.

        Only followers of the ISR are considered: one that lags would keep the consumer back.  Never the leader itself,
        and never anybody if this broker does not lead.
        """
        state = partition.state
        if not isinstance(state, LeaderState) or not state.replicas:
            return NO_PREFERRED_REPLICA
        now_ms = self._time.milliseconds()
        followers = []
        for broker_id, replica in state.replicas.items():
            follower = replica.state
            if (
                broker_id in state.isr.committed
                and follower.log_start_offset <= fetch_offset <= follower.log_end_offset
            ):
                rack = self._rack_of(broker_id, client.listener_name)
                if rack is not None:
                    lag_ms = now_ms - follower.last_caught_up_time_ms
                    followers.append(ReplicaView(broker_id, rack, follower.log_end_offset, lag_ms))
        own_id = partition.local_broker_id
        own_rack = self._rack_of(own_id, client.listener_name) or ""
        leader = ReplicaView(own_id, own_rack, partition.log.log_end_offset, 0)
        selected = self._select(client, leader, followers)
        return NO_PREFERRED_REPLICA if selected is leader else selected.broker_id
