"""Writes through a broker: each task is an idempotent producer, by confluent-kafka.

Spark runs a failed task, or a failed batch of a stream, again from its beginning: records arrive at least once, as with
Spark's own connector.  Within one attempt the producer's retries make no duplicates.  With a transactional id each
attempt is one transaction, so that readers with read_committed see no records of a failed attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kcore.errors import InvalidTimestamp, KafkaError
from kcore.spark.options import OptionError
from kcore.spark.packages import confluent_kafka
from kcore.spark.sink.write_options import BrokerOptions

if TYPE_CHECKING:
    import pyarrow as pa

#: Default settings of the producer.  The partitioner is that of the Java client.
_DEFAULTS = {
    "enable.idempotence": "true",
    "acks": "all",
    "partitioner": "murmur2_random",
    "linger.ms": "20",
    "batch.size": str(256 * 1024),
    "client.id": "kcore-spark",
    "log_level": "2",  # a failure is reported by the task's error, not by a line for each attempt to connect
}
#: Records between two polls for delivery reports.
_POLL_EVERY = 1000
_POLL_SECONDS = 0.1
#: Kafka's max.block.ms: how long a step of a transaction may take.
_TRANSACTION_SECONDS = 60.0
#: How long a task may write: the default limit of brokers (transaction.max.timeout.ms).
_TRANSACTION_TIMEOUT_MS = "900000"


class DeliveryFailed(KafkaError):
    """A record did not arrive at the broker."""


class _Broker:
    """The common part of batches and streams.  It is pickled and sent to the tasks."""

    def __init__(self, options: BrokerOptions, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                "records that a broker has cannot be replaced: use mode append, and output mode append or update"
            )
        self.options = options
        self.transactional_id = options.settings.get("transactional.id")
        # Unknown settings, and a broker without transactions, are refused before any task runs.
        producer = self._producer([], "driver")
        if self.transactional_id is not None:
            try:
                producer.init_transactions(_TRANSACTION_SECONDS)
            except _kafka_exception() as error:
                raise OptionError(
                    f"kafka.transactional.id {self.transactional_id}: {options.bootstrap_servers} begins no "
                    f"transactions: {error.args[0].str()}"
                ) from None

    def _producer(self, failures: list[str], task: object) -> Any:
        kafka = confluent_kafka("writing to a broker")

        def delivered(error: object, message: Any) -> None:
            failures.append(f"{message.topic()}: {error}")

        settings: dict[str, Any] = {
            **_DEFAULTS,
            **self.options.settings,
            "bootstrap.servers": self.options.bootstrap_servers,
            "delivery.report.only.error": True,
            "on_delivery": delivered,
        }
        if self.transactional_id is not None:
            # The next attempt of a task has the same id, and so fences the attempt before.
            settings["transactional.id"] = f"{self.transactional_id}-{task}"
            settings.setdefault("transaction.timeout.ms", _TRANSACTION_TIMEOUT_MS)
        try:
            return kafka.Producer(settings)
        except kafka.KafkaException as error:
            raise OptionError(f"a producer cannot be made: {error.args[0].str()}") from None

    def produce(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Number of records that arrived.  Raises DeliveryFailed with the broker's error message."""
        failures: list[str] = []
        context = TaskContext.get()
        producer = self._producer(failures, context.partitionId() if context else 0)
        sent = 0
        try:
            if self.transactional_id is not None:
                producer.init_transactions(_TRANSACTION_SECONDS)
                producer.begin_transaction()
            for batch in batches:
                for record in _records(batch, self.options):
                    while True:
                        try:
                            producer.produce(**record)
                            break
                        except BufferError:  # the producer's queue is full: wait for answers
                            producer.poll(_POLL_SECONDS)
                            _check(failures)
                    sent += 1
                    if sent % _POLL_EVERY == 0:
                        producer.poll(0)
                        _check(failures)
            unacknowledged = producer.flush()
            _check(failures)
            if unacknowledged:
                raise DeliveryFailed(f"{unacknowledged} records were not answered by {self.options.bootstrap_servers}")
            if self.transactional_id is not None:
                producer.commit_transaction(_TRANSACTION_SECONDS)
        except BaseException as error:
            producer.purge()
            if self.transactional_id is not None:
                with suppress(_kafka_exception()):  # the broker ends it too, after transaction.timeout.ms
                    producer.abort_transaction(_TRANSACTION_SECONDS)
            if isinstance(error, _kafka_exception()):
                raise DeliveryFailed(f"record {sent} of this task: {error.args[0].str()}") from None
            raise
        return sent


def _kafka_exception() -> type[Exception]:
    exception: type[Exception] = confluent_kafka("writing to a broker").KafkaException
    return exception


def _check(failures: list[str]) -> None:
    if failures:
        raise DeliveryFailed(
            f"{failures[0]}" + (f" (and {len(failures) - 1} more records)" if len(failures) > 1 else "")
        )


def _records(batch: pa.RecordBatch, options: BrokerOptions) -> Iterator[dict[str, Any]]:
    """The arguments of produce() for each record."""
    import pyarrow as pa

    names = set(batch.schema.names)
    columns: dict[str, list[Any]] = {
        name: batch.column(name).cast(pa.binary()).to_pylist() for name in ("key", "value") if name in names
    }
    if options.topic is None:
        columns["topic"] = batch.column("topic").to_pylist()
        if None in columns["topic"]:
            raise ValueError("a record has no topic: its column topic is null; option topic sets it for all records")
    else:
        columns["topic"] = [options.topic] * batch.num_rows
    if "partition" in names:
        partitions = batch.column("partition").to_pylist()
        lowest = min((p for p in partitions if p is not None), default=0)
        if lowest < 0:
            raise ValueError(f"partition {lowest} is negative; null leaves it to the key")
        columns["partition"] = [-1 if p is None else p for p in partitions]
    if "timestamp" in names:
        us = batch.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        earliest = min((t for t in us if t is not None), default=1000)
        if earliest < 1000:
            raise InvalidTimestamp(
                f"timestamp {earliest // 1000} ms: "
                + (
                    "a record's timestamp is 1970-01-01T00:00:00Z or later"
                    if earliest < 0
                    else "librdkafka takes it for none and would write its clock's; files can have it (option path)"
                )
            )
        columns["timestamp"] = [0 if t is None else t // 1000 for t in us]  # 0: the producer takes its clock
    if "headers" in names and options.include_headers:
        columns["headers"] = [_headers(headers) if headers else None for headers in batch.column("headers").to_pylist()]
    keys = tuple(columns)
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(keys, values, strict=True))


def _headers(headers: list[dict[str, Any] | None]) -> list[tuple[str, bytes | None]]:
    if any(header is None or header["key"] is None for header in headers):
        raise ValueError("a header's key is null")
    return [(header["key"], header["value"]) for header in headers if header]


class BrokerWriter(DataSourceArrowWriter):
    """Raises OptionError; tasks raise DeliveryFailed, ValueError."""

    def __init__(self, options: BrokerOptions, overwrite: bool) -> None:
        self._broker = _Broker(options, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self._broker.produce(iterator)
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The broker has the records already."""


class BrokerStreamWriter(DataSourceStreamArrowWriter):
    """Raises as BrokerWriter does."""

    def __init__(self, options: BrokerOptions, overwrite: bool) -> None:
        self._broker = _Broker(options, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self._broker.produce(iterator)
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """The broker has the records already."""
