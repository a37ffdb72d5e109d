"""A leader serves fetches of followers: what it reads for them, and how they change its state (RD, PART)."""

import pytest

from kcore import errors
from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_offset_metadata import FetchIsolation, LogOffsetMetadata
from kcore.replica import isr as isr_rules
from kcore.replica.explain import explain_isr
from kcore.replica.fetch_params import FUTURE_LOCAL_REPLICA_ID, FetchParams, FetchPartitionData
from kcore.replica.partition_state import CommittedIsr, PendingIsr
from kcore.replica.partition_state_store import StoredIsr
from tests.batches import batch

from .conftest import TP, Answer, Node, update

LAG = 30_000


class Store:
    """Keeps each ISR change, and each lookup of a registration, until the test answers it."""

    def __init__(self):
        self.changes = []
        self.lookups = []

    def change_isr(self, topic_partition, isr, expected_version, on_done, *, broker_epochs=None, leader_epoch=-1):
        self.changes.append((topic_partition, isr, expected_version, on_done))
        self.broker_epochs = broker_epochs

    def look_up_registration(self, broker_id, on_found):
        self.lookups.append((broker_id, on_found))

    def store_last(self):
        (_, isr, version, on_done) = self.changes.pop()
        on_done(StoredIsr(isr, version + 1))


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def node(tmp_path, store):
    node = Node(tmp_path, partition_state_store=store, replica_lag_time_max_ms=LAG)
    yield node
    node.shutdown()


@pytest.fixture
def leader(node):
    """Broker 0 leads with epoch 4; 1 and 2 follow and are in sync."""
    node.lead(epoch=4, isr=(0, 1, 2))
    return node


def follow(node, broker_id, offset, tp=TP, *, wait_ms=0, epoch=4, last_epoch=-1, log_start=0, **params):
    """A follower's fetch of one partition, or of several: offset is then {partition: offset}."""
    answer = Answer()
    offsets = offset if isinstance(offset, dict) else {tp: offset}
    infos = [(tp, FetchPartitionData(offset, 1 << 20, log_start, epoch, last_epoch)) for tp, offset in offsets.items()]
    isolation = FetchParams.isolation_of(broker_id, read_committed=False)
    node.replica_manager.fetch_messages(
        FetchParams(replica_id=broker_id, max_wait_ms=wait_ms, isolation=isolation, **params), infos, answer
    )
    return answer


def one(answer):
    ((_, result),) = answer.result
    return result


def state_of(node, broker_id, tp=TP):
    return node.replica_manager.get_partition(tp)._state.replicas[broker_id].state


def high_watermark(node, tp=TP):
    return node.replica_manager.get_partition(tp).log.high_watermark


def test_API_14_RD_04_RD_22_V22_02_a_follower_reads_to_the_log_end_and_a_consumer_to_the_high_watermark(leader):
    records = batch(b"a", b"b")
    leader.produce(records, acks=1)
    result = one(follow(leader, 1, 0))
    assert (result.error, result.high_watermark, result.log_start_offset) == (None, 0, 0)
    assert result.records.size_in_bytes == len(records)
    assert one(leader.fetch(0)).records.size_in_bytes == 0


def test_RD_29_a_consumer_above_the_high_watermark_and_not_above_the_log_end_gets_nothing_and_no_error(leader):
    leader.produce(batch(b"a", b"b"), acks=1)
    for offset in (0, 1, 2):
        result = one(leader.fetch(offset))
        assert (result.error, result.records.size_in_bytes, result.high_watermark) == (None, 0, 0)
    assert isinstance(one(leader.fetch(3)).error, errors.OffsetOutOfRange)


def test_RD_09_PART_11_V22_04_V22_05_the_fetch_offset_of_a_follower_is_its_log_end(leader):
    leader.produce(batch(b"a", b"b"), acks=1)
    leader.advance(7)
    follow(leader, 1, 1, log_start=1)
    state = state_of(leader, 1)
    assert (state.log_end_offset, state.log_start_offset) == (1, 1)
    assert state.last_fetch_time_ms == leader.time.milliseconds()
    assert state.last_fetch_leader_log_end_offset == 2
    assert state_of(leader, 2).log_end_offset == -1


