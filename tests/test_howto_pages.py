"""Each command of docs/howto/ prints what the page shows."""

import pytest

import kcore
from tests.terminal import Terminal


@pytest.fixture
def data(tmp_path):
    """A data directory of `kcore serve` with three batches of one record each."""
    with kcore.Broker(tmp_path / "data", broker_id=1) as broker:
        broker.create_topic("orders")
        for value in ("a book", "a lamp", "a pen"):
            broker.produce("orders", value)
    return tmp_path / "data"


def test_production_segments_are_read_without_a_change(data, tmp_path):
    with Terminal(tmp_path, {"/var/lib/kafka": data}) as terminal:
        assert terminal.run("docs/howto/production_segments.md") == 3


def test_three_brokers_run_over_a_real_zookeeper(zookeeper, tmp_path):
    names = {"zookeeper://zk1:2181,zk2:2181,zk3:2181/kafka": zookeeper, "/srv/kafka": tmp_path}
    with Terminal(tmp_path, names) as terminal:
        assert terminal.run("docs/howto/zookeeper.md") == 3


def test_a_broken_directory_is_repaired(data, tmp_path):
    with open(data / "orders-0" / "00000000000000000000.log", "r+b") as file:
        file.seek(74 + 70)
        file.write(b"\xff")
    with Terminal(tmp_path, {"/var/lib/kafka": data}) as terminal:
        assert terminal.run("docs/howto/broken_directory.md") == 3
