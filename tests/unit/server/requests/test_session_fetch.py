"""Sessions of many partitions: the answers of a read of all of them, at the cost of what has changed."""

import random
import time
from dataclasses import replace

import pytest

import kcore
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.errors import IneligibleReplica, InvalidFetchSessionEpoch
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation, LogOffsetMetadata
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.messages import fetch as f
from kcore.record.memory_records import MemoryRecords
from kcore.replica.delayed.delayed_fetch import DelayedFetch
from kcore.replica.explain import waiting_requests
from kcore.replica.fetch_params import FetchParams, FetchPartitionData
from kcore.replica.local_reads import LocalReads
from kcore.replica.partition import Partition
from kcore.replica.partition_state import LeaderAndIsrUpdate
from kcore.replica.partition_state_store import StoredIsr
from kcore.replica.partition_watch import PartitionWatch, WatchingFetch
from kcore.server.handlers.fetch import Handler
from kcore.server.requests.fetch_session import VIEW_CHECK_MS, FetchSessionCache
from tests.batches import batch
from tests.unit.server.client import Client
from tests.waiting import wait_until

COUNT = 40


class Reader:
    """A client with one session over topic "t"; where it is in each partition, and what it was answered."""

    def __init__(self, client, version=12, **fields):
        self.client = client
        self.version = version
        self.fields = fields
        self.session_id = self.epoch = 0
        self.offsets = {}
        self.high_watermarks = {}
        self.log_starts = {}

    def request(self, changed=(), forgotten=(), max_wait_ms=0):
        for number in forgotten:
            del self.offsets[number]
        partitions = [
            f.FetchPartition(partition=number, fetch_offset=self.offsets[number], partition_max_bytes=1 << 20)
            for number in changed
        ]
        return f.FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[f.FetchTopic(topic="t", partitions=partitions)] if partitions else [],
            forgotten_topics_data=[f.ForgottenTopic(topic="t", partitions=list(forgotten))] if forgotten else [],
            **self.fields,
        )

    def take(self, response):
        """{partition: (error, values)}; the offsets move on."""
        assert response.error_code == 0
        self.session_id, self.epoch = response.session_id, self.epoch + 1
        answers = {}
        for topic in response.responses:
            for partition in topic.partitions:
                number = partition.partition_index
                values = [record.value for record in MemoryRecords(bytes(partition.records)).records()]
                answers[number] = (partition.error_code, values)
                self.high_watermarks[number] = partition.high_watermark
                self.log_starts[number] = partition.log_start_offset
                if number in self.offsets:
                    self.offsets[number] += len(values)
        return answers

    def fetch(self, changed=(), forgotten=(), max_wait_ms=0):
        return self.take(self.client.ask(self.request(changed, forgotten, max_wait_ms), self.version))

    def open(self, broker, numbers=range(COUNT)):
        self.offsets = {number: broker.log("t", number).log_end_offset for number in numbers}
        self.fetch(self.offsets)
        assert self.session_id > 0
        assert self.fetch() == {}
        return self

    def send(self, **arguments):
        self.client.send(self.request(**arguments), self.version)

    def receive(self):
        return self.take(self.client.receive(ApiKey.FETCH, self.version))


@pytest.fixture
def broker():
    with kcore.Broker(time=MockTime()) as broker:
        broker.create_topic("t", partitions=COUNT)
        yield broker


@pytest.fixture
def client(broker):
    with Client(broker) as client:
        yield client


@pytest.fixture
def reads(monkeypatch):
    """The partitions that are read."""
    numbers, read = [], Partition.read_records

    def read_records(self, *args, **kwargs):
        numbers.append(self.topic_partition.partition)
        return read(self, *args, **kwargs)

    monkeypatch.setattr(Partition, "read_records", read_records)
    return numbers


def observers(broker):
    manager = broker.replica_manager
    return sum(
        len(watching)
        for purgatory in (manager.delayed_fetch_purgatory, manager.delayed_log_end_fetch_purgatory)
        for watching in list(purgatory.watchers.values())
    )


