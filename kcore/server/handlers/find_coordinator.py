"""FindCoordinator (10): who coordinates a group or a transactional id.

Makes the coordinator's topic when it is first needed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from kcore.errors import (
    NONE,
    CoordinatorNotAvailable,
    InvalidRequest,
    LeaderNotAvailable,
)
from kcore.metadata.metadata_cache import Endpoint
from kcore.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from kcore.security.acl import AclOperation
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services
from kcore.server.topics.coordinator_types import COORDINATOR_TYPES

_NOBODY, _NOWHERE = -1, Endpoint("", -1)


class _Found(NamedTuple):
    error_code: int
    error_message: str | None
    node_id: int = _NOBODY
    endpoint: Endpoint = _NOWHERE


class Handler:
    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self._admin = services.admin_manager
        self._coordinators = services.coordinators
        self._auth = services.auth

    def runs_on(self, context: RequestContext, body: FindCoordinatorRequest) -> RunsOn:
        kind = COORDINATOR_TYPES.get(body.key_type)
        creates = kind is not None and self._cache.topic(kind.topic) is None
        return RunsOn.TOPIC_CHANGES if creates else RunsOn.NETWORK_THREAD

    def handle(self, context: RequestContext, body: FindCoordinatorRequest) -> None:
        if context.api_version >= 4:
            coordinators = {key: self._find(body.key_type, key, context) for key in body.coordinator_keys}
            context.respond(
                FindCoordinatorResponse(
                    coordinators=[
                        Coordinator(
                            key=key,
                            node_id=node_id,
                            host=endpoint.host,
                            port=endpoint.port,
                            error_code=error_code,
                            error_message=error_message,
                        )
                        for key, (error_code, error_message, node_id, endpoint) in coordinators.items()
                    ]
                )
            )
            return
        error_code, error_message, node_id, endpoint = self._find(body.key_type, body.key, context)
        context.respond(
            FindCoordinatorResponse(
                error_code=error_code,
                error_message=error_message,
                node_id=node_id,
                host=endpoint.host,
                port=endpoint.port,
            )
        )

    def _find(self, key_type: int, key: str, context: RequestContext) -> _Found:
        kind = COORDINATOR_TYPES.get(key_type)
        if kind is None:
            return _Found(InvalidRequest.code, f"Unknown coordinator type {key_type}.")
        if not self._auth.authorize(context, AclOperation.DESCRIBE, kind.resource_type, key):
            return _Found(kind.authorization_error.code, str(kind.authorization_error))
        topic = self._cache.topic(kind.topic)
        if topic is None:
            # Whatever auto.create.topics.enable says: without this topic there is no coordinator.
            with suppress(LeaderNotAvailable):  # the store cannot be reached
                self._admin.auto_create_topic(kind.topic)
            topic = self._cache.topic(kind.topic)
        info = topic.partitions.get(self._coordinators.partition_for(kind.topic, key)) if topic is not None else None
        endpoint = self._cache.snapshot.endpoint(info.leader, context.listener_name) if info is not None else None
        if info is None or endpoint is None:
            return _Found(CoordinatorNotAvailable.code, "The coordinator is not available.")
        return _Found(NONE, None, info.leader, endpoint)

    def error_response(self, body: FindCoordinatorRequest, error_code: int, version: int) -> FindCoordinatorResponse:
        if version >= 4:
            return FindCoordinatorResponse(
                coordinators=[
                    Coordinator(key=key, node_id=-1, port=-1, error_code=error_code) for key in body.coordinator_keys
                ]
            )
        return FindCoordinatorResponse(error_code=error_code, node_id=-1, port=-1)
