"""OffsetIndex as a Python list: relative offset i32 and position i32, big endian, one pair after the other."""

from __future__ import annotations

import struct

ENTRY = struct.Struct(">ii")


class OffsetIndexModel:
    """What an OffsetIndex answers, by linear search over its entries [(absolute offset, position)]."""

    def __init__(self, base_offset: int, max_index_size: int = 10 << 20) -> None:
        self.base_offset = base_offset
        self.max_entries = max_index_size // ENTRY.size
        self.entries: list[tuple[int, int]] = []

    @classmethod
    def from_bytes(cls, base_offset: int, data: bytes, max_index_size: int = 10 << 20) -> OffsetIndexModel:
        """Takes any bytes whose length is a multiple of 8; sanity_check() says whether they make sense."""
        model = cls(base_offset, max_index_size)
        model.entries = [(base_offset + relative, position) for relative, position in ENTRY.iter_unpack(data)]
        return model

    def to_bytes(self) -> bytes:
        return b"".join(ENTRY.pack(offset - self.base_offset, position) for offset, position in self.entries)

    @property
    def last_offset(self) -> int:
        return self.entries[-1][0] if self.entries else self.base_offset

    @property
    def is_full(self) -> bool:
        return len(self.entries) >= self.max_entries

    def append(self, offset: int, position: int) -> None:
        if self.is_full:
            raise ValueError("full")
        if self.entries and offset <= self.last_offset:
            raise ValueError(f"{offset} is not above {self.last_offset}")
        if not 0 <= offset - self.base_offset < 1 << 31:
            raise ValueError(f"{offset} is not representable")
        self.entries.append((offset, position))

    def lookup(self, target: int) -> tuple[int, int]:
        return max((e for e in self.entries if e[0] <= target), default=(self.base_offset, 0))

    def fetch_upper_bound_offset(self, position: int, size: int) -> tuple[int, int] | None:
        """The first entry at or after the end of the bytes read from position."""
        return next((e for e in self.entries if e[1] >= position + size), None)

    def truncate_to(self, offset: int) -> None:
        self.entries = [e for e in self.entries if e[0] < offset]

    def is_sane(self) -> bool:
        return not self.entries or self.last_offset >= self.base_offset
