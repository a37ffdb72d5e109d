"""Broker settings under Kafka's names."""

import sys

import pytest

from kcore.common.properties import parse_properties, read_properties
from kcore.errors import InvalidConfig
from kcore.log.log_cleaner import CleanerConfig
from kcore.log.log_config import BROKER_SYNONYMS
from kcore.network.listener import Listener, SecurityProtocol
from kcore.server.config import kafka_config
from kcore.server.config.broker_settings import KAFKA_CONFIG_DEF
from kcore.server.config.kafka_config import KafkaConfig


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch):
    monkeypatch.setattr(kafka_config, "_warned_of", set())


def test_dots_and_underscores_name_the_same_setting():
    config = KafkaConfig({"log_segment_bytes": 1 << 20, "num.partitions": "3", "auto_create_topics_enable": False})
    assert config["log.segment.bytes"] == config.log_segment_bytes == 1 << 20
    assert config.log_config.segment_bytes == 1 << 20
    assert (config.num_partitions, config.auto_create_topics_enable) == (3, False)
    with pytest.raises(AttributeError):
        config.no_such_setting  # noqa: B018


def test_defaults_are_kafkas_but_for_the_ones_documented():
    config = KafkaConfig()
    expected = {
        "socket.request.max.bytes": 104857600,
        "connections.max.idle.ms": 600000,
        "fetch.max.bytes": 57671680,
        "message.max.bytes": 1048588,
        "log.retention.hours": 168,
        "log.retention.ms": None,
        "offsets.topic.num.partitions": 50,
        "offset.metadata.max.bytes": 4096,
        "group.max.session.timeout.ms": 1800000,
        "compression.type": "producer",
        "log.cleanup.policy": ["delete"],
        # Not Kafka's: see docs/compatibility.md.
        "num.network.threads": 1,
        "socket.send.buffer.bytes": -1,
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.replication.factor": 1,
    }
    assert {name: config[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("settings", "alone", "member"),
    [
        ({}, 1, 1),
        ({"default.replication.factor": "3"}, 1, 3),
        ({"default.replication.factor": "3", "offsets.topic.replication.factor": "2"}, 2, 2),
        ({"default.replication.factor": "3", "offsets.topic.replication.factor": "1"}, 1, 1),
    ],
)
def test_a_member_of_a_cluster_keeps_offsets_in_as_many_replicas_as_other_topics_unless_it_is_set(
    settings, alone, member
):
    name = "offsets.topic.replication.factor"
    assert KafkaConfig(settings)[name] == alone
    config = KafkaConfig(settings, is_cluster_member=True)
    assert config[name] == member
    config.reconfigure({"num.io.threads": 5})
    config.use_stored(broker={}, cluster={"num.io.threads": "6"})
    assert (config[name], config["num.io.threads"]) == (member, 6)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"group.consumer.session.timeout.ms": 44_999}, "between group.consumer.min.session.timeout.ms"),
        ({"group.consumer.session.timeout.ms": 60_001}, "group.consumer.max.session.timeout.ms"),
        ({"group.consumer.heartbeat.interval.ms": 4999}, "group.consumer.min.heartbeat.interval.ms"),
        ({"group.consumer.heartbeat.interval.ms": 15_001}, "group.consumer.max.heartbeat.interval.ms"),
        ({"group.consumer.assignment.interval.ms": 15_001}, "group.consumer.max.assignment.interval.ms"),
        (
            {"group.consumer.min.assignment.interval.ms": 1},
            "between group.consumer.min.assignment.interval.ms",
        ),
        (
            {"group.consumer.min.session.timeout.ms": 5000, "group.consumer.session.timeout.ms": 5000},
            "must be less than group.consumer.session.timeout.ms",
        ),
        ({"group.consumer.assignors": "uniform,mine"}, "expected uniform, range or both"),
        ({"group.consumer.assignors": "range,range"}, "expected uniform, range or both"),
    ],
)
def test_CG_37_settings_of_the_consumer_protocol_are_held_to_their_limits(settings, problem):
    with pytest.raises(InvalidConfig, match=problem):
        KafkaConfig(settings)


