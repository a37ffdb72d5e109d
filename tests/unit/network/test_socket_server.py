"""The socket server as a client sees it: framing, order, bounds, clean ends."""

import gc
import os
import random
import selectors
import socket
import struct
import threading
import time
from collections import deque
from functools import partial

import pytest

from kcore.common.time import MockTime
from kcore.network import processor as module
from kcore.network.poller import HANGUP, READ, WRITE, SelectorPoller, new_poller
from kcore.network.socket_server import LOCAL_LISTENER, SocketServer
from kcore.network.throttled_sockets import ThrottledSockets
from tests.own_process import in_own_process
from tests.waiting import wait_until


def answer(request, *chunks):
    size = sum(chunk.size_in_bytes if isinstance(chunk, FileLike) else len(chunk) for chunk in chunks)
    request.respond([struct.pack(">i", size), *chunks])


def echo(request):
    answer(request, bytes(request.buffer))


@pytest.fixture
def serve():
    """serve(handler, **settings) -> a running server; all of them are stopped at the end."""
    servers = []

    def start(handler=echo, **settings):
        server = SocketServer(**settings)
        server.start(handler)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()


def connect(server):
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def frame(body):
    return struct.pack(">i", len(body)) + body


def read_exactly(sock, size):
    data = bytearray()
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise EOFError(f"{len(data)} of {size} bytes")
        data += chunk
    return bytes(data)


def read_frame(sock):
    return read_exactly(sock, struct.unpack(">i", read_exactly(sock, 4))[0])


def is_closed(sock):
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


class FileLike:
    """A chunk that sends itself, at most `step` bytes a call, as FileRecords do."""

    def __init__(self, data, step=1 << 30):
        self.data, self.step, self.size_in_bytes = data, step, len(data)

    def send_to(self, sock_fd, offset=0):
        try:
            return os.write(sock_fd, self.data[offset : offset + self.step])
        except BlockingIOError:
            return 0


@pytest.mark.parametrize("size", [0, 1, 3, 4, 100, 65531, 65532, 65533, 65536, 70_000, 300_000, 5_000_000])
def test_a_request_of_any_size_arrives_whole_and_its_response_too(serve, size):
    sock = connect(serve())
    body = random.Random(size).randbytes(size)
    threading.Thread(target=sock.sendall, args=(frame(body),), daemon=True).start()
    assert read_frame(sock) == body


@pytest.mark.parametrize("seed", range(5))
def test_requests_cut_and_glued_at_random_places_come_out_in_order(serve, seed):
    rng = random.Random(seed)
    sock = connect(serve())
    bodies = [rng.randbytes(rng.choice([0, 1, 5, 50, 3000, 66_000, 140_000])) for _ in range(60)]
    stream = b"".join(map(frame, bodies))

    def feed():
        at = 0
        while at < len(stream):
            step = rng.choice([1, 2, 3, 7, 1000, 65_536, 100_000])
            sock.sendall(stream[at : at + step])
            at += step

    threading.Thread(target=feed, daemon=True).start()
    for i, body in enumerate(bodies):
        assert read_frame(sock) == body, f"seed={seed} request {i}"


def test_pipelined_requests_wait_while_one_is_in_flight_and_are_answered_in_order(serve):
    parked = []
    seen = []

    def handler(request):
        seen.append(bytes(request.buffer))
        if seen[-1] == b"park":
            parked.append(request)
        else:
            answer(request, seen[-1])

    sock = connect(serve(handler))
    sock.sendall(frame(b"park") + frame(b"second") + frame(b"third"))
    wait_until(lambda: parked, "the first request was not handled")
    sock.sendall(frame(b"fourth"))
    time.sleep(0.05)
    assert seen == [b"park"]
    answer(parked[0], b"late")  # from this thread, not the processor's
    assert [read_frame(sock) for _ in range(4)] == [b"late", b"second", b"third", b"fourth"]


def test_a_peer_that_hangs_up_is_noticed_although_its_request_was_read_behind_another(serve):
    parked, abandoned = [], []

    def park(request):
        request.on_abandoned = abandoned.append
        parked.append(request)

    sock = connect(serve(park))
    sock.sendall(frame(b"0"))
    wait_until(lambda: parked, "the first request")
    sock.sendall(frame(b"1"))
    wait_until(lambda: parked[0].connection.interest == 0, "a request waits behind the one that is in flight")
    answer(parked[0], b"0")
    assert read_frame(sock) == b"0"  # with unread bytes a close would be a reset, which is noticed in any case
    wait_until(lambda: len(parked) == 2, "the second request")
    sock.close()
    wait_until(lambda: abandoned == [parked[1]], "the connection is closed")


