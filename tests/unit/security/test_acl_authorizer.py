"""AclAuthorizer decides as Kafka's AclAuthorizer does.  Source: AclAuthorizerTest, AuthorizerTest, Kafka 3.9."""

import itertools
import logging
import random
from typing import NamedTuple

import pytest

import kcore
from kcore.errors import InvalidConfig
from kcore.network.listener import KafkaPrincipal, SecurityProtocol
from kcore.security.acl import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from kcore.security.acl_authorizer import AclAuthorizer
from kcore.security.authorizer import Action, AuthorizationResult, Authorizer

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, DESCRIBE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.ALL
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
allow, deny = AclBinding.allow, AclBinding.deny


class Context(NamedTuple):
    principal: KafkaPrincipal = KafkaPrincipal("User", "alice")
    client_address: str = "10.0.0.7"
    listener_name: str = "PLAINTEXT"
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    client_id: str = "c"
    request_type: int = 0
    request_version: int = 0
    correlation_id: int = 0


ALICE = Context()
BOB = Context(KafkaPrincipal("User", "bob"))


def may(authorizer, operation, name, context=ALICE, resource_type=TOPIC):
    (result,) = authorizer.authorize(context, [Action(operation, ResourcePattern(resource_type, name))])
    return result is AuthorizationResult.ALLOWED


def test_nothing_is_allowed_without_an_acl():
    assert not may(AclAuthorizer(), READ, "t")


def test_an_acl_is_for_its_principal_operation_and_resource():
    authorizer = AclAuthorizer([allow("User:alice", READ, TOPIC, "t")])
    assert may(authorizer, READ, "t")
    assert not may(authorizer, READ, "t", BOB)
    assert not may(authorizer, WRITE, "t")
    assert not may(authorizer, READ, "other")
    assert not may(authorizer, READ, "t", resource_type=GROUP)
    assert not may(authorizer, READ, "t", Context(KafkaPrincipal("Group", "alice")))


def test_a_deny_wins_over_every_allow():
    authorizer = AclAuthorizer(
        [allow("User:*", ALL, TOPIC, "*"), allow("User:alice", READ, TOPIC, "t"), deny("User:alice", READ, TOPIC, "t")]
    )
    assert not may(authorizer, READ, "t")
    assert may(authorizer, WRITE, "t")
    assert may(authorizer, READ, "t", BOB)
    assert may(authorizer, READ, "other")


@pytest.mark.parametrize(
    ("acl", "names", "others"),
    [
        (("orders", LITERAL), ["orders"], ["order", "orders-1", ""]),
        (("orders", PREFIXED), ["orders", "orders-1"], ["order", "Orders", "x-orders"]),
        (("*", LITERAL), ["orders", "*", "x"], []),
        (("*", PREFIXED), ["*", "*x"], ["orders"]),
    ],
)
def test_a_pattern_is_literal_or_a_prefix_or_stands_for_all(acl, names, others):
    authorizer = AclAuthorizer([allow("User:alice", READ, TOPIC, *acl)])
    assert [name for name in names + others if may(authorizer, READ, name)] == names


def test_an_acl_may_be_for_one_host():
    authorizer = AclAuthorizer([allow("User:alice", READ, TOPIC, "t", host="10.0.0.7")])
    assert may(authorizer, READ, "t")
    assert not may(authorizer, READ, "t", ALICE._replace(client_address="10.0.0.8"))


@pytest.mark.parametrize(
    ("host", "address"),
    [("0:0:0:0:0:0:0:1", "::1"), ("::1", "::1"), ("10.0.0.7", "::ffff:10.0.0.7"), ("FE80::1", "fe80::1")],
)
def test_an_address_may_be_spelled_as_kafka_spells_it(host, address):
    authorizer = AclAuthorizer([allow("User:alice", READ, TOPIC, "t", host=host)])
    assert may(authorizer, READ, "t", ALICE._replace(client_address=address))


