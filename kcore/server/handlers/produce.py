"""Produce (0): append record batches."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.transaction_state import Producer
from kcore.errors import (
    NONE,
    ApiError,
    InvalidProducerIdMapping,
    InvalidRecord,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedCompressionType,
    code_of,
)
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.metadata.metadata_cache import MetadataSnapshot
from kcore.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kcore.record.batch_header import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    LENGTH_OFFSET,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    PRODUCER_ID_OFFSET,
    TRANSACTIONAL,
)
from kcore.record.compression import CODECS
from kcore.replica.delayed.delayed_produce import ProducePartitionStatus
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import NETWORK_THREAD, RunsOn
from kcore.server.requests.services import Services
from kcore.server.requests.transactions import PRODUCE_THAT_ADDS, may_write_transactions, produce_error

#: The client id that may write to internal topics.  Source: AdminUtils, Kafka.
ADMIN_CLIENT_ID = "__admin_client"

_LENGTH = struct.Struct(">i")
#: Producer id, its epoch, and the sequence of the first record.
_PRODUCER = struct.Struct(">qhi")
_NO_PRODUCER = (-1, -1, -1)
#: The attributes' second byte: codec and whether the batch is transactional.
_ATTRIBUTES = ATTRIBUTES_OFFSET + 1
_ZSTD = CODECS.index("zstd")


def _is_cut(records: memoryview) -> bool:
    """Whether the first batch is not whole."""
    return len(records) <= _ATTRIBUTES or _LENGTH.unpack_from(records, LENGTH_OFFSET)[0] > len(records) - LOG_OVERHEAD


def _producer_of(records: memoryview) -> tuple[int, int, int]:
    """Of the first batch; _NO_PRODUCER where it has no room for one, which the log refuses."""
    if len(records) < PRODUCER_ID_OFFSET + _PRODUCER.size:
        return _NO_PRODUCER
    producer: tuple[int, int, int] = _PRODUCER.unpack_from(records, PRODUCER_ID_OFFSET)
    return producer


class Handler:
    def __init__(self, services: Services) -> None:
        self._admin = services.admin_manager
        self._cache = services.metadata_cache
        self._replica_manager = services.replica_manager
        self._transaction_verifier = services.transaction_verifier
        self._client_quota = services.client_quotas.produce
        self._auth = services.auth

    def runs_on(self, context: RequestContext, body: ProduceRequest) -> RunsOn:
        admin = self._admin
        if not admin.flushing_topics and not admin.flushes_by_default:
            return NETWORK_THREAD
        cache = self._cache.snapshot
        by_id = context.api_version >= 13
        for topic in body.topic_data:
            name = cache.topic_name(topic.topic_id) if by_id else topic.name
            if admin.flushes_on_append(name or ""):
                return RunsOn.POOL
        return NETWORK_THREAD

    def handle(self, context: RequestContext, body: ProduceRequest) -> None:
        cache = self._cache.snapshot
        by_id = context.api_version >= 13
        no_zstd = context.api_version < 7
        # The first versions take any magic and number of batches: the log converts what it can (VAL-02).
        any_magic = context.api_version < 3
        entries: dict[TopicPartition, memoryview] = {}
        refused: dict[TopicPartition, ProducePartitionStatus] = {}
        # The producers of transactional batches, and the first sequences of these.
        producers: set[Producer] = set()
        sequences: dict[TopicPartition, int] = {}
        topics = body.topic_data
        if self._auth.is_enabled:
            topics = self._permitted(context, topics, cache, refused)
        for topic in topics:
            if by_id:
                name = cache.topic_name(topic.topic_id)
                if name is None:
                    # No client reads the name of such an answer; the id keeps two unknown topics apart.
                    topic.name = str(topic.topic_id)
                else:
                    topic.name = name
            for data in topic.partition_data:
                topic_partition = TopicPartition(topic.name, data.index)
                records = data.records
                error: ApiError | None = None
                if by_id and name is None:
                    error = UnknownTopicId(f"no topic has the id {topic.topic_id}")
                elif not cache.contains(topic_partition):
                    error = UnknownTopicOrPartition(f"{topic_partition}: no such partition")
                elif any_magic and records is not None and (_is_cut(records) or records[MAGIC_OFFSET] != 2):
                    entries[topic_partition] = records
                    continue
                elif records is None or _is_cut(records):
                    # A partition leaves a cut batch out, as what a fetch may end with; from a producer it is a mistake.
                    error = InvalidRecord(f"{topic_partition}: a produce request needs one whole record batch")
                elif (magic := records[MAGIC_OFFSET]) != 2:
                    error = InvalidRecord(f"{topic_partition}: record batches need magic 2, not {magic}")
                else:
                    attributes = records[_ATTRIBUTES]
                    if attributes & TRANSACTIONAL:
                        producer_id, epoch, sequences[topic_partition] = _producer_of(records)
                        producers.add(Producer(producer_id, epoch))
                    if no_zstd and not any_magic and attributes & CODEC_MASK == _ZSTD:
                        error = UnsupportedCompressionType("zstd needs Produce version 7 or later")
                    else:
                        entries[topic_partition] = records
                        continue
                refused[topic_partition] = ProducePartitionStatus(error)

        def respond(statuses: Mapping[TopicPartition, ProducePartitionStatus]) -> None:
            self._respond(context, body, {**statuses, **refused} if refused else statuses)

        def append(errors: Mapping[TopicPartition, ApiError]) -> None:
            for topic_partition, error in errors.items():
                del entries[topic_partition]
                answered = produce_error(error, context.api_version)
                refused[topic_partition] = ProducePartitionStatus(answered)
            if not entries:
                respond({})
                return
            self._replica_manager.append_records(
                body.timeout_ms,
                body.acks,
                context.header.client_id == ADMIN_CLIENT_ID,
                AppendOrigin.CLIENT,
                entries,
                respond,
            )

        if not producers:
            append({})
            return
        try:
            transactional_id = self._transactional_id(context, body, producers)
        except ApiError as error:  # of all, as in Kafka
            respond(dict.fromkeys(entries, ProducePartitionStatus(error)))
            return
        (producer,) = producers
        # Without a producer id no batch is transactional: the log refuses it.
        asked = {tp: n for tp, n in sequences.items() if tp in entries and producer.producer_id >= 0}
        adds = context.api_version >= PRODUCE_THAT_ADDS
        self._transaction_verifier.verify(transactional_id, producer, asked, append, adds=adds)

    def _transactional_id(self, context: RequestContext, body: ProduceRequest, producers: set[Producer]) -> str:
        """Of a request with transactional batches of these producers.  Raises TransactionalIdAuthorizationFailed,
        InvalidProducerIdMapping."""
        transactional_id = body.transactional_id
        if transactional_id is None or not may_write_transactions(self._auth, context, transactional_id):
            text = f"{context.principal} is not authorized to write in transactions of {transactional_id}"
            command = f"`kcore acls list --transactional-id {transactional_id}`"
            raise TransactionalIdAuthorizationFailed(f"{text}; {command} shows who is")
        if len(producers) > 1:
            raise InvalidProducerIdMapping(f"transactional batches of several producers: {sorted(producers)}")
        return transactional_id

    def _permitted(
        self,
        context: RequestContext,
        topics: list[TopicProduceData],
        cache: MetadataSnapshot,
        refused: dict[TopicPartition, ProducePartitionStatus],
    ) -> list[TopicProduceData]:
        """The topics that the client may write to, and unknown ids; the partitions of the others are refused."""
        if context.api_version >= 13:
            for topic in topics:
                topic.name = cache.topic_name(topic.topic_id) or ""
        names = [topic.name for topic in topics if topic.name]
        permitted = self._auth.filter_by_authorized(context, AclOperation.WRITE, ResourceType.TOPIC, names)
        for topic in topics:
            if topic.name and topic.name not in permitted:
                text = f"{context.principal} is not authorized to write to {topic.name}"
                error = TopicAuthorizationFailed(f"{text}; `kcore acls list --topic {topic.name}` shows who is")
                status = ProducePartitionStatus(error)
                refused.update((TopicPartition(topic.name, data.index), status) for data in topic.partition_data)
        return [topic for topic in topics if not topic.name or topic.name in permitted]

    def _respond(
        self, context: RequestContext, body: ProduceRequest, statuses: Mapping[TopicPartition, ProducePartitionStatus]
    ) -> None:
        throttle_ms = 0
        if self._client_quota.is_enabled:
            size = len(context.request.buffer)
            throttle_ms = self._client_quota.record(context.principal.name, context.client_id, size)
        if body.acks == 0:
            # No client reads a response; a closed connection makes the client ask for metadata again.
            failed = next((item for item in statuses.items() if item[1].error is not None), None)
            if failed is None:
                context.respond_nothing(throttle_ms)
            else:
                context.request.close_connection(f"produce with acks=0 to {failed[0]} failed: {failed[1].error}")
            return
        responses = []
        for topic in body.topic_data:
            partitions = []
            for data in topic.partition_data:
                status = statuses[TopicPartition(topic.name, data.index)]
                partition = PartitionProduceResponse(
                    index=data.index,
                    error_code=NONE,
                    base_offset=status.base_offset,
                    log_append_time_ms=status.log_append_time,
                    log_start_offset=status.log_start_offset,
                )
                if status.error is not None:
                    partition.error_code = code_of(status.error)
                    partition.error_message = status.error_message or str(status.error)
                    partition.record_errors = [
                        BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                        for index, message in status.record_errors
                    ]
                partitions.append(partition)
            responses.append(
                TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=partitions)
            )
        context.respond(ProduceResponse(responses=responses), throttle_ms)

    def error_response(self, body: ProduceRequest, error_code: int, version: int) -> ProduceResponse | None:
        if body.acks == 0:
            return None
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=[
                        PartitionProduceResponse(index=data.index, error_code=error_code, base_offset=-1)
                        for data in topic.partition_data
                    ],
                )
                for topic in body.topic_data
            ]
        )
