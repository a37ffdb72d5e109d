"""All partitions of this broker: append, fetch, lead, stop (RM, APP, RD)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from kcore.common.scheduler import ScheduledTask
from kcore.common.text import counted, some_of
from kcore.common.topic_names import INTERNAL_TOPICS
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    ApiError,
    FencedLeaderEpoch,
    InvalidRequiredAcks,
    InvalidTopicException,
    KafkaError,
    KafkaStorageError,
    StaleControllerEpoch,
    UnknownTopicOrPartition,
)
from kcore.log.damage import Damage
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation
from kcore.purgatory.delayed_operation import DelayedOperationPurgatory
from kcore.replica.api_errors import api_error
from kcore.replica.damage_checks import DamageChecks, reason_given_up
from kcore.replica.delayed.delayed_delete_records import (
    DelayedDeleteRecords,
    DeleteRecordsCallback,
    DeleteRecordsResult,
)
from kcore.replica.delayed.delayed_fetch import DelayedFetch, FetchCallback, Run
from kcore.replica.delayed.delayed_produce import DelayedProduce, ProduceCallback, ProducePartitionStatus
from kcore.replica.disk_full_refusals import DiskFullRefusals
from kcore.replica.fetch_params import FetchInfos, FetchParams, FetchPartitionResult
from kcore.replica.fetcher.fetchers import Fetchers, FetchSource, InitialFetchState, NoFetchers
from kcore.replica.hosted_partitions import HostedPartitions
from kcore.replica.local_appends import Buffer, LocalAppends
from kcore.replica.local_reads import LocalReads
from kcore.replica.moves.replica_alter_log_dirs_manager import ReplicaAlterLogDirsManager
from kcore.replica.partition import OfflinePartition, Partition
from kcore.replica.partition_state import NO_EPOCH, NO_LEADER, LeaderAndIsrUpdate, StopReplica, check_is_possible
from kcore.replica.replica_manager_config import (
    ALONE,
    DEFAULT_CONFIG,
    ClusterView,
    ReplicaManagerConfig,
    ReplicaSchedulers,
)
from kcore.replica.replica_meters import ReplicaMeters

if TYPE_CHECKING:
    from kcore.log.log_config import LogConfig
    from kcore.log.log_manager import LogManager

logger = logging.getLogger(__name__)

#: Called with the partitions that this broker leads from now on, and with those that it follows.
LeadershipCallback = Callable[[Sequence[Partition], Sequence[Partition]], None]


class ReplicaManager:
    """What changes the hosted partitions, and the way to their logs for requests.

    Thread-safe.  state_change_lock serialises leadership changes (RM-01); lookups, appends and reads do not take it.
    Response callbacks run without any lock of this package held: on the calling thread before the method returns, or
    later on the thread that completed the operation.  fetchers copy what this broker follows; they may be put here
    until the first partition is.
    Source: ReplicaManager, Kafka 2.4-3.9.
    """

    def __init__(
        self,
        broker_id: int,
        log_manager: LogManager,
        schedulers: ReplicaSchedulers,
        *,
        config: ReplicaManagerConfig = DEFAULT_CONFIG,
        cluster: ClusterView = ALONE,
        fetchers: Fetchers | None = None,
    ) -> None:
        time, timer = schedulers.time, schedulers.timer
        self.broker_id = broker_id
        self.log_manager = log_manager
        self.time = time
        self.timer = timer
        self.state_change_lock = threading.RLock()
        self.delayed_produce_purgatory = DelayedOperationPurgatory("Produce", timer)
        # Consumers wait for the high watermark or the last stable offset, readers up to the log end for appends.
        self.delayed_fetch_purgatory = DelayedOperationPurgatory("Fetch", timer)
        self.delayed_log_end_fetch_purgatory = DelayedOperationPurgatory("FollowerFetch", timer)
        self.delayed_delete_records_purgatory = DelayedOperationPurgatory("DeleteRecords", timer)
        self._purgatories = (
            self.delayed_produce_purgatory,
            self.delayed_fetch_purgatory,
            self.delayed_log_end_fetch_purgatory,
            self.delayed_delete_records_purgatory,
        )
        self._schedulers = schedulers
        self._config = config
        self._cluster = cluster
        self._tasks: list[ScheduledTask] = []
        self._checkpointed: dict[TopicPartition, int] = {}
        self._controller_epoch = NO_EPOCH
        self.fetchers: Fetchers = fetchers or NoFetchers()
        self._is_shutting_down = False
        self.hosted_partitions = HostedPartitions(broker_id, cluster.is_known_topic_partition)
        self.meters = ReplicaMeters()
        #: Appends that this broker refused as a leader because its disk is full.
        self.disk_full_refusals = DiskFullRefusals(time, self.hosted_partitions)
        self._local_appends = LocalAppends(self.hosted_partitions, self.meters, self.disk_full_refusals)
        self.damage_checks = DamageChecks(schedulers.disk, time, self._give_up)
        #: Moves of logs between the data directories, and what these hold.
        self.log_dir_moves = ReplicaAlterLogDirsManager(
            log_manager, time, self.state_change_lock, self.hosted_partitions
        )
        self.local_reads = LocalReads(
            self.hosted_partitions, self.meters, self.damage_checks, cluster.preferred_read_replica
        )

    # -- partitions --------------------------------------------------------------------------------------------------

    def get_partition(self, topic_partition: TopicPartition) -> Partition | OfflinePartition | None:
        """HostedPartitions.get()."""
        return self.hosted_partitions.get(topic_partition)

    def get_partition_or_exception(self, topic_partition: TopicPartition, expect_leader: bool = True) -> Partition:
        """HostedPartitions.get_or_exception()."""
        return self.hosted_partitions.get_or_exception(topic_partition, expect_leader)

    def log_config(self, topic_partition: TopicPartition) -> LogConfig | None:
        """The settings of a hosted partition's log; None if it is not hosted, or offline."""
        partition = self.hosted_partitions.get(topic_partition)
        return partition.log.config if isinstance(partition, Partition) else None

    def partitions(self) -> list[Partition]:
        """HostedPartitions.online(): those that are not offline."""
        return self.hosted_partitions.online()

    def become_leader_or_follower(
        self,
        updates: Sequence[LeaderAndIsrUpdate],
        controller_epoch: int,
        on_leadership_change: LeadershipCallback = lambda new_leaders, new_followers: None,
    ) -> dict[TopicPartition, ApiError | None]:
        """Lead or follow each partition as its update says, creating the logs that this broker does not have.

        What comes back has None for each partition that changed, else its error: KafkaStorageError for one that is
        offline (RM-05) or whose log cannot be had (RM-11, RM-16), InconsistentTopicId where the log belongs to a
        deleted topic of the same name, StaleControllerEpoch for a leader epoch that is not above the current one
        (RM-08), UnknownTopicOrPartition where this broker is no replica (RM-07), InvalidRequest for an empty ISR or a
        leader that is no replica.  Raises StaleControllerEpoch, and changes nothing, for a controller epoch below the
        last one (RM-02).  The first call starts the periodic tasks: the high-watermark checkpoint (RM-10), and
        maybe_shrink_isrs each half of replica.lag.time.max.ms (RM-27).
        Requests that wait for a partition are tried again after its change (RM-19).
        on_leadership_change(partitions led from now on, partitions followed from now on) is called once, after all of
        them have changed, before the next change of any partition can begin (RM-13).

        The fetchers leave a partition that this broker leads from now on before its state changes (RM-14).  One that it
        follows they copy from its new leader after the requests that wait for it have been answered (RM-19), unless
        that leader is not alive: then only its log is made, and the next update with this epoch is taken (RM-18); one
        that this broker led counts as followed all the same.
        """
        results: dict[TopicPartition, ApiError | None] = {}
        new_leaders: list[Partition] = []
        new_followers: list[Partition] = []
        try:
            with self.state_change_lock:
                self._check_controller_epoch(controller_epoch)
                accepted = []
                for update in updates:
                    try:
                        self._check_update(update)
                        accepted.append(update)
                    except KafkaError as error:
                        results[update.topic_partition] = api_error(error, "state change", update.topic_partition)
                led = [update.topic_partition for update in accepted if update.leader == self.broker_id]
                self.fetchers.remove_partitions(led)
                for update in accepted:
                    try:
                        if self._become(update, controller_epoch):
                            partition = self.get_partition_or_exception(update.topic_partition)
                            (new_leaders if partition.is_leader else new_followers).append(partition)
                    except KafkaError as error:
                        results[update.topic_partition] = api_error(error, "state change", update.topic_partition)
                    else:
                        results[update.topic_partition] = None
                self._log_dead_leaders(accepted)
                if not self._tasks:
                    self._start_tasks()
                self.log_dir_moves.on_state_change([update.topic_partition for update in accepted])
                self.fetchers.remove_partitions([partition.topic_partition for partition in new_followers])
                if not new_followers:
                    self.fetchers.shutdown_idle()
                on_leadership_change(new_leaders, new_followers)
        finally:
            for topic_partition, failure in results.items():
                if failure is None:
                    self.complete_waiting(topic_partition)
        if new_followers:
            self._fetch_from_leaders(new_followers)
        return results

    def _log_dead_leaders(self, updates: Sequence[LeaderAndIsrUpdate]) -> None:
        dead: dict[int, list[TopicPartition]] = {}
        for update in updates:
            if update.leader not in (-1, self.broker_id) and not self._cluster.is_alive(update.leader):
                dead.setdefault(update.leader, []).append(update.topic_partition)
        for leader, led in dead.items():
            logger.info("broker %d is not alive and leads %s: %s", leader, counted(len(led), "partition"), some_of(led))

    def _start_tasks(self) -> None:
        every_ms: float = self._config.high_watermark_checkpoint_interval_ms
        checkpoint = self._schedulers.disk.schedule(
            "highwatermark-checkpoint", self.checkpoint_high_watermarks, every_ms, every_ms
        )
        every_ms = self._config.replica_lag_time_max_ms / 2
        shrink = self._schedulers.clock.schedule("isr-expiration", self.maybe_shrink_isrs, every_ms, every_ms)
        self._tasks = [checkpoint, shrink]

    def maybe_shrink_isrs(self) -> None:
        """Partition.maybe_shrink_isr of every partition that is led here, then increment_high_watermarks() (RM-27);
        then DamageChecks.reconsider(), for members of an ISR that came without a change of it here."""
        for partition in self.partitions():
            partition.maybe_shrink_isr()
        self.increment_high_watermarks()
        self.damage_checks.reconsider()

    def increment_high_watermarks(self) -> None:
        """Compute the high (PART-15) and low watermarks (HW-05) again, and answer requests that waited for them.

        Called without any lock, when a broker has died and from time to time.
        """
        for partition in self.partitions():
            if partition.maybe_increment_high_watermark():
                self.complete_waiting(partition.topic_partition)
            else:
                self.delayed_delete_records_purgatory.check_and_complete(partition.topic_partition)

    def _fetch_from_leaders(self, partitions: Sequence[Partition]) -> None:
        """Copy the partitions from the leaders that they have now (RM-19..21)."""
        with self.state_change_lock:
            sources = {}
            for partition in partitions:
                # Another change may have come meanwhile: the partition leads, or was stopped and has no leader.
                if (
                    not partition.is_leader
                    and partition.leader_id >= 0
                    and not self._is_shutting_down
                    and self._has_no_hole(partition)
                ):
                    initial = InitialFetchState(partition.log.high_watermark, partition.leader_epoch)
                    sources[partition.topic_partition] = FetchSource(partition.leader_id, initial)
            self.fetchers.add_partitions(sources)
            self.fetchers.shutdown_idle()

    def _has_no_hole(self, partition: Partition) -> bool:
        """Before a partition is copied: a log that has lost records is truncated to the first of them.  False if that
        fails; then its data directory has failed."""
        topic_partition = partition.topic_partition
        try:
            end_offset = self.log_manager.cut_lost_records(topic_partition)
        except KafkaStorageError as error:
            logger.error("%s: is not copied: %s", topic_partition, error)
            return False
        if end_offset is not None:
            logger.warning("%s: had lost records; it is copied from offset %d on", topic_partition, end_offset)
            self.log_dir_moves.mark_for_truncation(topic_partition, end_offset)
        return True

    def update_metadata(
        self, controller_epoch: int, update: Callable[[], None], unassigned: Mapping[TopicPartition, int]
    ) -> list[TopicPartition]:
        """Call update() unless there was a request of a newer controller; no partition changes meanwhile.

        unassigned: partition -> its leader epoch, of those that are not assigned to this broker.  If it leads or
        follows one with a lower epoch, it resigns (the StopReplica was lost with its controller); what comes back are
        these.
        Raises StaleControllerEpoch for a controller epoch below the last one.
        Source: ReplicaManager.maybeUpdateMetadataCache, Kafka 3.9.
        """
        resigned = []
        with self.state_change_lock:
            self._check_controller_epoch(controller_epoch)
            update()
            for topic_partition, leader_epoch in unassigned.items():
                hosted = self.hosted_partitions.get(topic_partition)
                if not isinstance(hosted, Partition) or hosted.leader_id == NO_LEADER:
                    continue
                if hosted.leader_epoch < leader_epoch:
                    logger.warning("%s: not assigned to this broker since epoch %d", topic_partition, leader_epoch)
                    hosted.resign()
                    resigned.append(topic_partition)
            self._stop_fetching(resigned)
        for topic_partition in resigned:
            self.complete_waiting(topic_partition)
        return resigned

    def resign(self, topic_ids: Mapping[TopicPartition, UUID]) -> None:
        """Neither lead nor follow the partitions any more, as far as they are of the topics with these ids."""
        resigned = []
        with self.state_change_lock:
            for topic_partition, topic_id in topic_ids.items():
                hosted = self.hosted_partitions.get(topic_partition)
                if isinstance(hosted, Partition) and hosted.topic_id == topic_id:
                    hosted.resign()
                    resigned.append(topic_partition)
            self._stop_fetching(resigned)
        for topic_partition in resigned:
            self.complete_waiting(topic_partition)

    def _stop_fetching(self, topic_partitions: Sequence[TopicPartition]) -> None:
        if topic_partitions:
            self.fetchers.remove_partitions(topic_partitions)
            self.fetchers.shutdown_idle()

    def _check_controller_epoch(self, controller_epoch: int) -> None:
        if controller_epoch < self._controller_epoch:
            raise StaleControllerEpoch(f"controller epoch {controller_epoch}, the last was {self._controller_epoch}")
        self._controller_epoch = controller_epoch

    def _check_update(self, update: LeaderAndIsrUpdate) -> None:
        """Raises the error of an update that changes nothing (RM-04..08)."""
        topic_partition = update.topic_partition
        hosted = self.hosted_partitions.get(topic_partition)
        if isinstance(hosted, Partition):
            if update.topic_id is not None and update.topic_id != hosted.log.topic_id:
                self.log_manager.get_or_create_log(topic_partition, topic_id=update.topic_id)
            if update.leader_epoch <= hosted.leader_epoch:
                raise StaleControllerEpoch(
                    f"{topic_partition}: leader epoch {update.leader_epoch}, ours is {hosted.leader_epoch}"
                )
        elif hosted is not None and (hosted.is_permanent or not hosted.may_take(update, self.broker_id)):
            hosted.local_log()
        if self.broker_id not in update.replicas:
            raise UnknownTopicOrPartition(f"{topic_partition}: broker {self.broker_id} is not in {update.replicas}")
        check_is_possible(update)

    def _become(self, update: LeaderAndIsrUpdate, controller_epoch: int) -> bool:
        """One partition's change (RM-09); whether its leadership is another one now.  Raises its error."""
        topic_partition = update.topic_partition
        hosted = self.hosted_partitions.get(topic_partition)
        if isinstance(hosted, Partition):
            return self._change_state(hosted, update, controller_epoch)
        try:
            log = self.log_manager.get_or_create_log(topic_partition, topic_id=update.topic_id, is_new=update.is_new)
            partition = Partition(
                topic_partition,
                log,
                self.broker_id,
                self.time,
                replica_lag_time_max_ms=self._config.replica_lag_time_max_ms,
                state_store=self._cluster.partition_state_store,
                on_isr_changed=self._on_isr_changed,
                meters=self.meters,
                is_alive=self._cluster.is_alive,
            )
            log.on_log_start_raised = partial(self.complete_waiting, topic_partition)
            changed = self._change_state(partition, update, controller_epoch)
        except KafkaError as error:
            self.hosted_partitions.put(OfflinePartition(topic_partition, str(error), is_permanent=False))
            raise
        self.hosted_partitions.put(partition)
        return changed

    def _change_state(self, partition: Partition, update: LeaderAndIsrUpdate, controller_epoch: int) -> bool:
        leads = update.leader == self.broker_id
        if not leads and update.leader >= 0 and not self._cluster.is_alive(update.leader):
            # As after a start, when the brokers come one by one.  The controller's next update names another leader, or
            # follows the news that this one lives.
            logger.debug("%s: its leader %d is not alive", update.topic_partition, update.leader)
            was_leader = partition.is_leader
            partition.resign()  # RM-18: with the epoch that it had, so that the next update is taken
            return was_leader
        if leads and set(update.replicas) == {self.broker_id}:
            self._forget_lost_records(partition)
        change = partition.make_leader if leads else partition.make_follower
        changed = change(update, controller_epoch)
        logger.debug(
            "%s: %s with epoch %d%s",
            update.topic_partition,
            "leader" if leads else f"follower of {update.leader}",
            update.leader_epoch,
            "" if changed else " (as before)",
        )
        return changed

    def _forget_lost_records(self, partition: Partition) -> None:
        """No other broker has a replica from which what is lost could be copied.  Raises KafkaStorageError."""
        lost = partition.log.lost_records
        if lost is not None and lost.has_mark:
            logger.error(
                "%s: records from offset %d on are lost, and no other broker has a replica: it leads with what it has",
                partition.topic_partition,
                lost.first_offset,
            )
            partition.log.forget_lost_records()

    def stop_replicas(
        self, stops: Sequence[StopReplica], controller_epoch: int
    ) -> dict[TopicPartition, ApiError | None]:
        """No longer host the partitions; the log of one goes too if its order says delete, else it stays on disk.

        What comes back has None for each partition that is gone, also for one that was not hosted, else its error:
        KafkaStorageError for one whose data directory has failed, FencedLeaderEpoch for a leader epoch below the
        current one.  Raises StaleControllerEpoch, and changes nothing, for a controller epoch below the last one.
        Requests that wait for a partition are answered with the error it has now.
        Source: ReplicaManager.stopReplicas, Kafka 3.9.
        """
        results: dict[TopicPartition, ApiError | None] = {}
        try:
            with self.state_change_lock:
                self._check_controller_epoch(controller_epoch)
                accepted = []
                for stop in stops:
                    try:
                        self._check_stop(stop)
                        accepted.append(stop)
                    except KafkaError as error:
                        results[stop.topic_partition] = api_error(error, "stop", stop.topic_partition)
                results |= dict.fromkeys(stop.topic_partition for stop in accepted)
                delete = [stop.topic_partition for stop in accepted if stop.delete]
                failures = self._stop_hosting([stop.topic_partition for stop in accepted], delete)
                for topic_partition, failure in failures.items():
                    results[topic_partition] = api_error(failure, "stop", topic_partition)
        finally:
            for topic_partition in results:
                self.complete_waiting(topic_partition)
        return results

    def set_aside(self, topic_ids: Mapping[TopicPartition, UUID], controller_epoch: int) -> list[TopicPartition]:
        """No longer host the partitions, and rename their logs to -stray: the topics with these ids were deleted.

        What comes back are those whose logs have these ids.  Requests that wait for one are answered with the error it
        has now.  A data directory in which a log cannot be renamed has failed; that is no error here.  Raises
        StaleControllerEpoch, and changes nothing, for a controller epoch below the last one.
        """
        with self.state_change_lock:
            self._check_controller_epoch(controller_epoch)
            logs = {topic_partition: self.log_manager.get_log(topic_partition) for topic_partition in topic_ids}
            strays = [tp for tp, log in logs.items() if log is not None and log.topic_id == topic_ids[tp]]
            failures = self._stop_hosting(strays, strays, is_stray=True)
        for failure in failures.values():
            logger.error("%s", failure)
        for topic_partition in strays:
            self.complete_waiting(topic_partition)
        return strays

    def _stop_hosting(
        self, topic_partitions: Sequence[TopicPartition], delete: Sequence[TopicPartition], *, is_stray: bool = False
    ) -> dict[TopicPartition, KafkaError]:
        """The errors of the logs that cannot be deleted, or set aside if they are strays."""
        self.fetchers.remove_partitions(topic_partitions)
        for topic_partition in topic_partitions:
            hosted = self.hosted_partitions.remove(topic_partition)
            self.meters.partition_removed(topic_partition)
            if isinstance(hosted, Partition):
                hosted.resign()
        for topic_partition in delete:
            self.hosted_partitions.forget_given_up(topic_partition)
        self.log_dir_moves.stop(topic_partitions, delete)
        failures = self.log_manager.async_delete_logs(delete, is_stray=is_stray)
        self.fetchers.shutdown_idle()
        return failures

    def _check_stop(self, stop: StopReplica) -> None:
        """Raises the error of an order that stops nothing."""
        topic_partition = stop.topic_partition
        hosted = self.hosted_partitions.get(topic_partition)
        if isinstance(hosted, Partition):
            if 0 <= stop.leader_epoch < hosted.leader_epoch:
                raise FencedLeaderEpoch(
                    f"{topic_partition}: leader epoch {stop.leader_epoch}, ours is {hosted.leader_epoch}"
                )
        elif hosted is not None and hosted.is_permanent:
            hosted.local_log()

    def handle_log_dir_failure(self, log_dir: str) -> list[TopicPartition]:
        """Take every partition whose log is in a failed data directory offline, for good (RM-29); which they are.

        Requests that wait for one of them are answered with KafkaStorageError.  A partition that is not hosted any
        more, or whose log moved elsewhere meanwhile, is left alone.
        """
        with self.state_change_lock:
            failed = [partition for partition in self.partitions() if partition.log.parent_dir == log_dir]
            for partition in failed:
                topic_partition = partition.topic_partition
                self.hosted_partitions.put(
                    OfflinePartition(topic_partition, f"{log_dir} has failed", is_permanent=True)
                )
                partition.resign()
            self.fetchers.remove_partitions([partition.topic_partition for partition in failed])
            self.fetchers.shutdown_idle()
            self.log_dir_moves.handle_log_dir_failure([partition.topic_partition for partition in failed])
        for partition in failed:
            self.complete_waiting(partition.topic_partition)
        return [partition.topic_partition for partition in failed]

    def _give_up(self, partition: Partition, leader_epoch: int, damage: Damage) -> bool:
        """Mark the log of a partition that this broker leads, and take it offline until another broker leads it.

        False if it is not led in that epoch any more: the log may have been cut and copied since.
        Requests that wait for it are answered with KafkaStorageError.  The log stays open.  Raises KafkaStorageError
        if the log cannot be marked.
        """
        topic_partition = partition.topic_partition
        with self.state_change_lock:
            is_led = partition.is_leader and partition.leader_epoch == leader_epoch
            if self.hosted_partitions.get(topic_partition) is not partition or not is_led:
                return False
            partition.log.mark_lost_records(damage.offset)
            self.hosted_partitions.put(
                OfflinePartition(
                    topic_partition,
                    reason_given_up(damage, self.time.milliseconds()),
                    is_permanent=False,
                    given_up_epoch=leader_epoch,
                )
            )
            partition.resign()
        self.complete_waiting(topic_partition)
        return True

    def _on_isr_changed(self, topic_partition: TopicPartition) -> None:
        self.complete_waiting(topic_partition)
        self.damage_checks.reconsider()

    def complete_waiting(self, topic_partition: TopicPartition) -> None:
        """Try the requests again that wait for the partition.  Called without any lock."""
        for purgatory in self._purgatories:
            if topic_partition in purgatory.watchers:  # nearly always one of them, if any
                purgatory.check_and_complete(topic_partition)

    # -- append ------------------------------------------------------------------------------------------------------

    def append_records(
        self,
        timeout_ms: float,
        required_acks: int,
        internal_topics_allowed: bool,
        origin: AppendOrigin,
        entries: Mapping[TopicPartition, Buffer],
        response_callback: ProduceCallback,
        leader_epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Append each partition's records, then answer all in one callback; one's failure never touches another's.

        With required_acks -1 the answer waits, up to timeout_ms, until what was written is replicated; with 0 and 1
        it does not.  A writable buffer gets its offsets assigned in place.
        leader_epochs: partition -> the leader epoch in which its records were made.  They are refused with
        NotLeaderOrFollower where another broker may have led since.  A partition that is not in it takes them.
        """
        if not -1 <= required_acks <= 1:
            refused = InvalidRequiredAcks(f"acks={required_acks}")
            response_callback({tp: ProducePartitionStatus(refused) for tp in entries})
            return
        result = self._local_appends.append(required_acks, internal_topics_allowed, origin, entries, leader_epochs)
        pending, advanced = result.pending, result.advanced
        try:
            if not pending:
                response_callback(result.statuses)
        finally:
            # After the answer, so that the producer does not wait for the reads of requests that are completed here.
            check_produce = self.delayed_produce_purgatory.check_and_complete
            check_fetch = self.delayed_fetch_purgatory.check_and_complete
            if self.delayed_log_end_fetch_purgatory.watchers:
                for topic_partition in (*result.appended, *advanced):
                    self.delayed_log_end_fetch_purgatory.check_and_complete(topic_partition)
            for topic_partition in advanced:
                check_produce(topic_partition)
                check_fetch(topic_partition)
        if pending:
            # After the answers to the followers that waited for records: their next fetches are what ends this wait.
            operation = DelayedProduce(
                timeout_ms, result.statuses, pending, self.hosted_partitions, self.meters, response_callback
            )
            self.delayed_produce_purgatory.watch(operation, list(pending))

    # -- fetch -------------------------------------------------------------------------------------------------------

    def fetch_messages(
        self, params: FetchParams, fetch_infos: FetchInfos, response_callback: FetchCallback, run: Run | None = None
    ) -> None:
        """Read each partition in order under one byte budget; answer now if that is enough, else wait for more.

        Now: no time to wait, no partition in the request, min_bytes read, any error (RD-12), a reader's log that has
        diverged, or a consumer that should read elsewhere (RD-13).  A fetch that waited reads again when it completes.
        fetch_infos is kept until then and must not change.  The fetch of a follower says how far it has replicated:
        what waits for that is answered here too.  run: runs what a fetch that waited does when it completes; None: the
        thread of the append that it waited for, or the timer's, does it.
        """
        fetch_time_ms = self.time.milliseconds() if params.replica_id >= 0 else None
        result = self.local_reads.read(params, fetch_infos, fetch_time_ms)
        advanced, readable_bytes = result.advanced, result.readable_bytes
        if params.max_wait_ms <= 0 or result.is_final or readable_bytes >= params.min_bytes or not fetch_infos:
            try:
                response_callback(result.answers)
            finally:
                for topic_partition in advanced:
                    self.complete_waiting(topic_partition)
            return
        if readable_bytes:
            self.meters.not_sent(result.answers, params.replica_id)
        # Nothing new for this follower: what waits for its fetch goes first.
        for topic_partition in advanced:
            self.complete_waiting(topic_partition)
        start_offsets = [data.fetch_offset_metadata for data in result.fetched]
        operation = DelayedFetch(params, fetch_infos, start_offsets, self.local_reads, response_callback, run)
        is_to_log_end = params.isolation is FetchIsolation.LOG_END
        purgatory = self.delayed_log_end_fetch_purgatory if is_to_log_end else self.delayed_fetch_purgatory
        purgatory.watch(operation, operation.keys)

    def fetch_now(
        self, params: FetchParams, fetch_infos: FetchInfos
    ) -> list[tuple[TopicPartition, FetchPartitionResult]]:
        """The same without any waiting: the answer comes back."""
        fetch_time_ms = self.time.milliseconds() if params.replica_id >= 0 else None
        result = self.local_reads.read(params, fetch_infos, fetch_time_ms)
        for topic_partition in result.advanced:
            self.complete_waiting(topic_partition)
        return result.answers

    # -- DeleteRecords -----------------------------------------------------------------------------------------------

    def delete_records(
        self,
        offsets: Mapping[TopicPartition, int],
        response_callback: DeleteRecordsCallback,
        timeout_ms: float = 0,
    ) -> None:
        """Move each log's start to the requested offset (-1: the high watermark) and answer the low watermarks.

        The answer waits, up to timeout_ms, until the logs of all live replicas start there.
        """
        results: dict[TopicPartition, DeleteRecordsResult] = {}
        pending = []
        for topic_partition, offset in offsets.items():
            try:
                if topic_partition.topic in INTERNAL_TOPICS:
                    raise InvalidTopicException(f"Cannot delete records of internal topic {topic_partition.topic}")
                partition = self.get_partition_or_exception(topic_partition)
                required_offset = partition.delete_records_on_leader(offset)
                self.complete_waiting(topic_partition)
                low_watermark = partition.low_watermark()
                results[topic_partition] = DeleteRecordsResult(None, low_watermark, required_offset)
                if low_watermark < required_offset:
                    pending.append(topic_partition)
            except Exception as error:
                results[topic_partition] = DeleteRecordsResult(api_error(error, "delete records", topic_partition))
        if not pending:
            response_callback(results)
            return
        operation = DelayedDeleteRecords(
            timeout_ms, results, pending, self.hosted_partitions, self.meters, response_callback
        )
        self.delayed_delete_records_purgatory.watch(operation, list(pending))

    # -- checkpoint and shutdown -------------------------------------------------------------------------------------

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermark of every hosted log to its directory's replication-offset-checkpoint (RM-23).

        Nothing is written while they stay what the files say, so that an idle broker leaves the disk alone.
        """
        high_watermarks = {partition.topic_partition: partition.log.high_watermark for partition in self.partitions()}
        if high_watermarks != self._checkpointed:
            self.log_manager.checkpoint_high_watermarks(high_watermarks)
            self._checkpointed = high_watermarks

    def begin_shutdown(self) -> None:
        """Begin to copy no partition any more; those that are copied go on.

        A broker that is about to stop follows the new leaders of what it has led.  If it caught up with them, it would
        be in their ISRs again, and each produce with acks=all would wait for it after its end.
        """
        with self.state_change_lock:
            self._is_shutting_down = True

    def shutdown(self) -> None:
        """Answer all waiting requests, and write the high watermarks.  The log manager closes the logs."""
        self.begin_shutdown()
        self.fetchers.close()
        self.log_dir_moves.close()
        for task in self._tasks:
            task.cancel()
        for partition in self.partitions():
            partition.resign()
            self.complete_waiting(partition.topic_partition)
        self.checkpoint_high_watermarks()
