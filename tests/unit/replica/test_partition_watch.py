"""A watch of partitions and a fetch that waits for it, by themselves.

tests/unit/server/requests/test_session_fetch.py has them over a socket.
"""

from types import SimpleNamespace

from kcore.log.log_offset_metadata import FetchIsolation
from kcore.replica.fetch_params import FetchParams, FetchPartitionData
from kcore.replica.partition_watch import PartitionWatch, WatchingFetch
from tests.batches import batch
from tests.unit.replica.conftest import TP


def fetch_and_watch(leader, answers):
    """(a fetch that wants the leader's next record, its watch)."""
    manager = leader.replica_manager
    watch = PartitionWatch.of(manager, FetchIsolation.HIGH_WATERMARK)
    watch.cover([TP])
    params = FetchParams(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20)
    partitions = {TP: SimpleNamespace(data=FetchPartitionData(0, 1 << 20))}
    return WatchingFetch(params, partitions, watch, manager, lambda: answers.append(None)), watch


def test_a_record_that_is_appended_before_the_wait_begins_ends_it_at_once(leader):
    answers = []
    fetch, watch = fetch_and_watch(leader, answers)
    leader.produce(batch(b"meanwhile"))
    assert not answers
    assert fetch.begin() and fetch.is_completed and len(answers) == 1 and watch.waiting == ()
    watch.close()


def test_a_record_that_is_appended_during_the_wait_ends_it(leader):
    answers = []
    fetch, watch = fetch_and_watch(leader, answers)
    assert fetch.begin() and not answers and watch.waiting == (fetch,)
    leader.produce(batch(b"a"))
    assert len(answers) == 1 and watch.waiting == ()
    watch.close()


def test_a_fetch_does_not_wait_for_a_watch_that_is_closed(leader):
    answers = []
    fetch, watch = fetch_and_watch(leader, answers)
    watch.close()
    assert not fetch.begin() and not fetch.is_completed and not answers
