"""Producer ids, never assigned twice.

A block of ids is taken from the metadata store and used up in memory; what is left of it when the broker
stops is lost, which is the price of not writing for every producer.
Source: ZkProducerIdManager and /latest_producer_id_block, Kafka 3.9.
"""

from __future__ import annotations

import threading
from functools import partial

from kcore.errors import UnknownServerError
from kcore.metadata.store import MetadataStore
from kcore.metadata.znodes import PRODUCER_ID_BLOCK, ProducerIdBlock

BLOCK_SIZE = 1000
MAX_PRODUCER_ID = 2**63 - 1


class ProducerIdManager:
    """Thread-safe."""

    def __init__(self, broker_id: int, store: MetadataStore) -> None:
        self._broker_id = broker_id
        self._store = store
        self._lock = threading.Lock()
        self._next = 0
        self._end = -1

    def generate_producer_id(self) -> int:
        """A producer id that no other producer has, or had.  Writes to the store once in BLOCK_SIZE calls."""
        with self._lock:
            if self._next > self._end:
                block = self.allocate_block(self._broker_id)
                self._next, self._end = block.block_start, block.block_end
            self._next += 1
            return self._next - 1

    def allocate_block(self, broker_id: int) -> ProducerIdBlock:
        """A block of ids for a broker, which no other broker gets."""
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
