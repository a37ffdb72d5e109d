import pytest

from tests.unit.controller.world import EmbeddedWorld, MemoryWorld


@pytest.fixture(params=[MemoryWorld, EmbeddedWorld], ids=["memory", "embedded"])
def world(request, tmp_path):
    world = request.param(tmp_path)
    yield world
    world.close()
