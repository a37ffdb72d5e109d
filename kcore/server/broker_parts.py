"""Parts of a broker, each made of the settings that it needs; Broker starts them in order, and stops them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kcore.common.scheduler import Scheduler
from kcore.common.shutdownable_thread import ShutdownableThread
from kcore.common.time import MockTime, MovableTime, Time, WallClockOf
from kcore.common.topic_partition import ZERO_UUID
from kcore.coordinator.group.consumer_assignors import TopicOfGroup
from kcore.coordinator.group.group_config import GroupConfig
from kcore.coordinator.group.group_coordinator import GroupCoordinator
from kcore.coordinator.group.regex_resolver import TopicNames
from kcore.coordinator.transaction.transaction_completion import MarkerRoutes
from kcore.coordinator.transaction.transaction_config import TransactionConfig
from kcore.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kcore.errors import InvalidConfig
from kcore.log.log_manager import LogManager
from kcore.log.log_manager_config import LogManagerConfig
from kcore.metadata.embedded_store import FILE_NAME as STORE_FILE_NAME
from kcore.metadata.embedded_store import EmbeddedStore
from kcore.metadata.metadata_cache import MetadataCache
from kcore.metadata.open_store import open_store
from kcore.metadata.store import MetadataStore
from kcore.metadata.store_schema import write_empty_store
from kcore.network.listener import Listener
from kcore.network.socket_server import SocketServer
from kcore.purgatory.timer import Timer, TimerThread
from kcore.replica.replica_manager import ReplicaManager
from kcore.replica.replica_manager_config import ClusterView, ReplicaManagerConfig, ReplicaSchedulers
from kcore.replication.metadata_partition_state_store import MetadataPartitionStateStore
from kcore.replication.preferred_replica import preferred_read_replica
from kcore.security.authorizer import Authorizer, AuthorizerServerInfo
from kcore.server.broker_identity import check_store_exists
from kcore.server.config.broker_settings import RECONFIGURABLE
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.quotas.replication_quota_manager import RATES, ReplicationQuotas
from kcore.server.requests.auth_helper import AuthHelper

if TYPE_CHECKING:
    from kcore.server.requests.client_telemetry import ClientTelemetryReceiver

logger = logging.getLogger(__name__)


def store_of(
    config: KafkaConfig,
    given: MetadataStore | str | None,
    data_dirs: Sequence[str],
    is_temporary: bool,
    is_start_cancelled: Callable[[], bool],
    parts: ExitStack,
) -> MetadataStore:
    """An open store that was given, which the caller closes; else the one of that address, or a broker's own in its
    first data directory, which `parts` closes.  Raises InvalidConfig, StoreError, StartCancelled, and what
    check_store_exists() raises."""
    if isinstance(given, MetadataStore):
        return given
    if given is not None:
        check_store_exists(given, data_dirs)
    own = os.path.join(data_dirs[0], STORE_FILE_NAME)
    if given is None and is_temporary and not os.path.exists(own):
        write_empty_store(own)
    store = (
        EmbeddedStore(
            own,
            durable=not is_temporary,
            connection_timeout_ms=config["zookeeper.connection.timeout.ms"] or config["zookeeper.session.timeout.ms"],
            is_start_cancelled=is_start_cancelled,
        )
        if given is None
        else open_store(
            given,
            session_timeout_ms=config["zookeeper.session.timeout.ms"],
            connection_timeout_ms=config["zookeeper.connection.timeout.ms"],
            is_start_cancelled=is_start_cancelled,
        )
    )
    parts.callback(store.close)
    return store


class GivenAuthorizer:
    """The authorizer that a broker was given, or that its settings name.

    Raises TypeError for what is none, and InvalidConfig where both are given.
    """

    def __init__(self, given: Authorizer | None, config: KafkaConfig) -> None:
        if given is not None and not isinstance(given, Authorizer):
            raise TypeError(f"authorizer must be a kcore.Authorizer, not {given!r}")
        if given is not None and config["authorizer.class.name"]:
            raise InvalidConfig("authorizer and authorizer.class.name are both given: give one")
        if given is not None or not config["authorizer.class.name"]:
            for name in ("super.users", "allow.everyone.if.no.acl.found"):
                if name in config.originals:
                    logger.warning("%s has no effect: it is for the class that authorizer.class.name names", name)
        self._given = given
        self._config = config

    def started(
        self,
        broker_id: int,
        cluster_id: str,
        store: MetadataStore,
        make_scheduler: Callable[[str], Scheduler],
        parts: ExitStack,
    ) -> AuthHelper:
        """With one that is ready; `parts` closes it if it is of the settings.

        Raises InvalidConfig for a class that cannot be imported, or is none, and what its configure() and start()
        raise.
        """
        path = self._config["authorizer.class.name"]
        if not path:
            return AuthHelper(self._given)
        problem = f"Invalid value {path} for configuration authorizer.class.name:"
        authorizer_class = _imported(path, problem)
        if not (isinstance(authorizer_class, type) and issubclass(authorizer_class, Authorizer)):
            raise InvalidConfig(f"{problem} it is not a class that extends kcore.Authorizer")
        try:
            authorizer = authorizer_class()
        except TypeError as error:  # abstract, or with arguments
            raise InvalidConfig(f"{problem} it cannot be made without arguments: {error}") from error
        parts.callback(authorizer.close)
        authorizer.configure(self._config.originals)
        authorizer.start(AuthorizerServerInfo(broker_id, cluster_id, store, make_scheduler))
        return AuthHelper(authorizer)


def telemetry_receiver_of(given: ClientTelemetryReceiver | None, config: KafkaConfig) -> ClientTelemetryReceiver | None:
    """The receiver of clients' metrics that a broker was given, or that its settings name; None for none.

    Raises TypeError for what cannot be called, and InvalidConfig for what the setting names, or where both are given.
    """
    if given is not None and not callable(given):
        raise TypeError(f"telemetry_receiver must be callable, not {given!r}")
    path = config["kcore.telemetry.receiver"]
    if not path:
        return given
    if given is not None:
        raise InvalidConfig("telemetry_receiver and kcore.telemetry.receiver are both given: give one")
    problem = f"Invalid value {path} for configuration kcore.telemetry.receiver:"
    receiver: Any = _imported(path, problem)
    if not callable(receiver):
        raise InvalidConfig(f"{problem} it cannot be called")
    return receiver


def _imported(path: str, problem: str) -> Any:
    """What package.module.name stands for.  Raises InvalidConfig, which begins with the problem."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except Exception as error:  # whatever a module of others raises
        raise InvalidConfig(f"{problem} it cannot be imported: {error!r}") from error


