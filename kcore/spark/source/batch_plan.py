"""Plans the tasks of a batch from its options and filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from kcore.common.topic_partition import TopicPartition
from kcore.log.log_segment import LogSegment
from kcore.spark.catalog import Bounds, choose_partitions, log_bounds, segment_base_offsets
from kcore.spark.options import EARLIEST, LATEST, OptionError, Position, ReadOptions
from kcore.spark.source.broker_bounds import broker_asker, check_all_there
from kcore.spark.source.data_loss import report_loss
from kcore.spark.source.filters import Restriction
from kcore.spark.source.partition_plan import OffsetRange, plan
from kcore.spark.source.reader import lost

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


class BatchPlan:
    def __init__(self, options: ReadOptions, parallelism: int | None = None) -> None:
        self.options = options
        self.parallelism = parallelism
        self.restriction = Restriction()

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Applies the filters that it can; returns those that Spark has to apply."""
        return self.restriction.add(filters)

    def tasks(self) -> list[tuple[OffsetRange, ...]]:
        """Raises OptionError, OSError, CorruptFile, CorruptMessage."""
        options = self.options
        return plan(
            self.ranges(),
            parallelism=self.parallelism,
            max_bytes=options.max_bytes_per_partition,
            max_records=options.max_records_per_partition,
            min_tasks=options.min_partitions,
        )

    def ranges(self) -> list[OffsetRange]:
        options = self.options
        chosen = choose_partitions(options)
        for position in (options.starting, options.ending):
            check_partitions(position, chosen)
        partitions = {tp: directory for tp, directory in chosen.items() if self.restriction.admits(tp)}
        check_all_there(options, chosen.keys(), self.restriction.admits)
        bounds = log_bounds(partitions, options.isolation, broker_asker(options))
        ranges = []
        for tp, directory in partitions.items():
            start = resolve(options.starting, tp, directory, bounds[tp], options.latest_when_no_timestamp)
            end = resolve(options.ending, tp, directory, bounds[tp], True)
            if start > end:
                raise OptionError(
                    f"{tp}: {options.starting.option} is offset {start}, after {options.ending.option}, offset {end}"
                )
            whole = OffsetRange(tp, directory, start, end, aborted=bounds[tp].aborted)
            piece = self._restricted(self._there(whole, bounds[tp]), bounds[tp])
            if piece is not None:
                ranges.append(piece)
        return ranges

    def _there(self, piece: OffsetRange, bounds: Bounds) -> OffsetRange:
        """Cuts the range to the bounds of the log.  Before the log start a segment may still hold deleted records.
        After the end (high watermark or last stable offset) records may still be truncated."""
        fail = self.options.fail_on_data_loss
        first, end = min(bounds.start, piece.end), max(bounds.end, piece.start)
        if piece.start < first:
            lost(piece, piece.start, first, f"the log now starts at {bounds.start}", fail)
            piece = replace(piece, start=first)
        if piece.end > max(end, piece.start):
            report_loss(
                f"{piece.topic_partition}: offsets {max(end, piece.start)} to {piece.end - 1} are not in "
                f"{piece.directory}: it can be read up to {bounds.end}. They were never there, or not yet, or the log "
                "was cut back or made anew",
                fail,
            )
            piece = replace(piece, end=max(end, piece.start))
        return piece

    def _restricted(self, piece: OffsetRange, bounds: Bounds) -> OffsetRange | None:
        """The part of the range that the filters leave; None if nothing is left."""
        restriction = self.restriction
        start, end = max(piece.start, restriction.offset_from), min(piece.end, restriction.offset_to)
        if start >= end or restriction.time_from > restriction.time_to:
            return None
        if restriction.time_from > -1:
            first = offset_at(
                piece.directory, restriction.time_from, Bounds(max(start, bounds.start), min(end, bounds.end))
            )
            if first is None:
                return None
            start = first
        return replace(piece, start=start, end=end, time_from=restriction.time_from, time_to=restriction.time_to)


def check_partitions(position: Position, chosen: Mapping[TopicPartition, str]) -> None:
    """Raises OptionError if a position by partition does not name exactly the chosen partitions."""
    by_partition = position.offsets if position.offsets is not None else position.timestamps
    if by_partition is None or by_partition.keys() == chosen.keys():
        return
    missing = sorted(chosen.keys() - by_partition.keys())
    extra = sorted(by_partition.keys() - chosen.keys())
    raise OptionError(
        f"{position.option} must name all partitions that are read, and no other: "
        + "; ".join(
            f"{what} {', '.join(map(str, some))}" for what, some in (("missing", missing), ("unknown", extra)) if some
        )
    )


def resolve(position: Position, tp: TopicPartition, directory: str, bounds: Bounds, or_latest: bool) -> int:
    """The offset of a position.

    or_latest: if no record has the timestamp or a later one, returns the end of the readable log; without it, raises
    OptionError.
    """
    offset = position.offset if position.offsets is None else position.offsets[tp]
    if offset is not None:
        return {EARLIEST: bounds.start, LATEST: bounds.end}.get(offset, offset)
    timestamp = position.timestamp if position.timestamps is None else position.timestamps[tp]
    assert timestamp is not None
    offset = offset_at(directory, timestamp, bounds)
    if offset is None:
        if not or_latest:
            raise OptionError(
                f"{position.option}: no record of {tp} has a timestamp of {timestamp} or later; with "
                "startingOffsetsByTimestampStrategy=latest reading starts at the end"
            )
        return bounds.end
    return offset


def offset_at(directory: str, timestamp: int, bounds: Bounds) -> int | None:
    """Offset of the first readable record with this timestamp (ms) or a later one; None if there is none."""
    base_offsets = segment_base_offsets(directory)
    for base, following in pairwise([*base_offsets, 2**63 - 1]):
        if following <= bounds.start:
            continue
        if base >= bounds.end:
            return None
        segment = LogSegment(directory, base, writable=False)
        try:
            # Search the segment even if its time index ends before the timestamp: the last entries may be missing.  If
            # none is missing, the index leads to the last batches of the segment, so the search reads few of them.
            record = segment.find_offset_by_timestamp(timestamp, max(base, bounds.start))
        finally:
            segment.close()
        if record is not None:
            offset: int = record[1]
            return offset if offset < bounds.end else None
    return None
