"""kcore quotas, against a cluster of two brokers."""

import pytest

import kcore
from kcore.client.quota_client import QuotaClient, entity_of
from kcore.tools.command_line import addresses
from tests.unit.tools.command import run_json, run_text
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def cluster():
    with kcore.Cluster(2, offsets_topic_num_partitions=1) as cluster:
        yield cluster


@pytest.fixture
def text(cluster, capsys):
    """(exit status, stdout, stderr)."""
    # The second broker alone: what is asked of another one may still be old.
    return lambda *words: run_text(capsys, "quotas", *words, "--bootstrap", cluster.brokers[1].bootstrap_servers)


@pytest.fixture
def run(cluster, capsys):
    """The JSON lines of a command that succeeds."""

    def run(*words):
        status, lines = run_json(capsys, "quotas", *words, "--bootstrap", cluster.brokers[1].bootstrap_servers)
        assert status == 0
        return lines

    return run


def test_a_quota_is_planned_then_set_listed_and_unset(text, run):
    words = ("--user", "alice", "producer_byte_rate=1048576", "request_percentage=12.5")
    lines = "  producer_byte_rate: not set -> 1048576 (1.0 MB a second)\n  request_percentage: not set -> 12.5\n"
    plan = "user alice: 2 quotas would change; --apply changes them\n"
    assert text("set", *words) == (0, plan + lines, "")
    assert text("list", "--user", "alice") == (0, "no quotas of user alice\n", "")
    assert text("set", *words, "--apply") == (0, f"user alice: 2 quotas changed\n{lines}", "")
    assert text("list", "--user", "alice")[1] == (
        "user alice:\n  producer_byte_rate=1048576 (1.0 MB a second)\n  request_percentage=12.5\n"
    )
    assert "request_percentage: is 12.5 already: nothing to do" in text("set", *words)[1]
    unset = ("--user", "alice", "producer_byte_rate", "request_percentage", "consumer_byte_rate")
    entity = [{"type": "user", "name": "alice"}]
    assert run("unset", *unset) == [
        {"entity": entity, "quota": quota, "old_value": value, "applied": False}
        for quota, value in [
            ("producer_byte_rate", 1048576),
            ("request_percentage", 12.5),
            ("consumer_byte_rate", None),
        ]
    ]
    shown = text("unset", *unset, "--apply")[1]
    assert "  producer_byte_rate: 1048576 (1.0 MB a second) -> not set\n" in shown
    assert "  consumer_byte_rate: is not set: nothing to do\n" in shown
    assert run("list", "--user", "alice") == []


def test_users_client_ids_and_defaults_are_told_apart(text, run):
    entities = {
        "user bob": ("--user", "bob"),
        "user bob, client id app": ("--user", "bob", "--client", "app"),
        "client id app": ("--client-id", "app"),
        "every user without its own": ("--user-defaults",),
        "every client id without its own": ("--client-defaults",),
        "user bob, every client id without its own": ("--user", "bob", "--client-defaults"),
    }
    for number, (name, words) in enumerate(entities.items(), 1):
        changed = text("set", *words, f"consumer_byte_rate={number}", "--apply")[1]
        assert changed.startswith(f"{name}: 1 quota changed\n")
    for number, words in enumerate(entities.values(), 1):
        # Strictly this entity: the old value is its own.
        assert run("unset", *words, "consumer_byte_rate")[0]["old_value"] == number
    shown = text("list")[1]
    assert all(f"{name}:\n" in shown for name in entities)
    assert {line["value"] for line in run("list", "--user", "bob")} == {1, 2, 6}
    (default,) = run("list", "--user-defaults")
    assert default == {"entity": [{"type": "user", "name": None}], "quota": "consumer_byte_rate", "value": 4}
    for words in entities.values():
        text("unset", *words, "--delete-config", "consumer_byte_rate", "--apply")
    assert text("list") == (0, "no quotas\n", "")


def test_kafka_configs_shs_options_are_understood(text):
    text("set", "--client", "app", "--add-config", "producer_byte_rate=1,consumer_byte_rate=2", "--apply")
    assert text("list")[1] == "client id app:\n  consumer_byte_rate=2\n  producer_byte_rate=1\n"
    text("unset", "--client", "app", "--delete-config", "producer_byte_rate,consumer_byte_rate", "--apply")
    assert text("list")[1] == "no quotas\n"


def test_what_is_set_through_one_broker_holds_at_all(cluster, text):
    text("set", "--client", "everywhere", "producer_byte_rate=5", "--apply")

    def values(broker):
        with QuotaClient(addresses(cluster.brokers[broker].bootstrap_servers)) as client:
            return client.quotas(())

    for broker in cluster.brokers:
        wait_until(lambda b=broker: values(b) == {(("client-id", "everywhere"),): {"producer_byte_rate": 5.0}})
    text("unset", "--client", "everywhere", "producer_byte_rate", "--apply")


def test_the_parts_of_an_entity_have_one_order():
    assert entity_of({"other": "x", "client-id": "c", "user": None}) == (
        ("user", None),
        ("client-id", "c"),
        ("other", "x"),
    )


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("set", "producer_byte_rate=1"), "whose quotas? Expected --user, --client, --ip"),
        (("set", "--user", "u"), "nothing to change: expected QUOTA=NUMBER"),
        (("set", "--user", "u", "producer_byte=1"), "did you mean producer_byte_rate?"),
        (("set", "--user", "u", "producer_byte_rate=0"), "expected QUOTA=NUMBER, a number above 0"),
        (("set", "--user", "u", "producer_byte_rate=many"), "expected QUOTA=NUMBER, a number above 0"),
        (("set", "--user", "u", "producer_byte_rate=1.5"), "producer_byte_rate must be a Long value"),
        (
            ("set", "--user", "u", "connection_creation_rate=1"),
            "'connection_creation_rate' is no quota of users and client ids: expected producer_byte_rate, ",
        ),
        (("set", "--user", "u", "consumer_byte_rate=1", "consumer_byte_rate=2"), "is there more than once"),
        (
            ("set", "--ip", "10.0.0.1", "rate=1"),
            "'rate' is no quota of an IP address: expected connection_creation_rate",
        ),
        (("list", "--user", "u", "--user-defaults"), "--user-defaults is not allowed with --user"),
        (("list", "--user", ""), "--user needs a name"),
        (("list", "--ip", "10.0.0.1", "--user", "u"), "--ip goes without --user and --client"),
        (("set", "--ip", "10.0.0.300", "connection_creation_rate=1"), "10.0.0.300 is not a valid IP address"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_error_says_what_is_wrong_and_nothing_is_set(words, error, text, run):
    status, out, err = text(*words, *(["--apply"] if words[0] == "set" else []))
    assert (status, out) == (2, "")
    assert error in err
    assert run("list") == []
