"""Fetch sessions on the broker's side: the cache and its contexts by themselves, then through a socket."""

import random
from uuid import UUID

import pytest

import kcore
from kcore.common.time import MockTime
from kcore.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
    NotLeaderOrFollower,
    UnknownTopicId,
)
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.messages import fetch as f
from kcore.record.memory_records import MemoryRecords
from kcore.replica.fetch_params import FetchPartitionResult
from kcore.server.requests.fetch_session import EVICTION_MS, FetchSessionCache, next_epoch
from tests.batches import batch
from tests.unit.server.client import Client

ID = UUID(int=7)


class Names:
    def __init__(self, **names):
        self.names = {UUID(int=7): "t", **names}

    def topic_name(self, topic_id):
        return self.names.get(topic_id)


def request(partitions=(), forgotten=(), session_id=0, epoch=0, topic="t", topic_id=ID, leader_epoch=-1):
    """partitions: numbers, or (number, offset)."""
    fetch_offsets = [p if isinstance(p, tuple) else (p, 0) for p in partitions]
    return f.FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            f.FetchTopic(
                topic=topic,
                topic_id=topic_id,
                partitions=[
                    f.FetchPartition(
                        partition=number,
                        fetch_offset=offset,
                        partition_max_bytes=100,
                        current_leader_epoch=leader_epoch,
                    )
                    for number, offset in fetch_offsets
                ],
            )
        ],
        forgotten_topics_data=[f.ForgottenTopic(topic=topic, topic_id=topic_id, partitions=list(forgotten))],
    )


def nothing(high_watermark=5, **fields):
    return FetchPartitionResult(
        high_watermark=high_watermark,
        last_stable_offset=fields.pop("last_stable_offset", high_watermark),
        log_start_offset=fields.pop("log_start_offset", 0),
        **fields,
    )


def some_records():
    return MemoryRecords(batch(b"x"))


class Server:
    """A cache, and one call for a request and its response; results are those of idle partitions unless given."""

    def __init__(self, slots=10):
        self.time = MockTime()
        self.cache = FetchSessionCache(slots, self.time, random.Random(1))

    def fetch(self, body, results=None, version=12, is_follower=False):
        """(session id, the numbers that are answered)."""
        context = self.cache.new_context(body, version, is_follower)
        partitions = context.partitions()
        answers = [(cached, (results or {}).get(cached.number) or nothing()) for cached in partitions]
        session_id, selected = context.select(answers)
        return session_id, [cached.number for cached, _ in selected]

    def open(self, size=2, **arguments):
        session_id, _ = self.fetch(request(range(size)), **arguments)
        return session_id


@pytest.fixture
def server():
    return Server()


def test_SESS_06_epoch_0_makes_a_session_of_all_partitions_of_the_request(server):
    session_id, numbers = server.fetch(request([0, 1, 2]))
    assert session_id > 0 and numbers == [0, 1, 2]
    assert server.cache.get(session_id).epoch == 1
    assert (len(server.cache), server.cache.get(session_id).size) == (1, 3)


def test_SESS_06_without_a_free_slot_or_partitions_the_session_id_is_0():
    assert Server(slots=0).fetch(request([0])) == (0, [0])
    assert Server().fetch(request([])) == (0, [])


def test_SESS_01_epochs_go_from_1_to_the_largest_int_and_then_to_1():
    assert [next_epoch(0), next_epoch(1), next_epoch(2**31 - 1)] == [1, 2, 1]


def test_SESS_05_a_full_request_closes_the_session_that_it_names(server):
    first = server.open()
    second, _ = server.fetch(request([0], session_id=first))
    assert second not in (0, first) and len(server.cache) == 1
    server.cache.close(second)
    server.cache.close(second)
    assert len(server.cache) == 0