@pytest.mark.parametrize("operation", [ALL, *SUPPORTED_OPERATIONS[TOPIC]])
def test_some_permissions_include_describe(operation):
    authorizer = AclAuthorizer([allow("User:alice", operation, TOPIC, "t")])
    describes = {ALL, READ, WRITE, AclOperation.DELETE, AclOperation.ALTER, DESCRIBE}
    assert may(authorizer, DESCRIBE, "t") == (operation in describes)
    configs = {ALL, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}
    assert may(authorizer, AclOperation.DESCRIBE_CONFIGS, "t") == (operation in configs)


def test_a_denied_read_does_not_deny_describe():
    authorizer = AclAuthorizer([allow("User:alice", WRITE, TOPIC, "t"), deny("User:alice", READ, TOPIC, "t")])
    assert may(authorizer, DESCRIBE, "t")
    authorizer.add_acls([deny("User:alice", DESCRIBE, TOPIC, "t")])
    assert not may(authorizer, DESCRIBE, "t") and may(authorizer, WRITE, "t")


def test_super_users_may_do_what_an_acl_denies():
    authorizer = AclAuthorizer([deny("User:*", ALL, TOPIC, "*")], super_users=["User:alice", "User:CN=a,O=b"])
    assert may(authorizer, READ, "t")
    assert not may(authorizer, READ, "t", BOB)
    assert may(authorizer, READ, "t", Context(KafkaPrincipal("User", "CN=a,O=b")))


def test_what_no_acl_is_about_may_be_allowed_to_all():
    acls = [allow("User:bob", READ, TOPIC, "t"), allow("User:bob", READ, TOPIC, "a-", PREFIXED)]
    authorizer = AclAuthorizer(acls, allow_everyone_if_no_acl_found=True)
    assert may(authorizer, READ, "other")
    assert not may(authorizer, READ, "t") and not may(authorizer, READ, "a-b")
    assert may(authorizer, READ, "t", resource_type=GROUP)


def test_removed_acls_no_longer_apply():
    acls = [allow("User:alice", READ, TOPIC, "t"), allow("User:alice", WRITE, TOPIC, "t")]
    authorizer = AclAuthorizer(acls)
    assert set(authorizer.acls()) == set(acls)
    assert authorizer.remove_acls(AclBindingFilter(operation=READ)) == acls[:1]
    assert authorizer.acls() == acls[1:]
    assert not may(authorizer, READ, "t") and may(authorizer, WRITE, "t")
    authorizer.remove_acls(AclBindingFilter())
    assert authorizer.acls() == [] and not may(authorizer, WRITE, "t")


def test_a_subclass_may_tell_brokers_by_their_listener():
    class ByListener(AclAuthorizer):
        def is_super_user(self, request_context):
            return request_context.listener_name == "REPLICATION"

    assert may(ByListener(), READ, "t", ALICE._replace(listener_name="REPLICATION"))
    assert not may(ByListener(), READ, "t")


def filters_of(binding):
    """Every filter that matches the binding, given as it is or left open."""
    pattern, entry = binding
    for given in itertools.product((False, True), repeat=7):
        fields = zip(AclBindingFilter._fields, (*pattern, *entry), given, strict=True)
        yield AclBindingFilter(**{name: value for name, value, is_given in fields if is_given})


def test_a_filter_leaves_open_what_it_does_not_give():
    binding = deny("User:alice", READ, TOPIC, "t", PREFIXED, "10.0.0.7")
    others = [
        deny("User:bob", WRITE, GROUP, "x", LITERAL, "10.0.0.8")._replace(),
        allow("User:bob", WRITE, GROUP, "x", LITERAL, "10.0.0.8"),
    ]
    for acl_filter in filters_of(binding):
        assert acl_filter.matches(binding)
        is_open = acl_filter == AclBindingFilter()
        only_type = acl_filter == AclBindingFilter(permission_type=AclPermissionType.DENY)
        assert acl_filter.matches(others[0]) == (is_open or only_type)
        assert acl_filter.matches(others[1]) == is_open


