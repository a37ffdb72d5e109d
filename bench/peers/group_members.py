"""Members of a consumer group, hundreds of them in one thread: the client of the rebalance rows.

Each member has a connection of its own and speaks the classic protocol or that of KIP-848, to kcore and to a real Kafka
alike.  It does at once what an answer asks for, and sends a heartbeat every HEARTBEAT_S otherwise.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import struct
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Protocol, Self

from bench.replication_client import TIMEOUT_S, Address, receive, send
from kcore.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    MemberIdRequired,
    NotCoordinator,
    RebalanceInProgress,
    for_code,
)
from kcore.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatTopicPartitions,
)
from kcore.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from kcore.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcore.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kcore.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from kcore.protocol.schema import Message

HEARTBEAT_S = 0.1
TIMEOUT_MS = TIMEOUT_S * 1000
VERSIONS: dict[type[Message], int] = {
    JoinGroupRequest: 5,
    SyncGroupRequest: 3,
    HeartbeatRequest: 3,
    ConsumerGroupHeartbeatRequest: 1,
}
_VERSION_0 = struct.pack(">h", 0)
_WAIT = {CoordinatorLoadInProgress.code, CoordinatorNotAvailable.code, NotCoordinator.code}


class Member(Protocol):
    def __init__(self, group: str, topic: str, partitions: int) -> None: ...

    @staticmethod
    def have_settled(members: Sequence[Member], partitions: int) -> bool:
        """Whether all of them are members, each with its share, and together have the partitions."""

    def first(self) -> Message: ...

    def next(self, answer: Message) -> Message | None:
        """What to send at once; None to wait for the next heartbeat."""

    def heartbeat(self) -> Message: ...


class ClassicMember:
    """Of a group whose leader gives each member the partitions n, n + members, n + 2 * members ..."""

    def __init__(self, group: str, topic: str, partitions: int) -> None:
        self.generation = -1
        #: The generation whose assignment it has; -1 while a rebalance is on.
        self.settled_in = -1
        #: Of the generation that it leads; 0 where another member leads.
        self.members_led = 0
        self._group = group
        self._topic = topic
        self._partitions = partitions
        self._subscription = _VERSION_0 + ConsumerProtocolSubscription(topics=[topic]).encode(0)
        self._id = ""

    @staticmethod
    def have_settled(members: Sequence[ClassicMember], partitions: int) -> bool:
        generations = {member.settled_in for member in members}
        return len(generations) == 1 and max(member.members_led for member in members) == len(members)

    def first(self) -> Message:
        self.settled_in = -1
        return JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=TIMEOUT_MS,
            member_id=self._id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=self._subscription)],
        )

    def heartbeat(self) -> Message:
        return HeartbeatRequest(group_id=self._group, generation_id=self.generation, member_id=self._id)

    def next(self, answer: Message) -> Message | None:
        assert isinstance(answer, JoinGroupResponse | SyncGroupResponse | HeartbeatResponse)
        if isinstance(answer, JoinGroupResponse) and answer.error_code == MemberIdRequired.code:
            self._id = answer.member_id
            return self.first()
        if answer.error_code == RebalanceInProgress.code:
            return self.first()
        if answer.error_code:
            raise for_code(answer.error_code)(f"member {self._id} of {self._group}")
        if isinstance(answer, JoinGroupResponse):
            return self._sync(answer)
        self.settled_in = self.generation
        return None

    def _sync(self, answer: JoinGroupResponse) -> SyncGroupRequest:
        self.generation, self._id = answer.generation_id, answer.member_id
        self.members_led = len(answer.members)
        assignments = [
            SyncGroupRequestAssignment(member_id=member.member_id, assignment=self._share(n, len(answer.members)))
            for n, member in enumerate(answer.members)
        ]
        return SyncGroupRequest(
            group_id=self._group, generation_id=self.generation, member_id=self._id, assignments=assignments
        )

    def _share(self, number: int, members: int) -> bytes:
        share = TopicPartition(topic=self._topic, partitions=list(range(number, self._partitions, members)))
        return _VERSION_0 + ConsumerProtocolAssignment(assigned_partitions=[share]).encode(0)


class ConsumerMember:
    """A member of a KIP-848 group.  It takes on each assignment as soon as an answer has it."""

    def __init__(self, group: str, topic: str, partitions: int) -> None:
        self.epoch = 0
        self.owned: list[ConsumerGroupHeartbeatTopicPartitions] = []
        self._group = group
        self._topic = topic
        self._id = str(uuid.uuid4())

    @staticmethod
    def have_settled(members: Sequence[ConsumerMember], partitions: int) -> bool:
        owned = [(topic.topic_id, n) for member in members for topic in member.owned for n in topic.partitions]
        shares = all(any(topic.partitions for topic in member.owned) for member in members)
        epochs = {member.epoch for member in members}
        return shares and len(owned) == len(set(owned)) == partitions and len(epochs) == 1

    def first(self) -> Message:
        return ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self._id,
            member_epoch=0,
            rebalance_timeout_ms=TIMEOUT_MS,
            subscribed_topic_names=[self._topic],
            topic_partitions=[],
        )

    def heartbeat(self) -> Message:
        return ConsumerGroupHeartbeatRequest(group_id=self._group, member_id=self._id, member_epoch=self.epoch)

    def next(self, answer: Message) -> Message | None:
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        if answer.error_code:
            raise for_code(answer.error_code)(f"member {self._id} of {self._group}: {answer.error_message}")
        self.epoch = answer.member_epoch
        if answer.assignment is None:
            return None
        self.owned = answer.assignment.topic_partitions
        return ConsumerGroupHeartbeatRequest(
            group_id=self._group, member_id=self._id, member_epoch=self.epoch, topic_partitions=self.owned
        )


class Members:
    """A context manager: the members of one group, each with its connection to the group's coordinator."""

    def __init__(self, coordinator: Address) -> None:
        self.members: list[Member] = []
        self._coordinator = coordinator
        self._selector = selectors.DefaultSelector()
        self._heartbeats: list[tuple[float, int]] = []  # when, place in members
        self._sockets: list[socket.socket] = []
        self._sent: list[Message] = []
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()
        self._selector.close()

    def connect(self, count: int) -> None:
        """For as many members that will be added.  The broker's backlog may be full for a second meanwhile."""
        for _ in range(count):
            connection = self._closing.enter_context(socket.create_connection(self._coordinator, TIMEOUT_S))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(connection)

    def add(self, member: Member) -> None:
        """It joins over the next connection."""
        place = len(self.members)
        self._selector.register(self._sockets[place], selectors.EVENT_READ, place)
        self.members.append(member)
        first = member.first()
        self._sent.append(first)
        self._send(place, first)

    def step(self) -> bool:
        """Answer what has come, send the heartbeats that are due: whether any answer was more than a heartbeat's.

        Raises the error that an answer has, TimeoutError.
        """
        now = time.perf_counter()
        pause = max(0.0, self._heartbeats[0][0] - now) if self._heartbeats else TIMEOUT_S
        ready = self._selector.select(pause)
        if not ready and not self._heartbeats:
            raise TimeoutError(f"no answer for {TIMEOUT_S} s")
        has_news = False
        for key, _ in ready:
            has_news |= self._answered(key.data)
        now = time.perf_counter()
        while self._heartbeats and self._heartbeats[0][0] <= now:
            _, place = heapq.heappop(self._heartbeats)
            self._send(place, self.members[place].heartbeat())
        return has_news

    def _answered(self, place: int) -> bool:
        answer = self._receive(place)
        if answer.error_code in _WAIT:  # type: ignore[attr-defined]
            time.sleep(0.01)
            self._send(place, self._sent[place])
            return False
        following = self.members[place].next(answer)
        if following is None:
            heapq.heappush(self._heartbeats, (time.perf_counter() + HEARTBEAT_S, place))
        else:
            self._send(place, following)
        return following is not None or not isinstance(answer, HeartbeatResponse)

    def _send(self, place: int, request: Message) -> None:
        self._sent[place] = request
        send(self._sockets[place], request, VERSIONS[type(request)])

    def _receive(self, place: int) -> Message:
        """The answer to what was sent; the broker sends it whole."""
        request = self._sent[place]
        return receive(self._sockets[place], request, VERSIONS[type(request)])
