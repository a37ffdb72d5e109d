"""Exact statistics of what compaction would keep of each partition, by a group-by over all keys that can spill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from kcore.common.progress import phase
from kcore.errors import CorruptFile
from kcore.inspect import log_files
from kcore.inspect.batch_reader import Damage, Tail, read_batches
from kcore.inspect.directories import partitions_under
from kcore.log.log_file_names import LOG_SUFFIX, TXN_INDEX_SUFFIX
from kcore.log.transaction_index import decode_entries
from kcore.record.columns import RecordColumns
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_columns import columns_of
from kcore.spark.jobs.job_runner import TARGET_BYTES, Sized, balanced, checked, collected, frame_of, parallelism
from kcore.spark.source.task import spare_the_collector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Bytes of batches whose keys a task groups before it emits rows.  It limits the memory of the task.
_CHUNK_BYTES = 64 << 20

#: Rows that tasks emit: one for each key of a chunk, and one without a key for everything else.
_SEEN = pa.schema(
    [
        ("directory", pa.string()),
        ("key", pa.binary()),
        ("last_offset", pa.int64()),
        ("last_is_tombstone", pa.bool_()),
        ("last_bytes", pa.int64()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("tombstones", pa.int64()),
        ("without_key", pa.int64()),
        ("aborted", pa.int64()),
    ]
)
_STATISTICS = pa.schema(
    [
        ("directory", pa.string()),
        ("records", pa.int64()),
        ("keys", pa.int64()),
        ("deleted_keys", pa.int64()),
        ("tombstones", pa.int64()),
        ("without_key", pa.int64()),
        ("aborted", pa.int64()),
        ("dead", pa.int64()),
        ("dead_ratio", pa.float64()),
        ("bytes", pa.int64()),
        ("dead_bytes", pa.int64()),
    ]
)


class _Piece(NamedTuple):
    directory: str
    files: tuple[str, ...]
    #: (producer id, first offset, last offset) of the partition's aborted transactions.
    aborted: tuple[tuple[int, int, int], ...]


def compaction_statistics(spark: SparkSession, *paths: str, tasks: int | None = None, quiet: bool = False) -> DataFrame:
    """Keys and dead records of each partition, exactly.

    A row for each partition directory: records (without transaction markers), keys (distinct), deleted_keys (whose last
    record is a tombstone), tombstones (null values), without_key and aborted (of aborted transactions): records that
    compaction drops in any case; dead: those, and all records but the last of each key; dead_ratio: of all
    records; bytes of keys and values, and of those in dead records.  Tombstones that are the last of their key are
    not dead: they stay for delete.retention.ms.  Raises OSError, CorruptFile for a path that holds no log, or a damaged
    one; an incomplete batch at the end, which is being written, is ignored.
    """
    from pyspark.sql import functions as f

    with phase("compaction: listing files", quiet=quiet):
        directories = sorted({directory for path in checked(paths) for directory in partitions_under(path)})
        pieces = [piece for directory in directories for piece in _pieces(directory)]
    planned = [task.work for task in balanced(pieces, tasks or parallelism(spark), TARGET_BYTES)]
    if not planned:
        return frame_of(spark, [_row(directory, {}) for directory in directories], _STATISTICS)
    seen = spark.range(0, len(planned), 1, len(planned)).mapInArrow(_reader(planned), _spark_schema())
    sums = ("records", "bytes", "tombstones", "without_key", "aborted")
    by_key = seen.groupBy("directory", "key").agg(
        f.max_by("last_is_tombstone", "last_offset").alias("is_tombstone"),
        f.max_by("last_bytes", "last_offset").alias("live_bytes"),
        *(f.sum(name).alias(name) for name in sums),
    )
    by_partition = by_key.groupBy("directory").agg(
        f.count("key").alias("keys"),
        f.count_if("is_tombstone").alias("deleted_keys"),
        f.sum("live_bytes").alias("live_bytes"),
        *(f.sum(name).alias(name) for name in sums),
    )
    total = sum(piece.size for piece in pieces)
    sums_by_directory = {
        row.directory: row.asDict() for row in collected(by_partition, "compaction", len(planned), total, quiet)
    }
    rows = [_row(directory, sums_by_directory.get(directory, {})) for directory in directories]
    return frame_of(spark, rows, _STATISTICS)


def _row(directory: str, sums: dict[str, Any]) -> dict[str, Any]:
    """A row of the statistics; dead_bytes is computed from live_bytes."""
    row = {name: sums.get(name) or 0 for name in _STATISTICS.names} | {"directory": directory}
    row["dead"] = row["records"] - row["keys"]
    row["dead_ratio"] = row["dead"] / row["records"] if row["records"] else 0.0
    row["dead_bytes"] = row["bytes"] - (sums.get("live_bytes") or 0)
    return row


def _pieces(directory: str) -> Iterator[Sized[_Piece]]:
    files = log_files.known_files(directory)
    aborted: list[tuple[int, int, int]] = []
    for file in files:
        base = log_files.base_offset_of(file)
        if file.endswith(TXN_INDEX_SUFFIX) and base is not None:
            with open(file, "rb") as opened:
                entries = decode_entries(opened.read(), file, base)
            aborted += [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in entries]
    for file in files:
        if file.endswith(LOG_SUFFIX) and not log_files.is_kraft_snapshot(file):
            yield Sized(log_files.size_of(file), _Piece(directory, (file,), tuple(sorted(aborted))))


def _spark_schema() -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(_SEEN)


def _reader(planned: list[list[_Piece]]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spare_the_collector()
        for batch in numbers:
            for n in batch.column(0).to_pylist():
                for piece in planned[n]:
                    yield from _seen_in(piece)

    return read


def _seen_in(piece: _Piece) -> Iterator[pa.RecordBatch]:
    for file in piece.files:
        chunk = _Chunk(piece)
        for item in read_batches(file):
            if isinstance(item, Damage):
                raise CorruptFile(f"{file}: position {item.position}: {item.problem}; `kcore repair` it first")
            if isinstance(item, Tail):
                continue
            chunk.add(item)
            if chunk.bytes >= _CHUNK_BYTES:
                yield from chunk.seen()
                chunk = _Chunk(piece)
        yield from chunk.seen()


def _sizes(columns: RecordColumns) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sizes of the keys, of the values (-1 for null), and of both together."""
    assert columns.key is not None and columns.value is not None
    keys, values = columns.key.size, columns.value.size
    return keys, values, keys.clip(0).astype("i8") + values.clip(0)


