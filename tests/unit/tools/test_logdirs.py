"""kcore logdirs, against a broker with two data directories."""

import errno
import json

import pytest

import kcore
from kcore.client.admin_client import Node
from kcore.client.log_dir_client import LogDir, LogDirClient, Replica
from kcore.common import file
from kcore.common.progress import Progress
from kcore.common.topic_partition import TopicPartition
from kcore.tools.command_line import UsageError, addresses
from kcore.tools.logdirs import _plan, await_moves
from kcore.tools.main import main
from tests.waiting import wait_until

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
T0 = TopicPartition("t", 0)


@pytest.fixture
def dirs(tmp_path):
    return [str(tmp_path / "x"), str(tmp_path / "y")]


@pytest.fixture
def broker(dirs):
    with kcore.Broker(log_dirs=",".join(dirs)) as broker:
        broker.create_topic("t", partitions=2)
        for _ in range(16):  # a move copies 4 MiB at once
            broker.produce("t", bytes(900_000), partition=0)
        yield broker


@pytest.fixture
def text(broker, capsys):
    """(exit status, stdout, stderr)."""

    def text(*words, group="logdirs"):
        status = main([group, *words, "--bootstrap", broker.bootstrap_servers])
        out, err = capsys.readouterr()
        return status, out, err

    return text


@pytest.fixture
def places(broker, dirs):
    """(where the log of t-0 is, the other directory)."""
    source = broker.log("t", 0).parent_dir
    return source, next(path for path in dirs if path != source)


@pytest.fixture
def move_that_waits(broker, text, places):
    """One that has begun and copies no more: its quota is used up."""
    text("set", "--broker", str(broker.broker_id), f"{RATE}=1", "--apply", group="configs")
    assert text("move", "t:0", "--to", places[1], "--apply")[0] == 0
    wait_until(lambda: f"{places[1]}: " in text("list")[1] and "is being moved here" in text("list")[1])


def described(text, *words):
    status, out, err = text("list", "--json", *words)
    assert err == ""
    return status, {line["log_dir"]: line for line in map(json.loads, out.splitlines())}


def test_the_directories_have_the_sizes_of_their_logs(broker, text, dirs, places):
    status, found = described(text)
    assert (status, sorted(found)) == (0, sorted(dirs))
    size = broker.log("t", 0).size
    assert found[places[0]]["size"] >= size > 0
    replicas = [p for line in found.values() for p in line["partitions"] if p["topic"] == "t"]
    assert sorted((p["partition"], p["size"], p["offset_lag"], p["is_future"]) for p in replicas) == [
        (0, size, 0, False),
        (1, 0, 0, False),
    ]
    assert all(0 < line["usable_bytes"] < line["total_bytes"] for line in found.values())
    _, only = described(text, "t:1")
    assert [p["partition"] for line in only.values() for p in line["partitions"]] == [1]
    lines = text("list", "t:0", "--partitions")[1].splitlines()
    assert lines[0] == f"broker {broker.broker_id}:"
    assert "    t-0: 14.4 MB" in lines
    assert any(line.startswith("    t: ") for line in text("list", "--topic-list", "t")[1].splitlines())


def test_a_move_is_planned_then_carried_out_and_waited_for(broker, text, places):
    source, target = places
    plan = text("move", "t:0", "--to", target)
    assert plan[0] == 0
    assert plan[1].startswith(
        f"broker {broker.broker_id}: 1 log would move; --apply moves them\n  t-0: {source} -> {target}, "
    )
    assert broker.log("t", 0).parent_dir == source and not broker.replica_manager.log_manager.future_logs()
    status, out, err = text("move", "t:0", "--to", target, "--apply", "--wait")
    assert (status, err) == (0, "")
    assert out.startswith(f"broker {broker.broker_id}: 1 log moves\n") and out.endswith("1 log moved\n")
    assert broker.log("t", 0).parent_dir == target
    again = text("move", "t:0", "--to", target, "--apply", "--wait")[1]
    assert again == f"broker {broker.broker_id}: 0 logs move\n  t-0: is there already: nothing to do\n"


def test_a_move_that_waits_is_listed_and_goes_on_when_its_rate_is_raised(broker, text, places, move_that_waits):
    _, found = described(text, "t:0")
    (future,) = found[places[1]]["partitions"]
    assert future["is_future"] and future["offset_lag"] > 0
    shown = next(line for line in text("list")[1].splitlines() if "is being moved here" in line)
    assert shown.startswith("    t-0: ") and shown.endswith(" offsets behind")
    assert "t-0: is on the way there already: nothing to do" in text("move", "t:0", "--to", places[1], "--apply")[1]
    slept = []

    class Raising:
        def sleep(self, ms):
            if not slept:
                text("unset", "--broker", str(broker.broker_id), RATE, "--apply", group="configs")
            slept.append(ms)

    progress = Progress("move", 1, quiet=True)
    with LogDirClient(addresses(broker.bootstrap_servers)) as client:
        (node,) = client.describe_cluster(()).brokers.values()
        assert await_moves(client, node, {T0}, places[1], progress, Raising()) == {}
    assert slept and progress.done == broker.log("t", 0).size
    assert broker.log("t", 0).parent_dir == places[1]


