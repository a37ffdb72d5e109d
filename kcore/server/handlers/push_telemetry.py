"""PushTelemetry (72): a client's metrics, for the broker's receiver (KIP-714)."""

from __future__ import annotations

from kcore.errors import ApiError
from kcore.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from kcore.server.handlers.get_telemetry_subscriptions import client_metadata
from kcore.server.requests.client_telemetry import ClientTelemetryPayload
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.POOL  # the receiver's code

    def __init__(self, services: Services) -> None:
        self._telemetry = services.telemetry

    def handle(self, context: RequestContext, body: PushTelemetryRequest) -> None:
        client = client_metadata(context)
        payload = ClientTelemetryPayload(body.client_instance_id, client, body.terminating, body.metrics)
        try:
            self._telemetry.push(payload, body.subscription_id, body.compression_type, context.request.connection)
        except ApiError as error:
            context.respond(self.error_response(body, error.code, context.api_version))
            return
        context.respond(PushTelemetryResponse())

    def error_response(self, body: PushTelemetryRequest, error_code: int, version: int) -> PushTelemetryResponse:
        return PushTelemetryResponse(error_code=error_code)
