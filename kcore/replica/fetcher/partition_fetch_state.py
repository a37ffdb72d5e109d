"""PartitionFetchState: how far a follower is with one partition (FT-02).

Source: PartitionFetchState and ReplicaState of AbstractFetcherThread, Kafka 2.4-4.x.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from kcore.replica.partition_state import NO_EPOCH


class Phase(enum.Enum):
    TRUNCATING = "Truncating"
    LOOKING_UP_OFFSETS = "LookingUpOffsets"
    FETCHING = "Fetching"


class PartitionFetchState(NamedTuple):
    """The state of one partition (FT-02); replaced, never changed.

    While Truncating, fetch_offset is where to cut if the leader has none of the log's epochs: the high watermark.
    lag is None before the first answer.  last_fetched_epoch is the epoch of the record before fetch_offset, -1 if there
    is none.  delayed_until_ms may be past.  leader_end_offset is the first half of an offset lookup.
    """

    fetch_offset: int
    current_leader_epoch: int
    phase: Phase
    lag: int | None = None
    last_fetched_epoch: int = NO_EPOCH
    delayed_until_ms: float | None = None
    leader_end_offset: int | None = None

    def is_delayed(self, now_ms: float) -> bool:
        return self.delayed_until_ms is not None and now_ms < self.delayed_until_ms

    def is_ready_for_fetch(self, now_ms: float) -> bool:
        return self.phase is Phase.FETCHING and not self.is_delayed(now_ms)

    @property
    def is_in_sync(self) -> bool:
        return self.lag is not None and self.lag <= 0
