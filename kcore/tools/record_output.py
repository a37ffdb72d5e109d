"""Records as `kcore consume` prints them: lines of values, or a format as kcat's (JSON: kcore.record.record_lines)."""

from __future__ import annotations

import re
import struct
from itertools import pairwise
from typing import Any

from kcore.common.text import nearest
from kcore.record.columns import BinaryColumn, RecordColumns
from kcore.record.record_lines import Formatter, header_lists, numbers, strings
from kcore.tools.command_line import UsageError

_INT32 = struct.Struct(">i")
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|%$|\\$", re.DOTALL)


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


# -- a format as kcat's -------------------------------------------------------------------------------------------

#: What is no text with letters.
NAMED_FORMATS = ("json", "parquet")
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
            f"its value, and --json makes it JSON{nearest(text.lower(), NAMED_FORMATS, 0.7)}"
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
                return [b"%d" % size for size in numbers(sizes, rows)]
            case "R":
                return [_INT32.pack(size) for size in numbers(columns["value"].size, rows)]
            case "T" | "o":
                return [b"%d" % n for n in numbers(columns["timestamp"] if letter == "T" else columns["offset"], rows)]
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
