"""A consumer group of KIP-848 as its coordinator has it: its value, and what is not in the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kcore.coordinator.group.consumer_group import ConsumerGroup
from kcore.coordinator.group.consumer_group_records import Record, tombstones
from kcore.coordinator.group.regex_resolver import RegexState
from kcore.errors import ApiError, IllegalGeneration, StaleMemberEpoch, UnknownMemberId, UnsupportedVersion
from kcore.purgatory.timer import TimerTask

WriteCallback = Callable[[ApiError | None], None]


@dataclass(slots=True)
class Session:
    """When a member is taken for dead, in ms of the hi-res clock, and what fences it at that time, or when it has not
    given up its partitions, joined again or sent SyncGroup in time (the latter two: of the classic protocol)."""

    deadline_ms: float
    task: TimerTask | None = None
    revocation_task: TimerTask | None = None
    rejoin_task: TimerTask | None = None
    sync_task: TimerTask | None = None

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()
        for name in ("revocation_task", "rejoin_task", "sync_task"):
            self.set_task(name, None)

    def set_task(self, name: str, task: TimerTask | None) -> None:
        """In place of the one of that name, which does not fire any more."""
        before = getattr(self, name)
        if before is not None:
            before.cancel()
        setattr(self, name, task)


class Write(NamedTuple):
    """One that is under way.  touched: members of which it has records.  callbacks: who waits for it."""

    touched: set[str]
    callbacks: list[WriteCallback]


@dataclass(slots=True)
class LiveConsumerGroup:
    """What GroupMetadata.consumer is.  Under the group's lock.

    value: as its records say once all writes that are under way are in the log.
    assigned_at_ms: when its target was computed last, in ms of the hi-res clock; None if not since this broker has it.
    unsaved: members whose records a write did not bring into the log; None if there is no such write.
    waiting: by number, writes that are under way.
    """

    value: ConsumerGroup
    assigned_at_ms: float | None = None
    is_stored: bool = False
    unsaved: set[str] | None = None
    waiting: dict[int, Write] = field(default_factory=dict)
    num_writes: int = 0
    sessions: dict[str, Session] = field(default_factory=dict)
    regexes: RegexState = field(default_factory=RegexState)

    def tombstones(self) -> list[Record]:
        """What removes all its records, also those of former members whose removal may not reach the log."""
        if not self.is_stored:
            return []
        return tombstones(self.value, (self.unsaved or set()).union(*(w.touched for w in self.waiting.values())))

    def check_offset_commit(self, member_id: str, epoch: int, *, has_member_epochs: bool = True) -> None:
        """has_member_epochs: whether the request's version can name StaleMemberEpoch.

        Raises UnknownMemberId, StaleMemberEpoch, UnsupportedVersion, of the classic protocol IllegalGeneration.
        """
        if epoch < 0 and not self.value.members:
            return  # tools, and consumers that have their partitions assigned by hand
        self.check_member(member_id, epoch, has_member_epochs=has_member_epochs)

    def check_member(self, member_id: str | None, epoch: int, *, has_member_epochs: bool = True) -> None:
        """As check_offset_commit()."""
        member = self.value.members.get(member_id) if member_id is not None else None
        if member is None:
            raise UnknownMemberId(f"Member {member_id} is not a member of group {self.value.group_id}.")
        if member.classic is not None:
            if epoch != member.epoch:
                raise IllegalGeneration(f"Member {member_id} is in epoch {member.epoch}, not {epoch}.")
            return
        if not has_member_epochs:
            raise UnsupportedVersion(f"member {member_id} uses the consumer protocol: version 9 or newer is needed")
        if epoch != member.epoch:
            raise StaleMemberEpoch(f"Member {member_id} is in epoch {member.epoch}, not {epoch}.")
