"""DescribeCluster (60)."""

from __future__ import annotations

from kcore.errors import NONE, MismatchedEndpointType, UnsupportedEndpointType
from kcore.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from kcore.server.requests.auth_helper import NOT_ASKED
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services

_BROKERS, _CONTROLLERS = 1, 2


class Handler:
    runs_on = RunsOn.NETWORK_THREAD

    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self._auth = services.auth

    def handle(self, context: RequestContext, body: DescribeClusterRequest) -> None:
        if body.endpoint_type != _BROKERS:
            error = MismatchedEndpointType if body.endpoint_type == _CONTROLLERS else UnsupportedEndpointType
            response = self.error_response(body, error.code, context.api_version)
            response.error_message = "The request was sent to an endpoint of brokers."
            context.respond(response)
            return
        snapshot = self._cache.snapshot
        endpoints = snapshot.endpoints(context.listener_name)
        is_reachable = any(broker.node_id == snapshot.controller_id for broker, _ in endpoints)
        context.respond(
            DescribeClusterResponse(
                error_code=NONE,
                cluster_id=snapshot.cluster_id,
                controller_id=snapshot.controller_id if is_reachable else -1,
                brokers=[
                    DescribeClusterBroker(
                        broker_id=broker.node_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                    )
                    for broker, endpoint in endpoints
                ],
                cluster_authorized_operations=(
                    self._auth.cluster_operations(context) if body.include_cluster_authorized_operations else NOT_ASKED
                ),
            )
        )

    def error_response(self, body: DescribeClusterRequest, error_code: int, version: int) -> DescribeClusterResponse:
        # An unknown endpoint type cannot be repeated to the client; what it sent was for brokers.
        return DescribeClusterResponse(error_code=error_code)
