"""Random histories of clients with transactions: each transaction is seen whole or not at all, whatever dies.

KCORE_SIM_SEEDS=1000 runs that many seeds, KCORE_SIM_SEED=7 that one.  `python -m tests.sim --transactions --seconds N`
runs on.
"""

import os
import subprocess
import sys

import pytest

from kcore.common.topic_partition import TopicPartition
from tests.sim.events import Crash, Elect, History, Pause, Settings, SlowDisk
from tests.sim.invariants import BrokenInvariant
from tests.sim.rules import rules
from tests.sim.seeds import run_seeds, transactional_history_of
from tests.sim.shrink import run_history, shrunk
from tests.sim.simulated import simulated
from tests.sim.transactions import invariants
from tests.sim.transactions.events import ABORT, DieInAppend, NewClient, Transact

ONE = os.environ.get("KCORE_SIM_SEED")
COUNT = int(os.environ.get("KCORE_SIM_SEEDS", "300" if "KCORE_LONG" in os.environ else "80"))
CHUNK = 10
FIRST_SEEDS = [int(ONE)] if ONE else range(0, COUNT, CHUNK)


@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_no_seed_breaks_an_invariant_of_transactions(first):
    for seed in range(first, first + (1 if ONE else CHUNK)):
        failure = run_history(transactional_history_of(seed))
        if failure is not None:
            pytest.fail(str(shrunk(failure)), pytrace=False)


def test_a_slow_disk_does_not_hold_up_the_clock_of_its_broker():
    """A fetch that waits is answered at its time (found by seed 949497030)."""
    of_transactions = {"transactions": True, "transaction_versions": (2,), "transaction_timeout_ms": 1500}
    settings = Settings(partitions=2, segment_bytes=300, asks_any_broker=True, **of_transactions)
    events = (
        Crash(at_ms=7369, broker=2, how="is killed", down_ms=300, noticed_ms=1, kept=0.14),
        SlowDisk(at_ms=11763, broker=2, for_ms=3000),
        Elect(at_ms=12498, partition=-1, broker=2),
        Pause(at_ms=13552, broker=2, for_ms=20),
    )
    assert run_history(History(settings, events)) is None


def test_transactional_histories_hold_what_they_are_for():
    """Transactions that end in each way, fail-overs, zombies: a change must not leave them out."""
    summary = run_seeds(0, 3600, transactional_history_of, seeds=40)
    assert summary.failure is None
    print(summary)
    events = summary.events
    for name, least in (("commits", 30), ("aborts", 20), ("unknown ends", 10), ("fenced", 20), ("records seen", 200)):
        assert events[f"transactions: {name}"] > least, name
    for name in ("ConcurrentTransactions", "CoordinatorLoadInProgress", "NotCoordinator", "ProducerFenced"):
        assert events[f"transactions: answer {name}"] > 10, name
    assert events["DieInAppend"] > 30 and events["Crash"] > 30
    assert summary.simulated_ms > 200_000
    versions = {transactional_history_of(seed).settings.transaction_versions for seed in range(40)}
    assert versions == {(1,), (2,), (1, 2)}


def test_the_same_seed_gives_the_same_transactions_also_in_another_process_and_with_other_string_hashes():
    with simulated(transactional_history_of(5)) as cluster:
        cluster.run()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "tests.sim", "--transactions", "--seed", "5", "--once"]
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert cluster.trace_hash in output


TP = TopicPartition("t", 0)


def test_a_consumer_goes_forward():
    invariants.a_consumer_goes_forward(TP, [(3, b"a")], 4)
    for offset in (2, 3):
        with pytest.raises(BrokenInvariant, match="after 3"):
            invariants.a_consumer_goes_forward(TP, [(3, b"a")], offset)


def test_consumers_see_the_same():
    invariants.consumers_see_the_same(TP, 1, [b"a"], [b"a"])
    with pytest.raises(BrokenInvariant, match="consumer 1 has"):
        invariants.consumers_see_the_same(TP, 1, [b"a"], [])


def test_each_invariant_of_transactions_has_a_test():
    """Here, or a scenario that breaks it without its rule."""
    of_scenarios = {rule.invariant for rule in rules()}
    for name in invariants.OF_TRANSACTIONS:
        assert getattr(invariants, name).__doc__, f"{name} has no sentence"
        assert f"test_{name}" in globals() or name in of_scenarios, f"{name} has no test"
    assert len(invariants.OF_TRANSACTIONS) > 10


@pytest.mark.parametrize("broker", range(3))
def test_whenever_a_broker_dies_in_the_appends_of_two_transactions_each_is_seen_as_it_was_answered(broker):
    """Each moment of an append in turn: broker 0 coordinates, all three lead a partition."""
    died = 0
    for moment in range(1, 40):
        events = (
            DieInAppend(90, broker, moment, down_ms=400),
            Transact(100, 0, (0, 1, 2), has_offsets=True),
            Transact(150, 0, (2, 1, 0), has_offsets=True, ends=ABORT),
            NewClient(2000, 0),
            Transact(2100, 0, (0, 1, 2), has_offsets=True),
        )
        with simulated(History(Settings(partitions=3, transactions=True), events)) as cluster:
            cluster.run()
            assert cluster.counts["commits"] + cluster.counts["unknown ends"] >= 2
            is_dead = any("is killed in an append" in line for line in cluster.story)
        died += is_dead
        if not is_dead:
            break
    assert died > (10 if broker == 0 else 3)
