"""ReplicaAlterLogDirsThread: copies logs of this broker to another of its data directories (DIR)."""

from __future__ import annotations

from kcore.common.switch_interval import short_switch_interval
from kcore.common.time import Time
from kcore.replica.fetcher_state import FetcherState
from kcore.replica.future_logs import FutureLogs
from kcore.replica.local_leader_endpoint import LocalLeaderEndPoint
from kcore.replica.replica_fetcher_thread import ReplicaFetcherThread


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
