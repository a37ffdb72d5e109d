"""TopicScanner: what one query reads of a topic.  Topic.scanner() makes it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

#: The result of a query in batches, read while they are asked for.
Read = Callable[[], Generator[pa.RecordBatch, None, None]]


class TopicScanner(ds.Scanner):
    """A pyarrow Scanner that reads in the thread that asks for the data.

    Arrow's own scanner calls an iterator in Python from its I/O threads, and goes on to do so after the caller has its
    result; such a thread ends the process (SIGABRT) if it needs the GIL while the interpreter shuts down.
    """

    def __init__(self, read: Read, dataset_schema: pa.Schema, projected_schema: pa.Schema, batch_size: int) -> None:
        self._read = read
        self._dataset_schema = dataset_schema
        self._projected_schema = projected_schema
        self._batch_size = batch_size

    @property
    def dataset_schema(self) -> pa.Schema:
        """Of the records that are read, with the columns that only the filter needs."""
        return self._dataset_schema

    @property
    def projected_schema(self) -> pa.Schema:
        """Of the result."""
        return self._projected_schema

    def to_batches(self) -> Generator[pa.RecordBatch, None, None]:
        with closing(self._read()) as batches:
            for batch in batches:
                for start in range(0, batch.num_rows, self._batch_size):
                    yield batch.slice(start, self._batch_size)

    def scan_batches(self) -> Iterator[ds.TaggedRecordBatch]:
        raise NotImplementedError("a Topic has no fragments: use to_batches()")

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        return self._table(self.to_batches())

    def take(self, indices: Any) -> pa.Table:
        return self.to_table().take(indices)

    def head(self, num_rows: int) -> pa.Table:
        return self._table(self._first(num_rows))

    def count_rows(self) -> int:
        with closing(self._read()) as batches:
            return sum(batch.num_rows for batch in batches)

    def _first(self, num_rows: int) -> Iterator[pa.RecordBatch]:
        left = num_rows
        with closing(self.to_batches()) as batches:
            while left > 0 and (batch := next(batches, None)) is not None:
                yield batch.slice(0, left)
                left -= min(left, batch.num_rows)

    def _table(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        return pa.Table.from_batches(list(batches), self._projected_schema)


class Query:
    """Which records a query is for, and which values of them.

    columns: names, or a mapping of names to expressions; condition: None for all records.
    """

    def __init__(self, columns: Any, condition: ds.Expression | None) -> None:
        self._columns = columns
        self._condition = condition

    def schema(self, read: pa.Schema) -> pa.Schema:
        """Of the result, for records with this one."""
        return self._of(read.empty_table()).projected_schema

    def result(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Of the records of a batch.  Starts no thread."""
        batches: list[pa.RecordBatch] = self._of(batch).to_table().to_batches()
        return batches

    def _of(self, data: pa.RecordBatch | pa.Table) -> ds.Scanner:
        return ds.InMemoryDataset(data).scanner(columns=self._columns, filter=self._condition, use_threads=False)
