"""InitProducerId (22): a producer id and epoch."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, boolean, int16, int32, int64, string


class InitProducerIdRequest(Message):
    """Get a producer id and epoch; without a transactional id a new one each time."""

    api_key = ApiKey.INIT_PRODUCER_ID
    min_version, max_version, flexible_version = 0, 6, 2

    transactional_id: str | None = string(nullable="0+")
    transaction_timeout_ms: int = int32()
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)
    enable_2pc: bool = boolean("6+")
    keep_prepared_txn: bool = boolean("6+")


class InitProducerIdResponse(Message):
    """The producer id and epoch to use."""

    api_key = ApiKey.INIT_PRODUCER_ID
    min_version, max_version, flexible_version = 0, 6, 2

    throttle_time_ms: int = int32(ignorable=True)
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
    ongoing_txn_producer_id: int = int64("6+", default=-1)
    ongoing_txn_producer_epoch: int = int16("6+", default=-1)
