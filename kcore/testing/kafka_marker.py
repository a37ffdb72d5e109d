"""The marker `kafka` of a test: which topics and settings its broker gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest


class KafkaMarker(NamedTuple):
    """topics: name -> number of partitions.  config: settings of the brokers.  brokers: how many a cluster has.
    time: "skip" if the clock moves on whenever the brokers are idle."""

    topics: Mapping[str, int]
    config: Mapping[str, Any]
    brokers: int | None
    time: str | None


def kafka_marker(node: pytest.Item, fixture: str) -> KafkaMarker:
    """Of the test, its class or its module, the nearest one; the defaults without one.

    Arguments that it does not take, or not with this fixture, fail the test, with a message that names it.
    """
    markers = list(node.iter_markers_with_node("kafka"))
    if not markers:
        return _arguments()
    nearest, marker = markers[0]
    in_one_place = sum(place is nearest for place, _ in markers)
    from kcore.errors import InvalidTopicException

    try:
        if in_one_place > 1:
            raise ValueError(
                f"there are {in_one_place} of it on {nearest.name}, of which one would count: give all arguments to one"
            )
        arguments = _arguments(*marker.args, **marker.kwargs)
        _check_fixture(arguments, fixture)
        return arguments
    except (TypeError, ValueError, InvalidTopicException) as error:
        reason = str(error).replace("_arguments()", "it")
        pytest.fail(f"{node.nodeid}: the marker kafka is wrong: {reason}", pytrace=False)


def _check_fixture(arguments: KafkaMarker, fixture: str) -> None:
    if arguments.brokers is not None and fixture != "kafka_cluster":
        raise ValueError(f"brokers is for the fixture kafka_cluster, not for {fixture}")
    if arguments.config and fixture == "kafka_session":
        raise ValueError(
            "config is not for kafka_session, whose broker other tests use too: override the fixture "
            "kafka_session_config"
        )


def _arguments(
    topics: Mapping[str, int] | None = None,
    config: Mapping[str, Any] | None = None,
    brokers: int | None = None,
    *,
    time: str | None = None,
) -> KafkaMarker:
    # Here, so that a run without a test that has the marker imports nothing of kcore.
    from kcore.common import topic_names
    from kcore.server.call_arguments import string

    for argument, value in (("topics", topics), ("config", config)):
        if value is not None and not isinstance(value, Mapping):
            raise TypeError(f"{argument} must be a dict, not {value!r}")
    for name, partitions in (topics or {}).items():
        topic_names.validate(string("topics", name))
        if isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1:
            raise ValueError(f"topics must have a number of partitions for each name, not {name!r}: {partitions!r}")
    if brokers is not None and (isinstance(brokers, bool) or not isinstance(brokers, int) or brokers < 1):
        raise ValueError(f"brokers must be a number of brokers, not {brokers!r}")
    if time not in (None, "skip"):
        raise ValueError(f'time must be "skip", or be left out, not {time!r}')
    return KafkaMarker(topics or {}, config or {}, brokers, time)
