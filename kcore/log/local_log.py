"""LocalLog: the segment files of one log; adds, replaces and removes them.

It has no high watermark, no producers and no leader epochs: UnifiedLog decides what to change.
Source: LocalLog, Kafka 3.x-4.x.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager

from kcore.common.file import remove_tree, rename, sync_path, unlink_if_there
from kcore.common.scheduler import Scheduler
from kcore.common.text import plain_error
from kcore.common.time import Time
from kcore.errors import CorruptMessage, LogClosed
from kcore.log.log_config import LogConfig
from kcore.log.log_file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_file,
)
from kcore.log.log_offset_metadata import AbortedTxn, LogOffsetMetadata
from kcore.log.log_segment import LogSegment
from kcore.log.log_segments import LogSegments
from kcore.log.producer_state_manager import aborted_txns_in
from kcore.log.transaction_index import TransactionIndex
from kcore.record.file_records import FileRecords

logger = logging.getLogger(__name__)


class LocalLog:
    """A directory's segments and their transaction indexes.

    Not thread-safe: a change needs `lock`, the log's lock.  position_of(), aborted_txns() and flush_*() need none.
    Every function may raise OSError.
    """

    def __init__(
        self,
        directory: str,
        name: str,
        config: LogConfig,
        segments: LogSegments,
        txn_indexes: dict[int, TransactionIndex],
        names_flushed_up_to: int,
        *,
        lock: AbstractContextManager[object],
        loaded_end_offset: int,
        time: Time,
        scheduler: Scheduler | None,
    ) -> None:
        self.directory = directory
        #: The topic's settings, read at each use.  UnifiedLog.config replaces them.
        self.config = config
        self.segments = segments
        self._name = name
        self._txn_indexes = txn_indexes
        # The directory entries of all segments below this offset are on the disk.
        self._names_flushed_up_to = names_flushed_up_to
        self._lock = lock
        # The entries that transaction indexes were loaded with describe the log up to this offset.
        self._loaded_end_offset = loaded_end_offset
        self._proving = threading.Lock()
        self._time = time
        self._scheduler = scheduler

    # -- where things are -----------------------------------------------------------------------------------------

    @property
    def active_segment(self) -> LogSegment:
        segment = self.segments.active
        assert segment is not None, f"{self._name}: a log without a segment"
        return segment

    def end_at(self, offset: int) -> LogOffsetMetadata:
        """The metadata of the log end offset, whose offset is this."""
        segment = self.active_segment
        return LogOffsetMetadata(offset, segment.base_offset, segment.size)

    def position_of(self, offset: int, end: LogOffsetMetadata) -> LogOffsetMetadata:
        """The position of the batch that holds offset, or of the first batch after it; end if there is none."""
        if offset >= end.message_offset:
            return end
        for segment in self.segments.from_floor(offset):
            place = segment.translate_offset(offset)
            if place is not None:
                return LogOffsetMetadata(offset, segment.base_offset, place.position)
        return LogOffsetMetadata(offset, end.segment_base_offset, end.relative_position_in_segment)

    def aborted_txns(
        self, segment: LogSegment, start_offset: int, records: FileRecords, log_end_offset: int
    ) -> list[AbortedTxn]:
        """The aborted transactions that may have records in this slice.

        A transaction index that was read from a file is compared with the log at its first use.  Raises OSError,
        CorruptMessage.
        """
        indexes = self._txn_indexes
        if not indexes:
            return []
        candidates = [s for s in self.segments.from_floor(segment.base_offset) if s.base_offset in indexes]
        if not candidates:
            return []
        upper_bound_offset = segment.fetch_upper_bound_offset(records.position, records.size_in_bytes)
        if upper_bound_offset is None:
            higher = self.segments.higher(segment.base_offset)
            upper_bound_offset = higher.base_offset if higher is not None else log_end_offset
        return self._collect_aborted_txns(candidates, start_offset, upper_bound_offset)

    def aborted_between(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """As aborted_txns(): the aborted transactions that may have records in [start_offset, end_offset)."""
        return self._collect_aborted_txns(self.segments.from_floor(start_offset), start_offset, end_offset)

    def _collect_aborted_txns(
        self, candidates: Iterable[LogSegment], start_offset: int, end_offset: int
    ) -> list[AbortedTxn]:
        result: list[AbortedTxn] = []
        for candidate in candidates:
            index = self._txn_indexes.get(candidate.base_offset)
            if index is not None:
                if index.unproven is not None:
                    self._prove(index, candidate)
                txns, complete = index.collect_aborted_txns(start_offset, end_offset)
                result += txns
                if complete:
                    break
        return result

    def _prove(self, index: TransactionIndex, segment: LogSegment) -> None:
        """Replace the entries that were read from the file by those of the log's batches."""
        with self._proving:
            if index.unproven is None:
                return
            now_ms = self._time.milliseconds()
            end_offset = self._loaded_end_offset
            where = (segment, self.segments, self.directory, self._name, end_offset, now_ms)
            try:
                aborted, complete_below = aborted_txns_in(*where)
                agrees = {txn[:3] for txn in aborted} == {txn[:3] for txn in index.entries[: index.unproven]}
            except CorruptMessage:
                agrees = False
            if not agrees:
                # Only batches with a right CRC may contradict the index.
                aborted, complete_below = aborted_txns_in(*where, check_crc=True)
                aborted = corrected_across_gaps(aborted, index.entries[: index.unproven], self._gaps_below(segment))
            with self._lock:
                if self._txn_indexes.get(segment.base_offset) is not index:
                    # The segment was removed from the log meanwhile.  Its index must not be written again: the file
                    # name may belong to another segment by now.
                    return
                # A truncation may have lowered _loaded_end_offset meanwhile.
                entries_from_file = index.entries[: index.unproven]
                proven = [txn for txn in aborted if txn.last_offset < min(self._loaded_end_offset, complete_below)]
                # After damage the batches cannot be read, so the entries of the file are kept.
                proven += [txn for txn in entries_from_file if txn.last_offset >= complete_below]
                if not {txn[:3] for txn in proven} <= {txn[:3] for txn in entries_from_file}:
                    logger.warning(
                        "%s: the log has %s, and not the entries of this file: %s",
                        index.path,
                        proven,
                        entries_from_file,
                    )
                index.replace((*proven, *index.entries[len(entries_from_file) :]))

    def _gaps_below(self, segment: LogSegment) -> list[int]:
        """The gaps in the offsets before a segment: for each segment that ends too early, the first missing offset."""
        gaps = []
        before = None
        for one in self.segments:
            if before is not None:
                with contextlib.suppress(CorruptMessage):  # the end of a damaged segment is unknown
                    next_offset = before.read_next_offset()
                    if next_offset < one.base_offset:
                        gaps.append(next_offset)
            if one.base_offset >= segment.base_offset:
                break
            before = one
        return gaps

    def note_aborted_txn(self, txn: AbortedTxn) -> None:
        """Append to the transaction index of the active segment; the first entry creates the index."""
        base_offset = self.active_segment.base_offset
        index = self._txn_indexes.get(base_offset)
        if index is None:
            path = segment_file(self.directory, base_offset, TXN_INDEX_SUFFIX)
            index = self._txn_indexes[base_offset] = TransactionIndex(path, base_offset)
        index.append(txn)

    # -- new segments ---------------------------------------------------------------------------------------------

    def new_segment(self, base_offset: int, *, file_suffix: str = "") -> LogSegment:
        if not file_suffix:
            # flush_names() has to sync the new name.  After a truncation it may be below names that were synced.
            self._names_flushed_up_to = min(self._names_flushed_up_to, base_offset)
        return LogSegment(
            self.directory,
            base_offset,
            file_suffix=file_suffix,
            now_ms=self._time.milliseconds(),
            **self.config.segment_options,
        )

    def renew_active(self) -> LogSegment:
        """Roll an empty active segment to its own base offset: its index size is 0, or segment.ms has passed.

        From now on it has the topic's current settings, as a new segment does.  Its files stay: the log end offset may
        be recorded nowhere else on the disk.
        """
        active = self.active_segment
        index = self._txn_indexes.pop(active.base_offset, None)
        if index is not None:
            index.reset()
        active.truncate_to(active.base_offset, now_ms=self._time.milliseconds())
        active.configure(**self.config.segment_options)
        return active

    def make_room_at(self, base_offset: int) -> None:
        """Finish the active segment, and remove leftover files where the next one, at base_offset, is created."""
        self.active_segment.on_become_inactive()
        for suffix in SEGMENT_SUFFIXES:
            self._remove_leftover(segment_file(self.directory, base_offset, suffix))

    def _remove_leftover(self, path: str) -> None:
        if unlink_if_there(path):
            logger.warning("%s: removed %s, a leftover in the way of a new segment", self._name, path)

    def remove_half_made(self, base_offset: int) -> bool:
        """Remove the files of a segment that could not be created.  Returns whether all of them are gone.

        If not, the segment before it must not grow: the next start would find an empty segment between its offsets.
        """
        try:
            for suffix in SEGMENT_SUFFIXES:
                unlink_if_there(segment_file(self.directory, base_offset, suffix))
        except OSError as error:
            logger.error("%s: half a segment is left at offset %d: %s", self._name, base_offset, plain_error(error))
            return False
        return True

    def new_cleaned_segment(self, base_offset: int) -> LogSegment:
        """An empty segment for replace_segments(); files of an interrupted cleaning with its name are removed."""
        for suffix in SEGMENT_SUFFIXES:
            self._remove_leftover(segment_file(self.directory, base_offset, suffix + CLEANED_SUFFIX))
        try:
            return self.new_segment(base_offset, file_suffix=CLEANED_SUFFIX)
        except OSError:
            self._remove_quietly(base_offset)
            raise

    def discard_cleaned_segment(self, cleaned: LogSegment) -> None:
        """Close a segment of new_cleaned_segment() that is not used, and remove its files.  An error is logged; the
        next start removes the remaining files."""
        close_segments([cleaned], self._name, trim=False)
        self._remove_quietly(cleaned.base_offset)

    def _remove_quietly(self, base_offset: int) -> None:
        # A failed swap may have renamed it to .swap already; the segments it was made from still exist then.
        for suffix in SEGMENT_SUFFIXES:
            for mark in (SWAP_SUFFIX, CLEANED_SUFFIX):
                path = segment_file(self.directory, base_offset, suffix + mark)
                try:
                    unlink_if_there(path)
                except OSError as error:
                    logger.warning("%s: could not remove %s: %s", self._name, path, plain_error(error))

    def txn_index_of(self, cleaned: LogSegment) -> TransactionIndex:
        """An empty transaction index for a segment of new_cleaned_segment()."""
        path = segment_file(self.directory, cleaned.base_offset, TXN_INDEX_SUFFIX + CLEANED_SUFFIX)
        return TransactionIndex(path, cleaned.base_offset)

    def replace_segments(self, new: list[LogSegment], old: list[LogSegment]) -> None:
        """Replace the old segments by the new ones made from them, which are complete and on the disk as .cleaned.

        1. Each new segment .cleaned -> .swap, the last one first.  After a crash in this step the next start removes
        the .cleaned files, and the .swap files at or above one of them: the log is unchanged.
        2. After a crash from here on the next start completes the swap: a .swap segment replaces what it covers.
        3. Old segments -> .deleted, removed after file.delete.delay.ms.  4. .swap -> final names.
        Readers see the old segments or the new ones.  Source: LocalLog.replaceSegments.
        """
        new = sorted(new, key=lambda segment: segment.base_offset)
        for segment in reversed(new):
            segment.change_file_suffixes(CLEANED_SUFFIX, SWAP_SUFFIX)
        # The old names may be removed only after the new ones are on the disk.
        sync_path(self.directory)
        for segment in new:
            self._adopt_txn_index(segment)
        self.segments.replace(old, new)
        kept = {segment.base_offset for segment in new}
        for segment in old:
            if segment.base_offset not in kept:
                self._txn_indexes.pop(segment.base_offset, None)
            segment.change_file_suffixes("", DELETED_SUFFIX)
        for segment in new:
            segment.change_file_suffixes(SWAP_SUFFIX, "")
        sync_path(self.directory)
        self._delete_later(old)

    def _adopt_txn_index(self, segment: LogSegment) -> None:
        """Take over the transaction index of a .swap segment, under its final name."""
        base_offset = segment.base_offset
        path = segment_file(self.directory, base_offset, TXN_INDEX_SUFFIX)
        written = TransactionIndex(path + SWAP_SUFFIX, base_offset, writable=False)
        written.load()
        if written.entries:
            index = TransactionIndex(path, base_offset)
            index.entries = written.entries
            self._txn_indexes[base_offset] = index
        else:
            self._txn_indexes.pop(base_offset, None)

    # -- removed segments -----------------------------------------------------------------------------------------

    def truncate_active_to(self, offset: int) -> None:
        active = self.active_segment
        active.truncate_to(offset, now_ms=self._time.milliseconds())
        self._loaded_end_offset = min(self._loaded_end_offset, offset)
        index = self._txn_indexes.get(active.base_offset)
        if index is not None:
            index.truncate_to(offset)

    def remove_segments(self, segments: list[LogSegment], new_active_at: int | None = None) -> None:
        """Take segments out of the log at once, and their files off the disk after file.delete.delay.ms.

        new_active_at: base offset of an empty segment that replaces them in the same step.
        """
        for segment in segments:
            segment.change_file_suffixes("", DELETED_SUFFIX)
            self._txn_indexes.pop(segment.base_offset, None)
        added = [] if new_active_at is None else [self.new_segment(new_active_at)]
        self.segments.replace(segments, added)
        self._delete_later(segments)

    def _delete_later(self, segments: list[LogSegment]) -> None:
        def delete_files() -> None:
            for segment in segments:
                segment.delete()

        if self._scheduler is not None:
            self._scheduler.schedule("delete-file", delete_files, self.config.file_delete_delay_ms)
        else:
            delete_files()

    # -- the disk -------------------------------------------------------------------------------------------------

    def flush_segments(self, from_offset: int, to_offset: int) -> None:
        """fsync the segments that hold [from_offset, to_offset)."""
        for segment in self.segments.from_floor(from_offset):
            if segment.base_offset < to_offset:
                self._flush_segment(segment)

    def _flush_segment(self, segment: LogSegment) -> None:
        try:
            self._sync_files(segment)
        except (LogClosed, FileNotFoundError):
            # A truncation, retention or a swap was renaming the files; it is done when the lock is free.
            with self._lock:
                if self.segments.get(segment.base_offset) is segment:
                    self._sync_files(segment)

    def _sync_files(self, segment: LogSegment) -> None:
        segment.flush()
        index = self._txn_indexes.get(segment.base_offset)
        if index is not None:
            index.flush()

    def flush_names(self, *, directory_may_be_new: bool) -> None:
        """fsync the directory if a segment is new in it; its parent too, if its own name may be new."""
        if self.active_segment.base_offset >= self._names_flushed_up_to:
            self._names_flushed_up_to = self.active_segment.base_offset + 1
            sync_path(self.directory)
            if directory_may_be_new:
                sync_path(os.path.dirname(self.directory))

    def close(self, *, trim: bool) -> None:
        """Close every file.  An error is logged, and the other files are closed as well."""
        close_segments(self.segments, self._name, trim=trim)

    def rename(self, name: str, *, sync: bool = True) -> None:
        """Rename the directory within its parent.  sync=False: the caller syncs the parent."""
        new = os.path.join(os.path.dirname(self.directory), name)
        rename(self.directory, new)
        if sync:
            sync_path(os.path.dirname(self.directory))
        self.directory = new

    def delete(self) -> None:
        """Remove the directory with everything in it; no error if it does not exist."""
        remove_tree(self.directory)