def test_a_connection_with_a_request_behind_each_answer_is_not_polled_in_between(serve, monkeypatch):
    monkeypatch.setattr(module, "POLL_AGAIN_MS", 600_000)
    modified = []

    class CountingPoller:
        def __init__(self):
            self.poller = new_poller()

        def __getattr__(self, name):
            return getattr(self.poller, name)

        def modify(self, fd, interest):
            modified.append(interest)
            self.poller.modify(fd, interest)

    monkeypatch.setattr(module, "new_poller", CountingPoller)
    parked = []
    sock = connect(serve(parked.append))
    sock.sendall(frame(b"0"))
    wait_until(lambda: parked, "the first request")
    sock.sendall(frame(b"1"))
    for i in range(20):
        wait_until(lambda: parked and modified == [0], "a request waits behind the one that is in flight")
        sock.sendall(frame(b"%d" % (i + 2)))
        answer(parked.pop(), b"%d" % i)
        assert read_frame(sock) == b"%d" % i
    for i in (20, 21):
        wait_until(lambda: parked, "the last requests")
        answer(parked.pop(), b"%d" % i)
        assert read_frame(sock) == b"%d" % i
    wait_until(lambda: modified == [0, READ], "polled again once nothing is left")
    sock.sendall(frame(b"more"))
    wait_until(lambda: parked and parked[0].buffer == b"more", "read again")


def test_one_connection_answers_another_connections_request(serve):
    parked = []

    def handler(request):
        if request.buffer == b"park":
            parked.append(request)
        else:
            answer(parked.pop(), b"woken")
            answer(request, b"waker")

    server = serve(handler)
    a, b = connect(server), connect(server)
    a.sendall(frame(b"park"))
    wait_until(lambda: parked, "not parked")
    b.sendall(frame(b"wake"))
    assert read_frame(a) == b"woken"
    assert read_frame(b) == b"waker"


def test_a_request_is_answered_only_once(serve):
    failures = []

    def handler(request):
        answer(request, b"one")
        try:
            answer(request, b"two")
        except RuntimeError as error:
            failures.append(error)

    sock = connect(serve(handler))
    sock.sendall(frame(b"x") + frame(b"y"))
    assert [read_frame(sock), read_frame(sock)] == [b"one", b"one"]
    wait_until(lambda: len(failures) == 2, "a second answer was taken")


def test_a_request_without_response_lets_the_next_one_come(serve):
    def handler(request):
        if request.buffer == b"quiet":
            request.respond_nothing()
        else:
            echo(request)

    sock = connect(serve(handler))
    sock.sendall(frame(b"quiet") + frame(b"loud"))
    assert read_frame(sock) == b"loud"


@pytest.mark.parametrize("from_thread", [False, True])
def test_a_request_may_end_its_connection_and_no_other(serve, from_thread):
    def handler(request):
        if request.buffer == b"die":
            if from_thread:
                threading.Thread(target=request.close_connection, args=("asked to",)).start()
            else:
                request.close_connection("asked to")
        else:
            echo(request)

    server = serve(handler)
    a, b = connect(server), connect(server)
    a.sendall(frame(b"die"))
    assert is_closed(a)
    b.sendall(frame(b"live"))
    assert read_frame(b) == b"live"


def test_a_handler_that_raises_ends_its_connection_and_no_other(serve, caplog):
    def handler(request):
        if request.buffer == b"boom":
            raise ZeroDivisionError("a bug")
        echo(request)

    server = serve(handler)
    a, b = connect(server), connect(server)
    a.sendall(frame(b"boom"))
    assert is_closed(a)
    b.sendall(frame(b"live"))
    assert read_frame(b) == b"live"
    assert "a bug" in caplog.text


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_an_absurd_size_closes_that_connection_only_and_is_logged(serve, size, caplog):
    server = serve(socket_request_max_bytes=1000)
    a, b = connect(server), connect(server)
    a.sendall(struct.pack(">i", size) + b"garbage")
    assert is_closed(a)
    b.sendall(frame(b"z" * 1000))
    assert read_frame(b) == b"z" * 1000
    assert f"request size {size}" in caplog.text


