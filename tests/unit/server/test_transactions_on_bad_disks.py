"""Transactions whose writes meet a full disk, and a coordinator whose records are damaged or compacted away."""

import pytest

import kcore
from kcore import errors
from kcore.protocol.messages.find_coordinator import FindCoordinatorRequest
from kcore.testing.kafka_fixture import KafkaFixture
from tests.unit.server.client import Client
from tests.unit.server.test_transactions import fetch_offset, state_of
from tests.unit.server.transactions import TransactionalClient, committed
from tests.waiting import wait_until

STATES = "__transaction_state"
T0 = ("t", 0)


SETTINGS = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}


@pytest.fixture
def data_dir(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def kafka(data_dir):
    with kcore.Broker(data_dir, **SETTINGS) as broker:
        broker.create_topic("t")
        kafka = KafkaFixture(broker)
        yield kafka
        kafka.end_faults()


@pytest.fixture
def client(kafka):
    with Client(kafka.broker) as client:
        yield client


def begun(client, value, transactional_id="x"):
    """A producer with a record in an open transaction."""
    txn = TransactionalClient(client, transactional_id).find()
    txn.init()
    again(txn, value)
    return txn


def again(txn, value, base_sequence=0):
    """Its next transaction."""
    wait_until(lambda: txn.add([T0]) == {T0: 0})
    assert txn.produce("t", 0, value, base_sequence=base_sequence) == 0


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_end_that_cannot_be_written_is_refused_and_ends_nothing_until_it_is_repeated(kafka, client, is_commit):
    txn = begun(client, b"a")
    with kafka.disk_fault("full", STATES):
        assert errors.for_code(txn.end(is_commit)).retriable
        assert state_of(client).transaction_state == "Ongoing"
        assert committed(kafka.broker, "t") == []
    assert txn.end(is_commit) == 0
    again(txn, b"b", 1)
    assert txn.end(True) == 0
    assert committed(kafka.broker, "t") == ([b"a"] if is_commit else []) + [b"b"]


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_that_cannot_be_written_follows_when_there_is_room(kafka, client, is_commit):
    txn = begun(client, b"a")
    with kafka.disk_fault("full", "t") as fault:
        assert txn.end(is_commit) == 0
        fault.wait_for_hits(3)
        assert kafka.broker.log("t", 0).last_stable_offset == 0
    assert committed(kafka.broker, "t") == ([b"a"] if is_commit else [])


def test_a_completion_that_cannot_be_written_follows_when_there_is_room(kafka, client):
    txn = begun(client, b"a")
    with kafka.disk_fault("full", "t") as marker_fault:
        assert txn.end(True) == 0
        marker_fault.wait_for_hits(1)
        completion_fault = kafka.disk_fault("full", STATES)
    completion_fault.wait_for_hits(2)
    assert [record.value for record in kafka.broker.log("t", 0).records(isolation="read_committed")] == [b"a"]
    completion_fault.end()
    again(txn, b"b", 1)
    assert txn.end(True) == 0
    assert committed(kafka.broker, "t") == [b"a", b"b"]


def test_offsets_that_cannot_be_written_are_refused_and_the_transaction_goes_on(kafka, client):
    wait_until(lambda: client.ask(FindCoordinatorRequest(key="g"), 3).error_code == 0)
    txn = begun(client, b"a")
    assert txn.add_offsets("g") == 0
    with kafka.disk_fault("full", "__consumer_offsets"):
        assert errors.for_code(txn.commit_offset("g", "t", 7)).retriable
    assert txn.commit_offset("g", "t", 8) == 0
    assert txn.end(True) == 0
    assert committed(kafka.broker, "t") == [b"a"]
    assert wait_until(lambda: fetch_offset(client, "g", require_stable=True) == (0, 8))


def test_a_broker_that_dies_with_a_full_disk_in_a_commit_completes_it_after_its_start(kafka, client, data_dir):
    txn = begun(client, b"a")
    with kafka.disk_fault("full", "t") as fault:
        assert txn.end(True) == 0
        fault.wait_for_hits(1)
        kafka.broker.kill()
    with kcore.Broker(data_dir, **SETTINGS) as broker, Client(broker) as client:
        wait_until(lambda: state_of(client).transaction_state == "CompleteCommit")
        assert committed(broker, "t") == [b"a"]


# -- a coordinator's log


def flip(path, record_value):
    """One bit of what follows these bytes."""
    data = bytearray(path.read_bytes())
    place = data.rindex(record_value) + len(record_value)
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damaged", ["first", "second"])
def test_a_damaged_record_of_states_leaves_the_others_and_all_producers_go_on(kafka, client, data_dir, damaged):
    for transactional_id in ("first", "second"):
        assert begun(client, transactional_id.encode(), transactional_id).end(True) == 0
        assert committed(kafka.broker, "t")[-1] == transactional_id.encode()
    kafka.broker.stop()
    (segment,) = (data_dir / f"{STATES}-0").glob("*.log")
    flip(segment, damaged.encode())
    with kcore.Broker(data_dir, **SETTINGS) as broker, Client(broker) as client:
        # By the record before the damaged one it is completed again.
        wait_until(lambda: state_of(client, "first").transaction_state == "CompleteCommit")
        for transactional_id in ("first", "second"):
            assert begun(client, b"later", transactional_id).end(True) == 0
        assert committed(broker, "t") == [b"first", b"second", b"later", b"later"]
