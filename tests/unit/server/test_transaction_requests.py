"""Who coordinates a transactional id, and what a request about one is refused for, over the wire."""

import pytest

import kcore
from kcore import errors
from kcore.common.metrics import MetricName
from kcore.coordinator.transaction.transaction_state import Producer
from kcore.protocol.api_keys import SUPPORTED, ApiKey
from kcore.protocol.messages.find_coordinator import FindCoordinatorRequest
from kcore.protocol.messages.init_producer_id import InitProducerIdRequest
from kcore.testing import MockTime
from tests.unit.server.client import Client
from tests.unit.server.transactions import SETTINGS, TransactionalClient

NONE = errors.NONE
GROUP, TRANSACTION, SHARE = 0, 1, 2


@pytest.fixture
def time():
    return MockTime()


@pytest.fixture
def broker(time):
    with kcore.Broker(time=time, **SETTINGS) as broker:
        broker.create_topic("t", 2)
        yield broker


@pytest.fixture
def client(broker):
    with Client(broker) as client:
        yield client


def find(client, version, *keys, key_type=TRANSACTION):
    """[(key, error code, node)]"""
    if version < 4:
        answer = client.ask(FindCoordinatorRequest(key=keys[0], key_type=key_type), version)
        return [(keys[0], answer.error_code, answer.node_id)]
    answer = client.ask(FindCoordinatorRequest(coordinator_keys=list(keys), key_type=key_type), version)
    return [(found.key, found.error_code, found.node_id) for found in answer.coordinators]


@pytest.mark.parametrize(
    ("transactional_id", "partition"),
    [
        ("", 0),
        ("x", 20),
        ("producer-1", 30),
        ("polygenelubricants", 0),  # its hash is the smallest number of 32 bits
        ("\u00e4\U0001f600", 7),
    ],
)
def test_TXN_01_the_partition_of_an_id_is_that_of_its_java_hash(transactional_id, partition):
    with kcore.Broker() as broker:
        assert broker.running.services.transaction_coordinator.partition_for(transactional_id) == partition


@pytest.mark.parametrize("version", range(4, SUPPORTED[ApiKey.FIND_COORDINATOR][1] + 1))
def test_TXN_02_each_of_many_ids_is_answered(broker, client, version):
    me = broker.broker_id
    assert find(client, version, "a", "b") == [("a", NONE, me), ("b", NONE, me)]
    assert find(client, version) == []


@pytest.mark.parametrize("version", range(1, 4))
def test_TXN_02_older_versions_ask_for_one_id(broker, client, version):
    assert find(client, version, "a") == [("a", NONE, broker.broker_id)]


def test_TXN_04_without_a_leader_an_id_has_no_coordinator(broker, client, monkeypatch):
    find(client, 4, "x")
    monkeypatch.setattr(type(broker.metadata_cache.snapshot), "endpoint", lambda self, broker_id, listener: None)
    assert find(client, 4, "x") == [("x", errors.CoordinatorNotAvailable.code, -1)]


@pytest.mark.parametrize("version", range(1, SUPPORTED[ApiKey.FIND_COORDINATOR][1] + 1))
@pytest.mark.parametrize("key_type", [SHARE, 3, -1])
def test_TXN_06_another_type_of_key_is_refused(client, version, key_type):
    assert find(client, version, "x", key_type=key_type) == [("x", errors.InvalidRequest.code, -1)]


@pytest.mark.parametrize("version", range(SUPPORTED[ApiKey.INIT_PRODUCER_ID][1] + 1))
def test_TXN_08_without_an_id_each_producer_is_new_and_an_empty_id_is_refused(client, version):
    idempotent = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    answers = [client.ask(idempotent, version) for _ in range(2)]
    assert [(a.error_code, a.producer_epoch) for a in answers] == [(NONE, 0), (NONE, 0)]
    assert answers[0].producer_id != answers[1].producer_id
    empty = InitProducerIdRequest(transactional_id="", transaction_timeout_ms=60_000)
    assert client.ask(empty, version).error_code == errors.InvalidRequest.code


@pytest.mark.parametrize("expected", [Producer(5, -1), Producer(-1, 5)])
@pytest.mark.parametrize("transactional_id", ["x", None])
def test_TXN_09_a_producer_names_both_its_id_and_its_epoch(client, expected, transactional_id):
    txn = TransactionalClient(client, transactional_id or "x").find()
    txn.transactional_id = transactional_id
    assert txn.init(expected).error_code == errors.InvalidRequest.code


@pytest.mark.parametrize("version", range(3))
def test_TXN_51_offsets_of_a_client_that_names_no_member_are_taken(broker, client, version):
    find(client, 3, "g", key_type=GROUP)
    txn = TransactionalClient(client, version=version).find()
    txn.init()
    assert txn.add_offsets("g") == NONE
    assert txn.commit_offset("g", "t", 5) == NONE
    assert txn.end(True) == NONE


def values_of(broker, *names):
    """Of gauges and counters."""
    metrics = broker.metrics()
    return [next(iter(metrics[name].values())) for name in names]


def test_TXN_77_questions_of_leaders_are_measured(broker, client):
    failures = MetricName("kafka.server", "AddPartitionsToTxnManager", "VerificationFailureRate")
    questions = MetricName("kafka.server", "AddPartitionsToTxnManager", "VerificationTimeMs")
    assert values_of(broker, failures) == [0]
    txn = TransactionalClient(client).find()
    txn.init()
    txn.add([("t", 0)])
    assert txn.produce("t", 0, b"a") == NONE
    assert txn.produce("t", 1, b"not added") != NONE
    assert broker.metrics()[questions]["Count"] == 2
    assert values_of(broker, failures) == [1]


def test_TXN_77_producers_and_transactions_that_should_have_ended_long_ago_are_counted(broker, time):
    producers = MetricName("kafka.server", "ReplicaManager", "ProducerIdCount")
    late = MetricName("kafka.server", "ReplicaManager", "PartitionsWithLateTransactionsCount")
    assert values_of(broker, producers, late) == [0, 0]
    txn = broker.transaction("x", timeout_ms=900_000)
    txn.produce("t", b"a", partition=0)
    # Otherwise the coordinator would abort it.
    broker.running.services.transaction_coordinator.shutdown()
    time.sleep(900_000 + 300_000)
    assert values_of(broker, producers, late) == [1, 0]
    time.sleep(1)
    assert values_of(broker, producers, late) == [1, 1]


def test_TXN_77_times_of_loading_and_transactions_that_cannot_be_completed_are_measured(broker):
    with broker.transaction("x") as txn:
        txn.produce("t", b"a")
    kind = "kafka.coordinator.transaction"
    for name in ("UnknownDestinationQueueSize", "LogAppendRetryQueueSize"):
        assert values_of(broker, MetricName(kind, "TransactionMarkerChannelManager", name)) == [0]
    times = MetricName("kafka.server", "transaction-coordinator-metrics", "")
    loaded = broker.running.services.transaction_coordinator.manager.partitions.load_times_ms
    loaded.clear()
    assert broker.metrics()[times] == {"partition-load-time-max": 0.0, "partition-load-time-avg": 0.0}
    loaded.extend((10.0, 20.0))
    assert broker.metrics()[times] == {"partition-load-time-max": 20.0, "partition-load-time-avg": 15.0}
