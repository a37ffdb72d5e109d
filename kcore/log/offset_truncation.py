"""Where a follower cuts its log before it fetches (EPOCH-06..11): rules without a network, a log, or a lock.

A follower asks its leader where the follower's latest epoch ends in the leader's log (OffsetForLeaderEpoch), or sends
that epoch along with its fetch; the answer, the follower's own epochs and its log end say what to cut.
Source: AbstractFetcherThread.getOffsetTruncationState and fetchOffsetAndTruncate, Partition.readRecords, Kafka 2.4-4.x;
KIP-101, KIP-279, KIP-595.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kcore.errors import InvalidRecord, OffsetOutOfRange
from kcore.log.leader_epoch_file_cache import UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET

#: A log's UnifiedLog.end_offset_for_epoch: (epoch, end offset) of the largest epoch <= the argument, or (-1, -1).
EndOffsetForEpoch = Callable[[int], tuple[int, int]]


class OffsetTruncationState(NamedTuple):
    """Truncate to offset; then fetch from there, or, unless completed, ask again with the epoch that is left."""

    offset: int
    completed: bool


class OutOfRange(NamedTuple):
    """Fetch from offset.  `truncates` cuts the log there, `starts_anew` empties it and lets it begin there."""

    offset: int
    truncates: bool = False
    starts_anew: bool = False


def offset_truncation_state(
    leader_epoch: int,
    leader_end_offset: int,
    *,
    initial_offset: int,
    log_end_offset: int,
    end_offset_for_epoch: EndOffsetForEpoch,
) -> OffsetTruncationState:
    """What a follower does with its leader's answer (leader_epoch, leader_end_offset), each -1 if undefined.

    initial_offset is the follower's high watermark, log_end_offset and end_offset_for_epoch are its own log's.
    """
    if leader_end_offset == UNDEFINED_EPOCH_OFFSET:
        # EPOCH-06: the leader has no such epoch.  Records below the high watermark are safe all the same.
        return OffsetTruncationState(initial_offset, True)
    at_most = min(leader_end_offset, log_end_offset)
    if leader_epoch == UNDEFINED_EPOCH:
        return OffsetTruncationState(at_most, True)  # EPOCH-07
    own_epoch, own_end_offset = end_offset_for_epoch(leader_epoch)
    if own_end_offset == UNDEFINED_EPOCH_OFFSET:
        return OffsetTruncationState(at_most, True)  # EPOCH-10
    if own_epoch == leader_epoch:
        return OffsetTruncationState(min(own_end_offset, at_most), True)  # EPOCH-08
    # EPOCH-09: the leader has no record of this log above own_epoch, and own_epoch may end earlier in the leader's log.
    return OffsetTruncationState(min(own_end_offset, log_end_offset), False)


def diverging_epoch(
    fetch_offset: int, last_fetched_epoch: int, end_offset_for_epoch: EndOffsetForEpoch
) -> tuple[int, int] | None:
    """A leader's look at a fetch that names the epoch of the record before fetch_offset (Fetch 12+).

    None: the follower's log has not diverged.  Else the (epoch, end offset) to put into offset_truncation_state().
    end_offset_for_epoch is the leader's.  Raises OffsetOutOfRange for an epoch that the leader cannot place.
    """
    if last_fetched_epoch == UNDEFINED_EPOCH:
        return None
    epoch, end_offset = end_offset_for_epoch(last_fetched_epoch)
    if epoch == UNDEFINED_EPOCH or end_offset == UNDEFINED_EPOCH_OFFSET:
        raise OffsetOutOfRange(f"fetch at offset {fetch_offset}: the end of epoch {last_fetched_epoch} is not known")
    return (epoch, end_offset) if epoch < last_fetched_epoch or end_offset < fetch_offset else None


def out_of_range(
    log_end_offset: int, leader_start_offset: int, leader_end_offset: int, log_start_offset: int = 0
) -> OutOfRange:
    """What a follower does whose fetch at its log end the leader refused with OFFSET_OUT_OF_RANGE.

    If the leader's log ends before the follower's, the leader was elected uncleanly: the follower truncates to its end.
    If it starts after the follower's end, the leader has deleted what comes next: the follower's log starts again.  So
    it does if the leader's log ends before the follower's starts: cut there, it would lack all that the leader has.
    """
    if leader_end_offset < log_start_offset:
        return OutOfRange(leader_start_offset, starts_anew=True)
    if leader_end_offset < log_end_offset:
        return OutOfRange(leader_end_offset, truncates=True)
    if leader_start_offset > log_end_offset:
        return OutOfRange(leader_start_offset, starts_anew=True)
    return OutOfRange(log_end_offset)


def none_is_compared(log_end_offset: int, leader_start_offset: int, leader_high_watermark: int) -> bool:
    """Whether a leader's first answer to a fetch at a follower's log end leaves open if their records are the same: all
    the follower's are below the leader's log start.

    The leader has no epochs there any more, so it cannot detect that they diverge.  No consumer reads them, but if a
    producer sends one of these batches again, it would count as a duplicate of a committed batch.

    Raises InvalidRecord for a log start that no leader has: it would refuse a fetch below its log start, and its log
    never starts above its high watermark.  Nothing may be removed because of such an answer.
    """
    if leader_start_offset > min(log_end_offset, leader_high_watermark):
        raise InvalidRecord(
            f"the leader contradicts itself: its log starts at {leader_start_offset}, "
            f"its high watermark is {leader_high_watermark}"
        )
    return log_end_offset == leader_start_offset
