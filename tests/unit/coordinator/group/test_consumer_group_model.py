"""Random histories of a consumer group of KIP-848: clients that are slow, lose answers, come back and end, over topics
that come, grow and go."""

import uuid

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kcore.coordinator.group.consumer_assignors import TopicOfGroup
from kcore.coordinator.group.consumer_group import (
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroup,
    Heartbeat,
    MemberState,
    heartbeat,
    leave,
    without_members,
)
from kcore.errors import ApiError, FencedInstanceId, FencedMemberEpoch, UnknownMemberId, UnreleasedInstanceId

TOPICS = ("a", "b", "c")


class Client:
    """A member as its process sees it.  told: what it was last told to own; owned: what it owns."""

    def __init__(self, member_id, topics, assignor, instance_id):
        self.member_id, self.topics, self.assignor, self.instance_id = member_id, topics, assignor, instance_id
        self.start_anew()

    def start_anew(self):
        self.epoch, self.owned, self.told = 0, frozenset(), frozenset()

    def beat(self):
        return Heartbeat(
            self.member_id, self.epoch, self.instance_id, None, 1000, self.topics, self.assignor, self.owned
        )


class GroupModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.group = ConsumerGroup("g")
        self.topics = {}
        self.clients = []
        self.num_made = 0

    def find_topic(self, name):
        return self.topics.get(name)

    def some_client(self, place):
        return self.clients[place % len(self.clients)]

    def send(self, client, is_answer_lost=False):
        before = self.group
        beat = client.beat()
        try:
            self.group = heartbeat(before, beat, self.find_topic, "uniform")
        except (FencedMemberEpoch, UnknownMemberId):
            assert client.member_id not in before.members or client.epoch != before.members[client.member_id].epoch
            client.start_anew()
            return
        except UnreleasedInstanceId:
            assert client.instance_id is not None
            return
        except FencedInstanceId:
            assert client.member_id not in before.members
            self.clients.remove(client)
            return
        assert before.epoch <= self.group.epoch <= before.epoch + 1
        if not is_answer_lost:
            member = self.group.members[client.member_id]
            client.epoch, client.told = member.epoch, member.assigned
            # What a client has to give up it owns until it has done so; what it gets it owns at once.
            client.owned |= member.assigned

    # -- what happens

    @rule(
        topics=st.sets(st.sampled_from(TOPICS), min_size=1),
        assignor=st.sampled_from(["uniform", "range", None]),
        instance=st.sampled_from([None, None, "i1", "i2"]),
        is_answer_lost=st.booleans(),
    )
    def join(self, topics, assignor, instance, is_answer_lost):
        if len(self.clients) >= 6:
            return
        self.num_made += 1
        client = Client(f"m{self.num_made}", sorted(topics), assignor, instance)
        self.clients.append(client)
        self.send(client, is_answer_lost)

    @precondition(lambda self: self.clients)
    @rule(place=st.integers(0, 99), is_answer_lost=st.booleans())
    def beat(self, place, is_answer_lost):
        self.send(self.some_client(place), is_answer_lost)

    @precondition(lambda self: self.clients)
    @rule(place=st.integers(0, 99))
    def give_up(self, place):
        client = self.some_client(place)
        client.owned &= client.told

    @precondition(lambda self: self.clients)
    @rule(place=st.integers(0, 99), topics=st.sets(st.sampled_from(TOPICS), min_size=1))
    def subscribe(self, place, topics):
        self.some_client(place).topics = sorted(topics)

    @precondition(lambda self: self.clients)
    @rule(place=st.integers(0, 99))
    def lose_all_and_rejoin(self, place):
        client = self.some_client(place)
        client.start_anew()
        self.send(client)

    @precondition(lambda self: self.clients)
    @rule(place=st.integers(0, 99))
    def session_ends(self, place):
        """Of a process that is gone, or of one that comes back later: it owns nothing from then on."""
        client = self.some_client(place)
        self.group = without_members(self.group, [client.member_id])
        assert client.member_id not in self.group.members and client.member_id not in self.group.targets
        if place % 2:
            self.clients.remove(client)
        else:
            client.owned = client.told = frozenset()

    @precondition(lambda self: self.clients)
    @rule(place=st.integers(0, 99), is_for_good=st.booleans())
    def leave(self, place, is_for_good):
        client = self.some_client(place)
        epoch = LEAVE_EPOCH if is_for_good or client.instance_id is None else LEAVE_STATIC_EPOCH
        self.clients.remove(client)
        try:
            self.group = leave(self.group, client.member_id, epoch, client.instance_id)
        except ApiError:
            assert client.member_id not in self.group.members
            return
        assert (client.member_id in self.group.members) == (epoch == LEAVE_STATIC_EPOCH)

    @rule(name=st.sampled_from(TOPICS), num_partitions=st.integers(1, 7))
    def topic_grows(self, name, num_partitions):
        topic = self.topics.get(name, TopicOfGroup(uuid.UUID(int=self.num_made * 10 + ord(name)), 0))
        if num_partitions > topic.num_partitions:
            self.topics[name] = topic._replace(num_partitions=num_partitions)

    @precondition(lambda self: self.topics)
    @rule(name=st.sampled_from(TOPICS))
    def topic_goes(self, name):
        self.topics.pop(name, None)

    @precondition(lambda self: self.clients)
    @rule()
    def all_is_quiet(self):
        """Each partition of a subscribed topic has an owner once the clients have done what they are told."""
        for member in list(self.group.members.values()):
            if member.epoch == LEAVE_STATIC_EPOCH or not any(c.member_id == member.member_id for c in self.clients):
                self.group = without_members(self.group, [member.member_id])
        held_ids = {client.instance_id for client in self.clients if client.member_id in self.group.members}
        self.clients = [
            client
            for client in self.clients
            if client.member_id in self.group.members
            or client.instance_id is None
            or (client.instance_id not in held_ids and not held_ids.add(client.instance_id))
        ]
        for _ in range(5):
            for client in list(self.clients):
                client.owned &= client.told
                self.send(client)
        for client in self.clients:
            client.owned &= client.told
        wanted = {name for client in self.clients for name in client.topics if name in self.topics}
        everything = {(self.topics[n].topic_id, p) for n in wanted for p in range(self.topics[n].num_partitions)}
        owned = [partition for client in self.clients for partition in client.owned]
        assert sorted(owned) == sorted(everything)
        assert self.group.state == "Stable"
        for client in self.clients:
            ids = {self.topics[name].topic_id for name in client.topics if name in self.topics}
            assert all(topic_id in ids for topic_id, _ in client.owned)
        stable = self.group
        for client in self.clients:
            self.send(client)
        assert self.group is stable

    # -- what is always true

    @invariant()
    def no_partition_has_two_owners(self):
        held = [partition for member in self.group.members.values() for partition in member.held]
        assert len(held) == len(set(held))
        owned = [partition for client in self.clients for partition in client.owned]
        assert len(owned) == len(set(owned))

    @invariant()
    def what_a_client_owns_its_member_holds(self):
        for client in self.clients:
            member = self.group.members.get(client.member_id)
            if member is None:
                assert not client.owned
            else:
                assert client.owned <= member.held

    @invariant()
    def epochs_are_in_order(self):
        group = self.group
        assert group.assignment_epoch <= group.epoch
        for member in group.members.values():
            assert member.epoch <= group.assignment_epoch
            assert not member.assigned & member.revoking
            assert bool(member.revoking) == (member.state is MemberState.UNREVOKED_PARTITIONS)
            assert member.member_id in group.targets


GroupModel.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


class TestCG22NoPartitionHasTwoOwners(GroupModel.TestCase):
    pass
