"""InitProducerId 6 (KIP-939), which is not announced unless a setting says so."""

import pytest

import kcore
from kcore import errors
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.messages.api_versions import ApiVersionsRequest
from kcore.protocol.messages.init_producer_id import InitProducerIdRequest
from kcore.security.acl import AclOperation, ResourceType
from tests.unit.server.client import Client
from tests.unit.server.rules_authorizer import Rules
from tests.unit.server.transactions import SETTINGS, TransactionalClient

UNSTABLE = SETTINGS | {"unstable.api.versions.enable": True}
TWO_PHASE = UNSTABLE | {"transaction.two.phase.commit.enable": True}
X = (ResourceType.TRANSACTIONAL_ID, "x")
FIND_AND_WRITE = {(AclOperation.DESCRIBE, *X), (AclOperation.WRITE, *X)}
ALL = FIND_AND_WRITE | {(AclOperation.TWO_PHASE_COMMIT, *X)}


def init(client, *, timeout_ms=60_000, **flags):
    TransactionalClient(client).find()
    return client.ask(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=timeout_ms, **flags), 6)


def announced(client):
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    ranges = {api.api_key: (api.min_version, api.max_version) for api in client.ask(request, 3).api_keys}
    return ranges[ApiKey.INIT_PRODUCER_ID]


@pytest.mark.parametrize(("is_unstable", "highest"), [(False, 5), (True, 6)])
def test_TXN_19_version_6_is_announced_and_served_only_with_the_setting_for_unstable_versions(is_unstable, highest):
    with kcore.Broker(unstable_api_versions_enable=is_unstable, **SETTINGS) as broker, Client(broker) as client:
        assert announced(client) == (0, highest)
        if is_unstable:
            answer = init(client)
            assert (answer.error_code, answer.ongoing_txn_producer_id) == (errors.NONE, -1)
        else:
            with pytest.raises(EOFError):
                init(client)


@pytest.mark.parametrize(
    ("is_enabled", "allowed", "error"),
    [
        (True, FIND_AND_WRITE, errors.TransactionalIdAuthorizationFailed.code),
        (False, ALL, errors.TransactionalIdAuthorizationFailed.code),
        (True, ALL, errors.NONE),
    ],
    ids=["without the permission", "without the setting", "with both"],
)
def test_TXN_20_transactions_without_a_timeout_need_a_permission_and_a_setting(is_enabled, allowed, error):
    with (
        kcore.Broker(authorizer=Rules(allowed), transaction_two_phase_commit_enable=is_enabled, **UNSTABLE) as broker,
        Client(broker) as client,
    ):
        assert init(client, enable_2pc=True).error_code == error
        assert init(client).error_code == errors.NONE, "only the flag needs more"


def test_TXN_20_such_an_id_has_no_timeout_until_its_producer_asks_for_one():
    with kcore.Broker(transaction_max_timeout_ms=100_000, **TWO_PHASE) as broker, Client(broker) as client:
        coordinator = broker.running.services.transaction_coordinator
        assert init(client, timeout_ms=10**9, enable_2pc=True).error_code == errors.NONE
        assert coordinator.describe("x").timeout_ms == 2147483647
        assert init(client, timeout_ms=10**9).error_code == errors.InvalidTransactionTimeout.code
        assert init(client).error_code == errors.NONE
        assert coordinator.describe("x").timeout_ms == 60_000


@pytest.mark.parametrize("enable_2pc", [False, True])
def test_TXN_21_a_prepared_transaction_cannot_be_kept(enable_2pc):
    with kcore.Broker(**TWO_PHASE) as broker, Client(broker) as client:
        answer = init(client, enable_2pc=enable_2pc, keep_prepared_txn=True)
        assert (answer.error_code, answer.producer_id) == (errors.UnsupportedVersion.code, -1)
        with pytest.raises(errors.TransactionalIdNotFound):
            broker.running.services.transaction_coordinator.describe("x")
