"""What the waits for groups look at, and what they say when time is up."""

import asyncio

import confluent_kafka
import pytest

import kcore
from kcore.common import topic_names
from kcore.errors import ApiError
from kcore.testing.kafka_fixture import KafkaClusterFixture, KafkaFixture, WaitTimedOut
from tests.waiting import wait_until

ORDERS = [("orders", number) for number in range(3)]


@pytest.fixture
def kafka():
    with kcore.Broker() as broker:
        broker.create_topic("orders", 3)
        yield KafkaFixture(broker)


@pytest.fixture
def consumer(kafka):
    with confluent_kafka.Consumer(kafka.confluent_consumer("shop", enable_auto_commit=False)) as consumer:
        consumer.subscribe(["orders"])
        # Polled until it has its partitions: librdkafka may wait for ever in close() otherwise.
        wait_until(lambda: consumer.poll(0) is None and consumer.assignment())
        kafka.wait_for_group("shop", partitions=3)
        yield consumer


def test_the_offsets_and_the_lag_of_a_group_are_values(kafka, consumer):
    assert kafka.committed_offsets("shop") == {}
    assert [lag.lag for lag in kafka.lag("shop").values()] == [0, 0, 0]
    for number in range(5):
        kafka.broker.produce("orders", str(number), partition=number % 2)
    assert list(kafka.lag("shop")) == ORDERS
    assert [lag.lag for lag in kafka.lag("shop").values()] == [3, 2, 0]
    wait_until(lambda: (message := consumer.poll(1)) and message.partition() == 0 and message.offset() == 1)
    consumer.commit(offsets=[confluent_kafka.TopicPartition("orders", 0, 2)], asynchronous=False)
    assert kafka.committed_offsets("shop") == {("orders", 0): 2}
    assert kafka.lag("shop")["orders", 0] == (2, 0, 3, 1)
    assert kafka.lag("shop")["orders", 1] == (None, 0, 2, 2)
    assert [lag.lag for lag in kafka.lag("shop").values()] == [1, 2, 0]
    assert kafka.committed_offsets("billing") == kafka.lag("billing") == {}


def test_a_wait_for_the_lag_ends_when_enough_is_committed(kafka, consumer):
    for number in range(3):
        kafka.broker.produce("orders", str(number), partition=number)
    with pytest.raises(WaitTimedOut) as raised:
        kafka.wait_for_lag("shop", timeout=0)
    (member,) = kafka.broker.group_coordinator.manager.get_group("shop").members
    assert str(raised.value) == (
        "waited 0 s for the lag of group shop to be at most 0: orders-0: end 1, nothing committed, lag 1; "
        "orders-1: end 1, nothing committed, lag 1; orders-2: end 1, nothing committed, lag 1; "
        f"it is Stable, generation 1; members: {member} at 127.0.0.1 (orders-0, orders-1, orders-2); "
        "3 partitions assigned"
    )
    for number in range(2):
        consumer.commit(offsets=[confluent_kafka.TopicPartition("orders", number, 1)], asynchronous=False)
    kafka.wait_for_lag("shop", at_most=1)
    with pytest.raises(WaitTimedOut, match="orders-1: end 1, committed 1, lag 0; orders-2: end 1, nothing committed"):
        kafka.wait_for_lag("shop", timeout=0)
    consumer.commit(offsets=[confluent_kafka.TopicPartition("orders", 2, 1)], asynchronous=False)
    kafka.wait_for_lag("shop")


def commit(consumer, offset):
    consumer.commit(offsets=[confluent_kafka.TopicPartition("orders", 0, offset)], asynchronous=False)


def test_markers_and_records_of_transactions_that_were_aborted_or_are_open_are_no_lag(kafka, consumer):
    with kafka.broker.transaction("shop") as transaction:
        for title in ("a book", "a pen"):
            transaction.produce("orders", title, partition=0)
    commit(consumer, 1)
    assert kafka.lag("shop")["orders", 0] == (1, 0, 3, 1)
    commit(consumer, 2)
    kafka.wait_for_lag("shop", timeout=0)
    with kafka.broker.transaction("shop") as transaction:
        transaction.produce("orders", "a cup", partition=0)
        transaction.abort()
    kafka.wait_for_lag("shop", timeout=0)
    transaction = kafka.broker.transaction("shop")
    transaction.produce("orders", "a pot", partition=0)
    kafka.broker.produce("orders", "a lid", partition=0)
    kafka.wait_for_lag("shop", timeout=0)
    assert kafka.lag("shop")["orders", 0] == (2, 0, 7, 0)
    transaction.commit()
    assert kafka.lag("shop")["orders", 0] == (2, 0, 8, 2)
    commit(consumer, 6)
    with pytest.raises(WaitTimedOut, match="orders-0: end 8, committed 6, lag 1"):
        kafka.wait_for_lag("shop", timeout=0)
    commit(consumer, 7)
    kafka.wait_for_lag("shop", timeout=0)


