"""The operations that a task of a load test repeats: one class for each mode.

append, read and verify work on files of the task's own machine; bytes are those of batches as they are in the log.
produce and fetch go through a broker; bytes are those of keys and values.
"""

from __future__ import annotations

import glob
import itertools
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Protocol

from kcore.errors import CorruptMessage
from kcore.log.directory_lock import is_held
from kcore.log.log_config import LogConfig
from kcore.log.log_file_names import DELETED_SUFFIX, LOG_SUFFIX
from kcore.log.log_segment import LogSegment
from kcore.log.open_log import open_log
from kcore.record.file_records import FileRecords
from kcore.record.memory_records import BatchTable
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.spark.catalog import find_partitions, segment_base_offsets
from kcore.spark.load.load_options import LoadOptions
from kcore.spark.load.load_window import SteadyClock, WindowRecorder
from kcore.spark.packages import confluent_kafka

#: Different batches that a task writes in turn.
_BATCHES = 16
_BASE_OFFSET_0 = bytes(8)
#: What a record of a batch takes beside its value, at most.
_RECORD_OVERHEAD = 24
#: An append log's segment at most; whole ones are deleted when the log has become too large.
_SEGMENT_BYTES = 128 << 20
_DISK_POLL_S = 0.005
_KILL_S = 10.0
_PREFIX = "kcore-load-"
_MESSAGES_AT_ONCE = 500
_BROKER_TIMEOUT_S = 15.0
#: librdkafka's default of a second makes a fast consumer sleep most of the time.
_FETCH_QUEUE_BACKOFF_MS = 10

_WORDS = b"click view purchase search login logout checkout refund mobile desktop tablet".split()


class Workload(AbstractContextManager["Workload"], Protocol):
    def step(self, recorder: WindowRecorder) -> None:
        """One operation, or a few, each counted by the recorder.  Raises what goes wrong."""


class Task:
    """Which of the tasks this is, its clock, and where it says what went wrong in another thread."""

    def __init__(self, options: LoadOptions, number: int, count: int, run_id: str) -> None:
        self.options = options
        self.number = number
        self.count = count
        self.run_id = run_id
        self.clock = SteadyClock()
        self.errors = 0
        self.first_error: str | None = None

    def failed(self, error: object) -> None:
        self.errors += 1
        if self.first_error is None:
            self.first_error = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else str(error)

    def start_in(self, things: Sequence[Any]) -> tuple[int, float]:
        """Where this task starts in something that all of them go round: the thing, and how far into it, 0 to 1.

        So tasks are spread evenly, whether there are more of them or fewer than things.
        """
        at = self.number * len(things) / self.count
        return int(at), at - int(at)


