"""`kcore dump --format arrow` and `--format parquet`: a table for each kind of file.

Columns are named like the keys of the JSON lines, those of records as in docs/dataframes.md.  Every table begins with
the column "file".  Damage is no row: it goes to stderr.
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
import pyarrow.compute as pc
import pyarrow.ipc

from kcore.common.text import places
from kcore.errors import KafkaError
from kcore.inspect import log_files
from kcore.inspect.batch_reader import without_path
from kcore.inspect.dump_events import Decoder, Event, Wanted, damage_event, events_of, log_items
from kcore.log.checkpoints import LEADER_EPOCH_CHECKPOINT
from kcore.log.log_file_names import (
    CLEAN_SHUTDOWN_FILE,
    LOG_SUFFIX,
    LOST_RECORDS_FILE,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from kcore.record import arrow
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import RecordBatch
from kcore.record.record_columns import columns_of
from kcore.tools.command_line import UsageError
from kcore.tools.parquet_output import ParquetFile

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
#: Of records: what kcore.record.arrow calls its columns, and how it types them.
_RECORD_COLUMNS = (
    "offset",
    "timestamp",
    "timestampType",
    "leaderEpoch",
    "producerId",
    "producerEpoch",
    "sequence",
    "isTransactional",
    "isControl",
    "key",
    "value",
    "headers",
)
_RECORDS = pa.schema([_FILE, *arrow.schema(_RECORD_COLUMNS)])
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
    LOST_RECORDS_FILE: _schema(("version", pa.int16()), ("firstLostOffset", pa.int64()), ("meaning", pa.string())),
    log_files.META_PROPERTIES_FILE: _schema(("name", pa.string()), ("value", pa.string())),
    CLEAN_SHUTDOWN_FILE: _schema(("version", pa.int16()), ("brokerEpoch", pa.int64())),
}


def write_tables(files: list[str], wanted: Wanted, output: str | None, file_format: str) -> bool:
    """Write what is in the files to `output`, in the format "arrow" or "parquet"; whether there was damage.

    One kind of file: output is the file to write; of Arrow, an IPC file (.arrows or "-": stream).  Several, or a name
    that ends with "/": a directory, made if it is not there, that gets batches.arrow or records.arrow, index.arrow, ...
    The directory that output is in must be there.  Raises UsageError, OSError.
    """
    if not output:
        raise UsageError(f"--format {file_format} needs -o FILE")
    if output == "-" and file_format == "parquet":
        raise UsageError("-o -: Parquet is written to a file, not to stdout; name one (./- for a file called -)")
    parent = os.path.dirname(output.rstrip("/")) or os.path.curdir
    if output != "-" and not os.path.isdir(parent):
        raise UsageError(f"-o {output}: there is no directory {parent}")
    damaged = False
    for path in files:
        if log_files.kind_of_named(path) is None:  # a directory that cannot be read
            for event in events_of(path, wanted):
                damaged |= _say(path, event)
    files = [path for path in files if log_files.kind_of_named(path) is not None]
    tables = [_table_of(path, wanted) for path in files]
    names = list(dict.fromkeys(tables))
    if len(names) > 1 and (output == "-" or (os.path.exists(output) and not os.path.isdir(output))):
        raise UsageError(f"-o {output}: {len(names)} kinds of files need a directory, one table for each: {names}")
    into_directory = len(names) > 1 or output.endswith("/") or os.path.isdir(output)
    if into_directory and not os.path.isdir(output):
        os.mkdir(output)
    with ExitStack() as stack:
        writers = {}
        for name in names:
            path = os.path.join(output, f"{name.lstrip('.')}.{file_format}") if into_directory else output
            made = (
                ParquetFile(path, _SCHEMAS[name]) if file_format == "parquet" else _writer(stack, path, _SCHEMAS[name])
            )
            writers[name] = stack.enter_context(made)
        for name, writer in writers.items():
            schema = _SCHEMAS[name]
            inside = [file for file, table in zip(files, tables, strict=True) if table == name]
            for n, file in enumerate(inside):
                # An IPC file may have one dictionary only: that of all files, from the start.
                column = pa.DictionaryArray.from_arrays(pa.array([n], pa.int32()), inside)
                items = _record_tables(file, wanted) if name == "records" else _tables(file, wanted, schema)
                damaged |= _write_file(writer, schema, column, items)
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


def _write_file(writer: Any, schema: pa.Schema, file: pa.DictionaryArray, batches: Iterator[pa.Table | Event]) -> bool:
    """Whether there was damage."""
    damaged = False
    for item in batches:
        if isinstance(item, dict):
            damaged = _say(str(file[0]), item)
        elif item.num_rows:
            column = file.take(pa.array([0] * item.num_rows, pa.int32()))
            writer.write_table(pa.table([column, *item.columns], schema=schema))
    return damaged


def _say(path: str, damage: Event) -> bool:
    where = places(damage["offset"], damage["position"])
    print(f"{path}: {where}{damage['problem']}", file=sys.stderr)
    return True


def _tables(path: str, wanted: Wanted, schema: pa.Schema) -> Iterator[pa.Table | Event]:
    """What is in a file, without the column "file", and damage at its position."""
    without_file = pa.schema(list(schema)[1:])
    for is_damage, group in groupby(events_of(path, wanted), lambda event: event["type"] == "damage"):
        if is_damage:
            yield from group
            continue
        rows = (event for event in group if event["type"] != "file")
        while chunk := list(islice(rows, _ROWS)):
            yield pa.Table.from_pylist(chunk, schema=without_file)


def _record_tables(path: str, wanted: Wanted) -> Iterator[pa.Table | Event]:
    """The records of a .log, decoded in native passes over a megabyte at a time."""
    try:
        for item in log_items(path, wanted):
            if isinstance(item, dict):
                yield item
                continue
            try:
                yield _record_table(item, path, wanted)
            except KafkaError:
                for batch in item.batches:  # one of them hides only itself
                    yield _one_batch(batch, path, wanted)
    except OSError as error:
        yield damage_event(f"cannot be read: {error.strerror or error}")


def _one_batch(batch: RecordBatch, path: str, wanted: Wanted) -> pa.Table | Event:
    try:
        return _record_table(batch.buffer, path, wanted)
    except KafkaError as error:
        return damage_event(without_path(error, path), batch.position, batch.base_offset)


def _record_table(records: MemoryRecords | memoryview, path: str, wanted: Wanted) -> pa.Table:
    columns = columns_of(
        records,
        columns=_RECORD_COLUMNS,
        start_offset=wanted.first_offset,
        end_offset=min(wanted.end_offset, (1 << 63) - 1),
        keep_control=True,
        check_crc=False,
        source=path,
    )
    table = _chosen(columns.to_arrow(_RECORD_COLUMNS), wanted)
    return table if wanted.decoder is None else _in_words(table, wanted.decoder)


def _chosen(table: pa.Table, wanted: Wanted) -> pa.Table:
    """The records that --key, --from and --until choose."""
    milliseconds = table["timestamp"].cast(pa.int64())
    conditions = []
    if wanted.key is not None:
        conditions += [pc.equal(table["key"], wanted.key), pc.invert(table["isControl"])]
    if wanted.from_ms is not None:
        conditions.append(pc.greater_equal(milliseconds, wanted.from_ms))
    if wanted.until_ms is not None:
        conditions.append(pc.less(milliseconds, wanted.until_ms))
    for condition in conditions[1:]:
        conditions[0] = pc.and_(conditions[0], condition)
    return table.filter(conditions[0]) if conditions else table


def _in_words(table: pa.Table, decoder: Decoder) -> pa.Table:
    """Keys and values as JSON texts; as they are where they cannot be read, or are no data."""
    decoded: list[list[bytes | None]] = [[], []]
    for control, *pair in zip(*(table[name].to_pylist() for name in ("isControl", "key", "value")), strict=True):
        shown = pair
        if not control:
            try:
                shown = [word and json.dumps(word).encode() for word in decoder(*pair)]
            except KafkaError:
                pass
        for words, word in zip(decoded, shown, strict=True):
            words.append(word)
    for name, words in zip(("key", "value"), decoded, strict=True):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), pa.array(words, pa.binary()))
    return table
