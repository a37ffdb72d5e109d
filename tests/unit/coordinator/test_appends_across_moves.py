"""Appends and answers of coordinators that are under way while their partition leaves this broker and comes back."""

import dataclasses
import threading

import pytest

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.coordinators import Coordinators
from kcore.coordinator.group.committed_offset import OffsetAndMetadata
from kcore.coordinator.group.group_load import GroupLoad
from kcore.coordinator.group.member_metadata import GroupMember
from kcore.coordinator.transaction import transaction_state as rules
from kcore.coordinator.transaction.marker_writer import Marker, MarkerWriter
from kcore.coordinator.transaction.transaction_config import TransactionConfig
from kcore.coordinator.transaction.transaction_state import TransactionState
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.record.control_record import ControlRecordType, control_record_type
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.unit.replica.conftest import Node, update

from .group.harness import OFFSETS_TOPIC, Answer, Consumers
from .transaction.test_transaction_coordinator import HERE, STATES
from .transaction.test_transaction_coordinator import Harness as Transactions

S = TransactionState
OFFSETS, ID_STATES = TopicPartition(OFFSETS_TOPIC, 0), TopicPartition(STATES, 0)
TP = TopicPartition("t", 0)
DEADLINE_S = 60


def once_before(owner, name, action):
    """The next call of owner.name calls action() first."""
    method = getattr(owner, name)

    def planted(*args, **more):
        setattr(owner, name, method)
        action()
        return method(*args, **more)

    setattr(owner, name, planted)


def once_after(owner, name, action):
    """The next call of owner.name calls action() at its end."""
    method = getattr(owner, name)

    def planted(*args, **more):
        setattr(owner, name, method)
        try:
            return method(*args, **more)
        finally:
            action()

    setattr(owner, name, planted)


class Broker:
    """Real logs with one partition of each coordinator's topic, which this broker leads."""

    def __init__(self, directory):
        self.node = Node(directory)
        self.replica_manager = self.node.replica_manager
        self.groups = Consumers(self.replica_manager, partitions=[], offsets_topic_num_partitions=1)
        self.transactions = Transactions(self, owned=False)
        self._coordinators = Coordinators(
            {OFFSETS_TOPIC: self.groups.coordinator, STATES: self.transactions.coordinator}
        )
        self._epoch = 0
        self.lead(OFFSETS, ID_STATES)
        self.node.lead(HERE)
        self.load()

    # -- the controller's requests

    def _become(self, leader, topic_partitions, epochs=1):
        self._epoch += epochs
        updates = [update(tp, leader, self._epoch, [leader], [0, 1]) for tp in topic_partitions]
        self.replica_manager.become_leader_or_follower(updates, 1, self._coordinators.leadership_changed)

    def lead(self, *topic_partitions, epochs=1):
        self._become(0, topic_partitions, epochs)

    def follow(self, *topic_partitions):
        self._become(1, topic_partitions)

    def load(self):
        self.groups.scheduler.tick()
        self.transactions.scheduler.tick()

    def away_and_back(self, topic_partition):
        self.follow(topic_partition)
        self.lead(topic_partition)
        self.load()

    # -- the logs, also as what the coordinator of transactions appends with

    def __getattr__(self, name):
        return getattr(self.replica_manager, name)

    def log(self, topic_partition):
        log = self.replica_manager.get_partition(topic_partition).log
        (segment,) = log.segment_base_offsets()
        with open(f"{log.directory}/{segment:020}.log", "rb") as file:
            return MemoryRecords(file.read())

    def records(self, topic_partition):
        return [(record.key, record.value) for record in self.log(topic_partition).records()]

    def before_the_next_append(self, action):
        """Call action() when the coordinator has checked everything, and the log has nothing yet."""
        once_before(self.replica_manager, "append_records", action)


class HeldLoad:
    """The offsets' partition leaves the broker and comes back, on a thread of its own; the load waits after it has read
    the log."""

    def __init__(self, broker, monkeypatch):
        finish_load = GroupLoad.finish
        self._has_read, self._released = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=broker.away_and_back, args=(OFFSETS,))

        def finish_and_wait(load):
            finish_load(load)
            self._has_read.set()
            assert self._released.wait(DEADLINE_S)

        monkeypatch.setattr(GroupLoad, "finish", finish_and_wait)

    def read(self):
        self._thread.start()
        assert self._has_read.wait(DEADLINE_S)

    def finish(self):
        self._released.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def broker(tmp_path):
    broker = Broker(tmp_path)
    yield broker
    broker.node.shutdown()


# -- groups


