"""One .log file read from end to end: the headers of its valid batches as an array, and the damage between them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kcore.common.progress import Progress
from kcore.common.text import counted
from kcore.errors import KafkaError
from kcore.inspect import log_files
from kcore.inspect.batch_reader import Correction, Damage, Tail, read_batches, without_path
from kcore.log.log_file_names import LOG_SUFFIX
from kcore.log.log_segment import LogSegment
from kcore.record.batch_header import CONTROL, LENGTH_OFFSET, TRANSACTIONAL
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
#: What is also kept of a batch with a producer id.
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

    def replaced(self, **columns: np.ndarray) -> Rows:
        """The same rows with other values in these columns."""
        return Rows({**self._columns, **columns})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[n] for n in range(len(self)))


class _GrowingRows:
    """Rows that grow, in one block of memory.  Half a million batches cost 2,500 page faults this way, and 14,000 with
    an array for each addition that are joined at the end."""

    def __init__(self) -> None:
        self._columns: dict[str, np.ndarray] = {}
        self._room = self._count = 0

    def add(self, rows: np.ndarray, expected: int) -> None:
        """expected: an estimate of how many rows will still be added."""
        import numpy as np

        start, end = self._count, self._count + len(rows)
        if end > self._room:
            old_rows = self.rows
            # The estimate may be far off, so it is limited to 64 * end.  A multiple of 8 keeps each column aligned.
            self._room = (end + min(expected, 64 * end) + 8) & ~7
            block = np.empty(self._room * sum(np.dtype(t).itemsize for _, t in _COLUMNS), np.uint8)
            at = 0
            for name, dtype in _COLUMNS:
                size = self._room * np.dtype(dtype).itemsize
                self._columns[name] = block[at : at + size].view(dtype)
                self._columns[name][:start] = old_rows[name]
                at += size
        for name, column in self._columns.items():
            column[start:end] = rows[name]
        self._count = end

    @property
    def rows(self) -> Rows:
        if not self._room:
            return Rows.of([])
        return Rows({name: column[: self._count] for name, column in self._columns.items()})


@dataclass(repr=False)
class ScannedSegment:
    """What a segment holds.  batches: one row for each valid batch, in file order, whatever their offsets are; also for
    a batch that is valid with a correction."""

    path: str
    size: int = 0
    #: Without the holes of a sparse file.
    data_size: int = 0
    #: Bytes that are in no valid batch, where they begin; where they end follows from the rows.  And batches that are
    #: valid with their `correction`.
    damages: list[Damage] = field(default_factory=list)
    #: Fields that no CRC covers, whose right values are certain: `batches` has these.
    corrections: list[Correction] = field(default_factory=list)
    tail: Tail | None = None
    #: Batches whose CRC is right and whose records are not, by position.
    bad_records: list[Damage] = field(default_factory=list)
    records: int = 0
    #: By position the first offset inside compressed messages of magic 0 and 1, whose header has only the last.
    first_offsets: dict[int, int] = field(default_factory=dict)
    #: Whether a segment with damage may have gaps between its batches, or inside them, as compaction leaves them; by
    #: what else there is of the log.
    is_compacted: bool = False
    #: gaps: of GAP_DTYPE.  sparse_end: the offset after the last batch that has fewer records than offsets, as
    #: compaction leaves it; -1 if there is none.  gap_checks.find_gaps() sets both.
    gaps: np.ndarray | None = None
    sparse_end: int = -1
    #: Whether the following segment has offsets of this one too, and nothing shows which of both is right: what other
    #: files have about these offsets is not compared with either.
    overlaps_next: bool = False
    _rows: _GrowingRows = field(default_factory=_GrowingRows)
    #: Used in place of _rows where only some batches were selected.
    _chosen: Rows | None = None
    _producer_rows: list[np.ndarray] = field(default_factory=list)

    def add(self, table: BatchTable, base_offset_below_zero: int = 0) -> None:
        """base_offset_below_zero: added to the offsets; the table's reader refuses such base offsets."""
        import numpy as np

        from kcore.record.layout import BATCH_DTYPE

        rows = np.frombuffer(memoryview(table), BATCH_DTYPE)
        if base_offset_below_zero:
            rows = rows.copy()
            rows["base_offset"] += base_offset_below_zero
            rows["last_offset"] += base_offset_below_zero
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
        positions = set(rows["position"].tolist())
        corrections = [correction for correction in self.corrections if correction.position in positions]
        return ScannedSegment(
            self.path,
            self.size,
            self.data_size,
            corrections=corrections,
            first_offsets=self.first_offsets,
            _chosen=rows,
            _producer_rows=[with_producer],
        )

    def corrected(
        self,
        corrections: list[Correction],
        base_offset: np.ndarray,
        last_offset: np.ndarray,
        leader_epoch: np.ndarray,
    ) -> ScannedSegment:
        """The same with these values in the columns of `batches`, which follow from the corrections."""
        batches = self.batches.replaced(base_offset=base_offset, last_offset=last_offset, leader_epoch=leader_epoch)
        producers = self.producer_batches
        at = batches["position"].searchsorted(producers["position"])
        producers["base_offset"], producers["last_offset"] = base_offset[at], last_offset[at]
        return replace(self, corrections=[*self.corrections, *corrections], _chosen=batches, _producer_rows=[producers])

    def with_damaged(self) -> Rows:
        """`batches` and, at their positions, those with a wrong CRC of which the header names the offsets.  Of these
        only position, size and offsets are there."""
        import numpy as np

        damaged = [(d.position, d.offset, d.last_offset, d.size) for d in self.damages if d.last_offset is not None]
        if not damaged:
            return self.batches
        columns = dict(zip(("position", "base_offset", "last_offset", "size"), zip(*damaged, strict=True), strict=True))
        unknown = np.zeros(len(damaged), int)
        added = Rows({name: np.array(columns.get(name, unknown), dtype) for name, dtype in _COLUMNS})
        rows = Rows.of([self.batches, added])
        ordered: Rows = rows[np.argsort(rows["position"])]
        return ordered

    def without(self, misfits: np.ndarray) -> ScannedSegment:
        """The same as if the batches at which bool[n] `misfits` is True could not be read."""
        import numpy as np

        batches, producers = self.batches, self.producer_batches
        gone = batches[misfits]
        damages = [Damage(row["position"], row["base_offset"], "its offsets fit nowhere", row["size"]) for row in gone]
        return replace(
            self,
            damages=sorted([*self.damages, *damages], key=lambda damage: damage.position),
            _chosen=batches[~misfits],
            _producer_rows=[producers[~np.isin(producers["position"], gone["position"])]],
        )

    def records_of(self, rows: Rows) -> int:
        """How many records these batches hold.  A compressed message of magic 0 or 1 counts with its number of offsets
        if the records were read, else not at all."""
        count = int(rows["count"].clip(0).sum(dtype="i8"))
        wrappers = rows[rows["count"] < 0] if self.first_offsets else ()
        return count + sum(int(row["last_offset"]) - self.first_offsets[int(row["position"])] + 1 for row in wrappers)

    def __repr__(self) -> str:
        texts = [repr(self.path), counted(self.size, "byte")]
        if len(self.batches):
            texts.append(f"offsets [{self.batches['base_offset'][0]}, {self.end_offset})")
        texts += [counted(len(self.batches), "batch", "batches"), counted(self.records, "record")]
        if places := len(self.damages) + len(self.bad_records):
            texts.append(counted(places, "damaged place"))
        if self.tail is not None:
            texts.append("a part of a batch at the end")
        return f"ScannedSegment({', '.join(texts)})"

    @property
    def end_offset(self) -> int | None:
        """The offset after the last batch; None if there is no batch."""
        return int(self.batches["last_offset"][-1]) + 1 if len(self.batches) else None

    @property
    def incomplete(self) -> bool:
        """Whether there are bytes that could not be read as batches."""
        return self.tail is not None or any(damage.correction is None for damage in self.damages)


