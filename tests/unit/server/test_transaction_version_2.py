"""Transactions of version 2 (KIP-890), request by request: on one broker, and with leader and coordinator apart."""

import dataclasses

import pytest

import kcore
from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.transaction_state import Producer
from kcore.errors import NONE
from kcore.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from kcore.protocol.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from kcore.testing import SkipTime
from tests.unit.server.client import Client
from tests.unit.server.test_transaction_verification import (
    SETTINGS,
    Place,
    committed_offset,
    fault,
    find_group,
    place_of,
)
from tests.unit.server.transactions import TransactionalClient, announced, await_markers, committed
from tests.waiting import wait_until

CONCURRENT = errors.ConcurrentTransactions.code
FENCED, OLD_EPOCH = errors.ProducerFenced.code, errors.InvalidProducerEpoch.code


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


class ClientOfVersion2:
    """The producer of x: it adds nothing itself, and takes its epoch from each end."""

    def __init__(self, place, coordinator_client, leader_client):
        self.place = place
        self.asks = TransactionalClient(coordinator_client).find()
        wait_until(lambda: self.asks.init().error_code == NONE)
        self.writes = TransactionalClient(leader_client, version=5)

    @property
    def producer(self):
        return self.asks.producer

    def produce(self, value, producer=None, *, number=0, sequence=0, version=12):
        self.writes.producer = producer or self.producer
        return self.writes.produce("t", number, value, base_sequence=sequence, version=version)

    def commit_offset(self, offset, producer=None, version=5):
        self.writes.producer, self.writes.version = producer or self.producer, version
        return self.writes.commit_offset("g", "t", offset)

    def end(self, is_commit=True, producer=None):
        """(error code, by how much the epoch has risen)"""
        before = self.producer
        answer = self.asks.end_2(is_commit, producer)
        await_markers(self.place.coordinator)
        if answer.error_code:
            assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
            return answer.error_code
        assert answer.producer_id == before.producer_id
        return NONE, answer.producer_epoch - before.epoch

    @property
    def state(self):
        return self.place.coordinator.running.services.transaction_coordinator.describe("x")


@pytest.fixture
def txn(place):
    with Client(place.coordinator) as coordinator_client, Client(place.leader) as leader_client:
        yield ClientOfVersion2(place, coordinator_client, leader_client)


def test_TXN_26_TXN_37_the_leader_adds_what_is_written_and_each_end_raises_the_epoch(place, txn):
    for value, is_commit in ((b"a", True), (b"b", False), (b"c", True)):
        assert txn.produce(value) == NONE
        assert txn.produce(value, sequence=1) == NONE
        assert txn.produce(value, number=1) == NONE
        assert (txn.state.state.shown, len(txn.state.partitions)) == ("Ongoing", 2)
        assert txn.end(is_commit) == (NONE, 1)
    for number in (0, 1):
        assert committed(place.leader, "t", number)[-1] == b"c"
        assert b"b" not in committed(place.leader, "t", number)


def test_TXN_26_the_coordinator_is_asked_once_for_each_transaction_and_partition(place, txn, monkeypatch):
    coordinator, added = place.coordinator.running.services.transaction_coordinator, []
    add = coordinator.add_partitions

    def noting(transactional_id, producer, partitions, callback, version):
        added.append((producer.epoch, set(partitions), version))
        add(transactional_id, producer, partitions, callback, version)

    monkeypatch.setattr(coordinator, "add_partitions", noting)
    first = txn.producer.epoch
    for _ in range(2):
        assert [txn.produce(b"a", sequence=n) for n in range(3)] == [NONE] * 3
        assert txn.end() == (NONE, 1)
    assert added == [(epoch, {TopicPartition("t", 0)}, 2) for epoch in (first, first + 1)]


def test_TXN_26_it_is_added_although_verification_is_off(one_broker):
    name = "transaction.partition.verification.enable"
    with Client(one_broker.leader) as client:
        txn = ClientOfVersion2(one_broker, client, client)
        one_broker.leader.config.reconfigure({name: False})
        assert txn.produce(b"added") == NONE
        one_broker.leader.config.reconfigure({name: None})
        assert txn.state.partitions == {TopicPartition("t", 0)}
        assert txn.end() == (NONE, 1)
    assert committed(one_broker.leader, "t")[-1] == b"added"