def test_CG_54_the_migration_policy_is_one_of_four_in_any_case_of_letters():
    for text in ("bidirectional", "UPGRADE", "Downgrade", "disabled"):
        config = KafkaConfig({"group.consumer.migration.policy": text}).group_config(1)
        assert config.consumer_migration_policy.value == text.lower()
    assert KafkaConfig({}).group_config(1).consumer_migration_policy.value == "bidirectional"
    with pytest.raises(InvalidConfig, match="one of bidirectional, upgrade, downgrade, disabled"):
        KafkaConfig({"group.consumer.migration.policy": "sideways"})


def test_CG_25_assignors_may_be_named_by_their_classes():
    name = "org.apache.kafka.coordinator.group.assignor.RangeAssignor"
    assert KafkaConfig({"group.consumer.assignors": name}).group_config(1).consumer_assignors == ("range",)


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("log.segment.byte", "log.segment.bytes"),
        ("num_partition", "num.partitions"),
        ("segment_bytes", "log.segment.bytes"),
        ("retention.ms", "log.retention.ms"),
        ("zookeeper.conect", "zookeeper.connect"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_right_one(name, suggested):
    with pytest.raises(InvalidConfig, match=suggested):
        KafkaConfig({name: "1"})


def test_a_name_like_nothing_is_refused_without_a_guess():
    with pytest.raises(InvalidConfig, match=r"Unknown broker setting xyzzy$"):
        KafkaConfig({"xyzzy": 1})


def test_all_unknown_names_are_in_one_error():
    with pytest.raises(InvalidConfig) as raised:
        KafkaConfig({"xyzzy": 1, "num.partitions": 3, "num_partition": 1, "retention.ms": 1})
    assert str(raised.value) == (
        "Unknown broker settings: xyzzy; num.partition (did you mean num.partitions?); "
        "retention.ms (a topic's retention.ms has its default from log.retention.ms)"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num.partitions", "0"),
        ("num.partitions", "many"),
        ("num.network.threads", 0),
        ("auto.create.topics.enable", "yes"),
        ("log.segment.bytes", 13),
        ("log.cleanup.policy", "shred"),
        ("compression.type", "rar"),
        ("log.retention.hours", "1.5"),
        ("broker.id", -2),
    ],
)
def test_a_value_that_the_name_does_not_take_is_refused_by_name(name, value):
    with pytest.raises(InvalidConfig, match=name.replace(".", r"\.")):
        KafkaConfig({name: value})


def test_kafkas_own_server_properties_is_accepted(caplog):
    config = KafkaConfig(
        parse_properties(
            """
            # The part of config/server.properties that Kafka 4.1 ships uncommented.
            process.roles=broker,controller
            node.id=7
            controller.quorum.bootstrap.servers=localhost:9093
            listeners=PLAINTEXT://:9092,CONTROLLER://:9093
            inter.broker.listener.name=PLAINTEXT
            advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
            controller.listener.names=CONTROLLER
            listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
            num.network.threads=3
            num.io.threads=8
            socket.send.buffer.bytes=102400
            socket.receive.buffer.bytes=102400
            socket.request.max.bytes=104857600
            log.dirs=/tmp/kraft-combined-logs
            num.partitions=1
            num.recovery.threads.per.data.dir=2
            offsets.topic.replication.factor=1
            transaction.state.log.replication.factor=1
            transaction.state.log.min.isr=1
            log.retention.hours=168
            log.segment.bytes=1073741824
            log.retention.check.interval.ms=300000
            """
        )
    )
    assert config.configured_broker_id == 7
    assert config.data_dirs == ["/tmp/kraft-combined-logs"]
    assert config.listeners == [Listener("PLAINTEXT", SecurityProtocol.PLAINTEXT, "", 9092)]
    assert config.advertised_listeners == [Listener("PLAINTEXT", SecurityProtocol.PLAINTEXT, "localhost", 9092)]
    assert config["num.io.threads"] == 8
    assert (
        "controller.quorum.bootstrap.servers=localhost:9093: this setting of Kafka's has no effect here" in caplog.text
    )


def test_a_setting_without_effect_is_warned_of_once_however_often_it_is_read(caplog):
    for _ in range(3):  # as `kcore serve` does, and a broker that is made anew for each test
        KafkaConfig({"background.threads": "8", "metrics.num.samples": 4})
        KafkaConfig({"background_threads": 16})
    ignored_names = [record.getMessage().split("=")[0] for record in caplog.records]
    assert sorted(ignored_names) == ["background.threads", "metrics.num.samples"]


