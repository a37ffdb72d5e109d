"""Registration: a broker's node under /brokers/ids, which has its listeners as long as its session lives.

Source: KafkaZkClient.registerBroker, Kafka 3.9; KIP-380.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import StaleBrokerEpoch, StartCancelled
from kcore.log.log_manager import LogManager
from kcore.metadata import znodes
from kcore.metadata.metadata_cache import BrokerInfo
from kcore.metadata.store import STOP_PING_MS, MetadataStore, NodeExists, SessionEvent, StoreError, StoreLocked
from kcore.network.listener import SecurityProtocol
from kcore.server.member.leadership_certainty import LeadershipCertainty
from kcore.server.member.lost_records import IsrDeparture, assigned_partitions

logger = logging.getLogger(__name__)

#: The epoch of a broker that has not registered, and of a request that has none.
NO_BROKER_EPOCH = -1
#: How often it is asked whether a controller has taken this broker out of an ISR, and whether a start is cancelled.
_POLL_MS = 100
#: How long a start waits for the old registration of its id to end: zookeeper.session.timeout.ms, and a little.
REGISTRATION_TIMEOUT_MS = 20_000


class Registration:
    """Thread-safe: each field is written as a whole.  start() and remove() once each, renew() in between.

    time: real time, in which sessions end.  Before it registers, a broker leaves the ISRs of the partitions of which it
    has lost records.
    """

    def __init__(
        self,
        broker_id: int,
        store: MetadataStore,
        time: Time,
        log_manager: LogManager,
        leadership: LeadershipCertainty,
        controller_wait_ms: float,
    ) -> None:
        self.broker_id = broker_id
        #: czxid of the registration; the next one has a higher.
        self.broker_epoch = NO_BROKER_EPOCH
        #: Whether the connection to the store is lost, as far as this broker knows.
        self.is_store_away = False
        #: Whether find_store() has found that a program keeps all brokers from changing it.
        self.is_store_locked = False
        self._store = store
        self._time = time
        self._log_manager = log_manager
        self._leadership = leadership
        self._isr_departure = IsrDeparture(broker_id, store)
        self._controller_wait_ms = controller_wait_ms
        #: Until when the registration waits for a controller; None while it does not.
        self._wait_until_ms: float | None = None
        self._body = b""
        self._is_cancelled = False

    def start(
        self, info: BrokerInfo, protocols: Mapping[str, SecurityProtocol], features: Mapping[str, tuple[int, int]]
    ) -> None:
        """Register with these listeners and features.

        If the id is registered already, wait until that session has ended: it may be this broker's from before a crash.
        Raises NodeExists if it does not end, StartCancelled after cancel_start(), and what the store raises.
        """
        self._body = znodes.BrokerZNode(
            {name: (endpoint.host, endpoint.port) for name, endpoint in info.endpoints.items()},
            info.rack,
            self._time.milliseconds(),
            {name: protocols[name].name for name in info.endpoints},
            features,
        ).encode()
        self._store.ensure_path(znodes.BROKER_IDS)
        self._store.add_session_listener(self._session_changed)
        self._wait_for_old_registration()
        # The ISR says that this broker has the partition's records.  Without a log it has none of them.
        assigned = assigned_partitions(self.broker_id, self._store)
        without_log = [tp for tp in assigned if not self._log_manager.may_have(tp)]
        while not self._leave_isrs(without_log):
            if self._is_cancelled:
                raise StartCancelled(f"broker {self.broker_id} waited for a controller to take it out of ISRs")
            self._time.sleep(_POLL_MS)
        self._register()

    def renew(self) -> bool:
        """Register in a new session; False if the store fails, or a controller has to take this broker out of an ISR
        first, and then the caller tries again.  Raises nothing."""
        try:
            if not self._leave_isrs():
                return False
            self._register()
        except StoreError as error:
            logger.error("broker %d is not registered: %s", self.broker_id, error)
            return False
        return True

    def remove(self) -> None:
        """Raises nothing: the end of the session removes it too."""
        try:
            path = znodes.broker_id(self.broker_id)
            node = self._store.get(path)
            if node is not None and node.czxid == self.broker_epoch:
                self._store.delete(path)
        except StoreError as error:
            logger.warning("broker %d could not be unregistered: %s", self.broker_id, error)

    def cancel_start(self) -> None:
        """End what start() and wait() wait for, from another thread."""
        self._is_cancelled = True

    def wait(self, event: threading.Event, deadline_ms: float) -> None:
        """Until the event is set, the deadline, or the start is cancelled."""
        while not self._is_cancelled and (left_ms := deadline_ms - self._time.hi_res_clock_ms()) > 0:
            if event.wait(min(left_ms, _POLL_MS) / 1000):
                return

    def check_broker_epoch(self, broker_epoch: int) -> None:
        """Raises StaleBrokerEpoch for a request that was meant for an earlier registration of this broker.

        A higher epoch than this broker's is valid: the controller may know of a registration before the broker does.
        """
        if NO_BROKER_EPOCH < broker_epoch < self.broker_epoch:
            raise StaleBrokerEpoch(f"broker epoch {broker_epoch}, ours is {self.broker_epoch}")

    def epoch_of(self, broker_id: int) -> int | None:
        """The epoch of a broker's registration in the store, None if it has none.  Raises StoreError."""
        node = self._store.get(znodes.broker_id(broker_id))
        return node.czxid if node is not None else None

    def find_store(self) -> None:
        """Before a stop: have a store that does not answer count as away now, instead of after two thirds of the
        session's timeout."""
        try:
            self._store.ping(STOP_PING_MS)
        except StoreError as error:
            if not self.is_store_away:
                logger.warning("broker %d stops without its store: %s", self.broker_id, error)
            self.is_store_away = True
            self.is_store_locked = isinstance(error, StoreLocked)

    def _wait_for_old_registration(self) -> None:
        path = znodes.broker_id(self.broker_id)
        deadline_ms = self._time.hi_res_clock_ms() + REGISTRATION_TIMEOUT_MS
        while True:
            changed = threading.Event()
            node = self._store.get(path, lambda event, changed=changed: changed.set())  # type: ignore[misc]
            if node is None:
                return
            if node.ephemeral_owner == self._store.session_id:
                # Of this broker before a restart: only with another epoch does the controller see that it was away.
                self._store.delete(path)
                return
            if self._is_cancelled:
                raise StartCancelled(f"broker {self.broker_id} waited for the last session of its id to end")
            if self._time.hi_res_clock_ms() >= deadline_ms:
                raise NodeExists(
                    f"broker {self.broker_id} is registered already, by session {node.ephemeral_owner}: "
                    f"{node.data.decode(errors='replace')}"
                )
            logger.info("broker %d waits for the session %d of its id to end", self.broker_id, node.ephemeral_owner)
            self.wait(changed, deadline_ms)

    def _leave_isrs(self, without_log: Sequence[TopicPartition] = ()) -> bool:
        """IsrDeparture.leave(); False: not yet, a controller is expected to do it.  Raises StoreError."""
        now_ms = self._time.hi_res_clock_ms()
        if self._wait_until_ms is None:
            self._wait_until_ms = now_ms + self._controller_wait_ms
        lost = list(dict.fromkeys([*self._log_manager.partitions_with_lost_records(), *without_log]))
        waiting = self._isr_departure.leave(lost, may_wait=now_ms < self._wait_until_ms)
        if not waiting:
            self._wait_until_ms = None
        return not waiting

    def _register(self) -> None:
        path = znodes.broker_id(self.broker_id)
        try:
            self._store.create(path, self._body, ephemeral=True)
        except NodeExists:
            pass  # perhaps this broker's: the answer to an earlier create() was lost
        node = self._store.get(path)
        if node is None or node.ephemeral_owner != self._store.session_id:
            raise NodeExists(f"broker {self.broker_id} is registered already, by another session")
        self.broker_epoch = node.czxid
        logger.info("broker %d is registered, epoch %d", self.broker_id, self.broker_epoch)

    def _session_changed(self, event: SessionEvent) -> None:
        # On a thread of the store, which must go on: it delivers the watches.
        self.is_store_away = event is SessionEvent.SUSPENDED
        if event is SessionEvent.EXPIRED:
            self._leadership.session_ended(self.broker_epoch)
