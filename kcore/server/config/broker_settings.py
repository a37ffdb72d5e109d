"""The settings that this broker honours, under Kafka's names: type, default, limits, meaning.

Defaults are Kafka's, but for the few that Kafka's own server.properties changes for a single broker
(marked below), and for num.network.threads and the socket buffers (docs/compatibility.md says why).
"""

from __future__ import annotations

import sys
from typing import Any

from kcore.common.config_def import ConfigDef, ConfigKey, ConfigType, above, at_least, between, one_of
from kcore.coordinator.group.group_config import MigrationPolicy
from kcore.log.log_config import BROKER_SYNONYMS, LOG_CONFIG_DEF
from kcore.network.listener import SecurityProtocol
from kcore.protocol.releases import RELEASES
from kcore.replica.replica_selector import SELECTORS
from kcore.security.authorizer_settings import AUTHORIZER_KEYS
from kcore.server.config.kept_settings import KEPT_CONFIG_DEF
from kcore.server.config.listeners import host_and_port
from kcore.server.config.telemetry_settings import TELEMETRY_KEYS

_INT, _LONG, _SHORT = ConfigType.INT, ConfigType.LONG, ConfigType.SHORT
_BOOLEAN, _STRING, _DOUBLE, _LIST = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.DOUBLE, ConfigType.LIST
_HOUR_MS, _MINUTE_MS = 3_600_000, 60_000

