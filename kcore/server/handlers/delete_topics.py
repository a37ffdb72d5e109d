"""DeleteTopics (20): by name, from version 6 also by id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID

from kcore.common.topic_partition import ZERO_UUID
from kcore.errors import (
    NONE,
    ApiError,
    InvalidRequest,
    NotController,
    RequestTimedOut,
    TopicAuthorizationFailed,
    TopicDeletionDisabled,
    UnknownTopicId,
    code_of,
)
from kcore.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.quotas.controller_mutation_quotas import MutationQuota
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services
from kcore.server.topics.topic_changes import IsDone, is_gone

#: Older clients do not know the error of an exceeded quota.
_FIRST_STRICT = 5


class _Permissions(NamedTuple):
    """Names of topics that the client may describe and delete."""

    describe: Collection[str]
    delete: Collection[str]


class Handler:
    runs_on = RunsOn.TOPIC_CHANGES

    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self._admin = services.admin_manager
        self._config = services.config
        self._auth = services.auth
        self._quotas = services.client_quotas.controller_mutation

    def handle(self, context: RequestContext, body: DeleteTopicsRequest) -> None:
        if not self._admin.is_controller:
            context.respond(self.error_response(body, NotController.code, context.api_version))
            return
        if not self._config["delete.topic.enable"]:
            error = InvalidRequest if context.api_version < 3 else TopicDeletionDisabled
            context.respond(self.error_response(body, error.code, context.api_version))
            return
        # Resolved once: what is permitted below is what is deleted.
        snapshot = self._cache.snapshot
        names_by_id = {topic.topic_id: snapshot.topic_name(topic.topic_id) for topic in _asked(body)}
        permissions = self._permissions(context, body, names_by_id)
        names = Counter(topic.name for topic in _asked(body) if topic.name is not None)
        ids = Counter(topic.topic_id for topic in _asked(body) if topic.topic_id != ZERO_UUID)
        quota = self._quotas.of_request(
            context.principal.name, context.client_id, is_strict=context.api_version >= _FIRST_STRICT
        )
        responses = []
        deleted: dict[str, IsDone] = {}
        answered: set[tuple[str | None, UUID]] = set()
        for topic in _asked(body):
            key = (topic.name, topic.topic_id)
            if key in answered:
                continue
            answered.add(key)
            duplicate = (topic.name is not None and names[topic.name] > 1) or ids[topic.topic_id] > 1
            resolved = names_by_id[topic.topic_id] if topic.name is None else topic.name
            responses.append(self._delete(topic, resolved, duplicate, permissions, deleted, quota))

        def respond(missing: Collection[str]) -> None:
            for response in responses:
                if response.error_code == NONE and response.name in missing:
                    response.error_code = RequestTimedOut.code
                    response.error_message = "The topic is being deleted."
            context.respond(DeleteTopicsResponse(responses=responses), quota.throttle_ms)

        self._admin.when_done(deleted, body.timeout_ms, respond)

    def _permissions(
        self, context: RequestContext, body: DeleteTopicsRequest, names_by_id: dict[UUID, str | None]
    ) -> _Permissions:
        asked = [names_by_id[topic.topic_id] if topic.name is None else topic.name for topic in _asked(body)]
        names = [name for name in asked if name is not None]
        describe, delete = AclOperation.DESCRIBE, AclOperation.DELETE
        return _Permissions(
            self._auth.filter_by_authorized(context, describe, ResourceType.TOPIC, names),
            self._auth.filter_by_authorized(context, delete, ResourceType.TOPIC, names),
        )

    def _delete(
        self,
        asked: DeleteTopicState,
        resolved: str | None,
        duplicate: bool,
        permissions: _Permissions,
        deleted: dict[str, IsDone],
        quota: MutationQuota,
    ) -> DeletableTopicResult:
        """Delete one topic; adds to `deleted` what must be waited for.  resolved: its name, None for an unknown id."""
        name, topic_id = asked.name, asked.topic_id
        try:
            if name is not None and topic_id != ZERO_UUID:
                raise InvalidRequest("You may not specify both topic name and topic id.")
            if name is None and topic_id == ZERO_UUID:
                raise InvalidRequest("Neither topic name nor id were specified.")
            if duplicate:
                raise InvalidRequest("Duplicate topic name." if name is not None else "Duplicate topic id.")
            if name is None:
                if resolved is None:
                    raise UnknownTopicId(f"No topic has the id {topic_id}.")
                if resolved not in permissions.describe:  # nor may the client know its name
                    raise TopicAuthorizationFailed("Authorization failed.")
                name = resolved
            if name not in permissions.delete:
                raise TopicAuthorizationFailed("Authorization failed.")
            quota.check()
            topic = self._admin.delete_topic(name)
        except ApiError as error:
            return DeletableTopicResult(
                name=name, topic_id=topic_id, error_code=code_of(error), error_message=str(error)
            )
        quota.record(len(topic.partitions))
        deleted[topic.name] = is_gone(topic)
        return DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=NONE)

    def error_response(self, body: DeleteTopicsRequest, error_code: int, version: int) -> DeleteTopicsResponse:
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=error_code)
                for topic in _asked(body)
            ]
        )


def _asked(body: DeleteTopicsRequest) -> list[DeleteTopicState]:
    return body.topics or [DeleteTopicState(name=name) for name in body.topic_names]
