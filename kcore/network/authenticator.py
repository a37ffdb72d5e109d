"""Authentication: what stands between the frames of a connection and the handlers of its requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kcore.common.time import Time
from kcore.network.listener import KafkaPrincipal

if TYPE_CHECKING:
    from kcore.network.connection import Chunk, Request


class Reply(NamedTuple):
    """The authentication goes on.  chunks: a whole response, its size first."""

    chunks: Sequence[Chunk]


class Authenticated(NamedTuple):
    """The client has proved who it is; its requests reach the handlers from now on.

    chunks: the last response.  session_lifetime_ms: for so long, unless it authenticates again (KIP-368); None: for as
    long as the connection.
    """

    principal: KafkaPrincipal
    chunks: Sequence[Chunk]
    session_lifetime_ms: int | None = None


class Failed(NamedTuple):
    """The connection ends.  chunks: the last response, which leaves after delay_ms
    (connection.failed.authentication.delay.ms), against attempts in quick succession; empty for none."""

    reason: str
    chunks: Sequence[Chunk] = ()
    delay_ms: float = 0.0


class Authenticator(Protocol):
    """The server's side of one connection's authentication, without I/O and clocks.

    max_receive_size: bytes of the largest frame that is taken before the client is authenticated.
    Source: SaslServerAuthenticator, Kafka 3.9.
    """

    max_receive_size: int

    def on_frame(self, frame: bytes | bytearray) -> Reply | Authenticated | Failed | None:
        """What a request, without its size, leads to; None: it is not about authentication.

        Runs on the network thread, for every request of the connection, so it waits for nothing; a session's end does
        not depend on it.  It may authenticate the client again, and then has to refuse another principal.
        """


class AuthenticatingHandler:
    """Asks one connection's authenticator about each request, and gives the others to the handler.

    Used by the network thread of the connection.  A request that is not about authentication ends the connection as
    long as the client is not authenticated, and when its session has ended.
    """

    def __init__(
        self, authenticator: Authenticator, handler: Callable[[Request], None], max_request_bytes: int, time: Time
    ) -> None:
        """max_request_bytes: of a client that is authenticated.  time: the server's."""
        self._authenticator = authenticator
        self._handler = handler
        self._max_request_bytes = max_request_bytes
        self._time = time
        self._principal: KafkaPrincipal | None = None
        self._expires_ms: float | None = None  # by hi_res_clock_ms()

    def __call__(self, request: Request) -> None:
        outcome = self._authenticator.on_frame(request.buffer)
        if outcome is None:
            if self._principal is None:
                request.close_connection("a request before authentication")
            elif self._expires_ms is not None and self._time.hi_res_clock_ms() >= self._expires_ms:
                request.close_connection(f"the session of {self._principal} has ended")
            else:
                self._handler(request)
        elif isinstance(outcome, Failed):
            request.refuse(list(outcome.chunks), outcome.delay_ms, f"authentication failed: {outcome.reason}")
        else:
            if isinstance(outcome, Authenticated):
                self._succeed(request, outcome)
            request.respond(list(outcome.chunks))

    def _succeed(self, request: Request, outcome: Authenticated) -> None:
        connection = request.connection
        connection.context = dataclasses.replace(connection.context, principal=outcome.principal)
        connection.max_request_bytes = self._max_request_bytes
        self._principal = outcome.principal
        lifetime_ms = outcome.session_lifetime_ms
        self._expires_ms = None if lifetime_ms is None else self._time.hi_res_clock_ms() + lifetime_ms


def identify_by_transport(request: Request, handler: Callable[[Request], None]) -> None:
    """The first request over a transport with a handshake: its client is who the handshake says, if it says that."""
    connection = request.connection
    if connection.peer_principal is not None:
        connection.context = dataclasses.replace(connection.context, principal=connection.peer_principal)
    connection.handler = handler
    handler(request)
