"""The leader of a partition asks the coordinator before a transaction begins there: on one broker, and between two."""

import threading

import pytest

import kcore
from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.transaction_state import Producer
from kcore.protocol.messages import add_partitions_to_txn as ap
from kcore.protocol.messages import offset_fetch as of
from kcore.protocol.messages import produce as p
from kcore.protocol.messages.find_coordinator import FindCoordinatorRequest
from kcore.testing.request_faults import RequestChoice, action_of, make_fault
from tests.unit.server.client import Client
from tests.unit.server.rules_authorizer import Rules
from tests.unit.server.transactions import SETTINGS, TransactionalClient, await_markers, committed, transactional_batch
from tests.waiting import wait_until

NONE = errors.NONE
T0, T1 = ("t", 0), ("t", 1)
#: Of Produce: below 11 a client does not know TRANSACTION_ABORTABLE.
REFUSALS = [(7, errors.InvalidTxnState.code), (10, errors.InvalidTxnState.code), (11, errors.TransactionAbortable.code)]


class Place:
    """The leader of topic t, which coordinates the group g too, and the coordinator of the transactional id x: one
    broker, or one each."""

    def __init__(self, brokers, leader, coordinator):
        self.brokers, self.leader, self.coordinator = brokers, leader, coordinator

    @property
    def log(self):
        return self.leader.log("t")

    def verified(self, monkeypatch):
        """The questions that the coordinator gets, as a list that grows."""
        asked = []
        coordinator = self.coordinator.running.services.transaction_coordinator
        verify = coordinator.verify_partitions

        def noting(transactional_id, producer, partitions):
            asked.append((transactional_id, producer, set(partitions)))
            return verify(transactional_id, producer, partitions)

        monkeypatch.setattr(coordinator, "verify_partitions", noting)
        return asked


def find_group(client):
    wait_until(lambda: client.ask(FindCoordinatorRequest(key="g"), 3).error_code == NONE)


def place_of(cluster):
    cluster.create_topic("t", 2)
    with Client(cluster.brokers[0]) as client:
        TransactionalClient(client).find()
        find_group(client)
    some = cluster.brokers[0].running.services.transaction_coordinator
    partition = some.partition_for("x")
    cluster.wait_until_in_sync("__transaction_state")
    cluster.wait_until_in_sync("t")
    cluster.move_leader("__transaction_state", partition, to=0)
    cluster.wait_until_in_sync("__consumer_offsets")
    groups = cluster.brokers[1].group_coordinator
    cluster.move_leader("__consumer_offsets", groups.partition_for("g"), to=1)
    wait_until(lambda: not groups.manager.is_loading)
    for number in (0, 1):
        cluster.move_leader("t", number, to=1)
    coordinator = cluster.brokers[0]
    wait_until(lambda: not coordinator.running.services.transaction_coordinator.manager.is_loading)
    return Place(list(cluster.brokers.values()), cluster.brokers[1], coordinator)


@pytest.fixture(scope="module")
def two_brokers():
    with kcore.Cluster(2, **SETTINGS) as cluster:
        yield place_of(cluster)


@pytest.fixture(scope="module")
def one_broker():
    with kcore.Broker(**SETTINGS) as broker:
        broker.create_topic("t", 2)
        with Client(broker) as client:
            find_group(client)
        yield Place([broker], broker, broker)


@pytest.fixture(params=["one_broker", "two_brokers"])
def place(request):
    return request.getfixturevalue(request.param)


class Transactions:
    """The producer of x: its own requests go to the coordinator, its batches to the leader."""

    def __init__(self, place, coordinator_client, leader_client):
        self.place = place
        self.asks = TransactionalClient(coordinator_client).find()
        wait_until(lambda: self.asks.init().error_code == NONE)
        self.writes = TransactionalClient(leader_client)
        self.sequence = 0

    def produce(self, value, producer=None, **options):
        self.writes.producer = producer or self.asks.producer
        code = self.writes.produce("t", 0, value, base_sequence=self.sequence, **options)
        if code == NONE:
            self.sequence += 1
        return code

    def end(self, is_commit=True):
        code = self.asks.end(is_commit)
        await_markers(self.place.coordinator)
        return code


@pytest.fixture
def txn(place):
    with Client(place.coordinator) as coordinator_client, Client(place.leader) as leader_client:
        yield Transactions(place, coordinator_client, leader_client)


