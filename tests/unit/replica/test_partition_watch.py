"""A fetch of a session and its watch by themselves.

tests/unit/server/requests/test_session_fetch.py has them over a socket.
"""

from kcore.log.log_offset_metadata import FetchIsolation
from kcore.replica.fetch_params import FetchParams, FetchPartitionData
from kcore.replica.partition_watch import PartitionWatch, SessionFetch
from tests.unit.replica.conftest import TP, Answer, batch


def test_a_record_that_is_appended_between_the_read_of_a_fetch_and_its_wait_is_answered_at_once(leader, monkeypatch):
    manager = leader.replica_manager
    watch = PartitionWatch.of(manager, FetchIsolation.HIGH_WATERMARK)
    watch.cover([TP])
    read = manager.fetch_now

    def fetch_now(params, infos):
        results = read(params, infos)
        leader.produce(batch(b"meanwhile"))
        return results

    monkeypatch.setattr(manager, "fetch_now", fetch_now)
    answer = Answer()
    params = FetchParams(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20)
    fetch = SessionFetch(params, {TP: FetchPartitionData(0, 1 << 20)}, [TP], watch, watch.take_changed, manager, answer)
    fetch.start()
    assert not answer.waits
    ((_, result),) = answer.result
    assert result.records.size_in_bytes == len(batch(b"meanwhile"))
    watch.close()