def test_TXN_27_TXN_48_the_group_coordinator_adds_the_offsets(place, txn):
    assert txn.commit_offset(11) == NONE
    assert committed_offset(place)[0] == errors.UnstableOffsetCommit.code
    assert txn.end() == (NONE, 1)
    assert committed_offset(place) == (NONE, 11)
    late = txn.producer
    assert txn.commit_offset(12) == NONE
    assert txn.end(False) == (NONE, 1)
    assert committed_offset(place) == (NONE, 11)
    # An offset that arrives late begins no transaction.
    assert txn.commit_offset(13, late) == OLD_EPOCH
    assert committed_offset(place) == (NONE, 11)
    assert txn.end(False) == (NONE, 1)


def test_TXN_38_a_late_batch_of_the_last_transaction_is_refused(place, txn):
    late = txn.producer
    assert txn.produce(b"in time") == NONE
    assert txn.end() == (NONE, 1)
    end = place.log.log_end_offset
    assert txn.produce(b"late", late, sequence=1) == OLD_EPOCH
    # Also where another transaction is open.
    assert txn.produce(b"next") == NONE
    assert txn.produce(b"late", late, sequence=1) == OLD_EPOCH
    assert place.log.log_end_offset == end + 1
    assert txn.end() == (NONE, 1)
    assert committed(place.leader, "t")[-2:] == [b"in time", b"next"]


def test_TXN_38_a_marker_of_the_last_transaction_that_comes_again_does_not_end_the_next_one(place, txn):
    assert txn.produce(b"a") == NONE
    assert txn.end() == (NONE, 1)
    assert txn.produce(b"not yet") == NONE
    producer, entry = txn.producer, place.log.producer_state_manager.producers[txn.producer.producer_id]
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transaction_result=True,
        coordinator_epoch=entry.coordinator_epoch,
        transaction_version=2,
        topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
    )
    with Client(place.leader) as client:
        (result,) = client.ask(WriteTxnMarkersRequest(markers=[marker]), 2).markers
    assert result.topics[0].partitions[0].error_code == OLD_EPOCH
    assert txn.end(False) == (NONE, 1)
    assert committed(place.leader, "t")[-1] == b"a"


def test_TXN_38_the_coordinator_says_to_other_brokers_that_the_epoch_is_raised(two_brokers, monkeypatch):
    writer, versions = two_brokers.leader.running.services.marker_writer, []
    write = writer.write

    def noting(marker, *args):
        versions.append(marker.transaction_version)
        write(marker, *args)

    monkeypatch.setattr(writer, "write", noting)
    with Client(two_brokers.coordinator) as asks, Client(two_brokers.leader) as writes:
        txn = ClientOfVersion2(two_brokers, asks, writes)
        assert txn.produce(b"a") == NONE
        assert txn.end() == (NONE, 1)
    assert versions == [2]


def test_TXN_38_the_partition_has_the_raised_epoch_and_begins_it_with_sequence_0(place, txn):
    assert txn.produce(b"a") == NONE
    assert txn.end() == (NONE, 1)
    with Client(place.leader) as client:
        request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
        (partition,) = client.ask(request, 0).topics[0].partitions
    (described,) = [p for p in partition.active_producers if p.producer_id == txn.producer.producer_id]
    assert (described.producer_epoch, described.current_txn_start_offset) == (txn.producer.epoch, -1)
    assert txn.produce(b"b", sequence=1) == errors.OutOfOrderSequenceNumber.code
    assert txn.produce(b"b") == NONE
    assert txn.end() == (NONE, 1)


