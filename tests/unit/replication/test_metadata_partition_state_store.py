"""A leader's change of its ISR, in the partition's state node."""

import logging

import pytest

from kcore import errors
from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.metadata import znodes
from kcore.metadata.embedded_store import FILE_NAME, EmbeddedStore
from kcore.metadata.store import (
    BadVersion,
    Check,
    ConnectionLost,
    MultiFailed,
    NotAllowed,
    QuotaExceeded,
    SetData,
    StoreError,
)
from kcore.replica.partition_state_store import StoredIsr
from kcore.replication import metadata_partition_state_store
from kcore.replication.metadata_partition_state_store import (
    CHECK_INTERVAL_MS,
    MAX_DELAY_MS,
    QUIET_MS,
    REFUSED_RETRY_MS,
    MetadataPartitionStateStore,
    is_time_to_notify,
)

TP = TopicPartition("t", 3)
PATH = znodes.partition_state("t", 3)


class Stored:
    def __init__(self, path):
        self.store = EmbeddedStore(str(path))
        self.store.create_recursive(PATH, znodes.PartitionStateZNode(0, 5, [0, 1], 2).encode())
        self.time = MockTime()
        self.scheduler = MockScheduler(self.time)
        self.state_store = MetadataPartitionStateStore(0, self.store, self.scheduler, self.time)

    def propose(self, isr, version, tp=TP, epochs=None):
        """The list that gets the answer."""
        answers = []
        self.state_store.change_isr(tp, frozenset(isr), version, answers.append, broker_epochs=epochs)
        assert answers == []  # nothing is stored on the caller's thread
        return answers

    def change(self, isr, version, tp=TP, epochs=None):
        answers = self.propose(isr, version, tp, epochs)
        self.scheduler.tick()
        (answer,) = answers
        return answer

    def advance(self, ms):
        self.time.sleep(ms)
        self.scheduler.tick()

    def node(self):
        node = self.store.get(PATH)
        return znodes.PartitionStateZNode.decode(node.data), node.version


@pytest.fixture
def stored(tmp_path):
    stored = Stored(tmp_path / FILE_NAME)
    yield stored
    stored.store.close()


def test_PART_17_the_isr_is_stored_and_nothing_else_changes(stored):
    assert stored.change({0}, 0) == StoredIsr(frozenset({0}), 1)
    assert stored.node() == (znodes.PartitionStateZNode(0, 5, [0], 2), 1)
    assert stored.change({0, 2, 1}, 1) == StoredIsr(frozenset({0, 1, 2}), 2)


def test_PART_17_at_another_version_nothing_is_written_and_what_is_stored_comes_back(stored):
    stored.change({0}, 0)
    assert stored.change({0, 1, 2}, 0) == StoredIsr(frozenset({0}), 1)
    assert stored.node()[0].isr == [0]


def test_a_change_between_look_and_write_is_seen(stored, monkeypatch):
    get_many = stored.store.get_many

    def get_then_change(paths):
        nodes = get_many(paths)
        monkeypatch.undo()
        stored.store.set(PATH, znodes.PartitionStateZNode(0, 5, [0, 7], 2).encode())
        return nodes

    monkeypatch.setattr(stored.store, "get_many", get_then_change)
    assert stored.change({0}, 0) == StoredIsr(frozenset({0, 7}), 1)


def test_a_former_leader_and_the_leader_of_a_deleted_topic_get_an_error(stored):
    stored.store.set(PATH, znodes.PartitionStateZNode(1, 6, [1], 2).encode())
    assert isinstance(stored.change({0}, 1), errors.FencedLeaderEpoch)
    stored.store.delete(PATH)
    assert isinstance(stored.change({0}, 1), errors.UnknownTopicOrPartition)


def test_KIP_497_who_was_elected_again_and_has_not_heard_of_it_changes_nothing(stored):
    """It would take over the version, and skip the LeaderAndIsr request that says so."""
    answers = []
    for leader_epoch in (4, 5):
        stored.state_store.change_isr(TP, frozenset({0}), 0, answers.append, leader_epoch=leader_epoch)
        stored.scheduler.tick()
    assert isinstance(answers[0], errors.FencedLeaderEpoch)
    assert answers[1] == StoredIsr(frozenset({0}), 1)


