"""Directories that Kafka's cleaner has cleaned: ours finds nothing to do there until the horizons that Kafka set."""

import shutil

import pytest

from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.log.checkpoints import OffsetCheckpointFile
from kcore.log.log_cleaner import Cleaner
from kcore.log.log_cleaner_manager import find_log_to_clean
from kcore.log.log_config import LogConfig
from kcore.log.log_loader import load_log
from kcore.log.offset_map import OffsetMap
from tests.golden_data import data_dir, partition_dir

COMPACTED = ["g-compact-0", "g-compact-lz4-0"]


def checkpointed(partition):
    topic, _, number = partition.rpartition("-")
    offsets = OffsetCheckpointFile(str(data_dir() / "cleaner-offset-checkpoint")).read()
    return offsets[TopicPartition(topic, int(number))]


@pytest.fixture(params=COMPACTED)
def opened(request, tmp_path):
    directory = tmp_path / request.param
    shutil.copytree(partition_dir(request.param), directory)
    topic, _, number = request.param.rpartition("-")
    time = MockTime()
    log = load_log(
        str(directory),
        TopicPartition(topic, int(number)),
        LogConfig(cleanup_policy=("compact",)),
        time=time,
        scheduler=MockScheduler(time),
        had_clean_shutdown=True,
        sole_replica=True,
    )
    with log:
        yield log, time, checkpointed(request.param)


def clean(log, time):
    log_to_clean, is_wrong = find_log_to_clean(log, None, time.milliseconds())
    assert not is_wrong
    return Cleaner(OffsetMap(1 << 20), time=time).clean(log_to_clean)[0]


def contents(log):
    return [bytes(batch.buffer) for batch in log.batches()]


def horizons(log, end):
    horizons = {b.delete_horizon_ms for b in log.batches() if b.base_offset < end}
    return sorted(horizon for horizon in horizons if horizon is not None)


def test_kafkas_checkpoint_fits_its_log(opened):
    log, time, first_dirty = opened
    log_to_clean, is_wrong = find_log_to_clean(log, first_dirty, time.milliseconds())
    assert (log_to_clean.first_dirty_offset, is_wrong) == (first_dirty, False)
    assert log_to_clean.first_uncleanable_offset == log.active_segment.base_offset == first_dirty
    assert log_to_clean.cleanable_bytes == 0


def test_what_kafka_cleaned_is_left_byte_for_byte(opened):
    log, time, first_dirty = opened
    time._now_ms = horizons(log, first_dirty)[0] - 1
    before, segments = contents(log), len(log.segments)
    assert clean(log, time) == first_dirty
    assert contents(log) == before
    assert len(log.segments) == 2 < segments, "the empty segments that Kafka left are one with their neighbour"


def test_tombstones_go_at_the_horizon_that_kafka_wrote(opened):
    log, time, first_dirty = opened
    last_horizon = horizons(log, first_dirty)[-1]
    time._now_ms = last_horizon
    before = list(log.records())
    tombstones = [r.offset for r in before if r.value is None and r.offset < first_dirty]
    assert tombstones
    clean(log, time)
    assert list(log.records()) == [r for r in before if r.offset not in tombstones]


def test_kafkas_producers_have_their_state_after_another_cleaning(opened):
    log, time, _ = opened
    time._now_ms = max(b.max_timestamp for b in log.batches())
    expected = {pid: (e.producer_epoch, e.last_sequence) for pid, e in log.producer_state_manager.producers.items()}
    clean(log, time)
    log.close()
    again = load_log(
        log.directory, log.topic_partition, log.config, time=time, recovery_point=0, high_watermark=log.log_end_offset
    )
    with again:
        assert {
            pid: (e.producer_epoch, e.last_sequence) for pid, e in again.producer_state_manager.producers.items()
        } == expected
