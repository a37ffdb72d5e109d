"""The controller's connections: one queue and one sender thread for each live broker.

A slow or unreachable broker holds up its own queue only.
Source: ControllerChannelManager, Kafka 3.9.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from kcore.client.broker_channel import BrokerChannel, OnReply
from kcore.client.request_send_thread import RequestSendThread, Sender
from kcore.common.text import plain_error
from kcore.common.time import SYSTEM_TIME, Time
from kcore.controller.controller_context import LiveBroker
from kcore.protocol.schema import Message

logger = logging.getLogger(__name__)


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
                logger.error("broker %d gets no requests of the controller: %s", broker.broker_id, plain_error(error))
                return
            thread = RequestSendThread(
                f"kcore-controller-{self._controller_id}-to-{broker.broker_id}",
                BrokerChannel(),
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