def test_registrations_are_read_on_the_stores_thread_once_for_all_partitions_of_a_broker(stored, monkeypatch):
    stored.store.ensure_path(znodes.BROKER_IDS)
    stored.store.create(znodes.broker_id(1), b"{}")
    epoch = stored.store.get(znodes.broker_id(1)).czxid
    found, read, get = [], [], stored.store.get
    monkeypatch.setattr(stored.store, "get", lambda path: read.append(path) or get(path))
    for _ in range(3):
        stored.state_store.look_up_registration(1, found.append)
    stored.state_store.look_up_registration(2, found.append)
    assert not read
    stored.scheduler.tick()
    assert (found, read) == ([epoch] * 3, [znodes.broker_id(1), znodes.broker_id(2)])

    def fail(path):
        raise ConnectionLost("gone")

    monkeypatch.setattr(stored.store, "get", fail)
    stored.state_store.look_up_registration(1, found.append)
    stored.scheduler.tick()
    monkeypatch.undo()
    stored.state_store.look_up_registration(1, found.append)
    stored.scheduler.tick()
    assert found == [epoch] * 4


@pytest.mark.parametrize(
    "error",
    [
        MultiFailed(0, NotAllowed("no rights")),
        QuotaExceeded("no more nodes"),
        StoreError("SYSTEMERROR"),
        StoreError("disk I/O error"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("call", ["multi", "get_many"])
def test_a_change_that_the_store_refuses_is_proposed_again_until_it_is_taken(stored, monkeypatch, caplog, call, error):
    """It stayed pending for ever, and so did every acknowledgement of acks=all."""
    real, attempts = getattr(stored.store, call), []

    def refuse_three_times(argument):
        attempts.append(1)
        if len(attempts) <= 3:
            raise error
        return real(argument)

    monkeypatch.setattr(stored.store, call, refuse_three_times)
    monkeypatch.setattr(stored.store, "get", stored.store.get if call == "multi" else lambda path: raise_(error))
    answers = stored.propose({0}, 0)
    stored.scheduler.tick()
    for number in (1, 2):
        stored.advance(REFUSED_RETRY_MS - 1)
        assert len(attempts) == number
        stored.advance(1)
    assert answers == [] and stored.state_store._waiting == []
    stored.advance(REFUSED_RETRY_MS)
    assert answers == [StoredIsr(frozenset({0}), 1)]
    assert [record.levelname for record in caplog.records if record.levelno > logging.INFO] == ["ERROR"] * 3
    monkeypatch.undo()
    stored.advance(10 * REFUSED_RETRY_MS)
    assert len(answers) == 1 and stored.node()[1] == 1


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (znodes.PartitionStateZNode(0, 5, [0, 7], 2), StoredIsr(frozenset({0, 7}), 1)),
        (znodes.PartitionStateZNode(1, 6, [1], 3), errors.FencedLeaderEpoch),
        (None, errors.UnknownTopicOrPartition),
    ],
    ids=["another ISR", "another leader", "deleted"],
)
def test_before_a_refused_change_is_proposed_again_the_stored_state_is_read(stored, monkeypatch, state, expected):
    with monkeypatch.context() as patch:
        patch.setattr(stored.store, "multi", lambda operations: raise_(QuotaExceeded("for a moment")))
        answers = stored.propose({0}, 0)
        stored.scheduler.tick()
    if state is None:
        stored.store.delete(PATH)
    else:
        stored.store.set(PATH, state.encode())
    stored.advance(REFUSED_RETRY_MS)
    (answer,) = answers
    assert answer == expected if isinstance(expected, StoredIsr) else isinstance(answer, expected)


def test_a_refused_change_does_not_hold_up_later_ones_and_both_are_answered(stored, monkeypatch):
    multi, partitions = stored.store.multi, with_two_more(stored)
    refused = []

    def refuse_the_first(operations):
        if not refused:
            refused.append(operations)
            raise StoreError("SYSTEMERROR")
        return multi(operations)

    monkeypatch.setattr(stored.store, "multi", refuse_the_first)
    first = stored.propose({0}, 0, partitions[0])
    stored.scheduler.tick()
    second = stored.propose({0}, 0, partitions[2])
    stored.scheduler.tick()
    assert (first, second) == ([], [StoredIsr(frozenset({0}), 1)])
    third = stored.propose({0}, 0)  # waits at the moment at which the first is proposed again
    stored.advance(REFUSED_RETRY_MS)
    assert first == second == third


def test_nodes_that_change_before_every_write_are_read_again_for_a_while_and_then_later(stored, monkeypatch):
    """Of a server that counts children otherwise, the check would fail each time."""
    multi, attempts = stored.store.multi, []

    def registration_before(operations):
        attempts.append(1)
        raise MultiFailed(0, BadVersion("children were created meanwhile"))

    stored.store.create_recursive(znodes.broker_id(2))
    epoch = stored.store.get(znodes.broker_id(2)).czxid
    monkeypatch.setattr(stored.store, "multi", registration_before)
    answers = stored.propose({0, 1, 2}, 0, epochs={2: epoch})
    stored.scheduler.tick()
    assert answers == [] and 10 < len(attempts) < 100
    monkeypatch.setattr(stored.store, "multi", multi)
    stored.advance(REFUSED_RETRY_MS)
    assert answers == [StoredIsr(frozenset({0, 1, 2}), 1)]


def raise_(error):
    raise error


@pytest.mark.parametrize("data", [b'{"leader":"x"}', b"[]", b"\xff"])
def test_a_malformed_state_waits_to_be_repaired_and_the_others_are_stored(stored, data):
    other = TopicPartition("t", 4)
    path = znodes.partition_state("t", 4)
    stored.store.create_recursive(path, data)
    broken, answers = stored.propose({0}, 0, other), stored.propose({0}, 0)
    stored.scheduler.tick()
    assert (broken, answers) == ([], [StoredIsr(frozenset({0}), 1)])
    stored.store.set(path, znodes.PartitionStateZNode(0, 5, [0, 1], 2).encode())
    stored.advance(REFUSED_RETRY_MS)
    assert broken == [StoredIsr(frozenset({0, 1}), 1)]  # the leader proposes again, from this version on


def test_a_state_that_cannot_be_read_keeps_no_other_from_being_stored(stored, monkeypatch):
    partitions = with_two_more(stored)
    get = stored.store.get

    def refuse_one(path, *watch):
        if path == PATH:
            raise NotAllowed(path)
        return get(path, *watch)

    monkeypatch.setattr(stored.store, "get", refuse_one)
    # As with ZooKeeper: the error of one node is that of the call.
    monkeypatch.setattr(stored.store, "get_many", lambda paths: [refuse_one(path) for path in paths])
    answers = [stored.propose({0}, 0, tp) for tp in partitions]
    stored.scheduler.tick()
    assert answers[0] == answers[2] == [StoredIsr(frozenset({0}), 1)]
    assert answers[1] == []
    monkeypatch.undo()
    stored.advance(REFUSED_RETRY_MS)
    assert answers[1] == [StoredIsr(frozenset({0}), 1)]


def test_while_the_store_is_away_it_is_not_the_error_of_one_state_that_counts(stored, monkeypatch):
    partitions = with_two_more(stored)

    def refuse(paths):
        raise NotAllowed("one of them")

    def away(path, *watch):
        raise ConnectionLost("no answer")

    monkeypatch.setattr(stored.store, "get_many", refuse)
    monkeypatch.setattr(stored.store, "get", away)
    answers = [stored.propose({0}, 0, tp) for tp in partitions]
    stored.scheduler.tick()
    assert answers == [[], [], []]
    monkeypatch.undo()
    stored.advance(10_000)
    assert answers == [[StoredIsr(frozenset({0}), 1)]] * 3


def test_a_state_that_cannot_be_written_keeps_no_other_from_being_stored(stored, monkeypatch):
    partitions = with_two_more(stored)
    multi = stored.store.multi

    def refuse_one(operations):
        for index, operation in enumerate(operations):
            if operation.path == PATH:
                raise MultiFailed(index, NotAllowed(PATH))
        return multi(operations)

    monkeypatch.setattr(stored.store, "multi", refuse_one)
    answers = [stored.propose({0}, 0, tp) for tp in partitions]
    stored.scheduler.tick()
    assert answers[0] == answers[2] == [StoredIsr(frozenset({0}), 1)]
    assert answers[1] == []
    monkeypatch.undo()
    stored.advance(REFUSED_RETRY_MS)
    assert answers[1] == [StoredIsr(frozenset({0}), 1)]


def with_two_more(stored):
    """Three partitions; TP is the second one."""
    others = TopicPartition("t", 2), TopicPartition("t", 4)
    for tp in others:
        stored.store.create_recursive(znodes.partition_state(*tp), znodes.PartitionStateZNode(0, 5, [0, 1], 2).encode())
    return others[0], TP, others[1]


def test_many_changes_are_one_line_for_each_new_isr_and_each_kind_of_error(stored, caplog):
    many = [TopicPartition("u", number) for number in range(20)]
    for tp in many:
        stored.store.create_recursive(znodes.partition_state(*tp), znodes.PartitionStateZNode(0, 1, [0, 1], 2).encode())
    for tp in (*many, TopicPartition("gone", 0)):
        stored.propose({0}, 0, tp)
    stored.propose({0, 2}, 0)
    with caplog.at_level("INFO"):
        stored.scheduler.tick()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "ISR [0] of 20 partitions: u-0, u-1, u-2, u-3, u-4 and 15 more"),
        ("INFO", "ISR [0, 2] of 1 partition: t-3"),
        ("WARNING", "1 ISR not stored: gone-0: its state is not stored"),
    ]


