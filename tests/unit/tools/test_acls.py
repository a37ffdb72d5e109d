"""kcore acls, against a broker with kcore's authorizer and one without."""

import pytest

import kcore
from kcore.tools.main import main
from tests.unit.tools.command import run_json, run_text

ALICE = ("--principal", "User:alice")


@pytest.fixture(scope="module")
def cluster():
    settings = {"authorizer_class_name": "kcore.StoredAclAuthorizer", "super_users": "User:ANONYMOUS"}
    with kcore.Cluster(1, offsets_topic_num_partitions=1, **settings) as cluster:
        yield cluster


@pytest.fixture
def text(cluster, capsys):
    """(exit status, stdout, stderr)."""
    return lambda *words: run_text(capsys, "acls", *words, "--bootstrap", cluster.bootstrap_servers)


@pytest.fixture
def run(cluster, capsys):
    """The JSON lines of a command that succeeds."""

    def run(*words):
        status, lines = run_json(capsys, "acls", *words, "--bootstrap", cluster.bootstrap_servers)
        assert status == 0
        return lines

    return run


@pytest.fixture
def names(run):
    """(resource, principal, operation) of what is listed."""
    return lambda *words: [(a["resource_name"], a["principal"], a["operation"]) for a in run("list", *words)]


@pytest.fixture(autouse=True)
def no_acls_are_left(text):
    yield
    assert text("remove", "--host", "*", "--apply")[0] == 0
    assert text("remove", "--host", "10.0.0.1", "--apply")[0] == 0
    assert text("list") == (0, "no ACLs\n", "")


def test_who_is_refused_gets_the_principal_and_the_command_that_shows_the_acls(tmp_path, capsys, monkeypatch):
    settings = {"authorizer_class_name": "kcore.StoredAclAuthorizer", "allow_everyone_if_no_acl_found": True}
    with kcore.Broker(**settings) as broker:
        broker.create_topic("orders")
        broker.create_topic("secret")
        servers = ("--bootstrap", broker.bootstrap_servers)
        everyone = ("--operation", "describe", "--topic", "orders", "--apply", *servers)
        assert main(["acls", "add", "--principal", "User:ANONYMOUS", *everyone]) == 0
        alices = ("--operation", "read", "--topic", "secret", "--group", "billing", "--apply", *servers)
        assert main(["acls", "add", *ALICE, *alices]) == 0
        capsys.readouterr()

        (tmp_path / "lines").write_text("a book\n")

        def refusal(*words):
            with (tmp_path / "lines").open() as lines:
                monkeypatch.setattr("sys.stdin", lines)
                assert main([*words, *servers]) == 2
            return capsys.readouterr().err

        text = "User:ANONYMOUS is not authorized to write to orders; `kcore acls list --topic orders` shows who is"
        assert text in refusal("produce", "orders")
        of_topic = (
            "TopicAuthorizationFailed: The principal may not do this with the topic; `kcore acls list` shows who may"
        )
        assert of_topic in refusal("topics", "describe", "secret")
        assert "Group authorization failed; `kcore acls list` shows who may" in refusal("groups", "delete", "billing")


def test_an_acl_is_planned_then_added_listed_and_removed(text, run):
    acl = (*ALICE, "--operation", "read", "--operation", "write", "--topic", "orders")
    lines = "topic orders:\n  User:alice may read\n  User:alice may write\n"
    assert text("add", *acl) == (0, f"2 ACLs would be added; --apply adds them\n{lines}", "")
    assert run("list") == []
    assert text("add", *acl, "--apply") == (0, f"2 ACLs added\n{lines}", "")
    assert text("list")[1] == lines
    assert run("list", "--operation", "write") == [
        {
            "resource_type": "topic",
            "resource_name": "orders",
            "pattern_type": "literal",
            "principal": "User:alice",
            "host": "*",
            "operation": "write",
            "permission": "allow",
        }
    ]
    again = text("add", *acl, "--apply")[1]
    assert again == (
        "0 ACLs added\ntopic orders:\n"
        "  User:alice may read (is there already)\n  User:alice may write (is there already)\n"
    )
    assert text("remove", *ALICE) == (0, f"2 ACLs would be removed; --apply removes them\n{lines}", "")
    assert len(run("list")) == 2
    (removed,) = run("remove", *ALICE, "--operation", "read", "--apply")
    assert (removed["operation"], removed["applied"], removed["problem"]) == ("read", True, None)
    assert [acl["operation"] for acl in run("list")] == ["write"]


def test_who_is_denied_from_a_host_and_prefixes_are_shown_in_words(text):
    words = ("--deny-principal", "User:*", "--host", "10.0.0.1", "--operation", "all", "--pattern", "prefixed")
    text("add", *words, "--topic", "pay", "--apply")
    text("add", *ALICE, "--operation", "describe-configs", "--cluster", "--topic", "*", "--apply")
    assert text("list")[1] == (
        "every topic:\n  User:alice may describe_configs\n"
        "every topic that begins with pay:\n  User:* may not do everything from 10.0.0.1\n"
        "the cluster:\n  User:alice may describe_configs\n"
    )


