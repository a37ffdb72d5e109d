"""MarkerChannels: the ends of transactions, sent to the other brokers of a cluster."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

from kcore.client.negotiating_sender import NegotiatingSender
from kcore.common.failure_log import FailureLog
from kcore.common.shutdownable_thread import ShutdownableThread
from kcore.common.text import plain_error
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.marker_writer import Marker, MarkerResults
from kcore.coordinator.transaction.transaction_config import REQUEST_TIMEOUT_MS
from kcore.errors import NONE, ApiError, KafkaError, NetworkException, for_code
from kcore.metadata.metadata_cache import Endpoint
from kcore.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kcore.server.member.inter_broker_connections import InterBrokerConnections

logger = logging.getLogger(__name__)

OnSent = Callable[[MarkerResults], None]


class _Queued(NamedTuple):
    marker: Marker
    partitions: Collection[TopicPartition]
    on_sent: OnSent


class MarkerChannels:
    """A MarkerSender with a thread for each broker, which starts with its first marker.  Thread-safe.

    A request that fails is not sent again here: the partitions may have another leader by then.
    """

    def __init__(self, broker_id: int, connections: InterBrokerConnections) -> None:
        self._broker_id = broker_id
        self._connections = connections
        self._lock = threading.Lock()
        self._channels: dict[int, _Channel] = {}
        self._is_closed = False

    def send(self, broker_id: int, marker: Marker, partitions: Collection[TopicPartition], on_sent: OnSent) -> None:
        with self._lock:
            if self._is_closed:
                return
            channel = self._channels.get(broker_id)
            if channel is None:
                channel = self._channels[broker_id] = _Channel(
                    f"kcore-txn-markers-{self._broker_id}-{broker_id}",
                    lambda: self._connections.address_of(broker_id),
                    self._sender,
                    self._connections.time,
                )
                channel.start()
        channel.put(_Queued(marker, partitions, on_sent))

    def _sender(self, address: Endpoint) -> NegotiatingSender:
        client_id = f"broker-{self._broker_id}-txn-marker-sender"
        return NegotiatingSender(self._connections.sender(address, client_id, request_timeout_ms=REQUEST_TIMEOUT_MS))

    def shutdown(self) -> None:
        """What is not sent is left to the next coordinator."""
        with self._lock:
            self._is_closed = True
            channels = list(self._channels.values())
        for channel in channels:
            channel.initiate_shutdown()
        for channel in channels:
            channel.await_shutdown()


class _Channel(ShutdownableThread):
    """The markers for one broker, in order."""

    def __init__(
        self,
        name: str,
        address_of: Callable[[], Endpoint | None],
        make_sender: Callable[[Endpoint], NegotiatingSender],
        time: Time,
    ) -> None:
        super().__init__(name)
        self._time = time
        self._address_of = address_of
        self._make_sender = make_sender
        self._failures = FailureLog()
        self._changed = threading.Condition()
        self._queue: deque[_Queued] = deque()
        self._address: Endpoint | None = None
        self._sender: NegotiatingSender | None = None

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
        results = self._results_of(queued)
        if not self.is_running:
            return
        try:
            queued.on_sent(results)
        except Exception:
            logger.exception(
                "%s: the answer about a transaction of producer %d is not used", self.name, queued.marker.producer_id
            )

    def _results_of(self, queued: _Queued) -> MarkerResults:
        try:
            response = self._connected().send(_request(queued.marker, queued.partitions))
        except (OSError, KafkaError) as error:
            reason = plain_error(error)
            if self.is_running and self._failures.is_logged(reason, self._time.hi_res_clock_ms()):
                logger.info("%s: the ends of transactions are not answered: %s", self.name, reason)
            return dict.fromkeys(queued.partitions, NetworkException(reason))
        assert isinstance(response, WriteTxnMarkersResponse)
        self._failures.succeeded()
        return _results(response, queued.partitions)

    def _connected(self) -> NegotiatingSender:
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


def _request(marker: Marker, partitions: Collection[TopicPartition]) -> WriteTxnMarkersRequest:
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.is_commit,
                coordinator_epoch=marker.coordinator_epoch,
                topics=[
                    WritableTxnMarkerTopic(name=topic, partition_indexes=numbers) for topic, numbers in by_topic.items()
                ],
            )
        ]
    )


def _results(response: WriteTxnMarkersResponse, partitions: Collection[TopicPartition]) -> MarkerResults:
    results: dict[TopicPartition, ApiError | None] = dict.fromkeys(
        partitions, NetworkException("the answer does not name the partition")
    )
    for item in response.markers:
        for topic in item.topics:
            for partition in topic.partitions:
                topic_partition = TopicPartition(topic.name, partition.partition_index)
                if topic_partition in results:
                    code = partition.error_code
                    results[topic_partition] = None if code == NONE else for_code(code)(str(topic_partition))
    return results
