"""ACLs in the metadata store: Kafka's nodes, changes by clients and by other brokers.  Source: ZkData, Kafka 3.9."""

import json
import time

import pytest

import kcore
from kcore.common.time import MockTime
from kcore.errors import ClusterAuthorizationFailed, InvalidRequest, RequestTimedOut, SecurityDisabled
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.metadata.store import ConnectionLost, StoreError
from kcore.protocol.messages import create_acls as ca
from kcore.protocol.messages import delete_acls as da
from kcore.protocol.messages import describe_acls as d
from kcore.server.acl import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from kcore.server.acl_znodes import decode_acls, encode_acls, encode_change, path_of, read_acls
from kcore.server.authorizer import AuthorizerServerInfo
from kcore.server.stored_acl_authorizer import CHANGE_EXPIRATION_MS, StoredAclAuthorizer
from tests.unit.server.client import Client
from tests.unit.server.rules_authorizer import error_codes
from tests.unit.server.test_acl_authorizer import ALICE, BOB, may

DEADLINE_S = 60
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.ALL
allow, deny = AclBinding.allow, AclBinding.deny
#: As Kafka's AclAuthorizer writes them.
KAFKAS_BODY = (
    b'{"version":1,"acls":[{"principal":"User:alice","permissionType":"Allow","operation":"Read","host":"*"},'
    b'{"principal":"User:*","permissionType":"Deny","operation":"ClusterAction","host":"10.0.0.1"}]}'
)


class Now:
    """A scheduler that runs what is scheduled without delay at once, and keeps the rest."""

    def __init__(self):
        self.later = []

    def schedule(self, name, task, delay_ms=0):
        if delay_ms:
            self.later.append(task)
        else:
            task()


@pytest.fixture
def tree():
    return MemoryTree()


class Started:
    """A started authorizer on a session of its own."""

    def __init__(self, tree):
        self.store = MemoryStore(tree)
        self.scheduler = Now()
        self.authorizer = StoredAclAuthorizer()
        self.time = MockTime()
        self.authorizer.start(AuthorizerServerInfo(1, "c", self.store, lambda name: self.scheduler, self.time))


# -- nodes


@pytest.mark.parametrize(
    ("pattern", "path", "change"),
    [
        (ResourcePattern(TOPIC, "t"), "/kafka-acl/Topic/t", b"TOPIC:t"),
        (ResourcePattern(TOPIC, "*"), "/kafka-acl/Topic/*", b"TOPIC:*"),
        (
            ResourcePattern(ResourceType.TRANSACTIONAL_ID, "a:b"),
            "/kafka-acl/TransactionalId/a:b",
            b"TRANSACTIONAL_ID:a:b",
        ),
        (
            ResourcePattern(GROUP, "g-", PatternType.PREFIXED),
            "/kafka-acl-extended/prefixed/Group/g-",
            b'{"version":1,"resourceType":"GROUP","name":"g-","patternType":"PREFIXED"}',
        ),
    ],
)
def test_nodes_are_where_kafka_has_them(pattern, path, change):
    assert (path_of(pattern), encode_change(pattern)) == (path, change)


def test_a_body_of_kafkas_is_read_and_written_the_same():
    entries = decode_acls("/x", KAFKAS_BODY)
    assert entries == {
        AccessControlEntry("User:alice", "*", READ, AclPermissionType.ALLOW),
        AccessControlEntry("User:*", "10.0.0.1", AclOperation.CLUSTER_ACTION, AclPermissionType.DENY),
    }
    written, kafkas = json.loads(encode_acls(entries)), json.loads(KAFKAS_BODY)
    assert written["version"] == 1
    assert sorted(written["acls"], key=str) == sorted(kafkas["acls"], key=str)
    assert list(written["acls"][0]) == list(kafkas["acls"][0])


@pytest.mark.parametrize("operation", [o for o in AclOperation if o not in (AclOperation.UNKNOWN, AclOperation.ANY)])
@pytest.mark.parametrize("permission", [AclPermissionType.ALLOW, AclPermissionType.DENY])
def test_every_operation_survives_the_way_through_a_node(operation, permission):
    entries = frozenset({AccessControlEntry("User:a", "::1", operation, permission)})
    assert decode_acls("/x", encode_acls(entries)) == entries