def test_SESS_08_SESS_15_an_idle_fetch_reads_nothing_and_one_after_an_append_reads_what_has_changed(
    broker, client, reads
):
    reader = Reader(client).open(broker)
    reads.clear()
    assert reader.fetch() == {} and reader.fetch(max_wait_ms=1) == {} and reads == []
    broker.produce("t", b"a", partition=7)
    assert reader.fetch() == {7: (0, [b"a"])} and set(reads) == {7}
    reads.clear()
    assert reader.fetch([7]) == {} and reader.fetch() == {} and set(reads) == {7}


def test_SESS_08_when_all_partitions_are_read_the_end_of_the_wait_does_not_read_them_again(broker, client, reads):
    reader = Reader(client).open(broker)
    broker.replica_manager.time.sleep(5000)
    reads.clear()
    assert reader.fetch(max_wait_ms=1) == {} and sorted(reads) == list(range(COUNT))


@pytest.mark.parametrize("seed", range(5))
def test_SESS_08_whatever_happens_each_record_is_answered_once_and_at_once(broker, client, seed):
    rng = random.Random(seed)
    reader = Reader(client).open(broker, range(COUNT - 5))
    expected, changed = {}, set()
    for _ in range(150):
        for number in rng.sample(range(COUNT), rng.choice((0, 0, 1, 3))):
            value = b"%d" % rng.randrange(1000)
            broker.produce("t", value, partition=number)
            if number in reader.offsets:
                expected.setdefault(number, []).append(value)
        forgotten = []
        if rng.random() < 0.1:
            forgotten = rng.sample(sorted(reader.offsets), 1)
            changed -= set(forgotten)
            for number in forgotten:
                expected.pop(number, None)
        others = sorted(set(range(COUNT)) - reader.offsets.keys())
        if others and rng.random() < 0.1:
            new = rng.choice(others)
            reader.offsets[new] = broker.log("t", new).log_end_offset
            changed.add(new)
        if rng.random() < 0.1:
            broker.replica_manager.time.sleep(5000)  # all are read
        wait_ms = rng.choice((0, 0, 1, 60_000)) if expected else rng.choice((0, 1))
        answers = reader.fetch(sorted(changed), forgotten, wait_ms)
        assert {n: (0, values) for n, values in expected.items()} == {n: a for n, a in answers.items() if a[1]}, seed
        changed, expected = set(expected), {}
    assert all(reader.high_watermarks[n] == broker.log("t", n).high_watermark for n in reader.offsets)


def test_SESS_15_a_reader_that_goes_back_in_an_idle_partition_gets_its_records_again(broker, client):
    broker.produce("t", b"a", partition=4)
    reader = Reader(client).open(broker)
    reader.offsets[4] = 0
    assert reader.fetch([4]) == {4: (0, [b"a"])}


def test_a_partition_that_got_nothing_because_of_the_limit_is_read_again(broker, client):
    reader = Reader(client).open(broker)
    for number in (3, 8):
        broker.produce("t", b"a", partition=number)
    reader.fields = {"max_bytes": 1}
    first = reader.fetch()
    assert [number for number, (_, values) in first.items() if values] == [3]
    assert reader.fetch([3]) == {8: (0, [b"a"])}


@pytest.mark.parametrize("version", [10, 12])
def test_a_wait_ends_with_an_append_to_an_idle_partition(broker, client, version):
    reader = Reader(client, version).open(broker)
    for value in (b"a", b"b"):
        reader.send(changed=[n for n in (3,) if value == b"b"], max_wait_ms=60_000)
        broker.produce("t", value, partition=3)
        assert reader.receive() == {3: (0, [value])}


def test_a_record_that_is_appended_between_the_read_of_a_fetch_and_its_wait_is_answered_at_once(
    broker, client, monkeypatch
):
    reader = Reader(client).open(broker)
    manager = broker.replica_manager
    manager.time.sleep(5000)  # all are read
    fetch_now = manager.fetch_now

    def fetch_now_and_produce(params, infos):
        results = fetch_now(params, infos)
        broker.produce("t", b"meanwhile", partition=3)
        return results

    monkeypatch.setattr(manager, "fetch_now", fetch_now_and_produce)
    assert reader.fetch(max_wait_ms=60_000) == {3: (0, [b"meanwhile"])}


