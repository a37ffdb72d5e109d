"""Producer ids, never assigned twice.

A block of ids is taken from the metadata store and used up in memory; what is left of it when the broker
stops is lost, which is the price of not writing for every producer.
Source: ZkProducerIdManager and /latest_producer_id_block, Kafka 3.9.
"""

from __future__ import annotations

import logging
import threading
from functools import partial

from kcore.errors import CoordinatorLoadInProgress, UnknownServerError
from kcore.metadata.api_errors import api_error
from kcore.metadata.store import MetadataStore, StoreError
from kcore.metadata.store_errors import RepeatedError
from kcore.metadata.znodes import PRODUCER_ID_BLOCK, ProducerIdBlock

logger = logging.getLogger(__name__)

BLOCK_SIZE = 1000
MAX_PRODUCER_ID = 2**63 - 1


class ProducerIdManager:
    """Thread-safe.  generate_producer_id() is all that a coordinator needs, and raises no error of the store."""

    def __init__(self, broker_id: int, store: MetadataStore) -> None:
        self._broker_id = broker_id
        self._store = store
        self._lock = threading.Lock()
        self._next = 0
        self._end = -1
        self._store_error = RepeatedError()

    def generate_producer_id(self) -> int:
        """A producer id that no other producer has, or had.  Writes to the store once in BLOCK_SIZE calls.

        Raises an ApiError: CoordinatorLoadInProgress if a later call may succeed.
        """
        with self._lock:
            if self._next > self._end:
                self._next, self._end = self._next_block()
            self._next += 1
            return self._next - 1

    def _next_block(self) -> tuple[int, int]:
        try:
            block = self.allocate_block(self._broker_id)
        except StoreError as error:
            if self._store_error.is_new(error):  # producers try again every 100 ms
                logger.warning("producers get no id: the metadata store: %s", error)
            answer = api_error(error)
            # Retriable, as in Kafka: with UNKNOWN_SERVER_ERROR, and REQUEST_TIMED_OUT, a producer gives up.
            raise (CoordinatorLoadInProgress(str(answer)) if answer.retriable else answer) from error
        if self._store_error.is_over():
            logger.info("producers get ids again")
        return block.block_start, block.block_end

    def allocate_block(self, broker_id: int) -> ProducerIdBlock:
        """A block of ids for a broker, which no other broker gets.  Raises StoreError."""
        return ProducerIdBlock.decode(self._store.update(PRODUCER_ID_BLOCK, partial(_next_block, broker_id)))

    def reserve_up_to(self, producer_id: int) -> None:
        """Never assign this id or a lower one: a log from another broker, without its store, contains it."""

        def change(data: bytes | None) -> bytes:
            last = ProducerIdBlock.decode(data).block_end if data else -1
            if last >= producer_id and data is not None:
                return data
            return ProducerIdBlock(self._broker_id, max(0, producer_id - BLOCK_SIZE + 1), producer_id).encode()

        with self._lock:
            self._store.update(PRODUCER_ID_BLOCK, change)


def _next_block(broker_id: int, data: bytes | None) -> bytes:
    start = ProducerIdBlock.decode(data).block_end + 1 if data else 0
    if start > MAX_PRODUCER_ID - BLOCK_SIZE + 1:
        raise UnknownServerError("all producer ids have been assigned")
    return ProducerIdBlock(broker_id, start, start + BLOCK_SIZE - 1).encode()
