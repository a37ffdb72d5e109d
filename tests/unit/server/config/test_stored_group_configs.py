"""Settings that consumer groups have of their own: changed by clients, stored, followed by every broker."""

import logging
import re

import pytest

import kcore
from kcore import errors
from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.protocol.messages import alter_configs as ac
from kcore.protocol.messages import describe_configs as dc
from kcore.protocol.messages import incremental_alter_configs as iac
from kcore.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kcore.protocol.messages.find_coordinator import FindCoordinatorRequest
from kcore.server.config.config_changes import AlterConfigOp, ConfigOperation, config_change_notifications
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.config.stored_group_configs import StoredGroupConfigs
from tests.unit.server.client import Client
from tests.waiting import wait_until

SET, DELETE, APPEND = AlterConfigOp.SET, AlterConfigOp.DELETE, AlterConfigOp.APPEND
GROUP = 32
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
INTERVAL = "consumer.assignment.interval.ms"
INVALID_REQUEST, INVALID_CONFIG = errors.InvalidRequest.code, errors.InvalidConfig.code
GROUP_SOURCE, STATIC_SOURCE, DEFAULT_SOURCE = 8, 4, 5


class Requests:
    def __init__(self, client):
        self.client = client

    def alter(self, name, *changes, validate_only=False):
        """(error code, message) of a request with these (setting, operation, value)."""
        configs = [iac.AlterableConfig(name=n, config_operation=op, value=value) for n, op, value in changes]
        resource = iac.AlterConfigsResource(resource_type=GROUP, resource_name=name, configs=configs)
        request = iac.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        (answer,) = self.client.ask(request, 1).responses
        return answer.error_code, answer.error_message

    def replace(self, name, settings):
        configs = [ac.AlterableConfig(name=n, value=str(value)) for n, value in settings.items()]
        resource = ac.AlterConfigsResource(resource_type=GROUP, resource_name=name, configs=configs)
        (answer,) = self.client.ask(ac.AlterConfigsRequest(resources=[resource]), 2).responses
        return answer.error_code

    def describe(self, name):
        resource = dc.DescribeConfigsResource(resource_type=GROUP, resource_name=name, configuration_keys=None)
        (result,) = self.client.ask(dc.DescribeConfigsRequest(resources=[resource], include_synonyms=True), 4).results
        return result

    def values(self, name):
        return {config.name: config.value for config in self.describe(name).configs}

    def heartbeat_interval(self, name):
        join = {"member_id": "m", "rebalance_timeout_ms": 60_000, "topic_partitions": [], "subscribed_topic_names": []}
        wait_until(lambda: self.client.ask(FindCoordinatorRequest(key=name), 3).error_code == 0)
        answer = self.client.ask(ConsumerGroupHeartbeatRequest(group_id=name, **join), 1)
        assert answer.error_code == 0
        return answer.heartbeat_interval_ms


@pytest.fixture
def broker(tmp_path):
    settings = {"group.consumer.heartbeat.interval.ms": 6000}
    with kcore.Broker(tmp_path, offsets_topic_num_partitions=1, **settings) as broker:
        yield broker


@pytest.fixture
def requests(broker):
    with Client(broker) as client:
        yield Requests(client)


def test_CG_53_a_group_has_its_own_settings_at_once_and_others_those_of_the_broker(broker, requests):
    assert requests.heartbeat_interval("g") == 6000
    assert requests.alter("g", (HEARTBEAT, SET, "7000"), (SESSION, SET, "50000")) == (0, None)
    assert (requests.heartbeat_interval("g"), requests.heartbeat_interval("other")) == (7000, 6000)
    coordinator = broker.group_coordinator.consumer_groups
    assert coordinator.settings_of("g") == (50_000, 7000, 0)
    assert coordinator.settings_of("other") == (45_000, 6000, 0)
    assert requests.alter("g", (HEARTBEAT, DELETE, None)) == (0, None)
    assert requests.heartbeat_interval("g") == 6000


