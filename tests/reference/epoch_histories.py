"""Random histories of one partition's leader epochs, killed at random system calls, and what Kafka makes of the epochs.

A history has leaders that append nothing, batches of several epochs, gaps as a compacted leader leaves them for its
followers, DeleteRecords, retention, truncations, compaction, and checkpoints that are written now and then.  Each kill
is a data directory as the process left it: nothing is lost but what had not been done yet.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kcore.common import file
from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.log.checkpoints import (
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    OffsetCheckpointFile,
)
from kcore.log.log_cleaner import Cleaner
from kcore.log.log_cleaner_manager import find_log_to_clean
from kcore.log.log_config import LogConfig
from kcore.log.log_manager import LogManager
from kcore.log.log_manager_config import LogManagerConfig
from kcore.log.offset_map import OffsetMap
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.reference.disk import Disk, recorded

TP = TopicPartition("t", 0)


class Kill(NamedTuple):
    directory: Path  # of the partition
    log_start_offset: int  # as in the checkpoint
    recovery_point: int
    description: str

    def copy(self) -> Path:
        """A copy of the directory for who changes it; the next copy takes its place."""
        copy = self.directory.parent / "copy" / self.directory.name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.directory, copy)
        return copy


class _History:
    def __init__(self, directory: str, rng: random.Random) -> None:
        self.rng = rng
        self.time = MockTime()
        self.scheduler = MockScheduler(self.time)
        compacted = rng.random() < 0.3
        config = LogConfig(
            segment_bytes=rng.choice([340, 700, 2500]),
            index_interval_bytes=0,
            segment_index_bytes=1200,
            retention_bytes=rng.choice([-1, 1200]),
            retention_ms=-1,
            cleanup_policy=("compact",) if compacted else ("delete",),
            delete_retention_ms=1000,
        )
        self.manager = LogManager([directory], config, LogManagerConfig(1), time=self.time, scheduler=self.scheduler)
        self.manager.startup()
        self.log = self.manager.get_or_create_log(TP)
        self.epoch = 0
        self.operations = [
            *[self.append] * 8,
            *[self.append_as_follower] * 3,
            *[self.append_nothing] * 3,
            *[self.delete_records] * 3,
            *[self.write_log_starts, self.write_recovery_points, self.flush, self.flush],
            *[self.truncate, self.truncate, self.truncate_fully, self.retain, self.roll],
            *([self.compact] * 3 if compacted else []),
        ]

    def step(self) -> str:
        operation = self.rng.choice(self.operations)
        operation()
        self.log.update_high_watermark(self.log.log_end_offset)
        self.scheduler.tick()
        return operation.__name__

    def _next_leader(self) -> None:
        self.epoch += self.rng.randint(1, 3)

    def _batch(self, base_offset: int = 0) -> bytearray:
        builder = RecordBatchBuilder(base_offset=base_offset, leader_epoch=self.epoch)
        for _ in range(self.rng.randint(1, 4)):
            builder.append(b"v" * self.rng.randint(1, 60), self.rng.choice([b"a", b"b", b"c"]), timestamp=0)
        return builder.build()

    def append(self) -> None:
        if self.rng.random() < 0.3:
            self._next_leader()
            self.log.maybe_assign_epoch_start_offset(self.epoch, self.log.log_end_offset)
        self.log.append_as_leader(self._batch(), self.epoch)

    def append_as_follower(self) -> None:
        """After a gap, in which epochs may have begun whose records the leader's cleaner has removed."""
        end = self.log.log_end_offset
        gap = self.rng.choice([0, 0, 3, 12])
        for _ in range(self.rng.randint(0, 2) if gap else 0):
            self._next_leader()
            self.log.maybe_assign_epoch_start_offset(self.epoch, end + self.rng.randrange(gap))
        if self.rng.random() < 0.3:
            self._next_leader()
        self.log.append_as_follower(self._batch(end + gap))

    def append_nothing(self) -> None:
        self._next_leader()
        self.log.maybe_assign_epoch_start_offset(self.epoch, self.log.log_end_offset)

    def delete_records(self) -> None:
        self.log.maybe_increment_log_start_offset(self.rng.randint(self.log.log_start_offset, self.log.high_watermark))
        if self.rng.random() < 0.7:
            self.write_log_starts()

    def write_log_starts(self) -> None:
        self.manager.checkpoint_log_start_offsets()

    def write_recovery_points(self) -> None:
        self.manager.checkpoint_recovery_offsets()

    def flush(self) -> None:
        self.log.flush()

    def truncate(self) -> None:
        end = self.log.log_end_offset
        self.manager.truncate_to({TP: self.rng.randint(max(self.log.log_start_offset, end - 20), end)})

    def truncate_fully(self) -> None:
        self.manager.truncate_fully_and_start_at(TP, self.log.log_end_offset + self.rng.choice([0, 30]))

    def retain(self) -> None:
        self.manager.maintenance.cleanup_logs()

    def roll(self) -> None:
        if self.log.active_segment.size:
            self.log.roll()

    def compact(self) -> None:
        self.time.sleep(2000)
        cleanable, _ = find_log_to_clean(self.log, self.log.log_start_offset, self.time.milliseconds())
        if cleanable.cleanable_bytes > 0:
            Cleaner(OffsetMap(48 * 1000, 0.5), time=self.time).clean(cleanable)
        self.time.sleep(61_000)


def kills(seed: int, count: int) -> Iterator[Kill]:
    """So many kills of the seed's history.  A directory exists until the next iteration."""
    rng = random.Random(seed)
    root = tempfile.mkdtemp(prefix="kcore-epochs-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    try:
        with recorded() as record:
            history = _History(os.path.join(root, "d"), rng)
            ends = [(record.size, "start")]
            for _ in range(rng.randint(15, 60)):
                name = history.step()
                ends.append((record.size, name))
            changes = record.changes()
            history.manager.shutdown()
        points = [n for n, change in enumerate(changes) if change.call != "stores"]
        chosen = set(rng.sample(points, min(count, len(points))))
        disk = Disk(os.path.join(root, "d"))
        for n, change in enumerate(changes):
            if n in chosen:
                target = Path(root, "killed")
                target.mkdir()
                disk.write_to(str(target))
                operation = next(name for end, name in ends if end >= change.end)
                if (target / str(TP)).is_dir():
                    starts = OffsetCheckpointFile(str(target / LOG_START_OFFSET_CHECKPOINT)).read()
                    points_written = OffsetCheckpointFile(str(target / RECOVERY_POINT_CHECKPOINT)).read()
                    description = f"seed {seed}, before call {n} {change.call}, in {operation}"
                    yield Kill(target / str(TP), starts.get(TP, 0), points_written.get(TP, 0), description)
                shutil.rmtree(target)
            disk.apply(change)
    finally:
        file.clear_faults()
        shutil.rmtree(root)
