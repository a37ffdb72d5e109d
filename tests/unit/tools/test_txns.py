"""kcore txns, against a cluster of two brokers."""

import pytest

import kcore
from kcore.client.transaction_client import TransactionClient
from kcore.coordinator.transaction.transaction_state import Producer
from kcore.testing.kafka_fixture import KafkaClusterFixture
from kcore.tools.main import main
from tests.unit.server.client import Client
from tests.unit.server.transactions import SETTINGS, TransactionalClient
from tests.unit.tools.command import run_json, run_text
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def cluster():
    with kcore.Cluster(
        2, transaction_partition_verification_enable=False, kcore_transaction_version=0, **SETTINGS
    ) as cluster:
        for topic in ("orders", "other"):
            cluster.create_topic(topic, 2)
        yield cluster


@pytest.fixture
def text(cluster, capsys):
    """(exit status, stdout, stderr)."""
    return lambda *words: run_text(capsys, "txns", *words, "--bootstrap", cluster.bootstrap_servers)


@pytest.fixture
def run(cluster, capsys):
    """The JSON lines of a command, and its exit status."""
    return lambda *words: run_json(capsys, "txns", *words, "--bootstrap", cluster.bootstrap_servers)


@pytest.fixture
def transaction(cluster):
    """One that is open in orders-0 and orders-1."""
    transaction = cluster.transaction("shop")
    for number in (0, 1):
        transaction.produce("orders", "a book", partition=number)
    yield transaction
    cluster.transaction("shop")  # ends it, unless it has ended


def test_without_transactional_ids_one_line_says_so(text, run, capsys):
    assert text("list", "--state", "PrepareAbort") == (0, "no transactional ids of this kind\n", "")
    assert run("list", "--state", "PrepareAbort") == (0, [])
    with kcore.Broker() as broker:
        assert run_text(capsys, "txns", "list", "--bootstrap", broker.bootstrap_servers)[:2] == (
            0,
            "no transactional ids\n",
        )
        assert run_text(capsys, "txns", "describe", "x", "--bootstrap", broker.bootstrap_servers)[0] == 2
        assert run_text(capsys, "txns", "open", "--bootstrap", broker.bootstrap_servers)[0] == 0
        # None of them has made __transaction_state.
        assert run_text(capsys, "topics", "describe", "--bootstrap", broker.bootstrap_servers) == (0, "", "")


@pytest.fixture
def hanging(cluster):
    """The offset in other-0 of a batch of a transaction that had ended."""
    first = next(iter(cluster.brokers.values()))
    partition = first.running.services.transaction_coordinator.partition_for("late")
    with cluster.transaction("late") as late:
        late.produce("other", "in time", partition=0)
    broker = cluster.brokers[cluster.leader("other", 0)]
    end = broker.log("other").log_end_offset
    with Client(broker) as client:
        producer = TransactionalClient(client, "late")
        coordinator = cluster.brokers[cluster.leader("__transaction_state", partition)]
        state = coordinator.running.services.transaction_coordinator.describe("late")
        producer.producer = Producer(state.producer_id, state.producer_epoch)
        assert producer.produce("other", 0, b"late", base_sequence=1) == 0
    yield end
    if broker.log("other").last_stable_offset == end:
        assert main(["txns", "abort", "other:0", "--start-offset", str(end), "--apply"]) == 0


def test_TXN_75_ids_are_listed_by_state_producer_and_duration(cluster, text, run, transaction):
    cluster.transaction("idle")
    status, listed = run("list")
    assert status == 0
    by_id = {line["transactional_id"]: line for line in listed}
    assert (by_id["shop"]["state"], by_id["idle"]["state"]) == ("Ongoing", "Empty")
    shop, idle = by_id["shop"], by_id["idle"]
    assert run("list", "--state", "Ongoing") == (0, [shop])
    assert run("list", "--producer", str(idle["producer_id"])) == (0, [idle])
    assert run("list", "--longer-than", "60000") == (0, [])
    line = f"shop: Ongoing, producer {shop['producer_id']}, coordinator {shop['coordinator']}\n"
    assert text("list", "--state", "Ongoing") == (0, line, "")


def test_TXN_75_an_id_is_described(text, run, transaction):
    status, (described,) = run("describe", "shop")
    assert status == 0
    assert described["partitions"] == [{"topic": "orders", "partition": number} for number in (0, 1)]
    assert (described["state"], described["timeout_ms"], described["producer_epoch"] >= 0) == ("Ongoing", 60_000, True)
    status, out, err = text("describe", "shop", "nobody")
    assert out.startswith(
        f"shop: Ongoing, producer {described['producer_id']} with epoch {described['producer_epoch']}"
    )
    assert out.endswith("\n  orders-0\n  orders-1\n")
    assert (status, err) == (2, "kcore: there is no transactional id 'nobody'\n")


