"""The controller's connections: one queue and one sender thread for each live broker.

ControllerChannel has the rules and does no I/O: next_request(now) -> request | Wait, on_reply(), on_failure().  A
RequestSendThread drives it over a socket; a simulator keeps the requests instead (decision D4).  A slow or unreachable
broker holds up its own queue only.
Source: ControllerChannelManager, RequestSendThread, Kafka 3.9.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from kcore.client.blocking_sender import BlockingSender
from kcore.common.failure_log import FailureLog
from kcore.common.shutdownable_thread import ShutdownableThread
from kcore.common.time import SYSTEM_TIME, Time
from kcore.controller.controller_context import LiveBroker
from kcore.errors import KafkaError, UnsupportedVersion
from kcore.protocol.schema import Message

logger = logging.getLogger(__name__)

#: After a failed request, before it is sent again.
RETRY_BACKOFF_MS = 100
#: Kafka's controller.socket.timeout.ms.
REQUEST_TIMEOUT_MS = 30_000

OnReply = Callable[[Message], None]


class Wait(NamedTuple):
    """Nothing is to be sent before until_ms, None for not before the next put()."""

    until_ms: float | None


class QueuedRequest(NamedTuple):
    request: Message
    on_reply: OnReply | None = None


class ControllerChannel:
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


class Sender(Protocol):
    """A connection that chooses the version of a request.

    Raises OSError, KafkaError, and ValueError for a request that cannot be encoded.
    """

    def send(self, request: Message) -> Message: ...

    def close(self) -> None: ...


class NegotiatingSender:
    """A BlockingSender with the newest version of each request that both sides have."""

    def __init__(self, sender: BlockingSender) -> None:
        self._sender = sender

    def send(self, request: Message) -> Message:
        """Raises UnsupportedVersion if the broker does not serve the request."""
        versions = self._sender.api_versions().get(request.api_key)
        if versions is None:
            raise UnsupportedVersion(f"the broker at {self._sender} has no {request.api_key.name}")
        return self._sender.send(request, min(request.max_version, versions[1]))

    def close(self) -> None:
        self._sender.close()


class RequestSendThread(ShutdownableThread):
    """Drives one channel.  put() from any thread; on_reply is called on this thread, without a lock.

    A request is sent again after an OSError or a KafkaError.  After any other error it is dropped, and its on_reply is
    not called: a request that cannot be encoded never can be, and would hold up all that follow.
    """

    def __init__(self, name: str, channel: ControllerChannel, sender: Sender, time: Time) -> None:
        super().__init__(name)
        self._channel = channel
        self._sender = sender
        self._time = time
        self._failures = FailureLog()
        self._changed = threading.Condition()

    @property
    def queue_size(self) -> int:
        return len(self._channel)

    def put(self, request: Message, on_reply: OnReply | None) -> None:
        with self._changed:
            self._channel.put(request, on_reply)
            self._changed.notify()

    def wake_up(self) -> None:
        self._sender.close()
        with self._changed:
            self._changed.notify()

    def do_work(self) -> None:
        with self._changed:
            step = self._channel.next_request(self._time.hi_res_clock_ms())
            if isinstance(step, Wait):
                if self.is_running:
                    now_ms = self._time.hi_res_clock_ms()
                    self._changed.wait(None if step.until_ms is None else max(step.until_ms - now_ms, 0) / 1000)
                return
        try:
            reply = self._sender.send(step.request)
        except (OSError, KafkaError) as error:
            now_ms, kind = self._time.hi_res_clock_ms(), type(step.request).__name__
            if self.is_running and self._failures.is_logged(f"{kind}: {error}", now_ms):
                logger.info("%s: %s is sent again until it is answered: %s", self.name, kind, error)
            with self._changed:
                self._channel.on_failure(step, now_ms)
            return
        except Exception:
            logger.exception("%s: %s is dropped", self.name, type(step.request).__name__)
            with self._changed:
                self._channel.on_dropped(step)
            return
        self._failures.succeeded()
        with self._changed:
            self._channel.on_reply(step)
        if step.on_reply is not None and self.is_running:
            try:
                step.on_reply(reply)
            except Exception:
                logger.exception("%s: the answer to %s is not used", self.name, type(step.request).__name__)


class ControllerChannels(Protocol):
    """What the controller needs of its channel manager; a test or a simulator has its own."""

    def add_broker(self, broker: LiveBroker) -> None: ...

    def remove_broker(self, broker_id: int) -> None: ...

    def send_request(self, broker_id: int, request: Message, on_reply: OnReply | None = None) -> None: ...

    def queue_sizes(self) -> Mapping[int, int]: ...

    def close(self) -> None: ...


class ControllerChannelManager:
    """One thread per live broker.  Thread-safe.

    make_sender: a connection to a broker, not yet connected; raises OSError if the broker has no address for it.
    """

    def __init__(
        self, controller_id: int, make_sender: Callable[[LiveBroker], Sender], time: Time = SYSTEM_TIME
    ) -> None:
        self._controller_id = controller_id
        self._make_sender = make_sender
        self._time = time
        self._lock = threading.Lock()
        self._threads: dict[int, RequestSendThread] = {}

    def add_broker(self, broker: LiveBroker) -> None:
        """Start to send to a broker; one that has a channel keeps it.  One without an address gets no channel."""
        with self._lock:
            if broker.broker_id in self._threads:
                return
            try:
                sender = self._make_sender(broker)
            except OSError as error:
                logger.error("broker %d gets no requests of the controller: %s", broker.broker_id, error)
                return
            thread = RequestSendThread(
                f"kcore-controller-{self._controller_id}-to-{broker.broker_id}",
                ControllerChannel(),
                sender,
                self._time,
            )
            self._threads[broker.broker_id] = thread
        thread.start()

    def remove_broker(self, broker_id: int) -> None:
        """Drop what was not sent, and close the connection."""
        with self._lock:
            thread = self._threads.pop(broker_id, None)
        if thread is not None:
            thread.shutdown()

    def send_request(self, broker_id: int, request: Message, on_reply: OnReply | None = None) -> None:
        """Queue a request.  One for a broker without a channel is dropped: it is not alive, or has no address."""
        with self._lock:
            thread = self._threads.get(broker_id)
        if thread is None:
            logger.warning("no channel to broker %d: %s is not sent", broker_id, type(request).__name__)
        else:
            thread.put(request, on_reply)

    def queue_sizes(self) -> Mapping[int, int]:
        """Broker id -> requests that it has not answered."""
        with self._lock:
            return {broker_id: thread.queue_size for broker_id, thread in self._threads.items()}

    def close(self) -> None:
        with self._lock:
            threads, self._threads = list(self._threads.values()), {}
        _shutdown(threads)


def _shutdown(threads: Iterable[RequestSendThread]) -> None:
    for thread in threads:
        thread.initiate_shutdown()
    for thread in threads:
        thread.await_shutdown()
