"""Settings of brokers that clients change: stored as Kafka stores them, followed by every broker (KIP-226)."""

import json
import logging

import pytest

import kcore
from kcore import errors
from kcore.common.time import MockTime
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.protocol.messages import alter_configs as ac
from kcore.protocol.messages import describe_configs as dc
from kcore.protocol.messages import incremental_alter_configs as iac
from kcore.server.config.config_changes import (
    AlterConfigOp,
    ConfigOperation,
    announce_config_change,
    config_change_notifications,
)
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.config.stored_broker_configs import StoredBrokerConfigs
from tests.unit.server.client import Client

SET, DELETE, APPEND = AlterConfigOp.SET, AlterConfigOp.DELETE, AlterConfigOp.APPEND
BROKER, CLUSTER = "1", ""
INVALID_REQUEST, INVALID_CONFIG = errors.InvalidRequest.code, errors.InvalidConfig.code


class Requests:
    """A client's requests about settings of brokers."""

    def __init__(self, broker):
        self.client = Client(broker)

    def alter(self, name, *changes, validate_only=False):
        """(error code, message) of a request with these (setting, operation, value)."""
        configs = [iac.AlterableConfig(name=n, config_operation=op, value=value) for n, op, value in changes]
        resource = iac.AlterConfigsResource(resource_type=4, resource_name=name, configs=configs)
        request = iac.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        (answer,) = self.client.ask(request, 1).responses
        return answer.error_code, answer.error_message

    def replace(self, name, *, validate_only=False, **settings):
        """(error code, message) of an AlterConfigs request: these are all settings."""
        configs = [ac.AlterableConfig(name=n.replace("_", "."), value=str(value)) for n, value in settings.items()]
        resource = ac.AlterConfigsResource(resource_type=4, resource_name=name, configs=configs)
        request = ac.AlterConfigsRequest(resources=[resource], validate_only=validate_only)
        (answer,) = self.client.ask(request, 2).responses
        return answer.error_code, answer.error_message

    def set(self, name, **settings):
        changes = [(setting.replace("_", "."), SET, str(value)) for setting, value in settings.items()]
        assert self.alter(name, *changes) == (0, None)

    def describe(self, resource_type, name):
        resource = dc.DescribeConfigsResource(resource_type=resource_type, resource_name=name, configuration_keys=None)
        (result,) = self.client.ask(dc.DescribeConfigsRequest(resources=[resource], include_synonyms=True), 4).results
        assert result.error_code == 0, result.error_message
        return {config.name: config for config in result.configs}


@pytest.fixture
def broker(tmp_path):
    with kcore.Broker(tmp_path, log_segment_bytes=1 << 20) as broker:
        yield broker


@pytest.fixture
def requests(broker):
    requests = Requests(broker)
    with requests.client:
        yield requests


def synonyms(config):
    return [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms]


def test_the_brokers_own_setting_wins_over_the_one_of_all_brokers_and_this_over_the_one_of_the_start(broker, requests):
    broker.create_topic("t")
    requests.set(CLUSTER, log_segment_bytes=3000)
    assert broker.log("t").config.segment_bytes == 3000
    requests.set(BROKER, log_segment_bytes=4000)
    assert broker.log("t").config.segment_bytes == 4000
    described = requests.describe(4, BROKER)["log.segment.bytes"]
    assert (described.value, described.config_source, described.read_only) == ("4000", 2, False)
    levels = [("4000", 2), ("3000", 3), (str(1 << 20), 4), (str(1 << 30), 5)]
    expected = [("log.segment.bytes", *level) for level in levels]
    assert synonyms(described) == synonyms(requests.describe(2, "t")["segment.bytes"]) == expected
    assert requests.describe(2, "t")["segment.bytes"].config_source == 2
    (of_all,) = requests.describe(4, CLUSTER).values()
    assert (of_all.name, of_all.value, of_all.config_source) == ("log.segment.bytes", "3000", 3)
    for name, value in ((BROKER, 3000), (CLUSTER, 1 << 20)):
        assert requests.alter(name, ("log.segment.bytes", DELETE, None)) == (0, None)
        assert broker.log("t").config.segment_bytes == value
    assert requests.describe(4, CLUSTER) == {}
    fixed = requests.describe(4, BROKER)["num.partitions"]
    assert (fixed.config_source, fixed.read_only) == (5, True)


