"""What only a running broker knows: high watermarks and log starts of this moment.

Records still come from the files: the broker answers two small requests and reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaError
from kcore.spark.catalog import Ask, Bounds
from kcore.spark.options import ReadOptions

_TIMEOUT_S = 30


class BrokerUnavailable(KafkaError):
    """The broker that was to be asked did not answer, or not with what was asked for."""


def broker_asker(options: ReadOptions) -> Ask | None:
    """Asks the broker of option kcore.bootstrap.servers; None without that.  Raises ImportError without
    confluent-kafka."""
    if options.bootstrap_servers is None:
        return None
    try:
        from confluent_kafka import IsolationLevel, KafkaException
        from confluent_kafka import TopicPartition as Named
        from confluent_kafka.admin import AdminClient, OffsetSpec
    except ImportError as error:
        raise ImportError("kcore.bootstrap.servers needs confluent-kafka: pip install 'kcore[spark]'") from error
    servers = options.bootstrap_servers
    client = AdminClient({"bootstrap.servers": servers, **options.client_settings})
    committed = options.isolation == "read_committed"
    isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

    def offsets(partitions: list[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        asked = {Named(tp.topic, tp.partition): spec for tp in partitions}
        answers = client.list_offsets(asked, isolation_level=isolation, request_timeout=_TIMEOUT_S)
        found = {}
        for named, answer in answers.items():
            tp = TopicPartition(named.topic, named.partition)
            try:
                found[tp] = answer.result(timeout=_TIMEOUT_S + 5).offset
            except (KafkaException, TimeoutError) as error:
                raise BrokerUnavailable(f"{servers} does not tell the offsets of {tp}: {error}") from error
        return found

    def ask(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        asked = list(partitions)
        if not asked:
            return {}
        ends = offsets(asked, OffsetSpec.latest())
        starts = offsets(asked, OffsetSpec.earliest())
        return {tp: Bounds(min(starts[tp], ends[tp]), ends[tp]) for tp in asked}

    return ask