class _Chunk:
    """Neighbouring batches, and statistics of their keys."""

    def __init__(self, piece: _Piece) -> None:
        self._piece = piece
        self._tables: list[pa.Table] = []
        self._totals = dict.fromkeys(("records", "bytes", "tombstones", "without_key", "aborted"), 0)
        self.bytes = 0

    def add(self, records: MemoryRecords) -> None:
        self.bytes += records.size_in_bytes
        columns = columns_of(records, columns=["offset", "key", "value"], aborted=self._piece.aborted)
        key_size, value_size, sizes = _sizes(columns)
        if self._piece.aborted:
            everything = columns_of(records, columns=["key", "value"])
            aborted = len(everything) - len(columns)
            self._totals["aborted"] += aborted
            self._totals["records"] += aborted
            self._totals["bytes"] += int(_sizes(everything)[2].sum() - sizes.sum())
        if not len(columns):
            return
        table = columns.to_arrow(["key", "offset"])
        table = table.append_column("tombstone", pa.array(value_size < 0))
        table = table.append_column("bytes", pa.array(sizes))
        keyless = key_size < 0
        if keyless.any():
            count = int(keyless.sum())
            self._totals["without_key"] += count
            self._totals["records"] += count
            self._totals["tombstones"] += int((value_size[keyless] < 0).sum())
            self._totals["bytes"] += int(sizes[keyless].sum())
            table = table.filter(pa.array(~keyless))
        self._tables.append(table)

    def seen(self) -> Iterator[pa.RecordBatch]:
        if self._tables:
            # One thread: "last" is that of the highest offset.
            grouped = pa.concat_tables(self._tables).group_by("key", use_threads=False)
            table = grouped.aggregate(
                [
                    ("offset", "last"),
                    ("tombstone", "last"),
                    ("bytes", "last"),
                    ("offset", "count"),
                    ("bytes", "sum"),
                    ("tombstone", "sum"),
                ]
            )
            zeros = pa.array([0] * len(table), pa.int64())
            columns = {
                "directory": pa.array([self._piece.directory] * len(table)),
                "key": table["key"],
                "last_offset": table["offset_last"],
                "last_is_tombstone": table["tombstone_last"],
                "last_bytes": table["bytes_last"],
                "records": table["offset_count"],
                "bytes": table["bytes_sum"],
                "tombstones": table["tombstone_sum"].cast(pa.int64()),
                "without_key": zeros,
                "aborted": zeros,
            }
            yield from pa.table(columns, _SEEN).to_batches(max_chunksize=1 << 16)
        row = dict.fromkeys(_SEEN.names) | self._totals | {"directory": self._piece.directory}
        yield pa.RecordBatch.from_pylist([row], _SEEN)
