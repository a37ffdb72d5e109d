"""Random histories of a group whose members use either protocol: clients that are slow, hear errors, end and change
their protocol, over a coordinator that moves and whose writes fail."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kcore.errors import (
    NONE,
    FencedMemberEpoch,
    GroupIdNotFound,
    IllegalGeneration,
    NotLeaderOrFollower,
    UnknownMemberId,
)
from kcore.protocol.messages.consumer_protocol import read_subscription

from .harness import MixedGroup, assigned_numbers, assignment, of_t

NUMBERS = {0, 1, 2, 3}
#: Errors after which a client begins anew, with nothing.
ANEW = {error.code for error in (FencedMemberEpoch, GroupIdNotFound, IllegalGeneration, UnknownMemberId)}


class NewClient:
    """A client of the new protocol.  owned: the partitions that it reads; assigned: those of its last assignment."""

    def __init__(self, model, member_id):
        self.model, self.member_id = model, member_id
        self.start_anew()

    def start_anew(self):
        self.epoch, self.owned, self.assigned = 0, set(), set()

    def step(self):
        mixed = self.model.mixed
        answer = mixed.beat(self.member_id, self.epoch, of_t(*self.owned), ("t",), rebalance_timeout_ms=60_000)
        if answer.error_code in ANEW:
            self.start_anew()
        elif not answer.error_code:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.assigned = {number for _, number in answer.assignment}
            self.owned |= self.assigned

    def give_up(self):
        self.owned &= self.assigned

    def end(self):
        self.model.mixed.leave_new(self.member_id)


class ClassicClient:
    """A client of the classic protocol: JoinGroup, SyncGroup, heartbeats until an answer is REBALANCE_IN_PROGRESS.

    is_eager: it gives up all that it owns before each JoinGroup.
    """

    def __init__(self, model, is_eager):
        self.model, self.is_eager, self.member_id = model, is_eager, ""
        self.start_anew()

    def start_anew(self):
        self.generation, self.owned = -1, set()
        self.join = self.sync = None  # answers that it waits for, or has not processed
        self.has_to_join = True

    def step(self):
        if self.sync is not None:
            self._process_sync()
        elif self.join is not None:
            self._process_join()
        elif self.has_to_join:
            self._send_join()
        else:
            it = self.model.as_sender(self)
            self._is_error(self.model.mixed.heartbeat(it))

    def _send_join(self):
        if self.is_eager:
            self.owned = set()
        self.join = self.model.mixed.join_classic(self.member_id, self.owned)

    def _process_join(self):
        join = self.join
        if join.waits:
            return
        self.join = None
        if self._is_error(join.error_code):
            return
        self.member_id, self.generation, self.has_to_join = join.member_id, join.generation_id, False
        shares = {}
        if join.leader_id == self.member_id:
            shares = self._shares(join.members)
        self.sync = self.model.mixed.sync(join, shares)

    def _shares(self, members):
        """What a leader gives: in turn, but for the cooperative protocol nothing that another still owns."""
        owners = {}
        for member in members:
            for topic in read_subscription(member.metadata).owned_partitions:
                owners |= dict.fromkeys(topic.partitions, member.member_id)
        ids = sorted(member.member_id for member in members)
        shares = {member_id: {n for n in NUMBERS if ids[n % len(ids)] == member_id} for member_id in ids}
        return {
            member_id: assignment({n for n in share if owners.get(n, member_id) == member_id})
            for member_id, share in shares.items()
        }

    def _process_sync(self):
        sync = self.sync
        if sync.waits:
            return
        self.sync = None
        if self._is_error(sync.error_code):
            return
        given = assigned_numbers(sync.assignment)
        # A cooperative client that gives something up joins again at once.
        self.has_to_join = bool(self.owned - given)
        self.owned = given

    def _is_error(self, code):
        if code in ANEW:
            self.start_anew()
            self.member_id = "" if code == UnknownMemberId.code else self.member_id
        elif code:
            self.has_to_join = True
        return code != NONE

    def give_up(self):
        pass

    def end(self):
        if self.member_id:
            self.model.mixed.leave(self.member_id)


class MigrationModel(RuleBasedStateMachine):
    @initialize(is_eager=st.booleans())
    def begin(self, is_eager):
        self.is_eager = is_eager
        self.mixed = MixedGroup()
        self.clients = []
        self.num_made = 0

    @staticmethod
    def as_sender(client):
        class Sender:
            member_id, generation_id = client.member_id, client.generation

        return Sender

    def some_client(self, place):
        return self.clients[place % len(self.clients)]

    @rule(is_new=st.booleans())
    def join(self, is_new):
        if len(self.clients) < 5:
            self.num_made += 1
            client = NewClient(self, f"m{self.num_made}") if is_new else ClassicClient(self, self.is_eager)
            self.clients.append(client)
            client.step()

    @precondition(lambda self: self.clients)
    @rule(place=st.integers(0, 99), times=st.integers(1, 3))
    def step(self, place, times):
        for _ in range(times):
            self.some_client(place).step()

    @precondition(lambda self: self.clients)
    @rule(place=st.integers(0, 99))
    def a_write_fails(self, place):
        self.mixed.replica_manager.error = NotLeaderOrFollower("down")
        self.some_client(place).step()
        self.mixed.replica_manager.error = None

    @precondition(lambda self: self.clients)
    @rule(place=st.integers(0, 99))
    def a_write_of_a_leave_fails(self, place):
        self.mixed.replica_manager.error = NotLeaderOrFollower("down")
        self.end(place)
        self.mixed.replica_manager.error = None

    @precondition(lambda self: self.clients)
    @rule(place=st.integers(0, 99))
    def give_up(self, place):
        self.some_client(place).give_up()

    @precondition(lambda self: self.clients)
    @rule(place=st.integers(0, 99))
    def end(self, place):
        """It gives up what it owns, and leaves."""
        client = self.some_client(place)
        self.clients.remove(client)
        client.end()

    @rule()
    def time_passes(self):
        """As long as a first rebalance is held open: no session ends by that."""
        self.mixed.advance(3_000)
        for client in self.clients:
            client.step()

    @rule()
    def the_coordinator_moves(self):
        before, self.mixed = self.mixed, self.mixed.restarted()
        was, now = before.group(), self.mixed.group()
        if was is not None and was.consumer is not None and was.consumer.unsaved is None and not was.first_records:
            assert now.consumer.value == was.consumer.value
        for client in self.clients:
            if isinstance(client, ClassicClient):
                for name in ("join", "sync"):
                    answer = getattr(client, name)
                    if answer is not None and answer.waits:
                        setattr(client, name, None)
                        client.has_to_join = True

    @precondition(lambda self: self.clients)
    @rule()
    def all_is_quiet(self):
        """When each client has taken over its last assignment, each partition has an owner."""
        for _ in range(30):
            for client in list(self.clients):
                client.give_up()
                client.step()
            self.mixed.advance(1_000)
        self.forget_who_has_no_client()
        for _ in range(60):
            for client in list(self.clients):
                client.give_up()
                client.step()
            self.mixed.advance(1_000)
        owned = [number for client in self.clients for number in client.owned]
        assert sorted(owned) == sorted(NUMBERS)
        group = self.mixed.group()
        uses_new = any(isinstance(client, NewClient) for client in self.clients)
        assert (group.consumer is not None and bool(group.consumer.value.members)) == uses_new

    def forget_who_has_no_client(self):
        ids = {client.member_id for client in self.clients}
        group = self.mixed.group()
        members = group.members if group.consumer is None else group.consumer.value.members
        for member_id in [member_id for member_id in members if member_id not in ids]:
            self.mixed.leave(member_id)

    @invariant()
    def no_partition_has_two_owners(self):
        owned = [number for client in getattr(self, "clients", ()) for number in client.owned]
        assert len(owned) == len(set(owned)), [(client, client.owned) for client in self.clients]

    @invariant()
    def no_partition_has_two_holders_in_the_group(self):
        group = self.mixed.group() if hasattr(self, "mixed") else None
        if group is not None and group.consumer is not None:
            held = [partition for member in group.consumer.value.members.values() for partition in member.held]
            assert len(held) == len(set(held))
            for member in group.consumer.value.members.values():
                assert member.assignment_epochs.keys() == member.held
                assert all(epoch <= max(member.epoch, 0) for epoch in member.assignment_epochs.values())


MigrationModel.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


class TestCG22CG55NoPartitionHasTwoOwnersInAGroupOfBothProtocols(MigrationModel.TestCase):
    pass