def test_SESS_07_an_unknown_session_and_a_wrong_epoch_are_errors_and_change_nothing(server):
    session_id = server.open()
    with pytest.raises(FetchSessionIdNotFound):
        server.fetch(request(session_id=session_id % (2**31 - 1) + 1, epoch=1))
    for epoch in (2, 0x7FFFFFFF):
        with pytest.raises(InvalidFetchSessionEpoch):
            server.fetch(request([5], session_id=session_id, epoch=epoch))
    assert server.cache.get(session_id).size == 2
    assert server.fetch(request(session_id=session_id, epoch=1)) == (session_id, [])


def test_SESS_07_a_response_for_an_epoch_that_has_passed_is_an_error(server):
    session_id = server.open()
    slow = server.cache.new_context(request(session_id=session_id, epoch=1), 12, False)
    server.fetch(request(session_id=session_id, epoch=2))
    with pytest.raises(InvalidFetchSessionEpoch):
        slow.select([])


def test_SESS_08_an_incremental_response_has_only_what_is_new(server):
    session_id, _ = server.fetch(request(range(8)))
    preferred = nothing(preferred_read_replica=3)
    results = {
        1: nothing(6),
        2: nothing(log_start_offset=1),
        3: nothing(last_stable_offset=4),
        4: preferred,
        5: FetchPartitionResult(NotLeaderOrFollower("t-5")),
        6: nothing(records=some_records()),
        7: nothing(diverging_epoch=(1, 2)),
    }
    assert server.fetch(request(session_id=session_id, epoch=1), results) == (session_id, [1, 2, 3, 4, 5, 6, 7])
    # Changed offsets are answered once, the rest each time; 6 is read last now.
    assert server.fetch(request(session_id=session_id, epoch=2), results) == (session_id, [4, 5, 7, 6])


def test_SESS_08_the_first_answer_after_an_error_is_sent(server):
    session_id = server.open(1)
    server.fetch(request(session_id=session_id, epoch=1), {0: FetchPartitionResult(NotLeaderOrFollower("t-0"))})
    assert server.fetch(request(session_id=session_id, epoch=2)) == (session_id, [0])
    assert server.fetch(request(session_id=session_id, epoch=3)) == (session_id, [])


def test_SESS_08_a_partition_is_answered_again_after_a_diverging_epoch(server):
    """The follower takes no high watermark from such an answer."""
    session_id = server.open(1)
    diverging = {0: nothing(6, diverging_epoch=(1, 2))}
    assert server.fetch(request(session_id=session_id, epoch=1), diverging) == (session_id, [0])
    assert server.fetch(request(session_id=session_id, epoch=2), {0: nothing(6)}) == (session_id, [0])
    assert server.fetch(request(session_id=session_id, epoch=3), {0: nothing(6)}) == (session_id, [])


def test_SESS_08_a_partition_that_is_fetched_with_another_leader_epoch_is_answered_again(server):
    """The follower may have dropped what it was answered with the old epoch."""
    session_id, _ = server.fetch(request([0, 1], leader_epoch=4))
    again = request([0], session_id=session_id, epoch=1, leader_epoch=4)
    assert server.fetch(again) == (session_id, [])
    later = request([0], session_id=session_id, epoch=2, leader_epoch=5)
    assert server.fetch(later) == (session_id, [0])
    assert server.fetch(request(session_id=session_id, epoch=3)) == (session_id, [])


def test_SESS_08_partitions_with_records_are_read_last_the_next_time(server):
    session_id = server.open(3)
    server.fetch(request(session_id=session_id, epoch=1), {0: nothing(records=some_records()), 1: nothing(9)})
    context = server.cache.new_context(request(session_id=session_id, epoch=2), 12, False)
    assert [cached.number for cached in context.partitions()] == [1, 2, 0]


def test_SESS_09_a_session_without_partitions_is_closed(server):
    session_id = server.open(2)
    assert server.fetch(request(forgotten=[0, 1], session_id=session_id, epoch=1)) == (0, [])
    assert len(server.cache) == 0
    with pytest.raises(FetchSessionIdNotFound):
        server.fetch(request(session_id=session_id, epoch=2))


