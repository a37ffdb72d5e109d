"""Random histories of a small cluster: nothing that is committed is lost, and in the end all replicas are equal.

KCORE_SIM_SEEDS=1000 runs that many seeds, KCORE_SIM_SEED=7 that one.  `python -m tests.sim --seconds N` runs on.
"""

import os
import re
import subprocess
import sys

import pytest

from tests.sim.events import random_history
from tests.sim.seeds import is_unclean, run_seeds
from tests.sim.shrink import run_history, shrunk
from tests.sim.simulated import simulated

ONE = os.environ.get("KCORE_SIM_SEED")
COUNT = int(os.environ.get("KCORE_SIM_SEEDS", "250" if "KCORE_LONG" in os.environ else "80"))
CHUNK = 10
FIRST_SEEDS = [int(ONE)] if ONE else range(0, COUNT, CHUNK)


def test_a_log_that_ends_in_a_gap_lacks_nothing():
    """A truncation to an offset inside a batch, after unclean elections; the follower's log ends where records do."""
    seed = 710020984
    assert run_history(random_history(seed, unclean=is_unclean(seed))) is None


@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_EPOCH_12_no_seed_breaks_an_invariant_and_replicas_become_equal_after_any_crashes_and_elections(first):
    for seed in range(first, first + (1 if ONE else CHUNK)):
        failure = run_history(random_history(seed, unclean=is_unclean(seed)))
        if failure is not None:
            pytest.fail(str(shrunk(failure)), pytrace=False)


def test_histories_hold_what_they_are_for():
    """Acknowledged records, several leaders, faults, decisions of the rules: a change must not leave them out."""
    summary = run_seeds(0, 3600, seeds=25)
    assert summary.failure is None
    print(summary)
    events, rules = summary.events, summary.counts
    assert events["clients: acknowledged"] > 200 and events["clients: consumed"] > 50
    assert events["Crash"] > 50 and rules["leader epoch begins"] > 200
    for name in ("lost", "delayed", "duplicated", "cut"):
        assert events[f"message {name}"] > 20, name
    for name in ("ISR: join proposed", "ISR: join refused below the high watermark", "diverging epoch in a fetch"):
        assert rules[name] > 10, name
    assert rules["truncation by EPOCH-08: the same epoch, the smaller end"] > 10


def test_several_processes_take_seeds_that_no_other_one_has():
    command = [sys.executable, "-m", "tests.sim", "--seed", "0", "--seconds", "1", "--jobs", "2"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    first = run_seeds(0, 3600, seeds=1)
    seeds, steps = map(int, re.search(r"^(\d+) seeds, (\d+) steps", output, re.MULTILINE).groups())
    assert seeds >= 2 and steps > first.steps


def test_the_same_seed_gives_the_same_trace_also_in_another_process_and_with_other_string_hashes():
    traces = []
    for _ in range(2):
        with simulated(random_history(3)) as cluster:
            cluster.run()
            traces.append(cluster.trace)
    assert traces[0] == traces[1]
    expected = cluster.trace_hash
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "tests.sim", "--seed", "3", "--once"]
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert expected in output
    with simulated(random_history(5)) as cluster:
        cluster.run()
        assert cluster.trace_hash != expected
