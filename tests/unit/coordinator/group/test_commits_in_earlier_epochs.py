"""Offset commits of a member of a KIP-848 group that has not heard of its new epoch (KIP-1251)."""

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.committed_offset import OffsetAndMetadata
from kcore.coordinator.group.member_metadata import GroupMember

from .harness import Answer, Consumers, MixedGroup, of_t

STALE, ILLEGAL = errors.StaleMemberEpoch.code, errors.IllegalGeneration.code


def commit(group, member_id, epoch, *partitions):
    """The error code of each partition; those of topic t are numbers."""
    answer = Answer()
    offsets = {TopicPartition(*(("t", p) if isinstance(p, int) else p)): OffsetAndMetadata(7) for p in partitions}
    group.coordinator.offsets.commit("g", member_id, None, epoch, offsets, answer, has_member_epochs=True)
    return [answer.result[partition] for partition in offsets]


def two_members():
    """a is in epoch 2 and has had partitions 0 and 1 since epoch 1; b has had the others since epoch 2."""
    consumers = Consumers()
    consumers.two_members()
    return consumers


def test_CG_44_a_commit_in_an_earlier_epoch_is_taken_for_what_the_member_has_had_since_then():
    consumers = two_members()
    gone, beyond, unknown = 2, 9, ("none", 0)
    assert commit(consumers, "a", 1, 0, gone, beyond, unknown) == [0, STALE, STALE, STALE]
    assert consumers.committed() == {("t", 0): 7}
    assert commit(consumers, "b", 1, 2) == commit(consumers, "a", 0, 0) == commit(consumers, "a", 3, 0) == [STALE]
    assert commit(consumers, "a", 2, 0, gone) == [0, 0]


def test_CG_44_a_commit_in_an_earlier_epoch_is_taken_for_what_the_member_has_to_give_up():
    consumers = two_members()
    consumers.join_new("c")
    consumers.beat("a", 2, of_t(0, 1))
    consumers.beat("b", 2, of_t(2, 3))
    member = next(member for member in consumers.value().members.values() if member.revoking)
    since = {"a": 1, "b": 2}[member.member_id]
    (_, pending), *_ = member.revoking
    assert commit(consumers, member.member_id, since, pending) == [0]
    assert commit(consumers, member.member_id, since - 1, pending) == [STALE]


def test_CG_44_a_coordinator_that_takes_over_knows_since_when_a_member_has_what():
    again = two_members().restarted()
    assert commit(again, "a", 1, 0, 2) == [0, STALE]
    assert commit(again, "b", 1, 2) == [STALE]


def test_CG_44_a_partition_that_comes_back_to_a_member_is_assigned_anew():
    """What it read of it before is another's by now."""
    consumers = two_members()
    consumers.leave_new("b")
    assert consumers.beat("a", 2).assignment == of_t(0, 1, 2, 3)
    assert commit(consumers, "a", 1, 1, 2) == [0, STALE]
    assert commit(consumers, "a", 2, 1, 2) == [0, STALE]


def test_CG_44_offsets_in_a_transaction_are_taken_in_the_same_epochs():
    consumers, answer = two_members(), Answer()
    offsets = {TopicPartition("t", number): OffsetAndMetadata(5) for number in (0, 2)}
    who = GroupMember("a", None, 1)
    consumers.coordinator.offsets.commit_in_transaction("g", who, (9, 0), offsets, answer)
    assert answer.result == {TopicPartition("t", 0): 0, TopicPartition("t", 2): ILLEGAL}


def test_CG_44_a_classic_member_that_gave_up_all_commits_late_for_what_nobody_else_has_had():
    mixed = MixedGroup()
    (one,) = mixed.classic_group({0, 1, 2, 3})
    mixed.join_new("new")
    generation, kept = mixed.rejoin_and_sync(one)
    assert generation > one.generation_id
    codes = commit(mixed, one.member_id, one.generation_id, *range(4))
    assert codes == [0 if number in kept else ILLEGAL for number in range(4)]


def test_CG_44_a_classic_member_that_kept_its_partitions_commits_what_it_read_before_the_upgrade():
    mixed = MixedGroup()
    one, two = mixed.classic_group({0, 1}, {2, 3})
    mixed.join_new("new")
    before = one.generation_id
    held = {0: one, 1: one, 2: two, 3: two}
    for join, owned in ((one, {0, 1}), (two, {2, 3})):
        _, kept = mixed.rejoin_and_sync(join, owned)
        mixed.rejoin_and_sync(join, kept)
    members = mixed.value().members
    for number, join in held.items():
        is_kept = of_t(number) <= members[join.member_id].held
        assert members[join.member_id].epoch > before
        assert commit(mixed, join.member_id, before, number) == [0 if is_kept else ILLEGAL]


def test_CG_42_a_static_member_that_is_back_with_another_id_commits_what_it_has_and_its_former_id_nothing():
    """While it was away its partitions were nobody else's, so each epoch is one in which it had them."""
    consumers = Consumers()
    consumers.join_new("a", instance_id="i")
    consumers.join_new("b")
    consumers.beat("a", 1, instance_id="i")
    consumers.beat("a", 1, of_t(0, 1), instance_id="i")
    consumers.beat("b", 2)
    consumers.leave_new("a", -2, "i")
    assert commit(consumers, "a", 2, 0) == [STALE]
    consumers.join_new("c")
    consumers.advance(1_000)
    consumers.beat("b", 2, of_t(2, 3))
    consumers.beat("c", 3)
    held_by_others = consumers.value().members["b"].held | consumers.value().members["c"].held
    assert not held_by_others & of_t(0, 1), "they are kept for the one that is away"
    back = consumers.join_new("again", instance_id="i")
    assert back.assignment and back.assignment <= of_t(0, 1)
    kept = sorted(number for _, number in back.assignment)
    for group in (consumers, consumers.restarted()):
        assert commit(group, "a", 2, *kept) == [errors.UnknownMemberId.code] * len(kept)
        assert commit(group, "again", back.member_epoch, *kept) == [0] * len(kept)
        held = [p for member in group.value().members.values() for p in member.held]
        assert len(held) == len(set(held))
