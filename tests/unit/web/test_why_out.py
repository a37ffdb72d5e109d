"""Why a replica is out of the ISR, as a page says it."""

import pytest

import kcore
from kcore.testing.request_faults import RequestChoice, action_of, make_fault
from kcore.web.cluster_reader import ClusterReader
from tests.cluster_sessions import LONG_MS
from tests.unit.web.pages import address_of, cells, opened
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def cluster():
    """A follower of orders is alive, and its leader answers its fetches with an error."""
    settings = {"replica_lag_time_max_ms": 500, "zookeeper_session_timeout_ms": LONG_MS}
    with kcore.Cluster(2, offsets_topic_num_partitions=1, **settings) as cluster:
        cluster.create_topic("orders")
        leader = cluster.leader("orders", 0)
        choice = RequestChoice(from_broker=1 - leader)
        action = action_of("UnknownServerError", None, None, silent=False)
        with make_fault([cluster.brokers[leader]], "Fetch", choice, action, None):
            cluster.brokers[leader].produce("orders", "a record")
            wait_until(lambda: cluster.isr("orders", 0) == [leader])
            yield cluster


def reason(client):
    """Once the brokers have heard that the replica is out."""
    return wait_until(lambda: cells(client.get("/topic?name=orders").text)[0][-1])


def test_the_leader_says_why_if_it_is_a_broker_of_kcore_on_this_machine(cluster):
    leader = cluster.leader("orders", 0)
    with opened([address_of(cluster.brokers[leader])]) as (client, _):
        text = reason(client)
        assert text.startswith(f"Broker {1 - leader} : it stays out: ")
        explained = str(cluster.brokers[leader].explain_isr("orders", 0))
        assert text.split(" : ")[1].split(":")[0] in explained


def test_else_the_page_says_since_when_it_has_seen_it_out(cluster, monkeypatch):
    leader = cluster.leader("orders", 0)
    monkeypatch.setattr(ClusterReader, "_directory_of", lambda reader, broker: None)
    with opened([address_of(cluster.brokers[leader])]) as (client, site):
        wait_until(lambda: site.sampler.catalog)
        assert reason(client).startswith(f"Broker {1 - leader} : behind since 2")
