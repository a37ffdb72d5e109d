"""The schema of the source, and records as Arrow batches of exactly its types."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kcore.record.arrow import binary_array, columns_to_read, header_array
from kcore.spark.options import COLUMNS, OptionError

if TYPE_CHECKING:
    from kcore.record.columns import RecordColumns

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}

#: Spark's SQL types of the columns.
SQL_TYPES = {name: type_.simpleString() for name, type_ in _TYPES.items()}

#: Columns that can be null.  The others are declared as not nullable, so that Spark need not check each value
#: (the connector declares all as nullable).
NULLABLE = frozenset({"key", "value", "headers"})

_ARROW_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(
        pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]), nullable=True)
    ),
}


def spark_schema(columns: Sequence[str]) -> StructType:
    return StructType([StructField(name, _TYPES[name], name in NULLABLE) for name in columns])


def arrow_schema(schema: StructType) -> pa.Schema:
    """The exact Arrow schema that Spark expects for this schema.  Raises OptionError for a column the source lacks."""
    for field in schema.fields:
        if field.name not in COLUMNS:
            near = difflib.get_close_matches(field.name, COLUMNS, n=1)
            raise OptionError(
                f"schema: there is no column {field.name!r}; "
                + (f"did you mean {near[0]}?" if near else f"there are {', '.join(COLUMNS)}")
            )
        sql_type = field.dataType.simpleString()
        if sql_type != SQL_TYPES[field.name]:
            raise OptionError(f"schema: column {field.name} is {SQL_TYPES[field.name]}, not {sql_type}")
        if field.name in NULLABLE and not field.nullable:
            raise OptionError(f"schema: column {field.name} can be null, the schema says NOT NULL")
    names = tuple(field.name for field in schema.fields)
    if not names or len(set(names)) < len(names):
        raise OptionError(f"schema: expected different columns, found {', '.join(names) or 'none'}")
    return pa.schema([pa.field(f.name, _ARROW_TYPES[f.name], nullable=f.nullable) for f in schema.fields])


def columns_read(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns that a ColumnsReader has to read for these columns of the source."""
    # At least one, because the number of records is needed.
    return columns_to_read(columns) or ("offset",)


def record_batch(
    records: RecordColumns, wanted: pa.Schema, topic: str, partition: int, start: int, stop: int
) -> pa.RecordBatch:
    """The Arrow batch of records start to stop - 1.  Offsets are not copied, byte strings are copied once."""
    count = stop - start
    arrays = []
    for field in wanted:
        name = field.name
        if name == "topic":
            arrays.append(_repeated(topic, count))
        elif name == "partition":
            arrays.append(_numbers(np.full(count, partition, np.int32), field.type))
        elif name == "timestamp":
            arrays.append(_numbers(records.timestamp[start:stop] * 1000, field.type))  # type: ignore[index]
        elif name == "headers":
            arrays.append(_headers(records, field.type, start, stop))
        elif name in ("key", "value"):
            arrays.append(binary_array(records[name], field.type, start, stop))
        else:
            arrays.append(_numbers(records[name][start:stop], field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _numbers(values: Any, type_: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)], null_count=0)


def _repeated(text: str, count: int) -> pa.Array:
    data = text.encode()
    offsets = np.arange(0, (count + 1) * len(data), len(data), dtype=np.int32)
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data * count)], null_count=0
    )


def _headers(records: RecordColumns, type_: pa.ListType, start: int, stop: int) -> pa.Array:
    """Null for a record without headers, as in the connector."""
    lists = header_array(records, type_, start, stop)
    none = records.header_count[start:stop] == 0  # type: ignore[index]
    nulls = int(np.count_nonzero(none))
    if not nulls:
        return lists
    valid = pa.py_buffer(np.packbits(~none, bitorder="little"))
    return pa.Array.from_buffers(
        type_, stop - start, [valid, lists.buffers()[1]], null_count=nulls, children=[lists.values]
    )
