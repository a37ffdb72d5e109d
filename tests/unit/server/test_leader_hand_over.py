"""A broker whose disk is full asks for other leaders: what its node says and when, and what follows in a cluster."""

import errno

import pytest

import kcore
from kcore.common import file
from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaStorageError
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.metadata.store import ConnectionLost
from kcore.replica import disk_full_refusals
from kcore.server.member import leader_hand_over
from kcore.server.member.leader_hand_over import (
    FIRST_ASK_AGAIN_MS,
    FIRST_HOLD_MS,
    LONGEST_ASK_AGAIN_MS,
    LONGEST_HOLD_MS,
    MAX_PARTITIONS,
    AskedOver,
    LeaderHandOver,
    ask_again_ms,
    asked_now,
    next_hold_ms,
)
from tests.cluster_sessions import LONG_MS
from tests.waiting import wait_until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NODE = znodes.full_disk(1)

# -- rules ----------------------------------------------------------------------------------------------


def test_a_partition_is_asked_for_at_once_in_each_epoch_and_then_more_and_more_seldom():
    first = asked_now({}, {T0: 5}, 1000)
    assert first == {T0: AskedOver(5, 1, 1000)}
    assert asked_now(first, {T0: 5}, 1000 + FIRST_ASK_AGAIN_MS - 1) == {}
    second = asked_now(first, {T0: 5}, 1000 + FIRST_ASK_AGAIN_MS)
    assert second == {T0: AskedOver(5, 2, 1000 + FIRST_ASK_AGAIN_MS)}
    assert asked_now(second, {T0: 5}, 1000 + 3 * FIRST_ASK_AGAIN_MS - 1) == {}
    assert asked_now(second, {T0: 6, T1: 0}, 1001) == {T0: AskedOver(6, 1, 1001), T1: AskedOver(0, 1, 1001)}
    assert asked_now(second, {}, 10**9) == {}
    assert [ask_again_ms(asks) for asks in (1, 2, 3, 40)] == [
        FIRST_ASK_AGAIN_MS,
        2 * FIRST_ASK_AGAIN_MS,
        4 * FIRST_ASK_AGAIN_MS,
        LONGEST_ASK_AGAIN_MS,
    ]


def test_a_disk_that_is_full_again_soon_keeps_its_partitions_away_for_twice_as_long():
    assert next_hold_ms(0, 0) == FIRST_HOLD_MS
    assert next_hold_ms(FIRST_HOLD_MS, 1000) == 2 * FIRST_HOLD_MS
    assert next_hold_ms(LONGEST_HOLD_MS, 1000) == LONGEST_HOLD_MS
    assert next_hold_ms(LONGEST_HOLD_MS, 600_000) == FIRST_HOLD_MS


# -- one broker -----------------------------------------------------------------------------------------


class Refusals:
    """Stands for DiskFullRefusals: needing has what is led and refused, led what is led, room what has room."""

    def __init__(self):
        self.needing, self.led, self.room = {}, {}, set()
        self.on_needed = lambda: None

    def needing_another_leader(self):
        return dict(self.needing)

    def leader_epoch(self, tp):
        return self.led.get(tp)

    def have_room(self, tps):
        return self.room & set(tps)

    def remove(self, tps):
        for tp in tps:
            self.needing.pop(tp, None)


class Member:
    def __init__(self):
        self.tree = MemoryTree()
        self.store = MemoryStore(self.tree)
        self.time = MockTime()
        self.scheduler = MockScheduler(self.time)
        self.scheduler.startup()
        self.refusals = Refusals()
        self.hand_over = LeaderHandOver(1, self.store, self.scheduler, self.time, self.refusals)

    def refuse(self, *tps, epoch=0):
        """Producers' appends to these partitions are refused."""
        for tp in tps:
            self.refusals.led[tp] = self.refusals.needing[tp] = epoch
        self.hand_over.begin()

    def follow(self, *tps):
        """The controller has elected other leaders."""
        for tp in tps:
            del self.refusals.led[tp], self.refusals.needing[tp]

    def advance(self, ms):
        end = self.time.hi_res_clock_ms() + ms
        while (left := end - self.time.hi_res_clock_ms()) > 0:
            self.time.sleep(min(left, 500))
            self.scheduler.tick()

    @property
    def asked(self):
        """(the partitions in the node, how often it was written); None without one."""
        node = self.store.get(NODE)
        return (znodes.decode_partitions(node.data), node.version) if node is not None else None


