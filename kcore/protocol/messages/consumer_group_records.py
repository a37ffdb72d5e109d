"""Consumer groups of KIP-848 in __consumer_offsets: what follows the int16 version of a record's key or value.

A key's version is the type of the record; the values have version 0.
"""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

from kcore.errors import CorruptMessage, InvalidRequest, UnsupportedVersion
from kcore.protocol.schema import Message, Struct, array, bytes_, int8, int32, int64, string, struct, uuid


class ConsumerGroupRecordKey(Message):
    """Of records of a whole group: types 3, 4 and 6."""

    min_version, max_version, flexible_version = 0, 0, None

    group_id: str = string()


class ConsumerGroupMemberRecordKey(Message):
    """Of records of one member: types 5, 7 and 8."""

    min_version, max_version, flexible_version = 0, 0, None

    group_id: str = string()
    member_id: str = string()


class ConsumerGroupMetadataValue(Message):
    """Type 3: the group epoch."""

    min_version, max_version, flexible_version = 0, 0, 0

    epoch: int = int32()
    #: Of the subscribed topics; since Kafka 4.1.
    metadata_hash: int = int64(tag=0)


class ClassicProtocol(Struct):
    name: str = string()
    metadata: bytes = bytes_()


class ClassicMemberMetadata(Struct):
    """Of a member that uses the classic protocol in such a group."""

    session_timeout_ms: int = int32()
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)


class ConsumerGroupMemberMetadataValue(Message):
    """Type 5: who a member is and what it wants.

    classic_member_metadata: None for a member of the new protocol; for Kafka a record without the tag is of a classic
    member, without protocols.
    """

    min_version, max_version, flexible_version = 0, 0, 0

    instance_id: str | None = string(nullable="0+")
    rack_id: str | None = string(nullable="0+")
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array("string")
    subscribed_topic_regex: str | None = string(nullable="0+")
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = struct(ClassicMemberMetadata, nullable="0+", tag=0)


class ConsumerGroupTargetAssignmentMetadataValue(Message):
    """Type 6: the group epoch that the target was computed for."""

    min_version, max_version, flexible_version = 0, 0, 0

    assignment_epoch: int = int32()
    #: When, in ms since the epoch; since Kafka 4.3.
    assignment_timestamp: int = int64(tag=0)


class TargetTopicPartitions(Struct):
    topic_id: UUID = uuid()
    partitions: list[int] = array("int32")


class ConsumerGroupTargetAssignmentMemberValue(Message):
    """Type 7: what a member shall own."""

    min_version, max_version, flexible_version = 0, 0, 0

    topic_partitions: list[TargetTopicPartitions] = array(TargetTopicPartitions)


class CurrentTopicPartitions(Struct):
    topic_id: UUID = uuid()
    partitions: list[int] = array("int32")
    #: Since when the member has each of them; since Kafka 4.3.
    assignment_epochs: list[int] | None = array("int32", nullable="0+", default=None, tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(Message):
    """Type 8: what a member has, and has to give up."""

    min_version, max_version, flexible_version = 0, 0, 0

    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[CurrentTopicPartitions] = array(CurrentTopicPartitions)
    partitions_pending_revocation: list[CurrentTopicPartitions] = array(CurrentTopicPartitions)


class ConsumerGroupRegularExpressionKey(Message):
    """Of type 16."""

    min_version, max_version, flexible_version = 0, 0, None

    group_id: str = string()
    regular_expression: str = string()


class ConsumerGroupRegularExpressionValue(Message):
    """Type 16: the topics that match a regular expression, and when they did, in ms since the epoch.

    version: of the metadata that were looked at, the offset of their image.
    """

    min_version, max_version, flexible_version = 0, 0, 0

    topics: list[str] = array("string")
    version: int = int64()
    timestamp: int = int64()


M = TypeVar("M", bound=Message)


def read_key(message_class: type[M], data: bytes) -> M:
    """A key whose type is known.  Raises CorruptMessage."""
    try:
        return message_class.decode(data, 0, position=2)
    except (InvalidRequest, UnsupportedVersion) as error:
        raise CorruptMessage(f"{message_class.__name__}: {error}") from error


def read_value(message_class: type[M], data: bytes) -> M:
    """Raises CorruptMessage, also for a version that is not known."""
    if data[:2] != b"\0\0":
        raise CorruptMessage(f"{message_class.__name__}: unknown version {data[:2].hex()}")
    return read_key(message_class, data)
