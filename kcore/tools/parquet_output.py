"""Parquet files, as `kcore consume` and `kcore dump` write them with --format parquet."""

from __future__ import annotations

import os
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kcore.common.file import sync_path
from kcore.common.optional_packages import missing_package
from kcore.record.arrow import DEFAULT_COLUMNS, record_batches_of, schema
from kcore.record.columns import RecordColumns
from kcore.tools.command_line import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

#: So many bytes of Arrow data become one row group.
_ROW_GROUP_BYTES = 64 << 20


class ParquetFile:
    """A Parquet file that gets its name when finish() has written all of it; until then it is FILE.partial.

    In a `with` block finish() is called at its end, discard() after an error.  Raises UsageError where one of the two
    is there, ImportError without pyarrow, OSError.
    """

    def __init__(self, path: str, schema: pa.Schema) -> None:
        pq = _pyarrow_parquet()
        self._path, self._partial = path, f"{path}.partial"
        for name in (self._path, self._partial):
            if os.path.lexists(name):
                raise UsageError(f"{name} is there already: nothing is written; name another file")
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._writer = pq.ParquetWriter(self._partial, schema, compression="zstd")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.discard()
            return
        try:
            self.finish()
        except BaseException:
            self.discard()
            raise

    def write_table(self, table: pa.Table) -> None:
        """Raises OSError."""
        self._add(table.to_batches())

    def _add(self, batches: list[pa.RecordBatch]) -> None:
        self._batches += batches
        self._bytes += sum(batch.nbytes for batch in batches)
        if self._bytes >= _ROW_GROUP_BYTES:
            self._write_row_group()

    def _write_row_group(self) -> None:
        import pyarrow as pa

        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches, self._schema))
        self._batches, self._bytes = [], 0

    def finish(self) -> None:
        """Raises OSError."""
        self._write_row_group()
        self._writer.close()
        sync_path(self._partial)
        os.rename(self._partial, self._path)
        sync_path(os.path.dirname(self._path) or ".")

    def discard(self) -> None:
        """In the place of finish(): no file is left."""
        with suppress(OSError, ValueError):
            self._writer.close()
        with suppress(FileNotFoundError):
            os.unlink(self._partial)


class ParquetRecords(ParquetFile):
    """With the columns of a topic's Arrow table."""

    def __init__(self, path: str, topic: str) -> None:
        _pyarrow_parquet()  # before the schema: its error names the option
        super().__init__(path, schema(DEFAULT_COLUMNS))
        self._topic = topic

    def write(self, columns: RecordColumns, partition: int, rows: Any) -> None:
        """rows: numbers of the records, None for all.  Raises OSError."""
        batches = [*record_batches_of(columns, DEFAULT_COLUMNS, self._topic, partition)]
        if rows is not None and batches:
            import pyarrow as pa

            batches = pa.Table.from_batches(batches).take(pa.array(rows)).to_batches()
        self._add(batches)


def _pyarrow_parquet() -> Any:
    """Raises ImportError."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise missing_package("--format parquet", "arrow", error) from None
    return pyarrow.parquet
