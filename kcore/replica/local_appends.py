"""LocalAppends: the appends of a produce to the logs that this broker leads (APP)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from kcore.common.topic_names import INTERNAL_TOPICS
from kcore.common.topic_partition import TopicPartition
from kcore.errors import DiskFull, InvalidProducerEpoch, InvalidTopicException, OutOfOrderSequenceNumber
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.replica.api_errors import api_error
from kcore.replica.delayed.delayed_produce import ProducePartitionStatus
from kcore.replica.disk_full_refusals import DiskFullRefusals
from kcore.replica.hosted_partitions import HostedPartitions
from kcore.replica.partition import Partition
from kcore.replica.replica_meters import ReplicaMeters

logger = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview


@dataclass(slots=True)
class AppendResult:
    """What became of one produce.

    statuses: of every partition.  pending: those whose records are written and not yet replicated as acks=-1 wants it.
    advanced: those whose high watermark has risen with the append; appended: the others whose log has grown (PART-10).
    """

    statuses: dict[TopicPartition, ProducePartitionStatus]
    pending: list[TopicPartition]
    appended: list[TopicPartition]
    advanced: list[TopicPartition]


class LocalAppends:
    """Thread-safe, as its parts are."""

    def __init__(
        self, hosted_partitions: HostedPartitions, meters: ReplicaMeters, disk_full_refusals: DiskFullRefusals
    ) -> None:
        self._hosted_partitions = hosted_partitions
        self._meters = meters
        self._disk_full_refusals = disk_full_refusals

    def append(
        self,
        required_acks: int,
        internal_topics_allowed: bool,
        origin: AppendOrigin,
        entries: Mapping[TopicPartition, Buffer],
        leader_epochs: Mapping[TopicPartition, int] | None = None,
    ) -> AppendResult:
        """Write each partition's records; one's failure never touches another's."""
        result = AppendResult({}, [], [], [])
        get, get_or_exception = self._hosted_partitions.get, self._hosted_partitions.get_or_exception
        for topic_partition, records in entries.items():
            partition = None
            try:
                if not internal_topics_allowed and topic_partition.topic in INTERNAL_TOPICS:
                    raise InvalidTopicException(f"Cannot append to internal topic {topic_partition.topic}")
                hosted = get(topic_partition)
                partition = hosted if type(hosted) is Partition else get_or_exception(topic_partition)
                epoch = partition.leader_epoch
                if leader_epochs is not None:
                    epoch = leader_epochs.get(topic_partition, epoch)
                info, rose = partition.append_records_to_leader(records, required_acks, origin, epoch)
                partition.meters.produced(info.record_count, info.valid_bytes)
                if info.converted_count:
                    self._meters.produce_converted(partition.meters, info.converted_count, info.conversion_ns)
                (result.advanced if rose else result.appended).append(topic_partition)
                required_offset = info.last_offset + 1
                if required_acks == -1 and not partition.check_enough_replicas_reach_offset(required_offset, epoch):
                    result.pending.append(topic_partition)
                status = ProducePartitionStatus(
                    None,
                    info.first_offset,
                    info.log_append_time,
                    info.log_start_offset,
                    required_offset=required_offset,
                    leader_epoch=epoch,
                )
            except Exception as error:
                status = self._refusal(topic_partition, partition, len(records), error)
            result.statuses[topic_partition] = status
        return result

    def _refusal(
        self, topic_partition: TopicPartition, partition: Partition | None, size: int, error: Exception
    ) -> ProducePartitionStatus:
        """The answer for a partition whose records, of `size` bytes, were not written."""
        failure = api_error(error, "append", topic_partition)
        if isinstance(failure, (InvalidProducerEpoch, OutOfOrderSequenceNumber)):
            logger.info("%s", failure)  # the client may send the records again under another epoch
        self._meters.produce_refused(topic_partition.topic, failure, size)
        if isinstance(failure, DiskFull) and partition is not None:
            self._disk_full_refusals.note(partition)
        record_errors = getattr(error, "record_errors", None)
        if record_errors is None:
            return ProducePartitionStatus(failure)
        log_start_offset = partition.log.log_start_offset if partition is not None else -1
        return ProducePartitionStatus(
            failure, log_start_offset=log_start_offset, record_errors=record_errors, error_message=str(error)
        )
