"""pytest plugin: the fixtures `kafka`, `kafka_session` and `kafka_cluster`, and the marker `kafka`.

pytest loads it when kcore is installed.  The fixtures import what they need: a run without them needs no broker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kcore.server.broker import Broker
    from kcore.testing.kafka_fixture import KafkaClusterFixture, KafkaFixture, KafkaTestSupport
    from kcore.testing.kafka_marker import KafkaMarker
    from kcore.testing.log_tail import LogTail

#: The directory of the package kcore.
_KCORE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: Of kafka_cluster, where the marker does not say another number.
BROKERS = 3
#: Of a test: the fixtures that it has, by name, and what their brokers have logged.
_USED = pytest.StashKey["dict[str, KafkaTestSupport]"]()
_LOG: pytest.StashKey[LogTail] = pytest.StashKey()
_HAS_FAILED: pytest.StashKey[bool] = pytest.StashKey()
#: Of kafka_session.  Kafka's minute would pile up the files of all tests that run in it, and they may be in memory.
_DELETE_DELAY = {"log.segment.delete.delay.ms": 1000}
#: How long the connections of clients that a test has just closed may be left.
_CLOSING_S = 0.5


class _InstalledModules(MetaPathFinder):
    """Finds the modules of kcore where pytest's import hook would find them, and leaves their asserts as they are.

    pytest rewrites the asserts of all modules of a distribution that has a plugin.  Where Python is to write no
    bytecode files (PYTHONDONTWRITEBYTECODE) it does so again in each process: the first broker takes 0.8 s longer.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or not fullname.startswith("kcore."):
            return None
        # With --import-mode=importlib a test of the user's in a folder named kcore has such a name too.
        is_kcores = all(f"{os.path.abspath(directory)}{os.sep}".startswith(f"{_KCORE}{os.sep}") for directory in path)
        return PathFinder.find_spec(fullname, path, target) if is_kcores else None


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    # Before a conftest can import kcore.
    finder = _InstalledModules()
    sys.meta_path.insert(0, finder)
    early_config.add_cleanup(lambda: sys.meta_path.remove(finder))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        'kafka(topics={name: partitions}, config={setting: value}, brokers=3, time="skip"): the topics of the fixtures '
        "kafka, kafka_session and kafka_cluster, the settings of kafka and kafka_cluster, the number of brokers of the "
        "last; whether the clock moves on whenever the brokers are idle",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the report of a test that fails what its brokers hold and have logged."""
    report = yield
    if report.failed and report.when != "teardown":
        item.stash[_HAS_FAILED] = True
        for name, used in item.stash.get(_USED, {}).items():
            report.sections.append((name, _description(used)))
        log = item.stash.get(_LOG, None)
        if log is not None and log.lines:
            report.sections.append(("log of kafka", "\n".join(log.lines)))
    return report


def _description(used: KafkaTestSupport) -> str:
    try:
        return used.describe()
    except Exception as error:  # the test has failed already: this must not hide why
        return f"it cannot be described: {type(error).__name__}: {error}"


@pytest.fixture
def _kafka_log(request: pytest.FixtureRequest) -> Iterator[None]:
    from kcore.testing.log_tail import LogTail

    with LogTail() as log:
        request.node.stash[_LOG] = log
        yield


def _note_use(request: pytest.FixtureRequest, name: str, used: KafkaTestSupport) -> None:
    request.node.stash.setdefault(_USED, {})[name] = used


@pytest.fixture
def kafka(request: pytest.FixtureRequest, _kafka_log: None) -> Iterator[KafkaFixture]:
    """A broker of this test alone, with the topics of the marker `kafka`; stopped after the test."""
    from kcore.server.broker import Broker
    from kcore.testing.kafka_fixture import KafkaFixture
    from kcore.testing.kafka_marker import kafka_marker
    from kcore.testing.memory_directory import settings_of_fixture
    from kcore.testing.skip_time import SkipTime

    marker = kafka_marker(request.node, "kafka")
    with Broker(time=SkipTime(), **settings_of_fixture(marker.config)) as broker:
        kafka = KafkaFixture(broker)
        _note_use(request, "kafka", kafka)
        for name, partitions in marker.topics.items():
            broker.create_topic(name, partitions)
        with _clock_of_test(kafka, marker):
            yield kafka
        kafka.end_faults()
        if request.node.stash.get(_HAS_FAILED, False):
            _report_left_clients(request.node, broker)


def _report_left_clients(item: pytest.Item, broker: Broker) -> None:
    """Say in the report of a test that has failed that the lines of its clients about a lost broker come from the end
    of this one."""
    from kcore.testing.waits import Wait, WaitTimedOut

    try:
        server = broker.running.server
        Wait(lambda: server.connection_count == 0, "no connection", str).run(_CLOSING_S)
    except RuntimeError:
        pass  # the test has stopped it
    except WaitTimedOut:
        item.add_report_section(
            "teardown",
            "kafka",
            "clients of this test were still connected when its broker stopped: close them in the test.  Their lines "
            "about lost and refused connections from then on, also in reports of later tests, have no other cause",
        )


def _clock_of_test(kafka: KafkaTestSupport, marker: KafkaMarker) -> AbstractContextManager[None]:
    return kafka.time.auto_skip() if marker.time == "skip" else nullcontext()


@pytest.fixture
def kafka_cluster(request: pytest.FixtureRequest, _kafka_log: None) -> Iterator[KafkaClusterFixture]:
    """A cluster of this test alone, with the brokers and topics of the marker `kafka`; stopped after the test."""
    from kcore.server.cluster import Cluster
    from kcore.testing.kafka_fixture import KafkaClusterFixture
    from kcore.testing.kafka_marker import kafka_marker
    from kcore.testing.memory_directory import settings_of_fixture
    from kcore.testing.skip_time import SkipTime

    marker = kafka_marker(request.node, "kafka_cluster")
    with Cluster(marker.brokers or BROKERS, time=SkipTime(), **settings_of_fixture(marker.config)) as cluster:
        kafka = KafkaClusterFixture(cluster)
        _note_use(request, "kafka_cluster", kafka)
        for name, partitions in marker.topics.items():
            cluster.create_topic(name, partitions)
        with _clock_of_test(kafka, marker):
            yield kafka
        kafka.end_faults()  # brokers that stop have to hear of each other


@pytest.fixture(scope="session")
def kafka_session_config() -> Mapping[str, Any]:
    """Settings of the broker of kafka_session: to be overridden."""
    return {}


@pytest.fixture(scope="session")
def kafka_session(kafka_session_config: Mapping[str, Any]) -> Iterator[KafkaFixture]:
    """One broker for all tests of the process.  A test's topics and records are gone after the test."""
    from kcore.server.broker import Broker
    from kcore.testing.kafka_fixture import KafkaFixture
    from kcore.testing.memory_directory import settings_of_fixture
    from kcore.testing.skip_time import SkipTime

    # What is said last counts, also where it is spelled with underscores.
    with Broker(time=SkipTime(), **settings_of_fixture({**_DELETE_DELAY, **kafka_session_config})) as broker:
        yield KafkaFixture(broker)


@pytest.fixture(autouse=True)
def _kafka_session_topics(request: pytest.FixtureRequest) -> Iterator[None]:
    """Around a test that has kafka_session, its other fixtures included."""
    made: AbstractContextManager[None] = nullcontext()
    clock: AbstractContextManager[None] = nullcontext()
    if "kafka_session" in request.fixturenames:
        from kcore.testing.kafka_marker import kafka_marker
        from kcore.testing.topics_of_test import topics_of_test

        marker = kafka_marker(request.node, "kafka_session")
        kafka = request.getfixturevalue("kafka_session")
        request.getfixturevalue("_kafka_log")
        _note_use(request, "kafka_session", kafka)
        made = topics_of_test(kafka, marker.topics)
        clock = _clock_of_test(kafka, marker)
    with made, clock:
        yield
