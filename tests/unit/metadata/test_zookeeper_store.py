"""What only a store over a network does: lost connections, servers that are away or late, sessions that end elsewhere.

What it has in common with the others is in test_store_contract.py.
"""

import contextlib
import logging
import re
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo import exceptions as kazoo_exceptions
from kazoo.protocol.states import KazooState
from kazoo.security import make_acl

import kcore
from kcore.errors import StartCancelled, UnknownServerError
from kcore.metadata.api_errors import api_error
from kcore.metadata.multi_size import MAX_BYTES, operation_size, pieces
from kcore.metadata.open_store import open_store
from kcore.metadata.store import (
    Check,
    ChrootGone,
    ConnectionLost,
    Create,
    EventType,
    MultiFailed,
    MultiTooLarge,
    Node,
    NodeExists,
    NotAllowed,
    SessionEvent,
    SessionExpired,
    SetData,
    StoreClosed,
    StoreError,
    WatchEvent,
)
from kcore.metadata.zookeeper_heartbeats import Heartbeats
from kcore.metadata.zookeeper_reads import MultiRead
from kcore.metadata.zookeeper_session import KAZOO_LOG, Session, Watcher, store_error
from tests import zookeeper_server
from tests.unit.metadata.zookeeper_sessions import deliver_all, expire, receive_all, wait_for_store

#: Longer than a machine that stands still, and than a server needs to start again.
LONG_MS = 60_000
#: Longer than any test waits.
ENDLESS_MS = 1_000_000


@pytest.fixture(scope="module")
def own_server(tmp_path_factory):
    """One that a test may stop: it runs again afterwards."""
    reason = zookeeper_server.missing()
    if reason is not None:
        pytest.skip(reason)
    server = zookeeper_server.ZooKeeperServer(
        tmp_path_factory.mktemp("own-zookeeper"), max_session_timeout_ms=ENDLESS_MS
    )
    yield server.start()
    server.stop()


@pytest.fixture
def opened():
    """open(address, session_timeout_ms): stores that are closed in the end."""
    with contextlib.ExitStack() as stack:
        yield lambda address, timeout_ms=LONG_MS: stack.enter_context(
            contextlib.closing(open_store(address, session_timeout_ms=timeout_ms))
        )


def is_lost(store):
    try:
        store.get("/")
    except ConnectionLost:
        return True
    return False


def answers(store):
    return store.get("/") is not None


