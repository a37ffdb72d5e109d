"""Options and columns of the sink: the names of Spark's Kafka connector, and some of our own."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from kcore.bulk.bulk_load import DEFAULT_BATCH_BYTES, check_topic
from kcore.log.log_config import LogConfig
from kcore.log.partition_counts import MOST_PARTITIONS
from kcore.record.compression import CODECS, check_level
from kcore.spark.columns import SQL_TYPES
from kcore.spark.options import (
    BATCH_OPTIONS,
    STREAM_OPTIONS,
    OptionError,
    check_names,
    client_settings,
    count_option,
    flag_option,
    number_option,
    size_option,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from kcore.record.record_batch import CompressionType

#: Spark's own options, which it passes on with those of a stream.
_SPARKS = ("checkpointLocation", "queryName")
_BOTH = ("topic", "includeHeaders", *_SPARKS)
FILE_OPTIONS = (
    "path",
    "numPartitions",
    "compression",
    "compressionLevel",
    "segmentBytes",
    "batchBytes",
    "maxMessageBytes",
    *_BOTH,
)
BROKER_OPTIONS = ("kcore.bootstrap.servers", *_BOTH)

_ONE_PLACE = "name the data directory with option path, or a broker with kcore.bootstrap.servers"
_FOR_READING = dict.fromkeys((*BATCH_OPTIONS, *STREAM_OPTIONS), "it is an option for reading")
#: A producer's setting -> our option for files.
_FOR_FILES = {
    "kafka.compression.type": "compression",
    "kafka.batch.size": "batchBytes",
    "kafka.max.request.size": "maxMessageBytes",
}

#: Columns of the source that the log sets itself.  They are ignored, so that a frame that was read can be written.
_IGNORED = ("offset", "timestampType")
_TYPES = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": (SQL_TYPES["headers"],),
}


@dataclass(frozen=True)
class FileOptions:
    """Options of a write into a data directory."""

    path: str
    topic: str | None
    num_partitions: int | None
    compression: CompressionType
    level: int | None
    batch_bytes: int
    config: LogConfig
    include_headers: bool
    checkpoint_location: str | None


@dataclass(frozen=True)
class BrokerOptions:
    """Options of a write through a broker.  settings: those of the producer, without the writer's own."""

    bootstrap_servers: str
    topic: str | None
    settings: Mapping[str, str]
    include_headers: bool


def write_options(options: Mapping[str, str]) -> FileOptions | BrokerOptions:
    """Parses and checks the options of a sink.  Raises OptionError."""
    values = {name.lower(): value for name, value in options.items()}
    if "kafka.bootstrap.servers" in values:
        raise OptionError(f"option kafka.bootstrap.servers is not kcore's: {_ONE_PLACE}")
    topic = values.get("topic")
    if topic is not None:
        check_topic(topic)
    if "path" in values and "kcore.bootstrap.servers" in values:
        raise OptionError(f"options path and kcore.bootstrap.servers exclude each other: {_ONE_PLACE}")
    if "path" in values:
        return _file_options(options, values, topic)
    if "kcore.bootstrap.servers" in values:
        return _broker_options(options, values, topic)
    check_names(options, (*FILE_OPTIONS, *BROKER_OPTIONS), _FOR_READING)
    raise OptionError(f"where to write is missing: {_ONE_PLACE}")


def _file_options(options: Mapping[str, str], values: Mapping[str, str], topic: str | None) -> FileOptions:
    for name in values:
        if name.startswith("kafka."):
            instead = f"use {_FOR_FILES[name]}" if name in _FOR_FILES else "files are written, without a producer"
            raise OptionError(f"option {name} is not for this: {instead}")
    check_names(options, FILE_OPTIONS, _FOR_READING)
    path = values["path"].strip()
    if not path or "," in path:
        raise OptionError(f"path {path!r}: expected one data directory")
    codec = values.get("compression", "none").lower()
    codec = "none" if codec == "uncompressed" else codec
    if codec not in CODECS:
        raise OptionError(f"compression {codec!r} is none of {', '.join(CODECS)}")
    level = (
        number_option("compressionLevel", values["compressionlevel"], -(2**31))
        if "compressionlevel" in values
        else None
    )
    try:
        check_level(CODECS.index(codec), level)
    except ValueError as error:
        raise OptionError(f"compressionLevel {level}: {error}") from None
    default = LogConfig()
    segment_bytes = size_option(values, "segmentBytes") or default.segment_bytes
    batch_bytes = size_option(values, "batchBytes") or DEFAULT_BATCH_BYTES
    max_message_bytes = size_option(values, "maxMessageBytes") or default.max_message_bytes
    num_partitions = count_option(values, "numPartitions")
    for option, value, largest in (
        ("segmentBytes", segment_bytes, 2**31 - 1),
        ("batchBytes", batch_bytes, 2**31 - 1),
        ("maxMessageBytes", max_message_bytes, 2**31 - 1),
        ("numPartitions", num_partitions or 1, MOST_PARTITIONS),
    ):
        if value > largest:
            raise OptionError(f"{option} {value}: the largest is {largest}")
    return FileOptions(
        path=path,
        topic=topic,
        num_partitions=num_partitions,
        compression=cast("CompressionType", codec),
        level=level,
        batch_bytes=batch_bytes,
        config=LogConfig(segment_bytes=segment_bytes, max_message_bytes=max_message_bytes),
        include_headers=flag_option(values, "includeHeaders", True),
        checkpoint_location=values.get("checkpointlocation"),
    )


def _broker_options(options: Mapping[str, str], values: Mapping[str, str], topic: str | None) -> BrokerOptions:
    settings = {name.removeprefix("kafka."): value for name, value in values.items() if name.startswith("kafka.")}
    others = {name: value for name, value in options.items() if not name.lower().startswith("kafka.")}
    for_files = dict.fromkeys(FILE_OPTIONS, "it is for files (option path)")
    check_names(others, BROKER_OPTIONS, _FOR_READING | for_files)
    for name in ("key.serializer", "value.serializer"):
        if name in settings:
            raise OptionError(f"option kafka.{name} is not supported: bytes are written as they are")
    if "max.request.size" in settings:  # librdkafka's name
        settings["message.max.bytes"] = settings.pop("max.request.size")
    return BrokerOptions(
        bootstrap_servers=values["kcore.bootstrap.servers"],
        topic=topic,
        settings=settings | client_settings(options),
        include_headers=flag_option(values, "includeHeaders", True),
    )


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raises OptionError for a column that cannot be written or is missing."""
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        if field.name in _IGNORED:
            continue
        expected = _TYPES.get(field.name)
        if expected is None:
            near = difflib.get_close_matches(field.name, _TYPES, n=1, cutoff=0.7)
            raise OptionError(
                f"column {field.name!r} cannot be written; "
                + (f"did you mean {near[0]}?" if near else f"records have {', '.join(_TYPES)}")
            )
        sql_type = field.dataType.simpleString()
        if sql_type not in expected:
            raise OptionError(f"column {field.name} is {sql_type}, it has to be {' or '.join(expected)}")
    if len(set(names)) < len(names):
        raise OptionError(f"a column appears twice among {', '.join(names)}")
    if "value" not in names:
        raise OptionError(f"column value is missing; there are {', '.join(names) or 'none'}")
    if topic is None and "topic" not in names:
        raise OptionError("no topic: give option topic or a column topic")