def test_PART_12_a_follower_that_has_what_there_was_at_its_last_fetch_was_caught_up_then(leader):
    began = state_of(leader, 1).last_caught_up_time_ms
    leader.produce(batch(), acks=1)
    leader.advance(100)
    first = leader.time.milliseconds()
    follow(leader, 1, 0)
    assert state_of(leader, 1).last_caught_up_time_ms == began
    leader.produce(batch(), acks=1)
    leader.advance(100)
    follow(leader, 1, 1)
    assert state_of(leader, 1).last_caught_up_time_ms == first
    follow(leader, 1, 2)
    assert state_of(leader, 1).last_caught_up_time_ms == leader.time.milliseconds()


def test_HW_01_PART_14_PART_15_PURG_10_the_slowest_of_the_isr_moves_the_high_watermark_and_ends_the_produce(leader):
    answer = leader.produce(batch(b"a", b"b"), acks=-1)
    consumer = leader.fetch(0, max_wait_ms=500)
    follow(leader, 1, 2)
    assert (high_watermark(leader), answer.waits, consumer.waits) == (0, True, True)
    follow(leader, 2, 1)
    assert (high_watermark(leader), answer.waits) == (1, True)
    follow(leader, 2, 2)
    assert (high_watermark(leader), answer.result[TP].error) == (2, None)
    assert not consumer.waits
    follow(leader, 2, 1)
    assert high_watermark(leader) == 2  # it never goes back


@pytest.mark.parametrize("hard_max_bytes", [False, True])
def test_RD_19_RD_20_a_follower_is_sent_a_part_of_a_first_batch_under_hard_limits_only(leader, hard_max_bytes):
    other = TopicPartition("t", 1)
    leader.lead(other, epoch=4, isr=(0, 1, 2))
    records = batch(b"x" * 100)
    leader.produce({TP: records, other: records}, acks=1)
    limits = {"max_bytes": len(records) + 10, "hard_max_bytes": hard_max_bytes}
    sizes = {tp: result.records.size_in_bytes for tp, result in follow(leader, 1, {TP: 0, other: 0}, **limits).result}
    assert sizes == {TP: len(records), other: 10 if hard_max_bytes else 0}


def test_PART_10_PURG_16_an_append_wakes_followers_and_the_high_watermark_wakes_consumers(leader):
    consumer = leader.fetch(0, max_wait_ms=500)
    followers = [follow(leader, broker_id, 0, wait_ms=500) for broker_id in (1, 2)]
    assert consumer.waits and followers[0].waits and followers[1].waits
    leader.produce(batch(b"a"), acks=1)
    assert [one(follower).records.size_in_bytes > 0 for follower in followers] == [True, True]
    assert consumer.waits
    follow(leader, 1, 1)
    last = follow(leader, 2, 1, wait_ms=500)
    assert one(consumer).records.size_in_bytes > 0
    assert last.waits


def test_a_fetch_that_waited_is_not_taken_for_a_second_fetch(leader):
    """Its offset is older than what the follower may have appended since by another answer."""
    follower = follow(leader, 1, 0, wait_ms=500)
    came = state_of(leader, 1)
    leader.advance(500)
    assert one(follower).error is None
    assert state_of(leader, 1) == came


def test_PART_13_a_follower_that_has_caught_up_is_proposed_for_the_isr_and_the_high_watermark_waits_for_it(node, store):
    partition = node.lead(epoch=4, isr=(0,), replicas=(0, 1))
    node.produce(batch(b"a", b"b"), acks=1)
    follow(node, 1, 1)
    assert (store.changes, high_watermark(node)) == ([], 2)
    follow(node, 1, 2)
    assert partition.state.isr == PendingIsr(frozenset({0}), frozenset({0, 1}))
    node.produce(batch(b"c"), acks=1)
    assert high_watermark(node) == 2
    follow(node, 1, 2)
    assert len(store.changes) == 1  # one change at a time
    store.store_last()
    assert partition.isr == {0, 1}
    follow(node, 1, 3)
    assert high_watermark(node) == 3


def test_PART_13_a_follower_below_the_start_of_the_leader_epoch_may_not_join(node, store):
    """It may lack records that the former leader had committed above this leader's high watermark."""
    node.lead(epoch=3, isr=(0, 1))
    node.produce(batch(b"a", b"b"), acks=1)
    node.become(update(epoch=4, isr=(0, 2), replicas=(0, 1, 2), partition_epoch=1))
    assert high_watermark(node) == 0
    follow(node, 1, 1)
    assert store.changes == []
    follow(node, 1, 2)
    assert [change[1] for change in store.changes] == [{0, 1, 2}]


