"""What a crash has left of a change to a log's files: finished or undone before the log is loaded.

A change of segments (a cleaning, a split, a bulk load) writes `.cleaned` files, renames them to `.swap`, removes the
segments that they replace, and gives them their final names.  From the first `.swap` on the change is decided.  A
deletion renames to `.deleted` first; small files are written as `.tmp`.
Source: LogLoader.removeTempFilesAndCollectSwapFiles and load, Kafka 2.4-4.x.
"""

from __future__ import annotations

import logging
import os

from kcore.common.file import list_directory, rename, unlink_if_there
from kcore.common.text import counted, some_of
from kcore.log.checkpoints import LEADER_EPOCH_CHECKPOINT
from kcore.log.log_file_names import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    LOST_RECORDS_FILE,
    PARTITION_METADATA_FILE,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    SegmentFileName,
    parse_segment_file,
    segment_file,
)
from kcore.log.log_segment import LogSegment

logger = logging.getLogger(__name__)


def list_segment_files(directory: str, *, writable: bool) -> list[SegmentFileName]:
    """The files of segments, in the order of their offsets; with writable, `.tmp` files of a log's are removed."""
    files = []
    for name in list_directory(directory):
        parsed = parse_segment_file(name)
        if parsed is not None:
            files.append(parsed)
        elif name.endswith(TEMPORARY_SUFFIX) and writable and _is_of_a_log(name.removesuffix(TEMPORARY_SUFFIX)):
            unlink_if_there(os.path.join(directory, name))  # a crash interrupted its writing
    return sorted(files)


def path_of(directory: str, file: SegmentFileName) -> str:
    return segment_file(directory, file.base_offset, file.kind + file.mark)


def finish_interrupted_changes(directory: str, *, writable: bool) -> tuple[list[SegmentFileName], set[int]]:
    """(the files that the log consists of, the base offsets of segments that are read from `.swap` files).

    With writable, a decided change is finished and another undone, so the second is empty; without, nothing on disk
    changes.  Raises OSError, CorruptMessage.
    """
    files = list_segment_files(directory, writable=writable)
    if all(not file.mark for file in files):
        return files, set()
    cleaned = [file.base_offset for file in files if file.mark == CLEANED_SUFFIX]
    # A .swap above the first .cleaned is part of a split that did not finish: its sources are still there.
    valid_below = min(cleaned, default=2**63)
    swaps = [f for f in files if f.mark == SWAP_SUFFIX and f.kind != SNAPSHOT_SUFFIX and f.base_offset < valid_below]
    if not writable:
        return _with_swaps_in_place(directory, files, swaps)
    left_over = [path_of(directory, file) for file in files if file.mark and file not in swaps]
    if left_over:
        names = some_of([os.path.basename(path) for path in left_over], shown=3)
        logger.info("%s: removing %s: %s", directory, counted(len(left_over), "leftover file"), names)
    for path in left_over:
        unlink_if_there(path)
    if swaps:
        _complete_swaps(directory, swaps)
    return list_segment_files(directory, writable=True), set()


def _covered_range(directory: str, swaps: list[SegmentFileName]) -> tuple[int, int]:
    """The offsets [from, to) that the swapped-in segments replace."""
    covered_from, covered_to = 2**63, -1
    for file in swaps:
        if file.kind == LOG_SUFFIX:
            # For reading: a writable one would make the indexes that it does not find.
            segment = LogSegment(directory, file.base_offset, writable=False, file_suffix=SWAP_SUFFIX)
            covered_from = min(covered_from, file.base_offset)
            covered_to = max(covered_to, segment.read_next_offset())
            segment.close(trim=False)
    return covered_from, covered_to


def _with_swaps_in_place(
    directory: str, files: list[SegmentFileName], swaps: list[SegmentFileName]
) -> tuple[list[SegmentFileName], set[int]]:
    """For reading: the .swap segments in the place of what they replace, nothing renamed."""
    covered_from, covered_to = _covered_range(directory, swaps)
    swapped = {file.base_offset for file in swaps if file.kind == LOG_SUFFIX}
    plain = [
        file
        for file in files
        if not file.mark and (file.kind == SNAPSHOT_SUFFIX or not covered_from <= file.base_offset < covered_to)
    ]
    return sorted(plain + [file for file in swaps if file.base_offset in swapped]), swapped


def _complete_swaps(directory: str, swaps: list[SegmentFileName]) -> None:
    """The swapped-in segments replace every plain segment inside the range of offsets that they cover."""
    covered_from, covered_to = _covered_range(directory, swaps)
    for file in list_segment_files(directory, writable=True):
        if not file.mark and file.kind in SEGMENT_SUFFIXES and covered_from <= file.base_offset < covered_to:
            unlink_if_there(path_of(directory, file))
    for file in swaps:
        rename(path_of(directory, file), path_of(directory, file._replace(mark="")))
    logger.info("%s: completed the swap of %d files", directory, len(swaps))


def _is_of_a_log(name: str) -> bool:
    names = (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA_FILE, LOST_RECORDS_FILE)
    return name in names or parse_segment_file(name) is not None