@pytest.mark.parametrize(
    "data",
    [b"{", b"[]", b"{}", b'{"version":2,"acls":[]}', b'{"version":1}', b'{"version":1,"acls":[{"principal":"User:a"}]}',
     KAFKAS_BODY.replace(b'"*"', b"7"), b"\xff"],
)  # fmt: skip
def test_a_body_that_cannot_be_read_names_its_path(data):
    with pytest.raises(StoreError, match="/kafka-acl/Topic/t has no ACLs that can be read"):
        decode_acls("/kafka-acl/Topic/t", data)


def test_what_a_later_release_has_allows_and_denies_nothing(tree):
    store = MemoryStore(tree)
    store.create_recursive("/kafka-acl/Topic/t", KAFKAS_BODY.replace(b'"Read"', b'"TimeTravel"'))
    store.create_recursive("/kafka-acl/Planet/t", KAFKAS_BODY)
    started = Started(tree)
    assert list(read_acls(store)) == [ResourcePattern(TOPIC, "t")]
    assert not may(started.authorizer, READ, "t") and not may(started.authorizer, ALL, "t")


# -- the authorizer


def test_acls_of_the_store_apply_from_the_start(tree):
    MemoryStore(tree).create_recursive("/kafka-acl/Topic/t", KAFKAS_BODY)
    MemoryStore(tree).create_recursive("/kafka-acl-extended/prefixed/Topic/a-", KAFKAS_BODY)
    authorizer = Started(tree).authorizer
    assert may(authorizer, READ, "t") and may(authorizer, READ, "a-b")
    assert not may(authorizer, READ, "u") and not may(authorizer, READ, "t", BOB)


def test_a_start_with_acls_that_cannot_be_read_fails(tree):
    MemoryStore(tree).create_recursive("/kafka-acl/Topic/t", b"{")
    with pytest.raises(StoreError, match="/kafka-acl/Topic/t"):
        Started(tree)


def test_what_one_broker_changes_the_others_follow(tree):
    first, second = Started(tree), Started(tree)
    acls = [
        allow("User:alice", READ, TOPIC, "t"),
        allow("User:bob", READ, TOPIC, "t"),
        deny("User:*", WRITE, TOPIC, "a-", PatternType.PREFIXED),
    ]
    first.authorizer.add_acls(acls)
    assert set(first.authorizer.acls()) == set(acls)
    second.store.pump()
    assert set(second.authorizer.acls()) == set(acls)
    assert may(second.authorizer, READ, "t") and may(second.authorizer, READ, "t", BOB)
    # One that has not heard of the changes yet deletes what is stored.
    second.authorizer.add_acls([allow("User:carol", READ, TOPIC, "t")])
    removed = first.authorizer.remove_acls(AclBindingFilter(TOPIC, "t", PatternType.LITERAL))
    assert {entry.principal for _, entry in removed} == {"User:alice", "User:bob", "User:carol"}
    assert first.store.get("/kafka-acl/Topic/t") is None
    second.store.pump()
    assert second.authorizer.acls() == acls[2:]
    # Nothing changes, nothing is announced.
    before = first.store.children("/kafka-acl-changes"), first.store.children("/kafka-acl-extended-changes")
    first.authorizer.add_acls(acls[2:])
    assert first.authorizer.remove_acls(AclBindingFilter(TOPIC, "t")) == []
    assert before == (first.store.children("/kafka-acl-changes"), first.store.children("/kafka-acl-extended-changes"))


def test_a_change_of_another_broker_between_reading_and_writing_is_kept(tree, monkeypatch):
    first, second = Started(tree), Started(tree)
    first.authorizer.add_acls([allow("User:a", READ, TOPIC, "t")])
    get, others = first.store.get, [allow("User:b", READ, TOPIC, "t"), allow("User:c", READ, TOPIC, "t")]

    def slow_get(path, watch=None):
        node = get(path, watch)
        if path == "/kafka-acl/Topic/t" and others:
            second.authorizer.add_acls([others.pop()])
        return node

    monkeypatch.setattr(first.store, "get", slow_get)
    first.authorizer.add_acls([allow("User:d", READ, TOPIC, "t")])
    assert {entry.principal for _, entry in first.authorizer.acls()} == {"User:a", "User:b", "User:c", "User:d"}


