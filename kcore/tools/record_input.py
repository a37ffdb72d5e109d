"""What `kcore produce` reads: lines of stdin or of files, each a record."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kcore.common.text import nearest
from kcore.tools.command_line import MAX_INT32

_CHUNK_BYTES = 1 << 20
#: Before it is asked again whether to stop.
_IDLE_S = 0.2
#: Of what a record of `kcore consume --json` or `kcore dump --json` has.
_USED = ("key", "value", "headers", "timestamp", "partition")
_KNOWN = frozenset([*_USED, "topic", "offset", "timestamp_type", "type", "file", "key_size", "value_size", "sequence"])
_LARGEST_TIMESTAMP = (1 << 63) - 2
#: Types of what `kcore dump --json` prints besides records.
_NO_RECORDS = ("file", "batch", "entry")
#: Of a record in a control batch.
_CONTROL_FIELDS = frozenset({"end_txn_marker", "control_type"})


class InputError(ValueError):
    """A line is no record.  The message says why."""


class InputRecord(NamedTuple):
    """timestamp: None for now.  partition: None where the line names none."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int | None = None
    partition: int | None = None


#: A line without its line break -> the record; None for what is passed over.  Raises InputError.
LineReader = Callable[[bytes], InputRecord | None]


# -- lines ----------------------------------------------------------------------------------------------------------


def lines_of(descriptor: int, idle: Callable[[], float | None]) -> Iterator[bytes]:
    """The lines of a file, without their line breaks; the last one may lack it.

    idle(): called when no more can be read now; how many seconds to wait for more, None: to read no further.
    Raises OSError.
    """
    parts: list[bytes] = []
    while _is_readable(descriptor, idle):
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            break
        lines = chunk.split(b"\n")
        if len(lines) > 1:
            yield b"".join([*parts, lines[0]])
            yield from lines[1:-1]
            parts = []
        parts.append(lines[-1])
    if last := b"".join(parts):
        yield last


def _is_readable(descriptor: int, idle: Callable[[], float | None]) -> bool:
    """Waits until it is; False where idle() says to read no further."""
    wait_s: float | None = 0.0
    while wait_s is not None:
        if select.select([descriptor], [], [], wait_s)[0]:
            return True
        wait_s = idle()
    return False


# -- values with or without a key -------------------------------------------------------------------------------------


def line_reader(key_separator: bytes | None) -> LineReader:
    """A line is a value, or with a separator a key and a value."""
    if key_separator is None:
        return lambda line: InputRecord(None, line)

    def read(line: bytes) -> InputRecord:
        key, separator, value = line.partition(key_separator)
        if not separator:
            raise InputError(f"the key separator {key_separator.decode(errors='replace')!r} is not in the line")
        return InputRecord(key, value)

    return read


# -- JSON -------------------------------------------------------------------------------------------------------------


def json_record(line: bytes) -> InputRecord | None:
    """A record as `kcore consume --json` and `kcore dump --json` print it; None for an empty line, and for what dump
    prints besides records.  Raises InputError."""
    if not line.strip():
        return None
    try:
        event = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"no JSON: {error}") from None
    if not isinstance(event, dict):
        raise InputError(f"{_kind(event)}, expected an object with key and value")
    kind = event.get("type", "record")
    if kind != "record":
        if kind in _NO_RECORDS:
            return None
        raise InputError(f"of type {kind!r}, expected a record")
    if unknown := event.keys() - _KNOWN:
        if unknown & _CONTROL_FIELDS:
            return None
        field = min(unknown)
        raise InputError(f"a record has no {field!r}{nearest(field, _USED)}")
    if "value" not in event:
        raise InputError("no value: give null for a tombstone")
    return InputRecord(
        _bytes(event.get("key"), "key"),
        _bytes(event["value"], "value"),
        _headers(event.get("headers")),
        _integer(event.get("timestamp"), "timestamp", -1, _LARGEST_TIMESTAMP),
        _integer(event.get("partition"), "partition", 0, MAX_INT32),
    )


def _bytes(value: Any, what: str) -> bytes | None:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and list(value) == ["hex"] and isinstance(value["hex"], str):
            return bytes.fromhex(value["hex"])
    except UnicodeEncodeError:
        raise InputError(f'{what}: half of a surrogate pair is no text: give the bytes as {{"hex": ...}}') from None
    except ValueError:
        raise InputError(f"{what}: {value['hex'][:40]!r} is not hexadecimal") from None
    raise InputError(f'{what}: {_kind(value)}, expected text, {{"hex": "..."}} or null')


def _headers(value: Any) -> list[tuple[str, bytes | None]]:
    if value is None:
        return []
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list):
        raise InputError(f"headers: {_kind(value)}, expected a list of [name, value]")
    headers = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise InputError("headers: expected a list of [name, value]")
        name = _bytes(pair[0], "a header's name")
        if name is None:
            raise InputError("a header's name is null")
        headers.append((name.decode("utf-8", "surrogateescape"), _bytes(pair[1], "a header's value")))
    return headers


def _integer(value: Any, what: str, lowest: int, highest: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise InputError(
            f"{what}: {json.dumps(value)[:40]}, expected a whole number from {lowest} to {highest}, or null"
        )
    return value


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
