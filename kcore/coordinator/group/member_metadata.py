"""One member of a group, and the responses to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kcore.purgatory.timer import TimerTask

#: Of who is no member yet, or says not which one it is.
UNKNOWN_MEMBER_ID = ""

#: A member's protocols in its order of preference: (name, metadata).
Protocols = list[tuple[str, bytes]]


class JoinGroupMember(NamedTuple):
    """A member as the leader sees it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(slots=True)
class JoinGroupResult:
    """members is filled for the leader alone; error_code 0 is success."""

    error_code: int
    member_id: str
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    members: list[JoinGroupMember] = field(default_factory=list)
    skip_assignment: bool = False


@dataclass(slots=True)
class SyncGroupResult:
    error_code: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class LeavingMember(NamedTuple):
    """member_id "" removes the static member of that instance id, whatever its id (an administrator's request)."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


class LeaveMemberResult(NamedTuple):
    member_id: str
    group_instance_id: str | None
    error_code: int


class LeaveGroupResult(NamedTuple):
    """error_code: of the group; members have theirs where that is 0."""

    error_code: int
    members: list[LeaveMemberResult]


class GroupMember(NamedTuple):
    """Who asks, as far as the request says."""

    member_id: str = UNKNOWN_MEMBER_ID
    group_instance_id: str | None = None
    generation_id: int = -1


JoinCallback = Callable[[JoinGroupResult], None]
SyncCallback = Callable[[SyncGroupResult], None]
LeaveCallback = Callable[[LeaveGroupResult], None]


class MemberMetadata:
    """Guarded by its group's lock.

    awaiting_join and awaiting_sync are the callbacks of a parked JoinGroup or SyncGroup request, None when there is
    none.  A member is new until its first JoinGroup is answered: only then does it know its id and can send heartbeats.
    session_deadline_ms (high-resolution clock) moves with every sign of life; heartbeat_task fires no later than that
    and looks again, so that a heartbeat does not touch the timer.
    """

    __slots__ = (
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client_host",
        "client_id",
        "group_instance_id",
        "heartbeat_task",
        "is_new",
        "member_id",
        "protocol_type",
        "rebalance_timeout_ms",
        "session_deadline_ms",
        "session_timeout_ms",
        "supported_protocols",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocol_type: str,
        supported_protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocol_type = protocol_type
        self.supported_protocols = supported_protocols
        self.assignment = assignment
        self.awaiting_join: JoinCallback | None = None
        self.awaiting_sync: SyncCallback | None = None
        self.is_new = False
        self.session_deadline_ms = 0.0
        self.heartbeat_task: TimerTask | None = None

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    def metadata(self, protocol: str) -> bytes:
        """What the member sent for a protocol that it supports."""
        return next(metadata for name, metadata in self.supported_protocols if name == protocol)

    def vote(self, candidates: set[str]) -> str:
        """The candidate this member likes best; it supports all of them."""
        return next(name for name, _ in self.supported_protocols if name in candidates)

    def __repr__(self) -> str:
        return f"MemberMetadata({self.member_id}, instance={self.group_instance_id}, client={self.client_id})"