@pytest.mark.parametrize("name", ["ssl.keystore.location", "sasl.enabled.mechanisms", "principal.builder.class"])
def test_a_setting_that_protects_is_never_ignored(name):
    with pytest.raises(InvalidConfig, match="must not be ignored"):
        KafkaConfig({name: "x"})


@pytest.mark.parametrize("listeners", ["SSL://:9093", "PLAINTEXT:9092", "PLAINTEXT://:70000", "PLAINTEXT://h:x"])
def test_a_listener_that_cannot_be_served_is_refused(listeners):
    with pytest.raises(InvalidConfig, match="listeners"):
        KafkaConfig({"listeners": listeners})


def test_broker_id_and_node_id_are_one_setting():
    assert KafkaConfig().configured_broker_id is None
    assert KafkaConfig({"node.id": 3}).configured_broker_id == 3
    assert KafkaConfig({"node.id": 3, "broker.id": "3"}).configured_broker_id == 3
    with pytest.raises(InvalidConfig):
        KafkaConfig({"node.id": 3, "broker.id": 4})


def test_every_default_of_a_topic_can_be_set_on_the_broker():
    for synonyms in BROKER_SYNONYMS.values():
        for name, _ in synonyms:
            assert name in KAFKA_CONFIG_DEF
    assert KafkaConfig({"log.retention.minutes": 5, "log.retention.hours": 1}).log_config.retention_ms == 300_000


def test_a_properties_file_is_read_as_java_reads_it(tmp_path):
    path = tmp_path / "server.properties"
    path.write_text(
        "# comment\n! comment\n\na=1\n  b = two words  \nc:3\nd 4\nlong=one,\\\n   two\nkey\\=with\\:signs=x\n"
        "u=\\u0041\\tB\nempty=\npath=C\\:\\\\dir\n"
    )
    assert read_properties(str(path)) == {
        "a": "1",
        "b": "two words",
        "c": "3",
        "d": "4",
        "long": "one,two",
        "key=with:signs": "x",
        "u": "A\tB",
        "empty": "",
        "path": "C:\\dir",
    }


def test_the_cleaner_is_set_under_kafkas_names():
    assert KafkaConfig().cleaner_config == CleanerConfig(max_io_bytes_per_second=sys.float_info.max)
    config = KafkaConfig(
        {
            "log.cleaner.enable": "false",
            "log.cleaner.threads": "2",
            "log.cleaner.io.max.bytes.per.second": "1048576",
            "log.cleaner.dedupe.buffer.size": "4194304",
            "log.cleaner.io.buffer.size": "65536",
            "log.cleaner.io.buffer.load.factor": "0.5",
            "log.cleaner.backoff.ms": "100",
        }
    )
    assert config.cleaner_config == CleanerConfig(2, 4 << 20, 0.5, 64 << 10, 2.0**20, 100, False)


def test_a_cleaner_thread_needs_a_mebibyte_for_keys():
    with pytest.raises(InvalidConfig, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        KafkaConfig({"log.cleaner.dedupe.buffer.size": 2 << 20, "log.cleaner.threads": 2})


@pytest.mark.parametrize(
    ("factor", "default", "is_cluster_member", "expected"),
    [
        (None, None, False, (1, 1)),
        (None, None, True, (1, 1)),
        (None, 3, True, (3, 2)),
        (None, 3, False, (1, 1)),
        (2, None, False, (2, 2)),
        (1, 3, True, (1, 1)),
    ],
)
def test_TXN_05_transaction_state_has_the_replicas_of_the_cluster_and_two_in_sync_where_it_can(
    factor, default, is_cluster_member, expected
):
    names = ("transaction.state.log.replication.factor", "transaction.state.log.min.isr")
    given = {"transaction.state.log.replication.factor": factor, "default.replication.factor": default}
    settings = {name: value for name, value in given.items() if value is not None}
    config = KafkaConfig(settings, is_cluster_member=is_cluster_member)
    assert tuple(config[name] for name in names) == expected
    assert KafkaConfig({**settings, "transaction.state.log.min.isr": 1})[names[1]] == 1


def test_a_path_may_be_a_path_object(tmp_path):
    config = KafkaConfig({"log.dirs": tmp_path / "a", "kcore_temporary_dir": tmp_path})
    assert config.data_dirs == [str(tmp_path / "a")]
    assert config["kcore.temporary.dir"] == str(tmp_path)
