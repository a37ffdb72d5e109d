"""What a seed means, and runs of many seeds."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from tests.sim.controlled import ControlledCluster
from tests.sim.coverage import Coverage
from tests.sim.events import History, random_controlled_history, random_history
from tests.sim.shrink import Failure
from tests.sim.simulated import simulated
from tests.sim.transactions.cluster import TransactionalCluster
from tests.sim.transactions.events import random_transactional_history

#: What a seed means.
Histories = Callable[[int], History]
#: That one of several processes takes: some 10 s.
SEEDS_AT_ONCE = 100


@dataclass
class Summary:
    seeds: int = 0
    steps: int = 0
    simulated_ms: int = 0
    cpu_seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    failure: Failure | None = None

    def add(self, other: Summary) -> None:
        self.seeds += other.seeds
        self.steps += other.steps
        self.simulated_ms += other.simulated_ms
        self.cpu_seconds += other.cpu_seconds
        self.counts += other.counts
        self.events += other.events
        self.failure = self.failure or other.failure

    def __str__(self) -> str:
        coverage = Coverage()
        coverage.counts = self.counts
        return "\n".join(
            [
                f"{self.seeds} seeds, {self.steps} steps, {self.steps / max(self.cpu_seconds, 1e-9):.0f} a CPU second, "
                f"{self.simulated_ms / 3_600_000:.2f} simulated hours",
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


def history_of(seed: int, with_controller: bool = False) -> History:
    if with_controller:
        return random_controlled_history(seed, unclean=is_unclean(seed))
    return random_history(seed, unclean=is_unclean(seed))


def controlled_history_of(seed: int) -> History:
    return history_of(seed, with_controller=True)


def transactional_history_of(seed: int) -> History:
    """One seed in four has faults of all kinds."""
    return random_transactional_history(seed, swarm=seed % 4 != 3)


def run_seeds(first: int, seconds: float, histories: Histories = history_of, *, seeds: int | None = None) -> Summary:
    """Consecutive seeds from the first one on, until the time is over, the number of seeds is run, or one fails."""
    summary = Summary()
    end = time.monotonic() + seconds
    seed = first
    coverage = Coverage()
    started = time.process_time()
    with coverage.counting():
        while time.monotonic() < end and summary.failure is None and summary.seeds != seeds:
            summary.failure = _run(histories(seed), summary)
            seed += 1
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
            summary.simulated_ms += cluster.agenda.now_ms
            summary.events.update(cluster.events)
            summary.events.update({f"message {name}": count for name, count in cluster.network.faults.items()})
            for name in ("acknowledged", "refused", "retried", "consumed", "out_of_range", "fenced", "truncations"):
                summary.events[f"clients: {name.replace('_', ' ')}"] += getattr(cluster.clients, name)
            if isinstance(cluster, ControlledCluster):
                summary.events.update({f"reassignments: {name}": n for name, n in cluster.reassignments.counts.items()})
            if isinstance(cluster, TransactionalCluster):
                summary.events.update({f"transactions: {name}": n for name, n in cluster.counts.items()})


def run_seeds_in_processes(jobs: int, first: int, seconds: float, histories: Histories) -> Summary:
    """The same in several processes: each takes the next seeds that nobody has.  After a failure none takes more."""
    total = Summary()
    end = time.monotonic() + seconds
    running: set[Future[Summary]] = set()
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        while True:
            while len(running) < jobs and time.monotonic() < end and total.failure is None:
                left = end - time.monotonic()
                running.add(pool.submit(run_seeds, first, left, histories, seeds=SEEDS_AT_ONCE))
                first += SEEDS_AT_ONCE
            if not running:
                return total
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for summary in done:
                total.add(summary.result())
