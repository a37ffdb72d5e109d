"""The partitions of an internal topic that a coordinator owns, whatever it keeps in them."""

import threading

import pytest

from kcore import errors
from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.coordinator_partitions import COMMIT_CHECK_MS, CoordinatorPartitions
from kcore.log.log_hot_path import FetchDataInfo
from kcore.log.log_offset_metadata import LogOffsetMetadata
from kcore.record.memory_records import MemoryRecords
from tests.batches import batch
from tests.unit.replica.conftest import Node

from .group.harness import OFFSETS_TOPIC, MemoryLog, MemoryReplicaManager

P = 1
STEPS = ["read_batch", "finish", "publish", "activate"]


class Load:
    """Remembers what it is called with; `at` may do something in the middle of a step."""

    def __init__(self, partitions, at=None, *, acts=False):
        self.acts = acts
        self._partitions = partitions
        self._at = at or {}
        self.steps = []

    def _step(self, name, *seen):
        self.steps.append((name, *seen))
        action = self._at.pop(name, None)
        if action is not None:
            action()

    def read_batch(self, batch):
        self._step("read_batch", *[record.value for record in batch])

    def skip(self):
        self._step("skip")

    def finish(self):
        self._step("finish")

    def publish(self):
        assert self._partitions.lock.locked()
        self._step("publish")

    def activate(self):
        assert not self._partitions.lock.locked()
        assert P not in self._partitions.owned, "no request may reach it before"
        self._step("activate")

    @property
    def names(self):
        return list(dict.fromkeys(name for name, *_ in self.steps))


class Fixture:
    def __init__(self, *values, replica_manager=None, load_buffer_size=1000):
        self.time = time = MockTime()
        self.replica_manager = replica_manager or MemoryReplicaManager()
        self.scheduler = MockScheduler(time)
        self.partitions = CoordinatorPartitions(
            OFFSETS_TOPIC,
            4,
            self.replica_manager,
            self.scheduler,
            time,
            append_timeout_ms=5000,
            load_buffer_size=load_buffer_size,
        )
        for value in values:
            self.append(value)

    def append(self, value):
        statuses = []
        self.partitions.append(P, 0, batch(value), statuses.append)
        return statuses

    def elect(self, epoch, at=None, *, acts=False):
        load = Load(self.partitions, at, acts=acts)
        self.partitions.elect(P, epoch, load)
        return load

    def resign(self, epoch=None):
        return self.partitions.resign(P, epoch, lambda: ["kept"])

    @property
    def state(self):
        return self.partitions.loading, self.partitions.owned


def test_a_partition_is_loading_until_its_records_are_read_and_owned_from_then_on():
    fixture = Fixture(b"a", b"b")
    load = fixture.elect(5)
    assert fixture.state == ({P: 5}, {}) and load.steps == []
    fixture.scheduler.tick()
    assert fixture.state == ({}, {P: 5})
    assert load.steps == [("read_batch", b"a"), ("read_batch", b"b"), ("finish",), ("publish",), ("activate",)]


@pytest.mark.parametrize("has_records", [True, False])
def test_a_partition_has_its_epoch_also_at_the_moment_when_its_load_ends(has_records):
    """epoch() takes no lock.  At -1 an error that a producer ends at would be answered with NOT_COORDINATOR."""
    fixture = Fixture(*[b"a"] * has_records)
    partitions, epochs = fixture.partitions, []

    class Loading(dict):
        def pop(self, *args):
            value = super().pop(*args)
            epochs.append(partitions.epoch(P))
            return value

    partitions.loading = Loading()
    fixture.elect(5)
    fixture.scheduler.tick()
    assert fixture.state == ({}, {P: 5}) and epochs == [5]


def test_what_is_acted_on_is_owned_once_its_records_are_committed():
    """A successor may not have the others: then what was done because of them could not be taken back."""
    fixture = Fixture(b"a", b"b")
    log = fixture.replica_manager.logs[P]
    log.high_watermark = 1
    load = fixture.elect(5, acts=True)
    fixture.scheduler.tick()
    assert fixture.state == ({P: 5}, {}) and load.names == ["read_batch", "finish"]
    log.high_watermark = 2
    fixture.time.sleep(COMMIT_CHECK_MS)
    fixture.scheduler.tick()
    assert fixture.state == ({}, {P: 5}) and load.names == STEPS


