"""kcore configs, against a cluster of two brokers."""

import json

import pytest

import kcore
from kcore.tools.main import main
from tests.cluster_sessions import LONG_MS
from tests.unit.server.client import Client
from tests.unit.server.config.test_altering_configs import METRICS, describe
from tests.unit.tools.command import run_json, run_text
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def cluster():
    with kcore.Cluster(
        2, offsets_topic_num_partitions=1, log_segment_bytes=2 << 20, zookeeper_session_timeout_ms=LONG_MS
    ) as cluster:
        for topic in ("orders", "plain", "payments", "books"):
            cluster.create_topic(topic)
        yield cluster


@pytest.fixture
def text(cluster, capsys):
    """(exit status, stdout, stderr)."""
    return lambda *words: run_text(capsys, "configs", *words, "--bootstrap", cluster.bootstrap_servers)


@pytest.fixture
def run(cluster, capsys):
    """The JSON lines of a command that succeeds."""

    def run(*words):
        status, lines = run_json(capsys, "configs", *words, "--bootstrap", cluster.bootstrap_servers)
        assert status == 0
        return lines

    return run


def await_everywhere(cluster, topic, settings):
    """Each broker hears of a change, and each may be the one that is asked."""
    for broker in cluster.brokers.values():
        wait_until(lambda b=broker: dict(b.admin_manager.topic_config(topic)) == settings)


def test_a_topics_setting_is_planned_then_set_described_and_unset(cluster, text):
    of = ("--topic", "orders")
    line = "retention.ms: 604800000 (default) -> 60000 (topic)"
    plan = text("set", *of, "retention.ms=60000")
    assert plan == (0, f"topic orders: 1 setting would change; --apply changes them\n  {line}\n", "")
    assert cluster.brokers[0].admin_manager.topic_config("orders") == {}
    assert text("set", *of, "retention.ms=60000", "--apply") == (0, f"topic orders: 1 setting changed\n  {line}\n", "")
    await_everywhere(cluster, "orders", {"retention.ms": "60000"})
    assert text("describe", *of)[1] == "topic orders:\n  retention.ms=60000 (topic)\n  segment.bytes=2097152 (static)\n"
    again = text("set", *of, "retention.ms=60000", "--apply")[1]
    assert again == "topic orders: 0 settings changed\n  retention.ms: is 60000 already: nothing to do\n"
    back = "retention.ms: 60000 (topic) -> 604800000 (default)"
    assert back in text("unset", *of, "retention.ms")[1]
    assert back in text("unset", *of, "retention.ms", "--apply")[1]
    await_everywhere(cluster, "orders", {})
    assert "retention.ms: is not set here: nothing to do" in text("unset", *of, "retention.ms", "--apply")[1]


def test_ADM_32_a_subscription_to_client_metrics_is_set_described_and_unset(cluster, text):
    of = ("--client-metrics", "m")

    def everywhere(value):
        for broker in cluster.brokers.values():
            with Client(broker) as client:
                wait_until(lambda client=client: describe(client, METRICS, "m")[1]["interval.ms"][0] == value)

    line = "interval.ms: 300000 (default) -> 1000 (client metrics)"
    assert text("set", *of, "interval.ms=1000", "--apply") == (
        0,
        f"client metrics m: 1 setting changed\n  {line}\n",
        "",
    )
    everywhere("1000")
    assert text("describe", *of)[1] == "client metrics m:\n  interval.ms=1000 (client metrics)\n"
    back = "interval.ms: 1000 (client metrics) -> 300000 (default)"
    assert back in text("unset", *of, "interval.ms", "--apply")[1]
    everywhere("300000")
    assert text("describe", *of)[1] == "client metrics m: nothing differs from the defaults\n"


def test_unset_of_a_topic_leads_to_the_value_of_its_brokers(cluster, text, run):
    of = ("--topic", "payments")
    text("set", *of, "segment.bytes=3000000", "--apply")
    await_everywhere(cluster, "payments", {"segment.bytes": "3000000"})
    (line,) = run("unset", *of, "segment.bytes")
    assert line == {
        "resource_type": "topic",
        "resource_name": "payments",
        "name": "segment.bytes",
        "old_value": "3000000",
        "old_source": "topic",
        "new_value": "2097152",
        "new_source": "static",
        "applied": False,
    }


