"""RunningBroker: what a broker consists of from one start to the stop after it, and the steps of the start.

Each step takes what the steps before it have made.  What it starts, `parts` stops, in the reverse order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kcore.common import topic_names
from kcore.common.metrics import Metrics
from kcore.common.random_source import SYSTEM_RANDOM
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.coordinators import Coordinators
from kcore.coordinator.group.group_coordinator import GroupCoordinator
from kcore.coordinator.transaction.marker_writer import MarkerWriter
from kcore.coordinator.transaction.transaction_completion import MarkerRoutes
from kcore.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kcore.coordinator.transaction.transaction_verifier import AddRetry, TransactionVerifier, VerificationRoutes
from kcore.log.clean_shutdown import was_clean_shutdown
from kcore.log.log_dir_failure_channel import LogDirFailureHandler
from kcore.metadata.metadata_cache import MetadataCache
from kcore.metadata.producer_ids import ProducerIdManager
from kcore.metadata.store import MetadataStore
from kcore.network.listener import Listener
from kcore.network.socket_server import SocketServer
from kcore.protocol.api_keys import ApiKey, served_apis
from kcore.protocol.releases import apis_of_release
from kcore.security.scram_credentials import stored_iterations
from kcore.server.alone import Alone
from kcore.server.broker_identity import Identity, read_identity, topics_on_disk, working_dirs, write_identity
from kcore.server.broker_parts import (
    Background,
    GivenAuthorizer,
    follow_connection_limits,
    follow_log_settings,
    group_coordinator_of,
    log_manager_of,
    replica_manager_of,
    replication_quotas_of,
    socket_server_of,
    start_thread,
    store_of,
    transaction_coordinator_of,
)
from kcore.server.config.broker_loggers import BrokerLoggers
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.config.stored_broker_configs import StoredBrokerConfigs
from kcore.server.config.stored_client_metrics import StoredClientMetrics
from kcore.server.config.stored_group_configs import StoredGroupConfigs
from kcore.server.config.topic_configs import TopicConfigs
from kcore.server.in_process_client import InProcessClient
from kcore.server.membership import BrokerBase, Membership
from kcore.server.monitoring.broker_metrics import broker_metrics
from kcore.server.monitoring.monitor_socket import Monitored, start_monitor
from kcore.server.monitoring.transaction_metrics import transaction_metrics
from kcore.server.quotas.client_quotas import ClientQuotas
from kcore.server.quotas.stored_client_quotas import StoredClientQuotas
from kcore.server.requests.fetch_session import VIEW_CHECK_MS, FetchSessionCache
from kcore.server.requests.kafka_apis import KafkaApis
from kcore.server.requests.request_handler_pool import RequestHandlerPool
from kcore.server.requests.services import Services
from kcore.server.topics.admin_manager import AdminManager
from kcore.server.topics.topic_adoption import TopicAdoption

if TYPE_CHECKING:
    from kcore.server.requests.client_telemetry import ClientTelemetry, ClientTelemetryReceiver


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlan:
    """What a start is made from.  listeners, and the host and port for monitoring over HTTP: with port 0 for a free
    one."""

    config: KafkaConfig
    data_dirs: Sequence[str]
    is_temporary: bool
    listeners: Sequence[Listener]
    monitoring: tuple[str, int] | None
    store: MetadataStore | str | None
    authorizer: GivenAuthorizer
    telemetry_receiver: ClientTelemetryReceiver | None
    time: Time
    is_start_cancelled: Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCalls:
    """What the parts call of the Broker around them.

    check_serving: raises RuntimeError once this start's broker stops or restarts.  no_data_dir_left: is called on a
    thread that a stop waits for.
    """

    monitored: Monitored
    check_serving: Callable[[], None]
    no_data_dir_left: Callable[[OSError], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBroker:
    """The parts of one start.  base: what was there before the logs were loaded.  services: what handlers call."""

    base: BrokerBase
    membership: Membership
    services: Services
    apis: KafkaApis
    server: SocketServer
    metrics: Metrics
    client: InProcessClient


def make_base(plan: BrokerPlan, parts: ExitStack) -> BrokerBase:
    """The store, who this broker is, its settings, the logs, which are loaded later, and the partitions.

    Raises what working_dirs(), store_of() and read_identity() raise.
    """
    config, is_member = plan.config, plan.config.is_cluster_member
    working = working_dirs(plan.data_dirs, is_member=is_member)
    store = store_of(config, plan.store, working, plan.is_temporary, plan.is_start_cancelled, parts)
    broker_id, cluster_id = read_identity(working, store, config.configured_broker_id, is_member=is_member)
    broker_configs = StoredBrokerConfigs(broker_id, config, store, is_member=is_member)
    broker_configs.read_all()
    background = Background(broker_id, plan.time, parts, is_member=is_member)
    topic_configs = TopicConfigs()
    metadata_cache = MetadataCache(cluster_id)
    logs = log_manager_of(config, plan.data_dirs, background, topic_configs.get)
    parts.callback(follow_log_settings(config, logs))
    replica_manager = replica_manager_of(broker_id, config, logs, background, metadata_cache, store)
    return BrokerBase(
        broker_id=broker_id,
        cluster_id=cluster_id,
        working_dirs=working,
        config=config,
        store=store,
        broker_configs=broker_configs,
        background=background,
        parts=parts,
        metadata_cache=metadata_cache,
        topic_configs=topic_configs,
        logs=logs,
        replica_manager=replica_manager,
        replication_quotas=replication_quotas_of(config, replica_manager, background.time, parts),
    )


def make_membership(base: BrokerBase) -> Membership:
    if not base.config.is_cluster_member:
        return Alone(base)
    from kcore.server.cluster_membership import ClusterMembership

    return ClusterMembership(base)


def start_running(base: BrokerBase, membership: Membership, plan: BrokerPlan, calls: BrokerCalls) -> RunningBroker:
    """Load the logs, and answer requests.  Raises OSError, and what the store and the authorizer raise."""
    background, parts = base.background, base.parts
    unclean = not all(was_clean_shutdown(path) for path in base.working_dirs)
    admin_manager = _make_admin_manager(base, membership)
    adoption = _load_logs(base)
    group_coordinator = _make_group_coordinator(base, membership, adoption)
    producer_ids = ProducerIdManager(base.broker_id, base.store)
    marker_writer = _make_marker_writer(base, group_coordinator)
    transaction_coordinator = _make_transaction_coordinator(base, membership, adoption, marker_writer, producer_ids)
    coordinators = Coordinators(
        {
            topic_names.GROUP_METADATA_TOPIC: group_coordinator,
            topic_names.TRANSACTION_STATE_TOPIC: transaction_coordinator,
        }
    )
    _start_failure_handler(base, membership, coordinators, calls.no_data_dir_left)
    background.start_timer()
    server = _bind_listeners(base, plan.listeners)
    identity = Identity(base.broker_id, base.cluster_id)
    write_identity(
        base.working_dirs,
        base.store,
        identity,
        is_member=base.config.is_cluster_member,
        is_temporary=plan.is_temporary,
    )
    _observe_metadata(base.metadata_cache, coordinators, admin_manager)
    for coordinator in (group_coordinator, transaction_coordinator):
        coordinator.startup()
        parts.callback(coordinator.shutdown)
    client_quotas = ClientQuotas(base.config, background.clients_time)
    server.connection_throttle_ms = client_quotas.connections.throttle_ms
    stored_client_quotas = StoredClientQuotas(base.store, client_quotas, is_member=base.config.is_cluster_member)
    group_configs = StoredGroupConfigs(base.store, base.config, is_member=base.config.is_cluster_member)
    group_coordinator.consumer_groups.settings_of = group_configs.settings
    client_metrics = StoredClientMetrics(base.store, is_member=base.config.is_cluster_member)
    membership.follow_settings([stored_client_quotas, group_configs, client_metrics])
    foreign_producer_id = membership.load_topics(adoption, coordinators, server.listeners, unclean=unclean)
    if foreign_producer_id >= 0:
        producer_ids.reserve_up_to(foreign_producer_id)
    auth = plan.authorizer.started(base.broker_id, base.cluster_id, base.store, background.start_scheduler, parts)
    broker_loggers = BrokerLoggers(base.broker_id)
    parts.callback(broker_loggers.close)
    services = Services(
        broker_id=base.broker_id,
        config=base.config,
        time=background.time,
        metadata_cache=base.metadata_cache,
        replica_manager=base.replica_manager,
        coordinators=coordinators,
        group_coordinator=group_coordinator,
        transaction_coordinator=transaction_coordinator,
        transaction_verifier=_make_transaction_verifier(base, membership, transaction_coordinator),
        marker_writer=marker_writer,
        admin_manager=admin_manager,
        partition_admin=membership.partition_admin(),
        producer_ids=producer_ids,
        request_handler_pool=_make_request_handler_pool(base),
        fetch_sessions=_make_fetch_sessions(base),
        replication_quotas=base.replication_quotas,
        client_quotas=client_quotas,
        stored_client_quotas=stored_client_quotas,
        broker_configs=base.broker_configs,
        broker_loggers=broker_loggers,
        group_configs=group_configs,
        client_metrics=client_metrics,
        auth=auth,
        scram_iterations=partial(stored_iterations, base.store),
        served_apis=_served_apis(base.config, plan),
        features=membership.features,
        cluster_member=membership.cluster_member,
        client_telemetry=_make_client_telemetry(base, client_metrics, plan.telemetry_receiver),
    )
    return _serve(base, membership, services, server, calls)


def _served_apis(config: KafkaConfig, plan: BrokerPlan) -> dict[ApiKey, tuple[int, int]]:
    has_telemetry = plan.telemetry_receiver is not None
    served = served_apis(config.is_cluster_member, config["unstable.api.versions.enable"], has_telemetry)
    release = config["kcore.act.like"]
    return apis_of_release(served, release) if release else served


def _make_client_telemetry(
    base: BrokerBase, client_metrics: StoredClientMetrics, receiver: ClientTelemetryReceiver | None
) -> ClientTelemetry | None:
    if receiver is None:
        return None
    from kcore.server.requests.client_telemetry import ClientTelemetry

    time, max_bytes = base.background.clients_time, base.config["telemetry.max.bytes"]
    return ClientTelemetry(client_metrics, receiver, max_bytes, time, SYSTEM_RANDOM)


def _make_admin_manager(base: BrokerBase, membership: Membership) -> AdminManager:
    config = base.config
    admin_manager = AdminManager(
        base.broker_id,
        config,
        base.metadata_cache,
        membership.topic_changes,
        base.topic_configs,
        base.background.timer,
    )
    base.parts.callback(config.on_change(("log.flush.interval.messages",), admin_manager.read_flush_default))
    return admin_manager


def _load_logs(base: BrokerBase) -> TopicAdoption:
    # What the logs are opened with comes from the store, so that comes first.
    base.topic_configs.load(base.store)
    adoption = TopicAdoption(
        base.broker_id, base.store, base.logs, base.topic_configs, is_member=base.config.is_cluster_member
    )
    adoption.prepare(topics_on_disk(base.working_dirs))
    base.logs.startup(lambda log: adoption.is_stray(log.topic_partition, log.topic_id))
    base.logs.forget_gone_logs(adoption.not_of_this_broker(base.logs.gone_logs()))
    base.parts.callback(base.logs.shutdown)
    base.parts.callback(base.replica_manager.shutdown)
    return adoption


def _make_group_coordinator(base: BrokerBase, membership: Membership, adoption: TopicAdoption) -> GroupCoordinator:
    config = base.config.group_config(adoption.partition_count(topic_names.GROUP_METADATA_TOPIC))
    return group_coordinator_of(
        config, base.replica_manager, base.background, base.metadata_cache, membership.is_certain
    )


def _make_marker_writer(base: BrokerBase, group_coordinator: GroupCoordinator) -> MarkerWriter:
    return MarkerWriter(base.replica_manager, base.background.clients_time, group_coordinator.manager)


def _make_transaction_coordinator(
    base: BrokerBase,
    membership: Membership,
    adoption: TopicAdoption,
    marker_writer: MarkerWriter,
    producer_ids: ProducerIdManager,
) -> TransactionCoordinator:
    config = base.config.transaction_config(adoption.partition_count(topic_names.TRANSACTION_STATE_TOPIC))
    routes = MarkerRoutes(
        broker_id=base.broker_id,
        leader_of=partial(_leader_of, base),
        here=marker_writer,
        others=membership.marker_sender,
    )
    return transaction_coordinator_of(
        config,
        base.replica_manager,
        base.background,
        routes,
        producer_ids.generate_producer_id,
        membership.is_certain,
        lambda: membership.features().finalized,
    )


def _make_transaction_verifier(
    base: BrokerBase, membership: Membership, coordinator: TransactionCoordinator
) -> TransactionVerifier:
    routes = VerificationRoutes(
        broker_id=base.broker_id,
        leader_of=partial(_leader_of, base),
        here=coordinator,
        others=membership.verification_sender,
    )
    config = base.config
    return TransactionVerifier(
        base.replica_manager,
        routes,
        lambda: config["transaction.partition.verification.enable"],
        AddRetry(
            timer=base.background.timer,
            backoff_ms=lambda: config["add.partitions.to.txn.retry.backoff.ms"],
            max_ms=lambda: config["add.partitions.to.txn.retry.backoff.max.ms"],
        ),
    )


def _leader_of(base: BrokerBase, topic_partition: TopicPartition) -> int | None:
    return base.metadata_cache.snapshot.leader_of(topic_partition)


def _start_failure_handler(
    base: BrokerBase,
    membership: Membership,
    coordinators: Coordinators,
    no_data_dir_left: Callable[[OSError], None],
) -> None:
    def handle(log_dir: str) -> None:
        _handle_log_dir_failure(log_dir, base, membership, coordinators)
        error = base.logs.log_dir_failure_channel.failure(log_dir)
        if error is not None and not base.logs.live_log_dirs:
            no_data_dir_left(error)

    name = f"kcore-log-dir-failures-{base.broker_id}"
    start_thread(LogDirFailureHandler(name, base.logs.log_dir_failure_channel, handle), base.parts)


def _handle_log_dir_failure(log_dir: str, base: BrokerBase, membership: Membership, coordinators: Coordinators) -> None:
    """Take the data directory out, with the partitions in it."""
    base.logs.handle_log_dir_failure(log_dir)
    coordinators.partitions_lost(base.replica_manager.handle_log_dir_failure(log_dir))
    membership.log_dir_failed()


def _bind_listeners(base: BrokerBase, listeners: Sequence[Listener]) -> SocketServer:
    """Take the ports; nothing is answered before _serve()."""
    server = socket_server_of(base.config, listeners, str(base.broker_id), base.background.clients_time)
    base.parts.callback(server.shutdown)
    base.parts.callback(follow_connection_limits(base.config, server))
    return server


def _observe_metadata(cache: MetadataCache, coordinators: Coordinators, admin_manager: AdminManager) -> None:
    # In this order: who waits for a deletion is answered when no group has offsets of the topic any more.
    cache.add_observer(lambda before, after: coordinators.partitions_deleted(before.partitions_gone(after)))
    cache.add_observer(lambda before, after: admin_manager.metadata_changed())


def _make_request_handler_pool(base: BrokerBase) -> RequestHandlerPool:
    config = base.config
    pool = RequestHandlerPool(str(base.broker_id), config["num.io.threads"])
    base.parts.callback(config.on_change(("num.io.threads",), lambda: pool.resize(config["num.io.threads"])))
    return pool


def _make_fetch_sessions(base: BrokerBase) -> FetchSessionCache:
    background = base.background
    sessions = FetchSessionCache(base.config["max.incremental.fetch.session.cache.slots"], background.time)
    background.clock_scheduler.schedule("fetch-session-views", sessions.drop_unused_views, VIEW_CHECK_MS, VIEW_CHECK_MS)
    return sessions


def _serve(
    base: BrokerBase, membership: Membership, services: Services, server: SocketServer, calls: BrokerCalls
) -> RunningBroker:
    """Accept connections."""
    clients_time, pool = base.background.clients_time, services.request_handler_pool
    apis = KafkaApis(services)
    running = RunningBroker(
        base=base,
        membership=membership,
        services=services,
        apis=apis,
        server=server,
        metrics=broker_metrics(clients_time, base.logs, base.replica_manager, membership.fetchers, apis, pool, server),
        client=InProcessClient(
            clients_time,
            base.config,
            base.metadata_cache,
            services.admin_manager,
            base.replica_manager,
            services.transaction_verifier,
            calls.check_serving,
        ),
    )
    running.metrics.add_source(
        partial(
            transaction_metrics,
            services.transaction_coordinator,
            services.transaction_verifier,
            base.replica_manager.hosted_partitions,
        )
    )
    if services.client_telemetry is not None:
        running.metrics.add_source(services.client_telemetry.measured)
    ports = [listener.port for listener in server.listeners]
    denied = services.auth.denied_brokers
    start_monitor(calls.monitored, base.broker_id, base.working_dirs[0], ports, denied, base.parts)
    server.start(apis.handle)
    base.parts.callback(pool.shutdown)
    # Before everything else: what is answered after this, no client sees.
    base.parts.callback(server.shutdown)
    return running
