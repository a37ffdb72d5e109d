"""LateDeletions: StopReplica requests that would delete a log of the topic in use, and are about an earlier topic.

The request has no topic id, and its leader epoch is not compared when a topic is deleted.  A controller sends it again
when a connection breaks, so a first copy may be carried out after the topic was created again.  What the controller
deletes is in the store before it sends the request: the order to delete the topic, or which replicas are given up.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from uuid import UUID

from kcore.common.text import some_of
from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.errors import ApiError, InconsistentTopicId
from kcore.log.log_manager import LogManager
from kcore.metadata import znodes
from kcore.metadata.metadata_cache import MetadataCache
from kcore.metadata.store import MetadataStore, StoreError
from kcore.replica.partition_state import StopReplica

logger = logging.getLogger(__name__)


def is_to_be_deleted(
    broker_id: int, number: int, log_topic_id: UUID | None, topic: znodes.TopicZNode | None, *, is_ordered: bool
) -> bool:
    """Whether the store agrees that a broker deletes its log of a partition.

    topic: its node, None if it has none.  is_ordered: there is an order to delete the topic.  An added replica is given
    up before that is stored, when its reassignment is cancelled.
    """
    if topic is None or is_ordered or (None not in (log_topic_id, topic.topic_id) and log_topic_id != topic.topic_id):
        return True
    is_replica = broker_id in topic.assignment.get(number, ())
    return not is_replica or broker_id in (*topic.removing.get(number, ()), *topic.adding.get(number, ()))


class LateDeletions:
    """Thread-safe."""

    def __init__(
        self, broker_id: int, store: MetadataStore, log_manager: LogManager, metadata_cache: MetadataCache
    ) -> None:
        self._broker_id = broker_id
        self._store = store
        self._log_manager = log_manager
        self._cache = metadata_cache

    def refused(self, stops: Iterable[StopReplica]) -> dict[TopicPartition, ApiError]:
        """InconsistentTopicId for each partition whose log must not be deleted.  Reads the store if there is a log.

        While the store does not answer, the metadata decide: the controller takes a topic out of them before it has its
        logs deleted.  Otherwise each deletion of a topic would wait for this broker's next start.
        """
        logs = {stop.topic_partition: self._log_manager.get_log(stop.topic_partition) for stop in stops if stop.delete}
        topic_ids = {tp: log.topic_id for tp, log in logs.items() if log is not None}
        if not topic_ids:
            return {}
        try:
            late = self._not_ordered(topic_ids, sorted({tp.topic for tp in topic_ids}))
        except StoreError as error:
            late = [tp for tp, topic_id in topic_ids.items() if self._is_in_metadata(tp, topic_id)]
            if late:
                logger.error("%s: whether their logs are to be deleted is not known: %s", some_of(late), error)
        if late:
            logger.warning("not deleted, since the topic of their logs is in use: %s", some_of(late))
        return {tp: InconsistentTopicId(f"{tp}: its topic is not to be deleted, as the store has it") for tp in late}

    def _not_ordered(self, topic_ids: dict[TopicPartition, UUID | None], names: Sequence[str]) -> list[TopicPartition]:
        """Raises StoreError."""
        self._store.sync()
        orders = dict(zip(names, self._store.get_many([znodes.delete_topic(name) for name in names]), strict=True))
        paths = [znodes.topic(name) for name in names]
        topics = {
            name: znodes.decode_node(path, node.data, znodes.TopicZNode.decode) if node is not None else None
            for name, path, node in zip(names, paths, self._store.get_many(paths), strict=True)
        }
        return [
            tp
            for tp, topic_id in topic_ids.items()
            if not is_to_be_deleted(
                self._broker_id, tp.partition, topic_id, topics[tp.topic], is_ordered=orders[tp.topic] is not None
            )
        ]

    def _is_in_metadata(self, tp: TopicPartition, topic_id: UUID | None) -> bool:
        topic = self._cache.topic(tp.topic)
        if topic is None or topic.topic_id not in (topic_id, ZERO_UUID) or tp.partition not in topic.partitions:
            return False
        return self._broker_id in topic.partitions[tp.partition].replicas