def test_PART_13_a_follower_joins_with_the_registration_of_the_fetch_that_let_it(node, store, monkeypatch):
    """KIP-903: it starts again, without its log, while its last fetch is being looked at."""
    partition = node.lead(epoch=4, isr=(0,), replicas=(0, 1))
    node.produce(batch(b"a"), acks=1)
    rule = isr_rules.may_join_isr

    def fetch_of_the_next_life_comes_meanwhile(replica, *args):
        may_join = rule(replica, *args)
        if partition.leader_isr_update_lock._writing:
            replica.state = replica.state.after_fetch(LogOffsetMetadata(0), 0, 0, 1, broker_epoch=9)
        return may_join

    monkeypatch.setattr(isr_rules, "may_join_isr", fetch_of_the_next_life_comes_meanwhile)
    follow(node, 1, 1, replica_epoch=8)
    assert [change[1] for change in store.changes] == [{0, 1}]
    assert store.broker_epochs == {1: 8}


def test_a_fetch_of_a_followers_earlier_life_is_refused(leader):
    leader.produce(batch(b"a", b"b"), acks=1)
    follow(leader, 1, 0, replica_epoch=8)
    before = state_of(leader, 1)
    assert isinstance(one(follow(leader, 1, 2, replica_epoch=7)).error, errors.NotLeaderOrFollower)
    assert state_of(leader, 1) == before
    follow(leader, 1, 2, replica_epoch=9)
    assert (state_of(leader, 1).log_end_offset, state_of(leader, 1).broker_epoch) == (2, 9)


def test_of_a_member_that_has_registered_again_the_store_is_asked_whether_it_still_is_one(leader, store):
    """One that has lost records leaves the ISR itself, and the controller need not notice."""
    leader.produce(batch(b"a"), acks=1)
    follow(leader, 1, 0, replica_epoch=8)
    follow(leader, 1, 1, replica_epoch=8)
    assert store.changes == []
    follow(leader, 1, 0, replica_epoch=9)
    partition = leader.replica_manager.get_partition(TP)
    assert store.broker_epochs == {1: 9, 2: -1} and partition.state.isr.maximal == {0, 1, 2}
    follow(leader, 1, 0, replica_epoch=10)  # while the answer is awaited
    ((_, isr, _, on_done),) = store.changes
    assert isr == {0, 1, 2}
    on_done(StoredIsr(frozenset({0, 2}), 5))
    assert (partition.state.isr, partition.state.partition_epoch) == (CommittedIsr(frozenset({0, 2})), 5)
    follow(leader, 1, 1, replica_epoch=10)
    assert store.changes[-1][1:3] == ({0, 1, 2}, 5), "it joins as any other follower"


def test_an_isr_that_is_still_the_stored_one_is_neither_an_expansion_nor_a_shrink(leader, store):
    follow(leader, 1, 0, replica_epoch=8)
    follow(leader, 1, 0, replica_epoch=9)
    store.store_last()
    meters = leader.replica_manager.meters
    assert (meters.isr_expands.count, meters.isr_shrinks.count) == (0, 0)
    assert leader.replica_manager.get_partition(TP).state.isr == CommittedIsr(frozenset({0, 1, 2}))


def test_a_broker_epoch_that_no_broker_has_does_not_lock_the_follower_out(leader, store):
    """One fetch with a too large epoch made the leader refuse the follower's until the next leader epoch."""
    leader.produce(batch(b"a", b"b"), acks=1)
    follow(leader, 1, 2, replica_epoch=999)
    leader.advance(10)
    assert isinstance(one(follow(leader, 1, 1, replica_epoch=8)).error, errors.NotLeaderOrFollower)
    ((broker_id, on_found),) = store.lookups
    assert broker_id == 1
    refusal = "its last fetch had broker epoch 8, and was refused: one before had 999 (KIP-903)"
    assert explain_isr(leader.replica_manager, TP).replicas[1].held_back_by == refusal
    on_found(8)
    assert one(follow(leader, 1, 1, replica_epoch=8)).error is None
    assert (state_of(leader, 1).log_end_offset, state_of(leader, 1).broker_epoch) == (1, 8)
    assert explain_isr(leader.replica_manager, TP).replicas[1].held_back_by is None
    assert isinstance(one(follow(leader, 1, 2, replica_epoch=7)).error, errors.NotLeaderOrFollower)


