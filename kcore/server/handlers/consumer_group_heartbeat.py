"""ConsumerGroupHeartbeat (68): refused, since the consumer groups of KIP-848 are not served yet.

Consumers with group.protocol=consumer end with the error.  From a broker that does not announce version 1 librdkafka
waits for ever, and says and sends nothing (seen with 2.16).  Source: KafkaApis.handleConsumerGroupHeartbeat with
classic groups only, Kafka 3.9.
"""

from __future__ import annotations

import logging

from kcore.errors import UnsupportedVersion
from kcore.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services

logger = logging.getLogger(__name__)

#: That are named in the log, each once.
_MAX_CLIENTS = 1000
_MESSAGE = "This broker serves classic consumer groups only: set group.protocol=classic."


class Handler:
    runs_on = RunsOn.NETWORK_THREAD

    def __init__(self, services: Services) -> None:
        self._clients: set[tuple[str, str, str]] = set()

    def handle(self, context: RequestContext, body: ConsumerGroupHeartbeatRequest) -> None:
        client = (context.client_id, context.client_address, body.group_id)
        if client not in self._clients and len(self._clients) < _MAX_CLIENTS:
            self._clients.add(client)
            logger.warning(
                "client %r at %s (%s) wants to join group %r by the protocol of KIP-848, which is refused: this broker "
                "serves classic groups only; set group.protocol=classic",
                *client[:2],
                context.client_software,
                body.group_id,
            )
        context.respond(ConsumerGroupHeartbeatResponse(error_code=UnsupportedVersion.code, error_message=_MESSAGE))

    def error_response(
        self, body: ConsumerGroupHeartbeatRequest, error_code: int, version: int
    ) -> ConsumerGroupHeartbeatResponse:
        return ConsumerGroupHeartbeatResponse(error_code=error_code)
