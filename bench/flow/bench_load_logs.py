"""Ten thousand partitions: start after a clean stop, and stop with nothing to write, in time and memory.

In processes of their own, so that the memory is that of the logs.
"""

import json
import os
import resource
import shutil
import subprocess
import sys

import pytest

from bench.conftest import record_role
from bench.flow.bench_start import ROOT, in_fresh_processes
from kcore.common.topic_partition import TopicPartition
from kcore.log.checkpoints import RECOVERY_POINT_CHECKPOINT, OffsetCheckpointFile
from kcore.log.log_manager import LogManager
from kcore.record.record_batch_builder import RecordBatchBuilder

PARTITIONS = 10_000
pytestmark = pytest.mark.timeout(600)

LOAD = """
import json, resource, sys, time
from kcore.log.log_manager import LogManager

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

before = resident()
manager = LogManager([sys.argv[1]])
started = time.perf_counter()
manager.startup()
loaded = time.perf_counter()
after, logs = resident(), len(manager.all_logs())
stopping = time.perf_counter()
manager.shutdown()
print(json.dumps({"load_s": loaded - started, "stop_s": time.perf_counter() - stopping, "logs": logs,
                  "resident_bytes": after - before}))
"""


@pytest.fixture(scope="module")
def many_logs(bench_dir):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < PARTITIONS + 100:
        pytest.skip(f"{PARTITIONS} logs need as many open files, {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    path = bench_dir / "many-logs"
    builder = RecordBatchBuilder()
    for n in range(10):
        builder.append(bytes(100), timestamp=1_700_000_000_000 + n)
    # One log made by kcore and stopped cleanly; the others are its copies, because 10,000 fsyncs are no benchmark.
    manager = LogManager([path])
    manager.startup()
    manager.get_or_create_log(TopicPartition("t", 0)).append_as_leader(bytes(builder.build()), 0)
    manager.shutdown()
    for partition in range(1, PARTITIONS):
        shutil.copytree(path / "t-0", path / f"t-{partition}")
    recovery_points = OffsetCheckpointFile(str(path / RECOVERY_POINT_CHECKPOINT))
    recovery_points.write({TopicPartition("t", n): 10 for n in range(PARTITIONS)})
    yield str(path)
    shutil.rmtree(path)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def load_and_stop(path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, path], capture_output=True, text=True, env=environment, check=True, timeout=300
    )
    result = json.loads(done.stdout)
    assert result["logs"] == PARTITIONS
    return result


@pytest.mark.benchmark(group=f"{PARTITIONS} partitions: start after a clean stop")
def bench_load(benchmark, monkeypatch, many_logs):
    record_role(benchmark, "ours", per_round=1, unit="op", goal={"at_most_ns": 2e9})
    in_fresh_processes(benchmark, monkeypatch, lambda: load_and_stop(many_logs)["load_s"], rounds=3)


@pytest.mark.benchmark(group=f"{PARTITIONS} partitions: stop with nothing to write")
def bench_stop(benchmark, monkeypatch, many_logs):
    record_role(benchmark, "ours", per_round=1, unit="op")
    in_fresh_processes(benchmark, monkeypatch, lambda: load_and_stop(many_logs)["stop_s"], rounds=3)


@pytest.mark.benchmark(group=f"{PARTITIONS} partitions: memory they add")
def bench_memory(benchmark, monkeypatch, many_logs):
    """Bytes, not seconds: 1 ns in the table is a byte."""
    record_role(
        benchmark, "ours", per_round=1, unit="op", goal={"at_most_ns": 1 << 30, "text": "< 1 GiB (1 ns a byte)"}
    )
    in_fresh_processes(benchmark, monkeypatch, lambda: load_and_stop(many_logs)["resident_bytes"] * 1e-9, rounds=3)


@pytest.mark.benchmark(group=f"{PARTITIONS} partitions: start after a clean stop")
def bench_read_all_small_files(benchmark, many_logs):
    """What no loader can do without: list every directory, open every file and read its beginning."""

    def read_all():
        for name in os.listdir(many_logs):
            directory = os.path.join(many_logs, name)
            if os.path.isdir(directory):
                for file in os.listdir(directory):
                    fd = os.open(os.path.join(directory, file), os.O_RDONLY)
                    os.read(fd, 4096)
                    os.close(fd)

    record_role(benchmark, "limit", per_round=1, unit="op", label="open and read each file")
    benchmark.pedantic(read_all, rounds=3)