def test_a_wait_is_explained(broker, client):
    reader = Reader(client).open(broker)
    tp = TopicPartition("t", 3)
    assert waiting_requests(broker.replica_manager, tp) == ()
    reader.send(max_wait_ms=60_000)
    deadline = time.monotonic() + 60
    while not (waiting := waiting_requests(broker.replica_manager, tp)):
        assert time.monotonic() < deadline
    (request,) = waiting
    assert "consumer" in request.kind and f"{COUNT - 1} other partitions" in request.waits_for
    broker.produce("t", b"a", partition=3)
    reader.receive()
    assert waiting_requests(broker.replica_manager, tp) == ()


def test_a_wait_ends_when_a_partition_is_gone_and_its_error_is_in_each_response(broker, client):
    reader = Reader(client).open(broker)
    reader.send(max_wait_ms=60_000)
    broker.delete_topic("t")
    answers = reader.receive()
    assert answers and {code for code, _ in answers.values()} <= {3, 6}
    assert {code for code, _ in reader.fetch().values()} <= {3, 6}
    assert len(reader.fetch()) == COUNT
    assert observers(broker) == 0


@pytest.mark.parametrize("follows", [False, True])
def test_SESS_08_a_log_start_that_delete_records_raises_is_in_the_next_answer(
    broker, client, reads, monkeypatch, follows
):
    manager, tp = broker.replica_manager, TopicPartition("t", 5)
    for _ in range(3):
        broker.produce("t", b"a", partition=5)
    me = broker.broker_id
    if follows:
        monkeypatch.setattr(manager.get_partition(tp), "is_alive", lambda broker_id: True)
        updates = [LeaderAndIsrUpdate(TopicPartition("t", n), me, 1, (me, 2), (me, 2)) for n in range(COUNT)]
        assert not any(manager.become_leader_or_follower(updates, 1).values())
    reader = Reader(client, replica_id=2 if follows else -1).open(broker)
    reader.fetch()
    results = []
    reads.clear()
    manager.delete_records({tp: 2}, results.append, 60_000)
    assert reader.fetch() == {5: (0, [])} and reader.log_starts[5] == 2 and set(reads) == {5}
    assert bool(results) is not follows
    if follows:
        request = reader.request([5])
        request.topics[0].partitions[0].log_start_offset = 2
        reader.take(client.ask(request, reader.version))
        assert results[0][tp].low_watermark == 2, "the answer waits for the follower's next fetch, and for nothing else"


def test_SESS_08_a_log_start_that_retention_raises_is_in_the_next_answer(broker, client, reads):
    log = broker.log("t", 5)
    broker.produce("t", b"a", partition=5)
    reader = Reader(client).open(broker)
    log.config = replace(log.config, retention_ms=0)
    reads.clear()
    broker.replica_manager.time.sleep(1000)
    broker.replica_manager.log_manager.maintenance.cleanup_logs()
    assert log.log_start_offset == 1
    assert reader.fetch() == {5: (0, [])} and reader.log_starts[5] == 1 and set(reads) == {5}


def fetches(broker):
    """(number of fetches that wait, entries of their watch lists, expirations of consumers)"""
    metrics = broker.metrics()
    prefix = "kafka.server:type=DelayedOperationPurgatory"
    return (
        metrics[f"{prefix},name=NumDelayedOperations,delayedOperation=Fetch"]["Value"],
        metrics[f"{prefix},name=PurgatorySize,delayedOperation=Fetch"]["Value"],
        metrics["kafka.server:type=DelayedFetchMetrics,name=ExpiresPerSec,fetcherType=consumer"]["Count"],
    )


def waiting(purgatory, key):
    return sum(len(operation.waiting) for operation in purgatory.operations(key))


