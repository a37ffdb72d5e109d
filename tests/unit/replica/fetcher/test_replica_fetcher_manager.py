"""Threads that drive FetcherState, and who has which (FMGR, FT).  Leaders are functions; the logs are lists."""

import queue
import threading

import pytest

from kcore import errors
from kcore.common.time import SYSTEM_TIME
from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.errors import FencedLeaderEpoch
from kcore.replica.fetcher.fetcher_state import FetcherConfig
from kcore.replica.fetcher.fetchers import FetchSource, InitialFetchState, fetcher_id
from kcore.replica.fetcher.follower_logs import AppendedRecords
from kcore.replica.fetcher.leader_endpoint import FetchedPartition, FetchReply, LeaderFeatures
from kcore.replica.fetcher.partition_fetch_state import Phase
from kcore.replica.fetcher.replica_fetcher_manager import FetcherKey, ReplicaFetcherManager
from tests.waiting import wait_until

DEADLINE_S = 60
TPS = [TopicPartition("t", number) for number in range(8)]
A, B = TPS[0], TPS[1]


class Logs:
    """Records are bytes, one per offset, all of epoch 1."""

    def __init__(self):
        self.ends = dict.fromkeys(TPS, 1)
        self.completed = []
        self.append_hook = lambda tp: None

    def log_end_offset(self, tp):
        return self.ends[tp]

    def log_start_offset(self, tp):
        return 0

    def start_and_topic_id(self, tp):
        return 0, ZERO_UUID

    def high_watermark(self, tp):
        return 0

    def latest_epoch(self, tp):
        return 1

    def append(self, tp, records, leader_log_start_offset, leader_epoch):
        self.append_hook(tp)
        self.ends[tp] += len(records)
        return AppendedRecords(self.ends[tp] - 1, 1)

    def update_high_watermark(self, tp, offset):
        pass

    def maybe_increment_log_start_offset(self, tp, offset):
        pass

    def complete_waiting(self):
        self.completed.append(dict(self.ends))


class Leader:
    """An end point; each send() waits for what answer() gives it."""

    def __init__(self):
        self.features = LeaderFeatures()
        self.requests = queue.Queue()
        self.replies = queue.Queue()
        self.is_closed = threading.Event()

    def send(self, request):
        self.requests.put(request)
        reply = self.replies.get(timeout=DEADLINE_S)
        if isinstance(reply, Exception):
            raise reply
        return FetchReply(reply)

    def close(self):
        self.is_closed.set()
        self.replies.put(ConnectionAbortedError("closed"))

    def next_request(self):
        return self.requests.get(timeout=DEADLINE_S)

    def answer(self, reply):
        """The request that is answered."""
        request = self.next_request()
        self.replies.put(reply)
        return request


class Fixture:
    def __init__(self, num_fetchers=1, **config):
        self.logs = Logs()
        self.leaders = {}  # key -> end points in the order in which they were made
        self.addresses = {1: ("one", 1), 2: ("two", 2)}
        self.manager = ReplicaFetcherManager(
            "fetcher",
            num_fetchers,
            FetcherConfig(**config),
            SYSTEM_TIME,
            make_logs=lambda: self.logs,
            make_end_point=self._make_end_point,
            address_of=self.addresses.get,
        )

    def _make_end_point(self, address, fetcher_id):
        (leader_id,) = (number for number, known in self.addresses.items() if known == address)
        leader = Leader()
        self.leaders.setdefault((leader_id, fetcher_id), []).append(leader)
        return leader

    def add(self, *tps, leader_id=1, epoch=5):
        self.manager.add_partitions({tp: FetchSource(leader_id, InitialFetchState(0, epoch)) for tp in tps})

    def keys(self):
        return set(self.manager.threads())


@pytest.fixture
def make():
    made = []

    def make(*arguments, **config):
        made.append(Fixture(*arguments, **config))
        return made[-1]

    yield make
    for fixture in made:
        fixture.manager.close()


# -- which thread -----------------------------------------------------------------------------------------------------


