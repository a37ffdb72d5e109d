"""Pages about a cluster of three brokers, one of which is killed in the end."""

import re
from html import unescape
from pathlib import Path

import pytest

import kcore
from tests.cluster_sessions import LONG_MS
from tests.unit.tools.test_groups import commit, coordinator, member
from tests.unit.web.pages import address_of, cells, opened, words
from tests.waiting import wait_until

#: As a group id may be: markup, a mark that turns the direction of text, a control character.
HOSTILE = "<script>alert(1)</script>\u202e\0\"'&é"


@pytest.fixture(scope="module")
def cluster():
    settings = {"auto_leader_rebalance_enable": False, "zookeeper_session_timeout_ms": LONG_MS}
    with kcore.Cluster(3, offsets_topic_num_partitions=3, **settings) as cluster:
        cluster.create_topic("orders", partitions=60)
        cluster.create_topic("payments", partitions=1, retention_ms=86_400_000)
        for number in range(1234):
            cluster.brokers[cluster.leader("orders", 7)].produce("orders", f"{number}", partition=7)
        with coordinator(cluster, "the first group"):  # makes __consumer_offsets
            pass
        yield cluster


@pytest.fixture(scope="module")
def page(cluster):
    """Asks the page for an address; the text without markup, if the status is the expected one."""
    with opened([address_of(cluster.brokers[0])]) as (client, site):
        wait_until(lambda: site.sampler.catalog is not None and len(site.sampler.look_again().topics) == 3)

        def page(address, status=200):
            answer = client.get(address)
            assert answer.status_code == status, answer.text
            return answer.text

        yield page


def test_the_first_page_has_the_brokers_and_what_is_wrong(cluster, page):
    text = page("/")
    assert "<h1><bdi>Brokers of the cluster</bdi></h1>" in text
    assert [row[0] for row in cells(text)] == ["0", "1", "2"]
    assert cells(text)[0][1] == cluster.brokers[0].bootstrap_servers
    assert "Partitions 64" in words(text)
    assert "With a replica out of sync 0" in words(text)


def test_topics_are_listed_filtered_and_sorted_by_the_server(page):
    assert [row[:3] for row in cells(page("/topics"))] == [["orders", "60", "3"], ["payments", "1", "3"]]
    assert [row[0] for row in cells(page("/topics?sort=-name"))] == ["payments", "orders"]
    assert [row[0] for row in cells(page("/topics?q=PAY"))] == ["payments"]
    assert cells(page("/topics?internal=1"))[0][0] == "__consumer_offsets"
    assert "No topic with “<b>” in its name" in words(page("/topics?q=%3Cb%3E"))


def test_a_topic_has_its_settings_and_a_page_of_partitions_with_leader_isr_and_offsets(cluster, page):
    text = page("/topic?name=orders")
    rows = cells(text)
    # As Kafka's tools and partition.metadata spell it.
    spelt = (Path(cluster.brokers[0].data_dir) / "orders-0" / "partition.metadata").read_text().split()[-1]
    assert f"Topic id {spelt}" in words(text)
    assert [row[0] for row in rows] == [str(number) for number in range(50)]
    leader = str(cluster.leader("orders", 7))
    assert rows[7][:2] == ["7", leader]
    assert sorted(rows[7][3].split(", ")) == ["0", "1", "2"]
    assert rows[7][4:6] == ["0", "1234"]
    assert [row[0] for row in cells(page("/topic?name=orders&page=2"))] == [str(n) for n in range(50, 60)]
    assert "retention.ms 86400000" in words(page("/topic?name=payments"))


def test_a_topic_or_group_that_is_not_there_is_named_in_a_page_with_status_404(page):
    assert "there is no topic 'nothing'" in words(page("/topic?name=nothing", 404))
    assert "Group nothing not found" in words(page("/group?id=nothing", 404))
    assert "lacks the parameter name" in words(page("/topic", 400))


def test_groups_are_listed_and_their_lag_is_asked_for_those_that_are_shown(cluster, page):
    for number in range(30):
        with coordinator(cluster, f"group-{number:02}") as (client, _):
            commit(client, f"group-{number:02}", {("orders", 7): 1000 + number})
    rows = cells(page("/groups?q=group-"))
    assert [row[0] for row in rows] == [f"group-{number:02}" for number in range(25)]
    assert {tuple(row[4:]) for row in rows} == {("…", "…")}
    rows = cells(page("/groups?q=group-&page=2&lag=1"))
    assert [(row[0], *row[4:]) for row in rows] == [
        (f"group-{number:02}", "1", str(234 - number)) for number in range(25, 30)
    ]


