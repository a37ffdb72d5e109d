"""A partition of the offsets topic moves away, and perhaps back, in the middle of a request: what the client gets."""

import threading

import pytest

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.committed_offset import OffsetAndMetadata
from kcore.coordinator.group.group_load import GroupLoad
from kcore.coordinator.group.member_metadata import GroupMember

from .harness import Answer, Consumers, Harness

DEADLINE_S = 60
TP = TopicPartition("t", 0)
#: With these a client looks for the coordinator again, or waits for it.
LOOK_AGAIN = {
    error.code for error in (errors.NotCoordinator, errors.CoordinatorNotAvailable, errors.CoordinatorLoadInProgress)
}


class WatchedLock:
    """A lock that says when another thread has to wait for it."""

    def __init__(self):
        self._lock = threading.Lock()
        self.is_waited_for = threading.Event()

    def __enter__(self):
        if not self._lock.acquire(blocking=False):
            self.is_waited_for.set()
            self._lock.acquire()

    def __exit__(self, *exc_info):
        self._lock.release()


class OnceBefore:
    """A lock that calls `action`, once, before it is taken the first time."""

    def __init__(self, lock, action):
        self._lock = lock
        self._action = action

    def acquire(self):
        action, self._action = self._action, None
        if action is not None:
            action()
        self._lock.acquire()

    def release(self):
        self._lock.release()


class Meanwhile:
    """Another thread that does `action` while this one is in the middle of something: all of it, or up to where it has
    to wait for this one's partition lock."""

    def __init__(self, manager, action):
        manager.partitions.lock = self._lock = WatchedLock()
        self._thread = threading.Thread(target=action)

    def begin(self):
        """Called again, it does nothing."""
        if self._thread.ident is None:
            self._thread.start()
            while self._thread.is_alive() and not self._lock.is_waited_for.wait(0.001):
                pass

    def finish(self):
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


class Moving:
    """A coordinator with one stable group of one member that has committed offset 42; `move` takes its partition away
    and, if it comes back, loads it again."""

    def __init__(self, comes_back):
        self.harness = Harness()
        (self.member,) = self.harness.stable_group(protocols=[("range", b"\0\0\0\0\0\0\0\0\0\0")])
        self.commit()
        self._comes_back = comes_back
        self._mover = None

    def move(self):
        coordinator, partition = self.harness.coordinator, self.harness.coordinator.partition_for("g")
        coordinator.on_resignation(partition, 1)
        if self._comes_back:
            coordinator.on_election(partition, 2)
            self.harness.scheduler.tick()

    def before_the_look_up(self):
        """Move when the next request has seen that the coordinator is responsible, and looks for the group."""
        manager = self.harness.coordinator.manager
        self._mover = mover = Meanwhile(manager, self.move)

        class Groups(dict):
            def get(self, group_id, default=None):
                mover.begin()
                return super().get(group_id, default)

        manager._groups = Groups(manager._groups)

    def before_the_groups_lock(self):
        """Move when the next request has found the group, and takes its lock."""
        group = self.harness.group()
        group._lock = OnceBefore(group._lock, self.move)

    def finish(self):
        if self._mover is not None:
            self._mover.finish()
        self.harness.scheduler.tick()

    def ask(self, request_name):
        """The answer to one of the requests below, or the code of its error."""
        try:
            return getattr(self, request_name)()
        except errors.ApiError as error:
            return error.code

    def heartbeat(self):
        return self.harness.heartbeat(self.member)

    def leave(self):
        return self.harness.leave(self.member.member_id)

    def commit(self):
        return self.harness.commit({TP: 42}, self.member.member_id, self.member.generation_id).result[TP]

    def simple_commit(self):
        return self.harness.commit({TP: 42}).result[TP]

    def fetch(self):
        return self.harness.coordinator.offsets.fetch("g", [TP])[TP].offset

    def fetch_all(self):
        return tuple(result.offset for result in self.harness.coordinator.offsets.fetch("g", None).values())

    def join(self):
        return self.harness.join(self.member.member_id)

    def join_as_new_member(self):
        return self.harness.join()

    def sync(self):
        return self.harness.sync(self.member)

    def describe(self):
        return self.harness.coordinator.admin.describe_group("g").state

    def delete(self):
        return self.harness.delete_groups("g")["g"]

    def delete_offsets(self):
        result = self.harness.delete_offsets(TP)
        return result if isinstance(result, int) else result[TP]

    def list(self):
        error_code, groups = self.harness.coordinator.admin.list_groups()
        return error_code or [group.state for group in groups]


#: Request -> what it answers where nothing moves.
REQUESTS = {
    "heartbeat": errors.NONE,
    "leave": errors.NONE,
    "commit": errors.NONE,
    "fetch": 42,
    "fetch_all": (42,),
    "join": errors.NONE,
    "sync": errors.NONE,
    "describe": "Stable",
    "delete": errors.NonEmptyGroup.code,
    "delete_offsets": errors.NONE,
}


def code_of(answer):
    return getattr(answer, "error_code", answer)