def corrected_across_gaps(
    txns: Iterable[AbortedTxn], from_file: Iterable[AbortedTxn], gaps: Iterable[int]
) -> list[AbortedTxn]:
    """The aborted transactions of the batches, corrected by the index file where batches were lost.

    If a marker was lost, its transaction stays open in the remaining batches, and the producer's next marker seems to
    end it.  The index file was written when all batches existed: for a transaction that seems to reach across a gap it
    has the true start, or no entry if that marker ended a transaction without records.
    gaps: the first offset of each gap.
    """
    entries_from_file = {(txn.producer_id, txn.last_offset): txn for txn in from_file}
    gaps = list(gaps)
    corrected = []
    for txn in txns:
        in_file = entries_from_file.get((txn.producer_id, txn.last_offset))
        start = in_file.first_offset if in_file is not None else txn.last_offset + 1
        if not any(txn.first_offset < gap <= start for gap in gaps):
            corrected.append(txn)
        elif in_file is not None:
            corrected.append(txn._replace(first_offset=start))
    return corrected


def close_segments(segments: Iterable[LogSegment], name: str, *, trim: bool) -> None:
    """Close all segments; an error is logged."""
    for segment in segments:
        try:
            segment.close(trim=trim)
        except OSError:
            logger.exception("%s: closing segment %d failed", name, segment.base_offset)
