"""AllocateProducerIds (67): a broker gets a block of producer ids from the controller.  Source: KIP-730."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, int16, int32, int64


class AllocateProducerIdsRequest(Message):
    api_key = ApiKey.ALLOCATE_PRODUCER_IDS
    min_version, max_version, flexible_version = 0, 0, 0

    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)


class AllocateProducerIdsResponse(Message):
    api_key = ApiKey.ALLOCATE_PRODUCER_IDS
    min_version, max_version, flexible_version = 0, 0, 0

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id_start: int = int64()
    producer_id_len: int = int32()
