"""Topic: the logs of a topic's partitions as one pyarrow Dataset.  kcore.open_topic() makes it."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from kcore.common.progress import Progress
from kcore.common.text import bytes_of, counted
from kcore.frames.chunks import Chunk, chunks_of
from kcore.frames.topic_scanner import Query, TopicScanner
from kcore.inspect.parallel import Work, in_order
from kcore.log.log_iteration import Isolation, is_committed
from kcore.log.unified_log import UnifiedLog
from kcore.record.arrow import COLUMNS, check_columns, schema

#: Bytes of the files that are read and checked at once, about.
_CHUNK_BYTES = 16 << 20
#: Larger chunks for a topic that would have more of them than this.
_MOST_CHUNKS = 4096
#: If a query is left with no more chunks than this, what it reads of each is cut down to pieces of _FINE_BYTES.
_MOST_REFINED = 16
_FINE_BYTES = 128 << 10

_TIMESTAMP = pa.timestamp("ms", tz="UTC")
#: Of the dataset that selects chunks; its files are never opened.
_FORMAT, _FILE_SYSTEM = ds.IpcFileFormat(), LocalFileSystem()


class Topic(ds.Dataset):
    """A topic's records, those of one partition after the other and in each by offset.

    A pyarrow Dataset: to_table(), to_batches(), head(), count_rows(), filter() and the others take `columns` and
    `filter` as there, and DuckDB and Polars query it.  The columns are those of UnifiedLog.to_arrow().

    Data is read while a query asks for it.  Then damage raises CorruptMessage with file, position and offset.
    Thread-safe; close() ends the logs.
    """

    def __init__(
        self, topic: str, logs: Mapping[int, UnifiedLog], columns: Sequence[str] | None, isolation: Isolation
    ) -> None:
        self.topic = topic
        self.isolation: Isolation = isolation
        #: The log of each partition, by its number.
        self.partitions = dict(logs)
        self._schema = schema(columns)
        self._condition: ds.Expression | None = None
        self._ends = {
            number: log.last_stable_offset if is_committed(isolation) else log.log_end_offset
            for number, log in self.partitions.items()
        }

    def __enter__(self) -> Topic:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        for log in self.partitions.values():
            log.close()

    def __repr__(self) -> str:
        return f"Topic({self.topic!r}, {counted(len(self.partitions), 'partition')}, {counted(self.offsets, 'offset')})"

    def _repr_html_(self) -> str:
        from kcore.common.html_table import html_table

        rows = [
            (number, log.log_start_offset, self._ends[number], bytes_of(log.size), len(log.segments), log.directory)
            for number, log in self.partitions.items()
        ]
        return html_table(
            f"Topic {self.topic}: {self.offsets:,} offsets in {counted(len(rows), 'partition')}",
            ["partition", "log start", "end", "size", "segments", "directory"],
            rows,
        )

    @property
    def offsets(self) -> int:
        """How many offsets the partitions have; compaction and transactions leave some without a record."""
        return sum(max(0, end - self.partitions[number].log_start_offset) for number, end in self._ends.items())

    # -- what a Dataset has -------------------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def partition_expression(self) -> ds.Expression:
        return ds.scalar(True)

    def filter(self, expression: ds.Expression) -> Topic:
        """The same topic with only the records for which the expression is true."""
        result = Topic(self.topic, self.partitions, self._schema.names, self.isolation)
        result._condition = _both(self._condition, expression)
        return result

    def replace_schema(self, schema: pa.Schema) -> Topic:
        """With these columns only.  Raises ValueError for one that a log does not have or that has another type."""
        result = Topic(self.topic, self.partitions, schema.names, self.isolation)
        if not result.schema.equals(schema):
            raise ValueError(f"the columns of a log are {result.schema}, not {schema}")
        result._condition = self._condition
        return result

    def scanner(
        self, columns: Any = None, filter: ds.Expression | None = None, batch_size: int = 131_072, **options: Any
    ) -> TopicScanner:
        """A reader of the records for which filter is true, each time from the first one on.

        columns: names, or a mapping of names to expressions.  batch_size: rows of a batch at most.  Other options of a
        pyarrow scanner change nothing.
        """
        condition = _both(self._condition, filter)
        names = self._needed(columns, condition)
        query = Query(self._schema.names if columns is None else columns, condition)
        read = schema(names)
        return TopicScanner(
            partial(self._read, names, query, condition), read, query.schema(read), max(1, int(batch_size))
        )

    def count_rows(self, filter: ds.Expression | None = None, **options: Any) -> int:
        return self.scanner(["offset"], filter, **options).count_rows()

    def get_fragments(self, filter: ds.Expression | None = None) -> Any:
        raise NotImplementedError("a Topic has no fragments: scanner() and to_batches() read it, chunks() says how")

    def sort_by(self, sorting: Any, **options: Any) -> Any:
        return ds.InMemoryDataset(self.to_table()).sort_by(sorting, **options)

    def join(self, right_dataset: Any, *args: Any, **options: Any) -> Any:
        return ds.InMemoryDataset(self.to_table()).join(_in_memory(right_dataset), *args, **options)

    def join_asof(self, right_dataset: Any, *args: Any, **options: Any) -> Any:
        return ds.InMemoryDataset(self.to_table()).join_asof(_in_memory(right_dataset), *args, **options)

    # -- what is read -------------------------------------------------------------------------------------------------

    def chunks(self, filter: ds.Expression | None = None) -> list[tuple[int, Chunk]]:
        """(partition, offsets) of what a scan with this filter reads and checks.

        Arrow leaves out the chunks of which the indexes say that the filter is false for each record.
        """
        condition = _both(self._condition, filter)
        if condition is None:
            return self._chunks
        selected = [self._chunks[place] for place in _places(self._selection, condition)]
        if len(selected) > _MOST_REFINED:
            return selected
        result = []
        for number, chunk in selected:
            parts = list(chunks_of(self.partitions[number], chunk.start, chunk.end, _FINE_BYTES))
            places = _places(self._dataset([(number, part) for part in parts]), condition)
            if places:
                result.append((number, Chunk(parts[places[0]].start, parts[places[-1]].end, chunk.max_timestamp)))
        return result

    @cached_property
    def _chunks(self) -> list[tuple[int, Chunk]]:
        size = sum(log.size for log in self.partitions.values())
        target = max(_CHUNK_BYTES, size // _MOST_CHUNKS)
        return [
            (number, chunk)
            for number, log in self.partitions.items()
            for chunk in chunks_of(log, log.log_start_offset, self._ends[number], target)
        ]

    @cached_property
    def _selection(self) -> ds.FileSystemDataset:
        return self._dataset(self._chunks)

    def _dataset(self, chunks: Sequence[tuple[int, Chunk]]) -> ds.FileSystemDataset:
        """A fragment for each chunk, with what is true of all its records; its path is the chunk's place."""
        fragments = [
            _FORMAT.make_fragment(str(place), _FILE_SYSTEM, partition_expression=self._truth(number, chunk))
            for place, (number, chunk) in enumerate(chunks)
        ]
        return ds.FileSystemDataset(fragments, schema(COLUMNS), _FORMAT)

    def _truth(self, number: int, chunk: Chunk) -> ds.Expression:
        offset, timestamp = ds.field("offset"), ds.field("timestamp")
        truth = (ds.field("topic") == self.topic) & (ds.field("partition") == number)
        truth &= (offset >= chunk.start) & (offset < chunk.end)
        if chunk.max_timestamp is not None:
            # Arrow has null for a record without a timestamp.
            truth &= (timestamp <= pa.scalar(chunk.max_timestamp, _TIMESTAMP)) | timestamp.is_null()
        return truth

    def _needed(self, columns: Any, condition: ds.Expression | None) -> list[str]:
        """The columns that a scan reads: those that are asked for, and those whose names are in the expressions."""
        if columns is None:
            asked, expressions = list(self._schema.names), ""
        elif isinstance(columns, Mapping):
            asked, expressions = [], " ".join(map(str, columns.values()))
        else:
            asked, expressions = list(check_columns(columns)), ""
        text = f"{expressions} {'' if condition is None else condition}"
        return [*asked, *(name for name in COLUMNS if name not in asked and name in text)]

    def _read(
        self, names: Sequence[str], query: Query, condition: ds.Expression | None
    ) -> Generator[pa.RecordBatch, None, None]:
        def read(number: int, chunk: Chunk) -> list[pa.RecordBatch]:
            batches = self.partitions[number].iter_arrow(chunk.start, chunk.end, names, self.isolation)
            return [part for batch in batches for part in query.result(batch)]

        work: Iterator[Work[list[pa.RecordBatch]]] = (
            (partial(read, number, chunk), False) for number, chunk in self.chunks(condition)
        )
        for batches in in_order(work, os.cpu_count() or 1, Progress(self.topic, 0, quiet=True)):
            yield from batches


def _places(dataset: ds.FileSystemDataset, condition: ds.Expression) -> list[int]:
    """The places of the chunks that the condition leaves, ascending."""
    return sorted(int(fragment.path) for fragment in dataset.get_fragments(filter=condition))


def _both(one: ds.Expression | None, other: ds.Expression | None) -> ds.Expression | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _in_memory(dataset: Any) -> Any:
    return ds.InMemoryDataset(dataset.to_table()) if isinstance(dataset, Topic) else dataset
