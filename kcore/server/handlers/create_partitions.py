"""CreatePartitions (37)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from kcore.errors import (
    NONE,
    ApiError,
    InvalidRequest,
    NotController,
    PolicyViolation,
    RequestTimedOut,
    TopicAuthorizationFailed,
    code_of,
)
from kcore.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.quotas.controller_mutation_quotas import MutationQuota
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services
from kcore.server.topics.admin_manager import check_num_partitions
from kcore.server.topics.topic_changes import has_partitions

#: Older clients do not know the error of an exceeded quota.
_FIRST_STRICT = 3


class Handler:
    runs_on = RunsOn.TOPIC_CHANGES

    def __init__(self, services: Services) -> None:
        self._admin = services.admin_manager
        self._auth = services.auth
        self._quotas = services.client_quotas.controller_mutation

    def handle(self, context: RequestContext, body: CreatePartitionsRequest) -> None:
        if not self._admin.is_controller:
            context.respond(self.error_response(body, NotController.code, context.api_version))
            return
        names = Counter(topic.name for topic in body.topics)
        permitted = self._auth.filter_by_authorized(context, AclOperation.ALTER, ResourceType.TOPIC, names)
        # Before any is created: what is asked for is refused as a whole.
        growable = [topic for topic in body.topics if names[topic.name] == 1 and topic.name in permitted]
        try:
            check_num_partitions(sum(self._admin.num_added(topic.name, topic.count) for topic in growable))
        except PolicyViolation as error:
            context.respond(CreatePartitionsResponse(results=[_result(name, error) for name in names]))
            return
        quota = self._quotas.of_request(
            context.principal.name, context.client_id, is_strict=context.api_version >= _FIRST_STRICT
        )
        results = {}
        for topic in body.topics:
            if names[topic.name] > 1:
                results[topic.name] = _result(topic.name, InvalidRequest("Duplicate topic name."))
            elif topic.name not in permitted:
                results[topic.name] = _result(topic.name, TopicAuthorizationFailed("Authorization failed."))
            else:
                results[topic.name] = self._grow(topic, body.validate_only, quota)
        grown = {
            topic.name: has_partitions(topic.name, topic.count)
            for topic in body.topics
            if results[topic.name].error_code == NONE and not body.validate_only
        }

        def respond(missing: Collection[str]) -> None:
            for name in missing:
                results[name] = _result(name, RequestTimedOut("The controller has not elected leaders yet."))
            context.respond(CreatePartitionsResponse(results=list(results.values())), quota.throttle_ms)

        self._admin.when_done(grown, body.timeout_ms, respond)

    def _grow(
        self, topic: CreatePartitionsTopic, validate_only: bool, quota: MutationQuota
    ) -> CreatePartitionsTopicResult:
        assignments = None if topic.assignments is None else [item.broker_ids for item in topic.assignments]
        added = self._admin.num_added(topic.name, topic.count)
        try:
            if not validate_only:
                quota.check()
            self._admin.create_partitions(topic.name, topic.count, assignments, validate_only)
        except ApiError as error:
            return _result(topic.name, error)
        if not validate_only:
            quota.record(added)
        return _result(topic.name, None)

    def error_response(self, body: CreatePartitionsRequest, error_code: int, version: int) -> CreatePartitionsResponse:
        return CreatePartitionsResponse(
            results=[CreatePartitionsTopicResult(name=topic.name, error_code=error_code) for topic in body.topics]
        )


def _result(name: str, error: ApiError | None) -> CreatePartitionsTopicResult:
    if error is None:
        return CreatePartitionsTopicResult(name=name, error_code=NONE)
    return CreatePartitionsTopicResult(name=name, error_code=code_of(error), error_message=str(error))
