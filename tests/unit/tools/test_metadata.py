"""kcore metadata, against clusters."""

import json

import pytest

import kcore
from kcore.client.admin_client import Node, Silence
from kcore.client.metadata_client import BrokerVersions, MetadataClient, VersionRange, api_name
from kcore.protocol.api_keys import served_apis
from kcore.tools.main import main
from kcore.tools.metadata import _Broker, _feature_text, _print_apis


@pytest.fixture(scope="module")
def cluster():
    with kcore.Cluster(2, racks=["west", None], offsets_topic_num_partitions=1) as cluster:
        yield cluster


def run(cluster, capsys, *words):
    status = main(["metadata", *words, "--bootstrap", cluster.bootstrap_servers])
    out, err = capsys.readouterr()
    return status, out, err


def test_the_brokers_have_their_rack_and_role(cluster, capsys):
    status, out, err = run(cluster, capsys)
    assert (status, err) == (0, "")
    first, features, *brokers = out.splitlines()
    controller = cluster.controller()
    assert first == f"cluster {cluster.brokers[0].cluster_id}, controller {controller}"
    assert features == "  features: group.version 1, transaction.version 2"
    for number, line in enumerate(brokers):
        assert line.startswith(f"  broker {number} at {cluster.brokers[number].bootstrap_servers}")
        assert (", rack west" in line, ", controller" in line) == (number == 0, number == controller)


def test_the_apis_of_brokers_that_speak_the_same_are_shown_once(cluster, capsys):
    _, out, _ = run(cluster, capsys, "--apis")
    (table,) = out.split("brokers 0,1 speak:\n")[1:]
    expected = [(int(key), *versions) for key, versions in served_apis(is_cluster_member=True).items()]
    assert len(table.splitlines()) == len(expected)
    assert "      1 Fetch " in table
    cluster_line, *brokers = map(json.loads, run(cluster, capsys, "--apis", "--json")[1].splitlines())
    assert cluster_line["controller"] == cluster.controller()
    for broker in brokers:
        assert [(a["api_key"], a["min_version"], a["max_version"]) for a in broker["apis"]] == sorted(expected)
        assert {a["name"] for a in broker["apis"]} >= {"Produce", "Fetch", "ApiVersions"}


def test_brokers_that_speak_differently_get_a_table_each_and_unknown_apis_a_number(capsys):
    def broker(number, **apis):
        versions = BrokerVersions({int(key[1:]): VersionRange(*v) for key, v in apis.items()}, {}, {})
        return _Broker(Node(number, "h", 1, None), False, None, versions, None)

    same = {"k0": (0, 9), "k9999": (2, 2)}
    _print_apis([broker(0, **same), broker(1, k0=(3, 9)), broker(2, **same)])
    assert capsys.readouterr().out == (
        "brokers 0,2 speak:\n      0 Produce 0 to 9\n   9999 an API of later versions 2\n"
        "broker 1 speaks:\n      0 Produce 3 to 9\n"
    )
    assert api_name(9999) is None


def test_a_feature_below_what_all_brokers_could_do_says_so():
    def broker(highest):
        versions = BrokerVersions({}, {"metadata.version": VersionRange(1, highest)}, {})
        return _Broker(Node(0, "h", 1, None), False, None, versions, None)

    brokers = [broker(25), broker(27)]
    assert _feature_text(brokers, "metadata.version", VersionRange(1, 20)) == (
        "metadata.version 20 (all brokers could do 25)"
    )
    assert _feature_text(brokers, "metadata.version", VersionRange(1, 25)) == "metadata.version 25"


def test_a_broker_that_does_not_answer_is_named_and_the_others_are_shown(cluster, capsys, monkeypatch):
    silence = Silence("Connection refused", False)
    monkeypatch.setattr(MetadataClient, "silent_brokers", lambda self, brokers: {1: silence})
    status, out, _ = run(cluster, capsys, "--json", "--apis")
    answering, silent = [json.loads(line) for line in out.splitlines()][1:]
    assert status == 1
    at = cluster.brokers[1].bootstrap_servers
    assert (silent["broker"], silent["no_answer"]) == (1, f"{at} does not answer: Connection refused")
    assert silent["supported_features"] is silent["apis"] is None
    assert answering["no_answer"] is None and answering["apis"]


def test_the_listeners_are_those_of_the_brokers_setting(capsys):
    listeners = "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0"
    names = "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"
    settings = {"listeners": listeners, "listener.security.protocol.map": names}
    with kcore.Broker(**settings, **{"inter.broker.listener.name": "INSIDE"}) as broker:
        main(["metadata", "--bootstrap", broker.bootstrap_servers.split(",")[0]])
    assert f", listeners {listeners}\n" in capsys.readouterr().out
