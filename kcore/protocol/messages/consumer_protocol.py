"""The consumer protocol: what members of a consumer group put into the opaque metadata of JoinGroup."""

from __future__ import annotations

import struct

from kcore.errors import InvalidRequest
from kcore.protocol.schema import Message, Struct, array, bytes_, int32, string


class TopicPartition(Struct):
    topic: str = string()
    partitions: list[int] = array("int32")


class ConsumerProtocolSubscription(Message):
    """What a member wants: the metadata bytes of JoinGroup for protocol type "consumer", after an int16 version."""

    min_version, max_version, flexible_version = 0, 3, None

    topics: list[str] = array("string")
    user_data: bytes | None = bytes_(nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = array(TopicPartition, "1+", ignorable=True)
    generation_id: int = int32("2+", default=-1, ignorable=True)
    rack_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Message):
    """What a member got: the assignment bytes of SyncGroup for protocol type "consumer", after an int16 version."""

    min_version, max_version, flexible_version = 0, 3, None

    assigned_partitions: list[TopicPartition] = array(TopicPartition)
    user_data: bytes | None = bytes_(nullable="0+", default=None)


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """A subscription of any version.  Raises InvalidRequest for other bytes.

    Where only the fields of version 0 can be read (subscribed_topics() has why), only these are set.
    """
    version = _check_version(metadata, "ConsumerProtocolSubscription")
    try:
        return ConsumerProtocolSubscription.decode(
            metadata, min(version, ConsumerProtocolSubscription.max_version), position=2
        )
    except InvalidRequest:
        return ConsumerProtocolSubscription.decode(metadata, 0, position=2)


def read_assignment(assignment: bytes) -> ConsumerProtocolAssignment:
    """An assignment of any version, all of which have the same fields.  Raises InvalidRequest for other bytes."""
    _check_version(assignment, "ConsumerProtocolAssignment")
    return ConsumerProtocolAssignment.decode(assignment, 0, position=2)


def subscribed_topics(metadata: bytes) -> list[str]:
    """The topics of a subscription of any version.  Raises InvalidRequest for other bytes.

    Every version begins with the fields of version 0, and only these are read: some clients (kafka-go 0.4) send
    version 1 without its owned partitions.
    """
    _check_version(metadata, "ConsumerProtocolSubscription")
    return ConsumerProtocolSubscription.decode(metadata, 0, position=2).topics


def assigned_partitions(assignment: bytes) -> list[TopicPartition]:
    """The partitions of an assignment of any version, all of which begin with the fields of version 0.  Raises
    InvalidRequest for other bytes."""
    return read_assignment(assignment).assigned_partitions


def _check_version(data: bytes, name: str) -> int:
    """Raises InvalidRequest."""
    if len(data) < 2:
        raise InvalidRequest(f"{name}: version expected, {len(data)} bytes left")
    (version,) = struct.unpack_from(">h", data)
    if version < 0:
        raise InvalidRequest(f"{name}: version {version}")
    return int(version)
