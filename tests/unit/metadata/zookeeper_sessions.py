"""What a test does to the session of a ZookeeperStore, with a real server."""

import threading
import time

from kazoo.client import KazooClient

from kcore.metadata.store import StoreError

_DEADLINE_S = 60


def deliver_all(store):
    """Return once the watches of all changes that have taken place have been called."""
    try:
        store.get("/")  # the server sends a client its events before the answer to a later call
    except StoreError:
        pass
    session = store._session
    if not session.has_expired:
        _pass_through(session.client.handler.callback_queue.put)
    if not store._is_closed:
        _pass_through(store._events.put)


def _pass_through(put):
    passed = threading.Event()
    put(passed.set)
    assert passed.wait(_DEADLINE_S)


def expire(store):
    """End the session at the server: with its id and its password anybody can."""
    session = store._session  # a listener may begin the next at once
    deadline = time.monotonic() + _DEADLINE_S
    while not session.has_expired:
        assert time.monotonic() < deadline, "the session did not end"
        _close_in_its_name(session.client)
        try:
            wait_until(lambda: session.has_expired, 2)
        except AssertionError:
            pass  # its owner took the session back before the other connection could close it


def _close_in_its_name(client):
    hosts = ",".join(f"{host}:{port}" for host, port in client.hosts)
    other = KazooClient(hosts, timeout=30, client_id=client.client_id, connection_retry={"max_tries": -1})
    other.start(_DEADLINE_S)
    other.stop()
    other.close()


def wait_until(is_done, deadline_s=_DEADLINE_S):
    """Wait for a condition, which may raise StoreError meanwhile."""
    pause = threading.Event()
    for _ in range(int(deadline_s / 0.01)):
        try:
            if is_done():
                return
        except StoreError:
            pass
        pause.wait(0.01)
    raise AssertionError("waited in vain")
