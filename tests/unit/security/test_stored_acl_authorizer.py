"""ACLs in the metadata store: Kafka's nodes, changes by clients and by other brokers.  Source: ZkData, Kafka 3.9."""

import json
import re
import time

import pytest

import kcore
from kcore.common.time import MockTime
from kcore.errors import (
    ClusterAuthorizationFailed,
    InvalidConfig,
    InvalidRequest,
    PolicyViolation,
    RequestTimedOut,
    SecurityDisabled,
    TopicAuthorizationFailed,
    UnknownServerError,
)
from kcore.metadata.change_notifications import CHANGE_EXPIRATION_MS
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.metadata.store import ConnectionLost, MultiTooLarge, StoreError
from kcore.protocol.messages import create_acls as ca
from kcore.protocol.messages import delete_acls as da
from kcore.protocol.messages import describe_acls as d
from kcore.protocol.messages import fetch as f
from kcore.security.acl import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from kcore.security.acl_znodes import (
    change_path,
    decode_acls,
    decode_change,
    encode_acls,
    encode_change,
    path_of,
    read_acls,
)
from kcore.security.authorizer import AuthorizerServerInfo
from kcore.security.stored_acl_authorizer import StoredAclAuthorizer
from tests.unit.security.test_acl_authorizer import ALICE, BOB, may
from tests.unit.server.client import Client
from tests.unit.server.rules_authorizer import error_codes

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

    def __init__(self, tree, store_class=MemoryStore):
        self.store = store_class(tree)
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
    assert list(read_acls(store).entries) == [ResourcePattern(TOPIC, "t")]
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


def test_acls_of_another_broker_that_have_not_been_announced_here_yet_are_deleted_too(tree):
    first, second = Started(tree), Started(tree)
    first.authorizer.add_acls([allow("User:a", READ, TOPIC, "t")])
    deleted = second.authorizer.remove_acls(AclBindingFilter())
    assert [binding.entry.principal for binding in deleted] == ["User:a"]
    assert second.store.get("/kafka-acl/Topic/t") is None


def test_an_announcement_stays_until_every_broker_has_read_it(tree):
    """A Java broker reads the ACLs that announcements name, not all: of 300 that were deleted early it missed 200."""
    started = Started(tree)
    count = 300
    started.authorizer.add_acls(allow("User:a", READ, TOPIC, f"t-{number}") for number in range(count))
    started.authorizer.add_acls([allow("User:a", READ, TOPIC, "t-", PatternType.PREFIXED)])
    started.time.sleep(CHANGE_EXPIRATION_MS)
    started.authorizer.add_acls([allow("User:a", READ, TOPIC, "late")])
    started.store.pump()
    assert len(started.store.children("/kafka-acl-changes")) == count + 1
    assert len(started.store.children("/kafka-acl-extended-changes")) == 1
    started.time.sleep(1)
    started.authorizer.add_acls([allow("User:a", READ, TOPIC, "later")])
    started.store.pump()
    names = sorted(started.store.children("/kafka-acl-changes"))
    assert names == [f"acl_changes_{number:010d}" for number in (count, count + 1)]
    assert started.store.children("/kafka-acl-extended-changes") == []


# -- resources whose ACLs cannot be read


def announce(store, text):
    store.create("/kafka-acl-changes/acl_changes_", text, sequential=True)


def test_acls_that_cannot_be_read_are_named_once_and_the_others_change(tree, caplog):
    started, other = Started(tree), MemoryStore(tree)
    started.authorizer.add_acls([allow("User:alice", READ, TOPIC, name) for name in ("known", "u", "v")])
    other.set("/kafka-acl/Topic/known", b"{")
    other.create("/kafka-acl/Topic/new", b"{")
    other.delete("/kafka-acl/Topic/v")
    for name in (b"known", b"new", b"v", b"new"):
        announce(other, b"TOPIC:" + name)
    started.store.pump()
    authorizer = started.authorizer
    assert may(authorizer, READ, "known") and may(authorizer, READ, "u") and not may(authorizer, READ, "v")
    announce(other, b"TOPIC:known")
    started.store.pump()
    authorizer.add_acls([deny("User:alice", READ, TOPIC, "u"), allow("User:alice", READ, TOPIC, "*")])
    assert not may(authorizer, READ, "u"), "a change of another resource is not in force"
    assert may(authorizer, READ, "v") and not may(authorizer, READ, "new"), "what may be denied is allowed"
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(lines) == 2 and "/kafka-acl/Topic/known has no ACLs" in lines[0] and "/kafka-acl/Topic/new" in lines[1]
    assert "those that were read before apply" in lines[0] and "denied to all but super users" in lines[1]


