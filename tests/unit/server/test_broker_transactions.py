"""Broker.transaction() and Cluster.transaction(): transactions without a client library."""

from itertools import count

import pytest

import kcore
from kcore import errors
from kcore.server import in_process_transaction
from tests.unit.server.client import Client
from tests.unit.server.transactions import SETTINGS, TransactionalClient
from tests.waiting import wait_until

_NUMBERS = count()


@pytest.fixture(scope="module", params=["broker", "broker at transaction version 0", "cluster"])
def kafka(request):
    settings = {**SETTINGS, "kcore.transaction.version": 0 if request.param.endswith("0") else 2}
    with kcore.Cluster(3, **settings) if request.param == "cluster" else kcore.Broker(**settings) as kafka:
        yield kafka


@pytest.fixture
def topic(kafka):
    name = f"t{next(_NUMBERS)}"
    kafka.create_topic(name, 2)
    return name


def committed(kafka, topic):
    return [record.value for record in kafka.consume(topic, isolation="read_committed")]


def test_a_transaction_is_committed_when_its_block_ends_and_can_be_read_at_once(kafka, topic):
    with kafka.transaction("shop") as transaction:
        written = [transaction.produce(topic, value, partition=n) for n in (0, 1) for value in ("a", b"b")]
        assert [(at.topic, at.partition, at.offset) for at in written] == [
            (topic, n, offset) for n in (0, 1) for offset in (0, 1)
        ]
        assert committed(kafka, topic) == []
    assert committed(kafka, topic) == [b"a", b"b", b"a", b"b"]


def test_an_exception_in_the_block_aborts_the_transaction_and_goes_on(kafka, topic):
    with pytest.raises(ZeroDivisionError), kafka.transaction("shop") as transaction:
        transaction.produce(topic, "lost")
        _ = 1 // 0
    kafka.produce(topic, "plain", partition=0)
    assert committed(kafka, topic) == [b"plain"]
    assert len(list(kafka.consume(topic))) == 2


def test_a_transaction_that_was_aborted_in_its_block_is_not_committed_at_its_end(kafka, topic):
    with kafka.transaction("shop") as transaction:
        transaction.produce(topic, "lost", partition=0)
        transaction.abort()
        kafka.produce(topic, "plain", partition=0)
        assert committed(kafka, topic) == [b"plain"]
        for call in (transaction.commit, transaction.abort, lambda: transaction.produce(topic, "late")):
            with pytest.raises(errors.InvalidTxnState, match="has ended"):
                call()
    assert committed(kafka, topic) == [b"plain"]


def test_without_a_block_a_transaction_stays_open_until_it_is_ended(kafka, topic):
    transaction = kafka.transaction("shop")
    transaction.produce(topic, "a", partition=0)
    kafka.produce(topic, "after", partition=0)
    assert committed(kafka, topic) == []
    transaction.commit()
    assert committed(kafka, topic) == [b"a", b"after"]


def test_the_next_transaction_of_an_id_aborts_the_open_one_and_fences_its_producer(kafka, topic):
    left = kafka.transaction("shop")
    left.produce(topic, "left", partition=0)
    with kafka.transaction("shop") as transaction:
        transaction.produce(topic, "new", partition=0)
        for partition in (0, 1):
            with pytest.raises((errors.InvalidProducerEpoch, errors.ProducerFenced)):
                left.produce(topic, "late", partition=partition)
    with pytest.raises(errors.ProducerFenced):
        left.commit()
    assert committed(kafka, topic) == [b"new"]


def test_a_fenced_transaction_says_what_has_happened_and_what_to_do(kafka, topic):
    left = kafka.transaction("shop", timeout_ms=50_000)
    left.produce(topic, "left", partition=0)
    kafka.transaction("shop")
    says = (
        "^shop: another producer has begun to use this transactional id, or the transaction took longer than its "
        "timeout_ms=50000: it was aborted; begin another one$"
    )
    for call in (
        lambda: left.produce(topic, "late", partition=0),
        lambda: left.produce(topic, "late", partition=1),
        left.commit,
        left.abort,
    ):
        with pytest.raises((errors.InvalidProducerEpoch, errors.ProducerFenced), match=says):
            call()


