"""LogDirLoader: the logs of a data directory at a start, several side by side.

Source: LogManager.loadLogs, Kafka 2.4-4.x.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, wait
from functools import partial
from typing import NamedTuple, Protocol

from kcore.common import topic_names
from kcore.common.executors import ExecutorFactory
from kcore.common.file import exists, is_directory, list_directory
from kcore.common.text import plain_error
from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptFile, KafkaError
from kcore.log import clean_shutdown
from kcore.log.load_journal import finish_interrupted_load
from kcore.log.log_config import LogConfig
from kcore.log.log_dir import CheckpointedOffsets, LogDir
from kcore.log.log_dir_failure_channel import DISK_FULL_ERRORS
from kcore.log.log_file_names import (
    DELETE_DIR_SUFFIX,
    STRAY_DIR_SUFFIX,
    PartitionDirectoryName,
    parse_partition_directory,
)
from kcore.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)

#: KRaft's own log: its directory is beside those of the topics, but no broker serves it as a topic.

#: They say that one path is not what it should be, not that the disk under it is broken.
_ERRORS_OF_ONE_FILE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ENXIO, errno.ELOOP, errno.EACCES, errno.EPERM}
)


class LoadLog(Protocol):
    """load_log() with a broker's clock and schedulers: opens the log of one partition directory."""

    def __call__(
        self,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        log_dir: LogDir,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        had_clean_shutdown: bool = False,
        is_empty: bool = False,
        segment_threads: Executor | None = None,
        may_have_lost_unflushed: bool = False,
    ) -> UnifiedLog: ...


class AwaitingRoom(NamedTuple):
    """A log that can be loaded once its disk has room.  load: load_log() of it, but for the config."""

    log_dir: LogDir
    load: Callable[[LogConfig], UnifiedLog]


