"""Two real brokers, one follows the other over a socket: the files become equal, whatever comes between."""

import errno

import pytest

from kcore.common import file
from kcore.protocol import api_keys
from kcore.protocol.api_keys import ApiKey
from kcore.replica.fetcher.partition_fetch_state import Phase
from kcore.replica.moves.replica_alter_log_dirs_manager import ReplicaAlterLogDirsManager
from tests.unit.server.absent_controller import be_the_controller
from tests.unit.server.replicas import T0, T1, Proxy, Replicas
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _members(monkeypatch):
    be_the_controller(monkeypatch)


@pytest.fixture
def make(tmp_path):
    made = []

    def make(**config):
        made.append(Replicas(tmp_path, **config))
        return made[-1]

    yield make
    file.clear_faults()
    for replicas in made:
        replicas.stop()


@pytest.fixture
def replicas(make):
    return make()


def test_RFT_01_a_follower_copies_its_leader_byte_for_byte(replicas):
    replicas.lead(0, T0, T1)
    for number in range(30):
        replicas.produce(0, b"x" * number, b"y", tp=(T0, T1)[number % 2], compression=("none", "gzip")[number % 3 == 0])
    replicas.wait_until_equal(T0, T1)
    assert replicas.ends(T0) == [30, 30]
    records = [record.value for record in replicas.log(1).records()]
    assert records == [record.value for record in replicas.log(0).records()] and len(records) == 30


def test_an_append_to_all_is_acknowledged_when_the_follower_has_it(replicas):
    replicas.lead(0, to=[0])
    answer = replicas.produce(0, b"a", acks=-1)
    assert answer.empty() and replicas.log(0).high_watermark == 0
    replicas.lead(0)
    answer = replicas.produce(0, b"b", acks=-1)
    status = answer.get(timeout=60)
    assert status.error is None and status.base_offset == 1
    assert replicas.log(1).log_end_offset == 2


def test_HW_04_the_followers_high_watermark_is_the_leaders_after_one_more_fetch(replicas):
    replicas.lead(0)
    replicas.produce(0, b"a", b"b", acks=-1).get(timeout=60)
    wait_until(lambda: replicas.log(0).high_watermark == 2)
    # The answer that carried the records had the old one; the leader is idle since.
    wait_until(lambda: replicas.log(1).high_watermark == 2)
    wait_until(lambda: replicas.thread(1).states()[T0].lag == 0)


def test_a_leader_that_restarts_is_followed_again(replicas):
    replicas.lead(0)
    replicas.produce(0, b"a")
    replicas.wait_until_equal()
    replicas.stop(0)
    wait_until(lambda: replicas.thread(1).states()[T0].delayed_until_ms is not None)
    replicas.start(0)
    replicas.lead(0)
    replicas.produce(0, b"b")
    replicas.wait_until_equal()
    assert replicas.ends() == [2, 2]


def test_a_follower_that_restarts_goes_on_where_its_log_ends(replicas):
    replicas.lead(0, T0, T1)
    replicas.produce(0, b"a")
    replicas.wait_until_equal(T0)
    replicas.stop(1)
    replicas.produce(0, b"b")
    replicas.produce(0, b"c", tp=T1)
    replicas.start(1)
    replicas.lead(0, T0, T1)
    replicas.wait_until_equal(T0, T1)
    assert replicas.ends() == [2, 2]


def test_RFT_15_a_truncation_of_a_followed_log_reaches_its_move_between_directories(make, monkeypatch):
    marked = []
    monkeypatch.setattr(ReplicaAlterLogDirsManager, "mark_for_truncation", lambda self, *mark: marked.append(mark))
    replicas = make()
    replicas.lead(0)
    replicas.produce(0, b"both")
    replicas.wait_until_equal()
    replicas.brokers[1].replica_manager.fetchers.remove_partitions([T0])
    replicas.produce(0, b"only the old leader")
    replicas.lead(1, isr=[1], to=[1])
    replicas.produce(1, b"only the new leader")
    marked.clear()
    replicas.lead(1)
    replicas.wait_until_equal()
    assert (T0, 1) in marked


@pytest.mark.parametrize("truncates_on_fetch", [True, False], ids=["by Fetch 12", "by OffsetForLeaderEpoch"])
def test_V22_06_logs_that_diverged_become_equal_to_the_new_leaders(make, monkeypatch, truncates_on_fetch):
    if not truncates_on_fetch:
        monkeypatch.setitem(api_keys.SUPPORTED, ApiKey.FETCH, (0, 11))
    replicas = make()
    replicas.lead(0)
    replicas.produce(0, b"both")
    replicas.wait_until_equal()
    # The follower gets no more records of its leader from here on, and becomes the leader itself.
    replicas.brokers[1].replica_manager.fetchers.remove_partitions([T0])
    for number in range(5):
        replicas.produce(0, b"only the old leader %d" % number)
    replicas.lead(1, isr=[1], to=[1])
    replicas.produce(1, b"only the new leader", b"and more")
    replicas.lead(1, to=[1])
    replicas.produce(1, b"in a third epoch")
    assert replicas.ends() == [6, 4]
    replicas.lead(1)
    replicas.wait_until_equal()
    assert [record.value for record in replicas.log(0).records()] == [
        b"both",
        b"only the new leader",
        b"and more",
        b"in a third epoch",
    ]
    assert replicas.thread(0)._end_point.features.truncates_on_fetch is truncates_on_fetch


