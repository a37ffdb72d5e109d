"""The settings the transaction coordinator takes from the broker's configuration."""

from __future__ import annotations

from dataclasses import dataclass

#: How long an append waits for the other replicas, and a marker for another broker: Kafka's request.timeout.ms.
REQUEST_TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """Kafka's names, in the comments where the field's differs."""

    transactional_id_expiration_ms: int = 604_800_000
    transaction_max_timeout_ms: int = 900_000
    #: transaction.state.log.num.partitions
    num_partitions: int = 50
    #: transaction.abort.timed.out.transaction.cleanup.interval.ms
    abort_timed_out_interval_ms: int = 10_000
    #: transaction.remove.expired.transaction.cleanup.interval.ms
    remove_expired_interval_ms: int = 3_600_000
    #: transaction.state.log.load.buffer.size
    load_buffer_size: int = 5_242_880
    append_timeout_ms: int = REQUEST_TIMEOUT_MS