_BROKER_KEYS = [
    ConfigKey("broker.id", _INT, -1, at_least(-1), "This broker's id; -1: what meta.properties says, else 1."),
    ConfigKey("node.id", _INT, -1, at_least(-1), "The same as broker.id, KRaft's name for it."),
    ConfigKey("broker.rack", _STRING, None, None, "Rack of this broker, as Metadata answers it."),
    ConfigKey("listeners", _STRING, None, None, "Where to listen: NAME://host:port, separated by commas."),
    ConfigKey(
        "listener.security.protocol.map",
        _STRING,
        ",".join(f"{protocol.name}:{protocol.name}" for protocol in SecurityProtocol),
        None,
        "Security protocol of each listener name: NAME:PROTOCOL, separated by commas.",
    ),
    ConfigKey("advertised.listeners", _STRING, None, None, "Addresses given to clients, if not those listened on."),
    ConfigKey("inter.broker.listener.name", _STRING, None, None, "The listener that other brokers connect to."),
    ConfigKey("controller.listener.names", _STRING, None, None, "Listeners of KRaft controllers: skipped here."),
    ConfigKey("log.dir", _STRING, None, None, "The data directory."),
    ConfigKey("log.dirs", _STRING, None, None, "The data directories, separated by commas."),
    # Not one of Kafka's, which has no temporary data.
    ConfigKey(
        "kcore.temporary.dir",
        _STRING,
        None,
        None,
        "Where a broker without a data directory makes a temporary one; default: where the system has its own.",
    ),
    # -- network
    ConfigKey("num.network.threads", _INT, 1, at_least(1), "Threads that read, handle and answer requests."),
    # Kafka's default is 8: there all requests run on these threads.
    ConfigKey("num.io.threads", _INT, 4, at_least(1), "Threads for requests that may wait, started when needed."),
    ConfigKey("socket.request.max.bytes", _INT, 100 << 20, at_least(1), "Largest request."),
    ConfigKey("socket.send.buffer.bytes", _INT, -1, at_least(-1), "SO_SNDBUF; -1: the system's own tuning."),
    ConfigKey("socket.receive.buffer.bytes", _INT, -1, at_least(-1), "SO_RCVBUF; -1: the system's own tuning."),
    ConfigKey("socket.listen.backlog.size", _INT, 50, at_least(1), "Connections the kernel holds until accepted."),
    ConfigKey("max.connections", _INT, 2**31 - 1, at_least(0), "Connections beyond wait to be accepted."),
    ConfigKey("max.connections.per.ip", _INT, 2**31 - 1, at_least(1), "Connections beyond are closed."),
    ConfigKey("connections.max.idle.ms", _LONG, 600_000, None, "Idle connections are closed after this; -1: never."),
    ConfigKey("max.request.partition.size.limit", _INT, 2000, at_least(1), "Partitions in one page of descriptions."),
    ConfigKey("queued.max.request.bytes", _LONG, -1, None, "Bytes of requests in memory; -1: no limit."),
    # Not one of Kafka's, which has a Java agent for this.
    ConfigKey(
        "kcore.monitoring.address",
        _STRING,
        None,
        lambda text: None if text is None or host_and_port(text) else "expected HOST:PORT",
        "HOST:PORT where GET /metrics, /healthz and /readyz are answered over HTTP; port 0: a free one.",
    ),
    ConfigKey(
        "kcore.act.like",
        _STRING,
        None,
        lambda text: None if text is None or text in RELEASES else f"expected one of {', '.join(RELEASES)}",
        "Announce and serve the versions of requests that this release of Kafka has, as 2.8: to test clients.",
    ),
    # Kafka stores the level with kafka-features.sh.
    ConfigKey(
        "kcore.transaction.version",
        _INT,
        2,
        between(0, 2),
        "The level of the feature transaction.version that this broker offers; the lowest of all brokers counts.",
    ),
    # -- topics
    ConfigKey("auto.create.topics.enable", _BOOLEAN, True, None, "Create a topic when a client first asks for it."),
    ConfigKey("num.partitions", _INT, 1, at_least(1), "Partitions of a topic that does not say."),
    ConfigKey("default.replication.factor", _INT, 1, at_least(1), "Replicas of a topic that does not say."),
    ConfigKey("delete.topic.enable", _BOOLEAN, True, None, "Whether topics can be deleted."),
    # -- fetching
    ConfigKey("fetch.max.bytes", _INT, 55 << 20, at_least(1024), "Largest fetch response."),
    ConfigKey(
        "max.incremental.fetch.session.cache.slots", _INT, 1000, at_least(0), "Incremental fetch sessions at one time."
    ),
    ConfigKey("producer.id.expiration.ms", _INT, 86_400_000, at_least(1), "An idle producer's state is dropped after."),
    ConfigKey(
        "producer.id.expiration.check.interval.ms", _INT, 600_000, at_least(1), "How often idle producers are dropped."
    ),
    # -- quotas
    ConfigKey("quota.window.num", _INT, 11, at_least(1), "Windows over which clients' quotas are measured."),
    ConfigKey("quota.window.size.seconds", _INT, 1, at_least(1), "Length of such a window."),
    ConfigKey("controller.quota.window.num", _INT, 11, at_least(1), "Windows for which unused changes are saved."),
    ConfigKey("controller.quota.window.size.seconds", _INT, 1, at_least(1), "Length of such a window."),
    ConfigKey("replication.quota.window.num", _INT, 11, at_least(1), "Windows over which replication is measured."),
    ConfigKey("replication.quota.window.size.seconds", _INT, 1, at_least(1), "Length of such a window."),
    ConfigKey(
        "alter.log.dirs.replication.quota.window.num", _INT, 11, at_least(1), "Windows over which moves are measured."
    ),
    ConfigKey("alter.log.dirs.replication.quota.window.size.seconds", _INT, 1, at_least(1), "Length of such a window."),
    ConfigKey(
        "leader.replication.throttled.rate",
        _LONG,
        2**63 - 1,
        at_least(0),
        "Bytes/s sent to followers of the topics' leader.replication.throttled.replicas.",
    ),
    ConfigKey(
        "follower.replication.throttled.rate",
        _LONG,
        2**63 - 1,
        at_least(0),
        "Bytes/s fetched for the topics' follower.replication.throttled.replicas.",
    ),
    ConfigKey(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        _LONG,
        2**63 - 1,
        at_least(0),
        "Bytes/s copied by moves between log directories.",
    ),
    # -- log management
    ConfigKey("num.recovery.threads.per.data.dir", _INT, 1, at_least(1), "Threads that recover logs at start."),
    ConfigKey("log.initial.task.delay.ms", _LONG, 30_000, at_least(0), "Background work on logs begins after."),
    ConfigKey("log.retention.check.interval.ms", _LONG, 300_000, at_least(1), "How often old segments are looked for."),
    ConfigKey(
        "log.flush.offset.checkpoint.interval.ms", _INT, 60_000, at_least(0), "How often recovery points are written."
    ),
    ConfigKey(
        "log.flush.start.offset.checkpoint.interval.ms", _INT, 60_000, at_least(0), "How often log starts are written."
    ),
    ConfigKey(
        "replica.high.watermark.checkpoint.interval.ms", _LONG, 5000, at_least(1), "How often watermarks are written."
    ),
    # -- replication
    ConfigKey("num.replica.fetchers", _INT, 1, at_least(1), "Threads that copy from each leader."),
    ConfigKey(
        "num.replica.alter.log.dirs.threads",
        _INT,
        None,
        at_least(1),
        "Threads that move logs between data directories; as many as there are directories, unless set.",
    ),
    ConfigKey("replica.fetch.wait.max.ms", _INT, 500, at_least(0), "A leader without news answers a follower after."),
    ConfigKey("replica.fetch.min.bytes", _INT, 1, at_least(0), "A leader waits until it has so much for a follower."),
    ConfigKey("replica.fetch.max.bytes", _INT, 1 << 20, at_least(0), "Most a follower fetches of a partition at once."),
    ConfigKey("replica.fetch.response.max.bytes", _INT, 10 << 20, at_least(0), "Most a follower fetches at once."),
    ConfigKey("replica.fetch.backoff.ms", _INT, 1000, at_least(0), "A follower's wait after a fetch that failed."),
    ConfigKey("replica.socket.timeout.ms", _INT, 30_000, at_least(1), "How long a follower waits for its leader."),
    # Kafka's default is 65536, which a reply of 10 MiB fills 160 times.
    ConfigKey("replica.socket.receive.buffer.bytes", _INT, -1, at_least(-1), "Its SO_RCVBUF, -1: the system's."),
    ConfigKey(
        "replica.selector.class",
        _STRING,
        None,
        lambda name: None if name is None or name in SELECTORS else f"value must be one of {sorted(SELECTORS)}",
        "Which replica a consumer is sent to.",
    ),
    ConfigKey("replica.lag.time.max.ms", _LONG, 30_000, None, "A follower that lags for longer leaves the ISR."),
    # -- cluster
    ConfigKey("zookeeper.session.timeout.ms", _INT, 18_000, at_least(1), "A broker that is silent for longer is dead."),
    ConfigKey("zookeeper.connection.timeout.ms", _INT, None, at_least(1), "A start's wait; default: the session's."),
    ConfigKey(
        "controller.socket.timeout.ms", _INT, 30_000, at_least(1), "The controller's wait for a broker's answer."
    ),
    ConfigKey("controlled.shutdown.enable", _BOOLEAN, True, None, "Move the leaders away before a broker stops."),
    ConfigKey("controlled.shutdown.max.retries", _INT, 3, at_least(0), "Attempts to do so."),
    ConfigKey("controlled.shutdown.retry.backoff.ms", _LONG, 5000, at_least(0), "Wait before another attempt."),
    ConfigKey("auto.leader.rebalance.enable", _BOOLEAN, True, None, "Bring leaders back to their preferred replicas."),
    ConfigKey("leader.imbalance.check.interval.seconds", _LONG, 300, at_least(1), "How often that is checked."),
    ConfigKey(
        "leader.imbalance.per.broker.percentage", _INT, 10, at_least(0), "Leaders that a broker may have lost before."
    ),
    # -- authorization
    *AUTHORIZER_KEYS,
    # -- clients' metrics
    *TELEMETRY_KEYS,
    # -- compaction
    ConfigKey("log.cleaner.enable", _BOOLEAN, True, None, "Compact the topics that ask for it; off: they only grow."),
    ConfigKey("log.cleaner.threads", _INT, 1, at_least(0), "Threads that compact logs."),
    ConfigKey(
        "log.cleaner.io.max.bytes.per.second", _DOUBLE, sys.float_info.max, above(0), "Bytes read and written by them."
    ),
    ConfigKey("log.cleaner.dedupe.buffer.size", _LONG, 128 << 20, None, "Memory for keys, shared by the threads."),
    ConfigKey("log.cleaner.io.buffer.size", _INT, 512 << 10, at_least(0), "Memory for chunks, shared by the threads."),
    ConfigKey(
        "log.cleaner.io.buffer.load.factor",
        _DOUBLE,
        0.9,
        lambda value: None if 0 < value <= 1 else "value must be in (0, 1]",
        "Share of the key memory that is filled.",
    ),
    ConfigKey("log.cleaner.backoff.ms", _LONG, 15_000, at_least(0), "Wait when no log needs compaction."),
    # -- groups
    ConfigKey("group.min.session.timeout.ms", _INT, 6000, None, "Shortest session.timeout.ms of a member."),
    ConfigKey("group.max.session.timeout.ms", _INT, 1_800_000, None, "Longest session.timeout.ms of a member."),
    # Kafka's default is 3000, its server.properties says 0.
    ConfigKey("group.initial.rebalance.delay.ms", _INT, 0, None, "Wait for more members before the first rebalance."),
    ConfigKey("group.max.size", _INT, 2**31 - 1, at_least(1), "Members of a group."),
    ConfigKey(
        "group.consumer.session.timeout.ms",
        _INT,
        45_000,
        at_least(1),
        "A member with group.protocol=consumer is taken for dead after so long without a heartbeat.",
    ),
    ConfigKey("group.consumer.min.session.timeout.ms", _INT, 45_000, at_least(1), "The least that may be set."),
    ConfigKey("group.consumer.max.session.timeout.ms", _INT, 60_000, at_least(1), "The most that may be set."),
    ConfigKey(
        "group.consumer.heartbeat.interval.ms",
        _INT,
        5000,
        at_least(1),
        "How often members with group.protocol=consumer send heartbeats.",
    ),
    ConfigKey("group.consumer.min.heartbeat.interval.ms", _INT, 5000, at_least(1), "The least that may be set."),
    ConfigKey("group.consumer.max.heartbeat.interval.ms", _INT, 15_000, at_least(1), "The most that may be set."),
    ConfigKey(
        "group.consumer.assignment.interval.ms",
        _INT,
        0,
        at_least(0),
        "The least time between two assignments of a group of that protocol.",
    ),
    ConfigKey("group.consumer.min.assignment.interval.ms", _INT, 0, at_least(0), "The least that may be set."),
    ConfigKey("group.consumer.max.assignment.interval.ms", _INT, 15_000, at_least(0), "The most that may be set."),
    ConfigKey("group.consumer.max.size", _INT, 2**31 - 1, at_least(1), "Members of a group of that protocol."),
    ConfigKey(
        "group.consumer.assignors",
        _LIST,
        ["uniform", "range"],
        None,
        "Assignors that members of that protocol may ask for, the default first: uniform and range.",
    ),
    ConfigKey(
        "group.consumer.migration.policy",
        _STRING,
        "bidirectional",
        lambda value: one_of(*(policy.value for policy in MigrationPolicy))(value.lower()),
        "Which way groups with members may change their protocol: bidirectional, upgrade, downgrade or disabled.",
    ),
    ConfigKey(
        "group.consumer.regex.refresh.interval.ms",
        _INT,
        600_000,
        at_least(10_000),
        "Topics of regular expressions are looked up after so long, though none was created.",
    ),
    ConfigKey("offset.metadata.max.bytes", _INT, 4096, None, "Largest metadata of a committed offset."),
    ConfigKey("offsets.topic.num.partitions", _INT, 50, at_least(1), "Partitions of __consumer_offsets."),
    # Kafka's default is 3, its server.properties says 1.  In a cluster: _checked().
    ConfigKey("offsets.topic.replication.factor", _SHORT, 1, at_least(1), "Replicas of __consumer_offsets."),
    ConfigKey("offsets.topic.segment.bytes", _INT, 100 << 20, at_least(1), "segment.bytes of __consumer_offsets."),
    ConfigKey("offsets.retention.minutes", _INT, 10_080, at_least(1), "Offsets of an empty group are kept this long."),
    ConfigKey("offsets.retention.check.interval.ms", _LONG, 600_000, at_least(1), "How often that is checked."),
    ConfigKey("offsets.commit.timeout.ms", _INT, 5000, at_least(1), "Wait for an offset commit to be replicated."),
    # -- transactions
    ConfigKey(
        "transaction.max.timeout.ms", _INT, 900_000, at_least(1), "Longest transaction.timeout.ms of a producer."
    ),
    ConfigKey(
        "transaction.two.phase.commit.enable",
        _BOOLEAN,
        False,
        None,
        "Whether producers may have transactions without a timeout (KIP-939, InitProducerId 6).",
    ),
    ConfigKey(
        "unstable.api.versions.enable", _BOOLEAN, False, None, "Whether InitProducerId 6 is served and announced."
    ),
    ConfigKey(
        "transactional.id.expiration.ms",
        _INT,
        604_800_000,
        at_least(1),
        "A transactional id that is not used is kept this long.",
    ),
    ConfigKey(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        _INT,
        10_000,
        at_least(1),
        "How often transactions that take too long are aborted.",
    ),
    ConfigKey(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        _INT,
        3_600_000,
        at_least(1),
        "How often transactional ids that expired are removed.",
    ),
    ConfigKey(
        "transaction.partition.verification.enable",
        _BOOLEAN,
        True,
        None,
        "Whether a leader asks the coordinator before a transaction begins in a partition.",
    ),
    ConfigKey(
        "add.partitions.to.txn.retry.backoff.ms",
        _INT,
        20,
        at_least(1),
        "While a transaction is ending, how often a leader asks to add a partition to the next one.",
    ),
    ConfigKey(
        "add.partitions.to.txn.retry.backoff.max.ms",
        _INT,
        100,
        at_least(0),
        "How long it does so, and a producer is kept waiting, before the producer is told to ask again.",
    ),
    ConfigKey("transaction.state.log.num.partitions", _INT, 50, at_least(1), "Partitions of __transaction_state."),
    # Kafka's defaults are 3 and 2, its server.properties says 1.  In a cluster: _checked().
    ConfigKey("transaction.state.log.replication.factor", _SHORT, 1, at_least(1), "Replicas of __transaction_state."),
    ConfigKey("transaction.state.log.min.isr", _INT, 1, at_least(1), "min.insync.replicas of __transaction_state."),
    ConfigKey(
        "transaction.state.log.segment.bytes", _INT, 100 << 20, at_least(1), "segment.bytes of __transaction_state."
    ),
    ConfigKey(
        "transaction.state.log.load.buffer.size",
        _INT,
        5 << 20,
        at_least(1),
        "Read at once when an id's state is loaded.",
    ),
]

