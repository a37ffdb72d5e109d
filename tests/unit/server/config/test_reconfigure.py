"""Settings that change while a broker runs (KIP-226): who uses one follows it."""

import socket

import pytest

import kcore
from kcore.errors import InvalidConfig, MessageTooLarge
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.messages.api_versions import ApiVersionsRequest
from kcore.server.config.broker_settings import RECONFIGURABLE
from kcore.server.config.kafka_config import KafkaConfig
from tests.unit.server.client import Client


def test_what_is_read_is_the_new_value_and_none_takes_back_the_one_of_the_start():
    config = KafkaConfig({"log.retention.hours": 2, "max.connections": 7})
    assert (config["max.connections"], config.log_config.retention_ms) == (7, 7_200_000)
    config.reconfigure({"max.connections": "9", "log_retention_ms": 50})
    assert (config["max.connections"], config.max_connections, config.log_config.retention_ms) == (9, 9, 50)
    assert config.originals == {"log.retention.hours": 2, "max.connections": "9", "log.retention.ms": 50}
    config.reconfigure({"max.connections": None})
    assert (config["max.connections"], config.log_config.retention_ms) == (7, 50)
    config.reconfigure({"log.retention.ms": None})
    assert config.log_config.retention_ms == 7_200_000
    assert config.originals == {"log.retention.hours": 2, "max.connections": 7}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max.connections": 3, "log.dirs": "x"}, r"cannot be changed while the broker runs: log\.dirs"),
        ({"max.connections": 3, "log.retention.hours": 1}, r"cannot be changed .*: log\.retention\.hours"),
        ({"max.connections": 3, "no.such": 1}, r"cannot be changed .*: no\.such"),
        (
            {"max.connections": 3, "log.segment.bytes": "many"},
            r"Invalid value many for configuration log\.segment\.bytes",
        ),
        (
            {"max.connections": 3, "max.connections.per.ip": 0},
            r"Invalid value 0 for configuration max\.connections\.per\.ip",
        ),
        ({"max.connections": 3, "log.cleaner.threads": 1000}, r"log\.cleaner\.dedupe\.buffer\.size"),
    ],
)
def test_a_change_that_is_refused_changes_nothing(changes, message):
    config, calls = KafkaConfig(), []
    config.on_change(RECONFIGURABLE, lambda: calls.append(1))
    with pytest.raises(InvalidConfig, match=message):
        config.reconfigure(changes)
    assert config["max.connections"] == 2**31 - 1 and calls == [] and config.originals == {}


def test_only_those_are_called_whose_settings_changed_and_until_they_leave():
    config, calls = KafkaConfig(), []
    leave = config.on_change(["max.connections"], lambda: calls.append(("connections", config["max.connections"])))
    config.on_change(["log.segment.bytes"], lambda: calls.append(("bytes", config["log.segment.bytes"])))
    config.reconfigure({"max.connections": 5})
    config.reconfigure({"max.connections": 5, "log.cleaner.threads": 2})
    config.reconfigure({"max.connections": 6, "log.segment.bytes": 1 << 20})
    assert calls == [("connections", 5), ("connections", 6), ("bytes", 1 << 20)]
    leave()
    config.reconfigure({"max.connections": 7})
    assert len(calls) == 3


def test_every_setting_that_can_change_exists():
    config = KafkaConfig()
    for name in RECONFIGURABLE:
        config[name]


