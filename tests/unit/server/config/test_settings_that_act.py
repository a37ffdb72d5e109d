"""What a setting changes in a running broker: one broker with all of these settings, and one without any.

A row has a setting, its value, and what is to be seen of it in a running broker.  A broker without it must show
something else, so that no row passes where the setting is never used.  What a table cannot show (who connects where,
what is refused) has a test of its own, here or where SHOWN_ELSEWHERE says.
"""

from __future__ import annotations

import ast
import contextlib
import pathlib
import re
import socket
import sqlite3
import threading
from contextlib import contextmanager

import pytest

import kcore
from kcore.client.blocking_sender import BlockingSender
from kcore.common.scheduler import Scheduler
from kcore.common.topic_names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.coordinator_partitions import CoordinatorPartitions
from kcore.coordinator.group.group_config import MigrationPolicy
from kcore.errors import (
    GroupMaxSizeReached,
    InvalidReplicationFactor,
    InvalidSessionTimeout,
    MessageTooLarge,
    OffsetMetadataTooLarge,
    TopicDeletionDisabled,
    UnknownTopicOrPartition,
    UnsupportedAssignor,
    for_code,
)
from kcore.log.log_config import BROKER_SYNONYMS
from kcore.metadata import znodes
from kcore.metadata.open_store import open_store
from kcore.network import socket_server
from kcore.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kcore.protocol.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from kcore.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kcore.protocol.messages.delete_topics import DeleteTopicsRequest
from kcore.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kcore.protocol.messages.find_coordinator import FindCoordinatorRequest
from kcore.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kcore.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kcore.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcore.protocol.schema import Message
from kcore.replication.metadata_partition_state_store import MetadataPartitionStateStore
from kcore.server import broker_parts
from kcore.server.config.broker_settings import KAFKA_CONFIG_DEF
from tests.cluster_sessions import LONG_MS
from tests.unit.server.client import Client
from tests.waiting import wait_until

ROOT = pathlib.Path(__file__).parents[4]
T0 = TopicPartition("t", 0)


class Tasks:
    """What schedulers are given while they are recorded: (scheduler's name, task's name) -> (delay ms, period ms)."""

    def __init__(self):
        self.scheduled: dict[tuple[str, str], tuple[float, float]] = {}

    @contextmanager
    def recorded(self):
        with pytest.MonkeyPatch.context() as patch:
            schedule = Scheduler.schedule

            def record(scheduler, name, task, delay_ms=0, period_ms=-1):
                self.scheduled[scheduler._name, name] = (delay_ms, period_ms)
                return schedule(scheduler, name, task, delay_ms, period_ms)

            patch.setattr(Scheduler, "schedule", record)
            yield self

    def delay_ms(self, name):
        return next(delay for (_, task), (delay, _) in self.scheduled.items() if task == name)

    def period_ms(self, name):
        return next(period for (_, task), (_, period) in self.scheduled.items() if task == name)


# -- a broker alone ---------------------------------------------------------------------------------------------------


class Alone:
    """A broker alone.  tasks: what was scheduled at its start.  backlogs: of the sockets that it listens with."""

    def __init__(self, broker, tasks=None, backlogs=()):
        self.broker = broker
        self.tasks = tasks
        self.backlogs = list(backlogs)

    def ask(self, request, version):
        with Client(self.broker) as client:
            return client.ask(request, version)

    def log(self, topic="t"):
        return self.broker.log(topic)


def error_of(code):
    return for_code(code) if code else None


def topic_made_by_metadata(alone):
    topic = MetadataRequestTopic(name="asked-for")
    return error_of(alone.ask(MetadataRequest(topics=[topic], allow_auto_topic_creation=True), 8).topics[0].error_code)


def partitions_of_a_new_topic(alone):
    topic = CreatableTopic(name="partitions", num_partitions=-1, replication_factor=1)
    alone.ask(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 5)
    return len(alone.broker.metadata_cache.topic("partitions").partitions)


def replicas_of_a_new_topic(alone):
    topic = CreatableTopic(name="replicas", num_partitions=1, replication_factor=-1)
    return error_of(alone.ask(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 5).topics[0].error_code)


def deletion(alone):
    alone.broker.create_topic("deleted", replication_factor=1)
    request = DeleteTopicsRequest(topic_names=["deleted"], timeout_ms=60_000)
    return error_of(alone.ask(request, 4).responses[0].error_code)


def a_fetch(**fields):
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(topics=[FetchTopic(topic="t", partitions=[partition])], max_bytes=1 << 20, **fields)


def most_bytes_of_a_fetch(alone):
    log = alone.log()
    while log.log_end_offset < 4:
        alone.broker.produce("t", b"x" * 700)
    answer = alone.ask(a_fetch(max_wait_ms=0, min_bytes=0), 11)
    return len(answer.responses[0].partitions[0].records) < 2000


