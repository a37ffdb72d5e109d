"""ListTransactions (66): the transactional ids of a coordinator."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, int16, int32, int64, string


class ListTransactionsRequest(Message):
    """Empty filters, and a negative duration, keep all.  transactional_id_pattern: in RE2's syntax."""

    api_key = ApiKey.LIST_TRANSACTIONS
    min_version, max_version, flexible_version = 0, 2, 0

    state_filters: list[str] = array("string")
    producer_id_filters: list[int] = array("int64")
    duration_filter: int = int64("1+", default=-1)
    transactional_id_pattern: str | None = string("2+", nullable="2+", default=None)


class TransactionState(Struct):
    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


class ListTransactionsResponse(Message):
    """Ids with producer ids and states."""

    api_key = ApiKey.LIST_TRANSACTIONS
    min_version, max_version, flexible_version = 0, 2, 0

    throttle_time_ms: int = int32(ignorable=True)
    error_code: int = int16()
    unknown_state_filters: list[str] = array("string")
    transaction_states: list[TransactionState] = array(TransactionState)
