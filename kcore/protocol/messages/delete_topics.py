"""DeleteTopics (20)."""

from __future__ import annotations

from uuid import UUID

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, int16, int32, string, uuid


class DeleteTopicState(Struct):
    name: str | None = string("6+", nullable="6+", default=None)
    topic_id: UUID = uuid("6+")


class DeleteTopicsRequest(Message):
    """Delete topics by name, from version 6 also by id."""

    api_key = ApiKey.DELETE_TOPICS
    min_version, max_version, flexible_version = 0, 6, 4

    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+")
    topic_names: list[str] = array("string", "0-5", ignorable=True)
    timeout_ms: int = int32()


class DeletableTopicResult(Struct):
    name: str | None = string(nullable="6+")
    topic_id: UUID = uuid("6+", ignorable=True)
    error_code: int = int16()
    error_message: str | None = string("5+", nullable="5+", default=None, ignorable=True)


class DeleteTopicsResponse(Message):
    """One result for each topic."""

    api_key = ApiKey.DELETE_TOPICS
    min_version, max_version, flexible_version = 0, 6, 4

    throttle_time_ms: int = int32("1+", ignorable=True)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)