def commit(groups):
    answer = groups.commit({TP: 2})
    return lambda: answer.result[TP]


def commit_in_transaction(groups):
    answer, offsets = Answer(), {TP: OffsetAndMetadata(2)}
    groups.coordinator.offsets.commit_in_transaction("g", GroupMember(), (7, 0), offsets, answer)
    return lambda: answer.result[TP]


def join_new(groups):
    answer = groups.join_new("a")
    return lambda: answer.error_code


def delete_offsets(groups):
    answer = Answer()
    groups.coordinator.admin.delete_offsets("g", [TP], answer)
    return lambda: answer.error_code


def delete_group(groups):
    answer = Answer()
    groups.coordinator.admin.delete_groups(["g"], answer)
    return lambda: answer.result["g"]


@pytest.mark.parametrize("request_", [commit, commit_in_transaction, join_new, delete_offsets, delete_group])
def test_what_a_group_appends_does_not_get_into_the_log_after_what_was_appended_since_its_partition_came_back(
    broker, request_
):
    """The next load would take it for newer."""
    broker.groups.commit({TP: 1})
    after_the_move = []

    def move():
        broker.away_and_back(OFFSETS)
        assert broker.groups.commit({TP: 3}).result == {TP: errors.NONE}
        after_the_move.extend(broker.records(OFFSETS))

    broker.before_the_next_append(move)
    code = request_(broker.groups)
    assert code() == errors.NotCoordinator.code
    assert broker.records(OFFSETS) == after_the_move
    assert broker.groups.committed() == {TP: 3}
    broker.away_and_back(OFFSETS)
    assert broker.groups.committed(require_stable=True) == {TP: 3}


def test_a_group_appends_with_the_epoch_in_which_it_was_made_and_not_with_that_of_its_partition(broker):
    """The partition moves right after the look whether the group was unloaded."""
    manager = broker.groups.coordinator.manager
    once_before(
        manager, "_append", lambda: once_before(manager, "partition_for", lambda: broker.away_and_back(OFFSETS))
    )
    assert broker.groups.commit({TP: 1}).result == {TP: errors.NotCoordinator.code}
    assert broker.records(OFFSETS) == []


def test_what_a_group_appends_does_not_get_into_the_log_after_the_load_has_read_it(broker, monkeypatch):
    broker.groups.commit({TP: 1})
    load = HeldLoad(broker, monkeypatch)
    broker.before_the_next_append(load.read)
    late = broker.groups.commit({TP: 2})
    load.finish()
    assert late.result == {TP: errors.NotCoordinator.code}
    assert broker.groups.committed() == {TP: 1}
    broker.away_and_back(OFFSETS)
    assert broker.groups.committed() == {TP: 1}


def test_what_is_appended_while_this_broker_leads_on_in_the_next_epoch_counts(broker):
    """No other broker has led, and the groups stay as they are."""
    broker.before_the_next_append(lambda: broker.lead(OFFSETS))
    assert broker.groups.commit({TP: 1}).result == {TP: errors.NONE}
    assert broker.groups.commit({TP: 2}).result == {TP: errors.NONE}
    broker.away_and_back(OFFSETS)
    assert broker.groups.committed() == {TP: 2}


def test_what_is_appended_while_another_broker_may_have_led_in_between_is_refused(broker):
    broker.before_the_next_append(lambda: broker.lead(OFFSETS, epochs=2))
    assert broker.groups.commit({TP: 1}).result == {TP: errors.NotCoordinator.code}
    broker.load()
    assert broker.groups.commit({TP: 2}).result == {TP: errors.NONE}


def test_an_append_between_the_change_of_leadership_and_the_load_is_refused(broker):
    """The groups of before are still there when the partition leads in its new epoch."""
    broker.groups.commit({TP: 1})
    become, codes = broker._coordinators.leadership_changed, []

    def commit_first(new_leaders, new_followers):
        if new_leaders:
            codes.append(broker.groups.commit({TP: 2}).result[TP])
        become(new_leaders, new_followers)

    broker._coordinators.leadership_changed = commit_first
    broker.lead(OFFSETS, epochs=2)
    broker.load()
    assert codes == [errors.NotCoordinator.code]
    assert broker.groups.committed() == {TP: 1}


# -- transactions


