"""DescribeUserScramCredentials (50): which users have SCRAM credentials in the store.

Source: KafkaApis.handleDescribeUserScramCredentialsRequest, ZkAdminManager.describeUserScramCredentials, Kafka 3.9.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kcore.errors import ApiError, DuplicateResource, ResourceNotFound
from kcore.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.POOL  # asks the store

    def __init__(self, services: Services) -> None:
        self._stored_iterations = services.scram_iterations

    def handle(self, context: RequestContext, body: DescribeUserScramCredentialsRequest) -> None:
        named = Counter(user.name for user in body.users or ())
        stored = self._stored_iterations([*named] or None)
        counts = named or Counter(list(stored))
        context.respond(
            DescribeUserScramCredentialsResponse(
                results=[_result(user, count, stored.get(user)) for user, count in counts.items()]
            )
        )

    def error_response(
        self, body: DescribeUserScramCredentialsRequest, error_code: int, version: int
    ) -> DescribeUserScramCredentialsResponse:
        return DescribeUserScramCredentialsResponse(error_code=error_code)


def _result(user: str, count: int, iterations: Mapping[int, int] | None) -> DescribeUserScramCredentialsResult:
    """count: how often the request names the user."""
    if count > 1:
        text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        return _error(user, DuplicateResource(text))
    if iterations is None:
        return _error(user, ResourceNotFound(f"Attempt to describe a user credential that does not exist: {user}"))
    infos = [CredentialInfo(mechanism=mechanism, iterations=number) for mechanism, number in iterations.items()]
    return DescribeUserScramCredentialsResult(user=user, credential_infos=infos)


def _error(user: str, error: ApiError) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(user=user, error_code=error.code, error_message=str(error))
