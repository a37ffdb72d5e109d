"""Points in time as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

#: For --help: what moment_ms() reads.
MOMENT_HELP = "-1h (also ms, s, m, d, w), @ and milliseconds since 1970, or as 2026-11-24T03:00 (UTC unless it says)"

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_AGO = re.compile(r"-(\d{1,12})(ms|s|m|h|d|w)")
#: An INT64 of the protocol.
_LATEST_MS = (1 << 63) - 1


def moment_ms(text: str, now_ms: int) -> int:
    """Milliseconds since 1970, not below, of "-1h" (also ms, s, m, d, w: so long before now_ms), "@" and milliseconds,
    or a date of ISO 8601, which is UTC unless it says otherwise.  Raises ValueError."""
    ago = _AGO.fullmatch(text)
    if ago:
        return max(0, now_ms - int(ago[1]) * _UNIT_MS[ago[2]])
    if text.startswith("@"):
        if not text[1:].isdecimal() or int(text[1:]) > _LATEST_MS:
            raise ValueError(text)
        return int(text[1:])
    date = datetime.fromisoformat(text)
    date = date.replace(tzinfo=UTC) if date.tzinfo is None else date
    return max(0, round(date.timestamp() * 1000))
