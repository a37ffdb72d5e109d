"""LogManagerConfig: the broker's settings that are about all of its logs."""

from __future__ import annotations

from dataclasses import dataclass

from kcore.log.log_cleaner import CleanerConfig
from kcore.log.producer_state_manager import DEFAULT_PRODUCER_ID_EXPIRATION_MS


@dataclass(frozen=True, slots=True)
class LogManagerConfig:
    """num_recovery_threads: for each data directory.  cleaner: None for no compaction.  Times are ms.

    verifies_transactions: see ProducerStateManager.
    has_other_replicas: the logs are of a cluster's member: one that has lost records gets a mark (lost_records.py).
    """

    num_recovery_threads: int = 2
    flush_check_ms: float = 2**63 - 1
    flush_checkpoint_ms: float = 60_000
    start_offset_checkpoint_ms: float = 60_000
    retention_check_ms: float = 300_000
    initial_task_delay_ms: float = 30_000
    producer_id_expiration_ms: int = DEFAULT_PRODUCER_ID_EXPIRATION_MS
    producer_expiry_check_ms: int = 600_000
    verifies_transactions: bool = False
    cleaner: CleanerConfig | None = None
    has_other_replicas: bool = False
