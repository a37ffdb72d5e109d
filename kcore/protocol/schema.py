"""How a message is declared: a class whose attributes are typed fields with version ranges.

    class FetchPartition(Struct):
        partition: int = int32()
        current_leader_epoch: int = int32("9+", default=-1, ignorable=True)

    class FetchRequest(Message):
        api_key = ApiKey.FETCH
        min_version, max_version, flexible_version = 0, 18, 12
        topics: list[FetchTopic] = array(FetchTopic)

The attributes become slots and keyword arguments with defaults; names are Kafka's in snake_case, order is wire order.
A field's parameters: `versions` in which it exists ("3+", "0-7", "4"), `nullable` versions in which it may be None,
`default`, `tag` (then it is written only if it differs from its default), `ignorable`: whether a version that lacks
the field may drop a value silently; if not, writing anything but the default there raises UnsupportedVersion.
The defaults without `default` are Kafka's: 0, False, "", b"", no elements, a struct of defaults, None for records.
"""

from __future__ import annotations

from typing import Any, ClassVar, dataclass_transform

from kcore.common.topic_partition import ZERO_UUID
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.codec import Field, Layout, MessageBase, StructBase

#: A `records` field: decoded it is a memoryview of the request's buffer; to encode it may be bytes-like,
#: a MemoryRecords or a FileRecords.  Not spelled out because protocol/ does not know record/.
Records = Any

_NEWEST = 0x7FFF
_UNSET: Any = object()


def _versions(text: str) -> tuple[int, int]:
    """("3+") -> (3, newest); ("0-7") -> (0, 7); ("4") -> (4, 4)."""
    if text.endswith("+"):
        return int(text[:-1]), _NEWEST
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _declare(type_name: str, zero: Any) -> Any:
    def field(
        versions: str = "0+", *, nullable: str = "", default: Any = _UNSET, tag: int = -1, ignorable: bool = False
    ) -> Any:
        return Field(
            type_name,
            _versions(versions),
            _versions(nullable) if nullable else None,
            zero if default is _UNSET else default,
            tag,
            ignorable,
        )

    field.__name__ = type_name
    field.__doc__ = f"A field of type {type_name}."
    return field


boolean = _declare("bool", False)
int8 = _declare("int8", 0)
int16 = _declare("int16", 0)
int32 = _declare("int32", 0)
int64 = _declare("int64", 0)
float64 = _declare("float64", 0.0)
uuid = _declare("uuid", ZERO_UUID)
string = _declare("string", "")
bytes_ = _declare("bytes", b"")
record_set = _declare("records", None)


def array(
    of: str | type[Struct],
    versions: str = "0+",
    *,
    nullable: str = "",
    default: Any = (),
    tag: int = -1,
    ignorable: bool = False,
) -> Any:
    """A list of structs, or of a primitive type named by Kafka's name ("int32", "string")."""
    element, element_struct = (of, None) if isinstance(of, str) else ("struct", of)
    return Field(
        "array",
        _versions(versions),
        _versions(nullable) if nullable else None,
        default,
        tag,
        ignorable,
        element,
        element_struct,
    )


def struct(
    of: type[Struct],
    versions: str = "0+",
    *,
    nullable: str = "",
    default: Any = (),
    tag: int = -1,
    ignorable: bool = False,
) -> Any:
    """A single nested struct; default None where Kafka's is null, else a struct of defaults."""
    return Field(
        "struct", _versions(versions), _versions(nullable) if nullable else None, default, tag, ignorable, None, of
    )


@dataclass_transform(kw_only_default=True)
class _StructType(type):
    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
        fields = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        rest = {key: value for key, value in namespace.items() if key not in fields}
        cls = super().__new__(mcs, name, bases, {**rest, "__slots__": tuple(fields)})
        for key, field in fields.items():
            field.name = key
        cls._layout = Layout(cls, tuple(fields.values()))  # type: ignore[attr-defined]
        return cls


class Struct(StructBase, metaclass=_StructType):
    """A part of a message.  Not thread-safe, like any mutable object."""


class Message(MessageBase, metaclass=_StructType):
    """A request, a response, or data inside another message.  Not thread-safe."""

    #: Of requests and responses.
    api_key: ClassVar[ApiKey]
    #: Versions of the message that the codec knows; which of them a broker announces is in api_keys.SUPPORTED.
    min_version: ClassVar[int]
    max_version: ClassVar[int]
    #: First version with compact lengths and tagged fields; None if there is none.
    flexible_version: ClassVar[int | None]