def test_FMGR_01_a_partition_always_has_the_same_fetcher_and_all_fetchers_get_some():
    # Fixed answers: another process, and the next start, must compute the same.
    assert [fetcher_id(TopicPartition("orders", number), 4) for number in range(6)] == [2, 3, 0, 1, 2, 3]
    assert fetcher_id(TopicPartition("payments", 7), 4) == 1
    assert {fetcher_id(TopicPartition(f"topic-{number}", 0), 4) for number in range(40)} == {0, 1, 2, 3}


def test_FMGR_02_FMGR_05_the_partitions_of_a_leader_and_fetcher_id_share_a_thread_and_a_connection(make):
    fixture = make(2)
    fixture.add(*TPS)
    fixture.add(TPS[0], leader_id=2, epoch=6)
    assert fixture.keys() == {(1, 0), (1, 1), (2, fetcher_id(TPS[0], 2))}
    assert all(len(made) == 1 for made in fixture.leaders.values())
    one, other = (set(fixture.leaders[1, number][0].next_request().partitions) for number in range(2))
    assert one | other == set(TPS) and not one & other


def test_FMGR_03_a_thread_with_the_same_host_and_port_is_reused(make):
    fixture = make()
    fixture.add(A)
    fixture.add(B)
    assert len(fixture.leaders[1, 0]) == 1 and len(fixture.manager.threads()) == 1


def test_FMGR_04_a_thread_whose_leader_has_moved_is_replaced_and_its_partitions_go_on(make):
    fixture = make()
    fixture.add(A)
    fixture.leaders[1, 0][0].answer({A: FetchedPartition(b"xx", 3, 0)})
    old = fixture.manager.threads()[FetcherKey(1, 0)]
    fixture.leaders[1, 0][0].next_request()
    fixture.addresses[1] = ("elsewhere", 1)
    fixture.add(B)
    assert not old._thread.is_alive() and fixture.leaders[1, 0][0].is_closed.is_set()
    request = fixture.leaders[1, 0][1].next_request()
    while B not in request.partitions:  # its thread runs before the new partition is there
        fixture.leaders[1, 0][1].replies.put({})
        request = fixture.leaders[1, 0][1].next_request()
    assert request.partitions[A].fetch_offset == 3


def test_a_leader_without_an_address_is_not_copied_from(make):
    fixture = make()
    fixture.add(A, leader_id=9)
    assert not fixture.keys()


def test_FMGR_06_partitions_are_added_with_their_offset_and_epoch_to_a_thread_that_is_there(make):
    fixture = make(truncates_on_fetch=False)
    fixture.manager.add_partitions(
        {A: FetchSource(1, InitialFetchState(-1, 5)), B: FetchSource(1, InitialFetchState(1, 6))}
    )
    assert fixture.manager.states()[A].current_leader_epoch == 5
    assert fixture.manager.states()[A].phase is Phase.LOOKING_UP_OFFSETS
    assert (fixture.manager.states()[B].fetch_offset, fixture.manager.states()[B].current_leader_epoch) == (1, 6)


def test_FMGR_07_FMGR_08_only_threads_without_partitions_are_stopped(make):
    fixture = make()
    fixture.add(A)
    fixture.add(B, leader_id=2)
    fixture.manager.shutdown_idle()
    assert fixture.keys() == {(1, 0), (2, 0)}
    threads = fixture.manager.threads()
    assert set(fixture.manager.remove_partitions([A])) == {A}
    fixture.manager.shutdown_idle()
    assert fixture.keys() == {(2, 0)}
    assert not threads[FetcherKey(1, 0)]._thread.is_alive() and threads[FetcherKey(2, 0)]._thread.is_alive()


def test_FMGR_07_a_failed_mark_outlives_its_idle_thread_and_is_dropped_with_the_partition(make):
    fixture = make()
    fixture.add(A)
    fixture.leaders[1, 0][0].answer({A: FetchedPartition(error=FencedLeaderEpoch())})
    wait_until(lambda: fixture.manager.failed_partitions_count == 1)
    assert "FencedLeaderEpoch" in fixture.manager.delay_reason(A)
    fixture.manager.shutdown_idle()
    assert not fixture.keys() and fixture.manager.failed_partitions_count == 1
    assert "until the controller's next update" in fixture.manager.delay_reason(A)
    fixture.manager.remove_partitions([A])
    assert fixture.manager.failed_partitions_count == 0 and fixture.manager.delay_reason(A) is None


