"""Adds staged logs to the logs of a data directory that no process has open: all of them or, after a crash, none.

The records are first written to a staging directory inside the data directory and synced.  Every broker may delete the
staging directory: its name has the mark of a deleted partition.  Then, under the directory's `.lock`:

1. the staged segments get their offsets (LogSegment.renumber) and are moved into the partitions' directories as
   `.cleaned` files, which every loader removes; new partitions are completed in the staging directory;
2. the journal (`kcore-load-journal`) is written: this decides the load, which is then finished even after a crash;
3. kcore.log.load_journal applies the journal, now or when kcore opens the directory next.

If a Kafka broker starts on the directory after a crash in step 3, some partitions have the load and others do not.
kcore reports this when it opens the directory next.  It keeps the journal, which has the names of the partitions.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from kcore.bulk.staged_log import StagedLog, StagedSegment
from kcore.common.file import (
    File,
    is_directory,
    list_directory,
    make_directory,
    modified_ms,
    remove_tree,
    rename,
    sync_path,
    unlink_if_there,
)
from kcore.common.random_source import SYSTEM_RANDOM
from kcore.common.text import plain_error
from kcore.common.time import SYSTEM_TIME
from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptFile
from kcore.log import checkpoints, load_journal
from kcore.log.checkpoints import EpochEntry, LeaderEpochCheckpointFile
from kcore.log.clean_shutdown import read_broker_epoch, remove_clean_shutdown, was_clean_shutdown, write_clean_shutdown
from kcore.log.directory_lock import DirectoryLock
from kcore.log.load_journal import (
    SEGMENT_SUFFIXES,
    LoadJournal,
    finish_interrupted_load,
    last_batches,
    partition_of,
    read_journal,
    remove_leftover,
    side_by_side,
)
from kcore.log.log_config import LogConfig
from kcore.log.log_dir import LogDir
from kcore.log.log_file_names import (
    CLEANED_SUFFIX,
    DELETE_DIR_SUFFIX,
    LOG_SUFFIX,
    marked_directory,
    parse_partition_directory,
    partition_directory,
    segment_file,
)
from kcore.log.log_loader import load_log
from kcore.log.log_segment import LogSegment
from kcore.log.meta_properties import refuse_members_directory
from kcore.log.partition_counts import partition_counts
from kcore.log.partition_metadata import write_topic_id
from kcore.log.unified_log import UnifiedLog
from kcore.record.memory_records import MemoryRecords

logger = logging.getLogger(__name__)

_STAGING_TOPIC = "kcore-load"

#: A staging directory without a change for this time is abandoned: its load does not run any more.
_ABANDONED_AFTER_MS = 24 * 3600 * 1000
#: Smaller segments are joined: this is the smallest segment.bytes of Kafka 4.1, and to copy so little is cheap.
_SMALL_SEGMENT_BYTES = 1 << 20


class LoadedRange(NamedTuple):
    """Offsets of the loaded records of a partition: start <= offset < end."""

    start: int
    end: int


def staging_directory(data_dir: str, name: str) -> str:
    """The staging directory of the load with this name (letters and digits).  Brokers, Kafka's too, treat it as a
    deleted partition and remove it."""
    return os.path.join(data_dir, f"{_STAGING_TOPIC}-0.{name}{DELETE_DIR_SUFFIX}")


def commit_load(
    data_dir: str,
    staging: str,
    logs: Iterable[StagedLog],
    *,
    partitions: Mapping[str, int],
    replaced: Collection[str] = (),
    stream: tuple[str, int] | None = None,
    config: LogConfig | None = None,
) -> dict[TopicPartition, LoadedRange]:
    """Appends the records of the staged logs to the logs of the directory; returns their offsets.

    logs: those of one partition are appended in this order.  partitions: topic -> number of partitions over which its
    records were spread; a new topic is created with this number.  replaced: topics whose existing records are
    deleted; the new records get the offsets after them, so that no offset is used twice.  stream: the id of a stream
    and the number of its batch; if this batch or a later one was committed before, changes nothing and returns {}.
    config: that of the staged segments; segments below 1 MiB are joined to the one before if it has room.
    Removes the staging directory, and those of other loads that had no change for a day.  No process may have the
    directory open; logs that were not closed cleanly are recovered first.  Raises DirectoryInUse,
    ClusterMemberDirectory, InvalidPartitions for a topic with another number of partitions (another load may have
    created it after the records were staged), CorruptFile, OSError and what load_log raises.  After an error nothing
    was loaded, unless is_decided() returns True.
    """
    lock = DirectoryLock(data_dir)
    try:
        refuse_members_directory(data_dir)
        finish_interrupted_load(data_dir)
        _remove_abandoned(data_dir, os.path.basename(staging))
        if stream is not None and last_batches(data_dir).get(stream[0], -1) >= stream[1]:
            logger.info("%s: batch %d of stream %s was loaded before", data_dir, stream[1], stream[0])
            remove_tree(staging)
            return {}
        counts = partition_counts(data_dir)
        for topic, count in partitions.items():
            counts.check(topic, count)
        return _Commit(data_dir, staging, logs, partitions, frozenset(replaced), stream, config or LogConfig()).run()
    finally:
        lock.release()


def is_decided(data_dir: str, staging: str) -> bool:
    """True if a load was decided (its journal is written) and is not finished.  Raises CorruptFile, OSError."""
    journal = read_journal(data_dir)
    return journal is not None and journal.staging == os.path.basename(staging)


def discard_load(data_dir: str, staging: str) -> None:
    """Removes the staging directory, unless the load was decided.  Raises CorruptFile, OSError."""
    if not is_decided(data_dir, staging):
        remove_tree(staging)


@dataclass
class _Prepared:
    """The change of one partition by a load."""

    name: str
    ends: tuple[int, int]
    aside: str | None = None
    segments: list[Sequence[int]] | None = None  # None: the directory is new


class _Commit:
    def __init__(
        self,
        data_dir: str,
        staging: str,
        logs: Iterable[StagedLog],
        partitions: Mapping[str, int],
        replaced: frozenset[str],
        stream: tuple[str, int] | None,
        config: LogConfig,
    ) -> None:
        self.data_dir = data_dir
        self.config = config
        self.staging = staging
        self.logs: dict[TopicPartition, list[StagedLog]] = {}
        for topic, count in partitions.items():
            self.logs.update({TopicPartition(topic, p): [] for p in range(count)})
        for log in logs:
            if log.segments:
                self.logs.setdefault(log.topic_partition, []).append(log)
        self.replaced = replaced
        self.stream = stream
        self.moved_in: list[str] = []
        self.open: set[TopicPartition] = set()

    def run(self) -> dict[TopicPartition, LoadedRange]:
        self.was_clean = was_clean_shutdown(self.data_dir)
        self.broker_epoch = read_broker_epoch(self.data_dir)
        log_dir = LogDir(self.data_dir)
        self.recovery_points = log_dir.recovery_points.read_or_warn()
        self.log_starts = log_dir.log_starts.read_or_warn()
        clean = self.was_clean or self._is_alone()
        remove_clean_shutdown(self.data_dir)
        try:
            prepared = side_by_side(self._prepare, sorted(self.logs))
            changed = [one for one in prepared if one is not None]
            journal = LoadJournal(
                os.path.basename(self.staging),
                clean,
                self.broker_epoch,
                self.stream,
                aside=[(one.name, one.aside) for one in changed if one.aside is not None],
                made=[one.name for one in changed if one.segments is None],
                segments={one.name: one.segments for one in changed if one.segments is not None},
                ends={one.name: one.ends for one in changed},
            )
            load_journal.write_journal(self.data_dir, journal)
        except BaseException:
            self._undo()
            raise
        try:
            load_journal.apply_journal(self.data_dir, journal)
        except BaseException as error:
            error.add_note(
                f"The load is decided all the same: the next process that opens {self.data_dir} with kcore finishes "
                "it.  To repeat it would write the records twice."
            )
            raise
        return {partition_of(one.name): LoadedRange(*one.ends) for one in changed}

    def _is_alone(self) -> bool:
        """True if this load opens, and so recovers, every log in the directory."""
        for name in list_directory(self.data_dir):
            parsed = parse_partition_directory(name)
            if parsed is None or parsed.mark == DELETE_DIR_SUFFIX:
                continue
            if parsed.mark or not (
                self.logs.get(parsed.topic_partition) or parsed.topic_partition.topic in self.replaced
            ):
                return False
        return True

    def _prepare(self, tp: TopicPartition) -> _Prepared | None:
        """None for a partition that does not change."""
        staged = self.logs[tp]
        directory = os.path.join(self.data_dir, partition_directory(tp))
        if not is_directory(directory):
            return self._make(tp, staged, 0, 0, None)
        if not staged and tp.topic not in self.replaced:
            return None
        self.open.add(tp)
        log = load_log(
            directory,
            tp,
            LogConfig(),
            log_start_offset=self.log_starts.get(tp, 0),
            recovery_point=self.recovery_points.get(tp, 0),
            had_clean_shutdown=self.was_clean,
            sole_replica=True,
        )
        try:
            end = log.log_end_offset
            epoch = _epoch_of_next_batch(log, end)
        finally:
            log.close()
        self.open.discard(tp)
        if tp.topic not in self.replaced:
            return self._move_in(directory, staged, end, epoch)
        made = self._make(tp, staged, end, epoch, log.topic_id)
        made.aside = marked_directory(tp, DELETE_DIR_SUFFIX, SYSTEM_RANDOM)
        return made

    def _make(
        self, tp: TopicPartition, staged: list[StagedLog], start: int, epoch: int, topic_id: UUID | None
    ) -> _Prepared:
        """Completes a partition's directory inside the staging directory."""
        source = os.path.join(self.staging, "made", partition_directory(tp))
        make_directory(source)
        end = start
        for path, base_offset, _, next_offset in _renumbered(staged, start, epoch, self.config):
            for suffix in SEGMENT_SUFFIXES:
                rename(path + suffix, segment_file(source, base_offset, suffix))
            end = next_offset
        if end == start:
            LogSegment(source, start).close()
        LeaderEpochCheckpointFile(os.path.join(source, checkpoints.LEADER_EPOCH_CHECKPOINT)).write(
            [EpochEntry(epoch, start)]
        )
        if topic_id is not None:
            write_topic_id(source, topic_id)
        sync_path(source)
        return _Prepared(partition_directory(tp), (start, end))

    def _move_in(self, directory: str, staged: list[StagedLog], start: int, epoch: int) -> _Prepared:
        """Moves the segments into the partition's directory, as .cleaned files."""
        segments: list[Sequence[int]] = []
        end = start
        for path, base_offset, size, next_offset in _renumbered(staged, start, epoch, self.config):
            for suffix in SEGMENT_SUFFIXES:
                target = segment_file(directory, base_offset, suffix + CLEANED_SUFFIX)
                self.moved_in.append(target)
                rename(path + suffix, target)
            segments.append((base_offset, size))
            end = next_offset
        sync_path(directory)
        return _Prepared(os.path.basename(directory), (start, end), segments=segments)

    def _undo(self) -> None:
        """Undoes the changes of a load that was not decided."""
        for path in self.moved_in:
            unlink_if_there(path)
        if self.was_clean and not self.open:
            write_clean_shutdown(self.data_dir, self.broker_epoch)


