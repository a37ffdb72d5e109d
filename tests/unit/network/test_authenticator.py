"""Authentication between frames and handlers, with an authenticator that only pretends."""

import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcore.common.time import MockTime
from kcore.network.authenticator import Authenticated, Failed, Reply
from kcore.network.channel_builder import ChannelBuilder
from kcore.network.listener import ANONYMOUS, KafkaPrincipal
from kcore.network.socket_server import SocketServer
from kcore.network.transport import Transport
from tests.unit.network.cutting_transport import PEER, CuttingTransport, encrypted
from tests.unit.network.test_socket_server import answer, connect, frame, is_closed, read_exactly
from tests.unit.network.test_transport import ANY_SIZE, connect_and_shake_hands
from tests.unit.network.test_transport import read_frame as read_encrypted_frame
from tests.waiting import wait_until

ALICE = KafkaPrincipal("User", "alice")


class PretendAuthenticator:
    """hello, then NAME, authenticate a client; "bad" fails, and "broken" is a bug of ours.

    Every frame that begins with "auth " is for it.
    """

    max_receive_size = 40

    def __init__(self, delay_ms=0.0, session_lifetime_ms=None):
        self.delay_ms, self.session_lifetime_ms = delay_ms, session_lifetime_ms
        self.is_greeted = False

    def on_frame(self, frame):
        if not frame.startswith(b"auth "):
            return None
        word = bytes(frame[5:])
        if word == b"hello":
            self.is_greeted = True
            return Reply([response(b"who?")])
        if word == b"broken":
            raise KeyError("broken")
        if word == b"bad" or not self.is_greeted:
            return Failed("bad password", [response(b"no")], self.delay_ms)
        principal = KafkaPrincipal("User", word.decode())
        return Authenticated(principal, [response(b"yes")], self.session_lifetime_ms)


def response(body):
    return struct.pack(">i", len(body)) + body


class Handler:
    """Answers with the principal's name and the request, and keeps both."""

    def __init__(self):
        self.seen = []

    def __call__(self, request):
        name = request.connection.context.principal.name
        self.seen.append((name, bytes(request.buffer)))
        answer(request, name.encode() + b" " + bytes(request.buffer))


@pytest.fixture
def serve():
    servers = []

    def start(handler, authenticator=PretendAuthenticator, new_transport=Transport, **options):
        builder = ChannelBuilder(new_transport, authenticator and (lambda context: authenticator()))
        server = SocketServer(channel_builder=lambda listener: builder, **options)
        server.start(handler)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()


def read_frame(sock):
    return read_exactly(sock, struct.unpack(">i", read_exactly(sock, 4))[0])


def ask(sock, body):
    sock.sendall(frame(body))
    return read_frame(sock)


@pytest.mark.parametrize("of", ["transport", "authenticator"])
def test_a_connection_that_cannot_be_made_is_closed_and_the_next_one_is_accepted(serve, of, caplog):
    """The network thread ended, and the broker went on without it: registered, and answering nobody."""
    attempts = itertools.count()

    def once_broken(make):
        def attempt(*arguments):
            if next(attempts) == 0:
                raise ValueError("a bug")
            return make(*arguments)

        return attempt

    parts = {"new_transport": Transport, "authenticator": PretendAuthenticator}
    name = "new_transport" if of == "transport" else "authenticator"
    parts[name] = once_broken(parts[name])
    server = serve(Handler(), max_connections_per_ip=1, **parts)
    assert is_closed(connect(server))
    assert "a bug" in caplog.text and server.connection_count == 0
    second = connect(server)
    assert ask(second, b"auth hello") == b"who?"


SESSION = [b"auth hello", b"auth alice", b"1", b"", b"auth hello", b"2", b"auth alice", b"3"]
ANSWERS = [b"who?", b"yes", b"alice 1", b"alice ", b"who?", b"alice 2", b"yes", b"alice 3"]


@pytest.mark.parametrize("not_now", [0, -1])
def test_authentication_and_requests_in_one_write_are_answered_wherever_they_are_cut(serve, not_now):
    cuts = []

    def new_transport(sock):
        return CuttingTransport(sock, "", itertools.chain(cuts, itertools.repeat(ANY_SIZE)))

    server = serve(Handler(), new_transport=new_transport)
    stream = encrypted(b"".join(map(frame, SESSION)))
    for cut in range(1, len(stream)):
        cuts[:] = [cut, not_now]
        with connect(server) as sock:
            sock.sendall(stream)
            assert [read_encrypted_frame(sock) for _ in SESSION] == ANSWERS, cut


def expected_answers(bodies):
    """(the answers, what the handler sees): the rules once more."""
    answers, seen, is_greeted, name = [], [], False, None
    for body in bodies:
        if body == b"auth hello":
            is_greeted = True
            answers.append(b"who?")
        elif body.startswith(b"auth "):
            if body == b"auth bad" or not is_greeted:
                return [*answers, b"no"], seen
            name = body[5:].decode()
            answers.append(b"yes")
        elif name is None:
            return answers, seen
        else:
            seen.append((name, body))
            answers.append(name.encode() + b" " + body)
    return answers, seen


