"""How `pytest -n` (pytest-xdist) hands out the tests."""

import pytest


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
