import pytest

from tests.unit.log.logs import Logs


@pytest.fixture
def logs(tmp_path):
    return Logs(tmp_path / "orders-0")


@pytest.fixture
def log(logs):
    return logs.open()