def test_CG_18_a_group_may_have_an_interval_between_assignments_of_its_own(broker, requests):
    assert requests.alter("g", (INTERVAL, SET, "15001"))[0] == INVALID_CONFIG
    assert requests.alter("g", (INTERVAL, SET, "2000")) == (0, None)
    coordinator = broker.group_coordinator.consumer_groups
    assert coordinator.settings_of("g").assignment_interval_ms == 2000
    assert coordinator.settings_of("other").assignment_interval_ms == 0


def test_CG_53_they_outlast_the_broker_and_need_no_group(broker):
    with Client(broker) as client:
        assert Requests(client).alter("a/b ~", (SESSION, SET, "50000")) == (0, None)
    broker.restart()
    with Client(broker) as client:
        assert Requests(client).values("a/b ~") == {SESSION: "50000", HEARTBEAT: "6000", INTERVAL: "0"}


def test_CG_53_described_settings_say_where_they_come_from_down_to_the_brokers(requests):
    requests.alter("g", (HEARTBEAT, SET, "7000"))
    configs = {config.name: config for config in requests.describe("g").configs}
    heartbeat, session = configs[HEARTBEAT], configs[SESSION]
    assert (heartbeat.value, heartbeat.config_source, heartbeat.read_only) == ("7000", GROUP_SOURCE, False)
    assert [(s.name, s.value, s.source) for s in heartbeat.synonyms] == [
        (HEARTBEAT, "7000", GROUP_SOURCE),
        (f"group.{HEARTBEAT}", "6000", STATIC_SOURCE),
        (f"group.{HEARTBEAT}", "5000", DEFAULT_SOURCE),
    ]
    assert (session.value, session.config_source) == ("45000", DEFAULT_SOURCE)


@pytest.mark.parametrize(
    ("name", "change", "code", "text"),
    [
        ("", (SESSION, SET, "50000"), INVALID_REQUEST, "Default group"),
        ("g", (SESSION, SET, "44999"), INVALID_CONFIG, "group.consumer.min.session.timeout.ms (45000)"),
        ("g", (SESSION, SET, "60001"), INVALID_CONFIG, "group.consumer.max.session.timeout.ms (60000)"),
        ("g", (HEARTBEAT, SET, "4999"), INVALID_CONFIG, "group.consumer.min.heartbeat.interval.ms"),
        ("g", (HEARTBEAT, SET, "15001"), INVALID_CONFIG, "group.consumer.max.heartbeat.interval.ms"),
        ("g", (SESSION, SET, "many"), INVALID_CONFIG, SESSION),
        ("g", (SESSION, APPEND, "50000"), INVALID_CONFIG, SESSION),
        ("g", ("retention.ms", SET, "1"), INVALID_CONFIG, "Unknown group config name: retention.ms"),
        ("g", (SESSION, SET, None), INVALID_REQUEST, SESSION),
        ("g", (SESSION, 9, "50000"), INVALID_REQUEST, "9"),
    ],
)
def test_CG_53_what_a_group_cannot_have_is_refused_and_changes_nothing(requests, name, change, code, text):
    answer = (
        requests.alter(name, (HEARTBEAT, SET, "7000"), change)
        if change[0] != HEARTBEAT
        else (requests.alter(name, change))
    )
    assert answer[0] == code and text in answer[1]
    if name:
        assert requests.values(name) == {SESSION: "45000", HEARTBEAT: "6000", INTERVAL: "0"}
    else:
        assert requests.describe(name).error_code == INVALID_REQUEST


def test_CG_53_a_session_must_be_longer_than_the_interval_also_where_one_of_them_is_the_brokers(tmp_path):
    limits = {"group.consumer.min.session.timeout.ms": 1000, "group.consumer.max.heartbeat.interval.ms": 50_000}
    with kcore.Broker(tmp_path, **limits) as broker, Client(broker) as client:
        requests = Requests(client)
        assert requests.alter("g", (SESSION, SET, "5000"))[0] == INVALID_CONFIG
        assert requests.alter("g", (HEARTBEAT, SET, "45000"))[0] == INVALID_CONFIG
        assert requests.alter("g", (SESSION, SET, "5001")) == (0, None)
        assert requests.alter("g", (HEARTBEAT, SET, "5001"))[0] == INVALID_CONFIG