@pytest.mark.parametrize(("registered", "has_restarted"), [(8, False), (9, False), (7, True)])
def test_a_registration_that_disproves_no_epoch_changes_nothing(leader, store, registered, has_restarted):
    """8 is what the follower restarted with; then it restarts again, perhaps after the registration was read."""
    leader.produce(batch(b"a", b"b"), acks=1)
    follow(leader, 1, 0, replica_epoch=8)
    follow(leader, 1, 2, replica_epoch=7)
    assert explain_isr(leader.replica_manager, TP).replicas[1].held_back_by is not None
    leader.advance(10)
    follow(leader, 1, 1, replica_epoch=10 if has_restarted else 8)
    assert explain_isr(leader.replica_manager, TP).replicas[1].held_back_by is None
    before = state_of(leader, 1)
    ((_, on_found),) = store.lookups
    on_found(registered)
    assert state_of(leader, 1) == before
    assert isinstance(one(follow(leader, 1, 2, replica_epoch=7)).error, errors.NotLeaderOrFollower)


def test_PURG_10_a_produce_is_tried_again_when_the_isr_has_changed(leader, store):
    answer = leader.produce(batch(b"a"), acks=-1, timeout_ms=10 * LAG)
    follow(leader, 1, 1)
    leader.advance(LAG + 1)
    follow(leader, 1, 1)
    leader.replica_manager.get_partition(TP).maybe_shrink_isr()
    assert answer.waits
    store.store_last()
    assert answer.result[TP].error is None


def test_RD_10_the_fetch_of_a_broker_that_is_not_assigned_is_refused_and_changes_nothing(leader):
    leader.produce(batch(), acks=1)
    before = {i: state_of(leader, i) for i in (1, 2)}
    result = one(follow(leader, 3, 1, wait_ms=500))
    assert isinstance(result.error, errors.UnknownTopicOrPartition)
    assert (result.high_watermark, result.records.size_in_bytes) == (-1, 0)
    assert {i: state_of(leader, i) for i in (1, 2)} == before


@pytest.mark.parametrize(
    ("offset", "fields", "error"),
    [
        (9, {}, errors.OffsetOutOfRange),
        (2, {"epoch": 3}, errors.FencedLeaderEpoch),
        (2, {"epoch": 5}, errors.UnknownLeaderEpoch),
        (2, {"last_epoch": 9}, errors.OffsetOutOfRange),
    ],
)
def test_V22_15_RD_09_a_failed_read_does_not_move_the_followers_state(leader, offset, fields, error):
    leader.produce(batch(b"a", b"b"), acks=1)
    before = state_of(leader, 1)
    assert isinstance(one(follow(leader, 1, offset, **fields)).error, error)
    assert state_of(leader, 1) == before
    assert high_watermark(leader) == 0


def test_V22_15_one_partitions_error_leaves_the_others_of_the_fetch_alone(leader):
    other = TopicPartition("t", 1)
    leader.lead(other, epoch=4, isr=(0, 1))
    leader.produce({TP: batch(), other: batch()}, acks=1)
    answer = follow(leader, 1, {TP: 7, other: 1})
    assert [result.error and type(result.error) for _, result in answer.result] == [errors.OffsetOutOfRange, None]
    assert (state_of(leader, 1).log_end_offset, state_of(leader, 1, other).log_end_offset) == (-1, 1)
    assert (high_watermark(leader), high_watermark(leader, other)) == (0, 1)


def test_RD_13_V22_11_a_diverging_log_is_answered_at_once_and_does_not_count_as_replicated(leader):
    """Our epoch 4 begins at 2.  A follower whose last record, at 3, has epoch 3 must cut what it has above."""
    leader.produce(batch(b"a", b"b"), acks=1)
    leader.become(update(epoch=6, isr=(0, 1, 2), partition_epoch=1))
    leader.produce(batch(b"c", b"d"), acks=1)
    before = state_of(leader, 1)
    result = one(follow(leader, 1, 3, epoch=6, last_epoch=5, wait_ms=500))
    assert (result.error, result.diverging_epoch, result.records.size_in_bytes) == (None, (4, 2), 0)
    assert (result.high_watermark, result.log_start_offset) == (0, 0)
    assert state_of(leader, 1) == before
    result = one(follow(leader, 1, 2, epoch=6, last_epoch=4))
    assert (result.diverging_epoch, result.records.size_in_bytes > 0) == (None, True)
    assert state_of(leader, 1).log_end_offset == 2