def fetch_session(alone):
    return alone.ask(a_fetch(max_wait_ms=0, min_bytes=0, session_id=0, session_epoch=0), 11).session_id != 0


def largest_batch(alone):
    try:
        alone.broker.produce("t", b"y" * 3000)
    except MessageTooLarge:
        return MessageTooLarge
    return None


def join(alone, group, session_timeout_ms=10_000, member_id=""):
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=protocols,
    )
    return alone.ask(request, 3)


def wait_for_coordinator(alone, group):
    wait_until(lambda: alone.ask(FindCoordinatorRequest(key=group), 1).error_code == 0)


def a_short_session(alone):
    wait_for_coordinator(alone, "short")
    return error_of(join(alone, "short", session_timeout_ms=6500).error_code)


def a_long_session(alone):
    wait_for_coordinator(alone, "long")
    return error_of(join(alone, "long", session_timeout_ms=1_700_000).error_code)


def a_second_member(alone):
    wait_for_coordinator(alone, "full")
    with Client(alone.broker) as first, Client(alone.broker) as second:
        protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
        request = JoinGroupRequest(
            group_id="full",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=protocols,
        )
        member = first.ask(request, 3).member_id
        second.send(request, 3)
        # Without the limit the second one waits until the first has joined again.
        request.member_id = member
        first.send(request, 3)
        return error_of(second.receive(request.api_key, 3).error_code)


def metadata_of_an_offset(alone):
    wait_for_coordinator(alone, "metadata")
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="four")
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    answer = alone.ask(OffsetCommitRequest(group_id="metadata", topics=[topic]), 6)
    return error_of(answer.topics[0].partitions[0].error_code)


def heartbeat_of_the_new_protocol(name, **fields):
    """A field of the answer to a join."""

    def ask(alone):
        wait_for_coordinator(alone, "new")
        join = {"member_id": "m", "rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["t"]}
        request = ConsumerGroupHeartbeatRequest(group_id="new", topic_partitions=[], **join, **fields)
        return getattr(alone.ask(request, 1), name)

    return ask


def offsets_topic(alone):
    wait_for_coordinator(alone, "any")
    return alone.broker.metadata_cache.topic(GROUP_METADATA_TOPIC)


def group_config(name):
    return lambda alone: getattr(alone.broker.group_coordinator.config, name)


def transaction_config(name):
    return lambda alone: getattr(alone.broker.running.services.transaction_coordinator.config, name)


def transactions_topic(alone):
    request = FindCoordinatorRequest(key="any", key_type=1)
    wait_until(lambda: alone.ask(request, 1).error_code == 0)
    return alone.broker.metadata_cache.topic(TRANSACTION_STATE_TOPIC)


def threads(pattern):
    def count(alone):
        return len(
            [at for at in threading.enumerate() if re.fullmatch(pattern.format(alone.broker.broker_id), at.name)]
        )

    return count


def most_waiting_threads(alone):
    return alone.broker.running.services.request_handler_pool.num_threads


def period_ms(task):
    return lambda alone: alone.tasks.period_ms(task)


def cleaner(name):
    return lambda alone: getattr(alone.broker.running.base.logs.cleaner.config, name)


def windows(quota):
    """(number, seconds) of the windows of a quota that measures nothing yet."""

    def of(alone):
        manager = quota(alone.broker)
        return manager._rate._num_samples, manager._rate._window_ms / 1000

    return of


def client_windows(index):
    def of(alone):
        quotas = alone.broker.running.services.client_quotas
        return {
            (manager._num_samples, manager._window_seconds)[index]
            for manager in (quotas.produce, quotas.fetch, quotas.request)
        }

    return of


def server(name):
    return lambda alone: getattr(alone.broker.running.server, name)


def answers_a_request_of_66_000_bytes(alone):
    topics = [MetadataRequestTopic(name=f"{number:020}") for number in range(3000)]
    with Client(alone.broker) as client:
        try:
            client.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 8)
        except (EOFError, ConnectionError):
            return False
        return True


def receive_buffer(alone):
    # Linux doubles it.
    with socket.create_connection(("127.0.0.1", alone.broker.port)):
        listener = next(iter(alone.broker.running.server._listening))
        return listener.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * 20_000