def test_a_brokers_settings_are_its_own_before_those_of_all_brokers(cluster, text, run):
    name = "replica.alter.log.dirs.io.max.bytes.per.second"
    assert text("describe", "--default")[1] == "all brokers: nothing differs from the defaults\n"
    plan = text("set", "--default", f"{name}=1000", "--apply")[1]
    assert plan == f"all brokers: 1 setting changed\n  {name}: not set -> 1000 (dynamic default)\n"
    wait_until(lambda: all(broker.config[name] == 1000 for broker in cluster.brokers.values()))
    assert f"{name}: 1000 (dynamic default) -> 7 (dynamic broker)" in text("set", "--broker", "1", f"{name}=7")[1]
    text("set", "--broker", "1", f"{name}=7", "--apply")
    wait_until(lambda: (cluster.brokers[1].config[name], cluster.brokers[0].config[name]) == (7, 1000))
    assert f"  {name}=7 (dynamic broker)\n" in text("describe", "--broker", "1")[1]
    assert text("describe", "--default")[1] == f"all brokers:\n  {name}=1000 (dynamic default)\n"
    assert f"{name}: 7 (dynamic broker) -> 1000 (dynamic default)" in text("unset", "--broker", "1", name, "--apply")[1]
    assert run("unset", "--default", name, "--apply")[0]["applied"]
    wait_until(lambda: cluster.brokers[0].config[name] == cluster.brokers[1].config[name] == 2**63 - 1)


def test_the_defaults_are_shown_with_all_or_by_name(text, run):
    shown = run("describe", "--topic", "plain", "--all")
    assert [line["name"] for line in shown] == sorted(line["name"] for line in shown)
    sources = {line["name"]: line["source"] for line in shown}
    assert (sources["retention.ms"], sources["segment.bytes"]) == ("default", "static")
    (one,) = run("describe", "--topic", "plain", "cleanup.policy")
    assert (one["value"], one["is_read_only"]) == ("delete", False)
    assert one["meaning"]
    assert text("describe", "--topic", "plain", "cleanup.polcy") == (
        2,
        "",
        "kcore: topics have no setting 'cleanup.polcy'; did you mean cleanup.policy?\n",
    )


def test_without_a_resource_everything_that_is_set_in_the_cluster_is_described(cluster, text, run):
    text("set", "--topic", "books", "max.message.bytes=5000", "--apply")
    await_everywhere(cluster, "books", {"max.message.bytes": "5000"})
    shown = {(line["resource_type"], line["resource_name"], line["name"]): line["value"] for line in run("describe")}
    assert shown["broker", "0", "log.segment.bytes"] == shown["broker", "1", "log.segment.bytes"] == "2097152"
    assert shown["topic", "books", "max.message.bytes"] == "5000"
    # What a topic has of its brokers is there with these.
    assert not any(kind == "topic" and name == "plain" for kind, name, _ in shown)