def test_acls_that_cannot_be_read_may_use_only_super_users(tree):
    started, other = Started(tree), MemoryStore(tree)
    started.authorizer.configure({"super.users": "User:alice", "allow.everyone.if.no.acl.found": "true"})
    other.create("/kafka-acl/Topic/new", b"{")
    announce(other, b"TOPIC:new")
    started.store.pump()
    assert may(started.authorizer, READ, "new", ALICE) and not may(started.authorizer, READ, "new", BOB)
    assert may(started.authorizer, READ, "else", BOB)


@pytest.mark.parametrize("is_new_session", [False, True])
def test_a_store_that_goes_away_over_acls_that_cannot_be_read_does_not_allow_them(tree, monkeypatch, is_new_session):
    started, other = Started(tree), MemoryStore(tree)
    authorizer, get = started.authorizer, started.store.get
    authorizer.add_acls([allow("User:alice", READ, TOPIC, "*")])
    if is_new_session:
        tree.expire(started.store.session_id)
        other.create("/kafka-acl/Topic/new", b"{")
        started.store.new_session()
    else:
        other.create("/kafka-acl/Topic/new", b"{")
        announce(other, b"TOPIC:new")

    def get_without_watches(path, watch=None):
        if watch is not None:
            raise ConnectionLost("away")
        return get(path)

    monkeypatch.setattr(started.store, "get", get_without_watches)
    started.store.pump()
    monkeypatch.undo()
    started.scheduler.later.pop()()
    assert not may(authorizer, READ, "new") and may(authorizer, READ, "other")
    other.set("/kafka-acl/Topic/new", KAFKAS_BODY)
    started.store.pump()
    assert may(authorizer, READ, "new")


@pytest.mark.parametrize("is_announced", [False, True])
@pytest.mark.parametrize("reads_all", [False, True])
def test_acls_that_were_repaired_apply(tree, is_announced, reads_all):
    started, other = Started(tree), MemoryStore(tree)
    other.create("/kafka-acl/Topic/u", b"{")
    announce(other, b"what has changed?" if reads_all else b"TOPIC:u")
    started.store.pump()
    assert not may(started.authorizer, READ, "u")
    other.set("/kafka-acl/Topic/u", b"[]")
    started.store.pump()
    assert not may(started.authorizer, READ, "u")
    other.set("/kafka-acl/Topic/u", KAFKAS_BODY)
    if is_announced:
        announce(other, b"TOPIC:u")
    started.store.pump()
    assert may(started.authorizer, READ, "u")


def test_acls_that_cannot_be_read_are_deleted_as_a_whole(tree):
    started, other, second = Started(tree), MemoryStore(tree), Started(tree)
    authorizer = started.authorizer
    good = [allow("User:alice", READ, TOPIC, "good"), allow("User:alice", WRITE, TOPIC, "good")]
    authorizer.add_acls(good)
    other.create("/kafka-acl/Topic/u", b"{")
    announce(other, b"TOPIC:u")
    tree.pump()
    with pytest.raises(StoreError, match=r"/kafka-acl/Topic/u has no ACLs that can be read.*1 other ACL was removed"):
        authorizer.remove_acls(AclBindingFilter(TOPIC, operation=WRITE))
    assert not may(authorizer, WRITE, "good") and may(authorizer, READ, "good")
    with pytest.raises(StoreError, match="/kafka-acl/Topic/u"):
        authorizer.add_acls([allow("User:alice", READ, TOPIC, "u")])
    assert other.get("/kafka-acl/Topic/u").data == b"{"
    (removed,) = authorizer.remove_acls(AclBindingFilter(TOPIC, "u", PatternType.LITERAL))
    assert removed == deny("User:*", ALL, TOPIC, "u")
    assert other.get("/kafka-acl/Topic/u") is None
    tree.pump()
    assert second.authorizer.acls() == authorizer.acls() == good[:1]
    authorizer.add_acls([allow("User:alice", READ, TOPIC, "u")])
    assert may(authorizer, READ, "u")