@pytest.mark.parametrize("version", [12, 13])
def test_SESS_15_what_a_request_leaves_out_is_as_it_was_and_what_it_names_is_changed(server, version):
    session_id, _ = server.fetch(request([(0, 10), (1, 20)]), version=version)
    body = request([(1, 21), (2, 30)], forgotten=[0], session_id=session_id, epoch=1)
    context = server.cache.new_context(body, version, False)
    assert [(c.number, c.data.fetch_offset, c.data.max_bytes) for c in context.partitions()] == [
        (1, 21, 100),
        (2, 30, 100),
    ]
    context = server.cache.new_context(request(session_id=session_id, epoch=2), version, False)
    assert [(c.number, c.data.fetch_offset) for c in context.partitions()] == [(1, 21), (2, 30)]


def test_a_session_of_topic_names_does_not_go_on_with_topic_ids_nor_the_reverse(server):
    for first, second in ((12, 13), (13, 12)):
        session_id = server.open(version=first)
        with pytest.raises(FetchSessionTopicIdError):
            server.fetch(request(session_id=session_id, epoch=1), version=second)


def test_a_topic_id_gets_its_name_when_there_is_a_topic_of_this_id(server):
    context = server.cache.new_context(request([3], topic="", topic_id=UUID(int=8)), 13, False)
    (cached,) = context.partitions()
    names = Names()
    assert not cached.resolve(names)
    names.names[UUID(int=8)] = "u"
    assert cached.resolve(names) and cached.topic_partition == ("u", 3)
    names.names[UUID(int=8)] = "v"
    assert cached.resolve(names) and cached.topic_partition == ("v", 3)


# -- eviction ----------------------------------------------------------------------------------------------------------


def test_SESS_14_a_session_that_was_not_used_for_two_minutes_is_evicted_for_a_new_one():
    server = Server(slots=2)
    old, used = server.open(5), server.open(5)
    server.time.sleep(EVICTION_MS)
    server.fetch(request(session_id=used, epoch=1))
    assert server.open(1) == 0
    server.time.sleep(1)
    assert server.open(1) > 0
    assert server.cache.get(old) is None and server.cache.get(used) is not None
    assert server.cache.evictions == 1


def test_SESS_14_young_sessions_of_consumers_make_room_for_followers_only():
    server = Server(slots=1)
    consumer = server.open(100)
    assert server.open(1000) == 0
    follower = server.open(1, is_follower=True)
    assert follower > 0 and server.cache.get(consumer) is None
    assert server.open(100, is_follower=True) == 0


def test_SESS_14_of_sessions_older_than_two_minutes_the_least_worth_goes_if_the_new_one_is_worth_more():
    server = Server(slots=3)
    follower, large, small = server.open(1, is_follower=True), server.open(3), server.open(2)
    for epoch in range(1, 4):
        server.time.sleep(EVICTION_MS / 2)
        for session_id in (follower, large, small):
            server.fetch(request(session_id=session_id, epoch=epoch))
    assert server.open(2) == 0, "worth no more than the smallest"
    assert server.open(3) > 0
    assert server.cache.get(small) is None and server.cache.get(large) is not None
    assert server.open(4) > 0, "the new session is young: the other large one goes"
    assert server.cache.get(large) is None and server.cache.get(follower) is not None
    assert server.open(5) == 0, "a consumer is worth less than a follower"
    assert server.open(5, is_follower=True) > 0


def test_session_ids_are_positive_and_no_two_are_the_same():
    class Repeating(random.Random):
        def randrange(self, *args):
            return next(numbers)

    numbers = iter([5, 5, 5, 6])
    cache = FetchSessionCache(10, MockTime(), Repeating())
    ids = [cache.maybe_create_session({("t", 0): None}, False, False) for _ in range(2)]
    assert ids == [5, 6]


# -- through a socket --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker():
    with kcore.Broker() as broker:
        broker.create_topic("t", partitions=3)
        yield broker


