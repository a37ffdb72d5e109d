"""python -m tests.sim --seconds N [--seed S] [--jobs J] [--controller | --transactions | --aimed | --mixed]: run
histories of consecutive seeds for so long.

Prints what was run: seeds, steps, simulated hours, events and faults, and how often each rule decided what.  If an
invariant breaks: the seed, the history made short, and how to run it again; then the exit status is 1.
--controller: with the product's controller and a store of sessions.  --transactions: with coordinators of transactions
and of groups, and clients of theirs.  --aimed: the named scenarios and variations of them.  --mixed: all kinds in turn.
--once runs one seed and prints the hash of its trace.
--rules takes out one rule after the other, runs histories until an invariant breaks, and writes the table of
docs/simulator.md; with --only TEXT the rules with that in their names, and with --mixed by all kinds of histories: then
it writes nothing, and gives up after --seconds for each.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.sim.aimed import aimed_history, mixed_history, varied
from tests.sim.rules import HEADER, Rule, find, row, rules, written_into
from tests.sim.seeds import (
    Histories,
    controlled_history_of,
    history_of,
    run_seeds,
    run_seeds_in_processes,
    transactional_history_of,
)
from tests.sim.shrink import shrunk
from tests.sim.simulated import simulated

PAGE = Path(__file__).parents[2] / "docs" / "simulator.md"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="the first seed; else from the clock")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    kinds = parser.add_mutually_exclusive_group()
    for kind, histories, meaning in (
        ("controller", controlled_history_of, "with the product's controller"),
        ("transactions", transactional_history_of, "with transactions and groups"),
        ("aimed", aimed_history, "near the named scenarios"),
        ("mixed", mixed_history, "all kinds in turn"),
    ):
        kinds.add_argument(f"--{kind}", dest="histories", action="store_const", const=histories, help=meaning)
    parser.set_defaults(histories=history_of)
    parser.add_argument("--once", action="store_true", help="run this seed once")
    parser.add_argument("--rules", action="store_true", help="take out each rule")
    parser.add_argument("--only", default="", help="with --rules: those with this in their names")
    options = parser.parse_args(arguments)
    histories: Histories = options.histories
    if options.rules:
        return _measure_rules(options.only, histories if histories is not history_of else None, options.seconds)
    first = options.seed if options.seed is not None else time.time_ns() // 1_000_000 % 10**9
    if options.once:
        with simulated(histories(first)) as cluster:
            cluster.run()
            print(cluster.trace_hash)
        return 0
    print(f"seeds from {first} on, for {options.seconds:.0f} s in {options.jobs} process(es)", flush=True)
    if options.jobs == 1:
        total = run_seeds(first, options.seconds, histories)
    else:
        total = run_seeds_in_processes(options.jobs, first, options.seconds, histories)
    print(total)
    if total.failure is None:
        return 0
    print(f"\nseed {total.failure.history.seed} fails: {total.failure.message}\nmaking it short ...", flush=True)
    print(shrunk(total.failure))
    return 1


def _measure_rules(only: str, histories: Histories | None, cpu_seconds: float) -> int:
    """histories: None for the scenario of each rule, and its variations."""
    table, missed = HEADER, 0
    for rule in rules():
        if only in rule.name:
            finding = find(rule, histories or _variations_of(rule), cpu_seconds)
            missed += finding.failure is None
            table += row(finding)
            print(f"seed {finding.seed:3d}  {row(finding)}", end="", flush=True)
    if histories is None and not only and not missed:
        PAGE.write_text(written_into(PAGE.read_text(), table))
    return 1 if missed else 0


def _variations_of(rule: Rule) -> Histories:
    return lambda number: varied(rule.history, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
