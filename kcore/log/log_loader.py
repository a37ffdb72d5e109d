"""Open a partition's directory after a clean or an unclean stop (LOG-30, SEG-11, TRUNC-11).

Step 1, files that a crash left: .deleted files are removed, .cleaned files (the cleaner had not finished them) are
removed, .swap segments (finished) replace the segments they were made from.
Step 2, the segments.  A flushed segment (any segment after a clean stop, else one below the recovery point) is not
scanned if its indexes pass the sanity check; otherwise it is scanned with CRC, its indexes are rebuilt, and it is cut
at its first bad batch.  After an unclean stop each segment from the recovery point on is scanned too, and the first
bad batch in them ends the log.
Step 3, the leader epochs and the producers' state, from their files or from the batches.
Source: LogLoader, Kafka 3.x-4.x.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from concurrent.futures import Executor, Future, wait
from itertools import pairwise
from random import Random
from uuid import UUID

from kcore.common.file import (
    File,
    is_file,
    make_directory,
    rename,
    set_aside,
    sync_path,
    unlink_if_there,
)
from kcore.common.futures import submit
from kcore.common.random_source import SYSTEM_RANDOM
from kcore.common.scheduler import Scheduler
from kcore.common.text import plain_error
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptFile, CorruptIndex, CorruptMessage
from kcore.log.checkpoints import (
    CLEANER_OFFSET_CHECKPOINT,
)
from kcore.log.epoch_loader import EpochLoader
from kcore.log.epoch_recovery import BatchEpochs
from kcore.log.interrupted_changes import finish_interrupted_changes, list_segment_files, path_of
from kcore.log.local_log import close_segments
from kcore.log.log_config import LogConfig
from kcore.log.log_dir import LogDir
from kcore.log.log_dir_failure_channel import DISK_FULL_ERRORS
from kcore.log.log_file_names import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    SNAPSHOT_SUFFIX,
    STRAY_DIR_SUFFIX,
    SWAP_SUFFIX,
    TXN_INDEX_SUFFIX,
    SegmentFileName,
    marked_directory,
    segment_file,
)
from kcore.log.log_offset_metadata import AbortedTxn
from kcore.log.log_segment import LogSegment
from kcore.log.log_segments import LogSegments
from kcore.log.lost_records import LostRecords, read_mark, write_mark
from kcore.log.overflowed_segment import MAX_RELATIVE_OFFSET, batch_at, split
from kcore.log.partition_metadata import read_topic_id
from kcore.log.producer_state_manager import (
    DEFAULT_PRODUCER_ID_EXPIRATION_MS,
    ProducerReplay,
    ProducerStateManager,
    aborted_txns_in,
    rebuild_producer_state,
)
from kcore.log.segment_file import RecoveryResult
from kcore.log.transaction_index import TransactionIndex
from kcore.log.unified_log import LoadedParts, Mode, UnifiedLog

logger = logging.getLogger(__name__)


def load_log(
    directory: str,
    topic_partition: TopicPartition,
    config: LogConfig,
    *,
    time: Time = SYSTEM_TIME,
    random: Random = SYSTEM_RANDOM,
    scheduler: Scheduler | None = None,
    mode: Mode = "a",
    log_start_offset: int = 0,
    recovery_point: int = 0,
    high_watermark: int = 0,
    had_clean_shutdown: bool = False,
    is_empty: bool = False,
    sole_replica: bool = False,
    producer_id_expiration_ms: int = DEFAULT_PRODUCER_ID_EXPIRATION_MS,
    verifies_transactions: bool = False,
    log_dir: LogDir | None = None,
    segment_threads: Executor | None = None,
    marks_lost_records: bool = False,
    may_have_lost_unflushed: bool = False,
) -> UnifiedLog:
    """The log of an existing directory, which may be empty.

    The offsets come from the data directory's checkpoints; an offset that does not fit the files is corrected.
    mode "r" changes nothing on disk: repairs are made in memory.  A flushed segment below the active one whose index
    is missing or wrong ends before its first bad batch, as in mode "a".  Other segments are not scanned, even if they
    were not flushed: bytes at the log's end that are no batch are left out; any other bad batch raises CorruptMessage
    when it is read.
    is_empty: the caller has just made the directory, so there is nothing to look for in it.
    log_dir: the data directory.  The loader reports to it how many segments need a scan; UnifiedLog describes what
    the log does with it.  segment_threads: its free threads share the scans; the calling thread may belong to the same
    pool.
    marks_lost_records: with mode "a": other brokers have replicas of this log.  If damage is cut off, or records below
    the high watermark or the recovery point are gone, the log gets the mark of lost_records.py before anything is cut.
    may_have_lost_unflushed: the machine has failed, so records above the recovery point may be lost, too.
    Releases the GIL while it scans, so several logs can load in parallel.
    Raises OSError, CorruptMessage and UnsupportedForMessageFormat for segments that are not v2.
    """
    loader = _LogLoader(directory, topic_partition, config, time, mode == "a", sole_replica)
    loader.checkpointed_log_start = log_start_offset
    loader.recovery_point = recovery_point
    loader.had_clean_shutdown = had_clean_shutdown
    loader.producer_id_expiration_ms = producer_id_expiration_ms
    loader.verifies_transactions = verifies_transactions
    loader.random = random
    loader.segment_threads = segment_threads
    loader.log_dir = log_dir
    loader.is_empty = is_empty
    loader.marks_lost_records = marks_lost_records and mode == "a"
    loader.may_have_lost_unflushed = may_have_lost_unflushed and loader.marks_lost_records
    loader.checkpointed_high_watermark = high_watermark
    try:
        parts = loader.load()
        return UnifiedLog(
            directory,
            topic_partition,
            config,
            parts,
            time=time,
            random=random,
            scheduler=scheduler,
            mode=mode,
            high_watermark=high_watermark,
            sole_replica=sole_replica,
            log_dir=log_dir,
        )
    except BaseException:
        loader.close_segments()
        raise


class _LogLoader:
    def __init__(
        self, directory: str, tp: TopicPartition, config: LogConfig, time: Time, writable: bool, sole_replica: bool
    ) -> None:
        self.directory = directory
        self.tp = tp
        self.config = config
        self.time = time
        self.writable = writable
        self.sole_replica = sole_replica
        self.segments = LogSegments()
        self.txn_indexes: dict[int, TransactionIndex] = {}
        # Base offsets of the segments that mode "r" reads from their .swap files.
        self.swapped: set[int] = set()
        self.checkpointed_log_start = 0
        self.recovery_point = 0
        self.had_clean_shutdown = False
        self.producer_id_expiration_ms = DEFAULT_PRODUCER_ID_EXPIRATION_MS
        self.verifies_transactions = False
        self.random = SYSTEM_RANDOM
        self.segment_threads: Executor | None = None
        self.log_dir: LogDir | None = None
        self.is_empty = False
        self.marks_lost_records = self.may_have_lost_unflushed = False
        self.checkpointed_high_watermark = 0
        self.lost_records: LostRecords | None = None

    def load(self) -> LoadedParts:
        while True:
            parts = self._load()
            if parts is not None:
                return parts
            self.close_segments()
            self.segments = LogSegments()
            self.txn_indexes = {}

    def _load(self) -> LoadedParts | None:
        """None after a segment was split, because its offsets exceeded the relative range: then all is to be opened
        again."""
        files: list[SegmentFileName] = []
        if not self.is_empty:
            files, self.swapped = finish_interrupted_changes(self.directory, writable=self.writable)
            self._read_mark()
        state = self._producer_state(files)
        indexed = self._open_segments(files)
        self._leave_out_half_made_segments()
        if self.writable and self._split_overflowed_segments(indexed):
            return None
        self._report_empty_segments()
        unflushed = [] if self.had_clean_shutdown else self.segments.from_floor(self.recovery_point)
        suspects = self._suspect_segments(indexed, unflushed)
        if not self.writable:
            # A segment that is open for reading only repairs everything else in memory by itself.
            self._end_before_damage(suspects, indexed)
            suspects = []
        epoch_loader = self._epoch_loader()
        epochs_in_file = None if self.is_empty else epoch_loader.read_file()
        batch_epochs = BatchEpochs(str(self.tp), unflushed[0].base_offset if unflushed else 0)
        self._recover(suspects, unflushed, state, batch_epochs, self.checkpointed_log_start)
        self._load_txn_indexes(files, indexed)

        end_of_segments = self._find_end() if len(self.segments) else -1
        log_end_offset = end_of_segments if len(self.segments) else self.checkpointed_log_start
        if self._split_overflowed_active_segment(log_end_offset):
            return None
        log_start_offset, log_end_offset = self._reconcile_log_start(log_end_offset, state, epoch_loader)
        starts_anew = 0 <= end_of_segments < log_start_offset
        epochs = epoch_loader.load(
            epochs_in_file, batch_epochs, log_start_offset, log_end_offset, starts_anew=starts_anew
        )
        self._note_lost_end(log_start_offset, log_end_offset)
        self._rebuild_producers(state, log_start_offset, log_end_offset)
        for segment in self.segments:
            # Of ten thousand logs most are idle: with three mappings each they would exceed vm.max_map_count.
            segment.unmap_if_untouched()
        return LoadedParts(
            self.segments,
            log_start_offset,
            log_end_offset if self.had_clean_shutdown else min(self.recovery_point, log_end_offset),
            log_end_offset,
            epochs,
            state,
            self._read_topic_id(),
            self.txn_indexes,
            self.lost_records,
        )

    def _reconcile_log_start(
        self, log_end_offset: int, state: ProducerStateManager, epoch_loader: EpochLoader
    ) -> tuple[int, int]:
        """(log start offset, log end offset): what the checkpoint and the segments say of them may contradict each
        other.  The log has a segment afterwards."""
        log_start_offset = self.checkpointed_log_start
        if log_end_offset < log_start_offset:
            # After a clean stop the log is complete.  A recovery point at or beyond the log start offset means that the
            # log was that long: Kafka leaves this state after a truncation that removed the batch with its start.
            if self.recovery_point >= log_start_offset if self.had_clean_shutdown else self.writable:
                if self.writable:
                    epoch_loader.clear_file()
                self._leave_out_all_segments(log_start_offset, log_end_offset)
                log_end_offset = log_start_offset
                state.truncate_fully_and_start_at(log_start_offset)
            else:
                logger.error(
                    "%s: the log ends at %d, the checkpoint of log starts says %d: it is ignored",
                    self.directory,
                    log_end_offset,
                    log_start_offset,
                )
                log_start_offset = 0
        if len(self.segments) == 0:
            if not self.writable:
                raise FileNotFoundError(f"{self.directory}: no .log file in it")
            self.segments.add(self._open_segment(log_start_offset))
        first = self.segments.first
        assert first is not None
        return max(log_start_offset, first.base_offset), log_end_offset

    # -- records that are lost ------------------------------------------------------------------------------------

    def _read_mark(self) -> None:
        """The mark that an earlier start, or the broker's check of damaged records, has left."""
        if not self.writable:
            return
        try:
            first_offset = read_mark(self.directory)
        except CorruptFile as error:
            logger.error("any record of this log may be lost: %s", error)
            first_offset = 0
        if first_offset is not None:
            self.lost_records = LostRecords(first_offset)

    def _mark_lost(self, first_offset: int) -> None:
        """Durable before the damage is cut off: the next start would not see it."""
        if not self.marks_lost_records or (self.lost_records and self.lost_records.first_offset <= first_offset):
            return
        self.lost_records = LostRecords(first_offset)
        try:
            write_mark(self.directory, first_offset)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:
                raise
            logger.error(
                "%s: records from %d on are lost, and no mark says so: %s",
                self.directory,
                first_offset,
                plain_error(error),
            )

    def _first_unflushed_gap(self) -> int | None:
        """Where a segment ends before the next one begins, at or above the recovery point: the file of a segment may
        have been lost without that of the next one."""
        unflushed = self.segments.from_floor(self.recovery_point)
        for segment, following in pairwise(unflushed):
            end_offset = max(segment.read_next_offset(), self.recovery_point)
            if end_offset < following.base_offset:
                return end_offset
        return None

    def _note_lost_end(self, log_start_offset: int, log_end_offset: int) -> None:
        if log_end_offset < self.recovery_point:
            logger.error(
                "%s: the log ends at offset %d, but was on disk up to %d: the records between are gone",
                self.directory,
                log_end_offset,
                self.recovery_point,
            )
        if log_end_offset < max(self.recovery_point, self.checkpointed_high_watermark):
            self._mark_lost(log_end_offset)
        if self.may_have_lost_unflushed:
            gap = self._first_unflushed_gap()
            if gap is not None:
                self._mark_lost(gap)
            elif self.lost_records is None:
                # Without a file, as a start after a failure of the machine concerns all logs: LogDir.record_boot_id().
                self.lost_records = LostRecords(log_end_offset, has_mark=False)
        if self.lost_records is not None:
            # What was deleted since is not missed.
            self.lost_records.first_offset = max(self.lost_records.first_offset, log_start_offset)

    # -- producers ------------------------------------------------------------------------------------------------

    def _producer_state(self, files: list[SegmentFileName]) -> ProducerStateManager:
        """Without producers yet."""
        return ProducerStateManager(
            str(self.tp),
            self.directory,
            producer_id_expiration_ms=self.producer_id_expiration_ms,
            verifies_transactions=self.verifies_transactions,
            writable=self.writable,
            snapshots=[file.base_offset for file in files if file.kind == SNAPSHOT_SUFFIX],
        )

    def _rebuild_producers(self, state: ProducerStateManager, log_start_offset: int, log_end_offset: int) -> None:
        if self.writable:
            state.remove_stray_snapshots(self.segments.base_offsets())
            if not self.had_clean_shutdown:
                state.remove_damaged_snapshots()
        if log_end_offset <= log_start_offset:
            # An interrupted truncation may have left snapshots.  Their records no longer exist.
            state.truncate_fully_and_start_at(log_end_offset)
        now_ms = self.time.milliseconds()
        rebuild_producer_state(state, self.segments, log_start_offset, log_end_offset, now_ms)

    # -- segments whose offsets exceed the relative range, and segments of failed rolls --------------------------

    def _split_overflowed_segments(self, indexed: set[int]) -> bool:
        """Split segments whose offsets exceed the relative range.  True if there were any.

        A segment is checked only if the distance to the next base offset allows such offsets.  The caller checks the
        last segment, unless recovery would cut it first.
        """
        any_split = False
        bases = self.segments.base_offsets()
        for segment, following in zip(self.segments, [*bases, None][1:], strict=True):
            if following is None:
                suspect = not self.had_clean_shutdown or segment.base_offset not in indexed
            else:
                suspect = following - segment.base_offset > MAX_RELATIVE_OFFSET + 1
            if suspect and segment.size and split(self.directory, segment, following):
                any_split = True
        return any_split

    def _split_overflowed_active_segment(self, log_end_offset: int) -> bool:
        """The same for the last one, whose end is known now."""
        return bool(
            self.writable
            and len(self.segments)
            and log_end_offset - 1 > self._active().base_offset + MAX_RELATIVE_OFFSET
            and split(self.directory, self._active(), None)
        )

    def _leave_out_half_made_segments(self) -> None:
        """Remove the empty .log files of failed rolls, where later appends went to the segment before them.

        A segment whose batches also reach into the offsets of the next segment with records is left to recovery:
        _resolve_overlap().
        """
        segments = list(self.segments)
        before = None
        for n, segment in enumerate(segments):
            if segment.size or before is None:
                before = segment
                continue
            following = next((later.base_offset for later in segments[n + 1 :] if later.size), 2**63 - 1)
            if not _batch_begins_in(before, segment.base_offset, following) or _has_batch_from(before, following):
                before = segment
                continue
            logger.warning(
                "%s: segment %d is empty, and segment %d has batches after its offset: it is not part of the log%s",
                self.directory,
                segment.base_offset,
                before.base_offset,
                " and removed" if self.writable else "",
            )
            self._remove_segment(segment)

    def close_segments(self) -> None:
        close_segments(self.segments, self.directory, trim=False)

    # -- files ----------------------------------------------------------------------------------------------------

    def _open_segment(self, base_offset: int, *, file_suffix: str = "") -> LogSegment:
        return LogSegment(
            self.directory,
            base_offset,
            writable=self.writable,
            file_suffix=file_suffix,
            now_ms=self.time.milliseconds(),
            **self.config.segment_options,
        )

    def _open_segments(self, files: list[SegmentFileName]) -> set[int]:
        """Open every .log.  Returns the base offsets that have both index files."""
        logs = [file.base_offset for file in files if file.kind == LOG_SUFFIX]
        kinds: dict[int, set[str]] = {base_offset: set() for base_offset in logs}
        for file in files:
            if file.kind in INDEX_SUFFIXES:
                if file.base_offset in kinds:
                    kinds[file.base_offset].add(file.kind)
                elif self.writable:
                    path = path_of(self.directory, file)
                    logger.warning("%s: removing the orphan %s", self.directory, os.path.basename(path))
                    unlink_if_there(path)
        self.segments.replace(
            (),
            [self._open_segment(base, file_suffix=SWAP_SUFFIX if base in self.swapped else "") for base in logs],
        )
        return {base for base, present in kinds.items() if {".index", ".timeindex"} <= present}

    def _active(self) -> LogSegment:
        assert self.segments.active is not None
        return self.segments.active

    def _find_end(self) -> int:
        """The log end offset.  A log opened for reading ends before the garbage that recovery would cut off."""
        active = self._active()
        try:
            end_offset = active.read_next_offset()
            # Batches of an earlier segment under a later name, as after a file was copied, must not hide what is
            # between: whoever reads on meets them.
            return end_offset if self.writable else max(end_offset, active.base_offset)
        except CorruptMessage:
            if self.writable or self.had_clean_shutdown:
                raise
        result = active.end_before_damage()
        logger.warning(
            "%s: reading segment %d up to offset %d, position %d: %s",
            self.directory,
            active.base_offset,
            result.last_offset + 1,
            result.valid_bytes,
            result.reason,
        )
        return result.last_offset + 1

    def _leave_out_all_segments(self, log_start_offset: int, log_end_offset: int) -> None:
        """Empty the log: all its segments end below the log start offset.

        Either the records were deleted, or the start offset is wrong, and the files do not say which.  So the segments
        move to a -stray directory, and the log starts again at log_start_offset, where no offset was used before.  In
        mode "r" the segments stay where they are, below the log start offset.
        """
        if not self.writable:
            logger.error(
                "%s: the log ends at %d, below its start offset %d: it has no records",
                self.directory,
                log_end_offset,
                log_start_offset,
            )
            return
        aside = self._move_aside(list(self.segments))
        logger.error(
            "%s: the log ends at %d, below its start offset %d: it starts again there.  Its segments were not deleted: "
            "they are in %s",
            self.directory,
            log_end_offset,
            log_start_offset,
            aside,
        )

    def _move_aside(self, segments: list[LogSegment]) -> str:
        """Take segments out of the log, the last one first, and move their files to a -stray directory.

        Returns the path of that directory.
        """
        aside = os.path.join(os.path.dirname(self.directory), marked_directory(self.tp, STRAY_DIR_SUFFIX, self.random))
        make_directory(aside)
        files = [file for file in list_segment_files(self.directory, writable=True) if file.kind != SNAPSHOT_SUFFIX]
        for segment in reversed(segments):
            self.segments.replace([segment])
            self.txn_indexes.pop(segment.base_offset, None)
            segment.close(trim=False)
            for file in files:
                if file.base_offset == segment.base_offset:
                    path = path_of(self.directory, file)
                    rename(path, os.path.join(aside, os.path.basename(path)))
        for directory in (aside, self.directory, os.path.dirname(self.directory)):
            sync_path(directory)
        return aside

    def _remove_segment(self, segment: LogSegment) -> None:
        self.segments.replace([segment])
        if not self.writable:
            segment.close(trim=False)
            return
        segment.delete()
        index = self.txn_indexes.pop(segment.base_offset, None)
        (index or self._txn_index(segment.base_offset)).reset()

    # -- recovery ---------------------------------------------------------------------------------------------------

    def _report_empty_segments(self) -> None:
        empty = [s.base_offset for s in self.segments if s.size == 0 and s is not self.segments.active]
        if not empty or self.config.compact:
            return
        # The directory may have been copied here without its topic's settings, and may have been compacted before.
        cleaner_offsets = LogDir(os.path.dirname(self.directory)).cleaner_offsets
        was_cleaned = empty[-1] < cleaner_offsets.read_or_warn().get(self.tp, 0)
        logger.log(
            logging.WARNING if was_cleaned else logging.ERROR,
            "%s: segment %d is empty, and others follow it: %s%s",
            self.directory,
            empty[0],
            f"by {CLEANER_OFFSET_CHECKPOINT} the cleaner has cleaned it and may have emptied it"
            if was_cleaned
            else "unless it was compacted, its records are lost",
            f" (and {len(empty) - 1} more segments like it)" if empty[1:] else "",
        )

    def _suspect_segments(self, indexed: set[int], unflushed: list[LogSegment]) -> list[LogSegment]:
        """Segments that may not be on disk, and segments whose indexes are missing or fail the sanity check (IDX-12).

        In mode "r" only the latter, and not the active one.
        """
        suspects = []
        not_flushed = set(map(id, unflushed))
        for segment in self.segments:
            is_active = segment is self.segments.active
            if id(segment) in not_flushed or (is_active and not self.writable):
                if self.writable:
                    suspects.append(segment)
                continue
            try:
                if segment.base_offset not in indexed:
                    raise CorruptIndex(f"{segment.log_path}: an index file is missing")
                if self.writable:
                    segment.sanity_check()
                else:
                    self._check_last_entry(segment)
                # The clean-shutdown marker does not exclude this.  Without the check the next append would be written
                # after bytes that no reader can pass.
                if is_active and segment.ends_inside_a_batch():
                    raise CorruptIndex(f"{segment.log_path}: the file ends inside a batch")
            except (CorruptIndex, FileNotFoundError) as error:
                logger.warning(
                    "%s: rebuilding the indexes of segment %d: %s",
                    self.directory,
                    segment.base_offset,
                    plain_error(error),
                )
                suspects.append(segment)
        return suspects

    def _end_before_damage(self, suspects: list[LogSegment], indexed: set[int]) -> None:
        """Mode "r": in memory a segment ends where recovery would cut it.  Its transaction index is rebuilt, too."""
        for segment in suspects:
            indexed.discard(segment.base_offset)
            result = segment.end_before_damage()
            if result.truncated_bytes:
                self._report_cut(segment, result, "leaving out the last %d bytes of segment %d", is_gap=True)

    def _check_last_entry(self, segment: LogSegment) -> None:
        """Raises CorruptIndex for an offset index whose last entry is beyond the segment's end.  For mode "r", which
        reads whole indexes only when they are needed: a read-only index is held in memory."""
        suffix = OFFSET_INDEX_SUFFIX + (SWAP_SUFFIX if segment.base_offset in self.swapped else "")
        path = segment_file(self.directory, segment.base_offset, suffix)
        if not is_file(path):
            raise CorruptIndex(f"{path}: no regular file")
        file = File(path)
        size = file.size
        position = int.from_bytes(file.read(max(0, size - 8), 8)[4:], "big")
        if size % 8 or (size and position >= segment.size):
            raise CorruptIndex(
                f"{path}: {size} bytes, the last entry has position {position}, {segment.log_path} has "
                f"{segment.size} bytes"
            )

    def _report_cut(self, segment: LogSegment, result: RecoveryResult, action: str, *, is_gap: bool) -> None:
        """Log a cut.  action: a format string for the number of bytes and the base offset of the segment.

        is_gap: the segments after this one are kept.
        """
        message = "%s: " + action + " from offset %d on, position %d: %s"
        values = [
            self.directory,
            result.truncated_bytes,
            segment.base_offset,
            result.last_offset + 1,
            result.valid_bytes,
            result.reason,
        ]
        if is_gap:
            following = self.segments.higher(segment.base_offset)
            assert following is not None
            message += ".  They had been flushed.  The log goes on at offset %d"
            values.append(following.base_offset)
        logger.log(logging.ERROR if is_gap else logging.WARNING, message, *values)

    def _recover(
        self,
        suspects: list[LogSegment],
        unflushed: list[LogSegment],
        state: ProducerStateManager,
        epochs: BatchEpochs,
        log_start_offset: int,
    ) -> None:
        if not suspects:
            return
        self._note_progress(len(suspects))
        remaining = len(suspects)
        first_unflushed = unflushed[0].base_offset if unflushed else 2**63
        ahead: dict[int, Future[RecoveryResult]] = {}
        try:
            if self.segment_threads is not None and remaining > 1:
                for segment in suspects:
                    if segment.base_offset >= first_unflushed:
                        ahead[segment.base_offset] = submit(self.segment_threads, segment.recover, cut=False)
            for segment in suspects:
                self._note_progress(-1)
                remaining -= 1
                scan = ahead.get(segment.base_offset)
                is_flushed = segment.base_offset < first_unflushed
                result = self._recover_segment(segment, state, epochs, log_start_offset, scan, is_flushed=is_flushed)
                if result.truncated_bytes and is_flushed and segment is not self._active():
                    # The segments after it were flushed too: the damage in this one does not concern them.
                    self._mark_lost(max(result.last_offset + 1, segment.base_offset))
                    segment.recover(only_noteworthy=True)
                    self._report_cut(segment, result, "cut %d bytes off segment %d", is_gap=True)
                    continue
                if result.truncated_bytes:
                    _end(ahead.values())  # a segment must not be removed while it is scanned
                    # A killed process leaves whole appends, but for one that it was in the middle of.
                    self._mark_lost(max(result.last_offset + 1, segment.base_offset))
                    self._end_log_at_damage(segment, result)
                    state.truncate_and_reload(log_start_offset, state.map_end_offset, self.time.milliseconds())
                    break
                later_segments = self._segments_after(segment)
                next_is_unflushed = later_segments and later_segments[0].base_offset >= first_unflushed
                if next_is_unflushed and result.last_offset >= later_segments[0].base_offset:
                    _end(ahead.values())  # a segment must not be cut or closed while it is scanned
                    later_kept = self._resolve_overlap(segment, result.last_offset, later_segments)
                    end_offset = later_segments[0].base_offset if later_kept else state.map_end_offset
                    state.truncate_and_reload(log_start_offset, end_offset, self.time.milliseconds())
                    if not later_kept:
                        break
                    epochs.truncate_from_end(end_offset)
        finally:
            _end(ahead.values())  # a segment must not be closed while it is scanned
            self._note_progress(-remaining)

    def _note_progress(self, segments: int) -> None:
        if self.log_dir is not None:
            self.log_dir.note_progress(segments=segments)

    def _recover_segment(
        self,
        segment: LogSegment,
        state: ProducerStateManager,
        epochs: BatchEpochs,
        log_start_offset: int,
        ahead: Future[RecoveryResult] | None,
        *,
        is_flushed: bool,
    ) -> RecoveryResult:
        """Check a segment and rebuild its indexes.  A segment that has to be cut is not changed.

        ahead: the scan that another thread may already have begun; it checks the segment and builds its indexes, and
        the batches are replayed afterwards.  is_flushed: the next start checks this segment again only while its index
        is bad, so the transaction index is written before the index is repaired.
        """
        now_ms = self.time.milliseconds()
        if segment.base_offset <= log_start_offset:
            # Records below the log start offset are deleted, so the producers' state comes from this segment alone, as
            # in Kafka's loader.
            state.truncate_fully_and_start_at(segment.base_offset)
        # The transaction index needs the transactions that were open when the segment began.
        rebuild_producer_state(state, self.segments, log_start_offset, segment.base_offset, now_ms)
        if segment.base_offset > log_start_offset:
            state.take_snapshot()
        aborted: list[AbortedTxn] = []
        segment_epochs = epochs if segment.base_offset >= epochs.from_offset else None
        replay = ProducerReplay(state, segment, 2**63 - 1, epochs=segment_epochs, aborted_txns=aborted)
        result = None if ahead is None or ahead.cancel() else ahead.result()
        if is_flushed:
            result = segment.scan(replay, only_noteworthy=True)
        elif result is None or result.truncated_bytes:
            result = segment.recover(replay, only_noteworthy=True, cut=False, threads=self.segment_threads)
        else:
            segment.scan(replay, check_crc=False, only_noteworthy=True)
        state.map_end_offset = max(result.last_offset + 1, segment.base_offset)
        if segment is not self._active() and state.map_end_offset > log_start_offset:
            # Batches below the log start offset may hold state that no later batch repeats, such as the coordinator
            # epoch of a marker.
            state.take_snapshot()
        index = self._txn_index(segment.base_offset)
        if aborted:
            index.replace(aborted)
            self.txn_indexes[segment.base_offset] = index
        else:
            index.reset()
        if is_flushed and not result.truncated_bytes:
            segment.recover(only_noteworthy=True, threads=self.segment_threads)
        return result

    def _resolve_overlap(self, segment: LogSegment, last_offset: int, later_segments: list[LogSegment]) -> bool:
        """Remove the overlap of a segment with the next one, after a power loss undid half of a truncation.

        The batches of the later leader epoch stay.  If the epochs are equal the next segment stays: a truncation syncs
        the removed names before anything is appended, so that segment was not removed by it, while the cut inside
        `segment` may not have reached the disk.
        Returns True if the next segment stays and `segment` was cut, False if the later segments were moved aside.
        """
        following = later_segments[0]
        overlap = segment.translate_offset(following.base_offset)
        assert overlap is not None
        older = batch_at(segment, overlap.position)
        assert older is not None
        try:
            newer = batch_at(following, 0)
            if newer is not None:
                newer.ensure_valid()
        except CorruptMessage:
            newer = None
        if newer is None or newer.leader_epoch < older.leader_epoch:
            aside = self._move_aside(later_segments)
            logger.error(
                "%s: segment %d has records up to offset %d of leader epoch %d, but segment %d begins with %s: it is "
                "not part of the log, nor are the %d segments after it.  They are in %s",
                self.directory,
                segment.base_offset,
                last_offset,
                older.leader_epoch,
                following.base_offset,
                "no valid batch" if newer is None else f"leader epoch {newer.leader_epoch}",
                len(later_segments) - 1,
                aside,
            )
            return False
        cut = segment.truncate_to(following.base_offset, now_ms=self.time.milliseconds())
        index = self.txn_indexes.get(segment.base_offset)
        if index is not None:
            index.truncate_to(following.base_offset)
        logger.error(
            "%s: segment %d has records up to offset %d, but segment %d begins with leader epoch %d: the %d bytes of "
            "epoch %d that overlap it were cut off",
            self.directory,
            segment.base_offset,
            last_offset,
            following.base_offset,
            newer.leader_epoch,
            cut,
            older.leader_epoch,
        )
        return True

    def _end_log_at_damage(self, segment: LogSegment, result: RecoveryResult) -> None:
        """End the log where recovery found the first bad batch."""
        # The later segments are removed first, and durably: as long as the damage is in the file, the next start ends
        # the log at the same place.  A repaired segment followed by a gap would look like a compacted log.
        if self._remove_segments_after(segment):
            sync_path(self.directory)
        segment.recover(only_noteworthy=True)
        self._report_cut(segment, result, "cut %d bytes off segment %d", is_gap=False)

    def _segments_after(self, segment: LogSegment) -> list[LogSegment]:
        return [later for later in self.segments if later.base_offset > segment.base_offset]

    def _remove_segments_after(self, segment: LogSegment) -> bool:
        """Remove the later segments, the last one first, so that a crash leaves no gap.  True if there were any."""
        later_segments = self._segments_after(segment)
        for later in reversed(later_segments):
            logger.warning("%s: removing segment %d after the cut", self.directory, later.base_offset)
            self._remove_segment(later)
        return bool(later_segments)

    def _txn_index(self, base_offset: int) -> TransactionIndex:
        suffix = TXN_INDEX_SUFFIX + (SWAP_SUFFIX if base_offset in self.swapped else "")
        path = segment_file(self.directory, base_offset, suffix)
        return TransactionIndex(path, base_offset, writable=self.writable)

    def _load_txn_indexes(self, files: list[SegmentFileName], indexed: set[int]) -> None:
        present = {file.base_offset for file in files if file.kind == TXN_INDEX_SUFFIX}
        for segment in self.segments:
            base_offset = segment.base_offset
            # If the other indexes are missing, a missing transaction index does not mean that nothing was aborted.
            suspect = not self.writable and base_offset not in indexed
            if base_offset in self.txn_indexes or not (suspect or base_offset in present):
                continue
            index = self._txn_index(base_offset)
            try:
                if suspect:
                    raise CorruptIndex(f"{index.path}: another index of the segment is missing or wrong")
                if not is_file(index.path):
                    raise CorruptIndex(f"{index.path}: no regular file")
                index.load()
            except CorruptFile as error:
                now_ms = self.time.milliseconds()
                index.reset()
                aborted, _ = aborted_txns_in(segment, self.segments, self.directory, str(self.tp), 2**63 - 1, now_ms)
                index.replace(aborted)
                if aborted or base_offset in present:
                    logger.warning("%s: rebuilt a transaction index from the batches: %s", self.directory, error)
            self.txn_indexes[base_offset] = index

    # -- the small files ------------------------------------------------------------------------------------------

    def _epoch_loader(self) -> EpochLoader:
        return EpochLoader(
            self.directory,
            self.tp,
            self.segments,
            writable=self.writable,
            sole_replica=self.sole_replica,
            had_clean_shutdown=self.had_clean_shutdown,
        )

    def _read_topic_id(self) -> UUID | None:
        if self.is_empty:
            return None
        try:
            return read_topic_id(self.directory)
        except CorruptFile as error:
            if not self.writable:
                logger.warning("the topic id is unknown: %s", error)
                return None
            kept = set_aside(os.path.join(self.directory, PARTITION_METADATA_FILE))
            logger.warning("the topic id is unknown, and the file is %s now: %s", kept, error)
            return None


def _batch_begins_in(segment: LogSegment, start: int, end: int) -> bool:
    """Whether the first batch that holds an offset >= start is valid and begins in [start, end)."""
    try:
        place = segment.translate_offset(start)
        batch = None if place is None else batch_at(segment, place.position)
        if batch is None or not start <= batch.base_offset < end:
            return False
        batch.ensure_valid()
    except CorruptMessage:
        return False
    return True


def _has_batch_from(segment: LogSegment, offset: int) -> bool:
    """Whether a batch holds this offset or a later one.  True as well if the segment is damaged."""
    try:
        return segment.translate_offset(offset) is not None
    except CorruptMessage:
        return True


def _end(scans: Iterable[Future[RecoveryResult]]) -> None:
    """Cancel the scans that no thread has begun, and wait until the others have ended."""
    wait([scan for scan in scans if not scan.cancel()])
