"""The broker's settings under Kafka's names.

Three kinds of names: those that this broker honours (broker_settings.py); those that Kafka knows and that
change nothing here, which are accepted with a warning so that a server.properties of Kafka's works; and
those whose silent loss would be dangerous (security), which are refused.  Anything else is an error.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from kcore.common.text import nearest
from kcore.coordinator.group.consumer_assignors import ASSIGNORS
from kcore.coordinator.group.group_config import GroupConfig, MigrationPolicy
from kcore.coordinator.transaction.transaction_config import TransactionConfig
from kcore.errors import InvalidConfig, InvalidRequest
from kcore.log.log_cleaner import CleanerConfig
from kcore.log.log_config import BROKER_SYNONYMS, LogConfig
from kcore.network.listener import Listener
from kcore.security.authorizer_settings import AUTHORIZER_PREFIX
from kcore.server.config.broker_settings import CHANGEABLE, KAFKA_CONFIG_DEF, RECONFIGURABLE
from kcore.server.config.ignored_settings import HARMLESS_PROTECTIVE, IGNORED_NAMES, PROTECTIVE
from kcore.server.config.kept_settings import PER_BROKER
from kcore.server.config.listeners import check_listeners, listeners_of

logger = logging.getLogger(__name__)

#: Names for which this process has already logged a warning: one setting is read several times.
_warned_of: set[str] = set()

#: Numbers of threads: a client may at most double or halve one at a time.  Source: DynamicThreadPool, LogCleaner.
_THREAD_COUNTS = ("log.cleaner.threads", *sorted(name for name in RECONFIGURABLE if re.match(r"num\..*", name)))


class ConfigLevels(NamedTuple):
    """What is set where, by Kafka's names: in the store for this broker, in the store for all brokers, and at the
    start (with reconfigure()).  The first that has a setting wins.  is_cluster_member: whether the broker shares its
    store with others; that changes a default.  Source: KIP-226."""

    broker: Mapping[str, Any]
    cluster: Mapping[str, Any]
    static: Mapping[str, Any]
    is_cluster_member: bool = False

    @property
    def merged(self) -> dict[str, Any]:
        return {**self.static, **self.cluster, **self.broker}

    def changed(self, changes: Mapping[str, str | None], *, is_cluster: bool) -> ConfigLevels:
        """With some settings in the store changed; None for one that is deleted."""
        level = {**(self.cluster if is_cluster else self.broker), **changes}
        present = {name: value for name, value in level.items() if value is not None}
        return self._replace(cluster=present) if is_cluster else self._replace(broker=present)


class _Settings(NamedTuple):
    levels: ConfigLevels
    originals: Mapping[str, Any]
    values: Mapping[str, Any]
    log_config: LogConfig


class KafkaConfig:
    """Settings by Kafka's name, checked.

    config["log.segment.bytes"] is the typed value, and so is config.log_segment_bytes.

    Thread-safe.  reconfigure() changes settings while the broker runs, so read each one where it is used;
    who has to keep its value, or to do something about a new one, registers with on_change().
    """

    def __init__(
        self,
        properties: Mapping[str, Any] | None = None,
        other_names: Collection[str] = (),
        *,
        is_cluster_member: bool = False,
    ) -> None:
        """properties: Kafka's names, or the same with underscores, to strings or Python values.  other_names: what
        else an unknown name may be a misspelling of.  is_cluster_member: the broker shares its store with others, so
        offsets.topic.replication.factor and transaction.state.log.replication.factor are default.replication.factor
        unless they are set.

        Raises InvalidConfig for a name that Kafka does not know, a value that its name does not take, and for
        settings that cannot be honoured and must not be ignored.
        """
        originals = {_kafka_name(name): _plain(value) for name, value in (properties or {}).items()}
        unknown = {}
        for name, value in originals.items():
            is_for_authorizer = name.startswith(AUTHORIZER_PREFIX) and originals.get("authorizer.class.name")
            if name not in KAFKA_CONFIG_DEF and not is_for_authorizer and not _is_ignored(name, value):
                unknown[name] = value
        if unknown:
            raise UnknownSettings(unknown, other_names)
        self.is_cluster_member = is_cluster_member
        self._at_start = originals
        self._changes: dict[str, Any] = {}
        self._settings = _checked(ConfigLevels({}, {}, originals, is_cluster_member))
        #: What use_stored() was called with last: what is left out is logged once.
        self._stored: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
        self._lock = threading.Lock()
        self._observers: list[tuple[frozenset[str], Callable[[], None]]] = []

    @property
    def originals(self) -> Mapping[str, Any]:
        """What was set on any level, by Kafka's name; DescribeConfigs distinguishes it from the defaults."""
        return self._settings.originals

    @property
    def levels(self) -> ConfigLevels:
        """What was set where."""
        return self._settings.levels

    @property
    def log_config(self) -> LogConfig:
        """The defaults of the topics' settings."""
        return self._settings.log_config

    def reconfigure(self, changes: Mapping[str, Any]) -> None:
        """Give settings new values, all at once; None takes a setting back to what it was at the start.  What the store
        has of a setting wins over both, and nothing is stored.

        Raises InvalidConfig, with nothing changed, for a setting that cannot be changed while the broker runs, and for
        what the constructor raises it for.  Source: KIP-226.
        """
        named = {_kafka_name(name): value for name, value in changes.items()}
        fixed = sorted(named.keys() - RECONFIGURABLE)
        if fixed:
            raise InvalidConfig(f"cannot be changed while the broker runs: {', '.join(fixed)}")
        with self._lock:
            present = {name: value for name, value in (self._changes | named).items() if value is not None}
            new = _checked(self.levels._replace(static=self._at_start | present))
            self._changes = present
            self._use(new)

    def use_stored(self, *, broker: Mapping[str, str], cluster: Mapping[str, str]) -> None:
        """Follow what the store has for this broker and for all brokers, instead of what it had before.

        What this broker cannot follow is logged and left out: a setting that does not change while it runs, a value
        that its name does not take, and a setting that does not go together with the others, or with what was set at
        the start; of two that contradict each other, the one that is in use stays.
        Source: DynamicBrokerConfig.processReconfiguration, Kafka 3.9, which leaves out more.
        """
        with self._lock:
            if (broker, cluster) == self._stored:
                return
            self._stored = (broker, cluster)
            levels = self.levels._replace(broker=_followed(broker), cluster=_followed(cluster))
            if levels != self.levels:
                self._use(_most_of(levels, self.levels))

    def check_stored(self, changes: Mapping[str, str | None], *, is_cluster: bool) -> None:
        """Whether a client may change settings in the store so, for all brokers or for this one; None deletes.

        Raises InvalidRequest for a setting that cannot be changed while the broker runs, InvalidConfig for an
        unknown setting, for a value that its name does not take or that does not go together with the others, and for a
        number of threads that is more than twice or less than half the present one.  Source: KIP-226.
        """
        named = {name: value for name, value in changes.items() if value is not None}
        fixed = sorted(named.keys() - CHANGEABLE.keys())
        unknown = [name for name in fixed if name not in KAFKA_CONFIG_DEF and name not in IGNORED_NAMES]
        if unknown:
            raise UnknownSettings({name: named[name] for name in unknown})
        if fixed:
            raise InvalidRequest(f"Cannot update these configs dynamically: {', '.join(fixed)}")
        of_one = sorted(named.keys() & PER_BROKER) if is_cluster else []
        if of_one:
            raise InvalidRequest(f"Cannot update these configs at default cluster level: {', '.join(of_one)}")
        for name, value in named.items():
            CHANGEABLE[name].parse(value)
        old, new = self._settings, _checked(self.levels.changed(changes, is_cluster=is_cluster))
        for name in _THREAD_COUNTS:
            if name in named:
                _check_thread_count(name, old.values[name], new.values[name])

    def _use(self, new: _Settings) -> None:
        """With the lock held."""
        old, self._settings = self._settings, new
        changed = {name for name in RECONFIGURABLE if old.values[name] != new.values[name]}
        for names, observer in list(self._observers):
            if names & changed:
                observer()

    def on_change(self, names: Collection[str], observer: Callable[[], None]) -> Callable[[], None]:
        """Call observer() after each change of one of these settings, on the thread that made it; it reads the new
        values here and raises nothing.  Returns a function that ends that."""
        unknown = sorted(set(names) - RECONFIGURABLE)
        assert not unknown, f"never changed: {unknown}"
        entry = (frozenset(names), observer)
        self._observers.append(entry)
        return lambda: self._observers.remove(entry)

    def __getitem__(self, name: str) -> Any:
        return self._settings.values[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_settings"].values[name.replace("_", ".")]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def cleaner_config(self) -> CleanerConfig:
        return _cleaner_config(self._settings.values)

    def group_config(self, offsets_topic_num_partitions: int) -> GroupConfig:
        """offsets_topic_num_partitions: what there are, 0 if there is no such topic yet.  They decide where a group's
        offsets are."""
        return GroupConfig(
            min_session_timeout_ms=self["group.min.session.timeout.ms"],
            max_session_timeout_ms=self["group.max.session.timeout.ms"],
            max_size=self["group.max.size"],
            initial_rebalance_delay_ms=self["group.initial.rebalance.delay.ms"],
            consumer_session_timeout_ms=self["group.consumer.session.timeout.ms"],
            consumer_heartbeat_interval_ms=self["group.consumer.heartbeat.interval.ms"],
            consumer_assignment_interval_ms=self["group.consumer.assignment.interval.ms"],
            consumer_max_size=self["group.consumer.max.size"],
            consumer_assignors=_assignors(self["group.consumer.assignors"]),
            consumer_migration_policy=MigrationPolicy(self["group.consumer.migration.policy"].lower()),
            consumer_regex_refresh_interval_ms=self["group.consumer.regex.refresh.interval.ms"],
            offset_metadata_max_bytes=self["offset.metadata.max.bytes"],
            offsets_retention_minutes=self["offsets.retention.minutes"],
            offsets_retention_check_interval_ms=self["offsets.retention.check.interval.ms"],
            offsets_topic_num_partitions=offsets_topic_num_partitions or self["offsets.topic.num.partitions"],
            offsets_commit_timeout_ms=self["offsets.commit.timeout.ms"],
        )

    def transaction_config(self, num_partitions: int) -> TransactionConfig:
        """num_partitions: of __transaction_state, 0 if there is no such topic yet."""
        return TransactionConfig(
            transactional_id_expiration_ms=self["transactional.id.expiration.ms"],
            transaction_max_timeout_ms=self["transaction.max.timeout.ms"],
            num_partitions=num_partitions or self["transaction.state.log.num.partitions"],
            abort_timed_out_interval_ms=self["transaction.abort.timed.out.transaction.cleanup.interval.ms"],
            remove_expired_interval_ms=self["transaction.remove.expired.transaction.cleanup.interval.ms"],
            load_buffer_size=self["transaction.state.log.load.buffer.size"],
        )

    @property
    def configured_broker_id(self) -> int | None:
        """broker.id or node.id, None if neither was set."""
        number: int = max(self["broker.id"], self["node.id"])
        return number if number >= 0 else None

    @property
    def data_dirs(self) -> list[str]:
        """log.dirs, else log.dir; empty if neither was set.  Raises InvalidConfig for one that was set to nothing."""
        name = "log.dirs" if self["log.dirs"] is not None else "log.dir"
        text = self[name]
        paths = [path.strip() for path in (text or "").split(",") if path.strip()]
        if text is not None and not paths:
            raise InvalidConfig(f"{name} is empty: give the path of a directory")
        return paths

    @property
    def listeners(self) -> list[Listener]:
        """Where to listen, without the controllers' listeners; empty if `listeners` was not set."""
        return listeners_of(self._settings.values, "listeners")

    @property
    def advertised_listeners(self) -> list[Listener]:
        """Where clients of each listener find this broker; empty if `advertised.listeners` was not set."""
        return listeners_of(self._settings.values, "advertised.listeners")


def _cleaner_config(values: Mapping[str, Any]) -> CleanerConfig:
    return CleanerConfig(
        num_threads=values["log.cleaner.threads"],
        dedupe_buffer_size=values["log.cleaner.dedupe.buffer.size"],
        dedupe_buffer_load_factor=values["log.cleaner.io.buffer.load.factor"],
        io_buffer_size=values["log.cleaner.io.buffer.size"],
        max_io_bytes_per_second=values["log.cleaner.io.max.bytes.per.second"],
        backoff_ms=values["log.cleaner.backoff.ms"],
        enable=values["log.cleaner.enable"],
    )


def _followed(stored: Mapping[str, str]) -> dict[str, str]:
    """What of a level of the store a running broker can follow; the rest is logged."""
    followed = {}
    for name, value in stored.items():
        try:
            if name not in CHANGEABLE:
                raise InvalidConfig("a running broker does not change it")
            CHANGEABLE[name].parse(value)
        except InvalidConfig as error:
            logger.error("the setting %s=%s of brokers in the store is not followed: %s", name, value, error)
        else:
            followed[name] = value
    return followed


def _check_thread_count(name: str, old: int, new: int) -> None:
    """Raises InvalidConfig.  Source: DynamicThreadPool.validateReconfiguration, Kafka 3.9."""
    failed = f"Dynamic thread count update validation failed for {name}={new}"
    if new < 1:
        raise InvalidConfig(f"{failed}, value should be at least 1")
    if new < old // 2:
        raise InvalidConfig(f"{failed}, value should be at least half the current value {old}")
    if new > max(old, 1) * 2:
        raise InvalidConfig(f"{failed}, value should not be greater than double the current value {old}")


#: Kafka's names of them as classes.
_ASSIGNOR_CLASSES = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}


