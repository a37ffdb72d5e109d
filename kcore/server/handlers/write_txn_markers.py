"""WriteTxnMarkers (27): a transaction coordinator ends transactions in partitions that this broker leads."""

from __future__ import annotations

import threading
from functools import partial

from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.marker_writer import Marker, MarkerResults
from kcore.errors import NONE, ClusterAuthorizationFailed, UnknownTopicOrPartition, code_of
from kcore.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kcore.security.acl import AclOperation
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.services import Services
from kcore.server.requests.transactions import transaction_writes_run_on


class Handler:
    def __init__(self, services: Services) -> None:
        self.runs_on = transaction_writes_run_on(services.admin_manager)
        self._cache = services.metadata_cache
        self._marker_writer = services.marker_writer
        self._auth = services.auth

    def handle(self, context: RequestContext, body: WriteTxnMarkersRequest) -> None:
        if not (
            self._auth.authorize_cluster(context, AclOperation.ALTER, log_if_denied=False)
            or self._auth.authorize_cluster(context, AclOperation.CLUSTER_ACTION)
        ):
            context.respond(self.error_response(body, ClusterAuthorizationFailed.code, context.api_version))
            return
        codes: list[dict[TopicPartition, int]] = [{} for _ in body.markers]
        lock, num_left = threading.Lock(), len(body.markers) + 1

        def written(number: int, results: MarkerResults) -> None:
            nonlocal num_left
            with lock:
                codes[number].update((tp, NONE if error is None else code_of(error)) for tp, error in results.items())
                num_left -= 1
                if num_left:
                    return
            context.respond(_response(body, codes))

        cache = self._cache.snapshot
        for number, item in enumerate(body.markers):
            marker = Marker(
                item.producer_id,
                item.producer_epoch,
                item.transaction_result,
                item.coordinator_epoch,
                item.transaction_version,
            )
            partitions = [TopicPartition(topic.name, p) for topic in item.topics for p in topic.partition_indexes]
            known = [tp for tp in partitions if cache.contains(tp)]
            codes[number] = dict.fromkeys(partitions, UnknownTopicOrPartition.code)
            if known:
                self._marker_writer.write(marker, known, partial(written, number))
            else:
                written(number, {})
        if body.markers:
            written(0, {})
        else:
            context.respond(WriteTxnMarkersResponse())

    def error_response(self, body: WriteTxnMarkersRequest, error_code: int, version: int) -> WriteTxnMarkersResponse:
        return _response(
            body,
            [
                {TopicPartition(topic.name, p): error_code for topic in item.topics for p in topic.partition_indexes}
                for item in body.markers
            ],
        )


def _response(body: WriteTxnMarkersRequest, codes: list[dict[TopicPartition, int]]) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=item.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(
                                partition_index=p, error_code=of_marker[TopicPartition(topic.name, p)]
                            )
                            for p in topic.partition_indexes
                        ],
                    )
                    for topic in item.topics
                ],
            )
            for item, of_marker in zip(body.markers, codes, strict=True)
        ]
    )
