"""CreatePartitions (37)."""

from __future__ import annotations

from collections import Counter

from kcore.errors import NONE, ApiError, InvalidRequest, code_of
from kcore.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from kcore.server.handlers import Services
from kcore.server.request_context import RequestContext


class Handler:
    may_block = True  # writes to the metadata store, makes files

    def __init__(self, services: Services) -> None:
        self._admin = services.admin_manager

    def handle(self, context: RequestContext, body: CreatePartitionsRequest) -> None:
        names = Counter(topic.name for topic in body.topics)
        results = {}
        for topic in body.topics:
            if names[topic.name] > 1:
                results[topic.name] = _result(topic.name, InvalidRequest("Duplicate topic name."))
            else:
                results[topic.name] = self._grow(topic, body.validate_only)
        context.respond(CreatePartitionsResponse(results=list(results.values())))

    def _grow(self, topic: CreatePartitionsTopic, validate_only: bool) -> CreatePartitionsTopicResult:
        assignments = None if topic.assignments is None else [item.broker_ids for item in topic.assignments]
        try:
            self._admin.create_partitions(topic.name, topic.count, assignments, validate_only)
        except ApiError as error:
            return _result(topic.name, error)
        return _result(topic.name, None)

    def error_response(self, body: CreatePartitionsRequest, error_code: int, version: int) -> CreatePartitionsResponse:
        return CreatePartitionsResponse(
            results=[CreatePartitionsTopicResult(name=topic.name, error_code=error_code) for topic in body.topics]
        )


def _result(name: str, error: ApiError | None) -> CreatePartitionsTopicResult:
    if error is None:
        return CreatePartitionsTopicResult(name=name, error_code=NONE)
    return CreatePartitionsTopicResult(name=name, error_code=code_of(error), error_message=str(error))
