"""When a leader whose disk is full should be replaced: rules over values, and what a broker counts."""

import errno

import pytest

from kcore import errors
from kcore.common import file
from kcore.common.topic_partition import TopicPartition
from kcore.log.disk_room import has_room
from kcore.replica import disk_full_refusals
from kcore.replica.disk_full_refusals import HAND_OVER_AFTER_MS, after_refusal, needs_another_leader
from tests.batches import batch

from .conftest import TP, Node, update

OTHER = TopicPartition("t", 1)


def row_of(*refusals):
    """refusals: (leader epoch, log end offset, time in ms)."""
    row = None
    for refusal in refusals:
        row = after_refusal(row, *refusal)
    return row


def test_a_row_of_refusals_for_long_enough_asks_for_another_leader():
    assert not needs_another_leader(row_of((1, 5, 100)))
    assert not needs_another_leader(row_of((1, 5, 100), (1, 5, 100 + HAND_OVER_AFTER_MS - 1)))
    assert needs_another_leader(row_of((1, 5, 100), (1, 5, 2000), (1, 5, 100 + HAND_OVER_AFTER_MS)))


@pytest.mark.parametrize("between", [(1, 6), (2, 5)], ids=["an append was accepted", "another epoch"])
def test_a_row_begins_anew_after_an_accepted_append_and_in_another_leader_epoch(between):
    row = row_of((1, 5, 0), (*between, HAND_OVER_AFTER_MS))
    assert (row.first_ms, row.last_ms) == (HAND_OVER_AFTER_MS, HAND_OVER_AFTER_MS)
    assert needs_another_leader(after_refusal(row, *between, 2 * HAND_OVER_AFTER_MS))


def test_refusals_that_are_noted_out_of_order_shorten_no_row():
    assert needs_another_leader(row_of((1, 5, 0), (1, 5, HAND_OVER_AFTER_MS), (1, 5, HAND_OVER_AFTER_MS - 10)))


@pytest.fixture
def full(tmp_path):
    """A node that leads two partitions on a full disk."""
    node = Node(tmp_path)
    node.become(update(), update(OTHER))
    node.needed = []
    node.refusals = node.replica_manager.disk_full_refusals
    node.refusals.on_needed = lambda: node.needed.append(True)
    fill(tmp_path)
    yield node
    file.clear_faults()
    node.shutdown()


def fill(path):
    file.fail_next("pwrite", errno.ENOSPC, under=str(path), times=-1)


def refuse(node, tp=TP):
    assert isinstance(node.produce({tp: batch()}, acks=1).result[tp].error, errors.DiskFull)


def test_a_partition_needs_another_leader_once_its_appends_are_refused_for_long_enough(full):
    refuse(full)
    refuse(full, OTHER)
    full.time.sleep(HAND_OVER_AFTER_MS)
    assert full.refusals.needing_another_leader() == {} and full.needed == []
    refuse(full)
    assert full.refusals.needing_another_leader() == {TP: 0} and full.needed == [True]


def test_an_accepted_append_ends_the_row(full, tmp_path):
    refuse(full)
    full.time.sleep(HAND_OVER_AFTER_MS)
    file.clear_faults()
    assert full.produce(batch(), acks=1).result[TP].error is None
    fill(tmp_path)
    refuse(full)
    assert full.refusals.needing_another_leader() == {} and full.needed == []


@pytest.mark.parametrize(
    "then", [lambda node: node.become(update(leader=1, epoch=1, isr=(0, 1))), lambda node: node.stop(TP)]
)
def test_a_partition_that_is_not_led_any_more_needs_no_other_leader(full, then):
    refuse(full)
    full.time.sleep(HAND_OVER_AFTER_MS)
    refuse(full)
    then(full)
    assert full.refusals.needing_another_leader() == {} and full.refusals.leader_epoch(TP) is None


def test_other_errors_than_a_full_disk_do_not_count(full):
    file.clear_faults()
    for _ in range(2):
        assert isinstance(full.produce(bytes(batch())[:-1] + b"\x7f", acks=1).result[TP].error, errors.CorruptMessage)
        full.time.sleep(HAND_OVER_AFTER_MS)
    assert full.refusals.needing_another_leader() == {} and full.needed == []


def test_each_directory_is_tried_once_and_what_is_not_hosted_counts_as_with_room(full, monkeypatch):
    nowhere, tried = TopicPartition("u", 0), []

    def counted(directory):
        tried.append(directory)
        return has_room(directory)

    monkeypatch.setattr(disk_full_refusals, "has_room", counted)
    assert full.refusals.have_room([TP, OTHER, nowhere]) == {nowhere}
    assert len(tried) == 1
    file.clear_faults()
    assert full.refusals.have_room([TP, OTHER]) == {TP, OTHER}
