"""MarkerChannels: the ends of transactions, sent to the other brokers of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection

from kcore.common.text import plain_error
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.marker_writer import Marker, MarkerResults
from kcore.errors import NONE, ApiError, KafkaError, NetworkException, for_code
from kcore.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kcore.protocol.schema import Message
from kcore.server.member.inter_broker_connections import InterBrokerConnections
from kcore.server.member.request_channels import RequestChannels

OnSent = Callable[[MarkerResults], None]


class MarkerChannels:
    """A MarkerSender.  Thread-safe.

    A request that fails is not sent again here: the partitions may have another leader by then.
    """

    def __init__(self, broker_id: int, connections: InterBrokerConnections) -> None:
        self._channels = RequestChannels(broker_id, connections, "txn-marker")
        #: What is not sent is left to the next coordinator.
        self.shutdown = self._channels.shutdown

    def send(self, broker_id: int, marker: Marker, partitions: Collection[TopicPartition], on_sent: OnSent) -> None:
        def answered(answer: Message | OSError | KafkaError) -> None:
            if isinstance(answer, WriteTxnMarkersResponse):
                on_sent(_results(answer, partitions))
            else:
                assert not isinstance(answer, Message)
                on_sent(dict.fromkeys(partitions, NetworkException(plain_error(answer))))

        self._channels.send(broker_id, _request(marker, partitions), answered)


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
                transaction_version=marker.transaction_version,
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
