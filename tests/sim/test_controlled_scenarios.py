"""One history for each rule of the controller: it breaks an invariant if the rule is taken out."""

from dataclasses import replace

import pytest

from kcore.controller import partition_reassignment, replica_state_machine
from kcore.controller.controller_request_batch import ControllerBrokerRequestBatch
from kcore.controller.controller_store import ControllerStore
from kcore.controller.election import NO_LEADER
from kcore.controller.kafka_controller import KafkaController
from kcore.controller.partition_reassignment import PartitionReassignment
from kcore.controller.partition_state_machine import PartitionStateMachine
from kcore.controller.replica_state_machine import ReplicaStateMachine
from kcore.controller.topic_deletion_manager import TopicDeletionManager
from kcore.metadata.store import MultiFailed
from kcore.replica.partition import Partition
from kcore.replica.replica_manager import ReplicaManager
from kcore.replication.metadata_partition_state_store import MetadataPartitionStateStore
from kcore.server.member.late_deletions import LateDeletions
from kcore.server.member.topic_identity import TopicIdentity
from kcore.server.requests.fetch_session import CachedPartition
from kcore.server.topics import topic_adoption
from tests.sim.events import (
    ADMIN,
    STORE,
    CancelReassignment,
    Consume,
    Crash,
    CreateTopic,
    Cut,
    Delay,
    DeleteController,
    DeleteTopic,
    DieInWrite,
    Duplicate,
    ExpireSession,
    LateRequests,
    Lose,
    LoseStoreAnswer,
    Pause,
    PreferredElection,
    Produce,
    ProduceIdempotent,
    Reassign,
    Settings,
)

ONE_WRITES = "the_last_controller_alone_writes"
HAS_A_LEADER = "a_partition_with_a_live_isr_member_has_a_leader"
EQUAL_AT_THE_END = "the_replicas_become_equal"
DELETED = "deleted_topics_stay_deleted"
NOTHING_LOST = "no_acknowledged_record_is_lost_or_reordered"
REASSIGNED = "a_reassignment_ends_with_its_target_replicas"


def test_KIP_380_a_controller_that_does_not_know_of_the_next_one_writes_nothing(scenario):
    """Broker 2 asks broker 0 for its controlled shutdown, as if nobody else had been elected since."""

    def without_the_check(self, operations):
        try:
            self._store.multi(operations)
        except MultiFailed as error:
            raise error.cause from None

    history = scenario(
        Settings(controller=True, partitions=2),
        Delay(499, STORE, 0, by_ms=1000),
        DeleteController(500),
        Crash(502, 2, "stops", down_ms=500),
    )
    history.goes_well()
    history.breaks(ONE_WRITES, ControllerStore, "_multi", without_the_check)


def test_a_broker_whose_election_was_answered_too_late_gives_it_back(scenario):
    """It is in /controller and does not know: nobody would elect leaders (seed 9)."""
    history = scenario(
        Settings(controller=True, brokers=2),
        LoseStoreAnswer(490, 1),
        Delay(499, STORE, 0, by_ms=300),
        DeleteController(500),
        Produce(2000, 0),
    )
    history.goes_well()
    history.breaks(HAS_A_LEADER, ControllerStore, "withdraw", lambda self: None)


def test_CTRL_03_a_controller_hears_that_its_node_is_gone_whatever_it_has_not_heard_before(scenario):
    """Broker 0 is elected again; before it hears anything, its node is deleted, another broker is elected, and all
    others die.  The watch of before broker 0's election finds what it found then: no node."""
    fail_over = KafkaController._fail_over

    def without_another_watch(self):
        self._store.controller_id = lambda watch: self.broker_id
        try:
            fail_over(self)
        finally:
            del self._store.controller_id

    history = scenario(
        Settings(controller=True, partitions=2),
        DeleteController(500),
        Delay(500, STORE, 0, by_ms=1000, count=3),
        DeleteController(504),
        Crash(554, 1, "is killed", down_ms=60_000, noticed_ms=10),
        Crash(554, 2, "is killed", down_ms=60_000, noticed_ms=10),
    )
    history.goes_well()
    history.breaks(HAS_A_LEADER, KafkaController, "_fail_over", without_another_watch)


