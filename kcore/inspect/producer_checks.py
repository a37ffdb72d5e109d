"""Transaction indexes and producer snapshots against the batches they were made from.

Retention and cleaning may have removed batches that these files still name, and producers expire.  So an entry is
damage only if it contradicts a batch that is in the log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kcore.common.file import read_file
from kcore.common.text import counted
from kcore.errors import KafkaError
from kcore.inspect import log_files
from kcore.inspect.gap_checks import rows_beside_gaps
from kcore.inspect.partition_checks import PartitionFiles, Problem
from kcore.inspect.segment_scan import ScannedSegment, is_control, is_transactional
from kcore.log.log_file_names import SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX
from kcore.log.log_offset_metadata import AbortedTxn
from kcore.log.producer_state_entry import ProducerStateEntry
from kcore.log.producer_state_manager import decode_snapshot
from kcore.log.transaction_index import ENTRY_SIZE, decode_entries
from kcore.record.control_record import ControlRecordType, control_record_type
from kcore.record.memory_records import MemoryRecords

if TYPE_CHECKING:
    import numpy as np


class Marker(NamedTuple):
    """The end of a transaction, from its control batch."""

    producer_id: int
    offset: int
    is_abort: bool


def check_producers(partition: PartitionFiles, segments: Sequence[ScannedSegment]) -> Iterator[Problem]:
    """segments: all segments of the partition, in order.  Raises OSError."""
    snapshots = read_snapshots(partition)
    aborted = AbortedTransactions(open_at_start(partition, snapshots), partition.log_start_offset)
    for base, segment in zip(partition.bases, segments, strict=True):
        expected = aborted.of_segment(segment)
        yield from check_txn_index(partition.file(base, TXN_INDEX_SUFFIX), base, expected, aborted.markers, segment)
    if snapshots and segments:
        yield from check_snapshots(partition, snapshots, segments)


def read_snapshots(partition: PartitionFiles) -> dict[int, list[ProducerStateEntry]]:
    """Offset -> entries of the snapshot.  Skips a file that cannot be read: the check of that file reports it; and one
    with the name of a segment of another log."""
    snapshots = {}
    for path in log_files.known_files(partition.directory):
        offset = log_files.base_offset_of(path)
        if offset in partition.misplaced:
            continue
        if path.endswith(SNAPSHOT_SUFFIX) and offset is not None:
            try:
                snapshots[offset] = decode_snapshot(read_file(path), path)
            except (KafkaError, OSError):
                continue
    return snapshots


def open_at_start(partition: PartitionFiles, snapshots: dict[int, list[ProducerStateEntry]]) -> dict[int, int] | None:
    """Producer id -> first offset of its transaction, for transactions that are open at the start of the first segment.
    None if these are unknown: the log does not start at 0 and has no snapshot there."""
    first = partition.bases[0] if partition.bases else 0
    if first == 0:
        return {}
    if first not in snapshots:
        return None
    entries = [e for e in snapshots[first] if e.current_txn_first_offset is not None]
    entries.sort(key=lambda e: e.current_txn_first_offset or 0)
    return {e.producer_id: e.current_txn_first_offset or 0 for e in entries}


class AbortedTransactions:
    """Follows transactions from segment to segment.

    open_at_start: what open_at_start() returns.  log_start_offset: data batches below it are ignored, because a broker
    that rebuilds its producer state may skip them: it then writes an entry that starts later, or none.
    """

    def __init__(self, open_at_start: dict[int, int] | None, log_start_offset: int) -> None:
        self.start_is_known = open_at_start is not None
        self._log_start_offset = log_start_offset
        self._open = dict(open_at_start or {})
        self.markers: dict[int, Marker] = {}

    def of_segment(self, segment: ScannedSegment) -> list[AbortedTxn]:
        """The entries that the segment's transaction index should have.  Sets self.markers: offset -> marker."""
        import numpy as np

        self.markers = {}
        expected: list[AbortedTxn] = []
        rows = segment.producer_batches
        rows = rows[is_transactional(rows) & (rows["last_offset"] >= self._log_start_offset) | is_control(rows)]
        control = is_control(rows)
        # Of adjacent data batches of one producer only the first can begin a transaction.
        same = np.zeros(len(rows), bool)
        same[1:] = (rows["producer_id"][1:] == rows["producer_id"][:-1]) & ~control[1:] & ~control[:-1]
        if not len(rows):
            return expected
        with log_files.open_file(segment.path) as file:
            for row in rows[~same]:
                producer = int(row["producer_id"])
                if not is_control(row):
                    self._open.setdefault(producer, int(row["base_offset"]))
                    continue
                marker = _read_marker(file.fileno(), row, segment)
                if marker is None:
                    continue
                self.markers[marker.offset] = marker
                first = self._open.pop(producer, None)
                if first is not None and marker.is_abort:
                    stable = next(iter(self._open.values()), marker.offset + 1)
                    expected.append(AbortedTxn(producer, first, marker.offset, stable))
        return expected


