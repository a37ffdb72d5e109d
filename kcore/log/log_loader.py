"""Open a partition's directory after a clean or an unclean stop (LOG-30, SEG-11, TRUNC-11).

First the leftovers of what a crash interrupted: .deleted files go, .cleaned files (the cleaner had not finished them)
go, .swap segments (finished) replace the segments they were made from.  Then the segments: what was flushed (all of it
after a clean stop, else the segments below the recovery point) is believed if its indexes are plausible; a segment with
an index that is not is scanned with CRC, its indexes are rebuilt, and it is cut at its first bad batch.  After an
unclean stop each segment from the recovery point on is scanned too, and there the first bad batch ends the log.  Last
the leader epochs and the producers' state, from their files or from the batches.
Source: LogLoader, Kafka 3.x-4.x.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from concurrent.futures import Executor, Future, wait
from random import Random
from typing import Any
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
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptFile, CorruptIndex, CorruptMessage
from kcore.log.checkpoints import (
    CLEANER_OFFSET_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    EpochEntry,
    LeaderEpochCheckpointFile,
)
from kcore.log.epoch_recovery import BatchEpochs, corrected_epochs, epoch_runs, with_later_epochs
from kcore.log.interrupted_changes import finish_interrupted_changes, list_segment_files, path_of
from kcore.log.leader_epoch_file_cache import LeaderEpochFileCache
from kcore.log.local_log import close_segments
from kcore.log.log_config import LogConfig
from kcore.log.log_dir import LogDir
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
from kcore.record.record_batch import RecordBatch

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
    sole_replica: bool = False,
    producer_id_expiration_ms: int = DEFAULT_PRODUCER_ID_EXPIRATION_MS,
    log_dir: LogDir | None = None,
    segment_threads: Executor | None = None,
) -> UnifiedLog:
    """The log of an existing directory, which may be empty.

    The offsets are those of the data directory's checkpoints; what does not fit the files is corrected.  mode "r"
    changes nothing on disk: what needs repair is repaired in memory.  A flushed segment below the active one whose
    index is missing or wrong ends before its first bad batch, as in mode "a".  Other segments are not scanned, even if
    they were not flushed: bytes at the log's end that are no batch are left out, another bad batch raises
    CorruptMessage when it is read.
    log_dir: the data directory, to which the loader reports how many segments need a scan, and the log what
    UnifiedLog says.  segment_threads: those of them that are free share the scans; the calling thread may be of the
    same pool.
    Releases the GIL while it scans, so several logs can load in parallel.
    Raises OSError, CorruptMessage and UnsupportedForMessageFormat for segments that are not v2.
    """
    loader = _LogLoader(directory, topic_partition, config, time, mode == "a", sole_replica)
    loader.random = random
    loader.segment_threads = segment_threads
    loader.log_dir = log_dir
    try:
        parts = loader.load(log_start_offset, recovery_point, had_clean_shutdown, producer_id_expiration_ms)
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
        self.epoch_checkpoint = LeaderEpochCheckpointFile(os.path.join(directory, LEADER_EPOCH_CHECKPOINT))
        self.segments = LogSegments()
        self.txn_indexes: dict[int, TransactionIndex] = {}
        # Base offsets of the segments that mode "r" reads from their .swap files.
        self.swapped: set[int] = set()
        self.random = SYSTEM_RANDOM
        self.segment_threads: Executor | None = None
        self.log_dir: LogDir | None = None

    def load(
        self, log_start_offset: int, recovery_point: int, had_clean_shutdown: bool, producer_id_expiration_ms: int
    ) -> LoadedParts:
        files, self.swapped = finish_interrupted_changes(self.directory, writable=self.writable)
        snapshots = [f.base_offset for f in files if f.kind == SNAPSHOT_SUFFIX]
        state = ProducerStateManager(
            str(self.tp),
            self.directory,
            producer_id_expiration_ms=producer_id_expiration_ms,
            writable=self.writable,
            snapshots=snapshots,
        )
        indexed = self._open_segments(files)
        self._leave_out_half_made_segments()
        if self.writable and self._split_overflowed_segments(indexed, had_clean_shutdown):
            return self._load_again(log_start_offset, recovery_point, had_clean_shutdown, producer_id_expiration_ms)
        self._report_empty_segments()
        unflushed = [] if had_clean_shutdown else self.segments.from_floor(recovery_point)
        suspects = self._suspect_segments(indexed, unflushed)
        if not self.writable:
            # Whatever else is wrong with a segment that is open for reading only, it repairs in memory by itself.
            self._end_before_damage(suspects, indexed)
            suspects = []
        epochs_in_file = self._read_epochs(had_clean_shutdown)
        batch_epochs = BatchEpochs(str(self.tp), unflushed[0].base_offset if unflushed else 0)
        self._recover(suspects, unflushed, state, batch_epochs, log_start_offset)
        self._load_txn_indexes(files, indexed)

        log_end_offset = self._find_end(had_clean_shutdown) if len(self.segments) else log_start_offset
        if (
            self.writable
            and len(self.segments)
            and log_end_offset - 1 > self._active().base_offset + MAX_RELATIVE_OFFSET
            and split(self.directory, self._active(), None)
        ):
            return self._load_again(log_start_offset, recovery_point, had_clean_shutdown, producer_id_expiration_ms)
        if log_end_offset < log_start_offset:
            # After a clean stop all of the log is here.  A recovery point at or beyond the start says that the log was
            # that long: Kafka leaves this where a truncation removed the batch that its start was in.
            if recovery_point >= log_start_offset if had_clean_shutdown else self.writable:
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
        log_start_offset = max(log_start_offset, first.base_offset)

        epochs = self._load_epochs(epochs_in_file, batch_epochs, had_clean_shutdown, log_start_offset, log_end_offset)
        if log_end_offset < recovery_point:
            logger.error(
                "%s: the log ends at offset %d, but was on disk up to %d: the records between are gone",
                self.directory,
                log_end_offset,
                recovery_point,
            )
        if self.writable:
            state.remove_stray_snapshots(self.segments.base_offsets())
            if not had_clean_shutdown:
                state.remove_damaged_snapshots()
        if log_end_offset <= log_start_offset:
            # Snapshots that are there, as a truncation that was interrupted leaves them, are of records that are gone.
            state.truncate_fully_and_start_at(log_end_offset)
        now_ms = self.time.milliseconds()
        rebuild_producer_state(state, self.segments, log_start_offset, log_end_offset, now_ms)
        for segment in self.segments:
            # Ten thousand logs are mostly idle: with three mappings each they would meet vm.max_map_count.
            segment.unmap_if_untouched()
        return LoadedParts(
            self.segments,
            log_start_offset,
            log_end_offset if had_clean_shutdown else min(recovery_point, log_end_offset),
            log_end_offset,
            epochs,
            state,
            self._read_topic_id(),
            self.txn_indexes,
        )

    def _load_again(self, *args: Any) -> LoadedParts:
        self.close_segments()
        self.segments = LogSegments()
        self.txn_indexes = {}
        return self.load(*args)

    def _split_overflowed_segments(self, indexed: set[int], had_clean_shutdown: bool) -> bool:
        """Whether there were any.  Only where the next base offset leaves room for them does one have to look; at
        the end of the log the caller will see, unless recovery would have cut it before."""
        found = False
        bases = self.segments.base_offsets()
        for segment, following in zip(self.segments, [*bases, None][1:], strict=True):
            if following is None:
                suspect = not had_clean_shutdown or segment.base_offset not in indexed
            else:
                suspect = following - segment.base_offset > MAX_RELATIVE_OFFSET + 1
            if suspect and segment.size and split(self.directory, segment, following):
                found = True
        return found

    def _leave_out_half_made_segments(self) -> None:
        """A roll that failed may have left an empty .log, and the segment before it went on: the log has nothing there
        but what that one holds.  One that goes on into the next segment's offsets, too, is another case, for recovery:
        _goes_on_with()."""
        segments = list(self.segments)
        before = None
        for n, segment in enumerate(segments):
            if segment.size or before is None:
                before = segment
                continue
            following = next((later.base_offset for later in segments[n + 1 :] if later.size), 2**63 - 1)
            if not _batch_begins_in(before, segment.base_offset, following) or _ends_behind(before, following):
                before = segment
                continue
            logger.warning(
                "%s: segment %d is empty, and segment %d goes on after its offset: it is not part of the log%s",
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
        """Open every .log; the base offsets that have both index files."""
        logs = [file.base_offset for file in files if file.kind == LOG_SUFFIX]
        known = set(logs)
        kinds: dict[int, set[str]] = {base_offset: set() for base_offset in logs}
        for file in files:
            if file.kind in INDEX_SUFFIXES:
                if file.base_offset in known:
                    kinds[file.base_offset].add(file.kind)
                elif self.writable:
                    path = path_of(self.directory, file)
                    logger.warning("%s: removing the orphan %s", self.directory, os.path.basename(path))
                    unlink_if_there(path)
        self.segments.replace(
            (),
            [self._open_segment(base, file_suffix=SWAP_SUFFIX if base in self.swapped else "") for base in logs],
        )
        return {base for base, there in kinds.items() if {".index", ".timeindex"} <= there}

    def _active(self) -> LogSegment:
        assert self.segments.active is not None
        return self.segments.active

    def _find_end(self, had_clean_shutdown: bool) -> int:
        """The log end offset.  Where recovery would cut garbage off, a log opened for reading ends before it."""
        active = self._active()
        try:
            return active.read_next_offset()
        except CorruptMessage:
            if self.writable or had_clean_shutdown:
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
        """What ends below the log's start was deleted by somebody, or else the start is wrong: nobody can tell, so the
        segments move to a -stray directory, and the log starts anew where nothing of it was ever given out.  In mode
        "r" they stay where they are, below the log's start."""
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
            "%s: the log ends at %d, below its start offset %d: it starts anew there.  Its segments were not deleted: "
            "they are in %s",
            self.directory,
            log_end_offset,
            log_start_offset,
            aside,
        )

    def _move_aside(self, segments: list[LogSegment]) -> str:
        """Take segments out of the log, the last one first, and their files to a -stray directory: its path."""
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
        # A directory that came without its topic's settings may have been compacted all the same.
        cleaner_offsets = LogDir(os.path.dirname(self.directory)).cleaner_offsets
        was_cleaned = empty[-1] < cleaner_offsets.read_or_warn().get(self.tp, 0)
        logger.log(
            logging.WARNING if was_cleaned else logging.ERROR,
            "%s: segment %d is empty, and others follow it: %s%s",
            self.directory,
            empty[0],
            f"by {CLEANER_OFFSET_CHECKPOINT} the cleaner was there and may have emptied it"
            if was_cleaned
            else "unless it was compacted, its records are lost",
            f" (and {len(empty) - 1} more segments like it)" if empty[1:] else "",
        )

    def _suspect_segments(self, indexed: set[int], unflushed: list[LogSegment]) -> list[LogSegment]:
        """Those that are not surely on disk, and those whose indexes are missing or break their own rules (IDX-12).
        In mode "r" only the latter, and not the active one."""
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
                # Believing the marker here would put the next append behind bytes that nobody can read past.
                if is_active and segment.ends_inside_a_batch():
                    raise CorruptIndex(f"{segment.log_path}: the file ends inside a batch")
            except (CorruptIndex, FileNotFoundError) as error:
                logger.warning(
                    "%s: rebuilding the indexes of segment %d: %s", self.directory, segment.base_offset, error
                )
                suspects.append(segment)
        return suspects

    def _end_before_damage(self, suspects: list[LogSegment], indexed: set[int]) -> None:
        """Mode "r": a segment that recovery would cut ends there in memory.  Its transaction index is doubtful too."""
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
                f"{path}: {size} bytes, the last entry is of position {position}, {segment.log_path} has "
                f"{segment.size} bytes"
            )

    def _report_cut(self, segment: LogSegment, result: RecoveryResult, action: str, *, is_gap: bool) -> None:
        """action: what was done with how many bytes of which segment.  is_gap: segments follow that are kept."""
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
        left = len(suspects)
        first_unflushed = unflushed[0].base_offset if unflushed else 2**63
        ahead: dict[int, Future[RecoveryResult]] = {}
        try:
            if self.segment_threads is not None and left > 1:
                for segment in suspects:
                    if segment.base_offset >= first_unflushed:
                        ahead[segment.base_offset] = submit(self.segment_threads, segment.recover, cut=False)
            for segment in suspects:
                self._note_progress(-1)
                left -= 1
                scan = ahead.get(segment.base_offset)
                is_flushed = segment.base_offset < first_unflushed
                result = self._recover_segment(segment, state, epochs, log_start_offset, scan, is_flushed=is_flushed)
                if result.truncated_bytes and is_flushed and segment is not self._active():
                    # The segments after it were flushed too: damage in this one says nothing about them.
                    segment.recover(only_noteworthy=True)
                    self._report_cut(segment, result, "cut %d bytes off segment %d", is_gap=True)
                    continue
                if result.truncated_bytes:
                    _end(ahead.values())  # nobody may remove a segment that is being scanned
                    self._cut_behind(segment, result)
                    state.truncate_and_reload(log_start_offset, state.map_end_offset, self.time.milliseconds())
                    break
                behind = [later for later in self.segments if later.base_offset > segment.base_offset]
                unflushed_behind = behind and behind[0].base_offset >= first_unflushed
                if unflushed_behind and result.last_offset >= behind[0].base_offset:
                    _end(ahead.values())  # nobody may cut or close a segment that is being scanned
                    goes_on = self._goes_on_with(segment, result.last_offset, behind)
                    end_offset = behind[0].base_offset if goes_on else state.map_end_offset
                    state.truncate_and_reload(log_start_offset, end_offset, self.time.milliseconds())
                    if not goes_on:
                        break
                    epochs.truncate_from_end(end_offset)
        finally:
            _end(ahead.values())  # nobody may close a segment that is being scanned
            self._note_progress(-left)

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
        """Check a segment and rebuild its indexes; one from which something has to be cut off is left as it is.

        ahead: another thread, unless it has not begun, checks the segment and builds its indexes; the batches are
        replayed afterwards.  is_flushed: only its bad index makes the next start look at this segment again, so the
        transaction index is written first.
        """
        now_ms = self.time.milliseconds()
        if segment.base_offset <= log_start_offset:
            # What lies below it is deleted, as the loader of Kafka has it: only the segment itself tells of producers.
            state.truncate_fully_and_start_at(segment.base_offset)
        # The transaction index needs the transactions that were open when the segment began.
        rebuild_producer_state(state, self.segments, log_start_offset, segment.base_offset, now_ms)
        if segment.base_offset > log_start_offset:
            state.take_snapshot()
        aborted: list[AbortedTxn] = []
        known = epochs if segment.base_offset >= epochs.from_offset else None
        replay = ProducerReplay(state, segment, 2**63 - 1, epochs=known, aborted_txns=aborted)
        result = None if ahead is None or ahead.cancel() else ahead.result()
        if is_flushed:
            result = segment.scan(replay, only_noteworthy=True)
        elif result is None or result.truncated_bytes:
            result = segment.recover(replay, only_noteworthy=True, cut=False, threads=self.segment_threads)
        else:
            segment.scan(replay, check_crc=False, only_noteworthy=True)
        state.map_end_offset = max(result.last_offset + 1, segment.base_offset)
        if segment is not self._active() and state.map_end_offset > log_start_offset:
            # What batches below the log's start say, as a marker its coordinator's epoch, later ones may not.
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

    def _goes_on_with(self, segment: LogSegment, last_offset: int, behind: list[LogSegment]) -> bool:
        """Have each offset once, where a lost power undid half of a truncation and a segment reaches into the next.

        The later leader epoch is right.  With the same one the segment behind is: a truncation syncs the names that go
        before anything is appended, so it is not one that came back, while a cut inside a file may have been lost.
        """
        following = behind[0]
        found = segment.translate_offset(following.base_offset)
        assert found is not None
        older = batch_at(segment, found.position)
        assert older is not None
        try:
            newer = batch_at(following, 0)
            if newer is not None:
                newer.ensure_valid()
        except CorruptMessage:
            newer = None
        if newer is None or newer.leader_epoch < older.leader_epoch:
            aside = self._move_aside(behind)
            logger.error(
                "%s: segment %d has records up to offset %d of leader epoch %d, but segment %d begins with %s: it is "
                "not part of the log, nor are the %d segments behind it.  They are in %s",
                self.directory,
                segment.base_offset,
                last_offset,
                older.leader_epoch,
                following.base_offset,
                "no valid batch" if newer is None else f"leader epoch {newer.leader_epoch}",
                len(behind) - 1,
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

    def _cut_behind(self, segment: LogSegment, result: RecoveryResult) -> None:
        """The log ends where recovery found the first bad batch."""
        # Later segments first, and durably: as long as the damage is there the next start finds the same end, while a
        # sound segment before a gap looks like a cleaned one.
        if self._remove_segments_behind(segment):
            sync_path(self.directory)
        segment.recover(only_noteworthy=True)
        self._report_cut(segment, result, "cut %d bytes off segment %d", is_gap=False)

    def _remove_segments_behind(self, segment: LogSegment) -> bool:
        """Whether there were any.  The last one goes first, so that a crash in between leaves no gap."""
        behind = [later for later in self.segments if later.base_offset > segment.base_offset]
        for later in reversed(behind):
            logger.warning("%s: removing segment %d after the cut", self.directory, later.base_offset)
            self._remove_segment(later)
        return bool(behind)

    def _txn_index(self, base_offset: int) -> TransactionIndex:
        suffix = TXN_INDEX_SUFFIX + (SWAP_SUFFIX if base_offset in self.swapped else "")
        path = segment_file(self.directory, base_offset, suffix)
        return TransactionIndex(path, base_offset, writable=self.writable)

    def _load_txn_indexes(self, files: list[SegmentFileName], indexed: set[int]) -> None:
        present = {file.base_offset for file in files if file.kind == TXN_INDEX_SUFFIX}
        for segment in self.segments:
            base_offset = segment.base_offset
            # Where the other indexes are missing, the absence of this one does not mean that nothing was aborted.
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
                found, _ = aborted_txns_in(segment, self.segments, self.directory, str(self.tp), 2**63 - 1, now_ms)
                index.replace(found)
                if found or base_offset in present:
                    logger.warning("%s: rebuilt a transaction index from the batches: %s", self.directory, error)
            self.txn_indexes[base_offset] = index

    # -- the small files ------------------------------------------------------------------------------------------

    def _read_epochs(self, had_clean_shutdown: bool) -> list[EpochEntry] | None:
        """None where the file is damaged or may not have reached the disk: the batches know."""
        try:
            entries = self.epoch_checkpoint.read()
            if any(entry.epoch < 0 or entry.start_offset < 0 for entry in entries):
                raise CorruptFile(f"{self.epoch_checkpoint.path}: a negative epoch or offset")
        except CorruptFile as error:
            logger.warning("%s: rebuilding the leader epochs from the log: %s", self.directory, error)
            return None
        return entries if entries or had_clean_shutdown else None

    def _load_epochs(
        self,
        in_file: list[EpochEntry] | None,
        batch_epochs: BatchEpochs,
        had_clean_shutdown: bool,
        log_start_offset: int,
        log_end_offset: int,
    ) -> LeaderEpochFileCache:
        """The epochs of the log: those of the file, corrected by what recovery has read."""
        name = str(self.tp)
        if in_file is None:
            entries = self._epochs_of_all_batches(check_crc=not (had_clean_shutdown or self.writable))
        else:
            entries = list(LeaderEpochFileCache(name, None, in_file).entries)  # offsets ascend from here on
            known_range = (log_start_offset, log_end_offset, self._first_offset)
            if had_clean_shutdown:
                entries = with_later_epochs(entries, epoch_runs(batch_epochs.entries, *known_range))
            else:
                entries, contradicted = corrected_epochs(entries, batch_epochs, *known_range)
                if contradicted:
                    logger.warning(
                        "%s: the leader epochs in %s are not those of the batches, which are used",
                        self.directory,
                        LEADER_EPOCH_CHECKPOINT,
                    )
        left = LeaderEpochFileCache(name, None, entries)
        # An epoch that starts at the end has no record, nor has one of an emptied log, which the first of these calls
        # moves to the end.  Among replicas it may contradict the leader's, so it goes; alone it is the epoch to go on
        # with.
        left.truncate_from_start(log_start_offset)
        left.truncate_from_end(log_end_offset + 1 if self.sole_replica or not self.writable else log_end_offset)
        epochs = LeaderEpochFileCache(
            name,
            self.epoch_checkpoint if self.writable else None,
            in_file or [],
            # A clean stop does not sync the epochs of an empty log.
            is_synced=had_clean_shutdown and in_file is not None and log_start_offset < log_end_offset,
        )
        # Entries at the end stay in the file: the next leader mostly has the same epoch, and nothing has to be written.
        count = len(left.entries)
        only_cut = had_clean_shutdown and in_file is not None and left.entries == tuple(in_file[:count])
        epochs.replace(left.entries, write=not only_cut)
        return epochs

    def _first_offset(self, start: int, end: int) -> int | None:
        """The first offset in [start, end) that a batch holds; None where a damaged segment does not tell."""
        try:
            for segment in self.segments.from_floor(start):
                found = segment.translate_offset(start)
                batch = batch_at(segment, found.position) if found is not None else None
                if batch is not None:
                    return max(batch.base_offset, start) if batch.base_offset < end else None
        except CorruptMessage:
            pass
        return None

    def _epochs_of_all_batches(self, *, check_crc: bool) -> list[EpochEntry]:
        """After recovery: what is torn must not be asked."""
        epochs = BatchEpochs(str(self.tp), 0)

        def note(batches: Iterable[RecordBatch]) -> None:
            for batch in batches:
                epochs.note(batch)

        for segment in self.segments:
            segment.scan(note, check_crc=check_crc, only_noteworthy=True)
        return list(epochs.entries)

    def _read_topic_id(self) -> UUID | None:
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
    """Whether the first batch that holds an offset from start on is sound and begins in [start, end)."""
    try:
        found = segment.translate_offset(start)
        batch = None if found is None else batch_at(segment, found.position)
        if batch is None or not start <= batch.base_offset < end:
            return False
        batch.ensure_valid()
    except CorruptMessage:
        return False
    return True


def _ends_behind(segment: LogSegment, offset: int) -> bool:
    """Whether a batch, or what may be one, holds this offset or a later one."""
    try:
        return segment.translate_offset(offset) is not None
    except CorruptMessage:
        return True


def _end(scans: Iterable[Future[RecoveryResult]]) -> None:
    """Return when no thread scans any more; scans that none has begun are called off."""
    wait([scan for scan in scans if not scan.cancel()])