#: setting -> (value, what is seen, what it is then).
ALONE = {
    "broker.id": (41, lambda alone: alone.ask(MetadataRequest(topics=[]), 8).controller_id, 41),
    "auto.create.topics.enable": (False, topic_made_by_metadata, UnknownTopicOrPartition),
    "num.partitions": (3, partitions_of_a_new_topic, 3),
    "default.replication.factor": (2, replicas_of_a_new_topic, InvalidReplicationFactor),
    "delete.topic.enable": (False, deletion, TopicDeletionDisabled),
    "fetch.max.bytes": (1024, most_bytes_of_a_fetch, True),
    "max.incremental.fetch.session.cache.slots": (0, fetch_session, False),
    "message.max.bytes": (2000, largest_batch, MessageTooLarge),
    "group.min.session.timeout.ms": (7000, a_short_session, InvalidSessionTimeout),
    "group.max.session.timeout.ms": (1_600_000, a_long_session, InvalidSessionTimeout),
    "group.max.size": (1, a_second_member, GroupMaxSizeReached),
    "group.initial.rebalance.delay.ms": (13, group_config("initial_rebalance_delay_ms"), 13),
    "group.consumer.session.timeout.ms": (46_000, group_config("consumer_session_timeout_ms"), 46_000),
    "group.consumer.heartbeat.interval.ms": (6000, heartbeat_of_the_new_protocol("heartbeat_interval_ms"), 6000),
    "group.consumer.assignment.interval.ms": (700, group_config("consumer_assignment_interval_ms"), 700),
    "group.consumer.regex.refresh.interval.ms": (20_000, group_config("consumer_regex_refresh_interval_ms"), 20_000),
    "group.consumer.max.size": (1, group_config("consumer_max_size"), 1),
    "group.consumer.migration.policy": (
        "disabled",
        group_config("consumer_migration_policy"),
        MigrationPolicy.DISABLED,
    ),
    "group.consumer.assignors": (
        "range",
        heartbeat_of_the_new_protocol("error_code", server_assignor="uniform"),
        UnsupportedAssignor.code,
    ),
    "offset.metadata.max.bytes": (3, metadata_of_an_offset, OffsetMetadataTooLarge),
    "offsets.topic.num.partitions": (2, lambda alone: len(offsets_topic(alone).partitions), 2),
    "offsets.topic.segment.bytes": (
        12_345,
        lambda alone: offsets_topic(alone) and alone.log(GROUP_METADATA_TOPIC).config.segment_bytes,
        12_345,
    ),
    "offsets.retention.minutes": (17, group_config("offsets_retention_minutes"), 17),
    "offsets.retention.check.interval.ms": (18_000, period_ms("delete-expired-group-metadata"), 18_000),
    "offsets.commit.timeout.ms": (19, group_config("offsets_commit_timeout_ms"), 19),
    "transaction.max.timeout.ms": (24_000, transaction_config("transaction_max_timeout_ms"), 24_000),
    "transactional.id.expiration.ms": (25_000, transaction_config("transactional_id_expiration_ms"), 25_000),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": (
        26_000,
        period_ms("abort-timed-out-transactions"),
        26_000,
    ),
    "transaction.remove.expired.transaction.cleanup.interval.ms": (
        27_000,
        period_ms("remove-expired-transactional-ids"),
        27_000,
    ),
    "transaction.partition.verification.enable": (
        False,
        lambda alone: alone.log().producer_state_manager.verifies_transactions,
        False,
    ),
    "transaction.state.log.num.partitions": (3, lambda alone: len(transactions_topic(alone).partitions), 3),
    "transaction.state.log.segment.bytes": (
        12_346,
        lambda alone: transactions_topic(alone) and alone.log(TRANSACTION_STATE_TOPIC).config.segment_bytes,
        12_346,
    ),
    "transaction.state.log.min.isr": (
        2,
        lambda alone: transactions_topic(alone) and alone.log(TRANSACTION_STATE_TOPIC).config.min_insync_replicas,
        2,
    ),
    "transaction.state.log.load.buffer.size": (28_000, transaction_config("load_buffer_size"), 28_000),
    "producer.id.expiration.ms": (
        21_000,
        lambda alone: alone.log().producer_state_manager.producer_id_expiration_ms,
        21_000,
    ),
    "producer.id.expiration.check.interval.ms": (22_000, period_ms("kafka-producer-expiry"), 22_000),
    "quota.window.num": (5, client_windows(0), {5}),
    "quota.window.size.seconds": (4, client_windows(1), {4}),
    "replication.quota.window.num": (
        6,
        lambda alone: windows(lambda b: b.running.services.replication_quotas.leader)(alone)[0],
        6,
    ),
    "replication.quota.window.size.seconds": (
        3,
        lambda alone: windows(lambda b: b.running.services.replication_quotas.follower)(alone)[1],
        3,
    ),
    "alter.log.dirs.replication.quota.window.num": (
        7,
        lambda alone: windows(lambda b: b.replica_manager.log_dir_moves.quota)(alone)[0],
        7,
    ),
    "alter.log.dirs.replication.quota.window.size.seconds": (
        2,
        lambda alone: windows(lambda b: b.replica_manager.log_dir_moves.quota)(alone)[1],
        2,
    ),
    "replica.alter.log.dirs.io.max.bytes.per.second": (
        99_999,
        lambda alone: alone.broker.replica_manager.log_dir_moves.quota.bytes_per_second,
        99_999,
    ),
    "leader.replication.throttled.rate": (
        88_888,
        lambda alone: alone.broker.running.services.replication_quotas.leader.bytes_per_second,
        88_888,
    ),
    "follower.replication.throttled.rate": (
        77_777,
        lambda alone: alone.broker.running.services.replication_quotas.follower.bytes_per_second,
        77_777,
    ),
    "num.replica.alter.log.dirs.threads": (
        4,
        lambda alone: alone.broker.replica_manager.log_dir_moves.num_threads,
        4,
    ),
    "num.network.threads": (2, threads(r"kcore-network-{}-\d+"), 2),
    "num.io.threads": (3, lambda alone: most_waiting_threads(alone), 3),
    "socket.listen.backlog.size": (23, lambda alone: alone.backlogs, [23]),
    "socket.request.max.bytes": (60_000, answers_a_request_of_66_000_bytes, False),
    "socket.send.buffer.bytes": (24_000, server("_send_buffer_bytes"), 24_000),
    "connections.max.idle.ms": (25_000, server("connections_max_idle_ms"), 25_000),
    "queued.max.request.bytes": (26_000_000, server("queued_max_bytes"), 26_000_000),
    "max.connections": (270, server("max_connections"), 270),
    "max.connections.per.ip": (280, server("max_connections_per_ip"), 280),
    "num.recovery.threads.per.data.dir": (
        5,
        lambda alone: alone.broker.running.base.logs._num_recovery_threads,
        5,
    ),
    "socket.receive.buffer.bytes": (20_000, receive_buffer, True),
    "log.initial.task.delay.ms": (31_000, lambda alone: alone.tasks.delay_ms("kafka-log-retention"), 31_000),
    "log.retention.check.interval.ms": (32_000, period_ms("kafka-log-retention"), 32_000),
    "log.flush.scheduler.interval.ms": (33_000, period_ms("kafka-log-flusher"), 33_000),
    "log.flush.offset.checkpoint.interval.ms": (34_000, period_ms("kafka-recovery-point-checkpoint"), 34_000),
    "log.flush.start.offset.checkpoint.interval.ms": (35_000, period_ms("kafka-log-start-offset-checkpoint"), 35_000),
    "replica.high.watermark.checkpoint.interval.ms": (36_000, period_ms("highwatermark-checkpoint"), 36_000),
    "replica.lag.time.max.ms": (37_000, period_ms("isr-expiration"), 18_500),
    "log.cleaner.threads": (2, lambda alone: len(alone.broker.running.base.logs.cleaner.threads), 2),
    "log.cleaner.backoff.ms": (41_000, cleaner("backoff_ms"), 41_000),
    "log.cleaner.dedupe.buffer.size": (9 << 20, cleaner("dedupe_buffer_size"), 9 << 20),
    "log.cleaner.io.buffer.size": (300_000, cleaner("io_buffer_size"), 300_000),
    "log.cleaner.io.buffer.load.factor": (0.7, cleaner("dedupe_buffer_load_factor"), 0.7),
    "log.cleaner.io.max.bytes.per.second": (1e9, cleaner("max_io_bytes_per_second"), 1e9),
}