def test_FMGR_09_closing_ends_every_thread_and_none_starts_afterwards(make):
    fixture = make(2)
    fixture.add(*TPS)
    fixture.add(A, leader_id=2, epoch=6)
    threads = fixture.manager.threads().values()
    fixture.manager.close()
    assert not any(thread._thread.is_alive() for thread in threads)
    fixture.add(A)
    assert not fixture.keys()


def test_FMGR_09_all_of_it_runs_under_one_lock(make):
    fixture = make()
    calls = [
        lambda: fixture.add(A),
        lambda: fixture.manager.remove_partitions([A]),
        fixture.manager.shutdown_idle,
        lambda: fixture.manager.resize(3),
        fixture.manager.close,
    ]
    for call in calls:
        with fixture.manager._lock:
            thread = threading.Thread(target=call)
            thread.start()
            thread.join(0.05)
            assert thread.is_alive()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_FMGR_10_another_number_of_fetchers_spreads_the_partitions_and_keeps_their_offsets(make):
    fixture = make()
    fixture.add(*TPS)
    fixture.leaders[1, 0][0].answer({tp: FetchedPartition(b"x" * tp.partition, 99, 0) for tp in TPS})
    fixture.leaders[1, 0][0].next_request()  # so that the reply was processed
    before = fixture.manager.states()
    assert [before[tp].fetch_offset for tp in TPS] == [1 + tp.partition for tp in TPS]
    fixture.manager.resize(3)
    assert fixture.keys() == {(1, 0), (1, 1), (1, 2)}
    assert fixture.manager.states() == before
    for key, thread in fixture.manager.threads().items():
        assert {fetcher_id(tp, 3) for tp in thread.states()} == {key.fetcher_id}
    fixture.manager.resize(1)
    assert fixture.keys() == {(1, 0)} and fixture.manager.states() == before


def test_FMGR_11_lag_requests_failed_partitions_and_dead_threads_are_counted(make, monkeypatch):
    fixture = make()
    fixture.add(A, B)
    leader = fixture.leaders[1, 0][0]
    assert fixture.manager.failed_partitions_count == 0
    leader.answer({A: FetchedPartition(b"xx", 9, 0), B: FetchedPartition(error=FencedLeaderEpoch())})
    leader.next_request()
    assert fixture.manager.failed_partitions_count == 1
    fixture.add(B, epoch=6)
    assert fixture.manager.failed_partitions_count == 0
    (thread,) = fixture.manager.threads().values()
    assert (thread.bytes, thread.requests, fixture.manager.dead_thread_count) == (2, 2, 0)
    monkeypatch.setattr(thread._state, "next_request", lambda now: 1 / 0)
    leader.replies.put({})
    wait_until(lambda: fixture.manager.dead_thread_count == 1)
    fixture.add(B, epoch=7)  # a thread in its place goes on with all of its partitions
    assert fixture.manager.dead_thread_count == 0 and set(fixture.manager.states()) == {A, B}


# -- the thread -------------------------------------------------------------------------------------------------------


def test_FT_12_a_thread_that_waits_is_woken_by_a_new_partition(make):
    fixture = make(fetch_backoff_ms=10 * DEADLINE_S * 1000)
    fixture.add(A)
    leader = fixture.leaders[1, 0][0]
    leader.answer(OSError("unreachable"))
    wait_until(lambda: fixture.manager.states()[A].delayed_until_ms is not None)
    fixture.add(B)
    assert set(leader.next_request().partitions) == {B}


def test_FT_13_the_lock_is_free_while_a_request_is_on_its_way_and_held_while_its_reply_is_processed(make):
    fixture = make()
    fixture.add(A, B)
    leader = fixture.leaders[1, 0][0]
    leader.next_request()
    fixture.manager.remove_partitions([B])  # returns while the leader is silent
    inside, proceed = threading.Event(), threading.Event()
    fixture.logs.append_hook = lambda tp: inside.set() or proceed.wait(DEADLINE_S)
    leader.replies.put({A: FetchedPartition(b"xx", 3, 0)})
    assert inside.wait(DEADLINE_S)
    ends_after_removal = []

    def remove():
        fixture.manager.remove_partitions([A])
        ends_after_removal.append(fixture.logs.ends[A])

    remover = threading.Thread(target=remove)
    remover.start()
    remover.join(0.05)
    assert remover.is_alive(), "RM-14: the partition is removed only after what is being appended"
    proceed.set()
    remover.join(DEADLINE_S)
    assert ends_after_removal == [3]


