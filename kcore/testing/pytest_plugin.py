"""pytest plugin: the fixtures `kafka`, `kafka_session` and `kafka_cluster`, and the marker `kafka`.

pytest loads it when kcore is installed.  The fixtures import what they need: a run without them needs no broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from kcore.testing.kafka_marker import kafka_marker

if TYPE_CHECKING:
    from kcore.testing.kafka_fixture import KafkaClusterFixture, KafkaFixture

#: Of kafka_cluster, where the marker does not say another number.
BROKERS = 3


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "kafka(topics={name: partitions}, config={setting: value}, brokers=3): the topics of the fixtures kafka, "
        "kafka_session and kafka_cluster, the settings of kafka and kafka_cluster, the number of brokers of the last",
    )


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[KafkaFixture]:
    """A broker of this test alone, with the topics of the marker `kafka`; stopped after the test."""
    from kcore.server.broker import Broker
    from kcore.testing.kafka_fixture import KafkaFixture

    marker = kafka_marker(request.node, "kafka")
    with Broker(**marker.config) as broker:
        for name, partitions in marker.topics.items():
            broker.create_topic(name, partitions)
        yield KafkaFixture(broker)


@pytest.fixture
def kafka_cluster(request: pytest.FixtureRequest) -> Iterator[KafkaClusterFixture]:
    """A cluster of this test alone, with the brokers and topics of the marker `kafka`; stopped after the test."""
    from kcore.server.cluster import Cluster
    from kcore.testing.kafka_fixture import KafkaClusterFixture

    marker = kafka_marker(request.node, "kafka_cluster")
    with Cluster(marker.brokers or BROKERS, **marker.config) as cluster:
        for name, partitions in marker.topics.items():
            cluster.create_topic(name, partitions)
        yield KafkaClusterFixture(cluster)


@pytest.fixture(scope="session")
def kafka_session_config() -> Mapping[str, Any]:
    """Settings of the broker of kafka_session: to be overridden."""
    return {}


@pytest.fixture(scope="session")
def kafka_session(kafka_session_config: Mapping[str, Any]) -> Iterator[KafkaFixture]:
    """One broker for all tests of the process.  A test's topics and records are gone after the test."""
    from kcore.server.broker import Broker
    from kcore.testing.kafka_fixture import KafkaFixture

    with Broker(**kafka_session_config) as broker:
        yield KafkaFixture(broker)


@pytest.fixture(autouse=True)
def _kafka_session_topics(request: pytest.FixtureRequest) -> Iterator[None]:
    """Around a test that has kafka_session, its other fixtures included."""
    made: AbstractContextManager[None] = nullcontext()
    if "kafka_session" in request.fixturenames:
        from kcore.testing.topics_of_test import topics_of_test

        marker = kafka_marker(request.node, "kafka_session")
        made = topics_of_test(request.getfixturevalue("kafka_session"), marker.topics)
    with made:
        yield
