"""Requests to a running broker: current high watermarks and log start offsets, and the partitions of topics.

Records still come from the files: the broker answers three small requests and reads no records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaError
from kcore.spark.catalog import Ask, Bounds
from kcore.spark.options import ReadOptions
from kcore.spark.packages import confluent_kafka
from kcore.spark.source.data_loss import report_loss

_TIMEOUT_S = 30


class BrokerUnavailable(KafkaError):
    """The broker did not answer a request, or answered with an error."""


def _client(options: ReadOptions) -> Any:
    confluent_kafka("option kcore.bootstrap.servers")
    from confluent_kafka.admin import AdminClient

    # A failure is reported by an error, not by a line for each attempt to connect.
    settings: dict[str, Any] = {"bootstrap.servers": options.bootstrap_servers, "log_level": 2}
    settings.update(options.client_settings)
    return AdminClient(settings)


def check_all_there(
    options: ReadOptions,
    partitions: Collection[TopicPartition],
    admits: Callable[[TopicPartition], bool] = lambda tp: True,
) -> None:
    """Checks that the directories have all partitions of the topics that are read, except those that filters exclude.
    The list of partitions comes from the broker.  Does nothing without option kcore.bootstrap.servers, or with option
    assign.

    Raises DataLoss for a missing partition unless failOnDataLoss is false, BrokerUnavailable, ImportError.
    """
    if options.bootstrap_servers is None or options.assigned is not None:
        return
    client = _client(options)
    from confluent_kafka import KafkaException

    try:
        topics = client.list_topics(timeout=_TIMEOUT_S).topics
    except KafkaException as error:
        raise BrokerUnavailable(f"{options.bootstrap_servers} does not list its topics: {error}") from error
    elsewhere = sorted(
        TopicPartition(topic, partition)
        for topic in {tp.topic for tp in partitions} & topics.keys()
        for partition in topics[topic].partitions
        if TopicPartition(topic, partition) not in partitions and admits(TopicPartition(topic, partition))
    )
    if elsewhere:
        report_loss(
            f"{', '.join(map(str, elsewhere))}: {options.bootstrap_servers} has them, {', '.join(options.paths)} has "
            "not. Give the directories of all brokers that have them, or name with assign what is to be read",
            options.fail_on_data_loss,
        )


def broker_asker(options: ReadOptions) -> Ask | None:
    """A function that requests bounds from the broker of option kcore.bootstrap.servers; None without the option.
    Raises ImportError without confluent-kafka."""
    if options.bootstrap_servers is None:
        return None
    client = _client(options)
    from confluent_kafka import IsolationLevel, KafkaException
    from confluent_kafka import TopicPartition as Named
    from confluent_kafka.admin import OffsetSpec

    servers = options.bootstrap_servers
    committed = options.isolation == "read_committed"
    isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

    def offsets(partitions: list[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        specs = {Named(tp.topic, tp.partition): spec for tp in partitions}
        answers = client.list_offsets(specs, isolation_level=isolation, request_timeout=_TIMEOUT_S)
        offsets_by_partition = {}
        for named, answer in answers.items():
            tp = TopicPartition(named.topic, named.partition)
            try:
                offsets_by_partition[tp] = answer.result(timeout=_TIMEOUT_S + 5).offset
            except (KafkaException, TimeoutError) as error:
                raise BrokerUnavailable(f"{servers} does not return the offsets of {tp}: {error}") from error
        return offsets_by_partition

    def ask(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        requested = list(partitions)
        if not requested:
            return {}
        ends = offsets(requested, OffsetSpec.latest())
        starts = offsets(requested, OffsetSpec.earliest())
        return {tp: Bounds(min(starts[tp], ends[tp]), ends[tp]) for tp in requested}

    return ask