def test_a_broker_alone_has_its_stored_settings_again_after_a_start(tmp_path):
    with kcore.Broker(tmp_path, num_io_threads=2) as broker:
        with (requests := Requests(broker)).client:
            requests.set(BROKER, log_segment_bytes=4000, num_io_threads=4)
            requests.set(CLUSTER, log_retention_ms=77)
        broker.restart()
        assert broker.config["log.segment.bytes"] == 4000
    with kcore.Broker(tmp_path) as broker:
        broker.create_topic("t")
        config = broker.log("t").config
        assert (config.segment_bytes, config.retention_ms, broker.config["num.io.threads"]) == (4000, 77, 4)


def test_QUOTA_04_throttles_follow_their_stored_rates(broker, requests):
    quotas = broker.running.services.replication_quotas

    def rates():
        return [manager.bytes_per_second for manager in (quotas.leader, quotas.follower, quotas.alter_log_dirs)]

    unbounded = rates()
    names = ["leader.replication.throttled.rate", "follower.replication.throttled.rate"]
    names.append("replica.alter.log.dirs.io.max.bytes.per.second")
    assert requests.alter(BROKER, *((name, SET, str(n)) for n, name in enumerate(names, 100))) == (0, None)
    assert rates() == [100, 101, 102]
    assert requests.alter(BROKER, *((name, DELETE, None) for name in names)) == (0, None)
    assert rates() == unbounded


@pytest.mark.parametrize(
    ("name", "change", "code", "message"),
    [
        (BROKER, ("num.partitions", SET, "3"), INVALID_REQUEST, "num.partitions"),
        (BROKER, ("metric.reporters", SET, "a.Reporter"), INVALID_REQUEST, "metric.reporters"),
        (BROKER, ("ssl.keystore.location", SET, "/k"), INVALID_REQUEST, "ssl.keystore.location"),
        (CLUSTER, ("listeners", SET, "PLAINTEXT://:9"), INVALID_REQUEST, "listeners"),
        (CLUSTER, ("sasl.kerberos.kinit.cmd", SET, "/k"), INVALID_REQUEST, "at default cluster level"),
        (BROKER, ("sasl.kerberos.min.time.before.relogin", SET, "soon"), INVALID_CONFIG, "before.relogin"),
        (BROKER, ("sasl.login.refresh.window.factor", SET, "0.4"), INVALID_CONFIG, "window.factor"),
        (BROKER, ("log.retention.hours", SET, "3"), INVALID_REQUEST, "log.retention.hours"),
        (BROKER, ("no.such", SET, "3"), INVALID_CONFIG, "no.such"),
        (BROKER, ("log.segment.bytes", SET, "many"), INVALID_CONFIG, "log.segment.bytes"),
        (CLUSTER, ("log.segment.bytes", SET, "1"), INVALID_CONFIG, "log.segment.bytes"),
        (BROKER, ("follower.replication.throttled.rate", SET, "-1"), INVALID_CONFIG, "throttled.rate"),
        (BROKER, ("log.cleaner.dedupe.buffer.size", SET, "7"), INVALID_CONFIG, "log.cleaner.dedupe.buffer.size"),
        (BROKER, ("num.io.threads", SET, "9"), INVALID_CONFIG, "double the current value 4"),
        (CLUSTER, ("num.io.threads", SET, "1"), INVALID_CONFIG, "half the current value 4"),
        (BROKER, ("log.cleaner.threads", SET, "0"), INVALID_CONFIG, "at least 1"),
        (BROKER, ("log.segment.bytes", SET, None), INVALID_REQUEST, "log.segment.bytes"),
        (BROKER, ("log.segment.bytes", APPEND, "1"), INVALID_CONFIG, "log.segment.bytes"),
        (BROKER, ("log.segment.bytes", 9, "1"), INVALID_REQUEST, "9"),
        ("2", ("log.segment.bytes", SET, "3000"), INVALID_REQUEST, "expected 1"),
        ("x", ("log.segment.bytes", SET, "3000"), INVALID_REQUEST, "must be an integer"),
    ],
)
def test_what_cannot_be_changed_is_refused_by_its_name_and_the_others_of_the_request_stay(
    broker, requests, name, change, code, message
):
    answer = requests.alter(name, ("log.index.interval.bytes", SET, "100"), change)
    assert answer[0] == code and message in answer[1]
    assert broker.config["log.index.interval.bytes"] == 4096
    assert broker.store.get(znodes.BROKER_CONFIGS) is None