def start_thread(thread: ShutdownableThread, parts: ExitStack) -> None:
    """`parts` shuts it down."""
    thread.start()
    parts.callback(thread.shutdown)


class Background:
    """The schedulers and the timer of a broker, from one start to the stop after it; `parts` shuts them down.

    clients_time: real time, also where `time` is moved: for connections, quotas, and requests to other brokers.
    waits_time: what the requests of clients wait by, and sessions of group members; it is real under MockTime.
    """

    def __init__(self, broker_id: int, time: Time, parts: ExitStack, *, is_member: bool) -> None:
        self._broker_id = broker_id
        self._parts = parts
        self.time = time
        self.clients_time = WallClockOf(time) if isinstance(time, MovableTime) else time
        self.waits_time = self.clients_time if isinstance(time, MockTime) else time
        # What waits for a disk must not delay what the clock decides.  MockTime runs them in this order.
        self.clock_scheduler = self._start("clock", time)
        self.disk_scheduler = self._start("disk", time)
        # Nor is a change of an ISR to wait for a disk: producers wait for it.
        self.isr_scheduler = self.start_scheduler("isr-changes") if is_member else self.disk_scheduler
        self.timer = Timer(self.waits_time)

    def start_scheduler(self, name: str) -> Scheduler:
        """Another one, on clients_time."""
        return self._start(name, self.clients_time)

    def start_timer(self) -> None:
        start_thread(TimerThread(self.timer, f"kcore-timer-{self._broker_id}"), self._parts)
        if isinstance(self.waits_time, MovableTime):
            self.waits_time.add_listener(self.timer.clock_moved)
            self._parts.callback(self.waits_time.remove_listener, self.timer.clock_moved)

    def _start(self, name: str, time: Time) -> Scheduler:
        scheduler = Scheduler(f"kcore-{name}-{self._broker_id}", time)
        scheduler.startup()
        self._parts.callback(scheduler.shutdown)
        return scheduler


def log_manager_of(
    config: KafkaConfig,
    data_dirs: Sequence[str],
    background: Background,
    topic_configs: Callable[[str], Mapping[str, str]],
) -> LogManager:
    return LogManager(
        data_dirs,
        config.log_config,
        _log_manager_config(config),
        topic_configs=topic_configs,
        time=background.time,
        scheduler=background.disk_scheduler,
        clock_scheduler=background.clock_scheduler,
        boot_id=boot_id() if config.is_cluster_member else None,
    )


