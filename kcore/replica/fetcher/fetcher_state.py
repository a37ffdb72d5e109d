"""FetcherState: what a follower does next with the partitions that it copies from one broker (FT, RFT).

A state machine without sockets, threads and clock: next_request() returns what to send to the leader, on_reply() and
on_failure() process the outcome.  A thread sends the request; a simulation puts it into a list, and loses, delays or
repeats the reply.  The local logs are read and changed through FollowerLogs, which a test implements in memory.

    Truncating --(epoch lookups, or no epochs: the high watermark)--> Fetching
    LookingUpOffsets --(leader's end, then its start: unclean election, or data deleted)--> Fetching
    Fetching --(OFFSET_OUT_OF_RANGE)--> LookingUpOffsets
    Fetching --(diverging epoch: truncate)--> Fetching
    each of them --(error)--> the same, delayed; --(fenced, storage error)--> failed, and no longer here

Source: AbstractFetcherThread, ReplicaFetcherThread, Kafka 2.4-4.x; KIP-101, KIP-279, KIP-595.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, MutableSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kcore.common.failure_log import FailureLog
from kcore.common.text import counted, plain_error, some_of
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    ApiError,
    CorruptMessage,
    DiskFull,
    FencedLeaderEpoch,
    InvalidRecord,
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRange,
    OffsetsOutOfOrder,
    UnexpectedAppendOffset,
)
from kcore.log.leader_epoch_file_cache import UNDEFINED_EPOCH_OFFSET
from kcore.log.offset_truncation import (
    OffsetTruncationState,
    none_is_compared,
    offset_truncation_state,
    out_of_range,
)
from kcore.log.special_timestamps import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from kcore.replica.fetch_params import FetchPartitionData
from kcore.replica.fetcher.fetchers import InitialFetchState
from kcore.replica.fetcher.leader_endpoint import (
    EpochQuestion,
    FetchedPartition,
    FetchReply,
    FetchRequest,
    LeaderFeatures,
    LeaderReply,
    LeaderRequest,
    ListOffsetsReply,
    ListOffsetsRequest,
    OffsetForLeaderEpochReply,
    OffsetForLeaderEpochRequest,
    OffsetQuestion,
)
from kcore.replica.fetcher.partition_fetch_state import NO_EPOCH, PartitionFetchState, Phase
from kcore.replica.replica_quota import ReplicaQuota, follower_throttles

if TYPE_CHECKING:
    from kcore.replica.fetcher.follower_logs import FollowerLogs

logger = logging.getLogger(__name__)

#: How often the fetch data of every partition is rebuilt: retention raises log starts without calling the fetcher.
_REFRESH_MS = 30_000


@dataclass(frozen=True, slots=True)
class FetcherConfig:
    """replica.fetch.backoff.ms, .wait.max.ms, .min.bytes, .response.max.bytes and .max.bytes (CFG-01); what the leader
    can do, as far as that is settled before its first answer."""

    fetch_backoff_ms: float = 1000
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 10 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024
    truncates_on_fetch: bool = True
    looks_up_epochs: bool = True
    #: With fetch sessions, a fetch without partitions is sent if some must be removed from the session (RFT-14).
    uses_sessions: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to send before until_ms, unless a partition is added or marked meanwhile."""

    until_ms: float


def _keep(part: dict[TopicPartition, None], tp: TopicPartition, belongs: bool) -> None:
    if belongs:
        part[tp] = None
    else:
        part.pop(tp, None)


