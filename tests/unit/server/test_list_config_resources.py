"""ListConfigResources: what has settings."""

import pytest

import kcore
from kcore.errors import ClusterAuthorizationFailed, UnsupportedVersion
from kcore.protocol.messages import incremental_alter_configs as iac
from kcore.protocol.messages.list_config_resources import ListConfigResourcesRequest
from kcore.security.acl import CLUSTER_NAME, AclOperation, ResourceType
from tests.unit.server.client import Client
from tests.unit.server.rules_authorizer import Rules

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
EVERYTHING = [
    (TOPIC, "a"),
    (TOPIC, "b"),
    (BROKER, "7"),
    (LOGGER, "7"),
    (METRICS, "some clients"),
    (GROUP, "never there"),
]
DESCRIBE_CONFIGS = (AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)


@pytest.fixture(scope="module")
def rules():
    return Rules()


@pytest.fixture(scope="module")
def broker(rules):
    with kcore.Broker(authorizer=rules, broker_id=7) as broker, Client(broker) as client:
        for name in "ba":
            broker.create_topic(name)
        change = iac.AlterableConfig(name="consumer.session.timeout.ms", config_operation=0, value="50000")
        interval = iac.AlterableConfig(name="interval.ms", config_operation=0, value="1000")
        resources = [
            iac.AlterConfigsResource(resource_type=GROUP, resource_name="never there", configs=[change]),
            iac.AlterConfigsResource(resource_type=METRICS, resource_name="some clients", configs=[interval]),
        ]
        answer = client.ask(iac.IncrementalAlterConfigsRequest(resources=resources), 1)
        assert [response.error_code for response in answer.responses] == [0, 0]
        yield broker


@pytest.fixture
def client(broker, rules):
    with Client(broker) as client:
        yield client
    rules.allowed = None


def listed(client, *types, version=1):
    answer = client.ask(ListConfigResourcesRequest(resource_types=types), version)
    assert answer.error_code == 0
    return [(resource.resource_type, resource.resource_name) for resource in answer.config_resources]


@pytest.mark.parametrize("version", [0, 1])
def test_ADM_14_without_the_right_to_describe_settings_nothing_is_listed(client, rules, version):
    rules.allowed = set()
    answer = client.ask(ListConfigResourcesRequest(), version)
    assert (answer.error_code, answer.config_resources) == (ClusterAuthorizationFailed.code, [])


def test_ADM_14_version_0_lists_client_metrics_only(client):
    assert listed(client, version=0) == [(METRICS, "some clients")]


def test_ADM_15_without_types_everything_is_listed(client):
    assert listed(client) == EVERYTHING


@pytest.mark.parametrize("types", [(TOPIC,), (BROKER,), (LOGGER,), (METRICS,), (GROUP,), (GROUP, TOPIC, TOPIC)])
def test_ADM_15_only_the_named_types_are_listed(client, types):
    assert listed(client, *types) == [resource for resource in EVERYTHING if resource[0] in types]


def test_ADM_15_an_unknown_type_refuses_the_whole_request(client):
    answer = client.ask(ListConfigResourcesRequest(resource_types=[TOPIC, 3]), 1)
    assert (answer.error_code, answer.config_resources) == (UnsupportedVersion.code, [])


def test_ADM_15_all_live_brokers_are_listed():
    with kcore.Cluster(2) as cluster, Client(cluster.brokers[1]) as client:
        assert listed(client, BROKER, LOGGER) == [(BROKER, "0"), (BROKER, "1"), (LOGGER, "0"), (LOGGER, "1")]


def test_ADM_16_topics_need_no_right_of_their_own_and_groups_need_not_exist(client, rules):
    rules.allowed = {DESCRIBE_CONFIGS}
    assert listed(client) == EVERYTHING


def test_ADM_16_a_group_whose_settings_are_deleted_is_not_listed(client):
    def change(operation, value):
        config = iac.AlterableConfig(name="consumer.heartbeat.interval.ms", config_operation=operation, value=value)
        resource = iac.AlterConfigsResource(resource_type=GROUP, resource_name="g", configs=[config])
        assert client.ask(iac.IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0].error_code == 0

    change(0, "6000")
    assert listed(client, GROUP) == [(GROUP, "g"), (GROUP, "never there")]
    change(1, None)
    assert listed(client, GROUP) == [(GROUP, "never there")]
