"""Records as `kcore consume` prints them: lines of values, JSON lines, or a format as kcat's."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from itertools import pairwise
from json import encoder
from typing import Any

from kcore.record.columns import BinaryColumn, RecordColumns
from kcore.tools.command_line import UsageError

#: (columns, partition, numbers of the records to print or None for all) -> their text.
Formatter = Callable[[RecordColumns, int, Any], bytes]

_TIMESTAMP_TYPES = {0: "CreateTime", 1: "LogAppendTime", -1: "NoTimestampType"}
_INT32 = struct.Struct(">i")
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|%$|\\$", re.DOTALL)


def strings(column: BinaryColumn, rows: Any) -> list[bytes | None]:
    """The strings of these rows, None for all."""
    taken = column if rows is None else column.take(rows)
    data = taken.data
    positions, sizes = taken.position.tolist(), taken.size.tolist()
    return [bytes(data[at : at + size]) if size >= 0 else None for at, size in zip(positions, sizes, strict=True)]


def header_lists(columns: RecordColumns, rows: Any) -> list[list[tuple[bytes, bytes | None]]]:
    """Of each of these rows."""
    offsets, keys, values = columns.header_columns()
    if not len(keys):
        return [[]] * (len(columns) if rows is None else len(rows))
    ends = offsets.tolist()
    pairs = [(key or b"", value) for key, value in zip(keys, values, strict=True)]
    return [pairs[ends[row] : ends[row + 1]] for row in (range(len(columns)) if rows is None else rows.tolist())]


def _numbers(array: Any, rows: Any) -> list[int]:
    numbers: list[int] = (array if rows is None else array[rows]).tolist()
    return numbers


# -- lines of values ----------------------------------------------------------------------------------------------


#: What value_lines() needs; the others need all.
VALUE_COLUMNS = ("value",)


def value_lines(columns: RecordColumns, partition: int, rows: Any) -> bytes:
    """A line for each value, an empty one for null."""
    column: BinaryColumn = columns["value"] if rows is None else columns["value"].take(rows)
    if not len(column):
        return b""
    _, offsets, data, _ = column.gather()
    text, ends = data.tobytes(), offsets.tolist()
    lines = [text[start:end] for start, end in pairwise(ends)]
    lines.append(b"")
    return b"\n".join(lines)


# -- JSON lines ---------------------------------------------------------------------------------------------------


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
        kinds = [quote(_TIMESTAMP_TYPES[kind]) for kind in _numbers(columns["timestampType"], rows)]
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
                    _numbers(columns["offset"], rows),
                    _numbers(columns["timestamp"], rows),
                    kinds,
                    strings(columns["key"], rows),
                    strings(columns["value"], rows),
                    headers,
                    strict=True,
                )
            ]
        ).encode()

    return format_


# -- a format as kcat's -------------------------------------------------------------------------------------------

#: For --help.
FORMAT_HELP = (
    "%s value, %S its size, %k key, %K its size (-1: null), %R value size as 4 bytes, %T timestamp, %h headers, "
    "%t topic, %p partition, %o offset, %%; \\n \\t \\r \\\\ \\xNN; no line break is added"
)


def unescaped(text: str) -> bytes:
    r"""With \n \t \r \0 \\ \xNN as a format has them, but % for itself.  Raises UsageError."""
    return b"".join(part for part in _parts(text.replace("%", "%%")) if isinstance(part, bytes))


def parsed_format(text: str) -> list[bytes | str]:
    """Bytes as they are, and letters in the place of %letter.  Raises UsageError."""
    if text and not _TOKEN.search(text):
        raise UsageError(
            f"the format {text!r} has no %letter: each record would be this text; without a format each is the line of "
            "its value, and --json makes it JSON"
        )
    return _parts(text)


def _parts(text: str) -> list[bytes | str]:
    parts: list[bytes | str] = []
    end = 0
    for match in _TOKEN.finditer(text):
        parts.append(text[end : match.start()].encode("utf-8", "surrogateescape"))
        end = match.end()
        letter, number, escape = match.groups()
        if letter == "%":
            parts.append(b"%")
        elif letter is not None and letter in "sSkKRThtpo":
            parts.append(letter)
        elif number is not None:
            parts.append(bytes([int(number, 16)]))
        elif escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        else:
            raise UsageError(f"{match[0]!r} of the format means nothing: there are {FORMAT_HELP}")
    parts.append(text[end:].encode("utf-8", "surrogateescape"))
    return [part for part in parts if part != b""]


def formatted(topic: str, parts: list[bytes | str]) -> Formatter:
    """As kcat's -f prints them: null is empty, headers are name=value,name=value with NULL for null."""

    def column_of(letter: str, columns: RecordColumns, partition: int, rows: Any) -> list[bytes]:
        match letter:
            case "s" | "k":
                return [data or b"" for data in strings(columns["value"] if letter == "s" else columns["key"], rows)]
            case "S" | "K":
                sizes = columns["value"].size if letter == "S" else columns["key"].size
                return [b"%d" % size for size in _numbers(sizes, rows)]
            case "R":
                return [_INT32.pack(size) for size in _numbers(columns["value"].size, rows)]
            case "T" | "o":
                return [b"%d" % n for n in _numbers(columns["timestamp"] if letter == "T" else columns["offset"], rows)]
            case "h":
                return [
                    b",".join(b"%b=%b" % (k, b"NULL" if v is None else v) for k, v in pairs)
                    for pairs in header_lists(columns, rows)
                ]
        constant = topic.encode() if letter == "t" else b"%d" % partition
        return [constant] * (len(columns) if rows is None else len(rows))

    def format_(columns: RecordColumns, partition: int, rows: Any) -> bytes:
        count = len(columns) if rows is None else len(rows)
        texts = [
            [part] * count if isinstance(part, bytes) else column_of(part, columns, partition, rows) for part in parts
        ]
        return b"".join(piece for record in zip(*texts, strict=True) for piece in record)

    return format_