@pytest.fixture
def member():
    return Member()


def test_the_node_has_all_partitions_that_are_refused_and_stays_while_others_lead_them(member):
    member.refuse(T1)
    member.refuse(T0)
    member.advance(1000)
    assert member.asked == ([T0, T1], 0)
    assert member.store.get(NODE).ephemeral_owner == member.store.session_id
    member.follow(T0, T1)
    member.advance(100_000)
    assert member.asked == ([T0, T1], 0)


def test_the_node_goes_once_there_is_room_for_all_and_names_only_the_others_before(member):
    member.refuse(T0, T1)
    member.advance(1000)
    member.follow(T0, T1)
    member.refusals.room = {T1}
    member.advance(FIRST_HOLD_MS - 2000)
    assert member.asked == ([T0, T1], 0)
    member.advance(3000)
    assert member.asked == ([T0], 1)
    member.refusals.room = {T0}
    member.advance(FIRST_HOLD_MS + 1000)
    assert member.asked is None
    member.refuse(T0)
    member.advance(1000)
    assert member.asked == ([T0], 0)
    member.advance(FIRST_HOLD_MS + 1000)  # it was full again at once
    assert member.asked is not None
    member.advance(FIRST_HOLD_MS)
    assert member.asked is None


def test_a_leader_that_nobody_could_replace_asks_again_by_writing_the_node_anew(member):
    member.refuse(T0)
    member.advance(1000)
    assert member.asked == ([T0], 0)
    member.advance(FIRST_ASK_AGAIN_MS + 1000)
    assert member.asked == ([T0], 1)
    member.advance(FIRST_ASK_AGAIN_MS)
    assert member.asked == ([T0], 1)
    member.refuse(T0, epoch=3)  # elected again meanwhile
    member.advance(1500)
    assert member.asked == ([T0], 2)


def test_a_leader_that_accepts_an_append_again_withdraws_its_wish_at_once(member):
    member.refuse(T0, T1)
    member.advance(1000)
    del member.refusals.needing[T0]
    member.advance(1500)
    assert member.asked == ([T1], 1)


def test_a_leader_that_nobody_could_replace_withdraws_its_wish_once_there_is_room(member):
    """Nobody need produce meanwhile, and its refusals are counted anew."""
    member.refuse(T0)
    member.refusals.room = {T0}
    member.advance(FIRST_HOLD_MS + 1000)
    assert member.asked is None
    member.refuse(T1)
    member.advance(1000)
    assert member.asked == ([T1], 0)


def test_a_leader_that_was_elected_again_and_has_refused_nothing_yet_does_not_withdraw_its_wish(member):
    member.refuse(T0)
    member.advance(1000)
    member.follow(T0)
    member.refusals.led[T0] = 7
    member.advance(5000)
    assert member.asked == ([T0], 0)


def test_the_next_session_has_the_node_too(member):
    member.refuse(T0)
    member.advance(1000)
    member.tree.expire(member.store.session_id)
    member.store.new_session()
    assert member.asked is None
    member.hand_over.session_began()
    member.advance(1500)
    assert member.asked == ([T0], 0)


def test_a_node_of_an_earlier_session_is_replaced(member):
    other = MemoryStore(member.tree)
    other.ensure_path(znodes.FULL_DISKS)
    other.create(NODE, znodes.encode_partitions([T1]), ephemeral=True)
    member.refuse(T0)
    member.advance(1000)
    other.close()
    assert member.asked == ([T0], 0)


