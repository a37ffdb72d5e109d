"""Records as Arrow tables.  The schema is in docs/dataframes.md; names are those of Spark's Kafka source.

pyarrow is imported at first use; `pip install 'kcore[arrow]'` brings it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kcore.common.optional_packages import missing_package
from kcore.record.columns import BinaryColumn, RecordColumns, binary_column, make_columns

if TYPE_CHECKING:
    import pyarrow as pa

#: The default columns; topic and partition only if the records' topic is known.
DEFAULT_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
#: All columns.
COLUMNS = (
    *DEFAULT_COLUMNS,
    "leaderEpoch",
    "producerId",
    "producerEpoch",
    "sequence",
    "isTransactional",
    "isControl",
)

#: What one Arrow array of strings can hold, with its int32 offsets.
_MAX_BYTES = 2**31 - 1


def pyarrow() -> Any:
    """The module.  Raises ImportError with the package to install."""
    try:
        import pyarrow
    except ImportError as error:
        raise missing_package("Arrow data", "arrow", error) from None
    return pyarrow


def schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """Of a table with these columns, in this order; None: DEFAULT_COLUMNS.  Raises ValueError for an unknown one."""
    pa = pyarrow()
    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.dictionary(pa.int32(), pa.string()),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("ms", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(
            pa.field(
                "element",
                pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]),
                nullable=False,
            )
        ),
        "leaderEpoch": pa.int32(),
        "producerId": pa.int64(),
        "producerEpoch": pa.int16(),
        "sequence": pa.int32(),
        "isTransactional": pa.bool_(),
        "isControl": pa.bool_(),
    }
    nullable = {"key", "value", "timestamp"}
    return pa.schema([pa.field(name, types[name], nullable=name in nullable) for name in check_columns(columns)])


def check_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns, or the default ones.  Raises ValueError."""
    if columns is None:
        return DEFAULT_COLUMNS
    if isinstance(columns, str):
        raise TypeError(f"columns must be a sequence of names, not {columns!r}")
    for name in columns:
        if name not in COLUMNS:
            raise ValueError(f"column {name!r} is none of {', '.join(COLUMNS)}")
    return tuple(columns)


def columns_to_read(columns: Sequence[str]) -> tuple[str, ...]:
    """Those of them that RecordColumns have; topic and partition are added here."""
    return tuple(name for name in columns if name not in ("topic", "partition"))


def table_of(
    records: RecordColumns,
    columns: Sequence[str] | None = None,
    *,
    topic: str | None = None,
    partition: int | None = None,
) -> pa.Table:
    """A table of them; one chunk, unless a column of byte strings passes 2 GiB.

    Default columns: those of DEFAULT_COLUMNS that were read; topic and partition only if they are not None.
    """
    pa = pyarrow()
    if columns is None:
        constants = {"topic": topic, "partition": partition}
        columns = [n for n in DEFAULT_COLUMNS if n in records or constants.get(n) is not None]
    names = check_columns(columns)
    return pa.Table.from_batches(record_batches_of(records, names, topic, partition), schema(names))


def record_batches_of(
    records: RecordColumns, columns: Sequence[str], topic: str | None, partition: int | None
) -> Iterator[pa.RecordBatch]:
    """One, unless a column of byte strings has more than 2 GiB."""
    start = 0
    while start < len(records):
        stop = _fitting(records, columns, start)
        yield _record_batch(records, columns, topic, partition, start, stop)
        start = stop


def _record_batch(
    records: RecordColumns, columns: Sequence[str], topic: str | None, partition: int | None, start: int, end: int
) -> pa.RecordBatch:
    """Numbers are not copied, byte strings once."""
    pa = pyarrow()
    wanted = schema(columns)
    arrays = []
    for field in wanted:
        if field.name == "topic":
            if topic is None:
                raise ValueError("the column topic needs the topic's name")
            arrays.append(pa.DictionaryArray.from_arrays(_numpy().zeros(end - start, "i4"), pa.array([topic])))
        elif field.name == "partition":
            if partition is None:
                raise ValueError("the column partition needs the partition's number")
            arrays.append(pa.array(_numpy().full(end - start, partition, "i4")))
        elif field.name == "headers":
            arrays.append(header_array(records, field.type, start, end))
        else:
            column = records[field.name]
            if isinstance(column, BinaryColumn):
                arrays.append(binary_array(column, field.type, start, end))
            else:
                arrays.append(_numbers(column[start:end], field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _numpy() -> Any:
    import numpy

    return numpy


def _numbers(values: Any, type_: pa.DataType) -> pa.Array:
    pa = pyarrow()
    if pa.types.is_boolean(type_):
        return pa.array(values)
    valid, nulls = None, 0
    if pa.types.is_timestamp(type_):
        nulls = len(values) - int(_numpy().count_nonzero(values != -1))
        if nulls:
            valid = pa.py_buffer(_numpy().packbits(values != -1, bitorder="little"))
    return pa.Array.from_buffers(type_, len(values), [valid, pa.py_buffer(values)], null_count=nulls)


def binary_array(column: BinaryColumn, type_: pa.DataType, start: int, stop: int) -> pa.Array:
    """Strings start to stop, copied once at most.  OverflowError for more than an array can hold."""
    pa = pyarrow()
    valid, offsets, data, nulls = column.gather(start, stop)
    buffers = [None if valid is None else pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(type_, stop - start, buffers, null_count=nulls)


def header_array(records: RecordColumns, type_: pa.ListType, start: int, stop: int) -> pa.Array:
    """Headers of records start to stop as lists of that type."""
    pa = pyarrow()
    offsets, keys, values = records.header_columns(start, stop)
    pairs = pa.StructArray.from_arrays(
        [_text(binary_array(keys, pa.binary(), 0, len(keys))), binary_array(values, pa.binary(), 0, len(values))],
        fields=list(type_.value_type),
    )
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=type_)


def _text(array: pa.Array) -> pa.Array:
    """Header keys as strings.  What is not UTF-8 gets replacement characters, as in Kafka's own consumer."""
    pa = pyarrow()
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in array.to_pylist()], pa.string())