def _read_marker(fd: int, row: np.void, segment: ScannedSegment) -> Marker | None:
    """As it is once the segment's corrections are in the file."""
    position = int(row["position"])
    data = bytearray(os.pread(fd, int(row["size"]), position))
    for correction in segment.corrections:
        if correction.position == position:
            start = correction.at - position
            data[start : start + len(correction.content)] = correction.content
    try:
        for record in MemoryRecords(data, check_crc=False, source=segment.path).batches[0].records():
            kind = control_record_type(record.key)
            if kind in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
                return Marker(int(row["producer_id"]), record.offset, kind is ControlRecordType.ABORT)
    except KafkaError:
        pass  # reported with the batches
    return None


def check_txn_index(
    path: str, base: int, expected: list[AbortedTxn], markers: dict[int, Marker], segment: ScannedSegment
) -> Iterator[Problem]:
    entries: list[AbortedTxn] = []
    if os.path.lexists(path):
        try:
            entries = decode_entries(read_file(path), path, base)
        except (KafkaError, OSError):
            return  # the check of the file itself reports it
    entry_by_last_offset = {entry.last_offset: entry for entry in entries}
    lacking = [txn for txn in expected if txn.last_offset not in entry_by_last_offset]
    if lacking:
        txn = lacking[0]
        text = f"producer {txn.producer_id} aborted offsets {txn.first_offset} to {txn.last_offset}: not in here"
        if len(lacking) > 1:
            text += f", nor are {counted(len(lacking) - 1, 'aborted transaction')} after it"
        if not os.path.lexists(path):
            text += "; the file is missing"
        yield Problem(path, text, txn.last_offset)
    for txn in expected:
        entry = entry_by_last_offset.get(txn.last_offset)
        if entry is None:
            continue
        if entry.first_offset > txn.first_offset:
            text = f"transaction starts at {entry.first_offset}, its first batch is at {txn.first_offset}"
            yield Problem(path, text, txn.last_offset, entries.index(entry) * ENTRY_SIZE)
    last_offsets = segment.batches["last_offset"]
    for n, entry in enumerate(entries):
        marker = markers.get(entry.last_offset)
        if marker is None:
            # Cleaning may have removed the marker.  If a batch still holds its offset, that batch is not a marker.
            at = int(last_offsets.searchsorted(entry.last_offset))
            if at == len(last_offsets) or segment.batches["base_offset"][at] > entry.last_offset or segment.incomplete:
                continue
            text = f"no transaction ended at offset {entry.last_offset}"
        elif not marker.is_abort:
            text = f"the transaction that ended at {entry.last_offset} was committed"
        elif marker.producer_id != entry.producer_id:
            text = f"producer {entry.producer_id}, the marker at {entry.last_offset} is of {marker.producer_id}"
        else:
            continue
        yield Problem(path, f"entry {n}: {text}", entry.last_offset, n * ENTRY_SIZE)


