"""Records of columns as Python's values and as JSON lines, as `kcore consume --json` and `kcore web` write them."""

from __future__ import annotations

from collections.abc import Callable
from json import encoder
from typing import Any

from kcore.record.columns import BinaryColumn, RecordColumns

#: (columns, partition, numbers of the records to print or None for all) -> their text.
Formatter = Callable[[RecordColumns, int, Any], bytes]

_TIMESTAMP_TYPES = {0: "CreateTime", 1: "LogAppendTime", -1: "NoTimestampType"}


def strings(column: BinaryColumn, rows: Any) -> list[bytes | None]:
    """The strings of these rows, None for all."""
    taken = column if rows is None else column.take(rows)
    data = taken.data
    positions, sizes = taken.position.tolist(), taken.size.tolist()
    return [bytes(data[at : at + size]) if size >= 0 else None for at, size in zip(positions, sizes, strict=True)]


def header_lists(columns: RecordColumns, rows: Any) -> list[list[tuple[bytes, bytes | None]]]:
    """The (name, value) pairs of each of these rows, all for None."""
    offsets, keys, values = columns.header_columns()
    if not len(keys):
        return [[]] * (len(columns) if rows is None else len(rows))
    ends = offsets.tolist()
    pairs = [(key or b"", value) for key, value in zip(keys, values, strict=True)]
    return [pairs[ends[row] : ends[row + 1]] for row in (range(len(columns)) if rows is None else rows.tolist())]


def numbers(array: Any, rows: Any) -> list[int]:
    """The numbers of these rows, all for None."""
    taken: list[int] = (array if rows is None else array[rows]).tolist()
    return taken


def json_lines(topic: str, *, ascii_only: bool) -> Formatter:
    """The fields and spellings that `kcore dump --json` has for a record, and its topic and partition.

    Byte strings are text where they are UTF-8, else {"hex": ...}.
    """
    quote = encoder.encode_basestring_ascii if ascii_only else encoder.encode_basestring
    topic_text = quote(topic)

    def text(data: bytes | None) -> str:
        if data is None:
            return "null"
        try:
            return quote(data.decode())
        except UnicodeDecodeError:
            return f'{{"hex": "{data.hex()}"}}'

    def format_(columns: RecordColumns, partition: int, rows: Any) -> bytes:
        kinds = [quote(_TIMESTAMP_TYPES[kind]) for kind in numbers(columns["timestampType"], rows)]
        headers = [
            "[" + ", ".join([f"[{text(name)}, {text(value)}]" for name, value in pairs]) + "]" if pairs else "[]"
            for pairs in header_lists(columns, rows)
        ]
        start = f'{{"topic": {topic_text}, "partition": {partition}, "offset": '
        return "".join(
            [
                f'{start}{offset}, "timestamp": {timestamp}, "timestamp_type": {kind}, '
                f'"key": {text(key)}, "value": {text(value)}, "headers": {pairs}}}\n'
                for offset, timestamp, kind, key, value, pairs in zip(
                    numbers(columns["offset"], rows),
                    numbers(columns["timestamp"], rows),
                    kinds,
                    strings(columns["key"], rows),
                    strings(columns["value"], rows),
                    headers,
                    strict=True,
                )
            ]
        ).encode()

    return format_
