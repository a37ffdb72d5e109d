"""The wire codec: executes a message's plan for one version against a bounded cursor or a growing buffer.

Holds the GIL (in a long array other threads get it now and then); no system calls, except that encode() reads file
slices.
"""

from typing import Any, ClassVar, Protocol, Self

Buffer = bytes | bytearray | memoryview

KINDS: dict[str, int]

class FileSlice(Protocol):
    """What a `records` field may hold instead of bytes: kcore.record.file_records.FileRecords."""

    @property
    def size_in_bytes(self) -> int: ...
    def send_to(self, sock_fd: int, offset: int = ...) -> int: ...

class TooManyElements(Exception):
    """The arrays of a message have more elements than decode() was allowed to read."""

class Field:
    name: str
    type_name: str
    element_name: str | None
    struct: type[StructBase] | None
    versions: tuple[int, int]
    nullable: tuple[int, int] | None
    default: Any
    tag: int  # -1: not tagged
    ignorable: bool
    def __init__(
        self,
        type_name: str,
        versions: tuple[int, int],
        nullable: tuple[int, int] | None,
        default: Any,
        tag: int,
        ignorable: bool,
        element_name: str | None = ...,
        struct: type[StructBase] | None = ...,
    ) -> None: ...

class Layout:
    cls: type[StructBase]
    fields: tuple[Field, ...]
    def __init__(self, cls: type, fields: tuple[Field, ...]) -> None: ...

class StructBase:
    """A part of a message: keyword arguments are its fields, anything left out has the field's default."""

    _layout: ClassVar[Layout]
    def __init__(self, **fields: Any) -> None: ...

class MessageBase(StructBase):
    """A whole message, with versions min_version to max_version, flexible from flexible_version on."""

    @classmethod
    def decode(cls, buffer: Buffer, version: int, position: int = ..., max_elements: int = ...) -> Self:
        """The message that starts at `position`; `records` fields are memoryviews of `buffer` (writable if it is).

        Fields that the version lacks have their default.  Bytes after the message are ignored, as Kafka ignores them.
        Raises InvalidRequest naming the field's path and the position; UnsupportedVersion; TooManyElements if the
        arrays have more than max_elements together, before those beyond are read.
        """

    def encode(self, version: int) -> bytes:
        """The message's bytes; file slices are read into them.

        Raises UnsupportedVersion for a value that this version cannot carry, ValueError or TypeError for one that no
        version can, OSError if a file slice was cut meanwhile."""

    def encode_chunks(self, version: int, prefix: bytes = ...) -> list[bytes | FileSlice]:
        """[bytes, slice, bytes, ...]: no two neighbours are bytes; `prefix` goes in front of the first byte."""

    def encode_frame(self, version: int, header: bytes) -> list[bytes | FileSlice]:
        """As encode_chunks, with the 4-byte size of header and message, and the header, in front."""