def check_snapshots(
    partition: PartitionFiles, snapshots: dict[int, list[ProducerStateEntry]], segments: Sequence[ScannedSegment]
) -> Iterator[Problem]:
    import numpy as np

    rows = np.concatenate([ScannedSegment("").producer_batches, *(segment.producer_batches for segment in segments)])
    rows = rows[~is_control(rows)]
    incomplete = any(segment.incomplete for segment in segments)
    for offset, entries in sorted(snapshots.items()):
        path = partition.file(offset, SNAPSHOT_SUFFIX)
        below = rows[: int(rows["last_offset"].searchsorted(offset))]
        # Reversed, so that np.unique() returns the last batch of each producer.
        producers, index = np.unique(below["producer_id"][::-1], return_index=True)
        newest = dict(zip(producers.tolist(), (len(below) - 1 - index).tolist(), strict=True))
        for entry in entries:
            started = entry.current_txn_first_offset
            if started is not None and started >= offset:
                yield Problem(path, f"producer {entry.producer_id} began a transaction at {started}", started)
            last = entry.last_batch
            if last is None:
                continue
            n = newest.get(entry.producer_id)
            if last.last_offset >= offset:
                text = f"producer {entry.producer_id} has last offset {last.last_offset}, not below the snapshot"
            elif n is None or incomplete or below["last_offset"][n] < last.last_offset:
                continue  # retention or cleaning removed the batch
            elif below["last_offset"][n] > last.last_offset:
                text = f"producer {entry.producer_id} has last offset {last.last_offset}, the log has "
                text += f"{below['last_offset'][n]}"
            elif below["base_sequence"][n] != last.first_sequence or below["producer_epoch"][n] > entry.producer_epoch:
                text = (
                    f"producer {entry.producer_id} has sequence {last.first_sequence} of epoch {entry.producer_epoch} "
                    f"at {last.last_offset}, the log has {below['base_sequence'][n]} of {below['producer_epoch'][n]}"
                )
            else:
                continue
            yield Problem(path, text, last.last_offset)


def is_of_these_producers(partition: PartitionFiles, path: str, segments: Sequence[ScannedSegment]) -> bool:
    """Whether a snapshot can be one of this log: the log has batches of each of its producers, and none contradicts it.
    False for a file that cannot be read."""
    offset = log_files.base_offset_of(path)
    try:
        entries = decode_snapshot(read_file(path), path)
    except (KafkaError, OSError):
        return False
    known = {producer for segment in segments for producer in segment.producer_batches["producer_id"].tolist()}
    if offset is None or any(entry.producer_id not in known for entry in entries):
        return False
    return not any(check_snapshots(partition, {offset: entries}, segments))


def essence_of(partition: PartitionFiles, base: int, segment: ScannedSegment) -> ScannedSegment:
    """A scanned segment with only the rows that check_producers() and check_gaps() read, so that many segments fit into
    one process.  Raises OSError."""
    import numpy as np

    rows = segment.producer_batches
    kept = is_transactional(rows) | is_control(rows)
    snapshots = sorted(read_snapshots(partition))
    if snapshots:
        # The last batch of each producer before each snapshot; `data` is reversed, so np.unique() returns that one.
        before = np.searchsorted(snapshots, rows["last_offset"], "right")
        data = np.flatnonzero(~is_control(rows))[::-1]
        _, first = np.unique(np.stack([before[data], rows["producer_id"][data]]), axis=1, return_index=True)
        kept[data[first]] = True
    batches, path = segment.batches, partition.file(base, TXN_INDEX_SUFFIX)
    wanted = np.empty(0, np.int64)
    if os.path.exists(path):
        try:
            with open(path, "rb") as file:
                offsets = [entry.last_offset for entry in decode_entries(file.read(), path, base)]
            wanted = np.unique(batches["last_offset"].searchsorted(offsets))
        except KafkaError:
            pass  # the check of the file itself reports it
    kept |= rows_beside_gaps(segment)
    few = batches[wanted[wanted < len(batches)].astype(np.int64)]
    return ScannedSegment(
        segment.path,
        segment.size,
        segment.data_size,
        [damage for damage in segment.damages if damage.correction is None][:1],
        tail=segment.tail,
        gaps=segment.gaps,
        sparse_end=segment.sparse_end,
        _chosen=few,
        _producer_rows=[rows[kept]],
    )
