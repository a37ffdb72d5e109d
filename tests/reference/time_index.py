"""TimeIndex as a Python list: timestamp i64 and relative offset i32, big endian, one pair after the other."""

from __future__ import annotations

import struct

ENTRY = struct.Struct(">qi")


class TimeIndexModel:
    """What a TimeIndex answers, by linear search over its entries [(timestamp, absolute offset)]."""

    def __init__(self, base_offset: int, max_index_size: int = 10 << 20) -> None:
        self.base_offset = base_offset
        self.max_entries = max_index_size // ENTRY.size
        self.entries: list[tuple[int, int]] = []

    @classmethod
    def from_bytes(cls, base_offset: int, data: bytes, max_index_size: int = 10 << 20) -> TimeIndexModel:
        model = cls(base_offset, max_index_size)
        model.entries = [(timestamp, base_offset + relative) for timestamp, relative in ENTRY.iter_unpack(data)]
        return model

    def to_bytes(self) -> bytes:
        return b"".join(ENTRY.pack(timestamp, offset - self.base_offset) for timestamp, offset in self.entries)

    @property
    def last_entry(self) -> tuple[int, int]:
        return self.entries[-1] if self.entries else (-1, self.base_offset)

    @property
    def is_full(self) -> bool:
        """One entry is kept back for the segment's last maximum, written when it becomes inactive."""
        return len(self.entries) >= self.max_entries - 1

    def maybe_append(self, timestamp: int, offset: int, *, skip_full_check: bool = False) -> None:
        if not skip_full_check and self.is_full:
            raise ValueError("full")
        if self.entries and offset < self.last_entry[1]:
            raise ValueError(f"offset {offset} is below {self.last_entry[1]}")
        if self.entries and timestamp < self.last_entry[0]:
            raise ValueError(f"timestamp {timestamp} is below {self.last_entry[0]}")
        if timestamp > self.last_entry[0]:
            if not 0 <= offset - self.base_offset < 1 << 31:
                raise ValueError(f"{offset} is not representable")
            self.entries.append((timestamp, offset))

    def lookup(self, timestamp: int) -> tuple[int, int]:
        floor = (-1, self.base_offset)
        for entry in self.entries:
            if entry[0] <= timestamp:
                floor = entry
        return floor

    def truncate_to(self, offset: int) -> None:
        self.entries = [e for e in self.entries if e[1] < offset]

    def is_sane(self) -> bool:
        if not self.entries:
            return True
        return self.last_entry[1] >= self.base_offset and self.last_entry[0] >= self.entries[0][0]
