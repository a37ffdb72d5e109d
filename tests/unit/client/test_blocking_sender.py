"""BlockingSender against a real broker, and against a server that does everything wrong."""

import contextlib
import errno
import itertools
import socket
import struct
import threading
import time

import pytest

import kcore
from kcore.client.blocking_sender import BlockingSender
from kcore.client.socket_connection import SocketConnection
from kcore.errors import InvalidRequest
from kcore.network.channel_builder import ChannelBuilder
from kcore.network.socket_server import SocketServer
from kcore.protocol.api_keys import SUPPORTED, ApiKey
from kcore.protocol.headers import decode_request_header, encode_response_header
from kcore.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse, unsupported_version_response
from kcore.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kcore.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tests.unit.client.ssl_like_connection import EncryptingConnection, SslLikeConnection
from tests.unit.network.cutting_transport import CuttingTransport

DEADLINE_S = 60
TIMEOUT_MS = DEADLINE_S * 1000


@pytest.fixture(params=[SocketConnection, SslLikeConnection], autouse=True)
def connection_factory(request, monkeypatch):
    """All tests run over both."""
    monkeypatch.setitem(BlockingSender.__init__.__kwdefaults__, "connection_factory", request.param)
    return request.param


@contextlib.contextmanager
def server(*replies):
    """A server that answers the n-th request with replies[n](frame) and then closes; None keeps it waiting.

    Each reply is (bytes, whether the connection stays open).  Yields (host, port, list of connections accepted).
    """
    listening = socket.create_server(("127.0.0.1", 0))
    accepted = []
    pending = list(replies)

    def serve(connection):
        with contextlib.suppress(OSError):
            while pending:
                size = connection.recv(4, socket.MSG_WAITALL)
                if len(size) < 4:
                    return
                frame = connection.recv(struct.unpack(">i", size)[0], socket.MSG_WAITALL)
                reply = pending.pop(0)(frame)
                if reply is None:
                    continue
                connection.sendall(reply[0])
                if not reply[1]:
                    connection.shutdown(socket.SHUT_RDWR)
                    return

    def accept():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                accepted.append(connection)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield *listening.getsockname(), accepted
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(DEADLINE_S)
        for connection in accepted:
            connection.close()


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def heartbeat_reply(frame, *, id_offset=0, error_code=0) -> bytes:
    header = decode_request_header(frame)
    response = HeartbeatResponse(error_code=error_code)
    correlation_id = header.correlation_id + id_offset
    return framed(
        encode_response_header(header.api_key, header.api_version, correlation_id) + response.encode(header.api_version)
    )


def good(frame):
    return heartbeat_reply(frame), True


@contextlib.contextmanager
def sender(host, port, timeout_ms=TIMEOUT_MS, **options):
    sender = BlockingSender(host, port, "tests", request_timeout_ms=timeout_ms, **options)
    try:
        yield sender
    finally:
        sender.close()


REQUEST = HeartbeatRequest(group_id="g", member_id="m", generation_id=1)


# -- a real broker ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker():
    with kcore.Broker() as broker:
        broker.create_topic("t")
        yield broker


def test_a_broker_lists_the_apis_that_it_serves(broker):
    host, port = broker.bootstrap_servers.split(":")
    with sender(host, int(port)) as to_broker:
        assert to_broker.api_versions() == SUPPORTED


def fetch(offset, max_bytes=1 << 30):
    topic = FetchTopic(
        topic="t", partitions=[FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)]
    )
    return FetchRequest(max_bytes=max_bytes, topics=[topic], session_epoch=-1)


def records_of(response):
    return response.responses[0].partitions[0].records


def test_records_are_views_of_a_buffer_that_is_used_again_when_no_view_is_left(broker):
    host, port = broker.bootstrap_servers.split(":")
    with broker.log("t", 0) as log:
        end = log.log_end_offset
    for _ in range(2):
        broker.produce("t", b"x" * 500_000)
    with sender(host, int(port)) as to_broker:
        first = to_broker.send(fetch(end), 11)
        view = records_of(first)
        assert isinstance(view, memoryview)
        assert len(view) > 1_000_000
        expected, buffer = bytes(view), view.obj
        second = to_broker.send(fetch(end), 11)  # the view is held: the second reply has a buffer of its own
        assert records_of(second).obj is not buffer
        assert bytes(view) == expected == bytes(records_of(second))
        buffer = records_of(second).obj
        del first, second, view
        assert records_of(to_broker.send(fetch(end), 11)).obj is buffer