def _assignors(values: Sequence[str]) -> tuple[str, ...]:
    """By name.  Raises InvalidConfig."""
    names = tuple(_ASSIGNOR_CLASSES.get(value, value) for value in values)
    if not names or len(set(names)) < len(names) or not set(names) <= ASSIGNORS.keys():
        raise InvalidConfig(f"group.consumer.assignors is {','.join(values)}: expected uniform, range or both")
    return names


def _check_consumer_groups(values: Mapping[str, Any]) -> None:
    """Raises InvalidConfig."""
    _assignors(values["group.consumer.assignors"])
    for what in ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms"):
        least, value, most = (values[f"group.consumer.{limit}{what}"] for limit in ("min.", "", "max."))
        if not least <= value <= most:
            raise InvalidConfig(
                f"group.consumer.{what} is {value}, and must be between group.consumer.min.{what} ({least}) and "
                f"group.consumer.max.{what} ({most})"
            )
    if values["group.consumer.heartbeat.interval.ms"] >= values["group.consumer.session.timeout.ms"]:
        raise InvalidConfig("group.consumer.heartbeat.interval.ms must be less than group.consumer.session.timeout.ms")


def _checked(levels: ConfigLevels) -> _Settings:
    """Raises InvalidConfig for a value that its name does not take, and for values that do not go together."""
    originals = levels.merged
    values = KAFKA_CONFIG_DEF.parse(originals)
    if levels.is_cluster_member and "offsets.topic.replication.factor" not in originals:
        # Else the groups of one partition of __consumer_offsets are lost for as long as its only broker is.
        values["offsets.topic.replication.factor"] = values["default.replication.factor"]
    if levels.is_cluster_member and "transaction.state.log.replication.factor" not in originals:
        values["transaction.state.log.replication.factor"] = values["default.replication.factor"]
    if "transaction.state.log.min.isr" not in originals:
        # Kafka's 2, but not more than there are: else nothing could be written.
        values["transaction.state.log.min.isr"] = min(2, values["transaction.state.log.replication.factor"])
    settings = _Settings(levels, originals, values, LogConfig.from_broker(originals))
    if values["group.min.session.timeout.ms"] > values["group.max.session.timeout.ms"]:
        raise InvalidConfig("group.min.session.timeout.ms is greater than group.max.session.timeout.ms")
    _check_consumer_groups(values)
    threads = max(values["log.cleaner.threads"], 1)
    if values["log.cleaner.enable"]:
        if values["log.cleaner.dedupe.buffer.size"] // threads <= 1 << 20:
            raise InvalidConfig(f"log.cleaner.dedupe.buffer.size: each of {threads} cleaners needs more than 1 MiB")
        try:
            _cleaner_config(values).offset_map()
        except ValueError as error:
            raise InvalidConfig(f"log.cleaner.io.buffer.load.factor: {error}") from error
    broker_id, node_id = values["broker.id"], values["node.id"]
    if broker_id != node_id and -1 not in (broker_id, node_id):
        raise InvalidConfig(f"broker.id is {broker_id} but node.id is {node_id}: they are the same setting")
    if values["replica.fetch.wait.max.ms"] > values["replica.socket.timeout.ms"]:
        raise InvalidConfig("replica.fetch.wait.max.ms is greater than replica.socket.timeout.ms: fetches would fail")
    if values["inter.broker.listener.name"] is not None and "security.inter.broker.protocol" in originals:
        raise InvalidConfig("only one of inter.broker.listener.name and security.inter.broker.protocol may be set")
    check_listeners(values, is_cluster_member=levels.is_cluster_member)
    return settings