@pytest.mark.parametrize("comes_back", [False, True], ids=["away", "away-and-back"])
@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_move_before_the_group_is_looked_up_is_no_answer_about_the_group(request_name, comes_back):
    moving = Moving(comes_back)
    moving.before_the_look_up()
    answer = moving.ask(request_name)
    moving.finish()
    assert code_of(answer) in LOOK_AGAIN or code_of(answer) == REQUESTS[request_name], code_of(answer)


@pytest.mark.parametrize("comes_back", [False, True], ids=["away", "away-and-back"])
@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_move_before_the_group_is_locked_is_no_answer_about_the_group(request_name, comes_back):
    moving = Moving(comes_back)
    moving.before_the_groups_lock()
    answer = moving.ask(request_name)
    moving.finish()
    assert code_of(answer) in LOOK_AGAIN, code_of(answer)


@pytest.mark.parametrize("request_name", ["join_as_new_member", "simple_commit"])
def test_a_request_that_makes_a_group_makes_none_after_the_partition_has_moved_away(request_name):
    moving = Moving(comes_back=False)
    moving.before_the_look_up()
    answer = moving.ask(request_name)
    moving.finish()
    assert moving.harness.coordinator.manager.groups() == []
    assert code_of(answer) in LOOK_AGAIN | {errors.UnknownMemberId.code}


@pytest.mark.parametrize("comes_back", [False, True], ids=["away", "away-and-back"])
def test_a_move_before_offsets_are_removed_is_no_answer_that_they_are(comes_back, monkeypatch):
    moving = Moving(comes_back)
    manager = moving.harness.coordinator.manager
    remove_offsets = manager.remove_offsets

    def after_the_move(*args):
        moving.move()
        return remove_offsets(*args)

    monkeypatch.setattr(manager, "remove_offsets", after_the_move)
    assert moving.ask("delete_offsets") == errors.NotCoordinator.code


def test_an_offset_fetch_that_meets_a_move_is_answered_not_coordinator():
    """Java consumers retry it; at COORDINATOR_NOT_AVAILABLE in an OffsetFetch response most of them throw."""
    moving = Moving(comes_back=True)
    moving.before_the_groups_lock()
    assert moving.ask("fetch") == errors.NotCoordinator.code
    moving.finish()
    assert moving.fetch() == 42


def test_a_group_that_moves_while_groups_are_listed_is_not_listed_as_dead():
    moving = Moving(comes_back=False)
    moving.before_the_groups_lock()
    assert moving.list() == []


def test_groups_that_are_loaded_while_groups_are_listed_are_listed_or_the_list_says_that_it_is_incomplete():
    moving = Moving(comes_back=False)
    moving.move()
    coordinator, manager = moving.harness.coordinator, moving.harness.coordinator.manager
    coordinator.on_election(coordinator.partition_for("g"), 2)
    groups = manager.groups

    def loaded_meanwhile():
        before = groups()
        moving.harness.scheduler.tick()
        return before

    manager.groups = loaded_meanwhile
    assert moving.list() == errors.CoordinatorLoadInProgress.code


def test_a_group_that_moved_away_and_back_gets_no_tombstones_from_its_earlier_object():
    """A deletion that had begun before the move: the group is not deleted, and the client asks again."""
    harness = Harness()
    (join,) = harness.stable_group()
    harness.commit({TP: 42}, join.member_id, join.generation_id)
    assert harness.leave(join.member_id) == errors.NONE
    coordinator, partition = harness.coordinator, harness.coordinator.partition_for("g")
    remove_offsets = coordinator.manager.remove_offsets

    def moved_meanwhile(*args):
        coordinator.manager.remove_offsets = remove_offsets
        coordinator.on_resignation(partition, 1)
        coordinator.on_election(partition, 2)
        harness.scheduler.tick()
        return remove_offsets(*args)

    coordinator.manager.remove_offsets = moved_meanwhile
    before = len(harness.records())
    assert harness.delete_groups("g") == {"g": errors.NotCoordinator.code}
    assert len(harness.records()) == before
    assert harness.committed() == {TP: 42}
    assert harness.delete_groups("g") == {"g": errors.NONE}
    assert harness.committed() == {}


def test_a_commit_that_reaches_the_log_after_the_group_was_loaded_again_is_not_acknowledged():
    """Its offset may be missing in what was loaded: an acknowledged commit is never followed by an older one."""
    harness = Harness()
    assert harness.commit({TP: 1}).result == {TP: errors.NONE}
    harness.replica_manager.held = []
    late = harness.commit({TP: 2})
    coordinator, partition = harness.coordinator, harness.coordinator.partition_for("g")
    coordinator.on_resignation(partition, 1)
    coordinator.on_election(partition, 2)
    harness.scheduler.tick()
    harness.replica_manager.release()
    assert harness.committed() == {TP: 1}
    assert late.result == {TP: errors.NotCoordinator.code}


