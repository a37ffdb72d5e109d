"""`kcore dump --format arrow`: a table for each kind of file, columns named like the keys of the JSON lines.

Every table begins with the column "file".  Damage is no row: it goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import groupby, islice
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from kcore.log.checkpoints import LEADER_EPOCH_CHECKPOINT
from kcore.log.log_file_names import (
    CLEAN_SHUTDOWN_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from kcore.tools import log_files
from kcore.tools.command_line import UsageError, places
from kcore.tools.dump_events import Event, Wanted, events_of

_ROWS = 8192
_STREAM_SUFFIX = ".arrows"
_WORD = pa.string()
_FILE = pa.field("file", pa.dictionary(pa.int32(), pa.string()), nullable=False)


def _schema(*fields: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([_FILE, *(pa.field(name, kind) for name, kind in fields)])


_BATCHES = _schema(
    ("baseOffset", pa.int64()),
    ("lastOffset", pa.int64()),
    ("count", pa.int32()),
    ("baseSequence", pa.int32()),
    ("lastSequence", pa.int32()),
    ("producerId", pa.int64()),
    ("producerEpoch", pa.int16()),
    ("partitionLeaderEpoch", pa.int32()),
    ("isTransactional", pa.bool_()),
    ("isControl", pa.bool_()),
    ("deleteHorizonMs", pa.int64()),
    ("position", pa.int64()),
    ("timestampType", _WORD),
    ("maxTimestamp", pa.int64()),
    ("size", pa.int32()),
    ("magic", pa.int8()),
    ("compresscodec", _WORD),
    ("crc", pa.uint32()),
)
_RECORDS = _schema(
    ("offset", pa.int64()),
    ("timestamp", pa.int64()),
    ("timestampType", _WORD),
    ("sequence", pa.int32()),
    ("key", pa.large_binary()),
    ("value", pa.large_binary()),
    ("headers", pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))),
    ("endTxnMarker", _WORD),
    ("coordinatorEpoch", pa.int32()),
    ("controlType", _WORD),
)
_SCHEMAS = {
    "batches": _BATCHES,
    "records": _RECORDS,
    OFFSET_INDEX_SUFFIX: _schema(("offset", pa.int64()), ("position", pa.int32())),
    TIME_INDEX_SUFFIX: _schema(("timestamp", pa.int64()), ("offset", pa.int64())),
    TXN_INDEX_SUFFIX: _schema(
        ("version", pa.int16()),
        ("producerId", pa.int64()),
        ("firstOffset", pa.int64()),
        ("lastOffset", pa.int64()),
        ("lastStableOffset", pa.int64()),
    ),
    SNAPSHOT_SUFFIX: _schema(
        ("producerId", pa.int64()),
        ("producerEpoch", pa.int16()),
        ("coordinatorEpoch", pa.int32()),
        ("currentTxnFirstOffset", pa.int64()),
        ("lastTimestamp", pa.int64()),
        ("firstSequence", pa.int32()),
        ("lastSequence", pa.int32()),
        ("lastOffset", pa.int64()),
        ("offsetDelta", pa.int32()),
        ("timestamp", pa.int64()),
    ),
    log_files.OFFSET_CHECKPOINT: _schema(("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())),
    LEADER_EPOCH_CHECKPOINT: _schema(("epoch", pa.int32()), ("startOffset", pa.int64())),
    PARTITION_METADATA_FILE: _schema(("version", pa.int16()), ("topicId", pa.string())),
    log_files.META_PROPERTIES_FILE: _schema(("name", pa.string()), ("value", pa.string())),
    CLEAN_SHUTDOWN_FILE: _schema(("version", pa.int16()), ("brokerEpoch", pa.int64())),
}


def write_tables(files: list[str], wanted: Wanted, output: str | None) -> bool:
    """Write what is in the files to `output`; whether there was damage.

    One kind of file: output is the IPC file (.arrows or "-": stream) to write.  Several: a directory, made if it is
    not there, that gets batches.arrow or records.arrow, index.arrow, ...  Raises UsageError, OSError.
    """
    if output is None:
        raise UsageError("--format arrow needs -o FILE")
    tables = [_table_of(path, wanted) for path in files]
    names = list(dict.fromkeys(tables))
    if len(names) > 1 and (output == "-" or (os.path.exists(output) and not os.path.isdir(output))):
        raise UsageError(f"-o {output}: {len(names)} kinds of files need a directory, one table for each: {names}")
    into_directory = len(names) > 1 or os.path.isdir(output)
    if into_directory:
        os.makedirs(output, exist_ok=True)
    damaged = False
    with ExitStack() as stack:
        for name in names:
            path = os.path.join(output, f"{name.lstrip('.')}.arrow") if into_directory else output
            schema = _SCHEMAS[name]
            writer = stack.enter_context(_writer(stack, path, schema))
            inside = [file for file, table in zip(files, tables, strict=True) if table == name]
            for n, file in enumerate(inside):
                # An IPC file may have one dictionary only: that of all files, from the start.
                column = pa.DictionaryArray.from_arrays(pa.array([n], pa.int32()), inside)
                damaged |= _write_file(writer, schema, column, events_of(file, wanted), name == "records")
    return damaged


def _table_of(path: str, wanted: Wanted) -> str:
    kind = log_files.kind_of_named(path)
    assert kind is not None
    if kind.kind == LOG_SUFFIX:
        return "records" if wanted.records else "batches"
    return kind.kind


def _writer(stack: ExitStack, path: str, schema: pa.Schema) -> Any:
    sink = sys.stdout.buffer if path == "-" else stack.enter_context(pa.OSFile(path, "wb"))
    if path == "-" or path.endswith(_STREAM_SUFFIX):
        return pa.ipc.new_stream(sink, schema)
    return pa.ipc.new_file(sink, schema)


def _write_file(
    writer: Any, schema: pa.Schema, file: pa.DictionaryArray, events: Iterator[Event], records: bool
) -> bool:
    """Whether there was damage."""
    damaged = False
    rows = []
    for is_damage, group in groupby(events, lambda event: event["type"] == "damage"):
        if is_damage:
            damaged = True
            for event in group:
                where = places(event["offset"], event["position"])
                print(f"{event['file']}: {where}{event['problem']}", file=sys.stderr)
            continue
        shown = (event for event in group if event["type"] not in ("file", "batch" if records else "record"))
        while chunk := list(islice(shown, _ROWS)):
            rows += [_row(event) for event in chunk]
            if len(rows) >= _ROWS:
                writer.write_batch(_record_batch(rows, schema, file))
                rows = []
    if rows:
        writer.write_batch(_record_batch(rows, schema, file))
    return damaged


def _row(event: Event) -> Event:
    for name in ("key", "value"):
        if isinstance(event.get(name), dict):  # in the words of a decoder
            event[name] = json.dumps(event[name]).encode()
    if event.get("headers"):
        event["headers"] = [
            {"key": key.encode() if isinstance(key, str) else key, "value": value} for key, value in event["headers"]
        ]
    return event


def _record_batch(rows: list[Event], schema: pa.Schema, file: pa.DictionaryArray) -> pa.RecordBatch:
    columns = pa.RecordBatch.from_pylist(rows, schema=pa.schema(list(schema)[1:])).columns
    return pa.RecordBatch.from_arrays([file.take(pa.array([0] * len(rows), pa.int32())), *columns], schema=schema)