def test_TXN_28_the_coordinator_is_asked_once_for_each_transaction_and_partition(place, txn, monkeypatch):
    asked = place.verified(monkeypatch)
    for _ in range(2):
        txn.asks.add([T0])
        assert [txn.produce(b"a"), txn.produce(b"b")] == [NONE, NONE]
        assert txn.end() == NONE
    assert asked == [("x", txn.asks.producer, {TopicPartition(*T0)})] * 2
    assert committed(place.leader, "t")[-4:] == [b"a", b"b"] * 2


@pytest.mark.parametrize(("version", "code"), REFUSALS)
def test_TXN_29_a_batch_after_the_end_of_its_transaction_begins_none(place, txn, version, code):
    """Without verification it would begin one that nobody ends, and hold every reader back."""
    txn.asks.add([T0])
    txn.produce(b"in time")
    txn.end()
    end = place.log.log_end_offset
    assert txn.produce(b"late", version=version) == code
    assert place.log.log_end_offset == place.log.last_stable_offset == end
    # The producer goes on.
    txn.asks.add([T0])
    assert txn.produce(b"next") == NONE
    assert txn.end() == NONE
    assert committed(place.leader, "t")[-2:] == [b"in time", b"next"]


@pytest.mark.parametrize(("version", "code"), REFUSALS)
def test_TXN_29_a_partition_that_is_not_in_the_transaction_is_refused(place, txn, version, code):
    txn.asks.add([T1])
    assert txn.produce(b"a", version=version) == code
    txn.asks.add([T0])
    assert txn.produce(b"a", version=version) == NONE
    assert txn.end(False) == NONE


def test_TXN_30_a_fenced_producer_gets_INVALID_PRODUCER_EPOCH(place, txn):
    before = txn.asks.producer
    assert txn.asks.init().error_code == NONE
    txn.asks.add([T0])
    assert txn.produce(b"zombie", before, version=11) == errors.InvalidProducerEpoch.code
    unknown = Producer(before.producer_id + 1000, 0)
    assert txn.produce(b"stranger", unknown) == errors.InvalidProducerIdMapping.code
    assert txn.end(False) == NONE


@pytest.mark.parametrize(
    "error",
    [
        errors.NetworkException,
        errors.CoordinatorLoadInProgress,
        errors.CoordinatorNotAvailable,
        errors.NotCoordinator,
        errors.ConcurrentTransactions,
    ],
)
@pytest.mark.parametrize("version", [7, 11])
def test_TXN_31_TXN_32_what_passes_is_answered_so_that_old_clients_send_again(place, txn, monkeypatch, error, version):
    coordinator = place.coordinator.running.services.transaction_coordinator
    txn.asks.add([T0])
    with monkeypatch.context() as patch:
        refused = {TopicPartition(*T0): error("now")}
        patch.setattr(coordinator, "verify_partitions", lambda *question: refused)
        assert txn.produce(b"a", version=version) == errors.NotEnoughReplicas.code
    assert txn.produce(b"a") == NONE
    assert txn.end(False) == NONE


def test_TXN_31_TXN_33_what_the_coordinator_on_another_broker_does_not_answer(two_brokers):
    place = two_brokers
    with Client(place.coordinator) as coordinator_client, Client(place.leader) as leader_client:
        txn = Transactions(place, coordinator_client, leader_client)
        txn.asks.add([T0])
        with fault(place, cut="before", from_broker=1):
            assert txn.produce(b"a") == errors.NotEnoughReplicas.code
        assert txn.produce(b"a") == NONE
        txn.asks.add([T1])
        with fault(place, error="CLUSTER_AUTHORIZATION_FAILED", from_broker=1):
            assert txn.writes.produce("t", 1, b"a") == errors.InvalidTxnState.code
        assert txn.end() == NONE


def fault(place, *, from_broker=None, error=None, cut=None, silent=False):
    action = action_of(error, None, cut, silent=silent)
    return make_fault(place.brokers, "AddPartitionsToTxn", RequestChoice(from_broker=from_broker), action, None)


