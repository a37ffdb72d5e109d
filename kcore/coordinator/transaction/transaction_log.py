"""The records of __transaction_state, as Kafka writes them.

Every key and value begins with an int16 version.  Key 0: the transactional id.  Values 0 and 1: the state of its
transaction; version 1 is the flexible encoding (compact strings, tagged fields).  A null value is a tombstone.
Kafka writes version 0 at transaction version 0, and version 1 above it.
Source: TransactionLogKey/Value.json, Kafka 4.x.
"""

from __future__ import annotations

import struct
from collections.abc import Sized
from typing import NamedTuple

from kcore.coordinator.record_reader import RecordReader
from kcore.coordinator.record_writer import compact_string, string, tagged_fields, unsigned_varint
from kcore.errors import CorruptMessage


class TransactionLogValue(NamedTuple):
    """Timestamps in ms, -1 for none.  partitions: topic -> partitions, None where the transaction has none to name.

    previous_producer_id, next_producer_id and client_transaction_version are None where the record does not say.
    """

    version: int
    producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    #: 0 Empty, 1 Ongoing, 2 PrepareCommit, 3 PrepareAbort, 4 CompleteCommit, 5 CompleteAbort, 6 Dead,
    #: 7 PrepareEpochFence
    status: int
    partitions: list[tuple[str, list[int]]] | None
    last_update_timestamp: int
    start_timestamp: int
    previous_producer_id: int | None = None
    next_producer_id: int | None = None
    client_transaction_version: int | None = None


def transaction_log_key(transactional_id: str) -> bytes:
    return b"\x00\x00" + string(transactional_id)


def transaction_log_value(value: TransactionLogValue) -> bytes:
    """In its version; version 0 has none of the last three fields."""
    is_flexible = value.version >= 1
    head = (value.version, value.producer_id, value.producer_epoch, value.transaction_timeout_ms, value.status)
    parts = [struct.pack(">hqhib", *head), _array_length(value.partitions, is_flexible)]
    for topic, numbers in value.partitions or ():
        parts.append(compact_string(topic) if is_flexible else string(topic))
        parts += (_array_length(numbers, is_flexible), struct.pack(f">{len(numbers)}i", *numbers))
        if is_flexible:
            parts.append(tagged_fields({}))
    parts.append(struct.pack(">qq", value.last_update_timestamp, value.start_timestamp))
    if is_flexible:
        fields = zip((0, 1, 2), (">q", ">q", ">h"), value[-3:], strict=True)
        parts.append(tagged_fields({tag: struct.pack(form, n) for tag, form, n in fields if n is not None}))
    return b"".join(parts)


def _array_length(items: Sized | None, is_flexible: bool) -> bytes:
    if is_flexible:
        return unsigned_varint(0 if items is None else len(items) + 1)
    return struct.pack(">i", -1 if items is None else len(items))


def read_key(data: bytes) -> str | None:
    """The transactional id; None for a key of an unknown version.  Raises CorruptMessage."""
    reader = RecordReader(data, "transaction log key")
    return reader.string() if reader.version == 0 else None


def read_value(data: bytes) -> TransactionLogValue:
    """Versions 0 and 1.  Raises CorruptMessage, also for an unknown version."""
    reader = RecordReader(data, "transaction state")
    version = reader.version
    if version not in (0, 1):
        raise CorruptMessage(f"transaction state: unknown version {version}")
    reader.flexible = version >= 1
    producer_id, producer_epoch = reader.int64(), reader.int16()
    timeout_ms, status = reader.int32(), reader.int8()
    count = reader.array_length()
    partitions: list[tuple[str, list[int]]] | None = None if count < 0 else []
    for _ in range(count):
        topic = reader.string()
        numbers = [reader.int32() for _ in range(reader.array_length())]
        reader.tagged_fields()
        assert partitions is not None
        partitions.append((topic, numbers))
    last_update_timestamp, start_timestamp = reader.int64(), reader.int64()
    tagged = reader.tagged_fields()
    return TransactionLogValue(
        version,
        producer_id,
        producer_epoch,
        timeout_ms,
        status,
        partitions,
        last_update_timestamp,
        start_timestamp,
        *(int.from_bytes(tagged[tag], "big", signed=True) if tag in tagged else None for tag in (0, 1, 2)),
    )