def test_a_request_that_only_validates_changes_nothing(broker, requests):
    assert requests.alter(BROKER, ("log.segment.bytes", SET, "3000"), validate_only=True) == (0, None)
    assert requests.alter(BROKER, ("log.segment.bytes", SET, "x"), validate_only=True)[0] == INVALID_CONFIG
    assert broker.config["log.segment.bytes"] == 1 << 20


@pytest.mark.parametrize(("name", "entity"), [(BROKER, BROKER), (CLUSTER, znodes.DEFAULT_ENTITY)])
def test_AlterConfigs_replaces_all_settings_of_a_broker_also_those_that_kcore_does_not_know(
    broker, requests, name, entity
):
    broker.store.create_or_set(
        znodes.broker_config(entity), znodes.encode_config({"log.roll.ms": "98", "ssl.keystore.location": "/java"})
    )

    def stored():
        return znodes.decode_config(broker.store.get(znodes.broker_config(entity)).data)

    before = stored()
    assert requests.replace(name, log_segment_bytes=3000, num_partitions=3)[0] == INVALID_REQUEST
    assert requests.replace(name, log_segment_bytes=3000, num_io_threads=99)[0] == INVALID_CONFIG
    assert requests.replace(name, log_segment_bytes=3000, validate_only=True) == (0, None)
    assert stored() == before
    assert requests.replace(name, log_segment_bytes=3000, log_retention_ms=77) == (0, None)
    assert stored() == {"log.segment.bytes": "3000", "log.retention.ms": "77"}
    assert (broker.config["log.segment.bytes"], broker.config.log_config.retention_ms) == (3000, 77)
    assert requests.replace(name, log_retention_ms=78) == (0, None)
    assert (broker.config["log.segment.bytes"], broker.config.log_config.retention_ms) == (1 << 20, 78)
    assert requests.replace(name) == (0, None)
    assert stored() == {} and broker.config.log_config.retention_ms != 78


def test_what_AlterConfigs_takes_away_does_not_contradict_what_it_sets(broker, requests):
    lag = "log.cleaner.{}.compaction.lag.ms".format
    requests.set(CLUSTER, log_cleaner_min_compaction_lag_ms=1000)
    assert requests.alter(CLUSTER, (lag("max"), SET, "500"))[0] == INVALID_CONFIG
    assert requests.replace(CLUSTER, log_cleaner_max_compaction_lag_ms=500) == (0, None)
    assert (broker.config[lag("min")], broker.config[lag("max")]) == (0, 500)


def test_AlterConfigs_does_not_take_away_what_the_rest_needs(tmp_path):
    """The setting of the broker hides one of all brokers that contradicts another one."""
    with kcore.Broker(tmp_path, log_cleaner_min_compaction_lag_ms=1000) as broker:
        requests = Requests(broker)
        with requests.client:
            requests.set(BROKER, log_cleaner_min_compaction_lag_ms=10)
            requests.set(CLUSTER, log_cleaner_max_compaction_lag_ms=500)
            error_code, message = requests.replace(BROKER, log_retention_ms=77)
            assert error_code == INVALID_CONFIG and "lag" in message
            node = broker.store.get(znodes.broker_config(BROKER))
            assert znodes.decode_config(node.data) == {"log.cleaner.min.compaction.lag.ms": "10"}


