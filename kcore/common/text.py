"""Values as text for people, and as lines of JSON."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from typing import Any

_SHOWN_CHARACTERS = 100


def nearest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """ "; did you mean X?", or nothing when no known word is near.  cutoff: 0 for any, 1 for the word itself."""
    import difflib  # only for those who made a mistake

    matches = difflib.get_close_matches(word, list(known), 1, cutoff)
    return f"; did you mean {matches[0]}?" if matches else ""


def json_line(event: Mapping[str, Any]) -> str:
    """An object on one line.  Its names are snake_case, whatever they are in the event; what comes from a record or
    from settings of a topic keeps its own.  Byte strings become text where they are UTF-8, else {"hex": ...}."""
    is_utf8 = (sys.stdout.encoding or "").lower() == "utf-8"
    return json.dumps(with_snake_case(event), default=_json_bytes, ensure_ascii=not is_utf8)


#: Their values are not ours: a record, decoded or not, and the settings of a topic.
_VERBATIM = frozenset({"key", "value", "headers", "config"})
#: Lists of names of a batch or a record.
_LISTS_OF_NAMES = frozenset({"batchFields", "recordFields"})
#: Words that Kafka's DumpLogSegments writes as one.
_WORDS = {"isvalid": "is_valid", "compresscodec": "compress_codec"}


@cache
def snake_case(name: str) -> str:
    """ "baseOffset" becomes "base_offset"."""
    return _WORDS.get(name) or re.sub("(?<!^)([A-Z])", r"_\1", name).lower()


def with_snake_case(value: Any) -> Any:
    """A copy of what json_line() prints."""
    if isinstance(value, Mapping):
        return {snake_case(name): _field_of(name, field) for name, field in value.items()}
    return [*map(with_snake_case, value)] if isinstance(value, list | tuple) else value


def _field_of(name: str, value: Any) -> Any:
    if name in _VERBATIM:
        return value
    return [*map(snake_case, value)] if name in _LISTS_OF_NAMES else with_snake_case(value)


def _json_bytes(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def bytes_text(data: bytes | None) -> str:
    """For people: quoted text, or hex; long ones cut short."""
    if data is None:
        return "null"
    try:
        text = data.decode()
        shown = json.dumps(text[:_SHOWN_CHARACTERS], ensure_ascii=False) if text.isprintable() else None
        cut = len(text) > _SHOWN_CHARACTERS
    except UnicodeDecodeError:
        shown = None
    if shown is None:
        shown = "0x" + data[: _SHOWN_CHARACTERS // 2].hex()
        cut = len(data) > _SHOWN_CHARACTERS // 2
    return f"{shown}... ({len(data)} bytes)" if cut else shown


def printable(text: str) -> str:
    """For one line of a terminal: control characters, line breaks and what is no character as escapes, as \\x1b."""
    return text if text.isprintable() else "".join(map(_printable, text))


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    if "\udc80" <= character <= "\udcff":  # how Python holds a byte of a command line that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


def plain_error(error: BaseException) -> str:
    """What an exception says, for people: of an error of the system the file and the reason, without its number."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    return ": ".join([" -> ".join(names), error.strerror] if names else [error.strerror])


def places(offset: int | None, position: int | None) -> str:
    """ "offset 5, position 70: ", as far as they are known."""
    parts = [f"{name} {value}" for name, value in (("offset", offset), ("position", position)) if value is not None]
    return ", ".join(parts) + (": " if parts else "")


def bytes_of(size: float) -> str:
    """A size for people."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size:.0f} bytes"


def date_of(timestamp_ms: int) -> str:
    """A timestamp of Kafka's for people: "2023-11-14T22:13:20.000Z".  What is no date (-1 is "none") stays a number."""
    try:
        date = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{date:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03}Z" if timestamp_ms >= 0 else str(timestamp_ms)


def some_of(items: Collection[object], shown: int = 5) -> str:
    """The first ones, and how many there are beside them: "a, b and 7 more"."""
    names = ", ".join(str(item) for item in islice(items, shown))
    return f"{names} and {len(items) - shown} more" if len(items) > shown else names


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """ "1 file", "2 files"; plural: where that is not the noun with an s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
