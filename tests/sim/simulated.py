"""A simulated cluster in a directory of its own."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from kcore.server.requests import session_reader
from tests.sim.cluster import Cluster
from tests.sim.controlled import ControlledCluster
from tests.sim.events import History
from tests.sim.transactions.cluster import TransactionalCluster

_MEMORY = "/dev/shm"


def _kind_of(history: History) -> type[Cluster]:
    if history.settings.transactions:
        return TransactionalCluster
    return ControlledCluster if history.settings.controller else Cluster


@contextmanager
def simulated(history: History) -> Iterator[Cluster]:
    """The files are in memory if the machine has a memory file system.  The product logs nothing meanwhile."""
    directory = tempfile.mkdtemp(prefix="kcore-sim-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        many = 1 if history.settings.remembers_idle else session_reader.MANY_PARTITIONS
        with patch.object(session_reader, "MANY_PARTITIONS", many):
            cluster = _kind_of(history)(directory, history)
            yield cluster
            cluster.close()
    finally:
        logging.disable(disabled)
        shutil.rmtree(directory, ignore_errors=True)
