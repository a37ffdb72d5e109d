"""The comparisons of storage and Spark in `make bench-peers`, without their Java sides."""

import subprocess
import sys

import pytest

from bench.peers import spark, storage, storage_cases, storage_data
from bench.tables import markdown_table

MIB = storage_data.MIB


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("peers")
    storage_data.write_all(directory, MIB, keyed_bytes=MIB, pool_bytes=MIB)
    return directory


CASES = dict.fromkeys(case for row in storage.rows() for case in (row.kcore, row.limit) if case)


@pytest.mark.parametrize("name", CASES)
def test_each_case_of_kcore_does_its_work(data, tmp_path, name):
    kind, *options = name.split(":")
    case = storage_cases.CASES[kind](data, tmp_path, *options)
    case.before()
    assert case.run() > 0


def test_each_path_has_a_peer_case_that_exists_on_the_java_side():
    source = (storage.HERE / "java" / "StorageBench.java").read_text()
    for row in storage.rows():
        if row.rival == "Kafka":
            kind = (row.peer or row.kcore).split(":")[0]
            assert f'case "{kind}": return' in source, row.path


def test_a_worker_prints_ready_and_answers_each_line_with_seconds_cpu_seconds_and_units(data, tmp_path):
    command = [sys.executable, "-m", "bench.peers.storage_cases", "index_lookup:hot", data, tmp_path, "0.01", "0.01"]
    answer = subprocess.run(command, input="go\ngo\n", stdout=subprocess.PIPE, text=True, check=True, cwd=storage.ROOT)
    ready, *rounds = answer.stdout.splitlines()
    assert ready == "ready" and len(rounds) == 2
    for line in rounds:
        seconds, cpu, units = line.split()
        assert float(seconds) > 0 and float(cpu) >= 0.01 and int(units) > 0


def result(kcore, rival, **options):
    row = storage.Row("some path", **{"unit": "byte", "kcore": "a", "goal": 2.0} | options)
    return storage.Result(row, kcore, rival, kcore, rival)


def test_the_ratio_is_the_median_over_pairs_of_neighbouring_rounds():
    # The second pair was slow on both sides, the third on one.
    assert result([1.0, 10.0, 1.0], [3.0, 30.0, 30.0]).ratio == 3.0


@pytest.mark.parametrize("times, met", [(1.99, False), (2.0, True)])
def test_a_goal_is_met_from_its_ratio_on(times, met):
    assert result([1.0], [times]).met is met


def test_a_goal_without_a_rival_is_not_measured():
    assert result([1.0], []).met is None
    assert result([1.0], []).cells()[-1] == "not measured"


@pytest.mark.parametrize("limit, verdict", [(0.6, "MISSED: above the limit"), (0.5, "MISSED")])
def test_a_missed_goal_that_the_bare_system_calls_miss_too_is_marked_as_such(limit, verdict):
    missed = result([1.0], [1.0], limit="b")
    missed.limit = [limit]
    assert missed.cells()[-1] == verdict
    assert missed.cells()[-3] == f"{1 / limit:.2f}x"


def test_an_idempotent_case_sends_the_next_sequence_numbers_round_by_round(data, tmp_path):
    case = storage_cases.LeaderAppend(data, tmp_path, "16KiB", "idempotent")
    for _ in range(2):
        case.before()
        case.run()
    (entry,) = case.log.producer_state_manager.producers.values()
    assert entry.last_sequence == case.log.log_end_offset - 1 == 2 * case.pool.records - 1


@pytest.mark.parametrize("nanoseconds, met", [(90, True), (91, False)])
def test_a_goal_in_nanoseconds_needs_no_rival(nanoseconds, met):
    assert result([nanoseconds * 1e-9], [], unit="op", goal=0, at_most_ns=90.5).met is met


def test_the_table_is_aligned_and_shows_rates():
    lines = markdown_table(storage.HEADINGS, [result([1e-9] * 3, [2e-9] * 3).cells()]).splitlines()
    assert len(set(map(len, lines))) == 1
    assert "1 GB/s" in lines[2] and "0.5 GB/s" in lines[2] and "2.00x" in lines[2]


def spark_result(kcore, connector, kcore_cpu=(1.0,), connector_cpu=(9.0,), **options):
    row = spark.Row("some case", **{"goal": 4.0} | options)
    return spark.Result(row, list(kcore), list(connector), list(kcore_cpu), list(connector_cpu))


@pytest.mark.parametrize(
    "clock, cpu, met", [(4.0, 3.0, True), (3.99, 9.0, False), (9.0, 2.99, False)], ids=["both", "clock", "cpu"]
)
def test_a_case_of_spark_meets_its_goals_by_the_clock_and_by_cpu_or_misses_them(clock, cpu, met):
    result = spark_result([1.0], [clock], [1.0], [cpu], cpu_goal=3.0)
    assert result.met is met
    assert result.cells()[-2:] == [">= 4x, CPU >= 3x", "met" if met else "MISSED"]


@pytest.mark.parametrize("seconds, met", [(0.2, True), (0.21, False)])
def test_a_job_of_spark_has_a_goal_in_bytes_a_second_and_no_rival(seconds, met):
    result = spark_result([seconds], [], [0.3], [], goal=None, bytes_per_second=5e9)
    result.bytes = 10**9
    assert result.met is met
    assert result.cells()[1] == f"{1 / seconds:.3g} GB/s"


def test_every_case_of_spark_has_a_goal_or_no_rival():
    for dataset in spark.datasets(spark.QUICK):
        for row in spark.rows(dataset):
            assert row.goal is not None and row.case in spark.CASES, row


def test_cpu_seconds_are_those_of_all_processes_below_also_of_one_that_ended_but_not_of_one_branch():
    burn = "import time\nwhile time.process_time() < 0.4: pass\n"
    ends = [sys.executable, "-c", f"{burn}time.sleep(4)"]
    stays = [sys.executable, "-c", f"{burn}print(flush=True)\ninput()"]
    # Shells between them and us, so that they are not our own children.
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["sh", "-c", '"$@"; true', "sh", *stays], **pipes) as before:
        before.stdout.readline()
        with (
            spark.CpuMeter() as meter,
            spark.CpuMeter(without=before.pid) as same,
            subprocess.Popen(stays, **pipes) as one,
        ):
            with spark.CpuMeter(without=one.pid) as less:
                subprocess.run(["sh", "-c", '"$@"; true', "sh", *ends], check=True)
                one.stdout.readline()
            one.communicate(b"x\n")
        before.communicate(b"x\n")
    assert meter.seconds >= 0.7, "both burnt 0.4 s, seen to a quarter of a second"
    assert same.seconds >= 0.7
    assert 0.3 <= less.seconds <= meter.seconds - 0.3
