"""TopicIdentity: whether a log here is of the topic that has its name now, and what becomes of it if it is not.

A topic may be deleted, and another one of its name be created, while this broker is down, stands still or has no
session; and requests about the earlier one may come late.  Which topic is there now, the store says.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from uuid import UUID

from kcore.common.text import some_of
from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.coordinator.coordinators import Coordinators
from kcore.log.log_manager import LogManager
from kcore.metadata import znodes
from kcore.metadata.metadata_cache import MetadataCache
from kcore.metadata.store import ConnectionLost, MetadataStore, StoreError
from kcore.replica.replica_manager import ReplicaManager
from kcore.server.config.stored_topic_configs import StoredTopicConfigs

logger = logging.getLogger(__name__)


class TopicIdentity:
    """Thread-safe; it has no state of its own."""

    def __init__(
        self,
        store: MetadataStore,
        metadata_cache: MetadataCache,
        replica_manager: ReplicaManager,
        log_manager: LogManager,
        coordinators: Coordinators,
        stored_topic_configs: StoredTopicConfigs,
    ) -> None:
        self._store = store
        self._cache = metadata_cache
        self._replica_manager = replica_manager
        self._log_manager = log_manager
        self._coordinators = coordinators
        self._configs = stored_topic_configs

    def has_another_topic(self, topic_partition: TopicPartition, topic_id: UUID | None) -> bool:
        """Whether the partition's log was made for another topic of that name than the one with this id."""
        log = self._log_manager.get_log(topic_partition)
        return log is not None and log.topic_id is not None and topic_id not in (None, ZERO_UUID, log.topic_id)

    def forget_deleted_topics(self) -> None:
        """Serve no topic that was deleted while this broker had no session: the controller does not name it again.

        The logs stay where they are.  A store without any topic is rather one that lost its nodes: nothing changes.
        """
        known = [topic for topic in self._cache.topics() if topic.topic_id != ZERO_UUID]
        self._store.sync()
        stored = set(self._store.children(znodes.TOPICS))
        gone = {topic.name: topic for topic in known if topic.name not in stored}
        if not gone:
            return
        if not stored:
            logger.error("the store has none of the %d topics that this broker knows: it serves them on", len(known))
            return
        logger.warning("topics deleted while this broker had no session: %s", some_of(sorted(gone)))
        hosted = [partition.topic_partition for partition in self._replica_manager.partitions()]
        self._replica_manager.resign({tp: gone[tp.topic].topic_id for tp in hosted if tp.topic in gone})
        ids = {topic.topic_id for topic in gone.values()}
        self._cache.update(
            lambda snapshot: snapshot.with_topics(
                (), without=[topic.name for topic in snapshot.topics() if topic.topic_id in ids]
            )
        )
        for name in gone:
            if self._cache.topic(name) is None:
                self._configs.remove(name)
        self._cache.announce()

    def set_deleted_topics_aside(
        self, topic_ids: Mapping[TopicPartition, UUID | None], controller_epoch: int
    ) -> set[str]:
        """The logs here of a topic that was deleted, and created again with one of these ids, become strays.

        This broker has not received the deletion: it was down or stood still, and its replicas had been moved away
        before; a late request may have made it a replica of the earlier topic once more.  Which of two topics is there
        now, the store says: this request may be the late one.  What comes back: the topics of which the store could not
        say it, because it cannot be reached.
        """
        named = {tp.topic: topic_id for tp, topic_id in topic_ids.items() if self.has_another_topic(tp, topic_id)}
        unread = set()
        deleted: dict[TopicPartition, UUID] = {}
        for name, topic_id in named.items():
            try:
                stored_id = self._stored_topic_id(name)
            except ConnectionLost as error:
                logger.error("whether topic %s was created again is not known: %s", name, error)
                unread.add(name)
                continue
            logs = [log for log in self._log_manager.all_logs() if log.topic_partition.topic == name]
            earlier = {log.topic_partition: log.topic_id for log in logs if log.topic_id not in (None, topic_id)}
            if stored_id == topic_id:
                logger.warning("%s: of a topic that was deleted and created again", some_of(earlier))
                deleted |= earlier
            else:
                logger.warning(
                    "topic %s with id %s is refused: its logs here have another id, the store has %s",
                    name,
                    topic_id,
                    stored_id or "none",
                )
        if deleted:
            self._coordinators.partitions_lost(self._replica_manager.set_aside(deleted, controller_epoch))
        return unread

    def _stored_topic_id(self, name: str) -> UUID | None:
        """None, too, for a node that cannot be read.  Raises ConnectionLost."""
        path = znodes.topic(name)
        try:
            self._store.sync()
            node = self._store.get(path)
            return znodes.decode_node(path, node.data, znodes.TopicZNode.decode).topic_id if node is not None else None
        except ConnectionLost:
            raise
        except StoreError as error:
            logger.error("whether topic %s was created again is not known: %s", name, error)
            return None