@pytest.fixture
def client(broker):
    with Client(broker) as client:
        yield client


def ask(broker, client, version, partitions=(), forgotten=(), max_wait_ms=0, **fields):
    topic_id = fields.pop("topic_id", None) or broker.metadata_cache.topic_id("t")
    body = request(partitions, forgotten, topic_id=topic_id, **fields)
    body.max_wait_ms, body.min_bytes = max_wait_ms, 1
    response = client.ask(body, version)
    answers = {}
    for topic in response.responses:
        assert topic.topic == ("t" if version < 13 else "") and (version < 13 or topic.topic_id == topic_id)
        for partition in topic.partitions:
            records = MemoryRecords(bytes(partition.records)).records()
            answers[partition.partition_index] = (partition.error_code, [record.value for record in records])
    return response.error_code, response.session_id, answers


@pytest.mark.parametrize("version", range(7, 19))
def test_SESS_08_SESS_15_a_session_over_a_socket_sends_each_record_once(broker, client, version):
    start = broker.log("t", 1).log_end_offset
    others = [(number, broker.log("t", number).log_end_offset) for number in (0, 2)]
    error, session_id, answers = ask(broker, client, version, [(1, start), *others])
    assert error == 0 and session_id > 0 and answers == {0: (0, []), 1: (0, []), 2: (0, [])}
    assert ask(broker, client, version, session_id=session_id, epoch=1) == (0, session_id, {})
    broker.produce("t", b"a", partition=1)
    assert ask(broker, client, version, session_id=session_id, epoch=2) == (0, session_id, {1: (0, [b"a"])})
    assert ask(broker, client, version, [(1, start + 1)], session_id=session_id, epoch=3) == (0, session_id, {})
    assert ask(broker, client, version, session_id=session_id, epoch=9) == (71, 0, {})
    assert ask(broker, client, version, [(1, start)], session_id=session_id, epoch=-1)[1:] == (0, {1: (0, [b"a"])})
    assert ask(broker, client, version, session_id=session_id, epoch=4) == (70, 0, {})


def test_an_incremental_fetch_waits_and_is_woken_by_an_append(broker, client):
    end = broker.log("t", 2).log_end_offset
    _, session_id, _ = ask(broker, client, 12, [(2, end)])
    body = request(session_id=session_id, epoch=1)
    body.max_wait_ms, body.min_bytes = 60_000, 1
    client.send(body, 12)
    broker.produce("t", b"woken", partition=2)
    (topic,) = client.receive(ApiKey.FETCH, 12).responses
    assert b"woken" in bytes(topic.partitions[0].records)


def test_an_unknown_topic_id_is_an_error_of_its_partition_in_each_response_until_the_topic_is_there(broker, client):
    unknown = UUID(int=99)
    _, session_id, answers = ask(broker, client, 13, [0], topic_id=unknown)
    assert answers == {0: (UnknownTopicId.code, [])} and session_id > 0
    assert ask(broker, client, 13, session_id=session_id, epoch=1, topic_id=unknown)[2] == answers


def test_errors_of_partitions_are_in_each_response_of_a_session(broker, client):
    body = request([0, 7])
    body.topics += request([0], topic="unknown").topics
    first = client.ask(body, 12)
    second = client.ask(request(session_id=first.session_id, epoch=1), 12)
    for response, expected in (
        (first, {("t", 0): 0, ("t", 7): 3, ("unknown", 0): 3}),
        (second, {("t", 7): 3, ("unknown", 0): 3}),
    ):
        codes = {
            (topic.topic, partition.partition_index): partition.error_code
            for topic in response.responses
            for partition in topic.partitions
        }
        assert codes == expected


def test_the_number_of_slots_is_a_setting_of_the_broker():
    with kcore.Broker(max_incremental_fetch_session_cache_slots=1) as broker, Client(broker) as client:
        broker.create_topic("t")
        assert [ask(broker, client, 12, [0])[1] > 0 for _ in range(3)] == [True, False, False]