@dataclass
class _Piece:
    """A staged segment, to which small ones after it may be joined."""

    directory: str
    base_offset: int  # in the staged log; in the final log it is start + base_offset
    next_offset: int
    size: int
    start: int
    is_joined: bool = False


def _renumbered(
    staged: list[StagedLog], start: int, epoch: int, config: LogConfig
) -> Iterator[tuple[str, int, int, int]]:
    """Renumbers each segment; gives its (path without suffix, base offset, size, next offset) in the final log."""
    for piece in _joined(staged, start, config):
        if (piece.start, epoch) != (0, 0):
            segment = LogSegment(piece.directory, piece.base_offset)
            try:
                segment.renumber(piece.start + piece.base_offset, epoch)
            finally:
                segment.close()
            _sync_segment(piece)
        path = segment_file(piece.directory, piece.base_offset, "")
        yield path, piece.start + piece.base_offset, piece.size, piece.start + piece.next_offset


def _joined(staged: list[StagedLog], start: int, config: LogConfig) -> list[_Piece]:
    """The segments in order.  Small ones (many tasks with few records make them) are joined to the one before."""
    pieces: list[_Piece] = []
    target: LogSegment | None = None
    try:
        for log in staged:
            for segment in log.segments:
                _check_staged(segment_file(log.directory, segment.base_offset, LOG_SUFFIX), segment.size)
                if pieces and segment.size < _SMALL_SEGMENT_BYTES:
                    if target is None:
                        target = _open_segment(pieces[-1].directory, pieces[-1].base_offset, config)
                    if _join(pieces[-1], target, log, segment, config):
                        continue
                if target is not None:
                    _finish_joined(pieces[-1], target)
                    target = None
                pieces.append(_Piece(log.directory, segment.base_offset, segment.next_offset, segment.size, start))
            start += log.record_count
        if target is not None:
            _finish_joined(pieces[-1], target)
            target = None
    finally:
        if target is not None:
            target.close()
    return pieces


