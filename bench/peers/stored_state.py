"""What a coordinator has to load at its start: committed offsets of many groups, and transactional ids."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable

from bench.replication_client import TIMEOUT_S, Address, receive, send
from kcore.client.blocking_sender import BlockingSender
from kcore.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
    for_code,
)
from kcore.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from kcore.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kcore.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kcore.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from kcore.protocol.schema import Message

COMMIT_VERSION, FETCH_VERSION, INIT_VERSION, DESCRIBE_VERSION = 8, 8, 4, 0
IN_FLIGHT = 64
#: Groups and ids that are asked for: more than any coordinator has partitions, so that each of them answers.
ASKED = 500
_AGAIN = {
    CoordinatorLoadInProgress.code,
    CoordinatorNotAvailable.code,
    NotCoordinator.code,
    ConcurrentTransactions.code,
}


class StoredState:
    """groups with an offset of each partition of one topic, and ids transactional ids."""

    def __init__(self, topic: str, partitions: int, groups: int, ids: int) -> None:
        self._topic = topic
        self._partitions = partitions
        self._groups = groups
        self._ids = ids

    def write(self, coordinator: Address) -> None:
        """Raises the error of an answer; first answers may say that the internal topics are being made."""
        send_all(coordinator, (self._commit(n) for n in range(self._groups)), COMMIT_VERSION)
        send_all(coordinator, (self._init(n) for n in range(self._ids)), INIT_VERSION)

    def _commit(self, number: int) -> OffsetCommitRequest:
        partitions = [
            OffsetCommitRequestPartition(partition_index=n, committed_offset=number, committed_metadata="")
            for n in range(self._partitions)
        ]
        topics = [OffsetCommitRequestTopic(name=self._topic, partitions=partitions)]
        return OffsetCommitRequest(group_id=f"group-{number}", topics=topics)

    def _init(self, number: int) -> InitProducerIdRequest:
        return InitProducerIdRequest(transactional_id=f"id-{number}", transaction_timeout_ms=60_000)

    def is_loaded(self, coordinator: Address) -> bool:
        """Whether the coordinator answers for every partition of both its logs.  Raises AssertionError if anything that
        was written is missing then."""
        sender = BlockingSender(*coordinator, "bench", request_timeout_ms=TIMEOUT_S * 1000)
        groups = [OffsetFetchRequestGroup(group_id=f"group-{n}", topics=None) for n in range(min(ASKED, self._groups))]
        ids = [f"id-{n}" for n in range(min(ASKED, self._ids))]
        try:
            fetched = sender.send(OffsetFetchRequest(groups=groups), FETCH_VERSION)
            described = sender.send(DescribeTransactionsRequest(transactional_ids=ids), DESCRIBE_VERSION)
        except OSError:
            return False
        finally:
            sender.close()
        assert isinstance(fetched, OffsetFetchResponse) and isinstance(described, DescribeTransactionsResponse)
        errors = {group.error_code for group in fetched.groups}
        errors |= {state.error_code for state in described.transaction_states}
        if errors & _AGAIN:
            return False
        assert errors == {0}, errors
        for number, group in enumerate(fetched.groups):
            (topic,) = group.topics
            assert [one.committed_offset for one in topic.partitions] == [number] * self._partitions
        return True


def send_all(address: Address, requests: Iterable[Message], version: int) -> None:
    """Over one connection, IN_FLIGHT at a time; those that a coordinator cannot take yet again.  Raises the error of an
    answer."""
    waiting = iter(requests)
    in_flight: list[Message] = []
    with socket.create_connection(address, TIMEOUT_S) as connection:
        while True:
            while len(in_flight) < IN_FLIGHT and (request := next(waiting, None)) is not None:
                send(connection, request, version)
                in_flight.append(request)
            if not in_flight:
                return
            request = in_flight.pop(0)
            answer = receive(connection, request, version)
            if isinstance(answer, OffsetCommitResponse):
                error = max(one.error_code for one in answer.topics[0].partitions)
            else:
                assert isinstance(answer, InitProducerIdResponse)
                error = answer.error_code
            if error in _AGAIN:
                time.sleep(0.01)
                send(connection, request, version)
                in_flight.append(request)
            elif error:
                raise for_code(error)(f"{request}"[:200])