def test_ADM_20_a_setting_that_kafka_takes_at_run_time_is_kept_though_nothing_here_reads_it(tmp_path):
    relogin, cache = "sasl.kerberos.min.time.before.relogin", "remote.log.index.file.cache.total.size.bytes"
    with kcore.Broker(tmp_path) as broker:
        with (requests := Requests(broker)).client:
            assert requests.alter(BROKER, (relogin, SET, "58000"), validate_only=True) == (0, None)
            assert relogin not in requests.describe(4, BROKER)
            assert requests.alter(BROKER, (relogin, SET, "58000")) == (0, None)
            assert requests.alter(CLUSTER, (cache, SET, "7"), ("background.threads", SET, "12")) == (0, None)
        broker.restart()
        with (requests := Requests(broker)).client:
            described, of_all = requests.describe(4, BROKER), requests.describe(4, CLUSTER)
            assert synonyms(described[relogin]) == [(relogin, "58000", 2), (relogin, "60000", 5)]
            assert (described[relogin].read_only, described[cache].config_source) == (False, 3)
            assert {name: entry.value for name, entry in of_all.items()} == {cache: "7", "background.threads": "12"}
            # AlterConfigs replaces all, and what was only kept goes too.
            assert requests.replace(BROKER, **{"log.retention.ms": 5}) == (0, None)
            assert relogin not in requests.describe(4, BROKER)


def test_a_list_is_appended_to_what_the_broker_has(broker, requests):
    assert requests.alter(CLUSTER, ("log.cleanup.policy", APPEND, "compact")) == (0, None)
    assert broker.config["log.cleanup.policy"] == ["delete", "compact"]


def test_a_new_default_that_contradicts_a_topics_own_setting_does_not_apply_to_it(broker, requests):
    broker.create_topic("own", min_compaction_lag_ms=1000)
    broker.create_topic("other")
    requests.set(BROKER, log_cleaner_max_compaction_lag_ms=10, log_retention_ms=77)

    def lags(topic):
        config = broker.log(topic).config
        return config.min_compaction_lag_ms, config.max_compaction_lag_ms, config.retention_ms

    for _ in range(2):
        assert lags("other") == (0, 10, 77)
        assert lags("own") == (1000, 2**63 - 1, 77)
        broker.restart()
    with (again := Requests(broker)).client:
        assert again.describe(2, "own")["max.compaction.lag.ms"].value == str(2**63 - 1)


# -- brokers of a cluster


class Scheduled:
    """A scheduler whose tasks run when the test says so."""

    def __init__(self):
        self.tasks = []

    def schedule(self, name, task, delay_ms=0):
        self.tasks.append((task, delay_ms))

    def run(self):
        tasks, self.tasks = self.tasks, []
        for task, _ in tasks:
            task()


class Member:
    """A broker of a cluster, as far as it follows settings."""

    def __init__(self, broker_id, tree):
        self.tree = tree
        self.store = MemoryStore(tree)
        self.config = KafkaConfig()
        self.scheduler = Scheduled()
        self.configs = StoredBrokerConfigs(broker_id, self.config, self.store, is_member=True)
        self.configs.read_all()
        self.changes = config_change_notifications(self.store, self.scheduler, MockTime())
        self.changes.start([self.configs])

    def catch_up(self):
        self.store.pump()
        self.scheduler.run()

    def put(self, entity, data):
        put(self.store, entity, data)


def put(store, entity, data):
    """As Kafka's tools do."""
    store.create_or_set(znodes.broker_config(entity), data)
    announce_config_change(store, znodes.broker_config(entity))


@pytest.fixture
def member():
    member = Member(0, MemoryTree())
    yield member
    member.store.close()


def operation(name, value):
    return ConfigOperation(name, DELETE if value is None else SET, value)


def test_every_broker_follows_a_change_for_all_and_only_one_a_change_of_its_own(member):
    other = Member(7, member.tree)
    other.configs.alter("7", [operation("max.connections", "5")])
    member.configs.alter("", [operation("log.segment.bytes", "3000")])
    other.catch_up()
    member.catch_up()
    assert (other.config["log.segment.bytes"], other.config["max.connections"]) == (3000, 5)
    assert (member.config["log.segment.bytes"], member.config["max.connections"]) == (3000, 2**31 - 1)
    other.store.close()