def _finish_joined(piece: _Piece, target: LogSegment) -> None:
    """Syncs and closes the segment.  After a join both indexes are rebuilt as for one sequence of appends: a reopened
    segment does not know the bytes since its last index entry, and its first close has ended its time index."""
    if piece.is_joined:
        result = target.recover(only_noteworthy=True, cut=False)
        if result.truncated_bytes:
            raise CorruptFile(f"{target.log_path}: position {result.valid_bytes}: {result.reason}")
    target.close()
    _sync_segment(piece)


def _join(piece: _Piece, target: LogSegment, log: StagedLog, segment: StagedSegment, config: LogConfig) -> bool:
    """Appends the segment's records to the piece and returns True; False if the piece must be rolled before them."""
    source = LogSegment(log.directory, segment.base_offset)
    try:
        max_timestamp = source.max_timestamp_so_far
        next_offset = piece.next_offset + segment.next_offset - segment.base_offset
        if target.should_roll(
            segment.size,
            next_offset - 1,
            max_timestamp,
            target.created_ms,
            segment_bytes=config.segment_bytes,
            segment_ms=config.segment_ms,
        ):
            return False
        source.renumber(piece.next_offset, 0)
        target.append(MemoryRecords(source.slice(0, segment.size).read(), check_crc=False, source=source.log_path))
    finally:
        source.close()
    piece.next_offset = next_offset
    piece.size += segment.size
    piece.is_joined = True
    return True


