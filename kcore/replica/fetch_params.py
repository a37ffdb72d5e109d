"""What a fetch asks for and gets, apart from its wire format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.errors import ApiError
from kcore.log.log_offset_metadata import AbortedTxn, FetchIsolation
from kcore.record.memory_records import EMPTY, MemoryRecords

if TYPE_CHECKING:
    from kcore.record.file_records import FileRecords
    from kcore.replica.replica_quota import ReplicaQuota

#: Replica ids that are no broker's.  Source: FetchRequest, Kafka 2.4.
CONSUMER_REPLICA_ID = -1
DEBUGGING_CONSUMER_ID = -2
FUTURE_LOCAL_REPLICA_ID = -3

# Each fetch has one, and to look a member of an enum up takes three times as long as a name of the module.
_LOG_END, _HIGH_WATERMARK = FetchIsolation.LOG_END, FetchIsolation.HIGH_WATERMARK
_TXN_COMMITTED = FetchIsolation.TXN_COMMITTED


class ClientMetadata(NamedTuple):
    """What a consumer says of itself since Fetch 11 (KIP-392).  rack: "" if it does not say."""

    rack: str
    listener_name: str


@dataclass(slots=True)
class FetchParams:
    """The part of a fetch that concerns all its partitions.

    max_wait_ms <= 0 answers at once.  With hard_max_bytes the response never exceeds max_bytes; without it the
    first partition that has data may, by what its first batch needs (RD-18, RD-19).  quota: the throttle of a
    follower's fetch; None if there is none now.  client: None for a consumer below Fetch 11, and for a reader that is
    none.  sent_from: the offsets from which on the connection's consumer was sent records last; kept by LocalReads,
    None for a reader that is not remembered.
    """

    replica_id: int = CONSUMER_REPLICA_ID
    #: Of the follower's registration, -1 if the fetch does not say (KIP-903).
    replica_epoch: int = -1
    max_wait_ms: int = 0
    min_bytes: int = 1
    max_bytes: int = 0x7FFFFFFF
    isolation: FetchIsolation = FetchIsolation.HIGH_WATERMARK
    hard_max_bytes: bool = False
    client: ClientMetadata | None = None
    quota: ReplicaQuota | None = None
    sent_from: dict[TopicPartition, int] | None = None

    @property
    def only_leader(self) -> bool:
        """Whether none but the leader may serve it (RD-07)."""
        return self.client is None and self.replica_id != FUTURE_LOCAL_REPLICA_ID

    @staticmethod
    def isolation_of(replica_id: int, read_committed: bool) -> FetchIsolation:
        """How far this reader may read (RD-04..06): followers to the LEO, consumers to the LSO or the HW."""
        if replica_id >= 0 or replica_id == FUTURE_LOCAL_REPLICA_ID:
            return _LOG_END
        return _TXN_COMMITTED if read_committed else _HIGH_WATERMARK


@dataclass(slots=True)
class FetchPartitionData:
    """The fields of a fetch for one partition; epochs are -1 when the client has none.

    topic_id: of the log that a follower copies into, ZERO_UUID if it has none; a leader does not fill it in.
    """

    fetch_offset: int
    max_bytes: int
    log_start_offset: int = -1
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    topic_id: UUID = ZERO_UUID


FetchInfos = list[tuple[TopicPartition, FetchPartitionData]]


@dataclass(slots=True)
class FetchPartitionResult:
    """The answer of one partition; offsets are -1 and records EMPTY where there is an error (RD-21).

    converted: what goes to a client that cannot read the records as they are.  diverging_epoch: (epoch, its end offset
    in this broker's log) if the reader's log has diverged from it (KIP-595).
    """

    error: ApiError | None = None
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: FileRecords | MemoryRecords = EMPTY
    aborted_transactions: list[AbortedTxn] | None = None
    preferred_read_replica: int = -1
    converted: bytearray | None = None
    diverging_epoch: tuple[int, int] | None = None