def test_RSM_06_a_leader_hears_of_a_replica_that_has_left_the_isr_itself(scenario):
    """Broker 1 is registered until its next start, which takes it out of ISRs; the controller sees both at once (seed
    932590975)."""
    history = scenario(
        Settings(
            segment_bytes=100_000, flush_checkpoint_ms=5000, remembers_idle=True, controller=True, rebalance_ms=500
        ),
        Pause(304, 1, for_ms=2000),
        DieInWrite(337, 1, writes=1, down_ms=1000),
        DieInWrite(422, 2, writes=1, down_ms=2500),
        DieInWrite(554, 0, writes=3, down_ms=2500),
        CreateTopic(560, 1),
        PreferredElection(624, 0),
        Consume(1307, 0, 0),
    )
    history.goes_well()
    history.breaks(EQUAL_AT_THE_END, ReplicaStateMachine, "_was_in_isr", lambda self, broker_id, topic_partition: False)


def test_PSM_03_partitions_get_a_leader_when_a_member_of_their_isr_is_back(scenario):
    history = scenario(
        Settings(controller=True, brokers=2),
        Crash(500, 0, "is killed", down_ms=1500, noticed_ms=10),
        Crash(1000, 1, "is killed", down_ms=1500, noticed_ms=10),
        Produce(4000, 0),
    )
    history.goes_well()
    history.breaks(HAS_A_LEADER, PartitionStateMachine, "trigger_online", lambda self: None)


def test_RSM_02_a_new_controller_tells_brokers_what_the_last_one_wrote_and_never_said(scenario):
    """It dies right after the write of the new topic's leaders."""
    history = scenario(
        Settings(controller=True),
        DieInWrite(490, 0, writes=1, down_ms=3000),
        CreateTopic(500, 2),
        Produce(4000, 2),
    )
    history.goes_well()
    history.breaks(HAS_A_LEADER, ReplicaStateMachine, "startup", lambda self: None)


def test_CTRL_20_a_deletion_goes_on_when_the_last_replica_is_back(scenario):
    history = scenario(
        Settings(controller=True),
        Crash(500, 2, "is killed", down_ms=3000, noticed_ms=10),
        DeleteTopic(1000, 0),
        Produce(1500, 0),
    )
    history.goes_well()
    history.breaks(DELETED, TopicDeletionManager, "resume_for", lambda self, names: None)


def test_SESS_08_a_session_says_again_what_came_with_a_diverging_epoch(scenario):
    """Broker 1 truncates its log because of an answer, and does not use that answer's high watermark (seed 1048)."""
    history = scenario(
        Settings(controller=True, partitions=2, segment_bytes=300, flush_checkpoint_ms=5000, remembers_idle=True),
        Crash(203, 1, "loses power", down_ms=20, noticed_ms=10, kept=0.93),
        Crash(296, 0, "loses power", down_ms=2500, noticed_ms=10),
        LoseStoreAnswer(766, 1),
        Crash(817, 2, "stops", down_ms=300, noticed_ms=10),
        Lose(1231, 2, 1),
        Cut(1261, 1, STORE, 300),
        Produce(1271, 1),
        Produce(1323, 1),
    )
    history.goes_well()
    history.breaks("the_replicas_become_equal", CachedPartition, "forget_answer", lambda self: None)


def test_API_03_a_late_StopReplica_of_an_old_controller_deletes_nothing(scenario):
    """It was meant for an earlier topic of this name: no leader epoch protects the new one.  The controller epoch
    does, and what the store has of the topic: one of the two is enough."""

    def whatever_the_epoch(self, controller_epoch):
        self._controller_epoch = max(controller_epoch, self._controller_epoch)

    history = scenario(
        Settings(controller=True),
        Duplicate(699, 0, 2, after_ms=1500, count=12),
        DeleteTopic(700, 0),
        Delay(999, STORE, 0, by_ms=300),
        DeleteController(1000),
        CreateTopic(1500, 0),
        Produce(1600, 0),
        Consume(4000, 0),
    )
    history.goes_well()
    history.also(LateDeletions, "refused", lambda self, stops: {})
    history.breaks(REASSIGNED, ReplicaManager, "_check_controller_epoch", whatever_the_epoch)


