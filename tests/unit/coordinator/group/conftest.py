import pytest

from .harness import Harness


@pytest.fixture
def harness():
    return Harness()
