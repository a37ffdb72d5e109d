"""A simulated cluster in a directory of its own, and what it says when a check fails."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tests.sim.cluster import Cluster

_MEMORY = "/dev/shm"


@contextmanager
def simulated(seed: int, *, unclean: bool = False) -> Iterator[Cluster]:
    """The files are in memory if the machine has a memory file system.

    On any error, also one out of the body, the seed, the settings and the last events are printed.
    """
    directory = tempfile.mkdtemp(prefix="kcore-sim-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)
    cluster = None
    try:
        cluster = Cluster(directory, seed, unclean=unclean)
        yield cluster
        cluster.close()
    except BaseException:
        if cluster is not None:
            print(f"seed {seed}, {cluster.settings}", *cluster.recent, sep="\n")
        raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)
