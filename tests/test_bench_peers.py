"""The comparisons of storage, Spark and fail-over in `make bench-peers`, without their Java sides."""

import os
import subprocess
import sys

import pytest

import kcore
from bench.peers import (
    backed_pages,
    coordinators,
    failover,
    large_requests,
    spark,
    storage,
    storage_cases,
    storage_data,
)
from bench.peers.rounds import table_of_rounds
from bench.replication_client import produce
from bench.tables import markdown_table
from tests.waiting import wait_until

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


def test_rows_of_rounds_have_a_ratio_over_pairs_of_rounds_and_a_verdict_each():
    goals = {"per s": (True, {"fast": 2.0}), "s": (False, {"slow": 0.5})}
    ours = [{("fast", "per s"): rate, ("slow", "s"): 3.0, ("other", "s"): 1.0} for rate in (20.0, 2.0, 20.0)]
    theirs = [{("fast", "per s"): rate, ("slow", "s"): 4.0, ("other", "s"): 0.0} for rate in (10.0, 1.0, 1.0)]
    lines = table_of_rounds({"kcore": ours, "other": theirs}, goals).splitlines()
    fast, slow, other = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert fast[-2:] == ["2.00", ">= 2.0: met"]
    assert slow[-2:] == ["0.75", "<= 0.5: MISSED"]
    assert other == ["other", "s", "1.0 (±0%)", "0.0 (±)", "", ""]


@pytest.mark.timeout(240)
def test_the_rows_of_coordinators_are_measured_and_what_was_stored_is_there_after_the_start(capsys):
    few = [
        "--only",
        "kcore",
        "--rounds",
        "1",
        "--transactions",
        "8",
        "--members",
        "3",
        "--offsets",
        "200",
        "--ids",
        "5",
    ]
    assert coordinators.main(few) == 0
    measured = capsys.readouterr().out
    for row in (*coordinators.TRANSACTIONS.values(), *coordinators.JOINS.values(), coordinators.START):
        assert f"| {row}" in measured


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
    burn = "import os, time\nwhile time.process_time() < 0.4: pass\nprint(os.getpid(), flush=True)\ninput()"
    burning = [sys.executable, "-c", burn]
    in_a_shell = ["sh", "-c", '"$@"; true', "sh", *burning]
    # Shells between them and us, so that they are not our own children.
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(in_a_shell, **pipes) as before:
        before.stdout.readline()
        with (
            spark.CpuMeter() as meter,
            spark.CpuMeter(without=before.pid) as same,
            subprocess.Popen(burning, **pipes) as one,
        ):
            with spark.CpuMeter(without=one.pid) as less, subprocess.Popen(in_a_shell, **pipes) as ends:
                pid = int(ends.stdout.readline())
                wait_until(lambda: all(_has_seen(each, pid, 0.35) for each in (meter, same, less)))
                ends.communicate(b"x\n")
                one.stdout.readline()
            one.communicate(b"x\n")
        before.communicate(b"x\n")
    assert meter.seconds >= 0.7, "both burnt 0.4 s"
    assert same.seconds >= 0.7
    assert 0.3 <= less.seconds <= meter.seconds - 0.3


def _has_seen(meter, pid, cpu_s):
    """Whether a meter that runs has looked at a process after it had used this much."""
    looks = list(meter._last.items())
    return any(seen == pid and ticks / os.sysconf("SC_CLK_TCK") >= cpu_s for (seen, _), ticks in looks)


@pytest.mark.parametrize(
    "times, expected",
    [([9.9, 10.1, 10.2, 16.5, 16.6], 6.5), ([9.9, 16.5, 17.0], 6.5), ([9.0, 16.5, 18.0, 20.0], 6.5)],
    ids=["answers of before still came", "none came", "slow afterwards"],
)
def test_a_partition_has_resumed_at_the_end_of_its_longest_pause(times, expected):
    assert failover.resumed_after(times, 10.0, 20.0) == pytest.approx(expected)


def test_a_pause_counts_from_the_last_record_before_and_to_the_end():
    assert failover.longest_pause([1.0, 9.0, 10.5, 12.0], 10.0, 13.0) == (1.5, 12.0)
    assert failover.longest_pause([1.0, 7.0, 10.5], 10.0, 11.0) == (3.5, 10.5)
    assert failover.longest_pause([10.5], 10.0, 15.0) == (4.5, 15.0)
    assert failover.longest_pause([], 10.0, 15.0) == (5.0, 15.0)


