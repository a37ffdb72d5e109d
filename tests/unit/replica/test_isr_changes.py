"""A change of the ISR: pending from its proposal until the store has answered (D3, KIP-497)."""

import threading

import pytest

from kcore import errors
from kcore.log.log_offset_metadata import LogOffsetMetadata
from kcore.replica.partition_state import CommittedIsr, PendingIsr
from kcore.replica.partition_state_store import StoredIsr
from tests.batches import batch

from .conftest import TP, Node, update

LAG = 30_000


class Store:
    """Keeps proposed ISRs until the test answers; checks that no lock of the partition is held."""

    def __init__(self):
        self.changes = []
        self.partition = None

    def change_isr(self, topic_partition, isr, expected_version, on_done, *, broker_epochs=None, leader_epoch=-1):
        assert topic_partition == TP
        appended = threading.Thread(target=self.partition.append_records_to_leader, args=(batch(), 1))
        appended.start()
        appended.join(60)
        assert not appended.is_alive(), "the store is called under the ISR lock"
        self.changes.append((isr, expected_version, on_done))

    def answer(self, result):
        (_, _, on_done) = self.changes.pop()
        on_done(result)


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def node(tmp_path, store):
    node = Node(tmp_path, {"t": {"min.insync.replicas": "2"}}, partition_state_store=store)
    yield node
    node.shutdown()


@pytest.fixture
def lead(node, store):
    """lead(isr): the partition, with brokers 1 and 2 as followers and one record."""

    def become_leader(*isr):
        node.become(update(epoch=4, isr=isr, replicas=(0, 1, 2), partition_epoch=7))
        store.partition = node.replica_manager.get_partition(TP)
        store.partition.append_records_to_leader(batch(b"first"), 1)
        return store.partition

    return become_leader


def fetched_to(node, partition, broker_id, offset):
    replica = partition.state.replicas[broker_id]
    replica.state = replica.state.after_fetch(
        LogOffsetMetadata(offset), 0, node.time.milliseconds(), partition.log.log_end_offset
    )


def test_PART_16_PART_17_a_shrink_goes_to_the_store_first_and_takes_effect_when_it_is_stored(node, store, lead):
    partition = lead(0, 1)
    partition.maybe_shrink_isr()
    assert store.changes == []
    node.advance(LAG + 1)
    partition.maybe_shrink_isr()
    assert [change[:2] for change in store.changes] == [({0}, 7)]
    assert partition.state.isr == PendingIsr(frozenset({0, 1}), frozenset({0}))
    assert partition.log.high_watermark == 0  # were it refused, broker 1 would lead without the records
    store.answer(StoredIsr(frozenset({0}), 8))
    assert (partition.state.isr, partition.state.partition_epoch) == (CommittedIsr(frozenset({0})), 8)
    assert partition.log.high_watermark == partition.log.log_end_offset == 2


def test_a_leader_is_followed_from_the_first_fetch_of_its_isr_until_it_hears_nothing_for_the_lag_time(node, lead):
    """A member of its ISR that leads since then acknowledges nothing before it has taken this broker out of the ISR."""
    partition = lead(0, 1)
    assert not partition.is_followed
    fetched_to(node, partition, 1, 0)
    node.advance(LAG)
    assert partition.is_followed
    node.advance(1)
    assert not partition.is_followed
    node.become(update(epoch=5, isr=(0,), replicas=(0, 1, 2), partition_epoch=8))
    assert partition.is_followed
    node.become(update(epoch=6, leader=1, isr=(0, 1), replicas=(0, 1, 2), partition_epoch=9))
    assert not partition.is_followed


def test_PART_13_an_expansion_holds_the_high_watermark_back_from_its_proposal_on(node, store, lead):
    partition = lead(0)
    assert partition.log.high_watermark == 1
    partition.maybe_expand_isr(1)
    partition.maybe_expand_isr(9)
    assert store.changes == []
    fetched_to(node, partition, 1, 1)
    partition.maybe_expand_isr(1)
    assert [change[:2] for change in store.changes] == [({0, 1}, 7)]
    node.advance(LAG + 1)  # not because it was caught up lately
    partition.append_records_to_leader(batch(), 1)
    assert partition.log.high_watermark == 1
    store.answer(StoredIsr(frozenset({0, 1}), 8))
    assert (partition.isr, partition.log.high_watermark) == ({0, 1}, 1)


