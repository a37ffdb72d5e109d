"""Keys and values of __consumer_offsets and __transaction_state decoded, under the names that Kafka's tool gives."""

from __future__ import annotations

from typing import Any

from kcore.coordinator.group.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    read_group_metadata_value,
    read_offset_commit_value,
)
from kcore.coordinator.group.group_records import read_key as read_group_key
from kcore.coordinator.transaction.transaction_log import read_key as read_transaction_key
from kcore.coordinator.transaction.transaction_log import read_value as read_transaction_value

#: What Kafka's tool calls the two halves, and what is in them: {"type" or "version": "N", "data": {...}}.
Decoded = dict[str, Any]


def decode_offsets_record(key: bytes | None, value: bytes | None) -> tuple[Decoded | None, Decoded | None]:
    """Of __consumer_offsets.  Raises CorruptMessage."""
    if key is None:
        return None, None
    parsed = read_group_key(key)
    if parsed is None:
        return _unknown(key, value)
    if isinstance(parsed, OffsetCommitKey):
        tp = parsed.topic_partition
        data = {"group": parsed.group_id, "topic": tp.topic, "partition": tp.partition}
        return _typed("type", key, data), None if value is None else _typed("version", value, _offset_commit(value))
    assert isinstance(parsed, GroupMetadataKey)
    metadata = None if value is None else read_group_metadata_value(value)
    return (
        _typed("type", key, {"group": parsed.group_id}),
        None if metadata is None or value is None else _typed("version", value, _group_metadata(metadata)),
    )


def _offset_commit(value: bytes) -> dict[str, Any]:
    commit = read_offset_commit_value(value)
    data = {
        "offset": commit.offset,
        "leaderEpoch": commit.leader_epoch,
        "metadata": commit.metadata,
        "commitTimestamp": commit.commit_timestamp,
    }
    return data if commit.expire_timestamp is None else data | {"expireTimestamp": commit.expire_timestamp}


def _group_metadata(value: GroupMetadataValue) -> dict[str, Any]:
    return {
        "protocolType": value.protocol_type,
        "generation": value.generation_id,
        "protocol": value.protocol_name,
        "leader": value.leader_id,
        "currentStateTimestamp": value.state_timestamp,
        "members": [
            {
                "memberId": member.member_id,
                "groupInstanceId": member.group_instance_id,
                "clientId": member.client_id,
                "clientHost": member.client_host,
                "rebalanceTimeout": member.rebalance_timeout_ms,
                "sessionTimeout": member.session_timeout_ms,
                "subscription": {"hex": member.subscription.hex()},
                "assignment": {"hex": member.assignment.hex()},
            }
            for member in value.members
        ],
    }


def decode_transaction_record(key: bytes | None, value: bytes | None) -> tuple[Decoded | None, Decoded | None]:
    """Of __transaction_state.  Raises CorruptMessage."""
    if key is None:
        return None, None
    transactional_id = read_transaction_key(key)
    if transactional_id is None:
        return _unknown(key, value)
    shown = _typed("type", key, {"transactionalId": transactional_id})
    if value is None:
        return shown, None
    state = read_transaction_value(value)
    data = {
        "producerId": state.producer_id,
        "previousProducerId": state.previous_producer_id,
        "nextProducerId": state.next_producer_id,
        "producerEpoch": state.producer_epoch,
        "transactionTimeoutMs": state.transaction_timeout_ms,
        "transactionStatus": state.status,
        "transactionPartitions": None
        if state.partitions is None
        else [{"topic": topic, "partitionIds": numbers} for topic, numbers in state.partitions],
        "transactionLastUpdateTimestampMs": state.last_update_timestamp,
        "transactionStartTimestampMs": state.start_timestamp,
        "clientTransactionVersion": state.client_transaction_version,
    }
    optional = ("previousProducerId", "nextProducerId", "clientTransactionVersion")
    kept = {name: field for name, field in data.items() if field is not None or name not in optional}
    return shown, _typed("version", value, kept)


def _typed(name: str, data: bytes, fields: dict[str, Any]) -> Decoded:
    return {name: str(int.from_bytes(data[:2], "big", signed=True)), "data": fields}


def _unknown(key: bytes, value: bytes | None) -> tuple[Decoded, Decoded | None]:
    """Of a type that a newer broker writes."""
    shown = _typed("type", key, {"hex": key.hex()})
    return shown, None if value is None else _typed("version", value, {"hex": value.hex()})