def test_a_follower_is_where_it_fetches_whatever_a_late_fetch_has_said_of_it(scenario):
    """A second copy of broker 2's first fetch comes late: the leader must not hold on to that offset (seed 1028)."""

    def whatever_came_between(self, broker_id, data, fetch_time_ms, broker_epoch=-1):
        replica = self._state.replicas.get(broker_id) if self.is_leader else None
        idle = replica.idle_fetch if replica is not None else None
        if idle is None or idle.data is not data or data.fetch_offset != self.log.log_end_offset:
            return repeat_idle_fetch(self, broker_id, data, fetch_time_ms, broker_epoch)
        if fetch_time_ms is not None:
            replica.state = replica.state.after_idle_fetch(fetch_time_ms)
        return idle

    repeat_idle_fetch = Partition.repeat_idle_fetch
    history = scenario(
        Settings(controller=True, brokers=4, partitions=2, min_insync_replicas=2, remembers_idle=True),
        Crash(401, 0, "is killed", down_ms=60000, noticed_ms=600),
        Cut(403, 1, 2, for_ms=300),
        ProduceIdempotent(410, 0, producer=1),
        LoseStoreAnswer(449, 3),
        CreateTopic(471, 2),
        Delay(582, STORE, 2, by_ms=1000),
        DieInWrite(618, 1, writes=5, down_ms=20),
        Produce(619, 1),
        PreferredElection(1113, 2),
        Duplicate(1114, 2, 1, after_ms=500),
    )
    history.goes_well()
    history.breaks("the_replicas_become_equal", Partition, "repeat_idle_fetch", whatever_came_between)


def test_KIP_497_a_leader_does_not_change_the_isr_of_an_epoch_that_it_has_not_heard_of(scenario):
    """Broker 1 is elected again; before it hears so it would take the stored ISR for its own, and change it: then the
    LeaderAndIsr request with the new epoch comes, with an older version, and no ISR can be changed after it (seed
    1101)."""
    store_prepared = MetadataPartitionStateStore._prepared

    def whatever_the_epoch(self, change, registrations):
        return store_prepared(self, change._replace(leader_epoch=-1), registrations)

    history = scenario(
        Settings(controller=True, partitions=2, segment_bytes=300, flush_checkpoint_ms=200, rebalance_ms=500),
        Crash(9291, 0, "is killed", down_ms=60000, noticed_ms=200),
        Pause(12996, 1, 2000),
        LateRequests(13178, 1, by_ms=1000, count=3),
        Pause(13560, 2, 2000),
        ProduceIdempotent(13740, 0, producer=0),
        Pause(14916, 1, 20),
    )
    history.goes_well()
    history.breaks(EQUAL_AT_THE_END, MetadataPartitionStateStore, "_prepared", whatever_the_epoch)


def test_KIP_455_a_log_of_a_replica_that_went_while_its_broker_was_down_is_set_aside(scenario):
    history = scenario(
        Settings(controller=True),
        Crash(500, 2, "is killed", down_ms=3000, noticed_ms=10),
        Reassign(1500, 0, (1, 0)),
    )
    history.goes_well()
    history.breaks(REASSIGNED, topic_adoption, "is_on_others", lambda node, partition, broker_id: False)


@pytest.mark.parametrize("writes", range(1, 6))
def test_CTRL_18_a_reassignment_goes_on_wherever_its_controller_dies(scenario, writes):
    """After the assignment, the epoch, the ISR with the new replica, the leader among the targets, the ISR of those."""
    history = scenario(
        Settings(controller=True, brokers=4),
        DieInWrite(499, 0, writes=writes, down_ms=3000),
        Reassign(500, 0, (3, 1)),
        Produce(6000, 0),
    )
    history.goes_well()
    history.breaks(REASSIGNED, PartitionReassignment, "resume", lambda self, broker_ids=None: None)


def test_KIP_455_a_cancellation_does_not_delete_the_last_replica_in_sync(scenario):
    """Broker 3 alone is in the ISR, and down, when the reassignment to it is cancelled."""
    history = scenario(
        Settings(controller=True, brokers=4),
        Crash(300, 1, "is killed", down_ms=2500, noticed_ms=10),
        Reassign(500, 0, (3, 1)),
        Crash(1000, 2, "is killed", down_ms=6000, noticed_ms=10),
        Crash(1500, 0, "is killed", down_ms=6000, noticed_ms=10),
        Produce(2000, 0),
        Crash(2500, 3, "is killed", down_ms=4000, noticed_ms=10),
        CancelReassignment(3500, 0),
    )
    history.goes_well()
    history.breaks(
        HAS_A_LEADER, partition_reassignment, "may_drop_replicas", lambda remaining, isr, online, leader: True
    )