def test_a_fetch_from_the_leader_epoch_before_does_not_count_for_the_new_one(leader):
    """It was read while epoch 4 held, and taken in after epoch 5 had begun."""
    leader.produce(batch(b"a"), acks=1)
    partition = leader.replica_manager.get_partition(TP)
    replica = partition.follower_replica(1, 4)
    read = partition.read_records(1, 1000, FetchIsolation.LOG_END, True, 4)
    leader.become(update(leader=1, epoch=5, isr=(1,), replicas=(0, 1, 2), partition_epoch=1))
    leader.become(update(epoch=6, isr=(0, 1, 2), partition_epoch=2))
    partition.update_follower_fetch_state(replica, read, 0, leader.time.milliseconds())
    assert state_of(leader, 1).log_end_offset == -1
    assert high_watermark(leader) == 0


def test_RFT_08_records_deleted_during_a_read_leave_no_log_start_above_the_high_watermark(leader):
    """Appended, replicated and deleted between two steps of the read."""
    leader.produce(batch(b"a", b"b"), acks=1)
    partition = leader.replica_manager.get_partition(TP)

    class DeletedMeanwhile:
        """The log; after the first of the two offsets was read the records are replicated and deleted."""

        def __init__(self, log):
            self.log, self.names = log, ["high_watermark", "log_start_offset"]

        def __getattr__(self, name):
            value = getattr(self.log, name)
            if name in self.names:
                self.names.clear()
                self.log.update_high_watermark(2)
                self.log.maybe_increment_log_start_offset(2)
            return value

    partition.log = DeletedMeanwhile(partition.log)
    read = partition.read_records(2, 1000, FetchIsolation.LOG_END, True, 4)
    assert (read.high_watermark, read.log_start_offset) == (2, 0)


class ChangedMeanwhile:
    """The log of a partition; change() is called once, right after the first of the named fields was read."""

    def __init__(self, log, names, change):
        self._log, self._names, self._change = log, set(names), change

    def __getattr__(self, name):
        value = getattr(self._log, name)
        if name in self._names:
            self._names.clear()
            self._change(self._log)
        return value


def test_RD_23_an_append_during_a_read_does_not_move_the_log_end_that_a_lag_is_measured_against(leader):
    leader.produce(batch(b"a", b"b"), acks=1)
    partition = leader.replica_manager.get_partition(TP)
    partition.log = ChangedMeanwhile(partition.log, {"read"}, lambda log: leader.produce(batch(b"c"), acks=1))
    read = partition.read_records(0, 1000, FetchIsolation.LOG_END, True, 4)
    assert partition.log.log_end_offset == 3
    assert read.log_end_offset == 2


def test_RD_23_records_that_are_replicated_during_a_read_leave_no_high_watermark_above_the_log_end(leader):
    leader.produce(batch(b"a", b"b"), acks=1)
    partition = leader.replica_manager.get_partition(TP)

    def replicate(log):
        leader.produce(batch(b"c"), acks=1)
        log.update_high_watermark(3)

    partition.log = ChangedMeanwhile(partition.log, {"high_watermark", "log_end_offset"}, replicate)
    read = partition.read_records(0, 1000, FetchIsolation.LOG_END, True, 4)
    assert (read.high_watermark, read.log_end_offset) == (0, 3)


def test_RD_27_the_future_replica_of_a_moving_log_reads_to_the_log_end_and_is_no_follower(leader):
    leader.produce(batch(b"a"), acks=1)
    result = one(follow(leader, FUTURE_LOCAL_REPLICA_ID, 0))
    assert (result.error, result.records.size_in_bytes > 0) == (None, True)
    assert high_watermark(leader) == 0
    assert {state_of(leader, i).log_end_offset for i in (1, 2)} == {-1}


def test_PURG_17_the_fetches_that_wait_are_answered_when_leadership_is_lost(leader):
    waiting = follow(leader, 1, 0, wait_ms=500)
    produce = leader.produce(batch(b"a"), acks=-1)
    again = follow(leader, 1, 1, wait_ms=500)
    leader.become(update(leader=1, epoch=5, isr=(1,), replicas=(0, 1, 2), partition_epoch=1))
    assert one(waiting).error is None  # by the append
    assert isinstance(one(again).error, errors.FencedLeaderEpoch)
    assert isinstance(produce.result[TP].error, errors.NotLeaderOrFollower)


# -- what wakes a fetch, and what that costs