def test_a_store_that_is_away_is_asked_until_it_answers(member, monkeypatch):
    def fail(*args):
        raise ConnectionLost("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(member.store, "get", fail)
        member.refuse(T0)
        member.advance(5000)
    member.advance(1500)
    assert member.asked == ([T0], 0)


def test_a_broker_that_leaves_asks_for_nothing(member):
    member.hand_over.close()
    member.refuse(T0)
    member.advance(5000)
    assert member.asked is None


def test_a_session_that_begins_while_the_node_is_written_has_the_node_too(member, monkeypatch):
    create = member.store.create

    def create_and_expire(*args, **kwargs):
        if not kwargs.get("ephemeral"):
            return create(*args, **kwargs)
        monkeypatch.setattr(member.store, "create", create)
        create(*args, **kwargs)
        return new_session()

    def new_session():
        member.tree.expire(member.store.session_id)
        member.store.new_session()
        member.hand_over.session_began()

    monkeypatch.setattr(member.store, "create", create_and_expire)
    member.refuse(T0)
    member.advance(5000)
    assert member.asked == ([T0], 0)


def test_a_refusal_that_comes_while_the_refusals_are_looked_at_is_asked_for(member, monkeypatch):
    def nothing_yet():
        monkeypatch.undo()
        member.refuse(T0)
        return {}

    monkeypatch.setattr(member.refusals, "needing_another_leader", nothing_yet)
    member.hand_over.begin()
    member.advance(5000)
    assert member.asked == ([T0], 0)


def test_a_broker_that_leaves_before_it_has_asked_asks_no_more(member):
    member.refuse(T0)
    member.hand_over.close()
    member.advance(5000)
    assert member.asked is None


def test_the_node_has_at_most_as_many_partitions_as_zookeeper_takes_those_that_are_led_first(member):
    followed = [TopicPartition("a", number) for number in range(MAX_PARTITIONS)]
    member.refuse(*followed)
    member.advance(1000)
    member.follow(*followed)
    member.refuse(T0)
    member.advance(1500)
    partitions, _ = member.asked
    assert partitions[0] == T0 and len(partitions) == MAX_PARTITIONS


# -- in a cluster ---------------------------------------------------------------------------------------


@pytest.fixture
def cluster(monkeypatch):
    """Its brokers notice full disks and room sooner."""
    monkeypatch.setattr(disk_full_refusals, "HAND_OVER_AFTER_MS", 200)
    monkeypatch.setattr(leader_hand_over, "FIRST_HOLD_MS", 200)
    settings = {"zookeeper_session_timeout_ms": LONG_MS, "replica_lag_time_max_ms": 2000}
    settings |= {"leader_imbalance_check_interval_seconds": 1, "leader_imbalance_per_broker_percentage": 0}
    with kcore.Cluster(3, offsets_topic_num_partitions=1, **settings) as cluster:
        yield cluster
        file.clear_faults()


def fill(cluster, *broker_ids):
    for broker_id in broker_ids:
        file.fail_next("pwrite", errno.ENOSPC, under=f"{cluster.data_dir}/{broker_id}/", times=-1)


def preferred(cluster, topic):
    return cluster.brokers[0].metadata_cache.topic(topic).partitions[0].replicas[0]


def rebalance(cluster):
    """What the controller does once in each leader.imbalance.check.interval.seconds."""
    controller, results = cluster.brokers[cluster.controller()].cluster_member.controller, []
    controller.put_call("test", lambda: controller.leader_elections.rebalance(0), results.append)
    wait_until(lambda: results)
    assert results == [None]


def has_node(cluster, broker_id):
    return cluster._get(znodes.full_disk(broker_id)) is not None


def produce(cluster):
    """Whether whoever leads has taken a record, with acks=all."""
    try:
        cluster.brokers[cluster.leader("t")].produce("t", b"x")
    except kcore.errors.ApiError:
        return False
    return True


def test_another_broker_leads_what_a_full_disk_refuses_and_the_first_one_leads_again_once_there_is_room(cluster):
    cluster.create_topic("t", min_insync_replicas=2)
    first = preferred(cluster, "t")
    wait_until(lambda: cluster.leader("t") == first and produce(cluster))
    fill(cluster, first)
    with pytest.raises(KafkaStorageError):
        cluster.brokers[first].produce("t", b"x")
    wait_until(lambda: produce(cluster))
    assert cluster.leader("t") != first
    rebalance(cluster)
    assert cluster.leader("t") != first
    file.clear_faults()
    wait_until(lambda: cluster.leader("t") == first and produce(cluster))


def test_full_disks_of_all_brokers_leave_the_isr_as_it_was(cluster):
    cluster.create_topic("t", min_insync_replicas=2)
    # A follower that is slow to fetch for the first time may have left the ISR for a moment.
    wait_until(lambda: produce(cluster) and cluster.isr("t") == [0, 1, 2])
    fill(cluster, 0, 1, 2)
    wait_until(lambda: not produce(cluster) and all(has_node(cluster, broker_id) for broker_id in range(3)))
    assert cluster.isr("t") == [0, 1, 2]
    file.clear_faults()
    wait_until(lambda: produce(cluster))
    wait_until(
        lambda: cluster.isr("t") == [0, 1, 2] and not any(has_node(cluster, broker_id) for broker_id in range(3))
    )
