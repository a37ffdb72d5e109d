"""The transaction coordinator on MockTime over logs in memory, with brokers that answer as the test says."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from kcore import errors
from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.marker_writer import MarkerWriter
from kcore.coordinator.transaction.transaction_completion import UNKNOWN_PARTITION_MS, MarkerRoutes
from kcore.coordinator.transaction.transaction_config import TransactionConfig
from kcore.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kcore.coordinator.transaction.transaction_log import read_key, read_value
from kcore.coordinator.transaction.transaction_state import MAX_EPOCH, Producer, TransactionState
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.purgatory.timer import Timer
from kcore.record.control_record import parse_end_transaction_marker
from kcore.record.memory_records import MemoryRecords
from kcore.replica.delayed.delayed_produce import ProducePartitionStatus
from tests.unit.coordinator.group.harness import Answer, MemoryLog

S = TransactionState
STATES, OFFSETS = "__transaction_state", "__consumer_offsets"
HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)
OFFSETS_0 = TopicPartition(OFFSETS, 0)
ME, OTHER = 1, 2


class Logs:
    """As much of a ReplicaManager as is used.  errors: topic -> what its appends fail with.  held: a list in which the
    appends to __transaction_state wait.  is_followed: whether the replicas of __transaction_state fetch."""

    def __init__(self):
        self.logs, self.errors, self.held = {}, {}, None
        self.marker_origins = []
        self.is_followed = True

    def log(self, topic_partition):
        return self.logs.setdefault(topic_partition, MemoryLog())

    def get_partition(self, topic_partition):
        return SimpleNamespace(
            local_log=lambda: self.log(topic_partition),
            is_followed=self.is_followed,
            has_led_since=lambda leader_epoch: True,
        )

    def append_records(
        self, timeout_ms, required_acks, internal_topics_allowed, origin, entries, callback, leader_epochs=None
    ):
        assert (required_acks, internal_topics_allowed) == (-1, True)
        if any(tp.topic == STATES for tp in entries):
            assert origin is AppendOrigin.COORDINATOR
        else:
            self.marker_origins.append(origin)
        if self.held is not None and any(tp.topic == STATES for tp in entries):
            self.held.append(lambda: self._append(entries, callback))
        else:
            self._append(entries, callback)

    def _append(self, entries, callback):
        statuses = {}
        for tp, batch in entries.items():
            error = self.errors.get(tp.topic)
            statuses[tp] = ProducePartitionStatus(error, -1 if error else self.log(tp).append(batch))
        callback(statuses)

    def release(self):
        held, self.held = self.held, None
        for append in held:
            append()

    def markers(self, topic_partition):
        return [parse_end_transaction_marker(r.key, r.value) for r in self.log(topic_partition).records()]


class Harness:
    def __init__(self, logs=None, *, owned=True, is_certain=lambda: True):
        self.time = MockTime()
        self.timer, self.scheduler = Timer(self.time), MockScheduler(self.time)
        self.logs = logs or Logs()
        self.leaders = {HERE: ME, THERE: OTHER, OFFSETS_0: ME}
        self.sent, self.ended_offsets, self.loaded_offsets, self.ids = [], [], {0}, iter(range(100, 200))
        offsets = SimpleNamespace(
            loaded_epoch=lambda partition: 1 if partition in self.loaded_offsets else None,
            end_transaction=lambda *args: self.ended_offsets.append(args),
        )
        others = SimpleNamespace(send=lambda *args: self.sent.append(args))
        self.coordinator = TransactionCoordinator(
            TransactionConfig(num_partitions=1),
            self.logs,
            MarkerRoutes(
                broker_id=ME,
                leader_of=self.leaders.get,
                here=MarkerWriter(self.logs, self.time, offsets),
                others=others,
            ),
            lambda: next(self.ids),
            self.time,
            self.scheduler,
            self.timer,
            is_certain=is_certain,
        )
        self.coordinator.startup()
        if owned:
            self.elect(5)

    def elect(self, epoch):
        self.coordinator.on_election(0, epoch)
        self.advance(0)

    def advance(self, ms):
        self.time.sleep(ms)
        self.timer.advance()
        self.scheduler.tick()

    def init(self, expected=None):
        answer = Answer()
        self.coordinator.init_producer_id("x", 60_000, expected, answer)
        return answer

    def begin(self, *partitions):
        """The producer, with a transaction that has these partitions."""
        result = self.init().result
        producer = Producer(result.producer_id, result.producer_epoch)
        assert self.add(producer, *partitions) == 0
        return producer

    def add(self, producer, *partitions):
        return self._ask(self.coordinator.add_partitions, "x", producer, frozenset(partitions))

    def add_and_wait(self, producer, *partitions):
        """For 100 ms at most."""
        answer = Answer()
        self.coordinator.add_partitions("x", producer, frozenset(partitions), answer, max_wait_ms=100)
        return answer

    def end(self, producer, is_commit=True):
        answer = Answer()
        self.coordinator.end_transaction("x", producer, is_commit, answer)
        return None if answer.waits else answer.error_code

    def begin_2(self, *partitions):
        """begin() of transaction version 2."""
        result = self.init().result
        producer = Producer(result.producer_id, result.producer_epoch)
        assert self.add_2(producer, *partitions) == 0
        return producer

    def add_2(self, producer, *partitions):
        return self._ask(self.coordinator.add_partitions, "x", producer, frozenset(partitions), version=2)

    def end_2(self, producer, is_commit=True):
        """(error code, producer id, epoch)"""
        result = self._ask(self.coordinator.end_transaction, "x", producer, is_commit, version=2)
        return result.error_code, result.producer_id, result.producer_epoch

    def use_up_epochs(self):
        """The next producer gets the last epoch."""
        entry = self.coordinator.manager.find("x")
        entry.metadata = replace(entry.metadata, producer_epoch=MAX_EPOCH - 2)

    def marker_epochs(self, topic_partition):
        return [MemoryRecords(data).batches[0].producer_epoch for _, data in self.logs.log(topic_partition).batches]

    def values(self):
        return [read_value(r.value) for r in self.logs.log(TopicPartition(STATES, 0)).records()]

    def _ask(self, method, *args, version=0):
        answer = Answer()
        method(*args, answer, version)
        return answer.result

    def answer(self, number=-1, error=None):
        """From the other broker, about a request for markers."""
        _, _, partitions, on_sent = self.sent[number]
        on_sent(dict.fromkeys(partitions, error))

    @property
    def state(self):
        return self.coordinator.describe("x").state

    def written(self):
        """(id, state) of each record in the log; None for a tombstone."""
        return [
            (read_key(r.key), None if r.value is None else S(read_value(r.value).status))
            for r in self.logs.log(TopicPartition(STATES, 0)).records()
        ]


def test_TXN_11_TXN_61_a_state_is_in_the_log_before_the_answer():
    harness = Harness()
    harness.logs.held = []
    answer = harness.init()
    assert answer.waits and harness.init().error_code == errors.ConcurrentTransactions.code
    harness.logs.release()
    assert tuple(answer.result) == (None, 100, 0)
    producer = Producer(100, 0)
    harness.logs.held = []
    assert harness.add(producer, HERE, THERE) is None
    assert harness.add(producer, HERE) == errors.ConcurrentTransactions.code
    harness.logs.release()
    harness.logs.held = []
    assert harness.end(producer) is None and harness.sent == []
    harness.logs.release()
    assert harness.written() == [("x", S.EMPTY), ("x", S.ONGOING), ("x", S.PREPARE_COMMIT)]


@pytest.mark.parametrize("is_commit", [True, False])
def test_TXN_63_TXN_67_a_transaction_is_complete_when_each_partition_has_the_marker(is_commit):
    harness = Harness()
    producer = harness.begin(HERE, THERE, OFFSETS_0)
    assert harness.end(producer, is_commit) == 0
    ((broker, marker, partitions, _),) = harness.sent
    assert (broker, tuple(marker), partitions) == (OTHER, (100, 0, is_commit, 5, 0), [THERE])
    for topic_partition in (HERE, OFFSETS_0):
        assert [tuple(m) for m in harness.logs.markers(topic_partition)] == [(int(is_commit), 5)]
    assert harness.ended_offsets == [(100, {0: 1}, is_commit)]
    assert harness.state is (S.PREPARE_COMMIT if is_commit else S.PREPARE_ABORT)
    assert harness.add(producer, HERE) == errors.ConcurrentTransactions.code
    harness.answer()
    assert harness.state is (S.COMPLETE_COMMIT if is_commit else S.COMPLETE_ABORT)
    assert harness.add(producer, HERE) == 0


def test_TXN_07_a_topic_of_states_with_more_partitions_than_at_the_start_is_not_loaded(caplog):
    harness = Harness(owned=False)
    harness.coordinator.on_election(1, 5)
    harness.leaders[TopicPartition(STATES, 1)] = OTHER
    harness.elect(5)
    assert not harness.coordinator.manager.partitions.owned
    assert harness.init().result.error_code == errors.NotCoordinator.code
    assert [r.message.partition(" is not coordinated")[0] for r in caplog.records] == [f"{STATES}-1", f"{STATES}-0"]
    assert "the topic had 1 partitions" in caplog.text


def test_TXN_07_nor_is_it_coordinated_any_longer_after_another_election():
    harness = Harness()
    producer = harness.begin(HERE)
    harness.leaders[TopicPartition(STATES, 1)] = OTHER
    assert harness.add(producer, THERE) == 0, "until then the others find the id here too"
    harness.elect(6)
    assert harness.add(producer, HERE) == errors.NotCoordinator.code


def test_TXN_77_transactions_that_cannot_be_completed_now_are_counted():
    harness = Harness()
    completions = harness.coordinator.completions
    producer = harness.begin(HERE, THERE)
    harness.leaders[THERE] = -1
    harness.end(producer)
    assert (completions.num_without_leader, completions.num_unstored) == (1, 0)
    harness.leaders[THERE] = OTHER
    harness.advance(100)
    assert (completions.num_without_leader, completions.num_unstored) == (0, 0)
    harness.logs.errors[STATES] = errors.NotEnoughReplicas("too few")
    harness.answer()
    assert (completions.num_without_leader, completions.num_unstored) == (0, 1)
    del harness.logs.errors[STATES]
    harness.advance(100)
    assert (completions.num_without_leader, completions.num_unstored) == (0, 0)
    assert harness.state is S.COMPLETE_COMMIT


def test_TXN_61_what_is_added_while_the_last_transaction_ends_may_wait_for_its_end():
    harness = Harness()
    producer = harness.begin(HERE, THERE)
    harness.end(producer)
    added = harness.add_and_wait(producer, HERE)
    assert added.waits and harness.state is S.PREPARE_COMMIT
    harness.answer()
    assert added.result == 0 and harness.state is S.ONGOING
    assert not harness.coordinator.manager.waiting.watchers


def test_TXN_61_what_is_added_while_a_state_is_being_written_may_wait_for_it():
    harness = Harness()
    producer = harness.begin(HERE)
    harness.logs.held = []
    harness.end(producer)
    added = harness.add_and_wait(producer, HERE)
    assert added.waits
    harness.logs.release()
    assert added.result == 0 and harness.state is S.ONGOING


def test_TXN_61_who_has_waited_for_an_end_long_enough_is_to_ask_again():
    harness = Harness()
    producer = harness.begin(THERE)
    harness.end(producer)
    added = harness.add_and_wait(producer, HERE)
    harness.advance(99)
    assert added.waits
    harness.advance(1)
    assert added.result == errors.ConcurrentTransactions.code
    harness.answer()
    assert harness.state is S.COMPLETE_COMMIT, "nothing is added any more"


def test_TXN_61_who_waits_for_an_end_is_sent_to_the_next_coordinator():
    harness = Harness()
    producer = harness.begin(THERE)
    harness.end(producer)
    added = harness.add_and_wait(producer, HERE)
    harness.coordinator.on_resignation(0, 6)
    assert added.result == errors.NotCoordinator.code


def test_TXN_41_only_the_end_of_a_transaction_is_waited_for():
    harness = Harness()
    producer = harness.begin(THERE)
    harness.end(producer)
    stranger = producer._replace(producer_id=producer.producer_id + 1)
    assert harness.add_and_wait(stranger, HERE).result == errors.InvalidProducerIdMapping.code
    zombie = producer._replace(epoch=producer.epoch - 1)
    assert harness.add_and_wait(zombie, HERE).result == errors.ProducerFenced.code


def test_TXN_70_who_waits_while_its_id_is_forgotten_is_told_so():
    harness = Harness()
    result = harness.init().result
    harness.logs.held = []
    harness.advance(TransactionConfig().transactional_id_expiration_ms)
    harness.advance(TransactionConfig().remove_expired_interval_ms)
    added = harness.add_and_wait(Producer(result.producer_id, result.producer_epoch), HERE)
    assert added.waits
    harness.logs.release()
    assert added.result == errors.InvalidProducerIdMapping.code


def test_a_transaction_counts_as_ending_when_its_producer_is_answered():
    """So that who waits for markers after the answer waits for these."""
    harness = Harness()
    producer = harness.begin(HERE)
    seen = []
    harness.coordinator.end_transaction(
        "x", producer, True, lambda result: seen.append((result.error_code, len(harness.coordinator.completions)))
    )
    assert seen == [(0, 1)] and not harness.coordinator.completions


@pytest.mark.parametrize(
    "error",
    [
        errors.UnknownTopicOrPartition,
        errors.NotLeaderOrFollower,
        errors.NotEnoughReplicas,
        errors.NotEnoughReplicasAfterAppend,
        errors.RequestTimedOut,
        errors.KafkaStorageError,
        errors.NetworkException,
    ],
)
def test_TXN_64_a_marker_is_sent_again_to_the_leader_of_the_moment(error):
    harness = Harness()
    harness.end(harness.begin(HERE, THERE))
    harness.answer(error=error("not now"))
    assert len(harness.sent) == 1
    harness.leaders[THERE] = 3
    harness.advance(100)
    assert [(broker, partitions) for broker, _, partitions, _ in harness.sent] == [(OTHER, [THERE]), (3, [THERE])]
    harness.answer()
    assert harness.state is S.COMPLETE_COMMIT
    assert len(harness.logs.markers(HERE)) == 1, "what has the marker gets no other"


def test_the_end_of_a_transaction_that_takes_long_says_where_its_marker_is_missing_and_why():
    harness = Harness()
    producer = harness.begin(HERE, THERE)
    assert harness.coordinator.completions.progress("x") is None
    harness.end(producer)
    assert harness.coordinator.completions.progress("x") == "its marker is not in t-1 yet"
    harness.answer(error=errors.NotEnoughReplicas("t-1"))
    assert harness.coordinator.completions.progress("x") == "its marker is not in t-1 yet: NotEnoughReplicas: t-1"
    assert harness.coordinator.completions.progress("y") is None
    harness.advance(100)
    harness.answer()
    assert harness.coordinator.completions.progress("x") is None


def test_TXN_64_a_partition_without_a_leader_gets_the_marker_when_it_has_one():
    harness = Harness()
    producer = harness.begin(HERE)
    harness.leaders[HERE] = -1
    harness.end(producer)
    harness.advance(100)
    assert harness.coordinator.completions.progress("x") == "its marker is not in t-0 yet: t-0 has no leader"
    assert harness.state is S.PREPARE_COMMIT
    harness.leaders[HERE] = ME
    harness.advance(100)
    assert harness.state is S.COMPLETE_COMMIT


@pytest.mark.parametrize("error", [errors.InvalidProducerEpoch, errors.TransactionCoordinatorFenced])
def test_TXN_64_a_fenced_coordinator_does_not_go_on(error):
    harness = Harness()
    harness.end(harness.begin(THERE))
    harness.answer(error=error("another coordinator was here"))
    harness.advance(1000)
    assert (len(harness.sent), harness.state, len(harness.coordinator.completions)) == (1, S.PREPARE_COMMIT, 0)


@pytest.mark.parametrize("error", [errors.UnsupportedForMessageFormat, errors.UnsupportedVersion])
def test_TXN_64_a_partition_that_can_have_no_marker_needs_none(error):
    harness = Harness()
    harness.end(harness.begin(THERE))
    harness.answer(error=error("an old format"))
    assert harness.state is S.COMPLETE_COMMIT


def test_TXN_64_a_partition_that_was_deleted_needs_no_marker():
    harness = Harness()
    producer = harness.begin(HERE, THERE)
    del harness.leaders[HERE]
    harness.end(producer)
    harness.answer(error=errors.UnknownTopicOrPartition("gone"))
    harness.coordinator.partitions_deleted([THERE])
    harness.advance(100)
    assert harness.state is S.COMPLETE_COMMIT


def test_TXN_65_offsets_that_are_being_loaded_wait_for_the_marker():
    harness = Harness()
    harness.loaded_offsets.clear()
    harness.end(harness.begin(OFFSETS_0))
    assert (harness.logs.markers(OFFSETS_0), harness.state) == ([], S.PREPARE_COMMIT)
    harness.loaded_offsets.add(0)
    harness.advance(100)
    assert harness.ended_offsets == [(100, {0: 1}, True)] and harness.state is S.COMPLETE_COMMIT


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (errors.UnknownTopicOrPartition, errors.CoordinatorNotAvailable),
        (errors.NotEnoughReplicas, errors.CoordinatorNotAvailable),
        (errors.NotEnoughReplicasAfterAppend, errors.CoordinatorNotAvailable),
        (errors.RequestTimedOut, errors.CoordinatorNotAvailable),
        (errors.NotLeaderOrFollower, errors.NotCoordinator),
        (errors.KafkaStorageError, errors.NotCoordinator),
        (errors.DiskFull, errors.CoordinatorNotAvailable),
        (errors.MessageTooLarge, errors.UnknownServerError),
        (errors.RecordListTooLarge, errors.UnknownServerError),
    ],
)
def test_TXN_62_a_state_that_could_not_be_stored_is_taken_back(error, answer):
    harness = Harness()
    producer = harness.begin(HERE)
    harness.logs.errors[STATES] = error("no")
    assert harness.add(producer, THERE) == harness.end(producer) == answer.code
    assert (harness.state, harness.coordinator.describe("x").partitions) == (S.ONGOING, {HERE})
    harness.logs.errors.clear()
    assert harness.end(producer) == 0 and harness.state is S.COMPLETE_COMMIT


def test_TXN_18_a_fence_that_could_not_be_stored_fences_and_is_not_raised_again():
    harness = Harness()
    producer = harness.begin(HERE)
    harness.logs.errors[STATES] = errors.NotEnoughReplicas("no")
    assert harness.init().error_code == errors.CoordinatorNotAvailable.code
    assert harness.end(producer) == errors.ProducerFenced.code
    assert harness.init().error_code == errors.CoordinatorNotAvailable.code
    harness.logs.errors.clear()
    assert harness.init().error_code == errors.ConcurrentTransactions.code
    assert harness.logs.markers(HERE)[0].type == 0
    assert tuple(harness.init().result) == (None, 100, 2)


def test_TXN_67_a_complete_state_that_could_not_be_stored_is_stored_later():
    harness = Harness()
    harness.end(harness.begin(THERE))
    harness.logs.errors[STATES] = errors.NotEnoughReplicas("no")
    harness.answer()
    harness.advance(100)
    assert harness.state is S.PREPARE_COMMIT
    harness.logs.errors.clear()
    harness.advance(100)
    assert harness.state is S.COMPLETE_COMMIT and len(harness.sent) == 1


def test_TXN_67_TXN_68_the_next_coordinator_sends_all_markers_again():
    first = Harness()
    first.end(first.begin(HERE, THERE), is_commit=False)
    assert len(first.logs.markers(HERE)) == 1
    second = Harness(first.logs, owned=False)
    second.coordinator.on_election(0, 6)
    assert second.init().error_code == errors.CoordinatorLoadInProgress.code
    second.advance(0)
    ((broker, marker, partitions, _),) = second.sent
    assert (broker, tuple(marker), partitions) == (OTHER, (100, 0, False, 6, 0), [THERE])
    assert [m.coordinator_epoch for m in second.logs.markers(HERE)] == [5, 6]
    second.answer()
    assert second.state is S.COMPLETE_ABORT
    # And the first one does nothing more.
    first.coordinator.on_resignation(0, 6)
    first.answer()
    assert first.init().error_code == errors.NotCoordinator.code
    assert second.written()[-1] == ("x", S.COMPLETE_ABORT) and len(second.written()) == 4


def test_TXN_64_a_new_coordinator_waits_for_the_metadata_before_it_takes_a_partition_for_deleted():
    first = Harness()
    first.end(first.begin(THERE))
    second = Harness(first.logs, owned=False)
    del second.leaders[THERE]
    second.elect(6)
    second.advance(UNKNOWN_PARTITION_MS - 1000)
    assert (second.sent, second.state) == ([], S.PREPARE_COMMIT)
    second.leaders[THERE] = OTHER
    second.advance(100)
    assert len(second.sent) == 1
    third = Harness(first.logs, owned=False)
    del third.leaders[THERE]
    third.elect(7)
    third.advance(UNKNOWN_PARTITION_MS)
    assert third.state is S.COMPLETE_COMMIT


def test_TXN_68_what_was_appended_when_the_coordinator_resigned_is_not_answered_as_done():
    harness = Harness()
    producer = harness.begin(HERE)
    harness.logs.held = []
    answer = Answer()
    harness.coordinator.end_transaction("x", producer, True, answer)
    harness.coordinator.on_resignation(0, 6)
    harness.logs.release()
    assert answer.result.error_code == errors.NotCoordinator.code
    assert harness.logs.markers(HERE) == []


def test_TXN_69_a_time_out_fences_and_aborts():
    harness = Harness()
    producer = harness.begin(HERE)
    harness.advance(60_000)
    assert harness.state is S.ONGOING
    harness.advance(10_000)
    assert harness.state is S.COMPLETE_ABORT and harness.coordinator.describe("x").producer_epoch == 1
    assert harness.end(producer) == errors.ProducerFenced.code


# -- transaction version 2 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_commit", [True, False])
def test_TXN_37_TXN_63_an_end_answers_the_next_epoch_and_the_markers_have_it(is_commit):
    harness = Harness()
    producer = harness.begin_2(HERE, THERE)
    assert harness.end_2(producer, is_commit) == (0, 100, 1)
    ((_, marker, _, _),) = harness.sent
    assert tuple(marker) == (100, 1, is_commit, 5, 2)
    assert harness.marker_epochs(HERE) == [1]
    assert harness.logs.marker_origins == [AppendOrigin.COORDINATOR_RAISING_EPOCH]
    # The client begins the next transaction at once, and repeats what it does not know the answer of.
    following = Producer(100, 1)
    assert harness.add_2(following, HERE) == errors.ConcurrentTransactions.code
    assert harness.end_2(producer, is_commit) == (errors.ConcurrentTransactions.code, -1, -1)
    harness.answer()
    assert harness.end_2(producer, is_commit) == (0, 100, 1)
    assert harness.add_2(producer, HERE) == errors.ProducerFenced.code
    assert harness.add_2(following, HERE) == 0
    assert harness.end_2(producer, is_commit) == (errors.ProducerFenced.code, -1, -1)
    assert harness.state is S.ONGOING
    ended = (S.PREPARE_COMMIT, S.COMPLETE_COMMIT) if is_commit else (S.PREPARE_ABORT, S.COMPLETE_ABORT)
    assert [(S(v.status), v.version, v.producer_epoch, v.client_transaction_version) for v in harness.values()] == [
        (S.EMPTY, 1, 0, None),
        (S.ONGOING, 1, 0, 2),
        (ended[0], 1, 1, 2),
        (ended[1], 1, 1, 2),
        (S.ONGOING, 1, 1, 2),
    ]


def test_TXN_57_an_abort_without_partitions_is_complete_at_once():
    harness = Harness()
    harness.init()
    assert harness.end_2(Producer(100, 0), is_commit=False) == (0, 100, 1)
    assert harness.end_2(Producer(100, 1), is_commit=False) == (0, 100, 2)
    assert harness.state is S.COMPLETE_ABORT and not harness.logs.marker_origins
    assert harness.end_2(Producer(100, 2), is_commit=True) == (errors.InvalidTxnState.code, -1, -1)


def test_TXN_60_after_the_last_epoch_the_client_goes_on_with_another_id_also_at_another_coordinator():
    first = Harness()
    first.init()
    first.use_up_epochs()
    producer = first.begin_2(HERE, THERE)
    assert producer == Producer(100, MAX_EPOCH - 1)
    assert first.end_2(producer) == (0, 101, 0)
    assert (first.values()[-1].producer_epoch, first.values()[-1].next_producer_id) == (MAX_EPOCH, 101)
    second = Harness(first.logs, owned=False)
    second.elect(6)
    assert second.end_2(producer) == (errors.ConcurrentTransactions.code, -1, -1)
    assert second.add_2(Producer(101, 0), HERE) == errors.ConcurrentTransactions.code
    second.answer()
    third = Harness(first.logs, owned=False)
    third.elect(7)
    for harness in (second, third):
        assert harness.end_2(producer) == (0, 101, 0)
        assert harness.end_2(producer, is_commit=False) == (errors.InvalidTxnState.code, -1, -1)
    assert third.add_2(Producer(101, 0), HERE) == 0
    assert set(third.marker_epochs(HERE)) == {MAX_EPOCH}


def test_TXN_58_the_next_coordinator_knows_a_repeated_end():
    first = Harness()
    producer = first.begin_2(HERE)
    assert first.end_2(producer) == (0, 100, 1)
    second = Harness(first.logs, owned=False)
    second.elect(6)
    assert second.end_2(producer) == (0, 100, 1)
    assert second.end_2(producer, is_commit=False) == (errors.InvalidTxnState.code, -1, -1)
    assert len(second.values()) == len(first.values())


def test_TXN_62_an_end_that_could_not_be_stored_raises_nothing():
    harness = Harness()
    producer = harness.begin_2(HERE)
    harness.logs.errors[STATES] = errors.NotEnoughReplicas("no")
    assert harness.end_2(producer) == (errors.CoordinatorNotAvailable.code, -1, -1)
    harness.logs.errors.clear()
    assert harness.marker_epochs(HERE) == []
    assert harness.end_2(producer) == (0, 100, 1)


def test_TXN_69_a_time_out_raises_the_epoch_twice():
    harness = Harness()
    producer = harness.begin_2(HERE)
    harness.advance(70_000)
    assert harness.state is S.COMPLETE_ABORT and harness.coordinator.describe("x").producer_epoch == 2
    assert harness.marker_epochs(HERE) == [2]
    for is_commit in (True, False):
        assert harness.end_2(producer, is_commit) == (errors.ProducerFenced.code, -1, -1)
    assert tuple(harness.init().result) == (None, 100, 3)


def test_TXN_69_a_time_out_in_the_last_epoch_ends_too():
    harness = Harness()
    harness.init()
    harness.use_up_epochs()
    producer = harness.begin_2(HERE)
    harness.advance(70_000)
    assert harness.state is S.COMPLETE_ABORT and harness.marker_epochs(HERE) == [MAX_EPOCH]
    assert harness.end_2(producer, is_commit=False) == (errors.ProducerFenced.code, -1, -1)
    assert tuple(harness.init().result) == (None, 101, 0)


def test_TXN_70_an_expired_id_stays_until_its_tombstone_is_stored():
    harness = Harness()
    harness.init()
    harness.logs.errors[STATES] = errors.NotEnoughReplicas("no")
    harness.advance(604_800_000)
    assert harness.state is S.EMPTY
    harness.logs.errors.clear()
    harness.advance(3_600_000)
    with pytest.raises(errors.TransactionalIdNotFound):
        harness.coordinator.describe("x")
    assert harness.written() == [("x", S.EMPTY), ("x", None)]
    again = Harness(harness.logs)
    again.advance(0)
    with pytest.raises(errors.TransactionalIdNotFound):
        again.coordinator.describe("x")


def test_TXN_70_tombstones_that_are_tried_again_are_logged_once_and_at_the_end(caplog):
    caplog.set_level("INFO", "kcore.coordinator.transaction.transaction_state_manager")

    def logged(ms):
        caplog.clear()
        harness.advance(ms)
        return [record.getMessage() for record in caplog.records if "tombstones" in record.getMessage()]

    harness = Harness()
    harness.init()
    harness.logs.errors[STATES] = errors.NotEnoughReplicas("no")
    failed = f"{STATES}-0: expired transactional ids stay, their tombstones were not stored: no"
    assert [logged(604_800_000), logged(3_600_000), logged(3_600_000)] == [[failed], [], []]
    harness.logs.errors[STATES] = errors.NotEnoughReplicas("none")
    assert logged(3_600_000) == [f"{failed}ne"]
    harness.logs.errors.clear()
    assert logged(3_600_000) == [f"{STATES}-0: tombstones of expired transactional ids are stored now"]
    assert logged(3_600_000) == []


@pytest.mark.parametrize("why", ["its session may have ended", "the replicas of its topic do not fetch"])
def test_an_uncertain_coordinator_says_nothing_that_ends_a_producer_or_begins_a_transaction(why):
    certain = [True]
    harness = Harness(is_certain=lambda: certain[0])
    producer = harness.begin(HERE)
    assert harness.end(Producer(100, 7)) == errors.ProducerFenced.code
    assert harness.coordinator.verify_partitions("x", producer, {HERE}) == {HERE: None}
    certain[0] = why != "its session may have ended"
    harness.logs.is_followed = not certain[0]
    not_coordinator = errors.NotCoordinator.code
    assert harness.end(Producer(100, 7)) == harness.end(Producer(1, 0)) == not_coordinator
    assert harness.init(Producer(1, 0)).error_code == not_coordinator
    for asked in (producer, Producer(100, 7)):
        (error,) = harness.coordinator.verify_partitions("x", asked, {HERE}).values()
        assert isinstance(error, errors.NotCoordinator)
    assert harness.add(producer, HERE) == harness.add(producer, THERE) == 0, "the replicas have agreed"
    harness.logs.held = []
    assert harness.end(producer) is None
    assert harness.add(producer, HERE) == errors.ConcurrentTransactions.code, "the producer asks again anyway"


@pytest.mark.parametrize("error", [None, errors.NotLeaderOrFollower("another"), errors.NotEnoughReplicas("no")])
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_repeated_end_of_version_1_is_answered_when_the_replicas_have_agreed(is_commit, error):
    """The next transaction, at another coordinator, would have the same epoch."""
    harness = Harness()
    producer = harness.begin(HERE)
    assert harness.end(producer, is_commit) == 0
    state, written = harness.state, harness.written()
    harness.logs.held = []
    answer = Answer()
    harness.coordinator.end_transaction("x", producer, is_commit, answer)
    assert answer.waits
    assert harness.end(producer, is_commit) == errors.ConcurrentTransactions.code
    if error is not None:
        harness.logs.errors[STATES] = error
    harness.logs.release()
    codes = {errors.NotLeaderOrFollower: errors.NotCoordinator.code}
    expected = 0 if error is None else codes.get(type(error), errors.CoordinatorNotAvailable.code)
    assert answer.error_code == expected and harness.state is state
    assert harness.written() == written + [("x", state)] * (error is None)


def test_partitions_that_are_added_again_by_version_1_are_confirmed_when_the_replicas_have_agreed():
    harness = Harness()
    producer = harness.begin(HERE)
    harness.logs.held = []
    answer = Answer()
    harness.coordinator.add_partitions("x", producer, frozenset([HERE]), answer)
    assert answer.waits
    harness.logs.release()
    assert answer.result == 0 and harness.state is S.ONGOING
    assert harness.end(producer) == 0 and harness.logs.markers(HERE)


def test_what_version_2_repeats_is_answered_without_an_append():
    """Its epoch is that of one transaction alone."""
    harness = Harness()
    producer = harness.begin_2(HERE)
    written = harness.written()
    assert harness.add_2(producer, HERE) == 0 and harness.written() == written
    ended = harness.end_2(producer)
    written = harness.written()
    assert harness.end_2(producer) == ended and harness.written() == written


def test_after_a_stop_nothing_is_served_and_no_marker_sent():
    harness = Harness()
    producer = harness.begin(THERE)
    harness.end(producer)
    harness.coordinator.shutdown()
    harness.answer(error=errors.NotLeaderOrFollower("not now"))
    harness.advance(1000)
    assert len(harness.sent) == 1
    assert harness.end(producer) == errors.CoordinatorNotAvailable.code
