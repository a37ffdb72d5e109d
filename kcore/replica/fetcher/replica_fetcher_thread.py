"""ReplicaFetcherThread: sends what a FetcherState asks of one broker, and gives it the replies (FT, decision 13)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping

from kcore.common.failure_log import FailureLog
from kcore.common.shutdownable_thread import ShutdownableThread
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaError
from kcore.replica.fetcher.fetcher_state import FetcherState, Wait
from kcore.replica.fetcher.fetchers import InitialFetchState
from kcore.replica.fetcher.follower_logs import ReplicaLogs
from kcore.replica.fetcher.leader_endpoint import FetchReply, LeaderEndPoint, LeaderReply, LeaderRequest
from kcore.replica.fetcher.partition_fetch_state import PartitionFetchState

logger = logging.getLogger(__name__)

_QUIET_MS = 10 * 60_000


class ReplicaFetcherThread(ShutdownableThread):
    """One thread, one connection, and all partitions of one (leader, fetcher id).

    The lock guards the state: requests are made and replies processed under it, so that once remove_partitions() has
    returned nothing is appended to these partitions any more (RM-14).  While a request is on its way the lock is free
    (FT-13).  Holding it the thread takes only locks of partitions and logs.

    requests, bytes: counters of requests sent, failed ones included (FT-15), and of record bytes received.
    Source: AbstractFetcherThread, ReplicaFetcherThread, Kafka 3.9.
    """

    def __init__(
        self, name: str, state: FetcherState, logs: ReplicaLogs, end_point: LeaderEndPoint, time: Time
    ) -> None:
        super().__init__(name)
        self.requests = 0
        self.bytes = 0
        self._state = state
        self._logs = logs
        self._end_point = end_point
        self._time = time
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._bugs = FailureLog(quiet_ms=_QUIET_MS)

    def do_work(self) -> None:
        """Send one request and process its reply, or wait until there is one to send (FT-01)."""
        with self._lock:
            if not self.is_running:
                return
            self._state.use_features(self._end_point.features)
            now_ms = self._time.hi_res_clock_ms()
            request = self._state.next_request(now_ms)
            if isinstance(request, Wait):
                self._changed.wait(max(0.0, min(request.until_ms - now_ms, 1e9)) / 1000)  # FT-12
                return
        self.requests += 1
        # Nothing here may keep the reply: the end point uses its buffer again when no view of the records is left.
        self._process(request, self._send(request))
        self._logs.complete_waiting()

    def _send(self, request: LeaderRequest) -> LeaderReply | Exception:
        try:
            reply = self._end_point.send(request)
        except Exception as error:
            # What the leader can cause is an OSError or a KafkaError, and FetcherState logs it.
            is_expected = isinstance(error, (OSError, KafkaError)) or not self.is_running
            if not is_expected and self._bugs.is_logged(repr(error), self._time.hi_res_clock_ms()):
                logger.error("%s: a request failed", self.name, exc_info=error)
            return error
        if isinstance(reply, FetchReply):
            for answer in reply.partitions.values():
                self.bytes += len(answer.records)
        return reply

    def _process(self, request: LeaderRequest, reply: LeaderReply | Exception) -> None:
        with self._lock:
            if not self.is_running:
                return  # FT-14: a failure because of the shutdown is not an error
            now_ms = self._time.hi_res_clock_ms()
            if isinstance(reply, Exception):
                self._state.on_failure(request, reply, now_ms)
            else:
                self._state.on_reply(request, reply, now_ms)

    # -- from other threads ---------------------------------------------------------------------------------------

    def add_partitions(self, partitions: Mapping[TopicPartition, InitialFetchState]) -> None:
        with self._lock:
            self._state.add_partitions(partitions)
            self._changed.notify_all()

    def add_states(self, states: Mapping[TopicPartition, PartitionFetchState]) -> None:
        """Partitions of another thread of the same leader (FMGR-10)."""
        with self._lock:
            self._state.add_states(states)
            self._changed.notify_all()

    def remove_partitions(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionFetchState]:
        """The states that they had.  Nothing is written to them once this has returned."""
        with self._lock:
            removed = self._state.remove_partitions(partitions)
            self._changed.notify_all()
            return removed

    def mark_for_truncation(self, tp: TopicPartition, offset: int) -> None:
        with self._lock:
            self._state.mark_for_truncation(tp, offset)
            self._changed.notify_all()

    def states(self) -> dict[TopicPartition, PartitionFetchState]:
        """What each partition's state is now."""
        with self._lock:
            return dict(self._state.states)

    def delay_reason(self, tp: TopicPartition) -> str | None:
        """Why a partition of this thread does not go on; None if it is not known, or another's."""
        with self._lock:
            return self._state.delay_reason(tp)

    @property
    def partition_count(self) -> int:
        return len(self._state.states)

    @property
    def is_dead(self) -> bool:
        """Whether it ended without having been shut down, which only a bug in kcore can cause (FMGR-11)."""
        return not self.is_running and not self._is_shut_down

    # -- shutdown -------------------------------------------------------------------------------------------------

    _is_shut_down = False

    def initiate_shutdown(self) -> None:
        self._is_shut_down = True
        super().initiate_shutdown()

    def wake_up(self) -> None:
        self._end_point.close()
        with self._lock:
            self._changed.notify_all()
