"""IncrementalAlterConfigs and AlterConfigs: what each kind of resource takes, and from whom."""

import logging

import pytest

import kcore
from kcore import errors
from kcore.protocol.messages import alter_configs as ac
from kcore.protocol.messages import describe_configs as dc
from kcore.protocol.messages import incremental_alter_configs as iac
from kcore.security.acl import CLUSTER_NAME, AclOperation, ResourceType
from kcore.server.config.broker_loggers import BrokerLoggers
from tests.unit.server.client import Client
from tests.unit.server.rules_authorizer import Rules
from tests.waiting import wait_until

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
INVALID_REQUEST, INVALID_CONFIG = errors.InvalidRequest.code, errors.InvalidConfig.code
POLICY, RETENTION, HEARTBEAT = "cleanup.policy", "retention.ms", "consumer.heartbeat.interval.ms"
APIS = "kcore.server.requests.kafka_apis"
#: A change that each kind takes.
CHANGES = {
    (TOPIC, "t"): (RETENTION, SET, "5"),
    (BROKER, "1"): ("log.cleaner.backoff.ms", SET, "5"),
    (BROKER, ""): ("log.cleaner.backoff.ms", SET, "6"),
    (LOGGER, "1"): (APIS, SET, "DEBUG"),
    (GROUP, "g"): (HEARTBEAT, SET, "6000"),
    (METRICS, "m"): ("interval.ms", SET, "1000"),
}


@pytest.fixture(scope="module")
def rules():
    return Rules()


@pytest.fixture(scope="module")
def broker(rules):
    with kcore.Broker(authorizer=rules) as broker:
        broker.create_topic("t")
        yield broker


@pytest.fixture
def client(broker, rules):
    with Client(broker) as client:
        yield client
        rules.allowed = None
        for resource, (name, _, _) in CHANGES.items():
            assert alter(client, *resource, (name, DELETE, None)) == 0
        assert alter(client, TOPIC, "t", (POLICY, DELETE, None)) == 0


def resource_of(kind, name, *changes):
    configs = [iac.AlterableConfig(name=what, config_operation=op, value=value) for what, op, value in changes]
    return iac.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)


def ask(client, *resources, validate_only=False):
    """The error code of each resource."""
    request = iac.IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    return [response.error_code for response in client.ask(request, 1).responses]


def alter(client, kind, name, *changes, validate_only=False):
    (code,) = ask(client, resource_of(kind, name, *changes), validate_only=validate_only)
    return code


def replace(client, kind, name, **settings):
    configs = [ac.AlterableConfig(name=what, value=value) for what, value in settings.items()]
    resource = ac.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    (answer,) = client.ask(ac.AlterConfigsRequest(resources=[resource]), 2).responses
    return answer.error_code


def describe(client, kind, name):
    """(error code, setting -> (value, source))."""
    resource = dc.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    (result,) = client.ask(dc.DescribeConfigsRequest(resources=[resource]), 4).results
    return result.error_code, {config.name: (config.value, config.config_source) for config in result.configs}


def value(client, name):
    return describe(client, TOPIC, "t")[1][name][0]


def test_ADM_17_settings_are_set_and_deleted_and_lists_appended_to_and_subtracted_from(client):
    assert alter(client, TOPIC, "t", (RETENTION, SET, "5"), (POLICY, APPEND, "compact")) == 0
    assert (value(client, RETENTION), value(client, POLICY)) == ("5", "delete,compact")
    assert alter(client, TOPIC, "t", (RETENTION, DELETE, None), (POLICY, SUBTRACT, "delete")) == 0
    assert (value(client, RETENTION), value(client, POLICY)) == (str(7 * 24 * 3_600_000), "compact")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ((RETENTION, 4, "5"), INVALID_REQUEST),
        ((RETENTION, -1, "5"), INVALID_REQUEST),
        ((RETENTION, APPEND, "5"), INVALID_CONFIG),
        ((RETENTION, SUBTRACT, "5"), INVALID_CONFIG),
        (("no.such", SET, "5"), INVALID_CONFIG),
        (("no.such", APPEND, "5"), INVALID_CONFIG),
    ],
)
def test_ADM_17_other_operations_and_unknown_names_are_refused(client, change, code):
    before = describe(client, TOPIC, "t")
    assert alter(client, TOPIC, "t", (POLICY, SET, "compact"), change) == code
    assert describe(client, TOPIC, "t") == before


def test_ADM_18_a_resource_that_is_there_twice_is_refused_and_the_others_succeed(client):
    twice = [resource_of(TOPIC, "t", (RETENTION, SET, n)) for n in "56"]
    codes = ask(client, twice[0], resource_of(GROUP, "g", CHANGES[GROUP, "g"]), twice[1])
    assert sorted(codes) == [0, INVALID_REQUEST]
    assert describe(client, GROUP, "g")[1][HEARTBEAT] == ("6000", 8)
    assert value(client, RETENTION) == str(7 * 24 * 3_600_000)


