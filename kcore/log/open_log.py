"""open_log: one partition's log as an object, without a broker."""

from __future__ import annotations

import errno
import logging
import os

from kcore.common.file import exists, is_directory, list_directory, make_directory
from kcore.common.scheduler import Scheduler
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import NotAPartitionDirectory
from kcore.log import clean_shutdown, meta_properties
from kcore.log.load_journal import finish_interrupted_load
from kcore.log.log_config import LogConfig
from kcore.log.log_dir import LogDir
from kcore.log.log_file_names import (
    PartitionDirectoryName,
    parse_partition_directory,
    parse_segment_file,
    partition_directory,
)
from kcore.log.log_loader import load_log
from kcore.log.unified_log import Mode, UnifiedLog

logger = logging.getLogger(__name__)

#: How many of a data directory's partitions an error names.
_NAMED_PARTITIONS = 3


def open_log(
    path: str | os.PathLike[str],
    mode: Mode = "r",
    *,
    config: LogConfig | None = None,
    time: Time = SYSTEM_TIME,
) -> UnifiedLog:
    """The log in a partition's directory (".../orders-0"), whoever wrote it: a context manager.

    "r" changes nothing on disk, needs no lock, and opens a directory of any name that was left in disorder, or that a
    broker is writing to, as far as it is whole: files are read with system calls and never mapped, so an owner that
    truncates them ends no reader.  What was cut or replaced since it was opened is a CorruptMessage or a shorter log.

    "a" appends: it takes the `.lock` of the data directory around it, repairs what a crash left, makes the directory if
    there is none (not the data directory), and leaves it cleanly stopped on close.

    The checkpoints of the data directory are used where there are any.  The high watermark is the log's end: offline
    no broker replicates.  (In mode "r" after a clean stop it is the checkpoint's.)
    Raises ValueError for another mode; TypeError for other arguments; NotADirectoryError for a file;
    NotAPartitionDirectory for a data directory, and for a name without a partition ("a"); FileNotFoundError where there
    is no log ("r") or no data directory ("a"); DirectoryInUse ("a"), ClusterMemberDirectory ("a") for the data
    directory of a cluster's member: the other replicas would not get the records; OSError, and what load_log raises.
    """
    if mode not in ("r", "a"):
        raise ValueError(f"mode {mode!r}, expected 'r' or 'a'")
    if config is not None and not isinstance(config, LogConfig):
        raise TypeError(f"config must be a LogConfig, not {config!r}")
    if not isinstance(time, Time):
        raise TypeError(f"time must be a clock as kcore.testing.MockTime, not {time!r}")
    directory = os.path.abspath(os.fspath(path))
    _check_directory(directory)
    name = parse_partition_directory(os.path.basename(directory))
    if mode == "a":
        _check_place(directory, name)
    # A copy may have any name; the partition's name then is the directory's.
    tp = name.topic_partition if name is not None else TopicPartition(os.path.basename(directory), 0)
    if mode == "r":
        return _open_for_reading(directory, tp, config or LogConfig(), time)
    return _open_for_appending(directory, tp, config or LogConfig(), time)


def _check_directory(directory: str) -> None:
    """Raises NotADirectoryError for a file, NotAPartitionDirectory for a data directory."""
    if not is_directory(directory):
        if exists(directory):
            raise NotADirectoryError(
                errno.ENOTDIR, "a file, not a partition's directory: open the directory around it", directory
            )
        return
    names = list_directory(directory)
    if any(parse_segment_file(name) for name in names):
        return
    partitions = sorted(
        name for name in names if parse_partition_directory(name) and is_directory(os.path.join(directory, name))
    )
    if partitions:
        some, others = ", ".join(partitions[:_NAMED_PARTITIONS]), len(partitions[_NAMED_PARTITIONS:])
        more = f" and {others} more" if others else ""
        raise NotAPartitionDirectory(
            f"{directory}: a data directory, not a partition's; it holds {some}{more}: open one of them"
        )


def _check_place(directory: str, name: PartitionDirectoryName | None) -> None:
    """What an append needs of the directory's name and of the data directory around it.

    Raises NotAPartitionDirectory, FileNotFoundError, NotADirectoryError.
    """
    if name is None:
        raise NotAPartitionDirectory(
            f"{directory}: the name is not TOPIC-PARTITION, as orders-0, under which the data directory's checkpoints "
            "know a partition"
        )
    if name.mark:
        raise NotAPartitionDirectory(
            f"{directory}: the name ends with {name.mark}, the checkpoints are those of another directory; to append, "
            f"rename it to {partition_directory(name.topic_partition)}"
        )
    parent = os.path.dirname(directory)
    if not is_directory(parent):
        if exists(parent):
            raise NotADirectoryError(errno.ENOTDIR, "a file, not a data directory", parent)
        raise FileNotFoundError(
            errno.ENOENT, "no such data directory; make it first, only a partition's directory is made", parent
        )


def _open_for_reading(directory: str, tp: TopicPartition, config: LogConfig, time: Time) -> UnifiedLog:
    if not is_directory(directory):
        list_directory(directory)  # FileNotFoundError or NotADirectoryError, with the system's words
    parent = os.path.dirname(directory)
    clean = clean_shutdown.was_clean_shutdown(parent)
    log_dir = LogDir(parent)
    high_watermark = log_dir.high_watermarks.read_or_warn().get(tp) if clean else None
    return load_log(
        directory,
        tp,
        config,
        time=time,
        mode="r",
        log_start_offset=log_dir.log_starts.read_or_warn().get(tp, 0),
        recovery_point=log_dir.recovery_points.read_or_warn().get(tp, 0),
        high_watermark=high_watermark or 0,
        had_clean_shutdown=clean,
        sole_replica=high_watermark is None,
    )


def _open_for_appending(directory: str, tp: TopicPartition, config: LogConfig, time: Time) -> UnifiedLog:
    parent = os.path.dirname(directory)
    log_dir = LogDir(parent)
    log_dir.lock()
    try:
        meta_properties.refuse_members_directory(parent)
        finish_interrupted_load(parent)
        was_clean = clean_shutdown.remove_clean_shutdown(parent)
        others = [name for name in list_directory(parent) if name != os.path.basename(directory)]
        alone = not any(parse_partition_directory(name) for name in others)
        make_directory(directory)
        scheduler = Scheduler(f"kcore-log-{tp}", time)
        log = load_log(
            directory,
            tp,
            config,
            time=time,
            scheduler=scheduler,
            log_start_offset=log_dir.log_starts.read_or_warn().get(tp, 0),
            recovery_point=log_dir.recovery_points.read_or_warn().get(tp, 0),
            had_clean_shutdown=was_clean,
            sole_replica=True,
            log_dir=log_dir,
        )
        scheduler.startup()
    except BaseException:
        log_dir.release()
        raise

    def leave(closed: UnifiedLog) -> None:
        try:
            scheduler.shutdown()
            if not closed.is_offline:
                log_dir.update(log_dir.recovery_points, tp, closed.recovery_point)
                log_dir.update(log_dir.high_watermarks, tp, closed.high_watermark)
                if closed.log_start_offset > closed.segments[0].base_offset:
                    log_dir.update(log_dir.log_starts, tp, closed.log_start_offset)
                # The marker covers all partitions of the directory: the others must have been closed cleanly before.
                if was_clean or alone:
                    clean_shutdown.write_clean_shutdown(parent)
        finally:
            log_dir.release()

    log.on_close(leave)
    return log
