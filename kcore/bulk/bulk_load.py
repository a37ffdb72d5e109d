"""Bulk load: writes Arrow batches as finished segments, without a broker and without a Python object per record.

    load = BulkLoad("data", topic="orders", partitions=6)
    for batch in batches:  # columns key, value, headers, timestamp, partition, topic, as far as present
        load.append(batch)
    load.commit()

SegmentWriter writes the records of one process to a staging directory.  kcore.bulk.bulk_commit adds the segments of one
or many writers to the logs at once.  Needs pyarrow.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kcore.bulk.bulk_commit import LoadedRange, commit_load, discard_load, staging_directory
from kcore.bulk.staged_log import StagedLog, StagedLogWriter
from kcore.common.file import make_directory, remove_tree
from kcore.common.random_source import SYSTEM_RANDOM, random_uuid
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import DirectoryInUse, InvalidTimestamp, InvalidTopicException
from kcore.log.directory_lock import why_held
from kcore.log.log_config import LogConfig
from kcore.log.log_file_names import partition_directory
from kcore.log.meta_properties import refuse_members_directory
from kcore.log.partition_counts import PartitionCounts, partition_counts
from kcore.record.arrow import columns_from_arrow, pyarrow
from kcore.record.column_batches import batches_of
from kcore.record.columns import RecordColumns
from kcore.record.compression import codec_of
from kcore.record.partitioner import assign_partitions, group_by_partition

if TYPE_CHECKING:
    import pyarrow as pa

    from kcore.record.record_batch import CompressionType

#: Bytes of a batch before compression.  Larger ones compress little better, and to read one record takes a whole batch.
DEFAULT_BATCH_BYTES = 256 * 1024
#: Records are buffered until each partition has about this much (otherwise many partitions would get small batches),
#: but no more than _MOST_WAITING_BYTES in total.
_BYTES_PER_PARTITION = 64 * 1024
_MOST_WAITING_BYTES = 64 * 1024 * 1024
#: A codec adds at most 1/64 to bytes that do not compress.
_CODEC_OVERHEAD = 64
_THREADS = 8


def check_not_in_use(data_dir: str) -> None:
    """Raises DirectoryInUse if a process has the directory open, ClusterMemberDirectory for one of a cluster's member;
    OSError."""
    refuse_members_directory(data_dir)
    reason = why_held(data_dir)
    if reason is not None:
        raise DirectoryInUse(f"{reason}; stop the broker, or write through it (kcore.bootstrap.servers)")


def check_topic(topic: str) -> str:
    """Returns the topic.  Raises InvalidTopicException if it is no valid topic name."""
    legal = topic.isascii() and all(c.isalnum() or c in "._-" for c in topic)
    if not legal or topic in ("", ".", "..") or len(topic) > 249:
        raise InvalidTopicException(
            f"{topic!r} is no topic's name: letters, digits, '.', '_' and '-', up to 249 of them"
        )
    return topic


_TOO_EARLY = "a record's timestamp is 1970-01-01T00:00:00Z or later"


class SegmentWriter:
    """Writes the records of Arrow batches as segments, those of each partition in a directory of its own.

    topic: the topic of all records; None: the column topic has it.  turn: the partition of the first record without a
    key.
    Not thread-safe.  Ends with finish() or discard().
    """

    def __init__(
        self,
        directory: str,
        partitions: PartitionCounts,
        *,
        topic: str | None = None,
        config: LogConfig | None = None,
        compression: CompressionType = "none",
        level: int | None = None,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        turn: int = 0,
        time: Time = SYSTEM_TIME,
    ) -> None:
        self.directory = directory
        self._partitions = partitions
        self._topic = topic
        self._config = config or LogConfig()
        largest = self._config.max_message_bytes
        if compression != "none":
            largest -= largest // _CODEC_OVERHEAD
        self._options: dict[str, Any] = {
            "compression": compression,
            "level": level,
            "max_bytes": min(batch_bytes, max(largest, 1)),
            "leader_epoch": 0,
        }
        self._first_turn = turn
        self._turns: dict[str, int] = {}
        self._time = time
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._most_partitions = 1
        self._logs: dict[TopicPartition, StagedLogWriter] = {}
        self._pa = pyarrow()
        make_directory(directory)

    def append(self, batch: pa.RecordBatch) -> None:
        """Records of the columns key, value (bytes or strings), headers (lists of structs of key and value), timestamp
        (null: now), partition (null: by the key) and topic.  Missing columns are allowed, other columns are ignored.

        Raises ValueError, InvalidTimestamp, InvalidTopicException, MessageTooLarge for records that no log can have;
        InvalidPartitions, OSError.
        """
        if batch.num_rows:
            if self._waiting and self._waiting[0].schema != batch.schema:
                self._write_waiting()
            self._waiting.append(batch)
            self._waiting_bytes += batch.nbytes
            if self._waiting_bytes >= min(self._most_partitions * _BYTES_PER_PARTITION, _MOST_WAITING_BYTES):
                self._write_waiting()

    def _write_waiting(self) -> None:
        if not self._waiting:
            return
        table = self._pa.Table.from_batches(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        if self._topic is not None:
            self._write(self._topic, table)
            return
        import pyarrow.compute as pc

        topics = pc.unique(table["topic"]).to_pylist()
        for topic in topics:
            if topic is None:
                raise InvalidTopicException("a record has no topic: its column topic is null")
            chosen = table if len(topics) == 1 else table.filter(pc.equal(table["topic"], topic))
            self._write(check_topic(topic), chosen)

    def _write(self, topic: str, table: pa.Table) -> None:
        partitions = self._partitions.of(topic)
        self._most_partitions = max(self._most_partitions, partitions * max(1, len(self._turns)))
        columns = columns_from_arrow(self._with_timestamps(table))
        of_record, self._turns[topic] = assign_partitions(
            len(columns),
            partitions,
            columns.key,
            self._given_partitions(table, topic, partitions),
            self._turns.get(topic, self._first_turn % partitions),
        )
        if partitions == 1:
            self._write_partition(TopicPartition(topic, 0), columns)
            return
        starts, order = group_by_partition(of_record, partitions)
        for partition in range(partitions):
            start, stop = starts[partition], starts[partition + 1]
            if start < stop:
                self._write_partition(TopicPartition(topic, partition), columns.take(order[start:stop]))

    def _write_partition(self, tp: TopicPartition, columns: RecordColumns) -> None:
        log = self._logs.get(tp)
        if log is None:
            directory = os.path.join(self.directory, partition_directory(tp))
            log = self._logs[tp] = StagedLogWriter(tp, directory, self._config, time=self._time)
        log.append(batches_of(columns, base_offset=log.next_offset, **self._options))

    def _with_timestamps(self, table: pa.Table) -> pa.Table:
        """Timestamps in ms, the current time for null.  -1 stays: it is read from records without a timestamp."""
        pa = self._pa
        now_ms = self._time.milliseconds()
        if "timestamp" not in table.column_names:
            import numpy as np

            return table.append_column("timestamp", pa.array(np.full(len(table), now_ms, np.int64)))
        import pyarrow.compute as pc

        column = table["timestamp"]
        if pa.types.is_timestamp(column.type):
            in_ms = pa.timestamp("ms", tz=column.type.tz)
            early = column.filter(pc.less(column.cast(pa.int64()), 0))
            if not early.cast(in_ms, safe=False).cast(column.type).equals(early):
                raise InvalidTimestamp(f"timestamp {pc.min(early)}: {_TOO_EARLY}")
            column = column.cast(in_ms, safe=False)
        column = column.cast(pa.int64()).fill_null(now_ms)
        earliest = pc.min(column).as_py()
        if earliest is not None and earliest < -1:
            raise InvalidTimestamp(f"timestamp {earliest} ms: {_TOO_EARLY}")
        return table.set_column(table.column_names.index("timestamp"), "timestamp", column)

    def _given_partitions(self, table: pa.Table, topic: str, partitions: int) -> Any:
        if "partition" not in table.column_names:
            return None
        import pyarrow.compute as pc

        column = table["partition"].cast(self._pa.int32())
        if column.null_count == len(column):
            return None
        lowest, highest = pc.min_max(column).as_py().values()
        if lowest < 0:
            raise ValueError(f"partition {lowest} is negative; null leaves it to the key")
        if highest >= partitions:
            has, instead = "has", ""
            if topic not in self._partitions.known:
                has, instead = "is made with", "give option numPartitions (of BulkLoad: partitions) or "
            raise ValueError(
                f"topic {topic}: column partition says {highest}, but the topic {has} {partitions} "
                f"partition{'s' * (partitions != 1)}: {instead}drop the column"
            )
        return column.fill_null(-1).to_numpy()

    def finish(self) -> list[StagedLog]:
        """Syncs the segments and returns their logs.  Raises as append() does."""
        self._write_waiting()
        with ThreadPoolExecutor(_THREADS, "kcore-load") as threads:  # they wait for the disk
            return list(threads.map(StagedLogWriter.finish, self._logs.values()))

    def discard(self) -> None:
        """Closes the logs and removes everything.  Raises OSError."""
        for log in self._logs.values():
            log.close()
        remove_tree(self.directory)


class BulkLoad:
    """A whole load in one process: append(), then commit(); close() without commit() removes the staged files.

    topic: the topic of all records; None: the column topic has it.  partitions: number for new topics; for an existing
    topic its number, or None.  replace: delete the existing records of the topic (needs topic).  config: only
    segment.bytes, segment.ms, index.interval.bytes and max.message.bytes are used.  compression, level, batch_bytes as
    for batches_of().
    Raises DirectoryInUse, InvalidPartitions, OSError.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        *,
        topic: str | None = None,
        partitions: int | None = None,
        replace: bool = False,
        config: LogConfig | None = None,
        compression: CompressionType = "none",
        level: int | None = None,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        time: Time = SYSTEM_TIME,
    ) -> None:
        codec_of(compression, level)
        self.data_dir = os.path.abspath(data_dir)
        make_directory(self.data_dir)
        check_not_in_use(self.data_dir)
        self._counts = partition_counts(self.data_dir, 1 if partitions is None else partitions)
        if replace and topic is None:
            raise ValueError("replace needs the topic that is to be replaced")
        self._replaced = {topic} if replace and topic is not None else set()
        if topic is not None:
            check_topic(topic)
            self._counts.check(topic, partitions)
        self._topic = topic
        self._config = config
        self._staging = staging_directory(self.data_dir, random_uuid(SYSTEM_RANDOM).hex)
        self._writer: SegmentWriter | None = SegmentWriter(
            os.path.join(self._staging, "0"),
            self._counts,
            topic=topic,
            config=config,
            compression=compression,
            level=level,
            batch_bytes=batch_bytes,
            time=time,
        )

    def append(self, batch: pa.RecordBatch) -> None:
        """As SegmentWriter.append()."""
        if self._writer is None:
            raise ValueError("the load has ended")
        self._writer.append(batch)

    def commit(self) -> dict[TopicPartition, LoadedRange]:
        """Makes the records visible; returns their offsets.  Raises as append() and commit_load() do."""
        if self._writer is None:
            raise ValueError("the load has ended")
        staged = self._writer.finish()
        topics = {log.topic_partition.topic for log in staged} | ({self._topic} if self._topic is not None else set())
        partitions = {topic: self._counts.of(topic) for topic in topics}
        ranges = commit_load(
            self.data_dir,
            self._staging,
            staged,
            partitions=partitions,
            replaced=self._replaced,
            config=self._config,
        )
        self._writer = None
        return ranges

    def close(self) -> None:
        """Removes the staged files, unless they were committed.  Raises OSError."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.discard()
            discard_load(self.data_dir, self._staging)

    def __enter__(self) -> BulkLoad:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