def boot_id() -> str | None:
    """Which boot of this machine it is; None where Linux does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip() or None
    except OSError:
        return None


def _log_manager_config(config: KafkaConfig) -> LogManagerConfig:
    return LogManagerConfig(
        num_recovery_threads=config["num.recovery.threads.per.data.dir"],
        flush_check_ms=config["log.flush.scheduler.interval.ms"],
        flush_checkpoint_ms=config["log.flush.offset.checkpoint.interval.ms"],
        start_offset_checkpoint_ms=config["log.flush.start.offset.checkpoint.interval.ms"],
        retention_check_ms=config["log.retention.check.interval.ms"],
        initial_task_delay_ms=config["log.initial.task.delay.ms"],
        producer_id_expiration_ms=config["producer.id.expiration.ms"],
        producer_expiry_check_ms=config["producer.id.expiration.check.interval.ms"],
        verifies_transactions=config["transaction.partition.verification.enable"],
        cleaner=config.cleaner_config,
        has_other_replicas=config.is_cluster_member,
    )


def follow_log_settings(config: KafkaConfig, log_manager: LogManager) -> Callable[[], None]:
    """Give the log manager the settings that change at run time; what comes back ends that."""

    def reconfigure() -> None:
        log_manager.reconfigure(config.log_config, _log_manager_config(config))

    others = ("max.connections", "num.replica.fetchers", "num.io.threads", *RATES)
    return config.on_change([name for name in RECONFIGURABLE if not name.startswith(others)], reconfigure)


def replica_manager_of(
    broker_id: int,
    config: KafkaConfig,
    log_manager: LogManager,
    background: Background,
    metadata_cache: MetadataCache,
    store: MetadataStore,
) -> ReplicaManager:
    time, clients_time = background.time, background.clients_time
    selector = config["replica.selector.class"]
    return ReplicaManager(
        broker_id,
        log_manager,
        ReplicaSchedulers(time, background.disk_scheduler, background.clock_scheduler, background.timer),
        config=ReplicaManagerConfig(
            high_watermark_checkpoint_interval_ms=config["replica.high.watermark.checkpoint.interval.ms"],
            replica_lag_time_max_ms=config["replica.lag.time.max.ms"],
        ),
        cluster=ClusterView(
            is_known_topic_partition=metadata_cache.contains,
            is_alive=lambda broker_id: metadata_cache.snapshot.broker(broker_id) is not None,
            partition_state_store=MetadataPartitionStateStore(broker_id, store, background.isr_scheduler, clients_time),
            preferred_read_replica=preferred_read_replica(selector, metadata_cache, time) if selector else None,
        ),
    )


def replication_quotas_of(
    config: KafkaConfig, replica_manager: ReplicaManager, time: Time, parts: ExitStack
) -> ReplicationQuotas:
    """They follow the settings until `parts` is closed; moves between data directories get theirs."""
    quotas = ReplicationQuotas.of(replica_manager.broker_id, config, time, replica_manager.log_config)
    parts.callback(quotas.follow(config))
    moves = replica_manager.log_dir_moves
    moves.quota = quotas.alter_log_dirs
    moves.num_threads = config["num.replica.alter.log.dirs.threads"] or moves.num_threads
    return quotas


def group_coordinator_of(
    config: GroupConfig,
    replica_manager: ReplicaManager,
    background: Background,
    metadata_cache: MetadataCache,
    is_certain: Callable[[], bool],
) -> GroupCoordinator:
    def find_topic(name: str) -> TopicOfGroup | None:
        topic = metadata_cache.topic(name)
        # A controller of before topics had ids gives them none, and members would take each for the other.
        if topic is None or topic.topic_id == ZERO_UUID:
            return None
        return TopicOfGroup(topic.topic_id, len(topic.partitions))

    def topic_names() -> TopicNames:
        snapshot = metadata_cache.snapshot
        return TopicNames(snapshot.serial, snapshot.topic_names())

    return GroupCoordinator(
        replica_manager.broker_id,
        replica_manager,
        config,
        background.waits_time,
        background.clock_scheduler,
        background.timer,
        disk_scheduler=background.disk_scheduler,
        is_certain=is_certain,
        find_topic=find_topic,
        topic_names=topic_names,
    )


def transaction_coordinator_of(
    config: TransactionConfig,
    replica_manager: ReplicaManager,
    background: Background,
    routes: MarkerRoutes,
    new_producer_id: Callable[[], int],
    is_certain: Callable[[], bool],
    transaction_version: Callable[[], int],
) -> TransactionCoordinator:
    return TransactionCoordinator(
        config,
        replica_manager,
        routes,
        new_producer_id,
        background.clients_time,
        background.clock_scheduler,
        background.timer,
        disk_scheduler=background.disk_scheduler,
        is_certain=is_certain,
        transaction_version=transaction_version,
    )


def socket_server_of(config: KafkaConfig, listeners: Sequence[Listener], name: str, time: Time) -> SocketServer:
    return SocketServer(
        listeners=listeners,
        name=name,
        time=time,
        num_network_threads=config["num.network.threads"],
        socket_request_max_bytes=config["socket.request.max.bytes"],
        socket_send_buffer_bytes=config["socket.send.buffer.bytes"],
        socket_receive_buffer_bytes=config["socket.receive.buffer.bytes"],
        socket_listen_backlog_size=config["socket.listen.backlog.size"],
        max_connections=config["max.connections"],
        max_connections_per_ip=config["max.connections.per.ip"],
        connections_max_idle_ms=config["connections.max.idle.ms"],
        queued_max_request_bytes=config["queued.max.request.bytes"],
    )


def follow_connection_limits(config: KafkaConfig, server: SocketServer) -> Callable[[], None]:
    """Give the server the limits that change at run time; what comes back ends that."""
    names = ("max.connections", "max.connections.per.ip")
    return config.on_change(names, lambda: server.limit_connections(*[config[name] for name in names]))
