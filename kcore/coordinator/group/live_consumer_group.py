"""A consumer group of KIP-848 as its coordinator has it: its value, and what is not in the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.consumer_group import ConsumerGroup, ConsumerMember, FindTopic, member_by_id
from kcore.coordinator.group.consumer_group_records import Record, Touched, tombstones
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
    """One that is under way.  touched: what it has records of.  callbacks: who waits for it."""

    touched: Touched
    callbacks: list[WriteCallback]


@dataclass(slots=True)
class LiveConsumerGroup:
    """What GroupMetadata.consumer is.  Under the group's lock.

    value: as its records say once all writes that are under way are in the log.
    assigned_at_ms: when its target was computed last, in ms of the hi-res clock; None if not since this broker has it.
    unsaved: that whose records a write did not bring into the log; None if there is no such write.
    waiting: by number, writes that are under way.  num_failed: writes that have failed.
    """

    value: ConsumerGroup
    assigned_at_ms: float | None = None
    is_stored: bool = False
    unsaved: Touched | None = None
    waiting: dict[int, Write] = field(default_factory=dict)
    num_writes: int = 0
    num_failed: int = 0
    sessions: dict[str, Session] = field(default_factory=dict)
    regexes: RegexState = field(default_factory=RegexState)

    def tombstones(self) -> list[Record]:
        """What removes all its records, also those whose removal may not reach the log."""
        if not self.is_stored:
            return []
        return tombstones(self.value, (self.unsaved or Touched()).union(*(w.touched for w in self.waiting.values())))

    def refused_commits(
        self,
        member_id: str,
        epoch: int,
        partitions: Iterable[TopicPartition],
        find_topic: FindTopic,
        *,
        has_member_epochs: bool = True,
    ) -> dict[TopicPartition, ApiError]:
        """Of the partitions of an offset commit, those whose offsets are not to be stored, with the reason.

        A commit in an earlier epoch than the member's is taken for the partitions that the member has had since that
        epoch (KIP-1251).  has_member_epochs: whether the request's version can name StaleMemberEpoch.
        Raises UnknownMemberId, UnsupportedVersion, for a later epoch StaleMemberEpoch, of the classic protocol
        IllegalGeneration.
        """
        if epoch < 0 and not self.value.members:
            return {}  # tools, and consumers that have their partitions assigned by hand
        member = member_by_id(self.value, member_id)
        if member.classic is None and not has_member_epochs:
            raise UnsupportedVersion(f"member {member_id} uses the consumer protocol: version 9 or newer is needed")
        if epoch >= member.epoch:
            _check_epoch(member, epoch)
            return {}
        refused: dict[TopicPartition, ApiError] = {}
        for partition in partitions:
            topic = find_topic(partition.topic)
            since = None if topic is None else member.assignment_epochs.get((topic.topic_id, partition.partition))
            if since is None:
                refused[partition] = _wrong_epoch(member, f"{partition} is not assigned to member {member_id}.")
            elif epoch < since:
                refused[partition] = _wrong_epoch(
                    member, f"{partition} was assigned to member {member_id} in epoch {since}, after {epoch}."
                )
        return refused

    def check_member(self, member_id: str | None, epoch: int) -> None:
        """Raises UnknownMemberId, StaleMemberEpoch, of the classic protocol IllegalGeneration."""
        if member_id is None:
            raise UnknownMemberId(f"an epoch without a member of group {self.value.group_id}")
        _check_epoch(member_by_id(self.value, member_id), epoch)


def _check_epoch(member: ConsumerMember, epoch: int) -> None:
    if epoch != member.epoch:
        raise _wrong_epoch(member, f"Member {member.member_id} is in epoch {member.epoch}, not {epoch}.")


def _wrong_epoch(member: ConsumerMember, message: str) -> ApiError:
    return (StaleMemberEpoch if member.classic is None else IllegalGeneration)(message)