def test_a_fenced_transaction_whose_block_fails_raises_what_made_it_fail(kafka, topic):
    with pytest.raises(ZeroDivisionError), kafka.transaction("shop") as transaction:
        transaction.produce(topic, "lost")
        kafka.transaction("shop")
        _ = 1 // 0


def test_a_transaction_without_records_ends(kafka):
    with kafka.transaction("shop"):
        pass
    kafka.transaction("shop").abort()


def test_records_of_a_transaction_go_where_their_keys_and_arguments_say(kafka, topic):
    with kafka.transaction("shop") as transaction:
        at = transaction.produce(topic, None, key="42", headers={"h": "1"}, timestamp=7)
    (record,) = kafka.consume(topic)
    plain = kafka.produce(topic, None, key="42")
    assert (record.partition, record.key, record.value, record.headers) == (
        plain.partition,
        b"42",
        None,
        (("h", b"1"),),
    )
    assert (at.partition, at.timestamp, record.timestamp) == (plain.partition, 7, 7)


def test_what_a_partition_does_not_take_can_be_left_out(kafka, topic):
    with kafka.transaction("shop") as transaction:
        transaction.produce(topic, "a", partition=0)
        with pytest.raises(errors.MessageTooLarge):
            transaction.produce(topic, bytes(2 << 20), partition=0)
        transaction.produce(topic, "b", partition=0)
        with pytest.raises(errors.UnknownTopicOrPartition):
            transaction.produce(topic, "c", partition=2)
    assert committed(kafka, topic) == [b"a", b"b"]


def test_a_topic_that_does_not_exist_is_made_or_refused_as_by_produce_without_a_transaction(kafka):
    name = f"t{next(_NUMBERS)}"
    with kafka.transaction("shop") as transaction:
        if isinstance(kafka, kcore.Cluster):
            with pytest.raises(errors.UnknownTopicOrPartition) as plain:
                kafka.produce(name, "a")
            with pytest.raises(errors.UnknownTopicOrPartition, match=f"^{plain.value}$"):
                transaction.produce(name, "a")
            assert all(broker.metadata_cache.topic(name) is None for broker in kafka.brokers.values())
        else:
            transaction.produce(name, "a")
    if isinstance(kafka, kcore.Broker):
        assert committed(kafka, name) == [b"a"]


def test_wrong_arguments_are_refused(kafka):
    with pytest.raises(errors.InvalidRequest, match=r"^the transactional id is empty$"):
        kafka.transaction("")
    with pytest.raises(errors.InvalidRequest, match=r"^the transactional id has 33000 bytes, .* at most 32767$"):
        kafka.transaction("é" * 16_500)
    with pytest.raises(TypeError, match="transactional_id must be a str"):
        kafka.transaction(b"shop")
    for timeout_ms in (0, 900_001):
        says = f"^shop: a timeout of {timeout_ms} ms, expected 1 to transaction.max.timeout.ms, which is 900000$"
        with pytest.raises(errors.InvalidTransactionTimeout, match=says):
            kafka.transaction("shop", timeout_ms=timeout_ms)


def test_an_id_of_the_longest_length_has_transactions(kafka, topic):
    for _ in range(2):
        with kafka.transaction("s" * 32_767) as transaction:
            transaction.produce(topic, "a", partition=0)
    assert committed(kafka, topic) == [b"a", b"a"]


def test_a_transaction_goes_on_after_a_restart():
    with kcore.Broker(**SETTINGS) as broker:
        transaction = broker.transaction("shop")
        transaction.produce("t", "a")
        broker.restart()
        transaction.produce("t", "b")
        assert committed(broker, "t") == []
        transaction.commit()
        assert committed(broker, "t") == [b"a", b"b"]
        broker.stop()
        with pytest.raises(RuntimeError, match="has stopped"):
            broker.transaction("shop")


def test_a_commit_that_no_broker_takes_may_be_repeated():
    with kcore.Cluster(1, **SETTINGS) as cluster:
        cluster.create_topic("orders")
        transaction = cluster.transaction("shop")
        transaction.produce("orders", "a")
        cluster.kill(0)
        with pytest.raises(RuntimeError, match="no broker"):
            transaction.commit()
        cluster.start(0)
        transaction.commit()
        assert committed(cluster, "orders") == [b"a"]


