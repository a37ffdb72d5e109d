"""Broker: its life from start() to stop(), and the calls of the process that it runs in."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from kcore.common.metrics import MetricName
from kcore.common.text import bytes_of
from kcore.common.time import SYSTEM_TIME, SkippableTime, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import InvalidConfig, InvalidPartitions, UnknownTopicOrPartition
from kcore.log.log_iteration import Isolation
from kcore.log.unified_log import UnifiedLog
from kcore.metadata.store import MetadataStore
from kcore.network.socket_server import LOCAL_LISTENER
from kcore.replica.fetch_params import FetchParams, FetchPartitionData
from kcore.security.authorizer import Authorizer
from kcore.server.broker_parts import GivenAuthorizer, telemetry_receiver_of
from kcore.server.call_arguments import as_text, integer, number, port_number, string
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.config.listeners import authority, bracketed, host_and_port
from kcore.server.in_process_client import ConsumerRecord, Data, Headers, RecordMetadata
from kcore.server.open_files_limit import raise_open_files_limit
from kcore.server.running_broker import (
    BrokerCalls,
    BrokerPlan,
    RunningBroker,
    make_base,
    make_membership,
    start_running,
)
from kcore.server.topics.topic_changes import has_partitions, is_gone

if TYPE_CHECKING:
    from kcore.coordinator.group.group_coordinator import GroupCoordinator
    from kcore.log.lso_explanation import LsoExplanation
    from kcore.metadata.metadata_cache import MetadataCache
    from kcore.replica.explain import FetchExplanation, IsrExplanation
    from kcore.replica.replica_manager import ReplicaManager
    from kcore.server.in_process_transaction import Transaction
    from kcore.server.member.cluster_member import ClusterMember
    from kcore.server.membership import BrokerBase, Membership
    from kcore.server.requests.client_telemetry import ClientTelemetryReceiver
    from kcore.server.topics.admin_manager import AdminManager
    from kcore.server.web_process import PageUrl, WebProcess

logger = logging.getLogger(__name__)


class Broker:
    """A Kafka broker in this process.

        with kcore.Broker() as broker:
            producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
            broker.produce("orders", "a book", key="42")
            assert [record.value for record in broker.consume("orders")] == [b"a book"]

    data_dir: what Kafka calls a log directory; one that Kafka wrote is served.  None: a temporary directory, removed
    at the end.  port 0 takes a free one.  config: Kafka's broker settings, as log_segment_bytes=1 << 20 or
    **{"log.segment.bytes": "1048576"}.  time: a kcore.testing.MockTime, to test what depends on a record's age, or a
    SkipTime, to test what waits.
    store: makes it a broker of a cluster, whose brokers have this store in common: sqlite:FILE, an address like
    zookeeper://HOST:PORT/CHROOT, or an open one, which the caller closes.  None: a broker alone, with a store of its
    own in the data directory.
    act_like: a release of Kafka, as "2.8": announce its versions of requests, to test clients against an older broker.
    authorizer: decides what clients may do, not what calls of this object may; None: clients may do everything.
    telemetry_receiver: called with each ClientTelemetryPayload of metrics that clients push; None: they push none.
    Thread-safe.  Lifetime: start() and stop(), or a `with` or `async with` block, once each; between them restart() as
    often as one likes.  A broker that was not stopped is stopped when the interpreter exits.  In a forked child the
    calls raise RuntimeError and stop() does nothing; clients there use bootstrap_servers.
    The constructor raises TypeError and InvalidConfig, start() also DirectoryInUse, OSError and what the metadata
    store raises.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        *,
        time: Time = SYSTEM_TIME,
        store: MetadataStore | str | None = None,
        authorizer: Authorizer | None = None,
        telemetry_receiver: ClientTelemetryReceiver | None = None,
        act_like: str | None = None,
        **config: Any,
    ) -> None:
        host, port = string("host", host), port_number("port", port)
        if data_dir is not None and not isinstance(data_dir, str | os.PathLike):
            raise TypeError(f"data_dir must be a path, not {data_dir!r}")
        if data_dir is not None and not os.fspath(data_dir):
            raise InvalidConfig("data_dir is empty: give a path, or None for a temporary directory")
        if not isinstance(time, Time):
            raise TypeError(f"time must be a clock as kcore.testing.MockTime, not {time!r}")
        if store is not None and not isinstance(store, MetadataStore | str):
            raise TypeError(f"store must be a MetadataStore or sqlite:FILE, not {store!r}")
        arguments = ("data_dir", "port", "host", "time", "store", "authorizer", "telemetry_receiver", "act_like")
        if act_like is not None:
            config["kcore.act.like"] = act_like
        self.config = KafkaConfig(config, arguments, is_cluster_member=store is not None)
        dirs = self.config.data_dirs
        if data_dir is not None:
            if dirs:
                raise InvalidConfig(f"data_dir {data_dir} and log.dirs {','.join(dirs)} are both given: give one")
            dirs = [os.fspath(data_dir)]
        # DescribeConfigs and an authorizer see the arguments as if they came from a file of settings.
        place = {}
        if data_dir is not None:
            path = os.path.abspath(os.fspath(data_dir))
            # A comma would make two directories of it in log.dirs, which has no escape for one.
            place["log.dir" if "," in path else "log.dirs"] = path
        if port and "listeners" not in config:
            place["listeners"] = f"{LOCAL_LISTENER.name}://{bracketed(host, port)}"
        if place:
            self.config = KafkaConfig(config | place, arguments, is_cluster_member=store is not None)
        self._start_cancelled = threading.Event()
        self._plan = BrokerPlan(
            config=self.config,
            data_dirs=[os.path.abspath(path) for path in dirs],
            is_temporary=not dirs,
            listeners=self.config.listeners or [LOCAL_LISTENER._replace(host=host, port=port)],
            monitoring=host_and_port(self.config["kcore.monitoring.address"] or ""),
            store=store,
            authorizer=GivenAuthorizer(authorizer, self.config),
            telemetry_receiver=telemetry_receiver_of(telemetry_receiver, self.config),
            time=time,
            is_start_cancelled=self._start_cancelled.is_set,
        )
        # Of the last start, also after a stop; while it starts, from when it accepts connections.
        self._running: RunningBroker | None = None
        self._membership: Membership | None = None  # there earlier, for cancel_start()
        self._parts = ExitStack()
        self._lock = threading.Lock()
        self._page: WebProcess | None = None  # of http
        self._pid: int | None = None
        self._is_serving = False  # between the end of _start() and the beginning of a restart or stop
        self._stopped = False
        #: Called once no data directory is left, instead of stop(); must not wait for it.
        self.on_fatal_error: Callable[[OSError], None] | None = None

    # -- life -------------------------------------------------------------------------------------------

    def start(self) -> Broker:
        """Serve.  When it returns, clients can connect.  If it raises, nothing is left running."""
        self._check_new()  # a forked child may have got the lock locked
        with self._lock:
            self._check_new()
            if self._plan.is_temporary:
                data_dir = tempfile.mkdtemp(prefix="kcore-", dir=self.config["kcore.temporary.dir"] or None)
                self._plan = dataclasses.replace(self._plan, data_dirs=[os.path.abspath(data_dir)])
            self._pid = os.getpid()
            try:
                self._start()
            except BaseException:
                self._end()
                raise
            atexit.register(self.stop)
        return self

    def cancel_start(self) -> None:
        """From another thread: a start that waits for other brokers of its cluster, for the end of the last session of
        its id, or for a program that has locked its SQLite store, raises StartCancelled or goes on without them.  To be
        called again until start() has returned: one that does not wait yet may not notice."""
        self._start_cancelled.set()
        if self._membership is not None:
            self._membership.cancel_start()

    def restart(self) -> None:
        """Stop cleanly and start again on the same port, with the same data and settings, temporary data too.

        Clients see their connections closed, and connect again.  What was got from the broker before (log(),
        admin_manager, a running consume()) ends with the stop.  Calls of other threads meanwhile raise RuntimeError;
        what they asked for may have been done all the same.
        Raises RuntimeError unless the broker runs, in this process, and what start() raises: then it has stopped.
        """
        self._check_running()  # a forked child may have got the lock locked
        with self._lock:
            self._check_running()
            old_parts = self._parts
            self._is_serving = False
            self._parts = ExitStack()
            self._plan = dataclasses.replace(self._plan, listeners=self.running.server.listeners)
            try:
                old_parts.close()
                self._start()
            except BaseException:
                atexit.unregister(self.stop)
                self._end()
                raise

    def _end(self) -> None:
        self._stopped = True
        self._is_serving = False
        if self._page is not None:
            self._page.stop()
        if self._plan.is_temporary and self._running is not None:
            self._running.base.logs.discard_data()
        try:
            self._parts.close()
        finally:
            if self._plan.is_temporary:
                shutil.rmtree(self._plan.data_dirs[0], ignore_errors=True)

    def _start(self) -> None:
        raise_open_files_limit()
        self._start_cancelled.clear()
        if self._plan.monitoring is not None:  # before the logs are loaded, which may take long
            self._plan = dataclasses.replace(self._plan, monitoring=self._serve_monitoring(*self._plan.monitoring))
        base = make_base(self._plan, self._parts)
        calls = BrokerCalls(
            monitored=self,
            check_serving=lambda: self._check_serving(base.parts),
            no_data_dir_left=lambda error: self._no_data_dir_left(base, error),
        )
        self._membership = membership = make_membership(base)
        self._running = running = start_running(base, membership, self._plan, calls)
        membership.join(running.metrics, running.server.listeners)
        base.store.end_start()
        self._is_serving = True
        if isinstance(self._plan.time, SkippableTime):
            self._plan.time.attach(self)
        logger.info("broker %d of cluster %s on %s", base.broker_id, base.cluster_id, self.bootstrap_servers)

    def stop(self) -> None:
        """Stop cleanly: the next start needs no recovery.  Called again, or in a forked child, it does nothing."""
        if self._pid != os.getpid():  # a forked child may have got the lock locked
            return
        self._stop()

    def kill(self) -> None:
        """End as kill -9 does, as far as threads can: connections break, nothing is flushed, and there is no mark of a
        clean stop.  What was written is in the page cache.  A store that was given is closed too, its session left to
        time out.

        Called again, or after stop(), it does nothing.
        """
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._stopped:
                return
            atexit.unregister(self.stop)
            running, self._is_serving = self.running, False
            try:
                running.membership.abandon()
                running.base.store.abandon()
                running.server.shutdown()
                running.base.logs.abandon("the broker was killed")
            finally:
                self._end()
            logger.info("broker %d was killed", self.broker_id)

    def _stop(self, parts: ExitStack | None = None) -> None:
        """Stop; with parts, only while they are the running ones: a restart may have replaced them."""
        with self._lock:
            if self._stopped or (parts is not None and parts is not self._parts):
                return
            atexit.unregister(self.stop)
            self._end()
            logger.info("broker %d has stopped", self.broker_id)

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Broker:
        import asyncio

        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        import asyncio

        await asyncio.to_thread(self.stop)

    # -- use --------------------------------------------------------------------------------------------

    @property
    def time(self) -> Time:
        """The clock that it was given."""
        return self._plan.time

    @property
    def data_dir(self) -> str | None:
        """The (first) data directory; None before a broker with a temporary one has started."""
        return self._plan.data_dirs[0] if self._plan.data_dirs else None

    @property
    def has_stopped(self) -> bool:
        """Whether a stop has begun: by stop(), by kill(), or because no data directory was left."""
        return self._stopped

    @property
    def running(self) -> RunningBroker:
        """The parts of the last start.  Raises RuntimeError before there is one."""
        if self._running is None:
            self._check_running()
            raise RuntimeError("the broker is starting")
        return self._running

    @property
    def broker_id(self) -> int:
        return self.running.base.broker_id

    @property
    def cluster_id(self) -> str:
        return self.running.base.cluster_id

    @property
    def store(self) -> MetadataStore:
        return self.running.base.store

    @property
    def metadata_cache(self) -> MetadataCache:
        return self.running.base.metadata_cache

    @property
    def replica_manager(self) -> ReplicaManager:
        return self.running.base.replica_manager

    @property
    def admin_manager(self) -> AdminManager:
        return self.running.services.admin_manager

    @property
    def group_coordinator(self) -> GroupCoordinator:
        return self.running.services.group_coordinator

    @property
    def cluster_member(self) -> ClusterMember:
        """Raises RuntimeError for a broker alone."""
        return self.running.services.member

    @property
    def port(self) -> int:
        """Of the first listener."""
        return self.running.server.port

    @property
    def bootstrap_servers(self) -> str:
        """host:port, for clients on this machine.  Raises RuntimeError before start()."""
        return authority(self._plan.listeners[0].host, self.port)

    def create_topic(
        self, name: str, partitions: int = 1, replication_factor: int | None = None, **config: Any
    ) -> UUID:
        """Create a topic and return its id.  config: the topic's settings, as retention_ms=1000 or with dots.
        replication_factor: None for default.replication.factor.

        Raises TopicAlreadyExists, InvalidTopicException, InvalidPartitions, InvalidReplicationFactor, InvalidConfig; in
        a cluster also RequestTimedOut if the controller has not elected leaders in 30 s; RuntimeError unless the broker
        runs.
        """
        name, partitions = string("name", name), integer("partitions", partitions)
        if partitions < 1 and partitions != -1:
            raise InvalidPartitions(f"partitions={partitions}: expected 1 or more, or -1 for num.partitions")
        for key, value in config.items():
            if isinstance(value, Mapping):
                raise InvalidConfig(
                    f"Unknown topic config name: {key}; settings are keyword arguments: write **{{...}} instead of "
                    f"{key}={{...}}, or retention_ms=1000"
                )
        settings = {key if "." in key else key.replace("_", "."): as_text(value) for key, value in config.items()}
        with self._serving() as running:
            factor = -1 if replication_factor is None else integer("replication_factor", replication_factor)
            admin_manager = running.services.admin_manager
            created = admin_manager.create_topic(name, partitions, factor, configs=settings)
            admin_manager.wait_for(name, has_partitions(name, created.num_partitions))
            return created.topic_id

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its data.  Raises UnknownTopicOrPartition, InvalidRequest for an internal topic;
        RuntimeError unless the broker runs."""
        with self._serving() as running:
            admin_manager = running.services.admin_manager
            deleted = admin_manager.delete_topic(string("name", name))
            admin_manager.wait_for(name, is_gone(deleted))

    def produce(
        self,
        topic: str,
        value: Data | None,
        key: Data | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Write one record, as a producer with acks=all does; returns once consumers can read it.

        value, key: bytes, or a str, which is written as UTF-8; value None is a tombstone.  headers: a mapping, or
        (name, value) pairs where a name repeats.  timestamp: ms since the epoch; the broker's time if None.
        partition: which one; None takes the key's, as Kafka's Java producer does (murmur2), and without a key the
        partitions in turn.  A missing topic is created if auto.create.topics.enable says so.
        Raises a producer's errors: UnknownTopicOrPartition, InvalidTopicException, InvalidRecord, InvalidTimestamp,
        MessageTooLarge, NotLeaderOrFollower, NotEnoughReplicas, KafkaStorageError; TypeError, ValueError for other
        arguments; RuntimeError unless the broker runs.
        """
        with self._serving() as running:
            return running.client.produce(
                string("topic", topic),
                value,
                key,
                headers,
                None if timestamp is None else integer("timestamp", timestamp),
                None if partition is None else integer("partition", partition),
            )

    def consume(
        self,
        topic: str,
        partition: int | None = None,
        start_offset: int | Literal["earliest", "latest"] = "earliest",
        max_records: int | None = None,
        timeout: float = 0,
        isolation: Isolation = "read_uncommitted",
    ) -> Iterator[ConsumerRecord]:
        """The records that a consumer can read now, without a consumer group: list(broker.consume("orders")).

        One partition, or all of them, one after the other; in each in the order of offsets.  start_offset: of one
        partition.  It ends where a consumer could read no further when consume() was called: at the high watermark,
        with isolation "read_committed" at the last stable offset, without the records of aborted transactions.
        With a timeout it then waits for new records, and ends when none has come for that many seconds (of real
        time, also under MockTime), or after max_records.  Partitions that are added to the topic meanwhile are not
        read, nor a topic of the same name that is made after this one was deleted.  Nothing is committed.
        Raises at the call UnknownTopicOrPartition, OffsetOutOfRange, NotLeaderOrFollower, TypeError, ValueError, and
        RuntimeError unless the broker runs; while it is read, what UnifiedLog.records() raises, and RuntimeError or
        LogClosed once the broker has stopped.
        """
        with self._serving() as running:
            return running.client.consume(
                string("topic", topic),
                None if partition is None else integer("partition", partition),
                start_offset if isinstance(start_offset, str) else integer("start_offset", start_offset),
                None if max_records is None else integer("max_records", max_records),
                number("timeout", timeout),
                isolation,
            )

    def transaction(self, transactional_id: str, *, timeout_ms: int = 60_000) -> Transaction:
        """Begin a transaction: `with broker.transaction("shop") as t: t.produce("orders", "a book")`.

        The end of the block commits, and consumers with read_committed can read the records; an exception in the block
        aborts, as t.abort() does.  Without a block it stays open until t.commit() or t.abort().  What the last producer
        of the id has left open is aborted first.  timeout_ms: after which the coordinator aborts it.
        Raises InvalidRequest for an id that is empty or has more than 32767 bytes, InvalidTransactionTimeout,
        RequestTimedOut without a coordinator, NotLeaderOrFollower where another broker of a cluster is it, TypeError;
        RuntimeError unless the broker runs.
        """
        from kcore.server.in_process_transaction import BrokerHost, Transaction

        return Transaction(BrokerHost(self._serving), transactional_id, timeout_ms)

    def metrics(self) -> dict[MetricName, dict[str, float]]:
        """What the broker measures, by the names of Kafka's MBeans: {name: {attribute: value}}, sorted by name.

        metrics()["kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec,topic=orders"]["Count"]: bytes since the
        start.  Times are ms; MeanRate is per second since the start, and kcore.common.metrics.rates() has the rates
        between two readings.  Raises RuntimeError unless the broker runs.
        """
        with self._serving() as running:
            return running.metrics.read()

    @property
    def monitoring_url(self) -> str | None:
        """Where /metrics, /healthz and /readyz are; None without kcore.monitoring.address, and before a start."""
        if self._plan.monitoring is None or self._pid is None:
            return None
        host, port = self._plan.monitoring
        return f"http://{authority(host, port)}"

    @property
    def http(self) -> PageUrl:
        """The address of a page about this broker for a browser (docs/web.md); a notebook shows it as a link.

        The first use starts the page, a `kcore web` process on a free port of 127.0.0.1 that ends with the broker; so
        does the next use after that process was ended.  Raises ImportError without kcore[web], OSError, RuntimeError
        unless the broker runs.
        """
        from kcore.server.web_process import WebProcess  # a broker alone starts no other process

        self._check_running()  # a forked child may have got the lock locked
        with self._lock:
            self._check_running()
            if self._page is None or not self._page.is_running:
                self._page = WebProcess.started("broker.http", self.bootstrap_servers)
            return self._page.url

    def _serve_monitoring(self, host: str, port: int) -> tuple[str, int]:
        """With the port that it got."""
        from kcore.server.monitoring.http_endpoint import Reports, serve_monitoring

        return host, serve_monitoring(host, port, Reports(self._metrics_text, self._why_not_ready), self._parts)

    def _metrics_text(self) -> str:
        from kcore.server.monitoring.prometheus_text import prometheus_text

        try:
            with self._serving() as running:
                return prometheus_text(running.metrics.measured())
        except RuntimeError:  # it starts, or stops
            return ""

    def _why_not_ready(self) -> str | None:
        if self._stopped:
            return "the broker stops"
        if not self._is_serving or self._membership is None:
            return "the broker starts"
        return self._membership.why_not_ready()

    def explain_isr(self, topic: str, partition: int = 0) -> IsrExplanation:
        """Who is in sync with a partition and by which rule, what bounds its high watermark, and who waits for it.

        A frozen value; str() of it is a text for people.  Raises UnknownTopicOrPartition, NotLeaderOrFollower if this
        broker has no replica of it, KafkaStorageError; RuntimeError unless the broker runs.
        """
        from kcore.replica.explain import explain_isr

        tp = TopicPartition(string("topic", topic), integer("partition", partition))
        with self._serving() as running:
            base = running.base
            return explain_isr(base.replica_manager, tp, base.replication_quotas.leader, base.metadata_cache.offline)

    def explain_fetch(
        self,
        topic: str,
        partition: int = 0,
        offset: int = 0,
        *,
        isolation: Isolation = "read_uncommitted",
        replica_id: int = -1,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        max_wait_ms: int = 500,
        leader_epoch: int = -1,
    ) -> FetchExplanation:
        """What a fetch of this partition from offset on would get now, and by which rule; or what it would wait for.

        replica_id: of a follower, -1 for a consumer.  leader_epoch: what the client has, -1 for none.  Nothing is
        counted, and no follower's state changes.  A frozen value; str() of it is a text for people.
        Raises as explain_isr(), and ValueError for another isolation.
        """
        from kcore.replica.explain import explain_fetch

        tp = TopicPartition(string("topic", topic), integer("partition", partition))
        if isolation not in ("read_uncommitted", "read_committed"):
            raise ValueError(f"isolation {isolation!r}, expected read_uncommitted or read_committed")
        level = FetchParams.isolation_of(replica_id, isolation == "read_committed")
        params = FetchParams(replica_id, -1, max_wait_ms, min_bytes, max_bytes, level)
        data = FetchPartitionData(integer("offset", offset), max_bytes, current_leader_epoch=leader_epoch)
        with self._serving() as running:
            base = running.base
            return explain_fetch(base.replica_manager, tp, params, data, base.replication_quotas.leader)

    def explain_lso(self, topic: str, partition: int = 0) -> LsoExplanation:
        """Which transactions hold back the last stable offset of a partition: producer, first offset, since when.

        A frozen value; str() of it is a text for people.  Raises as log().
        """
        from kcore.log.lso_explanation import explain_lso

        return explain_lso(self.log(topic, partition))

    def log(self, topic: str, partition: int = 0) -> UnifiedLog:
        """The live log of a partition, to look into; produce() appends to it.

        The broker closes it: close(), delete() and truncations of it raise LogIsServed; a `with` block leaves it open.
        Raises UnknownTopicOrPartition, KafkaStorageError if it is offline; RuntimeError unless the broker runs.
        """
        tp = TopicPartition(string("topic", topic), integer("partition", partition))
        with self._serving() as running:
            hosted = running.base.replica_manager.get_partition(tp)
            if hosted is None:
                raise UnknownTopicOrPartition(f"{tp}: no such partition")
            return hosted.local_log()

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else "new" if self._running is None else self.bootstrap_servers
        return f"Broker({self.data_dir or 'temporary'}, {state})"

    def _repr_html_(self) -> str:
        from kcore.common.html_table import html_table

        running = self._running
        if running is None or self._stopped:
            return html_table(repr(self), [], [])
        logs: dict[str, list[UnifiedLog]] = {}
        for log in running.base.logs.all_logs():
            logs.setdefault(log.topic_partition.topic, []).append(log)
        rows = [
            (
                topic,
                len(of_topic),
                sum(log.log_end_offset - log.log_start_offset for log in of_topic),
                bytes_of(sum(log.size for log in of_topic)),
            )
            for topic, of_topic in sorted(logs.items())
        ]
        title = f"Broker {self.broker_id} on {self.bootstrap_servers}, data in {self.data_dir}"
        return html_table(title, ["topic", "partitions here", "offsets", "size"], rows)

    def _check_new(self) -> None:
        if self._pid is not None:
            raise RuntimeError(
                "the broker has stopped, and starts only once: make a new Broker"
                if self._stopped
                else "a broker starts only once; restart() stops it and starts it again"
            )

    def _check_started(self) -> None:
        if self._pid is None:
            raise RuntimeError("the broker has not started: use `with kcore.Broker() as broker`, or start()")

    def _check_running(self) -> None:
        self._check_started()
        self._check_process()
        if self._stopped:
            raise RuntimeError("the broker has stopped")

    def _check_serving(self, parts: ExitStack) -> None:
        """Raises RuntimeError unless what was started with `parts` still serves."""
        self._check_running()
        if parts is not self._parts or not self._is_serving:
            raise RuntimeError("the broker restarts, or has restarted since: call again")

    @contextmanager
    def _serving(self) -> Iterator[RunningBroker]:
        """Around a call: RuntimeError unless the broker serves, also for whatever goes wrong because that ends."""
        running = self.running
        self._check_serving(running.base.parts)
        try:
            yield running
        except Exception:
            self._check_serving(running.base.parts)
            raise

    def _check_process(self) -> None:
        # A forked child shares the files and the metadata store with its parent, but none of its locks and threads.
        if self._pid != os.getpid():
            raise RuntimeError("the broker runs in the process that forked this one")

    def _no_data_dir_left(self, base: BrokerBase, error: OSError) -> None:
        if self._stopped or base.parts is not self._parts:
            return
        logger.critical("broker %d stops: no data directory is left", base.broker_id)
        if self.on_fatal_error is not None:
            self.on_fatal_error(error)
        else:
            # A stop waits for the thread that we are on, and restart() for it while it holds the broker's lock.
            threading.Thread(target=self._stop, args=(base.parts,), name="kcore-no-data-dir-left").start()
