"""What a test does to the session of a ZookeeperStore, with a real server."""

import threading

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
    client = session.client
    hosts = ",".join(f"{host}:{port}" for host, port in client.hosts)
    other = KazooClient(hosts, timeout=30, client_id=client.client_id, connection_retry={"max_tries": -1})
    # The session moves to this connection, and back if its owner is busy with it.
    other.start(_DEADLINE_S)
    other.stop()
    other.close()
    wait_until(lambda: session.has_expired)


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