def test_chunks_of_bytes_and_files_leave_in_order_whatever_the_socket_takes(serve):
    data = random.Random(1).randbytes(3_000_000)

    def handler(request):
        answer(
            request,
            *[
                b"head",
                b"",
                FileLike(data[:1_000_000], step=10_001),
                bytearray(b"mid"),
                FileLike(b""),
                memoryview(b"dle"),
            ],
            *[bytes([i]) for i in range(50)],
            *[data[1_000_000:], FileLike(b"tail")],
        )

    sock = connect(serve(handler, socket_send_buffer_bytes=8192))
    sock.sendall(frame(b"go") + frame(b"again"))
    expected = b"head" + data[:1_000_000] + b"middle" + bytes(range(50)) + data[1_000_000:] + b"tail"
    assert read_frame(sock) == expected
    assert read_frame(sock) == expected


def test_a_client_that_does_not_read_delays_no_other(serve):
    big = bytes(20_000_000)

    def handler(request):
        answer(request, big if request.buffer == b"big" else b"small")

    server = serve(handler)
    slow = [connect(server) for _ in range(5)]
    for sock in slow:
        sock.sendall(frame(b"big") + frame(b"big"))
    fast = connect(server)
    for _ in range(100):
        fast.sendall(frame(b"x"))
        assert read_frame(fast) == b"small"
    assert read_frame(slow[0]) == big


def test_half_a_request_delays_no_other_client(serve):
    server = serve()
    halves = [connect(server) for _ in range(20)]
    for n, sock in enumerate(halves):
        sock.sendall(frame(b"x" * 100_000)[: 3 + n * 5000])
    sock = connect(server)
    sock.sendall(frame(b"live"))
    assert read_frame(sock) == b"live"


@pytest.mark.parametrize("reset", [False, True])
def test_the_connection_of_a_peer_that_vanishes_with_a_request_in_flight_is_removed(serve, reset):
    parked = []
    server = serve(parked.append)
    sock = connect(server)
    sock.sendall(frame(b"park"))
    wait_until(lambda: parked, "not parked")
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    wait_until(lambda: server.connection_count == 0, "the dead connection stays")
    answer(parked[0], b"to nobody")
    assert server.processors[0].is_running


def test_an_idle_connection_is_closed_and_a_busy_or_waiting_one_is_not(serve):
    parked = []

    def handler(request):
        if request.buffer == b"park":
            parked.append(request)
        else:
            echo(request)

    clock = MockTime()
    server = serve(handler, connections_max_idle_ms=150, time=clock)
    idle, busy, waiting = connect(server), connect(server), connect(server)
    waiting.sendall(frame(b"park"))
    wait_until(lambda: parked and server.connection_count == 3, "the request was not handled")
    for _ in range(30):
        busy.sendall(frame(b"tick"))
        assert read_frame(busy) == b"tick"
        clock.sleep(20)
        server.processors[0].wake_up()
    assert is_closed(idle)
    answer(parked[0], b"done")
    assert read_frame(waiting) == b"done"


def test_beyond_max_connections_a_client_waits_until_another_one_leaves(serve):
    server = serve(max_connections=2)
    a, b = connect(server), connect(server)
    for sock in (a, b):
        sock.sendall(frame(b"x"))
        read_frame(sock)
    c = connect(server)  # the kernel takes it, the server does not yet
    c.sendall(frame(b"third"))
    c.settimeout(0.1)
    with pytest.raises(TimeoutError):
        c.recv(1)
    a.close()
    c.settimeout(60)
    assert read_frame(c) == b"third"


def test_a_higher_limit_lets_in_a_client_that_waits(serve):
    server = serve(max_connections=1)
    a = connect(server)
    a.sendall(frame(b"x"))
    read_frame(a)
    b = connect(server)
    b.sendall(frame(b"second"))
    b.settimeout(0.1)
    with pytest.raises(TimeoutError):
        b.recv(1)
    server.limit_connections(2, 2)
    b.settimeout(60)
    assert read_frame(b) == b"second"
    server.limit_connections(3, 2)
    assert is_closed(connect(server))