def test_the_nodes_are_those_of_kafka(member):
    member.configs.alter("", [operation("log.segment.bytes", "3000")])
    member.configs.alter("0", [operation("max.connections", "5")])
    member.configs.alter("0", [operation("max.connections", None)])

    def read(path):
        return json.loads(member.store.get(path).data)

    assert read("/config/brokers/<default>") == {"version": 1, "config": {"log.segment.bytes": "3000"}}
    assert read("/config/brokers/0") == {"version": 1, "config": {}}
    changes = [read(f"/config/changes/{name}") for name in member.store.children("/config/changes")]
    assert changes == [{"version": 2, "entity_path": f"brokers/{entity}"} for entity in ("<default>", "0", "0")]


def test_what_another_program_has_stored_is_followed_as_far_as_it_can_be(member, caplog):
    """Kafka's tools write settings that this broker does not know; they stay in the node."""
    stored = {"ssl.keystore.location": "x", "log.segment.bytes": "many", "log.roll.ms": "99"}
    member.put("0", znodes.encode_config(stored))
    with caplog.at_level(logging.ERROR):
        member.catch_up()
    assert member.config.log_config.segment_ms == 99 and member.config["log.segment.bytes"] == 1 << 30
    assert {record.getMessage().split("=")[0].split()[-1] for record in caplog.records} == {
        "ssl.keystore.location",
        "log.segment.bytes",
    }
    member.configs.alter("0", [operation("log.roll.ms", "98")])
    assert znodes.decode_config(member.store.get("/config/brokers/0").data) == {**stored, "log.roll.ms": "98"}


def test_a_stored_setting_that_contradicts_those_at_the_start_is_left_out_and_the_others_are_followed(member, caplog):
    member.put("0", znodes.encode_config({"log.segment.bytes": "3000"}))
    member.catch_up()
    member.put("0", znodes.encode_config({"log.segment.bytes": "4000", "log.cleaner.dedupe.buffer.size": "7"}))
    member.catch_up()
    assert member.config["log.segment.bytes"] == 4000
    assert "log.cleaner.dedupe.buffer.size" in caplog.text


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"version": 1, "config": [1]}', b'{"version": 1}', b"\xff"])
def test_a_node_that_cannot_be_read_changes_nothing_and_is_named_to_who_changes_it(member, caplog, data):
    member.put("0", znodes.encode_config({"log.segment.bytes": "3000"}))
    member.catch_up()
    member.put("0", data)
    member.put("<default>", znodes.encode_config({"max.connections": "5"}))
    member.catch_up()
    assert (member.config["log.segment.bytes"], member.config["max.connections"]) == (3000, 5)
    assert "cannot be read" in caplog.text
    with pytest.raises(errors.InvalidRequest, match="/config/brokers/0"):
        member.configs.alter("0", [operation("log.segment.bytes", "4000")])


def test_after_the_store_was_away_what_has_changed_is_read(member):
    other = MemoryStore(member.tree)
    member.store.disconnect()
    put(other, "0", znodes.encode_config({"max.connections": "5"}))
    with pytest.raises(errors.RequestTimedOut, match="metadata store"):
        member.configs.alter("0", [operation("max.connections", "6")])
    member.changes.read_later(znodes.broker_config("0"))
    member.scheduler.run()
    ((_, delay_ms),) = member.scheduler.tasks
    assert delay_ms > 0
    member.store.reconnect()
    member.catch_up()
    assert member.config["max.connections"] == 5
    put(other, "0", znodes.encode_config({"max.connections": "7"}))
    member.catch_up()
    assert member.config["max.connections"] == 7
    other.close()


def test_a_new_session_reads_what_has_changed(member):
    other = MemoryStore(member.tree)
    put(other, "0", znodes.encode_config({"max.connections": "4"}))
    member.catch_up()
    member.tree.expire(member.store.session_id)
    other.set("/config/brokers/0", znodes.encode_config({"max.connections": "5"}))
    member.catch_up()
    assert member.config["max.connections"] == 4
    member.store.new_session()
    member.catch_up()
    assert member.config["max.connections"] == 5
    put(other, "0", znodes.encode_config({"max.connections": "6"}))
    member.catch_up()
    assert member.config["max.connections"] == 6
    other.close()