def test_V22_06_a_log_without_epochs_is_cut_at_its_high_watermark_and_fetched_from_there(replicas):
    replicas.lead(0)
    replicas.produce(0, b"a", b"b")
    replicas.wait_until_equal()
    assert replicas.thread(1).states()[T0].phase is Phase.FETCHING


@pytest.mark.parametrize("leader_starts_at", [3, 8])
def test_V22_07_an_offset_out_of_range_in_an_answer_is_repaired_as_one_below_zero_is(replicas, leader_starts_at):
    replicas.lead(0)
    for number in range(5):
        replicas.produce(0, b"%d" % number)
    replicas.wait_until_equal()
    replicas.stop(1)
    for number in range(5, 10):
        replicas.produce(0, b"%d" % number)
    replicas.log(0).update_high_watermark(10)
    replicas.log(0).maybe_increment_log_start_offset(leader_starts_at)
    replicas.start(1)
    replicas.lead(0)
    wait_until(lambda: replicas.ends() == [10, 10] and replicas.log(1).high_watermark == 10)
    expected = [b"%d" % n for n in range(leader_starts_at, 10)]
    # The follower's log begins where its leader's does after its records and its high watermark have come.
    wait_until(lambda: [record.value for record in replicas.log(1).records()] == expected)


def test_RFT_17_a_leader_without_the_session_gets_a_full_request(replicas):
    replicas.lead(0)
    replicas.produce(0, b"a")
    replicas.wait_until_equal()
    session = replicas.thread(1)._end_point._session
    wait_until(lambda: session.epoch > 1)
    replicas.brokers[0].running.services.fetch_sessions.close(session.session_id)
    replicas.produce(0, b"b")
    replicas.wait_until_equal()
    wait_until(lambda: session.epoch > 0)
    assert replicas.brokers[1].replica_manager.fetchers.failed_partitions_count == 0


def test_num_replica_fetchers_changes_while_the_broker_runs(replicas):
    replicas.lead(0, T0, T1)
    replicas.produce(0, b"a")
    replicas.wait_until_equal(T0)
    fetchers = replicas.brokers[1].replica_manager.fetchers
    assert len(fetchers.threads()) == 1
    replicas.brokers[1].config.reconfigure({"num.replica.fetchers": 3})
    assert {tp for thread in fetchers.threads().values() for tp in thread.states()} == {T0, T1}
    assert len(fetchers.threads()) == 2
    for tp in (T0, T1):
        replicas.produce(0, b"b", tp=tp)
    replicas.wait_until_equal(T0, T1)


# -- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.fixture
def proxied(replicas):
    proxy = Proxy("127.0.0.1", replicas.ports[0])
    replicas.advertised[0] = proxy.address
    replicas.proxy = proxy
    yield replicas
    proxy.close()


def test_a_connection_that_breaks_in_the_middle_of_an_answer_costs_a_back_off_and_nothing_else(proxied):
    proxied.lead(0)
    for _ in range(4):
        proxied.produce(0, b"x" * 100_000)
    passed = []

    def cut_once(data):
        passed.append(len(data))
        return None if sum(passed) > 200_000 > sum(passed[:-1]) else data

    proxied.proxy.on_response = cut_once
    for _ in range(4):
        proxied.produce(0, b"x" * 100_000)
    proxied.wait_until_equal()
    assert proxied.proxy.connections >= 2
    assert proxied.brokers[1].replica_manager.fetchers.failed_partitions_count == 0


def test_a_corrupt_batch_is_fetched_again_later_and_the_other_partitions_go_on(replicas):
    replicas.lead(0, T0, T1)
    replicas.produce(0, b"fine")
    replicas.wait_until_equal(T0)
    replicas.brokers[1].replica_manager.fetchers.remove_partitions([T0])
    replicas.produce(0, b"will be damaged")
    path = next((replicas.directory / "0" / "t-0").glob("*.log"))
    sound = path.read_bytes()
    with path.open("r+b") as log:
        log.seek(len(sound) - 5)
        log.write(bytes([sound[-5] ^ 1]))
    replicas.lead(0, T0)
    replicas.produce(0, b"of the other", tp=T1)
    replicas.wait_until_equal(T1)
    wait_until(lambda: replicas.thread(1).states()[T0].delayed_until_ms is not None)
    assert replicas.ends(T0) == [2, 1] and replicas.brokers[1].replica_manager.fetchers.failed_partitions_count == 0
    with path.open("r+b") as log:
        log.write(sound)
    replicas.wait_until_equal(T0)


def test_a_full_disk_of_the_follower_delays_the_partition_that_it_hit_until_there_is_room(replicas):
    replicas.lead(0, T0, T1)
    replicas.produce(0, b"fine")
    replicas.wait_until_equal(T0)
    file.fail_next("pwrite", errno.ENOSPC, times=-1, under=str(replicas.directory / "1" / "t-0"))
    replicas.produce(0, b"no room")
    fetchers = replicas.brokers[1].replica_manager.fetchers
    wait_until(lambda: fetchers.states()[T0].delayed_until_ms is not None)
    replicas.produce(0, b"of the other", tp=T1)
    replicas.wait_until_equal(T1)
    file.clear_faults()
    replicas.wait_until_equal(T0)
    assert fetchers.failed_partitions_count == 0 and fetchers.dead_thread_count == 0
