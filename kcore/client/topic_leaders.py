"""TopicLeaders: one topic's leaders, and a connection to each broker that leads a partition."""

from __future__ import annotations

import errno
import shlex
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TypeVar
from uuid import UUID

from kcore.client.admin_client import NEWEST, Address, AdminClient, Node, PartitionDescription, Silence
from kcore.common.executors import ExecutorFactory, thread_pool
from kcore.common.text import nearest, plain_error
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    ApiError,
    InvalidTopicException,
    LeaderNotAvailable,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from kcore.protocol.schema import Message

_M = TypeVar("_M", bound=Message)

#: So long a topic may be missing in the metadata before it counts as deleted: a broker that has just started does not
#: know the topics yet.
_MISSING_MS = 3000
#: Between two attempts.
BACKOFF_MS = 100
#: More than brokers have partitions of one topic in most clusters; a thread is started when it is needed.
_MOST_THREADS = 64


class TopicGone(UnknownTopicOrPartition):
    """A topic was deleted while it was used."""


class _BrokerClient(AdminClient):
    """Sends requests to one broker.  One thread at a time."""

    def request(self, request: Message, response_class: type[_M], max_version: int) -> _M:
        """Raises what AdminClient does; TimeoutError after timeout_ms, and sooner where the broker's process stands
        still."""
        (address,) = self._bootstrap
        with self._timed():
            return self._send(address, request, response_class, max_version)


class TopicLeaders:
    """Who leads each partition of one topic.  For one thread, which sends to all brokers at the same time.

    client: asked for the metadata; the caller closes it.  request_timeout_ms: of one request to a leader.
    on_silence: as AdminClient's, called on any thread, at most once for each broker in turn.
    """

    def __init__(
        self,
        client: AdminClient,
        topic: str,
        *,
        client_id: str,
        request_timeout_ms: int,
        on_silence: Callable[[Address, Silence], None],
        time: Time = SYSTEM_TIME,
        make_executor: ExecutorFactory = thread_pool,
        missing_hint: str | None = None,
    ) -> None:
        """Raises UnknownTopicOrPartition with the nearest name that there is, else with missing_hint, else how to make
        the topic; and as AdminClient.describe_cluster()."""
        self.topic = topic
        #: Of the topic that the name stood for at first; None from brokers before 2.8.
        self.topic_id: UUID | None = None
        self.partitions: Mapping[int, PartitionDescription] = {}
        self.client = client
        self._client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._on_silence = on_silence
        self._time = time
        self._brokers: Mapping[int, Node] = {}
        self._senders: dict[Address, _BrokerClient] = {}
        self._executor = make_executor(_MOST_THREADS, "kcore-leader")
        self._missing_since_ms: float | None = None
        self._refreshed_ms = 0.0
        try:
            self._describe()
        except InvalidTopicException as error:
            raise InvalidTopicException(f"{error}{self._nearest_name()}") from None
        except UnknownTopicOrPartition as error:
            hint = self._nearest_name() or missing_hint or f": `kcore topics create {shlex.quote(topic)}` makes it"
            raise UnknownTopicOrPartition(f"{error}{hint}") from None

    def close(self) -> None:
        """End requests that wait."""
        for sender in self._senders.values():
            sender.close()
        self._executor.shutdown()

    def refresh(self) -> None:
        """Ask for the leaders again.  Raises TopicGone if the topic was deleted, or made again since; ApiError; OSError
        where no broker answers."""
        try:
            self._describe()
        except TopicGone:
            raise
        except UnknownTopicOrPartition:
            now_ms = self._time.hi_res_clock_ms()
            if self._missing_since_ms is None:
                self._missing_since_ms = now_ms
            if now_ms - self._missing_since_ms >= _MISSING_MS:
                raise TopicGone(f"the topic {self.topic} was deleted") from None
        else:
            self._missing_since_ms = None

    def refresh_later(self) -> OSError | ApiError | None:
        """refresh(), but not until 100 ms after the last one.  The error after which it may be tried again; raises
        TopicGone."""
        now_ms = self._time.hi_res_clock_ms()
        if now_ms - self._refreshed_ms < BACKOFF_MS:
            return None
        self._refreshed_ms = now_ms
        try:
            self.refresh()
        except TopicGone:
            raise
        except (OSError, ApiError) as error:
            return error
        return None

    def check_failure(
        self, number: int, error: Exception | str, lasted_ms: float, timeout_ms: float, what: str
    ) -> None:
        """A partition's request has failed: raise the error if it does not pass, or has lasted for the timeout, with
        what has not happened meanwhile.  An unknown error of the broker passes; Kafka's clients end with it."""
        if isinstance(error, ApiError) and not error.retriable and not isinstance(error, UnknownServerError):
            raise error
        if lasted_ms < timeout_ms:
            return
        message = f"{TopicPartition(self.topic, number)}: {what} for {timeout_ms / 1000:g} s: "
        if isinstance(error, ApiError):
            raise type(error)(f"{message}{error}")
        raise TimeoutError(errno.ETIMEDOUT, message + (error if isinstance(error, str) else plain_error(error)))

    def _describe(self) -> None:
        described = self.client.describe_cluster([self.topic])
        topic = described.topics.get(self.topic)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {self.topic!r}")
        if self.topic_id is not None and topic.topic_id not in (None, self.topic_id):
            raise TopicGone(f"the topic {self.topic} was deleted and made again")
        self.topic_id = topic.topic_id or self.topic_id
        # Without partitions: it has just been created.
        self.partitions = topic.partitions or self.partitions
        self._brokers = described.brokers

    def _nearest_name(self) -> str:
        try:
            return nearest(self.topic, self.client.describe_cluster().topics)
        except (OSError, ApiError):
            return ""

    def wait_for_partitions(self, timeout_ms: float) -> list[int]:
        """The partitions' numbers; of a topic that has just been created once it has some.

        Raises LeaderNotAvailable after timeout_ms, and as refresh().
        """
        deadline_ms = self._time.hi_res_clock_ms() + timeout_ms
        while not self.partitions:
            if self._time.hi_res_clock_ms() >= deadline_ms:
                raise LeaderNotAvailable(f"the topic {self.topic} has no partitions yet")
            self._time.sleep(BACKOFF_MS)
            self.refresh()
        return sorted(self.partitions)

    def leader(self, partition: int) -> Node | None:
        """None while there is none, or it is not alive."""
        described = self.partitions.get(partition)
        return None if described is None else self._brokers.get(described.leader)

    def leader_epoch(self, partition: int) -> int:
        """-1 where it is not known."""
        described = self.partitions.get(partition)
        return -1 if described is None else described.leader_epoch

    def send(self, to: Node, request: Message, response_class: type[_M], max_version: int = NEWEST) -> Future[_M]:
        """The answer, which comes on another thread; requests to one broker must not overlap.  Its exceptions are those
        of AdminClient."""
        address = (to.host, to.port)
        sender = self._senders.get(address)
        if sender is None:
            sender = self._senders[address] = _BrokerClient(
                [address],
                client_id=self._client_id,
                timeout_ms=self._request_timeout_ms,
                on_silence=self._on_silence,
                time=self._time,
            )
        return self._executor.submit(sender.request, request, response_class, max_version)