def test_METRIC_01_PURG_16_a_fetch_of_a_session_that_waits_is_counted_and_so_is_its_end(broker, client):
    reader = Reader(client).open(broker)
    assert fetches(broker) == (0, 0, 0)
    reader.send(max_wait_ms=60_000)
    wait_until(lambda: fetches(broker) == (1, COUNT, 0))
    assert waiting(broker.replica_manager.delayed_fetch_purgatory, TopicPartition("t", 3)) == 1
    broker.produce("t", b"a", partition=3)
    assert reader.receive() == {3: (0, [b"a"])} and fetches(broker) == (0, 0, 0)
    assert reader.fetch([3], max_wait_ms=1) == {}
    wait_until(lambda: fetches(broker) == (0, 0, 1))


def test_a_fetch_whose_session_is_closed_while_it_waits_is_answered_with_the_next_record(broker, client):
    reader = Reader(client).open(broker)
    reader.send(max_wait_ms=60_000)
    wait_until(lambda: fetches(broker)[0] == 1)
    with Client(broker) as other:
        other.ask(f.FetchRequest(session_id=reader.session_id, session_epoch=-1), 12)
    assert fetches(broker)[0] == 1 and observers(broker) == COUNT
    broker.produce("t", b"a", partition=3)
    assert reader.receive() == {3: (0, [b"a"])}
    wait_until(lambda: observers(broker) == 0)


def test_a_fetch_whose_session_is_closed_before_it_waits_reads_all_and_waits_not(broker, client, monkeypatch):
    reader = Reader(client).open(broker)
    begin_wait = PartitionWatch.begin_wait

    def closed(self, fetch):
        self.close()
        broker.produce("t", b"a", partition=3)  # without a notification
        return begin_wait(self, fetch)

    monkeypatch.setattr(PartitionWatch, "begin_wait", closed)
    assert reader.fetch(max_wait_ms=60_000) == {3: (0, [b"a"])}


def test_SESS_08_a_late_fetch_takes_no_change_from_the_one_that_continued_the_session(broker, client, monkeypatch):
    reader = Reader(client).open(broker)
    reader.send(max_wait_ms=60_000)  # its client gives it up
    wait_until(lambda: fetches(broker)[0] == 1)
    reader.epoch += 1
    with Client(broker) as new_client:
        reader.client = new_client
        reader.send(max_wait_ms=60_000)
        wait_until(lambda: fetches(broker)[0] == 2)
        # The late fetch ends, at its deadline, when a record has come and before the new fetch has seen it.
        monkeypatch.setattr(WatchingFetch, "partition_changed", lambda self, topic_partition: None)
        broker.produce("t", b"a", partition=3)
        late, new = broker.replica_manager.delayed_fetch_purgatory.operations(TopicPartition("t", 3))[0].waiting
        late.force_complete()
        assert client.receive(ApiKey.FETCH, 12).error_code == InvalidFetchSessionEpoch.code
        new.force_complete()
        assert reader.receive() == {3: (0, [b"a"])}


def test_SESS_08_what_a_late_fetch_took_before_the_next_one_came_is_the_next_ones_to_answer(
    broker, client, monkeypatch
):
    reader = Reader(client).open(broker)
    reader.send(max_wait_ms=60_000)
    wait_until(lambda: fetches(broker)[0] == 1)
    read = LocalReads.read_again
    answers = []

    def read_again(self, params, infos):
        """The late fetch has taken the change, and has not answered when the next one comes."""
        results = read(self, params, infos)
        if not answers:
            answers.append(None)
            with Client(broker) as new_client:
                new_reader = Reader(new_client)
                new_reader.session_id, new_reader.epoch, new_reader.offsets = reader.session_id, 3, reader.offsets
                answers.append(new_reader.fetch())
        return results

    monkeypatch.setattr(LocalReads, "read_again", read_again)
    broker.produce("t", b"a", partition=3)
    assert client.receive(ApiKey.FETCH, 12).error_code == InvalidFetchSessionEpoch.code
    assert answers[1:] == [{3: (0, [b"a"])}]


def test_a_reader_that_goes_on_with_another_isolation_level_reads_all(broker, client, reads):
    reader = Reader(client).open(broker)
    reads.clear()
    reader.fields = {"isolation_level": 1}
    assert reader.fetch() == {} and len(reads) == COUNT
    reads.clear()
    assert reader.fetch() == {} and reads == []


