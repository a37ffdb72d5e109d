"""A watch of partitions and a fetch that waits for it, by themselves.

tests/unit/server/requests/test_session_fetch.py has them over a socket.
"""

from tests.batches import batch
from tests.waiting import wait_until


def test_a_record_that_is_appended_before_the_wait_begins_ends_it_at_once(leader):
    answers = []
    fetch, watch = wait_until(leader, answers)
    leader.produce(batch(b"meanwhile"))
    assert not answers
    assert fetch.begin() and fetch.is_completed and len(answers) == 1 and watch.waiting == ()
    watch.close()


def test_a_record_that_is_appended_during_the_wait_ends_it(leader):
    answers = []
    fetch, watch = wait_until(leader, answers)
    assert fetch.begin() and not answers and watch.waiting == (fetch,)
    leader.produce(batch(b"a"))
    assert len(answers) == 1 and watch.waiting == ()
    watch.close()


def test_a_fetch_does_not_wait_for_a_watch_that_is_closed(leader):
    answers = []
    fetch, watch = wait_until(leader, answers)
    watch.close()
    assert not fetch.begin() and not fetch.is_completed and not answers
