"""Transactions over the wire, of one broker: what each request is answered, and what readers see."""

import pytest

import kcore
from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction import transaction_state as rules
from kcore.coordinator.transaction.transaction_state import Producer
from kcore.protocol.api_keys import SUPPORTED, ApiKey
from kcore.protocol.messages import describe_producers as dp
from kcore.protocol.messages import describe_transactions as dt
from kcore.protocol.messages import list_transactions as lt
from kcore.protocol.messages import offset_fetch as of
from kcore.protocol.messages import produce as p
from kcore.protocol.messages import write_txn_markers as wtm
from kcore.protocol.messages.find_coordinator import FindCoordinatorRequest
from kcore.testing import MockTime
from tests.unit.server.client import Client
from tests.unit.server.transactions import SETTINGS, TransactionalClient, await_markers, committed, transactional_batch
from tests.waiting import wait_until

NONE = errors.NONE
T0, T1 = ("t", 0), ("t", 1)


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


@pytest.fixture
def txn(client):
    txn = TransactionalClient(client).find()
    txn.init()
    return txn


def restart(broker):
    """And wait until the coordinators have loaded what they had."""
    broker.restart()
    services = broker.running.services
    managers = (services.transaction_coordinator.manager, services.group_coordinator.manager)
    wait_until(lambda: not any(manager.is_loading for manager in managers))


def state_of(client, transactional_id="x"):
    request = dt.DescribeTransactionsRequest(transactional_ids=[transactional_id])
    (state,) = client.ask(request, 0).transaction_states
    return state