def test_KIP_455_a_cancellation_deletes_the_logs_that_were_added(scenario):
    history = scenario(
        Settings(controller=True, brokers=4),
        Crash(300, 1, "is killed", down_ms=2500, noticed_ms=10),
        Reassign(500, 0, (3, 1)),
        CancelReassignment(1000, 0),
    )
    history.goes_well()
    history.breaks(REASSIGNED, PartitionReassignment, "_delete_replicas", lambda self, replicas: None)


def test_RSM_08_a_replica_that_joined_while_it_was_cancelled_is_not_the_last_of_the_isr(scenario, monkeypatch):
    """The controller stores the cancellation, and dies before it sends LeaderAndIsr, as a Java controller may.
    Then the leader takes the new replica into the ISR, and dies, too."""
    monkeypatch.setattr(PartitionReassignment, "_announce_remaining", lambda self, shrunk, begun: None)

    def without_the_assignment(state, replica, assigned):
        isr = tuple(member for member in state.isr if member != replica) or state.isr
        return replace(state, leader=NO_LEADER if state.leader == replica else state.leader, isr=isr)

    history = scenario(
        Settings(controller=True, flush_checkpoint_ms=5000),
        Reassign(517, 0, (1,)),
        DieInWrite(541, 0, writes=3, down_ms=2500),
        Reassign(627, 0, (2,)),
        CancelReassignment(628, 0),
        DieInWrite(1364, 1, writes=1, down_ms=2500),
        PreferredElection(1676, 0),
    )
    history.goes_well()
    history.breaks(HAS_A_LEADER, replica_state_machine, "without_replica", without_the_assignment)


@pytest.mark.parametrize("at_ms", range(501, 513, 2))
def test_KIP_455_a_cancellation_that_meets_the_end_is_refused_or_leaves_no_trace(scenario, at_ms):
    history = scenario(
        Settings(controller=True, brokers=4), Reassign(500, 0, (3, 1)), CancelReassignment(at_ms, 0), Produce(600, 0)
    )
    history.goes_well()
    history.breaks(REASSIGNED, PartitionReassignment, "_delete_replicas", lambda self, replicas: None)


def test_KIP_455_a_target_broker_that_dies_before_it_has_caught_up_is_waited_for(scenario):
    history = scenario(
        Settings(controller=True, brokers=4),
        Produce(400, 0),
        Reassign(500, 0, (3, 1)),
        Crash(503, 3, "is killed", down_ms=3000, noticed_ms=10),
    )
    history.goes_well()
    history.breaks(REASSIGNED, PartitionReassignment, "_isr_changed", lambda self, tp: None)


def test_a_leader_resigns_when_it_hears_that_the_partition_was_moved_away_while_it_stood_still(scenario):
    """Nobody sends it a StopReplica: when it was taken out of the assignment its session had ended."""
    update_metadata = ReplicaManager.update_metadata
    history = scenario(
        Settings(controller=True, partitions=2), Pause(500, 1, for_ms=2000), Produce(600, 1), Reassign(1500, 1, (2,))
    )
    history.goes_well()
    history.breaks(
        HAS_A_LEADER,
        ReplicaManager,
        "update_metadata",
        lambda self, epoch, update, unassigned: update_metadata(self, epoch, update, {}),
    )


def test_a_late_request_of_a_deleted_topic_does_not_keep_the_next_one_of_that_name_away(scenario):
    """Broker 1 stands still while the topic is moved away from it, deleted, and created again; the request that makes
    it lead the earlier topic is the first that it serves then (seed 790023338)."""
    history = scenario(
        Settings(controller=True, brokers=2, partitions=2, flush_checkpoint_ms=5000),
        Delay(10809, ADMIN, 0, by_ms=1000),
        Reassign(11933, 1, (0,)),
        DeleteTopic(12192, 1),
        LateRequests(12318, 0, by_ms=300),
        CreateTopic(12540, 1),
        Pause(12675, 1, for_ms=800),
        DeleteTopic(12949, 1),
        Pause(13115, 1, for_ms=800),
        CreateTopic(13525, 1),
    )
    history.goes_well()
    history.breaks(HAS_A_LEADER, TopicIdentity, "set_deleted_topics_aside", lambda self, topic_ids, epoch: None)