def test_CG_53_a_validation_changes_nothing_and_a_replacement_ends_the_other_settings(requests):
    assert requests.alter("g", (SESSION, SET, "50000"), validate_only=True) == (0, None)
    assert requests.values("g")[SESSION] == "45000"
    requests.alter("g", (SESSION, SET, "50000"))
    assert requests.replace("g", {HEARTBEAT: 8000}) == 0
    assert requests.values("g") == {SESSION: "45000", HEARTBEAT: "8000", INTERVAL: "0"}


def operation(name, value):
    return ConfigOperation(name, DELETE if value is None else SET, value)


class Member:
    """A broker's settings of groups in a store that it shares with others."""

    def __init__(self, tree):
        self.time = MockTime()
        self.store = MemoryStore(tree)
        self.configs = StoredGroupConfigs(self.store, KafkaConfig({}), is_member=True)
        self.scheduler = MockScheduler(self.time)
        self.changes = config_change_notifications(self.store, self.scheduler, self.time)
        self.changes.start([self.configs])

    def catch_up(self):
        self.store.pump()
        self.scheduler.tick()


@pytest.fixture
def tree():
    return MemoryTree()


def test_CG_53_every_broker_of_a_cluster_follows_them(tree):
    first, second = Member(tree), Member(tree)
    first.configs.alter("g", [operation(SESSION, "50000")])
    second.catch_up()
    assert second.configs.settings("g").session_timeout_ms == 50_000
    late = Member(tree)
    assert late.configs.settings("g").session_timeout_ms == 50_000
    second.configs.alter("g", [operation(HEARTBEAT, "7000")])
    first.configs.alter("g", [operation(SESSION, None)])
    second.catch_up()
    assert second.configs.config_of("g") == {HEARTBEAT: "7000"}
    assert znodes.decode_config(first.store.get("/config/groups/g").data) == {HEARTBEAT: "7000"}


def test_CG_53_a_broker_that_has_not_heard_of_a_change_yet_refuses_what_contradicts_it(tree):
    config = KafkaConfig({"group.consumer.min.session.timeout.ms": 1000})
    first, second = (StoredGroupConfigs(MemoryStore(tree), config, is_member=True) for _ in range(2))
    first.alter("g", [operation(SESSION, "6000")])
    with pytest.raises(errors.InvalidConfig, match=re.escape(f"{SESSION} (6000) must be greater")):
        second.alter("g", [operation(HEARTBEAT, "7000")])
    assert second.config_of("g") == {SESSION: "6000"}


def test_CG_53_what_a_newer_broker_has_stored_stays_and_a_body_that_cannot_be_read_changes_nothing(tree, caplog):
    member = Member(tree)
    member.configs.alter("g", [operation(SESSION, "50000")])
    path = f"{znodes.GROUP_CONFIGS}/g"
    stored = {SESSION: "51000", HEARTBEAT: "often", "consumer.new.ms": "1"}
    member.store.update(path, lambda data: znodes.encode_config(stored))
    with caplog.at_level(logging.ERROR):
        member.configs.read_changed([path])
    assert member.configs.config_of("g") == {SESSION: "51000"} and "often" in caplog.text
    member.configs.alter("g", [operation(SESSION, "52000")])
    assert znodes.decode_config(member.store.get(path).data) == {**stored, SESSION: "52000"}
    member.store.update(path, lambda data: b"{")
    member.configs.read_changed([path])
    assert member.configs.config_of("g") == {SESSION: "52000"}


def test_CG_53_a_node_that_is_gone_gives_the_brokers_settings_back(tree):
    member = Member(tree)
    member.configs.alter("g", [operation(SESSION, "50000")])
    member.store.delete(f"{znodes.GROUP_CONFIGS}/g")
    member.configs.read_all()
    assert member.configs.settings("g").session_timeout_ms == 45_000