class FetcherState:
    """The partitions that one fetcher copies from one broker, in the order of its next requests.

    Not thread-safe: a thread holds its lock around each call, and releases it while it sends.  At most one request is
    in flight: next_request() returns Wait until on_reply() or on_failure() was called with it, and a reply to any other
    request changes nothing.  now_ms is of a clock that never steps.

    quota: while it is exceeded, throttled partitions that are not in sync are left out (RFT-12).
    """

    def __init__(
        self,
        logs: FollowerLogs,
        config: FetcherConfig,
        quota: ReplicaQuota | None = None,
        failed: MutableSet[TopicPartition] | None = None,
        leader: str = "the leader",
    ) -> None:
        """failed: where the failed partitions are noted, if several fetchers share one set.  leader: what the log calls
        it."""
        self._leader = leader
        self._logs = logs
        self._config = config
        self._features = LeaderFeatures(config.truncates_on_fetch, config.looks_up_epochs)
        self._quota = quota
        self._is_quota_exceeded = False
        self._states: dict[TopicPartition, PartitionFetchState] = {}
        self._failed: MutableSet[TopicPartition] = set() if failed is None else failed
        self._in_flight: LeaderRequest | None = None
        self._last_failure: str | None = None
        self._disk_failures = FailureLog(quiet_ms=10 * config.fetch_backoff_ms)
        self._bad_answers = FailureLog(quiet_ms=10 * config.fetch_backoff_ms)
        self._refused_requests = FailureLog(quiet_ms=10 * config.fetch_backoff_ms)
        #: Of the reply that is being processed: error -> partitions.
        self._refused: dict[str, list[TopicPartition]] = {}
        #: The last error of each partition, until a fetch of it succeeds.
        self._delay_reasons: dict[TopicPartition, str] = {}
        # What follows are parts of _states, so that a request costs what has changed and not all partitions.
        self._truncating: dict[TopicPartition, None] = {}
        self._looking_up: dict[TopicPartition, None] = {}
        self._delayed: dict[TopicPartition, None] = {}
        self._lagging: dict[TopicPartition, None] = {}
        self._to_fetch: dict[TopicPartition, FetchPartitionData] = {}  # as of the last fetch, but for _changed
        self._changed: dict[TopicPartition, None] = {}
        self._last_fetch: FetchRequest | None = None
        self._refreshed_ms: float | None = None

    # -- which partitions -----------------------------------------------------------------------------------------

    @property
    def states(self) -> Mapping[TopicPartition, PartitionFetchState]:
        return self._states

    @property
    def failed(self) -> Collection[TopicPartition]:
        """Partitions that are copied no longer, until they are added again."""
        return self._failed

    def delay_reason(self, tp: TopicPartition) -> str | None:
        """Why a partition gets no new records, None if nothing is known to be wrong."""
        state = self._states.get(tp)
        is_behind = state is not None and not state.is_in_sync
        if is_behind and self._quota is not None and follower_throttles(self._quota, tp):
            return "more was copied than follower.replication.throttled.rate allows (QUOTA-02)"
        return self._delay_reasons.get(tp)

    def add_partitions(self, partitions: Mapping[TopicPartition, InitialFetchState]) -> None:
        """Copy these from now on (FT-03..05).  One that is here with the same leader epoch goes on as it was."""
        for tp, initial in partitions.items():
            self._failed.discard(tp)
            self._delay_reasons.pop(tp, None)
            current = self._states.get(tp)
            if current is None or current.current_leader_epoch != initial.current_leader_epoch:
                try:
                    self._move_to_end(tp, self._first_state(tp, initial))
                except KafkaStorageError as error:
                    self._fail(tp, error)

    def add_states(self, states: Mapping[TopicPartition, PartitionFetchState]) -> None:
        """Take over another fetcher's partitions of the same leader, as its remove_partitions() gave them (FMGR-10)."""
        for tp, state in states.items():
            self._move_to_end(tp, state)

    def _first_state(self, tp: TopicPartition, initial: InitialFetchState) -> PartitionFetchState:
        offset, leader_epoch = initial
        if offset < 0:
            return PartitionFetchState(offset, leader_epoch, Phase.LOOKING_UP_OFFSETS)
        if self._features.truncates_on_fetch:
            last_epoch = self._logs.latest_epoch(tp)
            if last_epoch != NO_EPOCH:
                offset = self._logs.log_end_offset(tp)
                return PartitionFetchState(offset, leader_epoch, Phase.FETCHING, last_fetched_epoch=last_epoch)
        return PartitionFetchState(offset, leader_epoch, Phase.TRUNCATING)

    def remove_partitions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionFetchState]:
        """The states that they had (FMGR-10 moves them to another fetcher); also no longer failed (FMGR-07)."""
        removed = {}
        for tp in partitions:
            self._failed.discard(tp)
            self._delay_reasons.pop(tp, None)
            state = self._remove(tp)
            if state is not None:
                removed[tp] = state
        return removed

    def mark_for_truncation(self, tp: TopicPartition, offset: int) -> None:
        """The log that is copied was cut at offset (FT-32)."""
        state = self._states.get(tp)
        if state is not None:
            offset = offset if state.fetch_offset < 0 else min(offset, state.fetch_offset)
            self._set(tp, PartitionFetchState(offset, state.current_leader_epoch, Phase.TRUNCATING, lag=state.lag))

    def use_features(self, features: LeaderFeatures) -> None:
        """The leader turned out to have these.  If it cannot say in a fetch where the logs diverge, each log must be
        compared with it by epoch lookups first."""
        if features == self._features:
            return
        truncated_on_fetch, self._features = self._features.truncates_on_fetch, features
        if truncated_on_fetch and not features.truncates_on_fetch:
            for tp, state in list(self._states.items()):
                if state.phase is Phase.FETCHING:
                    try:
                        self.mark_for_truncation(tp, self._logs.high_watermark(tp))
                    except KafkaStorageError as error:
                        self._fail(tp, error)
        for tp in self._states:
            self._changed[tp] = None  # a request has an epoch only for a leader that looks at it

    def _set(self, tp: TopicPartition, state: PartitionFetchState) -> None:
        self._states[tp] = state
        self._changed[tp] = None
        _keep(self._truncating, tp, state.phase is Phase.TRUNCATING)
        _keep(self._looking_up, tp, state.phase is Phase.LOOKING_UP_OFFSETS)
        _keep(self._delayed, tp, state.delayed_until_ms is not None)
        _keep(self._lagging, tp, not state.is_in_sync)

    def _remove(self, tp: TopicPartition) -> PartitionFetchState | None:
        state = self._states.pop(tp, None)
        if state is not None:
            self._changed[tp] = None
            for part in (self._truncating, self._looking_up, self._delayed, self._lagging):
                part.pop(tp, None)
        return state

    def _move_to_end(self, tp: TopicPartition, state: PartitionFetchState) -> None:
        """So that the next answer, which is limited in bytes, begins with other partitions (FT-19)."""
        self._remove(tp)
        self._changed.pop(tp, None)  # which has the same order
        self._set(tp, state)

    def _set_fetched(self, tp: TopicPartition, state: PartitionFetchState, *, to_end: bool) -> None:
        """_move_to_end() or _set() of one that is fetched and not delayed, before and after."""
        if to_end:
            del self._states[tp]
            self._changed.pop(tp, None)
            self._lagging.pop(tp, None)
        self._states[tp] = state
        self._changed[tp] = None
        if state.lag:
            self._lagging[tp] = None
        elif not to_end:
            self._lagging.pop(tp, None)

    def _delay(self, partitions: Iterable[TopicPartition], now_ms: float) -> None:
        """FT-26: one that is delayed already is not delayed further."""
        for tp in partitions:
            state = self._states.get(tp)
            if state is not None and not state.is_delayed(now_ms):
                # An offset lookup begins again: the leader's end may have changed.
                until_ms = now_ms + self._config.fetch_backoff_ms
                self._move_to_end(tp, state._replace(delayed_until_ms=until_ms, leader_end_offset=None))

    def _fail(self, tp: TopicPartition, error: Exception) -> None:
        if isinstance(error, FencedLeaderEpoch):
            logger.debug(
                "%s: is not copied any more: there is a newer leader epoch, which the controller will send", tp
            )
        else:
            unexpected = None if isinstance(error, KafkaError) else error
            logger.error("%s: is not copied any more: %r", tp, error, exc_info=unexpected)
        self._remove(tp)
        self._failed.add(tp)
        self._delay_reasons[tp] = f"it is not copied any more until the controller's next update: {error!r}"

    # -- what to ask ----------------------------------------------------------------------------------------------

    def next_request(self, now_ms: float) -> LeaderRequest | Wait:
        """What to send now (FT-01, FT-12).  Logs without epochs are cut on the way.

        Epoch lookups come first, then offset lookups, then a fetch; each for all the partitions that need it.
        """
        backoff_ms = self._config.fetch_backoff_ms
        if self._in_flight is not None:
            return Wait(now_ms + backoff_ms)
        if self._delayed:
            self._end_delays(now_ms)
        lookup = None
        if self._truncating:
            lookup = self._epoch_lookup()
        if lookup is None and self._looking_up:
            lookup = self._offset_lookup()
        self._in_flight = self._fetch(now_ms) if lookup is None else lookup
        if self._in_flight is not None:
            return self._in_flight
        ends = [self._states[tp].delayed_until_ms or now_ms for tp in self._delayed]
        return Wait(min([now_ms + backoff_ms, *(end for end in ends if end > now_ms)]))

    def _end_delays(self, now_ms: float) -> None:
        for tp in list(self._delayed):
            state = self._states[tp]
            if not state.is_delayed(now_ms):
                self._set(tp, state._replace(delayed_until_ms=None))

    def _ready(self, tps: Iterable[TopicPartition]) -> list[tuple[TopicPartition, PartitionFetchState]]:
        return [(tp, self._states[tp]) for tp in tps if tp not in self._delayed]

    def _epoch_lookup(self) -> LeaderRequest | None:
        questions = {}
        for tp, state in self._ready(self._truncating):
            try:
                last_epoch = self._logs.latest_epoch(tp) if self._features.looks_up_epochs else NO_EPOCH
            except KafkaStorageError as error:
                self._fail(tp, error)
                continue
            if last_epoch != NO_EPOCH:
                questions[tp] = EpochQuestion(state.current_leader_epoch, last_epoch)
            else:
                self._truncate(tp, OffsetTruncationState(state.fetch_offset, True))  # FT-08
        return OffsetForLeaderEpochRequest(questions) if questions else None

    def _offset_lookup(self) -> LeaderRequest | None:
        questions = {
            tp: OffsetQuestion(
                state.current_leader_epoch, LATEST_TIMESTAMP if state.leader_end_offset is None else EARLIEST_TIMESTAMP
            )
            for tp, state in self._ready(self._looking_up)
        }
        return ListOffsetsRequest(questions) if questions else None

    def _fetch(self, now_ms: float) -> LeaderRequest | None:
        """All partitions that are ready.  Looks only at those that have changed since the last fetch, at those that
        may be throttled, and every half a minute at all."""
        if self._refreshed_ms is None or now_ms - self._refreshed_ms >= _REFRESH_MS:
            self._refreshed_ms = now_ms
            self._changed = dict.fromkeys([*self._states, *self._changed])
        was_exceeded = self._is_quota_exceeded
        self._is_quota_exceeded = self._quota is not None and self._quota.is_quota_exceeded()
        if was_exceeded or self._is_quota_exceeded:
            for tp in self._lagging:
                self._changed.setdefault(tp)
        failing: list[TopicPartition] = []
        changed = []
        for tp in self._changed:
            data = self._fetch_data(tp, failing)
            if data is None:
                if self._to_fetch.pop(tp, None) is not None:
                    changed.append(tp)
            elif data != self._to_fetch.get(tp):
                self._to_fetch.pop(tp, None)
                self._to_fetch[tp] = data
                changed.append(tp)
        self._changed = {}
        if failing:
            self._delay(failing, now_ms)
        config, last = self._config, self._last_fetch
        if not self._to_fetch and (last is None or not changed or not config.uses_sessions):
            self._last_fetch = None
            return None
        partitions = dict(self._to_fetch) if last is None or changed else last.partitions
        self._last_fetch = FetchRequest(
            partitions, config.max_wait_ms, config.min_bytes, config.max_bytes, None if last is None else changed
        )
        return self._last_fetch

    def _fetch_data(self, tp: TopicPartition, failing: list[TopicPartition]) -> FetchPartitionData | None:
        """What to fetch of a partition; None if it is not to be fetched now, appended to failing if its log fails."""
        state = self._states.get(tp)
        if state is None or state.phase is not Phase.FETCHING or tp in self._delayed:
            return None
        quota = self._quota if self._is_quota_exceeded and not state.is_in_sync else None
        if quota is not None and quota.is_throttled(tp):
            return None
        try:
            log_start_offset, topic_id = self._logs.start_and_topic_id(tp)
        except KafkaStorageError:
            failing.append(tp)  # RFT-13
            return None
        return FetchPartitionData(
            state.fetch_offset,
            self._config.partition_max_bytes,
            log_start_offset,
            state.current_leader_epoch,
            state.last_fetched_epoch if self._features.truncates_on_fetch else NO_EPOCH,
            topic_id,
        )

    # -- replies and failures -------------------------------------------------------------------------------------

    def on_failure(self, request: LeaderRequest, error: Exception, now_ms: float) -> None:
        """No reply, or an invalid one.  A failed fetch delays every partition (FT-14), a failed lookup the partitions
        of its request (RFT-16, FT-31)."""
        if request is not self._in_flight:
            return
        self._in_flight = None
        if isinstance(error, OSError):
            # A broker that is down fails every back-off.
            reason = plain_error(error)
            level = logging.DEBUG if reason == self._last_failure else logging.INFO
            self._last_failure = reason
            logger.log(level, "a request to %s failed: %s", self._leader, reason)
        elif self._refused_requests.is_logged(str(error), now_ms):
            logger.warning("a request to %s failed: %s", self._leader, error)
        concerned = list(self._states if isinstance(request, FetchRequest) else request.partitions)
        self._delay_reasons.update(
            dict.fromkeys(concerned, f"a request to {self._leader} failed: {plain_error(error)}")
        )
        self._delay(concerned, now_ms)

    def on_reply(self, request: LeaderRequest, reply: LeaderReply, now_ms: float) -> None:
        """Process the leader's reply.  A reply about a partition that is not in the request, or of another kind than
        the request, counts as a failure (FT-09)."""
        if request is not self._in_flight:
            return
        if not reply.partitions.keys() <= request.partitions.keys():
            self.on_failure(request, ValueError("a reply about partitions that were not asked for"), now_ms)
        elif isinstance(request, FetchRequest) and isinstance(reply, FetchReply):
            self._in_flight = None
            if request.partitions:
                self._last_failure = None
            self._on_fetched(request, reply, now_ms)
        elif isinstance(request, OffsetForLeaderEpochRequest) and isinstance(reply, OffsetForLeaderEpochReply):
            self._in_flight = None
            self._on_epoch_ends(request, reply, now_ms)
        elif isinstance(request, ListOffsetsRequest) and isinstance(reply, ListOffsetsReply):
            self._in_flight = None
            self._on_offsets(request, reply, now_ms)
        else:
            self.on_failure(request, ValueError(f"a {type(reply).__name__} to a {type(request).__name__}"), now_ms)
        for name, partitions in self._refused.items():
            text = f"{counted(len(partitions), 'partition')}: {some_of(partitions)}"
            logger.info("%s answers %s for %s", self._leader, name, text)
        self._refused.clear()

    def _on_fetched(self, request: FetchRequest, reply: FetchReply, now_ms: float) -> None:
        if self._delay_reasons:  # a session's reply has only the partitions with news
            for tp in request.partitions:
                self._delay_reasons.pop(tp, None)
        for tp, answer in reply.partitions.items():
            requested = request.partitions[tp]
            state = self._state_to_answer(tp, Phase.FETCHING, requested.current_leader_epoch, answer.error, now_ms)
            if state is None or state.fetch_offset != requested.fetch_offset:
                continue
            if isinstance(answer.error, OffsetOutOfRange):
                logger.info("%s: offset %d is out of the leader's range", tp, state.fetch_offset)
                self._move_to_end(tp, state._replace(phase=Phase.LOOKING_UP_OFFSETS))
            elif answer.error is not None:
                self._on_error(tp, answer.error, now_ms)
            elif answer.diverging_epoch is not None:
                # High watermark and log start are those of records that this log does not have yet (section 22, 11).
                self._truncate_to_epoch_end(tp, state, *answer.diverging_epoch, now_ms)
            else:
                self._take_records(tp, state, answer, now_ms)

    def _on_epoch_ends(
        self, request: OffsetForLeaderEpochRequest, reply: OffsetForLeaderEpochReply, now_ms: float
    ) -> None:
        for tp, answer in reply.partitions.items():
            requested = request.partitions[tp]
            state = self._state_to_answer(tp, Phase.TRUNCATING, requested.current_leader_epoch, answer.error, now_ms)
            if state is None:
                continue
            if answer.error is not None:
                self._on_error(tp, answer.error, now_ms)
            else:
                self._truncate_to_epoch_end(tp, state, answer.leader_epoch, answer.end_offset, now_ms)

    def _on_offsets(self, request: ListOffsetsRequest, reply: ListOffsetsReply, now_ms: float) -> None:
        for tp, answer in reply.partitions.items():
            requested = request.partitions[tp]
            state = self._state_to_answer(
                tp, Phase.LOOKING_UP_OFFSETS, requested.current_leader_epoch, answer.error, now_ms
            )
            if state is None:
                continue
            if answer.error is not None or answer.offset < 0:
                self._on_error(tp, answer.error, now_ms)
            else:
                self._take_offset(tp, state, answer.offset, now_ms)

    def _state_to_answer(
        self, tp: TopicPartition, phase: Phase, requested_epoch: int, error: ApiError | None, now_ms: float
    ) -> PartitionFetchState | None:
        """The state that an answer is for; None if the partition was removed, added again for another leader epoch, or
        marked for truncation since the request (FT-09, FT-16).  A partition of a pending request is not delayed."""
        state = self._states.get(tp)
        if state is None or state.phase is not phase:
            return None
        if state.current_leader_epoch != requested_epoch:
            if isinstance(error, FencedLeaderEpoch):
                self._delay([tp], now_ms)  # FT-24
            return None
        return state

    def _on_error(self, tp: TopicPartition, error: ApiError | None, now_ms: float) -> None:
        """FT-23..25, FT-31: nothing helps a fenced follower but the controller; all others try again."""
        name = "that it has no offset" if error is None else type(error).__name__
        if isinstance(error, FencedLeaderEpoch):
            self._refused.setdefault(f"{name}, the controller will name a newer leader epoch,", []).append(tp)
            self._fail(tp, error)
            return
        self._refused.setdefault(f"{name}, asking again later,", []).append(tp)
        self._delay_reasons[tp] = f"{self._leader} answers {name}"
        logger.debug("%s: the leader answers %r, asking again later", tp, error)
        self._delay([tp], now_ms)

    def _on_bad_answer(self, tp: TopicPartition, why: str, now_ms: float) -> None:
        """The log stays as it is, and the leader is asked again later."""
        if self._bad_answers.is_logged(str(tp), now_ms):
            logger.error("%s: %s", tp, why)
        self._delay_reasons[tp] = f"what {self._leader} sends is not taken: {why}"
        self._delay([tp], now_ms)

    def _take_records(
        self, tp: TopicPartition, state: PartitionFetchState, answer: FetchedPartition, now_ms: float
    ) -> None:
        logs = self._logs
        try:
            log_end_offset = logs.log_end_offset(tp)
            if log_end_offset != state.fetch_offset:
                raise RuntimeError(
                    f"{tp}: fetched from {state.fetch_offset}, the log ends at {log_end_offset}"
                )  # RFT-03
            is_not_compared = state.lag is None and none_is_compared(
                log_end_offset, answer.log_start_offset, answer.high_watermark
            )
            if is_not_compared and logs.log_start_offset(tp) < log_end_offset:
                logger.warning("%s: none of our records was compared with the leader's, the log starts again", tp)
                logs.truncate_fully_and_start_at(tp, log_end_offset)
                state = state._replace(last_fetched_epoch=logs.latest_epoch(tp))
            records = answer.records
            appended = (
                logs.append(tp, records, answer.log_start_offset, state.current_leader_epoch) if records else None
            )
            logs.update_high_watermark(tp, answer.high_watermark)
            logs.maybe_increment_log_start_offset(tp, answer.log_start_offset)
        except (CorruptMessage, InvalidRecord, OffsetsOutOfOrder, UnexpectedAppendOffset) as error:
            # No CRC covers a base offset.  Asked again and again, the leader checks its log (damage_checks.py).
            self._on_bad_answer(tp, f"fetched at {state.fetch_offset}: {error}", now_ms)  # FT-20
            return
        except DiskFull as error:
            if self._disk_failures.is_logged("", now_ms):  # each log has said so itself
                logger.info("%s: fetched at %d: %s", tp, state.fetch_offset, error)
            self._delay_reasons[tp] = f"the disk is full: {error}"
            self._delay([tp], now_ms)
            return
        except Exception as error:
            self._fail(tp, error)  # FT-21
            return
        next_offset = state.fetch_offset if appended is None else appended.last_offset + 1
        last_epoch = state.last_fetched_epoch if appended is None else appended.last_leader_epoch
        # Fetching, and not delayed, as it was when the request was made.
        lag = answer.high_watermark - next_offset if answer.high_watermark > next_offset else 0
        state = PartitionFetchState(next_offset, state.current_leader_epoch, Phase.FETCHING, lag, last_epoch)
        self._set_fetched(tp, state, to_end=appended is not None)
        if records and appended is None:
            # RFT-05: up to Fetch version 2 a leader cuts the first batch too.
            why = f"{len(records)} bytes without a whole batch: replica.fetch.max.bytes is too small"
            self._on_bad_answer(tp, why, now_ms)

    def _truncate_to_epoch_end(
        self, tp: TopicPartition, state: PartitionFetchState, leader_epoch: int, leader_end_offset: int, now_ms: float
    ) -> None:
        if min(leader_epoch, leader_end_offset) < UNDEFINED_EPOCH_OFFSET:
            why = f"the leader answers that epoch {leader_epoch} ends at {leader_end_offset}"
            self._on_bad_answer(tp, why, now_ms)
            return
        try:
            truncation = offset_truncation_state(
                leader_epoch,
                leader_end_offset,
                initial_offset=state.fetch_offset,
                log_end_offset=self._logs.log_end_offset(tp),
                end_offset_for_epoch=lambda epoch: self._logs.end_offset_for_epoch(tp, epoch),
            )
        except KafkaStorageError as error:
            self._fail(tp, error)
            return
        self._truncate(tp, truncation)
        if self._states.get(tp) == state:
            # The next request is the same, and its answer may be too: a leader contradicts itself.  Kafka asks at once.
            self._delay([tp], now_ms)

    def _truncate(self, tp: TopicPartition, truncation: OffsetTruncationState) -> None:
        """Cut the log; then fetch from there, or ask for the epoch that is last then (FT-10).  Any error: FT-11."""
        offset, is_completed = truncation
        try:
            self._logs.truncate_to(tp, offset, is_completed)
            last_epoch = self._logs.latest_epoch(tp)
        except Exception as error:
            self._fail(tp, error)
            return
        # With truncates_on_fetch the next fetch carries the epoch that is last now, which is the question again.
        fetches = is_completed or self._features.truncates_on_fetch
        state = self._states[tp]._replace(
            fetch_offset=offset,
            phase=Phase.FETCHING if fetches else Phase.TRUNCATING,
            last_fetched_epoch=last_epoch,
        )
        self._set(tp, state)

    def _take_offset(self, tp: TopicPartition, state: PartitionFetchState, offset: int, now_ms: float) -> None:
        """FT-27..29: the leader's log end decides, or else its log start does."""
        logs = self._logs
        try:
            log_start_offset, log_end_offset = logs.log_start_offset(tp), logs.log_end_offset(tp)
            if state.leader_end_offset is None and not log_start_offset <= offset < log_end_offset:
                self._set(tp, state._replace(leader_end_offset=offset))
                return
            if state.leader_end_offset is None:
                leader_start_offset, leader_end_offset = 0, offset
            else:
                leader_start_offset, leader_end_offset = offset, state.leader_end_offset
                if leader_start_offset > leader_end_offset:
                    why = f"the leader answers that its log starts at {offset} and ends at {leader_end_offset}"
                    self._on_bad_answer(tp, why, now_ms)
                    return
            decision = out_of_range(log_end_offset, leader_start_offset, leader_end_offset, log_start_offset)
            if decision.truncates:
                logger.warning("%s: the leader ends at %d, below our %d: cut", tp, leader_end_offset, log_end_offset)
                logs.truncate_to(tp, decision.offset, True)
            elif decision.starts_anew:
                logger.warning(
                    "%s: the leader has the offsets from %d to %d, none of ours: the log starts again",
                    tp,
                    leader_start_offset,
                    leader_end_offset,
                )
                logs.truncate_fully_and_start_at(tp, decision.offset)
            last_epoch = logs.latest_epoch(tp)
        except Exception as error:
            self._fail(tp, error)
            return
        lag = max(0, leader_end_offset - decision.offset)
        self._move_to_end(
            tp,
            PartitionFetchState(
                decision.offset, state.current_leader_epoch, Phase.FETCHING, lag=lag, last_fetched_epoch=last_epoch
            ),
        )
        if (decision.offset, last_epoch) == (state.fetch_offset, state.last_fetched_epoch):
            self._delay([tp], now_ms)  # the next fetch is the one that was out of range; Kafka asks at once