@pytest.mark.parametrize("late_is_commit", [True, False])
def test_TXN_23_a_late_EndTxn_ends_the_next_transaction_with_version_0_and_is_refused_with_version_2(
    place, txn, late_is_commit
):
    """Jepsen's report on Bufstream of 2024: EndTxn is sent twice, and its second copy arrives in the next transaction,
    which it commits although its producer has not, or aborts although its producer goes on to commit."""
    # Version 0.
    txn.asks.add([("t", 0)])
    assert txn.produce(b"first", version=11) == NONE
    assert txn.asks.end(True) == NONE
    await_markers(place.coordinator)
    txn.asks.add([("t", 0)])
    assert txn.produce(b"not finished", sequence=1, version=11) == NONE
    assert txn.asks.end(late_is_commit) == NONE  # the late copy of the first end
    await_markers(place.coordinator)
    assert txn.state.state.shown == ("CompleteCommit" if late_is_commit else "CompleteAbort")
    assert (committed(place.leader, "t")[-1] == b"not finished") is late_is_commit
    # Version 2.
    txn.asks.init()
    first = txn.producer
    assert txn.produce(b"first") == NONE
    assert txn.end(producer=first) == (NONE, 1)
    assert txn.produce(b"half") == NONE
    assert txn.end(late_is_commit, first) == FENCED
    assert txn.state.state.shown == "Ongoing"
    assert txn.produce(b"the rest", sequence=1) == NONE
    assert txn.end() == (NONE, 1)
    assert committed(place.leader, "t")[-3:] == [b"first", b"half", b"the rest"]


def test_TXN_57_TXN_58_ends_are_repeated_and_empty_transactions_aborted(place, txn):
    first = txn.producer
    assert txn.end(True) == errors.InvalidTxnState.code
    assert txn.end(False) == (NONE, 1)
    assert txn.end(False, first) == (NONE, 0)
    second = txn.producer
    assert txn.produce(b"a") == NONE
    assert txn.end(True) == (NONE, 1)
    assert txn.end(True, second) == (NONE, 0)
    assert txn.end(False, second) == errors.InvalidTxnState.code
    assert txn.end(False, first) == FENCED
    assert txn.end(False, Producer(second.producer_id, second.epoch + 5)) == FENCED
    assert txn.end(False, Producer(second.producer_id + 999, 0)) == errors.InvalidProducerIdMapping.code


def test_TXN_32_while_the_last_transaction_is_ending_the_leader_waits_for_a_while(place, txn, monkeypatch):
    coordinator = place.coordinator.running.services.transaction_coordinator
    add, asked = coordinator.add_partitions, []

    def ending(transactional_id, producer, partitions, callback, version):
        asked.append(1)
        if len(asked) < 3:
            callback(CONCURRENT)
        else:
            add(transactional_id, producer, partitions, callback, version)

    verifier = place.leader.running.services.transaction_verifier
    with monkeypatch.context() as patch:
        patch.setattr(verifier, "_retry", dataclasses.replace(verifier._retry, max_ms=lambda: 60_000))
        patch.setattr(coordinator, "add_partitions", ending)
        assert txn.produce(b"a") == NONE
    assert len(asked) == 3
    assert txn.end() == (NONE, 1)
    with monkeypatch.context() as patch:
        patch.setattr(
            coordinator, "add_partitions", lambda a, b, c, callback, e: (asked.append(2), callback(CONCURRENT))
        )
        assert txn.produce(b"a") == CONCURRENT
        assert 1 <= asked.count(2) <= 6  # in 100 ms, not sooner than every 20 ms
        assert txn.commit_offset(1) == CONCURRENT
    assert txn.produce(b"a") == NONE
    assert txn.end() == (NONE, 1)


@pytest.mark.parametrize(("backoff_ms", "max_ms", "asked"), [(1, 0, 1), (30_000, 30_000, 2)])
def test_TXN_32_how_long_and_how_often_the_leader_asks_are_settings(monkeypatch, backoff_ms, max_ms, asked):
    """On a clock that a test moves: once with no time at all; and again after the first of two waits."""
    settings = {
        "add.partitions.to.txn.retry.backoff.ms": backoff_ms,
        "add.partitions.to.txn.retry.backoff.max.ms": max_ms,
    }
    time = SkipTime()
    with kcore.Broker(time=time, **settings, **SETTINGS) as broker, Client(broker) as client:
        broker.create_topic("t")
        TransactionalClient(client).find()
        services, times, answers = broker.running.services, [], []

        def ending(transactional_id, producer, partitions, callback, version):
            times.append(time.hi_res_clock_ms())
            callback(CONCURRENT)

        with monkeypatch.context() as patch:
            tp = TopicPartition("t", 0)
            patch.setattr(services.transaction_coordinator, "add_partitions", ending)
            services.transaction_verifier.verify("x", Producer(1, 0), {tp: 0}, answers.append, adds=True)
            if max_ms:
                time.skip(milliseconds=backoff_ms / 2)
                assert len(times) == 1 and not answers
                time.skip(milliseconds=backoff_ms / 2)
            wait_until(lambda: answers)
        assert len(times) == asked and times[-1] - times[0] >= (backoff_ms if asked > 1 else 0)
        assert isinstance(answers[0][tp], errors.ConcurrentTransactions)


