"""What someone who writes tests with kcore pays: a broker per test, 200 such tests, the first record after pip install;
and what `kcore --help` costs.

Each has two cases: the time by the clock, and the CPU time of all processes that took part.  Beside other work believe
the CPU time.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kcore
from bench.conftest import record_role
from bench.flow.bench_start import ENVIRONMENT, in_fresh_processes
from kcore.testing.kafka_fixture import KafkaFixture
from kcore.testing.skip_time import SkipTime

CASES = ("clock", "CPU")
TOPICS = {"orders": 3, "invoices": 1}
#: Without --benchmark-enable everything runs once, as a test: of a few tests.
TESTS = {True: 200, False: 3}
#: Tests that do nothing: what they take is their fixture's time and pytest's own.
SUITE = """
import pytest

@pytest.mark.kafka({topics})
@pytest.mark.parametrize("run", range({tests}))
def test_nothing({fixture}, run):
    pass
"""
#: With the pip install before it these are five lines.
FIRST_RECORD = """
import kcore
with kcore.Broker() as broker:
    broker.produce("orders", "a book")
    print(next(broker.consume("orders")).value)
"""


def seconds(case: str, work: Callable[[], object]) -> float:
    """What work() takes, by the clock, or of CPU with that of the processes that it starts and waits for."""
    clock = time.perf_counter if case == "clock" else _cpu_seconds
    start = clock()
    work()
    return clock() - start


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def run(*command: object, environment: dict[str, str] = ENVIRONMENT, directory: Path | None = None) -> str:
    return subprocess.run(
        list(map(str, command)),
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    ).stdout


@pytest.mark.benchmark(group="a clean broker with its topics for a test, started and stopped")
@pytest.mark.parametrize("case", CASES)
def bench_broker_of_a_test(benchmark, monkeypatch, case):
    """What the fixture `kafka` does around a test."""
    record_role(benchmark, "ours", per_round=1, case=case, goal={"at_most_ns": 10e6})

    def serve():
        with kcore.Broker(time=SkipTime()) as broker:
            KafkaFixture(broker)
            for name, partitions in TOPICS.items():
                broker.create_topic(name, partitions)

    in_fresh_processes(benchmark, monkeypatch, lambda: seconds(case, serve), rounds=30)


@pytest.mark.benchmark(group="200 tests with a broker each, less the same tests without")
@pytest.mark.parametrize("case", CASES)
def bench_tests_with_a_broker_each(benchmark, monkeypatch, request, tmp_path, case):
    record_role(benchmark, "ours", per_round=1, case=case, goal={"at_most_ns": 5e9})
    tests = TESTS[request.config.getoption("benchmark_enable")]

    def suite(fixture):
        (tmp_path / "test_nothing.py").write_text(SUITE.format(fixture=fixture, tests=tests, topics=TOPICS))
        options = ("-q", "-p", "no:cacheprovider", "-p", "kcore.testing.pytest_plugin")
        assert f"{tests} passed" in run(sys.executable, "-m", "pytest", *options, "test_nothing.py", directory=tmp_path)

    def measure():
        return seconds(case, lambda: suite("kafka")) - seconds(case, lambda: suite("tmp_path"))

    in_fresh_processes(benchmark, monkeypatch, measure, rounds=3)


@pytest.mark.benchmark(group="pip install of the wheel to the first consumed record")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.skipif("BENCH_WHEEL" not in os.environ, reason="BENCH_WHEEL=dist/kcore-....whl: the wheel to be installed")
def bench_first_record_after_pip_install(benchmark, monkeypatch, tmp_path_factory, case):
    """Into a new virtual environment, which is made before the time starts.  The dependencies are in pip's cache."""
    record_role(benchmark, "ours", per_round=1, case=case, goal={"at_most_ns": 30e9})
    wheel = Path(os.environ["BENCH_WHEEL"]).resolve()

    def measure():
        place = tmp_path_factory.mktemp("new")
        run(sys.executable, "-m", "venv", place)
        python = place / "bin" / "python"
        elsewhere = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

        def first_record():
            run(python, "-m", "pip", "install", "-q", wheel, environment=elsewhere, directory=place)
            assert run(python, "-c", FIRST_RECORD, environment=elsewhere, directory=place) == "b'a book'\n"

        return seconds(case, first_record)

    in_fresh_processes(benchmark, monkeypatch, measure, rounds=3)


@pytest.mark.benchmark(group="kcore --help")
@pytest.mark.parametrize("case", CASES)
def bench_help(benchmark, monkeypatch, case):
    """The interpreter's own start counts."""
    goal = [{"at_most_ns": 100e6}] if case == "CPU" else []
    record_role(benchmark, "ours", per_round=1, case=case, goal=goal)
    command = (sys.executable, "-m", "kcore.tools.main", "--help")
    in_fresh_processes(benchmark, monkeypatch, lambda: seconds(case, lambda: run(*command)), rounds=10)
