"""LocalLog: the files of one log, segment by segment, and how they come and go.

Knows no high watermark, no producers and no leader epochs: UnifiedLog decides, LocalLog does.
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

    Not thread-safe: whoever changes something holds `lock`, the log's.  position_of, aborted_txns and flush need none.
    Everything here raises OSError when the disk does.
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
        # The directory entries of all segments below are on the disk.
        self._names_flushed_up_to = names_flushed_up_to
        self._lock = lock
        # What transaction indexes were loaded with speaks of the log up to here.
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
        """The log end, when its offset is this."""
        segment = self.active_segment
        return LogOffsetMetadata(offset, segment.base_offset, segment.size)

    def position_of(self, offset: int, end: LogOffsetMetadata) -> LogOffsetMetadata:
        """Where the batch lies that holds offset, or the first one after it; end if there is none."""
        if offset >= end.message_offset:
            return end
        for segment in self.segments.from_floor(offset):
            found = segment.translate_offset(offset)
            if found is not None:
                return LogOffsetMetadata(offset, segment.base_offset, found.position)
        return LogOffsetMetadata(offset, end.segment_base_offset, end.relative_position_in_segment)

    def aborted_txns(
        self, segment: LogSegment, start_offset: int, found: FileRecords, log_end_offset: int
    ) -> list[AbortedTxn]:
        """The aborted transactions that may reach into what was read.

        Compares a transaction index that came from a file with the log when it is first needed.  Raises OSError,
        CorruptMessage.
        """
        known = self._txn_indexes
        if not known:
            return []
        candidates = [s for s in self.segments.from_floor(segment.base_offset) if s.base_offset in known]
        if not candidates:
            return []
        upper_bound_offset = segment.fetch_upper_bound_offset(found.position, found.size_in_bytes)
        if upper_bound_offset is None:
            higher = self.segments.higher(segment.base_offset)
            upper_bound_offset = higher.base_offset if higher is not None else log_end_offset
        return self._collect_aborted_txns(candidates, start_offset, upper_bound_offset)

    def aborted_between(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """The aborted transactions that reach into [start_offset, end_offset), as aborted_txns() finds them."""
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
        """Have the entries that a file said replaced by those that the log says."""
        with self._proving:
            if index.unproven is None:
                return
            now_ms = self._time.milliseconds()
            end_offset = self._loaded_end_offset
            where = (segment, self.segments, self.directory, self._name, end_offset, now_ms)
            try:
                found, known_below = aborted_txns_in(*where)
                agrees = {txn[:3] for txn in found} == {txn[:3] for txn in index.entries[: index.unproven]}
            except CorruptMessage:
                agrees = False
            if not agrees:
                # Batches that contradict the index must be sound themselves.
                found, known_below = aborted_txns_in(*where, check_crc=True)
                found = corrected_across_gaps(found, index.entries[: index.unproven], self._gaps_below(segment))
            with self._lock:
                if self._txn_indexes.get(segment.base_offset) is not index:
                    # The segment was taken out of the log meanwhile.  Its index must not come back as a file, another
                    # segment's by then; and what the batches say is not to be had any more.
                    return
                # A truncation may have come in between.
                said = index.entries[: index.unproven]
                proven = [txn for txn in found if txn.last_offset < min(self._loaded_end_offset, known_below)]
                # Behind damage the log says nothing, and the file is all that is known.
                proven += [txn for txn in said if txn.last_offset >= known_below]
                if not {txn[:3] for txn in proven} <= {txn[:3] for txn in said}:
                    logger.warning("%s: the log has %s, and not what it says: %s", index.path, proven, said)
                index.replace((*proven, *index.entries[len(said) :]))

    def _gaps_below(self, segment: LogSegment) -> list[int]:
        """Where offsets are missing before a segment: the first of them, for each segment that ends too early."""
        gaps = []
        before = None
        for one in self.segments:
            if before is not None:
                with contextlib.suppress(CorruptMessage):  # nobody can tell where a damaged one ends
                    next_offset = before.read_next_offset()
                    if next_offset < one.base_offset:
                        gaps.append(next_offset)
            if one.base_offset >= segment.base_offset:
                break
            before = one
        return gaps

    def note_aborted_txn(self, txn: AbortedTxn) -> None:
        """Into the transaction index of the active segment, which is made when the first entry comes."""
        base_offset = self.active_segment.base_offset
        index = self._txn_indexes.get(base_offset)
        if index is None:
            path = segment_file(self.directory, base_offset, TXN_INDEX_SUFFIX)
            index = self._txn_indexes[base_offset] = TransactionIndex(path, base_offset)
        index.append(txn)

    # -- segments come --------------------------------------------------------------------------------------------

    def new_segment(self, base_offset: int, *, file_suffix: str = "") -> LogSegment:
        if not file_suffix:
            # A new name in the directory, which flush_names() has to sync; after a truncation below others that it has.
            self._names_flushed_up_to = min(self._names_flushed_up_to, base_offset)
        return LogSegment(
            self.directory,
            base_offset,
            file_suffix=file_suffix,
            now_ms=self._time.milliseconds(),
            **self.config.segment_options,
        )

    def renew_active(self) -> LogSegment:
        """Roll an empty active segment to its own base offset: its index has no room, or its time is over.

        From here on it follows the topic's present settings, as a new segment does.

        Its files stay.  Nothing else on the disk need say where the log ends, so at no moment may they be missing.
        """
        active = self.active_segment
        index = self._txn_indexes.pop(active.base_offset, None)
        if index is not None:
            index.reset()
        active.truncate_to(active.base_offset, now_ms=self._time.milliseconds())
        active.configure(**self.config.segment_options)
        return active

    def make_room_at(self, base_offset: int) -> None:
        """Finish the active segment, so that one at base_offset, above it, can take over."""
        self.active_segment.on_become_inactive()
        for suffix in SEGMENT_SUFFIXES:
            self._remove_leftover(segment_file(self.directory, base_offset, suffix))

    def _remove_leftover(self, path: str) -> None:
        if unlink_if_there(path):
            logger.warning("%s: removed %s, a leftover in the way of a new segment", self._name, path)

    def remove_half_made(self, base_offset: int) -> bool:
        """Remove what there is of a segment that could not be made.  Whether nothing is left: the segment before it may
        go on then, where otherwise the next start would find an empty one in the middle of its offsets."""
        try:
            for suffix in SEGMENT_SUFFIXES:
                unlink_if_there(segment_file(self.directory, base_offset, suffix))
        except OSError as error:
            logger.error("%s: half a segment is left at offset %d: %s", self._name, base_offset, error)
            return False
        return True

    def new_cleaned_segment(self, base_offset: int) -> LogSegment:
        """An empty segment for replace_segments(); what an interrupted cleaning left at its place goes."""
        for suffix in SEGMENT_SUFFIXES:
            self._remove_leftover(segment_file(self.directory, base_offset, suffix + CLEANED_SUFFIX))
        try:
            return self.new_segment(base_offset, file_suffix=CLEANED_SUFFIX)
        except OSError:
            self._remove_quietly(base_offset)
            raise

    def discard_cleaned_segment(self, cleaned: LogSegment) -> None:
        """Close a segment of new_cleaned_segment() that the log does not take over, and remove its files.  What fails
        is logged: the next start removes what is left."""
        close_segments([cleaned], self._name, trim=False)
        self._remove_quietly(cleaned.base_offset)

    def _remove_quietly(self, base_offset: int) -> None:
        # A swap that failed may have got as far as the name .swap; those that it was made from are all there then.
        for suffix in SEGMENT_SUFFIXES:
            for mark in (SWAP_SUFFIX, CLEANED_SUFFIX):
                path = segment_file(self.directory, base_offset, suffix + mark)
                try:
                    unlink_if_there(path)
                except OSError as error:
                    logger.warning("%s: could not remove %s: %s", self._name, path, error)

    def txn_index_of(self, cleaned: LogSegment) -> TransactionIndex:
        """An empty one beside a segment of new_cleaned_segment()."""
        path = segment_file(self.directory, cleaned.base_offset, TXN_INDEX_SUFFIX + CLEANED_SUFFIX)
        return TransactionIndex(path, cleaned.base_offset)

    def replace_segments(self, new: list[LogSegment], old: list[LogSegment]) -> None:
        """Put new segments, complete and on the disk as .cleaned, in the place of those they were made from.

        1. each new one .cleaned -> .swap, the last one first; a crash before the end of that changes nothing: the next
        start removes .cleaned files, and .swap files at or above one of them;
        2. from here on a crash is finished by the next start: .swap stands for what it covers;
        3. old ones -> .deleted, removed after file.delete.delay.ms; 4. .swap -> final names.
        Readers see the old segments or the new ones.  Source: LocalLog.replaceSegments.
        """
        new = sorted(new, key=lambda segment: segment.base_offset)
        for segment in reversed(new):
            segment.change_file_suffixes(CLEANED_SUFFIX, SWAP_SUFFIX)
        # The old names may only go once the new ones are on the disk.
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
        """That of a .swap segment, under the name it is about to get."""
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

    # -- and go ---------------------------------------------------------------------------------------------------

    def truncate_active_to(self, offset: int) -> None:
        active = self.active_segment
        active.truncate_to(offset, now_ms=self._time.milliseconds())
        self._loaded_end_offset = min(self._loaded_end_offset, offset)
        index = self._txn_indexes.get(active.base_offset)
        if index is not None:
            index.truncate_to(offset)

    def remove_segments(self, segments: list[LogSegment], new_active_at: int | None = None) -> None:
        """Take segments out of the log at once, and their files off the disk after file.delete.delay.ms.

        new_active_at: an empty segment takes their place in the same moment.
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
            # A truncation, retention or a swap renames files meanwhile: all of them have, once the lock is free.
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
        """Close every file.  What fails is logged, the others are closed all the same."""
        close_segments(self.segments, self._name, trim=trim)

    def rename(self, name: str) -> None:
        """Give the directory another name beside the old one."""
        new = os.path.join(os.path.dirname(self.directory), name)
        rename(self.directory, new)
        sync_path(os.path.dirname(self.directory))
        self.directory = new

    def delete(self) -> None:
        """Remove the directory with everything in it; fine if it is gone."""
        remove_tree(self.directory)