def start_alone(path, settings):
    tasks, backlogs = Tasks(), []
    with tasks.recorded(), pytest.MonkeyPatch.context() as patch:
        listen = socket_server._listening_socket

        def record(host, port, backlog, receive_buffer_bytes):
            backlogs.append(backlog)
            return listen(host, port, backlog, receive_buffer_bytes)

        patch.setattr(socket_server, "_listening_socket", record)
        broker = kcore.Broker(path, **settings).start()
    broker.create_topic("t", replication_factor=1)
    return Alone(broker, tasks, backlogs)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """(a broker with all settings of ALONE, one without any)."""
    path = tmp_path_factory.mktemp("alone")
    with_settings = start_alone(path / "with", {name: value for name, (value, _, _) in ALONE.items()})
    without = start_alone(path / "without", {})
    yield with_settings, without
    for one in (with_settings, without):
        one.broker.stop()


@pytest.mark.parametrize("name", ALONE)
def test_a_setting_of_a_broker_alone_acts(alone, name):
    _, look, expected = ALONE[name]
    with_settings, without = alone
    assert look(with_settings) == expected
    assert look(without) != expected, "it shows the same without the setting"


#: A value of each default of topics that is not Kafka's own default.
TOPIC_DEFAULTS = {
    "cleanup.policy": "compact",
    "compression.type": "lz4",
    "message.timestamp.type": "LogAppendTime",
    "message.format.version": "2.8",
    "message.downconversion.enable": False,
    "preallocate": True,
    "unclean.leader.election.enable": True,
    "min.cleanable.dirty.ratio": 0.25,
    "compression.gzip.level": 3,
    "compression.lz4.level": 5,
    "compression.zstd.level": 7,
    "min.insync.replicas": 2,
    "min.compaction.lag.ms": 30,
}


