"""One request as its handler sees it."""

from __future__ import annotations

from typing import TypeVar

from kcore.common.meters import RequestMeters
from kcore.network.connection import Request
from kcore.network.listener import KafkaPrincipal, SecurityProtocol
from kcore.protocol.headers import RequestHeader, encode_response
from kcore.protocol.schema import Message
from kcore.server.quotas.client_quota_manager import RequestTime

M = TypeVar("M", bound=Message)

_ANY_NUMBER = 2**63 - 1


class RequestContext:
    """What a handler knows of a request: its header, who sent it over which listener; and the way to answer it: once,
    from any thread.  An authorizer sees it as an AuthorizableRequestContext.  What is the same for all requests of a
    connection is in the connection's context."""

    __slots__ = ("_begin_ns", "_meters", "api_version", "header", "request", "request_time")

    def __init__(self, request: Request, header: RequestHeader, meters: RequestMeters) -> None:
        self.request = request
        self.header = header
        self.api_version = header.api_version
        self._meters = meters
        self._begin_ns = meters.begin_request(header.api_version)
        #: What counts toward the client's request quota, until it is recorded; None where nothing does.
        self.request_time: RequestTime | None = None

    def decode(self, message_class: type[M], max_elements: int = _ANY_NUMBER) -> M:
        """The body.  Its `records` are views of the request's buffer.

        Raises InvalidRequest, and TooManyElements if its arrays have more than max_elements together.
        """
        header = self.header
        return message_class.decode(self.request.buffer, header.api_version, header.body_position, max_elements)

    def respond(self, response: Message, throttle_ms: int = 0, *, api_version: int | None = None) -> None:
        """Encode the response and send it.

        throttle_ms: a quota's; the response's throttle_time_ms says it, and once the response has left, nothing is
        read from the connection for so long.  api_version: where it differs from the request's (KIP-511).
        """
        if self.request_time is not None:
            throttle_ms = max(throttle_ms, self.record_request_time())
        if throttle_ms > 0 and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = throttle_ms
        self.request.respond(encode_response(self.header, response, api_version), throttle_ms)
        self._meters.end(self._begin_ns)

    def respond_nothing(self, throttle_ms: int = 0) -> None:
        """The request is done, and no client reads an answer (a produce with acks=0); throttle_ms as for respond()."""
        if self.request_time is not None:
            throttle_ms = max(throttle_ms, self.record_request_time())
        self.request.respond_nothing(throttle_ms)
        self._meters.end(self._begin_ns)

    def record_request_time(self) -> int:
        """Count the thread's time, once; ms for which the client is to be throttled."""
        request_time, self.request_time = self.request_time, None
        return 0 if request_time is None else request_time.record()

    @property
    def is_abandoned(self) -> bool:
        """Whether the client has closed its connection: nobody will read the answer."""
        return self.request.connection.fd < 0

    @property
    def client_id(self) -> str:
        return self.header.client_id or ""

    @property
    def request_type(self) -> int:
        """The API key."""
        return self.header.api_key

    @property
    def request_version(self) -> int:
        return self.api_version

    @property
    def correlation_id(self) -> int:
        return self.header.correlation_id

    @property
    def client_address(self) -> str:
        """The host that the request came from."""
        return self.request.connection.context.client_address

    @property
    def client_software(self) -> str:
        """The name and version of the client's library; empty where it has not given them."""
        return self.request.connection.context.client_software

    @property
    def listener_name(self) -> str:
        """The name of the listener that the client connected to."""
        return self.request.connection.context.listener_name

    @property
    def security_protocol(self) -> SecurityProtocol:
        return self.request.connection.context.security_protocol

    @property
    def principal(self) -> KafkaPrincipal:
        """Who sent the request: User:ANONYMOUS as long as no client has to authenticate."""
        return self.request.connection.context.principal

    def __repr__(self) -> str:
        header = self.header
        return f"{header.api_key.name} v{header.api_version} from {header.client_id!r} at {self.client_address}"
