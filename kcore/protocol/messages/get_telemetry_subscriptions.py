"""GetTelemetrySubscriptions (71): which of its metrics a client is to push (KIP-714)."""

from __future__ import annotations

from uuid import UUID

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, array, boolean, int16, int32, uuid


class GetTelemetrySubscriptionsRequest(Message):
    """client_instance_id: zero for a new one."""

    api_key = ApiKey.GET_TELEMETRY_SUBSCRIPTIONS
    min_version, max_version, flexible_version = 0, 0, 0

    client_instance_id: UUID = uuid()


class GetTelemetrySubscriptionsResponse(Message):
    """requested_metrics: beginnings of names; none for no metrics, "*" or an empty one for all."""

    api_key = ApiKey.GET_TELEMETRY_SUBSCRIPTIONS
    min_version, max_version, flexible_version = 0, 0, 0

    throttle_time_ms: int = int32()
    error_code: int = int16()
    client_instance_id: UUID = uuid()
    subscription_id: int = int32()
    accepted_compression_types: list[int] = array("int8")
    push_interval_ms: int = int32()
    telemetry_max_bytes: int = int32()
    delta_temporality: bool = boolean()
    requested_metrics: list[str] = array("string")