@pytest.mark.parametrize(
    ("name", "pattern", "matches"),
    [
        ("orders-1", ResourcePattern(TOPIC, "orders-1"), True),
        ("orders-1", ResourcePattern(TOPIC, "orders", PREFIXED), True),
        ("orders-1", ResourcePattern(TOPIC, "*"), True),
        ("orders-1", ResourcePattern(TOPIC, "orders"), False),
        ("orders-1", ResourcePattern(TOPIC, "orders-1-", PREFIXED), False),
        ("*", ResourcePattern(TOPIC, "*"), True),
        ("*", ResourcePattern(TOPIC, "orders"), False),
        (None, ResourcePattern(TOPIC, "orders", PREFIXED), True),
    ],
)
def test_a_filter_of_type_match_finds_whatever_applies_to_a_resource(name, pattern, matches):
    binding = AclBinding(pattern, AccessControlEntry("User:alice", "*", READ, AclPermissionType.ALLOW))
    assert AclBindingFilter(TOPIC, name, PatternType.MATCH).matches(binding) == matches


def slow_answer(acls, context, operation, name):
    """The rule, ACL by ACL: None where none is about the resource."""
    about = [
        entry
        for pattern, entry in acls
        if pattern.resource_type is TOPIC
        and (
            (pattern.pattern_type is LITERAL and pattern.name in ("*", name))
            or (pattern.pattern_type is PREFIXED and name.startswith(pattern.name))
        )
    ]
    if not about:
        return None
    mine = [
        entry
        for entry in about
        if entry.principal in ("User:*", str(context.principal)) and entry.host in ("*", context.client_address)
    ]
    for entry in mine:
        if entry.permission_type is AclPermissionType.DENY and entry.operation in (ALL, operation):
            return False
    implying = {DESCRIBE: {DESCRIBE, READ, WRITE, AclOperation.DELETE, AclOperation.ALTER}}.get(operation, {operation})
    return any(
        entry.permission_type is AclPermissionType.ALLOW and entry.operation in implying | {ALL} for entry in mine
    )


def random_acls(rng):
    names = ["*", "a", "ab", "abc", "b", "ba"]
    for _ in range(rng.randrange(6)):
        make = rng.choice([allow, allow, deny])
        yield make(
            rng.choice(["User:*", "User:alice", "User:bob"]),
            operation := rng.choice([READ, WRITE, DESCRIBE, ALL]),
            TOPIC if operation is WRITE else rng.choice([TOPIC, TOPIC, GROUP]),
            name := rng.choice(names),
            LITERAL if name == "*" else rng.choice([LITERAL, PREFIXED]),
            rng.choice(["*", "10.0.0.7", "10.0.0.8"]),
        )


@pytest.mark.parametrize("seed", range(60))
def test_decisions_agree_with_the_rule_applied_acl_by_acl(seed):
    rng = random.Random(seed)
    acls, everyone = list(random_acls(rng)), rng.random() < 0.5
    authorizer = AclAuthorizer(acls, allow_everyone_if_no_acl_found=everyone)
    for context, operation, name in itertools.product((ALICE, BOB), (READ, WRITE, DESCRIBE), ("a", "ab", "abc", "bz")):
        expected = slow_answer(acls, context, operation, name)
        expected = everyone if expected is None else expected
        assert may(authorizer, operation, name, context) == expected, f"{seed=} {context} {operation} {name} {acls}"


@pytest.mark.parametrize("seed", range(60))
def test_any_resource_of_a_type_is_allowed_if_one_can_be_found(seed):
    rng = random.Random(seed)
    acls = list(random_acls(rng))
    authorizer = AclAuthorizer(acls)
    # Names that are in no pattern, in each combination of prefixes, and those of the patterns.
    names = {pattern.name + rest for pattern, _ in acls for rest in ("", "~")} | {"~"}
    for context in (ALICE, BOB):
        found = any(may(authorizer, WRITE, name, context) for name in names)
        answer = authorizer.authorize_by_resource_type(context, WRITE, TOPIC) is AuthorizationResult.ALLOWED
        assert answer == found, f"{seed=} {context} {acls}"
        inherited = Authorizer.authorize_by_resource_type(authorizer, context, WRITE, TOPIC)
        assert (inherited is AuthorizationResult.ALLOWED) == answer, f"{seed=} {context} {acls}"


