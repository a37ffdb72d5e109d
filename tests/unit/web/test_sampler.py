"""Rates, rings, and since when a replica is out."""

import threading

import pytest

from kcore.client.admin_client import ClusterDescription, PartitionDescription, TopicDescription
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.web.catalog import TopicSummary, catalog_of, since_text
from kcore.web.sampler import RING_SIZE, Rings, Sampler, rates


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([], []),
        ([(1000, 5)], []),
        ([(1000, 5), (3000, 25)], [(3000, 10.0)]),
        ([(1000, 5), (2000, 5)], [(2000, 0.0)]),
        ([(1000, 500), (2000, 3), (3000, 4)], [(2000, None), (3000, 1.0)]),  # made again
        ([(1000, None), (2000, 3), (3000, None)], [(2000, None), (3000, None)]),
        ([(1000, 1), (1000, 2)], [(1000, None)]),
        ([(2000, 1), (1000, 2)], [(1000, None)]),  # the clock was set back
    ],
)
def test_a_rate_is_that_between_two_points(points, expected):
    assert rates(points) == expected


def test_a_ring_keeps_the_last_hour():
    rings = Rings(None)
    rings.keep(["orders"])
    for number in range(RING_SIZE + 10):
        rings.add("orders", (number, number))
    assert rings.points("orders") == [(number, number) for number in range(10, RING_SIZE + 10)]


def test_names_that_nobody_looked_at_lately_are_forgotten():
    rings = Rings(2)
    for name in "abacbc":
        rings.watch(name)
        rings.add(name, (1, 1))
    assert rings.names() == ["b", "c"]
    rings.add("a", (2, 2))
    assert rings.points("a") == []
    rings.keep(["c", "d"])
    assert (rings.names(), len(rings.points("c"))) == (["c", "d"], 2)


def cluster(isr, leader=0):
    partition = PartitionDescription(leader, 0, (0, 1, 2), isr, ())
    return ClusterDescription("id", 0, {}, {"orders": TopicDescription("orders", None, False, {0: partition})})


def test_a_replica_is_out_since_it_was_first_seen_out():
    tp = TopicPartition("orders", 0)
    first = catalog_of(cluster((0, 1)), 1000, None)
    second = catalog_of(cluster((0,)), 2000, first)
    assert second.out_since == {(tp, 2): 1000, (tp, 1): 2000}
    back = catalog_of(cluster((0, 1, 2)), 3000, second)
    assert back.out_since == {}
    assert catalog_of(cluster((0, 1)), 4000, back).out_since == {(tp, 2): 4000}


def test_a_topic_is_summed_up():
    found = catalog_of(cluster((), leader=-1), 1000, None)
    assert found.topics["orders"] == TopicSummary("orders", False, 1, 3, 1, 1)
    assert (found.partitions, found.not_in_sync, found.leaderless) == (1, 1, 1)


def test_a_replica_that_was_out_at_the_first_look_may_have_been_for_longer():
    out = TopicPartition("orders", 0), 2
    first = catalog_of(cluster((0, 1)), 1_700_000_000_000, None)
    at_least = "behind since 2023-11-14T22:13:20.000Z at least, when this page first looked"
    assert since_text(out, first, first.at_ms) == at_least
    later = catalog_of(cluster((0, 1)), 1_700_000_060_000, first)
    assert since_text(out, later, first.at_ms) == at_least
    back = catalog_of(cluster((0, 1, 2)), 1_700_000_060_000, later)
    # It has left the ISR since the last look.
    assert since_text(out, back, first.at_ms) == "behind since 2023-11-14T22:14:20.000Z"
    again = catalog_of(cluster((0, 1)), 1_700_000_120_000, back)
    assert since_text(out, again, first.at_ms) == "behind since 2023-11-14T22:15:20.000Z"
    assert since_text(out, None, None) == "behind"


class SlowReader:
    """Answers the first question late, with what was true when it was asked."""

    def __init__(self):
        self.was_asked, self.may_answer = threading.Event(), threading.Event()
        self._answers = iter([cluster((0,)), cluster((0, 1, 2))])

    def ask(self, question):
        answer = next(self._answers)
        if not self.was_asked.is_set():
            self.was_asked.set()
            assert self.may_answer.wait(60)
        return answer


def test_an_older_answer_does_not_replace_a_newer_one():
    """Of the thread's look and that of a page which has changed something: the page showed what was before."""
    reader = SlowReader()
    sampler = Sampler(reader, time=MockTime())
    first, second = (threading.Thread(target=sampler.look_again) for _ in range(2))
    first.start()
    assert reader.was_asked.wait(60)
    second.start()
    second.join(0.2)  # it has its answer, or waits
    reader.may_answer.set()
    first.join(60)
    second.join(60)
    assert sampler.catalog.not_in_sync == 0
