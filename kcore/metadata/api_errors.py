"""What a client is answered when the metadata store fails."""

from __future__ import annotations

from kcore.errors import (
    ApiError,
    ClusterAuthorizationFailed,
    InvalidRequest,
    PolicyViolation,
    RequestTimedOut,
    UnknownServerError,
)
from kcore.metadata.store import (
    BadVersion,
    ConnectionLost,
    InvalidPath,
    MultiFailed,
    MultiTooLarge,
    NodeExists,
    NoNode,
    NotAllowed,
    NotEmpty,
    QuotaExceeded,
    SessionExpired,
    StoreClosed,
    StoreError,
    UnreadableNode,
)

#: The store cannot be reached now; a call a moment later may succeed.
STORE_AWAY = (ConnectionLost, SessionExpired)


def api_error(error: StoreError) -> ApiError:
    """Retriable where the same request may succeed later: it is not known whether the change took place, or somebody
    else has changed the same nodes.  Kafka waits for ZooKeeper instead until its clients time out, and answers
    UNKNOWN_SERVER_ERROR to all else."""
    if isinstance(error, MultiFailed):
        return api_error(error.cause)
    if isinstance(error, (*STORE_AWAY, StoreClosed)):
        return RequestTimedOut(f"The metadata store cannot be reached: {error}")
    if isinstance(error, (NodeExists, NoNode, BadVersion, NotEmpty)):
        return RequestTimedOut(f"The metadata were changed by another at the same time: {error}")
    if isinstance(error, NotAllowed):
        return ClusterAuthorizationFailed(f"The metadata store does not let this broker do that: {error}")
    if isinstance(error, (MultiTooLarge, QuotaExceeded)):
        return PolicyViolation(f"More than the metadata store takes: {error}")
    if isinstance(error, InvalidPath):
        return InvalidRequest(f"The metadata store cannot have such a name: {error}")
    if isinstance(error, UnreadableNode):
        text = str(error)
        return UnknownServerError(text[0].upper() + text[1:])
    return UnknownServerError(f"The metadata store has failed: {error}")
