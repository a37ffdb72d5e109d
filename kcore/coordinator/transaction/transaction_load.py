"""The transactional ids in a partition of __transaction_state, made of its records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from kcore.common.text import counted
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.transaction_log import TransactionLogValue, read_key, read_value
from kcore.coordinator.transaction.transaction_state import NO_PRODUCER_ID, TransactionMetadata, TransactionState
from kcore.errors import CorruptMessage
from kcore.record.record_batch import RecordBatch

logger = logging.getLogger(__name__)


class TransactionLoad:
    """A PartitionLoad.  publish(states) is called under the lock of the partitions, on_loaded() without it, before
    requests can reach what was loaded."""

    #: Markers of a decided transaction are sent, which a successor that does not have the decision cannot take back.
    acts = True

    def __init__(
        self,
        topic_partition: TopicPartition,
        publish: Callable[[Collection[TransactionMetadata]], None],
        on_loaded: Callable[[], None],
    ) -> None:
        self._topic_partition = topic_partition
        self._publish = publish
        self._on_loaded = on_loaded
        self._values: dict[str, TransactionLogValue] = {}
        self._num_unknown = 0
        self._states: list[TransactionMetadata] = []

    def __str__(self) -> str:
        return counted(len(self._states), "transactional id")

    def read_batch(self, batch: RecordBatch) -> None:
        if batch.is_control:
            return
        for record in batch:
            try:
                transactional_id = read_key(record.key or b"")
                if transactional_id is None:
                    self._num_unknown += 1
                elif record.value is None:
                    self._values.pop(transactional_id, None)
                else:
                    self._values[transactional_id] = read_value(record.value)
            except CorruptMessage as error:
                logger.error("%s: offset %d skipped: %s", self._topic_partition, record.offset, error)

    def skip(self) -> None:
        """What was left out changes nothing of the rest: each record is the whole state of its transactional id."""

    def finish(self) -> None:
        if self._num_unknown:
            unknown = counted(self._num_unknown, "record")
            logger.warning("%s: %s with a key of unknown version", self._topic_partition, unknown)
        for transactional_id, value in self._values.items():
            try:
                self._states.append(metadata_of(transactional_id, value))
            except ValueError as error:
                logger.error("%s: %s is left out: %s", self._topic_partition, transactional_id, error)

    def publish(self) -> None:
        self._publish(self._states)

    def activate(self) -> None:
        self._on_loaded()


def metadata_of(transactional_id: str, value: TransactionLogValue) -> TransactionMetadata:
    """Raises ValueError for a state that is never written."""
    state = TransactionState(value.status)
    if state in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE):
        raise ValueError(f"state {state.shown} in a record")
    return TransactionMetadata(
        transactional_id,
        value.producer_id,
        value.producer_epoch,
        value.transaction_timeout_ms,
        state,
        frozenset(TopicPartition(topic, number) for topic, numbers in value.partitions or () for number in numbers),
        value.start_timestamp,
        value.last_update_timestamp,
        -1 if value.previous_producer_id is None else value.previous_producer_id,
        next_producer_id=-1 if value.next_producer_id is None else value.next_producer_id,
        client_transaction_version=value.client_transaction_version or 0,
    )


def value_of(metadata: TransactionMetadata, transaction_version: int) -> TransactionLogValue:
    """transaction_version: of the cluster.  What only version 1 of a record can say is written in it at any level: a
    client of version 2 goes on with it where a broker that does not know it has joined the cluster."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(metadata.partitions):
        by_topic.setdefault(topic, []).append(number)
    return TransactionLogValue(
        1 if transaction_version >= 1 or metadata.raises_epoch else 0,
        metadata.producer_id,
        metadata.producer_epoch,
        metadata.timeout_ms,
        metadata.state,
        None if metadata.state is TransactionState.EMPTY else list(by_topic.items()),
        metadata.last_update_timestamp,
        metadata.start_timestamp,
        *(
            number if number != default else None
            for number, default in (
                (metadata.previous_producer_id, NO_PRODUCER_ID),
                (metadata.next_producer_id, NO_PRODUCER_ID),
                (metadata.client_transaction_version, 0),
            )
        ),
    )