@pytest.mark.parametrize(
    ("acls", "expected"),
    [
        ([], False),
        ([allow("User:alice", WRITE, TOPIC, "t")], True),
        ([allow("User:bob", WRITE, TOPIC, "t")], False),
        ([allow("User:alice", READ, TOPIC, "t")], False),
        ([allow("User:alice", ALL, TOPIC, "t")], True),
        ([allow("User:alice", ALL, GROUP, "t")], False),
        ([allow("User:alice", WRITE, TOPIC, "t"), deny("User:alice", WRITE, TOPIC, "t")], False),
        ([allow("User:alice", WRITE, TOPIC, "t"), deny("User:alice", WRITE, TOPIC, "t", PREFIXED)], False),
        ([allow("User:alice", WRITE, TOPIC, "t", PREFIXED), deny("User:alice", WRITE, TOPIC, "t")], True),
        ([allow("User:alice", WRITE, TOPIC, "ta", PREFIXED), deny("User:*", WRITE, TOPIC, "t", PREFIXED)], False),
        ([allow("User:alice", WRITE, TOPIC, "*"), deny("User:*", ALL, TOPIC, "t", PREFIXED)], True),
        ([allow("User:alice", WRITE, TOPIC, "t"), deny("User:*", ALL, TOPIC, "*")], False),
    ],
)
def test_TXN_79_an_idempotent_producer_needs_one_topic_that_it_may_write_to(acls, expected):
    result = AclAuthorizer(acls).authorize_by_resource_type(ALICE, WRITE, TOPIC)
    assert (result is AuthorizationResult.ALLOWED) == expected


def test_where_all_may_use_what_no_acl_is_about_only_a_denial_of_all_leaves_no_topic():
    authorizer = AclAuthorizer([deny("User:alice", ALL, TOPIC, "a")], allow_everyone_if_no_acl_found=True)
    assert authorizer.authorize_by_resource_type(ALICE, WRITE, TOPIC) is AuthorizationResult.ALLOWED
    authorizer.add_acls([deny("User:alice", ALL, TOPIC, "*")])
    assert authorizer.authorize_by_resource_type(ALICE, WRITE, TOPIC) is AuthorizationResult.DENIED
    assert authorizer.authorize_by_resource_type(BOB, WRITE, TOPIC) is AuthorizationResult.ALLOWED


@pytest.mark.parametrize(
    ("binding", "complaint"),
    [
        (allow("alice", READ, TOPIC, "t"), "'alice' is not a principal"),
        (allow("User:", READ, TOPIC, "t"), "is not a principal"),
        (allow("User:a", READ, TOPIC, ""), "the name is empty"),
        (allow("User:a", READ, TOPIC, "a/b"), "has a slash"),
        (allow("User:a", AclOperation.ANY, TOPIC, "t"), "for filters only"),
        (allow("User:a", READ, ResourceType.ANY, "t"), "for filters only"),
        (allow("User:a", READ, TOPIC, "t", PatternType.MATCH), "LITERAL or PREFIXED"),
        (deny("  User:a ", READ, TOPIC, "t"), "the principal '  User:a ' has blanks around it"),
        (deny("User:a", READ, TOPIC, "t", host="10.0.0.0/8"), "the host '10.0.0.0/8' is neither an IP address nor"),
        (deny("User:a", READ, TOPIC, "t", host="localhost"), "the host 'localhost'"),
        (deny("User:a", READ, TOPIC, "t", host="999.1.1.1"), "the host '999.1.1.1'"),
        (deny("User:a", READ, TOPIC, "t", host=""), "the host ''"),
        (deny("User:a", READ, TOPIC, "t", host=" 127.0.0.1"), "the host ' 127.0.0.1'"),
        (deny("User:a", AclOperation.CLUSTER_ACTION, TOPIC, "t"), "the operations of a TOPIC are ALL, READ, WRITE"),
        (deny("User:a", WRITE, GROUP, "g"), "the operations of a GROUP are ALL, READ"),
        (deny("User:a", AclOperation.CREATE_TOKENS, ResourceType.USER, "a"), "'a' is not a principal"),
        (allow("User:a", READ, CLUSTER, "mine"), f"the only name of the cluster is {CLUSTER_NAME}"),
        (
            AclBinding(ResourcePattern(TOPIC, "t"), AccessControlEntry("User:a", "*", READ, AclPermissionType.ANY)),
            "either allows or denies",
        ),
    ],
)
def test_an_acl_that_can_never_apply_is_refused(binding, complaint):
    with pytest.raises(InvalidConfig, match=complaint):
        AclAuthorizer([binding])