def test_a_deletion_that_is_committed_after_the_group_was_loaded_again_is_not_acknowledged():
    """What was loaded may still have what was to be deleted: the client asks again."""
    harness = Harness()
    harness.commit({TP: 1, ("t", 1): 1})
    manager, answer = harness.replica_manager, Answer()
    manager.unanswered = []
    harness.coordinator.admin.delete_offsets("g", [TP], answer)
    coordinator, partition = harness.coordinator, harness.coordinator.partition_for("g")
    coordinator.on_resignation(partition, 1)
    coordinator.on_election(partition, 2)
    harness.scheduler.tick()
    manager.answer(1)
    assert answer.error_code == errors.NotCoordinator.code


def simple_commit(harness):
    answer = harness.commit({TP: 2})
    return lambda: answer.result[TP]


def commit_in_transaction(harness):
    answer, offsets = Answer(), {TP: OffsetAndMetadata(2)}
    harness.coordinator.offsets.commit_in_transaction("g", GroupMember(), (7, 0), offsets, answer)
    return lambda: answer.result[TP]


def join_new(harness):
    answer = harness.join_new("a")
    return lambda: answer.error_code


def delete_offsets(harness):
    answer = Answer()
    harness.coordinator.admin.delete_offsets("g", [TP], answer)
    return lambda: answer.error_code


@pytest.mark.parametrize("request_", [simple_commit, commit_in_transaction, join_new, delete_offsets])
def test_what_waits_for_its_append_while_the_group_is_unloaded_and_loaded_again_does_not_get_into_the_log(request_):
    """Behind an append that takes long.  The next coordinator would take it for newer than what was written since."""
    harness = Consumers()
    harness.commit({TP: 1, ("t", 1): 1})
    coordinator, manager, partition = (
        harness.coordinator,
        harness.replica_manager,
        harness.coordinator.partition_for("g"),
    )
    append_records, codes = manager.append_records, []

    def move_before(*args):
        manager.append_records = append_records
        codes.append(request_(harness))
        coordinator.on_resignation(partition, 1)
        coordinator.on_election(partition, 2)
        harness.scheduler.tick()
        assert harness.commit({TP: 3}).result == {TP: errors.NONE}
        append_records(*args)

    manager.append_records = move_before
    first = harness.commit({("t", 1): 2})
    assert first.result == {("t", 1): errors.NotCoordinator.code}
    before = harness.records()
    assert codes[0]() == errors.NotCoordinator.code
    assert [record.offset for record in harness.records()] == [record.offset for record in before] == [0, 1, 2, 3]
    again = harness.restarted()
    assert again.committed()[TP] == harness.committed()[TP] == 3
    assert again.group().consumer is None and not again.group().has_transactional_offset(TP)


def test_metadata_that_wait_for_their_append_while_the_group_is_unloaded_do_not_get_into_the_log():
    harness = Consumers()
    (join,) = harness.stable_group()
    coordinator, manager, partition = (
        harness.coordinator,
        harness.replica_manager,
        harness.coordinator.partition_for("g"),
    )
    append_records = manager.append_records

    def leave_and_move_before(*args):
        manager.append_records = append_records
        assert harness.leave(join.member_id) is None
        coordinator.on_resignation(partition, 1)
        coordinator.on_election(partition, 2)
        harness.scheduler.tick()
        append_records(*args)

    manager.append_records = leave_and_move_before
    harness.commit({TP: 1}, join.member_id, join.generation_id)
    assert harness.state() == harness.restarted().state() == "Stable"


def test_a_group_that_is_unloaded_while_its_partition_is_being_loaded_does_not_rebalance(monkeypatch):
    harness = Harness()
    harness.stable_group(members=2)
    loading = Harness(harness.replica_manager, max_size=1)
    coordinator, partition = loading.coordinator, loading.coordinator.partition_for("g")
    finish = GroupLoad.finish

    def finish_then_unload(load):
        finish(load)
        (group,) = load._groups.values()
        group._lock = OnceBefore(group._lock, lambda: coordinator.on_resignation(partition, 1))

    monkeypatch.setattr(GroupLoad, "finish", finish_then_unload)
    loading.scheduler.tick()
    assert loading.group() is None
    assert not coordinator.manager.is_group_local("g")
    assert not coordinator.manager.is_loading
    assert loading.timer.size == 0


def test_an_unload_that_is_still_under_way_takes_no_group_that_was_loaded_after_it():
    moving = Moving(comes_back=False)
    harness, coordinator, manager = moving.harness, moving.harness.coordinator, moving.harness.coordinator.manager
    partition, groups, before = coordinator.partition_for("g"), manager.groups, harness.group()

    def elect():
        coordinator.on_election(partition, 2)
        harness.scheduler.tick()

    meanwhile = Meanwhile(manager, elect)

    def elected_before_the_groups_are_listed():
        meanwhile.begin()
        return groups()

    manager.groups = elected_before_the_groups_are_listed
    coordinator.on_resignation(partition, 1)
    meanwhile.finish()
    assert before.state.value == "Dead"
    assert harness.group().state.value == "Stable"
    assert moving.fetch() == 42
