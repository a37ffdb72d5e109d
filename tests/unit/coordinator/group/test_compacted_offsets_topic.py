"""__consumer_offsets is compacted: groups and offsets read from what the cleaner left are those of before."""

import shutil

import pytest

from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_cleaner import Cleaner
from kcore.log.log_cleaner_manager import find_log_to_clean
from kcore.log.log_config import LogConfig
from kcore.log.log_loader import load_log
from kcore.log.offset_map import OffsetMap
from kcore.record.memory_records import MemoryRecords

from .harness import Harness, MemoryLog, MemoryReplicaManager
from .test_group_metadata_manager import GOLDEN

GROUPS = ["managed", "left", "simple", "modern", "deleted", "txn"]


def harness_of(contents):
    replica_manager = MemoryReplicaManager()
    for partition, data in contents.items():
        log = replica_manager.logs[partition] = MemoryLog()
        for batch in MemoryRecords(data).batches:
            log.batches.append((batch.base_offset, bytes(batch.buffer)))
            log.log_end_offset = batch.next_offset
    harness = Harness(replica_manager, offsets_topic_num_partitions=3)
    harness.scheduler.tick()
    return harness


def compacted(directory, partition, waits_ms):
    directory.mkdir()
    shutil.copy(GOLDEN / f"{partition}.log", directory / f"{0:020d}.log")
    time = MockTime()
    config = LogConfig(cleanup_policy=("compact",), delete_retention_ms=1000, file_delete_delay_ms=0)
    tp = TopicPartition("__consumer_offsets", partition)
    with load_log(str(directory), tp, config, time=time, sole_replica=True) as log:
        log.roll()
        before = sum(len(batch) for batch in log.batches())
        for wait_ms in waits_ms:
            time.sleep(wait_ms)
            Cleaner(OffsetMap(1 << 20), time=time).clean(find_log_to_clean(log, None, time.milliseconds())[0])
        assert sum(len(batch) for batch in log.batches()) < before or before == 1
        return b"".join(bytes(batch.buffer) for batch in log.batches())


@pytest.mark.parametrize("waits_ms", [[0], [0, 1000], [0, 1000, 1000]], ids=["once", "past tombstones", "past markers"])
def test_groups_of_a_real_broker_outlive_compaction(tmp_path, waits_ms):
    partitions = (1, 2)
    before = harness_of({n: (GOLDEN / f"{n}.log").read_bytes() for n in partitions})
    after = harness_of({n: compacted(tmp_path / f"__consumer_offsets-{n}", n, waits_ms) for n in partitions})
    for group in GROUPS:
        assert after.committed(group) == before.committed(group)
        assert after.state(group) == before.state(group)
    assert after.coordinator.admin.describe_group("managed") == before.coordinator.admin.describe_group("managed")
