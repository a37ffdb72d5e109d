"""What the brokers of a test hold, for people: topics, offsets, groups, open transactions, what `explain`
says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kcore.common import topic_names
from kcore.common.text import counted, date_of
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.transaction_state import TransactionMetadata
from kcore.errors import KafkaError
from kcore.metadata.metadata_cache import PartitionInfo
from kcore.testing import group_state
from kcore.testing.group_state import PartitionLag
from kcore.testing.running_brokers import RunningBrokers

#: A report has at most so many lines of a kind, so that a topic with a thousand partitions leaves it readable.
MAX_LINES = 20
#: Partitions that are explained, each in several lines.
MAX_EXPLAINED = 4


def kafka_report(brokers: RunningBrokers, lags: Callable[[str], Mapping[TopicPartition, PartitionLag]]) -> str:
    """lags: of a group, by its id."""
    running = brokers.running()
    if not running:
        return "no broker runs"
    partitions = _partitions(brokers)
    ends = {tp: brokers.readable_offsets(tp) for tp in partitions}
    lines = [f"broker {number} on {broker.bootstrap_servers}" for number, broker in sorted(running.items())]
    lines += _limited("partition", (_partition_line(tp, partitions[tp], *ends[tp]) for tp in partitions))
    lines += _limited("line of a group", _group_lines(brokers, lags))
    lines += _limited("open transaction", map(_transaction_line, brokers.open_transactions()))
    with_records_first = sorted(partitions, key=lambda tp: ends[tp][0] == ends[tp][1])
    for tp in with_records_first[:MAX_EXPLAINED]:
        lines += _explanation(brokers, tp)
    return "\n".join(lines)


def _partitions(brokers: RunningBrokers) -> dict[TopicPartition, PartitionInfo]:
    """Those of topics that are not internal."""
    return {
        TopicPartition(topic.name, number): state
        for topic in sorted(brokers.metadata.topics())
        if not topic_names.is_internal(topic.name)
        for number, state in sorted(topic.partitions.items())
    }


def _partition_line(tp: TopicPartition, state: PartitionInfo, start: int | None, end: int | None) -> str:
    replicas = f", replicas {list(state.replicas)}, ISR {list(state.isr)}" if len(state.replicas) > 1 else ""
    if end is None:
        return f"{tp}: no running broker leads it{replicas}"
    return f"{tp}: offsets from {start}, end {end}, leader {state.leader}{replicas}"


def _group_lines(
    brokers: RunningBrokers, lags: Callable[[str], Mapping[TopicPartition, PartitionLag]]
) -> Iterable[str]:
    for group in brokers.groups():
        yield f"group {group.group_id}: {group_state.describe(group, brokers.topic_name)}"
        for tp, lag in lags(group.group_id).items():
            yield f"  {tp}: {lag}"


def _transaction_line(transaction: TransactionMetadata) -> str:
    since = date_of(transaction.start_timestamp) if transaction.start_timestamp >= 0 else "an unknown time"
    partitions = ", ".join(map(str, sorted(transaction.partitions)))
    return (
        f"transaction {transaction.transactional_id}: {transaction.state.shown} since {since}, "
        f"in {partitions or 'no partition'}; consumers with read_committed wait for its end"
    )


def _limited(noun: str, lines: Iterable[str]) -> list[str]:
    every = list(lines)
    left = len(every) - MAX_LINES
    return every if left <= 0 else [*every[:MAX_LINES], f"... and {counted(left, noun)} more"]


def _explanation(brokers: RunningBrokers, tp: TopicPartition) -> list[str]:
    leader = brokers.leader(*tp)
    if leader is None:
        return []
    try:
        return ["", *str(leader.explain_isr(*tp)).splitlines()]
    except (KafkaError, RuntimeError) as error:  # it leads no more, or has stopped
        return ["", f"{tp} cannot be explained: {error}"]