@settings(max_examples=60)
@given(
    bodies=st.lists(st.sampled_from([b"auth hello", b"auth alice", b"auth bad", b"", b"request"]), max_size=9),
    cuts=st.lists(st.sampled_from([-1, 0, 1, 2, 7, 16, ANY_SIZE]), min_size=1, max_size=6).filter(lambda c: max(c) > 0),
)
def test_a_client_that_is_not_authenticated_reaches_no_handler_whatever_it_sends(bodies, cuts):
    bodies.append(b"auth bad")  # ends the connection, if nothing else has
    handler = Handler()
    builder = ChannelBuilder(
        lambda sock: CuttingTransport(sock, "wr", itertools.cycle(cuts)), lambda context: PretendAuthenticator()
    )
    server = SocketServer(channel_builder=lambda listener: builder)
    server.start(handler)
    try:
        with connect_and_shake_hands(server, "wr") as sock:
            sock.sendall(encrypted(b"".join(map(frame, bodies))))
            received = bytearray()
            while data := sock.recv(65536):
                received += data
        answers, seen = expected_answers(bodies)
        assert encrypted(received) == b"".join(map(frame, answers))
        assert handler.seen == seen
    finally:
        server.shutdown()


def test_a_failed_authentication_is_answered_after_its_delay_and_the_connection_is_closed(serve):
    clock = MockTime()
    handler = Handler()
    server = serve(handler, lambda: PretendAuthenticator(delay_ms=1000.0), time=clock, queued_max_request_bytes=1000)
    sock = connect(server)
    sock.sendall(frame(b"auth hello") + frame(b"auth bad") + frame(b"auth alice") + frame(b"request"))
    assert read_frame(sock) == b"who?"
    processor = server.processors[0]
    wait_until(lambda: processor._muted, "the delay")
    clock.sleep(999)
    processor.wake_up()
    assert ask(connect(server), b"auth hello") == b"who?"  # the turn of 999 ms is over
    sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        sock.recv(1)
    sock.settimeout(60)
    clock.sleep(2)
    processor.wake_up()
    assert read_frame(sock) == b"no"
    assert is_closed(sock)
    assert handler.seen == []
    wait_until(lambda: processor.queued_bytes == 0, "nothing is left of it")


def test_a_client_that_leaves_during_the_delay_is_closed_at_once(serve):
    server = serve(Handler(), lambda: PretendAuthenticator(delay_ms=1e9))
    sock = connect(server)
    sock.sendall(frame(b"auth bad"))
    wait_until(lambda: server.processors[0]._muted, "the delay")
    sock.close()
    wait_until(lambda: server.connection_count == 0, "closed")


def test_a_failure_without_a_response_closes_too(serve):
    class Refusing(PretendAuthenticator):
        def on_frame(self, frame):
            return Failed("unknown mechanism")

    sock = connect(serve(Handler(), Refusing))
    sock.sendall(frame(b"auth hello"))
    assert is_closed(sock)


def test_an_authenticator_that_raises_closes_its_connection(serve, caplog):
    handler = Handler()
    sock = connect(serve(handler))
    sock.sendall(frame(b"auth broken") + frame(b"request"))
    assert is_closed(sock)
    assert handler.seen == []
    assert "KeyError" in caplog.text


def test_the_context_is_replaced_at_each_authentication_and_keeps_the_rest(serve):
    contexts = []

    def handler(request):
        contexts.append(request.connection.context)
        request.connection.context.client_software = "librdkafka-2"
        answer(request, b"done")

    sock = connect(serve(handler))
    for body in (b"auth hello", b"auth alice", b"1", b"auth hello", b"auth alice", b"2"):
        ask(sock, body)
    assert [context.principal for context in contexts] == [ALICE, ALICE]
    assert contexts[0] is not contexts[1]
    assert [context.client_software for context in contexts] == ["librdkafka-2", "librdkafka-2"]
    assert contexts[1].client_address == "127.0.0.1"


def test_after_the_end_of_a_session_a_request_closes_the_connection(serve):
    clock = MockTime()
    sock = connect(serve(Handler(), lambda: PretendAuthenticator(session_lifetime_ms=1000), time=clock))
    assert [ask(sock, body) for body in SESSION[:3]] == ANSWERS[:3]
    clock.sleep(999)
    assert ask(sock, b"x") == b"alice x"
    clock.sleep(1)
    sock.sendall(frame(b"y"))
    assert is_closed(sock)


def test_a_client_may_authenticate_again_also_after_the_end_of_its_session(serve):
    clock = MockTime()
    sock = connect(serve(Handler(), lambda: PretendAuthenticator(session_lifetime_ms=1000), time=clock))
    for _ in range(3):
        assert [ask(sock, body) for body in SESSION[:3]] == ANSWERS[:3]
        clock.sleep(1500)


def test_a_large_request_is_taken_from_an_authenticated_client_only(serve):
    server = serve(Handler())
    sock = connect(server)
    sock.sendall(frame(bytes(41)))
    assert is_closed(sock)
    sock = connect(server)
    assert [ask(sock, body) for body in SESSION[:2]] == ANSWERS[:2]
    assert ask(sock, bytes(100_000)) == b"alice " + bytes(100_000)


def test_a_client_without_an_authenticator_is_who_the_handshake_says(serve):
    handler = Handler()
    server = serve(handler, None, lambda sock: CuttingTransport(sock, "rw", itertools.repeat(ANY_SIZE)))
    sock = connect_and_shake_hands(server)
    for _ in range(2):
        sock.sendall(encrypted(frame(b"x")))
        assert read_encrypted_frame(sock) == PEER.name.encode() + b" x"


def test_a_plaintext_connection_has_no_step_in_between():
    handlers = []

    def handler(request):
        handlers.append(request.connection.handler)
        answer(request, request.connection.context.principal.name.encode())

    server = SocketServer()
    server.start(handler)
    try:
        assert ask(connect(server), b"x") == ANONYMOUS.name.encode()
        assert handlers == [handler]
    finally:
        server.shutdown()