def partitions(node, count):
    tps = [TopicPartition("many", i) for i in range(count)]
    node.become(*(update(tp, epoch=4, isr=(0, 1, 2)) for tp in tps))
    return tps


def looks(node, monkeypatch):
    """Each partition that is looked up, from now on."""
    seen = []
    hosted, lookup = node.replica_manager.hosted_partitions, node.replica_manager.hosted_partitions.get_or_exception
    monkeypatch.setattr(hosted, "get_or_exception", lambda tp, *args: seen.append(tp) or lookup(tp, *args))
    return seen


def test_PURG_16_an_append_looks_at_its_own_partition_of_a_followers_fetch_only(leader, monkeypatch):
    tps = partitions(leader, 200)
    first = follow(leader, 1, dict.fromkeys(tps, 0), wait_ms=500)
    second = follow(leader, 2, dict.fromkeys(tps, 0), wait_ms=500)
    seen = looks(leader, monkeypatch)
    leader.produce({tps[150]: batch()}, acks=1)
    assert not first.waits and not second.waits
    assert set(seen) == {tps[150]}


def test_a_followers_fetch_without_news_examines_no_waiting_request(leader, monkeypatch):
    tps = partitions(leader, 200)
    follow(leader, 1, dict.fromkeys(tps, 0))
    leader.fetch(dict.fromkeys(tps, 0), max_wait_ms=500)
    follow(leader, 2, dict.fromkeys(tps, 0), wait_ms=500)
    produce = leader.produce({tps[0]: batch()}, acks=-1)
    follow(leader, 2, {tps[0]: 1})
    assert produce.waits
    seen = looks(leader, monkeypatch)
    follow(leader, 1, dict.fromkeys(tps[1:], 0))
    assert seen == []
    follow(leader, 1, {tps[0]: 1})
    assert not produce.waits


def test_PURG_14_with_min_bytes_above_1_all_partitions_count(leader):
    tps = partitions(leader, 3)
    one_batch = len(batch(b"x" * 100))
    waiting = follow(leader, 1, dict.fromkeys(tps, 0), wait_ms=500, min_bytes=2 * one_batch)
    leader.produce({tps[0]: batch(b"x" * 100)}, acks=1)
    assert waiting.waits
    leader.produce({tps[2]: batch(b"x" * 100)}, acks=1)
    assert sum(result.records.size_in_bytes for _, result in waiting.result) == 2 * one_batch


# -- who leaves the ISR, and when that is looked at


def test_RM_27_PART_16_each_half_of_the_lag_time_every_led_partition_is_looked_at(node, store):
    stuck, slow, fine = (TopicPartition("t", i) for i in range(3))
    for tp in (stuck, slow, fine):
        node.lead(tp, epoch=4, isr=(0, 1))
        node.produce({tp: batch()}, acks=1)
    for _ in range(6):
        node.advance(LAG / 4)
        node.produce({tp: batch() for tp in (stuck, slow, fine)}, acks=1)
        follow(node, 1, 0, slow)
        follow(node, 1, node.replica_manager.get_partition(fine).log.log_end_offset, fine)
    assert sorted((tp, isr) for tp, isr, *_ in store.changes) == [(stuck, {0}), (slow, {0})]
    for _ in range(2):
        store.store_last()
    assert [node.replica_manager.get_partition(tp).isr for tp in (stuck, slow, fine)] == [{0}, {0}, {0, 1}]
    assert high_watermark(node, stuck) == 7
    assert high_watermark(node, slow) == 7


def test_RM_27_PART_15_a_produce_does_not_wait_for_a_replica_that_was_caught_up_too_long_ago(node, store):
    node.lead(epoch=4, isr=(0,), replicas=(0, 1))
    follow(node, 1, 0)
    store.changes[-1][3](errors.OperationNotAttempted("the store refuses"))
    answer, consumer = node.produce(batch(), timeout_ms=10 * LAG), node.fetch(0, max_wait_ms=10 * LAG)
    node.advance(LAG)
    assert (answer.waits, consumer.waits, high_watermark(node)) == (True, True, 0)
    node.advance(LAG / 2)
    assert (answer.result[TP].error, one(consumer).high_watermark) == (None, 1)