def is_transactional(rows: np.ndarray) -> np.ndarray:
    return rows["attributes"] & TRANSACTIONAL != 0


def is_control(rows: np.ndarray) -> np.ndarray:
    return rows["attributes"] & CONTROL != 0


def scan_segment(
    path: str,
    *,
    records: bool = True,
    progress: Progress | None = None,
    end_offset: int | None = None,
    may_have_gaps: Callable[[], bool] | None = None,
) -> ScannedSegment:
    """Read a whole .log.  records: decompress, parse and count the records too.  end_offset: where it ends, if known.
    may_have_gaps: whether other files show that the log is compacted; called only at damage.

    With records=False one native pass reads the file, up to the first damage, and releases the GIL.  read_batches()
    reads the rest, or the whole file with records=True.
    Raises OSError, Stopped.
    """
    segment = ScannedSegment(path, os.path.getsize(path), log_files.data_size(path))
    start = 0 if records else _scan_natively(segment, progress)
    at = start
    next_offset = segment.end_offset if start else None

    def has_gaps() -> bool:
        return _has_gaps(segment.batches) or (may_have_gaps is not None and may_have_gaps())

    for item in read_batches(path, start, next_offset=next_offset, end_offset=end_offset, may_have_gaps=has_gaps):
        if isinstance(item, Damage):
            _add_damaged(segment, item, records)
        elif isinstance(item, Tail):
            segment.tail = item
        else:
            segment.add(item.batches)
            if records:
                _check_records(segment, item)
            if progress is not None:
                last = item.batches[-1]
                progress.advance(last.position + last.size - at, segment.path)
                at = last.position + last.size
    if progress is not None:
        progress.advance(max(segment.size - at, 0), path)
    if segment.damages:
        segment.is_compacted = _lack_records(segment.batches) or (may_have_gaps is not None and may_have_gaps())
    return segment


