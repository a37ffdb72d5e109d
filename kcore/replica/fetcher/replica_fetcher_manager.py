"""ReplicaFetcherManager: which thread copies which partition (FMGR)."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.replica.fetcher.fetcher_state import FetcherConfig, FetcherState
from kcore.replica.fetcher.fetchers import FetchSource, InitialFetchState, fetcher_id
from kcore.replica.fetcher.follower_logs import ReplicaLogs
from kcore.replica.fetcher.leader_endpoint import LeaderEndPoint
from kcore.replica.fetcher.partition_fetch_state import PartitionFetchState
from kcore.replica.fetcher.replica_fetcher_thread import ReplicaFetcherThread
from kcore.replica.replica_quota import ReplicaQuota

logger = logging.getLogger(__name__)

#: Host and port.
Address = tuple[str, int]


class FetcherKey(NamedTuple):
    leader_id: int
    fetcher_id: int


class ReplicaFetcherManager:
    """The fetcher threads of this broker.  Thread-safe: everything runs under one lock (FMGR-09).

    Holding it the manager takes the locks of its threads, and waits for threads that end: a thread never calls the
    manager.  address_of(leader id) says where a broker is now, or None; a thread whose leader has moved is replaced.
    Source: AbstractFetcherManager, ReplicaFetcherManager, Kafka 3.9.
    """

    def __init__(
        self,
        name: str,
        num_fetchers: int,
        config: FetcherConfig,
        time: Time,
        *,
        make_logs: Callable[[], ReplicaLogs],
        make_end_point: Callable[[Address, int], LeaderEndPoint],
        address_of: Callable[[int], Address | None],
        quota: ReplicaQuota | None = None,
    ) -> None:
        """make_end_point(address of the leader, fetcher id): a connection of its own for each thread."""
        self._name = name
        self._num_fetchers = num_fetchers
        self._config = config
        self._time = time
        self._make_logs = make_logs
        self._make_end_point = make_end_point
        self._address_of = address_of
        self._quota = quota
        self._lock = threading.Lock()
        self._threads: dict[FetcherKey, ReplicaFetcherThread] = {}
        self._addresses: dict[FetcherKey, Address] = {}
        self._failed: set[TopicPartition] = set()
        self._is_closed = False

    def add_partitions(self, partitions: Mapping[TopicPartition, FetchSource]) -> None:
        """Copy each partition from its leader (FMGR-02..06).  One whose leader's address is not in the metadata is left
        out, with a warning: the update that brings the address comes with another one for the partition."""
        with self._lock:
            by_key: dict[FetcherKey, dict[TopicPartition, InitialFetchState]] = defaultdict(dict)
            for tp, (leader_id, initial) in partitions.items():
                by_key[FetcherKey(leader_id, fetcher_id(tp, self._num_fetchers))][tp] = initial
            for key, initial_states in by_key.items():
                thread = self._thread_for(key)
                if thread is not None:
                    thread.add_partitions(initial_states)

    def _thread_for(self, key: FetcherKey) -> ReplicaFetcherThread | None:
        """The running thread of the key, started if need be."""
        if self._is_closed:
            return None
        address = self._address_of(key.leader_id)
        thread = self._threads.get(key)
        moved: dict[TopicPartition, PartitionFetchState] = {}
        if thread is not None and address == self._addresses[key] and not thread.is_dead:
            return thread  # FMGR-03
        if address is None:
            logger.warning("broker %d has no address: nothing is copied from it", key.leader_id)
            return None
        if thread is not None:
            thread.shutdown()  # FMGR-04
            moved = thread.states()
        logs = self._make_logs()
        state = FetcherState(logs, self._config, self._quota, self._failed, f"leader broker {key.leader_id}")
        end_point = self._make_end_point(address, key.fetcher_id)
        thread = ReplicaFetcherThread(
            f"{self._name}-{key.fetcher_id}-{key.leader_id}", state, logs, end_point, self._time
        )
        thread.add_states(moved)
        self._threads[key], self._addresses[key] = thread, address
        thread.start()
        return thread

    def remove_partitions(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionFetchState]:
        """No longer copy these (FMGR-07): nothing is written to them once this has returned.  Their states."""
        with self._lock:
            removed: dict[TopicPartition, PartitionFetchState] = {}
            for thread in self._threads.values():
                removed.update(thread.remove_partitions(partitions))
            self._failed.difference_update(partitions)
            return removed

    def shutdown_idle(self) -> None:
        """End the threads without partitions (FMGR-08)."""
        with self._lock:
            self._end([key for key, thread in self._threads.items() if not thread.partition_count])

    def close(self) -> None:
        """End all threads (FMGR-09), and start none any more."""
        with self._lock:
            self._is_closed = True
            self._end(list(self._threads))

    def _end(self, keys: Collection[FetcherKey]) -> None:
        threads = [self._threads.pop(key) for key in keys]
        for thread in threads:
            thread.initiate_shutdown()
        for thread in threads:
            thread.await_shutdown()

    def resize(self, num_fetchers: int) -> None:
        """Spread the partitions of each leader over so many threads, from where each partition is (FMGR-10)."""
        with self._lock:
            if num_fetchers == self._num_fetchers:
                return
            self._num_fetchers = num_fetchers
            moved: dict[FetcherKey, dict[TopicPartition, PartitionFetchState]] = defaultdict(dict)
            for key, thread in self._threads.items():
                leaving = [tp for tp in thread.states() if fetcher_id(tp, num_fetchers) != key.fetcher_id]
                # A mark of a failed partition stays: it is in no thread.
                for tp, state in thread.remove_partitions(leaving).items():
                    moved[FetcherKey(key.leader_id, fetcher_id(tp, num_fetchers))][tp] = state
            for key, states in moved.items():
                thread_of_key = self._thread_for(key)
                if thread_of_key is not None:
                    thread_of_key.add_states(states)
            self._end([key for key, thread in self._threads.items() if not thread.partition_count])

    # -- figures for metrics (FMGR-11, METRIC-01) ------------------------------------------------------------------

    def threads(self) -> dict[FetcherKey, ReplicaFetcherThread]:
        """The running threads; each counts its requests and bytes."""
        with self._lock:
            return dict(self._threads)

    def addresses(self) -> dict[FetcherKey, Address]:
        """Where the leader of each running thread is, as address_of() said when the thread started."""
        with self._lock:
            return dict(self._addresses)

    def states(self) -> dict[TopicPartition, PartitionFetchState]:
        """Of every partition that is copied; lag is ConsumerLag of Kafka's metrics."""
        return {tp: state for thread in self.threads().values() for tp, state in thread.states().items()}

    def delay_reason(self, tp: TopicPartition) -> str | None:
        """See Fetchers."""
        for thread in self.threads().values():
            reason = thread.delay_reason(tp)
            if reason is not None:
                return reason
        return (
            "an error that the log names has ended it, until the controller's next update"
            if tp in self._failed
            else None
        )

    @property
    def failed_partitions_count(self) -> int:
        """Partitions that are copied no longer, until the controller's next update of them."""
        return len(self._failed)

    @property
    def dead_thread_count(self) -> int:
        """Threads that ended without having been shut down."""
        return sum(thread.is_dead for thread in self.threads().values())