def test_TXN_75_a_transaction_that_its_coordinator_will_end_is_open_and_does_not_hang(text, run, transaction):
    status, lines = run("open", "orders:1")
    assert [(line["topic"], line["partition"], line["transactional_id"], line["is_hanging"]) for line in lines] == [
        ("orders", 1, "shop", False)
    ]
    assert status == 0
    transaction.commit()
    assert text("open", "orders") == (0, "no transaction is open\n", "")


def test_TXN_75_one_that_no_coordinator_will_end_hangs_and_is_aborted(cluster, text, run, hanging, transaction):
    status, lines = run("open")
    assert status == 1
    (line,) = [line for line in lines if line["is_hanging"]]
    assert (line["topic"], line["partition"], line["start_offset"]) == ("other", 0, hanging)
    broker = cluster.brokers[cluster.leader("other", 0)]
    words = ("abort", "other:0", "--start-offset", str(hanging))
    status, out, err = text(*words)
    assert (status, err) == (0, "")
    assert out.startswith("1 transaction would be aborted; --apply aborts it\n  other-0: open since offset ")
    assert broker.log("other").last_stable_offset == hanging
    state_before = run("describe", "late")
    status, (aborted,) = run(*words, "--apply")
    assert (status, aborted["applied"], aborted["start_offset"]) == (0, True, hanging)
    wait_until(lambda: broker.log("other").last_stable_offset == broker.log("other").log_end_offset)
    assert b"late" not in [record.value for record in cluster.consume("other", isolation="read_committed")]
    assert run("describe", "late") == state_before, "the id's own state is as it was"
    assert [line["is_hanging"] for line in run("open")[1]] == [False, False]


def test_one_that_does_not_hang_is_aborted_in_a_partition_only_by_force(cluster, text, run, transaction):
    _, (line,) = run("open", "orders:0")
    words = ("abort", "orders:0", "--start-offset", str(line["start_offset"]), "--apply")
    status, out, err = text(*words)
    assert (status, out) == (2, "")
    assert err.startswith("kcore: orders-0: open since offset") and "it does not hang" in err and err.count("\n") == 1
    status, _, err = text("abort", "orders:0", "--start-offset", "4000")
    assert status == 2 and err.endswith(f"begins at offset 4000; there is one at {line['start_offset']}\n")
    assert run(*words, "--force")[0] == 0
    assert run("open", "orders:0") == (0, [])


def test_a_marker_without_an_answer_may_have_been_written_and_is_not_sent_again(cluster, text, hanging):
    """Sent twice it would abort a transaction that the producer has begun meanwhile."""
    with KafkaClusterFixture(cluster).fault("WriteTxnMarkers", cut="after", topic="other") as fault:
        status, out, err = text("abort", "other:0", "--start-offset", str(hanging), "--apply")
    assert (status, out, fault.hits) == (2, "", 1)
    assert err.endswith("(the broker may still make the change: look before you give the command again)\n")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("abort", "orders", "--start-offset", "0"), "'orders': expected one partition, as orders:0"),
        (("abort", "orders:0,1", "--start-offset", "0"), "expected one partition"),
        (("abort", "orders:7", "--start-offset", "0"), "orders has no partition 7: it has 2 partitions, 0 to 1"),
        (("abort", "orders:0", "--start-offset", "4000"), "no transaction is open in orders-0"),
        (("abort", "orders:0", "--start-offset", "x"), "expected a whole number"),
        (("abort", "nowhere:0", "--start-offset", "0"), "nowhere"),
        (("open", "nowhere"), "nowhere"),
        (("list", "--state", "Nosuch"), "'Ongoing'"),
        (("describe",), "TRANSACTIONAL-ID"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(text, words, reason):
    status, out, err = text(*words)
    assert (status, out) == (2, "")
    assert err.startswith("kcore") and reason in err.splitlines()[0]


def test_a_broker_that_cannot_be_asked_is_named(text, monkeypatch):
    listed_by = TransactionClient._listed_by

    def fails_at_0(self, node, request):
        if node.broker_id == 0:
            raise ConnectionRefusedError(111, "refused")
        return listed_by(self, node, request)

    monkeypatch.setattr(TransactionClient, "_listed_by", fails_at_0)
    status, _, err = text("list")
    assert (status, err) == (2, "kcore: the transactional ids of broker 0 are missing: refused\n")


def test_one_whose_marker_comes_between_two_looks_does_not_hang(cluster, text, transaction, monkeypatch):
    coordinated = TransactionClient.coordinated

    def commits_first(self, opened):
        transaction.commit()
        return coordinated(self, opened)

    monkeypatch.setattr(TransactionClient, "coordinated", commits_first)
    assert text("open", "orders") == (0, "no transaction is open\n", "")
