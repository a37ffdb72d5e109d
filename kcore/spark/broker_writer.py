"""Writes through a broker: each task is an idempotent producer, by confluent-kafka.

A task that fails is run again by Spark, from its beginning, and so is a batch of a stream: records arrive at least
once, as with Spark's own connector.  Within one attempt the producer's retries repeat nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kcore.errors import InvalidTimestamp, KafkaError
from kcore.spark.options import OptionError
from kcore.spark.write_options import BrokerOptions

if TYPE_CHECKING:
    import pyarrow as pa

#: What the writer gives unless the options say otherwise.  Keys go where the Java client sends them.
_DEFAULTS = {
    "enable.idempotence": "true",
    "acks": "all",
    "partitioner": "murmur2_random",
    "linger.ms": "20",
    "batch.size": str(256 * 1024),
    "client.id": "kcore-spark",
}
#: Records between two looks at what the broker has answered.
_POLL_EVERY = 1000
_POLL_SECONDS = 0.1


class DeliveryFailed(KafkaError):
    """A record did not arrive at the broker."""


class _Broker:
    """What batches and streams have in common.  Goes to the tasks, pickled."""

    def __init__(self, options: BrokerOptions, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                "records behind a broker cannot be replaced: use mode append, and output mode append or update"
            )
        self.options = options
        self._producer([])  # settings that it does not know are refused here, before any task runs

    def _producer(self, failures: list[str]) -> Any:
        import confluent_kafka

        def delivered(error: object, message: Any) -> None:
            failures.append(f"{message.topic()}: {error}")

        settings: dict[str, Any] = {
            **_DEFAULTS,
            **self.options.settings,
            "bootstrap.servers": self.options.bootstrap_servers,
            "delivery.report.only.error": True,
            "on_delivery": delivered,
        }
        try:
            return confluent_kafka.Producer(settings)
        except confluent_kafka.KafkaException as error:
            raise OptionError(f"a producer cannot be made: {error.args[0].str()}") from None

    def produce(self, batches: Iterator[pa.RecordBatch]) -> int:
        """How many records arrived.  Raises DeliveryFailed with the broker's words."""
        import confluent_kafka

        failures: list[str] = []
        producer = self._producer(failures)
        sent = 0
        try:
            for batch in batches:
                for record in _records(batch, self.options):
                    while True:
                        try:
                            producer.produce(**record)
                            break
                        except BufferError:  # it has as much as it may keep: wait for answers
                            producer.poll(_POLL_SECONDS)
                            _check(failures)
                    sent += 1
                    if sent % _POLL_EVERY == 0:
                        producer.poll(0)
                        _check(failures)
            left = producer.flush()
        except confluent_kafka.KafkaException as error:
            producer.purge()
            raise DeliveryFailed(f"record {sent} of this task: {error.args[0].str()}") from None
        except BaseException:
            producer.purge()
            raise
        _check(failures)
        if left:
            raise DeliveryFailed(f"{left} records were not answered by {self.options.bootstrap_servers}")
        return sent


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
        given = batch.column("partition").to_pylist()
        lowest = min((p for p in given if p is not None), default=0)
        if lowest < 0:
            raise ValueError(f"partition {lowest} is negative; null leaves it to the key")
        columns["partition"] = [-1 if p is None else p for p in given]
    if "timestamp" in names:
        ms = batch.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()).to_pylist()
        earliest = min((t for t in ms if t is not None), default=0)
        if earliest < 0:
            raise InvalidTimestamp(f"timestamp {earliest} ms: a record's lies at or behind 1970-01-01T00:00:00Z")
        columns["timestamp"] = [0 if t is None else t for t in ms]  # 0: the producer takes its clock
    if "headers" in names and options.include_headers:
        columns["headers"] = [
            [(h["key"], h["value"]) for h in headers] if headers else None
            for headers in batch.column("headers").to_pylist()
        ]
    keys = tuple(columns)
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(keys, values, strict=True))


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
