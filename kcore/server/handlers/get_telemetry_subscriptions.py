"""GetTelemetrySubscriptions (71): which of its metrics a client is to push (KIP-714)."""

from __future__ import annotations

from kcore.errors import ApiError
from kcore.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from kcore.server.requests.client_telemetry import ClientMetadata
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services

#: zstd, lz4, gzip, snappy: a client uses the first one that it has.
_COMPRESSION_TYPES = [4, 3, 1, 2]


class Handler:
    runs_on = RunsOn.POOL  # expressions over what the client says of itself

    def __init__(self, services: Services) -> None:
        self._telemetry = services.telemetry

    def handle(self, context: RequestContext, body: GetTelemetrySubscriptionsRequest) -> None:
        try:
            client_instance_id, subscription = self._telemetry.get_subscription(
                body.client_instance_id, client_metadata(context), context.request.connection
            )
        except ApiError as error:
            context.respond(self.error_response(body, error.code, context.api_version))
            return
        context.respond(
            GetTelemetrySubscriptionsResponse(
                client_instance_id=client_instance_id,
                subscription_id=subscription.subscription_id,
                accepted_compression_types=_COMPRESSION_TYPES,
                push_interval_ms=subscription.interval_ms,
                telemetry_max_bytes=self._telemetry.max_bytes,
                delta_temporality=True,
                requested_metrics=subscription.metrics,
            )
        )

    def error_response(
        self, body: GetTelemetrySubscriptionsRequest, error_code: int, version: int
    ) -> GetTelemetrySubscriptionsResponse:
        return GetTelemetrySubscriptionsResponse(error_code=error_code)


def client_metadata(context: RequestContext) -> ClientMetadata:
    name, _, version = context.client_software.partition(" ")
    connection = context.request.connection.context
    return ClientMetadata(context.client_id, name, version, connection.client_address, connection.client_port)