def _most_of(levels: ConfigLevels, present: ConfigLevels) -> _Settings:
    """With the stored settings that go together; the others are logged.  The present ones take precedence."""
    try:
        return _checked(levels)
    except InvalidConfig:
        settings = _checked(levels._replace(broker={}, cluster={}))
    in_use = {(True, *item) for item in present.cluster.items()} | {(False, *item) for item in present.broker.items()}
    left = [(True, *item) for item in levels.cluster.items()] + [(False, *item) for item in levels.broker.items()]
    left.sort(key=lambda setting: (setting not in in_use, setting))
    while True:
        errors: list[tuple[tuple[bool, str, str], InvalidConfig]] = []
        for is_cluster, name, value in left:
            try:
                settings = _checked(settings.levels.changed({name: value}, is_cluster=is_cluster))
            except InvalidConfig as error:
                errors.append(((is_cluster, name, value), error))
        if len(errors) == len(left):
            break
        left = [setting for setting, _ in errors]  # one may go together with a later one
    for (_, name, value), reason in errors:
        logger.error("the setting %s=%s of brokers in the store is not followed: %s", name, value, reason)
    return settings


def _kafka_name(name: str) -> str:
    return name if "." in name else name.replace("_", ".")


def _plain(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _is_ignored(name: str, value: Any) -> bool:
    """Whether Kafka has a setting of this name that has no effect here.  Raises InvalidConfig for one that must not be
    ignored."""
    if name.startswith(AUTHORIZER_PREFIX):
        raise InvalidConfig(f"{name} is for an authorizer: give authorizer.class.name too, or remove it")
    if PROTECTIVE.match(name) and name in IGNORED_NAMES:
        if (name, str(value)) in HARMLESS_PROTECTIVE:
            return True
        raise InvalidConfig(f"{name} is not supported here, and must not be ignored: remove it, or use another broker")
    if name in IGNORED_NAMES and name not in _warned_of:
        _warned_of.add(name)
        logger.warning("%s=%s: this setting of Kafka's has no effect here", name, value)
    return name in IGNORED_NAMES


class UnknownSettings(InvalidConfig):
    """Names that no setting of a broker has, and the nearest right ones."""

    def __init__(self, settings: Mapping[str, Any], other_names: Collection[str] = ()) -> None:
        """settings: by name.  other_names: as KafkaConfig has them."""
        self.names = names = list(settings)
        suggestions = [_suggestion(name, value, other_names) for name, value in settings.items()]
        if len(names) == 1:
            text = f" {names[0]}" + "".join(f"; {suggestion}" for suggestion in suggestions if suggestion)
        else:
            text = "s: " + "; ".join(
                f"{name} ({suggestion})" if suggestion else name
                for name, suggestion in zip(names, suggestions, strict=True)
            )
        super().__init__(f"Unknown broker setting{text}")


def _suggestion(name: str, value: Any, other_names: Collection[str]) -> str:
    """Empty where no right name is near."""
    if isinstance(value, Mapping):  # as the marker @pytest.mark.kafka(config={...}) has it
        return f"settings are keyword arguments: write **{{...}} instead of {name}={{...}}, or num_partitions=3"
    if name in BROKER_SYNONYMS:
        return f"a topic's {name} has its default from {BROKER_SYNONYMS[name][0][0]}"
    return nearest(name, [*other_names, *KAFKA_CONFIG_DEF.names(), *IGNORED_NAMES], 0.6).removeprefix("; ")