def test_changes_that_wait_together_are_one_write(stored, monkeypatch):
    others = [TopicPartition("u", number) for number in range(20)]
    for tp in others:
        stored.store.create_recursive(znodes.partition_state(*tp), znodes.PartitionStateZNode(0, 1, [0, 1], 2).encode())
    writes = []
    multi = stored.store.multi
    monkeypatch.setattr(
        stored.store, "multi", lambda operations: (writes.append(len(operations)), multi(operations))[1]
    )
    answers = [stored.propose({0}, 0, tp) for tp in others]
    # The second change of a partition depends on the first.
    first, second = stored.propose({0}, 0), stored.propose({0, 1}, 1)
    stored.scheduler.tick()
    assert answers == [[StoredIsr(frozenset({0}), 1)]] * 20
    assert (first, second) == ([StoredIsr(frozenset({0}), 1)], [StoredIsr(frozenset({0, 1}), 2)])
    assert writes == [21, 1]


def test_one_that_was_changed_meanwhile_does_not_keep_the_others_from_being_stored(stored, monkeypatch):
    other = TopicPartition("u", 0)
    path = znodes.partition_state(*other)
    stored.store.create_recursive(path, znodes.PartitionStateZNode(0, 1, [0, 1], 2).encode())
    multi = stored.store.multi

    def interfere(operations):
        monkeypatch.undo()
        stored.store.set(path, znodes.PartitionStateZNode(7, 2, [7], 3).encode())
        return multi(operations)

    monkeypatch.setattr(stored.store, "multi", interfere)
    lost, kept = stored.propose({0}, 0, other), stored.propose({0}, 0)
    stored.scheduler.tick()
    assert [type(answer) for answer in lost] == [errors.FencedLeaderEpoch]
    assert kept == [StoredIsr(frozenset({0}), 1)]


