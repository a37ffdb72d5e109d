"""TopicMirror: copies a topic of a running cluster into a data directory, as a follower would (FT, RFT).

The batches keep their bytes, and so their offsets, leader epochs, timestamps and producers.  A cluster lets only its
own brokers fetch as followers, so the mirror fetches as a consumer: up to the high watermark.  What it copies into is a
Kafka data directory, with checkpoints, which a broker can be started on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple
from uuid import UUID

from kcore.client.admin_client import AdminClient
from kcore.client.blocking_sender import BlockingSender
from kcore.common.text import plain_error
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    ApiError,
    KafkaError,
    LeaderNotAvailable,
    OffsetOutOfRange,
    UnknownServerError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from kcore.log.log_manager import LogManager
from kcore.log.meta_properties import refuse_members_directory
from kcore.log.special_timestamps import LATEST_TIMESTAMP
from kcore.log.unified_log import UnifiedLog
from kcore.replica.fetch_params import CONSUMER_REPLICA_ID
from kcore.replica.fetcher.fetcher_state import FetcherConfig
from kcore.replica.fetcher.fetchers import FetchSource, InitialFetchState
from kcore.replica.fetcher.follower_logs import ReplicaLogs
from kcore.replica.fetcher.leader_endpoint import (
    LeaderReply,
    LeaderRequest,
    ListedOffset,
    ListOffsetsRequest,
    OffsetQuestion,
)
from kcore.replica.fetcher.partition_fetch_state import PartitionFetchState, Phase
from kcore.replica.fetcher.replica_fetcher_manager import ReplicaFetcherManager
from kcore.replica.partition import Partition
from kcore.replica.partition_state import LeaderAndIsrUpdate
from kcore.replication.remote_leader_endpoint import RemoteLeaderEndPoint

logger = logging.getLogger(__name__)

_CLIENT_ID = "kcore-mirror"
#: The id that the mirror has among its own partitions; no broker's.
_LOCAL_ID = -2
#: The controller epoch of the updates that the mirror gives its own partitions.
_CONTROLLER_EPOCH = 0

#: Errors that a mirror meets in passing, though Kafka's clients do not try again after them.
_PASSING = (OffsetOutOfRange, UnknownServerError, UnsupportedVersion)

Address = tuple[str, int]


class MirrorFailed(KafkaError):
    """A topic cannot be mirrored, or no longer."""


class PartitionLeader(NamedTuple):
    broker_id: int
    leader_epoch: int


class TopicMetadata(NamedTuple):
    """Leaders by partition: None where there is none now."""

    topic_id: UUID | None
    leaders: dict[int, PartitionLeader | None]
    addresses: dict[int, Address]


@dataclass(frozen=True, slots=True)
class MirroredPartition:
    """One partition's copy.

    log_start_offset, log_end_offset: of the copy.  previous_end_offset: where it ended when the mirror began.
    leader_id: -1 where there is none.  lag: records that the copy lacks, None before the leader's first answer.
    """

    topic_partition: TopicPartition
    leader_id: int
    previous_end_offset: int
    log_start_offset: int
    log_end_offset: int
    lag: int | None


class TopicMirror:
    """Copies from start() to close(); a context manager.  The logs are the mirror's own meanwhile.

    bootstrap: addresses of brokers, of which the first answer counts (see AdminClient).  data_dir: a data directory,
    made if it is missing; copies in it go on where they ended, and lose what the leader's log does not have.
    partitions: which ones; None for all.  Thread-safe.  Raises ValueError without a bootstrap address.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        topic: str,
        data_dir: str,
        partitions: Collection[int] | None = None,
        *,
        time: Time = SYSTEM_TIME,
        request_timeout_ms: int = 30_000,
        backoff_ms: int = 500,
        fetch_max_bytes: int = 16 << 20,
    ) -> None:
        if not bootstrap:
            raise ValueError("no bootstrap address")
        self._bootstrap = list(bootstrap)
        self._topic = topic
        self._numbers = None if partitions is None else frozenset(partitions)
        self._time = time
        self._request_timeout_ms = request_timeout_ms
        self._backoff_ms = backoff_ms
        self._metadata = TopicMetadata(None, {}, {})
        self._partitions: dict[TopicPartition, Partition] = {}
        self._logs: dict[TopicPartition, UnifiedLog] = {}
        self._previous_ends: dict[TopicPartition, int] = {}
        #: How far the fetchers came, once they have ended.
        self._last_states: dict[TopicPartition, PartitionFetchState] = {}
        self._stopped = threading.Event()
        #: A partition has no fetcher while it changes its leader: that is no failure.
        self._refreshing = threading.Lock()
        #: The leaders' last errors, for partitions whose copy goes on only after a person has removed the cause.
        self._refusals: dict[TopicPartition, ApiError] = {}
        self._data_dir = data_dir
        self._log_manager = LogManager([data_dir], time=time)
        self._fetchers = ReplicaFetcherManager(
            _CLIENT_ID,
            1,
            FetcherConfig(
                fetch_backoff_ms=backoff_ms,
                max_bytes=fetch_max_bytes,
                partition_max_bytes=fetch_max_bytes,
                uses_sessions=True,
            ),
            time,
            make_logs=lambda: ReplicaLogs(self._partitions.get, self._log_manager),
            make_end_point=self._make_end_point,
            address_of=lambda leader_id: self._metadata.addresses.get(leader_id),
        )

    def start(self) -> None:
        """Begin to copy.

        Raises OSError if no broker answers or the directory cannot be used, UnknownTopicOrPartition, DirectoryInUse,
        ClusterMemberDirectory, and KafkaError where a copy cannot be opened or belongs to a deleted topic of the same
        name.
        """
        self._metadata = self._fetch_metadata()
        numbers = self._metadata.leaders.keys() if self._numbers is None else self._numbers
        missing = sorted(numbers - self._metadata.leaders.keys())
        if missing:
            raise UnknownTopicOrPartition(f"{self._topic} has no partition {missing[0]}")
        refuse_members_directory(self._data_dir)
        self._log_manager.startup()
        try:
            for number in sorted(numbers):
                tp = TopicPartition(self._topic, number)
                log = self._log_manager.get_or_create_log(tp, topic_id=self._metadata.topic_id)
                self._previous_ends[tp] = log.log_end_offset
                self._logs[tp] = log
                self._partitions[tp] = Partition(tp, log, _LOCAL_ID, self._time)
            self._follow(self._partitions)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> TopicMirror:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def stop(self) -> None:
        """End wait_until_caught_up() and keep_up() on the threads that wait there."""
        self._stopped.set()

    def close(self) -> None:
        """Stop copying; close the logs cleanly."""
        self.stop()
        self._last_states.update(self._fetchers.remove_partitions(self._partitions))
        self._fetchers.close()
        self._log_manager.checkpoint_high_watermarks({tp: log.high_watermark for tp, log in self._logs.items()})
        self._log_manager.shutdown()

    def partitions(self) -> list[MirroredPartition]:
        """How far each copy is; after close(), how far it came."""
        states = self._fetchers.states() or self._last_states
        copies = []
        for tp, log in self._logs.items():
            state, leader = states.get(tp), self._metadata.leaders.get(tp.partition)
            copies.append(
                MirroredPartition(
                    tp,
                    -1 if leader is None else leader.broker_id,
                    self._previous_ends[tp],
                    log.log_start_offset,
                    log.log_end_offset,
                    None if state is None or state.phase is not Phase.FETCHING else state.lag,
                )
            )
        return copies

    def wait_until_caught_up(self, timeout_ms: float = 60_000) -> None:
        """Return once each copy has what its leader's high watermark was above when this was called, or after stop().

        Leaders that move are followed; then the new leader's high watermark counts.  Each leader has answered a fetch,
        also where there is nothing to copy.  Raises MirrorFailed for a copy that cannot go on, and after timeout_ms in
        which no copy came further; the leader's ApiError where that does not pass, as TopicAuthorizationFailed.
        """
        targets: dict[TopicPartition, int] = {}
        ends: dict[TopicPartition, int] = {}
        last_progress_ms = last_look_ms = self._time.hi_res_clock_ms()
        while not self._stopped.is_set():
            self._raise_refusal()
            missing = self._partitions.keys() - targets.keys()
            if missing:
                targets.update(self._high_watermarks(missing))
            now_ms = self._time.hi_res_clock_ms()
            ends_now = {tp: log.log_end_offset for tp, log in self._logs.items()}
            states = self._fetchers.states()
            waiting = [
                tp
                for tp, end in ends_now.items()
                if tp not in targets or end < targets[tp] or (tp in states and states[tp].lag is None)
            ]
            if not waiting:
                return
            if ends_now != ends:
                ends, last_progress_ms = ends_now, now_ms
            elif now_ms - last_progress_ms > timeout_ms:
                tp = min(waiting)
                reason = self._fetchers.delay_reason(tp)
                because = "" if reason is None else f": {reason}"
                raise MirrorFailed(f"{tp}: nothing was copied for {timeout_ms / 1000:g} s{because}")
            if now_ms - max(last_look_ms, last_progress_ms) > self._backoff_ms:
                for tp in self.refresh():
                    targets.pop(tp, None)
                last_look_ms = self._time.hi_res_clock_ms()
            self._stopped.wait(0.01)

    def _high_watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Of those whose leader answers now."""
        by_leader: dict[int, dict[TopicPartition, OffsetQuestion]] = {}
        for tp in partitions:
            leader = self._metadata.leaders[tp.partition]
            if leader is not None and leader.broker_id in self._metadata.addresses:
                question = OffsetQuestion(leader.leader_epoch, LATEST_TIMESTAMP)
                by_leader.setdefault(leader.broker_id, {})[tp] = question
        offsets: dict[TopicPartition, int] = {}
        for leader_id, questions in by_leader.items():
            end_point = self._make_end_point(self._metadata.addresses[leader_id], 0)
            try:
                try:
                    reply = end_point.send(ListOffsetsRequest(questions))
                except UnsupportedVersion:  # a leader with older versions than expected: now the end point has them
                    reply = end_point.send(ListOffsetsRequest(questions))
            except (OSError, ApiError) as error:
                logger.info("%s: broker %d does not say how far it is: %s", self._topic, leader_id, plain_error(error))
                continue
            finally:
                end_point.close()
            for tp, listed in reply.partitions.items():
                if isinstance(listed, ListedOffset) and listed.error is None:
                    offsets[tp] = listed.offset
        return offsets

    def keep_up(self) -> None:
        """Until another thread calls stop() or close(), follow leaders that move.  Raises what refresh() raises."""
        while not self._stopped.wait(self._backoff_ms / 1000):
            self.refresh()

    def refresh(self) -> list[TopicPartition]:
        """Ask for the leaders, and follow those that have changed: the partitions that come back.

        Raises MirrorFailed for a copy that cannot go on under the leader that it has, or if the topic was deleted, and
        the ApiError of a broker that does not pass, as TopicAuthorizationFailed.  Called from any thread.
        """
        with self._refreshing:
            return self._refresh()

    def _refresh(self) -> list[TopicPartition]:
        self._raise_refusal()
        try:
            metadata = self._fetch_metadata()
        except UnknownTopicOrPartition as error:
            raise MirrorFailed(f"{self._topic}: the topic is gone") from error
        except (OSError, ApiError) as error:
            if isinstance(error, ApiError) and not _passes(error):
                raise
            logger.info("%s: no metadata: %s", self._topic, plain_error(error))
            return []
        missing = [tp for tp in self._partitions if tp.partition not in metadata.leaders]
        if missing:
            raise MirrorFailed(f"{min(missing)}: the partition is gone")
        if self._is_another_topic(metadata):
            raise MirrorFailed(f"{self._topic} was deleted and created again: its id was {self._metadata.topic_id}")
        previous, self._metadata = self._metadata, metadata
        moved = [tp for tp in self._partitions if _is_new(previous, metadata, tp.partition)]
        failed = sorted(self._partitions.keys() - set(moved) - self._fetchers.states().keys())
        failed = [tp for tp in failed if metadata.leaders[tp.partition] is not None]
        if failed and not self._stopped.is_set():
            raise MirrorFailed(f"{failed[0]}: cannot be copied any further; the log says why")
        self._fetchers.remove_partitions(moved)
        self._follow(moved)
        return moved

    def _raise_refusal(self) -> None:
        """Raises ApiError."""
        for tp, error in list(self._refusals.items()):
            raise type(error)(f"{tp}: the leader answers {type(error).__name__}, which does not pass by itself")

    def _is_another_topic(self, metadata: TopicMetadata) -> bool:
        """A broker with Metadata below version 10 gives no id: then nothing says so."""
        ids = {metadata.topic_id, self._metadata.topic_id} - {None}
        return len(ids) > 1

    def _follow(self, partitions: Collection[TopicPartition]) -> None:
        sources = {}
        for tp in partitions:
            leader = self._metadata.leaders[tp.partition]
            if leader is None:
                continue
            update = LeaderAndIsrUpdate(tp, leader.broker_id, leader.leader_epoch, [], [])
            self._partitions[tp].make_follower(update, _CONTROLLER_EPOCH)
            log = self._logs[tp]
            # Without epochs nothing says where the copy may differ, but that it does not below the high watermark.
            offset = log.log_end_offset if log.last_epoch >= 0 else log.high_watermark
            initial = InitialFetchState(offset, leader.leader_epoch)
            sources[tp] = FetchSource(leader.broker_id, initial)
        self._fetchers.add_partitions(sources)

    # -- the cluster ----------------------------------------------------------------------------------------------

    def _make_end_point(self, address: Address, fetcher_id: int) -> RemoteLeaderEndPoint:
        timeout_ms = self._request_timeout_ms
        sender = BlockingSender(*address, _CLIENT_ID, request_timeout_ms=timeout_ms, time=self._time)
        return _EndPoint(sender, self._refusals)

    def _fetch_metadata(self) -> TopicMetadata:
        """From the first broker that answers.  Raises OSError if none does, UnknownTopicOrPartition, ApiError."""
        addresses = list(dict.fromkeys([*self._metadata.addresses.values(), *self._bootstrap]))
        timeout_ms = self._request_timeout_ms
        with AdminClient(addresses, client_id=_CLIENT_ID, timeout_ms=timeout_ms, time=self._time) as admin:
            described = admin.describe_cluster([self._topic])
        topic = described.topics.get(self._topic)
        if topic is None:
            raise UnknownTopicOrPartition(f"topic {self._topic} is not in the metadata of the broker")
        if not topic.partitions:  # it has just been created
            raise LeaderNotAvailable(f"topic {self._topic} has no partitions yet")
        return TopicMetadata(
            topic.topic_id,
            {
                number: PartitionLeader(partition.leader, partition.leader_epoch) if partition.leader >= 0 else None
                for number, partition in topic.partitions.items()
            },
            {node.broker_id: (node.host, node.port) for node in described.brokers.values()},
        )


class _EndPoint(RemoteLeaderEndPoint):
    """Notes in `refusals` which partitions the leader answers with an error that does not pass by itself: a follower
    would try again for ever, since its controller may help it."""

    def __init__(self, sender: BlockingSender, refusals: dict[TopicPartition, ApiError]) -> None:
        super().__init__(sender, CONSUMER_REPLICA_ID)
        self._refusals = refusals

    def send(self, request: LeaderRequest) -> LeaderReply:
        try:
            reply = super().send(request)
        except ApiError as error:
            if not _passes(error):
                self._refusals.update(dict.fromkeys(request.partitions, error))
            raise
        for tp, answer in reply.partitions.items():
            if answer.error is not None and not _passes(answer.error):
                self._refusals[tp] = answer.error
        return reply


def _passes(error: ApiError) -> bool:
    return error.retriable or isinstance(error, _PASSING)


def _is_new(previous: TopicMetadata, metadata: TopicMetadata, number: int) -> bool:
    """Whether a partition has another leader than before, or its leader another address or epoch."""
    leader = metadata.leaders.get(number)
    if leader is None:
        return False
    before = previous.leaders.get(number)
    return leader != before or metadata.addresses.get(leader.broker_id) != previous.addresses.get(leader.broker_id)
