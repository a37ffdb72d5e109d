"""A follower's side of fetch sessions: by itself, and against the broker's side."""

import random
from uuid import UUID

import pytest

from kcore.common.time import MockTime
from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.errors import ApiError, FetchSessionIdNotFound, InvalidFetchSessionEpoch, UnknownServerError
from kcore.protocol.messages import fetch as f
from kcore.replica.fetch_params import FetchPartitionData, FetchPartitionResult
from kcore.replication.fetch_session_handler import FetchSessionHandler, SessionRequest
from kcore.server.requests.fetch_session import FetchSessionCache

A, B, C, D = (TopicPartition("t", number) for number in range(4))


def at(offset, topic_id=ZERO_UUID):
    return FetchPartitionData(offset, 100, topic_id=topic_id)


def in_session(partitions, session_id=7):
    """A handler whose full fetch of these partitions has been answered."""
    handler = FetchSessionHandler()
    handler.next_request(partitions)
    assert handler.on_reply(session_id, list(partitions))
    return handler


def test_SESS_02_the_first_request_is_full_and_those_after_a_session_id_are_incremental():
    handler = FetchSessionHandler()
    partitions = {A: at(1), B: at(2)}
    assert handler.next_request(partitions) == SessionRequest(0, 0, partitions, {})
    assert handler.on_reply(7, [B, A])
    for epoch in (1, 2, 3):
        assert handler.next_request(partitions) == SessionRequest(7, epoch, {}, {})
        assert handler.on_reply(7, [])


def test_SESS_02_the_epoch_after_the_largest_int_is_1():
    handler = in_session({A: at(1)})
    handler.epoch = 2**31 - 1
    handler.next_request({A: at(1)})
    assert handler.on_reply(7, []) and handler.epoch == 1


def test_SESS_02_without_a_session_id_every_request_is_full():
    handler = in_session({A: at(1)}, session_id=0)
    assert handler.next_request({A: at(2)}) == SessionRequest(0, 0, {A: at(2)}, {})


@pytest.mark.parametrize("changed", [None, [B, C, D], [A, B, C, D]])
def test_SESS_03_SESS_04_a_request_names_what_is_new_changed_or_gone(changed):
    handler = in_session({A: at(1), B: at(2), C: at(3)})
    now = {A: at(1), B: at(20), D: at(4)}
    assert handler.next_request(now, changed) == SessionRequest(7, 1, {B: at(20), D: at(4)}, {C: at(3)})
    assert handler.next_request(now).to_send == {}  # the session has them all


def test_SESS_03_only_the_partitions_that_may_have_changed_are_compared():
    handler = in_session({A: at(1), B: at(2)})
    assert handler.next_request({A: at(10), B: at(20)}, [B]).to_send == {B: at(20)}


@pytest.mark.parametrize("offset", [1, 5])
def test_a_partition_of_another_topic_id_is_in_no_session_with_the_earlier_one(offset):
    handler = in_session({A: at(1, UUID(int=1)), B: at(2)})
    now = {A: at(offset, UUID(int=2)), B: at(2)}
    assert handler.next_request(now) == SessionRequest(7, 0, now, {})
    assert handler.on_reply(8, [A, B])
    again = {A: at(offset, UUID(int=2)), B: at(2)}
    assert handler.next_request(again) == SessionRequest(8, 1, {}, {}), "an id that is equal is the same"


def test_RFT_14_nothing_to_fetch_and_to_forget_is_no_request_but_something_to_forget_is():
    assert FetchSessionHandler().next_request({}) is None
    handler = in_session({A: at(1)})
    assert handler.next_request({}) == SessionRequest(7, 1, {}, {A: at(1)})
    assert handler.on_reply(0, [])  # the leader closes a session without partitions (SESS-09)
    assert handler.next_request({}) is None
    assert handler.next_request({A: at(1)}) == SessionRequest(0, 0, {A: at(1)}, {})


def test_SESS_10_RFT_17_after_session_id_not_found_the_next_request_is_full_and_begins_a_new_session():
    handler = in_session({A: at(1)})
    handler.next_request({A: at(1)})
    handler.on_error(FetchSessionIdNotFound("7"))
    assert handler.next_request({A: at(1)}) == SessionRequest(0, 0, {A: at(1)}, {})


@pytest.mark.parametrize("error", [InvalidFetchSessionEpoch("7"), UnknownServerError("?"), None])
def test_SESS_11_RFT_17_after_another_error_or_none_the_next_request_closes_the_session_and_is_full(error):
    handler = in_session({A: at(1)})
    handler.next_request({A: at(1)})
    if error is None:
        handler.on_failure()
    else:
        handler.on_error(error)
    assert handler.next_request({A: at(1), B: at(2)}, [B]) == SessionRequest(7, 0, {A: at(1), B: at(2)}, {})
    assert handler.on_reply(8, [A, B])
    assert handler.next_request({A: at(1), B: at(2)}) == SessionRequest(8, 1, {}, {})


