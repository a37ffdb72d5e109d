"""python -m tests.sim --seconds N [--seed S] [--jobs J] [--controller]: run histories of consecutive seeds for so long.

Prints what was run: seeds, steps, events and faults, and how often each rule decided what.  If an invariant breaks: the
seed, the history made short, and how to run it again; then the exit status is 1.
--controller: with the product's controller and a store of sessions.
--once runs one seed and prints the hash of its trace.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.sim.seeds import history_of, run_seeds, run_seeds_in_processes
from tests.sim.shrink import shrunk
from tests.sim.simulated import simulated


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
    if options.jobs == 1:
        total = run_seeds(first, options.seconds, options.controller)
    else:
        total = run_seeds_in_processes(options.jobs, first, options.seconds, options.controller)
    print(total)
    if total.failure is None:
        return 0
    print(f"\nseed {total.failure.history.seed} fails: {total.failure.message}\nmaking it short ...", flush=True)
    print(shrunk(total.failure))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
