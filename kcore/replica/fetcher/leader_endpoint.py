"""LeaderEndPoint: what a follower asks its leader, and how (RFT-01).

The requests and replies are values; fetcher_state.py makes the first and takes the second.  A socket to another broker,
the local log of a partition that moves between directories, and the list of messages of a simulation implement send().
Source: LeaderEndPoint, Kafka 3.9-4.x.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError
from kcore.replica.fetch_params import FetchPartitionData


class EpochQuestion(NamedTuple):
    """Where does leader_epoch end?  current_leader_epoch is the one the follower believes its leader to have."""

    current_leader_epoch: int
    leader_epoch: int


class EpochEndOffset(NamedTuple):
    """The largest epoch <= the requested one in the leader's log, and its end; -1, -1 if there is none."""

    leader_epoch: int = -1
    end_offset: int = -1
    error: ApiError | None = None


class OffsetQuestion(NamedTuple):
    """timestamp: -1 asks for the leader's log end offset, -2 for its log start offset."""

    current_leader_epoch: int
    timestamp: int


class ListedOffset(NamedTuple):
    offset: int = -1
    error: ApiError | None = None


class FetchedPartition(NamedTuple):
    """diverging_epoch: (epoch, end offset), where the follower's log is no part of the leader's; without records."""

    records: bytes | bytearray | memoryview = b""
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging_epoch: tuple[int, int] | None = None
    error: ApiError | None = None


@dataclass(frozen=True, slots=True, eq=False)
class OffsetForLeaderEpochRequest:
    partitions: Mapping[TopicPartition, EpochQuestion]


@dataclass(frozen=True, slots=True, eq=False)
class ListOffsetsRequest:
    partitions: Mapping[TopicPartition, OffsetQuestion]


@dataclass(frozen=True, slots=True, eq=False)
class FetchRequest:
    """max_bytes limits the whole answer, each partition's max_bytes its own (RFT-02).

    changed: the partitions that differ from the FetcherState's fetch before this one, those that it no longer has
    included: so that an incremental fetch costs what has changed.  None: any may.
    """

    partitions: Mapping[TopicPartition, FetchPartitionData]
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    changed: Collection[TopicPartition] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class OffsetForLeaderEpochReply:
    partitions: Mapping[TopicPartition, EpochEndOffset]


@dataclass(frozen=True, slots=True, eq=False)
class ListOffsetsReply:
    partitions: Mapping[TopicPartition, ListedOffset]


@dataclass(frozen=True, slots=True, eq=False)
class FetchReply:
    """An incremental fetch leaves out the partitions that have nothing new."""

    partitions: Mapping[TopicPartition, FetchedPartition] = field(default_factory=dict)


LeaderRequest = OffsetForLeaderEpochRequest | ListOffsetsRequest | FetchRequest
LeaderReply = OffsetForLeaderEpochReply | ListOffsetsReply | FetchReply


class LeaderFeatures(NamedTuple):
    """What a leader answers.

    truncates_on_fetch: a Fetch (12+) with the diverging epoch, so that no other request comes first.
    looks_up_epochs: OffsetForLeaderEpoch; without it the high watermark decides (FT-06).
    """

    truncates_on_fetch: bool = True
    looks_up_epochs: bool = True


class LeaderEndPoint(Protocol):
    """One source broker.  One request at a time; close() from any thread, and a send() that waits ends then."""

    @property
    def features(self) -> LeaderFeatures:
        """What is assumed before the first connection, then what the leader of the last one has."""
        ...

    def send(self, request: LeaderRequest) -> LeaderReply:
        """The reply of the request's kind.  Blocks; raises OSError or ApiError when there is none, also when the
        features turn out to be others: the request may have been made for the wrong ones."""
        ...

    def close(self) -> None: ...