def test_the_options_of_kafka_configs_sh_are_understood(cluster, text):
    of = ("--entity-type", "topics", "--entity-name", "plain")
    words = ("--add-config", "cleanup.policy=[compact,delete],max.message.bytes=9000", "--apply")
    assert text("set", *of, *words)[0] == 0
    await_everywhere(cluster, "plain", {"cleanup.policy": "compact,delete", "max.message.bytes": "9000"})
    assert "cleanup.policy=compact,delete (topic)" in text("describe", *of)[1]
    assert text("unset", *of, "--delete-config", "cleanup.policy,max.message.bytes", "--apply")[0] == 0
    await_everywhere(cluster, "plain", {})
    for default in (("--broker-defaults",), ("--entity-type", "brokers", "--entity-default")):
        assert text("describe", *default)[1] == "all brokers: nothing differs from the defaults\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ("set", "--topic", "orders", "retention.sm=1"),
            "topics have no setting 'retention.sm'; did you mean retention",
        ),
        (
            ("set", "--default", "num.io.thread=1"),
            "brokers have no setting 'num.io.thread'; did you mean num.io.threads?",
        ),
        (("set", "--broker", "0", "num.io.thread=1"), "did you mean num.io.threads?"),
        (("unset", "--topic", "orders", "retention.sm"), "did you mean retention.ms?"),
        (("set", "--topic", "orders", "retention.ms=soon"), "retention.ms"),
        (("set", "--broker", "0", "num.io.threads=400"), "should not be greater than double the current value 4"),
        (("set", "--broker", "0", "broker.rack=r"), "cannot be changed while the broker runs: change it in its server"),
        (("set", "--default", "broker.rack=r"), "Cannot update these configs dynamically: broker.rack"),
        (
            ("set", "--broker", "7", "num.io.threads=4"),
            "broker 7 is not alive, and it alone knows its settings; alive: ",
        ),
        (("set", "--topic", "none", "retention.ms=1"), "The topic 'none' does not exist"),
        (("set", "--topic", "orders"), "nothing to change: expected KEY=VALUE"),
        (("set", "retention.ms=1"), "whose settings? Expected one of --topic, --broker"),
        (("describe", "--all"), "whose settings? Expected one of --topic, --broker"),
        (("set", "--topic", "orders", "a=1", "a=2"), "the setting a is there more than once"),
        (("describe", "--topic", "orders", "--broker", "0"), "expected only one of --topic, --broker"),
        (("describe", "--topic", "orders", "--default"), "expected only one of --topic, --broker"),
        (
            ("describe", "--entity-type", "users", "--entity-name", "u"),
            "the settings of users are quotas: `kcore quotas",
        ),
        (("describe", "--entity-type", "topic"), "did you mean topics?"),
        (("describe", "--entity-type", "brokers"), "--entity-type brokers needs --entity-name ID or --entity-default"),
        (("describe", "--entity-type", "brokers", "--entity-name", "x"), "expected a broker id"),
        (("describe", "--entity-name", "x"), "--entity-name needs --entity-type"),
        (("set", "--client-metrics", "m", "interval.ms=1"), "Invalid value 1 for configuration interval.ms"),
        (("set", "--group", "g", "consumer.session.timeout.ms=1"), "must be between group.consumer.min.session"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_error_is_one_line_that_says_what_is_wrong(words, error, text):
    status, out, err = text(*words, *(["--apply"] if words[0] != "describe" else []))
    assert (status, out) == (2, "")
    assert error in err
    assert err.startswith("kcore") and len(err.splitlines()) - ("--help" in err.splitlines()[-1]) <= 1


def test_explain_says_what_a_setting_means_to_topics_and_to_brokers_and_asks_nobody(capsys):
    def explain(*words):
        status = main(["configs", "explain", *words])
        return status, *capsys.readouterr()

    assert explain("retention.ms") == (
        0,
        "retention.ms: of topics, long, default 604800000\n"
        "  Age beyond which segments are deleted; -1: none.\n"
        "  Topics without it have that of their brokers: log.retention.ms, log.retention.minutes, "
        "log.retention.hours.\n",
        "",
    )
    _, both, _ = explain("compression.type", "--json")
    assert [json.loads(line)["applies_to"] for line in both.splitlines()] == ["topics", "brokers"]
    assert "It can be changed while brokers run: kcore configs set" in explain("num.io.threads")[1]
    assert "It is read when the broker starts." in explain("broker.rack")[1]
    assert "it is accepted and has no effect" in explain("background.threads")[1]
    assert "a broker that has it does not start" in explain("ssl.protocol")[1]
    assert explain("retntion.ms") == (2, "", "kcore: Kafka has no setting 'retntion.ms'; did you mean retention.ms?\n")


def test_a_command_may_be_named_without_its_s(capsys, tmp_path, monkeypatch):
    file = tmp_path / "config.toml"
    file.write_text("[configs.explain]\njson = true\n")
    monkeypatch.setenv("KCORE_CONFIG", str(file))
    assert main(["config", "explain", "retention.ms"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "retention.ms"
    file.write_text("[config.explain]\njson = true\n")
    assert main(["configs", "explain", "retention.ms"]) == 2
    assert "config: there is no such command; did you mean configs?" in capsys.readouterr().err
