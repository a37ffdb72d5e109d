"""How `pytest -n` (pytest-xdist) hands out tests; the examples of property tests; the ZooKeeper server they share."""

import itertools
import logging
import os
import random
import signal
import sys
import zlib

import pytest
from hypothesis import settings

from tests import zookeeper_server

# The same examples in each run, so that a test that fails now and passed before shows a change.  KCORE_RANDOM=1 looks
# for others.
settings.register_profile("same examples", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("random examples", deadline=None, print_blob=True)
settings.load_profile("random examples" if "KCORE_RANDOM" in os.environ else "same examples")

# Commands do not read the configuration of who runs the tests.
os.environ["KCORE_CONFIG"] = os.devnull

# A client of another test may still try to connect: its lines are not this test's.
for library in ("kafka", "aiokafka"):
    logging.getLogger(library).propagate = False

#: Of Python, and of the tests that use threads.
_SWITCH_INTERVAL = sys.getswitchinterval()
_INTERVAL_OF_THREADS = float(os.environ.get("KCORE_SWITCH_INTERVAL", _SWITCH_INTERVAL))

_numbers = itertools.count()


def pytest_runtest_setup(item):
    """CI, `make test-threads`: threads take turns after KCORE_SWITCH_INTERVAL seconds, and meet where they seldom do
    otherwise.  Only in unit tests that name `threading`: what computes on several threads would do little else."""
    uses_threads = "unit" in item.path.parts and hasattr(getattr(item, "module", None), "threading")
    is_excluded = {"spark", "tools"} & set(item.path.parts)
    sys.setswitchinterval(_INTERVAL_OF_THREADS if uses_threads and not is_excluded else _SWITCH_INTERVAL)


@pytest.fixture(autouse=True)
def signals_stay_as_they_are():
    """A blocked signal would be blocked for all processes that later tests start: they would not end by it."""
    yield
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.fixture
def seed(request):
    """Of a test's random numbers: the same in each run, as the examples of property tests."""
    chosen = random.randrange(1 << 30) if "KCORE_RANDOM" in os.environ else zlib.crc32(request.node.nodeid.encode())
    request.node.add_report_section("setup", "seed", str(chosen))  # of a failed test
    return chosen


@pytest.fixture(scope="session")
def shared_zookeeper(tmp_path_factory):
    """One server for all tests of a process, which must leave it as it is.  Started for the first that wants it."""
    reason = zookeeper_server.missing()
    if reason is not None:
        pytest.skip(reason)
    server = zookeeper_server.ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")).start()
    yield server
    server.stop()


@pytest.fixture
def zookeeper(shared_zookeeper):
    """The address of a store that is empty: a directory of its own on the shared server."""
    return f"{shared_zookeeper.address}/test{next(_numbers)}"


def work_unit(nodeid: str) -> str:
    """Tests of one work unit run in one process, one after the other: all with Spark, which takes a gigabyte and all
    cores; of the others each is a unit of its own."""
    path = nodeid.split("::")[0]
    return "spark" if path.startswith("tests/unit/spark/") or path.endswith("/test_spark_command.py") else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    # Not --dist=loadgroup: xdist 3.8 writes its groups into names that pytest 9.2 does not read.
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return work_unit(nodeid)

    return Scheduling(config, log)