@pytest.mark.parametrize("data", [b"[" * 100_000, b"{", b""])
def test_a_node_of_another_data_is_an_error_and_no_end_of_the_thread(tree, data):
    started, other = Started(tree), MemoryStore(tree)
    other.create("/kafka-acl/Topic/u", data)
    announce(other, b"TOPIC:u")
    other.create("/kafka-acl-extended-changes/acl_changes_", data, sequential=True)
    started.authorizer.add_acls([allow("User:*", READ, TOPIC, "*")])
    started.store.pump()
    assert may(started.authorizer, READ, "u") == (data == b"")


@pytest.mark.parametrize(
    "data", [b"TOPIC", b"", b"TOPIC:", b"\xff", b'{"resourceType":"TOPIC","name":"t","patternType":"MATCH"}']
)
def test_an_announcement_that_says_nothing_has_all_read_again(tree, data):
    started, other = Started(tree), MemoryStore(tree)
    other.create("/kafka-acl/Topic/t", KAFKAS_BODY)
    parent = "/kafka-acl-extended-changes" if data.startswith(b"{") else "/kafka-acl-changes"
    other.create(f"{parent}/acl_changes_", data, sequential=True)
    started.store.pump()
    assert may(started.authorizer, READ, "t")


@pytest.mark.parametrize(
    "pattern",
    [ResourcePattern(TOPIC, "t"), ResourcePattern(ResourceType.TRANSACTIONAL_ID, "a:b"),
     ResourcePattern(GROUP, "g-", PatternType.PREFIXED)],
)  # fmt: skip
def test_an_announcement_is_read_as_it_is_written(pattern):
    assert decode_change(f"{change_path(pattern)}0000000000", encode_change(pattern)) == pattern


def test_a_resource_of_a_later_release_is_not_followed():
    assert decode_change("/kafka-acl-changes/acl_changes_0000000000", b"PLANET:earth") is None


# -- what is read and when


class CountingStore(MemoryStore):
    """reads: the nodes read, and the nodes whose children were listed."""

    def __init__(self, tree):
        self.reads = []
        super().__init__(tree)

    def get(self, path, watch=None):
        self.reads.append(path)
        return super().get(path, watch)

    def children(self, path, watch=None):
        self.reads.append(f"{path}/*")
        return super().children(path, watch)


LISTS = ["/kafka-acl-changes/*", "/kafka-acl-extended-changes/*"]


def test_a_change_reads_what_it_changes_and_the_other_brokers_what_it_names(tree):
    first, second = Started(tree, CountingStore), Started(tree, CountingStore)
    first.authorizer.add_acls([allow("User:alice", READ, TOPIC, f"t-{n}") for n in range(300)])
    assert len(first.store.reads) < 400 + 30
    tree.pump()
    for prefix in (PatternType.LITERAL, PatternType.PREFIXED):
        acl = allow("User:alice", WRITE, TOPIC, "t-7", prefix)
        for change in (lambda: first.authorizer.add_acls([acl]),  # noqa: B023
                       lambda: first.authorizer.remove_acls(AclBindingFilter(*acl.pattern, *acl.entry))):  # fmt: skip # noqa: B023
            first.store.reads.clear()
            second.store.reads.clear()
            change()
            assert set(first.store.reads) <= {path_of(acl.pattern), *LISTS}
            assert first.store.reads.count(path_of(acl.pattern)) == 1
            first.store.reads.clear()
            tree.pump()
            assert first.store.reads == LISTS, "what this broker has written is read again"
            (announcement,) = set(second.store.reads) - {path_of(acl.pattern), *LISTS}
            assert second.store.reads == [*LISTS, announcement, path_of(acl.pattern)]
            assert set(first.authorizer.acls()) == set(second.authorizer.acls())


