"""The names in what --json prints are snake_case, in every command."""

import json
import re
import shutil

import pytest

import kcore
from kcore.common.text import json_line
from kcore.tools.commands import whole_tree
from kcore.tools.main import kcore as kcore_command
from kcore.tools.main import main
from tests import golden_data
from tests.pages import ROOT
from tests.unit.server.transactions import SETTINGS
from tests.unit.tools.command import LOG, flip
from tests.unit.tools.test_groups import commit, coordinator

SNAKE_CASE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
#: What is below them is a record's or a topic's own.
NOT_OURS = {"key", "value", "headers", "config"}
#: Their names are those of Kafka's MBeans and of their attributes.
METRICS = "metrics"

#: command -> the arguments with which it is run here.  {data} and {other} are data directories, {damaged} one of these
#: with a wrong byte, {servers} a running broker, {empty} nothing yet.
COMMANDS = {
    "dump": ["{damaged}"],
    "verify": ["{damaged}"],
    "diff": ["{data}", "{damaged}"],
    "repair": ["{damaged}"],
    "reindex": ["{data}", "--check"],
    "explain isr": ["orders", "--bootstrap", "{servers}"],
    "explain fetch": ["orders", "--bootstrap", "{servers}"],
    "explain lso": ["orders", "--bootstrap", "{servers}"],
    "cluster": ["--bootstrap", "{servers}"],
    "doctor": ["--bootstrap", "{servers}"],
    "metadata": ["--apis", "--bootstrap", "{servers}"],
    "topics list": ["--internal", "--bootstrap", "{servers}"],
    "topics describe": ["--bootstrap", "{servers}"],
    "topics create": ["other", "--bootstrap", "{servers}"],
    "topics alter": ["orders", "--config", "retention.ms=60000", "--bootstrap", "{servers}"],
    "topics delete": ["old", "--bootstrap", "{servers}"],
    "configs describe": ["--broker", "0", "--bootstrap", "{servers}"],
    "configs set": ["--topic", "orders", "retention.ms=1", "--bootstrap", "{servers}"],
    "configs unset": ["--topic", "orders", "retention.ms", "--bootstrap", "{servers}"],
    "configs explain": ["compression.type"],
    "acls list": ["--bootstrap", "{servers}"],
    "acls add": ["--principal", "User:a", "--operation", "all", "--topic", "new", "--bootstrap", "{servers}"],
    "acls remove": ["--principal", "User:b", "--bootstrap", "{servers}"],
    "quotas list": ["--bootstrap", "{servers}"],
    "quotas set": ["--client-defaults", "request_percentage=50", "--bootstrap", "{servers}"],
    "quotas unset": ["--user", "q", "consumer_byte_rate", "--bootstrap", "{servers}"],
    "groups list": ["--bootstrap", "{servers}"],
    "groups describe": ["--bootstrap", "{servers}"],
    "groups reset": ["g", "--topic", "orders", "--to", "latest", "--bootstrap", "{servers}"],
    "groups delete": ["g", "--bootstrap", "{servers}"],
    "txns list": ["--bootstrap", "{servers}"],
    "txns describe": ["shop", "--bootstrap", "{servers}"],
    "txns open": ["--bootstrap", "{servers}"],
    "txns abort": ["sold:0", "--start-offset", "0", "--bootstrap", "{servers}"],
    "reassign": ["orders", "--to", "0", "--bootstrap", "{servers}"],
    "logdirs list": ["--bootstrap", "{servers}"],
    "logdirs move": ["orders", "--to", "{log_dir}", "--bootstrap", "{servers}"],
    "elect": ["orders", "--bootstrap", "{servers}"],
    "mirror": ["{servers}", "orders", "{empty}"],
    "backup": ["{new_backup}", "--bootstrap", "{servers}"],
    "restore": ["{backup}", "{new_data}"],
    "replay": ["orders", "replayed", "--bootstrap", "{servers}"],
    "consume": ["orders", "--bootstrap", "{servers}"],
}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    directory = tmp_path_factory.mktemp("json")
    data, damaged = directory / "data", directory / "damaged"
    for copy in (data, damaged):
        shutil.copytree(golden_data.data_dir(), copy)
    flip(damaged / "g-none-0" / LOG, 3541 + 20)
    acls = {"authorizer_class_name": "kcore.StoredAclAuthorizer", "super_users": "User:ANONYMOUS"}
    with kcore.Cluster(1, **SETTINGS, **acls) as cluster:
        for topic in ("old", "orders", "replayed"):
            cluster.create_topic(topic)
        cluster.produce("orders", "value", "key", {"aName": b"\xff"})
        with coordinator(cluster, "g") as (client, _):
            commit(client, "g", {("orders", 0): 0})
        cluster.create_topic("sold")
        cluster.transaction("shop").produce("sold", "a book")
        quota = ("--user", "q", "--client", "c", "consumer_byte_rate=1000")
        assert main(["quotas", "set", *quota, "--apply", "--bootstrap", cluster.bootstrap_servers]) == 0
        acl = ("--principal", "User:b", "--operation", "read", "--topic", "orders")
        assert main(["acls", "add", *acl, "--apply", "--bootstrap", cluster.bootstrap_servers]) == 0
        backup = directory / "backup"
        assert main(["backup", str(backup), "--bootstrap", cluster.bootstrap_servers]) == 0
        yield {
            "backup": backup,
            "new_backup": directory / "new_backup",
            "new_data": directory / "new_data",
            "data": data,
            "damaged": damaged,
            "empty": directory / "empty",
            "log_dir": cluster.brokers[0].log("orders", 0).parent_dir,
            "servers": cluster.bootstrap_servers,
        }