class Proxy:
    """Passes connections on to a server, and leaves as many as `silent` says without an answer."""

    def __init__(self, port):
        self.silent = 0
        self._port = port
        self._sockets = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"zookeeper://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                if self.silent:
                    self.silent -= 1
                    continue
                server = socket.create_connection(("127.0.0.1", self._port))
                self._sockets.append(server)
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    @staticmethod
    def _pass_on(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def break_connections(self):
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.break_connections()


def no_new_connection(store):
    """Its client does not connect again until the event that comes back is set."""
    handler, may_connect = store._session.client.handler, threading.Event()
    connect = handler.create_connection
    handler.create_connection = lambda *args, **kwargs: may_connect.wait(60) and connect(*args, **kwargs)
    return may_connect


# -- addresses ------------------------------------------------------------------------------------------


def test_a_chroot_is_created_and_everything_is_below_it(shared_zookeeper, opened):
    inside = opened(f"{shared_zookeeper.address}/a/chroot/")
    outside = opened(shared_zookeeper.address)
    assert inside.create("/x", b"1") == "/x"
    assert inside.create("/s-", sequential=True) == "/s-0000000001"
    assert outside.get("/a/chroot/x").data == b"1"
    events = []
    inside.get("/x", events.append)
    inside.children("/", events.append)
    outside.set("/a/chroot/x", b"2")
    outside.create("/a/chroot/y")
    deliver_all(inside)
    assert events == [WatchEvent(EventType.CHANGED, "/x"), WatchEvent(EventType.CHILDREN_CHANGED, "/")]
    for failing in (lambda: inside.delete("/"), lambda: outside.delete("/")):
        with pytest.raises(StoreError, match="root"):
            failing()
    assert opened(f"{shared_zookeeper.address}/a/chroot").children("/") == ["s-0000000001", "x", "y"]


def test_a_server_that_does_not_answer_is_no_matter_while_another_does(shared_zookeeper, opened):
    store = opened(f"zookeeper://127.0.0.1:1,{shared_zookeeper.hosts}/several")
    store.create("/x")
    assert store.children("/") == ["x"]


@pytest.mark.parametrize("chroot", ["", "/a"])
def test_without_a_server_the_store_cannot_be_opened(chroot):
    threads = threading.active_count()
    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1"):
        open_store(f"zookeeper://127.0.0.1:1{chroot}", session_timeout_ms=300)
    wait_for_store(lambda: threading.active_count() <= threads)


@pytest.mark.parametrize("chroot", ["", "/a"])
def test_a_start_that_waits_for_a_server_can_be_cancelled(tmp_path, chroot):
    broker = kcore.Broker(
        tmp_path, store=f"zookeeper://127.0.0.1:1{chroot}", broker_id=0, zookeeper_connection_timeout_ms=LONG_MS
    )
    with ThreadPoolExecutor(1) as executor:
        started = executor.submit(broker.start)

        def has_ended():
            broker.cancel_start()  # again and again, as `kcore serve` does
            return started.done()

        wait_for_store(has_ended)
        with pytest.raises(StartCancelled, match=r"^127\.0\.0\.1:1(/a)?: no ZooKeeper server has answered$"):
            started.result()


@pytest.mark.parametrize(("settings", "waits_ms"), [({}, 300), ({"zookeeper_connection_timeout_ms": 700}, 700)])
def test_a_start_waits_for_the_first_connection_as_long_as_its_setting_says(tmp_path, settings, waits_ms):
    with pytest.raises(ConnectionLost, match=f"no ZooKeeper server answers within {waits_ms} ms"):
        kcore.Broker(
            tmp_path, 0, store="zookeeper://127.0.0.1:1", broker_id=0, zookeeper_session_timeout_ms=300, **settings
        ).start()


def test_a_store_is_open_once_its_own_listener_knows_of_the_connection(zookeeper, opened, monkeypatch):
    """kazoo's thread may stand still between its own note of the connection and the call of the listener."""
    changed = Session._state_changed

    def late(session, state):
        threading.Event().wait(0.3)
        changed(session, state)

    monkeypatch.setattr(Session, "_state_changed", late)
    store = opened(zookeeper)
    assert store.session_id != 0
    store.create("/x")


# -- many reads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [MultiRead.type, 999])
def test_many_reads_also_of_a_server_that_has_no_request_for_them(zookeeper, opened, monkeypatch, operation):
    """A server before 3.6 does not know the request, as none knows number 999."""
    monkeypatch.setattr(MultiRead, "type", operation)
    store = opened(f"{zookeeper}/many")
    paths = [f"/node-{number:04}" for number in range(1200)]
    store.multi([Create(path, path.encode()) for path in paths])
    store.set("/node-0007", b"")
    store.create("/e", "\N{SNOWMAN}".encode(), ephemeral=True)
    assert store._has_multi_read is (operation != 999)
    asked = ["/", "/missing", *paths, "/e", "/node-0007"]
    for _ in range(2):
        assert store.get_many(asked) == [store.get(path) for path in asked]


def test_a_node_that_may_not_be_read_is_the_error_of_many_reads(zookeeper, opened):
    store = opened(zookeeper)
    client = store._session.client
    client.create("/secret", b"", acl=[make_acl("world", "anyone", write=True)])
    store.create("/open")
    for reads in (lambda: store.get("/secret"), lambda: store.get_many(["/open", "/secret"])):
        with pytest.raises(NotAllowed):
            reads()
    assert store.get_many(["/open"])[0].data == b""


@pytest.mark.parametrize("size", range(0, 150, 7))
def test_an_answer_that_was_cut_is_an_error(size):
    stat = struct.pack(">qqqqiiiqiiq", 5, 6, 0, 0, 3, 0, 0, 9, 2, 0, 5)
    whole = (
        struct.pack(">i?ii", 4, False, 0, 2) + b"ab" + stat + struct.pack(">i?ii", -1, False, -101, -101)
    ) + struct.pack(">i?i", -1, True, -1)
    assert MultiRead.deserialize(whole, 0) == [Node(b"ab", 3, 5, 9), None]
    if size < len(whole):
        with pytest.raises(struct.error):
            MultiRead.deserialize(whole[:size], 0)


# -- sizes ----------------------------------------------------------------------------------------------


def test_a_multi_above_a_mebibyte_is_refused_and_one_below_it_is_taken(zookeeper, opened):
    store = opened(zookeeper)
    operations = [Create(f"/node-{number:06}", bytes(200)) for number in range(4000)]
    assert sum(map(operation_size, operations)) > MAX_BYTES
    with pytest.raises(MultiTooLarge, match="4000 operations"):
        store.multi(operations)
    assert store.children("/") == []
    size, fitting = len(zookeeper), []
    for operation in operations:
        size += operation_size(operation) + len(zookeeper)
        if size <= MAX_BYTES:
            fitting.append(operation)
    store.multi(fitting)
    assert len(store.children("/")) == len(fitting) > 3000
    with pytest.raises(MultiTooLarge):
        store.set("/node-000000", bytes(MAX_BYTES))
    store.set("/node-000000", bytes(MAX_BYTES - 200))
    assert len(store.get("/node-000000").data) == MAX_BYTES - 200


def test_pieces_keep_order_and_groups_and_stay_below_the_limit():
    groups = [[Create(f"/{a}-{b}", bytes(a % 7)) for b in range(1 + a % 5)] for a in range(100)]
    cut = list(pieces(groups, 1000))
    assert [operation for piece in cut for operation in piece] == [o for group in groups for o in group]
    assert all(sum(map(operation_size, piece)) <= 1000 for piece in cut) and len(cut) > 10
    assert not [group for group in groups if not any(set(group) <= set(piece) for piece in cut)]
    # A group that is too large alone is a piece, and the store refuses it.
    assert list(pieces([[Create("/a", bytes(2000))], [Create("/b")]], 1000)) == [
        [Create("/a", bytes(2000))],
        [Create("/b")],
    ]
    assert list(pieces([])) == []


# -- lost connections -----------------------------------------------------------------------------------


def test_a_connection_that_is_left_without_an_answer_does_not_cost_the_session(own_server, opened):
    with contextlib.closing(Proxy(own_server.port)) as proxy:
        store = opened(f"{proxy.address}/silent", 15_000)
        session_id = store.session_id
        proxy.silent = 1
        proxy.break_connections()
        wait_for_store(lambda: proxy.silent == 0 and answers(store))
        assert store.session_id == session_id


def test_a_restart_of_the_server_suspends_a_session_and_loses_neither_nodes_nor_watches(own_server, opened):
    store, other = opened(f"{own_server.address}/restart"), opened(f"{own_server.address}/restart")
    events, session_events = [], []
    store.add_session_listener(session_events.append)
    session_id = store.session_id
    store.create("/e", b"", ephemeral=True)
    for path in ("/changed", "/same", "/deleted", "/parent"):
        store.create(path)
    for path in ("/changed", "/same", "/deleted", "/created"):
        store.get(path, events.append)
    for path in ("/parent", "/same"):
        store.children(path, events.append)
    own_server.stop()
    for each in (store, other):
        wait_for_store(lambda each=each: is_lost(each))
        with pytest.raises(ConnectionLost):
            each.create("/x")
        with pytest.raises(ConnectionLost):
            each.get("/x", events.append)
    own_server.start()
    wait_for_store(lambda: answers(other))
    other.multi([SetData("/changed", b"1"), Create("/created"), Create("/parent/child")])
    other.delete("/deleted")
    expected = {
        WatchEvent(EventType.CHANGED, "/changed"),
        WatchEvent(EventType.DELETED, "/deleted"),
        WatchEvent(EventType.CREATED, "/created"),
        WatchEvent(EventType.CHILDREN_CHANGED, "/parent"),
    }
    wait_for_store(lambda: len(events) >= len(expected) and answers(store))
    assert set(events) == expected and len(events) == len(expected)
    assert session_events[:2] == [SessionEvent.SUSPENDED, SessionEvent.CONNECTED]
    assert store.session_id == session_id == other.get("/e").ephemeral_owner
    # What is still the same has kept its watches, each for one event.
    other.set("/same", b"1")
    other.create("/same/child")
    other.set("/same", b"2")
    wait_for_store(lambda: len(events) >= len(expected) + 2)
    deliver_all(store)
    assert set(events[4:]) == {
        WatchEvent(EventType.CHANGED, "/same"),
        WatchEvent(EventType.CHILDREN_CHANGED, "/same"),
    }
    assert len(events) == len(expected) + 2


def test_a_change_while_a_client_was_away_calls_its_watch_when_it_is_back(own_server, opened):
    """The connection of one client breaks; the server and the others go on."""
    store, other = opened(f"{own_server.address}/away"), opened(f"{own_server.address}/away")
    events = []
    store.create("/n")
    store.create("/kept")
    store.get("/n", events.append)
    store.get("/kept", events.append)
    connections = store._session.connections
    may_connect = no_new_connection(store)
    store._session.client.handler.break_connection()
    wait_for_store(lambda: is_lost(store))
    other.set("/n", b"1")
    other.set("/n", b"2")
    assert events == []
    may_connect.set()
    wait_for_store(lambda: store._session.connections > connections and events)
    deliver_all(store)
    assert events == [WatchEvent(EventType.CHANGED, "/n")]
    other.set("/kept", b"1")
    deliver_all(store)
    assert events[1:] == [WatchEvent(EventType.CHANGED, "/kept")]


def test_a_change_that_meets_the_comparison_after_a_reconnection_calls_a_watch_once(own_server, opened, monkeypatch):
    """After the reconnection the client leaves its watch again and compares the node with what it knew.  A change in
    between calls the watch from the server; the comparison must not call it a second time."""
    store, other = opened(f"{own_server.address}/meets"), opened(f"{own_server.address}/meets")
    events, compared = [], threading.Event()
    store.create("/n")
    store.get("/n", events.append)
    may_connect = no_new_connection(store)
    store._session.client.handler.break_connection()
    wait_for_store(lambda: is_lost(store))
    other.set("/n", b"1")
    real = Watcher.state_of

    def meets_a_change(watcher, answer):
        if not compared.is_set():
            other.set("/n", b"2")
            receive_all(store)
            compared.set()
        return real(watcher, answer)

    monkeypatch.setattr(Watcher, "state_of", meets_a_change)
    may_connect.set()
    assert compared.wait(60)
    deliver_all(store)
    assert events == [WatchEvent(EventType.CHANGED, "/n")]


def test_a_watch_whose_read_was_answered_just_before_the_connection_was_replaced_is_called(
    own_server, opened, monkeypatch
):
    """The server forgot it with the connection, and the client had not yet noted that it must be left again."""
    store, other = opened(f"{own_server.address}/replaced"), opened(f"{own_server.address}/replaced")
    store.create("/n")
    events, keep = [], Watcher.keep

    def keep_with_the_next_connection(watcher, state):
        monkeypatch.setattr(Watcher, "keep", keep)
        connections = store._session.connections
        store._session.client.handler.break_connection()
        wait_for_store(lambda: store._session.connections > connections and store.get("/n") is not None)
        deliver_all(store)
        keep(watcher, state)

    monkeypatch.setattr(Watcher, "keep", keep_with_the_next_connection)
    store.get("/n", events.append)
    deliver_all(store)
    other.set("/n", b"1")
    deliver_all(store)
    assert events == [WatchEvent(EventType.CHANGED, "/n")]


def test_a_server_that_answers_late_costs_the_connection_and_the_write_may_have_happened(
    own_server, opened, monkeypatch
):
    connecting = Heartbeats._connecting

    def with_little_patience(heartbeats, *args):
        """Else it is two thirds of the session, which must not end before the server runs again."""
        _, connect_timeout_ms = connecting(heartbeats, *args)
        return 3000, connect_timeout_ms

    with monkeypatch.context() as patch:
        patch.setattr(Heartbeats, "_connecting", with_little_patience)
        store = opened(f"{own_server.address}/late", ENDLESS_MS)
    store.create("/n", b"0")
    may_connect = no_new_connection(store)
    own_server.pause()
    try:
        with pytest.raises(ConnectionLost):
            store.set("/n", b"1")
        wait_for_store(lambda: is_lost(store))
    finally:
        own_server.resume()
    other = opened(f"{own_server.address}/late")
    # The paused server has the request in its socket and carries it out later, unless the same client's next connection
    # comes first.
    wait_for_store(lambda: other.get("/n") == other.get("/n")._replace(data=b"1", version=1))
    may_connect.set()


def test_a_paused_server_does_not_hold_up_the_end_of_a_store(own_server, opened, monkeypatch):
    monkeypatch.setattr("kcore.metadata.zookeeper_session._CLOSE_TIMEOUT_S", 0.2)
    store = opened(f"{own_server.address}/close")
    own_server.pause()
    closing = threading.Thread(target=store.close, daemon=True)
    try:
        closing.start()
        wait_for_store(lambda: not closing.is_alive(), 50)  # the session's timeout is 60 s
    finally:
        own_server.resume()


def test_a_store_without_a_connection_does_not_wait_for_its_server_at_its_end(own_server, opened, monkeypatch):
    monkeypatch.setattr("kcore.metadata.zookeeper_session._CLOSE_TIMEOUT_S", ENDLESS_MS)
    store = opened(f"{own_server.address}/close", ENDLESS_MS)
    handler = store._session.client.handler
    connection = handler._socket
    own_server.pause()
    closing = threading.Thread(target=store.close, daemon=True)
    try:
        with pytest.raises(ConnectionLost):
            store.ping(200)
        wait_for_store(lambda: handler._socket is not connection)  # the next one, which the server does not take
        closing.start()
        wait_for_store(lambda: not closing.is_alive())
    finally:
        own_server.resume()


def test_a_ping_without_an_answer_costs_the_connection_at_once(own_server, opened, monkeypatch):
    store = opened(f"{own_server.address}/ping", ENDLESS_MS)  # by itself the connection is lost after two thirds of it
    store.ping(LONG_MS)
    own_server.pause()
    try:
        with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:\d+/ping: no answer within 200 ms"):
            store.ping(200)
        wait_for_store(lambda: not store._session._is_connected)
        # The next connection is not broken because the last one was.
        broken = []
        monkeypatch.setattr(store._session.client.handler, "break_connection", lambda: broken.append(True))
        with pytest.raises(ConnectionLost, match="suspended"):
            store.ping(LONG_MS)
        assert not broken
        monkeypatch.undo()
    finally:
        own_server.resume()
    wait_for_store(lambda: answers(store))


# -- the end of sessions --------------------------------------------------------------------------------


def test_after_an_expiry_no_other_session_begins_by_itself(zookeeper, opened):
    store, other = opened(zookeeper), opened(zookeeper)
    store.create("/e", ephemeral=True)
    session, states = store._session, []
    session.client.add_listener(states.append)
    expire(store)
    # kazoo would have connected again at once, and done in a new session what was asked of the old one.
    # The test's listener is called after the store's, which stops the client.
    wait_for_store(lambda: not session.client.handler.running and KazooState.LOST in states)
    assert KazooState.CONNECTED not in states[states.index(KazooState.LOST) :]
    assert not session.client.connected
    for call in (lambda: store.create("/e", ephemeral=True), lambda: store.get("/")):
        with pytest.raises(SessionExpired):
            call()
    assert other.get("/e") is None
    assert store.new_session() == store.session_id != session.session_id
    store.create("/e", ephemeral=True)
    assert other.get("/e").ephemeral_owner == store.session_id


def test_a_call_in_flight_when_the_session_ends_fails_with_it(zookeeper, opened):
    store = opened(zookeeper)
    store.create("/n")
    stop, errors = threading.Event(), []

    def write():
        while not stop.is_set():
            try:
                store.set("/n", b"")
            except StoreError as error:
                errors.append(error)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    wait_for_store(lambda: store.get("/n").version > 10)
    expire(store)
    wait_for_store(lambda: any(isinstance(error, SessionExpired) for error in errors))
    stop.set()
    writer.join(60)
    assert all(isinstance(error, ConnectionLost | SessionExpired) for error in errors)


def test_a_new_session_waits_for_a_server(own_server, opened, monkeypatch):
    store = opened(f"{own_server.address}/new")
    expire(store)
    own_server.stop()
    with monkeypatch.context() as patch:
        patch.setattr(store, "_connection_timeout_ms", 300)
        with pytest.raises(ConnectionLost):
            store.new_session()
    with pytest.raises(SessionExpired):
        store.get("/")
    own_server.start()
    wait_for_store(store.new_session)
    assert answers(store)


def test_a_session_that_begins_while_its_store_is_closed_ends_with_it(zookeeper, opened, monkeypatch):
    store = opened(zookeeper)
    expire(store)
    start, begun = Session.start, []

    def start_and_close_the_store(session, timeout_ms):
        begun.append(session)
        has_begun = start(session, timeout_ms)
        store.close()
        return has_begun

    monkeypatch.setattr(Session, "start", start_and_close_the_store)
    try:
        with pytest.raises(StoreClosed):
            store.new_session()
        assert not begun[0].client.connected
    finally:
        begun[0].close()


def test_an_abandoned_session_lives_for_its_timeout(zookeeper, opened):
    other = opened(zookeeper)
    while True:
        try:
            dead = open_store(zookeeper, session_timeout_ms=3000, connection_timeout_ms=LONG_MS)
            dead.create("/e", ephemeral=True)
            break
        except StoreError:
            pass  # this process stood still for seconds, and the session has ended
    owner = dead.session_id
    dead.abandon()
    with pytest.raises(StoreError):
        dead.get("/e")
    node = other.get("/e")
    assert node is None or node.ephemeral_owner == owner
    dead.close()
    wait_for_store(lambda: other.get("/e") is None)


def test_a_closed_store_leaves_no_thread(zookeeper):
    threads = threading.active_count()
    store = open_store(zookeeper, session_timeout_ms=LONG_MS)
    store.get("/", lambda event: None)
    store.close()
    wait_for_store(lambda: threading.active_count() <= threads)


# -- the chroot -----------------------------------------------------------------------------------------


def test_a_chroot_that_is_deleted_while_the_store_is_open_is_named_and_nothing_is_created_again(
    zookeeper, opened, caplog
):
    outside = opened(zookeeper)
    inside, address = opened(f"{zookeeper}/cluster"), f"{zookeeper}/cluster".removeprefix("zookeeper://")
    session_events = []
    inside.add_session_listener(session_events.append)
    inside.create_recursive("/brokers/ids")
    with caplog.at_level(logging.INFO):
        assert outside.delete_recursive("/cluster")
        # It creates the node again as long as it does not know why the parent is not there.
        with pytest.raises(ChrootGone, match=re.escape(f"{address}: ")):
            inside.update("/latest_producer_id_block", lambda data: b"{}")
    for call in (lambda: inside.get("/"), lambda: inside.children("/"), lambda: inside.create("/x")):
        with pytest.raises(ChrootGone):
            call()
    # Another cluster's, if anybody's.
    outside.create("/cluster")
    deliver_all(inside)
    with pytest.raises(ChrootGone):
        inside.create("/x")
    assert issubclass(ChrootGone, ConnectionLost) and session_events == [SessionEvent.SUSPENDED]
    lines = [record for record in caplog.records if "/cluster was deleted" in record.getMessage()]
    assert [line.levelname for line in lines] == ["ERROR"] and not any(line.exc_info for line in caplog.records)
    assert outside.children("/cluster") == []


def test_a_chroot_that_is_deleted_while_the_connection_is_lost_is_noticed_with_the_next(own_server, opened):
    store, other = opened(f"{own_server.address}/gone/while-away"), opened(own_server.address)
    connections = store._session.connections
    may_connect = no_new_connection(store)
    store._session.client.handler.break_connection()
    wait_for_store(lambda: is_lost(store))
    other.delete_recursive("/gone")
    may_connect.set()
    wait_for_store(lambda: store._session.connections > connections and store._is_chroot_gone)
    with pytest.raises(ChrootGone):
        store.get("/x")


# -- what is logged -------------------------------------------------------------------------------------


def test_while_the_server_is_away_there_is_one_line_for_each_change_of_the_sessions_state(own_server, opened, caplog):
    with caplog.at_level(logging.INFO):
        store = opened(f"{own_server.address}/quiet")
        connections, session = store._session.connections, store._session
        attempts = []
        connect = session.client.handler.create_connection
        session.client.handler.create_connection = lambda *args, **kwargs: (
            attempts.append(1) or connect(*args, **kwargs)
        )
        own_server.stop()
        wait_for_store(lambda: is_lost(store) and len(attempts) >= 3)
        own_server.start()
        wait_for_store(lambda: session.connections > connections and answers(store))
        store.close()
    lines = [record for record in caplog.records if record.name.startswith(("kazoo", "kcore"))]
    # Once more for each connection that a starting server took and lost again.
    changes = [
        ("WARNING", "kcore.metadata.zookeeper_session", True),
        ("INFO", "kcore.metadata.zookeeper_session", False),
    ] * (session.connections - connections)
    assert [(line.levelname, line.name, "is suspended" in line.getMessage()) for line in lines] == changes
    assert "connected again" in lines[1].getMessage()


def test_an_exception_that_kazoo_did_not_expect_stays_an_error(caplog):
    with caplog.at_level(logging.DEBUG):
        KAZOO_LOG.warning("Connection dropped: %s", "x")
        try:
            raise ValueError("what kazoo did not expect")
        except ValueError:
            KAZOO_LOG.exception("Unhandled exception in connection loop")
    assert [record.levelname for record in caplog.records] == ["DEBUG", "ERROR"]


# -- errors ---------------------------------------------------------------------------------------------


def test_the_operation_that_failed_is_named_among_many(zookeeper, opened):
    store = opened(zookeeper)
    store.create("/there")
    with pytest.raises(MultiFailed) as failed:
        store.multi([Create(f"/n{i}") for i in range(50)] + [Create("/there")] + [Check("/none")] * 3)
    assert failed.value.index == 50 and isinstance(failed.value.cause, NodeExists)
    assert "/there" in str(failed.value)
    assert store.children("/") == ["there"]


#: What nobody can say more about than that the server has said it.
_UNEXPECTED = {
    "APIError",
    "BadArgumentsError",
    "DataInconsistency",
    "EphemeralOnLocalSessionError",
    "InvalidCallbackError",
    "MarshallingError",
    "NoWatcherError",
    "ReconfigDisabledError",
    "RolledBackError",
    "RuntimeInconsistency",
    "SystemZookeeperError",
    "UnimplementedError",
}
#: Bases, and what belongs to parts of kazoo that are not used.
_NOT_OURS = {"KazooException", "ZookeeperError", "ConfigurationError", "LockTimeout", "WriterNotClosedException"}


def test_each_error_of_zookeeper_has_a_meaning_for_brokers_and_for_clients():
    meanings = {}
    for kind in {value for value in vars(kazoo_exceptions).values() if isinstance(value, type)}:
        if issubclass(kind, kazoo_exceptions.KazooException) and kind.__name__ not in _NOT_OURS:
            meanings[kind.__name__] = store_error(kind("said the server"), "")
    unexpected = {name for name, meaning in meanings.items() if type(meaning) is StoreError}
    assert unexpected == _UNEXPECTED
    for name in unexpected:
        assert name in str(meanings[name]) and api_error(meanings[name]).code == UnknownServerError.code
    retried = {
        "ConnectionLoss", "ConnectionDropped", "OperationTimeoutError", "RequestTimeoutError", "ThrottledOpError",
        "SessionExpiredError", "SessionMovedError", "UnknownSessionError", "ConnectionClosedError", "NoNodeError",
        "ReconfigInProcessError", "NewConfigNoQuorumError", "NotReadOnlyCallError", "CancelledError",
        "ZookeeperStoppedError", "NodeExistsError", "BadVersionError", "NotEmptyError",
    }  # fmt: skip
    assert {name for name, meaning in meanings.items() if api_error(meaning).retriable} == retried
    for name in ("NoAuthError", "AuthFailedError", "InvalidACLError", "SASLException"):
        assert isinstance(meanings[name], NotAllowed) and api_error(meanings[name]).code == 31
    assert api_error(meanings["QuotaExceededError"]).code == api_error(MultiTooLarge("x")).code == 44
    assert api_error(MultiFailed(3, NotAllowed("/brokers"))).code == 31


def test_a_node_without_data_as_kafka_makes_it_has_empty_data(zookeeper, opened):
    store = opened(zookeeper)
    client = store._session.client
    transaction = client.transaction()
    transaction.create("/null", b"")
    transaction.operations[0] = transaction.operations[0]._replace(data=None)
    transaction.commit()
    assert client.get("/null")[0] is None
    assert store.get("/null").data == b""
