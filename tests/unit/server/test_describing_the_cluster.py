"""DescribeCluster and ApiVersions: what a client hears of the cluster as a whole."""

import pytest

import kcore
from kcore.errors import ClusterAuthorizationFailed, MismatchedEndpointType, UnsupportedEndpointType
from kcore.metadata.metadata_cache import NO_LEADER, BrokerInfo, Endpoint
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.headers import encode_request_header
from kcore.protocol.messages.api_versions import ApiVersionsRequest
from kcore.protocol.messages.describe_cluster import DescribeClusterRequest
from kcore.security.acl import CLUSTER_NAME, AclOperation, ResourceType
from tests.unit.server.client import Client
from tests.unit.server.rules_authorizer import Rules
from tests.waiting import wait_until

#: Of a broker with KRaft.
OF_KRAFT = (ApiKey.DESCRIBE_QUORUM, ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER, ApiKey.FETCH_SNAPSHOT)


@pytest.fixture
def rules():
    return Rules()


@pytest.fixture
def broker(rules):
    with kcore.Broker(authorizer=rules) as broker:
        yield broker


@pytest.fixture
def client(broker):
    with Client(broker) as client:
        yield client


def test_ADM_07_fenced_brokers_are_asked_for_and_there_are_none():
    with kcore.Cluster(2) as cluster, Client(cluster.brokers[0]) as client:
        answers = [
            client.ask(DescribeClusterRequest(include_fenced_brokers=include), 2).brokers for include in (False, True)
        ]
        assert answers[0] == answers[1]
        assert [(info.broker_id, info.is_fenced) for info in answers[1]] == [(0, False), (1, False)]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("endpoint_type", "error"),
    [(2, MismatchedEndpointType), (0, UnsupportedEndpointType), (9, UnsupportedEndpointType)],
)
def test_ADM_08_a_broker_describes_brokers_only(client, version, endpoint_type, error):
    answer = client.ask(DescribeClusterRequest(endpoint_type=endpoint_type), version)
    assert (answer.error_code, answer.brokers) == (error.code, [])
    assert answer.error_message


def test_ADM_08_a_controller_that_the_client_cannot_reach_is_not_named(broker, client):
    other = BrokerInfo(9, {"OTHER": Endpoint("nine.example", 9009)})
    cache = broker.metadata_cache
    cache.update(lambda snapshot: snapshot.with_brokers([*snapshot.brokers(), other]).with_controller(9))
    answer = client.ask(DescribeClusterRequest(), 1)
    assert ([info.broker_id for info in answer.brokers], answer.controller_id) == ([1], NO_LEADER)
    cache.update(lambda snapshot: snapshot.with_controller(1))
    assert client.ask(DescribeClusterRequest(), 1).controller_id == 1


@pytest.mark.parametrize("version", [0, 1, 2])
def test_ADM_08_operations_on_the_cluster_need_the_right_to_describe_it(client, rules, version):
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    alter, describe = (
        (what, ResourceType.CLUSTER, CLUSTER_NAME) for what in (AclOperation.ALTER, AclOperation.DESCRIBE)
    )
    rules.allowed = {alter}
    assert client.ask(request, version).cluster_authorized_operations == 0
    rules.allowed = {alter, describe}
    answer = client.ask(request, version)
    assert answer.cluster_authorized_operations == 1 << AclOperation.ALTER | 1 << AclOperation.DESCRIBE
    assert answer.error_code != ClusterAuthorizationFailed.code


@pytest.mark.parametrize("api_key", OF_KRAFT, ids=lambda api_key: api_key.name)
@pytest.mark.parametrize("is_member", [False, True], ids=["alone", "cluster"])
def test_ADM_09_requests_of_kraft_are_not_announced_and_close_the_connection(api_key, is_member):
    with kcore.Cluster(1) if is_member else kcore.Broker() as running:
        broker = running.brokers[0] if is_member else running
        with Client(broker) as client:
            request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
            assert api_key not in {item.api_key for item in client.ask(request, 3).api_keys}
            client.send_frame(encode_request_header(api_key, 0, 1, "test"))
            assert client.is_closed()


def test_ADM_11_features_whose_range_begins_with_0_are_for_version_4(client):
    def names(version):
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        return [(item.name, item.min_version) for item in client.ask(request, version).supported_features]

    assert names(3) == []
    assert names(4) == [("group.version", 0), ("transaction.version", 0)]


def test_ADM_41_all_brokers_of_a_cluster_announce_the_same_without_kraft():
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")

    def announced(broker):
        with Client(broker) as client:
            answer = client.ask(request, 4)
        apis = [(api.api_key, api.min_version, api.max_version) for api in answer.api_keys]
        supported = [(item.name, item.min_version, item.max_version) for item in answer.supported_features]
        finalized = [(item.name, item.max_version_level) for item in answer.finalized_features]
        return apis, supported, finalized, answer.finalized_features_epoch, answer.zk_migration_ready

    with kcore.Cluster(3) as cluster:
        wait_until(lambda: len({repr(announced(broker)) for broker in cluster.brokers.values()}) == 1)
        apis, supported, finalized, _, _ = announced(cluster.brokers[0])
    assert not {api_key for api_key, _, _ in apis} & set(OF_KRAFT)
    assert (
        {name for name, *_ in supported} == {name for name, _ in finalized} == {"group.version", "transaction.version"}
    )
