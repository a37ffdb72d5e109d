"""What must hold after every step of a simulation.

An invariant is a function with a name and one sentence.  Those of a change get what a step has changed of one replica,
those of an answer what a client has just received; each raises BrokenInvariant.  To add one, write the function, give
it a decorator, and add a test to test_invariants.py which breaks the product and sees the invariant say so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from kcore.common.topic_partition import TopicPartition
from kcore.log.unified_log import UnifiedLog
from kcore.replica.partition_state import LeaderAndIsrUpdate, LeaderState
from tests.sim.model import Batch, Change, Copy


class BrokenInvariant(AssertionError):
    """name: of the invariant's function."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name.replace('_', ' ')}: {message}")
        self.name = name


@dataclass(slots=True)
class World:
    """All that the invariants look at.

    committed: the batches that were below a high watermark, by base offset.  acknowledged, consumed: base offset ->
    payload.  deleted_below: where a log may start, because of DeleteRecords or retention.
    """

    unclean: bool
    partitions: dict[TopicPartition, LeaderAndIsrUpdate]
    copies: dict[tuple[int, TopicPartition], Copy]
    committed: dict[TopicPartition, dict[int, Batch]] = field(default_factory=lambda: defaultdict(dict))
    contents: dict[TopicPartition, dict[tuple[int, int], bytes]] = field(default_factory=lambda: defaultdict(dict))
    acknowledged: dict[TopicPartition, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    consumed: dict[TopicPartition, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    leaders: dict[TopicPartition, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    deleted_below: dict[TopicPartition, int] = field(default_factory=lambda: defaultdict(int))
    #: Leader epoch -> the end of its leader's log when it began.
    epoch_starts: dict[TopicPartition, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    #: (base offset, leader epoch) of a batch -> the brokers that have had it.
    holders: dict[TopicPartition, dict[tuple[int, int], set[int]]] = field(default_factory=lambda: defaultdict(dict))

    #: Of a cluster with the product's controller: controller epoch -> the broker whose epoch it is.
    controllers: dict[int, int] = field(default_factory=dict)
    #: Topics whose deletion was ordered: nobody keeps their records.
    doomed: set[str] = field(default_factory=set)
    #: Of the topics that are there now, where they have one.
    topic_ids: dict[str, UUID] = field(default_factory=dict)

    def is_of_this_topic(self, tp: TopicPartition, log: UnifiedLog) -> bool:
        """Not of an earlier topic of the same name, which a late request has made once more."""
        topic_id = self.topic_ids.get(tp.topic)
        return log.topic_id is None or topic_id is None or log.topic_id == topic_id

    def is_unclean(self, tp: TopicPartition) -> bool:
        """Whether committed records may be lost."""
        return self.unclean or tp.topic in self.doomed

    def forget(self, tp: TopicPartition) -> None:
        """Another topic of this name begins."""
        self.doomed.discard(tp.topic)
        for of_partition in (
            self.committed,
            self.contents,
            self.acknowledged,
            self.consumed,
            self.leaders,
            self.deleted_below,
            self.epoch_starts,
            self.holders,
        ):
            of_partition.pop(tp, None)

    def allow_start_at(self, tp: TopicPartition, offset: int) -> None:
        """A log may start at offset from now on: nothing below it is missed."""
        self.deleted_below[tp] = max(self.deleted_below[tp], offset)


OfChange = Callable[[World, Change], None]

#: Names of those of an acknowledgement, of a change of the ISR, and of a controller's request.
OF_DECISIONS = (
    "an_acknowledged_record_is_on_enough_replicas",
    "who_joins_the_isr_has_all_that_its_leader_has_committed",
    "who_joins_the_isr_has_fetched_since_it_registered",
    "an_outdated_request_of_a_controller_changes_nothing",
)

#: Checked for each replica that a step has changed; the second only while all elections are clean.
OF_CHANGES: list[OfChange] = []
OF_CHANGES_AFTER_CLEAN_ELECTIONS: list[OfChange] = []


def always(function: OfChange) -> OfChange:
    OF_CHANGES.append(function)
    return function


def after_clean_elections(function: OfChange) -> OfChange:
    OF_CHANGES_AFTER_CLEAN_ELECTIONS.append(function)
    return function


def check_changes(world: World, changes: list[Change]) -> None:
    for change in changes:
        tp = change.copy.topic_partition
        if tp.topic in world.doomed or not world.is_of_this_topic(tp, change.copy.log):
            continue
        for batch in _newly_committed(change):
            world.committed[tp].setdefault(batch.base_offset, batch)
        _note_holder(world, change)
        for invariant in OF_CHANGES:
            invariant(world, change)
        if not world.is_unclean(tp):
            for invariant in OF_CHANGES_AFTER_CLEAN_ELECTIONS:
                invariant(world, change)


def _note_holder(world: World, change: Change) -> None:
    copy = change.copy
    tp = copy.topic_partition
    if change.begins_to_lead:
        world.epoch_starts[tp].setdefault(copy.state.leader_epoch, copy.log_end_offset)
    holders = world.holders[tp]
    for batch in change.appended:
        holders.setdefault((batch.base_offset, batch.leader_epoch), set()).add(copy.broker)


# -- of one replica ------------------------------------------------------------------------------------------------


@always
def offsets_are_in_order(world: World, change: Change) -> None:
    """Log start <= high watermark <= log end."""
    copy = change.copy
    if not copy.log_start_offset <= copy.high_watermark <= copy.log_end_offset:
        raise BrokenInvariant("offsets_are_in_order", str(copy))


@always
def the_high_watermark_of_a_leader_never_goes_back(world: World, change: Change) -> None:
    """As long as a broker leads, its high watermark does not fall."""
    copy = change.copy
    if change.goes_on_to_lead and copy.high_watermark < change.old_high_watermark:
        raise BrokenInvariant(
            "the_high_watermark_of_a_leader_never_goes_back", f"it was {change.old_high_watermark}: {copy}"
        )


@always
def a_leader_epoch_has_one_leader(world: World, change: Change) -> None:
    """No two brokers lead with the same epoch."""
    copy = change.copy
    if change.begins_to_lead:
        leader = world.leaders[copy.topic_partition].setdefault(copy.state.leader_epoch, copy.broker)
        if leader != copy.broker:
            raise BrokenInvariant("a_leader_epoch_has_one_leader", f"broker {leader} led with it: {copy}")


@always
def a_leader_epoch_never_goes_back(world: World, change: Change) -> None:
    """As long as a broker runs, the leader epoch of its replica does not fall."""
    copy = change.copy
    if change.old_state is not None and copy.state.leader_epoch < change.old_state.leader_epoch:
        raise BrokenInvariant("a_leader_epoch_never_goes_back", f"it was {change.old_state.leader_epoch}: {copy}")


@always
def an_offset_has_one_content_in_one_epoch(world: World, change: Change) -> None:
    """No offset is given out twice within a leader epoch, whatever has become of the first record."""
    contents = world.contents[change.copy.topic_partition]
    for batch in change.appended:
        if contents.setdefault((batch.base_offset, batch.leader_epoch), batch.data) != batch.data:
            raise BrokenInvariant(
                "an_offset_has_one_content_in_one_epoch", f"{batch} had other content before: {change.copy}"
            )


@always
def the_isr_is_never_empty(world: World, change: Change) -> None:
    """Neither the stored ISR nor the leader's."""
    state = change.copy.state
    stored = world.partitions[change.copy.topic_partition]
    if not stored.isr or (isinstance(state, LeaderState) and not state.isr.committed):
        raise BrokenInvariant("the_isr_is_never_empty", f"stored {list(stored.isr)}: {change.copy}")


@always
def the_high_watermark_never_passes_the_log_end_of_an_isr_member(world: World, change: Change) -> None:
    """Each live member of the stored ISR has all records that the leader calls committed.

    Its log end alone may be lower: a truncation to an offset inside a batch takes the whole batch and lets the log end
    at that offset, as in Kafka (after unclean elections).  Whoever copies such a log ends where its records end.
    """
    tp = change.copy.topic_partition
    stored = world.partitions[tp]
    leader = world.copies.get((stored.leader, tp))
    if leader is None or leader.is_the_leader_of != stored.leader_epoch:
        return
    for member in stored.isr:
        copy = world.copies.get((member, tp))
        if copy is None or copy.log_end_offset >= leader.high_watermark:
            continue
        first = next(leader.batches.since(copy.log_end_offset), None)
        if first is not None and first.base_offset < leader.high_watermark:
            raise BrokenInvariant(
                "the_high_watermark_never_passes_the_log_end_of_an_isr_member", f"{leader}; in its ISR: {copy}"
            )


@after_clean_elections
def replicas_are_equal_up_to_the_high_watermark(world: World, change: Change) -> None:
    """Byte for byte: what is below the high watermark of any replica never has another content anywhere."""
    committed = world.committed[change.copy.topic_partition]
    for batch in _newly_committed(change):
        if committed[batch.base_offset] != batch:
            raise BrokenInvariant(
                "replicas_are_equal_up_to_the_high_watermark",
                f"{committed[batch.base_offset]} was committed, not {batch}: {change.copy}",
            )


def _newly_committed(change: Change) -> Iterator[Batch]:
    """The batches that the high watermark has passed by this step.  Records below the log start cannot be read."""
    copy = change.copy
    since = -1 if change.was_rewritten else change.old_high_watermark
    if copy.high_watermark > since:
        for batch in copy.batches.since(max(since, copy.log_start_offset)):
            if batch.last_offset >= copy.high_watermark:
                return
            yield batch


@after_clean_elections
def no_acknowledged_record_is_lost_or_reordered(world: World, change: Change) -> None:
    """A leader has each record that was acknowledged (acks=all) at its offset, unless deleted."""
    copy = change.copy
    tp = copy.topic_partition
    if not _may_lack_records(world, change):
        return
    lost = _first_missing(copy, world.acknowledged[tp], world.deleted_below[tp])
    if lost is not None:
        raise BrokenInvariant("no_acknowledged_record_is_lost_or_reordered", f"the one at {lost}: {copy}")


@after_clean_elections
def a_record_that_a_consumer_saw_stays(world: World, change: Change) -> None:
    """A leader has each record that any consumer was given, unless records were deleted up to there."""
    copy = change.copy
    tp = copy.topic_partition
    if not _may_lack_records(world, change):
        return
    lost = _first_missing(copy, world.consumed[tp], world.deleted_below[tp])
    if lost is not None:
        raise BrokenInvariant("a_record_that_a_consumer_saw_stays", f"the one at {lost}: {copy}")


def _may_lack_records(world: World, change: Change) -> bool:
    """Whether this is the elected leader, and it just began to lead, or lost some of its log.

    A broker that leads with an old epoch, until it gets the controller's update, lacks what was committed since.
    """
    copy = change.copy
    stored = world.partitions[copy.topic_partition]
    return (copy.broker, copy.is_the_leader_of) == (stored.leader, stored.leader_epoch) and (
        change.begins_to_lead or change.was_rewritten or copy.log_start_offset > change.old_log_start_offset
    )


def _first_missing(copy: Copy, payloads: dict[int, bytes], deleted_below: int) -> int | None:
    for base_offset, payload in payloads.items():
        if base_offset >= deleted_below:
            batch = copy.batches.at(base_offset)
            if batch is None or batch.payload != payload or batch.last_offset < copy.log_start_offset:
                return base_offset
    return None


# -- of an answer --------------------------------------------------------------------------------------------------


def an_acknowledged_record_is_committed(world: World, tp: TopicPartition, base_offset: int, payload: bytes) -> None:
    """When a producer gets its acknowledgement (acks=all), its records are at that offset, below a high watermark."""
    if not world.is_unclean(tp):
        batch = world.committed[tp].get(base_offset)
        if batch is None or batch.payload != payload:
            raise BrokenInvariant("an_acknowledged_record_is_committed", f"{tp} {base_offset}: committed is {batch}")


def an_acknowledged_record_is_on_enough_replicas(
    world: World, broker: int, tp: TopicPartition, base_offset: int, min_insync_replicas: int
) -> None:
    """When a leader acknowledges records (acks=all), at least min.insync.replicas brokers have had them (PART-18).

    A reassignment may leave fewer replicas than that; the ISR has the others, too, for another moment, as in Kafka.  A
    batch that is sent again may have been deleted.
    """
    leader = world.copies.get((broker, tp))
    batch = None if leader is None else leader.batches.at(base_offset)
    if world.is_unclean(tp) or leader is None or batch is None or not isinstance(leader.state, LeaderState):
        return
    if batch.last_offset < leader.log_start_offset:
        return
    holders = world.holders[tp].get((base_offset, batch.leader_epoch), set())
    if len(holders) < min(min_insync_replicas, 1 + len(leader.state.replicas)):
        raise BrokenInvariant("an_acknowledged_record_is_on_enough_replicas", f"{tp} {batch}: on {sorted(holders)}")


def a_consumer_gets_committed_records(world: World, tp: TopicPartition, batch: Batch) -> None:
    """Each batch that a consumer gets is the committed one of its offset."""
    if not world.is_unclean(tp):
        committed = world.committed[tp].get(batch.base_offset)
        if committed != batch:
            raise BrokenInvariant("a_consumer_gets_committed_records", f"{tp} {batch}: committed is {committed}")


def a_waiting_request_is_answered_once(name: str, answers: int) -> None:
    """No request gets two answers, and none whose time is over has none."""
    if answers != 1:
        raise BrokenInvariant("a_waiting_request_is_answered_once", f"{name} was answered {answers} times")


# -- of a change of the ISR, and of a controller's request ------------------------------------------------------------


def who_joins_the_isr_has_all_that_its_leader_has_committed(
    world: World, tp: TopicPartition, leader: int, joined: Iterable[int]
) -> None:
    """A replica that a leader has taken into the stored ISR has reached the start of the leader epoch and the high
    watermark, and none of its records differs from the leader's, or from a committed one that the leader has deleted
    (PART-13).  A broker that is down has no replica."""
    stored, of_leader = world.partitions[tp], world.copies.get((leader, tp))
    if world.is_unclean(tp) or of_leader is None or of_leader.is_the_leader_of != stored.leader_epoch:
        return
    needed = max(world.epoch_starts[tp].get(stored.leader_epoch, 0), of_leader.high_watermark)
    for member in joined:
        copy = world.copies.get((member, tp))
        if copy is None:
            continue
        why = None
        if copy.log_end_offset < needed:
            why = f"it lacks records below {needed}"
        elif copy.log_end_offset <= of_leader.log_start_offset and copy.log_start_offset < copy.log_end_offset:
            # None of its records can be compared with its leader's: each must be one that was committed.
            others = (batch for batch in copy.batches if world.committed[tp].get(batch.base_offset) != batch)
            if (batch := next(others, None)) is not None:
                why = f"its {batch} was never committed, and its leader has no records at these offsets"
        else:
            for batch in copy.batches.since(max(copy.log_start_offset, of_leader.log_start_offset)):
                if of_leader.batches.at(batch.base_offset) != batch and batch.base_offset < of_leader.log_end_offset:
                    why = f"its {batch} is not its leader's"
                    break
        if why is not None:
            raise BrokenInvariant(
                "who_joins_the_isr_has_all_that_its_leader_has_committed", f"{why}: {copy}; its leader: {of_leader}"
            )


def who_joins_the_isr_has_fetched_since_it_registered(
    tp: TopicPartition, member: int, registered: int, fetched: int
) -> None:
    """A leader takes no broker into the ISR because of a fetch of an earlier registration (KIP-903).

    fetched: the highest registration with which the leader has had a fetch of this broker.
    """
    if fetched < registered:
        raise BrokenInvariant(
            "who_joins_the_isr_has_fetched_since_it_registered",
            f"{tp}: broker {member} is registered with epoch {registered}, and fetched last with {fetched}",
        )


def an_outdated_request_of_a_controller_changes_nothing(broker: int, why: str, before: object, after: object) -> None:
    """A broker ignores a request with an older controller epoch than one before, or for an earlier registration
    (KIP-380): it leads, follows and knows the same as before."""
    if before != after:
        raise BrokenInvariant(
            "an_outdated_request_of_a_controller_changes_nothing", f"broker {broker}, {why}: {before} became {after}"
        )


def the_last_controller_alone_writes(
    world: World, tp: TopicPartition, epoch: int, broker: int, last_epoch: int
) -> None:
    """At most one controller writes in a controller epoch, and none whose epoch is over."""
    owner = world.controllers.setdefault(epoch, broker)
    if owner != broker or epoch != last_epoch:
        raise BrokenInvariant(
            "the_last_controller_alone_writes",
            f"{tp}: broker {broker} writes in epoch {epoch} of broker {owner}, the last one is {last_epoch}",
        )


def no_request_times_out_when_all_is_done(name: str, is_done: bool) -> None:
    """A produce or DeleteRecords that has waited in vain lacks a replica: else somebody forgot to try it again."""
    if is_done:
        raise BrokenInvariant("no_request_times_out_when_all_is_done", name)


def a_consumer_reads_one_history(world: World, broker: int, tp: TopicPartition, last: Batch | None) -> None:
    """Who serves a consumer has the record that it got before this one, unless it or its topic was deleted (KIP-320).

    last: the batch below the consumer's position, None if the consumer has gone back or begins.
    """
    copy = world.copies.get((broker, tp))
    if tp.topic in world.doomed or last is None or copy is None or last.last_offset < copy.log_start_offset:
        return
    if copy.batches.at(last.base_offset) != last:
        raise BrokenInvariant("a_consumer_reads_one_history", f"it had read {last}, and now reads on from {copy}")


def an_idempotent_record_is_there_once(leader: Copy, payloads: list[bytes]) -> None:
    """At the end, a batch that an idempotent producer has sent several times is in the log at most once.

    Not counting what was deleted: a follower that starts anew at the leader's log start has no producer state of the
    records below it, as in Kafka, so a batch that is sent again after it was deleted is a new one.
    """
    present = [batch.payload for batch in leader.batches.since(leader.log_start_offset)]
    for payload in payloads:
        if present.count(payload) > 1:
            raise BrokenInvariant("an_idempotent_record_is_there_once", str(leader))


def the_replicas_become_equal(tp: TopicPartition, copies: list[Copy]) -> None:
    """When the faults are over, all replicas have the same batches, up to the last byte of the log (EPOCH-12)."""
    # A leader may fail before its followers hear that records were deleted.
    start = max(copy.log_start_offset for copy in copies)
    contents = [list(copy.batches.since(start)) for copy in copies]
    if any(content != contents[0] for content in contents[1:]):
        raise BrokenInvariant("the_replicas_become_equal", f"{tp}: " + "; ".join(str(copy) for copy in copies))
