"""ClusterFeatures: the level of transaction.version that every live broker of a cluster knows.

Each broker says in its registration which levels it knows, as those of Kafka do (KIP-584).  The cluster uses the
highest that all of them know: where one says nothing, as a broker of 3.9 or an older kcore, there is none.  Kafka
stores the level below /feature instead; a Java broker that does not know what is stored there would not start.
"""

from __future__ import annotations

import logging

from kcore.common.scheduler import Scheduler
from kcore.metadata import znodes
from kcore.metadata.store import MetadataStore, Node, StoreError, WatchEvent
from kcore.server.config.features import TRANSACTION_VERSION, Features

logger = logging.getLogger(__name__)

#: After a call of the store that failed, before the next.
_RETRY_MS = 1000


class ClusterFeatures:
    """Thread-safe: current is written as a whole.  The store is read on the scheduler's thread, but for read()."""

    def __init__(self, supported: int, store: MetadataStore, scheduler: Scheduler) -> None:
        self._store = store
        self._scheduler = scheduler
        self._is_closed = False
        #: Without a level until the registrations are read.
        self.current = Features(supported)

    def read(self) -> None:
        """Read what the brokers say, now and after each change of them.  Raises nothing."""
        if self._is_closed or not self.current.supported:
            return
        try:
            ids = self._store.children(znodes.BROKER_IDS, self._brokers_changed)
            nodes = [
                node for node in self._store.get_many([f"{znodes.BROKER_IDS}/{n}" for n in ids]) if node is not None
            ]
        except StoreError as error:
            logger.warning("it is not known which features the brokers have: %s", error)
            self._scheduler.schedule("read-features", self.read, _RETRY_MS)
            return
        before = self.current
        level = min((_transaction_version(node) for node in nodes), default=0)
        # A client that has seen a higher epoch keeps to what came with it: after a broker without the feature has left
        # it is used by new clients only.
        epoch = max((node.czxid for node in nodes), default=0)
        self.current = Features(before.supported, min(level, before.supported), epoch)
        if self.current.finalized != before.finalized:
            logger.info("%s is %d now, by the brokers %s", TRANSACTION_VERSION, self.current.finalized, ", ".join(ids))

    def close(self) -> None:
        self._is_closed = True

    def _brokers_changed(self, event: WatchEvent) -> None:
        self._scheduler.schedule("read-features", self.read)


def _transaction_version(node: Node) -> int:
    """The highest that the broker knows, 0 where it does not say or says something else."""
    try:
        return znodes.BrokerZNode.decode(node.data).features.get(TRANSACTION_VERSION, (0, 0))[1]
    except StoreError as error:
        logger.warning("a registration cannot be read: %s", error)
        return 0
