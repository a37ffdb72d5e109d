"""Which broker `kcore explain` and `kcore metrics` ask."""

import socket

import pytest

import kcore
from kcore.tools.main import main
from tests.cluster_sessions import LONG_MS


@pytest.fixture(scope="module")
def cluster():
    """Brokers of one process, which has the listeners of all and their directories."""
    with kcore.Cluster(3, zookeeper_session_timeout_ms=LONG_MS) as cluster:
        cluster.create_topic("orders", 2)
        yield cluster


def test_the_leader_is_asked_unless_another_broker_is_named(cluster, capsys):
    for partition, leader in ((n, cluster.leader("orders", n)) for n in range(2)):
        words = ["explain", "isr", "orders", str(partition), "--bootstrap", cluster.bootstrap_servers]
        assert main(words) == 0
        assert capsys.readouterr().out.startswith(f"orders-{partition} on broker {leader}: leader with epoch ")
    for number in map(str, range(3)):
        words = ["explain", "fetch", "orders", "--bootstrap", cluster.bootstrap_servers, "--broker", number]
        assert main(words) == 0
        assert capsys.readouterr().out.startswith(f"orders-0 on broker {number}: ")


@pytest.mark.parametrize("number", range(3))
def test_each_broker_of_one_process_measures_itself(cluster, capsys, number):
    led = sum(cluster.leader("orders", partition) == number for partition in range(2))
    match = ["metrics", "--match", "name=LeaderCount", "--timeout", "60"]
    for chosen in (
        ["--bootstrap", cluster.brokers[number].bootstrap_servers],
        ["--bootstrap", cluster.bootstrap_servers, "--broker", str(number)],
    ):
        assert main([*match, *chosen]) == 0
        assert capsys.readouterr().out.endswith(f"Value={led}\n")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--broker", "7"], "broker 7 is not alive; alive: 0,1,2"),
        (["--broker", "x"], "'x': expected a broker id"),
        (["--data", "d", "--broker", "0"], "--data goes without --bootstrap and --broker"),
        (["--timeout", "0"], "'0': expected a whole number above 0"),
    ],
)
def test_a_broker_that_cannot_be_asked_is_refused(cluster, words, reason, capsys):
    bootstrap = [] if "--data" in words else ["--bootstrap", cluster.bootstrap_servers]
    for command in (["metrics"], ["explain", "isr", "orders"]):
        assert main([*command, *bootstrap, *words]) == 2
        assert reason in capsys.readouterr().err


def test_a_text_that_no_metric_has_in_its_name_is_refused(cluster, capsys):
    bootstrap = ["--bootstrap", cluster.bootstrap_servers]
    for more in ([], ["--rates", "1"], ["--json"]):
        assert main(["metrics", "--match", "NoSuchMetric", *bootstrap, *more]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.endswith(" metrics has 'NoSuchMetric' in its name\n")


def test_rates_of_a_time_in_which_nothing_was_counted_say_so(cluster, capsys):
    words = ["metrics", "--match", "name=BytesInPerSec", "--rates", "1", "--bootstrap", cluster.bootstrap_servers]
    assert main(words) == 0
    assert capsys.readouterr() == ("", "kcore: nothing was counted in 1 s\n")


def test_a_partition_that_is_not_there_is_named(cluster, capsys):
    no_partition = "orders has no partition 5: it has 2 partitions, 0 to 1"
    for topic, partition, reason in (("orders", "5", no_partition), ("no", "0", "no topic 'no'")):
        assert main(["explain", "isr", topic, partition, "--bootstrap", cluster.bootstrap_servers]) == 2
        assert reason in capsys.readouterr().err


def test_a_process_that_is_no_broker_and_an_address_without_one_are_refused(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert main(["metrics", "--bootstrap", address]) == 2
        assert f"{address}: its process " in capsys.readouterr().err
    assert main(["metrics", "--bootstrap", address]) == 2
    err = capsys.readouterr().err
    assert f"{address}: no process of this machine" in err and "Run the command on the broker's machine" in err


def test_the_next_address_is_asked_where_no_broker_answers_at_the_first(cluster, capsys):
    closed = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in closed]
    for server in closed:
        server.close()
    led = sum(cluster.leader("orders", partition) == 2 for partition in range(2))
    servers = [*addresses, cluster.brokers[2].bootstrap_servers, cluster.brokers[0].bootstrap_servers]
    match = ["metrics", "--match", "name=LeaderCount", "--timeout", "60"]
    assert main([*match, "--bootstrap", ",".join(servers)]) == 0
    out, err = capsys.readouterr()
    assert out.endswith(f"Value={led}\n")
    for line, silent, following in zip(err.splitlines(), servers, servers[1:3], strict=False):
        assert line.startswith(f"kcore: {silent}: ") and line.endswith(f".  {following} is asked instead")
    assert len(err.splitlines()) == 2
    assert main([*match, "--bootstrap", ",".join(addresses)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and [line.split(": ")[1] for line in err.splitlines()] == addresses
