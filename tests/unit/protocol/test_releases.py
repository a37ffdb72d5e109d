"""What releases of Kafka announce; kafka-python has a table of its own."""

import pytest
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from kcore.protocol.api_keys import INTER_BROKER, SUPPORTED, ApiKey
from kcore.protocol.releases import RELEASES, apis_of_release, versions_of_release


@pytest.mark.parametrize("release", RELEASES)
def test_the_versions_of_a_release_are_those_that_kafka_python_knows(release):
    known = BROKER_API_VERSIONS[tuple(map(int, release.split(".")))]
    assert {key: versions_of_release(key, release) for key in SUPPORTED} == {key: known.get(key) for key in SUPPORTED}


def test_a_broker_announces_what_it_and_the_release_have_in_common():
    ranges = apis_of_release(SUPPORTED | INTER_BROKER, "2.8")
    assert ranges[ApiKey.PRODUCE] == (0, 9) and ranges[ApiKey.FETCH] == (0, 12) and ranges[ApiKey.METADATA] == (0, 11)
    assert ApiKey.CONSUMER_GROUP_HEARTBEAT not in ranges
    assert {key: ranges[key] for key in INTER_BROKER} == INTER_BROKER
    assert apis_of_release({ApiKey.FETCH: (0, 3)}, "4.0") == {}  # 4.0 begins with version 4
    assert apis_of_release({ApiKey.FETCH: (0, 5)}, "4.0") == {ApiKey.FETCH: (4, 5)}
