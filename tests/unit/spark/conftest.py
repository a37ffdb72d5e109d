import pytest

from kcore.spark.session import local_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """One session for all tests: two tasks at a time, as on the smallest machine."""
    where = tmp_path_factory.mktemp("spark")
    session = local_session(
        "local[2]",
        "kcore tests",
        {
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.sql.warehouse.dir": str(where / "warehouse"),
            "spark.local.dir": str(where / "local"),
            "spark.driver.memory": "1g",
            "spark.sql.streaming.metricsEnabled": "false",
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
