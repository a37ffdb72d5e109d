import pytest

from tests.unit.controller.world import EmbeddedWorld, MemoryWorld, ZookeeperWorld


@pytest.fixture(params=[MemoryWorld, EmbeddedWorld, ZookeeperWorld], ids=["memory", "embedded", "zookeeper"])
def world(request, tmp_path):
    is_on_zookeeper = request.param is ZookeeperWorld
    world = request.param(request.getfixturevalue("zookeeper") if is_on_zookeeper else tmp_path)
    yield world
    world.close()
