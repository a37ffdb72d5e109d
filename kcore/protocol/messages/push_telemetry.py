"""PushTelemetry (72): a client's metrics (KIP-714)."""

from __future__ import annotations

from uuid import UUID

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, boolean, bytes_, int8, int16, int32, uuid


class PushTelemetryRequest(Message):
    """metrics: an OTLP MetricsData, in this compression."""

    api_key = ApiKey.PUSH_TELEMETRY
    min_version, max_version, flexible_version = 0, 0, 0

    client_instance_id: UUID = uuid()
    subscription_id: int = int32()
    terminating: bool = boolean()
    compression_type: int = int8()
    metrics: bytes = bytes_()


class PushTelemetryResponse(Message):
    api_key = ApiKey.PUSH_TELEMETRY
    min_version, max_version, flexible_version = 0, 0, 0

    throttle_time_ms: int = int32()
    error_code: int = int16()
