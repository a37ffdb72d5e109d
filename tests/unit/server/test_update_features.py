"""UpdateFeatures: no level is stored, so none can be changed; what is wrong with a request is said as Kafka says it."""

import pytest

import kcore
from kcore.errors import ClusterAuthorizationFailed, FeatureUpdateFailed, InvalidRequest, NotController
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.protocol.messages.api_versions import ApiVersionsRequest
from kcore.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from kcore.security.acl import CLUSTER_NAME, AclOperation, ResourceType
from tests.unit.server.client import Client
from tests.unit.server.rules_authorizer import Rules
from tests.waiting import wait_until

UPGRADE, SAFE, UNSAFE = 1, 2, 3
INVALID, FAILED = InvalidRequest.code, FeatureUpdateFailed.code


@pytest.fixture(scope="module")
def rules():
    return Rules()


@pytest.fixture(scope="module")
def broker(rules):
    with kcore.Broker(authorizer=rules, kcore_transaction_version=1) as broker:
        yield broker


@pytest.fixture
def client(broker, rules):
    with Client(broker) as client:
        yield client
    rules.allowed = None


def update(client, *updates, version=1, validate_only=False):
    """updates: (feature, level, upgrade type)."""
    request = UpdateFeaturesRequest(
        feature_updates=[
            FeatureUpdateKey(
                feature=name,
                max_version_level=level,
                **({"allow_downgrade": kind != UPGRADE} if version == 0 else {"upgrade_type": kind}),
            )
            for name, level, kind in updates
        ],
        validate_only=validate_only,
    )
    return client.ask(request, version)


def levels(client):
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    return [(item.name, item.max_version_level) for item in client.ask(request, 4).finalized_features]


CASES = [
    (("", 1, UPGRADE), INVALID),
    (("no.such", 1, UPGRADE), INVALID),
    (("transaction.version", 2, UPGRADE), INVALID),  # above what the broker knows
    (("transaction.version", 1, UPGRADE), INVALID),  # the level in use
    (("transaction.version", 0, UPGRADE), INVALID),
    (("transaction.version", -1, SAFE), INVALID),
    (("transaction.version", 0, SAFE), FAILED),
    (("group.version", 0, SAFE), FAILED),
    (("group.version", 1, SAFE), INVALID),
]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(("change", "code"), CASES)
def test_ADM_12_each_feature_has_an_error_of_its_own_before_version_2(client, change, code, version):
    before = levels(client)
    answer = update(client, change, ("no.such", 7, UPGRADE), version=version)
    assert answer.error_code == 0
    assert [(result.feature, result.error_code) for result in answer.results] == [
        (change[0], code),
        ("no.such", INVALID),
    ]
    assert all(result.error_message for result in answer.results)
    assert levels(client) == before == [("group.version", 1), ("transaction.version", 1)]


@pytest.mark.parametrize(
    ("change", "code"), [*CASES, (("group.version", 0, UNSAFE), FAILED), (("group.version", 0, 9), INVALID)]
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_ADM_12_version_2_has_one_error_for_all(client, change, code, validate_only):
    answer = update(client, change, version=2, validate_only=validate_only)
    assert (answer.error_code, answer.results) == (code, [])
    assert answer.error_message


def test_ADM_12_a_level_that_another_broker_does_not_offer_cannot_be_set():
    tree = MemoryTree()
    first, second = (MemoryStore(tree, executor=lambda call: call()) for _ in range(2))
    with kcore.Broker(store=first) as broker, Client(broker) as client:
        wait_until(lambda: broker.cluster_member.is_controller)
        with kcore.Broker(store=second, broker_id=2, kcore_transaction_version=1):
            wait_until(lambda: levels(client)[1] == ("transaction.version", 1))
            upgrade, downgrade = update(client, *(("transaction.version", 2, kind) for kind in (UPGRADE, SAFE))).results
        assert (upgrade.error_code, downgrade.error_code) == (FAILED, INVALID)
        assert "which is higher" in downgrade.error_message


def test_ADM_12_without_the_right_to_alter_the_cluster_nothing_is_said_of_features(client, rules):
    rules.allowed = {(AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)}
    answer = update(client, ("no.such", 1, UPGRADE))
    assert (answer.error_code, answer.results) == (ClusterAuthorizationFailed.code, [])


def test_ADM_12_a_broker_that_is_not_the_controller_says_so():
    with kcore.Cluster(2) as cluster:
        brokers = {broker.cluster_member.is_controller: broker for broker in cluster.brokers.values()}
        for is_controller, code in ((True, 0), (False, NotController.code)):
            with Client(brokers[is_controller]) as client:
                answer = update(client, ("no.such", 1, UPGRADE))
            assert (answer.error_code, len(answer.results)) == (code, int(is_controller))


def test_ADM_13_the_reason_names_the_feature_and_what_to_do(client):
    unknown, fixed = update(client, ("no.such", 1, UPGRADE), ("transaction.version", 0, SAFE)).results
    assert "no.such is not supported" in unknown.error_message and "group.version" in unknown.error_message
    assert "kcore.transaction.version" in fixed.error_message
