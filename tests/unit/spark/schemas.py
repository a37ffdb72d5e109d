"""Schemas without a session."""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "timestamp": TimestampType(),
    "array<string>": ArrayType(StringType()),
    "headers": ArrayType(_HEADER),
}


def schema_of(text):
    """ "name type, name type"; the type of headers is called headers."""
    return StructType([StructField(name, _TYPES[kind]) for name, kind in (pair.split() for pair in text.split(", "))])