def test_many_events_are_one_reading(tree):
    started, other = Started(tree, CountingStore), MemoryStore(tree)
    tasks = []
    started.scheduler.schedule = lambda name, task, delay_ms=0: tasks.append(task)
    for n in range(10):
        other.create(f"/kafka-acl/Topic/{n}", KAFKAS_BODY)
        announce(other, f"TOPIC:{n}".encode())
        other.create("/kafka-acl-extended-changes/acl_changes_", b'{"resourceType":"GROUP","name":"g","patternType":"PREFIXED"}', sequential=True)  # fmt: skip # noqa: E501
        started.store.pump()
    (task,) = tasks
    task()
    assert all(may(started.authorizer, READ, str(n)) for n in range(10))


def test_after_a_new_session_all_acls_are_read_again(tree):
    """What was announced meanwhile may have been deleted since."""
    started, other = Started(tree), MemoryStore(tree)
    tree.expire(started.store.session_id)
    other.create("/kafka-acl/Topic/t", KAFKAS_BODY)
    started.store.new_session()
    started.store.pump()
    assert may(started.authorizer, READ, "t")
    # The new session has its watches.
    other.create("/kafka-acl/Topic/u", KAFKAS_BODY)
    announce(other, b"TOPIC:u")
    started.store.pump()
    assert may(started.authorizer, READ, "u")


def test_after_a_lost_connection_what_was_announced_is_read_and_no_more(tree):
    started, other = Started(tree, CountingStore), MemoryStore(tree)
    started.authorizer.add_acls([allow("User:alice", READ, TOPIC, f"t-{n}") for n in range(3)])
    started.store.disconnect()
    other.create("/kafka-acl/Topic/u", KAFKAS_BODY)
    announce(other, b"TOPIC:u")
    started.store.reads.clear()
    started.store.reconnect()
    started.store.pump()
    assert may(started.authorizer, READ, "u")
    assert set(started.store.reads) == {*LISTS, "/kafka-acl-changes/acl_changes_0000000003", "/kafka-acl/Topic/u"}


def test_a_store_that_is_away_during_a_reading_is_asked_again(tree, monkeypatch):
    started, other = Started(tree), MemoryStore(tree)

    def away(paths, watches=()):
        raise ConnectionLost("away")

    monkeypatch.setattr(started.store, "get_many", away)
    other.create("/kafka-acl/Topic/t", KAFKAS_BODY)
    announce(other, b"TOPIC:t")
    started.store.pump()
    assert not may(started.authorizer, READ, "t")
    monkeypatch.undo()
    (again,) = started.scheduler.later
    again()
    assert may(started.authorizer, READ, "t")


def test_a_resource_with_more_acls_than_the_store_takes_keeps_no_other_from_changing(tree, monkeypatch):
    started = Started(tree)
    multi = started.store.multi

    def limited(operations):
        if any("huge" in operation.path for operation in operations):
            raise MultiTooLarge("too large")
        return multi(operations)

    monkeypatch.setattr(started.store, "multi", limited)
    acls = [allow("User:alice", READ, TOPIC, name) for name in ("a", "huge", "b")]
    results = started.authorizer.create_acls(ALICE, acls)
    assert [type(result) for result in results] == [type(None), PolicyViolation, type(None)]
    assert set(started.authorizer.acls()) == {acls[0], acls[2]}


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
        (deny("User:a", READ, TOPIC, "t", host="localhost"), {}, "the host 'localhost'"),
        (deny("User:a", AclOperation.CLUSTER_ACTION, TOPIC, "t"), {}, "the operations of a TOPIC are"),
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


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a\x01b", "a\ud800b"])
def test_a_name_that_cannot_be_stored_stores_none_of_a_programs_acls(tree, name):
    authorizer = Started(tree).authorizer
    with pytest.raises(InvalidConfig, match=re.escape(repr(name))):
        authorizer.add_acls(allow("User:a", READ, GROUP, each) for each in ("good", name))
    assert authorizer.acls() == []


