"""Cluster: several brokers in this process."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import chain, count
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kcore.common.text import counted, plain_error
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    ClusterAuthorizationFailed,
    InvalidConfig,
    KafkaError,
    LeaderNotAvailable,
    NotController,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from kcore.log.log_iteration import Isolation
from kcore.metadata import znodes
from kcore.metadata.open_store import open_store
from kcore.metadata.store import STOP_PING_MS, MetadataStore, Node, SessionExpired
from kcore.protocol.api_keys import ApiKey
from kcore.record.partitioner import partition_for_key
from kcore.security.authorizer import Authorizer
from kcore.server.broker import Broker
from kcore.server.broker_identity import check_is_no_file, check_store_exists
from kcore.server.broker_parts import GivenAuthorizer, telemetry_receiver_of
from kcore.server.call_arguments import integer, string
from kcore.server.cluster_partitions import ClusterPartitions, reasons_text
from kcore.server.cluster_settings import cluster_settings, rack_settings, store_address
from kcore.server.cluster_transactions import ClusterHost
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.in_process_client import ConsumerRecord, Data, Headers, RecordMetadata
from kcore.server.in_process_transaction import Transaction

if TYPE_CHECKING:
    from kcore.server.requests.client_telemetry import ClientTelemetryReceiver
    from kcore.server.web_process import PageUrl, WebProcess

logger = logging.getLogger(__name__)

_ARGUMENTS = ("brokers", "data_dir", "store", "host", "racks", "time", "authorizer", "telemetry_receiver", "act_like")
#: How long start(), stop() and create_topic() wait for the brokers to agree, besides the session timeout, which passes
#: until they learn of one that has failed.
WAIT_MS = 30_000
#: The same of what a caller waits for, in seconds.
WAIT_S = 30
_POLL_MS = 10


class Cluster:
    """Kafka brokers in this process, which replicate each other over real sockets.

        with kcore.Cluster(3) as cluster:
            cluster.create_topic("orders", partitions=6)
            producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})

    brokers: how many; their ids are 0, 1, …  data_dir: broker N has data_dir/N; None: a temporary directory, removed at
    the end.  store: where they coordinate, sqlite:FILE or zookeeper://HOST:PORT/CHROOT; None: a file in data_dir.
    racks: broker.rack of each broker, None for one without.  authorizer: of all brokers; their own requests to each
    other have to be allowed too.  telemetry_receiver, act_like, config: of all brokers, as for Broker.  Topics have
    three replicas unless they or default.replication.factor say otherwise (fewer brokers: as many as there are), and so
    have the consumers' offsets.  A broker that has ended, or is silent for zookeeper.session.timeout.ms (4 s here), has
    failed, and others lead its partitions.  A follower fetches again replica.fetch.backoff.ms (100 ms here)
    after a failure.
    Thread-safe.  Lifetime: start() and stop(), or a `with` or `async with` block.  A cluster that was not stopped is
    stopped when the interpreter exits.  The constructor raises TypeError, ValueError and InvalidConfig, start() also
    what Broker.start() raises.
    """

    def __init__(
        self,
        brokers: int = 3,
        data_dir: str | os.PathLike[str] | None = None,
        store: str | None = None,
        host: str = "127.0.0.1",
        *,
        racks: Sequence[str | None] | None = None,
        time: Time = SYSTEM_TIME,
        authorizer: Authorizer | None = None,
        telemetry_receiver: ClientTelemetryReceiver | None = None,
        act_like: str | None = None,
        **config: Any,
    ) -> None:
        if isinstance(brokers, bool) or not isinstance(brokers, int):
            raise TypeError(f"brokers must be an int, not {brokers!r}")
        if brokers < 1:
            raise ValueError(f"brokers={brokers}: expected 1 or more")
        settings = {key if "." in key else key.replace("_", "."): value for key, value in config.items()}
        for name in ("broker.id", "node.id", "listeners", "advertised.listeners", "log.dir", "log.dirs", "broker.rack"):
            if name in settings:
                instead = "give racks" if name == "broker.rack" else "it cannot be given here"
                raise InvalidConfig(f"{name} is not the same for all brokers of a cluster: {instead}")
        if act_like is not None:
            settings["kcore.act.like"] = act_like
        self._racks = rack_settings(racks, brokers)
        self._config = {**cluster_settings(brokers), **settings}
        # Wrong settings raise here, before a directory or a store is made.
        checked = KafkaConfig(self._config, other_names=_ARGUMENTS)
        GivenAuthorizer(authorizer, checked)
        telemetry_receiver_of(telemetry_receiver, checked)
        self._session_timeout_ms: int = checked["zookeeper.session.timeout.ms"]
        self._temporary_dir: str | None = checked["kcore.temporary.dir"]
        self._count = brokers
        self._host = host
        self._time = time
        self._authorizer = authorizer
        self._telemetry_receiver = telemetry_receiver
        self._is_temporary = data_dir is None
        self._data_dir = None if data_dir is None else os.path.abspath(os.fspath(data_dir))
        self._address = store
        # A broker's lock is held while it starts, stops or is killed, which takes seconds; _lock, which is taken after
        # it, never while anything waits.
        self._broker_locks = [threading.RLock() for _ in range(brokers)]
        self._lock = threading.RLock()
        self._pid = os.getpid()
        # With those that have stopped by themselves, or by their own stop(), until they are started again.
        self._brokers: dict[int, Broker] = {}
        self._stores: dict[int, MetadataStore] = {}
        self._ports: dict[int, int] = {}
        self._is_stopped = False  # all at once, by stop()
        self._store: MetadataStore | None = None
        self._page: WebProcess | None = None  # of http
        self._partitions = ClusterPartitions(self)
        self._turns = count()  # of records without a key

    # -- life -------------------------------------------------------------------------------------------

    def start(self, broker_id: int | None = None) -> Cluster:
        """Start a broker that has stopped or was killed, on the port that it had; without an id all that do not run.

        Returns when all running brokers know each other.  Raises what Broker.start() raises, TypeError and ValueError
        for an id that no broker has, RuntimeError for one that runs, and for one whose temporary directory is gone
        since stop(); RequestTimedOut; ClusterAuthorizationFailed where the authorizer lets the brokers not talk to each
        other; without an id all have stopped again.
        """
        self._check_process()
        for broker in self.brokers.values():
            broker.running.services.auth.denied_brokers.clear()  # what was denied before may be allowed now
        if broker_id is not None:
            number = self._checked_id(broker_id)
            with self._broker_locks[number]:
                if number in self.brokers:
                    raise RuntimeError(f"broker {number} runs")
                self._check_not_gone()
                self._start(number)
        else:
            try:
                for number, lock in enumerate(self._broker_locks):
                    with lock:
                        if number not in self.brokers:
                            self._start(number)
                            self._raise_denial()
            except BaseException:
                self.stop()
                raise
        try:
            self._wait("the brokers to know each other", self._agree_unless_denied)
        except ClusterAuthorizationFailed:
            if broker_id is None:
                self.stop()
            raise
        return self

    def stop(self, broker_id: int | None = None) -> None:
        """Stop a broker cleanly, after others lead its partitions; without an id all of them.

        Returns when the brokers that still run, if any, know that it is gone, also where it did not run any more.
        Where the controller was killed, its successor is waited for.  Raises the first error of a broker's stop, once
        all have stopped; TypeError and ValueError for an id that no broker has; RequestTimedOut when no controller is
        elected, and the broker runs on, and when the others do not learn that it has stopped.  In a forked child it
        does nothing: the brokers are the parent's.
        """
        if self._pid != os.getpid():
            return
        if broker_id is not None:
            number = self._checked_id(broker_id)
            with self._broker_locks[number]:
                if number in self.brokers:
                    self._wait("a controller", lambda: len(self.brokers) == 1 or self._agree())
                    self._stop(number)
                self._wait(f"the others to know that broker {number} has stopped", lambda: self._agree({number}))
            return
        with ExitStack() as locks:
            for lock in self._broker_locks:
                locks.enter_context(lock)
            errors: list[BaseException] = []
            controller = self._controller_at_stop()
            if controller not in self.brokers:  # no controller can elect other leaders
                for broker in self._brokers.values():
                    broker.cluster_member.hands_over = False
            if self._is_temporary:
                for broker in self._brokers.values():
                    broker.running.base.logs.discard_data()
            # The controller last: it elects the leaders that replace the others.
            for number in sorted(self._brokers, key=lambda number: number == controller):
                try:
                    self._stop(number)
                except BaseException as error:  # the others would run on without their directories
                    errors.append(error)
            self._close()
            if errors:
                raise errors[0]

    def kill(self, broker_id: int) -> None:
        """Have a broker fail as kill -9 does, as far as threads can: its connections break, nothing is flushed, it
        leaves no marker of a clean stop.  With a store on SQLite the others notice it within a quarter of a second,
        with ZooKeeper when its session has timed out.

        What it had written is in the page cache and stays.  Does nothing for a broker that does not run.  Raises
        TypeError and ValueError for an id that no broker has, RuntimeError in a forked child.
        """
        self._check_process()
        number = self._checked_id(broker_id)
        with self._broker_locks[number]:
            if number in self.brokers:
                broker, _ = self._forget(number)
                broker.kill()

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Cluster:
        import asyncio

        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        import asyncio

        await asyncio.to_thread(self.stop)

    def _start(self, number: int) -> None:
        if number in self._brokers:
            self._stop(number)  # it stopped by itself, or still stops: its directory and its store must be free
        with self._lock:
            data_dir, store = self._opened_data_dir(), self._open_store()
        try:
            broker = Broker(
                os.path.join(data_dir, str(number)),
                self._ports.get(number, 0),
                self._host,
                time=self._time,
                store=store,
                authorizer=self._authorizer,
                telemetry_receiver=self._telemetry_receiver,
                **{**self._config, **self._racks[number], "broker.id": number},
            ).start()
        except BaseException:
            store.close()
            raise
        with self._lock:
            self._brokers[number], self._stores[number], self._ports[number] = broker, store, broker.port
            self._is_stopped = False

    def _controller_at_stop(self) -> int | None:
        if not self._brokers:
            return None
        try:
            with self._lock, suppress(SessionExpired):  # controller() begins another
                self._reader().ping(STOP_PING_MS)
            return self.controller()
        except (KafkaError, OSError) as error:  # then no controller can elect anybody either
            logger.warning("the cluster stops without its metadata store: %s", plain_error(error))
            return None

    def _forget(self, number: int) -> tuple[Broker, MetadataStore]:
        with self._lock:
            return self._brokers.pop(number), self._stores.pop(number)

    def _stop(self, number: int) -> None:
        broker, store = self._forget(number)
        try:
            broker.stop()
        finally:
            store.close()

    def _close(self) -> None:
        atexit.unregister(self.stop)
        with self._lock:
            self._is_stopped = True
            page, self._page = self._page, None
        if page is not None:
            page.stop()
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None
            if self._is_temporary and self._data_dir is not None:
                shutil.rmtree(self._data_dir, ignore_errors=True)
                self._data_dir = None

    def _opened_data_dir(self) -> str:
        if self._data_dir is None:
            self._data_dir = os.path.abspath(tempfile.mkdtemp(prefix="kcore-", dir=self._temporary_dir or None))
            atexit.register(self.stop)
        return self._data_dir

    def _open_store(self) -> MetadataStore:
        data_dir = self._opened_data_dir()
        check_is_no_file(data_dir)
        os.makedirs(data_dir, exist_ok=True)
        address = self._address or store_address(data_dir)
        check_store_exists(address, [os.path.join(data_dir, str(number)) for number in range(self._count)])
        return open_store(
            address,
            session_timeout_ms=self._session_timeout_ms,
            connection_timeout_ms=WAIT_MS,
            durable=not (self._is_temporary and self._address is None),
        )

    # -- use --------------------------------------------------------------------------------------------

    @property
    def time(self) -> Time:
        """The clock that it was given."""
        return self._time

    @property
    def brokers(self) -> Mapping[int, Broker]:
        """The running brokers by id: without those that have stopped by themselves, or by their own stop()."""
        with self._lock:
            running = {number: broker for number, broker in self._brokers.items() if not broker.has_stopped}
        return MappingProxyType(running)

    @property
    def bootstrap_servers(self) -> str:
        """host:port of all brokers that have run, separated by commas: a broker that starts again has its port again.

        Raises RuntimeError before start().
        """
        with self._lock:
            self._check_started()
            host = f"[{self._host}]" if ":" in self._host else self._host
            return ",".join(f"{host}:{port}" for _, port in sorted(self._ports.items()))

    @property
    def data_dir(self) -> str | None:
        """Broker N has data_dir/N; None before a cluster with a temporary one has started."""
        return self._data_dir

    @property
    def http(self) -> PageUrl:
        """As Broker.http, about all brokers.  The page ends with stop() of all of them."""
        from kcore.server.web_process import WebProcess

        self._check_process()
        with self._lock:
            self._check_not_stopped()
            if self._page is None or not self._page.is_running:
                self._page = WebProcess.started("cluster.http", self.bootstrap_servers)
            return self._page.url

    def create_topic(
        self, name: str, partitions: int = 1, replication_factor: int | None = None, **config: Any
    ) -> UUID:
        """Create a topic and return its id, once all running brokers know it and its leaders.

        Its replicas are on running brokers: where one was killed, the others learn of it first, which takes
        zookeeper.session.timeout.ms.  config: the topic's settings, as retention_ms=1000.  Raises what
        Broker.create_topic() raises, RequestTimedOut, and RuntimeError when no broker runs.
        """
        self._wait("the brokers to know who runs", lambda: self._agree(self._ports.keys() - self._running().keys()))
        topic_id = self._any_broker().create_topic(name, partitions, replication_factor=replication_factor, **config)

        def is_known() -> bool:
            topics = [broker.metadata_cache.topic(name) for broker in self._running().values()]
            counts = {len(topic.partitions) if topic is not None else 0 for topic in topics}
            return len(counts) == 1 and 0 not in counts

        self._wait(f"all brokers to know the topic {name}", is_known)
        return topic_id

    def produce(
        self,
        topic: str,
        value: Data | None,
        key: Data | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Write one record with acks=all to a topic that exists, on the broker that leads its partition.

        The arguments are those of Broker.produce().  While the partition has no leader it waits for one, and an attempt
        that met a broker that led no more is repeated: the record is there once at least.  Raises as Broker.produce(),
        and RequestTimedOut with the reason that there is no leader.
        """
        total = len(self._partitions_of(topic))
        if partition is None:
            partition = self._partition_for(key, total)
        elif not 0 <= integer("partition", partition) < total:
            raise UnknownTopicOrPartition(f"{topic}-{partition}: no such partition, the topic has {total} of them")
        written: list[RecordMetadata] = []

        def write() -> bool:
            broker = self._leading_broker(topic, partition)
            if broker is None:
                return False
            try:
                written.append(broker.produce(topic, value, key, headers, timestamp, partition))
            except NotLeaderOrFollower:  # it leads no more, or does not know yet that it does
                return False
            except RuntimeError:
                if self.leader(topic, partition) == broker.broker_id and not broker.has_stopped:
                    raise
                return False
            return True

        reasons = self._partitions.unled
        self._wait(f"{topic}-{partition} to be led", write, now=lambda: f": {reasons_text(reasons(topic, partition))}")
        return written[0]

    def consume(
        self, topic: str, partition: int | None = None, isolation: Isolation = "read_uncommitted"
    ) -> Iterator[ConsumerRecord]:
        """The records that a consumer can read now, of one partition or of all, one after the other, each from the
        broker that leads it.  Raises as Broker.consume(), and LeaderNotAvailable for a partition without a leader."""
        numbers = self._partitions_of(topic) if partition is None else [partition]
        return chain.from_iterable([self._led_records(topic, number, isolation) for number in numbers])

    def transaction(self, transactional_id: str, *, timeout_ms: int = 60_000) -> Transaction:
        """As Broker.transaction(); waits for coordinators and leaders, also while others are elected."""
        return Transaction(ClusterHost(self._any_broker, self._leading_broker), transactional_id, timeout_ms)

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """The broker that leads a partition as the store has it; None for none, and for an unknown partition.  Also
        None for a broker of this cluster that does not run any more: after a kill until the others have elected one.

        Raises RuntimeError before start() and after stop() of all brokers, as isr() and controller() do.
        """
        state = self._state(topic, partition)
        return None if state is None else self._if_running(state.leader)

    def isr(self, topic: str, partition: int = 0) -> list[int]:
        """The brokers that are in sync as the store has it, sorted; empty for an unknown partition.  A broker that was
        killed stays in it until the others have noticed; the last one stays for good."""
        state = self._state(topic, partition)
        return sorted(state.isr) if state is not None else []

    def controller(self) -> int | None:
        """The broker that is the controller as the store has it; None for none, and for one that does not run, as
        leader()."""
        node = self._get(znodes.CONTROLLER)
        return None if node is None else self._if_running(znodes.ControllerZNode.decode(node.data).broker_id)

    def wait_until_led(self, topic: str, partition: int | None = None, timeout: float = WAIT_S) -> None:
        """Wait until a broker that runs leads the partition, for None each one of the topic, and all running brokers
        have it in their metadata: a client can use it whichever broker it asks.

        Raises RequestTimedOut with the reason of each partition after `timeout` seconds; RuntimeError as leader().
        """
        wanted = f"{string('topic', topic)} to be led"
        self._wait_while(wanted, lambda: self._partitions.unled(topic, partition), timeout)

    def wait_until_in_sync(self, topic: str, timeout: float = WAIT_S) -> None:
        """Wait until all replicas of the topic run and are in the ISRs, and led as wait_until_led() says.

        Raises RequestTimedOut with the reason of each replica that is not after `timeout` seconds; RuntimeError as
        leader().
        """
        wanted = f"the replicas of {string('topic', topic)} to be in sync"
        self._wait_while(wanted, lambda: self._partitions.out_of_sync(topic), timeout)

    def move_leader(self, topic: str, partition: int = 0, *, to: int, timeout: float = WAIT_S) -> None:
        """Have another replica lead a partition, as an administrator does: it becomes the preferred leader, and that
        is elected.  Clients lose no connection and no record.

        Waits first until the replica is in sync, and then until all running brokers have the new leader in their
        metadata.  Raises UnknownTopicOrPartition, ValueError for a broker that has no replica, RequestTimedOut, and
        what the controller answers; RuntimeError as leader().
        """
        tp, to = TopicPartition(string("topic", topic), integer("partition", partition)), self._checked_id(to)
        self._check_not_stopped()
        replicas = self._partitions.replicas(*tp)
        if not replicas:
            raise UnknownTopicOrPartition(f"{tp}: no such partition")
        if to not in replicas:
            raise ValueError(f"{tp}: broker {to} has no replica, its replicas are on {list(replicas)}")
        self._wait_while(f"broker {to} to be in the ISR of {tp}", lambda: self._not_in_isr(tp, to), timeout)

        def is_ordered() -> bool:
            try:
                self._partitions.prefer(tp, to)
                self._partitions.elect_preferred(tp)
            except NotController:  # one is being elected
                return False
            return True

        self._wait("a controller", is_ordered, timeout)
        self._wait(f"broker {to} to lead {tp}", lambda: self.leader(*tp) == to, timeout)
        self._wait_while(f"{tp} to be led by broker {to}", lambda: self._partitions.unled(*tp), timeout)

    def _partitions_of(self, topic: str) -> list[int]:
        """Raises UnknownTopicOrPartition, RuntimeError when no broker runs."""
        string("topic", topic)
        self._running()
        numbers = self._partitions.partitions(topic)
        if not numbers:
            raise UnknownTopicOrPartition(f"{topic}: no such topic")
        return numbers

    def _partition_for(self, key: Data | None, count: int) -> int:
        if key is not None:
            return partition_for_key(key.encode() if isinstance(key, str) else bytes(key), count)
        return next(self._turns) % count

    def _leading_broker(self, topic: str, partition: int) -> Broker | None:
        leader = self.leader(topic, partition)
        return None if leader is None else self.brokers.get(leader)

    def _led_records(self, topic: str, partition: int, isolation: Isolation) -> Iterator[ConsumerRecord]:
        broker = self._leading_broker(topic, partition)
        if broker is None:
            reason = reasons_text(self._partitions.unled(topic, partition))
            raise LeaderNotAvailable(reason or f"{topic}-{partition}: it has a leader by now")
        return broker.consume(topic, partition, isolation=isolation)

    def _not_in_isr(self, tp: TopicPartition, broker_id: int) -> dict[TopicPartition, str]:
        if broker_id in self.isr(*tp):
            return {}
        return self._partitions.out_of_sync(tp.topic) or {tp: f"ISR {self.isr(*tp)}"}

    def __repr__(self) -> str:
        place = self._data_dir or "temporary"
        return f"Cluster({counted(self._count, 'broker')}, running {sorted(self.brokers)}, {place})"

    def _repr_html_(self) -> str:
        from kcore.common.html_table import html_table

        running = self.brokers
        led = dict.fromkeys(running, 0)
        held = dict.fromkeys(running, 0)
        behind = dict.fromkeys(running, 0)
        for info in next(iter(running.values())).metadata_cache.topics() if running else ():
            for partition in info.partitions.values():
                for number in partition.replicas:
                    if number in held:
                        held[number] += 1
                        behind[number] += number not in partition.isr
                if partition.leader in led:
                    led[partition.leader] += 1
        rows = [
            (number, running[number].bootstrap_servers, held[number], led[number], behind[number])
            if number in running
            else (number, "does not run", None, None, None)
            for number in range(self._count)
        ]
        place = f"data in {self._data_dir}" if self._data_dir else "temporary"
        title = f"Cluster of {counted(self._count, 'broker')}, {place}"
        return html_table(title, ["broker", "address", "replicas", "leads", "not in sync"], rows)

    # -- helpers ----------------------------------------------------------------------------------------

    def _if_running(self, broker_id: int) -> int | None:
        """The store may have other brokers too, of other processes: of those nothing is known here."""
        does_not_run = broker_id < 0 or (broker_id < self._count and broker_id not in self.brokers)
        return None if does_not_run else broker_id

    def _state(self, topic: str, partition: int) -> znodes.PartitionStateZNode | None:
        node = self._get(znodes.partition_state(topic, partition))
        return znodes.PartitionStateZNode.decode(node.data) if node is not None else None

    def _get(self, path: str) -> Node | None:
        with self._lock:
            reader = self._reader()
            try:
                return reader.get(path)
            except SessionExpired:
                reader.new_session()
                return reader.get(path)

    def _reader(self) -> MetadataStore:
        self._check_not_stopped()
        if self._store is None:
            self._store = self._open_store()
        return self._store

    def _any_broker(self) -> Broker:
        """The controller if it runs here: it sees its own writes at once."""
        brokers = self._running()
        controller = self.controller()
        if controller is not None and controller in brokers:
            return brokers[controller]
        return next(iter(brokers.values()))

    def _running(self) -> Mapping[int, Broker]:
        """Those that run, one at least.  Raises RuntimeError."""
        self._check_not_stopped()
        brokers = self.brokers
        if not brokers:
            raise RuntimeError("no broker of the cluster runs")
        return brokers

    def _agree(self, gone: Collection[int] = ()) -> bool:
        """Whether each running broker's metadata have all the running ones, none of those that are gone, and a
        controller that runs."""
        brokers = self.brokers
        running = brokers.keys()
        snapshots = [broker.metadata_cache.snapshot for broker in brokers.values()]
        alive = [(set(snapshot.broker_ids()), snapshot.controller_id) for snapshot in snapshots]
        return all(running <= ids and ids.isdisjoint(gone) and controller in running for ids, controller in alive)

    def _agree_unless_denied(self) -> bool:
        if self._agree():
            return True
        self._raise_denial()
        return False

    def _raise_denial(self) -> None:
        """Raises ClusterAuthorizationFailed: a controller does not send an update again that a broker has refused."""
        for number, broker in self.brokers.items():
            for (_, api_key), reason in list(broker.running.services.auth.denied_brokers.items()):
                if api_key == ApiKey.UPDATE_METADATA:
                    raise ClusterAuthorizationFailed(f"broker {number}: {reason}")

    def _wait(
        self,
        what: str,
        is_done: Callable[[], bool],
        timeout: float | None = None,
        now: Callable[[], str] = lambda: "",
    ) -> None:
        """timeout: seconds; None: until the brokers must have noticed that one has failed.  now: what there is."""
        clock = SYSTEM_TIME
        wait_ms = WAIT_MS + self._session_timeout_ms if timeout is None else timeout * 1000
        deadline_ms = clock.hi_res_clock_ms() + wait_ms
        while not is_done():
            if clock.hi_res_clock_ms() > deadline_ms:
                raise RequestTimedOut(f"waited {wait_ms:.0f} ms for {what}{now()}")
            clock.sleep(_POLL_MS)

    def _wait_while(self, what: str, reasons: Callable[[], Mapping[TopicPartition, str]], timeout: float) -> None:
        """Wait until there are none; the time-out names them."""

        def is_done() -> bool:
            self._check_not_stopped()
            return not reasons()

        self._wait(what, is_done, timeout, lambda: f": {reasons_text(reasons())}")

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError("the cluster runs in the process that forked this one")

    def _check_started(self) -> None:
        if not self._ports:
            raise RuntimeError("the cluster has not started: use `with kcore.Cluster() as cluster`, or start()")

    def _check_not_stopped(self) -> None:
        self._check_started()
        self._check_not_gone()
        if self._is_stopped:
            raise RuntimeError("the cluster has stopped: start() starts it again")

    def _check_not_gone(self) -> None:
        if self._is_temporary and self._ports and self._data_dir is None:
            raise RuntimeError("the cluster has stopped, and its temporary directory is gone: start() makes a new one")

    def _checked_id(self, broker_id: int) -> int:
        ids = f"the cluster has brokers 0 to {self._count - 1}"
        number = integer(f"{ids}; the id", broker_id)
        if not 0 <= number < self._count:
            raise ValueError(f"broker {number}: {ids}")
        return number