@pytest.mark.parametrize("level", range(3))
def test_a_broker_opens_its_logs_with_its_defaults_of_the_topics_settings(tmp_path, level):
    """level: the first, second or third of a setting's names, in the order in which they win."""
    values = {
        name: (synonyms[level], TOPIC_DEFAULTS.get(name, 4000 + number))
        for number, (name, synonyms) in enumerate(BROKER_SYNONYMS.items())
        if level < len(synonyms)
    }
    settings = {synonym: value for (synonym, _), value in values.values()}
    with kcore.Broker(tmp_path, **settings) as broker:
        broker.create_topic("t")
        seen = broker.log("t").config.to_kafka()
    with kcore.Broker() as without:
        without.create_topic("t")
        default = without.log("t").config.to_kafka()
    for name, ((_, factor), value) in values.items():
        expected = str(value * factor) if isinstance(value, int) and not isinstance(value, bool) else str(value)
        if isinstance(value, bool):
            expected = expected.lower()
        # log.flush.scheduler.interval.ms stands in for log.flush.interval.ms; it is also how often flush.ms is checked.
        assert seen[name] == expected != default[name], name


# -- brokers of a cluster ---------------------------------------------------------------------------------------------


class Sent:
    """What the brokers of this process send to each other while it is recorded: (client id, request)."""

    def __init__(self):
        self._all: list[tuple[BlockingSender, Message]] = []
        #: Of the brokers that count: others of this process may send too.
        self.ports: set[int] = set()

    @contextmanager
    def recorded(self):
        with pytest.MonkeyPatch.context() as patch:
            send = BlockingSender.send

            def record(sender, request, api_version):
                self._all.append((sender, request))
                return send(sender, request, api_version)

            patch.setattr(BlockingSender, "send", record)
            yield self

    def of(self, client_ids):
        """(sender, request) of the clients whose ids the pattern matches."""
        return [
            (sender, request)
            for sender, request in list(self._all)
            if sender.port in self.ports and re.fullmatch(client_ids, sender._client_id)
        ]

    def fetches(self, broker_id):
        """The fetches of a follower that name partitions."""
        requests = [request for _, request in self.of(rf"broker-{broker_id}-fetcher-\d+")]
        return [request for request in requests if isinstance(request, FetchRequest) and request.topics]


class Pair:
    """A cluster of two brokers, each of which leads half of topic t and follows the other half."""

    PARTITIONS = 8

    def __init__(self, path, settings):
        self.tasks, self.sent = Tasks(), Sent()
        self.cluster = kcore.Cluster(
            2, path, **{"zookeeper.session.timeout.ms": LONG_MS, "offsets.topic.num.partitions": 1, **settings}
        )
        with self.tasks.recorded(), self.sent.recorded():
            self.cluster.start()
            self.broker = self.cluster.brokers[0]
            self.sent.ports = {broker.port for broker in self.cluster.brokers.values()}
            self.cluster.create_topic("t", partitions=self.PARTITIONS)
            for number in range(self.PARTITIONS):
                leader = self.cluster.brokers[self.cluster.leader("t", number)]
                leader.produce("t", b"v", partition=number)
            wait_until(lambda: self.sent.fetches(0) and self.sent.fetches(1))


def follower_fetch(field):
    return lambda pair: {getattr(request, field) for request in pair.sent.fetches(1)}


def bytes_of_a_partition(pair):
    return {
        partition.partition_max_bytes
        for request in pair.sent.fetches(1)
        for topic in request.topics
        for partition in topic.partitions
    }


def senders(client_ids, look):
    return lambda pair: {look(sender) for sender, _ in pair.sent.of(client_ids)}


def sessions_of_the_store(pair):
    with contextlib.closing(sqlite3.connect(pair.broker.store.path, timeout=60)) as db:
        return {timeout_ms for (timeout_ms,) in db.execute("SELECT timeout_ms FROM session")}


def imbalance(pair):
    return pair.broker.cluster_member.controller._settings.leader_imbalance_per_broker_percentage


def balancing_ms(pair):
    return [
        period for (_, task), (_, period) in pair.tasks.scheduled.items() if task.startswith("kcore-preferred-leaders")
    ]


FETCHER = r"broker-\d-fetcher-\d"

