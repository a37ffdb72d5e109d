"""kcore groups reset, against a cluster of one broker."""

import json
from datetime import UTC, datetime

import pytest

import kcore
from kcore.client.group_client import GroupClient
from kcore.common.topic_partition import TopicPartition
from kcore.tools.cluster_command import group_client
from kcore.tools.main import main
from tests.unit.tools.test_groups import commit, coordinator, member
from tests.waiting import wait_until

T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def cluster():
    # The timestamps are old: retention would delete the records after 30 s.
    with kcore.Cluster(1, offsets_topic_num_partitions=1, log_retention_ms=-1) as cluster:
        for topic in ("orders", "clicks"):
            cluster.create_topic(topic, partitions=2)
            for number in range(10):
                cluster.produce(topic, f"{number}", partition=number % 2, timestamp=T0 + number * 1000)
        cluster.brokers[0].log("orders").maybe_increment_log_start_offset(1)
        yield cluster


@pytest.fixture
def group(cluster, request):
    """Its name; it has committed 3 of orders-0 and 5, the end, of orders-1."""
    name = request.node.name[:60]
    with coordinator(cluster, name) as (client, _):
        commit(client, name, {("orders", 0): 3})
        commit(client, name, {("orders", 1): 5})
    return name


@pytest.fixture
def reset(cluster, capsys):
    """(exit status, lines of stdout, stderr)."""

    def reset(*words):
        status = main(["groups", "reset", *words, "--bootstrap", cluster.bootstrap_servers])
        out, err = capsys.readouterr()
        return status, out.splitlines(), err

    return reset


def committed(cluster, group):
    arguments = type("Arguments", (), {"bootstrap": cluster.bootstrap_servers, "timeout": 30})
    with group_client(arguments) as (client, _):
        return {str(tp): offset for tp, offset in client.committed_offsets(group).items()}


