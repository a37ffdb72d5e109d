"""Faults on demand, as real clients and brokers meet them."""

import threading
import time

import confluent_kafka
import pytest

import kcore
from kcore.errors import NotLeaderOrFollower
from kcore.testing.kafka_fixture import KafkaClusterFixture, KafkaFixture, WaitTimedOut


@pytest.fixture
def kafka():
    with kcore.Broker() as broker:
        broker.create_topic("orders", 2)
        kafka = KafkaFixture(broker)
        yield kafka
        kafka.end_faults()


def produce(kafka, *, topic="orders", partition=0, **settings):
    """The error of the one record's delivery, None without one."""
    errors = []
    producer = confluent_kafka.Producer(kafka.confluent(retry_backoff_ms=1, **settings))
    producer.produce(topic, b"a book", partition=partition, on_delivery=lambda error, _: errors.append(error))
    producer.flush(60)
    (error,) = errors
    return error


def values(kafka, topic="orders"):
    return [record.value for record in kafka.broker.consume(topic)]


@pytest.mark.parametrize("error", ["NOT_LEADER_OR_FOLLOWER", "NotLeaderOrFollower", NotLeaderOrFollower])
def test_an_error_that_a_client_may_try_again_after(kafka, error):
    with kafka.fault("Produce", error=error, times=2) as fault:
        assert produce(kafka) is None
    assert fault.hits == 2 and values(kafka) == [b"a book"]


def test_an_error_that_a_client_gives_up_after_while_the_block_runs(kafka):
    with kafka.fault("produce", error="TopicAuthorizationFailed") as fault:
        assert produce(kafka).code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert produce(kafka) is None
    assert fault.hits == 1 and values(kafka) == [b"a book"]


def test_a_request_whose_answer_is_lost_was_carried_out(kafka):
    """A producer that is not idempotent writes the record again."""
    for idempotent, wanted in ((True, 1), (False, 3)):
        with kafka.fault("Produce", cut="after", times=1) as fault:
            assert produce(kafka, enable_idempotence=idempotent) is None
        assert fault.hits == 1 and len(values(kafka)) == wanted


def test_a_request_whose_connection_was_cut_before_was_not(kafka):
    with kafka.fault("Produce", cut="before", times=1) as fault:
        assert produce(kafka) is None
    assert fault.hits == 1 and len(values(kafka)) == 1


def test_a_slow_answer_and_none(kafka):
    began = time.monotonic()
    with kafka.fault("Produce", delay=0.2, times=1) as fault:
        assert produce(kafka) is None
    assert fault.hits == 1 and time.monotonic() - began > 0.2
    fault, done = kafka.fault("Produce", silent=True), threading.Event()
    thread = threading.Thread(target=lambda: done.set() if produce(kafka) is None else None)
    thread.start()
    fault.wait_for_hits()
    assert not done.is_set() and len(values(kafka)) == 1
    fault.end()  # the client connects again
    thread.join()
    assert done.is_set() and len(values(kafka)) == 2


def test_only_what_is_chosen(kafka):
    kafka.broker.create_topic("prices")
    refused = {"error": "TopicAuthorizationFailed"}
    cases = [
        ({"client_id": "shop-*"}, {"client_id": "shop-1"}, {"client_id": "other"}),
        ({"topic": "prices"}, {"topic": "prices"}, {"topic": "orders"}),
        ({"topic": "orders", "partition": 1}, {"partition": 1}, {"partition": 0}),
    ]
    for chosen, hit, missed in cases:
        with kafka.fault("Produce", **refused, **chosen) as fault:
            assert produce(kafka, **missed) is None and fault.hits == 0
            assert produce(kafka, **hit) is not None and fault.hits == 1


def test_the_fault_that_was_made_last_comes_first_and_each_ends_by_itself(kafka):
    first = kafka.fault("Produce", error="TopicAuthorizationFailed")
    second = kafka.fault("Produce", error="InvalidRequiredAcks")
    third = kafka.fault("Produce", error="PolicyViolation")
    second.end()
    assert produce(kafka).code() == 44 and (first.hits, third.hits) == (0, 1)
    third.end()
    assert produce(kafka) is not None and first.hits == 1
    first.end()
    first.end()
    assert produce(kafka) is None


def test_after_its_end_requests_take_the_same_way_as_before(kafka):
    apis = kafka.broker.running.apis
    before = {api_key: apis.handler(api_key) for api_key in apis.served}
    kafka.fault(error="UnknownServerError").end()
    assert {api_key: apis.handler(api_key) for api_key in apis.served} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"api": "Produse", "silent": True}, "no API 'Produse' is served: did you mean PRODUCE?"),
        ({"error": "NOT_LEADER"}, "no error 'NOT_LEADER': did you mean NotLeaderOrFollower?"),
        ({"error": "LEADER_GONE"}, "no error 'LEADER_GONE': did you mean LeaderNotAvailable?"),
        ({"error": "NOT_A_THING"}, "no error 'NOT_A_THING': kcore.errors has their names"),
        ({}, "give one of error, delay, cut and silent: none is given"),
        ({"delay": 1, "silent": True}, "give one of error, delay, cut and silent: delay, silent"),
        ({"cut": "x"}, "cut='x': expected before or after"),
        ({"silent": True, "partition": 1}, "partition without topic"),
        ({"silent": True, "topic": "orders", "partition": -1}, "partition=-1: expected 0 or more"),
        *(
            ({"delay": delay}, f"delay={delay}: expected 0 seconds or more, at most ")
            for delay in (-1, float("nan"), float("inf"))
        ),
        ({"silent": True, "times": 0}, "times=0: expected 1 or more"),
        ({"silent": True, "client_id": "c", "from_broker": 1}, "client_id and from_broker are both given"),
    ],
)
def test_what_makes_no_sense_is_refused(kafka, arguments, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        kafka.fault(**arguments)


def test_a_wait_for_hits_says_how_many_there_were(kafka):
    with pytest.raises(WaitTimedOut, match="waited 0 s for 1 requests that the fault hits: it has hit 0"):
        kafka.fault(silent=True).wait_for_hits(timeout=0)


def test_a_follower_that_its_leader_does_not_answer_leaves_the_isr_and_comes_back():
    settings = {"replica_lag_time_max_ms": 500, "replica_fetch_wait_max_ms": 100}
    with kcore.Cluster(2, **settings) as cluster:
        kafka = KafkaClusterFixture(cluster)
        cluster.create_topic("orders", replication_factor=2)
        leader = cluster.leader("orders")
        with kafka.fault("Fetch", silent=True, from_broker=1 - leader, broker=leader) as fault:
            fault.wait_for_hits()
            cluster.produce("orders", b"a book")
            kafka.wait_for_isr("orders", {leader})
            with pytest.raises(WaitTimedOut, match=rf"the ISR of orders-0 to be \[0, 1\]: it is \[{leader}\]"):
                kafka.wait_for_isr("orders", {0, 1}, timeout=0)
        kafka.wait_until_in_sync("orders")
        with pytest.raises(RuntimeError, match="broker 7 does not run"):
            kafka.fault(silent=True, broker=7)
