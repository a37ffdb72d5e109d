"""What the fixtures return: brokers, the settings of clients for them, and waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from kcore.common.text import counted
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError
from kcore.server.broker import Broker
from kcore.server.call_arguments import integer
from kcore.server.cluster import Cluster
from kcore.server.cluster_partitions import ClusterPartitions, reasons_text
from kcore.server.in_process_client import ConsumerRecord
from kcore.testing import group_state
from kcore.testing.client_settings import ClientSettings
from kcore.testing.disk_faults import DiskFault, How, make_disk_fault
from kcore.testing.group_state import PartitionLag
from kcore.testing.kafka_report import kafka_report
from kcore.testing.request_faults import RequestChoice, RequestFault, action_of, make_fault
from kcore.testing.running_brokers import RunningBrokers
from kcore.testing.skip_time import SkipTime
from kcore.testing.topic_reader import TopicReader
from kcore.testing.waits import Wait, WaitTimedOut

__all__ = ["KafkaClusterFixture", "KafkaFixture", "WaitTimedOut"]


class KafkaTestSupport(ClientSettings):
    """What a test has of one broker and of several.  Thread-safe."""

    def __init__(self, brokers: RunningBrokers, time: Time) -> None:
        self._brokers = brokers
        self._time = time
        self._faults: list[RequestFault | DiskFault] = []

    @property
    def time(self) -> SkipTime:
        """The brokers' clock.  Raises RuntimeError for brokers that were made with another one."""
        if not isinstance(self._time, SkipTime):
            raise RuntimeError("the brokers' clock cannot be moved: make them with time=kcore.testing.SkipTime()")
        return self._time

    # -- topics -----------------------------------------------------------------------------------------

    def clear_topic(self, topic: str) -> None:
        """Delete its records.  Offsets go on: the next record has the offset that it would have had.

        Raises UnknownTopicOrPartition, PolicyViolation for a topic that only compacts, LeaderNotAvailable,
        RequestTimedOut.
        """
        self._brokers.clear(topic)

    def describe(self) -> str:
        """Topics with their offsets, groups with members and lag, and what `explain` says, for people."""
        return kafka_report(self._brokers, self.lag)

    # -- faults -----------------------------------------------------------------------------------------

    def fault(
        self,
        api: str | None = None,
        *,
        error: str | type[ApiError] | None = None,
        delay: float | None = None,
        cut: str | None = None,
        silent: bool = False,
        times: int | None = None,
        client_id: str = "*",
        topic: str | None = None,
        partition: int | None = None,
        from_broker: int | None = None,
        broker: int | None = None,
    ) -> RequestFault:
        """Have requests fail from now on, until the `with` block ends, end(), the test's end, or `times` requests.

        Of what is chosen, each one has this fault; a fault that was made later comes first.  Chosen by: api, Kafka's
        name of it ("Produce", "OffsetCommit"), None for each; client_id, as a pattern like "shop-*"; topic and
        partition, if the request names them (a Fetch names what has changed since the last one of its session);
        from_broker: what this broker sends to others; broker: to which broker, None for all that run now.
        One of: error, a class of kcore.errors or Kafka's name, for everything in the request; delay in seconds;
        cut="before", the connection ends and nothing is done, or cut="after", it is done and the connection ends
        instead of the answer; silent=True, no answer until the fault ends, and then the connection ends.
        Raises ValueError for a combination that makes no sense, RuntimeError for a broker that does not run.
        """
        fault = make_fault(
            self._chosen_brokers(broker),
            api,
            RequestChoice(client_id, from_broker, topic, partition),
            action_of(error, delay, cut, silent=silent),
            times,
        )
        self._faults.append(fault)
        return fault

    def disk_fault(
        self,
        kind: str,
        topic: str | None = None,
        partition: int | None = None,
        *,
        after_bytes: int | None = None,
        offset: int | None = None,
        seconds: float | None = None,
        broker: int | None = None,
        data_dir: str | None = None,
        times: int | None = None,
    ) -> DiskFault:
        """Have the disk fail from now on, until the `with` block ends, end(), the test's end, or `times` system calls.

        For the segments of a partition (without its number: of a topic that has one only), or for one data_dir or all
        of them; on one broker or all that run now.
        kind: "full", nothing is written any more (ENOSPC); "torn_append", of the next append after_bytes (10) are
        written, then the disk fails; "flipped_write", what is appended has a bit flipped at its end; "flipped_read",
        the batch with this offset is read with a bit flipped until the fault ends; "slow_fsync", each takes `seconds`
        longer; "lost_fsync", nothing reaches the disk, although each says so: once the brokers are killed, the fault's
        lose_power() brings back the files of its beginning.
        Raises ValueError for a combination that makes no sense, RuntimeError for a broker that does not run,
        UnknownTopicOrPartition, OffsetOutOfRange.
        """
        fault = make_disk_fault(
            kind,
            self._chosen_brokers(broker),
            topic,
            partition,
            data_dir,
            How(after_bytes, offset, seconds),
            times,
        )
        self._faults.append(fault)
        return fault

    def _chosen_brokers(self, broker: int | None) -> list[Broker]:
        running = self._brokers.running()
        if broker is not None and broker not in running:
            raise RuntimeError(f"broker {broker} does not run")
        return list(running.values()) if broker is None else [running[broker]]

    def end_faults(self) -> None:
        while self._faults:
            self._faults.pop().end()

    # -- waits ------------------------------------------------------------------------------------------

    def wait_for_group(
        self,
        group_id: str,
        state: str = "Stable",
        partitions: int | None = None,
        timeout: float = 30,
        *,
        members: int | None = None,
    ) -> None:
        """Wait until the group has this state (Kafka's name) and so many members, which are assigned this many
        partitions.

        Raises WaitTimedOut with the group's state, generation and members, and what its rebalance waits for, after
        `timeout` seconds; ValueError for a state that no group can have, TypeError.
        """
        self._group_wait(group_id, state, partitions, members).run(timeout)

    def wait_for_lag(self, group_id: str, at_most: int = 0, timeout: float = 30) -> None:
        """Wait until the group has committed so far that `at_most` records are left, of all partitions that it has
        committed or its members are assigned.  What read_committed cannot read is no lag (PartitionLag).

        Raises WaitTimedOut with each partition's end and committed offset, and the group's members, after `timeout`
        seconds.
        """
        self._lag_wait(group_id, at_most).run(timeout)

    def wait_for_records(self, topic: str, count: int, timeout: float = 30) -> list[ConsumerRecord]:
        """Wait until a consumer can read `count` records of the topic, and return them.

        The topic may come meanwhile, made by a producer.  Each record is read once, and no more than `count`.  Raises
        WaitTimedOut with their number after `timeout` seconds.
        """
        reader, wait = self._records_wait(topic, count)
        wait.run(timeout)
        return reader.records

    @property
    def aio(self) -> AsyncWaits:
        """The same waits as coroutines: await kafka.aio.wait_for_group("shop")."""
        return AsyncWaits(self)

    # -- groups -----------------------------------------------------------------------------------------

    def committed_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """Of each partition for which the group has committed one; empty for an unknown group."""
        group = self._brokers.group(group_id)
        return {} if group is None else group_state.committed_offsets(group)

    def lag(self, group_id: str) -> dict[TopicPartition, PartitionLag]:
        """Of each partition that the group has committed or its members are assigned; empty for an unknown group."""
        return self._lag(group_id, None)

    def _lag(self, group_id: str, enough: int | None) -> dict[TopicPartition, PartitionLag]:
        """enough: a partition's records need not be counted further once there are more than this."""
        brokers, group = self._brokers, self._brokers.group(group_id)
        if group is None:
            return {}
        committed = group_state.committed_offsets(group)

        def partition_lag(tp: TopicPartition) -> PartitionLag:
            start_offset, end_offset = brokers.readable_offsets(tp)
            left = brokers.records_left(tp, committed.get(tp), enough)
            return PartitionLag(committed.get(tp), start_offset, end_offset, left)

        return {tp: partition_lag(tp) for tp in group_state.partitions_in_use(group, brokers.topic_name)}

    def _records_wait(self, topic: str, count: int) -> tuple[TopicReader, Wait]:
        if integer("count", count) < 0:
            raise ValueError(f"count={count}: expected 0 or more")
        reader = TopicReader(self._brokers, topic, count)
        return reader, Wait(reader.read, f"{counted(count, 'record')} in {topic}", reader.describe)

    def _group_wait(self, group_id: str, state: str, partitions: int | None, members: int | None) -> Wait:
        group_state.check_state(state)
        given = {"members": members, "partitions": partitions}
        counts = {argument: integer(argument, count) for argument, count in given.items() if count is not None}

        def reached() -> bool:
            group = self._brokers.group(group_id)
            return group is not None and group_state.has_settled(group, state, partitions, members)

        wanted = " and ".join(counted(count, noun.removesuffix("s")) for noun, count in counts.items())
        wanted = f"group {group_id} to be {state}" + (wanted and f" with {wanted}")
        return Wait(reached, wanted, lambda: self._describe_group(group_id))

    def _lag_wait(self, group_id: str, at_most: int) -> Wait:
        integer("at_most", at_most)

        def reached() -> bool:
            lags = [lag.lag for lag in self._lag(group_id, at_most).values()]
            known = [lag for lag in lags if lag is not None]
            return bool(lags) and len(known) == len(lags) and sum(known) <= at_most

        def now() -> str:
            return f"{group_state.describe_lags(self.lag(group_id))}; {self._describe_group(group_id)}"

        return Wait(reached, f"the lag of group {group_id} to be at most {at_most}", now)

    def _describe_group(self, group_id: str) -> str:
        if not self._brokers.running():
            return "no broker runs"
        group = self._brokers.group(group_id)
        return (
            "there is no such group"
            if group is None
            else f"it is {group_state.describe(group, self._brokers.topic_name)}"
        )