@pytest.mark.parametrize("short", ["t-0", "__transaction_state-0"])
def test_a_commit_below_min_insync_replicas_says_which_partition_has_too_few_and_may_be_repeated(short, monkeypatch):
    is_state = short.startswith("__")
    settings = {"transaction.state.log.num.partitions": 1, "transaction.state.log.min.isr": 2 if is_state else 1}
    with kcore.Cluster(2, **SETTINGS | settings) as cluster:
        cluster.create_topic("t", min_insync_replicas=1 if is_state else 2)
        transaction = cluster.transaction("shop")
        transaction.produce("t", "a")
        cluster.kill(1)
        monkeypatch.setattr(in_process_transaction, "WAIT_MS", 3000)  # long enough to be refused once
        wait_until(lambda: cluster.isr("t") == [0] == cluster.isr("__transaction_state"))
        says = rf": waited 3000 ms: .*NotEnoughReplicas: {short}: ISR \[0\], min.insync.replicas 2$"
        with pytest.raises(errors.RequestTimedOut, match=says):
            transaction.commit()
        with pytest.raises(errors.RequestTimedOut, match=says):
            cluster.transaction("another" if is_state else "shop")
        cluster.start(1)
        monkeypatch.undo()
        transaction.commit()
        assert committed(cluster, "t") == [b"a"]
        with pytest.raises(errors.InvalidTxnState, match="has ended"):
            transaction.commit()


def test_a_block_in_which_a_commit_timed_out_does_not_wait_for_an_abort_too(monkeypatch):
    with kcore.Cluster(2, **SETTINGS | {"transaction.state.log.num.partitions": 1}) as cluster:
        cluster.create_topic("t")
        asked = []
        with pytest.raises(errors.RequestTimedOut, match="waited 500 ms"), cluster.transaction("shop") as transaction:
            transaction.produce("t", "a")
            monkeypatch.setattr(in_process_transaction, "WAIT_MS", 500)
            decide = transaction._decide

            def refused(*, is_commit):
                asked.append(is_commit)
                raise errors.CoordinatorNotAvailable("no coordinator")

            monkeypatch.setattr(transaction, "_decide", refused)
            transaction.commit()
        assert set(asked) == {True}
        monkeypatch.setattr(transaction, "_decide", decide)
        transaction.commit()
        assert committed(cluster, "t") == [b"a"]


def test_a_client_and_a_transaction_of_the_broker_fence_each_other():
    with kcore.Broker(**SETTINGS) as broker, Client(broker) as client:
        broker.create_topic("t")
        transaction = broker.transaction("shop")
        transaction.produce("t", "a")
        producer = TransactionalClient(client, "shop")
        assert producer.init().error_code == errors.ConcurrentTransactions.code
        with pytest.raises(errors.ProducerFenced):
            transaction.commit()


def test_a_transaction_of_a_cluster_survives_the_end_of_its_coordinator():
    with kcore.Cluster(3, **SETTINGS) as cluster:
        cluster.create_topic("t", 3)
        with cluster.transaction("shop") as transaction:
            for number in range(3):
                transaction.produce("t", "a", partition=number)
            some = next(iter(cluster.brokers.values()))
            coordinator = some.running.services.transaction_coordinator
            cluster.kill(cluster.leader("__transaction_state", coordinator.partition_for("shop")))
            for number in range(3):
                transaction.produce("t", "b", partition=number)
        assert committed(cluster, "t") == [b"a", b"b"] * 3


def test_a_broker_that_does_not_coordinate_an_id_says_who_does():
    with kcore.Cluster(2, **SETTINGS) as cluster:
        cluster.transaction("shop")
        first, second = cluster.brokers.values()
        partition = first.running.services.transaction_coordinator.partition_for("shop")
        coordinator = cluster.leader("__transaction_state", partition)
        other = second if coordinator == first.broker_id else first
        with pytest.raises(errors.NotLeaderOrFollower, match=f"broker {coordinator} leads"):
            other.transaction("shop")
