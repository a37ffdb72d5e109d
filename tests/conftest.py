import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Under `pytest -n`, the tests with Spark run in one process: Spark takes a gigabyte and all cores."""
    for item in items:
        if "spark" in item.path.parts or item.path.name == "test_spark_command.py":
            item.add_marker(pytest.mark.xdist_group("spark"))
