"""Throttles of replication: of what a leader sends, a follower fetches, and moves between log directories copy.

The broker's setting leader.replication.throttled.rate limits the partitions that the topic's setting
leader.replication.throttled.replicas lists; the follower's settings have the same form.  Only their bytes count.
Source: ReplicationQuotaManager, Kafka 2.4-3.9; KIP-73.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kcore.common.sampled_rate import SampledRate
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition

if TYPE_CHECKING:
    from kcore.log.log_config import LogConfig
    from kcore.server.config.kafka_config import KafkaConfig

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
ALTER_LOG_DIRS_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
RATES = (LEADER_RATE, FOLLOWER_RATE, ALTER_LOG_DIRS_RATE)
#: A rate that never throttles (QUOTA-06).
UNBOUNDED = sys.maxsize


class ThrottledReplicas:
    """Which partitions a topic's list has for one broker: `*`, or [partition]:[broker],... (QUOTA-04).  Thread-safe."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        #: A list's partitions, None for all; a topic's settings keep the same tuple until they change.
        self._parsed: dict[tuple[str, ...], frozenset[int] | None] = {}

    def contains(self, replicas: Sequence[str], partition: int) -> bool:
        if not replicas:
            return False
        key = tuple(replicas)
        if key not in self._parsed:
            if len(self._parsed) > 1000:
                self._parsed.clear()
            pairs = [item.split(":") for item in key if item != "*"]
            numbers = frozenset(int(number) for number, broker in pairs if int(broker) == self._broker_id)
            self._parsed[key] = None if "*" in key else numbers
            return self._parsed[key] is None or partition in numbers
        numbers_or_all = self._parsed[key]
        return numbers_or_all is None or partition in numbers_or_all


class ReplicationQuotaManager:
    """One kcore.replica.replica_quota.ReplicaQuota.  Thread-safe.

    is_listed: whether a partition is throttled at all, by its topic's settings as they are now.
    """

    def __init__(
        self,
        num_samples: int,
        window_seconds: int,
        time: Time,
        is_listed: Callable[[TopicPartition], bool],
        bytes_per_second: float = UNBOUNDED,
    ) -> None:
        self.is_throttled = is_listed
        self._time = time
        self._lock = threading.Lock()
        self._rate = SampledRate(num_samples, window_seconds * 1000, time.hi_res_clock_ms())
        self.bytes_per_second = bytes_per_second

    @property
    def is_bounded(self) -> bool:
        """False if no rate is set: then no call is needed."""
        return self.bytes_per_second < UNBOUNDED

    def is_quota_exceeded(self) -> bool:
        """Whether the rate of the window is above the quota (QUOTA-05)."""
        if self.bytes_per_second >= UNBOUNDED:
            return False
        return self.rate() > self.bytes_per_second

    def rate(self) -> float:
        """Bytes a second, as far as the windows reach back."""
        with self._lock:
            return self._rate.simple_rate(self._time.hi_res_clock_ms())

    def record(self, size: int) -> None:
        """Bytes of throttled partitions (QUOTA-03)."""
        with self._lock:
            self._rate.record(size, self._time.hi_res_clock_ms())


class ReplicationQuotas(NamedTuple):
    """The three of a broker.  Rates follow the broker's settings and lists the topics', while it runs (QUOTA-04)."""

    leader: ReplicationQuotaManager
    follower: ReplicationQuotaManager
    alter_log_dirs: ReplicationQuotaManager

    @classmethod
    def of(
        cls, broker_id: int, config: KafkaConfig, time: Time, log_config: Callable[[TopicPartition], LogConfig | None]
    ) -> ReplicationQuotas:
        """log_config: the settings of a partition's topic; None where there is no such partition here."""
        throttled = ThrottledReplicas(broker_id)

        def is_leader_listed(topic_partition: TopicPartition) -> bool:
            topic = log_config(topic_partition)
            return topic is not None and throttled.contains(
                topic.leader_replication_throttled_replicas, topic_partition.partition
            )

        def is_follower_listed(topic_partition: TopicPartition) -> bool:
            topic = log_config(topic_partition)
            return topic is not None and throttled.contains(
                topic.follower_replication_throttled_replicas, topic_partition.partition
            )

        samples, seconds = config["replication.quota.window.num"], config["replication.quota.window.size.seconds"]
        return cls(
            ReplicationQuotaManager(samples, seconds, time, is_leader_listed, config[LEADER_RATE]),
            ReplicationQuotaManager(samples, seconds, time, is_follower_listed, config[FOLLOWER_RATE]),
            ReplicationQuotaManager(
                config["alter.log.dirs.replication.quota.window.num"],
                config["alter.log.dirs.replication.quota.window.size.seconds"],
                time,
                lambda topic_partition: True,
                config[ALTER_LOG_DIRS_RATE],
            ),
        )

    def follow(self, config: KafkaConfig) -> Callable[[], None]:
        """Take each new rate of the settings; what comes back ends that."""

        def read_rates() -> None:
            self.leader.bytes_per_second = config[LEADER_RATE]
            self.follower.bytes_per_second = config[FOLLOWER_RATE]
            self.alter_log_dirs.bytes_per_second = config[ALTER_LOG_DIRS_RATE]

        return config.on_change(RATES, read_rates)