IN_A_CLUSTER = {
    "replica.fetch.response.max.bytes": (1_234_567, follower_fetch("max_bytes"), {1_234_567}),
    "replica.fetch.max.bytes": (654_321, bytes_of_a_partition, {654_321}),
    "replica.fetch.min.bytes": (2, follower_fetch("min_bytes"), {2}),
    "replica.fetch.wait.max.ms": (77, follower_fetch("max_wait_ms"), {77}),
    "replica.fetch.backoff.ms": (55, lambda pair: pair.broker.replica_manager.fetchers._config.fetch_backoff_ms, 55),
    "replica.socket.timeout.ms": (29_000, senders(FETCHER, lambda sender: sender.request_timeout_ms), {29_000}),
    "replica.socket.receive.buffer.bytes": (
        33_333,
        senders(FETCHER, lambda sender: sender._receive_buffer_bytes),
        {33_333},
    ),
    "controller.socket.timeout.ms": (
        28_000,
        senders(r"controller-\d", lambda sender: sender.request_timeout_ms),
        {28_000},
    ),
    "num.replica.fetchers": (
        3,
        senders(r"broker-1-fetcher-\d", lambda sender: sender._client_id[-1]),
        {"0", "1", "2"},
    ),
    "replica.selector.class": (
        "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        lambda pair: pair.broker.replica_manager.local_reads.preferred_read_replica is not None,
        True,
    ),
    "leader.imbalance.check.interval.seconds": (61, balancing_ms, [61_000]),
    "leader.imbalance.per.broker.percentage": (12, imbalance, 12),
    "zookeeper.session.timeout.ms": (LONG_MS + 1, sessions_of_the_store, {LONG_MS + 1}),
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """(a cluster with all settings of IN_A_CLUSTER, one without any)."""
    path = tmp_path_factory.mktemp("pairs")
    with_settings = Pair(path / "with", {name: value for name, (value, _, _) in IN_A_CLUSTER.items()})
    without = Pair(path / "without", {})
    yield with_settings, without
    for pair in (with_settings, without):
        pair.cluster.stop()


@pytest.mark.parametrize("name", IN_A_CLUSTER)
def test_a_setting_of_a_cluster_acts(pairs, name):
    _, look, expected = IN_A_CLUSTER[name]
    with_settings, without = pairs
    assert look(with_settings) == expected
    assert look(without) != expected, "it shows the same without the setting"


def test_a_follower_fetches_with_its_broker_epoch(pairs):
    for pair in pairs:
        for number, broker in pair.cluster.brokers.items():
            epochs = {request.replica_state.replica_epoch for request in pair.sent.fetches(number)}
            # The first fetches may be sent before a broker has read its registration; they have none.
            assert broker.cluster_member.broker_epoch > 0
            assert epochs - {-1} == {broker.cluster_member.broker_epoch}


@pytest.mark.parametrize("enable", [True, False])
def test_auto_leader_rebalance_enable_decides_whether_leaders_are_balanced(tmp_path, enable):
    pair = Pair(tmp_path, {"auto.leader.rebalance.enable": enable})
    pair.cluster.stop()
    assert len(balancing_ms(pair)) == enable


@pytest.mark.parametrize("enable", [True, False])
def test_delete_topic_enable_decides_what_a_controller_does_with_an_order_in_the_store(tmp_path, enable):
    with kcore.Cluster(1, tmp_path, delete_topic_enable=enable) as cluster:
        cluster.create_topic("t")
        broker = cluster.brokers[0]
        broker.store.ensure_path(znodes.DELETE_TOPICS)
        broker.store.create(znodes.delete_topic("t"), b"")
        wait_until(lambda: broker.store.get(znodes.delete_topic("t")) is None)
        assert (broker.store.get(znodes.topic("t")) is None) == enable


def test_unclean_leader_election_enable_acts_on_a_running_controller(tmp_path):
    with kcore.Cluster(2, tmp_path, zookeeper_session_timeout_ms=LONG_MS) as cluster:
        cluster.create_topic("t")
        leader = cluster.leader("t", 0)
        other = 1 - leader
        cluster.stop(other)
        cluster.brokers[leader].produce("t", b"only one has it")
        cluster.kill(leader)
        cluster.start(other)
        broker = cluster.brokers[other]
        wait_until(lambda: broker.cluster_member.is_controller)
        has_processed = threading.Event()
        broker.cluster_member.controller.put_call("test", lambda: None, lambda result: has_processed.set())
        assert has_processed.wait(60)  # the elections of the new controller are over
        assert cluster.leader("t", 0) != other
        broker.config.reconfigure({"unclean.leader.election.enable": True})
        wait_until(lambda: cluster.leader("t", 0) == other)


@pytest.mark.parametrize(
    ("settings", "attempts"),
    [
        ({}, 4),
        ({"controlled.shutdown.max.retries": 1}, 2),
        ({"controlled.shutdown.enable": False}, 0),
    ],
)
def test_settings_of_a_controlled_shutdown_act(tmp_path, monkeypatch, settings, attempts):
    pair = Pair(tmp_path, {"controlled.shutdown.retry.backoff.ms": 1, **settings})
    asked = []
    send = BlockingSender.send

    def find_no_leader(sender, request, api_version):
        if isinstance(request, ControlledShutdownRequest):
            asked.append(request)
            # Another replica may come into the ISR, as far as the metadata say.
            remaining = [RemainingPartition(topic_name="new", partition_index=0)]
            return ControlledShutdownResponse(remaining_partitions=remaining)
        return send(sender, request, api_version)

    with monkeypatch.context() as patch:
        patch.setattr(BlockingSender, "send", find_no_leader)
        pair.cluster.stop(1 - pair.cluster.controller())
    pair.cluster.stop()
    assert len(asked) == attempts


def test_a_change_of_an_isr_is_stored_on_a_thread_of_its_own(tmp_path, monkeypatch):
    names = set()
    store_waiting = MetadataPartitionStateStore._store_waiting

    def record(self):
        names.add(threading.current_thread().name)
        store_waiting(self)

    monkeypatch.setattr(MetadataPartitionStateStore, "_store_waiting", record)
    with kcore.Cluster(2, tmp_path, zookeeper_session_timeout_ms=LONG_MS) as cluster:
        cluster.create_topic("t")
        leader = cluster.leader("t", 0)
        cluster.stop(1 - leader)
        cluster.start(1 - leader)
        wait_until(lambda: len(cluster.brokers[leader].explain_isr("t").isr) == 2)
    assert names == {f"kcore-isr-changes-{leader}"}


def test_groups_are_loaded_on_the_disks_thread(tmp_path, monkeypatch):
    names = []
    load = CoordinatorPartitions._load

    def record(self, *arguments):
        names.append(threading.current_thread().name)
        load(self, *arguments)

    monkeypatch.setattr(CoordinatorPartitions, "_load", record)
    with kcore.Broker(tmp_path, offsets_topic_num_partitions=1) as broker:
        broker.create_topic("t")
        assert metadata_of_an_offset(Alone(broker)) is None
        broker.restart()
        wait_until(lambda: names)
        assert names == [f"kcore-disk-{broker.broker_id}"]


@pytest.mark.parametrize("name", ["broker.id", "node.id"])
def test_both_names_of_a_brokers_id_act(name):
    with kcore.Broker(**{name: 52}) as broker:
        assert Alone(broker).ask(MetadataRequest(topics=[]), 8).controller_id == 52


@pytest.mark.parametrize("name", ["log.dir", "log.dirs"])
def test_both_names_of_the_data_directories_act(tmp_path, name):
    with kcore.Broker(**{name: str(tmp_path)}) as broker:
        broker.create_topic("t")
        assert broker.data_dir == str(tmp_path)
        assert (tmp_path / "t-0").is_dir()


@pytest.mark.parametrize("enable", [True, False])
def test_log_cleaner_enable_decides_whether_there_is_a_cleaner(enable):
    with kcore.Broker(log_cleaner_enable=enable) as broker:
        assert (broker.running.base.logs.cleaner is not None) == enable


def test_a_store_is_opened_with_the_timeouts_of_zookeeper(tmp_path, monkeypatch):
    timeouts_ms = []

    def record(address, **arguments):
        timeouts_ms.append({name: value for name, value in arguments.items() if name.endswith("timeout_ms")})
        return open_store(address, **arguments)

    monkeypatch.setattr(broker_parts, "open_store", record)
    settings = {"zookeeper.session.timeout.ms": 61_000, "zookeeper.connection.timeout.ms": 62_000}
    address = f"sqlite:{tmp_path / 'store'}"
    with kcore.Broker(tmp_path / "0", store=address, broker_id=0, **settings):
        pass
    assert timeouts_ms == [{"session_timeout_ms": 61_000, "connection_timeout_ms": 62_000}]


# -- all settings -----------------------------------------------------------------------------------------------------

#: setting -> the test that shows it in a running broker, or in the part that gets it from there.
SHOWN_ELSEWHERE = {
    "advertised.listeners": "tests/unit/server/config/test_listeners.py::test_each_listener_has_its_advertised_address",
    "allow.everyone.if.no.acl.found": (
        "tests/unit/security/test_acl_authorizer.py::test_super_users_and_the_default_come_from_the_settings"
    ),
    "authorizer.class.name": (
        "tests/unit/security/test_acl_authorizer.py::test_each_start_makes_an_authorizer_and_each_stop_closes_it"
    ),
    "broker.rack": "tests/unit/server/test_cluster.py::test_each_broker_of_a_cluster_has_a_rack_of_its_own",
    "kcore.telemetry.receiver": (
        "tests/unit/server/test_client_telemetry_requests.py::test_ADM_24_the_settings_may_name_the_receiver"
    ),
    "telemetry.max.bytes": (
        "tests/unit/server/test_client_telemetry_requests.py::test_ADM_29_a_push_may_have_telemetry_max_bytes"
    ),
    "controller.listener.names": (
        "tests/unit/server/config/test_listeners.py::test_listeners_that_cannot_be_are_refused_at_once"
    ),
    **dict.fromkeys(
        ("add.partitions.to.txn.retry.backoff.ms", "add.partitions.to.txn.retry.backoff.max.ms"),
        "tests/unit/server/test_transaction_version_2.py::"
        "test_TXN_32_how_long_and_how_often_the_leader_asks_are_settings",
    ),
    "kcore.transaction.version": (
        "tests/unit/server/member/test_cluster_features.py::test_TXN_23_a_broker_alone_may_be_set_lower"
    ),
    "kcore.temporary.dir": (
        "tests/unit/testing/test_memory_directory.py"
        "::test_temporary_data_is_where_the_setting_says_and_is_gone_after_the_stop"
    ),
    "kcore.act.like": "tests/unit/server/test_act_like.py::test_kafka_python_takes_it_for_that_release",
    "kcore.monitoring.address": (
        "tests/unit/server/monitoring/test_http_endpoint.py::test_prometheus_reads_the_broker_and_its_process"
    ),
    **dict.fromkeys(
        (
            "group.consumer.min.heartbeat.interval.ms",
            "group.consumer.max.heartbeat.interval.ms",
            "group.consumer.min.session.timeout.ms",
            "group.consumer.max.session.timeout.ms",
            "group.consumer.min.assignment.interval.ms",
            "group.consumer.max.assignment.interval.ms",
        ),
        "tests/unit/server/config/test_kafka_config.py"
        "::test_CG_37_settings_of_the_consumer_protocol_are_held_to_their_limits",
    ),
    **dict.fromkeys(
        ("controller.quota.window.num", "controller.quota.window.size.seconds"),
        "tests/unit/server/quotas/test_controller_mutation_quotas.py"
        "::test_ADM_33_what_is_not_used_is_saved_for_the_windows_of_the_settings",
    ),
    "max.request.partition.size.limit": (
        "tests/unit/server/test_describe_topic_partitions.py::test_ADM_01_the_broker_has_a_limit_too"
    ),
    "inter.broker.listener.name": (
        "tests/unit/server/test_inter_broker_listener.py"
        "::test_brokers_with_a_listener_of_a_name_of_its_own_replicate_and_hand_over"
    ),
    "listener.security.protocol.map": (
        "tests/unit/server/member/test_registration.py"
        "::test_a_member_registers_its_listeners_and_unregisters_when_it_stops"
    ),
    "listeners": (
        "tests/unit/server/config/test_listeners.py::test_a_listener_named_in_lower_case_is_the_same_as_in_upper_case"
    ),
    "offsets.topic.replication.factor": (
        "tests/unit/server/member/test_topic_changes.py::test_a_missing_broker_for_the_offsets_topic_is_logged_once"
    ),
    "transaction.two.phase.commit.enable": (
        "tests/unit/server/test_two_phase_commit.py"
        "::test_TXN_20_transactions_without_a_timeout_need_a_permission_and_a_setting"
    ),
    "unstable.api.versions.enable": (
        "tests/unit/server/test_two_phase_commit.py"
        "::test_TXN_19_version_6_is_announced_and_served_only_with_the_setting_for_unstable_versions"
    ),
    "transaction.state.log.replication.factor": (
        "tests/unit/server/config/test_kafka_config.py"
        "::test_TXN_05_transaction_state_has_the_replicas_of_the_cluster_and_two_in_sync_where_it_can"
    ),
    "super.users": (
        "tests/unit/security/test_acl_authorizer.py::test_super_users_and_the_default_come_from_the_settings"
    ),
}
#: Settings with a test of their own above.
IN_THIS_FILE = (
    "auto.leader.rebalance.enable",
    "controlled.shutdown.enable",
    "controlled.shutdown.max.retries",
    "controlled.shutdown.retry.backoff.ms",
    "log.cleaner.enable",
    "log.dir",
    "log.dirs",
    "node.id",
    "zookeeper.connection.timeout.ms",
)


def test_every_setting_that_is_honoured_is_shown_to_act():
    of_topics = {name for synonyms in BROKER_SYNONYMS.values() for name, _ in synonyms}
    here = {*ALONE, *IN_A_CLUSTER, *of_topics, *IN_THIS_FILE}
    assert sorted(set(KAFKA_CONFIG_DEF.names()) - here - SHOWN_ELSEWHERE.keys()) == []
    assert sorted(SHOWN_ELSEWHERE.keys() & here) == []
    assert sorted({*here, *SHOWN_ELSEWHERE} - set(KAFKA_CONFIG_DEF.names())) == []


@pytest.mark.parametrize("name", SHOWN_ELSEWHERE)
def test_the_test_that_shows_a_setting_exists_and_has_it(name):
    path, _, test = SHOWN_ELSEWHERE[name].partition("::")
    functions = {
        node.name: node for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)
    }
    text = ast.unparse(functions[test])
    assert re.search(rf"(?<![a-z_.]){name.replace('.', '[._]')}(?![a-z_.])", text)
