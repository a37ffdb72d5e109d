"""DescribeTransactions (65): the states of transactional ids."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, int16, int32, int64, string


class DescribeTransactionsRequest(Message):
    """Of these ids."""

    api_key = ApiKey.DESCRIBE_TRANSACTIONS
    min_version, max_version, flexible_version = 0, 0, 0

    transactional_ids: list[str] = array("string")


class TopicData(Struct):
    topic: str = string()
    partitions: list[int] = array("int32")


class TransactionState(Struct):
    error_code: int = int16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()
    transaction_start_time_ms: int = int64()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[TopicData] = array(TopicData)


class DescribeTransactionsResponse(Message):
    """A state, or an error, for each id."""

    api_key = ApiKey.DESCRIBE_TRANSACTIONS
    min_version, max_version, flexible_version = 0, 0, 0

    throttle_time_ms: int = int32(ignorable=True)
    transaction_states: list[TransactionState] = array(TransactionState)
