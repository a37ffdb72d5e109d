"""What a follower sends its leader in each version, and what it makes of answers, right and wrong (RFT-01)."""

from unittest.mock import Mock
from uuid import UUID

import pytest

from kcore import errors
from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.protocol.api_keys import SUPPORTED, ApiKey
from kcore.protocol.messages import fetch as f
from kcore.protocol.messages import list_offsets as lo
from kcore.protocol.messages import offset_for_leader_epoch as oe
from kcore.replica.fetch_params import FetchPartitionData
from kcore.replica.fetcher.leader_endpoint import (
    EpochEndOffset,
    EpochQuestion,
    FetchRequest,
    LeaderFeatures,
    ListedOffset,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    OffsetQuestion,
)
from kcore.replication.remote_leader_endpoint import RemoteLeaderEndPoint

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
IDS = {"a": UUID(int=1), "b": UUID(int=2)}
NAMES = {topic_id: name for name, topic_id in IDS.items()}


class Sender:
    """A connection to a leader that answers each request with answer(request); requests go through the codec."""

    def __init__(self, fetch_version=17, list_version=9, epoch_version=4):
        self.versions = SUPPORTED | {
            ApiKey.FETCH: (0, fetch_version),
            ApiKey.LIST_OFFSETS: (0, list_version),
            ApiKey.OFFSET_FOR_LEADER_EPOCH: (0, epoch_version),
        }
        self.sent = []
        self.answer = lambda request: fetch_response(request, self.sent[-1][1])
        self.is_closed = False

    def api_versions(self):
        return self.versions

    def send(self, request, version):
        self.sent.append((type(request).decode(request.encode(version), version), version))
        response = self.answer(self.sent[-1][0])
        if isinstance(response, Exception):
            raise response
        return type(response).decode(response.encode(version), version)

    def close(self):
        self.is_closed = True


