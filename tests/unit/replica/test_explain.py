"""What is explained is what the broker then does."""

import random

import pytest

from kcore import errors
from kcore.common.metrics import one_by_one
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_offset_metadata import FetchIsolation
from kcore.replica.explain import explain_fetch, explain_isr
from kcore.replica.fetch_params import FetchParams, FetchPartitionData
from kcore.replica.fetcher.fetchers import NoFetchers
from tests.batches import batch

from .conftest import TP, Node, update
from .test_follower_fetches import LAG, Store, follow

OTHER = TopicPartition("t", 1)


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def node(tmp_path, store):
    node = Node(tmp_path, {"t": {"min.insync.replicas": "2"}}, partition_state_store=store, replica_lag_time_max_ms=LAG)
    yield node
    node.shutdown()


@pytest.fixture
def leader(node):
    """Broker 0 leads with epoch 4; 1 and 2 are in sync, 3 is not."""
    node.lead(epoch=4, isr=(0, 1, 2), replicas=(0, 1, 2, 3))
    return node


def isr(node):
    return explain_isr(node.replica_manager, TP)


def rules(node):
    return {replica.broker_id: replica.rule for replica in isr(node).replicas}


def fetch(node, offset, replica_id=-1, epoch=-1, isolation=None, max_bytes=1 << 20, **params):
    isolation = isolation or FetchParams.isolation_of(replica_id, read_committed=False)
    return explain_fetch(
        node.replica_manager,
        TP,
        FetchParams(replica_id=replica_id, isolation=isolation, **params),
        FetchPartitionData(offset, max_bytes, current_leader_epoch=epoch),
    )