@pytest.mark.parametrize("is_built", [False, True])
def test_a_state_of_a_transaction_does_not_get_into_the_log_after_those_of_the_next_coordinator(broker, is_built):
    transactions = broker.transactions
    producer = transactions.begin(HERE)
    ended = []

    def move():
        broker.away_and_back(ID_STATES)
        ended.append(transactions.end(producer, is_commit=False))

    if is_built:
        broker.before_the_next_append(move)
    else:
        once_before(transactions.coordinator.manager, "store", move)
    assert transactions.end(producer, is_commit=True) == errors.NotCoordinator.code
    assert ended == [errors.NONE]
    states = [S.EMPTY, S.ONGOING, S.PREPARE_ABORT, S.COMPLETE_ABORT]
    assert transactions.written() == [("x", state) for state in states]
    assert transactions.state is S.COMPLETE_ABORT
    (marker,) = broker.log(HERE).records()
    assert control_record_type(marker.key) is ControlRecordType.ABORT


def test_a_tombstone_of_an_expired_id_does_not_get_into_the_log_after_the_ids_next_state(broker):
    transactions = broker.transactions
    transactions.init()
    for task in transactions.coordinator._tasks:
        task.cancel()

    def move():
        broker.away_and_back(ID_STATES)
        transactions.init()

    transactions.time.sleep(TransactionConfig().transactional_id_expiration_ms)
    broker.before_the_next_append(move)
    transactions.coordinator.manager.remove_expired()
    assert transactions.written() == [("x", S.EMPTY)] * 2
    broker.away_and_back(ID_STATES)
    assert transactions.state is S.EMPTY


def test_a_marker_that_a_load_of_offsets_has_not_read_is_refused_and_sent_again(broker, monkeypatch):
    """Otherwise the offsets of a transaction that has ended would wait for its end."""
    groups = broker.groups
    assert commit_in_transaction(groups)() == errors.NONE
    writer = MarkerWriter(broker.replica_manager, groups.time, groups.coordinator.manager)
    load = HeldLoad(broker, monkeypatch)
    broker.before_the_next_append(load.read)
    marker, first, second = Marker(7, 0, True, 1), Answer(), Answer()
    writer.write(marker, [OFFSETS], first)
    load.finish()
    assert isinstance(first.result[OFFSETS], errors.NotLeaderOrFollower)
    writer.write(marker, [OFFSETS], second)
    assert second.result == {OFFSETS: None}
    assert groups.committed(require_stable=True) == {TP: 2}


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_that_is_answered_after_the_move_does_not_end_the_next_transaction(broker, is_commit):
    """What was loaded since has read it; what waits then are offsets of the producer's next transaction."""
    groups = broker.groups
    assert commit_in_transaction(groups)() == errors.NONE
    manager = broker.replica_manager
    append_records, next_commit = manager.append_records, []

    def move_before_the_answer(*args):
        manager.append_records = append_records
        *others, callback, leader_epochs = args

        def answered(statuses):
            broker.away_and_back(OFFSETS)
            assert groups.committed(require_stable=True) == ({TP: 2} if is_commit else {})
            next_commit.append(commit_in_transaction(groups)())
            callback(statuses)

        append_records(*others, answered, leader_epochs)

    manager.append_records = move_before_the_answer
    marker, answer = Marker(7, 0, is_commit, 1), Answer()
    MarkerWriter(manager, groups.time, groups.coordinator.manager).write(marker, [OFFSETS], answer)
    assert (answer.result, next_commit) == ({OFFSETS: None}, [errors.NONE])
    unstable = groups.coordinator.offsets.fetch("g", [TP], require_stable=True)[TP]
    assert unstable.error_code == errors.UnstableOffsetCommit.code


def test_a_marker_that_could_not_be_written_ends_nothing(broker):
    groups = broker.groups
    assert commit_in_transaction(groups)() == errors.NONE
    writer = MarkerWriter(broker.replica_manager, groups.time, groups.coordinator.manager)
    config = broker.replica_manager.get_partition(OFFSETS).log.config
    broker.replica_manager.get_partition(OFFSETS).log.config = dataclasses.replace(config, min_insync_replicas=2)
    answer = Answer()
    writer.write(Marker(7, 0, True, 1), [OFFSETS], answer)
    assert isinstance(answer.result[OFFSETS], errors.NotEnoughReplicas)
    unstable = groups.coordinator.offsets.fetch("g", [TP], require_stable=True)[TP]
    assert unstable.error_code == errors.UnstableOffsetCommit.code


class MovingManager:
    """The manager, as the completions see it: before they look whether it is active it calls `action`, once."""

    def __init__(self, manager, action):
        self._manager, self._action = manager, action

    def __getattr__(self, name):
        return getattr(self._manager, name)

    @property
    def is_active(self):
        action, self._action = self._action, lambda: None
        action()
        return self._manager.is_active