def test_beyond_max_connections_per_ip_a_client_is_refused(serve):
    server = serve(max_connections_per_ip=1)
    a = connect(server)
    a.sendall(frame(b"x"))
    read_frame(a)
    assert is_closed(connect(server))
    a.close()

    def accepted():
        sock = connect(server)
        try:
            sock.sendall(frame(b"y"))
            return read_frame(sock) == b"y"
        except (OSError, EOFError):
            return False

    wait_until(accepted, "the place was not given back")


def test_a_throttled_connection_is_not_read_and_is_closed_when_its_time_is_over(serve):
    clock = MockTime()
    server = serve(time=clock)
    waits = [0, 5000, 1000]
    server.connection_throttle_ms = lambda host: waits.pop(0)
    served, long, short = socks = [connect(server) for _ in range(3)]
    for sock in socks:
        sock.sendall(frame(b"hello"))
    assert read_frame(served) == b"hello"
    wait_until(lambda: len(server.processors[0]._throttled) == 2)
    assert server.connection_count == 1
    for ms, is_over in ((999, ()), (1, (short,)), (3999, (short,)), (1, (short, long))):
        clock.sleep(ms)
        served.sendall(frame(b"another turn"))
        assert read_frame(served) == b"another turn"
        served.sendall(frame(b"and its end"))
        assert read_frame(served) == b"and its end"
        for sock in (short, long):
            if sock in is_over:
                assert is_closed(sock)
            else:
                sock.settimeout(0)
                with pytest.raises(BlockingIOError):
                    sock.recv(1)
                sock.settimeout(60)


def test_throttled_connections_are_closed_early_when_they_are_too_many(monkeypatch):
    monkeypatch.setattr("kcore.network.throttled_sockets._MAX_SOCKETS", 2)
    throttled, pairs = ThrottledSockets(), [socket.socketpair() for _ in range(3)]
    for (ours, _), until_ms in zip(pairs, (30, 10, 20), strict=True):
        throttled.add(ours, until_ms)
    assert [ours.fileno() < 0 for ours, _ in pairs] == [False, True, False]
    assert (len(throttled), throttled.next_ms) == (2, 20)
    throttled.close()
    for ours, theirs in pairs:
        assert ours.fileno() < 0
        theirs.close()


def test_a_request_that_came_with_a_parked_one_is_served_when_a_request_of_another_connection_answers_that(serve):
    parked = []

    def handler(request):
        body = bytes(request.buffer)
        if body == b"park":
            parked.append(request)
            return
        if body == b"answer the parked one":
            answer(parked.pop(), b"parked")
        answer(request, body)

    server = serve(handler)
    a, b = connect(server), connect(server)
    a.sendall(frame(b"park") + frame(b"next"))
    wait_until(lambda: parked, "not parked")
    b.sendall(frame(b"answer the parked one"))
    assert read_frame(b) == b"answer the parked one"
    a.settimeout(30)  # when a's thread next checks for idle connections, a minute later, it would find the request
    assert (read_frame(a), read_frame(a)) == (b"parked", b"next")


def test_queued_max_request_bytes_makes_new_requests_wait(serve):
    parked = []
    server = serve(parked.append, queued_max_request_bytes=1000)
    a, b = connect(server), connect(server)
    a.sendall(frame(b"a" * 2000))
    wait_until(lambda: len(parked) == 1, "not parked")
    b.sendall(frame(b"b"))
    time.sleep(0.1)
    assert len(parked) == 1
    answer(parked[0], b"done")
    wait_until(lambda: len(parked) == 2, "the second request starved")
    answer(parked[1], b"done too")
    assert (read_frame(a), read_frame(b)) == (b"done", b"done too")
    wait_until(lambda: sum(p.queued_bytes for p in server.processors) == 0, "queued bytes leak")


def is_starved(server, connections):
    return sum(len(processor._starved) for processor in server.processors) == connections


@pytest.mark.parametrize("how", ["answered", "closed"])
def test_bytes_that_one_network_thread_frees_let_a_connection_of_another_begin_its_request(serve, how):
    parked = []
    server = serve(parked.append, queued_max_request_bytes=1000, num_network_threads=2)
    a, b = connect(server), connect(server)  # of one thread and of the other
    a.sendall(frame(b"a" * 2000))
    wait_until(lambda: len(parked) == 1, "not parked")
    b.sendall(frame(b"b"))
    wait_until(lambda: is_starved(server, 1), "the second request did not wait")
    if how == "answered":
        answer(parked[0], b"done")
        assert read_frame(a) == b"done"
    else:
        a.close()
    # Without a wake-up its thread sleeps until it checks for idle connections, for about a minute.
    wait_until(lambda: len(parked) == 2, "the second request starved", timeout_s=30)
    answer(parked[1], b"done too")
    assert read_frame(b) == b"done too"
    assert is_starved(server, 0)


