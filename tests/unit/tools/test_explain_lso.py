"""kcore explain lso, of a running broker and of directories."""

import json
import shutil

import pytest

import kcore
from kcore.tools.main import main
from tests import golden_data
from tests.unit.log.logs import idempotent

#: Of the transactional id tx1-none, by __transaction_state of the golden directory.
PRODUCER = 2


def explain(capsys, *words):
    status = main(["explain", "lso", *map(str, words)])
    return status, *capsys.readouterr()


@pytest.fixture
def data(tmp_path):
    """Kafka's files, and at the end of g-txn-0 a transaction that is open."""
    directory = tmp_path / "data"
    shutil.copytree(golden_data.data_dir(), directory)
    with kcore.open_log(directory / "g-txn-0", "a") as log:
        log.append_as_leader(idempotent(PRODUCER, 0, 3, epoch=100, is_transactional=True))
        log.flush()
    return directory


def test_a_directory_names_the_transactional_id_of_the_producer_that_holds_it(data, capsys):
    with kcore.open_log(data / "g-txn-0") as log:
        first = log.log_end_offset - 3
    status, out, err = explain(capsys, "--dir", data / "g-txn-0", "--json")
    assert (status, err) == (0, "")
    explained = json.loads(out)
    (txn,) = explained["transactions"]
    assert (explained["last_stable_offset"], txn["first_offset"], txn["producer_id"]) == (first, first, PRODUCER)
    assert (txn["transactional_id"], txn["timeout_ms"]) == ("tx1-none", 60000)
    _, text, _ = explain(capsys, "g-txn", "0", "--dir", data)
    assert f"held at offset {first} since 2023-11-14T22:13:20.000Z: producer 2, epoch 100" in text
    assert ", transactional id tx1-none, transaction.timeout.ms 60000; it is open" in text
    assert f"kcore txns abort g-txn:0 --start-offset {first} --apply" in text


def test_a_log_without_an_open_transaction_is_not_held(capsys):
    status, out, _ = explain(capsys, "--dir", golden_data.data_dir() / "g-txn-0")
    assert status == 0 and out.endswith("  nothing holds it: it is the log end offset\n")


def test_a_running_broker_says_which_producer_holds_it(tmp_path, capsys):
    with kcore.Broker(tmp_path / "data") as broker:
        broker.create_topic("orders", partitions=2)
        broker.produce("orders", "plain", partition=1)
        assert "nothing holds it" in explain(capsys, "orders", "1", "--bootstrap", broker.bootstrap_servers)[1]
    with kcore.open_log(tmp_path / "data" / "orders-1", "a") as log:
        log.append_as_leader(idempotent(77, 0, 2, epoch=5, is_transactional=True))
    with kcore.Broker(tmp_path / "data") as broker:
        status, out, err = explain(capsys, "orders", "1", "--data", broker.data_dir)
        assert (status, err) == (0, "")
        assert out == f"{broker.explain_lso('orders', 1)}\n"
        assert "orders-1: last stable offset 1, high watermark 3, log [0, 3)\n  held at offset 1 since" in out
        assert "producer 77, epoch 5; it is open; its last record is at offset 2" in out
        status, out, _ = explain(capsys, "orders", "1", "--bootstrap", broker.bootstrap_servers, "--json")
        (txn,) = json.loads(out)["transactions"]
        assert (txn["producer_id"], txn["first_offset"], txn["transactional_id"]) == (77, 1, None)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "expected a TOPIC, or --dir DIR"),
        (("--dir", "{data}"), "is not the directory of a partition: name a TOPIC too"),
        (
            ("--dir", "{data}/g-txn-0", "--bootstrap", "127.0.0.1:1"),
            "--dir goes without --data, --bootstrap and --broker",
        ),
        (("none", "--dir", "{data}"), "none-0"),
        (("t", "--data", "{data}"), "no broker of this machine serves it (its first data directory has kcore-monitor"),
        (("t", "--data", "{data}"), "(--dir DIR reads the partition's files, Kafka's too)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_error_says_what_is_wrong(words, error, capsys):
    status, out, err = explain(capsys, *(word.format(data=golden_data.data_dir()) for word in words))
    assert (status, out) == (2, "")
    assert error in err and len(err.splitlines()) == 1