def test_a_group_has_its_members_and_the_lag_of_each_partition(cluster, page):
    with coordinator(cluster, "busy") as (client, _), member(client, "busy", [7]) as (member_id, generation):
        commit(client, "busy", {("orders", 7): 1000, ("orders", 3): 0}, generation, member_id)
        text = page("/group?id=busy")
        rows = cells(text)
        assert rows[0] == ["orders -3", "0", "0", "0", ""]
        assert rows[1] == ["orders -7", "1000", "1234", "234", "client of busy"]
        assert rows[2][0] == "client of busy"
        assert cells(page("/group?id=busy&sort=-lag"))[0][0] == "orders -7"


def test_hostile_names_stay_text(cluster, page):
    with coordinator(cluster, HOSTILE) as (client, _), member(client, HOSTILE, [7]) as (member_id, generation):
        commit(client, HOSTILE, {("orders", 7): 1}, generation, member_id)
        shown = "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e\\x00&#34;&#39;&amp;é"
        listed = page("/groups?q=script&lag=1")
        assert shown in listed
        (address,) = re.findall(r'href="(/group\?id=%3Cscript[^"]*)"', listed)
        described = page(unescape(address))
        assert f"client of {shown}" in described
        for text in (listed, described, page("/topics?q=" + "%3Cscript%3E%E2%80%AE%00")):
            without_field = re.sub(r'<input type="search"[^>]*>', "", text)  # has what the reader has written
            assert not re.search(r"<script(?! src=\"/static/)|\u202e|\0", without_field)


def test_plots_have_the_rate_of_topics_and_the_lag_of_groups(cluster, page):
    with opened([address_of(cluster.brokers[0])]) as (client, site):
        with coordinator(cluster, "plotted") as (connection, _):
            commit(connection, "plotted", {("orders", 7): 1000})
        site.sampler.watch_group("plotted")
        site.sampler.step()
        cluster.brokers[cluster.leader("orders", 7)].produce("orders", "one more", partition=7)
        site.sampler.step()
        rates = client.get("/plot.json?topic=orders").json()
        (line,) = rates["lines"]
        assert len(rates["t"]) == len(line["y"]) > 0
        assert max(rate for rate in line["y"] if rate is not None) > 0
        assert sum(client.get("/plot.json").json()["lines"][0]["y"]) > 0
        assert client.get("/plot.json?group=plotted").json()["lines"][0]["y"][-1] == 235
        assert client.get("/plot.json?topic=nothing").json()["lines"][0]["y"] == []


def test_a_replica_whose_broker_is_dead_or_behind_says_so(cluster, page):
    cluster.kill(2)
    wait_until(lambda: not any(2 in cluster.isr("orders", number) for number in range(60)))
    wait_until(lambda: words(page("/topic?name=orders")).count("Broker 2 : not alive") == 50)
    with opened([address_of(cluster.brokers[0])]) as (client, site):
        wait_until(lambda: site.sampler.look_again().not_in_sync == 64)
        assert "With a replica out of sync 64" in words(client.get("/").text)


def test_a_page_goes_on_when_its_broker_was_restarted(tmp_path):
    with kcore.Broker(str(tmp_path)) as broker:
        address = address_of(broker)
        with opened([address]) as (client, _):
            assert client.get("/topic?name=nothing").status_code == 404
            broker.stop()
            # The connection that the page has kept is closed.
            with kcore.Broker(str(tmp_path), address[1]):
                assert client.get("/topic?name=nothing").status_code == 404
            assert client.get("/topic?name=nothing").status_code == 502


def test_a_page_about_directories_alone_says_how_to_see_a_cluster(tmp_path):
    with opened(directories=[tmp_path]) as (client, _):
        answer = client.get("/topics")
    assert (answer.status_code, "kcore web --bootstrap HOST:PORT" in answer.text) == (404, True)


def test_a_cluster_that_does_not_answer_is_an_error_page_with_the_address():
    with opened([("127.0.0.1", 1)]) as (client, _):
        answer = client.get("/")
        assert (answer.status_code, "127.0.0.1:1" in answer.text) == (502, True)
        assert "The list of topics is being read" in client.get("/topics").text
