"""The streaming source: offsets of each partition from trigger to trigger.

Offsets in checkpoints and progress are the connector's JSON, {"topic": {"0": 23}}: the offset that is read next.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from kcore.common.topic_partition import TopicPartition
from kcore.spark.catalog import Ask, Bounds, choose_partitions, log_bounds
from kcore.spark.options import OptionError, ReadOptions
from kcore.spark.source.batch_plan import check_partitions, resolve
from kcore.spark.source.broker_bounds import broker_asker, check_all_there
from kcore.spark.source.data_loss import report_loss
from kcore.spark.source.partition_plan import OffsetRange, plan
from kcore.spark.source.reader import read_ranges
from kcore.spark.source.task import Task, spare_the_collector

Offsets = dict[TopicPartition, int]


def offsets_to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    by_topic: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        by_topic.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return by_topic


def offsets_from_json(by_topic: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Raises OptionError for a value that does not have the form of this source's offsets."""
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partitions in by_topic.items()
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise OptionError(f"the checkpoint holds {by_topic!r}: these are no offsets of format kcore") from None


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: pa.Schema, parallelism: int | None = None) -> None:
        self.options = options
        self.schema = schema
        self.parallelism = parallelism
        self._ask: Ask | None = None
        self._last_trigger: float | None = None
        #: Ends of the partitions for Trigger.AvailableNow.
        self._target: Offsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Only what the tasks need; the client of a broker cannot be pickled.
        return {"options": self.options, "schema": self.schema}

    def initialOffset(self) -> dict[str, dict[str, int]]:
        options = self.options
        chosen = choose_partitions(options)
        check_all_there(options, chosen.keys())
        check_partitions(options.starting, chosen)
        bounds = self._bounds(chosen)
        starts = {
            tp: resolve(options.starting, tp, directory, bounds[tp], options.latest_when_no_timestamp)
            for tp, directory in chosen.items()
        }
        return offsets_to_json(starts)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {tp: bounds.end for tp, bounds in self._bounds(self._chosen()).items()}

    def _chosen(self, checkpointed: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, str]:
        """The partitions that exist now.  checkpointed: those of the checkpoint, None if there is no checkpoint.  If
        one of their topics is gone, this is no error here: the caller has the last offset and reports the loss."""
        return choose_partitions(self.options, None if checkpointed is None else {tp.topic for tp in checkpointed})

    def latestOffset(self, start: dict[str, dict[str, int]], limit: ReadLimit) -> dict[str, dict[str, int]]:
        """Where the next batch ends.  Raises DataLoss for a partition that is gone or ends before the offset that was
        read, unless failOnDataLoss is false."""
        starts = offsets_from_json(start)
        bounds = self._bounds(self._chosen(starts))
        ends = {tp: log.end for tp, log in bounds.items()}
        if self._target is not None:
            ends = {tp: min(ends.get(tp, end), end) for tp, end in self._target.items()}
        for tp, offset in starts.items():
            if tp not in ends:
                if self._target is None or tp not in bounds:
                    self._lost(
                        f"{tp} was read up to offset {offset} and is no longer in {', '.join(self.options.paths)}"
                    )
                ends[tp] = offset
            elif ends[tp] < offset:
                self._lost(f"{tp} was read up to offset {offset} and now ends at {ends[tp]}: it was cut or made anew")
        begins = {tp: starts[tp] if tp in starts else bounds[tp].start for tp in ends}
        chosen = self._limited(begins, ends, limit)
        return offsets_to_json(chosen)

    def reportLatestOffset(self) -> dict[str, dict[str, int]]:
        """The current ends of the partitions.  Spark's progress shows them as latestOffset, beside endOffset."""
        bounds = self._bounds(self._chosen())
        return offsets_to_json({tp: log.end for tp, log in bounds.items()})

    def partitions(self, start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]) -> Sequence[InputPartition]:
        options = self.options
        starts, ends = offsets_from_json(start), offsets_from_json(end)
        chosen = self._chosen(ends)
        grown = {tp: directory for tp, directory in chosen.items() if tp in ends and starts.get(tp, 0) < ends[tp]}
        for tp in ends.keys() - chosen.keys():
            if starts.get(tp, 0) < ends[tp]:
                self._lost(f"{tp}: offsets {starts.get(tp, 0)} to {ends[tp] - 1} are no longer there")
        bounds = self._bounds(grown)
        ranges = []
        for tp, directory in grown.items():
            # A partition that is new since the last batch is read from its beginning.
            start_at = starts.get(tp, bounds[tp].start)
            if start_at < bounds[tp].start:
                first = bounds[tp].start
                self._lost(
                    f"{tp}: offsets {start_at} to {min(first, ends[tp]) - 1} were deleted: the log starts at {first}"
                )
                start_at = first
            ranges.append(OffsetRange(tp, directory, start_at, ends[tp], aborted=bounds[tp].aborted))
        tasks = plan(
            ranges,
            parallelism=self.parallelism,
            max_bytes=options.max_bytes_per_partition,
            max_records=options.max_records_per_partition,
            min_tasks=options.min_partitions,
        )
        return [Task(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        spare_the_collector()
        ranges = partition.ranges if isinstance(partition, Task) else ()
        return read_ranges(ranges, self.schema, fail_on_data_loss=self.options.fail_on_data_loss)

    def _bounds(self, partitions: Mapping[TopicPartition, str]) -> dict[TopicPartition, Bounds]:
        if self._ask is None:
            self._ask = broker_asker(self.options)
        return log_bounds(partitions, self.options.isolation, self._ask)

    def _limited(self, starts: Offsets, ends: Offsets, limit: ReadLimit) -> Offsets:
        available = sum(max(0, ends[tp] - starts[tp]) for tp in ends)
        now = time.monotonic()
        if isinstance(limit, ReadAllAvailable):
            return ends
        minimum = self.options.min_offsets_per_trigger
        if isinstance(limit, ReadMinRows):
            minimum = limit.min_rows
        if self._last_trigger is None:
            self._last_trigger = now
        waited_ms = (now - self._last_trigger) * 1000
        # With Trigger.AvailableNow no more records count, so unread for them would not end.
        if (
            minimum is not None
            and self._target is None
            and available < minimum
            and waited_ms < self.options.max_trigger_delay_ms
        ):
            return {tp: starts[tp] for tp in ends}
        self._last_trigger = now
        return shares(starts, ends, limit.max_rows) if isinstance(limit, ReadMaxRows) else ends

    def _lost(self, message: str) -> None:
        report_loss(message, self.options.fail_on_data_loss)


def shares(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], rows: int) -> Offsets:
    """Ends of a batch of at most `rows` offsets.  The share of a partition is proportional to its unread offsets."""
    unread = {tp: max(0, ends[tp] - starts[tp]) for tp in sorted(ends)}
    total = sum(unread.values())
    if total <= rows:
        return dict(ends)
    taken = {tp: count * rows // total for tp, count in unread.items()}
    # The offsets lost by rounding go to the partitions that lost most, so that each is read eventually.
    remainder = rows - sum(taken.values())
    for tp in sorted(unread, key=lambda tp: unread[tp] * rows % total, reverse=True)[:remainder]:
        taken[tp] += 1
    return {tp: starts[tp] + taken[tp] if unread[tp] else ends[tp] for tp in ends}