def test_list_shows_what_applies_to_a_name_and_remove_takes_only_the_name_itself(text, names):
    for words in (("--topic", "pay", "--pattern", "prefixed"), ("--topic", "payments"), ("--topic", "*")):
        text("add", *ALICE, "--operation", "read", *words, "--apply")
    text("add", *ALICE, "--operation", "read", "--topic", "orders", "--apply")
    assert {name for name, _, _ in names("--topic", "payments")} == {"pay", "payments", "*"}
    assert [name for name, _, _ in names("--topic", "pay", "--pattern", "prefixed")] == ["pay"]
    text("remove", "--topic", "payments", "--apply")
    assert {name for name, _, _ in names("--topic", "payments")} == {"pay", "*"}


def test_filters_are_combined(text, names):
    text(
        "add", *ALICE, "--deny-principal", "User:bob", "--operation", "read", "--topic", "a", "--group", "a", "--apply"
    )
    assert len(names()) == 4
    assert names("--group", "a", "--principal", "User:bob") == [("a", "User:bob", "read")]
    assert {principal for _, principal, _ in names("--permission", "deny")} == {"User:bob"}
    assert names("--allow-principal", "User:bob") == []
    assert len(names("--deny-principal", "User:bob", "--allow-principal", "User:alice", "--topic", "a")) == 2
    assert names("--host", "10.0.0.1") == []


def test_a_producer_and_a_consumer_get_what_they_need(run):
    def given(*words):
        return {(acl["resource_type"], acl["operation"]) for acl in run("add", *ALICE, *words)}

    consumer = {("topic", "read"), ("topic", "describe"), ("group", "read")}
    assert given("--consumer", "--topic", "t", "--group", "g") == consumer
    producer = {("topic", "write"), ("topic", "describe"), ("topic", "create")}
    assert given("--producer", "--topic", "t") == producer
    transactional = {("transactional_id", "write"), ("transactional_id", "describe")}
    assert given("--producer", "--topic", "t", "--transactional-id", "x") == producer | transactional


def test_the_options_of_kafka_acls_sh_are_understood(text, run):
    words = ("--allow-principal", "User:a", "--allow-host", "10.0.0.1", "--resource-pattern-type", "PREFIXED")
    text("add", *words, "--operation", "DescribeConfigs", "--topic", "t", "--apply")
    (acl,) = run("list")
    assert (acl["host"], acl["operation"], acl["pattern_type"]) == ("10.0.0.1", "describe_configs", "prefixed")
    assert len(run("remove", "--deny-host", "10.0.0.1")) == 1


def test_an_acl_that_is_refused_is_named_and_the_others_are_added(text):
    words = ("--operation", "read", "--topic", "good", "--topic", "", "--apply")
    status, out, err = text("add", *ALICE, *words)
    assert (status, err) == (1, "")
    assert "1 ACL added\n" in out and "not done: InvalidRequest: " in out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("remove", "--apply"), "this would remove all ACLs: say which"),
        (("remove", "--pattern", "any", "--apply"), "this would remove all ACLs: say which"),
        (("add", "--operation", "read", "--topic", "t"), "for whom? Expected --principal"),
        (("add", *ALICE, "--operation", "read"), "of what? Expected --topic"),
        (("add", *ALICE, "--topic", "t"), "what may they do? Expected either --operation"),
        (("add", *ALICE, "--topic", "t", "--operation", "read", "--consumer"), "what may they do? Expected either"),
        (
            ("add", *ALICE, "--operation", "write", "--group", "g"),
            "a group has no operation write; it has read, delete",
        ),
        (("add", *ALICE, "--consumer", "--cluster"), "--producer and --consumer need nothing of a cluster"),
        (("add", *ALICE, "--operation", "raed", "--topic", "t"), "did you mean read?"),
        (("add", *ALICE, "--operation", "read", "--topic", "t", "--pattern", "match"), "expected literal, prefixed"),
        (("list", "--principal", "alice"), "'alice': expected TYPE:NAME, as User:alice"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_command_that_cannot_be_meant_is_refused(words, error, text, run):
    status, out, err = text(*words)
    assert (status, out) == (2, "")
    assert error in err
    assert run("list") == []


def test_brokers_without_an_authorizer_are_named_as_such(capsys):
    with kcore.Broker() as broker:
        assert main(["acls", "list", "--bootstrap", broker.bootstrap_servers]) == 2
        out, err = capsys.readouterr()
    assert not out
    assert err.startswith(
        "kcore: No Authorizer is configured on the broker (a broker with ACLs has authorizer.class.name"
    )
    assert len(err.splitlines()) == 1
