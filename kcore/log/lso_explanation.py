"""What holds back the last stable offset of a log: the transactions that are open, or ended above the high watermark.

Works on a live log, and on one that was opened for reading (open_log), whose producers come from the newest snapshot
and the batches after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kcore.common.text import date_of
from kcore.errors import CorruptMessage, OffsetOutOfRange
from kcore.log.unified_log import UnifiedLog


@dataclass(frozen=True, slots=True)
class HeldTransaction:
    """Timestamps in ms.  first_timestamp: of its first batch, None where that cannot be read.  last_offset: of the
    producer's last data, None where it is not known.  marker_offset: where the transaction has ended, None while it is
    open.  transactional_id, timeout_ms: as __transaction_state has them, None where it was not looked up or has
    none."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    first_timestamp: int | None
    last_offset: int | None
    last_timestamp: int
    marker_offset: int | None
    transactional_id: str | None = None
    timeout_ms: int | None = None

    def __str__(self) -> str:
        identity = f"producer {self.producer_id}, epoch {self.producer_epoch}"
        if self.transactional_id is not None:
            identity += f", transactional id {self.transactional_id}"
        since = "" if self.first_timestamp is None else f" since {date_of(self.first_timestamp)}"
        if self.marker_offset is not None:
            return (
                f"offset {self.first_offset}{since}: {identity}; it has ended, but its marker at offset "
                f"{self.marker_offset} is not below the high watermark"
            )
        last = "" if self.last_offset is None else f"; its last record is at offset {self.last_offset}"
        timeout = "" if self.timeout_ms is None else f", transaction.timeout.ms {self.timeout_ms}"
        return (
            f"offset {self.first_offset}{since}: {identity}{timeout}; it is open{last}, {date_of(self.last_timestamp)}"
        )


@dataclass(frozen=True, slots=True)
class LsoExplanation:
    """transactions: by first offset; the first one is what the last stable offset waits for, if it is below the high
    watermark."""

    topic: str
    partition: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    transactions: tuple[HeldTransaction, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.topic}-{self.partition}: last stable offset {self.last_stable_offset}, high watermark "
            f"{self.high_watermark}, log [{self.log_start_offset}, {self.log_end_offset})"
        ]
        if self.last_stable_offset < self.high_watermark:
            first, *others = self.transactions
            lines.append(f"held at {first}")
            lines += [f"then at {txn}" for txn in others]
            if first.marker_offset is None:
                lines += self._what_ends(first)
        elif self.high_watermark < self.log_end_offset:
            lines.append(
                f"no transaction holds it: it is the high watermark, which kcore explain isr {self.topic} "
                f"{self.partition} explains"
            )
            lines += [f"later at {txn}" for txn in self.transactions]
        else:
            lines.append("nothing holds it: it is the log end offset")
        return "\n  ".join(lines)

    def _what_ends(self, txn: HeldTransaction) -> list[str]:
        return [
            "its producer ends it, or the transaction coordinator after transaction.timeout.ms; one that no "
            "coordinator has any more (`kcore txns open` says so) is ended by:",
            f"  kcore txns abort {self.topic}:{self.partition} --start-offset {txn.first_offset} --apply",
        ]


def explain_lso(log: UnifiedLog) -> LsoExplanation:
    """Takes the log's lock, and reads a batch of each transaction without it.  Raises KafkaStorageError."""
    with log.lock:
        state = log.producer_state_manager
        held = [(txn, state.producers.get(txn.producer_id)) for txn in state.unfinished_txns()]
        offsets = (log.log_start_offset, log.log_end_offset, log.high_watermark, log.last_stable_offset)
    transactions = []
    for txn, producer in held:
        first_offset = txn.first_offset.message_offset
        last = None if producer is None else producer.last_batch
        transactions.append(
            HeldTransaction(
                txn.producer_id,
                -1 if producer is None else producer.producer_epoch,
                first_offset,
                _timestamp_at(log, first_offset),
                None if last is None else last.last_offset,
                -1 if producer is None else producer.last_timestamp,
                txn.last_offset,
            )
        )
    return LsoExplanation(*log.topic_partition, *offsets, tuple(transactions))


def _timestamp_at(log: UnifiedLog, offset: int) -> int | None:
    """That of the first record of the batch there."""
    try:
        return next((batch.base_timestamp for batch in log.batches(offset, offset + 1)), None)
    except (OffsetOutOfRange, CorruptMessage):  # removed or damaged meanwhile
        return None
