"""bench/report.py: ratios and verdicts from pytest-benchmark's JSON."""

import json

import pytest

from bench import report
from bench.conftest import record_role


def benchmark(name: str, role: str, median: float, group: str = "append", **info) -> dict:
    class Sink:
        extra_info: dict = {}

    Sink.extra_info = {}
    record_role(Sink, role, **({"per_round": 100} | info))
    return {
        "name": name,
        "group": group,
        "stats": {"median": median, "iqr": median / 10},
        "extra_info": Sink.extra_info,
    }


@pytest.fixture
def run(tmp_path, capsys):
    def run(*benchmarks: dict, strict: bool = False) -> tuple[int, str]:
        file = tmp_path / "b.json"
        file.write_text(json.dumps({"machine_info": {"kcore": {"cpu": "abacus"}}, "benchmarks": list(benchmarks)}))
        status = report.main([str(file), *(["--strict"] if strict else [])])
        return status, capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        ({"vs": "limit", "at_most": 1.1}, True),
        ({"vs": "limit", "at_most": 1.04}, False),
        ({"vs": "peer", "at_most": 0.5}, True),
        ({"vs": "peer", "at_most": 0.25}, False),
        ({"vs": "peer", "at_most": 0.25, "name": "slow"}, True),
        ({"vs": "peer", "at_most": 0.25, "name": "absent"}, None),
        ({"at_most_ns": 11}, True),
        ({"at_most_ns": 10}, False),
        ({"at_least_per_s": 90e6}, True),
        ({"at_least_per_s": 99e6}, False),
        ({"at_least_per_s": 99e6, "where_limit_reaches": 1e9}, None),
        ({"at_least_per_s": 99e6, "where_limit_reaches": 1e7}, False),
    ],
)
def test_a_goal_is_judged_against_its_own_bound_and_rival(goal, met):
    members = [
        report.Member.of(benchmark("ours", "ours", 1.05e-6, goal=goal)),
        report.Member.of(benchmark("pwrite", "limit", 1e-6)),
        report.Member.of(benchmark("fast", "peer", 3e-6)),
        report.Member.of(benchmark("slow", "peer", 5e-6)),
        report.Member.of(benchmark("elsewhere", "peer", 1e-9, group="other")),
    ]
    assert report.judge(members[0], goal, members).met is met


def test_members_of_another_case_are_no_rivals(run):
    status, out = run(
        benchmark("a", "ours", 1e-6, case="1 KiB", goal={"vs": "limit", "at_most": 1.1}),
        benchmark("b", "limit", 1e-6, case="1 KiB"),
        benchmark("c", "limit", 1e-9, case="16 KiB"),
        strict=True,
    )
    assert status == 0
    assert "1.00x" in out
    assert "1 of 1 goals met" in out


def test_missed_goals_are_listed_and_fail_only_a_strict_run(run):
    result = benchmark("a", "ours", 1e-6, unit="byte", per_round=1000, goal={"vs": "peer", "at_most": 0.5})
    peer = benchmark("b", "peer", 1.5e-6, unit="byte", per_round=1000)
    status, out = run(result, peer)
    assert status == 0
    assert "missed: append: 1 GB/s, goal >= 2x peer" in out
    assert "abacus" in out
    assert run(result, peer, strict=True)[0] == 1


def test_a_benchmark_without_a_role_is_named_not_lost(run):
    _, out = run({"name": "stray", "group": None, "stats": {}, "extra_info": {}})
    assert "Without a role, so not in the table: stray" in out


def test_a_role_needs_to_say_what_one_round_does():
    class Benchmark:
        extra_info: dict = {}

    with pytest.raises(AssertionError, match="per_round"):
        record_role(Benchmark, "ours")
    with pytest.raises(AssertionError, match="goal"):
        record_role(Benchmark, "peer", per_round=1, goal={"at_most_ns": 1})