class LogDirLoader:
    """Loads the logs of one data directory; which of them are served is decided by the caller of load().

    Lifetime: load() once, on any thread; the rest may be read once it has returned.
    """

    def __init__(
        self,
        log_dir: LogDir,
        load_log: LoadLog,
        config_of: Callable[[str], LogConfig],
        num_threads: int,
        executors: ExecutorFactory,
    ) -> None:
        self.log_dir = log_dir
        #: In the order of their directories' names.
        self.logs: list[tuple[PartitionDirectoryName, UnifiedLog]] = []
        #: Partitions whose directory is there but could not be loaded, and why.
        self.not_loaded: dict[TopicPartition, str] = {}
        #: Those of them that a full disk kept from being loaded.
        self.awaiting_room: dict[TopicPartition, AwaitingRoom] = {}
        #: Directories of partitions that were deleted before the stop.
        self.deleted: list[str] = []
        #: Partition -> its checkpointed high watermark above 0, of those that have no directory here.
        self.without_directory: dict[TopicPartition, int] = {}
        self._load_log = load_log
        self._config_of = config_of
        self._num_threads = num_threads
        self._executors = executors
        self._checkpointed = CheckpointedOffsets({}, {}, {})

    def load(self) -> None:
        """A log that cannot be loaded is reported and left out; a disk that fails takes the directory offline."""
        try:
            to_load = self._prepare()
            if to_load:
                self._load_side_by_side(to_load)
        except OSError as error:
            self.log_dir.fail(error)
        self.logs.sort(key=lambda loaded: loaded[1].directory)

    def _prepare(self) -> list[tuple[PartitionDirectoryName, str]]:
        """The directories to load."""
        log_dir = self.log_dir
        try:
            finish_interrupted_load(log_dir.path)
        except CorruptFile as error:
            logger.error("going on with half a load: %s", error)
        log_dir.read_last_stop()
        self._checkpointed = log_dir.read_checkpoints()
        # LogDir keeps what it has read: let the logs have the same keys, instead of ten thousand others.
        keys = {tp: tp for tp in self._checkpointed.recovery_points}
        to_load: list[tuple[PartitionDirectoryName, str]] = []
        for name in sorted(list_directory(log_dir.path)):
            path = os.path.join(log_dir.path, name)
            parsed = parse_partition_directory(name)
            # A link that leads nowhere is a partition whose disk is not there: it must not begin again, empty.
            if not is_directory(path) and (parsed is None or exists(path)):
                if parsed is not None:
                    logger.warning("%s: leaving %s alone, it is no directory", log_dir.path, name)
            elif parsed is None:
                logger.warning("%s: leaving %s alone, it is no partition's directory", log_dir.path, name)
            elif parsed.mark == DELETE_DIR_SUFFIX:
                self.deleted.append(path)
            elif parsed.mark == STRAY_DIR_SUFFIX:
                logger.warning(
                    "%s: stray directory %s belongs to no partition; delete it when you are sure", log_dir.path, name
                )
            elif not topic_names.is_legal(parsed.topic_partition.topic):
                # A checkpoint with such a name in it might not be readable.
                logger.warning(
                    "%s: leaving %r alone, no topic can be called %r; to use its records, rename the directory",
                    log_dir.path,
                    name,
                    parsed.topic_partition.topic,
                )
            elif parsed.topic_partition.topic != topic_names.CLUSTER_METADATA_TOPIC:
                tp = keys.get(parsed.topic_partition, parsed.topic_partition)
                to_load.append((PartitionDirectoryName(tp, parsed.mark), path))
        here = {parsed.topic_partition for parsed, _ in to_load if not parsed.mark}
        self.without_directory = {
            tp: offset
            for tp, offset in self._checkpointed.high_watermarks.items()
            if offset > 0 and tp not in here and tp.topic != topic_names.CLUSTER_METADATA_TOPIC
        }
        # From here on files change: a crash must not look like a clean stop.
        clean_shutdown.remove_clean_shutdown(log_dir.path)
        if to_load and not log_dir.had_clean_shutdown:
            machine = "; the machine has failed since" if log_dir.machine_has_failed else ""
            logger.warning("%s: no clean shutdown%s, recovering %d logs", log_dir.path, machine, len(to_load))
        return to_load

    def _load_side_by_side(self, to_load: list[tuple[PartitionDirectoryName, str]]) -> None:
        self.log_dir.begin_progress(len(to_load))
        configs = {topic: self._config_of(topic) for topic in {parsed.topic_partition.topic for parsed, _ in to_load}}
        count = self._num_threads
        pending = iter(to_load)
        with self._executors(count, "kcore-log-recovery") as threads:

            def load() -> None:
                try:
                    for parsed, path in pending:
                        # A thread that finds no log any more is there for the segments of the others.
                        self._load_one(parsed, path, configs, threads if count > 1 else None)
                except BaseException:
                    deque(pending, maxlen=0)  # no thread takes another log of a directory that fails
                    raise

            # Each thread takes the next log itself, and after a clean stop one thread is enough: a log then takes
            # 0.1 ms, most of it with the GIL, and each hand-over of that between threads would cost as much again.
            loads = [threads.submit(load) for _ in range(1 if self.log_dir.had_clean_shutdown else count)]
            try:
                wait(loads)  # all of them, before the first failure ends the pool
            finally:
                deque(pending, maxlen=0)  # after Ctrl-C no other log is begun
        for one in loads:
            one.result()

    def _load_one(
        self,
        parsed: PartitionDirectoryName,
        path: str,
        configs: Mapping[str, LogConfig],
        segment_threads: Executor | None,
    ) -> None:
        tp = parsed.topic_partition
        load = partial(
            self._load_log,
            path,
            tp,
            log_dir=self.log_dir,
            recovery_point=self._checkpointed.recovery_points.get(tp, 0),
            log_start_offset=self._checkpointed.log_starts.get(tp, 0),
            high_watermark=self._checkpointed.high_watermarks.get(tp, 0),
            had_clean_shutdown=self.log_dir.had_clean_shutdown,
            may_have_lost_unflushed=self.log_dir.machine_has_failed,
        )
        try:
            log = load(configs[tp.topic], segment_threads=segment_threads)
        except OSError as error:
            if error.errno in DISK_FULL_ERRORS:
                if not parsed.mark:
                    self.awaiting_room[tp] = AwaitingRoom(self.log_dir, load)
            elif error.errno not in _ERRORS_OF_ONE_FILE:
                raise
            self.note_not_loaded(parsed, path, error)
        except Exception as error:  # whatever is in one directory, the others are served
            self.note_not_loaded(parsed, path, error)
        else:
            self.logs.append((parsed, log))
        self.log_dir.note_progress(logs_done=1)

    def note_not_loaded(self, parsed: PartitionDirectoryName, path: str, error: Exception) -> None:
        """The partition cannot be served; its offsets stay in the checkpoints."""
        if not parsed.mark:
            self.not_loaded[parsed.topic_partition] = f"{path}: {plain_error(error)}"
            self.log_dir.keep_checkpointed(parsed.topic_partition, self._checkpointed)
        unexpected = None if isinstance(error, (KafkaError, OSError)) else error
        logger.error("%s: not served, loading it failed: %s", path, plain_error(error), exc_info=unexpected)
