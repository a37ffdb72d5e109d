"""One request as its handler sees it."""

from __future__ import annotations

from typing import TypeVar

from kcore.network.connection import Request
from kcore.protocol.headers import RequestHeader, encode_response
from kcore.protocol.schema import Message

M = TypeVar("M", bound=Message)

_ANY_NUMBER = 2**63 - 1


class RequestContext:
    """The header of a request, its bytes, and the way to answer it: once, from any thread."""

    __slots__ = ("api_version", "header", "request")

    def __init__(self, request: Request, header: RequestHeader) -> None:
        self.request = request
        self.header = header
        self.api_version = header.api_version

    def decode(self, message_class: type[M], max_elements: int = _ANY_NUMBER) -> M:
        """The body.  Its `records` are views of the request's buffer.

        Raises InvalidRequest, and TooManyElements if its arrays have more than max_elements together.
        """
        header = self.header
        return message_class.decode(self.request.buffer, header.api_version, header.body_position, max_elements)

    def respond(self, response: Message, api_version: int | None = None) -> None:
        """Encode the response and send it.  api_version: where it differs from the request's (KIP-511)."""
        self.request.respond(encode_response(self.header, response, api_version))

    @property
    def client_id(self) -> str:
        return self.header.client_id or ""

    @property
    def client_host(self) -> str:
        return self.request.connection.peer_host

    def __repr__(self) -> str:
        header = self.header
        return f"{header.api_key.name} v{header.api_version} from {header.client_id!r} at {self.client_host}"
