"""What the requests of transactional producers have in common."""

from __future__ import annotations

from collections.abc import Callable

from kcore.errors import (
    ApiError,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidTxnState,
    NetworkException,
    NotCoordinator,
    NotEnoughReplicas,
    ProducerFenced,
    TransactionAbortable,
)
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


#: Of a verification: its producer is to send the batch again.
_PASSING = (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NetworkException,
    NotCoordinator,
)


#: The first versions of Produce and TxnOffsetCommit whose clients, at transaction version 2, add no partitions.
PRODUCE_THAT_ADDS = 12
TXN_OFFSET_COMMIT_THAT_ADDS = 5


def produce_error(error: ApiError, version: int) -> ApiError:
    """What a producer is answered whose partition was not verified or added (TXN-29 to 32).  version: of Produce."""
    if isinstance(error, ConcurrentTransactions) and version >= PRODUCE_THAT_ADDS:
        return error
    if isinstance(error, _PASSING):
        # It makes old clients send again, and no client ask for metadata.
        name = type(error).__name__
        return NotEnoughReplicas(f"whether the partition is in the transaction is not known now: {name}: {error}")
    return verification_error(error, abortable_known=version >= 11)


def verification_error(error: ApiError, abortable_known: bool) -> ApiError:
    """What has the same name in every request that writes in a transaction."""
    if isinstance(error, ProducerFenced):
        return InvalidProducerEpoch(str(error))
    if isinstance(error, TransactionAbortable) and not abortable_known:
        return InvalidTxnState(str(error))
    return error


def code_for_version(error_code: int, version: int, fenced_since: int) -> int:
    """INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED, which the API has since the version fenced_since."""
    if error_code == ProducerFenced.code and version < fenced_since:
        return InvalidProducerEpoch.code
    return error_code
