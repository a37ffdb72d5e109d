"""The partitions of data directories, and the offsets that can be read from each.

A partition can be read up to its high watermark: records after it may still be truncated.  The high watermark is in the
file replication-offset-checkpoint, which a running broker writes every few seconds; the broker itself has the current
value.  A partition that the file does not name ends with its log, unless a process has the directory open.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from kcore.common.file import exists, is_directory, list_directory
from kcore.common.topic_names import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, SHARE_GROUP_STATE_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptFile
from kcore.log import checkpoints
from kcore.log.checkpoints import OffsetCheckpointFile
from kcore.log.directory_lock import is_held
from kcore.log.load_journal import JOURNAL_FILE
from kcore.log.log_file_names import (
    LOG_SUFFIX,
    SWAP_SUFFIX,
    parse_partition_directory,
    parse_segment_file,
    segment_file,
)
from kcore.log.log_segment import LogSegment
from kcore.log.open_log import open_log
from kcore.spark.options import Isolation, OptionError, ReadOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Bounds:
    """Offsets that can be read: start <= offset < end, and the transactions among them that were aborted, as (producer
    id, first offset, last offset)."""

    start: int
    end: int
    aborted: tuple[tuple[int, int, int], ...] = ()


#: How often a directory is listed while a segment in it is being replaced.
_ATTEMPTS = 10

#: Topics that Kafka's list of topics leaves out (so a pattern does too): internal ones and the controllers' log.
_NOT_LISTED = INTERNAL_TOPICS | {SHARE_GROUP_STATE_TOPIC, CLUSTER_METADATA_TOPIC}

#: How long a load may take to move its segments into the partitions.
_LOAD_SECONDS = 10.0

#: Asks a running broker for the bounds of partitions.
Ask = Callable[[Iterable[TopicPartition]], dict[TopicPartition, Bounds]]


def find_partitions(paths: Iterable[str]) -> dict[TopicPartition, str]:
    """The directory of each partition in these data directories; a path may be a partition's directory too.

    Raises FileNotFoundError, NotADirectoryError, CorruptFile where a load was interrupted, and OptionError for a
    partition that is in two directories.
    """
    partitions: dict[TopicPartition, str] = {}
    for path in paths:
        path = os.path.abspath(path)
        own = parse_partition_directory(os.path.basename(path))
        wait_for_load(path)
        if own is not None:
            wait_for_load(os.path.dirname(path))
        if own is not None and is_partition_directory(path):
            here = {own.topic_partition: path}
        else:
            parsed = ((name, parse_partition_directory(name)) for name in sorted(list_directory(path)))
            here = {
                name.topic_partition: os.path.join(path, directory)
                for directory, name in parsed
                if name is not None and not name.mark and is_directory(os.path.join(path, directory))
            }
        for tp, directory in here.items():
            if partitions.setdefault(tp, directory) != directory:
                raise OptionError(f"path: {tp} is both in {partitions[tp]} and in {directory}")
    return partitions


def is_partition_directory(path: str) -> bool:
    """True if its name is that of a partition and it has a .log file.  Raises OSError."""
    named = parse_partition_directory(os.path.basename(path))
    return named is not None and not named.mark and any(name.endswith(LOG_SUFFIX) for name in list_directory(path))


def choose_partitions(options: ReadOptions, gone: Collection[str] | None = ()) -> dict[TopicPartition, str]:
    """The partitions that the options select: all but those of internal topics if no topic is named.  gone: topics that
    may be missing; None: all.

    Raises FileNotFoundError, NotADirectoryError, OptionError for a named topic or partition that does not exist.
    """
    partitions = find_partitions(options.paths)
    places = ", ".join(options.paths)
    if options.topics is not None:
        existing = {tp.topic for tp in partitions}
        for topic in options.topics:
            if topic not in existing and gone is not None and topic not in gone:
                raise OptionError(f"subscribe: no partition of topic {topic!r} in {places}")
        return {tp: directory for tp, directory in partitions.items() if tp.topic in options.topics}
    if options.topic_pattern is not None:
        pattern = options.topic_pattern
        return {
            tp: directory
            for tp, directory in partitions.items()
            if tp.topic not in _NOT_LISTED and pattern.fullmatch(tp.topic)
        }
    if options.assigned is not None:
        missing = [
            tp for tp in sorted(options.assigned - partitions.keys()) if gone is not None and tp.topic not in gone
        ]
        if missing:
            raise OptionError(f"assign: no {', '.join(map(str, missing))} in {places}")
        return {tp: partitions[tp] for tp in sorted(options.assigned & partitions.keys())}
    if not partitions and gone is not None and not gone:
        raise OptionError(f"path: there is no partition's directory in {places}")
    return {tp: directory for tp, directory in partitions.items() if not tp.topic.startswith("__")}


def wait_for_load(data_dir: str) -> None:
    """Waits while a load is moving segments into this directory: meanwhile some old and some new files are missing.
    Raises CorruptFile for a load that was interrupted, or takes too long; OSError."""
    journal = os.path.join(data_dir, JOURNAL_FILE)
    until = time.monotonic() + _LOAD_SECONDS
    while exists(journal):
        if not is_held(data_dir):
            if not exists(journal):
                return  # it ended between the two checks
            raise CorruptFile(
                f"{journal}: a load was interrupted here ({JOURNAL_FILE}). Any kcore broker, kcore.open_log(path, 'a') "
                "or the next write finishes it"
            )
        if time.monotonic() > until:
            raise CorruptFile(
                f"{journal}: a load is not finished ({JOURNAL_FILE}), and for {_LOAD_SECONDS:g} s another process has "
                "had the directory open: the load, or a broker without support for it. Try again later, or stop the "
                "broker; then any kcore broker, kcore.open_log(path, 'a') or the next write finishes the load"
            )
        time.sleep(0.05)


def segment_base_offsets(directory: str) -> list[int]:
    """Base offsets of the segments in it, ascending.

    Raises FileNotFoundError for a directory that is gone, CorruptFile for one in which a cleaning or a load was
    interrupted.
    """
    for attempt in range(_ATTEMPTS):
        files = [parse_segment_file(name) for name in list_directory(directory)]
        logs = [file for file in files if file is not None and file.kind == LOG_SUFFIX]
        swaps = [file for file in logs if file.mark == SWAP_SUFFIX]
        if not swaps:
            return sorted(file.base_offset for file in logs if not file.mark)
        # A broker needs a moment to rename a cleaned segment; a load may need longer.
        wait_for_load(os.path.dirname(directory))
        time.sleep(0.02 * attempt)
    raise CorruptFile(
        f"{segment_file(directory, swaps[0].base_offset, LOG_SUFFIX + SWAP_SUFFIX)}: a cleaning was interrupted here. "
        "A broker that starts, or kcore.open_log(path, 'a'), finishes it"
    )


def log_bounds(
    partitions: Mapping[TopicPartition, str], isolation: Isolation, ask_broker: Ask | None = None
) -> dict[TopicPartition, Bounds]:
    """The bounds of each partition, from the broker or, without ask_broker, from the files.

    Raises OSError, CorruptFile, CorruptMessage, and what ask_broker raises.
    """
    if ask_broker is not None:
        bounds = ask_broker(partitions)
    else:
        parents = {os.path.dirname(directory) for directory in partitions.values()}
        checkpoint_files = {parent: _Checkpoints(parent) for parent in parents}
        bounds = {
            tp: checkpoint_files[os.path.dirname(directory)].bounds(tp, directory)
            for tp, directory in partitions.items()
        }
    if isolation == "read_uncommitted":
        return bounds
    return {tp: _committed(directory, bounds[tp]) for tp, directory in partitions.items()}


def _committed(directory: str, bounds: Bounds) -> Bounds:
    """The bounds up to the first open transaction, with the aborted transactions."""
    if bounds.end <= bounds.start:
        return bounds
    with open_log(directory) as log:
        end = max(bounds.start, min(bounds.end, log.last_stable_offset))
        aborted = log.local.aborted_between(bounds.start, end)
    return Bounds(bounds.start, end, tuple((txn.producer_id, txn.first_offset, txn.last_offset) for txn in aborted))


class _Checkpoints:
    """The offset checkpoints of a data directory."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._starts = OffsetCheckpointFile(os.path.join(path, checkpoints.LOG_START_OFFSET_CHECKPOINT)).read()
        self._high_watermarks = OffsetCheckpointFile(
            os.path.join(path, checkpoints.REPLICATION_OFFSET_CHECKPOINT)
        ).read()

    @cached_property
    def _is_open(self) -> bool:
        return is_held(self._path)

    def bounds(self, tp: TopicPartition, directory: str) -> Bounds:
        base_offsets = segment_base_offsets(directory)
        if not base_offsets:
            start = self._starts.get(tp, 0)
            return Bounds(start, start)
        end = log_end(directory, base_offsets)
        start = max(self._starts.get(tp, 0), base_offsets[0])
        high_watermark = self._high_watermarks.get(tp)
        if high_watermark is not None:
            end = min(end, high_watermark)
        elif start < end and self._high_watermarks and self._is_open:
            # A running broker has not yet written the high watermark of this partition.  Without a running broker the
            # file may be incomplete: in a copied directory it has only partitions that a load or open_log() wrote.
            logger.warning(
                "%s: offsets %d to %d are not read: %s is open in a broker, whose %s does not name the partition yet; "
                "option kcore.bootstrap.servers asks the broker",
                tp,
                start,
                end - 1,
                self._path,
                checkpoints.REPLICATION_OFFSET_CHECKPOINT,
            )
            end = start
        return Bounds(min(start, end), end)


def log_end(directory: str, base_offsets: list[int]) -> int:
    """The offset after the last whole batch.  Raises CorruptMessage, OSError."""
    segment = LogSegment(directory, base_offsets[-1], writable=False)
    try:
        return segment.read_next_offset()
    finally:
        segment.close()