#: Defaults of broker settings that give topics theirs in another unit, or have none of their own.
_SYNONYM_DEFAULTS: dict[str, tuple[ConfigType, Any]] = {
    "log.retention.ms": (_LONG, None),
    "log.retention.minutes": (_INT, None),
    "log.retention.hours": (_INT, 168),
    "log.roll.ms": (_LONG, None),
    "log.roll.hours": (_INT, 168),
    "log.roll.jitter.ms": (_LONG, None),
    "log.roll.jitter.hours": (_INT, 0),
    "log.flush.interval.ms": (_LONG, None),
    "log.flush.scheduler.interval.ms": (_LONG, 2**63 - 1),
}


def _log_keys() -> list[ConfigKey]:
    """The broker's defaults for settings of topics: log.segment.bytes for segment.bytes, and so on."""
    keys = []
    for topic_name, synonyms in BROKER_SYNONYMS.items():
        topic_key = LOG_CONFIG_DEF[topic_name]
        for name, factor in synonyms:
            kind, default = _SYNONYM_DEFAULTS.get(name, (topic_key.type, topic_key.default))
            # In another unit the topic's limits do not apply; LogConfig.from_broker checks the product.
            validator = topic_key.validator if factor == 1 else None
            keys.append(ConfigKey(name, kind, default, validator, f"Default of the topics' {topic_name}."))
    return keys


KAFKA_CONFIG_DEF = ConfigDef(sorted(_BROKER_KEYS + _log_keys(), key=lambda key: key.name))

#: What reconfigure() takes: the settings that a running broker of Kafka's can change, of those that are honoured here.
#: Of a topic setting's synonyms it is the first: log.retention.ms, not log.retention.hours.
RECONFIGURABLE = frozenset(
    {
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.threads",
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "max.connections",
        "max.connections.per.ip",
        "num.io.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.fetchers",
        "producer.id.expiration.ms",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "transaction.partition.verification.enable",
        *(synonyms[0][0] for synonyms in BROKER_SYNONYMS.values() if synonyms),
    }
)

#: What a client can change in the store of a running broker, by name: what reconfigure() takes, and what is only kept.
CHANGEABLE = {name: KAFKA_CONFIG_DEF[name] for name in RECONFIGURABLE} | {key.name: key for key in KEPT_CONFIG_DEF}
