"""Control records: what a control batch holds, above all the markers that end a transaction.

Key: int16 version, int16 type.  Value of a COMMIT or ABORT: int16 version, int32 coordinator epoch.
Source: KIP-98; ControlRecordType, EndTransactionMarker.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from kcore.errors import InvalidRecord

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0


class ControlRecordType(IntEnum):
    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class EndTransactionMarker(NamedTuple):
    """The end of a transaction: type is COMMIT or ABORT."""

    type: ControlRecordType
    coordinator_epoch: int

    def key(self) -> bytes:
        return _KEY.pack(_VERSION, self.type)

    def value(self) -> bytes:
        return _VALUE.pack(_VERSION, self.coordinator_epoch)


def control_record_type(key: bytes | None) -> ControlRecordType:
    """What a control record's key says.  UNKNOWN for a type of the future, to be skipped; InvalidRecord for a key
    that cannot be one."""
    if key is None or len(key) < _KEY.size:
        raise InvalidRecord(f"control record key of {0 if key is None else len(key)} bytes, it takes {_KEY.size}")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise InvalidRecord(f"control record key of version {version}")
    try:
        return ControlRecordType(number)
    except ValueError:
        return ControlRecordType.UNKNOWN


def parse_end_transaction_marker(key: bytes | None, value: bytes | None) -> EndTransactionMarker:
    """The marker a control record holds; a later version's additional fields are left out.  Raises InvalidRecord
    for anything but a COMMIT or ABORT that is complete."""
    kind = control_record_type(key)
    if kind not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        raise InvalidRecord(f"control record of type {kind.name} does not end a transaction")
    if value is None or len(value) < _VALUE.size:
        size = 0 if value is None else len(value)
        raise InvalidRecord(f"{kind.name} marker value of {size} bytes, it takes {_VALUE.size}")
    version, coordinator_epoch = _VALUE.unpack_from(value)
    if version < 0:
        raise InvalidRecord(f"{kind.name} marker value of version {version}")
    return EndTransactionMarker(kind, coordinator_epoch)
