"""What pages ask a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from kcore.client.admin_client import Address, ClusterDescription, Node, PartitionDescription
from kcore.client.group_client import EARLIEST, LATEST, GroupClient, LogEnd
from kcore.client.monitor import MonitorError, ask_broker
from kcore.client.monitored_directory import directory_of_address
from kcore.common.text import plain_error
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaError

_T = TypeVar("_T")

CLIENT_ID = "kcore-web"
#: Of all that one question to the cluster asks.
TIMEOUT_MS = 10_000
#: Clients that wait for the next question; more are closed after theirs.
_KEPT_CLIENTS = 4
#: Of a question to the leader's process on this machine.
_EXPLAIN_S = 2.0
#: So long it is known where a broker answers such questions, or that it does not.
_DIRECTORY_MS = 30_000


class GroupLag(NamedTuple):
    """lag: over all partitions whose log end is known, None if there is none or problem says why it is not known.
    by_partition: committed offset and log end."""

    lag: int | None
    by_partition: Mapping[TopicPartition, tuple[int, LogEnd]]
    problem: str | None = None


class ClusterReader:
    """Thread-safe: each question has a client of its own while it runs.  Lifetime: until close()."""

    def __init__(self, bootstrap: Sequence[Address], *, timeout_ms: int = TIMEOUT_MS, time: Time = SYSTEM_TIME) -> None:
        self.bootstrap = list(bootstrap)
        self.timeout_ms = timeout_ms
        self._time = time
        self._lock = threading.Lock()  # of _idle and _directories
        self._idle: list[GroupClient] = []
        #: Of a leader: when it was looked up, and where it answers questions about itself.
        self._directories: dict[Address, tuple[float, str | None]] = {}

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for client in idle:
            client.close()

    def ask(self, question: Callable[[GroupClient], _T]) -> _T:
        """Its answer.  Raises OSError, KafkaError."""
        with self._client(is_new=False) as (client, is_used):
            try:
                return question(client)
            except ConnectionError:
                if not is_used:
                    raise
                client.close()  # the broker has closed a connection that nobody used
        with self._client(is_new=True) as (client, _):
            return question(client)

    @contextmanager
    def own_client(self) -> Iterator[GroupClient]:
        """For what takes long, or must not be asked twice."""
        with GroupClient(self.bootstrap, client_id=CLIENT_ID, timeout_ms=self.timeout_ms, time=self._time) as client:
            yield client

    @contextmanager
    def _client(self, *, is_new: bool) -> Iterator[tuple[GroupClient, bool]]:
        """A client, and whether it was used before."""
        with self._lock:
            client = None if is_new or not self._idle else self._idle.pop()
        is_used = client is not None
        if client is None:
            client = GroupClient(self.bootstrap, client_id=CLIENT_ID, timeout_ms=self.timeout_ms, time=self._time)
        try:
            yield client, is_used
        finally:
            with self._lock:
                is_kept = len(self._idle) < _KEPT_CLIENTS
                if is_kept:
                    self._idle.append(client)
            if not is_kept:
                client.close()

    def brokers(self) -> ClusterDescription:
        """Without topics."""
        return self.ask(lambda client: client.describe_cluster(()))

    def offsets(
        self, tps: Sequence[TopicPartition]
    ) -> tuple[Mapping[TopicPartition, LogEnd], Mapping[TopicPartition, LogEnd]]:
        """The first offset and the end of each log."""
        return self.ask(
            lambda client: (
                client.listed_offsets(dict.fromkeys(tps, EARLIEST)),
                client.listed_offsets(dict.fromkeys(tps, LATEST)),
            )
        )

    def group_lags(self, group_ids: Sequence[str]) -> dict[str, GroupLag]:
        """Of each group."""
        return self.ask(lambda client: group_lags(client, group_ids))

    def why_out(
        self, cluster: ClusterDescription, tp: TopicPartition, described: PartitionDescription
    ) -> dict[int, str]:
        """By broker id, why a replica is not in the ISR, as far as it is known: of a broker that is not alive, and what
        the leader says if it is a kcore broker of this machine."""
        out = [replica for replica in described.replicas if replica not in described.isr]
        reasons = {replica: "not alive" for replica in out if replica not in cluster.brokers}
        if len(reasons) < len(out) and described.leader in cluster.brokers:
            explained = self._explained(cluster.brokers[described.leader], tp)
            reasons |= {replica: text for replica, text in explained.items() if replica in set(out) - reasons.keys()}
        return reasons

    def _explained(self, leader: Node, tp: TopicPartition) -> dict[int, str]:
        directory = self._directory_of(leader)
        if directory is None:
            return {}
        try:
            answer = ask_broker(directory, "explain_isr", _EXPLAIN_S, topic=tp.topic, partition=tp.partition)
        except (MonitorError, OSError):
            return {}
        return {
            replica["broker_id"]: replica["rule"]
            + (f"; held back: {replica['held_back_by']}" if replica["held_back_by"] else "")
            for replica in answer["value"]["replicas"]
        }

    def _directory_of(self, broker: Node) -> str | None:
        address, now_ms = (broker.host, broker.port), self._time.hi_res_clock_ms()
        with self._lock:
            known = self._directories.get(address)
        if known is not None and now_ms - known[0] < _DIRECTORY_MS:
            return known[1]
        try:
            directory = directory_of_address(address, broker, _EXPLAIN_S)
        except (MonitorError, OSError):
            directory = None
        with self._lock:
            self._directories[address] = now_ms, directory
        return directory


def group_lags(client: GroupClient, group_ids: Sequence[str]) -> dict[str, GroupLag]:
    """The log ends of all groups are asked together."""
    committed: dict[str, dict[TopicPartition, int]] = {}
    lags = {}
    for group_id in group_ids:
        try:
            committed[group_id] = client.committed_offsets(group_id)
        except (OSError, KafkaError) as error:
            lags[group_id] = GroupLag(None, {}, plain_error(error))
    ends = client.log_end_offsets({tp for offsets in committed.values() for tp in offsets})
    for group_id, offsets in committed.items():
        by_partition = {tp: (offset, ends[tp]) for tp, offset in sorted(offsets.items())}
        known = [end.offset - at for at, end in by_partition.values() if end.offset is not None]
        lags[group_id] = GroupLag(sum(known) if known else None, by_partition)
    return lags
