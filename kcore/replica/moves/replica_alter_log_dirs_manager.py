"""ReplicaAlterLogDirsManager: moves of logs between the data directories of this broker (DIR, RM-22)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from kcore.common.text import plain_error
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, KafkaError
from kcore.log.log_manager import LogManager
from kcore.replica.api_errors import api_error
from kcore.replica.fetcher.fetchers import InitialFetchState, fetcher_id
from kcore.replica.hosted_partitions import HostedPartitions
from kcore.replica.partition import Partition
from kcore.replica.replica_quota import ReplicaQuota

if TYPE_CHECKING:
    from kcore.log.log_dir_descriptions import LogDirDescription
    from kcore.replica.fetcher.fetcher_state import FetcherConfig
    from kcore.replica.moves.replica_alter_log_dirs_thread import ReplicaAlterLogDirsThread

logger = logging.getLogger(__name__)


class ReplicaAlterLogDirsManager:
    """The threads that move logs, started when the first log moves, and who begins, redirects and cancels moves.

    Thread-safe.  state_change_lock is ReplicaManager's: no partition comes or goes during alter().  Below it is _lock,
    for the threads; holding that the manager takes locks of its threads and waits for those that end, and a thread
    never calls the manager.  num_threads: the number of data directories, unless it is set before the first move.
    Source: ReplicaAlterLogDirsManager, ReplicaManager.alterReplicaLogDirs, Kafka 3.9.
    """

    def __init__(
        self,
        log_manager: LogManager,
        time: Time,
        state_change_lock: AbstractContextManager[object],
        hosted_partitions: HostedPartitions,
        *,
        config: FetcherConfig | None = None,
    ) -> None:
        self._log_manager = log_manager
        self._time = time
        self._state_change_lock = state_change_lock
        self._hosted_partitions = hosted_partitions
        self.num_threads = len(log_manager.log_dirs)
        self._config = config
        #: How fast logs are copied (DIR-10); to be set before the first move, None is as fast as it goes.
        self.quota: ReplicaQuota | None = None
        self._lock = threading.Lock()
        self._threads: dict[int, ReplicaAlterLogDirsThread] = {}
        self._failed: set[TopicPartition] = set()
        self._is_closed = False

    # -- requests -------------------------------------------------------------------------------------------------

    def alter(self, destinations: Mapping[TopicPartition, str]) -> dict[TopicPartition, ApiError | None]:
        """Have each log in that data directory of this broker; None, or the partition's error.

        A move to another directory than that is cancelled, also where the log is to stay where it is (DIR-11).  The
        log of a partition that is not here now will be made there, if the partition comes.
        Errors: LogDirNotFound, KafkaStorageError (an offline directory or log), and those of
        HostedPartitions.get_or_exception.
        """
        results: dict[TopicPartition, ApiError | None] = {}
        with self._state_change_lock:
            for tp, path in destinations.items():
                try:
                    self._alter(tp, path)
                    results[tp] = None
                except (KafkaError, OSError) as error:
                    logger.warning("%s: its log does not move to %s: %s", tp, path, plain_error(error))
                    results[tp] = api_error(error, "move", tp)
        return results

    def _alter(self, tp: TopicPartition, path: str) -> None:
        self._log_manager.placement.check_online(path)
        hosted = self._hosted_partitions.get(tp)
        if hosted is None:
            self._log_manager.placement.prefer(tp, path)
        partition = self._hosted_partitions.get_or_exception(tp)
        future = partition.future_log
        if future is None or future.parent_dir != path:
            self._remove([tp])  # of an earlier move, too, which a thread has just finished
            self._log_manager.async_delete(tp, is_future=True)
        with partition.future_log_lock:  # a move that is about to end ends before or after this
            log = partition.local_log()
            if log.parent_dir != path:
                self._log_manager.get_or_create_log(tp, topic_id=log.topic_id, is_future=True, log_dir=path)
        self._add([partition])

    def describe(self) -> list[LogDirDescription]:
        """The logs of each data directory.  Asks the file systems."""
        from kcore.log.log_dir_descriptions import describe_log_dirs

        return describe_log_dirs(self._log_manager)

    # -- what happens to the partitions ---------------------------------------------------------------------------

    def on_state_change(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """These lead or follow with another epoch now, or are new: what moves goes on with that epoch (RM-22).  Threads
        that have nothing to move end (RM-12)."""
        if self._log_manager.future_logs():
            partitions = [self._hosted_partitions.get(tp) for tp in topic_partitions]
            self._add([partition for partition in partitions if isinstance(partition, Partition)])
        self.shutdown_idle()

    def stop(self, topic_partitions: Collection[TopicPartition], delete: Collection[TopicPartition]) -> None:
        """This broker no longer has the partitions.  delete: those of which the future logs go too."""
        if self._log_manager.future_logs():
            self._remove(topic_partitions)
            for tp, error in self._log_manager.async_delete_logs(delete, is_future=True).items():
                logger.error("%s: its future log is left: %s", tp, error)
        self.shutdown_idle()

    def handle_log_dir_failure(self, offline: Collection[TopicPartition]) -> None:
        """A data directory has failed: nothing moves away from it (offline: its partitions) or into it.  Called after
        LogManager.handle_log_dir_failure, which has forgotten the future logs in it: their partitions stay where they
        are."""
        moving = [*self.moving, *self._failed]
        self._remove([*offline, *(tp for tp in moving if self._log_manager.get_log(tp, is_future=True) is None)])
        self.shutdown_idle()

    def mark_for_truncation(self, tp: TopicPartition, offset: int) -> None:
        """The current log was cut at offset, so its copy must be cut there too (DIR-07, RFT-15)."""
        with self._lock:
            for thread in self._threads.values():
                thread.mark_for_truncation(tp, offset)

    # -- threads --------------------------------------------------------------------------------------------------

    def _add(self, partitions: Collection[Partition]) -> None:
        with self._lock:
            if self._is_closed:
                return
            for partition in partitions:
                tp = partition.topic_partition
                with partition.future_log_lock:
                    future = partition.future_log = self._log_manager.get_log(tp, is_future=True)
                if future is None:
                    continue
                thread = self._thread_for(tp)
                thread.add_partitions({tp: InitialFetchState(future.high_watermark, partition.leader_epoch)})
                if partition.future_log is None:  # the move has just ended, and the thread has looked already
                    thread.remove_partitions([tp])

    def _remove(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Nothing is copied to these once this has returned."""
        with self._lock:
            for thread in self._threads.values():
                thread.remove_partitions(topic_partitions)
            self._failed.difference_update(topic_partitions)
        for tp in topic_partitions:
            hosted = self._hosted_partitions.get(tp)
            if isinstance(hosted, Partition):
                with hosted.future_log_lock:
                    hosted.future_log = None

    def _thread_for(self, tp: TopicPartition) -> ReplicaAlterLogDirsThread:
        # Few brokers ever move a log; the others do without the fetcher.
        from kcore.replica.moves.replica_alter_log_dirs_thread import make_mover

        number = fetcher_id(tp, self.num_threads)
        thread = self._threads.get(number)
        if thread is None or thread.is_dead:
            logs = (self._hosted_partitions, self._log_manager)
            moved = {} if thread is None else thread.states()
            name = f"kcore-alter-log-dirs-{number}"
            thread = make_mover(name, *logs, self.quota, self._failed, self._time, self._config)
            thread.add_states(moved)
            self._threads[number] = thread
            thread.start()
        return thread

    def shutdown_idle(self) -> None:
        """End the threads that have nothing to move (RM-12)."""
        with self._lock:
            idle = [number for number, thread in self._threads.items() if not thread.partition_count]
            for thread in [self._threads.pop(number) for number in idle]:
                thread.shutdown()

    def close(self) -> None:
        """Move nothing any more: what has not moved goes on at the next start."""
        with self._lock:
            self._is_closed = True
            for thread in self._threads.values():
                thread.initiate_shutdown()
            for thread in self._threads.values():
                thread.await_shutdown()
            self._threads.clear()

    @property
    def moving(self) -> list[TopicPartition]:
        """The partitions whose logs are being copied."""
        with self._lock:
            return [tp for thread in self._threads.values() for tp in thread.states()]

    @property
    def failed(self) -> Collection[TopicPartition]:
        """The partitions whose moves have failed; the next start, or the next alter(), tries again."""
        return self._failed
