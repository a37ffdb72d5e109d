"""How long brokers take to answer, and what a page shows of it."""

import re
from contextlib import contextmanager

import pytest

import kcore
from bench.flow.fake_cluster import FakeCluster, serving
from kcore.common.time import SYSTEM_TIME
from kcore.testing.kafka_fixture import KafkaClusterFixture
from kcore.web.answer_times import MOST_LINES, AnswerTimes, Row, lines_of
from kcore.web.cluster_reader import CLIENT_ID, ClusterReader
from kcore.web.sampler import RING_SIZE
from tests.cluster_sessions import LONG_MS
from tests.unit.web.pages import address_of, cells, opened
from tests.waiting import wait_until

DELAY_S = 0.25


@contextmanager
def answer_times(broker, timeout_ms=10_000):
    """Of the cluster of a broker; its thread does not run."""
    reader = ClusterReader([address_of(broker)])
    times = AnswerTimes(reader, time=SYSTEM_TIME, timeout_ms=timeout_ms)
    yield times
    times.initiate_shutdown()
    reader.close()


def test_the_time_of_a_slow_broker_has_its_delay_and_that_of_another_one_is_its_own():
    with kcore.Cluster(2) as cluster, answer_times(cluster.brokers[0]) as times:
        times.step()
        with KafkaClusterFixture(cluster).fault("ApiVersions", client_id=CLIENT_ID, delay=DELAY_S, broker=1):
            times.step()
        times.step()
        rows = times.rows()
    assert [set(row.answer_ms) for row in rows] == [{0, 1}] * 3
    assert rows[1].answer_ms[1] >= DELAY_S * 1000
    assert all(value > 0 for row in rows for value in row.answer_ms.values())
    assert times.last() == rows[-1].answer_ms


def test_a_broker_without_an_answer_is_a_gap_and_one_that_is_back_goes_on():
    settings = {"zookeeper_session_timeout_ms": LONG_MS, "offsets_topic_num_partitions": 1}
    with kcore.Cluster(2, **settings) as cluster, answer_times(cluster.brokers[0]) as times:
        times.step()
        with KafkaClusterFixture(cluster).fault("ApiVersions", client_id=CLIENT_ID, cut="before", broker=1):
            times.step()
        times.step()
        assert [row.answer_ms[1] is None for row in times.rows()] == [False, True, False]
        cluster.kill(1)
        wait_until(lambda: 1 not in cluster.brokers[0].metadata_cache.snapshot.broker_ids())
        times.step()
        assert 1 not in times.last() and 0 in times.last()
    times.step()
    assert times.last() == {}  # nobody says which brokers there are
    lines = dict(lines_of(times.rows()))
    assert [value is None for value in lines[1]] == [False, True, False, True, True]
    assert [value is None for value in lines[0]] == [False] * 4 + [True]


def test_the_last_hour_is_kept():
    with kcore.Broker() as broker, answer_times(broker) as times:
        for _ in range(RING_SIZE + 3):
            times.step()
        assert len(times.rows()) == RING_SIZE


def test_of_many_brokers_the_slowest_ones_are_plotted():
    usual, slow = dict.fromkeys(range(20), 1.0), {7: 2.0, 3: None, 19: 1.5}
    lines = lines_of([Row(1, usual), Row(2, usual | slow), Row(3, {20: 9.0})])
    assert [broker for broker, _ in lines] == [0, 1, 2, 3, 4, 5, 6, 7, 19, 20]
    assert len(lines) == MOST_LINES
    assert dict(lines)[7] == [1.0, 2.0, None] and dict(lines)[20] == [None, None, 9.0]
    assert lines_of([]) == []


def test_an_end_does_not_wait_for_a_silent_broker():
    with (
        kcore.Cluster(2) as cluster,
        answer_times(cluster.brokers[0], timeout_ms=1_000_000) as times,
        KafkaClusterFixture(cluster).fault("ApiVersions", client_id=CLIENT_ID, silent=True, broker=1) as fault,
    ):
        times.start()
        fault.wait_for_hits()
        times.shutdown()


def test_the_brokers_page_has_the_last_time_in_its_table_and_all_in_a_plot():
    with kcore.Cluster(2) as cluster, opened([address_of(cluster.brokers[0])]) as (client, site):
        wait_until(lambda: len(site.answer_times.last()) == 2)
        text = client.get("/").text
        states = [row[3] for row in cells(text)]
        assert all(re.match(r"answers after \d+\.\d\d ms", state) for state in states), states
        assert 'data-plot="/plot.json?answers=1"' in text
        plotted = client.get("/plot.json?answers=1").json()
        assert [line["label"] for line in plotted["lines"]] == ["broker 0, ms", "broker 1, ms"]
        assert all(len(line["y"]) == len(plotted["t"]) > 0 and line["y"][-1] > 0 for line in plotted["lines"])


def test_a_page_of_many_brokers_says_that_not_all_are_plotted(monkeypatch):
    monkeypatch.setattr("kcore.web.cluster_pages.MOST_LINES", 2)
    cluster = FakeCluster(1, 1, 0)
    with serving(cluster), opened([cluster.address]) as (client, _):
        assert "of the 2 that were slowest in the last hour" in client.get("/").text


@pytest.mark.parametrize("address", ["/plot.json?answers=1", "/"])
def test_a_page_of_directories_alone_has_no_such_plot(tmp_path, address):
    with opened(directories=[tmp_path]) as (client, site):
        assert site.answer_times is None
        assert "/plot.json" not in client.get("/", follow_redirects=True).text
        assert client.get("/plot.json?answers=1").status_code == 404


def test_a_broker_that_never_answers_is_among_the_slowest():
    answers = {broker: 1.0 + broker for broker in range(MOST_LINES)}
    shown = [broker for broker, _ in lines_of([Row(0, {**answers, 99: None})])]
    assert shown == [*range(1, MOST_LINES), 99]
