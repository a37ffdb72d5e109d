"""Parts of the keys and values of the internal topics, in versions that are not flexible."""

from __future__ import annotations

import struct


def string(value: str) -> bytes:
    """Raises ValueError for more than 32767 bytes."""
    data = value.encode()
    if len(data) > 0x7FFF:
        # Ids and names arrive in strings of the same limit; only a metadata string of 3-byte characters can get here.
        raise ValueError(f"string of {len(data)} bytes in a record that can hold {0x7FFF}")
    return struct.pack(">h", len(data)) + data