def test_a_connection_that_is_handed_over_when_its_thread_has_just_emptied_its_queue_is_served(serve):
    server = serve(num_network_threads=2)
    processor = server.processors[1]
    armed, is_empty, is_handed_over = threading.Event(), threading.Event(), threading.Event()

    class Incoming(deque):
        """Seen as empty; then, before the thread does anything else, the next connection is handed over."""

        def __bool__(self):
            has_some = len(self) > 0
            if not has_some and armed.is_set() and threading.get_ident() == processor._ident:
                armed.clear()
                is_empty.set()
                assert is_handed_over.wait(60)
            return has_some

    hand_over = processor.hand_over

    def note_hand_over(connection):
        if is_empty.is_set():
            hand_over(connection)
            is_handed_over.set()
        else:
            armed.set()
            hand_over(connection)

    processor._incoming = Incoming(processor._incoming)
    processor.hand_over = note_hand_over
    connections = [connect(server) for _ in range(2)]  # of one thread and of the other
    assert is_empty.wait(60)
    connections += [connect(server) for _ in range(2)]
    for sock in connections:
        sock.sendall(frame(b"hello"))
        assert read_frame(sock) == b"hello"


def test_bytes_of_an_idle_connection_that_is_closed_let_another_begin_its_request(serve):
    clock, limit_ms = MockTime(), 600_000
    server = serve(time=clock, queued_max_request_bytes=1000, connections_max_idle_ms=limit_ms)
    a = connect(server)
    a.sendall(struct.pack(">i", 5000) + b"a" * 3000)  # never ends
    wait_until(lambda: server.processors[0].queued_bytes > 1000, "not read")
    clock.sleep(limit_ms / 2)
    b = connect(server)
    b.sendall(frame(b"b"))
    wait_until(lambda: is_starved(server, 1), "the second request did not wait")
    clock.sleep(limit_ms / 2 + 1)
    server.processors[0].wake_up()
    assert is_closed(a)
    b.settimeout(30)
    assert read_frame(b) == b"b"


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(frame(b"a" * 5000) + struct.pack(">i", -1), id="a whole request, then an invalid size"),
        pytest.param(struct.pack(">i", 200_000) + b"a" * (module.SCRATCH_BYTES - 4), id="the first part of a request"),
    ],
)
def test_a_read_that_ends_its_connection_leaves_no_queued_bytes(serve, stream):
    """What the same read took before the error counts, because the close takes it off."""
    is_busy, may_go_on = threading.Event(), threading.Event()

    def handler(request):
        is_busy.set()
        assert may_go_on.wait(60)
        echo(request)

    server = serve(handler)
    a, b = connect(server), connect(server)
    a.sendall(frame(b"a"))
    assert is_busy.wait(60)  # so the other connection's bytes and its end come in one read
    b.sendall(stream)
    b.shutdown(socket.SHUT_WR)
    may_go_on.set()
    assert is_closed(b)
    assert read_frame(a) == b"a"
    assert server.processors[0].queued_bytes == 0


