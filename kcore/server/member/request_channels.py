"""RequestChannels: requests to the other brokers of a cluster, in order and one at a time for each broker."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kcore.client.blocking_sender import BlockingSender
from kcore.client.negotiating_sender import newest_version
from kcore.common.failure_log import FailureLog
from kcore.common.shutdownable_thread import ShutdownableThread
from kcore.common.text import plain_error
from kcore.common.time import Time
from kcore.coordinator.transaction.transaction_config import REQUEST_TIMEOUT_MS
from kcore.errors import KafkaError
from kcore.metadata.metadata_cache import Endpoint
from kcore.protocol.schema import Message
from kcore.server.member.inter_broker_connections import InterBrokerConnections

logger = logging.getLogger(__name__)

#: Gets the answer, or why there is none.
OnAnswer = Callable[[Message | OSError | KafkaError], None]


class _Queued(NamedTuple):
    request: Message
    on_answer: OnAnswer
    is_wanted: Callable[[], bool]


class RequestChannels:
    """A thread for each broker, which starts with its first request.  Thread-safe.

    what: names one of the requests in threads' names, and in the client id.  lowest_version: of what is sent; a broker
    that serves only older ones gives UnsupportedVersion.  A request that fails is not sent again.
    """

    def __init__(
        self, broker_id: int, connections: InterBrokerConnections, what: str, *, lowest_version: int = 0
    ) -> None:
        self._broker_id = broker_id
        self._connections = connections
        self._what = what
        self._lowest_version = lowest_version
        self._lock = threading.Lock()
        self._channels: dict[int, _Channel] = {}
        self._is_closed = False

    def send(
        self, broker_id: int, request: Message, on_answer: OnAnswer, is_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """on_answer() is called once, on the thread of the broker; never after shutdown().

        is_wanted: called when its turn has come; where it says no, it is not sent, and on_answer() not called.
        """
        with self._lock:
            if self._is_closed:
                return
            channel = self._channels.get(broker_id)
            if channel is None:
                channel = self._channels[broker_id] = _Channel(
                    f"kcore-{self._what}s-{self._broker_id}-{broker_id}",
                    lambda: self._connections.address_of(broker_id),
                    self._sender,
                    self._lowest_version,
                    self._connections.time,
                )
                channel.start()
        channel.put(_Queued(request, on_answer, is_wanted))

    def _sender(self, address: Endpoint) -> BlockingSender:
        client_id = f"broker-{self._broker_id}-{self._what}-sender"
        return self._connections.sender(address, client_id, request_timeout_ms=REQUEST_TIMEOUT_MS)

    def shutdown(self) -> None:
        with self._lock:
            self._is_closed = True
            channels = list(self._channels.values())
        for channel in channels:
            channel.initiate_shutdown()
        for channel in channels:
            channel.await_shutdown()


class _Channel(ShutdownableThread):
    """The requests for one broker, in order."""

    def __init__(
        self,
        name: str,
        address_of: Callable[[], Endpoint | None],
        make_sender: Callable[[Endpoint], BlockingSender],
        lowest_version: int,
        time: Time,
    ) -> None:
        super().__init__(name)
        self._time = time
        self._address_of = address_of
        self._make_sender = make_sender
        self._lowest_version = lowest_version
        self._failures = FailureLog()
        self._changed = threading.Condition()
        self._queue: deque[_Queued] = deque()
        self._address: Endpoint | None = None
        self._sender: BlockingSender | None = None

    def put(self, queued: _Queued) -> None:
        with self._changed:
            self._queue.append(queued)
            self._changed.notify()

    def wake_up(self) -> None:
        with self._changed:
            sender = self._sender
            self._changed.notify()
        if sender is not None:
            sender.close()

    def do_work(self) -> None:
        with self._changed:
            if not self._queue:
                if self.is_running:
                    self._changed.wait()
                return
            queued = self._queue.popleft()
        if not queued.is_wanted():
            return
        answer = self._answer_to(queued.request)
        if not self.is_running:
            return
        try:
            queued.on_answer(answer)
        except Exception:
            logger.exception("%s: an answer is not used", self.name)

    def _answer_to(self, request: Message) -> Message | OSError | KafkaError:
        try:
            sender = self._connected()
            version = newest_version(sender, request.api_key, self._lowest_version, request.max_version)
            response = sender.send(request, version)
        except (OSError, KafkaError) as error:
            reason = plain_error(error)
            if self.is_running and self._failures.is_logged(reason, self._time.hi_res_clock_ms()):
                logger.info("%s: requests are not answered: %s", self.name, reason)
            return error
        self._failures.succeeded()
        return response

    def _connected(self) -> BlockingSender:
        """Raises ConnectionError where the metadata have no address of the broker."""
        address = self._address_of()
        if address is None:
            raise ConnectionError("the broker is not alive")
        with self._changed:
            sender = self._sender
            if sender is not None and address == self._address:
                return sender
            self._address, self._sender = address, self._make_sender(address)
            new = self._sender
        if sender is not None:
            sender.close()
        return new
