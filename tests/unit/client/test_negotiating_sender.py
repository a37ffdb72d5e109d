"""Which version of a request goes to a broker."""

import pytest

from kcore.client.negotiating_sender import NegotiatingSender, newest_version
from kcore.errors import UnsupportedVersion
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.messages.heartbeat import HeartbeatRequest


class Broker:
    """A sender to a broker that serves these versions of Heartbeat."""

    host, port = "h", 9092

    def __init__(self, *versions):
        self._versions = versions
        self.sent = []

    def api_versions(self):
        return {ApiKey.HEARTBEAT: self._versions} if self._versions else {}

    def send(self, request, version):
        self.sent.append(version)


@pytest.mark.parametrize(("served", "version"), [((0, 2), 2), ((0, 99), 4), ((4, 5), 4), ((1, 1), 1)])
def test_a_request_goes_in_the_newest_version_that_both_sides_have(served, version):
    broker = Broker(*served)
    NegotiatingSender(broker).send(HeartbeatRequest())
    assert broker.sent == [version]


@pytest.mark.parametrize(
    ("served", "why"),
    [((), "at h:9092 does not serve Heartbeat$"), ((5, 7), "does not serve Heartbeat 0 to 4, but 5 to 7$")],
)
def test_a_request_that_the_broker_does_not_serve_is_not_sent(served, why):
    """One whose versions were all above ours was sent in a version of ours."""
    broker = Broker(*served)
    with pytest.raises(UnsupportedVersion, match=why):
        NegotiatingSender(broker).send(HeartbeatRequest())
    assert broker.sent == []


def test_a_caller_may_need_a_version_of_its_own():
    assert newest_version(Broker(0, 4), ApiKey.HEARTBEAT, 1, 3) == 3
    with pytest.raises(UnsupportedVersion, match="does not serve Heartbeat 3 to 4, but 0 to 2"):
        newest_version(Broker(0, 2), ApiKey.HEARTBEAT, 3, 4)