@pytest.mark.parametrize("resource_type", SUPPORTED_OPERATIONS)
def test_what_the_tools_of_kafka_send_is_taken(resource_type):
    name = {CLUSTER: CLUSTER_NAME, ResourceType.USER: "User:a"}.get(resource_type, "x")
    groups = [AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS] if resource_type is GROUP else []
    operations = [ALL, *SUPPORTED_OPERATIONS[resource_type], *groups]
    hosts = ["*", "10.0.0.7", "::1", "0:0:0:0:0:0:0:1", "fe80::1%eth0"]
    acls = [deny("User:CN=a,O= b", o, resource_type, name, host=host) for o in operations for host in hosts]
    assert set(AclAuthorizer(acls).acls()) == set(acls)


@pytest.mark.parametrize(
    ("binding", "complaint"),
    [
        (deny("User:a", "READ", TOPIC, "t"), "operation must be a AclOperation, not 'READ'"),
        (deny("User:a", READ, 2, "t"), "resource_type must be a ResourceType, not 2"),
        (deny("User:a", READ, TOPIC, b"t"), "name must be a str"),
        (deny("User:a", READ, TOPIC, "t", "LITERAL"), "pattern_type must be a PatternType"),
        (deny("User:a", READ, TOPIC, "t", host=None), "host must be a str, not None"),
        (deny(KafkaPrincipal("User", "a"), READ, TOPIC, "t"), "principal must be a str"),
        (deny("User:a", READ, TOPIC, "t")[1], "expected an AclBinding"),
        ("x", "expected an AclBinding"),
    ],
)
def test_what_is_no_acl_is_a_type_error_and_not_one_that_denies_nothing(binding, complaint):
    with pytest.raises(TypeError, match=complaint):
        AclAuthorizer([binding])


@pytest.mark.parametrize(
    "acl_filter",
    [AclBindingFilter(operation="READ"), AclBindingFilter(resource_type=2), AclBindingFilter(name=b"t"), None],
)
def test_a_filter_that_would_match_nothing_by_mistake_is_a_type_error(acl_filter):
    authorizer = AclAuthorizer([allow("User:a", READ, TOPIC, "t")])
    for method in (authorizer.remove_acls, authorizer.acls):
        with pytest.raises(TypeError):
            method(acl_filter)


def test_one_where_several_are_expected_is_named():
    with pytest.raises(TypeError, match="expected several ACLs, not one"):
        AclAuthorizer(allow("User:a", READ, TOPIC, "t"))
    with pytest.raises(TypeError, match="super_users: expected several principals"):
        AclAuthorizer(super_users="User:ANONYMOUS")


def test_super_users_and_the_default_come_from_the_settings():
    authorizer = AclAuthorizer()
    authorizer.configure({"super.users": "User:alice; User:CN=a,O=b", "allow.everyone.if.no.acl.found": "true"})
    authorizer.add_acls([deny("User:*", ALL, TOPIC, "t")])
    assert may(authorizer, READ, "t") and not may(authorizer, READ, "t", BOB) and may(authorizer, READ, "u", BOB)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"super.users": "alice"}, "'alice' is not a principal"),
        ({"allow.everyone.if.no.acl.found": "maybe"}, "allow.everyone.if.no.acl.found"),
        ({"authorizer.zookeeper.url": "h:1"}, "authorizer.zookeeper.url is not supported"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(settings, complaint):
    with pytest.raises(InvalidConfig, match=complaint):
        AclAuthorizer().configure(settings)


def test_what_is_denied_is_logged_and_what_nobody_asked_for_is_not(caplog):
    authorizer = AclAuthorizer([allow("User:alice", READ, TOPIC, "t")])
    with caplog.at_level(logging.DEBUG, "kcore.authorizer"):
        pattern, unknown = ResourcePattern(TOPIC, "t"), ResourcePattern(TOPIC, "u")
        authorizer.authorize(ALICE, [Action(READ, pattern), Action(READ, pattern, log_if_allowed=False)])
        authorizer.authorize(ALICE, [Action(READ, unknown), Action(READ, unknown, log_if_denied=False)])
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (
            level,
            f"Principal = User:alice is {result} Operation = READ from host = 10.0.0.7 on resource = "
            f"TOPIC:LITERAL:{name} for request = PRODUCE with resourceRefCount = 1",
        )
        for level, result, name in ((logging.DEBUG, "Allowed", "t"), (logging.INFO, "Denied", "u"))
    ]


