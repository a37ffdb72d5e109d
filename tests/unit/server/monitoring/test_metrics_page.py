"""docs/metrics.md has each metric that brokers serve, with its type and labels, and no other."""

import re
import urllib.request

import confluent_kafka
import pytest

import kcore
from tests.pages import ROOT

_ROW = re.compile(r"\| `(\w+)` \| (\w+) \| (.*?) ?\| (.+?) \| (.+?) \|")
_SETTINGS = {"kcore.monitoring.address": "127.0.0.1:0"}


def served_by(broker):
    """{name: (type, the sets of labels with which it is there)}"""
    text = urllib.request.urlopen(f"{broker.monitoring_url}/metrics", timeout=60).read().decode()
    # Not by prometheus_client's parser: it adds _total to the names of counters that do not end so.
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M))
    found = {}
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.M):
        found.setdefault(name, (kinds[name], set()))[1].add(frozenset(re.findall(r'(\w+)="', labels)))
    return found


def on_the_page():
    """The same of the page."""
    text = (ROOT / "docs/metrics.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    found = {}
    for row in rows:
        name, kind, labels, unit, meaning = _ROW.fullmatch(row).groups()
        assert name not in found and unit.strip() and meaning.strip(), row
        names = frozenset(re.findall(r"\w+", labels))
        found[name] = (kind, {names, frozenset()} if "(" in labels else {names})
    assert len(rows) > 80
    return found


@pytest.fixture
def served(kafka_cluster):
    """What a broker alone and the members of a cluster serve together."""
    found = {}
    with kcore.Broker(kcore_monitoring_address="127.0.0.1:0", telemetry_receiver=lambda payload: None) as broker:
        broker.produce("orders", "a book")
        brokers = [broker, *kafka_cluster.cluster.brokers.values()]
        leader = kafka_cluster.cluster.leader("orders")
        with kafka_cluster.fault("Fetch", silent=True, from_broker=1 - leader, broker=leader):
            settings = kafka_cluster.confluent(acks="all", request_timeout_ms=100, retries=0)
            producer = confluent_kafka.Producer(settings)
            producer.produce("orders", "a book")  # the follower never has it
            assert producer.flush(60) == 0
        kafka_cluster.wait_until_in_sync("orders")
        for one in brokers:
            for name, (kind, labels) in served_by(one).items():
                assert found.setdefault(name, (kind, set()))[0] == kind
                found[name][1].update(labels)
    return found


@pytest.mark.kafka({"orders": 1}, brokers=2, config=_SETTINGS)
def test_the_page_has_what_brokers_serve_and_nothing_else(served):
    page = on_the_page()
    assert (sorted(page.keys() - served.keys()), sorted(served.keys() - page.keys())) == ([], [])
    assert {name: (page[name], served[name]) for name in page if page[name] != served[name]} == {}