def test_a_partition_whose_records_are_not_committed_may_be_resigned_from():
    fixture = Fixture(b"a")
    fixture.replica_manager.logs[P].high_watermark = 0
    load = fixture.elect(5, acts=True)
    fixture.scheduler.tick()
    fixture.resign(6)
    fixture.time.sleep(COMMIT_CHECK_MS)
    fixture.scheduler.tick()
    assert fixture.state == ({}, {}) and load.names == ["read_batch", "finish"]


def test_a_partition_without_records_is_owned_at_once():
    fixture = Fixture()
    load = fixture.elect(5)
    assert fixture.state == ({}, {P: 5}) and load.steps == []


def test_an_append_is_answered_with_the_status_of_the_partition():
    fixture = Fixture()
    (status,) = fixture.append(b"a")
    assert (status.error, status.base_offset) == (None, 0)
    fixture.replica_manager.error = errors.NotEnoughReplicas("one is missing")
    (status,) = fixture.append(b"b")
    assert status.error is fixture.replica_manager.error


def test_a_partition_that_is_led_on_is_not_read_again():
    fixture = Fixture(b"a")
    fixture.elect(5)
    fixture.scheduler.tick()
    again = fixture.elect(6)
    assert fixture.state == ({}, {P: 6})
    assert fixture.scheduler.tick() == 0 and again.steps == []


@pytest.mark.parametrize("is_loaded", [False, True])
def test_what_is_of_an_older_epoch_changes_nothing(is_loaded):
    fixture = Fixture(b"a")
    fixture.elect(5)
    if is_loaded:
        fixture.scheduler.tick()
    before = [dict(table) for table in fixture.state]
    fixture.elect(4)
    assert fixture.resign(4) == []
    assert list(fixture.state) == before


@pytest.mark.parametrize("epoch", [5, 6, None])
def test_after_a_resignation_it_is_neither_owned_nor_loading_and_what_was_kept_in_it_comes_back(epoch):
    fixture = Fixture(b"a")
    fixture.elect(5)
    fixture.scheduler.tick()
    assert fixture.resign(epoch) == ["kept"]
    assert fixture.state == ({}, {})


def test_what_is_kept_in_a_partition_is_listed_under_the_lock():
    """So that what the next election publishes is not among it."""
    fixture = Fixture()
    fixture.elect(5)
    assert fixture.partitions.resign(P, 6, lambda: [fixture.partitions.lock.locked()]) == [True]


@pytest.mark.parametrize("step", STEPS)
def test_a_resignation_while_a_partition_is_loaded_leaves_it_to_its_next_leader(step):
    fixture = Fixture(b"a", b"b")
    threads = []

    def resign():
        # On a thread of its own: in publish() it has to wait for the lock.
        threads.append(threading.Thread(target=fixture.resign, args=(6,)))
        threads[0].start()
        if step != "publish":
            threads[0].join()

    load = fixture.elect(5, at={step: resign})
    fixture.scheduler.tick()
    threads[0].join()
    assert fixture.state == ({}, {})
    # Once published it is activated; what is unloaded already, activate() leaves alone.
    assert load.names == (STEPS if STEPS.index(step) >= 2 else STEPS[:2])
    assert len([name for name, *_ in load.steps if name == "read_batch"]) == (1 if step == "read_batch" else 2)


@pytest.mark.parametrize("step", ["read_batch", "finish", "activate"])
def test_of_two_loads_that_of_the_last_election_makes_the_partition_owned(step):
    fixture = Fixture(b"a")
    later = []

    def away_and_back():
        fixture.resign(6)
        fixture.append(b"b")
        later.append(fixture.elect(7))

    earlier = fixture.elect(5, at={step: away_and_back})
    fixture.scheduler.tick()
    fixture.scheduler.tick()
    assert fixture.state == ({}, {P: 7})
    assert ("publish" in earlier.names) == (step == "activate")
    assert [step for step in later[0].steps if step[0] == "read_batch"] == [("read_batch", b"a"), ("read_batch", b"b")]
    assert later[0].names == STEPS