def test_a_large_buffer_is_freed_after_a_small_reply(broker):
    host, port = broker.bootstrap_servers.split(":")
    with broker.log("t", 0) as log:
        end = log.log_end_offset
    for _ in range(3):
        broker.produce("t", b"x" * 800_000)
    with sender(host, int(port)) as to_broker:
        assert len(records_of(to_broker.send(fetch(end), 11)).obj) > 2_000_000
        to_broker.send(fetch(end + 3), 11)
        assert len(to_broker._buffer) <= 1 << 20


def test_a_broker_that_came_back_is_reached_by_the_next_send(tmp_path):
    with kcore.Broker(data_dir=tmp_path) as broker:
        host, port = broker.bootstrap_servers.split(":")
        to_broker = BlockingSender(host, int(port), "tests", request_timeout_ms=TIMEOUT_MS)
        assert to_broker.api_versions()
    with pytest.raises(OSError):
        to_broker.send(REQUEST, 4)
    with pytest.raises(ConnectionRefusedError):
        to_broker.api_versions()
    with kcore.Broker(data_dir=tmp_path, port=int(port)):
        assert to_broker.api_versions() == SUPPORTED
    to_broker.close()


def broker_reply(broker):
    """A reply that is this broker's to the same frame."""

    def reply(frame):
        host, port = broker.bootstrap_servers.split(":")
        with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as answers:
            connection.sendall(framed(frame))
            (size,) = struct.unpack(">i", answers.read(4))
            return framed(answers.read(size)), True

    return reply


# -- a server that does it wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (lambda frame: (heartbeat_reply(frame, id_offset=1), True), InvalidRequest, "correlation id"),
        (lambda frame: (struct.pack(">i", 0x7FFF_FFFF), True), InvalidRequest, "2147483647 bytes"),
        (lambda frame: (struct.pack(">i", -1), True), InvalidRequest, "-1 bytes"),
        (lambda frame: (struct.pack(">i", 3) + b"abc", True), InvalidRequest, "3 bytes"),
        (lambda frame: (b"HTTP/1.1 400 Bad Request\r\n\r\n", False), InvalidRequest, r"^127[\d.:]+: .*answers HTTP"),
        (lambda frame: (b"\x15\x03\x03\0\x02\x02\x46", False), InvalidRequest, r"^127[\d.:]+: .*answers TLS"),
        (lambda frame: (heartbeat_reply(frame)[:-1], False), ConnectionResetError, "1 bytes missing"),
        (lambda frame: (b"\0\0", False), ConnectionResetError, "2 bytes missing"),
        (
            lambda frame: (b"", False),
            ConnectionResetError,
            r"^\[Errno 104\] 127[\d.:]+: closed .*: the broker has stopped, or this .* TLS or SASL, .*PLAINTEXT",
        ),
        (lambda frame: (framed(frame[4:8]), True), InvalidRequest, "header"),
        (lambda frame: (framed(frame[4:8] + b"\0"), True), InvalidRequest, "throttle_time_ms"),
    ],
    ids=["an id", "huge", "negative", "short", "HTTP", "TLS", "cut body", "cut size", "closed", "no tags", "no body"],
)
def test_after_a_reply_that_is_wrong_the_next_send_connects_anew(reply, error, message):
    with server(reply, good) as (host, port, accepted), sender(host, port) as to_server:
        with pytest.raises(error, match=message):
            to_server.send(REQUEST, 4)
        assert to_server.send(REQUEST, 4).error_code == 0
        assert len(accepted) == 2


def test_a_connection_that_has_answered_is_not_said_to_speak_tls_or_sasl():
    with server(good, lambda frame: (b"", False)) as (host, port, _), sender(host, port) as to_server:
        assert to_server.send(REQUEST, 4).error_code == 0
        with pytest.raises(ConnectionResetError, match=r"closed by the broker, 4 bytes missing$"):
            to_server.send(REQUEST, 4)


def test_a_listener_that_answers_api_versions_only_may_want_sasl(tmp_path):
    with kcore.Broker(data_dir=tmp_path) as broker:
        answered = broker_reply(broker)
        with server(answered, lambda frame: (b"", False)) as (host, port, _), sender(host, port) as to_server:
            assert to_server.api_versions() == SUPPORTED
            with pytest.raises(ConnectionResetError, match="TLS or SASL"):
                to_server.send(REQUEST, 4)


def test_a_silent_server_is_a_timeout():
    is_silent = True

    def answer(frame):
        return None if is_silent else good(frame)

    with server(answer, answer, answer) as (host, port, accepted), sender(host, port, 50) as to_server:
        with pytest.raises(TimeoutError, match=rf"127\.0\.0\.1:{port}: no answer \(timeout 0\.05 s\)"):
            to_server.send(REQUEST, 4)
        is_silent = False
        to_server.request_timeout_ms = TIMEOUT_MS
        assert to_server.send(REQUEST, 4).error_code == 0
        assert len(accepted) == 2