def test_open_logs_follow_and_a_topics_own_settings_stay():
    with kcore.Broker(log_segment_bytes=1 << 20, message_max_bytes=1000) as broker:
        broker.create_topic("own", segment_bytes=5000)
        broker.create_topic("default")
        with pytest.raises(MessageTooLarge):
            broker.produce("default", b"x" * 2000)
        broker.config.reconfigure(
            {"log.segment.bytes": 9000, "message.max.bytes": 4000, "producer.id.expiration.ms": 12345}
        )
        assert broker.produce("default", b"x" * 2000).offset == 0
        assert broker.log("default").config.segment_bytes == 9000
        assert broker.log("own").config.segment_bytes == 5000
        assert broker.log("own").producer_state_manager.producer_id_expiration_ms == 12345
        for _ in range(5):
            broker.produce("default", b"x" * 2000)
        assert len(broker.log("default").segments) == 2
        broker.create_topic("new")
        assert broker.log("new").config.max_message_bytes == 4000
        assert broker.log("new").producer_state_manager.producer_id_expiration_ms == 12345
        broker.restart()
        assert broker.log("default").config.max_message_bytes == 4000
        broker.config.reconfigure({"message.max.bytes": None})
        assert broker.log("default").config.max_message_bytes == 1000


def test_a_running_cleaner_goes_on_with_other_threads_and_another_rate():
    with kcore.Broker(log_cleaner_backoff_ms=1) as broker:
        cleaner = broker.replica_manager.log_manager.cleaner
        first = cleaner.threads
        broker.config.reconfigure({"log.cleaner.io.max.bytes.per.second": 1e6})
        assert cleaner.threads is first and first[0].is_running and cleaner._throttler.rate_per_s == 1e6
        broker.config.reconfigure({"log.cleaner.threads": 2, "log.cleaner.dedupe.buffer.size": 8 << 20})
        assert len(cleaner.threads) == 2 and not first[0].is_running
        broker.create_topic("t", cleanup_policy="compact", segment_ms=1, min_cleanable_dirty_ratio=0)
        for value in (b"old", b"new"):
            broker.produce("t", value, key=b"k")
            broker.log("t").roll()
        deadline = 6000
        while deadline and [r.value for r in broker.log("t").records()] != [b"new"]:
            cleaner.threads[0].pause(10)
            deadline -= 1
        assert [record.value for record in broker.log("t").records()] == [b"new"]
        broker.config.reconfigure({"log.cleaner.threads": 0})
        assert cleaner.threads == []


def test_connections_are_bounded_by_the_new_limit():
    with kcore.Broker() as broker:
        broker.config.reconfigure({"max.connections.per.ip": 1})
        with Client(broker), socket.create_connection(("127.0.0.1", broker.port)) as second:
            second.settimeout(60)
            assert second.recv(1) == b""


def test_a_client_that_waits_is_let_in_by_a_higher_limit():
    with kcore.Broker(max_connections=1) as broker, Client(broker) as first:
        first.ask(ApiVersionsRequest(), 0)
        with Client(broker) as second:
            second.sock.settimeout(0.1)
            second.send(ApiVersionsRequest(), 0)
            with pytest.raises(TimeoutError):
                second.receive(ApiKey.API_VERSIONS, 0)
            broker.config.reconfigure({"max.connections": 2})
            second.sock.settimeout(60)
            assert second.receive(ApiKey.API_VERSIONS, 0).error_code == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"log.cleaner.io.buffer.load.factor": 5.0},
        {"log.cleaner.io.buffer.load.factor": 0},
        {"log.cleaner.io.buffer.load.factor": -1},
        {"log.cleaner.io.buffer.load.factor": 1e-9},
        {"log.cleaner.io.max.bytes.per.second": 0},
    ],
)
def test_a_cleaner_keeps_its_threads_when_a_change_is_refused(changes):
    (name,) = changes
    with pytest.raises(InvalidConfig, match=name):
        kcore.Broker(**changes)
    with kcore.Broker() as broker:
        cleaner = broker.replica_manager.log_manager.cleaner
        before, threads = cleaner.config, cleaner.threads
        with pytest.raises(InvalidConfig, match=name):
            broker.config.reconfigure(changes)
        assert (cleaner.config, cleaner.threads) == (before, threads) and threads[0].is_running
        assert broker.config.originals == {}


def test_a_cleaner_waits_through_the_longest_backoff():
    with kcore.Broker(log_cleaner_backoff_ms=2**63 - 1) as broker:
        (thread,) = broker.replica_manager.log_manager.cleaner.threads
        thread._thread.join(0.3)
        assert thread.is_running