def test_a_node_that_nobody_announces_is_read_at_the_next_announcement(member):
    """As by Kafka."""
    other = MemoryStore(member.tree)
    other.create_recursive("/config/brokers/0", znodes.encode_config({"max.connections": "5"}))
    member.catch_up()
    assert member.config["max.connections"] == 2**31 - 1
    announce_config_change(other, znodes.broker_config("<default>"))
    member.catch_up()
    assert member.config["max.connections"] == 5
    other.close()


def test_a_setting_that_the_program_changes_gives_way_to_the_stored_one():
    config = KafkaConfig({"max.connections": 7})
    config.use_stored(broker={}, cluster={"max.connections": "5"})
    config.reconfigure({"max.connections": 9})
    assert config["max.connections"] == 5
    config.use_stored(broker={}, cluster={})
    assert config["max.connections"] == 9


def test_of_stored_settings_that_contradict_each_other_only_those_are_left_out_and_a_client_hears_of_it(caplog):
    """Two clients have set them at two brokers at the same time, or the broker was started with another one."""
    store = MemoryStore()
    lags = {"log.cleaner.min.compaction.lag.ms": "1000", "log.cleaner.max.compaction.lag.ms": "500"}
    stored = {**lags, "log.retention.ms": "7"}
    store.create_recursive(znodes.broker_config("<default>"), znodes.encode_config(stored))
    started = KafkaConfig({"broker.id": 1, "log.cleaner.min.compaction.lag.ms": 1000})
    for config in (KafkaConfig({"broker.id": 1}), started):
        caplog.clear()
        configs = StoredBrokerConfigs(1, config, store, is_member=False)
        for _ in range(2):
            configs.read_all()
        assert config["log.retention.ms"] == 7
        assert len(config.levels.cluster) == 2 and len(caplog.records) == 1
        configs.alter(BROKER, [ConfigOperation("log.segment.bytes", SET, "3000")])
        assert config["log.segment.bytes"] == 3000
    with pytest.raises(errors.InvalidConfig, match="lag"):
        configs.alter(CLUSTER, [ConfigOperation("log.cleaner.max.compaction.lag.ms", SET, "400")])


def test_a_broker_that_has_not_heard_of_a_change_yet_refuses_what_contradicts_it():
    tree = MemoryTree()
    brokers = [StoredBrokerConfigs(n, KafkaConfig({"broker.id": n}), MemoryStore(tree), is_member=True) for n in (1, 2)]
    brokers[0].alter(CLUSTER, [ConfigOperation("log.cleaner.min.compaction.lag.ms", SET, "1000")])
    with pytest.raises(errors.InvalidConfig, match="lag"):
        brokers[1].alter(CLUSTER, [ConfigOperation("log.cleaner.max.compaction.lag.ms", SET, "500")])


def test_the_data_directory_of_a_brokers_arguments_is_described_as_a_setting_of_its_start(requests, tmp_path):
    described = requests.describe(4, BROKER)["log.dirs"]
    assert (described.value, described.config_source, described.read_only) == (str(tmp_path), 4, True)


@pytest.mark.parametrize(
    ("arguments", "listeners"),
    [
        ({"port": 9092}, "PLAINTEXT://127.0.0.1:9092"),
        ({"port": 9092, "host": "::1"}, "PLAINTEXT://[::1]:9092"),
        ({"port": 0}, None),  # known at the start only
        ({"port": 9092, "listeners": "PLAINTEXT://localhost:9093"}, "PLAINTEXT://localhost:9093"),
    ],
)
def test_the_address_of_a_brokers_arguments_is_its_listener(arguments, listeners, tmp_path):
    assert kcore.Broker(tmp_path, **arguments).config["listeners"] == listeners


def test_a_data_directory_with_a_comma_is_one_directory(tmp_path):
    with kcore.Broker(tmp_path / "a,b") as broker:
        assert broker.replica_manager.log_manager.live_log_dirs == [str(tmp_path / "a,b")]