def corrected_across_gaps(
    txns: Iterable[AbortedTxn], from_file: Iterable[AbortedTxn], gaps: Iterable[int]
) -> list[AbortedTxn]:
    """The aborted transactions that the batches say, corrected by a transaction index where batches are lost.

    A marker that was lost leaves its transaction open in what is left, and the producer's next marker seems to end that
    one.  The file was written when the batches were there: of what seems to reach across a gap it has the true start,
    or no entry, if that marker ended a transaction without records.  gaps: the first offset of each gap.
    """
    known = {(txn.producer_id, txn.last_offset): txn for txn in from_file}
    gaps = list(gaps)
    corrected = []
    for txn in txns:
        in_file = known.get((txn.producer_id, txn.last_offset))
        start = in_file.first_offset if in_file is not None else txn.last_offset + 1
        if not any(txn.first_offset < gap <= start for gap in gaps):
            corrected.append(txn)
        elif in_file is not None:
            corrected.append(txn._replace(first_offset=start))
    return corrected


def close_segments(segments: Iterable[LogSegment], name: str, *, trim: bool) -> None:
    """Close them all; what fails is logged."""
    for segment in segments:
        try:
            segment.close(trim=trim)
        except OSError:
            logger.exception("%s: closing segment %d failed", name, segment.base_offset)