def test_a_load_that_still_waits_when_the_partition_is_elected_again_reads_nothing():
    fixture = Fixture(b"a")
    earlier = fixture.elect(5)
    later = fixture.elect(6)
    fixture.scheduler.tick()
    assert earlier.steps == [] and later.names == STEPS
    assert fixture.state == ({}, {P: 6})


@pytest.mark.parametrize("how", ["offline", "missing"])
@pytest.mark.parametrize("step", [None, "read_batch", "finish"])
def test_a_partition_whose_log_is_lost_while_it_loads_is_not_owned(how, step, caplog):
    fixture = Fixture(b"a")
    lost = getattr(fixture.replica_manager, how)
    load = fixture.elect(5, at={step: lambda: lost.add(P)})
    if step is None:
        lost.add(P)
    fixture.scheduler.tick()
    assert fixture.state == ({}, {}) and "publish" not in load.names
    assert "has no log" in caplog.text
    lost.clear()
    fixture.elect(6)
    fixture.scheduler.tick()
    assert fixture.state == ({}, {P: 6})


def test_what_was_read_before_an_error_counts(caplog):
    fixture = Fixture(b"a", b"b")

    def fail():
        raise ValueError("broken")

    load = fixture.elect(5, at={"read_batch": fail})
    fixture.scheduler.tick()
    assert load.names == ["read_batch", "skip", *STEPS[1:]] and fixture.state == ({}, {P: 5})
    assert "reading its records stopped by an error" in caplog.text


class SegmentedLog(MemoryLog):
    """Its segments begin at `base_offsets`, which `before_read` and `after_read` may change."""

    def __init__(self, base_offsets):
        super().__init__()
        self.base_offsets = base_offsets
        self.before_read = self.after_read = lambda start_offset: None

    def segment_base_offsets(self):
        return list(self.base_offsets)

    def read(self, start_offset, max_length, isolation, min_one_message):
        self.before_read(start_offset)
        base_offset = max(offset for offset in self.base_offsets if offset <= start_offset)
        end = next((offset for offset in self.base_offsets if offset > base_offset), self.log_end_offset)
        data = b"".join(data for offset, data in self.batches if start_offset <= offset < end)
        self.after_read(start_offset)
        return FetchDataInfo(LogOffsetMetadata(start_offset, base_offset, 0), MemoryRecords(data))


@pytest.mark.parametrize("when, at", [("after_read", 0), ("before_read", 1)])
def test_segments_that_the_cleaner_merges_during_a_load_are_read_once(when, at):
    """The second into the first, before or after the read of one of them."""
    replica_manager = MemoryReplicaManager()
    log = replica_manager.logs[P] = SegmentedLog([0, 1, 2])
    fixture = Fixture(b"a", b"b", b"c", replica_manager=replica_manager)

    def merge(start_offset):
        if start_offset == at:
            log.base_offsets = [0, 2]

    setattr(log, when, merge)
    load = fixture.elect(5)
    fixture.scheduler.tick()
    assert [values for name, *values in load.steps if name == "read_batch"] == [[b"a"], [b"b"], [b"c"]]
    assert fixture.state == ({}, {P: 5})


def test_a_load_ends_within_a_segment_when_the_partition_moves(tmp_path):
    """A segment may have a gigabyte, which nobody needs any more."""
    node = Node(tmp_path)
    node.lead(TopicPartition(OFFSETS_TOPIC, P))
    fixture = Fixture(b"a", b"b", b"c", replica_manager=node.replica_manager, load_buffer_size=1)
    load = fixture.elect(5, at={"read_batch": lambda: fixture.resign(6)})
    fixture.scheduler.tick()
    assert [values for name, *values in load.steps if name == "read_batch"] == [[b"a"]]
    assert fixture.state == ({}, {})
