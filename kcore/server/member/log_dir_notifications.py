"""LogDirNotifications: has the controller ask a broker again which of its replicas are online.

The controller, kcore's or Java's, watches /log_dir_event_notification.  For each broker that is named there it sends
LeaderAndIsr again for all replicas of that broker.  A partition that is answered KAFKA_STORAGE_ERROR is offline there
from then on, and one that is answered without an error is online.
Source: LogDirEventNotificationHandler, KafkaController.processLeaderAndIsrResponseReceived, Kafka 3.9; RM-29, CTRL-22.
"""

from __future__ import annotations

import logging

from kcore.common.scheduler import Scheduler
from kcore.metadata import znodes
from kcore.metadata.store import MetadataStore, StoreError

logger = logging.getLogger(__name__)

#: After a call of the store that failed, before the next.
_RETRY_MS = 1000


class LogDirNotifications:
    """Thread-safe.  The store is called on the scheduler's thread only."""

    def __init__(self, broker_id: int, store: MetadataStore, scheduler: Scheduler) -> None:
        self._broker_id = broker_id
        self._store = store
        self._scheduler = scheduler
        self._is_closed = False

    def notify(self) -> None:
        """Returns at once; while the store cannot be reached, the notification is tried again and again."""
        self._scheduler.schedule("notify-of-log-dir", self._notify)

    def close(self) -> None:
        """Notify no more: the broker leaves the cluster."""
        self._is_closed = True

    def _notify(self) -> None:
        if self._is_closed:
            return
        try:
            self._store.ensure_path(znodes.LOG_DIR_EVENT_NOTIFICATION)
            path = f"{znodes.LOG_DIR_EVENT_NOTIFICATION}/log_dir_event_"
            self._store.create(path, znodes.encode_log_dir_event(self._broker_id), sequential=True)
        except StoreError as error:
            logger.error("the controller was not notified that log directories have changed: %s", error)
            self._scheduler.schedule("notify-of-log-dir", self._notify, _RETRY_MS)