def test_a_session_that_ends_leaves_nothing_behind(broker, client):
    first = Reader(client).open(broker)
    assert observers(broker) == COUNT
    purgatory = broker.replica_manager.delayed_fetch_purgatory
    assert (purgatory.delayed, purgatory.size, waiting(purgatory, TopicPartition("t", 0))) == (0, 0, 0)
    first.fetch(forgotten=range(5))
    first.fetch()
    assert observers(broker) == COUNT - 5
    first.epoch = -1
    first.fetch()
    assert observers(broker) == 0


def test_a_session_that_is_not_used_any_more_costs_no_append_anything_and_is_answered_in_full_when_it_is(
    broker, client, reads
):
    """Of consumers that went without closing their sessions, each slowed every append until its session was evicted."""
    with Client(broker) as earlier:
        reader = Reader(earlier).open(broker)
    assert observers(broker) == COUNT
    broker.produce("t", b"a", partition=3)
    for _ in range(2):
        broker.replica_manager.time.sleep(VIEW_CHECK_MS)
    assert observers(broker) == 0
    broker.produce("t", b"b", partition=4)
    reads.clear()
    reader.client = client  # the client comes back on another connection
    assert reader.fetch() == {3: (0, [b"a"]), 4: (0, [b"b"])} and sorted(reads) == list(range(COUNT))
    assert observers(broker) == COUNT
    broker.produce("t", b"c", partition=5)
    assert reader.fetch([3, 4]) == {5: (0, [b"c"])}


def test_a_session_that_is_used_or_waits_is_not_read_in_full_for_that(broker, client, reads):
    reader, clock = Reader(client).open(broker), broker.replica_manager.time
    for _ in range(4):
        clock.sleep(VIEW_CHECK_MS - 1)
        assert reader.fetch() == {} and observers(broker) == COUNT
    reader.send(max_wait_ms=10 * VIEW_CHECK_MS)
    wait_until(lambda: fetches(broker)[0] == 1)
    for _ in range(4):
        clock.sleep(VIEW_CHECK_MS)
    assert observers(broker) == COUNT
    broker.produce("t", b"a", partition=3)
    assert reader.receive() == {3: (0, [b"a"])}
    clock.sleep(VIEW_CHECK_MS)  # its client has only just been answered
    assert observers(broker) == COUNT
    clock.sleep(VIEW_CHECK_MS)
    assert observers(broker) == 0


def test_a_session_that_is_closed_while_a_fetch_of_it_begins_leaves_nothing_behind(broker, client, monkeypatch):
    reader = Reader(client)
    reader.offsets = dict.fromkeys(range(COUNT), 0)
    reader.fetch(reader.offsets)
    new_context = FetchSessionCache.new_context

    def new_context_and_close(self, *args):
        context = new_context(self, *args)
        self.close(reader.session_id)  # a full request on another connection has named the session
        return context

    monkeypatch.setattr(FetchSessionCache, "new_context", new_context_and_close)
    assert reader.fetch() == {}
    assert observers(broker) == 0


def test_what_a_throttled_fetch_has_read_is_read_again(broker, client, monkeypatch):
    """Also if no change of it is reported: all partitions are read now and then because there may be such."""
    reader = Reader(client).open(broker)
    monkeypatch.setattr(PartitionWatch, "try_complete_for", lambda self, key: False)
    broker.produce("t", b"a", partition=3)
    broker.replica_manager.time.sleep(5000)
    throttle_ms = [1]
    monkeypatch.setattr(broker.running.services.client_quotas, "is_enabled", True)
    monkeypatch.setattr(Handler, "_throttle_ms", lambda *args: throttle_ms.pop() if throttle_ms else 0)
    assert reader.fetch() == {} and not throttle_ms
    assert reader.fetch() == {3: (0, [b"a"])}


def test_a_session_that_is_evicted_leaves_nothing_behind():
    with kcore.Broker(max_incremental_fetch_session_cache_slots=1, time=MockTime()) as broker:
        broker.create_topic("t", partitions=COUNT)
        with Client(broker) as client:
            Reader(client).open(broker)
            broker.replica_manager.time.sleep(120_001)
            reader = Reader(client).open(broker, range(COUNT - 1))
            assert observers(broker) == COUNT - 1
            reader.fetch()


