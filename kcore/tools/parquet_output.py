"""Records as `kcore consume --format parquet` writes them: a Parquet file with the columns of a topic's Arrow table."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

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

    Raises UsageError where one of the two is there, ImportError without pyarrow, OSError.
    """

    def __init__(self, path: str, topic: str) -> None:
        try:
            import pyarrow.parquet as pq
        except ImportError as error:
            raise missing_package("--format parquet", "arrow", error) from None
        self._path, self._partial = path, f"{path}.partial"
        for name in (self._path, self._partial):
            if os.path.lexists(name):
                raise UsageError(f"{name} is there already: nothing is written; name another file")
        self._topic = topic
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._writer = pq.ParquetWriter(self._partial, schema(DEFAULT_COLUMNS), compression="zstd")

    def write(self, columns: RecordColumns, partition: int, rows: Any) -> None:
        """rows: numbers of the records, None for all."""
        batches = [*record_batches_of(columns, DEFAULT_COLUMNS, self._topic, partition)]
        if rows is not None and batches:
            import pyarrow as pa

            batches = pa.Table.from_batches(batches).take(pa.array(rows)).to_batches()
        self._batches += batches
        self._bytes += sum(batch.nbytes for batch in batches)
        if self._bytes >= _ROW_GROUP_BYTES:
            self._write_row_group()

    def _write_row_group(self) -> None:
        import pyarrow as pa

        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches, schema(DEFAULT_COLUMNS)))
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
