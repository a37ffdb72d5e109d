"""RequestSendThread: sends the requests of a BrokerChannel over one connection."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from kcore.client.broker_channel import BrokerChannel, OnReply, Wait
from kcore.common.failure_log import FailureLog
from kcore.common.shutdownable_thread import ShutdownableThread
from kcore.common.text import plain_error
from kcore.common.time import Time
from kcore.errors import KafkaError
from kcore.protocol.schema import Message

logger = logging.getLogger(__name__)


class Sender(Protocol):
    """A connection that chooses the version of a request.

    Raises OSError, KafkaError, and ValueError for a request that cannot be encoded.
    """

    def send(self, request: Message) -> Message: ...

    def close(self) -> None: ...


class RequestSendThread(ShutdownableThread):
    """Drives one channel.  put() from any thread; on_reply is called on this thread, without a lock.

    A request is sent again after an OSError or a KafkaError.  After any other error it is dropped, and its on_reply is
    not called: a request that cannot be encoded never can be, and would hold up all that follow.
    """

    def __init__(self, name: str, channel: BrokerChannel, sender: Sender, time: Time) -> None:
        super().__init__(name)
        self._channel = channel
        self._sender = sender
        self._time = time
        self._failures = FailureLog()
        self._changed = threading.Condition()

    @property
    def queue_size(self) -> int:
        """Requests that have no answer yet."""
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
            now_ms, kind, reason = self._time.hi_res_clock_ms(), type(step.request).__name__, plain_error(error)
            if self.is_running and self._failures.is_logged(f"{kind}: {reason}", now_ms):
                logger.info("%s: %s is sent again until it is answered: %s", self.name, kind, reason)
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
