"""A broker's part in the controller's work: its KafkaController, and the request to be relieved before it stops."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from kcore.client.negotiating_sender import NegotiatingSender
from kcore.common.scheduler import Scheduler
from kcore.common.text import plain_error, some_of
from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_channel_manager import ControllerChannelManager
from kcore.controller.controller_context import LiveBroker
from kcore.controller.controller_settings import ControllerSettings
from kcore.controller.kafka_controller import KafkaController
from kcore.errors import NONE, KafkaError, NotController, for_code
from kcore.metadata.metadata_cache import MetadataCache, MetadataSnapshot
from kcore.metadata.store import MetadataStore
from kcore.metadata.store_errors import RepeatedError
from kcore.protocol.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.member.inter_broker_connections import InterBrokerConnections
from kcore.server.member.registration import Registration

logger = logging.getLogger(__name__)

#: A broker that stops looks so often, and for so long, for a controller that answers.
_RETRY_MS = 200
_GIVE_UP_MS = 4000
#: How long a controller may take to say which requests it serves.
_GREETING_MS = 1000


def make_controller(
    broker_id: int,
    store: MetadataStore,
    config: KafkaConfig,
    connections: InterBrokerConnections,
    scheduler: Scheduler,
    parts: ExitStack,
    register_again: Callable[[], bool],
) -> KafkaController:
    """The controller of a broker, not started.  parts: when it is closed, the controller follows the settings no
    more."""

    def make_sender(broker: LiveBroker) -> NegotiatingSender:
        address, timeout_ms = connections.registered_address(broker), config["controller.socket.timeout.ms"]
        return NegotiatingSender(connections.sender(address, f"controller-{broker_id}", request_timeout_ms=timeout_ms))

    is_rebalanced = config["auto.leader.rebalance.enable"]
    settings = ControllerSettings(
        unclean_leader_election_enable=lambda: config.log_config.unclean_leader_election_enable,
        delete_topic_enable=config["delete.topic.enable"],
        rebalance_interval_ms=config["leader.imbalance.check.interval.seconds"] * 1000 if is_rebalanced else 0,
        leader_imbalance_per_broker_percentage=config["leader.imbalance.per.broker.percentage"],
        inter_broker_listener_name=connections.listener_name,
    )
    channels = ControllerChannelManager(broker_id, make_sender, connections.time)
    controller = KafkaController(broker_id, store, channels, settings, register_again, connections.time, scheduler)
    elect = partial(elect_where_there_is_no_leader, controller)
    parts.callback(config.on_change(("unclean.leader.election.enable",), elect))
    return controller


def elect_where_there_is_no_leader(controller: KafkaController) -> None:
    """Have the active controller do so: unclean.leader.election.enable has changed for all topics."""
    trigger_online = controller.partition_state_machine.trigger_online
    controller.put_call("UncleanLeaderElectionEnable", trigger_online, lambda result: None)


def has_other_live_replica(snapshot: MetadataSnapshot, broker_id: int, topic_partition: TopicPartition) -> bool:
    """Whether another replica may come into the ISR soon, and lead: its broker and its data directory are available.

    True for a partition that the metadata do not have.
    """
    topic = snapshot.topic(topic_partition.topic)
    info = topic.partitions.get(topic_partition.partition) if topic is not None else None
    if info is None:
        return True
    return any(
        replica != broker_id and replica not in info.offline_replicas and snapshot.broker(replica) is not None
        for replica in info.replicas
    )


def controlled_shutdown(
    registration: Registration, metadata_cache: MetadataCache, config: KafkaConfig, connections: InterBrokerConnections
) -> bool:
    """Have the controller move the leaders away from this broker (KIP-380); whether it leads none any more.

    As long as no controller answers, the one that the metadata have is asked every 200 ms: the next one may be elected
    any moment.  After 4 s of that the broker stops without it, as clients wait for other leaders meanwhile.  They count
    from before the store is looked for: while this broker cannot reach it, most likely no controller can either.
    A controller that answers is asked controlled.shutdown.max.retries times more where partitions are left.

    False where no other broker can lead: the broker is the last one, the partitions that it still leads have no other
    replica on a live broker, the retries are used up, no controller has answered, or none can because a program has
    the store locked.  The others may have stopped
    before the metadata say so; thus a warning comes only in the end.
    Source: KafkaServer.controlledShutdown, Kafka 3.9.
    """
    if not config["controlled.shutdown.enable"]:
        return False
    broker_id, time = registration.broker_id, connections.time
    give_up_ms = time.hi_res_clock_ms() + _GIVE_UP_MS
    registration.find_store()
    if registration.is_store_locked:
        logger.warning("broker %d stops without a controlled shutdown: no controller can write", broker_id)
        return False
    retries_left: int = config["controlled.shutdown.max.retries"]
    errors = RepeatedError()
    failure = ""
    while (left_ms := give_up_ms - time.hi_res_clock_ms()) > 0:
        snapshot = metadata_cache.snapshot
        if snapshot.broker_ids() in ([], [broker_id]):
            return False
        try:
            remaining = _ask_controller(
                registration, snapshot, connections, left_ms, config["controller.socket.timeout.ms"]
            )
        except (OSError, KafkaError) as error:
            failure = plain_error(error)
            if errors.is_new(error):
                logger.info("broker %d: controlled shutdown: %s", broker_id, failure)
            time.sleep(_RETRY_MS)
            continue
        if not remaining:
            return True
        logger.info("broker %d: controlled shutdown: no other leader for %s", broker_id, some_of(remaining))
        if not retries_left:
            return False
        retries_left -= 1
        retry_ms = time.hi_res_clock_ms() + config["controlled.shutdown.retry.backoff.ms"]
        give_up_ms = retry_ms + _GIVE_UP_MS
        while (pause_ms := retry_ms - time.hi_res_clock_ms()) > 0:
            snapshot = metadata_cache.snapshot
            may_change = any(has_other_live_replica(snapshot, broker_id, tp) for tp in remaining)
            if registration.is_store_away or not may_change:
                return False
            time.sleep(min(pause_ms, _RETRY_MS))
    logger.warning("broker %d stops without a controlled shutdown, no controller answers: %s", broker_id, failure)
    return False


def _ask_controller(
    registration: Registration,
    snapshot: MetadataSnapshot,
    connections: InterBrokerConnections,
    left_ms: float,
    timeout_ms: float,
) -> list[TopicPartition]:
    """The partitions that the broker still leads then.  Raises OSError, KafkaError where no controller says it."""
    endpoint = snapshot.endpoint(snapshot.controller_id, connections.listener_name)
    if endpoint is None:
        raise NotController(f"the metadata have no controller with the listener {connections.listener_name}")
    greeting_ms = min(_GREETING_MS, left_ms)
    sender = connections.sender(endpoint, f"broker-{registration.broker_id}", request_timeout_ms=greeting_ms)
    try:
        sender.api_versions()  # a controller that stands still does not even say this, while one at work does
        sender.request_timeout_ms = left_ms if registration.is_store_away else timeout_ms
        request = ControlledShutdownRequest(broker_id=registration.broker_id, broker_epoch=registration.broker_epoch)
        reply = NegotiatingSender(sender).send(request)
    finally:
        sender.close()
    assert isinstance(reply, ControlledShutdownResponse)
    if reply.error_code != NONE:
        error = for_code(reply.error_code)
        raise error(f"the controller at {endpoint.host}:{endpoint.port} answers {error.__name__}")
    return [TopicPartition(each.topic_name, each.partition_index) for each in reply.remaining_partitions]
