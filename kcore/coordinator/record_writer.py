"""Parts of the keys and values of the internal topics; with "compact" or "tagged" those of flexible versions."""

from __future__ import annotations

import struct
from collections.abc import Mapping


def string(value: str) -> bytes:
    """Raises ValueError for more than 32767 bytes."""
    data = value.encode()
    if len(data) > 0x7FFF:
        # Ids and names arrive in strings of the same limit; only a metadata string of 3-byte characters can get here.
        raise ValueError(f"string of {len(data)} bytes in a record that can hold {0x7FFF}")
    return struct.pack(">h", len(data)) + data


def unsigned_varint(value: int) -> bytes:
    """Seven bits in a byte, the lowest first; the top bit says that another byte follows."""
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def compact_string(value: str) -> bytes:
    data = value.encode()
    return unsigned_varint(len(data) + 1) + data


def tagged_fields(fields: Mapping[int, bytes]) -> bytes:
    """By tag, in ascending order."""
    parts = [unsigned_varint(len(fields))]
    for tag, data in fields.items():
        parts += (unsigned_varint(tag), unsigned_varint(len(data)), data)
    return b"".join(parts)
