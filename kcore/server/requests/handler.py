"""Handler: what every handler is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kcore.protocol.schema import Message
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn


class Handler(Protocol):
    """Each module of handlers/ has a class `Handler` like this, made of the broker's Services."""

    #: The thread that its requests run on: NETWORK_THREAD only if they never wait for a disk, the metadata store, a
    #: lock that is held meanwhile, another broker or many partitions.  If that depends on the request's body, it is a
    #: method, called on the thread that has decoded it.
    runs_on: RunsOn | Callable[[RequestContext, Message], RunsOn]

    def handle(self, context: RequestContext, body: Message) -> None:
        """Answer, now or later.  What it raises is answered with error_response()."""

    def error_response(self, body: Message, error_code: int, version: int) -> Message | None:
        """The response that says error_code wherever this API can; None to close the connection instead."""
