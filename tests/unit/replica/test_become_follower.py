"""What happens to the fetchers when the controller changes leaders (RM-12..21)."""

import logging

import pytest

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.replica.fetcher.fetchers import FetchSource, InitialFetchState
from kcore.replica.partition_state import StopReplica
from tests.batches import batch

from .conftest import TP, Node, update

OTHER = TopicPartition("t", 1)
THIRD = TopicPartition("t", 2)


class RecordingFetchers:
    """Fetchers whose calls are a list."""

    def __init__(self):
        self.events = []
        self.sources = {}
        self.on_call = lambda name: None

    def add_partitions(self, partitions):
        self.on_call("add")
        self.events.append(("add", sorted(partitions)))
        self.sources.update(partitions)

    def remove_partitions(self, partitions):
        self.on_call("remove")
        if partitions:
            self.events.append(("remove", sorted(partitions)))
        return {tp: self.sources.pop(tp) for tp in partitions if tp in self.sources}

    def shutdown_idle(self):
        self.events.append(("idle",))

    def close(self):
        self.events.append(("close",))


@pytest.fixture
def alive():
    return {0, 1, 2}


@pytest.fixture
def node(tmp_path, alive):
    node = Node(tmp_path, fetchers=RecordingFetchers(), is_alive=alive.__contains__)
    node.fetchers = node.replica_manager.fetchers
    yield node
    node.shutdown()


def follow(tp=TP, leader=1, epoch=0):
    return update(tp, leader, epoch, isr=(0, 1, 2))


def test_RM_12_idle_threads_end_once_every_partition_has_changed(node):
    node.become(follow(), update(OTHER))
    assert node.fetchers.events[-2:] == [("add", [TP]), ("idle",)]
    node.become(update(TP, epoch=1))
    assert node.fetchers.events[-1] == ("idle",)


def test_RM_14_a_partition_that_is_led_from_now_on_is_no_longer_copied_when_its_state_changes(node):
    node.become(follow())
    states = []
    node.fetchers.on_call = lambda name: states.append((name, node.replica_manager.get_partition(TP).is_leader))
    node.become(update(TP, epoch=1))
    assert states[0] == ("remove", False) and node.replica_manager.get_partition(TP).is_leader
    assert node.fetchers.sources == {}


def test_RM_14_the_fetchers_keep_what_an_update_does_not_change(node):
    node.become(follow(TP, epoch=3))
    source = node.fetchers.sources[TP]
    node.fetchers.events.clear()
    assert node.become(update(TP, epoch=3), update(OTHER, isr=(1, 2))) == {
        TP: errors.StaleControllerEpoch,
        OTHER: errors.UnknownTopicOrPartition,
    }
    assert node.fetchers.sources == {TP: source} and ("remove", [TP]) not in node.fetchers.events


def test_RM_17_a_follower_of_a_leader_that_is_alive_copies_from_it(node):
    node.become(follow(leader=2, epoch=4))
    assert node.fetchers.sources == {TP: FetchSource(2, InitialFetchState(0, 4))}


def test_RM_18_of_a_leader_that_is_not_alive_only_the_log_is_made(node, alive, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    alive.remove(1)
    assert node.become(follow(epoch=4)) == {TP: None}
    assert caplog.records == []  # the normal order of events when brokers start one by one: no warning
    assert (tmp_path / "t-0").is_dir() and node.fetchers.sources == {}
    node.advance(5000)
    assert "t 0 0" in (tmp_path / "replication-offset-checkpoint").read_text()
    alive.add(1)
    node.become(follow(epoch=4))  # the same update again, once the metadata have the broker
    assert set(node.fetchers.sources) == {TP}


def test_RM_18_partitions_of_a_leader_that_is_not_alive_are_one_line(node, alive, caplog):
    alive.remove(1)
    with caplog.at_level("INFO"):
        node.become(*(follow(TopicPartition("t", number), 1, 4) for number in range(9)))
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("kcore.replica")]
    assert lines == ["broker 1 is not alive and leads 9 partitions: t-0, t-1, t-2, t-3, t-4 and 4 more"]