def fetch_offset(client, group_id, *, require_stable=False):
    topics = [of.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    request = of.OffsetFetchRequest(group_id=group_id, topics=topics, require_stable=require_stable)
    (partition,) = client.ask(request, 7).topics[0].partitions
    return partition.error_code, partition.committed_offset


# -- the whole of a transaction


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("is_commit", [True, False])
def test_TXN_76_readers_of_committed_records_see_all_of_a_transaction_or_nothing(broker, client, version, is_commit):
    txn = TransactionalClient(client, version=version).find()
    assert txn.init().error_code == NONE
    assert txn.add([T0, T1]) == {T0: NONE, T1: NONE}
    assert [txn.produce("t", number, b"a", b"b") for number in (0, 1)] == [NONE, NONE]
    assert committed(broker, "t", 0) == committed(broker, "t", 1) == []
    assert txn.end(is_commit) == NONE
    assert committed(broker, "t", 0) == committed(broker, "t", 1) == ([b"a", b"b"] if is_commit else [])
    assert state_of(client).transaction_state == ("CompleteCommit" if is_commit else "CompleteAbort")
    # The next transaction of the same producer.
    assert txn.add([T0]) == {T0: NONE}
    assert txn.produce("t", 0, b"c", base_sequence=2) == NONE
    assert txn.end(True) == NONE
    assert committed(broker, "t", 0) == ([b"a", b"b", b"c"] if is_commit else [b"c"])


@pytest.mark.parametrize("version", range(SUPPORTED[ApiKey.INIT_PRODUCER_ID][1] + 1))
def test_TXN_12_each_start_of_a_producer_gets_the_next_epoch(client, version):
    txn = TransactionalClient(client).find()
    answers = [txn.init(version=version) for _ in range(3)]
    assert [(a.error_code, a.producer_epoch) for a in answers] == [(NONE, 0), (NONE, 1), (NONE, 2)]
    assert len({a.producer_id for a in answers}) == 1


def test_TXN_13_TXN_14_a_producer_may_go_on_from_its_epoch_and_another_is_fenced(client, txn):
    first = txn.producer
    assert txn.init(first).producer_epoch == 1
    assert txn.init(first).producer_epoch == 1, "the same request again"
    assert txn.init(Producer(first.producer_id + 1, 1)).error_code == errors.ProducerFenced.code
    assert txn.init(Producer(first.producer_id, 7), version=3).error_code == errors.InvalidProducerEpoch.code


@pytest.mark.parametrize("timeout_ms", [0, 900_001])
def test_TXN_10_a_timeout_outside_the_limits_is_refused(client, timeout_ms):
    txn = TransactionalClient(client).find()
    assert txn.init(timeout_ms=timeout_ms).error_code == errors.InvalidTransactionTimeout.code


def test_TXN_16_a_new_producer_aborts_what_the_last_one_has_left_open(broker, client, txn):
    txn.add([T0])
    txn.produce("t", 0, b"left")
    successor = TransactionalClient(client)
    assert successor.init().error_code == errors.ConcurrentTransactions.code
    assert successor.init().error_code == NONE
    assert successor.producer == Producer(txn.producer.producer_id, txn.producer.epoch + 2)
    assert txn.add([T1]) == {T1: errors.ProducerFenced.code}
    assert txn.produce("t", 0, b"late", base_sequence=1) == errors.InvalidProducerEpoch.code
    assert txn.end(True) == errors.ProducerFenced.code
    txn.version = 1
    assert (txn.end(True), txn.add([T1])[T1]) == (errors.InvalidProducerEpoch.code,) * 2
    successor.add([T0])
    successor.produce("t", 0, b"new")
    assert successor.end(True) == NONE
    assert committed(broker, "t") == [b"new"]


def test_TXN_22_an_id_without_a_topic_of_states_or_another_coordinator_is_not_served(client):
    assert TransactionalClient(client).init().error_code == errors.NotCoordinator.code


def test_TXN_39_partitions_are_added_all_or_none(client, txn):
    codes = txn.add([T0, ("no", 0), ("__consumer_offsets", 0)])
    assert codes == {
        T0: errors.OperationNotAttempted.code,
        ("no", 0): errors.UnknownTopicOrPartition.code,
        ("__consumer_offsets", 0): errors.TopicAuthorizationFailed.code,
    }
    assert state_of(client).transaction_state == "Empty"


def test_TXN_45_TXN_56_what_is_not_of_the_producer_is_refused(client, txn):
    other = Producer(txn.producer.producer_id + 1, 0)
    assert txn.end(True) == errors.InvalidTxnState.code
    assert txn.add([T0], other) == {T0: errors.InvalidProducerIdMapping.code}
    assert txn.end(True, other) == errors.InvalidProducerIdMapping.code
    nobody = TransactionalClient(client, "")
    nobody.producer = txn.producer
    assert nobody.add([T0]) == {T0: errors.InvalidRequest.code}
    assert (nobody.end(True), nobody.add_offsets("g")) == (errors.InvalidRequest.code,) * 2
    unknown = TransactionalClient(client, "unknown")
    unknown.producer = txn.producer
    assert unknown.end(True) == errors.InvalidProducerIdMapping.code


def test_TXN_55_a_repeated_end_is_answered_as_the_first_one(client, txn):
    txn.add([T0])
    assert [txn.end(True), txn.end(True), txn.end(False)] == [NONE, NONE, errors.InvalidTxnState.code]


def test_TXN_36_transactional_batches_need_the_transactional_id_and_one_producer(client, txn):
    txn.add([T0, T1])
    batches = [transactional_batch(Producer(txn.producer.producer_id + n, 0), b"a") for n in (0, 1)]
    data = [p.PartitionProduceData(index=n, records=records) for n, records in enumerate(batches)]
    for name, code in ((None, errors.TransactionalIdAuthorizationFailed), ("x", errors.InvalidProducerIdMapping)):
        topics = [p.TopicProduceData(name="t", partition_data=data)]
        request = p.ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=topics, transactional_id=name)
        answers = client.ask(request, 7).responses[0].partition_responses
        assert [answer.error_code for answer in answers] == [code.code] * 2