def test_PART_13_PART_15_a_follower_that_has_died_is_not_waited_for_and_does_not_join(tmp_path, store):
    alive = {0, 1}
    node = Node(tmp_path, partition_state_store=store, replica_lag_time_max_ms=LAG, is_alive=alive.__contains__)
    partition = node.lead(epoch=4, isr=(0,), replicas=(0, 1))
    follow(node, 1, 0)
    store.changes.pop()[3](errors.OperationNotAttempted("the store refuses"))
    answer = node.produce(batch(), timeout_ms=10 * LAG)
    node.replica_manager.increment_high_watermarks()
    assert answer.waits
    alive.remove(1)
    node.replica_manager.increment_high_watermarks()
    assert (answer.result[TP].error, high_watermark(node)) == (None, 1)
    follow(node, 1, 1)  # sent before it died
    assert store.changes == []
    alive.add(1)
    follow(node, 1, 1)
    assert partition.state.isr == PendingIsr(frozenset({0}), frozenset({0, 1}))
    node.shutdown()


def test_RM_27_the_look_is_taken_by_the_clock_scheduler_and_ends_with_shutdown(tmp_path):
    clock = MockScheduler(MockTime())
    node = Node(tmp_path, clock_scheduler=clock, replica_lag_time_max_ms=LAG)
    node.lead(isr=(0, 1))
    assert [(task.name, task.period_ms) for _, _, task in clock._queue._heap] == [("isr-expiration", LAG / 2)]
    node.shutdown()
    assert clock._queue.next_due_ms() is None


def test_PURG_16_expirations_of_followers_and_of_consumers_are_counted_apart(leader):
    meters = leader.replica_manager.meters
    follow(leader, 1, 0, wait_ms=500)
    leader.fetch(0, max_wait_ms=700)
    leader.advance(500)
    assert (meters.follower_fetch_expirations.count, meters.consumer_fetch_expirations.count) == (1, 0)
    leader.advance(200)
    assert (meters.follower_fetch_expirations.count, meters.consumer_fetch_expirations.count) == (1, 1)


def test_RD_11_what_followers_read_is_no_traffic_of_consumers(leader):
    records = batch(b"a")
    leader.produce(records, acks=1)
    meters = leader.replica_manager.get_partition(TP).meters
    follow(leader, 1, 0)
    assert (meters.replication_bytes_out, meters.bytes_out, meters.fetch_requests) == (len(records), 0, 1)
    follow(leader, 2, 0, wait_ms=500, min_bytes=10_000)
    assert meters.replication_bytes_out == len(records)  # nothing has been sent yet
    leader.advance(500)
    assert meters.replication_bytes_out == 2 * len(records)


@pytest.mark.parametrize("adding", [(), (0,), (2,)])
def test_RFT_10_replicated_bytes_are_counted_and_again_while_this_replica_is_being_added(node, adding):
    node.become(update(leader=1, epoch=2, isr=(1,), replicas=(0, 1, 2), adding_replicas=adding))
    partition = node.replica_manager.get_partition(TP)
    records = batch(b"a", b"b")
    partition.append_records_to_follower_or_future_replica(records, is_future=False)
    meters = partition.meters
    assert meters.replication_bytes_in == len(records)
    assert meters.reassignment_bytes_in == (len(records) if 0 in adding else 0)
    assert (meters.bytes_in, meters.messages_in) == (0, 0)
    node.become(update(leader=1, epoch=3, isr=(0, 1, 2), replicas=(0, 1, 2), partition_epoch=1))
    before = meters.reassignment_bytes_in
    partition.append_records_to_follower_or_future_replica(batch(b"c", base_offset=2), is_future=False)
    assert meters.reassignment_bytes_in == before


def test_an_idle_fetch_that_repeats_is_read_again_after_a_late_one_of_another_offset(leader):
    """A second copy of an old fetch has an old fetch offset; the follower's next fetch has its log end."""
    leader.produce(batch(b"a"), acks=1)
    for broker_id in (1, 2):
        follow(leader, broker_id, 0)
    waiting = Answer()
    data = FetchPartitionData(1, 1 << 20, 0, 4, -1)
    params = FetchParams(replica_id=1, max_wait_ms=100, isolation=FetchIsolation.LOG_END)
    leader.replica_manager.fetch_messages(params, [(TP, data)], waiting)
    follow(leader, 1, 0)
    leader.time.sleep(101)
    leader.replica_manager.timer.advance()
    assert waiting.result and state_of(leader, 1).log_end_offset == 0
    leader.replica_manager.fetch_messages(params, [(TP, data)], Answer())
    assert state_of(leader, 1).log_end_offset == 1