def test_PART_12_only_partitions_that_have_changed_are_read_for_a_follower_that_was_idle(broker, client, monkeypatch):
    me, manager = broker.broker_id, broker.replica_manager
    tps = [TopicPartition("t", number) for number in range(COUNT)]
    updates = [LeaderAndIsrUpdate(tp, me, 1, (me, 2), (me, 2)) for tp in tps]
    assert not any(manager.become_leader_or_follower(updates, 1).values())
    reader = Reader(client, replica_id=2).open(broker)
    fetched, fetch_now = [], manager.fetch_now

    def noting(params, fetch_infos):
        fetched.extend(tp.partition for tp, _ in fetch_infos)
        return fetch_now(params, fetch_infos)

    monkeypatch.setattr(manager, "fetch_now", noting)
    manager.time.sleep(5000)
    broker.log("t", 3).append_as_leader(bytearray(batch(b"x")), 1)  # without a notification
    assert reader.fetch() == {3: (0, [b"x"])} and fetched == [3]
    fetched.clear()
    manager.time.sleep(5000)
    assert reader.fetch([3]) == {} and fetched == [3]
    states = [manager.get_partition(tp).follower_replica(2).state for tp in tps]
    assert {state.last_caught_up_time_ms for state in states} == {manager.time.milliseconds()}


def test_PART_12_a_follower_is_read_often_enough_to_be_seen_caught_up_and_at_once_where_it_is_not_in_sync(
    broker, client, reads, monkeypatch
):
    monkeypatch.setattr(Partition, "maybe_expand_isr", lambda self, broker_id: False)
    me, clock = broker.broker_id, broker.replica_manager.time
    broker.produce("t", b"a", partition=6)
    updates = [
        LeaderAndIsrUpdate(TopicPartition("t", number), me, 1, (me,) if number == 0 else (me, 2), (me, 2))
        for number in range(COUNT)
    ]
    assert not any(broker.replica_manager.become_leader_or_follower(updates, 1).values())
    reader = Reader(client, replica_id=2).open(broker)
    reads.clear()
    assert reader.fetch() == {} and set(reads) == {0}, "each fetch may let it join the ISR"
    clock.sleep(5000)
    broker.log("t", 6).maybe_increment_log_start_offset(1)
    reads.clear()
    assert reader.fetch() == {6: (0, [])} and reader.log_starts[6] == 1
    assert set(reads) == {0, 6}
    state = broker.replica_manager.get_partition(TopicPartition("t", 1)).follower_replica(2).state
    assert state.last_caught_up_time_ms == clock.milliseconds()
    reader.send(max_wait_ms=60_000)
    broker.replica_manager.append_records(
        0, 1, False, AppendOrigin.CLIENT, {TopicPartition("t", 9): bytearray(batch(b"x"))}, lambda statuses: None
    )
    assert reader.receive() == {9: (0, [b"x"])}


def test_PART_13_partitions_that_a_follower_is_about_to_join_are_not_read_again_before_the_store_has_answered(
    broker, client, reads, monkeypatch
):
    me, manager = broker.broker_id, broker.replica_manager
    tps = [TopicPartition("t", number) for number in range(COUNT)]
    updates = [LeaderAndIsrUpdate(tp, me, 1, (me,), (me, 2)) for tp in tps]
    assert not any(manager.become_leader_or_follower(updates, 1).values())
    proposed = []

    class Store:
        def change_isr(self, topic_partition, isr, expected_version, on_done, **epochs):
            proposed.append((topic_partition, StoredIsr(isr, expected_version + 1), on_done))

    for tp in tps:
        partition = manager.get_partition(tp)
        monkeypatch.setattr(partition, "_state_store", Store())
        monkeypatch.setattr(partition, "is_alive", lambda broker_id: True)
    reader = Reader(client, replica_id=2).open(broker)
    reader.fetch()
    assert sorted(tp for tp, *_ in proposed) == tps
    reads.clear()
    for _ in range(3):
        assert reader.fetch() == {}
    assert reads == []
    # An answer is reported, so the next fetch of a partition that was refused proposes it again.
    refused, *stored = proposed
    proposed.clear()
    refused[2](IneligibleReplica("registered again"))
    for _, answer, on_done in stored:
        on_done(answer)
    assert reader.fetch() == {} and [tp for tp, *_ in proposed] == [refused[0]]
    assert [tp for tp in tps if 2 in manager.get_partition(tp).isr] == sorted(tp for tp, *_ in stored)
    reads.clear()
    assert reader.fetch() == {} and reads == []


