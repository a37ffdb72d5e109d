"""Writes into a data directory: each task makes finished segments, the driver adds them all to the logs at once.

Tasks write into one staging directory, each attempt into a subdirectory of its own.  Segments of an attempt count only
if commit() gets its message.  The files of attempts that failed, were killed or lost a race are removed with the
staging directory.  The data directory must be on a file system that the driver and the executors share.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kcore.bulk.bulk_commit import commit_load, discard_load, staging_directory
from kcore.bulk.bulk_load import SegmentWriter, check_not_in_use
from kcore.bulk.staged_log import StagedLog
from kcore.common.file import is_directory, make_directory
from kcore.common.text import plain_error
from kcore.log.partition_counts import partition_counts
from kcore.spark.catalog import is_partition_directory
from kcore.spark.options import OptionError
from kcore.spark.sink.write_options import FileOptions

if TYPE_CHECKING:
    import pyarrow as pa

#: Local properties in which Spark gives a streaming task the ids of its query and its batch.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass
class Staged(WriterCommitMessage):
    """The staged logs of one task."""

    task: int
    staging: str
    logs: list[StagedLog]
    #: Topic -> number of partitions over which the task spread its records.
    partitions: dict[str, int]
    query_id: str | None = None


class _Files:
    """The common part of batches and streams.  It is pickled and sent to the tasks."""

    def __init__(self, options: FileOptions, overwrite: bool) -> None:
        if overwrite and options.topic is None:
            raise OptionError("overwriting needs option topic, the topic whose records are replaced")
        self.options = options
        self.data_dir = os.path.abspath(options.path)
        try:
            make_directory(self.data_dir)
        except OSError as error:
            raise OptionError(
                f"option path: the directory {self.data_dir} cannot be made: {plain_error(error)}"
            ) from None
        if not is_directory(self.data_dir):
            raise OptionError(f"option path: {self.data_dir} is no directory")
        if is_partition_directory(self.data_dir):
            raise OptionError(
                f"option path: {self.data_dir} is one partition's directory; give the data directory above it"
            )
        check_not_in_use(self.data_dir)
        self.partitions = partition_counts(self.data_dir, options.num_partitions or 1)
        if options.topic is not None:
            self.partitions.check(options.topic, options.num_partitions)
        self.replaced = {options.topic} if overwrite and options.topic is not None else set()

    def stage(self, batches: Iterator[pa.RecordBatch], staging: str, task: int, query_id: str | None = None) -> Staged:
        options = self.options
        writer = SegmentWriter(
            os.path.join(staging, f"{task}-{uuid.uuid4().hex}"),
            self.partitions,
            topic=options.topic,
            config=options.config,
            compression=options.compression,
            level=options.level,
            batch_bytes=options.batch_bytes,
            turn=task,
        )
        try:
            for batch in batches:
                if not options.include_headers and "headers" in batch.schema.names:
                    batch = batch.drop_columns(["headers"])
                writer.append(batch)
            logs = writer.finish()
        except BaseException:
            writer.discard()
            raise
        partitions = {log.topic_partition.topic: self.partitions.of(log.topic_partition.topic) for log in logs}
        return Staged(task, staging, logs, partitions, query_id)

    def commit(self, staging: str, messages: Sequence[Staged], stream: tuple[str, int] | None) -> None:
        logs = [log for message in sorted(messages, key=lambda message: message.task) for log in message.logs]
        # The tasks' partition counts take precedence: the writer that commits a stream's batch may have counted later.
        partitions = {} if self.options.topic is None else {self.options.topic: self.partitions.of(self.options.topic)}
        for message in messages:
            partitions.update(message.partitions)
        commit_load(
            self.data_dir,
            staging,
            logs,
            partitions=partitions,
            replaced=self.replaced,
            stream=stream,
            config=self.options.config,
        )


class BulkWriter(DataSourceArrowWriter):
    """One load.  Raises OptionError, DirectoryInUse, InvalidPartitions, OSError."""

    def __init__(self, options: FileOptions, overwrite: bool) -> None:
        self._files = _Files(options, overwrite)
        self._staging = staging_directory(self._files.data_dir, uuid.uuid4().hex)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._files.stage(iterator, self._staging, _task().partitionId())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._files.commit(self._staging, _staged(messages), None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        discard_load(self._files.data_dir, self._staging)


class BulkStreamWriter(DataSourceStreamArrowWriter):
    """One load for each batch, and each batch only once: commit() writes the batch's number under the query's id to the
    data directory, together with the records.  Spark makes one writer to plan a batch and another one to commit it."""

    def __init__(self, options: FileOptions, overwrite: bool) -> None:
        self._files = _Files(options, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task()
        task, query_id = context.partitionId(), context.getLocalProperty(_QUERY_ID)
        if not query_id:
            raise RuntimeError(f"Spark does not give this task of a stream the id of its query ({_QUERY_ID})")
        # A batch that is tried again has the same name, so that the files of the first try are removed with it.
        name = hashlib.sha256(f"{query_id} {context.getLocalProperty(_BATCH_ID)}".encode()).hexdigest()[:32]
        staging = staging_directory(self._files.data_dir, name)
        return self._files.stage(iterator, staging, task, query_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        staged = _staged(messages)
        if staged:
            query_id = staged[0].query_id
            assert query_id is not None
            self._files.commit(staged[0].staging, staged, (query_id, batchId))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        for staging in {message.staging for message in _staged(messages)}:
            discard_load(self._files.data_dir, staging)


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("a writer's write() runs in a task of Spark")
    return context


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """The messages of completed tasks."""
    return [message for message in messages if isinstance(message, Staged)]
