"""Per-topic settings of a log, under Kafka's names, with Kafka's types, defaults and validators.

Source: LogConfig of the 3.9 line; its defaults, too.  (4.0 lowered message.timestamp.after.max.ms to one hour, 4.1
raised the smallest segment.bytes to 1 MiB; directories and clients of both lines work with the older limits.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypedDict

from kcore.common.config_def import ConfigDef, ConfigKey, ConfigType, at_least, between, one_of, valid_list
from kcore.common.text import nearest
from kcore.errors import InvalidConfig

_INT, _LONG, _DOUBLE = ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE
_BOOLEAN, _STRING, _LIST = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.LIST

MAX_LONG = 2**63 - 1
DAY_MS = 86_400_000

#: Below this the lz4 library takes its fast compressor.
_LZ4_HIGH_LEVEL_MIN = 3

_REPLICA = re.compile(r"\d+:\d+")


def _throttled_replicas(value: list[str]) -> str | None:
    if value == ["*"] or all(_REPLICA.fullmatch(item) for item in value):
        return None
    return "value must be * or a list of [partition]:[broker]"


def _gzip_level(value: int) -> str | None:
    return None if value == -1 or 1 <= value <= 9 else "value must be in [1, 9] or -1"


LOG_CONFIG_DEF = ConfigDef(
    [
        ConfigKey(
            "cleanup.policy",
            _LIST,
            ["delete"],
            valid_list("compact", "delete"),
            "Old data: delete drops segments beyond the retention, compact keeps each key's last value.",
        ),
        ConfigKey("compression.gzip.level", _INT, -1, _gzip_level, "Level when the broker compresses with gzip."),
        ConfigKey("compression.lz4.level", _INT, 9, between(1, 17), "Level when the broker compresses with lz4."),
        ConfigKey(
            "compression.type",
            _STRING,
            "producer",
            one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
            "Codec of the stored batches; producer keeps the one they came with.",
        ),
        ConfigKey(
            "compression.zstd.level", _INT, 3, between(-131072, 22), "Level when the broker compresses with zstd."
        ),
        ConfigKey("delete.retention.ms", _LONG, DAY_MS, at_least(0), "How long compaction keeps a tombstone."),
        ConfigKey("file.delete.delay.ms", _LONG, 60_000, at_least(0), "Wait before a removed file leaves the disk."),
        ConfigKey("flush.messages", _LONG, MAX_LONG, at_least(1), "fsync after this many unflushed messages."),
        ConfigKey("flush.ms", _LONG, MAX_LONG, at_least(0), "fsync when the last one is this long ago."),
        ConfigKey(
            "follower.replication.throttled.replicas",
            _LIST,
            [],
            _throttled_replicas,
            "Replicas whose follower side is throttled: [partition]:[broker],... or *.",
        ),
        ConfigKey("index.interval.bytes", _INT, 4096, at_least(0), "Bytes of log between two index entries."),
        ConfigKey(
            "leader.replication.throttled.replicas",
            _LIST,
            [],
            _throttled_replicas,
            "Replicas whose leader side is throttled: [partition]:[broker],... or *.",
        ),
        ConfigKey("local.retention.bytes", _LONG, -2, at_least(-2), "Local part of a tiered log; -2: retention.bytes."),
        ConfigKey("local.retention.ms", _LONG, -2, at_least(-2), "Local part of a tiered log; -2: retention.ms."),
        ConfigKey(
            "max.compaction.lag.ms", _LONG, MAX_LONG, at_least(1), "A record is compacted after this at the latest."
        ),
        ConfigKey("max.message.bytes", _INT, 1_048_588, at_least(0), "Largest batch that is accepted, bytes."),
        ConfigKey("message.downconversion.enable", _BOOLEAN, True, None, "Convert batches down for old consumers."),
        ConfigKey("message.format.version", _STRING, "3.0-IV1", None, "Has no effect since Kafka 3.0."),
        ConfigKey(
            "message.timestamp.after.max.ms",
            _LONG,
            MAX_LONG,
            at_least(0),
            "How far a record's timestamp may be in the future (CreateTime).",
        ),
        ConfigKey(
            "message.timestamp.before.max.ms",
            _LONG,
            MAX_LONG,
            at_least(0),
            "How far a record's timestamp may be in the past (CreateTime).",
        ),
        ConfigKey(
            "message.timestamp.difference.max.ms",
            _LONG,
            MAX_LONG,
            at_least(0),
            "Older name for both limits; counts where before and after are not set.",
        ),
        ConfigKey(
            "message.timestamp.type",
            _STRING,
            "CreateTime",
            one_of("CreateTime", "LogAppendTime"),
            "Whose clock a record's timestamp comes from: the producer's or the broker's.",
        ),
        ConfigKey(
            "min.cleanable.dirty.ratio", _DOUBLE, 0.5, between(0, 1), "Uncompacted share that makes compaction start."
        ),
        ConfigKey("min.compaction.lag.ms", _LONG, 0, at_least(0), "A record is not compacted before this age."),
        ConfigKey("min.insync.replicas", _INT, 1, at_least(1), "In-sync replicas that acks=all needs."),
        ConfigKey("preallocate", _BOOLEAN, False, None, "Allocate a segment's file at once."),
        ConfigKey("remote.log.copy.disable", _BOOLEAN, False, None, "Stop copying segments to tiered storage."),
        ConfigKey("remote.log.delete.on.disable", _BOOLEAN, False, None, "Drop tiered data when tiering is disabled."),
        ConfigKey("remote.storage.enable", _BOOLEAN, False, None, "Tiered storage for this topic."),
        ConfigKey("retention.bytes", _LONG, -1, None, "Size beyond which the oldest segments are deleted; -1: none."),
        ConfigKey("retention.ms", _LONG, 7 * DAY_MS, at_least(-1), "Age beyond which segments are deleted; -1: none."),
        ConfigKey("segment.bytes", _INT, 1 << 30, at_least(14), "Largest segment file, bytes."),
        ConfigKey("segment.index.bytes", _INT, 10 << 20, at_least(4), "Size an index file is preallocated to, bytes."),
        ConfigKey("segment.jitter.ms", _LONG, 0, at_least(0), "Random part taken off segment.ms."),
        ConfigKey("segment.ms", _LONG, 7 * DAY_MS, at_least(1), "Time after which a segment is rolled."),
        ConfigKey(
            "unclean.leader.election.enable", _BOOLEAN, False, None, "Let a replica outside the ISR lead, losing data."
        ),
    ]
)

_HOURS, _MINUTES = 3_600_000, 60_000

#: Topic setting -> the broker settings that give its default, first one set wins: (name, factor to the topic's unit).
BROKER_SYNONYMS: dict[str, tuple[tuple[str, int], ...]] = {
    "cleanup.policy": (("log.cleanup.policy", 1),),
    "compression.gzip.level": (("compression.gzip.level", 1),),
    "compression.lz4.level": (("compression.lz4.level", 1),),
    "compression.type": (("compression.type", 1),),
    "compression.zstd.level": (("compression.zstd.level", 1),),
    "delete.retention.ms": (("log.cleaner.delete.retention.ms", 1),),
    "file.delete.delay.ms": (("log.segment.delete.delay.ms", 1),),
    "flush.messages": (("log.flush.interval.messages", 1),),
    "flush.ms": (("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    "index.interval.bytes": (("log.index.interval.bytes", 1),),
    "local.retention.bytes": (("log.local.retention.bytes", 1),),
    "local.retention.ms": (("log.local.retention.ms", 1),),
    "max.compaction.lag.ms": (("log.cleaner.max.compaction.lag.ms", 1),),
    "max.message.bytes": (("message.max.bytes", 1),),
    "message.downconversion.enable": (("log.message.downconversion.enable", 1),),
    "message.format.version": (("log.message.format.version", 1),),
    "message.timestamp.after.max.ms": (("log.message.timestamp.after.max.ms", 1),),
    "message.timestamp.before.max.ms": (("log.message.timestamp.before.max.ms", 1),),
    "message.timestamp.difference.max.ms": (("log.message.timestamp.difference.max.ms", 1),),
    "message.timestamp.type": (("log.message.timestamp.type", 1),),
    "min.cleanable.dirty.ratio": (("log.cleaner.min.cleanable.ratio", 1),),
    "min.compaction.lag.ms": (("log.cleaner.min.compaction.lag.ms", 1),),
    "min.insync.replicas": (("min.insync.replicas", 1),),
    "preallocate": (("log.preallocate", 1),),
    "retention.bytes": (("log.retention.bytes", 1),),
    "retention.ms": (("log.retention.ms", 1), ("log.retention.minutes", _MINUTES), ("log.retention.hours", _HOURS)),
    "segment.bytes": (("log.segment.bytes", 1),),
    "segment.index.bytes": (("log.index.size.max.bytes", 1),),
    "segment.jitter.ms": (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOURS)),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", _HOURS)),
    "unclean.leader.election.enable": (("unclean.leader.election.enable", 1),),
}


#: Settings whose value is one of certain words.
_WORDS = ("cleanup.policy", "compression.type", "message.timestamp.type")


def _field_name(kafka_name: str) -> str:
    return kafka_name.replace(".", "_")


class SegmentOptions(TypedDict):
    index_interval_bytes: int
    max_index_size: int
    max_segment_bytes: int
    per_append_index: bool


@dataclass(frozen=True, slots=True)
class LogConfig:
    """One log's settings.  Immutable: a change of a topic's settings replaces the whole object.

    Each field is Kafka's name with underscores.  from_kafka() checks them all; the constructor checks those that take
    certain words only (InvalidConfig), and takes any number.
    """

    cleanup_policy: tuple[str, ...] = ("delete",)
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_type: str = "producer"
    compression_zstd_level: int = 3
    delete_retention_ms: int = DAY_MS
    file_delete_delay_ms: int = 60_000
    flush_messages: int = MAX_LONG
    flush_ms: int = MAX_LONG
    follower_replication_throttled_replicas: tuple[str, ...] = ()
    index_interval_bytes: int = 4096
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    local_retention_bytes: int = -2
    local_retention_ms: int = -2
    max_compaction_lag_ms: int = MAX_LONG
    max_message_bytes: int = 1_048_588
    message_downconversion_enable: bool = True
    message_format_version: str = "3.0-IV1"
    message_timestamp_after_max_ms: int = MAX_LONG
    message_timestamp_before_max_ms: int = MAX_LONG
    message_timestamp_difference_max_ms: int = MAX_LONG
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    preallocate: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    remote_storage_enable: bool = False
    retention_bytes: int = -1
    retention_ms: int = 7 * DAY_MS
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    segment_jitter_ms: int = 0
    segment_ms: int = 7 * DAY_MS
    unclean_leader_election_enable: bool = False
    #: The index rule of Kafka 2.4-3.8 (one entry per append) instead of one per batch: behaviours.md section 22, 12.
    per_append_index: bool = False
    #: Kafka's names of the settings passed to from_kafka(): DescribeConfigs reports them as the topic's own.
    overridden: frozenset[str] = field(default=frozenset(), compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.cleanup_policy, str):
            raise InvalidConfig(
                f"Invalid value {self.cleanup_policy!r} for configuration cleanup.policy: expected a tuple, as "
                f"{(self.cleanup_policy,)}"
            )
        for name in _WORDS:
            LOG_CONFIG_DEF[name].parse(getattr(self, _field_name(name)))

    @property
    def segment_options(self) -> SegmentOptions:
        """What a LogSegment takes of these settings: arguments for its constructor and configure()."""
        return {
            "index_interval_bytes": self.index_interval_bytes,
            "max_index_size": self.segment_index_bytes,
            "max_segment_bytes": self.segment_bytes,
            "per_append_index": self.per_append_index,
        }

    @property
    def compact(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def compression_level(self) -> int | None:
        """For compression_type on the codec library's own scale, None for its default."""
        if self.compression_type == "gzip":
            return None if self.compression_gzip_level == -1 else self.compression_gzip_level
        if self.compression_type == "zstd":
            return self.compression_zstd_level
        # Kafka takes its default, 9, for the fast compressor, and any other number for a level of the high one.
        if self.compression_type == "lz4" and self.compression_lz4_level != 9:
            return max(self.compression_lz4_level, _LZ4_HIGH_LEVEL_MIN)
        return None

    @classmethod
    def from_kafka(cls, properties: Mapping[str, Any], defaults: LogConfig | None = None) -> LogConfig:
        """defaults with a topic's own settings on top.

        Raises InvalidConfig for a name that no topic has, a value that the name does not take, or a combination
        that makes no sense.
        """
        changes: dict[str, Any] = {}
        for name, value in properties.items():
            key = LOG_CONFIG_DEF.get(name)
            if key is None:
                raise InvalidConfig(f"Unknown topic config name: {name}{nearest(name, LOG_CONFIG_DEF.names(), 0.6)}")
            if value is None:
                raise InvalidConfig(f"Null value not supported for topic configs: {name}")
            parsed = key.parse(value)
            changes[_field_name(name)] = tuple(parsed) if key.type is ConfigType.LIST else parsed
        # The older name speaks for both limits that replaced it, unless those speak for themselves.
        difference = changes.get("message_timestamp_difference_max_ms")
        if difference is not None:
            changes.setdefault("message_timestamp_before_max_ms", difference)
            changes.setdefault("message_timestamp_after_max_ms", difference)
        base = defaults if defaults is not None else cls()
        is_base = not properties and not base.overridden
        config = base if is_base else replace(base, **changes, overridden=frozenset(properties))
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise InvalidConfig(
                f"min.compaction.lag.ms ({config.min_compaction_lag_ms}) is greater than max.compaction.lag.ms "
                f"({config.max_compaction_lag_ms})"
            )
        return config

    @classmethod
    def of_topic(cls, own: Mapping[str, str], defaults: LogConfig) -> LogConfig:
        """from_kafka() for stored settings of a topic.  The defaults may have changed since these were checked: where
        the topic's min.compaction.lag.ms is above the default of max.compaction.lag.ms, or the reverse, neither default
        applies."""
        try:
            return cls.from_kafka(own, defaults)
        except InvalidConfig:
            return cls.from_kafka(own, replace(defaults, min_compaction_lag_ms=0, max_compaction_lag_ms=MAX_LONG))

    @classmethod
    def from_broker(cls, properties: Mapping[str, Any]) -> LogConfig:
        """The defaults that a broker's settings (log.segment.bytes, log.retention.hours, ...) give its topics.

        Other broker settings are not looked at.  Raises InvalidConfig.
        """
        topic_properties: dict[str, Any] = {}
        for name, synonyms in BROKER_SYNONYMS.items():
            for broker_name, factor in synonyms:
                value = properties.get(broker_name)
                if value is None:
                    continue
                topic_properties[name] = value if factor == 1 else _scaled(broker_name, value, factor)
                break
        return replace(cls.from_kafka(topic_properties), overridden=frozenset())

    def to_kafka(self) -> dict[str, str]:
        """Every setting as text, by Kafka's name."""
        result = {}
        for key in LOG_CONFIG_DEF:
            text = key.format(getattr(self, _field_name(key.name)))
            assert text is not None
            result[key.name] = text
        return result


def _scaled(name: str, value: Any, factor: int) -> int:
    number = int(ConfigKey(name, _LONG, None).parse(value))
    # -1 says "no limit" in every unit.
    return number if number < 0 else number * factor


assert {_field_name(name) for name in LOG_CONFIG_DEF.names()} <= {f.name for f in fields(LogConfig)}
assert {key.name: key.format(key.default) for key in LOG_CONFIG_DEF} == LogConfig().to_kafka()