def test_a_transactional_batch_that_is_cut_is_refused_and_the_connection_stays(client, txn):
    records = bytes(txn_batch := transactional_batch(txn.producer, b"a"))[:30]
    cut = bytearray(records)
    cut[8:12] = (30 - 12).to_bytes(4, "big")
    assert len(txn_batch) > 30
    data = [p.PartitionProduceData(index=0, records=bytes(cut))]
    request = p.ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[p.TopicProduceData(name="t", partition_data=data)], transactional_id="x"
    )
    (answer,) = client.ask(request, 7).responses[0].partition_responses
    assert answer.error_code == errors.CorruptMessage.code


# -- time


def test_TXN_69_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(broker, time, client, txn):
    txn.init(timeout_ms=20_000)
    txn.add([T0])
    txn.produce("t", 0, b"slow")
    time.sleep(19_999)
    assert state_of(client).transaction_state == "Ongoing"
    time.sleep(20_000)
    wait_until(lambda: state_of(client).transaction_state == "CompleteAbort")
    assert txn.end(True) == errors.ProducerFenced.code
    assert txn.produce("t", 0, b"late", base_sequence=1) == errors.InvalidProducerEpoch.code
    assert committed(broker, "t") == []
    assert broker.log("t").last_stable_offset == broker.log("t").high_watermark


def test_TXN_70_an_id_that_nobody_uses_is_forgotten(broker, time, client, txn):
    txn.add([T0])
    txn.end(True)
    await_markers(broker)
    time.sleep(604_800_000 - 1)
    assert state_of(client).error_code == NONE
    time.sleep(3_600_001)
    wait_until(lambda: state_of(client).error_code == errors.TransactionalIdNotFound.code)
    assert txn.add([T0]) == {T0: errors.InvalidProducerIdMapping.code}
    assert txn.init(txn.producer).producer_epoch == 0
    log = broker.log("__transaction_state", broker.running.services.transaction_coordinator.partition_for("x"))
    assert [record.value is None for record in log.records()].count(True) == 1


# -- offsets


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("is_commit", [True, False])
def test_TXN_47_TXN_48_TXN_49_offsets_of_a_transaction_count_when_it_is_committed(broker, client, version, is_commit):
    assert client.ask(FindCoordinatorRequest(key="g"), 3).error_code == NONE
    txn = TransactionalClient(client, version=version).find()
    txn.init()
    assert txn.add_offsets("g") == NONE
    assert txn.commit_offset("g", "t", 42) == NONE
    assert fetch_offset(client, "g") == (NONE, -1)
    assert fetch_offset(client, "g", require_stable=True) == (errors.UnstableOffsetCommit.code, -1)
    assert txn.end(is_commit) == NONE
    await_markers(broker)
    expected = 42 if is_commit else -1
    assert fetch_offset(client, "g", require_stable=True) == (NONE, expected)
    restart(broker)
    with Client(broker) as again:
        assert fetch_offset(again, "g", require_stable=True) == (NONE, expected)


@pytest.mark.parametrize("is_commit", [True, False])
def test_TXN_48_offsets_of_a_transaction_that_a_restart_left_open_wait_for_its_end(broker, client, txn, is_commit):
    client.ask(FindCoordinatorRequest(key="g"), 3)
    txn.add_offsets("g")
    txn.commit_offset("g", "t", 42)
    restart(broker)
    with Client(broker) as again:
        txn.client = again
        txn.find()
        assert fetch_offset(again, "g", require_stable=True) == (errors.UnstableOffsetCommit.code, -1)
        assert txn.end(is_commit) == NONE
        await_markers(broker)
        assert fetch_offset(again, "g", require_stable=True) == (NONE, 42 if is_commit else -1)


def test_TXN_50_a_member_that_commits_has_to_be_one(client, txn):
    client.ask(FindCoordinatorRequest(key="g"), 3)
    txn.add_offsets("g")
    generation = {"generation_id": 3, "member_id": "m"}
    assert txn.commit_offset("g", "t", 1, **generation) == errors.IllegalGeneration.code
    assert txn.commit_offset("g", "t", 1) == NONE
    assert txn.commit_offset("g", "t", 1, **generation) == errors.UnknownMemberId.code
    assert txn.commit_offset("g", "no", 1) == errors.UnknownTopicOrPartition.code


