"""The records of __consumer_offsets, byte for byte as Kafka writes and reads them.

Every key and value begins with an int16 version.  Keys: 0 and 1 are an offset commit (group, topic, int32 partition),
2 a group's metadata (group).  Values: versions below in the functions; version 4 of both is the flexible encoding
(compact strings, tagged fields).  We write offset commits as version 3 (1 when they carry an expiry) and group
metadata as version 3, as Kafka does.  A null value is a tombstone.
Source: OffsetCommitKey/Value.json, GroupMetadataKey/Value.json, Kafka 3.9.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.committed_offset import OffsetAndMetadata, read_version_3
from kcore.coordinator.record_reader import RecordReader
from kcore.coordinator.record_writer import string
from kcore.errors import CorruptMessage

#: How the key of an offset commit begins.
OFFSET_COMMIT_VERSIONS = (b"\x00\x00", b"\x00\x01")


class OffsetCommitKey(NamedTuple):
    group_id: str
    topic_partition: TopicPartition


class GroupMetadataKey(NamedTuple):
    group_id: str


class MemberValue(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadataValue(NamedTuple):
    """state_timestamp: ms since the epoch, -1 where the version has none."""

    protocol_type: str
    generation_id: int
    protocol_name: str | None
    leader_id: str | None
    state_timestamp: int
    members: list[MemberValue]


def _nullable_string(value: str | None) -> bytes:
    return b"\xff\xff" if value is None else string(value)


def _bytes(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def offset_commit_key(group_id: str, topic_partition: TopicPartition) -> bytes:
    return b"\x00\x01" + string(group_id) + string(topic_partition.topic) + struct.pack(">i", topic_partition.partition)


def offset_commit_value(value: OffsetAndMetadata) -> bytes:
    """Raises ValueError for metadata of more than 32767 bytes."""
    metadata = string(value.metadata)
    if value.expire_timestamp is not None:
        return (
            struct.pack(">hq", 1, value.offset)
            + metadata
            + struct.pack(">qq", value.commit_timestamp, value.expire_timestamp)
        )
    return (
        struct.pack(">hqi", 3, value.offset, value.leader_epoch) + metadata + struct.pack(">q", value.commit_timestamp)
    )


def group_metadata_key(group_id: str) -> bytes:
    return b"\x00\x02" + string(group_id)


def group_metadata_value(value: GroupMetadataValue) -> bytes:
    parts = [
        b"\x00\x03",
        string(value.protocol_type),
        struct.pack(">i", value.generation_id),
        _nullable_string(value.protocol_name),
        _nullable_string(value.leader_id),
        struct.pack(">qi", value.state_timestamp, len(value.members)),
    ]
    for member in value.members:
        parts += (
            string(member.member_id),
            _nullable_string(member.group_instance_id),
            string(member.client_id),
            string(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        )
    return b"".join(parts)


def read_key(data: bytes) -> OffsetCommitKey | GroupMetadataKey | None:
    """None for a key of an unknown version, which a newer broker may have left.  Raises CorruptMessage."""
    if data[:2] in OFFSET_COMMIT_VERSIONS:
        return read_offset_commit_key(data)
    reader = RecordReader(data, "group record key")
    if reader.version == 2:
        return GroupMetadataKey(reader.string())
    return None


def read_offset_commit_key(data: bytes) -> OffsetCommitKey:
    """Of a key that begins with one of OFFSET_COMMIT_VERSIONS.  Raises CorruptMessage."""
    reader = RecordReader(data, "group record key")
    return OffsetCommitKey(reader.string(), TopicPartition(reader.string(), reader.int32()))


def read_offset_commit_value(data: bytes) -> OffsetAndMetadata:
    """Versions 0..4.  Raises CorruptMessage, also for an unknown version: guessing would lose the position."""
    usual = read_version_3(data)
    if usual is not None:
        return usual
    reader = RecordReader(data, "offset commit")
    version = reader.version
    if not 0 <= version <= 4:
        raise CorruptMessage(f"offset commit: unknown version {version}")
    reader.flexible = version >= 4
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.string()
    commit_timestamp = reader.int64()
    expire_timestamp = reader.int64() if version == 1 else -1
    reader.tagged_fields()
    return OffsetAndMetadata(
        offset, metadata, leader_epoch, commit_timestamp, None if expire_timestamp == -1 else expire_timestamp
    )


def read_group_metadata_value(data: bytes) -> GroupMetadataValue:
    """Versions 0..4.  Raises CorruptMessage, also for an unknown version."""
    reader = RecordReader(data, "group metadata")
    version = reader.version
    if not 0 <= version <= 4:
        raise CorruptMessage(f"group metadata: unknown version {version}")
    reader.flexible = version >= 4
    protocol_type = reader.string()
    generation_id = reader.int32()
    protocol_name = reader.nullable_string()
    leader_id = reader.nullable_string()
    state_timestamp = reader.int64() if version >= 2 else -1
    members = []
    for _ in range(reader.array_length()):
        member_id = reader.string()
        group_instance_id = reader.nullable_string() if version >= 3 else None
        client_id, client_host = reader.string(), reader.string()
        rebalance_timeout_ms = reader.int32() if version >= 1 else -1
        session_timeout_ms = reader.int32()
        subscription, assignment = reader.bytes(), reader.bytes()
        reader.tagged_fields()
        members.append(
            MemberValue(
                member_id,
                group_instance_id,
                client_id,
                client_host,
                # Before version 1 the session timeout was the rebalance timeout too.
                rebalance_timeout_ms if version >= 1 else session_timeout_ms,
                session_timeout_ms,
                subscription,
                assignment,
            )
        )
    reader.tagged_fields()
    return GroupMetadataValue(protocol_type, generation_id, protocol_name, leader_id, state_timestamp, members)