def test_an_announcement_stays_until_every_broker_has_read_it(tree):
    """A Java broker reads the ACLs that announcements name, not all: of 300 that were deleted early it missed 200."""
    started = Started(tree)
    count = 300
    started.authorizer.add_acls(allow("User:a", READ, TOPIC, f"t-{number}") for number in range(count))
    started.authorizer.add_acls([allow("User:a", READ, TOPIC, "t-", PatternType.PREFIXED)])
    started.time.sleep(CHANGE_EXPIRATION_MS)
    started.authorizer.add_acls([allow("User:a", READ, TOPIC, "late")])
    assert len(started.store.children("/kafka-acl-changes")) == count + 1
    assert len(started.store.children("/kafka-acl-extended-changes")) == 1
    started.time.sleep(1)
    started.authorizer.add_acls([allow("User:a", READ, TOPIC, "later")])
    names = sorted(started.store.children("/kafka-acl-changes"))
    assert names == [f"acl_changes_{number:010d}" for number in (count, count + 1)]
    assert started.store.children("/kafka-acl-extended-changes") == []


def test_a_change_that_cannot_be_read_leaves_what_was_read_before_and_is_tried_again(tree, caplog):
    started, other = Started(tree), MemoryStore(tree)
    started.authorizer.add_acls([allow("User:alice", READ, TOPIC, "t")])
    other.create("/kafka-acl/Topic/u", b"{")
    other.create("/kafka-acl-changes/acl_changes_", b"TOPIC:u", sequential=True)
    started.store.pump()
    assert may(started.authorizer, READ, "t")
    assert "/kafka-acl/Topic/u has no ACLs that can be read" in caplog.text
    other.set("/kafka-acl/Topic/u", KAFKAS_BODY)
    (again,) = started.scheduler.later
    again()
    assert may(started.authorizer, READ, "u")


# -- requests


def create(*bindings):
    return ca.CreateAclsRequest(
        creations=[
            ca.AclCreation(
                resource_type=p.resource_type,
                resource_name=p.name,
                resource_pattern_type=p.pattern_type,
                principal=e.principal,
                host=e.host,
                operation=e.operation,
                permission_type=e.permission_type,
            )
            for p, e in bindings
        ]
    )


#: Any ACL, as every version has it.
ANY = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
SETTINGS = {"authorizer_class_name": "kcore.StoredAclAuthorizer", "super_users": "User:ANONYMOUS"}


def described(client, version, **fields):
    response = client.ask(d.DescribeAclsRequest(**{**ANY, **fields}), version)
    assert response.error_code == 0
    return {
        AclBinding(
            ResourcePattern(ResourceType(r.resource_type), r.resource_name, PatternType(r.pattern_type)),
            AccessControlEntry(a.principal, a.host, AclOperation(a.operation), AclPermissionType(a.permission_type)),
        )
        for r in response.resources
        for a in r.acls
    }


@pytest.mark.parametrize("version", range(4))
def test_acls_are_created_described_and_deleted_in_each_version(tmp_path, version):
    literal = allow("User:alice", READ, TOPIC, "t", host="10.0.0.1")
    prefixed = deny("User:*", ALL, GROUP, "g-", PatternType.PREFIXED)
    bindings = {literal} if version == 0 else {literal, prefixed}
    any_pattern = {} if version == 0 else {"pattern_type_filter": 1}
    with kcore.Broker(tmp_path, **SETTINGS) as broker:
        with Client(broker) as client:
            response = client.ask(create(*bindings), version)
            assert [result.error_code for result in response.results] == [0] * len(bindings)
            assert described(client, version, **any_pattern) == bindings
            assert described(client, version, resource_type_filter=2) == {literal}
            assert described(client, version, principal_filter="User:bob") == set()
        broker.restart()
        with Client(broker) as client:
            assert described(client, version, **any_pattern) == bindings
            wanted = da.DeleteAclsFilter(**{**ANY, "principal_filter": "User:alice"})
            nothing = da.DeleteAclsFilter(**{**ANY, "principal_filter": "User:alice", "host_filter": "*"})
            response = client.ask(da.DeleteAclsRequest(filters=[nothing, wanted]), version)
            first, second = response.filter_results
            assert (first.error_code, first.matching_acls, second.error_code) == (0, [], 0)
            (deleted,) = second.matching_acls
            assert (deleted.error_code, deleted.resource_name, deleted.principal) == (0, "t", "User:alice")
            assert described(client, version, **any_pattern) == bindings - {literal}


def test_what_a_client_creates_applies_when_it_is_answered(tmp_path):
    rule = allow("User:*", AclOperation.ALTER, CLUSTER, "kafka-cluster")
    with kcore.Broker(tmp_path, authorizer_class_name="kcore.StoredAclAuthorizer") as broker, Client(broker) as client:
        assert error_codes(client.ask(create(rule), 3)) == {ClusterAuthorizationFailed.code}
        broker.store.create_recursive(path_of(rule.pattern), encode_acls([rule.entry]))
        broker.restart()
        with Client(broker) as client:
            may_describe = allow("User:*", AclOperation.DESCRIBE, TOPIC, "t")
            assert error_codes(client.ask(create(may_describe), 3)) == set()
            # ALTER includes DESCRIBE.
            assert described(client, 3) == {rule, may_describe}


