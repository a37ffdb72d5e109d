"""Heartbeat (12): stay in a consumer group."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, int16, int32, string


class HeartbeatRequest(Message):
    """I am alive; answers whether a rebalance is on."""

    api_key = ApiKey.HEARTBEAT
    min_version, max_version, flexible_version = 0, 4, 4

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None)


class HeartbeatResponse(Message):
    """Only an error code."""

    api_key = ApiKey.HEARTBEAT
    min_version, max_version, flexible_version = 0, 4, 4

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()
