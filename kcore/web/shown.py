"""What pages show of foreign bytes, numbers and times: plain text, which the templates escape."""

from __future__ import annotations

import json
from typing import NamedTuple

from kcore.common.text import date_of, printable

#: Ways to show a byte string.
FORMS = ("text", "json", "hex")
_HEX_ROW = 16
#: JSON may become so much longer by its indentation.
_JSON_GROWTH = 8
_ENCODER = json.JSONEncoder(indent=2, ensure_ascii=False)
_UNKNOWN = "\N{EN DASH}"
#: How "surrogateescape" holds bytes that are no UTF-8.
_RAW_BYTES = "".join(map(chr, range(0xDC80, 0xDD00)))
#: No-break and thin: a number stays on one line.
_THIN_SPACE = "\N{NARROW NO-BREAK SPACE}"
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


class ShownBytes(NamedTuple):
    """text: None for null.  size: of the whole byte string, in bytes.  is_cut: the text has only its beginning."""

    text: str | None
    size: int
    is_cut: bool


def foreign(text: str) -> str:
    """A name that others chose, on one line: what is not printable, marks of right-to-left text too, as escapes."""
    return printable(text)


def lines_of(text: str) -> str:
    """As foreign(), but line breaks stay."""
    return "\n".join(map(printable, text.split("\n")))


def shown_bytes(data: bytes | None, form: str, limit: int) -> ShownBytes:
    """At most `limit` bytes of a key, value or header.  form: one of FORMS; "json" is indented where the whole byte
    string is JSON of at most `limit` bytes, else text."""
    if data is None:
        return ShownBytes(None, -1, False)
    head = data[:limit]
    is_cut = len(data) > limit
    if form == "hex":
        return ShownBytes(hex_rows(head), len(data), is_cut)
    if form == "json" and not is_cut and (indented := _indented(data, _JSON_GROWTH * limit)) is not None:
        return ShownBytes(lines_of(indented), len(data), False)
    text = head.decode("utf-8", "surrogateescape")
    if is_cut:  # perhaps inside a character
        text = text.rstrip(_RAW_BYTES)
    return ShownBytes(lines_of(text), len(data), is_cut)


def _indented(data: bytes, limit: int) -> str | None:
    """None for what is no JSON, or becomes longer than the limit: what is deeply nested grows by its depth."""
    parts, size = [], 0
    try:
        for part in _ENCODER.iterencode(json.loads(data)):
            size += len(part)
            if size > limit:
                return None
            parts.append(part)
    except (ValueError, RecursionError):
        return None
    return "".join(parts)


def hex_rows(data: bytes) -> str:
    """Rows of 16 bytes: position, bytes, and those of them that are printable ASCII."""
    rows = []
    for at in range(0, len(data), _HEX_ROW):
        row = data[at : at + _HEX_ROW]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{at:08x}  {row.hex(' '):<{3 * _HEX_ROW - 1}}  {text}")
    return "\n".join(rows)


def number(value: float | None, digits: int = 0) -> str:
    """With thin spaces between groups of three digits; a dash for what is not known."""
    return _UNKNOWN if value is None else f"{value:,.{digits}f}".replace(",", _THIN_SPACE)


def size(value: float | None) -> str:
    """A number of bytes."""
    if value is None:
        return _UNKNOWN
    for factor, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= factor:
            return f"{value / factor:.1f}{_THIN_SPACE}{unit}"
    return f"{value:.0f}{_THIN_SPACE}B"


def date(timestamp_ms: int) -> str:
    """In UTC; the page's script turns it into the reader's time.  What is no date stays a number, -1 is none."""
    return "none" if timestamp_ms == -1 else date_of(timestamp_ms)


def ago(timestamp_ms: int, now_ms: int) -> str:
    """ "3 min ago", "in 5 s", "now"."""
    distance = abs(now_ms - timestamp_ms)
    unit_ms, unit = next((unit for unit in _UNITS if distance >= unit[0]), (1, ""))
    if not unit:
        return "now"
    text = f"{distance // unit_ms} {unit}"
    return f"{text} ago" if timestamp_ms <= now_ms else f"in {text}"
