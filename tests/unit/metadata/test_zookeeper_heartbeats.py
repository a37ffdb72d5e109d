"""When a ZooKeeper session is certain to be alive, over a connection whose pings the test sends and answers."""

import threading
from types import SimpleNamespace

import pytest

from kcore.common.time import MockTime
from kcore.metadata.zookeeper_heartbeats import Heartbeats

TIMEOUT_MS = 18_000


class Connection:
    """As much of kazoo's ConnectionHandler as is watched."""

    def __init__(self):
        self.ping_outstanding = threading.Event()
        self.is_ping_answered = True

    def _connect(self, host, granted_ms):
        return granted_ms * 2 / 3, granted_ms

    def _send_ping(self, connect_timeout):
        self.ping_outstanding.set()

    def _read_socket(self, read_timeout):
        if self.is_ping_answered:
            self.ping_outstanding.clear()
        return "answer"


@pytest.fixture
def connection():
    return Connection()


@pytest.fixture
def time():
    return MockTime()


@pytest.fixture
def heartbeats(connection, time):
    return Heartbeats(SimpleNamespace(_connection=connection), TIMEOUT_MS, time)


def test_a_session_is_certain_for_its_timeout_after_a_ping_that_was_answered_was_sent(heartbeats, connection, time):
    assert not heartbeats.is_recent
    connection._send_ping(1)
    time.sleep(1_000)
    assert not heartbeats.is_recent
    assert connection._read_socket(1) == "answer"
    time.sleep(TIMEOUT_MS - 1_001)
    assert heartbeats.is_recent
    time.sleep(1)
    assert not heartbeats.is_recent


def test_an_answer_that_waited_in_the_socket_while_the_process_stood_still_proves_nothing(heartbeats, connection, time):
    connection._send_ping(1)
    time.sleep(TIMEOUT_MS)
    connection._read_socket(1)
    assert not heartbeats.is_recent


def test_what_is_read_beside_a_ping_and_a_ping_that_is_given_up_are_no_answers(heartbeats, connection, time):
    connection._send_ping(1)
    connection.is_ping_answered = False
    connection._read_socket(1)
    assert not heartbeats.is_recent
    connection.ping_outstanding.clear()  # kazoo drops the connection
    connection._read_socket(1)
    assert not heartbeats.is_recent


def test_a_call_counts_from_its_beginning_and_the_latest_counts(heartbeats, time):
    begin_ms = heartbeats.now_ms()
    time.sleep(TIMEOUT_MS - 1)
    heartbeats.answered(begin_ms)
    assert heartbeats.is_recent
    heartbeats.answered(begin_ms - 5)
    assert heartbeats.is_recent
    time.sleep(1)
    assert not heartbeats.is_recent


def test_the_timeout_is_the_one_that_the_server_has_granted(heartbeats, connection, time):
    assert connection._connect("host", 4_000) == (4_000 * 2 / 3, 4_000)
    heartbeats.answered(heartbeats.now_ms())
    time.sleep(3_999)
    assert heartbeats.is_recent
    time.sleep(2)
    assert not heartbeats.is_recent