def fetch_response(request, version, session_id=5, **fields):
    """A leader without new records: each partition of the request."""
    return f.FetchResponse(
        session_id=session_id if version >= 7 else 0,
        responses=[
            f.FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[f.PartitionData(partition_index=p.partition, **fields) for p in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def answered(*topics, session_id=5, **fields):
    """(topic, partitions...) each, by name and id."""
    return f.FetchResponse(
        session_id=session_id,
        responses=[
            f.FetchableTopicResponse(
                topic=name,
                topic_id=IDS.get(name, UUID(int=99)),
                partitions=[f.PartitionData(partition_index=number, **fields) for number in numbers],
            )
            for name, *numbers in topics
        ],
    )


def data(topic, offset=3, **fields):
    fields = {"log_start_offset": 1, "current_leader_epoch": 7, "topic_id": IDS[topic], **fields}
    return FetchPartitionData(offset, 1000, **fields)


def fetch(*tps, changed=None, **others):
    """others: data of a topic's partitions, by its name."""
    partitions = {tp: others.get(tp.topic) or data(tp.topic, last_fetched_epoch=6) for tp in tps}
    return FetchRequest(partitions, 500, 1, 10_000, changed)


@pytest.fixture
def make():
    def make(**versions):
        sender = Sender(**versions)
        end_point = RemoteLeaderEndPoint(sender, 4, lambda: 44)
        end_point.features = LeaderFeatures(versions.get("fetch_version", 17) >= 12)
        return end_point, sender

    return make


# -- what is sent


def test_RFT_01_RFT_02_a_fetch_has_replica_id_fetch_offsets_and_limits(make):
    end_point, sender = make()
    end_point.send(fetch(A0, B0, A1))
    request, version = sender.sent[0]
    assert version == 17
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (4, 44)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes, request.session_epoch) == (500, 1, 10_000, 0)
    assert [NAMES[topic.topic_id] for topic in request.topics] == ["a", "b", "a"], "their order is the answer's"
    partition = request.topics[0].partitions[0]
    assert (partition.fetch_offset, partition.partition_max_bytes, partition.log_start_offset) == (3, 1000, 1)
    assert (partition.current_leader_epoch, partition.last_fetched_epoch) == (7, 6)


@pytest.mark.parametrize(("version", "replica_id"), [(6, 4), (7, 4), (11, 4), (12, 4)])
def test_requests_to_older_leaders_use_names_and_below_7_no_session(make, version, replica_id):
    end_point, sender = make(fetch_version=version)
    request = fetch(A0, a=data("a"))
    end_point.send(request)
    sent, sent_version = sender.sent[0]
    assert (sent_version, sent.replica_id, sent.topics[0].topic) == (version, replica_id, "a")
    assert sent.session_epoch == (0 if version >= 7 else -1)
    assert list(end_point.send(request).partitions) == ([] if version >= 7 else [A0])


def test_SESS_02_SESS_03_the_second_fetch_has_the_changed_partitions_and_the_removed_ones(make):
    end_point, sender = make()
    end_point.send(fetch(A0, A1, B0))
    request = FetchRequest({A0: data("a", last_fetched_epoch=6), A1: data("a", 9)}, 500, 1, 10_000, [A1, B0])
    sender.answer = lambda request: answered(("a", 1), high_watermark=11)
    reply = end_point.send(request)
    sent = sender.sent[1][0]
    assert (sent.session_id, sent.session_epoch) == (5, 1)
    assert [(NAMES[t.topic_id], [p.partition for p in t.partitions]) for t in sent.topics] == [("a", [1])]
    assert [(NAMES[t.topic_id], t.partitions) for t in sent.forgotten_topics_data] == [("b", [0])]
    assert list(reply.partitions) == [A1] and reply.partitions[A1].high_watermark == 11


WITHOUT_ID = {"topic_id": ZERO_UUID}


def test_a_partition_whose_first_fetch_did_not_reach_the_leader_is_in_the_next_one(make):
    """A follower that waits for a processor for as long as its back-off asks for the same once more: nothing has
    changed since the request before, which the session has not seen."""
    end_point, sender = make()
    end_point.send(fetch(A0))
    sender.api_versions = Mock(side_effect=ConnectionRefusedError)  # a lookup has lost the connection
    with pytest.raises(ConnectionRefusedError):
        end_point.send(fetch(A0, B0, changed=[B0]))
    del sender.api_versions
    end_point.send(fetch(A0, B0, changed=[]))
    request, _ = sender.sent[-1]
    assert [NAMES[topic.topic_id] for topic in request.topics] == ["a", "b"]
    assert (request.session_id, request.session_epoch) == (5, 0)


def test_a_topic_without_an_id_is_fetched_by_name_and_by_id_in_another_session_once_it_has_one(make):
    end_point, sender = make()
    end_point.send(fetch(A0, B0, b=data("b", **WITHOUT_ID)))
    assert sender.sent[0][1] == 12 and [topic.topic for topic in sender.sent[0][0].topics] == ["a", "b"]
    sender.answer = lambda request: answered()
    end_point.send(fetch(A0, B0, b=data("b", **WITHOUT_ID), changed=[]))  # an incremental one without partitions
    end_point.send(fetch(A0, B0, a=data("a", 9), b=data("b", **WITHOUT_ID), changed=[A0]))
    assert [(version, request.session_epoch) for request, version in sender.sent] == [(12, 0), (12, 1), (12, 2)]
    sender.answer = lambda request: fetch_response(request, 17)
    end_point.send(fetch(A0, B0, a=data("a", 9), changed=[B0]))
    sent, version = sender.sent[3]
    assert version == 17 and (sent.session_id, sent.session_epoch) == (5, 0), "the old session is closed"
    assert [NAMES[topic.topic_id] for topic in sent.topics] == ["a", "b"]


def test_when_the_topic_without_an_id_is_gone_the_others_are_fetched_by_id_with_the_registration(make):
    end_point, sender = make()
    end_point.send(fetch(A0, B0, b=data("b", **WITHOUT_ID)))
    sender.answer = lambda request: fetch_response(request, 17)
    end_point.send(fetch(A0, changed=[B0]))
    sent, version = sender.sent[1]
    assert (version, sent.session_epoch, sent.replica_state.replica_epoch) == (17, 0, 44)


def test_when_a_topic_without_an_id_comes_in_the_next_session_goes_by_name(make):
    end_point, sender = make()
    end_point.send(fetch(A0))
    sender.answer = lambda request: fetch_response(request, 12)
    end_point.send(fetch(A0, B0, b=data("b", **WITHOUT_ID), changed=[B0]))
    sent, version = sender.sent[1]
    assert (version, sent.session_epoch) == (12, 0) and [topic.topic for topic in sent.topics] == ["a", "b"]


def test_leaders_that_know_no_ids_are_asked_by_name_whatever_the_logs_have(make):
    end_point, sender = make()
    end_point.send(fetch(A0, B0))
    end_point._leaders_know_ids = lambda: False
    sender.answer = lambda request: fetch_response(request, 12)
    end_point.send(fetch(A0, B0, changed=[]))
    end_point.send(fetch(A0, B0, changed=[]))
    assert [(version, request.session_epoch) for request, version in sender.sent] == [(17, 0), (12, 0), (12, 1)]
    assert [topic.topic for topic in sender.sent[1][0].topics] == ["a", "b"]
    end_point._leaders_know_ids = lambda: True
    sender.answer = lambda request: fetch_response(request, 17)
    end_point.send(fetch(A0, B0, changed=[]))
    assert (sender.sent[3][1], sender.sent[3][0].replica_state.replica_epoch) == (17, 44)


def test_a_topic_that_was_made_anew_begins_another_session(make):
    end_point, sender = make()
    end_point.send(fetch(A0, B0))
    end_point.send(fetch(A0, B0, b=data("b", 9, topic_id=UUID(int=22)), changed=[B0]))
    assert sender.sent[1][0].session_epoch == 0
    assert [topic.topic_id for topic in sender.sent[1][0].topics] == [IDS["a"], UUID(int=22)]


def test_each_partition_is_fetched_by_the_id_of_its_own_log_also_where_a_name_has_two(make):
    end_point, sender = make()
    request = FetchRequest({A0: data("a"), A1: data("a", topic_id=UUID(int=22))}, 500, 1, 10_000)
    assert list(end_point.send(request).partitions) == [A0, A1]
    topics = sender.sent[0][0].topics
    assert [(t.topic_id, t.partitions[0].partition) for t in topics] == [(IDS["a"], 0), (UUID(int=22), 1)]


@pytest.mark.parametrize("version", [1, 4, 6, 9])
def test_offsets_are_listed_in_the_leaders_version(make, version):
    end_point, sender = make(list_version=version)
    sender.answer = lambda request: lo.ListOffsetsResponse(
        topics=[
            lo.ListOffsetsTopicResponse(
                name="a",
                partitions=[
                    lo.ListOffsetsPartitionResponse(partition_index=0, offset=9),
                    lo.ListOffsetsPartitionResponse(partition_index=1, error_code=6),
                ],
            )
        ]
    )
    reply = end_point.send(ListOffsetsRequest({A0: OffsetQuestion(7, -1), A1: OffsetQuestion(7, -2)}))
    sent, sent_version = sender.sent[0]
    assert (sent_version, sent.replica_id) == (version, 4)
    assert [(p.partition_index, p.timestamp) for p in sent.topics[0].partitions] == [(0, -1), (1, -2)]
    assert reply.partitions[A0] == ListedOffset(9)
    assert type(reply.partitions[A1].error) is errors.NotLeaderOrFollower


@pytest.mark.parametrize("version", [0, 2, 4])
def test_epoch_ends_are_requested_in_the_leaders_version(make, version):
    end_point, sender = make(epoch_version=version)
    sender.answer = lambda request: oe.OffsetForLeaderEpochResponse(
        topics=[
            oe.OffsetForLeaderTopicResult(
                topic="a", partitions=[oe.EpochEndOffset(partition=0, leader_epoch=5 if version else -1, end_offset=8)]
            )
        ]
    )
    reply = end_point.send(OffsetForLeaderEpochRequest({A0: EpochQuestion(7, 6)}))
    assert reply.partitions == {A0: EpochEndOffset(5 if version else -1, 8)}
    assert sender.sent[0][0].topics[0].partitions[0].leader_epoch == 6


# -- what comes back


def test_RFT_04_records_are_views_in_memory_and_no_copies(make):
    end_point, sender = make()
    sender.send = lambda request, version: answered(("a", 0), records=records)
    records = memoryview(b"batches")
    assert end_point.send(fetch(A0)).partitions[A0].records is records


def test_a_diverging_epoch_and_an_error_of_a_partition_are_passed_on(make):
    end_point, sender = make()
    sender.answer = lambda request: fetch_response(
        request, 17, diverging_epoch=f.EpochEndOffset(epoch=4, end_offset=2), high_watermark=9, log_start_offset=1
    )
    answer = end_point.send(fetch(A0)).partitions[A0]
    assert (answer.diverging_epoch, answer.high_watermark, answer.log_start_offset) == ((4, 2), 9, 1)
    assert (answer.error, bytes(answer.records)) == (None, b"")
    end_point, sender = make()
    sender.answer = lambda request: fetch_response(request, 17, error_code=74)
    assert type(end_point.send(fetch(A0)).partitions[A0].error) is errors.FencedLeaderEpoch


@pytest.mark.parametrize("code", [70, 71, 106])
def test_RFT_17_after_a_session_error_the_next_fetch_is_full_and_no_partition_is_delayed(make, code):
    end_point, sender = make()
    end_point.send(fetch(A0))
    sender.answer = lambda request: f.FetchResponse(error_code=code)
    assert end_point.send(fetch(A0, changed=[])).partitions == {}
    with pytest.raises(errors.ApiError):  # a leader that refuses full fetches too would get the same request for ever
        end_point.send(fetch(A0, changed=[]))
    assert [request.session_epoch for request, _ in sender.sent] == [0, 1, 0]
    sender.answer = lambda request: fetch_response(request, 17)
    assert list(end_point.send(fetch(A0, changed=[])).partitions) == [A0]


def test_another_error_of_the_whole_answer_is_raised(make):
    end_point, sender = make()
    sender.answer = lambda request: f.FetchResponse(error_code=errors.ClusterAuthorizationFailed.code)
    with pytest.raises(errors.ClusterAuthorizationFailed):
        end_point.send(fetch(A0))


NOTHING = answered()


@pytest.mark.parametrize(
    "answer",
    [
        answered(("a", 0), ("unknown", 0)),
        answered(("a", 0, 1)),
        answered(("a", 0, 0)),
        answered(("c", 0)),
        NOTHING,
        OSError("gone"),
        errors.InvalidRequest("malformed"),
    ],
    ids=["foreign id", "another partition", "twice", "another topic", "nothing", "no answer", "malformed"],
)
def test_SESS_12_an_answer_for_other_partitions_is_an_error_and_the_next_fetch_is_full(make, answer):
    end_point, sender = make()
    sender.answer = lambda request: answer
    with pytest.raises((errors.InvalidRequest, OSError)):
        end_point.send(fetch(A0))
    sender.answer = lambda request: fetch_response(request, 17)
    assert list(end_point.send(fetch(A0)).partitions) == [A0]
    assert sender.sent[-1][0].session_epoch == 0
    # In a session, too; there a leader may have nothing to say.
    if answer is not NOTHING:
        sender.answer = lambda request: answer
        with pytest.raises((errors.InvalidRequest, OSError)):
            end_point.send(fetch(A0, changed=[]))
        assert sender.sent[-1][0].session_epoch == 1


@pytest.mark.parametrize("missing", [True, False])
def test_lookups_answered_for_other_partitions_are_errors(make, missing):
    end_point, sender = make()
    partitions = [] if missing else [oe.EpochEndOffset(partition=0), oe.EpochEndOffset(partition=5)]
    sender.answer = lambda request: oe.OffsetForLeaderEpochResponse(
        topics=[oe.OffsetForLeaderTopicResult(topic="a", partitions=partitions)]
    )
    with pytest.raises(errors.InvalidRequest):
        end_point.send(OffsetForLeaderEpochRequest({A0: EpochQuestion(7, 6)}))
    partitions = [] if missing else [lo.ListOffsetsPartitionResponse(partition_index=n) for n in (0, 5)]
    sender.answer = lambda request: lo.ListOffsetsResponse(
        topics=[lo.ListOffsetsTopicResponse(name="a", partitions=partitions)]
    )
    with pytest.raises(errors.InvalidRequest):
        end_point.send(ListOffsetsRequest({A0: OffsetQuestion(7, -1)}))


def test_a_leader_of_other_features_is_an_error_once(make):
    end_point, sender = make(fetch_version=11)
    end_point.features = LeaderFeatures()
    with pytest.raises(errors.UnsupportedVersion):
        end_point.send(fetch(A0))
    assert end_point.features == LeaderFeatures(truncates_on_fetch=False) and sender.sent == []
    end_point.send(fetch(A0, a=data("a")))


def test_without_a_session_removed_partitions_need_no_request(make):
    end_point, sender = make()
    sender.api_versions = lambda: 1 / 0
    assert end_point.send(FetchRequest({}, 500, 1, 10_000, [A0])).partitions == {}


def test_close_closes_the_connection(make):
    end_point, sender = make()
    end_point.close()
    assert sender.is_closed
