"""RemoteLeaderEndPoint: sends requests to a leader on another broker, over a connection of its own (RFT-01).

Fetch, ListOffsets and OffsetForLeaderEpoch as a replica, in the newest versions that both brokers speak; fetches in an
incremental session where the leader has them (Fetch 7+), by the topic ids of the follower's logs from 13 on.  What a
leader answers that it was not requested is an error, which delays the partitions of the request and no others.
Source: RemoteLeaderEndPoint, Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar
from uuid import UUID

from kcore.client.blocking_sender import BlockingSender
from kcore.client.negotiating_sender import newest_version
from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.errors import (
    ApiError,
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
    InvalidRequest,
    UnsupportedVersion,
    for_code,
)
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.messages import fetch as fetch_messages
from kcore.protocol.messages import list_offsets as list_offsets_messages
from kcore.protocol.messages import offset_for_leader_epoch as epoch_messages
from kcore.replica.fetch_params import FetchPartitionData
from kcore.replica.fetcher.leader_endpoint import (
    EpochEndOffset,
    FetchedPartition,
    FetchReply,
    FetchRequest,
    LeaderFeatures,
    LeaderReply,
    LeaderRequest,
    ListedOffset,
    ListOffsetsReply,
    ListOffsetsRequest,
    OffsetForLeaderEpochReply,
    OffsetForLeaderEpochRequest,
)
from kcore.replication.fetch_session_handler import INITIAL_EPOCH, FetchSessionHandler, SessionRequest

_WITHOUT_A_SESSION = -1
_FIRST_WITH_SESSIONS = 7
_FIRST_THAT_TRUNCATES = 12
_FIRST_WITH_TOPIC_IDS = 13
_FIRST_WITH_REPLICA_STATE = 15
#: The leader has refused the session: the next fetch is full and begins a new one.
_SESSION_ERRORS = (FetchSessionIdNotFound, InvalidFetchSessionEpoch, FetchSessionTopicIdError)

_T = TypeVar("_T")


class SentFetch(NamedTuple):
    """A fetch as it goes to the leader."""

    request: FetchRequest
    session: SessionRequest
    message: fetch_messages.FetchRequest
    api_version: int


class RemoteLeaderEndPoint:
    """LeaderEndPoint over a BlockingSender.  One thread sends; close() comes from any.

    broker_epoch(): of this broker's registration, so that a leader notices a restart (KIP-903), -1 for none.  A fetch
    of a topic without an id goes by name, in Fetch 12 at most, which has no room for it: as Kafka's.
    leaders_know_ids(): whether the leaders find topics by their ids.  Where the controller gives none
    (inter.broker.protocol.version below 2.8), they do not, though a log may have the id from another controller.
    """

    def __init__(
        self,
        sender: BlockingSender,
        broker_id: int,
        broker_epoch: Callable[[], int] = lambda: -1,
        leaders_know_ids: Callable[[], bool] = lambda: True,
    ) -> None:
        self.features = LeaderFeatures()
        self._sender = sender
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._leaders_know_ids = leaders_know_ids
        self._session = FetchSessionHandler()
        self._versions: Mapping[ApiKey, tuple[int, int]] | None = None
        self._fetch_version = -1
        # Of the session: whether it goes by topic ids, and then the topics' names by id, as a number.
        self._uses_topic_ids = False
        self._names: dict[int, str] = {}

    def send(self, request: LeaderRequest) -> LeaderReply:
        """See LeaderEndPoint.  Raises OSError, or ApiError for a leader that answers with one, speaks other versions
        than before, or answers what was not asked: InvalidRequest."""
        if isinstance(request, FetchRequest) and not request.partitions and self._session.epoch == INITIAL_EPOCH:
            return FetchReply()  # no session that would have to forget anything
        try:
            versions = self._sender.api_versions()
            if versions is not self._versions:
                self._take_versions(versions)
        except BaseException:
            self.abandon_fetch()  # the session has not seen what has changed with this request
            raise
        if isinstance(request, FetchRequest):
            return self._fetch(request, self._fetch_version)
        if isinstance(request, ListOffsetsRequest):
            return self._list_offsets(request, newest_version(self._sender, ApiKey.LIST_OFFSETS, 1, 11))
        return self._offsets_for_epochs(request, newest_version(self._sender, ApiKey.OFFSET_FOR_LEADER_EPOCH, 0, 4))

    def _take_versions(self, versions: Mapping[ApiKey, tuple[int, int]]) -> None:
        """Those of a new connection.  Raises UnsupportedVersion if the leader is another than before."""
        fetch_version = newest_version(self._sender, ApiKey.FETCH, 0, fetch_messages.FetchRequest.max_version)
        features = LeaderFeatures(fetch_version >= _FIRST_THAT_TRUNCATES, ApiKey.OFFSET_FOR_LEADER_EPOCH in versions)
        if features != self.features:
            self.features = features
            raise UnsupportedVersion(f"{self._sender}: Fetch up to {fetch_version}, {features}")
        self._versions, self._fetch_version = versions, fetch_version

    def close(self) -> None:
        self._sender.close()

    # -- fetch ----------------------------------------------------------------------------------------------------

    def _fetch(self, request: FetchRequest, version: int) -> FetchReply:
        sent = self.begin_fetch(request, version)
        if sent is None:
            return FetchReply()
        try:
            response = self._sender.send(sent.message, sent.api_version)
        except BaseException:
            self.abandon_fetch()
            raise
        assert isinstance(response, fetch_messages.FetchResponse)
        return self.end_fetch(sent, response)

    def begin_fetch(self, request: FetchRequest, version: int) -> SentFetch | None:
        """What to send of a fetch to a leader that speaks Fetch up to this version; None for nothing.

        end_fetch() or abandon_fetch() must follow before the next one.
        """
        if not self._leaders_know_ids():
            version = min(version, _FIRST_WITH_TOPIC_IDS - 1)
        session = self._session_request(request, version)
        if session is None:
            return None
        if not self._uses_topic_ids:
            version = min(version, _FIRST_WITH_TOPIC_IDS - 1)
        return SentFetch(request, session, self._fetch_message(request, session, version), version)

    def abandon_fetch(self) -> None:
        """There is no response, and there will be none: the next fetch begins another session."""
        self._session.on_failure()

    def end_fetch(self, sent: SentFetch, response: fetch_messages.FetchResponse) -> FetchReply:
        """The reply in a response.  Raises ApiError as send() does."""
        version = sent.api_version
        try:
            if response.error_code:
                return self._on_session_error(for_code(response.error_code)(f"{self._sender}: Fetch"), sent.session)
            partitions = self._answers(response, version)
        except BaseException:
            self.abandon_fetch()
            raise
        if version < _FIRST_WITH_SESSIONS:
            self.abandon_fetch()  # every request is full
            _check_complete(partitions, sent.request.partitions)
            return FetchReply(partitions)
        is_taken = self._session.on_reply(response.session_id, partitions, response.throttle_time_ms)
        if not is_taken and (partitions or not response.throttle_time_ms):
            raise InvalidRequest(f"{self._sender}: the answer to a Fetch has partitions that were not requested")
        return FetchReply(partitions)

    def _session_request(self, request: FetchRequest, version: int) -> SessionRequest | None:
        """What to send, all of it by topic id or all of it by name; None for nothing."""
        session = self._session.next_request(request.partitions, request.changed)
        if session is not None and session.epoch != INITIAL_EPOCH and request.partitions:
            # In a session that goes by ids all partitions have one, but for new ones; by names: those of now may have.
            to_look_at = session.to_send if self._uses_topic_ids else request.partitions
            if _all_have_ids(to_look_at, version) != self._uses_topic_ids:
                self._session.on_failure()
                session = self._session.next_request(request.partitions)
        if session is None:
            return None
        if session.epoch == INITIAL_EPOCH:
            self._uses_topic_ids = _all_have_ids(session.to_send, version)
            self._names = {}
        return session

    def _fetch_message(
        self, request: FetchRequest, session: SessionRequest, version: int
    ) -> fetch_messages.FetchRequest:
        forgotten: dict[tuple[str, UUID], list[int]] = {}
        for tp, data in session.to_forget.items():
            forgotten.setdefault((tp.topic, data.topic_id), []).append(tp.partition)
        with_state = version >= _FIRST_WITH_REPLICA_STATE
        message = fetch_messages.FetchRequest(
            replica_id=-1 if with_state else self._broker_id,
            max_wait_ms=request.max_wait_ms,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            session_id=session.session_id,
            session_epoch=session.epoch if version >= _FIRST_WITH_SESSIONS else _WITHOUT_A_SESSION,
            topics=self._topics(session.to_send),
            forgotten_topics_data=[
                fetch_messages.ForgottenTopic(topic=name, topic_id=topic_id, partitions=partitions)
                for (name, topic_id), partitions in forgotten.items()
            ],
        )
        if with_state:
            message.replica_state = fetch_messages.ReplicaState(
                replica_id=self._broker_id, replica_epoch=self._broker_epoch()
            )
        return message

    def _topics(self, to_send: Mapping[TopicPartition, FetchPartitionData]) -> list[fetch_messages.FetchTopic]:
        """In their order, which is the order of the answer: a topic may come several times."""
        topics: list[fetch_messages.FetchTopic] = []
        name: str | None = None
        topic_id = ZERO_UUID
        partitions: list[fetch_messages.FetchPartition] = []
        for tp, data in to_send.items():
            if tp.topic != name or data.topic_id.int != topic_id.int:
                name, topic_id, partitions = tp.topic, data.topic_id, []
                topics.append(fetch_messages.FetchTopic(topic=name, topic_id=topic_id, partitions=partitions))
                self._names[topic_id.int] = name
            partitions.append(
                fetch_messages.FetchPartition(
                    partition=tp.partition,
                    current_leader_epoch=data.current_leader_epoch,
                    fetch_offset=data.fetch_offset,
                    last_fetched_epoch=data.last_fetched_epoch,
                    log_start_offset=data.log_start_offset,
                    partition_max_bytes=data.max_bytes,
                )
            )
        return topics

    def _answers(self, response: fetch_messages.FetchResponse, version: int) -> dict[TopicPartition, FetchedPartition]:
        by_id = version >= _FIRST_WITH_TOPIC_IDS
        answers: dict[TopicPartition, FetchedPartition] = {}
        for topic in response.responses:
            name = self._names.get(topic.topic_id.int) if by_id else topic.topic
            if name is None:
                raise InvalidRequest(f"{self._sender}: Fetch was answered for topic id {topic.topic_id}")
            for data in topic.partitions:
                tp = TopicPartition(name, data.partition_index)
                if tp in answers:
                    raise InvalidRequest(f"{self._sender}: two answers for {tp}")
                answers[tp] = _fetched(data)
        return answers

    def _on_session_error(self, error: ApiError, session: SessionRequest) -> FetchReply:
        """RFT-17: an incremental fetch is repeated as a full one at once; a full one that is refused raises."""
        self._session.on_error(error)
        if isinstance(error, _SESSION_ERRORS) and session.epoch != INITIAL_EPOCH:
            return FetchReply()
        raise error

    # -- lookups --------------------------------------------------------------------------------------------------

    def _list_offsets(self, request: ListOffsetsRequest, version: int) -> ListOffsetsReply:
        topics = [
            list_offsets_messages.ListOffsetsTopic(
                name=name,
                partitions=[
                    list_offsets_messages.ListOffsetsPartition(
                        partition_index=number,
                        current_leader_epoch=question.current_leader_epoch,
                        timestamp=question.timestamp,
                    )
                    for number, question in questions.items()
                ],
            )
            for name, questions in _by_topic(request.partitions).items()
        ]
        message = list_offsets_messages.ListOffsetsRequest(replica_id=self._broker_id, topics=topics)
        response = self._sender.send(message, version)
        assert isinstance(response, list_offsets_messages.ListOffsetsResponse)
        offsets = {
            TopicPartition(topic.name, data.partition_index): ListedOffset(data.offset, _error(data.error_code))
            for topic in response.topics
            for data in topic.partitions
        }
        _check_complete(offsets, request.partitions)
        return ListOffsetsReply(offsets)

    def _offsets_for_epochs(self, request: OffsetForLeaderEpochRequest, version: int) -> OffsetForLeaderEpochReply:
        topics = [
            epoch_messages.OffsetForLeaderTopic(
                topic=name,
                partitions=[
                    epoch_messages.OffsetForLeaderPartition(
                        partition=number,
                        current_leader_epoch=question.current_leader_epoch,
                        leader_epoch=question.leader_epoch,
                    )
                    for number, question in questions.items()
                ],
            )
            for name, questions in _by_topic(request.partitions).items()
        ]
        message = epoch_messages.OffsetForLeaderEpochRequest(replica_id=self._broker_id, topics=topics)
        response = self._sender.send(message, version)
        assert isinstance(response, epoch_messages.OffsetForLeaderEpochResponse)
        ends = {
            TopicPartition(topic.topic, data.partition): EpochEndOffset(
                data.leader_epoch, data.end_offset, _error(data.error_code)
            )
            for topic in response.topics
            for data in topic.partitions
        }
        _check_complete(ends, request.partitions)
        return OffsetForLeaderEpochReply(ends)


def _by_topic(partitions: Mapping[TopicPartition, _T]) -> dict[str, dict[int, _T]]:
    topics: dict[str, dict[int, _T]] = {}
    for tp, value in partitions.items():
        topics.setdefault(tp.topic, {})[tp.partition] = value
    return topics


def _check_complete(answers: Mapping[TopicPartition, object], requested: Mapping[TopicPartition, object]) -> None:
    if answers.keys() != requested.keys():
        different = sorted(answers.keys() ^ requested.keys())
        raise InvalidRequest(
            f"{len(requested)} partitions requested, {len(answers)} answered; they differ in {different[0]}"
        )


def _error(code: int) -> ApiError | None:
    return for_code(code)() if code else None


def _all_have_ids(partitions: Mapping[TopicPartition, FetchPartitionData], version: int) -> bool:
    """Whether a fetch up to this version can name these by their topics' ids."""
    return version >= _FIRST_WITH_TOPIC_IDS and all(data.topic_id.int for data in partitions.values())


def _fetched(data: fetch_messages.PartitionData) -> FetchedPartition:
    diverging = data.diverging_epoch
    return FetchedPartition(
        b"" if data.records is None else data.records,
        data.high_watermark,
        data.log_start_offset,
        (diverging.epoch, diverging.end_offset) if diverging.end_offset >= 0 or diverging.epoch >= 0 else None,
        _error(data.error_code) if data.error_code else None,
    )