def _open_segment(directory: str, base_offset: int, config: LogConfig) -> LogSegment:
    return LogSegment(
        directory,
        base_offset,
        index_interval_bytes=config.index_interval_bytes,
        max_index_size=config.segment_index_bytes,
        max_segment_bytes=config.segment_bytes,
    )


def _sync_segment(piece: _Piece) -> None:
    for suffix in SEGMENT_SUFFIXES:
        sync_path(segment_file(piece.directory, piece.base_offset, suffix))


def _epoch_of_next_batch(log: UnifiedLog, end: int) -> int:
    """The latest leader epoch of the log.  A log without epochs gets epoch 0 at its end."""
    latest = log.leader_epoch_cache.latest_entry
    if latest is None:
        log.maybe_assign_epoch_start_offset(0, end)
    return latest.epoch if latest is not None else 0


def _check_staged(path: str, size: int) -> None:
    try:
        actual_size = File(path).size
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path}: a staged segment is missing: the task that wrote it has another file system under this path, or "
            "a broker was started on the directory and removed it"
        ) from None
    if actual_size != size:
        raise CorruptFile(f"{path}: {actual_size} bytes, {size} were staged")


def _remove_abandoned(data_dir: str, own: str) -> None:
    """Removes the staging directories of killed drivers, and of tasks that continued after their job had failed.  If no
    broker opens the data directory, nothing else removes them."""
    now_ms = SYSTEM_TIME.milliseconds()
    for name in list_directory(data_dir):
        path = os.path.join(data_dir, name)
        if not (name.startswith(f"{_STAGING_TOPIC}-0.") and name.endswith(DELETE_DIR_SUFFIX)) or name == own:
            continue
        try:
            idle_ms = now_ms - _last_change_ms(path)
        except FileNotFoundError:  # its load has just ended
            continue
        except OSError as error:
            logger.warning("%s: cannot determine if a load still needs it: %s", path, plain_error(error))
            continue
        if idle_ms > _ABANDONED_AFTER_MS:
            logger.info("%s: removing the staging directory of a load that never ended", path)
            remove_leftover(path)


def _last_change_ms(path: str) -> int:
    """The latest change of a directory and everything in it: writing a file does not change the directory's time."""
    inside = [os.path.join(path, name) for name in list_directory(path)] if is_directory(path) else []
    return max([modified_ms(path), *map(_last_change_ms, inside)])