def names_of(value):
    if isinstance(value, dict):
        for name, field in value.items():
            yield name
            if name not in NOT_OURS:
                yield from names_of(field)
    elif isinstance(value, list):
        for item in value:
            yield from names_of(item)


def test_each_command_with_json_is_in_the_table():
    # That of produce is what it reads.
    # Those of Spark print through json_line() too; tests/unit/tools/test_spark_command.py reads them.
    commands = dict(whole_tree(kcore_command))
    with_json = {name for name in commands if any("--json" in param.opts for param in commands[name].params)}
    found = {name for name in with_json if not name.startswith("spark ")}
    assert found - {"produce"} == COMMANDS.keys() | {METRICS}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_names_are_snake_case(command, places, capsys):
    words = [word.format(**places) for word in COMMANDS[command]]
    assert main([*command.split(), "--json", *words]) in (0, 1)
    out = capsys.readouterr().out
    objects = [json.loads(out)] if command.startswith("explain") else [*map(json.loads, out.splitlines())]
    names = {name for shown in objects for name in names_of(shown)}
    assert names
    assert {name for name in names if not SNAKE_CASE.fullmatch(name)} == set()


@pytest.mark.parametrize("command", ["elect", "reassign", "mirror", "metadata", "reindex"])
def test_the_page_of_a_command_names_what_it_prints_as_json(command, places, capsys):
    text = (ROOT / "docs" / "commands" / f"{command}.md").read_text()
    words = [word.format(**places) for word in COMMANDS[command]]
    assert main([command, "--json", *words]) in (0, 1)
    printed = {name for line in capsys.readouterr().out.splitlines() for name in names_of(json.loads(line))}
    (named,) = re.findall(r"^(?:.*\s)?As JSON, (.*?)(?:\n\n|\Z)", text, re.M | re.S)
    assert printed - {"type"} - set(re.findall(r"\w+", named)) == set()


def test_what_a_record_or_a_topics_settings_have_keeps_its_names():
    event = {
        "keySize": 1,
        "key": {"groupId": 1},
        "value": {"data": {"leaderEpoch": 2}},
        "headers": [["aName", b"\xff"]],
        "config": {"myPlugin.x": "1"},
        "steps": [{"endOffset": 3, "ifAFollowsB": None}],
        "batchFields": ["partitionLeaderEpoch", "crc"],
    }
    assert json.loads(json_line(event)) == {
        "key_size": 1,
        "key": {"groupId": 1},
        "value": {"data": {"leaderEpoch": 2}},
        "headers": [["aName", {"hex": "ff"}]],
        "config": {"myPlugin.x": "1"},
        "steps": [{"end_offset": 3, "if_a_follows_b": None}],
        "batch_fields": ["partition_leader_epoch", "crc"],
    }


def test_the_attributes_of_a_metric_keep_kafkas_names(places, capsys):
    assert main(["metrics", "--json", "--match", "BytesInPerSec", "--bootstrap", places["servers"]]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert metrics["kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec"].keys() == {"Count", "MeanRate"}