@pytest.mark.parametrize("operation", [SET, APPEND, SUBTRACT])
def test_ADM_18_without_a_value_nothing_can_be_set(client, operation):
    assert alter(client, TOPIC, "t", (POLICY, operation, None)) == INVALID_REQUEST


def test_ADM_18_a_name_that_is_there_twice_is_refused_and_what_is_not_set_can_be_deleted(client):
    assert alter(client, TOPIC, "t", (RETENTION, SET, "5"), (RETENTION, SET, "6")) == INVALID_REQUEST
    assert alter(client, TOPIC, "t", (RETENTION, DELETE, None)) == 0


def test_ADM_19_what_is_there_is_not_appended_twice_and_what_is_missing_can_be_subtracted(client):
    # Without a value of its own the topic has the default.
    assert alter(client, TOPIC, "t", (POLICY, APPEND, "delete,compact")) == 0
    assert value(client, POLICY) == "delete,compact"
    assert alter(client, TOPIC, "t", (POLICY, SUBTRACT, "compact")) == 0
    assert alter(client, TOPIC, "t", (POLICY, SUBTRACT, "compact")) == 0
    assert value(client, POLICY) == "delete"


def test_ADM_20_a_request_that_only_validates_finds_the_same_errors_and_changes_nothing(client):
    for resource, change in CHANGES.items():
        before = describe(client, *resource)
        assert alter(client, *resource, change, validate_only=True) == 0
        refused = INVALID_REQUEST if resource[0] == METRICS else INVALID_CONFIG
        assert alter(client, *resource, (change[0], SET, "bad"), validate_only=True) == refused
        assert describe(client, *resource) == before


def test_ADM_20_what_all_brokers_have_is_answered_by_each_of_them():
    with kcore.Cluster(2) as cluster, Client(cluster.brokers[0]) as first, Client(cluster.brokers[1]) as second:
        assert alter(first, BROKER, "", ("log.cleaner.backoff.ms", SET, "777")) == 0
        wait_until(lambda: cluster.brokers[1].config["log.cleaner.backoff.ms"] == 777)
        assert describe(second, BROKER, "") == (0, {"log.cleaner.backoff.ms": ("777", 3)})
        assert alter(first, BROKER, "1", ("log.cleaner.backoff.ms", SET, "778")) == INVALID_REQUEST


def test_ADM_21_levels_of_loggers_are_described_and_changed(client, caplog):
    caplog.set_level(logging.WARNING)
    assert describe(client, LOGGER, "1")[1][APIS] == ("WARN", 6)
    assert alter(client, LOGGER, "1", (APIS, SET, "TRACE"), ("root", SET, "ERROR")) == 0
    levels = describe(client, LOGGER, "1")[1]
    assert (levels["root"], levels[APIS], levels["kcore.server.broker"]) == (("ERROR", 6), ("TRACE", 6), ("ERROR", 6))
    assert logging.getLogger(APIS).isEnabledFor(5) and not logging.getLogger("kcore").isEnabledFor(logging.WARNING)
    assert alter(client, LOGGER, "1", (APIS, DELETE, None)) == 0
    assert describe(client, LOGGER, "1")[1][APIS] == ("ERROR", 6)
    assert alter(client, LOGGER, "1", ("root", SET, "WARN")) == 0


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        ("2", (APIS, SET, "INFO"), INVALID_REQUEST),
        ("", (APIS, SET, "INFO"), INVALID_REQUEST),
        ("1", (APIS, SET, "LOUD"), INVALID_CONFIG),
        ("1", (APIS, SET, "debug"), INVALID_CONFIG),
        ("1", ("asyncio", SET, "INFO"), INVALID_CONFIG),
        ("1", ("root", DELETE, None), INVALID_REQUEST),
        ("1", (APIS, APPEND, "INFO"), INVALID_REQUEST),
        ("1", (APIS, SUBTRACT, "INFO"), INVALID_REQUEST),
    ],
)
def test_ADM_21_what_a_logger_cannot_have_is_refused(client, name, change, code):
    before = describe(client, LOGGER, "1")
    assert alter(client, LOGGER, name, ("kcore.server.broker", SET, "INFO"), change) == code
    assert describe(client, LOGGER, "1") == before


