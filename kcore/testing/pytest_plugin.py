"""pytest plugin: the fixture `kafka` and the marker `kafka`.  pytest loads it when kcore is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kcore.testing.kafka_marker import kafka_marker

if TYPE_CHECKING:
    from kcore.testing.kafka_fixture import KafkaFixture


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "kafka(topics={name: partitions}, config={setting: value}): the topics and the settings of the fixture kafka",
    )


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[KafkaFixture]:
    """A broker of this test alone, with the topics of the marker `kafka`; stopped after the test."""
    # Here, because a run without the fixture does not need the broker's modules.
    from kcore.server.broker import Broker
    from kcore.testing.kafka_fixture import KafkaFixture

    marker = kafka_marker(request.node)
    with Broker(**marker.config) as broker:
        for name, partitions in marker.topics.items():
            broker.create_topic(name, partitions)
        yield KafkaFixture(broker)