def test_TXN_34_of_two_questions_about_an_id_that_wait_for_a_coordinator_one_is_asked(
    two_brokers, monkeypatch, request
):
    """The older epoch is fenced; with equal epochs the producer has asked again, and drops the first answer."""
    coordinator = two_brokers.coordinator.running.services.transaction_coordinator
    questions = two_brokers.leader.running.services.transaction_verifier._routes.others
    asked, is_asking, may_answer = [], threading.Event(), threading.Event()
    answers, last = {}, threading.Event()
    request.addfinalizer(may_answer.set)

    def verify(transactional_id, producer, partitions):
        asked.append((transactional_id, producer))
        is_asking.set()
        assert may_answer.wait(60)
        return dict.fromkeys(partitions)

    def ask(name, transactional_id, *producer):
        def answered(results):
            (answers[name],) = map(type, results.values())
            if name == "last":
                last.set()

        tps = {TopicPartition(*T0)}
        questions.send(0, transactional_id, Producer(*producer), tps, answered, adds=False)

    monkeypatch.setattr(coordinator, "verify_partitions", verify)
    ask("in flight", "x", 7, 5)
    assert is_asking.wait(60)
    ask("sent again", "x", 7, 5)
    assert answers == {}
    ask("fenced", "x", 7, 5)
    assert answers == {"sent again": errors.NetworkException}
    ask("older", "x", 7, 4)
    assert answers.pop("older") is errors.InvalidProducerEpoch
    ask("newer", "x", 7, 6)
    assert answers.pop("fenced") is errors.InvalidProducerEpoch
    ask("another id", "y", 7, 0)
    ask("another producer", "x", 8, 0)
    ask("last", "z", 1, 1)
    may_answer.set()
    assert last.wait(60)
    assert asked == [("x", (7, 5)), ("x", (7, 6)), ("y", (7, 0)), ("x", (8, 0)), ("z", (1, 1))]
    names = ("in flight", "newer", "another id", "another producer", "last")
    assert answers == {"sent again": errors.NetworkException} | dict.fromkeys(names, type(None))


def test_TXN_33_a_coordinator_of_a_release_that_does_not_know_the_question_is_not_asked():
    with kcore.Cluster(2, act_like="3.5", **SETTINGS) as cluster:
        place = place_of(cluster)
        with Client(place.coordinator) as coordinator_client, Client(place.leader) as leader_client:
            txn = Transactions(place, coordinator_client, leader_client)
            txn.asks.add([T0])
            assert txn.produce(b"a") == NONE
            assert txn.end() == NONE
        assert committed(place.leader, "t") == [b"a"]


def test_TXN_28_TXN_78_verification_ends_and_begins_while_the_broker_runs(one_broker):
    place, name = one_broker, "transaction.partition.verification.enable"
    with Client(place.leader) as client:
        txn = Transactions(place, client, client)
        place.leader.config.reconfigure({name: False})
        assert txn.produce(b"hangs") == NONE
        assert txn.asks.add([T0]) == {T0: NONE}
        assert txn.end(False) == NONE
        place.leader.config.reconfigure({name: None})
        assert txn.produce(b"late") == errors.InvalidTxnState.code


def test_TXN_36_a_request_with_two_epochs_of_a_producer_is_refused_as_a_whole(one_broker):
    with Client(one_broker.leader) as client:
        txn = Transactions(one_broker, client, client)
        txn.asks.add([T0, T1])
        producer_id, epoch = txn.asks.producer
        data = [
            p.PartitionProduceData(index=n, records=transactional_batch(Producer(producer_id, epoch + n), b"a"))
            for n in (0, 1)
        ]
        topics = [p.TopicProduceData(name="t", partition_data=data)]
        request = p.ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=topics, transactional_id="x")
        answers = client.ask(request, 7).responses[0].partition_responses
        assert {answer.error_code for answer in answers} == {errors.InvalidProducerIdMapping.code}
        assert txn.end(False) == NONE


def test_a_broker_that_stops_during_a_question_leaves_nobody_waiting():
    with kcore.Cluster(2, transaction_state_log_min_isr=1, **SETTINGS) as cluster:
        place = place_of(cluster)
        transaction = cluster.transaction("x")
        with fault(place, silent=True, from_broker=1) as silence:
            written = []
            producer = threading.Thread(
                target=lambda: written.append(transaction.produce("t", "a", partition=0)), daemon=True
            )
            producer.start()
            silence.wait_for_hits(1)
            cluster.kill(1)
            producer.join(60)
        transaction.commit()
        assert committed(place.coordinator, "t") == [b"a"] and len(written) == 1


# -- offsets


@pytest.fixture
def offsets(txn):
    """The producer's client at the coordinator of the group g."""
    txn.writes.producer = txn.asks.producer
    return txn.writes


