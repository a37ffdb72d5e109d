"""Columns of records.  NumPy is imported at first use."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

COLUMNS: tuple[str, ...]  # every name that RecordColumns know

class BinaryColumn(Sequence[bytes | None]):
    """Byte strings in one buffer: string i is data[position[i] : position[i] + size[i]], null where size[i] is -1."""

    @property
    def data(self) -> memoryview: ...
    @property
    def position(self) -> np.ndarray: ...  # int64
    @property
    def size(self) -> np.ndarray: ...  # int32
    def __len__(self) -> int: ...
    def __getitem__(self, index): ...  # type: ignore[no-untyped-def]
    def __iter__(self) -> Iterator[bytes | None]: ...
    def gather(self, start: int = ..., stop: int | None = ...) -> tuple[np.ndarray | None, np.ndarray, np.ndarray, int]:
        """Arrow's layout: (validity bits or None, int32 offsets, bytes, number of nulls).  GIL released.
        OverflowError for more than 2**31 - 1 bytes."""

    def take(self, indices: np.ndarray) -> BinaryColumn: ...  # those of these numbers, not copied.  IndexError

class RecordColumns:
    """Columns of some records, in the order of their offsets: what was asked for, None for the rest.

    columns["offset"] is columns.offset; by that way there are also timestampType (0 CreateTime, 1 LogAppendTime, -1
    none), leaderEpoch, producerId, producerEpoch, sequence, isTransactional, isControl.
    """

    @property
    def offset(self) -> np.ndarray | None: ...  # int64
    @property
    def timestamp(self) -> np.ndarray | None: ...  # int64, ms, -1 for none
    @property
    def key(self) -> BinaryColumn | None: ...
    @property
    def value(self) -> BinaryColumn | None: ...
    @property
    def headers(self) -> BinaryColumn | None: ...  # as the record encodes them; see header_columns()
    @property
    def header_count(self) -> np.ndarray | None: ...  # int32
    @property
    def batches(self) -> np.ndarray: ...  # of kcore.record.layout.BATCH_DTYPE: those the records come from
    @property
    def batch_records(self) -> np.ndarray: ...  # int32: how many of each batch are here
    def __len__(self) -> int: ...
    def keys(self) -> list[str]: ...
    def __iter__(self) -> Iterator[str]: ...
    def __contains__(self, name: object) -> bool: ...
    def __getitem__(self, name: str) -> Any: ...  # KeyError for what was not read
    def header_columns(self, start: int = ..., stop: int | None = ...) -> tuple[np.ndarray, BinaryColumn, BinaryColumn]:
        """(int32 offsets, keys, values): record i's headers are those from offsets[i] up to offsets[i + 1]."""

    def take(self, indices: np.ndarray) -> RecordColumns: ...  # these records, no columns of batches.  IndexError
    def to_arrow(
        self, columns: Sequence[str] | None = ..., *, topic: str | None = ..., partition: int | None = ...
    ) -> pa.Table: ...

def binary_column(offsets: Any, data: Any, valid: Any, start: int, count: int) -> BinaryColumn:
    """Strings start to start + count of Arrow's layout, not copied; data and valid may be None.  ValueError."""

def make_columns(
    count: int,
    *,
    offset: np.ndarray | None = ...,
    timestamp: np.ndarray | None = ...,
    key: BinaryColumn | None = ...,
    value: BinaryColumn | None = ...,
    headers: tuple[np.ndarray, BinaryColumn, BinaryColumn] | None = ...,
) -> RecordColumns:
    """RecordColumns for batches_of().  headers: what RecordColumns.header_columns() gives.  ValueError."""
