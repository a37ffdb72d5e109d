"""A cursor over the keys and values of the internal topics."""

from __future__ import annotations

import builtins

from kcore.errors import CorruptMessage


class RecordReader:
    """A bounded cursor over one key or value; everything it finds wrong is CorruptMessage."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        self._position = 0
        self.version = self.int16()
        self.flexible = False

    def _take(self, size: int) -> bytes:
        position = self._position
        if size < 0 or size > len(self._data) - position:
            raise CorruptMessage(f"{self._what}: {size} bytes wanted at {position} of {len(self._data)}")
        self._position = position + size
        return self._data[position : position + size]

    def int8(self) -> int:
        return int.from_bytes(self._take(1), "big", signed=True)

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self._take(8), "big", signed=True)

    def _unsigned_varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise CorruptMessage(f"{self._what}: varint too long before {self._position}")

    def array_length(self) -> int:
        """Of an array whose elements take at least one byte each; -1 for null."""
        count = self._unsigned_varint() - 1 if self.flexible else self.int32()
        if count > len(self._data) - self._position:
            raise CorruptMessage(f"{self._what}: {count} elements at {self._position} of {len(self._data)}")
        return count

    def bytes(self) -> bytes:
        return self._take(self._unsigned_varint() - 1 if self.flexible else self.int32())

    def nullable_string(self) -> str | None:
        length = self._unsigned_varint() - 1 if self.flexible else self.int16()
        if length == -1:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise CorruptMessage(f"{self._what}: {error} before {self._position}") from error

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise CorruptMessage(f"{self._what}: null string before {self._position}")
        return value

    def tagged_fields(self) -> dict[int, builtins.bytes]:
        """The fields by tag.  A newer writer may have written tags that are unknown here."""
        fields = {}
        if self.flexible:
            for _ in range(self._unsigned_varint()):
                tag = self._unsigned_varint()
                fields[tag] = self._take(self._unsigned_varint())
        return fields