@pytest.mark.parametrize("seed", range(12))
def test_the_explanation_of_isr_and_high_watermark_is_what_the_broker_then_does(leader, store, seed):
    rng = random.Random(seed)
    partition = leader.replica_manager.get_partition(TP)
    for step in range(25):
        action = rng.randrange(4)
        if action == 0:
            leader.produce(batch(), acks=1)
        elif action == 1:
            leader.advance(rng.choice([100, LAG // 2, LAG + 1]))
        else:
            follow(leader, rng.choice([1, 2, 3]), rng.randint(0, partition.log.log_end_offset))
        while store.changes:
            store.store_last()
        explained = isr(leader)
        followers = [replica for replica in explained.replicas if not replica.is_leader]
        leaving = {replica.broker_id for replica in followers if replica.rule.startswith("it leaves at the next check")}
        joining = {replica.broker_id for replica in followers if replica.rule.startswith("it joins with its next")}
        for replica in followers:
            assert replica.is_in_isr == (replica.broker_id in partition.isr)
        # Never above what the ISR has; each that holds it back ends exactly there.
        assert explained.high_watermark >= explained.high_watermark_candidate or step == 0
        for replica in followers:
            if replica.holds_high_watermark:
                assert replica.log_end_offset == explained.high_watermark_candidate < explained.log_end_offset
        partition.maybe_shrink_isr()
        if leaving:
            ((_, proposed, _, _),) = store.changes
            assert proposed == set(explained.isr) - leaving, f"seed={seed} step={step}"
            assert isr(leader).pending_isr == tuple(sorted(proposed))
            assert {b for b, rule in rules(leader).items() if "requested to take it out" in rule} == leaving
            store.store_last()
        else:
            assert store.changes == [], f"seed={seed} step={step}"
            for replica in followers:
                if not replica.is_in_isr and replica.log_end_offset >= 0:
                    follow(leader, replica.broker_id, replica.log_end_offset)
                    assert bool(store.changes) == (replica.broker_id in joining), f"seed={seed} step={step}"
                    if store.changes:
                        break  # one change pends at a time
            while store.changes:
                store.store_last()


def test_each_rule_is_named(leader, store):
    leader.produce(batch(b"a", b"b"), acks=1)
    assert rules(leader) == {
        0: "it leads, so it never leaves",
        1: "it stays: its log end is unknown: it has not fetched, but was caught up 0 ms ago, at most 30000 ms",
        2: "it stays: its log end is unknown: it has not fetched, but was caught up 0 ms ago, at most 30000 ms",
        3: "it stays out: its log end is unknown: it has not fetched, and is below the high watermark 0 (PART-13)",
    }
    follow(leader, 1, 2)
    follow(leader, 2, 1)
    assert isr(leader).high_watermark == isr(leader).high_watermark_candidate == 1
    assert [replica.broker_id for replica in isr(leader).replicas if replica.holds_high_watermark] == [2]
    assert "waits for broker 2, which ends at 1 (PART-15)" in str(isr(leader))
    follow(leader, 3, 0)
    assert (
        rules(leader)[3] == "it stays out: it ends at 0, 2 records short, and is below the high watermark 1 (PART-13)"
    )
    leader.advance(LAG)
    assert rules(leader)[1] == "it stays: it has every record"
    leader.advance(1)
    assert rules(leader)[2] == (
        "it leaves at the next check: it ends at 1, 1 record short, and was caught up 30001 ms ago, more than "
        "30000 ms (PART-16)"
    )


def test_of_a_dead_replica_that_has_not_fetched_from_this_leader_no_log_end_is_claimed(tmp_path):
    node = Node(tmp_path, replica_lag_time_max_ms=LAG, is_alive={0}.__contains__)
    node.lead(epoch=4, isr=(0,), replicas=(0, 1))
    assert rules(node)[1] == "it stays out: it is not alive, and has fetched nothing from this leader (PART-13)"


def test_a_dead_replica_outside_the_isr_stays_out_and_holds_nothing(tmp_path, store):
    alive = {0, 1}
    node = Node(tmp_path, partition_state_store=store, replica_lag_time_max_ms=LAG, is_alive=alive.__contains__)
    node.lead(epoch=4, isr=(0,), replicas=(0, 1))
    follow(node, 1, 0)
    store.changes.pop()[3](errors.OperationNotAttempted("the store refuses"))
    node.produce(batch(), acks=1)
    assert rules(node)[1].startswith("it joins with its next fetch")
    assert [replica.broker_id for replica in isr(node).replicas if replica.holds_high_watermark] == [1]
    alive.remove(1)
    assert rules(node)[1] == "it stays out: it is not alive, and its log ended at 0 at its last fetch (PART-13)"
    assert [replica.broker_id for replica in isr(node).replicas if replica.holds_high_watermark] == []
    assert (isr(node).high_watermark, isr(node).high_watermark_candidate) == (0, 1)
    assert "high watermark: it rises to 1 at the next check (PART-15)" in str(isr(node))
    node.replica_manager.increment_high_watermarks()
    assert "high watermark: it is at the log end; no replica in the ISR is behind (PART-15)" in str(isr(node))
    node.shutdown()


def test_a_replica_below_the_start_of_the_epoch_stays_out(node):
    node.lead(epoch=4, isr=(0, 1), replicas=(0, 1))
    node.produce(batch(b"a", b"b", b"c"), acks=1)
    node.become(update(epoch=5, isr=(0, 1), replicas=(0, 1, 2), partition_epoch=1))
    follow(node, 2, 1, epoch=5)
    assert rules(node)[2] == (
        "it stays out: it ends at 1, 2 records short, and is below the start of the epoch 3 (PART-13)"
    )


def test_a_member_that_is_not_assigned_leaves(node, store):
    node.lead(epoch=4, isr=(0, 1), replicas=(0,))
    assert "not assigned" in rules(node)[1]
    node.replica_manager.get_partition(TP).maybe_shrink_isr()
    assert store.changes[0][1] == {0}


def test_a_produce_that_waits_is_explained_until_it_is_answered(leader):
    answer = leader.produce(batch(b"a", b"b"), timeout_ms=5000)
    leader.advance(1000)
    (waiting,) = isr(leader).waiting
    assert (waiting.kind, waiting.ms_left) == ("a produce with acks=all", 4000)
    assert waiting.waits_for == "for the high watermark, which is 0, to reach 2 (PART-18)"
    follow(leader, 1, 2)
    assert answer.waits and len(isr(leader).waiting) == 1
    follow(leader, 2, 2)
    assert not answer.waits and isr(leader).waiting == ()


def test_fetches_that_wait_are_explained_with_what_each_waits_for(leader):
    leader.lead(OTHER, epoch=4)
    consumer = leader.fetch(0, max_wait_ms=500)
    leader.produce(batch(b"a"), acks=1)
    follow(leader, 1, 1, wait_ms=500)
    both = leader.fetch({TP: 0, OTHER: 0}, max_wait_ms=700, min_bytes=5)
    waits = [(request.kind, request.ms_left, request.waits_for) for request in isr(leader).waiting]
    assert waits == [
        (
            "a fetch of a consumer (read_uncommitted)",
            500,
            "for the high watermark, which is 0, to pass offset 0; the log ends at 1",
        ),
        (
            "a fetch of a consumer (read_uncommitted)",
            700,
            "for the high watermark, which is 0, to pass offset 0; the log ends at 1; or for bytes of 1 other "
            "partition of the request",
        ),
        ("a fetch of follower 1", 500, "for records at offset 1, where the log ends"),
    ]
    follow(leader, 2, 1)
    assert not consumer.waits and not both.waits
    assert [request.kind for request in isr(leader).waiting] == ["a fetch of follower 1"]


@pytest.mark.parametrize("seed", range(15))
def test_a_fetch_gets_what_was_explained_before_it(leader, seed):
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 5)):
        leader.produce(batch(b"x" * rng.randint(1, 300)), acks=1)
    follow(leader, 1, rng.randint(0, 5))
    follow(leader, 2, rng.randint(0, 5))
    end = leader.replica_manager.get_partition(TP).log.log_end_offset
    for _ in range(30):
        params = {
            "min_bytes": rng.choice([0, 1, 100, 500, 5000]),
            "max_bytes": rng.choice([1, 200, 1 << 20]),
            "max_wait_ms": rng.choice([0, 500]),
            "hard_max_bytes": rng.random() < 0.3,
        }
        offset = rng.randint(0, end + 2)
        epoch = rng.choice([-1, 4, 4, 3, 5])
        isolation = rng.choice([FetchIsolation.HIGH_WATERMARK, FetchIsolation.TXN_COMMITTED])
        where = f"seed={seed} {offset} {epoch} {isolation} {params}"
        explained = explain_fetch(
            leader.replica_manager,
            TP,
            FetchParams(isolation=isolation, **params),
            FetchPartitionData(offset, 400, current_leader_epoch=epoch),
        )
        answer = leader.fetch(offset, isolation, partition_max_bytes=400, epoch=epoch, **params)
        assert explained.answered_now == (not answer.waits), where
        if not answer.waits:
            ((_, result),) = answer.result
            assert explained.error == (result.error and type(result.error).__name__), where
            assert explained.readable_bytes == result.records.size_in_bytes, where
        leader.advance(1000)


def test_an_explanation_counts_nothing_and_moves_no_follower(leader):
    leader.produce(batch(b"a"), acks=1)
    before = [
        (name, getattr(measured, "count", measured))
        for name, measured in one_by_one(leader.replica_manager.meters.measured())
    ]
    state = leader.replica_manager.get_partition(TP).state.replicas[1].state
    assert (
        fetch(leader, 1, replica_id=1, epoch=4, max_wait_ms=500).rule == "for records at offset 1, where the log ends"
    )
    assert fetch(leader, 9, replica_id=7, epoch=4).error == "UnknownTopicOrPartition"
    assert leader.replica_manager.get_partition(TP).state.replicas[1].state is state
    assert before == [
        (name, getattr(measured, "count", measured))
        for name, measured in one_by_one(leader.replica_manager.meters.measured())
    ]


def test_the_explanation_of_a_follower_names_its_leader(node):
    node.become(update(leader=1, epoch=2, isr=(0, 1)))
    explained = isr(node)
    assert (explained.leader_id, explained.leader_epoch, explained.replicas) == (1, 2, ())
    assert str(explained).startswith("t-0 on broker 0: follower of broker 1, epoch 2\n")
    told = (
        "  the ISR is known to the leader, broker 1: `kcore explain isr t 0 --bootstrap HOST:PORT` asks that broker\n"
    )
    assert told in str(explained) and "no leader" not in str(explained)
    assert fetch(node, 0).error == "NotLeaderOrFollower"
    with pytest.raises(errors.UnknownTopicOrPartition):
        explain_isr(node.replica_manager, TopicPartition("unknown", 0))


class Quota:
    """Of partition TP."""

    is_exceeded = True

    def is_throttled(self, tp):
        return tp == TP

    def is_quota_exceeded(self):
        return self.is_exceeded

    def record(self, size):
        pass


def test_QUOTA_01_a_follower_outside_the_isr_that_the_leaders_throttle_holds_back_is_named(leader):
    leader.produce(batch(b"a"), acks=1)
    quota = Quota()

    def held_back():
        explained = explain_isr(leader.replica_manager, TP, quota)
        return {replica.broker_id: replica.held_back_by for replica in explained.replicas}

    def gets(broker_id):
        """Whether the follower gets records, and what explain_fetch() says of that before."""
        params = FetchParams(replica_id=broker_id, max_wait_ms=500, isolation=FetchIsolation.LOG_END)
        data = FetchPartitionData(0, 1 << 20, current_leader_epoch=4)
        explained = explain_fetch(leader.replica_manager, TP, params, data, quota)
        answer = follow(leader, broker_id, 0, quota=quota)
        (records,) = (result.records for _, result in answer.result)
        assert explained.readable_bytes == records.size_in_bytes
        return bool(records.size_in_bytes), explained.rule

    assert [broker_id for broker_id, reason in held_back().items() if reason] == [3]
    assert "leader.replication.throttled.rate" in held_back()[3]
    assert "    held back: more was sent than" in str(explain_isr(leader.replica_manager, TP, quota))
    assert gets(1)[0]
    is_sent, rule = gets(3)
    assert not is_sent and rule.startswith("for the throttle: more was sent than leader.replication.throttled.rate")
    follow(leader, 3, 0, quota=quota, wait_ms=500)
    (waiting,) = (request for request in isr(leader).waiting if request.kind == "a fetch of follower 3")
    assert waiting.waits_for.startswith("for the throttle: ")
    quota.is_exceeded = False
    assert set(held_back().values()) == {None} and gets(3)[0]
    quota.is_exceeded = True
    follow(leader, 3, 1, quota=quota)
    assert held_back()[3] is None, "there is nothing that it does not get"


def test_a_follower_whose_log_directory_has_failed_is_named_while_it_lives(tmp_path, store):
    alive = {0, 1, 2}
    node = Node(tmp_path, partition_state_store=store, replica_lag_time_max_ms=LAG, is_alive=alive.__contains__)
    node.lead(epoch=4, isr=(0, 1), replicas=(0, 1, 2))

    def held_back():
        explained = explain_isr(node.replica_manager, TP, offline_replicas=lambda tp: (2,) if tp == TP else ())
        return [replica.held_back_by for replica in explained.replicas]

    reason = "its log is offline there: its directory has failed, or the log was found damaged and given up"
    assert held_back()[:2] == [None, None] and held_back()[2].startswith(reason)
    assert "`kcore explain isr t 0 --broker 2` asks that broker" in held_back()[2]
    alive.remove(2)
    assert held_back() == [None, None, None], "the rule says that it is not alive"
    node.shutdown()


def test_a_follower_says_what_keeps_it_from_getting_records(tmp_path):
    class Fetchers(NoFetchers):
        reason = "the disk is full: No space left on device"

        def delay_reason(self, tp):
            return self.reason if tp == TP else None

    node = Node(tmp_path, fetchers=Fetchers())
    node.become(update(leader=1, isr=(0, 1)), update(OTHER, leader=1, isr=(0, 1)))
    assert "\n  held back: the disk is full: No space left on device\n" in str(isr(node))
    assert "held back" not in str(explain_isr(node.replica_manager, OTHER))
    node.lead(epoch=1, isr=(0, 1))
    assert isr(node).held_back_by is None
    node.replica_manager.handle_log_dir_failure(str(tmp_path))
    with pytest.raises(errors.KafkaStorageError, match=f"{tmp_path} has failed"):
        isr(node)
    node.shutdown()


def test_a_replica_that_lacks_records_says_so(node):
    node.become(update(leader=1, isr=(0, 1)))
    assert isr(node).lost_records is None and "lost records" not in str(isr(node))
    log = node.replica_manager.get_partition(TP).log
    log.mark_lost_records(0)
    assert "\n  lost records: this replica lacks records from offset 0 on, or may; " in str(isr(node))
    log.forget_lost_records()
    assert isr(node).lost_records is None


def test_the_text_is_for_people(leader):
    leader.produce(batch(b"a", b"b"))
    follow(leader, 1, 2)
    assert str(isr(leader)) == (
        "t-0 on broker 0: leader with epoch 4 since offset 0\n"
        "  log [0, 2), high watermark 0, last stable offset 0\n"
        "  high watermark: waits for broker 2, whose log end is unknown until it fetches (PART-15)\n"
        "  ISR [0, 1, 2]: min.insync.replicas is 2, acks=all is accepted\n"
        "  broker 0, in the ISR: it leads, so it never leaves\n"
        "  broker 1, in the ISR: it stays: it has every record\n"
        "  broker 2, in the ISR: it stays: its log end is unknown: it has not fetched, but was caught up 0 ms ago, at "
        "most 30000 ms\n"
        "  broker 3, out of the ISR: it stays out: its log end is unknown: it has not fetched, and is below the high "
        "watermark 0 (PART-13)\n"
        "  a produce with acks=all waits, 1000 ms left: for the high watermark, which is 0, to reach 2 (PART-18)"
    )
    assert str(fetch(leader, 0, max_wait_ms=500)).splitlines()[3] == (
        "  waits: for the high watermark, which is 0, to pass offset 0; the log ends at 2"
    )