def _has_gaps(rows: Rows) -> bool:
    """Whether an offset between these batches has no record."""
    return _lack_records(rows) or bool((rows["base_offset"][1:] > rows["last_offset"][:-1] + 1).any())


def _lack_records(rows: Rows) -> bool:
    """Whether an offset inside one of these batches has no record."""
    count = rows["count"]
    return bool(((count >= 0) & (count <= rows["last_offset"] - rows["base_offset"])).any())


def _add_damaged(segment: ScannedSegment, damage: Damage, records: bool) -> None:
    """Add the batch if it is valid but for one field that no CRC covers: its length or magic, whose right value is
    certain, or its base offset if that is below zero.  Add the damage, but not that of a base offset: whether it fits
    between its neighbours is decided for all batches alike."""
    correction = damage.correction
    below_zero = damage.offset if damage.offset is not None and damage.offset < 0 else 0
    if not damage.size or (correction is None and not below_zero):
        segment.damages.append(damage)
        return
    with log_files.open_file(segment.path) as file:
        data = bytearray(os.pread(file.fileno(), damage.size, damage.position))
    if below_zero:
        data[:LENGTH_OFFSET] = bytes(LENGTH_OFFSET)
    if correction is not None:
        at = correction.at - damage.position
        data[at : at + len(correction.content)] = correction.content
    try:
        batch = MemoryRecords(data, source=segment.path, base_position=damage.position)
    except KafkaError:
        batch = None
    if not batch:
        segment.damages.append(damage._replace(correction=None))
        return
    segment.add(batch.batches, below_zero)
    if records:
        _check_records(segment, batch)
    if correction is not None:
        segment.damages.append(damage)
        segment.corrections.append(correction)


def _scan_natively(segment: ScannedSegment, progress: Progress | None) -> int:
    """The valid batches from the start; returns where they end."""
    directory, name = os.path.split(segment.path)
    base, kind = log_files.base_offset_of(name), log_files.kind_of(name)
    # This pass would read holes as pages of zeros; read_batches() skips them.
    if base is None or kind is None or kind.kind != LOG_SUFFIX or segment.data_size < segment.size:
        return 0
    log_segment = LogSegment(directory, base, writable=False, file_suffix=kind.mark)
    at = 0

    def take(table: BatchTable) -> None:
        nonlocal at
        segment.add(table)
        if progress is not None:
            last = table[-1]
            progress.advance(last.position + last.size - at, segment.path)
            at = last.position + last.size

    try:
        return log_segment.scan(take).valid_bytes
    finally:
        log_segment.close(trim=False)


def _check_records(segment: ScannedSegment, records: MemoryRecords) -> None:
    for batch in records.batches:
        try:
            inside = batch.records()  # parses and counts all of them before the first is handed out
            if batch.count < 0:  # a compressed message of magic 0 or 1: its header has no count
                offsets = [record.offset for record in inside]
                segment.records += len(offsets)
                segment.first_offsets[batch.position] = offsets[0] if offsets else batch.last_offset
        except KafkaError as error:
            segment.bad_records.append(Damage(batch.position, batch.base_offset, without_path(error, segment.path)))
