"""What the requests of transactional producers have in common."""

from __future__ import annotations

from collections.abc import Callable

from kcore.errors import InvalidProducerEpoch, ProducerFenced
from kcore.protocol.schema import Message
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.auth_helper import AuthHelper
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.topics.admin_manager import AdminManager


def transaction_writes_run_on(admin: AdminManager) -> Callable[[RequestContext, Message], RunsOn]:
    """Handler.runs_on of requests that change a transaction: where any topic is synced, its marker may be."""

    def runs_on(context: RequestContext, body: Message) -> RunsOn:
        may_sync = admin.flushes_by_default or admin.flushing_topics
        return RunsOn.POOL if may_sync else RunsOn.NETWORK_THREAD

    return runs_on


def may_write_transactions(auth: AuthHelper, context: RequestContext, transactional_id: str) -> bool:
    return auth.authorize(context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)


def code_for_version(error_code: int, version: int, fenced_since: int) -> int:
    """INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED, which the API has since the version fenced_since."""
    if error_code == ProducerFenced.code and version < fenced_since:
        return InvalidProducerEpoch.code
    return error_code