def values_of(size: int, seed: int) -> list[bytes]:
    """Texts of exactly `size` bytes, at most 4 MB in total.  Codecs compress them about as much as real ones."""
    rng = random.Random(seed)
    words = b" ".join(rng.choices(_WORDS, k=size // 5 + 2000))
    texts = []
    for n in range(max(_BATCHES, min(1024, (4 << 20) // size))):
        at = rng.randrange(4000)
        text = b'{"id":%d,"user":%d,"tags":"%b"}' % (n, rng.randrange(10**6), words[at : at + size])
        texts.append(text[:size])
    return texts


def batches_of_task(options: LoadOptions, seed: int) -> list[tuple[bytearray, int]]:
    """Some batches of at most batch_size bytes before compression, and the number of records of each."""
    values = itertools.cycle(values_of(options.record_size, seed))
    now_ms = time.time_ns() // 1_000_000
    batches = []
    for _ in range(_BATCHES):
        builder = RecordBatchBuilder(compression=options.codec)
        while True:
            builder.append(next(values), timestamp=now_ms)
            if builder.size_in_bytes + options.record_size + _RECORD_OVERHEAD > options.batch_size:
                break
        batches.append((builder.build(), len(builder)))
    return batches


class Append:
    """Appends batches to a log of its own, in a data directory of its own.

    When the log is too large its oldest segments are deleted, within the measured time.  They leave the disk after the
    segments that are being flushed.  If the disk is slower than the appends, the appends wait for the deletions.
    """

    def __init__(self, task: Task) -> None:
        options = task.options
        path = options.paths[task.number % len(options.paths)]
        self._now = task.clock.now
        self._keep = options.keep
        self._batches = batches_of_task(options, task.number)
        self._next = 0
        largest = max(len(batch) for batch, _ in self._batches)
        self._segment_bytes = max(min(_SEGMENT_BYTES, options.log_size // 4), 2 * largest)
        self._until_check = self._segment_bytes
        self._disk_bytes = 2 * max(options.log_size, self._segment_bytes)
        self.data_dir = tempfile.mkdtemp(prefix=f"{_PREFIX}{task.run_id}-{task.number}-", dir=path)
        config = LogConfig(
            segment_bytes=self._segment_bytes,
            retention_bytes=options.log_size,
            retention_ms=-1,
            file_delete_delay_ms=0,
            max_message_bytes=largest,
        )
        try:
            self._log = open_log(os.path.join(self.data_dir, f"load-{task.number}"), "a", config=config)
        except BaseException:
            shutil.rmtree(self.data_dir, ignore_errors=True)
            raise

    def step(self, recorder: WindowRecorder) -> None:
        batch, records = self._batches[self._next]
        self._next = (self._next + 1) % _BATCHES
        batch[:8] = _BASE_OFFSET_0  # the last append has written its offset there
        started = self._now()
        self._log.append_as_leader(batch)
        recorder.record(started, self._now(), records, len(batch))
        self._until_check -= len(batch)
        if self._until_check < 0:
            self._until_check = self._segment_bytes
            self._log.delete_old_segments()
            while self._bytes_on_disk() > self._disk_bytes:
                time.sleep(_DISK_POLL_S)

    def _bytes_on_disk(self) -> int:
        size = 0
        for name in os.listdir(self._log.directory):
            if name.endswith((LOG_SUFFIX, LOG_SUFFIX + DELETED_SUFFIX)):
                try:
                    size += os.path.getsize(os.path.join(self._log.directory, name))
                except FileNotFoundError:  # it was just deleted
                    continue
        return size

    def __enter__(self) -> Append:
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            if not self._keep:  # nothing is left that close() would have to bring to the disk
                self._log.truncate_fully_and_start_at(0)
            self._log.close()
        finally:
            if not self._keep:
                shutil.rmtree(self.data_dir)


def remove_data_dirs(paths: Iterable[str], run_id: str) -> None:
    """Removes the directories of killed tasks of mode append under these paths, if this machine can reach them.

    Spark takes some seconds to kill the tasks.
    """
    until = time.monotonic() + _KILL_S
    for path in paths:
        for data_dir in glob.glob(os.path.join(glob.escape(path), f"{_PREFIX}{run_id}-*")):
            while is_held(data_dir) and time.monotonic() < until:
                time.sleep(0.1)
            shutil.rmtree(data_dir, ignore_errors=True)


class Read:
    """Reads the logs under the paths from end to end, a slice at a time, as a fetch does, and walks its headers."""

    def __init__(self, task: Task) -> None:
        self._now = task.clock.now
        self._size = task.options.fetch_size
        self._logs = [open_log(directory) for directory in find_partitions(task.options.paths).values()]
        self._logs = [log for log in self._logs if log.log_end_offset > log.log_start_offset]
        if not self._logs:
            raise ValueError(f"there are no records in {', '.join(task.options.paths)}")
        self._at, part = task.start_in(self._logs)
        log = self._logs[self._at]
        self._offset = log.log_start_offset + int(part * (log.log_end_offset - log.log_start_offset))

    def step(self, recorder: WindowRecorder) -> None:
        started = self._now()
        log = self._logs[self._at]
        records = log.read(self._offset, self._size).records
        in_memory = records.memory_records(check_crc=False) if isinstance(records, FileRecords) else records
        if not in_memory:
            self._at = (self._at + 1) % len(self._logs)
            self._offset = self._logs[self._at].log_start_offset
            return
        self._offset = in_memory.last_offset + 1
        recorder.record(started, self._now(), records_in(in_memory.batches), in_memory.size_in_bytes)

    def __enter__(self) -> Read:
        return self

    def __exit__(self, *exc: object) -> None:
        for log in self._logs:
            log.close()


def records_in(batches: BatchTable) -> int:
    return int(batches.to_numpy()["count"].sum())


class Verify:
    """Checks the CRC of every batch under the paths, a segment after the other, again and again."""

    def __init__(self, task: Task) -> None:
        self._now = task.clock.now
        self._segments = [
            (directory, base_offset)
            for directory in find_partitions(task.options.paths).values()
            for base_offset in segment_base_offsets(directory)
        ]
        if not self._segments:
            raise ValueError(f"there are no segments in {', '.join(task.options.paths)}")
        self._at, _ = task.start_in(self._segments)

    def step(self, recorder: WindowRecorder) -> None:
        directory, base_offset = self._segments[self._at]
        self._at = (self._at + 1) % len(self._segments)
        segment = LogSegment(directory, base_offset, writable=False)
        started, position = self._now(), 0

        def checked(batches: BatchTable) -> None:
            nonlocal started, position
            last = batches[-1]
            end = last.position + last.size
            recorder.record(started, self._now(), records_in(batches), end - position)
            started, position = self._now(), end

        try:
            result = segment.scan(checked)
        finally:
            segment.close(trim=False)
        if result.reason is not None:
            raise CorruptMessage(f"{segment.log_path}: position {result.valid_bytes}: {result.reason}")

    def __enter__(self) -> Verify:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class Produce:
    """Sends single records through a broker; a record's latency lasts until the broker has acknowledged it."""

    def __init__(self, task: Task) -> None:
        kafka = confluent_kafka("--mode produce")
        options = task.options
        self._now = task.clock.now
        self._failed = task.failed
        self._topic = options.topic
        self._values = values_of(options.record_size, task.number)
        self._recorder: WindowRecorder | None = None
        self._producer = kafka.Producer(
            {
                "bootstrap.servers": options.bootstrap_servers,
                "compression.type": options.codec,
                "batch.size": options.batch_size,
                **dict(options.client_settings),
            }
        )
        _partitions(kafka, self._producer, options)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed(f"produce: {error}")
        elif self._recorder is not None:
            stopped = self._now()
            self._recorder.record(stopped - int(message.latency() * 1e9), stopped, 1, len(message))

    def step(self, recorder: WindowRecorder) -> None:
        self._recorder = recorder
        for value in self._values:
            try:
                self._producer.produce(self._topic, value, on_delivery=self._delivered)
            except BufferError:  # the client's queue is full: the broker is what limits, or it is gone
                self._producer.poll(0.01)
                return
        self._producer.poll(0)

    def __enter__(self) -> Produce:
        return self

    def __exit__(self, *exc: object) -> None:
        unacknowledged = self._producer.flush(_BROKER_TIMEOUT_S)
        if unacknowledged:
            self._failed(
                f"produce: {unacknowledged} records were not acknowledged within {_BROKER_TIMEOUT_S:g} s of the end"
            )
            self._producer.purge()


class Fetch:
    """Consumes partitions of a topic from end to end, again and again; an operation is one consume()."""

    def __init__(self, task: Task) -> None:
        kafka = confluent_kafka("--mode fetch")
        options = task.options
        self._now = task.clock.now
        self._failed = task.failed
        self._end_of_partition = kafka.KafkaError._PARTITION_EOF
        self._beginning: Callable[[int], Any] = lambda number: kafka.TopicPartition(
            options.topic, number, kafka.OFFSET_BEGINNING
        )
        self._consumer = kafka.Consumer(
            {
                "bootstrap.servers": options.bootstrap_servers,
                "group.id": f"kcore-load-{task.run_id}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.queue.backoff.ms": _FETCH_QUEUE_BACKOFF_MS,
                "max.partition.fetch.bytes": options.fetch_size,
                **dict(options.client_settings),
            }
        )
        try:
            numbers = _partitions(kafka, self._consumer, options)
            mine = numbers[task.number :: task.count] or [numbers[task.number % len(numbers)]]
            filled = [number for number in mine if self._has_records(number)]
            if not filled:
                raise ValueError(f"there are no records in partitions {mine} of topic {options.topic!r}")
            self._consumer.assign([self._beginning(number) for number in filled])
            self._wait_for_records()
        except BaseException:
            self._consumer.close()
            raise

    def _has_records(self, number: int) -> bool:
        low, high = self._consumer.get_watermark_offsets(self._beginning(number), _BROKER_TIMEOUT_S)
        return bool(high > low)

    def _wait_for_records(self) -> None:
        """So that what is measured is fetching, not how a client finds its way."""
        until = time.monotonic() + _BROKER_TIMEOUT_S
        while all(message.error() for message in self._consumer.consume(_MESSAGES_AT_ONCE, 0.1)):
            if time.monotonic() > until:
                raise ValueError(f"no records came within {_BROKER_TIMEOUT_S:g} s, though the partitions have some")

    def step(self, recorder: WindowRecorder) -> None:
        started = self._now()
        messages = self._consumer.consume(_MESSAGES_AT_ONCE, 0.1)
        stopped = self._now()
        records = size = 0
        for message in messages:
            error = message.error()
            if error is None:
                records += 1
                size += len(message) + len(message.key() or b"")
            elif error.code() == self._end_of_partition:
                self._consumer.seek(self._beginning(message.partition()))
            else:
                self._failed(f"fetch: {error}")
        if records:
            recorder.record(started, stopped, records, size)

    def __enter__(self) -> Fetch:
        return self

    def __exit__(self, *exc: object) -> None:
        self._consumer.close()


def _partitions(kafka: ModuleType, client: Any, options: LoadOptions) -> list[int]:
    """The numbers of a topic's partitions; a producer's request may create the topic, which takes a moment."""
    until = time.monotonic() + _BROKER_TIMEOUT_S
    while True:
        try:
            topic = client.list_topics(options.topic, timeout=_BROKER_TIMEOUT_S).topics[options.topic]
        except kafka.KafkaException as error:
            raise ConnectionError(f"no answer from {options.bootstrap_servers}: {error}") from None
        if topic.error is None and topic.partitions:
            return sorted(topic.partitions)
        if time.monotonic() > until:
            raise ValueError(f"topic {options.topic!r} at {options.bootstrap_servers}: {topic.error}")
        time.sleep(0.1)


WORKLOADS: dict[str, Callable[[Task], Workload]] = {
    "append": Append,
    "read": Read,
    "verify": Verify,
    "produce": Produce,
    "fetch": Fetch,
}