def test_PART_09_PART_18_min_insync_replicas_counts_the_committed_isr(node, store, lead):
    partition = lead(0)
    fetched_to(node, partition, 1, 1)
    partition.maybe_expand_isr(1)
    with pytest.raises(errors.NotEnoughReplicas):
        partition.append_records_to_leader(batch(), -1)
    with pytest.raises(errors.NotEnoughReplicasAfterAppend):
        partition.check_enough_replicas_reach_offset(1)
    store.answer(StoredIsr(frozenset({0, 1}), 8))
    partition.append_records_to_leader(batch(), -1)
    assert partition.check_enough_replicas_reach_offset(1)


def test_one_change_is_stored_at_a_time(node, store, lead):
    partition = lead(0, 1)
    fetched_to(node, partition, 2, 1)
    partition.maybe_expand_isr(2)
    node.advance(LAG + 1)
    partition.maybe_shrink_isr()
    partition.maybe_expand_isr(2)
    assert len(store.changes) == 1
    store.answer(StoredIsr(frozenset({0, 1, 2}), 8))
    partition.maybe_shrink_isr()
    assert [change[:2] for change in store.changes] == [({0}, 8)]


def test_PART_17_the_isr_that_was_stored_meanwhile_is_taken_over_and_the_change_is_proposed_again(node, store, lead):
    partition = lead(0, 1, 2)
    node.advance(LAG + 1)
    fetched_to(node, partition, 2, 1)
    partition.maybe_shrink_isr()
    store.answer(StoredIsr(frozenset({0, 1}), 11))
    assert (partition.isr, partition.state.partition_epoch) == ({0, 1}, 11)
    partition.maybe_shrink_isr()
    assert [change[:2] for change in store.changes] == [({0}, 11)]


@pytest.mark.parametrize("error", [errors.OperationNotAttempted, errors.IneligibleReplica])
def test_a_change_that_is_surely_not_stored_is_taken_back(node, store, lead, error):
    partition = lead(0)
    fetched_to(node, partition, 1, 1)
    partition.maybe_expand_isr(1)
    store.answer(error("no"))
    assert (partition.state.isr, partition.state.partition_epoch) == (CommittedIsr(frozenset({0})), 7)


def test_an_unknown_outcome_keeps_waiting_for_both_until_the_next_update(node, store, lead):
    """Broker 1 may be in the stored ISR, and be elected."""
    partition = lead(0)
    fetched_to(node, partition, 1, 1)
    partition.maybe_expand_isr(1)
    store.answer(errors.UnknownServerError("connection lost"))
    node.advance(LAG + 1)
    partition.append_records_to_leader(batch(), 1)
    assert isinstance(partition.state.isr, PendingIsr)
    assert partition.log.high_watermark == 1
    node.become(update(epoch=5, isr=(0,), replicas=(0, 1, 2), partition_epoch=9))
    assert partition.log.high_watermark == partition.log.log_end_offset


@pytest.mark.parametrize("leader", [0, 1])
def test_an_answer_that_comes_after_an_update_changes_nothing(node, store, lead, leader):
    partition = lead(0, 1)
    node.advance(LAG + 1)
    partition.maybe_shrink_isr()
    node.become(update(leader=leader, epoch=5, isr=(0, 1, 2), partition_epoch=9))
    state = partition.state
    store.answer(StoredIsr(frozenset({0}), 8))
    assert partition.state is state


def test_PART_17_requests_that_wait_for_the_high_watermark_are_answered_when_the_shrink_is_stored(tmp_path, store):
    node = Node(tmp_path, partition_state_store=store)
    node.lead(isr=(0, 1))
    store.partition = node.replica_manager.get_partition(TP)
    produce = node.produce(batch(), timeout_ms=10 * LAG)
    node.advance(LAG + 1)
    store.partition.maybe_shrink_isr()
    assert produce.waits
    store.answer(StoredIsr(frozenset({0}), 1))
    assert produce.result[TP].error is None
    node.shutdown()


def test_a_follower_proposes_no_isr_change_and_without_a_store_none_is_made(tmp_path, node, store, lead):
    partition = lead(0, 1)
    node.become(update(leader=1, epoch=5, isr=(0, 1), partition_epoch=9))
    node.advance(LAG + 1)
    partition.maybe_shrink_isr()
    partition.maybe_expand_isr(1)
    assert store.changes == []
    alone = Node(tmp_path / "alone")
    partition = alone.lead(isr=(0, 1))
    partition.append_records_to_leader(batch(), 1)
    alone.advance(LAG + 1)
    partition.maybe_shrink_isr()
    assert partition.state.isr == CommittedIsr(frozenset({0, 1}))
    alone.shutdown()
