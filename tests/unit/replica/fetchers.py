"""What the tests of the follower's fetcher share: logs that are lists, and a FetcherState over them."""

from uuid import UUID

from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    OffsetOutOfRange,
)
from kcore.log.leader_epoch_file_cache import LeaderEpochFileCache
from kcore.replica.fetcher.fetcher_state import (
    FetcherConfig,
    FetcherState,
    InitialFetchState,
    Wait,
)
from kcore.replica.fetcher.follower_logs import AppendedRecords
from kcore.replica.fetcher.leader_endpoint import (
    EpochEndOffset,
    FetchReply,
    FetchRequest,
    ListOffsetsReply,
    ListOffsetsRequest,
    OffsetForLeaderEpochReply,
    OffsetForLeaderEpochRequest,
)

A, B, C = TopicPartition("a", 0), TopicPartition("b", 1), TopicPartition("c", 2)
LATEST, EARLIEST = -1, -2
BACKOFF = 1000


def topic_id(tp):
    return UUID(int=1 + tp.partition)


class MemoryLog:
    """epochs: the epoch of each record; the log end offset is start and their number."""

    def __init__(self, epochs=(), start=0, high_watermark=0):
        self.start, self.epochs, self.high_watermark = start, list(epochs), high_watermark
        self.failures = {}

    @property
    def end(self):
        return self.start + len(self.epochs)

    def cache(self):
        cache = LeaderEpochFileCache("a-0", None, [])
        for at, epoch in enumerate(self.epochs):
            if epoch >= 0 and epoch != cache.latest_epoch:
                cache.assign(epoch, self.start + at)
        return cache


class MemoryLogs:
    """FollowerLogs over lists.  Records of a reply are (epoch, count) pairs; done is what was changed, in order."""

    def __init__(self, **logs):
        self.logs = {TopicPartition(name, "abc".index(name)): log for name, log in logs.items()}
        self.done = []

    def _log(self, tp, call):
        log = self.logs[tp]
        if call in log.failures:
            raise log.failures[call]
        return log

    def log_end_offset(self, tp):
        return self._log(tp, "log_end_offset").end

    def log_start_offset(self, tp):
        return self._log(tp, "log_start_offset").start

    def start_and_topic_id(self, tp):
        return self._log(tp, "start_and_topic_id").start, topic_id(tp)

    def high_watermark(self, tp):
        return self._log(tp, "high_watermark").high_watermark

    def latest_epoch(self, tp):
        return self._log(tp, "latest_epoch").cache().latest_epoch

    def end_offset_for_epoch(self, tp, epoch):
        log = self._log(tp, "end_offset_for_epoch")
        return log.cache().end_offset_for(epoch, log.end)

    def truncate_to(self, tp, offset, is_completed):
        log = self._log(tp, "truncate_to")
        self.done.append(("truncate_to", tp, offset, is_completed))
        del log.epochs[max(0, offset - log.start) :]

    def truncate_fully_and_start_at(self, tp, offset):
        log = self._log(tp, "truncate_fully_and_start_at")
        self.done.append(("truncate_fully_and_start_at", tp, offset))
        log.start, log.epochs = offset, []

    def append(self, tp, records, leader_log_start_offset, leader_epoch):
        log = self._log(tp, "append")
        self.done.append(("append", tp, records))
        epoch, count = records
        log.epochs += [epoch] * count
        return AppendedRecords(log.end - 1, epoch) if count else None

    def update_high_watermark(self, tp, offset):
        log = self._log(tp, "update_high_watermark")
        self.done.append(("update_high_watermark", tp, offset))
        log.high_watermark = max(log.start, min(offset, log.end))

    def maybe_increment_log_start_offset(self, tp, offset):
        log = self._log(tp, "maybe_increment_log_start_offset")
        if offset > log.high_watermark:
            raise OffsetOutOfRange(f"{offset}")
        if offset > log.start:
            self.done.append(("maybe_increment_log_start_offset", tp, offset))
            del log.epochs[: offset - log.start]
            log.start = offset


class Quota:
    """Exceeded while anything is throttled."""

    def __init__(self, throttled):
        self.throttled = throttled

    def is_throttled(self, tp):
        return tp in self.throttled

    def is_quota_exceeded(self):
        return bool(self.throttled)


class FetcherOfLogs(FetcherState):
    """With its logs, for a test to look into."""

    def __init__(self, logs, *others):
        super().__init__(logs, *others)
        self.logs = logs


def fetcher(*, on_fetch=True, throttled=None, looks_up_epochs=True, uses_sessions=False, failed=None, **logs):
    config = FetcherConfig(
        fetch_backoff_ms=BACKOFF,
        max_wait_ms=300,
        min_bytes=7,
        max_bytes=5000,
        partition_max_bytes=400,
        truncates_on_fetch=on_fetch,
        looks_up_epochs=looks_up_epochs,
        uses_sessions=uses_sessions,
    )
    return FetcherOfLogs(MemoryLogs(**logs), config, None if throttled is None else Quota(throttled), failed)


def fetching(tp=A, *, epochs=(1, 1, 1), leader_epoch=5, on_fetch=True, **more):
    """A fetcher that is ready to fetch tp from its log's end."""
    state = fetcher(on_fetch=on_fetch, **{tp.topic: MemoryLog(epochs)}, **more)
    state.add_partitions({tp: InitialFetchState(len(epochs), leader_epoch)})
    if not on_fetch:
        request = state.next_request(0)
        state.on_reply(request, OffsetForLeaderEpochReply({tp: EpochEndOffset(epochs[-1], len(epochs))}), 0)
    return state


def next_request(state, now=0):
    """The next request, which must not be a Wait."""
    request = state.next_request(now)
    assert not isinstance(request, Wait), request
    return request


def reply_to(state, answers, now=0):
    request = next_request(state, now)
    kind = {
        FetchRequest: FetchReply,
        ListOffsetsRequest: ListOffsetsReply,
        OffsetForLeaderEpochRequest: OffsetForLeaderEpochReply,
    }[type(request)]
    state.on_reply(request, kind(answers), now)
    return request
