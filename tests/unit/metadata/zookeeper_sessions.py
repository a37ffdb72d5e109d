"""What a test does to the session of a ZookeeperStore, with a real server."""

import threading

from kazoo.client import KazooClient

from kcore.metadata.store import SessionEvent, StoreError
from tests.waiting import wait_until

_DEADLINE_S = 60


def deliver_all(store):
    """Return once the watches of all changes that have taken place have been called."""
    receive_all(store)
    if not store._is_closed:
        _pass_through(store._events.put)


def receive_all(store):
    """Return once the client has heard of all changes that have taken place: their watches wait for the store's
    thread."""
    try:
        store.get("/")  # the server sends a client its events before the answer to a later call
    except StoreError:
        pass
    session = store._session
    if not session.has_expired:
        _pass_through(session.client.handler.callback_queue.put)


def _pass_through(put):
    passed = threading.Event()
    put(passed.set)
    assert passed.wait(_DEADLINE_S)


def expire(store):
    """End the session at the server: with its id and its password anybody can.  Returns once the store's listeners
    have been called."""
    session = store._session  # a listener may begin the next at once
    were_called = threading.Event()

    def note(event):
        if event is SessionEvent.EXPIRED:
            were_called.set()

    store.add_session_listener(note)  # the last one
    # Until it is closed its owner must not take it back.
    handler, may_connect = session.client.handler, threading.Event()
    connect = handler.create_connection
    handler.create_connection = lambda *args, **kwargs: may_connect.wait(_DEADLINE_S) and connect(*args, **kwargs)
    end_session(identity(store))
    may_connect.set()
    assert were_called.wait(_DEADLINE_S), "the session did not end"
    store._listeners.remove(note)


def identity(store):
    """What end_session() needs, also once the store was abandoned."""
    client = store._session.client
    return ",".join(f"{host}:{port}" for host, port in client.hosts), client.client_id


def end_session(identity):
    """Close the session."""
    hosts, client_id = identity
    other = KazooClient(hosts, timeout=30, client_id=client_id, connection_retry={"max_tries": -1})
    other.start_async().wait(_DEADLINE_S)
    other.stop()
    other.close()


def wait_for_store(condition, timeout_s=_DEADLINE_S):
    """Wait for a condition, which may raise StoreError meanwhile."""
    wait_until(condition, timeout_s=timeout_s, ignoring=StoreError)