def test_FT_14_a_request_that_fails_is_repeated_after_the_back_off_and_the_thread_lives(make, caplog):
    caplog.set_level("INFO")
    fixture = make(fetch_backoff_ms=1)
    fixture.add(A)
    leader = fixture.leaders[1, 0][0]
    leader.answer(ConnectionResetError("gone"))
    leader.answer(ValueError("a malformed answer"))
    leader.answer({A: FetchedPartition(b"x", 2, 0)})
    assert leader.next_request().partitions[A].fetch_offset == 2
    assert "a request to leader broker 1 failed: gone" in caplog.text


def test_only_what_no_leader_can_cause_is_logged_with_a_traceback_and_that_once(make, caplog):
    fixture = make(fetch_backoff_ms=1)
    fixture.add(A)
    leader = fixture.leaders[1, 0][0]
    for error in (errors.InvalidRequest("malformed"), ConnectionResetError("gone"), *[KeyError("bug")] * 3):
        leader.answer(error)
    leader.next_request()
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [KeyError]


def test_FT_14_what_fails_because_of_the_shutdown_is_not_logged(make, caplog):
    fixture = make()
    fixture.add(A)
    fixture.leaders[1, 0][0].next_request()
    with caplog.at_level("INFO"):
        fixture.manager.close()
    assert not [record for record in caplog.records if record.name.startswith("kcore.replica")]
    assert fixture.manager.failed_partitions_count == 0


def test_FT_15_failed_requests_count_too(make):
    fixture = make(fetch_backoff_ms=1)
    fixture.add(A)
    leader = fixture.leaders[1, 0][0]
    (thread,) = fixture.manager.threads().values()
    leader.answer(OSError())
    leader.answer({})
    leader.next_request()
    assert thread.requests == 3


def test_FT_32_marking_for_truncation_ends_the_back_off_of_the_partition(make):
    fixture = make(fetch_backoff_ms=10 * DEADLINE_S * 1000)
    fixture.add(A)
    fixture.leaders[1, 0][0].answer(OSError())
    wait_until(lambda: fixture.manager.states()[A].delayed_until_ms is not None)
    (thread,) = fixture.manager.threads().values()
    thread.mark_for_truncation(A, 0)
    assert A in fixture.leaders[1, 0][0].next_request().partitions


@pytest.mark.parametrize("waits_for", ["its back-off", "the leader"])
def test_FT_33_shutdown_wakes_the_thread_closes_its_connection_and_waits_for_it(make, waits_for):
    fixture = make(fetch_backoff_ms=10 * DEADLINE_S * 1000)
    fixture.add(A)
    leader = fixture.leaders[1, 0][0]
    if waits_for == "the leader":
        leader.next_request()
    else:
        leader.answer(OSError())
        wait_until(lambda: fixture.manager.states()[A].delayed_until_ms is not None)
    (thread,) = fixture.manager.threads().values()
    thread.shutdown()
    assert not thread._thread.is_alive() and leader.is_closed.is_set()


def test_requests_that_wait_are_completed_without_the_lock(make):
    fixture = make()
    fixture.add(A)
    leader = fixture.leaders[1, 0][0]
    (thread,) = fixture.manager.threads().values()
    free = []

    def complete_waiting():
        free.append(not thread._changed._lock.locked())

    fixture.logs.complete_waiting = complete_waiting
    leader.answer({A: FetchedPartition(b"x", 2, 0)})
    leader.next_request()
    assert free == [True]


def test_features_of_the_leader_reach_the_next_request(make):
    fixture = make()
    fixture.add(A)
    leader = fixture.leaders[1, 0][0]
    assert leader.next_request().partitions[A].last_fetched_epoch == 1
    leader.features = LeaderFeatures(truncates_on_fetch=False, looks_up_epochs=True)
    leader.replies.put({})
    assert type(leader.next_request()).__name__ == "OffsetForLeaderEpochRequest"