def test_a_topic_that_is_deleted_takes_the_order_to_reassign_it_with_it(scenario):
    history = scenario(
        Settings(controller=True, brokers=4),
        Crash(490, 2, "is killed", down_ms=3000, noticed_ms=10),
        Cut(495, 0, 3, for_ms=1000),
        Reassign(510, 0, (3, 1), is_ordered=True),
        DeleteTopic(512, 0),
    )
    history.goes_well()
    history.breaks(REASSIGNED, ControllerStore, "_removal_of_reassignment_orders", lambda self, is_removed: [])


def test_a_deletion_waits_for_its_own_answers_and_not_for_those_to_a_reassignment(scenario):
    """Broker 2 deletes its log, makes it anew, and dies before it hears that the topic is deleted (seed 424980561)."""

    def whatever_they_were_deleted_for(self, partitions):
        return [tp for tp, delete in partitions.items() if delete]

    history = scenario(
        Settings(controller=True, latency_ms=10),
        LateRequests(490, 0, by_ms=300, count=3),
        Reassign(500, 0, (0,)),
        Reassign(505, 0, (0, 2)),
        DeleteTopic(750, 0),
        Crash(990, 2, "is killed", down_ms=300, noticed_ms=10),
    )
    history.goes_well()
    history.breaks(DELETED, ControllerBrokerRequestBatch, "_deleted_with_their_topics", whatever_they_were_deleted_for)


def test_PSM_06_a_target_replica_leads_when_the_old_leader_goes(scenario):
    history = scenario(Settings(controller=True, brokers=4, partitions=2), Reassign(500, 1, (3, 0)))
    history.goes_well()
    history.breaks(
        HAS_A_LEADER, PartitionReassignment, "_lead_by_target_replicas", lambda self, partitions: list(partitions)
    )


def test_KIP_455_a_leader_that_shuts_down_does_not_take_in_a_replica_that_a_cancellation_deletes(scenario):
    """Broker 2, the controller and the last of the ISR, waits for its shutdown while broker 1 comes and goes (seed
    700003750)."""
    history = scenario(
        Settings(controller=True),
        Produce(251, 0),
        Delay(378, 1, 2, by_ms=100, count=3),
        Reassign(462, 0, (0, 2)),
        Cut(729, 0, STORE, for_ms=1500),
        Crash(1286, 1, "is killed", down_ms=300, noticed_ms=10),
        Crash(1899, 2, "stops", down_ms=20, noticed_ms=600),
        Reassign(2013, 0, (2, 0, 1)),
        CancelReassignment(2053, 0),
        Reassign(2462, 0, (2, 1)),
    )
    history.goes_well()
    history.breaks(NOTHING_LOST, PartitionReassignment, "_announce_remaining", lambda self, shrunk, begun: None)


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_KIP_455_a_leader_knows_of_a_cancellation_before_it_is_stored(scenario, writes):
    """The controller does not hear whether one of its writes took place; if it was that of the topic, the next
    controller sees nothing left to do (seed 740004997)."""
    history = scenario(
        Settings(controller=True, brokers=4, partitions=2),
        Reassign(500, 1, (1, 2, 0, 3)),
        Delay(503, 0, 1, by_ms=100),
        LoseStoreAnswer(515, 0, writes),
        CancelReassignment(516, 1),
    )
    history.goes_well()
    if writes == 1:
        history.breaks(EQUAL_AT_THE_END, PartitionReassignment, "_announce_remaining", lambda self, shrunk, begun: None)


@pytest.mark.parametrize("at_ms", [499, 501, 503, 505, 507, 509, 512])
def test_PSM_06_the_session_of_the_old_leader_expires_at_any_moment_of_a_reassignment(scenario, at_ms):
    """The new replica is in sync with another leader than the one that it was added to."""
    history = scenario(
        Settings(controller=True, brokers=4, partitions=2),
        Cut(495, 1, 3, for_ms=10),
        Reassign(500, 1, (3, 0)),
        ExpireSession(at_ms, 1),
        Produce(2500, 1),
    )
    history.goes_well()
    history.breaks(REASSIGNED, PartitionReassignment, "_isr_changed", lambda self, tp: None)
