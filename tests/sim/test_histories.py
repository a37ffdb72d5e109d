"""Random histories of a small cluster.

KCORE_SIM_SEEDS=1000 runs that many seeds (200 with KCORE_LONG=1), KCORE_SIM_SEED=7 that one.
"""

import os
import subprocess
import sys

import pytest

from kcore.replica import fetcher_state
from kcore.replica import isr as isr_rules
from kcore.replica.offset_truncation import OffsetTruncationState
from tests.sim.simulated import simulated

ONE = os.environ.get("KCORE_SIM_SEED")
COUNT = int(os.environ.get("KCORE_SIM_SEEDS", "200" if "KCORE_LONG" in os.environ else "12"))
SEEDS = [int(ONE)] if ONE else range(COUNT)
STEPS = 1500


@pytest.mark.parametrize("seed", SEEDS)
def test_EPOCH_12_nothing_committed_is_lost_and_replicas_become_equal_whoever_crashes_or_leads(seed):
    with simulated(seed) as cluster:
        cluster.run(STEPS)
        cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_EPOCH_12_after_unclean_elections_replicas_become_equal_too(seed):
    with simulated(seed, unclean=True) as cluster:
        cluster.run(STEPS)
        cluster.settle()


def test_histories_hold_what_they_are_for():
    """Acknowledged records, several leaders, crashes: a change of the weights must not leave them out."""
    acknowledged = crashes = epochs = 0
    for seed in range(5):
        with simulated(seed) as cluster:
            cluster.run(STEPS)
            acknowledged += cluster.history.acknowledged
            crashes += cluster.crashes
            epochs += sum(state.leader_epoch for state in cluster.controller.partitions.values())
    assert acknowledged > 100 and crashes > 10 and epochs > 20, (acknowledged, crashes, epochs)


def test_the_same_seed_gives_the_same_trace_also_in_another_process_and_with_other_string_hashes():
    with simulated(3) as cluster:
        cluster.run(600)
        expected = cluster.trace_hash
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "tests.sim", "3", "600"]
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert expected in output
    with simulated(4) as cluster:
        cluster.run(600)
        assert cluster.trace_hash != expected


def no_truncation(leader_epoch, leader_end_offset, *, log_end_offset, **others):
    return OffsetTruncationState(log_end_offset, True)


def leader_end_only(end, isr, replicas, now_ms, lag_ms):
    return end


@pytest.mark.parametrize(
    ("module", "rule", "wrong"),
    [
        (fetcher_state, "offset_truncation_state", no_truncation),
        (isr_rules, "high_watermark_candidate", leader_end_only),
        (isr_rules, "may_join_isr", lambda replica, isr, *others: replica.broker_id not in isr.maximal),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_rule_is_noticed_within_a_few_seeds(module, rule, wrong, monkeypatch, capsys):
    monkeypatch.setattr(module, rule, wrong)
    for seed in range(30):
        try:
            with simulated(seed) as cluster:
                cluster.run(STEPS)
                cluster.settle()
        except AssertionError:
            assert f"seed {seed}" in capsys.readouterr().out
            return
    pytest.fail(f"30 seeds did not notice a wrong {rule}")
