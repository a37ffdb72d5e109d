"""The storage comparison of `make bench-peers`, without its Java side."""

import subprocess
import sys

import pytest

from bench.peers import storage, storage_cases, storage_data

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


def test_each_path_has_a_peer_case_that_the_java_side_knows():
    source = (storage.HERE / "java" / "StorageBench.java").read_text()
    for row in storage.rows():
        if row.rival == "Kafka":
            kind = (row.peer or row.kcore).split(":")[0]
            assert f'case "{kind}": return' in source, row.path


def test_a_worker_says_ready_and_answers_each_line_with_seconds_cpu_seconds_and_units(data, tmp_path):
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
def test_a_missed_goal_that_the_bare_system_calls_miss_too_is_told_as_such(limit, verdict):
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
    lines = storage.table([result([1e-9] * 3, [2e-9] * 3).cells()]).splitlines()
    assert len(set(map(len, lines))) == 1
    assert "1 GB/s" in lines[2] and "0.5 GB/s" in lines[2] and "2.00x" in lines[2]
