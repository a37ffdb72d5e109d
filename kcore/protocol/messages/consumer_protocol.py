"""The consumer protocol: what group members put into the opaque bytes of JoinGroup and SyncGroup."""

from __future__ import annotations

import struct

from kcore.errors import InvalidRequest
from kcore.protocol.schema import Message, Struct, array, bytes_, int32, string


class TopicPartition(Struct):
    topic: str = string()
    partitions: list[int] = array("int32")


class ConsumerProtocolSubscription(Message):
    """What a member wants: the metadata bytes of JoinGroup for protocol type "consumer"."""

    min_version, max_version, flexible_version = 0, 3, None

    topics: list[str] = array("string")
    user_data: bytes | None = bytes_(nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = array(TopicPartition, "1+", ignorable=True)
    generation_id: int = int32("2+", default=-1, ignorable=True)
    rack_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Message):
    """What a member gets: the assignment bytes of SyncGroup for protocol type "consumer"."""

    min_version, max_version, flexible_version = 0, 3, None

    assigned_partitions: list[TopicPartition] = array(TopicPartition)
    user_data: bytes | None = bytes_(nullable="0+", default=None)


def serialize_subscription(subscription: ConsumerProtocolSubscription, version: int = 3) -> bytes:
    """The metadata bytes of a JoinGroup request: an int16 version, then the message."""
    return struct.pack(">h", version) + subscription.encode(version)


def deserialize_subscription(data: bytes | bytearray | memoryview) -> ConsumerProtocolSubscription:
    """Reads what serialize_subscription wrote.  Raises InvalidRequest."""
    return ConsumerProtocolSubscription.decode(data, _version(data, ConsumerProtocolSubscription), 2)


def serialize_assignment(assignment: ConsumerProtocolAssignment, version: int = 3) -> bytes:
    """The assignment bytes of a SyncGroup request: an int16 version, then the message."""
    return struct.pack(">h", version) + assignment.encode(version)


def deserialize_assignment(data: bytes | bytearray | memoryview) -> ConsumerProtocolAssignment:
    """Reads what serialize_assignment wrote.  Raises InvalidRequest."""
    return ConsumerProtocolAssignment.decode(data, _version(data, ConsumerProtocolAssignment), 2)


def _version(data: bytes | bytearray | memoryview, message: type[Message]) -> int:
    """A newer version than ours only has more fields at its end: it is read as our newest (ConsumerProtocol, Kafka)."""
    if len(data) < 2:
        raise InvalidRequest(f"{message.__name__}: version expected, {len(data)} bytes left")
    (version,) = struct.unpack_from(">h", data)
    if version < 0:
        raise InvalidRequest(f"{message.__name__}: version {version}")
    return min(version, message.max_version)