def committed_offset(place):
    topics = [of.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    request = of.OffsetFetchRequest(group_id="g", topics=topics, require_stable=True)
    with Client(place.leader) as client:
        (partition,) = client.ask(request, 7).topics[0].partitions
    return partition.error_code, partition.committed_offset


@pytest.mark.parametrize(("version", "code"), [(3, errors.InvalidTxnState.code), (4, errors.TransactionAbortable.code)])
def test_TXN_29_offsets_after_the_end_of_their_transaction_are_refused(place, txn, offsets, version, code):
    """Without verification they would wait for ever, and OffsetFetch with them."""
    offsets.version = version
    assert txn.asks.add_offsets("g") == NONE
    assert offsets.commit_offset("g", "t", 41 + version) == NONE
    assert txn.end() == NONE
    assert offsets.commit_offset("g", "t", 99) == code
    assert committed_offset(place) == (NONE, 41 + version)


@pytest.mark.parametrize(
    ("error", "version", "code"),
    [
        (errors.NetworkException, 3, errors.CoordinatorLoadInProgress.code),
        (errors.NetworkException, 1, errors.CoordinatorNotAvailable.code),
        (errors.NotCoordinator, 3, errors.NotCoordinator.code),
        (errors.ConcurrentTransactions, 3, errors.ConcurrentTransactions.code),
        (errors.ProducerFenced, 3, errors.InvalidProducerEpoch.code),
    ],
)
def test_TXN_31_offsets_that_cannot_be_verified_now_are_sent_again(
    place, txn, offsets, monkeypatch, error, version, code
):
    coordinator = place.coordinator.running.services.transaction_coordinator
    offsets.version = version
    txn.asks.add_offsets("g")
    with monkeypatch.context() as patch:
        patch.setattr(coordinator, "verify_partitions", lambda _, __, asked: dict.fromkeys(asked, error("now")))
        assert offsets.commit_offset("g", "t", 1) == code
    assert offsets.commit_offset("g", "t", 1) == NONE
    assert txn.end(False) == NONE


# -- the request of a leader


def question(transactional_id, producer, partitions, *, verify_only=True):
    by_topic = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    return ap.AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=verify_only,
        topics=[ap.AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in by_topic.items()],
    )


def answers_to(client, *questions, version=5):
    """{(transactional id, topic, partition): error code}"""
    answer = client.ask(ap.AddPartitionsToTxnRequest(transactions=list(questions)), version)
    assert answer.error_code == NONE
    return {
        (transaction.transactional_id, topic.name, result.partition_index): result.partition_error_code
        for transaction in answer.results_by_transaction
        for topic in transaction.topic_results
        for result in topic.results_by_partition
    }


@pytest.mark.parametrize(
    ("version", "not_added"), [(4, errors.InvalidTxnState.code), (5, errors.TransactionAbortable.code)]
)
def test_TXN_40_TXN_43_several_transactions_are_verified_in_one_request(one_broker, version, not_added):
    with Client(one_broker.leader) as client:
        txn = Transactions(one_broker, client, client)
        txn.asks.add([T0])
        producer = txn.asks.producer
        asked = [question("x", producer, [T0, T1]), question("nobody", producer, [T0])]
        assert answers_to(client, *asked, version=version) == {
            ("x", *T0): NONE,
            ("x", *T1): not_added,
            ("nobody", *T0): errors.InvalidProducerIdMapping.code,
        }
        fenced = question("x", Producer(producer.producer_id, producer.epoch + 1), [T0])
        other = question("x", Producer(producer.producer_id + 1, producer.epoch), [T0])
        empty = question("", producer, [T0])
        assert answers_to(client, fenced, version=version) == {("x", *T0): errors.ProducerFenced.code}
        assert answers_to(client, other, version=version) == {("x", *T0): errors.InvalidProducerIdMapping.code}
        assert answers_to(client, empty, version=version) == {("", *T0): errors.InvalidRequest.code}
        assert answers_to(client, version=version) == {}
        assert txn.end(False) == NONE


def test_TXN_40_a_leader_may_add_partitions_too_and_no_topic_is_asked_for(one_broker):
    with Client(one_broker.leader) as client:
        txn = Transactions(one_broker, client, client)
        added = answers_to(client, question("x", txn.asks.producer, [T0, ("no", 0)], verify_only=False))
        assert added == {("x", *T0): NONE, ("x", "no", 0): NONE}
        assert answers_to(client, question("x", txn.asks.producer, [T0])) == {("x", *T0): NONE}


def test_TXN_40_who_may_not_act_for_the_cluster_may_not_ask():
    with kcore.Broker(authorizer=Rules(allowed=()), **SETTINGS) as broker, Client(broker) as client:
        request = ap.AddPartitionsToTxnRequest(transactions=[question("x", Producer(1, 0), [T0])])
        answer = client.ask(request, 5)
        assert answer.error_code == errors.ClusterAuthorizationFailed.code
        assert answer.results_by_transaction == []
