"""EndTxn (26): commit or abort a transaction."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, boolean, int16, int32, int64, string


class EndTxnRequest(Message):
    """committed: whether to commit; else to abort."""

    api_key = ApiKey.END_TXN
    min_version, max_version, flexible_version = 0, 5, 3

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(Message):
    """From version 5 with the producer id and epoch to go on with."""

    api_key = ApiKey.END_TXN
    min_version, max_version, flexible_version = 0, 5, 3

    throttle_time_ms: int = int32(ignorable=True)
    error_code: int = int16()
    producer_id: int = int64("5+", default=-1, ignorable=True)
    producer_epoch: int = int16("5+", default=-1, ignorable=True)