def test_a_program_that_commits_after_each_record_reaches_the_lag_after_a_transaction(kafka, consumer):
    with kafka.broker.transaction("shop") as transaction:
        transaction.produce("orders", "a book", partition=0)
    message = wait_until(lambda: consumer.poll(1))
    consumer.commit(message, asynchronous=False)
    kafka.wait_for_lag("shop")


def test_the_lag_counts_the_records_inside_batches_from_the_committed_offset_on(kafka, consumer):
    producer = confluent_kafka.Producer(kafka.confluent(linger_ms=1000))
    for number in range(10):
        producer.produce("orders", str(number), partition=0)
    assert producer.flush(30) == 0
    assert next(kafka.broker.log("orders", 0).batches()).count == 10
    commit(consumer, 3)
    assert kafka.lag("shop")["orders", 0].lag == 7
    kafka.clear_topic("orders")
    kafka.wait_for_lag("shop", timeout=0)


def test_a_wait_for_the_lag_of_no_group_says_so(kafka):
    with pytest.raises(WaitTimedOut, match="no partition committed or assigned; there is no such group"):
        kafka.wait_for_lag("shop", timeout=0)
    kafka.broker.stop()
    with pytest.raises(WaitTimedOut, match="no broker runs"):
        kafka.wait_for_group("shop", timeout=0)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            lambda kafka: kafka.wait_for_group("shop", "Stabel"),
            ValueError,
            r"^state 'Stabel': expected one of Assigning, CompletingRebalance, Dead, Empty, PreparingRebalance, "
            r"Reconciling, Stable; did you mean Stable\?$",
        ),
        (lambda kafka: kafka.wait_for_group("shop", 3), TypeError, "^state must be a str, not 3$"),
        (lambda kafka: kafka.wait_for_group(None), TypeError, "^group_id must be a str, not None$"),
        (lambda kafka: kafka.wait_for_group("shop", partitions="3"), TypeError, "^partitions must be an int, not '3'$"),
        (lambda kafka: kafka.wait_for_group("shop", members=1.5), TypeError, "^members must be an int, not 1.5$"),
        (lambda kafka: kafka.wait_for_lag("shop", at_most="1"), TypeError, "^at_most must be an int, not '1'$"),
        (lambda kafka: kafka.wait_for_lag("shop", timeout="1"), TypeError, "^timeout must be a number, not '1'$"),
        (lambda kafka: kafka.wait_for_lag(5), TypeError, "^group_id must be a str, not 5$"),
        (lambda kafka: kafka.wait_for_records("orders", "1"), TypeError, "^count must be an int, not '1'$"),
        (lambda kafka: kafka.wait_for_records("orders", -1), ValueError, "^count=-1: expected 0 or more$"),
        (lambda kafka: kafka.wait_for_records(5, 1), TypeError, "^topic must be a str, not 5$"),
    ],
)
def test_a_wait_with_a_wrong_argument_says_so_at_once(kafka, call, error, says):
    with pytest.raises(error, match=says):
        call(kafka)


def test_a_wait_in_an_event_loop_checks_its_arguments_too(kafka):
    with pytest.raises(ValueError, match="did you mean Empty"):
        asyncio.run(kafka.aio.wait_for_group("shop", "empty"))
    with pytest.raises(TypeError, match="timeout must be a number"):
        asyncio.run(kafka.aio.wait_for_lag("shop", timeout=None))


def coordinate(broker):
    """Have the broker coordinate groups, as for a client that has looked for the coordinator."""
    broker.admin_manager.auto_create_topic(topic_names.GROUP_METADATA_TOPIC)
    check = broker.group_coordinator.manager.check_group_status
    wait_until(lambda: check("shop") is None, ignoring=ApiError)