@pytest.mark.parametrize("threads", [1, 3])
def test_many_clients_at_once_each_get_their_own_answers(serve, threads):
    server = serve(num_network_threads=threads)
    failures = []

    def client(number):
        rng = random.Random(number)
        sock = connect(server)
        for _ in range(100):
            body = rng.randbytes(rng.choice([3, 300, 80_000]))
            sock.sendall(frame(body))
            if read_frame(sock) != body:
                failures.append(number)

    workers = [threading.Thread(target=client, args=(n,)) for n in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


@in_own_process
def test_after_shutdown_no_thread_and_no_descriptor_is_left():
    fds, threads = set(os.listdir("/proc/self/fd")), set(threading.enumerate())
    server = SocketServer(num_network_threads=2)
    server.start(lambda request: None)
    socks = [connect(server) for _ in range(4)]
    for sock in socks:
        sock.sendall(frame(b"never answered") + frame(b"more"))
    wait_until(lambda: server.connection_count == 4, "not connected")
    server.shutdown()
    assert all(is_closed(sock) for sock in socks)
    for sock in socks:
        sock.close()
    assert set(threading.enumerate()) == threads
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == fds
    server.shutdown()  # a second time does no harm


def test_a_forked_child_gives_up_the_sockets_and_the_parent_keeps_serving(serve):
    server = serve()
    sock = connect(server)
    sock.sendall(frame(b"before"))
    assert read_frame(sock) == b"before"
    child = os.fork()
    if child == 0:
        os._exit(0 if server._listening[0].fileno() == -1 and server.connection_count == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    sock.sendall(frame(b"after"))
    assert read_frame(sock) == b"after"


def test_a_port_in_use_is_named(serve):
    port = serve().port
    with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
        SocketServer(listeners=[LOCAL_LISTENER._replace(port=port)])


def test_an_unknown_host_is_named():
    with pytest.raises(OSError, match=r"cannot listen on 300\.1\.1\.1:0"):
        SocketServer(listeners=[LOCAL_LISTENER._replace(host="300.1.1.1")])


def test_without_descriptors_accepting_rests_and_goes_on(serve):
    server = serve()
    (listener,) = server._listening
    failures = [OSError(24, "Too many open files")] * 2

    class Broken:
        def accept(self):
            if failures:
                raise failures.pop()
            return listener.accept()

    accepts = server.processors[0]._accepts
    accepts[listener.fileno()] = partial(server._accept, Broken(), *accepts[listener.fileno()].args[1:])
    sock = connect(server)
    sock.sendall(frame(b"patience"))
    assert read_frame(sock) == b"patience"
    assert not failures


def test_an_idle_server_sleeps(serve):
    server = serve()
    connect(server).close()
    wait_until(lambda: server.connection_count == 0, "not closed")

    def sleeps():
        before = time.process_time()
        time.sleep(0.3)
        return time.process_time() - before < 0.03

    wait_until(sleeps, "it is never idle")


@pytest.mark.parametrize("make", [new_poller, SelectorPoller], ids=["best", "selectors"])
def test_every_poller_reports_the_same(make):
    poller = make()
    a, b = socket.socketpair()
    try:
        poller.register(a.fileno(), READ)
        assert list(poller.poll(0)) == []
        b.send(b"x")
        assert list(poller.poll(1000)) == [(a.fileno(), READ)]
        poller.modify(a.fileno(), READ | WRITE)
        assert list(poller.poll(1000)) == [(a.fileno(), READ | WRITE)]
        poller.modify(a.fileno(), 0)
        assert list(poller.poll(10)) == []
        b.close()
        assert all(ready & HANGUP for _, ready in poller.poll(10))
        poller.modify(a.fileno(), READ)
        ((fd, ready),) = poller.poll(1000)
        assert fd == a.fileno() and ready & READ
        poller.modify(a.fileno(), 0)
        poller.unregister(a.fileno())
        assert list(poller.poll(0)) == []
    finally:
        poller.close()
        a.close()
        b.close()


def test_the_server_works_on_the_portable_poller_too(serve, monkeypatch):
    monkeypatch.setattr(module, "new_poller", lambda: SelectorPoller(selectors.PollSelector()))
    sock = connect(serve(socket_send_buffer_bytes=8192))
    body = bytes(2_000_000)
    threading.Thread(target=sock.sendall, args=(frame(body) * 2,), daemon=True).start()
    time.sleep(0.1)
    assert read_frame(sock) == body
    assert read_frame(sock) == body


def throttled_echo(request):
    """Mutes the connection for as many ms as the request's bytes say."""
    body = bytes(request.buffer)
    request.respond([struct.pack(">i", len(body)), body], throttle_ms=int(body))


class TestThrottling:
    """Kafka's quotas: the response leaves at once, the connection's next request waits."""

    @pytest.fixture
    def clock(self):
        return MockTime()

    @pytest.fixture
    def server(self, serve, clock):
        return serve(throttled_echo, time=clock, queued_max_request_bytes=1000)

    def pass_time(self, server, clock, ms):
        """From when a connection is muted, which is after its answer has left."""
        wait_until(lambda: server.processors[0]._muted, "nobody is throttled")
        clock.sleep(ms)
        server.processors[0].wake_up()

    def test_the_response_leaves_at_once_and_the_next_request_when_the_time_is_over(self, server, clock):
        sock, other = connect(server), connect(server)
        sock.sendall(frame(b"500"))
        assert read_frame(sock) == b"500"
        sock.sendall(frame(b"0"))
        self.pass_time(server, clock, 499)
        other.sendall(frame(b"0"))
        assert read_frame(other) == b"0"  # nobody else waits
        sock.settimeout(0.05)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        sock.settimeout(60)
        self.pass_time(server, clock, 1)
        assert read_frame(sock) == b"0"
        sock.sendall(frame(b"0"))  # and from then on at once
        assert read_frame(sock) == b"0"

    def test_requests_that_came_in_the_same_read_wait_too(self, server, clock):
        sock = connect(server)
        sock.sendall(frame(b"100") + frame(b"50") + frame(b"0"))
        assert read_frame(sock) == b"100"
        self.pass_time(server, clock, 100)
        assert read_frame(sock) == b"50"
        sock.settimeout(0.05)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        sock.settimeout(60)
        self.pass_time(server, clock, 50)
        assert read_frame(sock) == b"0"

    def test_a_throttled_connection_that_the_client_closes_is_closed_and_its_throttle_removed(self, server, clock):
        sock = connect(server)
        sock.sendall(frame(b"1000"))
        assert read_frame(sock) == b"1000"
        sock.close()
        wait_until(lambda: server.connection_count == 0, "the connection is still there")
        self.pass_time(server, clock, 1000)
        wait_until(lambda: not server.processors[0]._muted, "it still waits for its end")

    def test_an_answered_request_no_longer_counts_towards_the_bytes_in_memory(self, server, clock):
        sock = connect(server)
        sock.sendall(frame(b"1000"))
        assert read_frame(sock) == b"1000"
        wait_until(lambda: server.processors[0].queued_bytes == 0, "its bytes still count")

    def test_an_answer_from_another_thread_throttles_too(self, serve, clock):
        parked = []
        server = serve(parked.append, time=clock)
        sock = connect(server)
        sock.sendall(frame(b"300"))
        wait_until(lambda: parked, "the request did not come")
        throttled_echo(parked.pop())
        assert read_frame(sock) == b"300"
        sock.sendall(frame(b"0"))
        time.sleep(0.05)
        assert not parked
        self.pass_time(server, clock, 300)
        wait_until(lambda: parked, "the next request did not come")


def test_a_throttled_connection_goes_on_by_the_systems_clock_without_being_woken(serve):
    sock = connect(serve(throttled_echo))
    started = time.monotonic()
    sock.sendall(frame(b"80") + frame(b"0"))
    assert [read_frame(sock), read_frame(sock)] == [b"80", b"0"]
    assert time.monotonic() - started >= 0.08


def test_every_connection_has_the_listener_that_accepted_it(serve):
    def handler(request):
        context = request.connection.context
        answer(request, f"{context.listener_name} {context.principal} {context.client_address}".encode())

    listeners = [LOCAL_LISTENER, LOCAL_LISTENER._replace(name="SECOND")]
    server = serve(handler, listeners=listeners, num_network_threads=2)
    assert [listener.name for listener in server.listeners] == ["PLAINTEXT", "SECOND"]
    ports = [listener.port for listener in server.listeners]
    assert server.port == ports[0] and len(set(ports)) == 2 and 0 not in ports
    for listener in server.listeners * 2:
        with socket.create_connection(("127.0.0.1", listener.port), timeout=60) as sock:
            sock.sendall(frame(b"who"))
            assert read_frame(sock) == f"{listener.name} User:ANONYMOUS 127.0.0.1".encode()
    server.shutdown()
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=60)


@in_own_process
def test_a_listener_that_cannot_be_had_leaves_none_open():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
            SocketServer(listeners=[LOCAL_LISTENER, LOCAL_LISTENER._replace(name="SECOND", port=port)])
        gc.collect()
        assert set(os.listdir("/proc/self/fd")) == before


def test_max_connections_holds_over_all_listeners(serve):
    server = serve(listeners=[LOCAL_LISTENER, LOCAL_LISTENER._replace(name="SECOND")], max_connections=1)
    first = connect(server)
    first.sendall(frame(b"x"))
    assert read_frame(first) == b"x"
    with socket.create_connection(("127.0.0.1", server.listeners[1].port), timeout=60) as second:
        second.settimeout(0.1)
        second.sendall(frame(b"y"))
        with pytest.raises(TimeoutError):
            second.recv(1)
        first.close()
        second.settimeout(60)
        assert read_frame(second) == b"y"
