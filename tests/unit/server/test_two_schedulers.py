"""What waits for a disk runs on one scheduler, what the clock decides on another (docs/decisions/0014)."""

import threading

import pytest

import kcore
from kcore.common.scheduler import Scheduler
from kcore.coordinator.group.group_metadata_manager import GroupMetadataManager
from kcore.log import log_removal
from kcore.log.log_maintenance import LogMaintenance
from kcore.log.log_manager import LogManager
from kcore.log.unified_log import UnifiedLog
from kcore.replica.replica_manager import ReplicaManager
from kcore.server.topics.local_controller import LocalController
from kcore.testing import MockTime

EXPIRY_MS = 600_000
#: What decides by the clock, in the order in which it runs at one instant.
CLOCK_TASKS = [(LogMaintenance, "remove_expired_producers"), (GroupMetadataManager, "cleanup_expired_offsets")]


def one_broker(time):
    return kcore.Broker(
        time=time,
        log_flush_scheduler_interval_ms=1000,
        producer_id_expiration_check_interval_ms=EXPIRY_MS,
        offsets_retention_check_interval_ms=EXPIRY_MS,
    )


class Hanging:
    """Stands in for work on a disk that does not answer until release()."""

    def __init__(self):
        self.begun, self._released = threading.Event(), threading.Event()

    def __call__(self, *args, **options):
        self.begun.set()
        assert self._released.wait(60)

    def release(self):
        self._released.set()


def with_old_segments(broker):
    broker.create_topic("t", retention_ms=1000, segment_ms=1)
    broker.produce("t", b"x", timestamp=1)
    broker.log("t").roll()


def with_a_deleted_topic(broker):
    broker.create_topic("t")
    broker.delete_topic("t")


def nothing(broker):
    pass


@pytest.mark.parametrize(
    ("where", "name", "prepare"),
    [
        (LogMaintenance, "flush_dirty_logs", nothing),
        (LogManager, "checkpoint_recovery_offsets", nothing),
        (UnifiedLog, "delete_old_segments", with_old_segments),
        (log_removal, "remove_tree", with_a_deleted_topic),
        (ReplicaManager, "checkpoint_high_watermarks", with_old_segments),
        (LocalController, "retry_offline_partitions", nothing),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_work_that_waits_for_a_disk_does_not_delay_what_decides_by_the_clock(monkeypatch, where, name, prepare):
    time = MockTime()
    hanging = Hanging()
    expired = []
    for owner, task in CLOCK_TASKS:
        ran = threading.Event()
        monkeypatch.setattr(owner, task, lambda self, ran=ran: ran.set())
        expired.append(ran)
    monkeypatch.setattr(where, name, hanging)
    with one_broker(time) as broker:
        prepare(broker)
        # sleep() returns when all that is due has run; so other threads move the clock.
        sleeping = [threading.Thread(target=time.sleep, args=[ms]) for ms in (EXPIRY_MS - 1, 1)]
        sleeping[0].start()
        try:
            assert hanging.begun.wait(60)
            assert not any(ran.is_set() for ran in expired)
            sleeping[1].start()
            for ran in expired:
                assert ran.wait(60)
        finally:
            hanging.release()
            for thread in sleeping:
                if thread.ident is not None:
                    thread.join()


def test_at_one_instant_the_clocks_tasks_run_before_those_that_wait_for_a_disk(monkeypatch):
    """A task of the clock may give the disk something to do, as an expiry that appends tombstones rolls a segment."""
    time = MockTime()
    ran = []
    disk_tasks = [(LogMaintenance, "cleanup_logs"), (LogMaintenance, "flush_dirty_logs")]
    for owner, task in (*CLOCK_TASKS, *disk_tasks):
        monkeypatch.setattr(owner, task, lambda self, task=task: ran.append((task, threading.current_thread().name)))
    with one_broker(time) as broker:
        time.sleep(EXPIRY_MS)
        number = broker.broker_id
    assert ran == [
        ("remove_expired_producers", f"kcore-clock-{number}"),
        ("cleanup_expired_offsets", f"kcore-clock-{number}"),
        ("cleanup_logs", f"kcore-disk-{number}"),
        ("flush_dirty_logs", f"kcore-disk-{number}"),
    ]


def test_a_task_that_hangs_keeps_a_scheduler_from_its_next_one_and_no_other_scheduler():
    """In real time, without a broker."""
    disk, clock = Scheduler("disk"), Scheduler("clock")
    hanging, late, done = Hanging(), threading.Event(), threading.Event()
    disk.schedule("hanging", hanging)
    disk.schedule("late", late.set)
    clock.schedule("expiry", lambda: hanging.begun.wait(60) and done.set())
    disk.startup()
    clock.startup()
    try:
        assert done.wait(60) and not late.is_set()
    finally:
        hanging.release()
    assert late.wait(60)
    disk.shutdown()
    clock.shutdown()