@pytest.mark.parametrize(
    ("binding", "fields", "complaint"),
    [
        (allow("User:a", READ, CLUSTER, "mine"), {}, "the only name of the cluster is kafka-cluster"),
        (allow("User:a", READ, TOPIC, ""), {}, "the name is empty"),
        (allow("alice", READ, TOPIC, "t"), {}, "'alice' is not a principal"),
        (allow("User:a", READ, TOPIC, "t"), {"operation": 99}, "AclOperation 99 is unknown"),
        (allow("User:a", READ, TOPIC, "t"), {"resource_type": 0}, "ResourceType 0 is unknown"),
        (allow("User:a", READ, TOPIC, "t"), {"resource_pattern_type": 2}, "LITERAL or PREFIXED"),
    ],
)
def test_an_acl_that_can_never_apply_is_refused_and_the_others_are_made(binding, fields, complaint):
    good = allow("User:a", READ, TOPIC, "good")
    request = create(binding, good)
    for name, value in fields.items():
        setattr(request.creations[0], name, value)
    with kcore.Broker(**SETTINGS) as broker, Client(broker) as client:
        refused, made = client.ask(request, 3).results
        assert (refused.error_code, made.error_code) == (InvalidRequest.code, 0)
        assert complaint in refused.error_message
        assert described(client, 3) == {good}


def test_a_name_that_the_store_cannot_have_is_refused():
    with kcore.Broker(**SETTINGS) as broker, Client(broker) as client:
        response = client.ask(create(allow("User:a", READ, GROUP, "..")), 3)
        assert error_codes(response) == {InvalidRequest.code}


def test_a_store_that_is_away_is_an_error_of_each_change(monkeypatch):
    acl = allow("User:a", READ, TOPIC, "t")
    with kcore.Broker(**SETTINGS) as broker, Client(broker) as client:
        assert error_codes(client.ask(create(acl), 3)) == set()

        def away(*args, **kwargs):
            raise ConnectionLost("away")

        monkeypatch.setattr(broker.store, "get", away)
        assert error_codes(client.ask(create(acl), 3)) == {RequestTimedOut.code}
        deletion = da.DeleteAclsRequest(filters=[da.DeleteAclsFilter(**ANY)])
        assert error_codes(client.ask(deletion, 3)) == {RequestTimedOut.code}
        assert described(client, 3) == {acl}
        monkeypatch.undo()


def test_a_filter_of_unknown_codes_is_refused():
    with kcore.Broker(**SETTINGS) as broker, Client(broker) as client:
        bad = {**ANY, "operation": 0}
        assert client.ask(d.DescribeAclsRequest(**bad), 3).error_code == InvalidRequest.code
        response = client.ask(da.DeleteAclsRequest(filters=[da.DeleteAclsFilter(**bad)]), 3)
        assert [result.error_code for result in response.filter_results] == [InvalidRequest.code]


def test_without_an_authorizer_there_are_no_acls():
    with kcore.Broker() as broker, Client(broker) as client:
        requests = [
            d.DescribeAclsRequest(**ANY),
            create(allow("User:a", READ, TOPIC, "t")),
            da.DeleteAclsRequest(filters=[da.DeleteAclsFilter(**ANY)]),
        ]
        for request in requests:
            assert error_codes(client.ask(request, 3)) == {SecurityDisabled.code}


def test_the_brokers_of_a_cluster_have_the_same_acls():
    with kcore.Cluster(2, **SETTINGS) as cluster:
        first, second = cluster.brokers.values()
        binding = allow("User:alice", READ, TOPIC, "t")
        with Client(first) as client:
            assert error_codes(client.ask(create(binding), 3)) == set()
        with Client(second) as client:
            deadline = time.monotonic() + DEADLINE_S
            while described(client, 3) != {binding}:
                assert time.monotonic() < deadline, "the other broker does not follow"
                time.sleep(0.02)


def test_alice_and_bob_are_not_the_same(tree):
    # What the other tests take for granted of the helper.
    authorizer = Started(tree).authorizer
    authorizer.add_acls([allow("User:alice", READ, TOPIC, "t")])
    assert (may(authorizer, READ, "t", ALICE), may(authorizer, READ, "t", BOB)) == (True, False)