def test_TXN_61_how_long_a_producer_waits_for_the_end_of_its_last_transaction_is_a_setting(monkeypatch):
    settings = {"add.partitions.to.txn.retry.backoff.max.ms": 77}
    with kcore.Broker(**settings, **SETTINGS) as broker, Client(broker) as client:
        broker.create_topic("t")
        txn = TransactionalClient(client).find()
        txn.init()
        asked = []

        def ending(transactional_id, producer, partitions, callback, *, max_wait_ms):
            asked.append(max_wait_ms)
            callback(CONCURRENT)

        monkeypatch.setattr(broker.running.services.transaction_coordinator, "add_partitions", ending)
        assert txn.add([("t", 0)]) == {("t", 0): CONCURRENT}
        assert txn.add_offsets("g") == CONCURRENT
        assert asked == [77, 77]


@pytest.mark.parametrize(
    "error", [errors.CoordinatorLoadInProgress, errors.CoordinatorNotAvailable, errors.NotCoordinator]
)
def test_TXN_31_a_coordinator_that_cannot_add_now_makes_the_client_send_again(place, txn, monkeypatch, error):
    coordinator = place.coordinator.running.services.transaction_coordinator
    with monkeypatch.context() as patch:
        patch.setattr(coordinator, "add_partitions", lambda a, b, c, callback, e: callback(error.code))
        assert txn.produce(b"a") == errors.NotEnoughReplicas.code
        assert txn.commit_offset(1) == error.code
    assert txn.produce(b"a") == NONE
    assert txn.end() == (NONE, 1)


def test_TXN_31_a_coordinator_that_cannot_be_reached_makes_the_client_send_again(two_brokers):
    place = two_brokers
    with Client(place.coordinator) as coordinator_client, Client(place.leader) as leader_client:
        txn = ClientOfVersion2(place, coordinator_client, leader_client)
        with fault(place, cut="before", from_broker=1):
            assert txn.produce(b"a") == errors.NotEnoughReplicas.code
            assert txn.commit_offset(1) == errors.CoordinatorLoadInProgress.code
        assert txn.produce(b"a") == NONE
        assert txn.end() == (NONE, 1)


def test_TXN_26_what_the_coordinator_refuses_is_not_written(place, txn):
    old = txn.producer
    txn.asks.init()
    end = place.log.log_end_offset
    assert txn.produce(b"zombie", old) == OLD_EPOCH
    assert txn.produce(b"stranger", Producer(old.producer_id + 999, 0)) == errors.InvalidProducerIdMapping.code
    assert txn.commit_offset(1, old) == OLD_EPOCH
    assert place.log.log_end_offset == end
    assert txn.end(False) == (NONE, 1)


def test_TXN_26_a_coordinator_of_a_release_that_adds_nothing_for_leaders_has_the_batch_refused():
    with kcore.Cluster(2, act_like="3.5", **SETTINGS) as cluster:
        place = place_of(cluster)
        with Client(place.coordinator) as coordinator_client, Client(place.leader) as leader_client:
            txn = ClientOfVersion2(place, coordinator_client, leader_client)
            services, asked = place.leader.running.services, []
            services.transaction_verifier.verify(
                "x", txn.producer, {TopicPartition("t", 0): 0}, asked.append, adds=True
            )
            wait_until(lambda: asked)
            assert [type(error) for error in asked[0].values()] == [errors.InvalidTxnState]


def test_TXN_23_the_brokers_of_a_cluster_agree_and_the_epoch_is_that_of_the_last_one_that_joined():
    with kcore.Cluster(3) as cluster:
        brokers = list(cluster.brokers.values())
        epoch = max(broker.cluster_member.broker_epoch for broker in brokers)
        for broker in brokers:
            wait_until(lambda broker=broker: announced(broker) == (2, 2, epoch))
        cluster.stop(2)
        cluster.start(2)
        brokers[2] = cluster.brokers[2]
        wait_until(lambda: announced(brokers[0]) == (2, 2, brokers[2].cluster_member.broker_epoch))
        assert brokers[2].cluster_member.broker_epoch > epoch
