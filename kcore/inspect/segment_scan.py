"""One .log file read from end to end: the headers of its valid batches as an array, and the damage between them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kcore.common.progress import Progress
from kcore.errors import KafkaError
from kcore.inspect import log_files
from kcore.inspect.batch_reader import Damage, Tail, read_batches, without_path
from kcore.log.log_file_names import LOG_SUFFIX
from kcore.log.log_segment import LogSegment
from kcore.record.batch_header import CONTROL, TRANSACTIONAL
from kcore.record.memory_records import BatchTable, MemoryRecords

if TYPE_CHECKING:
    import numpy as np

#: What is kept of each batch header: 49 of 88 bytes, for there may be millions.
_COLUMNS = [
    ("position", "i8"),
    ("base_offset", "i8"),
    ("last_offset", "i8"),
    ("max_timestamp", "i8"),
    ("size", "i4"),
    ("leader_epoch", "i4"),
    ("crc", "u4"),
    ("count", "i4"),
    ("magic", "i1"),
]
#: And of those that have a producer.
_PRODUCER_COLUMNS = [
    ("position", "i8"),
    ("base_offset", "i8"),
    ("last_offset", "i8"),
    ("producer_id", "i8"),
    ("max_timestamp", "i8"),
    ("base_sequence", "i4"),
    ("size", "i4"),
    ("producer_epoch", "i2"),
    ("attributes", "i2"),
]

#: Offsets that no batch holds, both ends included; base: name of the segment that holds the batch after them, and
#: its position there.
GAP_DTYPE = [("first", "i8"), ("last", "i8"), ("base", "i8"), ("position", "i8")]


class Rows:
    """Batch headers, a contiguous array for each column: rows["position"].  A mask, a slice or an array of indices
    selects rows, a number gives one as a dict."""

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self._columns = columns

    @classmethod
    def of(cls, parts: Sequence[Rows]) -> Rows:
        """All parts, one after the other."""
        import numpy as np

        return cls({name: np.concatenate([np.empty(0, t), *(p[name] for p in parts)]) for name, t in _COLUMNS})

    def __len__(self) -> int:
        return len(self._columns["position"])

    def __getitem__(self, wanted: Any) -> Any:
        if isinstance(wanted, str):
            return self._columns[wanted]
        selected = {name: column[wanted] for name, column in self._columns.items()}
        return selected if isinstance(wanted, int) else Rows(selected)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[n] for n in range(len(self)))


class _GrowingRows:
    """Rows that more are added to, in one block of memory: arrays of their own for each addition, and one for all in
    the end, cost 14,000 page faults for half a million batches where this has 2,500."""

    def __init__(self) -> None:
        self._columns: dict[str, np.ndarray] = {}
        self._room = self._count = 0

    def add(self, rows: np.ndarray, expected: int) -> None:
        """expected: how many more will come, an estimate."""
        import numpy as np

        start, end = self._count, self._count + len(rows)
        if end > self._room:
            known = self.rows
            # What comes may differ from what came.  A multiple of 8 keeps each column aligned.
            self._room = (end + min(expected, 64 * end) + 8) & ~7
            block = np.empty(self._room * sum(np.dtype(t).itemsize for _, t in _COLUMNS), np.uint8)
            at = 0
            for name, dtype in _COLUMNS:
                size = self._room * np.dtype(dtype).itemsize
                self._columns[name] = block[at : at + size].view(dtype)
                self._columns[name][:start] = known[name]
                at += size
        for name, column in self._columns.items():
            column[start:end] = rows[name]
        self._count = end

    @property
    def rows(self) -> Rows:
        if not self._room:
            return Rows.of([])
        return Rows({name: column[: self._count] for name, column in self._columns.items()})


@dataclass
class ScannedSegment:
    """What a segment holds.  batches: one row for each valid batch, in file order, whatever their offsets are."""

    path: str
    size: int = 0
    #: Without the holes of a sparse file.
    data_size: int = 0
    #: Bytes that are in no valid batch; the whole places follow from the rows.
    damages: list[Damage] = field(default_factory=list)
    tail: Tail | None = None
    #: Batches whose CRC is right and whose records are not, by position.
    bad_records: list[Damage] = field(default_factory=list)
    records: int = 0
    #: By position the first offset inside compressed messages of magic 0 and 1, whose header has only the last.
    first_offsets: dict[int, int] = field(default_factory=dict)
    #: GAP_DTYPE, and where the last batch ends that has fewer records than offsets, as compaction leaves it (-1: there
    #: is none).  gap_checks.find_gaps() fills both.
    gaps: np.ndarray | None = None
    sparse_end: int = -1
    _rows: _GrowingRows = field(default_factory=_GrowingRows)
    #: In the place of those, where some were chosen.
    _chosen: Rows | None = None
    _producer_rows: list[np.ndarray] = field(default_factory=list)

    def add(self, table: BatchTable) -> None:
        import numpy as np

        from kcore.record.layout import BATCH_DTYPE

        rows = np.frombuffer(memoryview(table), BATCH_DTYPE)
        end = int(rows["position"][-1]) + int(rows["size"][-1])
        seen = end - int(rows["position"][0])
        self._rows.add(rows, expected=max(self.size - end, 0) * len(rows) // seen)
        with_producer = rows["producer_id"] >= 0
        if with_producer.any():
            kept = np.empty(int(with_producer.sum()), _PRODUCER_COLUMNS)
            for name, _ in _PRODUCER_COLUMNS:
                kept[name] = rows[name][with_producer]
            self._producer_rows.append(kept)
        self.records += int(np.maximum(rows["count"], 0).sum())

    @property
    def batches(self) -> Rows:
        return self._rows.rows if self._chosen is None else self._chosen

    @property
    def producer_batches(self) -> np.ndarray:
        import numpy as np

        return np.concatenate([np.empty(0, _PRODUCER_COLUMNS), *self._producer_rows])

    def only(self, kept: np.ndarray) -> ScannedSegment:
        """The same without the batches where `kept` is False, and as if there were no damage."""
        import numpy as np

        batches, producers = self.batches, self.producer_batches
        rows = batches[kept]
        with_producer = producers[np.isin(producers["position"], rows["position"])]
        return ScannedSegment(self.path, self.size, self.data_size, _chosen=rows, _producer_rows=[with_producer])

    def records_of(self, rows: Rows) -> int:
        """How many records some of its batches hold.  Of compressed messages of magic 0 and 1 as many as they have
        offsets, where somebody looked inside."""
        count = int(rows["count"].clip(0).sum(dtype="i8"))
        wrappers = rows[rows["count"] < 0] if self.first_offsets else ()
        return count + sum(int(row["last_offset"]) - self.first_offsets[int(row["position"])] + 1 for row in wrappers)

    @property
    def end_offset(self) -> int | None:
        """Behind the last batch; None where there is none."""
        return int(self.batches["last_offset"][-1]) + 1 if len(self.batches) else None

    @property
    def incomplete(self) -> bool:
        """Whether there are bytes that could not be read as batches."""
        return bool(self.damages) or self.tail is not None


def is_transactional(rows: np.ndarray) -> np.ndarray:
    return rows["attributes"] & TRANSACTIONAL != 0


def is_control(rows: np.ndarray) -> np.ndarray:
    return rows["attributes"] & CONTROL != 0


def scan_segment(path: str, *, records: bool = True, progress: Progress | None = None) -> ScannedSegment:
    """Read a whole .log.  records: decompress, parse and count the records too.

    Without records the file is read by one native pass that releases the GIL; damage sends both on to read_batches().
    Raises OSError, Stopped.
    """
    found = ScannedSegment(path, os.path.getsize(path), log_files.data_size(path))
    start = 0 if records else _scan_natively(found, progress)
    at = start
    for item in read_batches(path, start):
        if isinstance(item, Damage):
            found.damages.append(item)
        elif isinstance(item, Tail):
            found.tail = item
        else:
            found.add(item.batches)
            if records:
                _check_records(found, item)
            if progress is not None:
                last = item.batches[-1]
                progress.advance(last.position + last.size - at, found.path)
                at = last.position + last.size
    if progress is not None:
        progress.advance(max(found.size - at, 0), path)
    return found


def _scan_natively(found: ScannedSegment, progress: Progress | None) -> int:
    """The valid batches from the start; returns where they end."""
    directory, name = os.path.split(found.path)
    base, kind = log_files.base_offset_of(name), log_files.kind_of(name)
    # Holes would be read as pages of zeros; read_batches() knows them.
    if base is None or kind is None or kind.kind != LOG_SUFFIX or found.data_size < found.size:
        return 0
    segment = LogSegment(directory, base, writable=False, file_suffix=kind.mark)
    at = 0

    def take(table: BatchTable) -> None:
        nonlocal at
        found.add(table)
        if progress is not None:
            last = table[-1]
            progress.advance(last.position + last.size - at, found.path)
            at = last.position + last.size

    try:
        return segment.scan(take).valid_bytes
    finally:
        segment.close(trim=False)


def _check_records(found: ScannedSegment, records: MemoryRecords) -> None:
    for batch in records.batches:
        try:
            inside = batch.records()  # parses and counts all of them before the first is handed out
            if batch.count < 0:  # a compressed message of magic 0 or 1 does not say
                offsets = [record.offset for record in inside]
                found.records += len(offsets)
                found.first_offsets[batch.position] = offsets[0] if offsets else batch.last_offset
        except KafkaError as error:
            found.bad_records.append(Damage(batch.position, batch.base_offset, without_path(error, found.path)))
