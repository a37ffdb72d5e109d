"""Random histories of a cluster with the product's controller.

KCORE_SIM_SEED=7 runs that seed.  `python -m tests.sim --controller --seconds N` runs on.
"""

import os
import subprocess
import sys

import pytest

from kcore.controller.partition_state_machine import PartitionStateMachine
from tests.sim.events import (
    STORE,
    Consume,
    Crash,
    CreateTopic,
    Cut,
    Delay,
    DeleteController,
    DeleteTopic,
    ExpireSession,
    FlipBit,
    History,
    LoseStoreAnswer,
    Produce,
    Reassign,
    Settings,
)
from tests.sim.seeds import controlled_history_of, history_of, run_seeds
from tests.sim.shrink import run_history, shrunk
from tests.sim.simulated import simulated

ONE = os.environ.get("KCORE_SIM_SEED")
COUNT = 150 if "KCORE_LONG" in os.environ else 40
CHUNK = 10


@pytest.mark.parametrize("first", [int(ONE)] if ONE else range(0, COUNT, CHUNK))
def test_no_seed_breaks_an_invariant_whoever_is_the_controller(first):
    for seed in range(first, first + (1 if ONE else CHUNK)):
        failure = run_history(history_of(seed, with_controller=True))
        if failure is not None:
            pytest.fail(str(shrunk(failure)), pytrace=False)


def test_a_broker_that_lost_records_of_a_deleted_topic_starts_while_another_one_has_its_name():
    """Seed 720013342, made short."""
    settings = Settings(
        brokers=4, segment_bytes=100_000, latency_ms=3, flush_checkpoint_ms=200, controller=True, rebalance_ms=500
    )
    events = (
        CreateTopic(238, 1),
        Reassign(293, 1, (2,)),
        Crash(335, 3, "stops", down_ms=2500, noticed_ms=10),
        DeleteTopic(464, 1),
        Crash(498, 2, "loses power", down_ms=20, noticed_ms=600),
        CreateTopic(513, 2),
        Crash(529, 1, "stops", down_ms=2500, noticed_ms=10),
        CreateTopic(583, 1),
        DeleteTopic(612, 2),
    )
    assert run_history(History(settings, events)) is None


def test_a_registered_broker_loses_no_records_while_the_session_of_the_other_member_has_ended():
    """Seed 946259770, made shorter.  Broker 2 is down, and nobody has noticed: with Kafka's controller too, the ISR of
    0 and 2 would become that of 2 alone, and the record would be lost (KIP-966)."""
    events = (
        Produce(207, 0),
        *(Cut(240, broker, STORE, for_ms=60) for broker in range(3)),  # so that broker 3 is the controller
        DeleteController(250),
        Crash(350, 1, "is killed", down_ms=3000, noticed_ms=10),
        Crash(600, 2, "is killed", down_ms=600, noticed_ms=300),
        ExpireSession(700, 0),
        FlipBit(701, 2, topic=0, share=0.5),
    )
    assert run_history(History(Settings(brokers=4, controller=True), events)) is None


@pytest.mark.parametrize("at_ms", [605, 620])
def test_a_member_of_an_isr_with_lost_records_is_the_first_to_start_after_all_were_down(at_ms):
    """Broker 3, which has no replica, would take all members but the last one out of the ISR: the one that has lost
    the record (decision 22)."""
    events = (
        Produce(207, 0),
        *(Crash(600, broker, "is killed", down_ms=100 if broker == 3 else 1000, noticed_ms=10) for broker in range(4)),
        FlipBit(at_ms, 2, topic=0, share=0.5),
    )
    assert run_history(History(Settings(brokers=4, controller=True), events)) is None


def test_a_topic_whose_deletion_was_ordered_may_lose_what_a_consumer_has_read():
    """Seed 780008100, made short: nobody has heard of the order when the leader is back without its last record."""
    settings = Settings(partitions=2, latency_ms=3, flush_checkpoint_ms=5000, remembers_idle=True, controller=True)
    events = (
        Crash(2580, 0, "is killed", down_ms=60_000, noticed_ms=200),
        Delay(2812, STORE, 2, by_ms=1000, count=3),
        Produce(3570, 0),
        Consume(3635, 0, consumer=1),
        LoseStoreAnswer(3764, 2),
        Crash(3839, 1, "loses power", down_ms=300, noticed_ms=10),
        DeleteTopic(4906, 1),
        DeleteTopic(5308, 0),
        Produce(6904, 0),
        Produce(9694, 0),
        Consume(10492, 0, consumer=1),
    )
    assert run_history(History(settings, events)) is None


def test_a_broker_that_an_unclean_election_chose_while_it_was_down_starts():
    """Seed 750002234, made short."""
    settings = Settings(partitions=2, unclean=True, latency_ms=10, flush_checkpoint_ms=200, controller=True)
    events = (
        Crash(231, 1, "is killed", down_ms=20, noticed_ms=200),
        Reassign(280, 0, (1,), is_ordered=True),
        Crash(358, 2, "loses power", down_ms=2500, noticed_ms=200, kept=0.91),
        Reassign(373, 0, (2,)),
    )
    assert run_history(History(settings, events)) is None


def test_histories_hold_what_they_are_for():
    """Several controllers, sessions that expire, topics that come and go: a change must not leave them out."""
    summary = run_seeds(0, 3600, controlled_history_of, seeds=30)
    assert summary.failure is None
    print(summary)
    events = summary.events
    assert events["clients: acknowledged"] > 50
    rules = summary.counts
    assert rules["controller: elected"] > 40 and rules["controller: a topic is deleted"] > 10
    assert rules["controller's request refused: StaleControllerEpoch"] > 0
    for name in ("accepted", "ended", "cancelled", "refused: InvalidReplicaAssignment"):
        assert events[f"reassignments: {name}"] > 5, name
    for name in ("CreateTopic", "DeleteTopic", "ExpireSession", "DieInWrite", "DeleteController", "PreferredElection"):
        assert events[name] > 10, name


def test_a_planted_bug_of_the_controller_is_shown_by_a_few_events(monkeypatch):
    """Partitions whose leader died stay without one."""
    monkeypatch.setattr(PartitionStateMachine, "trigger_online", lambda self: None)
    failures = (run_history(history_of(seed, with_controller=True)) for seed in range(30))
    failure = next(failure for failure in failures if failure is not None)
    short = shrunk(failure)
    assert short.name == failure.name and len(short.history.events) <= 12 < len(failure.history.events)
    assert "is registered with epoch" in str(short)


def test_the_same_seed_gives_the_same_trace_also_in_another_process_and_with_other_string_hashes():
    with simulated(history_of(3, with_controller=True)) as cluster:
        cluster.run()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "tests.sim", "--controller", "--seed", "3", "--once"]
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert cluster.trace_hash in output