@pytest.mark.parametrize(
    ("name", "why"),
    [("..", "none of '', '.' and '..'"), (".", "none of '', '.' and '..'"), ("a/b", "has a slash"),
     ("a\x01b", "U+0001"), ("a\u0085b", "U+0085"), ("a\ue000b", "U+E000"), ("a\U0001f600b", "U+1F600")],
)  # fmt: skip
def test_a_name_that_cannot_be_stored_is_refused_and_the_acls_around_it_are_made(name, why):
    acls = [allow("User:a", READ, GROUP, each) for each in ("good", name, "good2")]
    with kcore.Broker(**SETTINGS) as broker, Client(broker) as client:
        first, second, third = client.ask(create(*acls), 3).results
        assert (first.error_code, second.error_code, third.error_code) == (0, InvalidRequest.code, 0)
        assert repr(name) in second.error_message and why in second.error_message
        assert first.error_message is None and third.error_message is None
        assert described(client, 3) == {acls[0], acls[2]}


def test_acls_that_cannot_be_read_are_an_error_with_a_message():
    bad, good = allow("User:a", READ, TOPIC, "bad"), allow("User:a", READ, TOPIC, "good")
    with kcore.Broker(**SETTINGS) as broker, Client(broker) as client:
        broker.store.create("/kafka-acl/Topic/bad", b"{")
        refused, made = client.ask(create(bad, good), 3).results
        assert (refused.error_code, made.error_code) == (UnknownServerError.code, 0)
        assert "/kafka-acl/Topic/bad has no ACLs that can be read" in refused.error_message
        assert described(client, 3, resource_name_filter="good") == {good}


def test_a_store_that_is_away_is_an_error_of_each_change(monkeypatch):
    acl = allow("User:a", READ, TOPIC, "t")
    with kcore.Broker(**SETTINGS) as broker, Client(broker) as client:
        assert error_codes(client.ask(create(acl), 3)) == set()

        def away(*args, **kwargs):
            raise ConnectionLost("away")

        monkeypatch.setattr(broker.store, "get_many", away)
        monkeypatch.setattr(broker.store, "children", away)
        response = client.ask(create(acl, allow("User:a", READ, TOPIC, "u")), 3)
        assert [result.error_code for result in response.results] == [RequestTimedOut.code] * 2
        assert all("cannot be reached" in result.error_message for result in response.results)
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


def test_a_cluster_whose_brokers_may_not_talk_to_each_other_says_so_and_stops(caplog):
    cluster = kcore.Cluster(2, authorizer_class_name="kcore.StoredAclAuthorizer")
    with pytest.raises(
        ClusterAuthorizationFailed, match=r"broker 0: User:ANONYMOUS may not send UPDATE_METADATA .*super"
    ):
        cluster.start()
    assert cluster.brokers == {}
    lines = [r.getMessage() for r in caplog.records if r.levelname == "WARNING" and "may not send" in r.getMessage()]
    assert [line.partition(" as a broker")[0] for line in lines] == ["User:ANONYMOUS may not send UPDATE_METADATA"]
    assert "127.0.0.1" in lines[0]


def test_each_kind_of_request_that_only_brokers_send_is_named_once_where_it_is_denied(caplog):
    partition = f.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100)
    topics = [f.FetchTopic(topic="t", partitions=[partition])]
    request = f.FetchRequest(replica_id=2, max_wait_ms=0, min_bytes=0, max_bytes=100, topics=topics)
    with kcore.Broker(authorizer=kcore.AclAuthorizer()) as broker, Client(broker) as client:
        for _ in range(3):
            assert error_codes(client.ask(request, 11)) == {TopicAuthorizationFailed.code}
    warnings = [r.getMessage() for r in caplog.records if "may not send" in r.getMessage()]
    assert len(warnings) == 1 and "FETCH" in warnings[0] and "CLUSTER_ACTION" in warnings[0]


def test_alice_and_bob_are_not_the_same(tree):
    # What the other tests take for granted of the helper.
    authorizer = Started(tree).authorizer
    authorizer.add_acls([allow("User:alice", READ, TOPIC, "t")])
    assert (may(authorizer, READ, "t", ALICE), may(authorizer, READ, "t", BOB)) == (True, False)
