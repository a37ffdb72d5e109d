"""What the layers hand each other about offsets: places, isolation, origin.  (What appends and reads answer is in
log_hot_path.)"""

from __future__ import annotations

import enum
from typing import NamedTuple

UNKNOWN_OFFSET = -1


class FetchIsolation(enum.Enum):
    """How far a read may see."""

    LOG_END = "log_end"  # replicas
    HIGH_WATERMARK = "high_watermark"  # read_uncommitted consumers
    TXN_COMMITTED = "txn_committed"  # read_committed consumers: up to the last stable offset


class AppendOrigin(enum.Enum):
    """Who appends; decides how much is checked (LOG-15)."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    #: Of a marker whose epoch is above that of its transaction, as each is at transaction version 2.
    COORDINATOR_RAISING_EPOCH = "coordinator raising the epoch"
    REPLICATION = "replication"


class LogOffsetMetadata(NamedTuple):
    """An offset and its place in the log: segment (by base offset) and byte position in it; -1 when unknown."""

    message_offset: int
    segment_base_offset: int = UNKNOWN_OFFSET
    relative_position_in_segment: int = -1

    @property
    def message_offset_only(self) -> bool:
        return self.segment_base_offset < 0 or self.relative_position_in_segment < 0


class AbortedTxn(NamedTuple):
    """An aborted transaction: first_offset of its first record, last_offset of its ABORT marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TimestampAndOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int  # -1 when unknown
