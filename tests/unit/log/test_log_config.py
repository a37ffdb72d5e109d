import pytest

from kcore.common.config_def import ConfigType
from kcore.errors import InvalidConfig
from kcore.log.log_config import BROKER_SYNONYMS, LOG_CONFIG_DEF, LogConfig


def test_CFG_01_defaults_are_kafkas():
    config = LogConfig()
    assert config.segment_bytes == 1073741824
    assert config.segment_ms == 168 * 3600 * 1000
    assert config.segment_index_bytes == 10485760
    assert config.index_interval_bytes == 4096
    assert config.min_insync_replicas == 1
    assert config.max_message_bytes == 1048588
    assert config.message_timestamp_before_max_ms == 2**63 - 1
    assert config.unclean_leader_election_enable is False


def test_a_topics_settings_go_on_top_of_the_defaults():
    defaults = LogConfig(segment_bytes=4096, retention_ms=5)
    config = LogConfig.from_kafka({"segment.bytes": "1024", "cleanup.policy": "compact, delete"}, defaults)
    assert (config.segment_bytes, config.retention_ms) == (1024, 5)
    assert config.compact and config.delete
    assert config.overridden == {"segment.bytes", "cleanup.policy"}
    assert LogConfig.from_kafka(config.to_kafka()) == config


def test_the_logs_of_topics_without_settings_share_the_defaults():
    defaults = LogConfig(segment_bytes=4096)
    assert LogConfig.from_kafka({}, defaults) is defaults
    own = LogConfig.from_kafka({"segment.bytes": "4096"}, defaults)
    assert LogConfig.from_kafka({}, own).overridden == frozenset()
    with pytest.raises(InvalidConfig, match="is greater than max"):
        LogConfig.from_kafka({}, LogConfig(min_compaction_lag_ms=2, max_compaction_lag_ms=1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment.bytes", "13"),
        ("segment.bytes", "2147483648"),
        ("segment.bytes", "1_000"),
        ("segment.bytes", "big"),
        ("segment.bytes", ""),
        ("retention.ms", "-2"),
        ("cleanup.policy", "shred"),
        ("compression.type", "rar"),
        ("compression.gzip.level", "0"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("preallocate", "yes"),
        ("message.timestamp.type", "createtime"),
        ("leader.replication.throttled.replicas", "1:x"),
        ("no.such.setting", "1"),
        ("segment.bytes", None),
    ],
)
def test_a_value_that_kafka_refuses_is_refused_by_name(name, value):
    with pytest.raises(InvalidConfig, match=name.replace(".", r"\.")):
        LogConfig.from_kafka({name: value})


def test_compaction_lags_that_contradict_each_other_are_refused():
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms"):
        LogConfig.from_kafka({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})


def test_the_older_timestamp_limit_sets_both_newer_ones():
    config = LogConfig.from_kafka({"message.timestamp.difference.max.ms": "7", "message.timestamp.after.max.ms": "9"})
    assert config.message_timestamp_before_max_ms == 7
    assert config.message_timestamp_after_max_ms == 9


def test_broker_settings_give_the_defaults_and_finer_units_win():
    config = LogConfig.from_broker({"log.segment.bytes": "2048", "log.roll.hours": "2", "broker.id": "1"})
    assert (config.segment_bytes, config.segment_ms) == (2048, 7_200_000)
    config = LogConfig.from_broker({"log.retention.hours": "1", "log.retention.minutes": "2", "log.retention.ms": "-1"})
    assert config.retention_ms == -1
    assert LogConfig.from_broker({"log.retention.hours": -1}).retention_ms == -1
    assert config.overridden == frozenset()


def test_every_setting_has_a_type_a_sentence_and_existing_synonyms():
    for key in LOG_CONFIG_DEF:
        assert isinstance(key.type, ConfigType) and key.doc.endswith(".")
    assert set(BROKER_SYNONYMS) <= set(LOG_CONFIG_DEF.names())
