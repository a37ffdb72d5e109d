"""A whole cleaning of 256 MiB, offset map, copy and fsync included, beside the same bytes through read and write.

Kafka 4.3 cleans 161 MB/s of such a log; `make bench-peers` says what it does on this machine.
"""

import os
import random
import shutil

import pytest

from bench.conftest import record_role
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_cleaner import Cleaner
from kcore.log.log_cleaner_manager import find_log_to_clean
from kcore.log.log_config import LogConfig
from kcore.log.log_loader import load_log
from kcore.log.offset_map import OffsetMap
from kcore.record.record_batch_builder import RecordBatchBuilder

TOTAL = 256 << 20
KEYS = 500_000
CHUNK = 256 << 10
NOW = 1_700_000_000_000
SIZES = [1024, 16384]


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"{size // 1024} KiB")
def written(request, bench_dir, record_values):
    """A log of 256 MiB, closed, and its directory."""
    rng, directory = random.Random(7), bench_dir / f"cleaner-{request.param}"
    directory.mkdir()
    with load_log(str(directory), TopicPartition("cleaned", 0), config(), sole_replica=True) as log:
        while log.size < TOTAL:
            builder = RecordBatchBuilder()
            while builder.size_in_bytes + 130 <= request.param:
                key = rng.randrange(KEYS)
                builder.append(record_values[key % 4096], b"%012d" % key, timestamp=NOW)
            log.append_as_leader(builder.build())
        log.roll()
    yield request.param, directory
    shutil.rmtree(directory)


def config():
    return LogConfig(cleanup_policy=("compact",), file_delete_delay_ms=0)


@pytest.mark.benchmark(group="clean 256 MiB")
def bench_clean(benchmark, written, bench_dir):
    size, directory = written
    copy = bench_dir / f"cleaner-copy-{size}"
    opened = []
    offset_map = OffsetMap(128 << 20)

    def fresh():
        if opened:
            opened.pop().close()
            shutil.rmtree(copy)
        shutil.copytree(directory, copy, copy_function=os.link)
        # Indexes are opened for writing: those of the original must not be.
        for name in os.listdir(copy):
            if not name.endswith(".log"):
                os.unlink(copy / name)
                shutil.copy2(directory / name, copy / name)
        log = load_log(str(copy), TopicPartition("cleaned", 0), config(), had_clean_shutdown=True, sole_replica=True)
        opened.append(log)
        return (find_log_to_clean(log, None, NOW)[0],), {}

    goal = {"at_least_per_s": 4 * 161e6, "text": ">= 4x Kafka's 161 MB/s"}
    record_role(benchmark, "ours", per_round=TOTAL, unit="byte", case=f"{size // 1024} KiB", goal=goal, keys=KEYS)
    benchmark.pedantic(Cleaner(offset_map).clean, setup=fresh, rounds=5, warmup_rounds=1)
    opened.pop().close()
    shutil.rmtree(copy)


@pytest.mark.benchmark(group="clean 256 MiB")
def bench_read_twice_and_write_what_stays(benchmark, written, bench_dir):
    """What no cleaner can do without: two reads of the log, one write of the fifth that stays, one fsync."""
    size, directory = written
    (path,) = [directory / name for name in os.listdir(directory) if name == f"{0:020d}.log"]
    buffer = bytearray(CHUNK)

    def read_and_write():
        source = os.open(path, os.O_RDONLY)
        target = os.open(bench_dir / "stays", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for _ in range(2):
            for position in range(0, TOTAL, CHUNK):
                os.preadv(source, [buffer], position)
        for position in range(0, TOTAL // 5, CHUNK):
            os.pwrite(target, buffer, position)
        os.fsync(target)
        os.close(source)
        os.close(target)

    record_role(benchmark, "limit", per_round=TOTAL, unit="byte", case=f"{size // 1024} KiB", label="pread x2, pwrite")
    benchmark.pedantic(read_and_write, rounds=5, warmup_rounds=1)