def test_while_the_store_is_away_changes_wait_and_one_whose_answer_was_lost_is_not_written_twice(stored, monkeypatch):
    multi, sent = stored.store.multi, []

    def lose_the_answer(operations):
        sent.append(operations)
        if len(sent) == 1:
            multi(operations)
        raise ConnectionLost("no answer")

    monkeypatch.setattr(stored.store, "multi", lose_the_answer)
    answers = stored.propose({0}, 0)
    stored.scheduler.tick()
    assert answers == [] and stored.node()[1] == 1
    stored.advance(10_000)
    assert answers == [StoredIsr(frozenset({0}), 1)]
    later = stored.propose({0, 1}, 1)
    stored.scheduler.tick()
    assert later == [] and stored.node()[1] == 1
    monkeypatch.undo()
    stored.advance(10_000)
    assert later == [StoredIsr(frozenset({0, 1}), 2)]


# -- KIP-903


def test_a_follower_that_has_registered_again_since_its_fetch_does_not_join_the_isr(stored, monkeypatch):
    store = stored.store
    store.create_recursive(znodes.broker_id(1), b"first")
    epoch = store.get(znodes.broker_id(1)).czxid
    assert stored.change({0, 1}, 0, epochs={1: epoch}) == StoredIsr(frozenset({0, 1}), 1)
    assert isinstance(stored.change({0, 1}, 1, epochs={1: epoch - 1}), errors.IneligibleReplica)
    store.delete(znodes.broker_id(1))
    assert isinstance(stored.change({0, 1}, 1, epochs={1: epoch}), errors.IneligibleReplica)
    store.create(znodes.broker_id(1), b"second")
    assert isinstance(stored.change({0, 1}, 1, epochs={1: epoch}), errors.IneligibleReplica)
    assert stored.node()[1] == 1
    # The fetches of old followers have no epoch: nothing to compare.
    assert stored.change({0, 1}, 1, epochs={1: -1}) == StoredIsr(frozenset({0, 1}), 2)


def test_a_registration_that_ends_between_look_and_write_is_seen(stored, monkeypatch):
    store, multi, operations_seen = stored.store, stored.store.multi, []
    store.create_recursive(znodes.broker_id(1), b"")
    epoch = store.get(znodes.broker_id(1)).czxid

    def end_it(operations):
        operations_seen.extend(operations)
        monkeypatch.undo()
        store.delete(znodes.broker_id(1))
        return multi(operations)

    monkeypatch.setattr(store, "multi", end_it)
    assert isinstance(stored.change({0, 1}, 0, epochs={1: epoch}), errors.IneligibleReplica)
    assert [type(operation) for operation in operations_seen] == [Check, SetData]
    assert stored.node()[1] == 0