def _fitting(records: RecordColumns, columns: Sequence[str], start: int) -> int:
    """How far from start on no column has more bytes than one array can hold."""
    np = _numpy()
    stop = len(records)
    for name in ("key", "value", "headers"):
        column = getattr(records, name)
        if column is not None and name in columns and len(column.data) > _MAX_BYTES:
            ends = np.cumsum(np.maximum(column.size[start:stop], 0), dtype=np.int64)
            stop = start + max(1, int(np.searchsorted(ends, _MAX_BYTES, side="right")))
    return min(stop, len(records))


def columns_from_arrow(records: Any, *, with_offsets: bool = False) -> RecordColumns:
    """What batches_of() takes, from a pyarrow Table or RecordBatch, or from what pyarrow.table() takes (a mapping of
    arrays, a DataFrame with __arrow_c_stream__).

    Columns: key and value (strings or bytes), timestamp (of any unit, cut to ms; or integers in ms; null: none),
    headers (lists of structs with key and value), and with_offsets offset; others are passed over, missing ones are
    null.  Strings are not copied unless their type or several chunks ask for it.  Raises ValueError, and what pyarrow
    raises for a type that does not fit.
    """
    pa = pyarrow()
    table = pa.Table.from_batches([records]) if isinstance(records, pa.RecordBatch) else records
    if not isinstance(table, pa.Table):
        table = pa.table(records)
    arrays = {
        name: table[name].chunk(0) if table[name].num_chunks == 1 else table[name].combine_chunks()
        for name in ("key", "value", "timestamp", "headers", "offset")
        if name in table.column_names and (name != "offset" or with_offsets)
    }
    if not arrays.keys() & {"key", "value"}:
        raise ValueError(f"neither key nor value among the columns {', '.join(table.column_names)}")
    return make_columns(
        table.num_rows,
        offset=_int64s(arrays["offset"], None) if "offset" in arrays else None,
        timestamp=_milliseconds(arrays["timestamp"]) if "timestamp" in arrays else None,
        key=_strings(arrays["key"]) if "key" in arrays else None,
        value=_strings(arrays["value"]) if "value" in arrays else None,
        headers=_header_columns(arrays["headers"]) if "headers" in arrays else None,
    )


def _int64s(array: pa.Array, missing: int | None) -> Any:
    pa = pyarrow()
    numbers = array.cast(pa.int64())
    if numbers.null_count:
        if missing is None:
            raise ValueError("an offset is null")
        numbers = numbers.fill_null(missing)
    return numbers.to_numpy(zero_copy_only=False)


def _milliseconds(array: pa.Array) -> Any:
    pa = pyarrow()
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", tz=array.type.tz), safe=False)
    return _int64s(array, -1)


def _strings(array: pa.Array) -> BinaryColumn:
    pa = pyarrow()
    if not (pa.types.is_binary(array.type) or pa.types.is_string(array.type)):
        array = array.cast(pa.binary())
    valid, offsets, data = array.buffers()
    return binary_column(offsets, data, valid if array.null_count else None, array.offset, len(array))


def _header_columns(array: pa.Array) -> tuple[Any, BinaryColumn, BinaryColumn] | None:
    pairs = array.flatten()  # without those of null lists
    if len(pairs) == 0:
        return None
    offsets = _numpy().zeros(len(array) + 1, "i8")
    _numpy().cumsum(array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), out=offsets[1:])
    names = [pairs.type.field(i).name for i in range(pairs.type.num_fields)]
    columns = dict(zip(names, pairs.flatten(), strict=True))
    return offsets, _strings(columns["key"]), _strings(columns["value"])