@pytest.mark.parametrize("first", [0, 1])
def test_PURG_11_a_fetch_that_names_a_partition_twice_waits_for_both_places(broker, first):
    broker.produce("t", b"a", partition=3)
    manager, tp = broker.replica_manager, TopicPartition("t", 3)
    params = FetchParams(max_wait_ms=60_000, isolation=FetchIsolation.HIGH_WATERMARK)
    infos = [(tp, FetchPartitionData(1 + (first + place) % 2 * 5, 1 << 20)) for place in (0, 1)]
    starts = [LogOffsetMetadata(data.fetch_offset, 0, 0) for _, data in infos]
    results = []
    fetch = DelayedFetch(params, infos, starts, manager.local_reads, results.append)
    manager.delayed_fetch_purgatory.watch(fetch, fetch.keys)
    assert not results
    broker.produce("t", b"b", partition=3)
    assert results


def test_PURG_11_a_fetch_that_waits_for_many_bytes_looks_only_at_the_partition_that_has_got_some(broker, monkeypatch):
    """An append to one of 1,000 partitions cost the producer's thread a look at all of them."""
    broker.produce("t", b"a", partition=0)
    manager = broker.replica_manager
    size = broker.log("t", 0).size
    params = FetchParams(max_wait_ms=60_000, min_bytes=3 * size, isolation=FetchIsolation.HIGH_WATERMARK)
    tps = [TopicPartition("t", number) for number in range(COUNT)]
    infos = [(tp, FetchPartitionData(0, 1 << 20)) for tp in tps]
    starts = [LogOffsetMetadata(0, 0, 0)] * COUNT
    results, looks = [], []
    readable_bytes = DelayedFetch._readable_bytes
    monkeypatch.setattr(DelayedFetch, "_readable_bytes", lambda self, at: looks.append(at) or readable_bytes(self, at))
    fetch = DelayedFetch(params, infos, starts, manager.local_reads, results.append)
    assert not manager.delayed_fetch_purgatory.watch(fetch, fetch.keys)
    looks.clear()
    for _ in range(5):
        assert manager.delayed_fetch_purgatory.check_and_complete(tps[7]) == 0
    broker.produce("t", b"b", partition=9)
    assert not results and set(looks) == {7, 9} and len(looks) < COUNT
    broker.produce("t", b"c", partition=9)
    assert len(results) == 1
    (answer,) = results
    assert [tp.partition for tp, result in answer if result.records.size_in_bytes] == [0, 9]


def test_PURG_11_bytes_that_a_truncation_has_taken_away_do_not_complete_a_fetch(broker):
    manager, tps = broker.replica_manager, [TopicPartition("t", number) for number in range(2)]
    broker.produce("t", b"a", partition=0)
    broker.produce("t", b"b", partition=0)
    size = broker.log("t", 0).size // 2
    params = FetchParams(max_wait_ms=60_000, min_bytes=3 * size, isolation=FetchIsolation.LOG_END)
    infos = [(tp, FetchPartitionData(0, 1 << 20)) for tp in tps]
    results = []
    fetch = DelayedFetch(params, infos, [LogOffsetMetadata(0, 0, 0)] * 2, manager.local_reads, results.append)
    assert not manager.delayed_fetch_purgatory.watch(fetch, fetch.keys)
    broker.log("t", 0).is_served = False  # as a follower, which this broker alone is not
    broker.log("t", 0).truncate_to(1)
    broker.produce("t", b"c", partition=1)  # 3 with what was counted, 2 with what is there
    assert not results
    broker.produce("t", b"d", partition=1)
    assert len(results) == 1
