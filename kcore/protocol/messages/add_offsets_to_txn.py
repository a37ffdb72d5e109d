"""AddOffsetsToTxn (25): a transaction is about to commit offsets of a group."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, int16, int32, int64, string


class AddOffsetsToTxnRequest(Message):
    """Add the group's partition of the offsets topic to the transaction."""

    api_key = ApiKey.ADD_OFFSETS_TO_TXN
    min_version, max_version, flexible_version = 0, 4, 3

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


class AddOffsetsToTxnResponse(Message):
    """Whether it was added."""

    api_key = ApiKey.ADD_OFFSETS_TO_TXN
    min_version, max_version, flexible_version = 0, 4, 3

    throttle_time_ms: int = int32(ignorable=True)
    error_code: int = int16()