def test_a_reply_that_comes_in_drops_is_a_timeout_too():
    def drop(frame):
        return struct.pack(">i", 1000) + b"x" * 10, True

    with server(drop) as (host, port, _), sender(host, port, 50) as to_server, pytest.raises(TimeoutError):
        to_server.send(REQUEST, 4)


def test_a_connection_to_a_port_without_a_listener_fails():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
    with sender(host, port) as to_server, pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{port}: ") as raised:
        to_server.send(REQUEST, 4)
    assert raised.value.errno == errno.ECONNREFUSED


def test_one_connection_carries_many_requests():
    with server(good, good, good) as (host, port, accepted), sender(host, port) as to_server:
        for _ in range(3):
            assert to_server.send(REQUEST, 4).error_code == 0
        assert len(accepted) == 1


def test_close_ends_a_send_that_waits():
    request_arrived = threading.Event()
    with server(lambda frame: request_arrived.set()) as (host, port, _), sender(host, port) as to_server:
        errors = []

        def send():
            try:
                to_server.send(REQUEST, 4)
            except OSError as error:
                errors.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        assert request_arrived.wait(DEADLINE_S)
        to_server.close()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        assert [type(error) for error in errors] == [ConnectionAbortedError]
        with pytest.raises(ConnectionAbortedError):
            to_server.send(REQUEST, 4)
        assert to_server._connection is None


def test_a_request_that_cannot_be_encoded_leaves_the_connection_alone():
    with server(good, good) as (host, port, accepted), sender(host, port) as to_server:
        to_server.send(REQUEST, 4)
        with pytest.raises(kcore.errors.UnsupportedVersion):
            to_server.send(REQUEST, 99)
        to_server.send(REQUEST, 4)
        assert len(accepted) == 1


def test_versions_of_an_old_broker_and_of_unknown_apis():
    def refuse(frame):
        header = decode_request_header(frame)
        assert header.api_version == 3
        return framed(
            encode_response_header(header.api_key, 0, header.correlation_id)
            + unsupported_version_response((0, 4)).encode(0)
        ), True

    def old(frame):
        header = decode_request_header(frame)
        assert header.api_version == 0
        keys = [ApiVersion(api_key=1, min_version=0, max_version=7), ApiVersion(api_key=999, max_version=1)]
        return framed(
            encode_response_header(header.api_key, 0, header.correlation_id)
            + ApiVersionsResponse(api_keys=keys).encode(0)
        ), True

    with server(refuse, old) as (host, port, accepted), sender(host, port) as to_server:
        assert to_server.api_versions() == {ApiKey.FETCH: (0, 7)}
        assert to_server.api_versions() == {ApiKey.FETCH: (0, 7)}  # of this connection: no second request
        assert len(accepted) == 1


# -- a connection that encrypts ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def encrypted_pair(script, cuts, timeout_ms=TIMEOUT_MS, server_script=None):
    """(a sender, a server that answers heartbeats), whose bytes are cut and encrypted."""

    def handler(request):
        request.respond([heartbeat_reply(bytes(request.buffer))])

    script_of_server = script if server_script is None else server_script
    builder = ChannelBuilder(lambda sock: CuttingTransport(sock, script_of_server, itertools.cycle([1 << 20])))
    server = SocketServer(channel_builder=lambda listener: builder)
    server.start(handler)

    def connection_factory(sock, host):
        return EncryptingConnection(sock, host, script, cuts)

    try:
        with sender("127.0.0.1", server.port, timeout_ms, connection_factory=connection_factory) as to_server:
            yield to_server, server
    finally:
        server.shutdown()


@pytest.mark.parametrize("cut", range(1, 15))
@pytest.mark.parametrize("script", ["", "rw", "wwr"])
def test_requests_over_a_connection_that_encrypts_are_answered_wherever_replies_are_cut(script, cut):
    with encrypted_pair(script, [cut, 1000]) as (to_server, server):
        for _ in range(3):
            assert to_server.send(REQUEST, 4).error_code == 0
        assert server.connection_count == 1


def test_a_handshake_that_the_broker_does_not_answer_is_a_timeout():
    with encrypted_pair("rw", [1000], 50, server_script="rr") as (to_server, _), pytest.raises(TimeoutError):
        to_server.send(REQUEST, 4)


def test_close_ends_a_handshake_that_waits():
    with encrypted_pair("rw", [1000], server_script="rr") as (to_server, server):
        errors = []

        def send():
            try:
                to_server.send(REQUEST, 4)
            except OSError as error:
                errors.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        deadline = time.monotonic() + DEADLINE_S
        while server.connection_count == 0:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        to_server.close()
        thread.join(DEADLINE_S)
        assert [type(error) for error in errors] == [ConnectionAbortedError]
