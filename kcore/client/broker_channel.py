"""BrokerChannel: the requests for one broker, each repeated until it is answered.

It has the rules and does no I/O: next_request(now) -> request | Wait, on_reply(), on_failure().  A RequestSendThread
drives it over a socket; a simulator keeps the requests instead.
Source: RequestSendThread, Kafka 3.9.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kcore.protocol.schema import Message

#: After a failed request, before it is sent again.
RETRY_BACKOFF_MS = 100

OnReply = Callable[[Message], None]


class Wait(NamedTuple):
    """Nothing is to be sent before until_ms, None for not before the next put()."""

    until_ms: float | None


class QueuedRequest(NamedTuple):
    request: Message
    on_reply: OnReply | None = None


class BrokerChannel:
    """The requests for one broker, in order, one in flight; the first is repeated until it is answered.

    Not thread-safe: its caller holds one lock around each call, and not while it sends.
    """

    def __init__(self) -> None:
        self._queue: deque[QueuedRequest] = deque()
        self._is_in_flight = False
        self._not_before_ms = 0.0

    def __len__(self) -> int:
        """Requests without an answer."""
        return len(self._queue)

    def put(self, request: Message, on_reply: OnReply | None = None) -> None:
        self._queue.append(QueuedRequest(request, on_reply))

    def next_request(self, now_ms: float) -> QueuedRequest | Wait:
        """What to send now; on_reply() or on_failure() must follow."""
        if not self._queue or self._is_in_flight:
            return Wait(None)
        if now_ms < self._not_before_ms:
            return Wait(self._not_before_ms)
        self._is_in_flight = True
        return self._queue[0]

    def on_reply(self, request: QueuedRequest) -> None:
        """The broker has answered.  The caller passes the answer to request.on_reply, without a lock.  A second answer
        to a request changes nothing."""
        if self._queue and self._queue[0] is request:
            self._queue.popleft()
            self._is_in_flight = False

    def on_dropped(self, request: QueuedRequest) -> None:
        """The request was not sent and cannot be encoded: the next one in the queue is sent."""
        self.on_reply(request)

    def on_failure(self, request: QueuedRequest, now_ms: float) -> None:
        """The connection broke, or no answer came in time: the broker may have carried the request out or not."""
        if self._queue and self._queue[0] is request:
            self._is_in_flight = False
            self._not_before_ms = now_ms + RETRY_BACKOFF_MS
