"""ReplicaAlterLogDirsThread: copies logs of this broker to another of its data directories (DIR)."""

from __future__ import annotations

from collections.abc import MutableSet
from typing import TYPE_CHECKING

from kcore.common.switch_interval import short_switch_interval
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.replica.fetcher.fetcher_state import FetcherConfig, FetcherState
from kcore.replica.fetcher.replica_fetcher_thread import ReplicaFetcherThread
from kcore.replica.hosted_partitions import HostedPartitions
from kcore.replica.moves.future_logs import FutureLogs
from kcore.replica.moves.local_leader_endpoint import LocalLeaderEndPoint
from kcore.replica.replica_quota import ReplicaQuota

if TYPE_CHECKING:
    from kcore.log.log_manager import LogManager

#: Larger than replica.fetch.max.bytes: no network is between the two logs, and a step beside busy producers is slow
#: because of the GIL, not because of its bytes.
_COPIED_AT_ONCE = 4 * 1024 * 1024


class ReplicaAlterLogDirsThread(ReplicaFetcherThread):
    """A fetcher whose source is this broker (DIR-02); a partition leaves it when its log has moved (DIR-06).

    Source: ReplicaAlterLogDirsThread, Kafka 3.9.
    """

    def __init__(
        self, name: str, state: FetcherState, logs: FutureLogs, end_point: LocalLeaderEndPoint, time: Time
    ) -> None:
        super().__init__(name, state, logs, end_point, time)
        self._future_logs = logs

    def do_work(self) -> None:
        # A copy is many short steps, and each gives the GIL up.  With the usual interval busy producers write
        # faster than it copies.
        with short_switch_interval():
            super().do_work()
        with self._changed:
            self._state.remove_partitions(self._future_logs.take_finished())


def make_mover(
    name: str,
    hosted_partitions: HostedPartitions,
    log_manager: LogManager,
    quota: ReplicaQuota | None,
    failed: MutableSet[TopicPartition],
    time: Time,
    config: FetcherConfig | None,
) -> ReplicaAlterLogDirsThread:
    """A thread that has nothing to move yet, not started."""
    config = config or FetcherConfig(partition_max_bytes=_COPIED_AT_ONCE, truncates_on_fetch=False)
    logs = FutureLogs(hosted_partitions, log_manager, quota)
    state = FetcherState(logs, config, quota, failed)
    return ReplicaAlterLogDirsThread(name, state, logs, LocalLeaderEndPoint(hosted_partitions), time)
