"""What a user's tests pay for a broker of their own: one broker with its topics, and two hundred tests with one each.

CPU is timed, of all threads: this work waits for nothing, and other work on the machine does not count.  The files are
where the fixtures have them, in memory if the machine has much; without that, or with TMPDIR set, on the disk.  On ext4
a file that is made soon after many were deleted costs more, up to three times as much after ten thousand.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import kcore
from bench.conftest import record_role
from bench.flow.bench_create_partitions import make_files
from bench.flow.bench_start import ENVIRONMENT, in_fresh_processes
from kcore.testing import SkipTime
from kcore.testing.memory_directory import settings_of_fixture

TOPICS = {"orders": 3, "payments": 1}
ROUNDS = 60
GROUP = "a broker with two topics (4 partitions) is started and removed"

TESTS = 200
WITHOUT = f"""
import pytest

@pytest.mark.parametrize("number", range({TESTS}))
def test_one(number):
    assert number >= 0
"""
WITH = f"""
import pytest

@pytest.mark.kafka(topics={TOPICS})
@pytest.mark.parametrize("number", range({TESTS}))
def test_one(kafka, number):
    assert kafka.bootstrap_servers
"""


def broker_of_a_test() -> None:
    with kcore.Broker(time=SkipTime(), **settings_of_fixture({})) as broker:
        for name, partitions in TOPICS.items():
            broker.create_topic(name, partitions)


@pytest.mark.benchmark(group=GROUP, timer=time.process_time)
def bench_broker_of_a_test(benchmark):
    record_role(benchmark, "ours", per_round=1, goal={"at_most_ns": 10e6})
    benchmark.pedantic(broker_of_a_test, rounds=ROUNDS, warmup_rounds=10)


@pytest.mark.benchmark(group=GROUP, timer=time.process_time)
def bench_partitions_with_bare_system_calls(benchmark):
    record_role(benchmark, "limit", per_round=1, label="the partitions' files made and removed")
    place = settings_of_fixture({}).get("kcore.temporary.dir")

    def make_and_remove() -> None:
        root = Path(tempfile.mkdtemp(prefix="bare-", dir=place))
        logs = [make_files(root / f"{name}-{n}") for name, partitions in TOPICS.items() for n in range(partitions)]
        for log in logs:
            os.close(log)
        shutil.rmtree(root)

    benchmark.pedantic(make_and_remove, rounds=ROUNDS, warmup_rounds=10)


def cpu_seconds_of_pytest(directory: Path, tests: str) -> float:
    (directory / "test_it.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(directory)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(command, cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


@pytest.mark.benchmark(group=f"{TESTS} tests with a broker each, beyond {TESTS} without")
def bench_tests_with_a_broker_each(benchmark, monkeypatch, tmp_path):
    record_role(benchmark, "ours", per_round=1, goal={"at_most_ns": 5e9})

    def beyond() -> float:
        return cpu_seconds_of_pytest(tmp_path, WITH) - cpu_seconds_of_pytest(tmp_path, WITHOUT)

    in_fresh_processes(benchmark, monkeypatch, beyond, rounds=5)
