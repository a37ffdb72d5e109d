"""`kcore topics delete` of a topic that a dead broker has, which the cluster may not know to be dead."""

import time

import pytest

import kcore
from kcore.client.admin_client import ClusterDescription, Node, Silence
from kcore.errors import TopicAuthorizationFailed
from kcore.metadata import znodes
from kcore.testing import MockTime
from kcore.tools.main import main
from kcore.tools.topics import await_deletion
from tests import cluster_sessions

DEADLINE_S = 60


@pytest.fixture
def cluster():
    with kcore.Cluster(
        3, offsets_topic_num_partitions=1, zookeeper_session_timeout_ms=cluster_sessions.LONG_MS
    ) as cluster:
        yield cluster


def topics(cluster, *words):
    """The exit status."""
    alive = ",".join(broker.bootstrap_servers for broker in cluster.brokers.values())
    return main(["topics", *words, "--bootstrap", alive, "--timeout", str(DEADLINE_S)])


def create(cluster, capsys):
    """Topic t; and another one, which is deleted while all brokers live."""
    cluster.create_topic("other", 2, replication_factor=3)
    assert topics(cluster, "delete", "other") == 0
    assert capsys.readouterr().out == "other is deleted\n"
    assert cluster.brokers[0].store.get(znodes.topic("other")) is None
    cluster.create_topic("t", 2, replication_factor=3)


def test_a_broker_whose_session_lasts_on_is_named(cluster, capsys):
    create(cluster, capsys)
    killed = next(number for number in cluster.brokers if number != cluster.controller())
    with cluster_sessions.lasting_session(cluster.brokers[killed]):
        cluster.kill(killed)
        assert topics(cluster, "delete", "t") == 1
        assert f"its deletion waits for broker {killed}, not alive now" in capsys.readouterr().out
        assert topics(cluster, "create", "t", "--replicas", "2") == 2
        assert "Topic 't' is being deleted." in capsys.readouterr().err
    cluster.start(killed)
    deadline = time.monotonic() + DEADLINE_S
    while topics(cluster, "create", "t") != 0:
        assert time.monotonic() < deadline, capsys.readouterr()
        time.sleep(0.1)


def test_a_controller_that_was_killed_before_the_deletion_is_named(cluster, capsys):
    create(cluster, capsys)
    killed = cluster.controller()
    cluster.kill(killed)
    assert topics(cluster, "delete", "t") == 1
    assert f"its deletion waits for broker {killed}, not alive now" in capsys.readouterr().out


class Admin:
    """Of an AdminClient what await_deletion() asks: answers one after the other, the last again and again."""

    def __init__(self, answers, alive=(0, 1, 2), silent=()):
        self.answers, self.alive, self.silent, self.asked = list(answers), alive, silent, []

    def waiting_deletion(self, name):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def describe_cluster(self, topics):
        return ClusterDescription("c", 0, {number: Node(number, "h", 1, None) for number in self.alive}, {})

    def silent_brokers(self, brokers):
        self.asked += [node.broker_id for node in brokers]
        return dict.fromkeys(self.silent, Silence("Connection refused", False))


@pytest.mark.parametrize(
    ("answers", "expected", "took_ms"),
    [
        (["it is being deleted, waits for broker 7, not alive now"], (False, []), 2_000),
        (["it is being deleted, waits for broker 7, not alive now"] * 3 + [None], (True, []), 300),
        ([None], (True, []), 0),
    ],
)
def test_a_deletion_is_waited_for_a_short_while_where_its_brokers_are_not_known(answers, expected, took_ms):
    mock_time = MockTime()
    start_ms = mock_time.hi_res_clock_ms()
    assert await_deletion(Admin(answers), "t", set(), mock_time) == expected
    assert mock_time.hi_res_clock_ms() - start_ms == took_ms


@pytest.mark.parametrize(
    ("admin", "expected", "took_ms"),
    [
        (Admin([None], alive=(0, 2)), (True, []), 0),
        (Admin(["it is being deleted"] * 3 + [None]), (True, []), 300),
        (Admin(["it is being deleted"], alive=(0, 2)), (False, [1]), 0),
        (Admin(["it is being deleted"], silent=[0]), (False, [0]), 0),
        (Admin(["it is being deleted"]), (False, []), 10_000),
        (Admin([TopicAuthorizationFailed("no")]), (True, []), 0),
        (Admin([TopicAuthorizationFailed("no")], silent=[1]), (False, [1]), 0),
    ],
)
def test_a_deletion_is_waited_for_until_it_has_ended_or_a_broker_is_dead(admin, expected, took_ms):
    mock_time = MockTime()
    start_ms = mock_time.hi_res_clock_ms()
    assert await_deletion(admin, "t", {0, 1}, mock_time) == expected
    assert mock_time.hi_res_clock_ms() - start_ms == took_ms
    assert set(admin.asked) <= {0, 1}