def test_ADM_21_levels_are_those_of_before_when_the_broker_has_stopped(caplog):
    caplog.set_level(logging.WARNING)
    logger = logging.getLogger("kcore.log")
    with kcore.Broker() as broker, Client(broker) as client:
        assert describe(client, LOGGER, "2")[0] == INVALID_REQUEST
        assert alter(client, LOGGER, "1", ("kcore.log.log_manager", SET, "FATAL"), ("root", SET, "INFO")) == 0
        assert logger.getEffectiveLevel() == logging.INFO
    assert logger.getEffectiveLevel() == logging.WARNING
    assert logging.getLogger("kcore.log.log_manager").level == logging.NOTSET


def test_ADM_21_levels_are_described_while_other_threads_make_loggers(monkeypatch):
    """Here the look at a logger makes one, as another thread may: in a table that is not that of the process."""
    table = dict(logging.root.manager.loggerDict)

    class Making:
        @property
        def __class__(self):
            table[f"kcore.made.{len(table)}"] = logging.PlaceHolder(logging.root)
            return logging.PlaceHolder

    table["kcore.server.config"] = logging.getLogger("kcore.server.config")
    table |= {f"kcore.looked.at.{number}": Making() for number in range(3)}
    before = len(table)
    with monkeypatch.context() as patch:  # pytest walks over the table at the end of the test
        patch.setattr(logging.root.manager, "loggerDict", table)
        assert "kcore.server.config" in BrokerLoggers(1).levels()
    assert len(table) == before + 3


def test_ADM_21_of_brokers_in_one_process_the_level_of_the_last_one_that_runs_counts():
    logger = logging.getLogger("kcore.log.log_manager")
    loggers = {broker_id: BrokerLoggers(broker_id) for broker_id in (1, 2, 3)}
    for broker_id, level in ((1, "DEBUG"), (2, "ERROR"), (3, "FATAL"), (1, "INFO")):
        loggers[broker_id].alter(str(broker_id), [("kcore.log.log_manager", SET, level)])
    levels = [logger.level]
    for broker_id in (1, 2, 3):
        loggers[broker_id].close()
        levels.append(logger.level)
    assert levels == [logging.INFO, logging.FATAL, logging.FATAL, logging.NOTSET]


def test_a_setting_that_nothing_reads_is_shown_as_it_is_in_the_file_even_if_kafka_would_refuse_it():
    with kcore.Broker(background_threads="many") as broker, Client(broker) as client:
        assert alter(client, BROKER, "1", ("background.threads", SET, "12")) == 0
        code, values = describe(client, BROKER, "1")
        assert (code, values["background.threads"][0]) == (0, "12")


def test_ADM_22_settings_of_a_group_are_replaced_as_a_whole_and_levels_of_loggers_are_not(client):
    assert alter(client, GROUP, "g", (HEARTBEAT, SET, "6000"), ("consumer.session.timeout.ms", SET, "50000")) == 0
    assert replace(client, GROUP, "g", **{HEARTBEAT: "7000"}) == 0
    settings = describe(client, GROUP, "g")[1]
    assert (settings[HEARTBEAT], settings["consumer.session.timeout.ms"]) == (("7000", 8), ("45000", 5))
    assert replace(client, LOGGER, "1", **{APIS: "INFO"}) == INVALID_REQUEST


def test_ADM_22_a_subscription_to_client_metrics_is_replaced_as_a_whole(client):
    assert alter(client, METRICS, "m", ("interval.ms", SET, "1000")) == 0
    assert replace(client, METRICS, "m", metrics="a.") == 0
    code, values = describe(client, METRICS, "m")
    assert (code, values["metrics"][0], values["interval.ms"][0]) == (0, "a.", "300000")
    assert alter(client, METRICS, "m", ("metrics", DELETE, None)) == 0


@pytest.mark.parametrize(("kind", "name"), CHANGES)
def test_ADM_23_each_resource_needs_a_right_of_its_own(client, rules, kind, name):
    owner, denied = {
        TOPIC: ((ResourceType.TOPIC, name), errors.TopicAuthorizationFailed),
        GROUP: ((ResourceType.GROUP, name), errors.GroupAuthorizationFailed),
    }.get(kind, ((ResourceType.CLUSTER, CLUSTER_NAME), errors.ClusterAuthorizationFailed))
    others = [(ResourceType.TOPIC, "t"), (ResourceType.GROUP, "g"), (ResourceType.CLUSTER, CLUSTER_NAME)]
    every = {(op, *what) for op in (AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS) for what in others}
    change = CHANGES[kind, name]
    rules.allowed = every - {(AclOperation.ALTER_CONFIGS, *owner)}
    assert alter(client, kind, name, change) == denied.code
    assert describe(client, kind, name)[0] == 0
    rules.allowed = every - {(AclOperation.DESCRIBE_CONFIGS, *owner)}
    assert describe(client, kind, name)[0] == denied.code
    assert alter(client, kind, name, change) == 0