# -- the setting


class Configured(AclAuthorizer):
    """What authorizer.class.name of the tests below names."""

    made = []

    def configure(self, settings):
        self.settings, self.is_closed = dict(settings), False
        self.made.append(self)

    def close(self):
        self.is_closed = True


class WithArguments(AclAuthorizer):
    def __init__(self, acls):
        super().__init__(acls)


NAME = f"{__name__}.Configured"


def test_each_start_makes_an_authorizer_and_each_stop_closes_it():
    Configured.made.clear()
    with kcore.Broker(authorizer_class_name=NAME, **{"authorizer.file": "x", "super.users": "User:a"}) as broker:
        (first,) = Configured.made
        assert first.settings["authorizer.file"] == "x" and first.settings["super.users"] == "User:a"
        broker.restart()
        assert first.is_closed
        second = Configured.made[1]
        assert not second.is_closed
    assert second.is_closed and len(Configured.made) == 2


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("no_such_module.Authorizer", "cannot be imported: ModuleNotFoundError.*no_such_module"),
        ("kcore.security.acl_authorizer.Missing", "cannot be imported: AttributeError"),
        ("kcore.security.acl.AclBinding", "not a class that extends kcore.Authorizer"),
        ("kcore.Authorizer", "cannot be made without arguments"),
        (f"{__name__}.WithArguments", "cannot be made without arguments"),
    ],
)
def test_a_broker_does_not_start_with_a_class_that_it_cannot_make(name, complaint):
    broker = kcore.Broker(authorizer_class_name=name)
    with pytest.raises(InvalidConfig, match=complaint):
        broker.start()


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("kafka.security.authorizer.AclAuthorizer", "a Java class cannot run here; kcore.StoredAclAuthorizer"),
        ("org.apache.kafka.metadata.authorizer.StandardAuthorizer", "kcore.StoredAclAuthorizer"),
        ("Authorizer", "expected package.module.Class"),
        ("a b.C", "expected package.module.Class"),
    ],
)
def test_a_name_that_cannot_be_a_python_class_is_refused_at_once(name, complaint):
    with pytest.raises(InvalidConfig, match=f"authorizer.class.name: .*{complaint}"):
        kcore.Broker(authorizer_class_name=name)


def test_an_authorizer_is_given_once():
    with pytest.raises(InvalidConfig, match="both given"):
        kcore.Broker(authorizer=AclAuthorizer(), authorizer_class_name=NAME)
    with pytest.raises(InvalidConfig, match="both given"):
        kcore.Cluster(authorizer=AclAuthorizer(), authorizer_class_name=NAME)
    with pytest.raises(TypeError, match=r"must be a kcore\.Authorizer"):
        kcore.Broker(authorizer=AclAuthorizer)
    with pytest.raises(TypeError, match=r"must be a kcore\.Authorizer"):
        kcore.Cluster(authorizer="kcore.AclAuthorizer")


def test_settings_of_an_authorizer_without_one_are_refused():
    with pytest.raises(InvalidConfig, match=r"authorizer\.file is for an authorizer"):
        kcore.Broker(**{"authorizer.file": "x"})


def test_settings_that_have_no_effect_without_a_class_are_named_in_the_log(caplog):
    kcore.Broker(super_users="User:a")
    kcore.Broker(authorizer=AclAuthorizer(), allow_everyone_if_no_acl_found=True)
    warnings = [r.getMessage().partition(":")[0] for r in caplog.records if r.name == "kcore.server.broker_parts"]
    assert warnings == ["super.users has no effect", "allow.everyone.if.no.acl.found has no effect"]
    caplog.clear()
    kcore.Broker(authorizer_class_name="kcore.AclAuthorizer", super_users="User:a")
    assert caplog.records == []
