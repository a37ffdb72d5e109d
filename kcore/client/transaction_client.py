"""TransactionClient: which transactions are open in partitions, and ends them without their coordinator.

Source of the requests: KIP-664 (DescribeProducers, and WriteTxnMarkers as kafka-transactions.sh abort sends it).
"""

from __future__ import annotations

from typing import NamedTuple

from kcore.client.admin_client import AdminClient, Node, raise_error
from kcore.common.topic_partition import TopicPartition
from kcore.protocol.messages import describe_producers as dp
from kcore.protocol.messages import write_txn_markers as wm


class OpenTransaction(NamedTuple):
    """first_offset: where it begins.  last_timestamp: of the producer's last batch, in ms.  coordinator_epoch: of its
    last marker in the partition, -1 for none."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    first_offset: int
    last_timestamp: int


class TransactionClient(AdminClient):
    """For one thread."""

    def open_transactions(self, leader: Node, topic_partition: TopicPartition) -> list[OpenTransaction]:
        """Those of a partition, by their first offset.  Raises OSError, ApiError."""
        asked = dp.TopicRequest(name=topic_partition.topic, partition_indexes=[topic_partition.partition])
        with self._timed():
            request = dp.DescribeProducersRequest(topics=[asked])
            response = self._send((leader.host, leader.port), request, dp.DescribeProducersResponse)
        ((partition,),) = (topic.partitions for topic in response.topics)
        raise_error(partition.error_code, partition.error_message)
        found = [
            OpenTransaction(
                topic_partition,
                producer.producer_id,
                producer.producer_epoch,
                producer.coordinator_epoch,
                producer.current_txn_start_offset,
                producer.last_timestamp,
            )
            for producer in partition.active_producers
            if producer.current_txn_start_offset >= 0
        ]
        return sorted(found, key=lambda transaction: transaction.first_offset)

    def abort(self, leader: Node, transaction: OpenTransaction) -> None:
        """Append the marker that aborts it: one more offset in its partition.  Its coordinator does not hear of it.
        Raises OSError, ApiError."""
        tp = transaction.topic_partition
        marker = wm.WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            transaction_result=False,
            topics=[wm.WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
            coordinator_epoch=max(0, transaction.coordinator_epoch),
        )
        with self._timed():
            request = wm.WriteTxnMarkersRequest(markers=[marker])
            response = self._send((leader.host, leader.port), request, wm.WriteTxnMarkersResponse)
        for result in response.markers:
            for topic in result.topics:
                for partition in topic.partitions:
                    raise_error(partition.error_code, None)
