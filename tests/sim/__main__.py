"""python -m tests.sim SEED STEPS: run one history, print the hash of its trace and how fast it was."""

import logging
import sys
import time

from tests.sim.simulated import simulated


def main(seed: int, steps: int) -> None:
    logging.disable(logging.CRITICAL)
    with simulated(seed) as cluster:
        started = time.process_time()
        cluster.run(steps)
        seconds = time.process_time() - started
        print(f"{cluster.trace_hash}  {steps / seconds:.0f} steps per CPU second")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
