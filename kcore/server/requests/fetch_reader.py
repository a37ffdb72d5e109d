"""How the partitions of a Fetch are read, in a session or without: which may be, on which thread, for which client."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, InconsistentTopicId, UnsupportedCompressionType, UnsupportedVersion
from kcore.protocol.messages.fetch import FetchRequest
from kcore.record.down_conversion import down_convert
from kcore.replica.delayed.delayed_fetch import FetchCallback
from kcore.replica.fetch_params import FetchInfos, FetchParams, FetchPartitionResult
from kcore.replica.partition import Partition
from kcore.replica.replica_manager import ReplicaManager
from kcore.replica.replica_quota import ReplicaQuota
from kcore.server.requests.fetch_session import FIRST_VERSION_WITH_TOPIC_IDS
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RequestHandlerPool

#: A session of more is read on the pool: a partition costs some 4 us of the thread's time.
MAX_INLINE_PARTITIONS = 300
#: Below it a client cannot read zstd, and below the other one no record batches (KIP-110, KIP-98).
_FIRST_VERSION_WITH_ZSTD = 10
_FIRST_VERSION_WITH_BATCHES = 4


class FetchReader:
    """Thread-safe.  compares_topic_ids: not for a broker alone, which changes its metadata and its logs together."""

    def __init__(self, replica_manager: ReplicaManager, pool: RequestHandlerPool, *, compares_topic_ids: bool) -> None:
        self._replica_manager = replica_manager
        self._pool = pool
        #: By version of the request: whether refusal() has to be asked for each partition.
        self.may_refuse = [
            version < _FIRST_VERSION_WITH_ZSTD or (compares_topic_ids and version >= FIRST_VERSION_WITH_TOPIC_IDS)
            for version in range(FetchRequest.max_version + 1)
        ]

    def refusal(self, version: int, topic_partition: TopicPartition, topic_id: UUID) -> type[ApiError] | None:
        """Why a request may not read a partition that the metadata have, or None; only where may_refuse[version].

        InconsistentTopicId: the log here is that of another topic of the same name; the metadata have the new one, and
        the controller's order to stop this one is still to come (KIP-516).
        """
        if version < _FIRST_VERSION_WITH_ZSTD:
            config = self._replica_manager.log_config(topic_partition)
            return UnsupportedCompressionType if config is not None and config.compression_type == "zstd" else None
        hosted = self._replica_manager.hosted_partitions.get(topic_partition)
        is_another = isinstance(hosted, Partition) and hosted.is_of_another_topic(topic_id)
        return InconsistentTopicId if is_another else None

    def read(self, context: RequestContext, params: FetchParams, infos: FetchInfos, respond: FetchCallback) -> None:
        """respond(results) now, or once there is enough to read.

        A large fetch that has waited is read and answered on the pool, or the producer whose append ended its wait
        would wait for it, and all connections of that producer's thread.
        """
        if context.api_version < _FIRST_VERSION_WITH_BATCHES:
            respond = self._converting(context, infos, respond)
        if params.quota is not None:
            respond = _recording(params.quota, respond)
        run = partial(self._pool.submit, context.request) if len(infos) > MAX_INLINE_PARTITIONS else None
        self._replica_manager.fetch_messages(params, infos, respond, run)

    def _converting(self, context: RequestContext, infos: FetchInfos, respond: FetchCallback) -> FetchCallback:
        """A callback that converts what was read and responds, on the pool: a fetch that waited ends on the thread of
        the append that it waited for."""
        magic = 0 if context.api_version < 2 else 1

        def convert(results: list[tuple[TopicPartition, FetchPartitionResult]]) -> None:
            self._convert_down(magic, infos, results)
            respond(results)

        return lambda results: self._pool.submit(context.request, partial(convert, results))

    def _convert_down(
        self, magic: int, infos: FetchInfos, results: list[tuple[TopicPartition, FetchPartitionResult]]
    ) -> None:
        """Put in place of each partition's records what a client of that magic can read, or why it cannot."""
        for (topic_partition, partition), (_, result) in zip(infos, results, strict=True):
            records = result.records
            if not records.size_in_bytes:
                continue
            config = self._replica_manager.log_config(topic_partition)
            try:
                if config is not None and not config.message_downconversion_enable:
                    raise UnsupportedVersion(f"{topic_partition}: message.downconversion.enable is false")
                meters = self._replica_manager.meters.topic(topic_partition.topic)
                result.converted = down_convert(records, magic, partition.fetch_offset, meters)
            except ApiError as error:
                result.error = error


def _recording(quota: ReplicaQuota, respond: FetchCallback) -> FetchCallback:
    """respond, after the bytes of throttled partitions have been recorded (QUOTA-03)."""

    def record_and_respond(results: list[tuple[TopicPartition, FetchPartitionResult]]) -> None:
        size = sum(result.records.size_in_bytes for tp, result in results if quota.is_throttled(tp))
        if size:
            quota.record(size)
        respond(results)

    return record_and_respond