@pytest.mark.parametrize("answered", [[], [A], [A, B, C], [A, C]])
def test_SESS_12_a_full_reply_about_other_partitions_is_discarded(answered):
    handler = FetchSessionHandler()
    handler.next_request({A: at(1), B: at(2)})
    assert not handler.on_reply(7, answered)
    assert handler.next_request({A: at(1)}).epoch == 0


def test_SESS_12_an_incremental_reply_about_a_partition_that_is_not_in_the_session_is_discarded():
    handler = in_session({A: at(1), B: at(2)})
    handler.next_request({A: at(1)})
    assert not handler.on_reply(7, [B])
    assert handler.next_request({A: at(1)}) == SessionRequest(7, 0, {A: at(1)}, {})


def test_SESS_13_an_empty_full_reply_that_throttles_is_no_error_and_the_next_request_is_full(caplog):
    handler = FetchSessionHandler()
    handler.next_request({A: at(1)})
    assert not handler.on_reply(0, [], throttle_ms=100)
    assert not caplog.records, "it is logged for a reply that is wrong"
    assert handler.next_request({A: at(1)}) == SessionRequest(0, 0, {A: at(1)}, {})


def test_an_idle_request_looks_at_no_partition():
    class Counted(dict):
        looked_at = 0

        def __iter__(self):
            Counted.looked_at += 1
            return super().__iter__()

        def get(self, *args):
            Counted.looked_at += 1
            return super().get(*args)

    partitions = Counted({TopicPartition("t", number): at(0) for number in range(100)})
    handler = in_session(partitions)
    Counted.looked_at = 0
    for changed in (None, {}):
        assert handler.next_request(partitions, changed).to_send == {}
        assert handler.on_reply(7, [])
    assert Counted.looked_at == 0


# -- against the broker's side -----------------------------------------------------------------------------------------


def wire(request):
    """The SessionRequest as a Fetch."""

    def topics(tps):
        return {topic: [tp for tp in tps if tp.topic == topic] for topic in {tp.topic for tp in tps}}.items()

    return f.FetchRequest(
        session_id=request.session_id,
        session_epoch=request.epoch,
        topics=[
            f.FetchTopic(
                topic=topic,
                topic_id=ZERO_UUID,
                partitions=[
                    f.FetchPartition(
                        partition=tp.partition,
                        fetch_offset=request.to_send[tp].fetch_offset,
                        partition_max_bytes=request.to_send[tp].max_bytes,
                    )
                    for tp in tps
                ],
            )
            for topic, tps in topics(request.to_send)
        ],
        forgotten_topics_data=[
            f.ForgottenTopic(topic=topic, partitions=[tp.partition for tp in tps])
            for topic, tps in topics(request.to_forget)
        ],
    )


@pytest.mark.parametrize("seed", range(30))
def test_SESS_04_SESS_15_the_leader_reads_what_the_follower_means_whatever_is_lost(seed):
    rng = random.Random(seed)
    leader = FetchSessionCache(2, MockTime(), rng)
    handler = FetchSessionHandler()
    everything = [TopicPartition(topic, number) for topic in "tu" for number in range(6)]
    offsets = dict.fromkeys(everything, 0)
    wanted, partitions = {}, {}
    incremental = 0
    for _ in range(300):
        for tp in rng.sample(everything, rng.choice((0, 0, 1, 3))):
            if rng.random() < 0.5 and tp in wanted:
                del wanted[tp]
            else:
                offsets[tp] += rng.randrange(2)
                wanted[tp] = at(offsets[tp])
        last, partitions = partitions, dict(wanted)
        changed = None if rng.random() < 0.3 else [tp for tp in everything if last.get(tp) != partitions.get(tp)]
        request = handler.next_request(partitions, changed)
        if request is None:
            assert not partitions
            continue
        if rng.random() < 0.05:
            handler.on_failure()  # the request is lost
            continue
        try:
            context = leader.new_context(wire(request), 12, True)
            read = {cached.topic_partition: cached.data for cached in context.partitions()}
            assert read == partitions, f"seed={seed}"
            incremental += request.epoch > 0
            high_watermark = rng.randrange(3)
            session_id, answers = context.select(
                [(cached, FetchPartitionResult(high_watermark=high_watermark)) for cached in context.partitions()]
            )
        except ApiError as error:
            handler.on_error(error)
            continue
        if rng.random() < 0.05:
            handler.on_failure()  # the response is lost
        elif rng.random() < 0.03 and request.epoch == 0:
            assert not handler.on_reply(0, [], throttle_ms=10)
        else:
            assert handler.on_reply(session_id, [cached.topic_partition for cached, _ in answers]), f"seed={seed}"
        if rng.random() < 0.03:
            leader.close(session_id)  # evicted
        if rng.random() < 0.02:
            leader = FetchSessionCache(2, MockTime(), rng)  # restarted
    assert incremental > 50, "the test has to reach what it is about"