@pytest.mark.parametrize(
    ("version", "code"), [(1, errors.CoordinatorNotAvailable), (2, errors.CoordinatorLoadInProgress)]
)
def test_TXN_46_old_clients_that_commit_while_the_group_is_loading_look_for_the_coordinator(
    broker, client, txn, monkeypatch, version, code
):
    client.ask(FindCoordinatorRequest(key="g"), 3)
    txn.version = version
    partitions = broker.group_coordinator.manager.partitions
    monkeypatch.setattr(partitions, "loading", partitions.owned)
    monkeypatch.setattr(partitions, "owned", {})
    assert txn.commit_offset("g", "t", 1) == code.code
    assert txn.commit_offset("g", "no", 1) == errors.UnknownTopicOrPartition.code


# -- restarts


@pytest.mark.parametrize("is_commit", [True, False])
def test_TXN_67_an_open_transaction_survives_a_restart(broker, client, txn, is_commit):
    txn.add([T0])
    txn.produce("t", 0, b"a")
    restart(broker)
    with Client(broker) as txn.client:
        txn.find()
        assert txn.produce("t", 0, b"b", base_sequence=1) == NONE
        assert txn.end(is_commit) == NONE
        assert committed(broker, "t") == ([b"a", b"b"] if is_commit else [])


# -- markers