@pytest.mark.parametrize("is_of_another", [False, True])
def test_KIP_903_a_follower_that_registers_again_between_look_and_write_does_not_join(
    stored, monkeypatch, is_of_another
):
    """Its new registration has version 0, as the old one had.  Another broker's keeps nobody out."""
    store, multi = stored.store, stored.store.multi
    for broker in (2, 3):
        store.create_recursive(znodes.broker_id(broker))
    epoch = store.get(znodes.broker_id(2)).czxid

    def registers_again(operations):
        monkeypatch.undo()
        path = znodes.broker_id(3 if is_of_another else 2)
        store.delete(path)
        store.create(path)
        return multi(operations)

    monkeypatch.setattr(store, "multi", registers_again)
    answer = stored.change({0, 1, 2}, 0, epochs={2: epoch})
    if is_of_another:
        assert answer == StoredIsr(frozenset({0, 1, 2}), 1)
    else:
        assert isinstance(answer, errors.IneligibleReplica)
        assert stored.node() == (znodes.PartitionStateZNode(0, 5, [0, 1], 2), 0)


def test_KIP_903_a_follower_that_registers_again_as_soon_as_its_registration_was_read_does_not_join(
    stored, monkeypatch
):
    store, get, path = stored.store, stored.store.get, znodes.broker_id(2)
    store.create_recursive(path)
    epoch = store.get(path).czxid

    def registers_again(read):
        node = get(read)
        if read == path:
            monkeypatch.undo()
            store.delete(path)
            store.create(path)
        return node

    monkeypatch.setattr(store, "get", registers_again)
    assert isinstance(stored.change({0, 1, 2}, 0, epochs={2: epoch}), errors.IneligibleReplica)
    assert stored.node()[1] == 0


# -- notifications


def notified(store):
    path = znodes.ISR_CHANGE_NOTIFICATION
    return [znodes.decode_partitions(store.get(f"{path}/{name}").data) for name in store.children(path)]


def test_RM_28_changed_isrs_are_collected_and_sent_when_no_more_come(stored):
    other = TopicPartition("u", 0)
    stored.store.create_recursive(znodes.partition_state(*other), znodes.PartitionStateZNode(0, 1, [0, 1], 2).encode())
    stored.change({0}, 0)
    stored.advance(CHECK_INTERVAL_MS - 1)
    stored.change({0, 1}, 1)
    stored.change({0}, 0, other)
    for _ in range(10):
        stored.advance(CHECK_INTERVAL_MS)
    # The first at once, since there was none for long; each partition once in a notification.
    assert notified(stored.store) == [[TP, other]]
    stored.change({0}, 7)  # nothing is stored
    stored.advance(100_000)
    assert len(notified(stored.store)) == 1


@pytest.mark.parametrize(
    ("since_change", "since_notification", "expected"),
    [
        (QUIET_MS, MAX_DELAY_MS, False),
        (QUIET_MS + 1, 0, True),
        (0, MAX_DELAY_MS + 1, True),
    ],
)
def test_RM_28_notifications_wait_for_a_quiet_but_not_for_ever(since_change, since_notification, expected):
    now = 10**9
    assert is_time_to_notify(now, now - since_change, now - since_notification) is expected


def test_RM_28_a_notification_that_could_not_be_written_is_tried_again(stored, monkeypatch):
    stored.change({0}, 0)

    def away(*args, **kwargs):
        raise ConnectionLost("no answer")

    monkeypatch.setattr(stored.store, "create", away)
    stored.advance(60_000)
    monkeypatch.undo()
    assert notified(stored.store) == []
    stored.advance(60_000)
    assert notified(stored.store) == [[TP]]


def test_RM_28_more_partitions_than_one_node_takes_are_all_notified(stored, monkeypatch):
    monkeypatch.setattr(metadata_partition_state_store, "_MAX_NOTIFIED", 2)
    others = [TopicPartition("u", number) for number in range(4)]
    for tp in others:
        stored.store.create_recursive(znodes.partition_state(*tp), znodes.PartitionStateZNode(0, 1, [0, 1], 2).encode())
        stored.change({0}, 0, tp)
    stored.change({0}, 0)
    for _ in range(10):
        stored.advance(CHECK_INTERVAL_MS)
    assert notified(stored.store) == [others[:2], others[2:], [TP]]