def test_a_move_that_is_cancelled_while_it_is_waited_for_ends_the_wait(broker, text, places, move_that_waits):
    source, target = places

    class Cancelling:
        def sleep(self, ms):
            assert text("move", "t:0", "--to", source, "--apply")[0] == 0

    with LogDirClient(addresses(broker.bootstrap_servers)) as client:
        (node,) = client.describe_cluster(()).brokers.values()
        ends = await_moves(client, node, {T0}, target, Progress("move", 1, quiet=True), Cancelling())
    assert ends == {T0: source}


def test_an_offline_directory_is_listed_with_its_error_and_nothing_moves_there(broker, text, places):
    broker.replica_manager.log_manager.log_dir_failure_channel.maybe_add_offline_log_dir(
        places[1], OSError(errno.EIO, "broken")
    )
    try:
        status, found = described(text)
        assert status == 1
        assert found[places[1]]["error"].startswith("KafkaStorageError: ")
        assert f"  {places[1]}: offline, KafkaStorageError: " in text("list")[1]
        status, _, err = text("move", "t:0", "--to", places[1], "--apply")
        assert status == 2 and f"{places[1]} is offline: KafkaStorageError" in err
    finally:
        file.clear_faults()


def test_a_directory_without_enough_space_is_refused():
    log_dirs = [
        LogDir("/a", None, 1000, 100, (Replica(T0, 60, 0, False), Replica(TopicPartition("t", 1), 50, 0, False))),
        LogDir("/b", None, 1000, 100, ()),
        LogDir("/c", None, None, None, ()),
    ]
    node, both = Node(0, "h", 1, None), [T0, TopicPartition("t", 1)]
    assert [move.size for move in _plan("/b", node, log_dirs, [T0])] == [60]
    with pytest.raises(UsageError, match="/b has 100 bytes free, and the logs need 110 bytes"):
        _plan("/b", node, log_dirs, both)
    assert len(_plan("/a", node, log_dirs, both)) == len(_plan("/c", node, log_dirs, both)) == 2


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("move", "t:0", "--to", "/no/such", "--apply"), "/no/such is no data directory of broker"),
        (("move", "t:7", "--to", "/x"), "t has no partition 7: it has 2 partitions, 0 to 1"),
        (("move", "none", "--to", "/x"), "there is no topic 'none'"),
        (("move", "t:0", "--to", "/x", "--wait"), "--wait goes with --apply"),
        (("move", "t:0", "--to", "/x", "--broker", "99"), "broker 99 is not alive; alive:"),
        (("move", "t:0"), "Missing option '--to'"),
        (("list", "--broker", "99"), "broker 99 is not alive; alive:"),
        (("list", "t:9"), "t has no partition 9"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_error_says_what_is_wrong(words, error, text):
    status, out, err = text(*words)
    assert (status, out) == (2, "")
    assert error in err


def test_of_several_replicas_the_broker_must_be_named_and_one_that_cannot_be_asked_hides_no_other(capsys, monkeypatch):
    with kcore.Cluster(3, offsets_topic_num_partitions=1) as cluster:
        cluster.create_topic("t", partitions=1, replication_factor=2)
        servers = cluster.bootstrap_servers
        having = cluster.brokers[0].metadata_cache.topic("t").partitions[0].replicas
        (without,) = {0, 1, 2} - set(having)
        here = cluster.brokers[having[0]].log("t", 0).parent_dir

        def text(*words):
            return main(["logdirs", *words, "--bootstrap", servers]), *capsys.readouterr()

        status, _, err = text("move", "t", "--to", here)
        assert status == 2 and f"whose replicas? Brokers {','.join(map(str, sorted(having)))} have some" in err
        assert f"broker {without} has no replica of t-0" in text("move", "t", "--to", here, "--broker", str(without))[2]
        assert "is there already" in text("move", "t", "--to", here, "--broker", str(having[0]))[1]
        log_dirs = LogDirClient.log_dirs

        def refuse(self, node):
            if node.broker_id == 1:
                raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            return log_dirs(self, node)

        monkeypatch.setattr(LogDirClient, "log_dirs", refuse)
        status, out, err = text("list")
        assert (status, err) == (2, "kcore: broker 1: Connection refused\n")
        assert [line for line in out.splitlines() if line.startswith("broker")] == ["broker 0:", "broker 2:"]
