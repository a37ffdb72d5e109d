"""Rebuilding files from a .log: its indexes and the producer snapshots.  Returns their content and writes nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable

from kcore.log.log_file_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_file
from kcore.log.log_segment import LogSegment
from kcore.log.log_segments import LogSegments
from kcore.log.producer_state_manager import ProducerStateManager, encode_snapshot, rebuild_producer_state

DEFAULT_INDEX_INTERVAL_BYTES = 4096


def rebuilt_indexes(log_path: str, base: int, index_interval_bytes: int) -> dict[str, bytes]:
    """Suffix -> content of the .index and .timeindex that recovery would write (SEG-11), up to the first byte that is
    no batch.  Raises OSError."""
    import numpy as np

    from kcore.record.layout import OFFSET_INDEX_SLOT, TIME_INDEX_SLOT

    # A segment without index files makes them in memory when it is only read.
    with tempfile.TemporaryDirectory(prefix="kcore-") as alone:
        os.symlink(os.path.abspath(log_path), segment_file(alone, base, LOG_SUFFIX))
        segment = LogSegment(alone, base, writable=False, index_interval_bytes=index_interval_bytes)
        try:
            offsets, times = segment.offset_index.to_numpy(), segment.time_index.to_numpy()
        finally:
            segment.close(trim=False)
    by_offset = np.empty(len(offsets), OFFSET_INDEX_SLOT)
    by_offset["offset"], by_offset["position"] = offsets["offset"] - base, offsets["position"]
    by_time = np.empty(len(times), TIME_INDEX_SLOT)
    by_time["timestamp"], by_time["offset"] = times["timestamp"], times["offset"] - base
    return {OFFSET_INDEX_SUFFIX: by_offset.tobytes(), TIME_INDEX_SUFFIX: by_time.tobytes()}


def rebuilt_snapshot(directory: str, bases: Iterable[int], good_snapshots: Iterable[int], offset: int) -> bytes | None:
    """The producer snapshot at an offset, from an older snapshot and the batches after it; None if the producers' state
    at the start of the log is unknown.  Raises OSError, and KafkaError for damaged batches."""
    bases, older_snapshots = sorted(bases), [snapshot for snapshot in good_snapshots if snapshot < offset]
    if not bases or (bases[0] > 0 and not any(snapshot >= bases[0] for snapshot in older_snapshots)):
        return None
    segments = LogSegments()
    try:
        for base in bases:
            if base < offset:
                segments.add(LogSegment(directory, base, writable=False))
        # A snapshot at the log's start is used; a broker would take it for one of a log that began anew.
        start = bases[0] - 1 if bases[0] in older_snapshots else bases[0]
        state = ProducerStateManager(directory, directory, writable=False, snapshots=older_snapshots)
        # At time 0 no producer has expired; whoever loads the snapshot expires them.
        rebuild_producer_state(state, segments, start, offset, now_ms=0)
        return encode_snapshot(state.producers.values())
    finally:
        for segment in segments:
            segment.close(trim=False)
