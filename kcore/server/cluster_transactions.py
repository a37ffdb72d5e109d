"""ClusterHost: where the transactions of Cluster.transaction() are coordinated and written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, KafkaError, NotLeaderOrFollower, UnknownTopicOrPartition
from kcore.server.broker import Broker
from kcore.server.running_broker import RunningBroker


class ClusterHost:
    """A TransactionHost of a cluster.  leading_broker: the running broker that leads a partition, None for none."""

    passing_errors: tuple[type[ApiError], ...] = (NotLeaderOrFollower, UnknownTopicOrPartition)
    creates_topics = False

    def __init__(self, any_broker: Callable[[], Broker], leading_broker: Callable[[str, int], Broker | None]) -> None:
        self._any_broker = any_broker
        self._leading_broker = leading_broker

    @contextmanager
    def any_broker(self) -> Iterator[RunningBroker]:
        yield self._any_broker().running

    @contextmanager
    def leading(self, tp: TopicPartition) -> Iterator[RunningBroker]:
        broker = self._leading_broker(*tp)
        if broker is None:
            raise NotLeaderOrFollower(f"{tp}: no running broker leads it")
        try:
            yield broker.running
        except (KafkaError, RuntimeError) as error:
            if broker.has_stopped:
                raise NotLeaderOrFollower(f"{tp}: broker {broker.broker_id} has stopped") from error
            raise