class KafkaFixture(KafkaTestSupport):
    """A running broker in a test; whoever made the broker stops it."""

    def __init__(self, broker: Broker) -> None:
        running = RunningBrokers(lambda: {} if broker.has_stopped else {broker.broker_id: broker})
        super().__init__(running, broker.time)
        self.broker = broker

    @property
    def bootstrap_servers(self) -> str:
        return self.broker.bootstrap_servers


class KafkaClusterFixture(KafkaTestSupport):
    """A running cluster in a test; whoever made the cluster stops it."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(RunningBrokers(lambda: cluster.brokers), cluster.time)
        self.cluster = cluster
        self._partitions = ClusterPartitions(cluster)

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    @property
    def aio(self) -> AsyncClusterWaits:
        return AsyncClusterWaits(self)

    @contextmanager
    def down(self, broker: int) -> Iterator[None]:
        """Kill a broker, as Cluster.kill() does; after the block it starts again, on its port."""
        self.cluster.kill(broker)
        yield
        self.cluster.start(broker)

    def wait_until_led(self, topic: str, partition: int | None = None, timeout: float = 30) -> None:
        """As Cluster.wait_until_led(), but raises WaitTimedOut."""
        self._led_wait(topic, partition).run(timeout)

    def wait_until_in_sync(self, topic: str, timeout: float = 30) -> None:
        """As Cluster.wait_until_in_sync(), but raises WaitTimedOut."""
        self._in_sync_wait(topic).run(timeout)

    def wait_for_isr(self, topic: str, brokers: Collection[int], partition: int = 0, timeout: float = 30) -> None:
        """Wait until just these brokers are in sync with the partition.

        Raises WaitTimedOut with the ISR after `timeout` seconds.
        """
        self._isr_wait(topic, brokers, partition).run(timeout)

    def _isr_wait(self, topic: str, brokers: Collection[int], partition: int) -> Wait:
        def isr() -> list[int]:
            return sorted(self.cluster.isr(topic, partition))

        wanted = f"the ISR of {topic}-{partition} to be {sorted(brokers)}"
        return Wait(lambda: isr() == sorted(brokers), wanted, lambda: f"it is {isr()}")

    def _led_wait(self, topic: str, partition: int | None) -> Wait:
        return _partitions_wait(f"{topic} to be led", lambda: self._partitions.unled(topic, partition))

    def _in_sync_wait(self, topic: str) -> Wait:
        return _partitions_wait(f"the replicas of {topic} to be in sync", lambda: self._partitions.out_of_sync(topic))


class AsyncWaits:
    """The waits of a KafkaTestSupport as coroutines for asyncio: they take and raise the same.  A cancelled one ends at
    once."""

    def __init__(self, kafka: KafkaTestSupport) -> None:
        self._kafka = kafka

    async def wait_for_group(
        self,
        group_id: str,
        state: str = "Stable",
        partitions: int | None = None,
        timeout: float = 30,
        *,
        members: int | None = None,
    ) -> None:
        await self._kafka._group_wait(group_id, state, partitions, members).run_async(timeout)

    async def wait_for_lag(self, group_id: str, at_most: int = 0, timeout: float = 30) -> None:
        await self._kafka._lag_wait(group_id, at_most).run_async(timeout)

    async def wait_for_records(self, topic: str, count: int, timeout: float = 30) -> list[ConsumerRecord]:
        reader, wait = self._kafka._records_wait(topic, count)
        await wait.run_async(timeout)
        return reader.records


class AsyncClusterWaits(AsyncWaits):
    """Those of a KafkaClusterFixture."""

    _kafka: KafkaClusterFixture

    async def wait_until_led(self, topic: str, partition: int | None = None, timeout: float = 30) -> None:
        await self._kafka._led_wait(topic, partition).run_async(timeout)

    async def wait_until_in_sync(self, topic: str, timeout: float = 30) -> None:
        await self._kafka._in_sync_wait(topic).run_async(timeout)

    async def wait_for_isr(self, topic: str, brokers: Collection[int], partition: int = 0, timeout: float = 30) -> None:
        await self._kafka._isr_wait(topic, brokers, partition).run_async(timeout)


def _partitions_wait(wanted: str, reasons: Callable[[], Mapping[TopicPartition, str]]) -> Wait:
    return Wait(lambda: not reasons(), wanted, lambda: reasons_text(reasons()))