def test_without_apply_it_only_says_what_it_would_do(cluster, group, reset):
    status, lines, err = reset(group, "--topic", "orders", "--to", "earliest")
    assert (status, err) == (0, "")
    assert lines == [
        f"{group}: 2 offsets would change; --apply changes them",
        "  orders-0: 3 -> 1, lag 2 -> 4",
        "  orders-1: 5 -> 0, lag 0 -> 5",
    ]
    assert committed(cluster, group) == {"orders-0": 3, "orders-1": 5}


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--to", "earliest"], (1, 0)),
        (["--to", "latest"], (5, 5)),
        (["--to", "2"], (2, 2)),
        (["--to", "0"], (1, 0)),
        (["--to", "100"], (5, 5)),
        (["--to", f"@{T0 + 4000}"], (2, 2)),
        (["--to", f"@{T0 + 4001}"], (3, 2)),
        (["--to", "-1h"], (5, 5)),
        (["--by", "-1"], (2, 4)),
        (["--by", "1"], (4, 5)),
        (["--by", "-100"], (1, 0)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
@pytest.mark.parametrize("which", [["--topic", "orders"], ["--all-topics"]], ids=" ".join)
def test_with_apply_the_offsets_are_there(cluster, group, reset, which, words, expected):
    status, lines, err = reset(group, *which, *words, "--apply")
    assert (status, err) == (0, "")
    assert committed(cluster, group) == {"orders-0": expected[0], "orders-1": expected[1]}
    changed = sum(new != old for new, old in zip(expected, (3, 5), strict=True))
    assert lines[0] == f"{group}: {changed} offset{'s' if changed != 1 else ''} changed"
    assert len(lines) == 3


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--to-earliest"], (1, 0)),
        (["--to-latest"], (5, 5)),
        (["--to-offset", "2"], (2, 2)),
        (["--to-datetime", datetime.fromtimestamp((T0 + 4000) / 1000, UTC).isoformat()], (2, 2)),
        (["--shift-by", "-1"], (2, 4)),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_the_options_of_kafkas_tool(cluster, group, reset, words, expected):
    assert reset("--group", group, "--topic", "orders", *words, "--execute")[0] == 0
    assert committed(cluster, group) == {"orders-0": expected[0], "orders-1": expected[1]}


@pytest.mark.parametrize(
    "words, reason",
    [
        (["--to-offset", "latest"], "'latest': expected an offset"),
        (["--to-datetime", "5"], "'5': expected a time"),
        (["--to-earliest", "--to", "1"], "not allowed with"),
        (["--to-earliest", "--group", "other"], "expected one GROUP"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_the_options_of_kafkas_tool_cannot_mean_is_refused(group, reset, words, reason):
    status, lines, err = reset(group, "--topic", "orders", *words)
    assert (status, lines) == (2, []) and reason in err


def test_an_offset_outside_the_log_is_moved_to_its_end_and_that_is_said(group, reset):
    _, lines, _ = reset(group, "--topic", "orders", "--to", "0")
    assert lines[1] == "  orders-0: 3 -> 1, lag 2 -> 4 (0 is before the start of the log)"
    _, lines, _ = reset(group, "--topic", "orders:1", "--by", "7")
    assert lines[1:] == ["  orders-1: 5 -> 5, lag 0 -> 0 (12 is after the end of the log)"]


def test_only_the_partitions_that_are_named(cluster, group, reset):
    assert reset(group, "--topic", "orders:1", "--topic", "clicks", "--to", "1", "--execute")[0] == 0
    assert committed(cluster, group) == {"orders-0": 3, "orders-1": 1, "clicks-0": 1, "clicks-1": 1}
    assert reset(group, "--topic", "orders:7", "--to", "1") == (
        2,
        [],
        "kcore: orders has no partition 7: it has 2 partitions, 0 to 1\n",
    )
    assert reset(group, "--topic", "ordres", "--to", "1") == (
        2,
        [],
        "kcore: there is no topic 'ordres'; did you mean orders?\n",
    )


def test_what_is_not_committed_cannot_be_moved_by_a_number(cluster, group, reset):
    status, lines, _ = reset(group, "--topic", "clicks", "--topic", "orders:0", "--by", "1", "--apply")
    assert status == 1
    assert lines == [
        f"{group}: 1 offset changed",
        "  clicks-0: nothing committed, cannot be moved: nothing is committed that could be moved",
        "  clicks-1: nothing committed, cannot be moved: nothing is committed that could be moved",
        "  orders-0: 3 -> 4, lag 2 -> 1",
    ]
    assert committed(cluster, group) == {"orders-0": 4, "orders-1": 5}


def test_while_the_group_has_members_the_plan_is_shown_and_nothing_is_changed(cluster, group, reset):
    with coordinator(cluster, group) as (client, _), member(client, group, [0]):
        status, lines, err = reset(group, "--topic", "orders:0", "--to", "1")
        assert (status, err) == (0, "")
        members = f"the group {group} has 1 member, client of {group} at 127.0.0.1"
        assert lines[1] == f"  {members}: --apply is refused until they have stopped"
        status, lines, err = reset(group, "--topic", "orders:0", "--to", "1", "--apply")
        assert (status, lines) == (2, [])
        assert err == f"kcore: nothing is changed: {members}. Stop them first\n"
    assert committed(cluster, group) == {"orders-0": 3, "orders-1": 5}
    assert reset(group, "--topic", "orders:0", "--to", "1", "--apply")[0] == 0


def test_a_group_that_is_not_there_is_made_only_with_apply_and_only_for_named_topics(cluster, group, reset):
    name = f"{group}-new"
    status, lines, _ = reset(name, "--topic", "orders:0", "--to", "2")
    assert (status, lines[1:]) == (
        0,
        [f"  there is no group {name}: --apply makes it", "  orders-0: nothing committed -> 2, lag 3"],
    )
    assert committed(cluster, name) == {}
    assert reset(name, "--topic", "orders:0", "--to", "2", "--apply")[0] == 0
    assert committed(cluster, name) == {"orders-0": 2}
    status, lines, err = reset(f"{group}-old", "--all-topics", "--to", "2", "--apply")
    assert (status, lines) == (2, []) and err.startswith(f"kcore: there is no group '{group}-old'; did you mean ")


def test_a_topic_that_is_gone_is_named_and_the_others_are_moved(cluster, group, reset, monkeypatch):
    # kcore's coordinator drops the offsets of a deleted topic; others keep them for a while.
    existing = GroupClient.committed_offsets
    monkeypatch.setattr(
        GroupClient,
        "committed_offsets",
        lambda self, group_id: existing(self, group_id) | {TopicPartition("old", 0): 7},
    )
    status, lines, err = reset(group, "--all-topics", "--to", "latest", "--apply")
    assert (status, err) == (1, "")
    assert lines[1] == "  old-0: 7, cannot be moved: the partition does not exist any more"
    monkeypatch.undo()
    assert committed(cluster, group) == {"orders-0": 5, "orders-1": 5}


def test_json_has_the_plan_and_what_was_done(cluster, group, reset):
    for words, applied in (([], False), (["--apply"], True)):
        status, lines, _ = reset(group, "--topic", "orders:0", "--to", "2", "--json", *words)
        assert status == 0
        assert [json.loads(line) for line in lines] == [
            {
                "group": group,
                "topic": "orders",
                "partition": 0,
                "old_offset": 3,
                "new_offset": 2,
                "log_start_offset": 1,
                "log_end_offset": 5,
                "lag": 3,
                "applied": applied,
                "problem": None,
            }
        ]
    wait_until(lambda: committed(cluster, group)["orders-0"] == 2)