def test_a_decision_of_before_the_move_is_not_sent_with_the_epoch_of_the_coordinator_after_it(broker):
    """The producer may be in its next transaction, with version 1 in the same epoch: the marker would end that one."""
    transactions = broker.transactions
    producer = transactions.begin(HERE)
    answer = Answer()

    def move_and_begin_the_next():
        broker.away_and_back(ID_STATES)
        assert transactions.state is S.COMPLETE_COMMIT
        assert transactions.add(producer, HERE) == errors.NONE
        batch = RecordBatchBuilder(
            producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=0, is_transactional=True
        )
        batch.append(b"of the next transaction", timestamp=1)
        broker.append_records(1000, -1, False, AppendOrigin.CLIENT, {HERE: batch.build()}, answer)

    completions = transactions.coordinator.completions
    completions._manager = MovingManager(completions._manager, move_and_begin_the_next)
    transactions.end(producer, is_commit=True)
    assert answer.result[HERE].error is None
    assert [batch.is_control for batch in broker.log(HERE).batches] == [True, False]
    assert transactions.state is S.ONGOING
    assert len(completions) == 0


# -- answers from memory


def before_the_look_whether_it_is_certain(owner, name, action):
    """Replace owner.name, an is_certain: this broker coordinates again when the answer is made of what was before."""

    def is_certain():
        setattr(owner, name, lambda: True)
        action()
        return True

    setattr(owner, name, is_certain)


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("is_known", [True, False])
def test_offsets_of_before_the_move_are_no_answer(broker, is_known, is_late):
    groups = broker.groups
    if is_known:
        groups.commit({TP: 1})

    def move():
        broker.away_and_back(OFFSETS)
        groups.commit({TP: 3})

    manager = groups.coordinator.manager
    if is_late:
        before_the_look_whether_it_is_certain(manager, "is_certain", move)
    else:
        once_after(manager, "_get_offsets", move)
    with pytest.raises(errors.NotCoordinator):
        groups.committed()
    assert groups.committed() == {TP: 3}


def test_a_transaction_that_has_ended_since_the_move_is_not_confirmed(broker):
    coordinator = broker.transactions.coordinator
    producer = broker.transactions.begin(HERE)

    def move():
        broker.away_and_back(ID_STATES)
        assert broker.transactions.end(producer) == errors.NONE

    before_the_look_whether_it_is_certain(coordinator, "_is_certain", move)
    (error,) = coordinator.verify_partitions("x", producer, frozenset({HERE})).values()
    assert isinstance(error, errors.NotCoordinator)


@pytest.mark.parametrize("is_in_transaction", [True, False])
def test_what_is_verified_before_the_move_is_no_answer(broker, is_in_transaction):
    coordinator = broker.transactions.coordinator
    producer = broker.transactions.begin(HERE)
    if not is_in_transaction:
        producer = producer._replace(producer_id=producer.producer_id + 1)
    once_after(rules, "missing_partitions", lambda: broker.away_and_back(ID_STATES))
    (first,) = coordinator.verify_partitions("x", producer, frozenset({HERE})).values()
    (second,) = coordinator.verify_partitions("x", producer, frozenset({HERE})).values()
    assert isinstance(first, errors.NotCoordinator)
    assert not isinstance(second, errors.NotCoordinator) and (second is None) is is_in_transaction


def before_the_answer(coordinator, action):
    """The next change of a transaction's state calls action() when its outcome is known."""
    change = coordinator._change

    def planted(entry, rule, on_changed, **more):
        coordinator._change = change

        def changed(*outcome):
            action()
            on_changed(*outcome)

        change(entry, rule, changed, **more)

    coordinator._change = planted


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("request_", ["add", "end", "init"])
def test_an_error_of_before_the_move_does_not_end_a_producer(broker, request_, is_late):
    transactions = broker.transactions
    producer = transactions.begin(HERE)
    stranger = producer._replace(producer_id=producer.producer_id + 1)

    def ask():
        if request_ == "init":
            return transactions.init(expected=stranger).error_code
        return transactions.add(stranger, HERE) if request_ == "add" else transactions.end(stranger)

    error_code = ask()
    assert error_code not in (errors.NONE, errors.NotCoordinator.code)

    def move():
        broker.away_and_back(ID_STATES)

    if is_late:
        before_the_look_whether_it_is_certain(transactions.coordinator, "_is_certain", move)
    else:
        before_the_answer(transactions.coordinator, move)
    assert ask() == errors.NotCoordinator.code
    assert ask() == error_code