@pytest.mark.parametrize("version", range(SUPPORTED[ApiKey.WRITE_TXN_MARKERS][1] + 1))
def test_TXN_65_TXN_66_markers_are_written_and_those_of_old_coordinators_and_producers_refused(client, txn, version):
    txn.add([T0])
    txn.produce("t", 0, b"hangs")

    def mark(epoch, coordinator_epoch, topic="t"):
        marker = wtm.WritableTxnMarker(
            producer_id=txn.producer.producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            topics=[wtm.WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
        )
        request = wtm.WriteTxnMarkersRequest(markers=[marker, marker])
        results = client.ask(request, version).markers
        return [result.topics[0].partitions[0].error_code for result in results]

    assert mark(5, 8, "no") == [errors.UnknownTopicOrPartition.code] * 2
    assert mark(5, 8) == [NONE, NONE]
    assert mark(5, 7) == [errors.TransactionCoordinatorFenced.code] * 2
    assert mark(4, 8) == [errors.InvalidProducerEpoch.code] * 2
    assert client.ask(wtm.WriteTxnMarkersRequest(), version).markers == []


# -- administrators


def test_TXN_72_a_transaction_is_described(client, time, txn):
    txn.add([T0, T1])
    state = state_of(client)
    assert (state.error_code, state.transaction_state, state.transaction_timeout_ms) == (NONE, "Ongoing", 60_000)
    assert (state.producer_id, state.producer_epoch) == txn.producer
    assert state.transaction_start_time_ms == time.milliseconds()
    assert [(topic.topic, topic.partitions) for topic in state.topics] == [("t", [0, 1])]
    assert state_of(client, "unknown").error_code == errors.TransactionalIdNotFound.code
    assert state_of(client, "").error_code == errors.InvalidRequest.code


def test_TXN_73_transactions_are_listed_by_state_producer_and_duration(client, time, txn):
    txn.add([T0])
    time.sleep(1000)
    other = TransactionalClient(client, "y")
    other.init()

    def listed(version=1, **filters):
        answer = client.ask(lt.ListTransactionsRequest(**filters), version)
        assert answer.error_code == NONE
        states = sorted((s.transactional_id, s.transaction_state) for s in answer.transaction_states)
        return states, answer.unknown_state_filters

    x, y = ("x", "Ongoing"), ("y", "Empty")
    assert listed(0) == listed(1) == ([x, y], [])
    assert listed(state_filters=["Ongoing", "Unheard"]) == ([x], ["Unheard"])
    assert listed(state_filters=["Unheard"]) == ([], ["Unheard"])
    assert listed(producer_id_filters=[other.producer.producer_id]) == ([y], [])
    assert listed(duration_filter=999) == ([x], [])
    assert listed(duration_filter=1000) == ([], [])


def test_TXN_74_the_producers_of_a_partition_are_described(broker, client, txn):
    broker.produce("t", b"plain", partition=0)
    txn.add([T0])
    txn.produce("t", 0, b"a", b"b")
    topics = [dp.TopicRequest(name=name, partition_indexes=[0]) for name in ("t", "no", "not/a/name")]
    answers = [topic.partitions[0] for topic in client.ask(dp.DescribeProducersRequest(topics=topics), 0).topics]
    assert [answer.error_code for answer in answers] == [
        NONE,
        errors.UnknownTopicOrPartition.code,
        errors.InvalidTopicException.code,
    ]
    (state,) = [s for s in answers[0].active_producers if s.producer_id == txn.producer.producer_id]
    assert (state.producer_epoch, state.last_sequence, state.current_txn_start_offset) == (0, 1, 1)
    txn.end(True)
    await_markers(broker)
    answers = [topic.partitions[0] for topic in client.ask(dp.DescribeProducersRequest(topics=topics), 0).topics]
    (state,) = [s for s in answers[0].active_producers if s.producer_id == txn.producer.producer_id]
    coordinator = broker.running.services.transaction_coordinator
    epoch = broker.replica_manager.get_partition(
        TopicPartition("__transaction_state", coordinator.partition_for("x"))
    ).leader_epoch
    assert (state.coordinator_epoch, state.current_txn_start_offset) == (epoch, -1)


@pytest.mark.parametrize("is_commit", [True, False])
def test_TXN_67_what_was_decided_before_a_kill_is_completed_at_the_next_start(tmp_path, is_commit):
    """The broker is killed when the decision is in the log, and no marker is."""
    stored = []
    with kcore.Broker(tmp_path, **SETTINGS) as broker:
        broker.create_topic("t", 2)
        with Client(broker) as client:
            client.ask(FindCoordinatorRequest(key="g"), 3)
            txn = TransactionalClient(client).find()
            txn.init()
            txn.add([T0, T1])
            txn.add_offsets("g")
            assert [txn.produce("t", number, b"a") for number in (0, 1)] == [NONE, NONE]
            assert txn.commit_offset("g", "t", 42) == NONE
        manager = broker.running.services.transaction_coordinator.manager
        entry = manager.find("x")
        prepared = rules.end(entry.metadata, False, txn.producer, is_commit, manager.now_ms())
        manager.store(entry, prepared, stored.append)
        assert stored == [None]
        broker.kill()
    with kcore.Broker(tmp_path, **SETTINGS) as broker, Client(broker) as client:
        wanted = "CompleteCommit" if is_commit else "CompleteAbort"
        wait_until(lambda: state_of(client).transaction_state == wanted)
        assert committed(broker, "t", 0) == committed(broker, "t", 1) == ([b"a"] if is_commit else [])
        assert fetch_offset(client, "g", require_stable=True) == (NONE, 42 if is_commit else -1)
        logs = [broker.log("t", number) for number in (0, 1)]
        assert [log.last_stable_offset for log in logs] == [log.log_end_offset for log in logs] == [2, 2]


def test_a_transaction_whose_topic_was_deleted_ends(broker, client, txn):
    broker.create_topic("gone")
    txn.add([T0, ("gone", 0)])
    txn.produce("t", 0, b"a")
    broker.delete_topic("gone")
    assert txn.end(True) == NONE
    assert committed(broker, "t") == [b"a"]
    assert state_of(client).transaction_state == "CompleteCommit"
