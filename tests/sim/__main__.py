"""python -m tests.sim --seconds N [--seed S] [--jobs J] [--controller]: run histories of consecutive seeds for so long.

Prints what was run: seeds, steps, events and faults, and how often each rule decided what.  If an invariant breaks: the
seed, the history made short, and how to run it again; then the exit status is 1.
--controller: with the product's controller and a store of sessions.
--once runs one seed and prints the hash of its trace.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.sim.controlled import ControlledCluster
from tests.sim.coverage import Coverage
from tests.sim.events import History, random_controlled_history, random_history
from tests.sim.shrink import Failure, shrunk
from tests.sim.simulated import simulated


@dataclass
class Summary:
    seeds: int = 0
    steps: int = 0
    cpu_seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    failure: Failure | None = None

    def add(self, other: Summary) -> None:
        self.seeds += other.seeds
        self.steps += other.steps
        self.cpu_seconds += other.cpu_seconds
        self.counts += other.counts
        self.events += other.events
        self.failure = self.failure or other.failure

    def __str__(self) -> str:
        coverage = Coverage()
        coverage.counts = self.counts
        return "\n".join(
            [
                f"{self.seeds} seeds, {self.steps} steps, {self.steps / max(self.cpu_seconds, 1e-9):.0f} a CPU second",
                "",
                "events and faults:",
                *(f"{count:9d}  {name}" for name, count in sorted(self.events.items())),
                "",
                "rules:",
                str(coverage),
            ]
        )


def is_unclean(seed: int) -> bool:
    """One seed in five has unclean elections."""
    return seed % 5 == 4


def history_of(seed: int, with_controller: bool) -> History:
    """What a seed means."""
    if with_controller:
        return random_controlled_history(seed, unclean=is_unclean(seed))
    return random_history(seed, unclean=is_unclean(seed))


def run_seeds(
    first: int, step: int, seconds: float, with_controller: bool = False, *, seeds: int | None = None
) -> Summary:
    """Every step-th seed from the first one on, until the time is over, the number of seeds is run, or one fails."""
    summary = Summary()
    end = time.monotonic() + seconds
    seed = first
    coverage = Coverage()
    started = time.process_time()
    with coverage.counting():
        while time.monotonic() < end and summary.failure is None and summary.seeds != seeds:
            summary.failure = _run(history_of(seed, with_controller), summary)
            seed += step
    summary.cpu_seconds = time.process_time() - started
    summary.counts = coverage.counts
    return summary


def _run(history: History, summary: Summary) -> Failure | None:
    cluster = None
    try:
        with simulated(history) as cluster:
            cluster.run()
        return None
    except Exception as error:
        name = getattr(error, "name", None)
        return Failure(name if isinstance(name, str) else type(error).__name__, str(error), history)
    finally:
        summary.seeds += 1
        if cluster is not None:
            summary.steps += cluster.steps
            summary.events.update(cluster.events)
            summary.events.update({f"message {name}": count for name, count in cluster.network.faults.items()})
            for name in ("acknowledged", "refused", "retried", "consumed", "out_of_range", "fenced", "truncations"):
                summary.events[f"clients: {name.replace('_', ' ')}"] += getattr(cluster.clients, name)
            if isinstance(cluster, ControlledCluster):
                summary.events.update({f"reassignments: {name}": n for name, n in cluster.reassignments.counts.items()})


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="the first seed; else from the clock")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--controller", action="store_true", help="with the product's controller")
    parser.add_argument("--once", action="store_true", help="run this seed once")
    options = parser.parse_args(arguments)
    first = options.seed if options.seed is not None else time.time_ns() // 1_000_000 % 10**9
    if options.once:
        with simulated(history_of(first, options.controller)) as cluster:
            cluster.run()
            print(cluster.trace_hash)
        return 0
    print(f"seeds from {first} on, for {options.seconds:.0f} s in {options.jobs} process(es)", flush=True)
    work = [(first + job, options.jobs, options.seconds, options.controller) for job in range(options.jobs)]
    total = Summary()
    if options.jobs == 1:
        total.add(run_seeds(*work[0]))
    else:
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            for summary in pool.starmap(run_seeds, work):
                total.add(summary)
    print(total)
    if total.failure is None:
        return 0
    print(f"\nseed {total.failure.history.seed} fails: {total.failure.message}\nmaking it short ...", flush=True)
    print(shrunk(total.failure))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
