"""OfflineReplicas: replicas of a member whose logs could not be opened, and that are opened once they can be.

A controller that is answered KAFKA_STORAGE_ERROR for a replica takes it out of the ISR, orders the broker to stop it,
and sends nothing more about it.  So the broker itself tries to open the log, and then has the controller send
LeaderAndIsr again (log_dir_notifications.py).  A Java broker tries only when it starts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import UUID

from kcore.common.text import counted, plain_error, some_of
from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.errors import KafkaError
from kcore.metadata.metadata_cache import MetadataSnapshot

logger = logging.getLogger(__name__)


#: Opens a partition's log, or makes it; what it returns is not used.  Raises KafkaError, OSError while that fails.
OpenLog = Callable[[], object]


def is_assigned(
    snapshot: MetadataSnapshot, broker_id: int, topic_partition: TopicPartition, topic_id: UUID | None
) -> bool:
    """Whether the metadata have a replica of the partition on the broker, and of the topic with this id (None and
    ZERO_UUID: of whichever)."""
    topic = snapshot.topic(topic_partition.topic)
    partition = topic.partitions.get(topic_partition.partition) if topic is not None else None
    if topic is None or partition is None or broker_id not in partition.replicas:
        return False
    return topic_id in (None, ZERO_UUID, topic.topic_id) or topic.topic_id == ZERO_UUID


@dataclass(slots=True)
class _OfflineReplica:
    """is_hosted: whether the broker hosted the partition when it was last looked at."""

    topic_id: UUID | None
    open_log: OpenLog
    is_hosted: bool = False


class OfflineReplicas:
    """Thread-safe.  retry() waits for disks, and is called from time to time.

    is_assigned: whether the metadata have the replica here, of the topic with this id.  is_hosted: whether the
    partition is hosted and not offline.  notify: has the controller send LeaderAndIsr for all replicas of this broker
    again.
    lock: held while a log is opened.  Who deletes a partition's log holds it until remove() has returned; otherwise the
    log could be made again after the deletion.  It is taken before ReplicaManager.state_change_lock.
    """

    def __init__(
        self,
        is_assigned: Callable[[TopicPartition, UUID | None], bool],
        is_hosted: Callable[[TopicPartition], bool],
        notify: Callable[[], None],
    ) -> None:
        self.lock = threading.RLock()
        self._is_assigned = is_assigned
        self._is_hosted = is_hosted
        self._notify = notify
        self._replicas: dict[TopicPartition, _OfflineReplica] = {}

    def add(self, topic_partition: TopicPartition, topic_id: UUID | None, open_log: OpenLog) -> None:
        """The replica is offline; open_log is called from time to time until the replica is online.

        A later LeaderAndIsr for the partition is expected to work once open_log has returned.
        """
        with self.lock:
            self._replicas[topic_partition] = _OfflineReplica(topic_id, open_log)

    def remove(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """The logs are deleted, or are not this broker's any more."""
        with self.lock:
            for topic_partition in topic_partitions:
                self._replicas.pop(topic_partition, None)

    def retry(self) -> None:
        """Try to open each log; notify the controller if one was opened."""
        opened = [topic_partition for topic_partition in list(self._replicas) if self._open(topic_partition)]
        if opened:
            logger.info("%s can be opened again: %s", counted(len(opened), "replica"), some_of(opened))
            self._notify()

    def _open(self, topic_partition: TopicPartition) -> bool:
        with self.lock:
            replica = self._replicas.get(topic_partition)
            if replica is None:
                return False
            if not self._is_assigned(topic_partition, replica.topic_id):
                del self._replicas[topic_partition]
                return False
            if self._is_hosted(topic_partition):
                # The controller may still send the order to stop that follows from the earlier error; then this is
                # done once more.
                if replica.is_hosted:
                    del self._replicas[topic_partition]
                replica.is_hosted = True
                return False
            replica.is_hosted = False
            try:
                replica.open_log()
            except (KafkaError, OSError) as error:
                logger.debug("%s is still offline: %s", topic_partition, plain_error(error))
                return False
            return True