def join(broker, client_id, *, gets_id_first=False):
    """Have a new member join the group; the answer is appended to the list that is returned once it comes."""
    answers = []
    broker.group_coordinator.join_group(
        "shop",
        "",
        None,
        "consumer",
        [("range", b"")],
        rebalance_timeout_ms=60_000,
        session_timeout_ms=30_000,
        client_id=client_id,
        client_host="/127.0.0.1",
        require_known_member_id=gets_id_first,
        callback=answers.append,
    )
    return answers


def message_of(kafka):
    with pytest.raises(WaitTimedOut) as raised:
        kafka.wait_for_group("shop", timeout=0)
    return str(raised.value)


def test_a_time_out_says_what_a_rebalance_waits_for():
    with kcore.Broker() as broker:
        coordinate(broker)
        kafka = KafkaFixture(broker)
        till = join(broker, "till")
        wait_until(lambda: till)
        first = till[0].member_id
        assert message_of(kafka) == (
            "waited 0 s for group shop to be Stable: it is CompletingRebalance, generation 1; "
            f"members: {first} at 127.0.0.1 (no partition); 0 partitions assigned; waits for SyncGroup of {first}; "
            f"{first} leads and has sent no assignment"
        )
        join(broker, "stock")
        (id_only,) = join(broker, "late", gets_id_first=True)
        message = message_of(kafka)
        assert "it is PreparingRebalance, generation 1; members: stock-" in message
        assert message.endswith(f"waits for JoinGroup of {first}; waits for the first JoinGroup of {id_only.member_id}")


def test_a_time_out_says_that_the_first_rebalance_is_held_open():
    with kcore.Broker(group_initial_rebalance_delay_ms=600_000) as broker:
        coordinate(broker)
        join(broker, "till")
        assert message_of(KafkaFixture(broker)).endswith("(group.initial.rebalance.delay.ms)")


def test_a_group_of_a_cluster_is_found_wherever_its_coordinator_is():
    with kcore.Cluster(2) as cluster:
        cluster.create_topic("orders", 3)
        kafka = KafkaClusterFixture(cluster)
        producer = confluent_kafka.Producer(kafka.confluent())
        for number in range(3):
            producer.produce("orders", b"a book", partition=number)
        producer.flush()
        for group_id in ("shop", "billing", "audit"):
            consume_all(kafka, group_id)


def consume_all(kafka, group_id):
    with confluent_kafka.Consumer(kafka.confluent_consumer(group_id, auto_commit_interval_ms=10)) as consumer:
        consumer.subscribe(["orders"])
        kafka.wait_for_group(group_id, partitions=3)
        assert sum(lag.lag for lag in kafka.lag(group_id).values()) == 3
        consumed = [consumer.poll(30).value() for _ in range(3)]
        assert consumed == [b"a book"] * 3
        kafka.wait_for_lag(group_id)
        assert sorted(kafka.committed_offsets(group_id).values()) == [1, 1, 1]


def test_a_group_of_which_a_member_has_not_asked_for_its_assignment_has_not_settled(kafka, consumer):
    """It is Stable as soon as the leader has given all their assignments."""
    group = kafka.broker.group_coordinator.manager.get_group("shop")
    group.pending_sync_members.add("late")
    with pytest.raises(WaitTimedOut, match=r"Stable.*waits for SyncGroup of late"):
        kafka.wait_for_group("shop", partitions=3, timeout=0)
    group.pending_sync_members.clear()
    kafka.wait_for_group("shop", partitions=3, timeout=0)


def test_a_wait_for_a_number_of_members(kafka, consumer):
    kafka.wait_for_group("shop", members=1)
    with pytest.raises(WaitTimedOut, match="for group shop to be Stable with 2 members and 3 partitions: it is Stable"):
        kafka.wait_for_group("shop", members=2, partitions=3, timeout=0)
    with confluent_kafka.Consumer(kafka.confluent_consumer("shop")) as second:
        second.subscribe(["orders"])
        # Both are polled until they have their partitions: librdkafka may wait for ever in close() where the
        # assignment has come and was not polled for.
        wait_until(lambda: joined(kafka, 2, consumer, second) and second.assignment())


def joined(kafka, members, *consumers):
    for consumer in consumers:
        consumer.poll(0)
    try:
        kafka.wait_for_group("shop", members=members, partitions=3, timeout=0)
    except WaitTimedOut:
        return False
    return True
