"""Connections over a transport that encrypts: every request is answered, in order, without a further byte."""

import itertools
import random
import socket
import struct
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcore.common.time import MockTime
from kcore.log.log_segment import LogSegment
from kcore.network.channel_builder import ChannelBuilder
from kcore.network.connection import Connection
from kcore.network.socket_server import SocketServer
from kcore.network.transport import PythonTransport, Transport
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.unit.network.cutting_transport import PEER, CuttingTransport, encrypted, shake_hands
from tests.unit.network.test_socket_server import answer, connect, echo, frame, is_closed, read_exactly
from tests.waiting import wait_until

ANY_SIZE = 1 << 20


def cutting_server(handler=echo, *, script="rw", cuts=(ANY_SIZE,), **options):
    """A running server; the cuts begin anew for each connection."""
    builder = ChannelBuilder(lambda sock: CuttingTransport(sock, script, itertools.cycle(cuts)))
    server = SocketServer(channel_builder=lambda listener: builder, **options)
    server.start(handler)
    return server


@pytest.fixture
def serve():
    servers = []

    def start(*arguments, **options):
        servers.append(cutting_server(*arguments, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()


def connect_and_shake_hands(server, script="rw"):
    sock = connect(server)
    shake_hands(sock, script)
    return sock


def read_frame(sock):
    return encrypted(read_exactly(sock, struct.unpack(">i", encrypted(read_exactly(sock, 4)))[0]))


def answer_later(request):
    """From another thread."""
    body = bytes(request.buffer)
    threading.Thread(target=answer, args=(request, body)).start()


BODIES = [b"first", b"", b"3", b"the fourth"]
STREAM = b"".join(map(frame, BODIES))


@pytest.mark.parametrize("not_now", [0, -1])
@pytest.mark.parametrize("handler", [echo, answer_later])
def test_requests_in_one_write_are_all_answered_wherever_reads_and_writes_are_cut(handler, not_now):
    cuts = []
    builder = ChannelBuilder(lambda sock: CuttingTransport(sock, "", itertools.chain(cuts, itertools.repeat(ANY_SIZE))))
    server = SocketServer(channel_builder=lambda listener: builder)
    server.start(handler)
    try:
        for cut in range(1, len(STREAM)):
            cuts[:] = [cut, not_now]
            sock = connect(server)
            sock.sendall(encrypted(STREAM))
            assert [read_frame(sock) for _ in BODIES] == BODIES, cut
            sock.close()
    finally:
        server.shutdown()


@settings(max_examples=60)
@given(
    cuts=st.lists(st.sampled_from([-1, 0, 1, 2, 3, 5, 1000, 70_000, ANY_SIZE]), min_size=1, max_size=8).filter(
        lambda cuts: max(cuts) > 0
    ),
    sizes=st.lists(st.sampled_from([0, 1, 4, 30, 3000, 100_000]), min_size=1, max_size=12),
    script=st.text("rw", max_size=5),
    is_later=st.booleans(),
)
def test_requests_of_any_size_are_all_answered_in_order_over_any_cuts(cuts, sizes, script, is_later):
    if max(cuts) < 1000:
        sizes = [min(size, 30) for size in sizes]
    bodies = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    server = cutting_server(answer_later if is_later else echo, script=script, cuts=cuts)
    try:
        sock = connect_and_shake_hands(server, script)
        stream = encrypted(b"".join(map(frame, bodies)))
        feeder = threading.Thread(target=sock.sendall, args=(stream,))
        feeder.start()
        assert [read_frame(sock) for _ in bodies] == bodies
        feeder.join()
        sock.close()
    finally:
        server.shutdown()


@pytest.mark.parametrize("is_early", [False, True])
@pytest.mark.parametrize("script", ["".join(steps) for n in range(5) for steps in itertools.product("rw", repeat=n)])
def test_a_handshake_of_any_steps_ends_and_requests_after_it_or_with_it_are_answered(serve, script, is_early):
    principals = []

    def handler(request):
        principals.append(request.connection.peer_principal)
        echo(request)

    sock = connect(serve(handler, script=script))
    if is_early:
        sock.sendall(b"r" * script.count("r") + encrypted(STREAM))
        assert read_exactly(sock, script.count("w")) == b"w" * script.count("w")
    else:
        shake_hands(sock, script)
        sock.sendall(encrypted(STREAM))
    assert [read_frame(sock) for _ in BODIES] == BODIES
    assert principals == [PEER] * len(BODIES)


@pytest.mark.parametrize("script", ["rr", "wr", "rw"])
def test_a_peer_that_leaves_during_the_handshake_is_closed(serve, script):
    server = serve(script=script)
    sock = connect(server)
    if script == "rw":
        sock.sendall(b"r")
        read_exactly(sock, 1)
    sock.close()
    wait_until(lambda: server.connection_count == 0, "closed")


def test_a_handshake_that_does_not_go_on_is_closed_as_an_idle_connection(serve):
    clock = MockTime()
    server = serve(script="wr", time=clock, connections_max_idle_ms=1000)
    sock = connect(server)
    assert read_exactly(sock, 1) == b"w"

    def passes():
        clock.sleep(2000)
        server.processors[0].wake_up()
        return server.connection_count == 0

    wait_until(passes, "closed")
    assert is_closed(sock)


def test_buffered_requests_that_wait_for_room_in_memory_are_read_when_there_is_some(serve):
    """queued.max.request.bytes: the second request has left the socket already, so no poll reports it.  A handshake
    waits for no memory."""
    parked = []
    server = serve(parked.append, cuts=[14], queued_max_request_bytes=20)
    first, large = (connect_and_shake_hands(server) for _ in range(2))
    bodies = [b"0123456789", b"abcdefghij"]
    first.sendall(encrypted(b"".join(map(frame, bodies))))
    wait_until(lambda: parked, "the first request")
    large.sendall(encrypted(frame(bytes(50))))
    wait_until(lambda: len(parked) == 2, "the large request")
    answer(parked[0], bodies[0])
    assert read_frame(first) == bodies[0]
    wait_until(lambda: server.processors[0]._starved, "no room")
    connect_and_shake_hands(server)
    answer(parked[1], b"")
    wait_until(lambda: len(parked) == 3, "the second request")
    answer(parked[2], bodies[1])
    assert read_frame(first) == bodies[1]


def test_buffered_requests_are_read_when_a_throttle_has_ended(serve):
    clock = MockTime()

    def throttled(request):
        body = bytes(request.buffer)
        request.respond([struct.pack(">i", len(body)), body], 1000)

    server = serve(throttled, script="", cuts=[9], time=clock)
    sock = connect(server)
    bodies = [b"12345", b"67890"]
    sock.sendall(encrypted(b"".join(map(frame, bodies))))
    assert read_frame(sock) == bodies[0]
    wait_until(lambda: server.processors[0]._muted, "the throttle")
    clock.sleep(1001)
    server.processors[0].wake_up()
    assert read_frame(sock) == bodies[1]


@pytest.mark.parametrize("cuts", [[1, 0, 70_000], [3000], [ANY_SIZE]])
def test_slices_of_files_leave_encrypted_in_their_place(tmp_path, cuts):
    segment = LogSegment(str(tmp_path), 0)
    builder = RecordBatchBuilder(base_offset=0)
    builder.append(random.Random(0).randbytes(150_000), timestamp=1000)
    segment.append(MemoryRecords(bytes(builder.build())))
    chunks = [b"head", segment.slice(17, 140_000), b"", b"between", segment.slice(0, 0), segment.slice(3, 5), b"end"]
    expected = b"".join(chunk if isinstance(chunk, bytes) else bytes(chunk.read()) for chunk in chunks)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        transport = CuttingTransport(ours, "", itertools.cycle(cuts))
        connection = Connection(transport, SimpleNamespace(client_address="test"), 1 << 20)
        received = bytearray()
        is_sent = connection.send(chunks)
        while not is_sent or len(received) < len(expected):
            received += theirs.recv(1 << 20)
            is_sent = is_sent or connection.flush()
        assert encrypted(received) == expected
        with pytest.raises(OSError, match="ends before"):
            piece = segment.slice(0, 1000)
            segment.truncate_to(0)
            while not connection.send([piece]):
                pass


class BrokenTransport(PythonTransport):
    """Does what one of its methods is given."""

    def __init__(self, sock, broken, action):
        setattr(self, broken, action)

    def handshake(self):
        self.is_ready = True

    def read_into(self, target):
        target[:] = bytes(len(target))  # requests of 0 bytes
        return len(target)

    def write(self, data):
        return len(data)


@pytest.mark.parametrize(
    ("broken", "action"),
    [("handshake", "raises"), *itertools.product(["read_into", "write"], ["raises", "does nothing", "does too much"])],
)
def test_a_transport_with_a_bug_ends_its_connection_and_no_other(broken, action, caplog):
    def act(data=b""):
        if action == "raises":
            raise ValueError("a bug")
        return 0 if action == "does nothing" else len(data) + 1

    transports = iter([lambda sock: BrokenTransport(sock, broken, act), Transport])
    builder = ChannelBuilder(lambda sock: next(transports)(sock))
    server = SocketServer(channel_builder=lambda listener: builder)
    server.start(echo)
    try:
        first, second = connect(server), connect(server)
        first.sendall(frame(b""))
        assert is_closed(first)
        assert "BrokenTransport" in caplog.text
        second.sendall(frame(b"still here"))
        assert read_exactly(second, 14) == frame(b"still here")
    finally:
        server.shutdown()
