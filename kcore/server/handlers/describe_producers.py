"""DescribeProducers (61): what a partition's leader knows of its producers."""

from __future__ import annotations

from kcore.common import topic_names
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    ApiError,
    InvalidTopicException,
    NotLeaderOrFollower,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from kcore.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from kcore.replica.partition import Partition
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.POOL  # there may be very many

    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self._replica_manager = services.replica_manager
        self._auth = services.auth

    def handle(self, context: RequestContext, body: DescribeProducersRequest) -> None:
        names = [topic.name for topic in body.topics]
        permitted = self._auth.filter_by_authorized(context, AclOperation.READ, ResourceType.TOPIC, names)
        context.respond(
            DescribeProducersResponse(
                topics=[
                    TopicResponse(
                        name=topic.name,
                        partitions=[
                            self._described(TopicPartition(topic.name, number), topic.name in permitted)
                            for number in topic.partition_indexes
                        ],
                    )
                    for topic in body.topics
                ]
            )
        )

    def _described(self, topic_partition: TopicPartition, is_permitted: bool) -> PartitionResponse:
        number = topic_partition.partition
        try:
            return PartitionResponse(
                partition_index=number, active_producers=self._producers(topic_partition, is_permitted)
            )
        except ApiError as error:
            return PartitionResponse(partition_index=number, error_code=error.code, error_message=str(error))

    def _producers(self, topic_partition: TopicPartition, is_permitted: bool) -> list[ProducerState]:
        if not topic_names.is_legal(topic_partition.topic):
            raise InvalidTopicException(f"{topic_partition.topic} cannot be the name of a topic")
        if not is_permitted:
            raise TopicAuthorizationFailed(f"not authorized to read {topic_partition.topic}")
        if not self._cache.contains(topic_partition):
            raise UnknownTopicOrPartition(f"{topic_partition}: no such partition")
        partition = self._replica_manager.get_partition(topic_partition)
        if not isinstance(partition, Partition) or not partition.is_leader:
            raise NotLeaderOrFollower(f"{topic_partition} is led by another broker")
        return [
            ProducerState(
                producer_id=entry.producer_id,
                producer_epoch=entry.producer_epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=-1
                if entry.current_txn_first_offset is None
                else entry.current_txn_first_offset,
            )
            for entry in partition.local_log().active_producers()
        ]

    def error_response(
        self, body: DescribeProducersRequest, error_code: int, version: int
    ) -> DescribeProducersResponse:
        return DescribeProducersResponse(
            topics=[
                TopicResponse(
                    name=topic.name,
                    partitions=[
                        PartitionResponse(partition_index=number, error_code=error_code)
                        for number in topic.partition_indexes
                    ],
                )
                for topic in body.topics
            ]
        )