def test_each_acknowledged_record_is_found_once_with_its_offset_or_the_comparison_fails():
    records = [("t", 0, offset, b"%d" % offset) for offset in range(4)]
    assert failover.compared(records, records) == failover.Comparison(4, 0, 0, 0)
    assert failover.compared(records[:3], records) == (3, 0, 0, 1)
    assert failover.compared(records, records).is_sound and failover.compared(records[:3], records).is_sound
    assert failover.compared(records, records[:3]) == (4, 1, 0, 0)
    assert failover.compared(records, [*records, records[3]]) == (4, 0, 0, 0)  # read twice
    twice = [*records, ("t", 0, 4, b"3")]
    assert failover.compared(records, twice) == (4, 0, 1, 1)
    moved = [*records[:3], ("t", 0, 7, b"3")]
    assert not failover.compared(records, moved).is_sound and not failover.compared(records, twice).is_sound


def test_the_table_of_failover_has_a_verdict_for_each_goal_and_none_without_a_rival():
    rows = dict.fromkeys([*failover.GOALS, "other", failover.ERRORS], 2.0) | {failover.ERRORS: 0.0}
    rivals = dict.fromkeys(rows, 2.0)
    lines = failover.report({"kcore": [rows], "Apache Kafka": [rivals]}).splitlines()
    assert sum("<= 1: met" in line for line in lines) == 3 and sum("<= 0.5: MISSED" in line for line in lines) == 2
    assert sum("0: met" in line for line in lines) == 1
    assert "met" not in failover.report({"kcore": [rows]}).replace("0: met", "")
    assert "MISSED" in failover.report({"kcore": [rows | {failover.ERRORS: 1.0}]})


@pytest.mark.timeout(1200)
@pytest.mark.skipif("KCORE_LONG" not in os.environ, reason="kills brokers for a minute: CI runs it (KCORE_LONG=1)")
def test_a_command_kills_the_controller_and_a_leader_and_nothing_is_lost(capsys):
    options = ["--only", "kcore", "--store", "sqlite", "--partitions", "30", "--session-timeout-ms", "4000"]
    assert failover.main(options) == 0
    printed = capsys.readouterr().out
    assert " 0 lost, 0 twice" in printed and "first record after the death of the controller" in printed


def test_as_many_pages_are_freed_as_are_taken_and_none_is_held_at_the_end(tmp_path):
    step = backed_pages.STEP_BYTES
    with backed_pages.BackedPages(tmp_path, 0) as pages:
        assert pages.held_bytes == 0  # and its thread ends
    pages = backed_pages.BackedPages(tmp_path, 4 * step)
    pages.hold()
    held = [pages.held_bytes]
    for size in (0, -step, 1, step + 1, 10 * step):
        pages.give(size)
        held.append(pages.held_bytes)
    assert held == [4 * step, 4 * step, 4 * step, 3 * step, step, 0]
    pages.close()
    pages.hold()
    pages.close()
    assert pages.held_bytes == 0 and not list(tmp_path.iterdir())


def test_large_fetches_read_what_is_stored_again_and_again_and_a_short_answer_is_an_error():
    with kcore.Broker() as broker:
        broker.create_topic("fetched", 2)
        leaders = dict.fromkeys(range(2), ("127.0.0.1", broker.port))
        produce(leaders, "fetched", large_requests.BATCH, 4 * MIB)
        assert large_requests.fetch(leaders, "fetched", 2 * MIB, 10 * MIB) > 0
        assert broker.metrics()["kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec"]["Count"] == 10 * MIB
        with pytest.raises(OSError, match="to a fetch of 1 MiB"):
            large_requests.fetch(leaders, "fetched", 3 * MIB, 10 * MIB)


def test_the_table_of_large_requests_has_the_ratios_of_neighbouring_rounds():
    sides = []
    for cpu in ([0.2, 0.4, 2.0], [0.1, 0.2, 1.0]):
        side = object.__new__(large_requests.Side)
        side.name, side.measured = "the other", {large_requests.ROWS[0]: [(each, 100.0) for each in cpu]}
        sides.append(side)
    expected = ["fetch 1 MiB, 1 connection", "0.400", "225%", "100", "2.00x", "1.00x"]
    assert large_requests.figures(large_requests.ROWS[0], *sides) == expected
    last_line = large_requests.table([expected], sides[1]).splitlines()[-1]
    assert [cell.strip() for cell in last_line.split("|")[1:-1]] == expected
