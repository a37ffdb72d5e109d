"""What `kcore cluster` shows of a cluster that is not in order, and its exit status."""

import json

import pytest

from kcore.client.admin_client import ClusterDescription, Node, PartitionDescription, Silence, TopicDescription
from kcore.tools import cluster
from kcore.tools.main import main


def topic(name, partitions, is_internal=False):
    return TopicDescription(name, None, is_internal, dict(enumerate(partitions)))


def partition(leader, replicas, isr):
    return PartitionDescription(leader, 0, replicas, isr, tuple(set(replicas) - {0, 1, 2}))


HEALTHY = partition(0, (0, 1), (0, 1))
CLUSTER = ClusterDescription(
    "c",
    0,
    {number: Node(number, "h", 9092 + number, None) for number in (0, 1, 2)},
    {
        "__consumer_offsets": topic("__consumer_offsets", [partition(0, (0, 3), (0,))] * 49 + [HEALTHY], True),
        "clicks": topic("clicks", [partition(-1, (3,), (3,)), HEALTHY]),
        "orders": topic(
            "orders", [partition(0, (0, 1, 3), (0, 1)), partition(0, (0, 1, 3), (0,)), partition(1, (3, 1), (1,))]
        ),
    },
)


class Admin:
    """Of an AdminClient what the command asks."""

    cluster, silent = CLUSTER, {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def describe_cluster(self):
        return self.cluster

    def note_silent_brokers(self, brokers):
        return self.silent


@pytest.fixture(autouse=True)
def admin(monkeypatch):
    admin = Admin()
    monkeypatch.setattr(cluster, "admin_client", lambda args, **options: admin)
    return admin


def test_partitions_are_grouped_by_the_brokers_that_they_lack_and_internal_topics_are_summed_up(capsys):
    assert main(["cluster"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "cluster c, controller 0: 3 brokers, 3 topics, 55 partitions, 1 offline, 52 under replicated"
    assert lines[4] == "  broker 3 not alive: leads 0 (preferred leader of 2), in sync for 1 of 53 replicas"
    assert lines[5:] == [
        "  offline, without a leader: 1 partition",
        "    clicks-0: replicas 3, ISR 3",
        "  under replicated, not in sync on brokers 1,3: 1 partition",
        "    orders-1: leader 0, replicas 0,1,3, ISR 0",
        "  under replicated, not in sync on broker 3: 51 partitions",
        "    orders-0: leader 0, replicas 0,1,3, ISR 0,1",
        "    orders-2: leader 1, replicas 3,1, ISR 1",
        "    __consumer_offsets (internal): 49 of 50 partitions",
    ]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], 53),
        (["orders"], 3),
        (["orders", "clicks"], 4),
        (["--broker", "2"], 0),
        (["--broker", "1"], 3),
        (["orders", "--broker", "0"], 2),
        (["__consumer_offsets"], 49),
    ],
)
def test_topics_and_a_broker_choose_the_partitions_that_are_shown_and_that_count(words, shown, capsys):
    status = main(["cluster", *words, "--json"])
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    partitions = [event for event in events if event["type"] == "partition"]
    assert (len(partitions), status) == (shown, 1 if shown else 0)
    assert all(event["is_internal"] == event["topic"].startswith("__") for event in partitions)
    assert main(["cluster", *words, "--internal"]) == status
    assert len([line for line in capsys.readouterr().out.splitlines() if line.startswith("    ")]) == shown


def test_a_partition_without_a_leader_is_offline_in_json_too(capsys):
    main(["cluster", "clicks", "--json"])
    *_, event = map(json.loads, capsys.readouterr().out.splitlines())
    assert (event["problem"], event["leader"], event["not_in_sync"]) == ("offline", -1, [])
    main(["cluster", "orders", "--json"])
    *_, event = map(json.loads, capsys.readouterr().out.splitlines())
    assert (event["problem"], event["leader"], event["not_in_sync"]) == ("under replicated", 1, [3])


def test_a_broker_that_does_not_answer_ends_it_with_1_though_all_partitions_are_in_order(admin, capsys):
    admin.cluster = CLUSTER._replace(topics={"t": topic("t", [HEALTHY])})
    assert main(["cluster"]) == 0
    assert "does not answer" not in capsys.readouterr().out
    admin.silent = {1: Silence("Connection refused", False)}
    assert main(["cluster"]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "does not answer" in line]
    assert line.startswith("  broker 1 at h:9093: ") and line.endswith("; it does not answer: Connection refused")
    main(["cluster", "--json"])
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["no_answer"] for event in events if event["type"] == "broker"] == [None, "Connection refused", None]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nothing"], "there is no topic 'nothing'; `kcore topics list` shows"),
        (["__consumer_ofsets"], "did you mean __consumer_offsets?"),
        (["--broker", "9"], "brokers: 0,1,2,3"),
        (["--broker", "-1"], "id"),
    ],
)
def test_what_is_not_there_cannot_be_chosen(words, reason, capsys):
    assert main(["cluster", *words]) == 2
    out, err = capsys.readouterr()
    assert not out and reason in err
