"""Settings as DescribeConfigs and CreateTopics show them: value, where it comes from, and what it overrides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kcore.common.config_def import ConfigKey
from kcore.errors import InvalidConfig
from kcore.log.log_config import BROKER_SYNONYMS, LOG_CONFIG_DEF, LogConfig
from kcore.server.config.broker_settings import CHANGEABLE, KAFKA_CONFIG_DEF, RECONFIGURABLE
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.config.kept_settings import KEPT_CONFIG_DEF
from kcore.server.config.stored_client_metrics import CLIENT_METRICS_CONFIG_DEF
from kcore.server.config.stored_group_configs import GROUP_CONFIG_DEF

#: Where a value comes from.  Source: DescribeConfigsResponse.ConfigSource, Kafka.
DYNAMIC_TOPIC_CONFIG, DYNAMIC_BROKER_CONFIG, DYNAMIC_DEFAULT_BROKER_CONFIG = 1, 2, 3
STATIC_BROKER_CONFIG, DEFAULT_CONFIG = 4, 5
DYNAMIC_BROKER_LOGGER_CONFIG, CLIENT_METRICS_CONFIG, GROUP_CONFIG = 6, 7, 8
#: Kafka says of a logger's level that it is of no type.
_NO_TYPE = 0


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: int


class ConfigEntry(NamedTuple):
    """synonyms: what the value is chosen from, the winner first."""

    name: str
    value: str | None
    source: int
    read_only: bool
    type: int
    documentation: str
    synonyms: list[Synonym]


def topic_entries(config: LogConfig, broker: KafkaConfig) -> list[ConfigEntry]:
    """Every setting of a topic, by name."""
    values = config.to_kafka()
    entries = []
    for key in LOG_CONFIG_DEF:
        synonyms = []
        if key.name in config.overridden:
            synonyms.append(Synonym(key.name, values[key.name], DYNAMIC_TOPIC_CONFIG))
        broker_names = [name for name, _ in BROKER_SYNONYMS.get(key.name, ())]
        for name in broker_names:
            synonyms.extend(_broker_synonyms(KAFKA_CONFIG_DEF[name], broker))
        if not broker_names:
            synonyms.append(Synonym(key.name, key.format(key.default), DEFAULT_CONFIG))
        # What is set goes before any default, whatever the name: log.retention.hours=1 beats log.retention.ms unset.
        synonyms.sort(key=lambda synonym: synonym.source)
        source = synonyms[0].source if synonyms else DEFAULT_CONFIG
        entries.append(ConfigEntry(key.name, values[key.name], source, False, int(key.type), key.doc, synonyms))
    return entries


def group_entries(own: Mapping[str, str], broker: KafkaConfig) -> list[ConfigEntry]:
    """Every setting of a group.  own: what it has of its own."""
    entries = []
    for key in GROUP_CONFIG_DEF:
        synonyms = [Synonym(key.name, own[key.name], GROUP_CONFIG)] if key.name in own else []
        synonyms += _broker_synonyms(KAFKA_CONFIG_DEF[f"group.{key.name}"], broker)
        value, source = synonyms[0].value, synonyms[0].source
        entries.append(ConfigEntry(key.name, value, source, False, int(key.type), key.doc, synonyms))
    return entries


def client_metrics_entries(own: Mapping[str, str]) -> list[ConfigEntry]:
    """Every setting of a subscription to client metrics.  own: what it has of its own."""
    entries = []
    for key in CLIENT_METRICS_CONFIG_DEF:
        synonyms = [Synonym(key.name, own[key.name], CLIENT_METRICS_CONFIG)] if key.name in own else []
        synonyms.append(Synonym(key.name, key.format(key.default), DEFAULT_CONFIG))
        value, source = synonyms[0].value, synonyms[0].source
        entries.append(ConfigEntry(key.name, value, source, False, int(key.type), key.doc, synonyms))
    return entries


def logger_entries(levels: Mapping[str, str]) -> list[ConfigEntry]:
    """The level of each logger."""
    source = DYNAMIC_BROKER_LOGGER_CONFIG
    return [ConfigEntry(name, level, source, False, _NO_TYPE, "", []) for name, level in levels.items()]


def broker_entries(broker: KafkaConfig) -> list[ConfigEntry]:
    """Every setting of the broker that it honours, and those that are only kept in the store for it."""
    entries = []
    kept = [key for key in KEPT_CONFIG_DEF if key.name in broker.levels.broker or key.name in broker.levels.cluster]
    for key in kept:
        synonyms = _broker_synonyms(key, broker)
        value, source = synonyms[0].value, synonyms[0].source
        entries.append(ConfigEntry(key.name, value, source, False, int(key.type), key.doc, synonyms))
    for key in KAFKA_CONFIG_DEF:
        synonyms = _broker_synonyms(key, broker)
        source = synonyms[0].source if synonyms else DEFAULT_CONFIG
        value = key.format(broker[key.name])
        is_fixed = key.name not in RECONFIGURABLE
        entries.append(ConfigEntry(key.name, value, source, is_fixed, int(key.type), key.doc, synonyms))
    return entries


def cluster_entries(broker: KafkaConfig) -> list[ConfigEntry]:
    """The settings that the store has for all brokers, as this one follows them."""
    entries = []
    for name, value in sorted(broker.levels.cluster.items()):
        key, source = CHANGEABLE[name], DYNAMIC_DEFAULT_BROKER_CONFIG
        text = key.format(key.parse(value))
        entries.append(ConfigEntry(name, text, source, False, int(key.type), key.doc, [Synonym(name, text, source)]))
    return entries


def _shown(key: ConfigKey, text: str) -> str | None:
    """As Kafka writes the value.  One that nothing reads may be invalid in the broker's file: it is shown as it is."""
    try:
        return key.format(key.parse(text))
    except InvalidConfig:
        return text


def _broker_synonyms(key: ConfigKey, broker: KafkaConfig) -> list[Synonym]:
    levels = broker.levels
    synonyms = [
        Synonym(key.name, _shown(key, level[key.name]), source)
        for level, source in (
            (levels.broker, DYNAMIC_BROKER_CONFIG),
            (levels.cluster, DYNAMIC_DEFAULT_BROKER_CONFIG),
            (levels.static, STATIC_BROKER_CONFIG),
        )
        if key.name in level
    ]
    default: Any = key.default
    if default is not None:
        synonyms.append(Synonym(key.name, key.format(default), DEFAULT_CONFIG))
    return synonyms
