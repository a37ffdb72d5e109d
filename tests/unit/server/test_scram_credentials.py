"""DescribeUserScramCredentials: which users have SCRAM credentials, as Java brokers have stored them."""

import json
import logging

import pytest

import kcore
from kcore.errors import DuplicateResource, ResourceNotFound
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore
from kcore.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from kcore.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from tests.unit.server.client import Client

CREDENTIAL = "salt=MWx2,stored_key=F9Vz,server_key=c2VydmVy,iterations={}"


@pytest.fixture
def store():
    return MemoryStore(executor=lambda call: call())


@pytest.fixture
def client(store):
    with kcore.Broker(store=store) as broker, Client(broker) as client:
        yield client


def put(store, user, **config):
    path = f"{znodes.USER_CONFIGS}/{user}"
    store.ensure_path(znodes.USER_CONFIGS)
    store.create(path, json.dumps({"version": 1, "config": config}).encode())


def described(client, *names):
    users = [UserName(name=name) for name in names] or None
    answer = client.ask(DescribeUserScramCredentialsRequest(users=users), 0)
    assert answer.error_code == 0
    return [
        (result.user, result.error_code, [(info.mechanism, info.iterations) for info in result.credential_infos])
        for result in answer.results
    ]


def test_ADM_37_where_there_are_no_credentials_nobody_is_named(client):
    quota = OpData(key="producer_byte_rate", value=1e9, remove=False)
    entry = EntryData(entity=[EntityData(entity_type="user", entity_name="a")], ops=[quota])
    assert client.ask(AlterClientQuotasRequest(entries=[entry]), 1).entries[0].error_code == 0
    assert described(client) == []
    assert described(client, "a", "b") == [("a", ResourceNotFound.code, []), ("b", ResourceNotFound.code, [])]


def test_ADM_37_credentials_in_the_store_are_described_without_their_secrets(client, store):
    put(store, "a%40b", **{"SCRAM-SHA-512": CREDENTIAL.format(8192), "SCRAM-SHA-256": CREDENTIAL.format(4096)})
    put(store, "c", producer_byte_rate="1")
    put(store, "<default>", **{"SCRAM-SHA-256": CREDENTIAL.format(1)})
    assert described(client) == [("a@b", 0, [(1, 4096), (2, 8192)])]
    assert described(client, "c", "a@b") == [("c", ResourceNotFound.code, []), ("a@b", 0, [(1, 4096), (2, 8192)])]


def test_ADM_37_only_the_nodes_of_the_users_that_are_named_are_read(client, store, monkeypatch):
    for user in ("a", "b%40c", "d"):
        put(store, user, **{"SCRAM-SHA-256": CREDENTIAL.format(4096)})
    read = []
    get_many = store.get_many
    monkeypatch.setattr(store, "get_many", lambda paths: (read.extend(paths), get_many(paths))[1])
    assert described(client, "b@c", "nobody") == [("b@c", 0, [(1, 4096)]), ("nobody", ResourceNotFound.code, [])]
    assert [path.rpartition("/")[2] for path in read] == ["b%40c", "nobody"]


def test_a_name_that_leaves_no_room_in_an_answers_text_is_answered_with_its_own_error(client):
    """And not with UNKNOWN_SERVER_ERROR, since no string has room for a text about it."""
    name = "n" * 32_760
    assert described(client, name) == [(name, ResourceNotFound.code, [])]


def test_ADM_37_a_user_that_is_named_twice_is_refused_and_the_others_are_described(client, store):
    put(store, "a", **{"SCRAM-SHA-256": CREDENTIAL.format(4096)})
    assert described(client, "b", "a", "b") == [("b", DuplicateResource.code, []), ("a", 0, [(1, 4096)])]


@pytest.mark.parametrize(
    "credential",
    ["secret", "salt=secret,iterations=many", "salt=secret", "iterations=3000000000", "iterations=0"],
)
def test_ADM_37_a_credential_that_cannot_be_read_is_left_out_and_not_logged(client, store, caplog, credential):
    put(store, "a", **{"SCRAM-SHA-256": credential})
    put(store, "b", **{"SCRAM-SHA-256": CREDENTIAL.format(4096)})
    with caplog.at_level(logging.ERROR):
        assert described(client) == [("b", 0, [(1, 4096)])]
    assert "user a" in caplog.text and "secret" not in caplog.text.replace("is secret", "")
