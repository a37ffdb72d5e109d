import pytest

from kcore.common import file


@pytest.fixture(autouse=True)
def no_faults_left():
    """The simulated disk is one for the process: a test that failed must not hand its faults to the next."""
    yield
    file.clear_faults()
