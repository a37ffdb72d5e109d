"""The topics of one test on a broker that other tests use too."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

from kcore.common import topic_names
from kcore.errors import PolicyViolation, TopicAlreadyExists
from kcore.server.broker import Broker
from kcore.testing.kafka_fixture import KafkaFixture
from kcore.testing.running_brokers import open_transactions


@contextmanager
def topics_of_test(kafka: KafkaFixture, topics: Mapping[str, int]) -> Iterator[None]:
    """Within it the broker has these topics (name -> number of partitions).

    At the end transactions that were begun and not ended in it are aborted, topics and groups without members that
    were not there before are deleted, and the others have no records of the test.
    Raises TopicAlreadyExists for a topic that is there with another number of partitions.
    """
    broker = kafka.broker
    topics_before, groups_before = _topic_names(broker), _empty_groups(broker)
    transactions_before = {(txn.transactional_id, txn.start_timestamp) for txn in open_transactions(broker)}
    try:
        for name, partitions in topics.items():
            _make_topic(broker, name, partitions)
        yield
    finally:
        kafka.end_faults()
        try:
            for txn in open_transactions(broker):
                if (txn.transactional_id, txn.start_timestamp) not in transactions_before:
                    # A new producer of the id: what the last one has left open is aborted.
                    broker.transaction(txn.transactional_id, timeout_ms=txn.timeout_ms)
        finally:
            _clean(kafka, topics_before, groups_before)


def _clean(kafka: KafkaFixture, topics_before: Set[str], groups_before: Set[str]) -> None:
    broker = kafka.broker
    deleted = threading.Event()
    broker.group_coordinator.admin.delete_groups(_empty_groups(broker) - groups_before, lambda codes: deleted.set())
    deleted.wait(30)  # six times offsets.commit.timeout.ms
    for name in sorted(_topic_names(broker)):
        if name in topics_before:
            _remove_records(kafka, name)
        else:
            broker.delete_topic(name)


def _make_topic(broker: Broker, name: str, partitions: int) -> None:
    there = broker.metadata_cache.topic(name)
    if there is None:
        broker.create_topic(name, partitions)
    elif len(there.partitions) != partitions:
        raise TopicAlreadyExists(
            f"topic {name} of the marker is to have {partitions} partitions, but was there before this test with "
            f"{len(there.partitions)}"
        )


def _remove_records(kafka: KafkaFixture, topic: str) -> None:
    try:
        kafka.clear_topic(topic)
    except PolicyViolation:  # it only compacts
        broker = kafka.broker
        info = broker.metadata_cache.topic(topic)
        assert info is not None
        config: dict[str, Any] = dict(broker.admin_manager.topic_config(topic))
        broker.delete_topic(topic)
        broker.create_topic(topic, len(info.partitions), **config)


def _topic_names(broker: Broker) -> set[str]:
    return {topic.name for topic in broker.metadata_cache.topics() if not topic_names.is_internal(topic.name)}


def _empty_groups(broker: Broker) -> set[str]:
    _, groups = broker.group_coordinator.admin.list_groups(["Empty"])
    return {group.group_id for group in groups}