def test_RM_18_a_leader_resigns_when_a_broker_that_is_not_alive_becomes_leader(node, alive):
    node.lead()
    alive.remove(1)
    node.become(follow(epoch=1))
    answer = node.produce(batch())
    assert type(answer.result[TP].error) is errors.NotLeaderOrFollower


def test_RM_19_produce_is_refused_then_the_fetcher_removed_then_requests_answered_then_the_next_one_starts(
    node,
):
    node.become(update(TP, 0, 0, isr=(0, 1)))
    waiting = node.produce(batch())  # acks=-1: broker 1 has nothing yet
    assert waiting.waits
    node.fetchers.events.clear()
    seen = []

    def on_call(name):
        refused = type(node.produce(batch(), acks=0).result[TP].error) is errors.NotLeaderOrFollower
        seen.append((name, refused, waiting.waits))

    node.fetchers.on_call = on_call
    node.become(follow(epoch=1))
    assert seen == [("remove", False, True), ("remove", True, True), ("add", True, False)]
    assert node.fetchers.events == [("remove", [TP]), ("add", [TP]), ("idle",)]
    assert type(waiting.result[TP].error) is errors.NotLeaderOrFollower


def test_RM_19_a_change_that_comes_before_the_new_fetcher_starts_wins(node):
    complete_waiting = node.replica_manager.complete_waiting

    def lead_meanwhile(tp):
        node.replica_manager.complete_waiting = complete_waiting
        node.become(update(TP, epoch=2))

    node.replica_manager.complete_waiting = lead_meanwhile
    node.become(follow(epoch=1))
    assert node.fetchers.sources == {} and node.replica_manager.get_partition(TP).is_leader


def test_RM_19_a_partition_that_is_stopped_before_the_new_fetcher_starts_is_not_copied(node):
    complete_waiting = node.replica_manager.complete_waiting

    def stop_meanwhile(tp):
        node.replica_manager.complete_waiting = complete_waiting
        node.stop(TP)

    node.replica_manager.complete_waiting = stop_meanwhile
    node.become(follow(epoch=1))
    assert node.replica_manager.get_partition(TP) is None
    assert node.fetchers.sources == {}


def test_RM_20_a_broker_that_is_about_to_stop_goes_on_copying_and_begins_nothing_new(node):
    """It would catch up with whoever leads after it, and be in the ISR when it stops."""
    node.become(follow())
    node.become(update(OTHER))
    assert set(node.fetchers.sources) == {TP}
    node.replica_manager.begin_shutdown()
    node.become(follow(tp=OTHER, epoch=3))
    assert not node.replica_manager.get_partition(OTHER).is_leader
    assert set(node.fetchers.sources) == {TP} and ("close",) not in node.fetchers.events


def test_RM_20_a_broker_that_shuts_down_starts_no_fetcher(node):
    node.replica_manager.shutdown()
    assert node.fetchers.events == [("close",)]
    node.become(follow())
    assert node.fetchers.sources == {}


def test_RM_21_a_follower_begins_at_its_high_watermark_with_the_partitions_leader_epoch(node):
    partition = node.lead(isr=(0, 1))
    node.produce([batch(b"a", b"b", b"c")][0], acks=1)
    partition.log.update_high_watermark(2)
    node.become(follow(epoch=7))
    assert node.fetchers.sources[TP] == FetchSource(1, InitialFetchState(2, 7))


def test_a_partition_without_a_leader_is_not_copied(node):
    node.become(follow(leader=-1))
    assert node.fetchers.sources == {}


def test_RM_29_a_failed_directory_and_a_stop_take_the_partitions_from_the_fetchers(node, tmp_path):
    node.become(follow(TP, epoch=3), follow(OTHER, epoch=3), follow(THIRD, epoch=3))
    results = node.replica_manager.stop_replicas([StopReplica(TP, True, 3), StopReplica(OTHER, True, 2)], 1)
    assert results[TP] is None and type(results[OTHER]) is errors.FencedLeaderEpoch
    assert set(node.fetchers.sources) == {OTHER, THIRD}
    node.replica_manager.handle_log_dir_failure(str(tmp_path))
    assert node.fetchers.sources == {} and node.fetchers.events[-1] == ("idle",)
