"""CreateTopics (19)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from kcore.errors import (
    NONE,
    ApiError,
    InvalidReplicaAssignment,
    InvalidRequest,
    NotController,
    PolicyViolation,
    RequestTimedOut,
    TopicAuthorizationFailed,
    code_of,
)
from kcore.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.config.config_entries import topic_entries
from kcore.server.quotas.controller_mutation_quotas import MutationQuota
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services
from kcore.server.topics.admin_manager import check_num_partitions
from kcore.server.topics.topic_changes import has_partitions

#: Older clients do not know the error of an exceeded quota.
_FIRST_STRICT = 6


class Handler:
    runs_on = RunsOn.TOPIC_CHANGES

    def __init__(self, services: Services) -> None:
        self._admin = services.admin_manager
        self._config = services.config
        self._auth = services.auth
        self._quotas = services.client_quotas.controller_mutation

    def handle(self, context: RequestContext, body: CreateTopicsRequest) -> None:
        if not self._admin.is_controller:
            context.respond(self.error_response(body, NotController.code, context.api_version))
            return
        names = Counter(topic.name for topic in body.topics)
        # A permission for the cluster is one for all topics.
        permitted: Collection[str] = names.keys()
        if not self._auth.authorize_cluster(context, AclOperation.CREATE, log_if_denied=False):
            permitted = self._auth.filter_by_authorized(context, AclOperation.CREATE, ResourceType.TOPIC, names)
        describable = self._auth.filter_by_authorized(
            context, AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, names, log_if_denied=False
        )
        # Before any is created: what is asked for is refused as a whole.  What a topic is refused for below counts too.
        creatable = [topic for topic in body.topics if names[topic.name] == 1 and topic.name in permitted]
        try:
            check_num_partitions(
                sum(self._admin.num_created(topic.num_partitions, len(topic.assignments)) for topic in creatable)
            )
        except PolicyViolation as error:
            context.respond(CreateTopicsResponse(topics=[_error(name, error) for name in names]))
            return
        quota = self._quotas.of_request(
            context.principal.name, context.client_id, is_strict=context.api_version >= _FIRST_STRICT
        )
        results = []
        answered = set()
        for topic in body.topics:
            if topic.name in answered:
                continue
            answered.add(topic.name)
            if names[topic.name] > 1:
                results.append(_error(topic.name, InvalidRequest("Duplicate topic name.")))
            elif topic.name not in permitted:
                results.append(_error(topic.name, TopicAuthorizationFailed("Authorization failed.")))
            else:
                results.append(self._create(topic, body.validate_only, quota))
        # What a topic was made with is among its settings.
        partition_counts = {result.name: result.num_partitions for result in results}
        for result in results:
            if result.error_code == NONE and result.name not in describable:
                result.num_partitions = result.replication_factor = -1
                result.configs, result.topic_config_error_code = None, TopicAuthorizationFailed.code
        created = {
            result.name: has_partitions(result.name, partition_counts[result.name])
            for result in results
            if result.error_code == NONE and not body.validate_only
        }

        def respond(missing: Collection[str]) -> None:
            topics = [_timed_out(result) if result.name in missing else result for result in results]
            context.respond(CreateTopicsResponse(topics=topics), quota.throttle_ms)

        self._admin.when_done(created, body.timeout_ms, respond)

    def _create(self, topic: CreatableTopic, validate_only: bool, quota: MutationQuota) -> CreatableTopicResult:
        try:
            assignments = {item.partition_index: item.broker_ids for item in topic.assignments}
            if len(assignments) < len(topic.assignments):
                raise InvalidReplicaAssignment("Found multiple manual partition assignments for one partition.")
            if not validate_only:
                quota.check()
            created = self._admin.create_topic(
                topic.name,
                topic.num_partitions,
                topic.replication_factor,
                assignments,
                {item.name: item.value for item in topic.configs},
                validate_only,
            )
        except ApiError as error:
            return _error(topic.name, error)
        if not validate_only:
            quota.record(created.num_partitions)
        return CreatableTopicResult(
            name=topic.name,
            topic_id=created.topic_id,
            error_code=NONE,
            error_message=None,
            num_partitions=created.num_partitions,
            replication_factor=created.replication_factor,
            configs=[
                CreatableTopicConfigs(
                    name=entry.name,
                    value=entry.value,
                    read_only=entry.read_only,
                    config_source=entry.source,
                    is_sensitive=False,
                )
                for entry in topic_entries(created.config, self._config)
            ],
        )

    def error_response(self, body: CreateTopicsRequest, error_code: int, version: int) -> CreateTopicsResponse:
        return CreateTopicsResponse(
            topics=[CreatableTopicResult(name=topic.name, error_code=error_code) for topic in body.topics]
        )


def _timed_out(result: CreatableTopicResult) -> CreatableTopicResult:
    return _error(result.name, RequestTimedOut("The topic is created, but the controller has not elected leaders yet."))


def _error(name: str, error: ApiError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code_of(error), error_message=str(error), configs=[])
