"""One history for each rule that keeps old decisions, old brokers and old answers out, and for the rules of joining the
ISR and of acknowledging: it breaks an invariant if the rule is taken out."""

from dataclasses import replace

from kcore.client.broker_channel import BrokerChannel
from kcore.common.topic_partition import ZERO_UUID
from kcore.controller import partition_state_machine, replica_state_machine
from kcore.controller.election import NO_LEADER
from kcore.controller.kafka_controller import KafkaController
from kcore.controller.partition_state_machine import PartitionStateMachine
from kcore.errors import ApiError, IneligibleReplica
from kcore.log.leader_epoch_file_cache import LeaderEpochFileCache
from kcore.log.log_hot_path import LogHotPath
from kcore.log.log_offset_metadata import FetchIsolation, LogOffsetMetadata
from kcore.log.unified_log import UnifiedLog
from kcore.replica import isr as isr_rules
from kcore.replica import partition
from kcore.replica.fetcher.follower_logs import ReplicaLogs
from kcore.replica.partition import Partition
from kcore.replica.partition_state import CommittedIsr, LeaderState
from kcore.replica.partition_state_store import StoredIsr
from kcore.replica.replica_manager import ReplicaManager
from kcore.replication.metadata_partition_state_store import MetadataPartitionStateStore
from kcore.replication.remote_leader_endpoint import RemoteLeaderEndPoint
from kcore.server.member.cluster_member import ClusterMember
from kcore.server.member.registration import Registration
from tests.sim.coverage import Coverage
from tests.sim.events import (
    CONTROLLER,
    PRODUCER,
    STORE,
    Consume,
    Crash,
    CreateTopic,
    Cut,
    Delay,
    DeleteController,
    DeleteRecords,
    DeleteTopic,
    DieInWrite,
    Elect,
    ExpireInReads,
    ExpireSession,
    History,
    LateRequests,
    Lose,
    LoseStoreAnswer,
    Pause,
    Produce,
    ProduceIdempotent,
    Settings,
    StaleUpdate,
)
from tests.sim.shrink import run_history

KILLED = "is killed"

CHANGES_NOTHING = "an_outdated_request_of_a_controller_changes_nothing"
JOINS_WITH_ALL = "who_joins_the_isr_has_all_that_its_leader_has_committed"
JOINS_REGISTERED = "who_joins_the_isr_has_fetched_since_it_registered"
ENOUGH_REPLICAS = "an_acknowledged_record_is_on_enough_replicas"
EPOCH_GOES_BACK = "a_leader_epoch_never_goes_back"
ACKNOWLEDGED = "no_acknowledged_record_is_lost_or_reordered"
COMMITTED = "an_acknowledged_record_is_committed"
MEMBERS = "the_high_watermark_never_passes_the_log_end_of_an_isr_member"
HAS_A_LEADER = "a_partition_with_a_live_isr_member_has_a_leader"
EQUAL_AT_THE_END = "the_replicas_become_equal"


# -- controllers ----------------------------------------------------------------------------------------------------


def accept_any_controller_epoch(self, controller_epoch):
    self._controller_epoch = max(controller_epoch, self._controller_epoch)


def test_RM_02_a_request_of_an_earlier_controller_changes_nothing(scenario):
    """Broker 0 has just decided something when broker 1 or 2 becomes the controller; its requests come after that."""
    history = scenario(
        Settings(controller=True),
        LateRequests(499, 0, by_ms=300, count=3),
        CreateTopic(500, 2),
        Delay(549, STORE, 0, by_ms=1000),
        DeleteController(550),
    )
    history.goes_well()
    history.breaks(CHANGES_NOTHING, ReplicaManager, "_check_controller_epoch", accept_any_controller_epoch)


def test_KIP_380_a_request_for_an_earlier_registration_changes_nothing(scenario):
    """Broker 2 has registered again when what the controller had for it comes."""
    history = scenario(
        Settings(controller=True),
        LateRequests(499, 0, by_ms=300, count=6),
        CreateTopic(500, 2),
        ExpireSession(550, 2),
    )
    history.goes_well()
    history.breaks(CHANGES_NOTHING, Registration, "check_broker_epoch", lambda self, broker_epoch: None)


def test_RM_08_an_update_with_an_earlier_leader_epoch_is_refused(scenario):
    """Both by its leader epoch and by its partition epoch, which is lower, too."""

    def whatever_the_partition_epoch(make):
        def make_whatever(self, update, controller_epoch):
            self._state = self._state._replace(partition_epoch=-1)
            return make(self, update, controller_epoch)

        return make_whatever

    history = scenario(Settings(), Elect(100, 0, 1), Elect(150, 0, 2), StaleUpdate(200, 0, 0, back=1), Produce(300, 0))
    history.goes_well()
    history.also(Partition, "make_follower", whatever_the_partition_epoch(Partition.make_follower))
    history.also(Partition, "make_leader", whatever_the_partition_epoch(Partition.make_leader))
    history.breaks(EPOCH_GOES_BACK, ReplicaManager, "_check_update", lambda self, update: None)


def test_CTRL_11_a_new_controller_watches_before_it_reads(scenario):
    """Broker 1 dies after the next controller, broker 2, has read that it lives."""
    fail_over = KafkaController._fail_over

    def watch_at_the_end(self):
        read = self._store.live_brokers
        self._store.live_brokers = lambda watch=None: read()
        try:
            fail_over(self)
        finally:
            del self._store.live_brokers
        read(self._watch("BrokerChange", self._brokers_changed))

    history = scenario(
        Settings(controller=True, partitions=2),
        Delay(498, STORE, 0, by_ms=200),
        Crash(499, 1, KILLED, down_ms=60_000, noticed_ms=600),
        ExpireInReads(499, 2, victim=1, calls=10),
        DeleteController(500),
    )
    history.goes_well()
    history.breaks(HAS_A_LEADER, KafkaController, "_fail_over", watch_at_the_end)


def test_CTRL_20_a_broker_that_has_registered_again_before_its_end_was_noticed_has_failed(scenario):
    """The controller hears of both at once, and sends requests for a registration that is over."""
    brokers_changed = KafkaController._brokers_changed

    def whatever_the_epochs(self):
        read = self._store.live_brokers
        self._store.live_brokers = lambda watch=None: {
            broker_id: self.context.live_brokers.get(broker_id, broker) for broker_id, broker in read(watch).items()
        }
        try:
            brokers_changed(self)
        finally:
            del self._store.live_brokers

    history = scenario(
        Settings(controller=True),
        Delay(498, STORE, 0, by_ms=500),
        Crash(499, 2, KILLED, down_ms=50, noticed_ms=10),
        Produce(3000, 0),
    )
    history.goes_well()
    history.breaks(EQUAL_AT_THE_END, KafkaController, "_brokers_changed", whatever_the_epochs)


def test_CTRL_20_a_broker_knows_who_lives_before_it_follows(scenario):
    """It resigns where the leader is not alive as far as it has heard."""
    history = scenario(Settings(controller=True), Crash(500, 2, KILLED, down_ms=1000, noticed_ms=10))
    history.goes_well()
    history.breaks(
        EQUAL_AT_THE_END, KafkaController, "_send_update_metadata", lambda self, broker_ids, partitions: None
    )


def test_CTRL_09_a_broker_whose_session_has_expired_registers_again(scenario):
    history = scenario(Settings(controller=True), ExpireSession(500, 2))
    history.goes_well()
    history.breaks(EQUAL_AT_THE_END, ClusterMember, "register_again", lambda self: None)


def test_CTRL_03_a_controller_whose_node_is_gone_resigns(scenario):
    history = scenario(Settings(controller=True), Delay(499, STORE, 0, by_ms=200), DeleteController(500))
    history.goes_well()
    history.breaks(HAS_A_LEADER, KafkaController, "_resign", lambda self: None)


def test_a_controllers_request_is_sent_again_until_it_is_answered(scenario):
    def give_up(self, request, now_ms):
        self.on_dropped(request)

    history = scenario(Settings(controller=True), Lose(499, 0, 2, count=2), CreateTopic(500, 2))
    history.goes_well()
    history.breaks(HAS_A_LEADER, BrokerChannel, "on_failure", give_up)


# -- elections ------------------------------------------------------------------------------------------------------


def test_PSM_05_without_unclean_elections_only_a_member_of_the_isr_leads(scenario):
    """Broker 0 alone has the record."""
    elect = partition_state_machine.offline_election
    history = scenario(
        Settings(controller=True),
        Cut(300, 0, 1, for_ms=20_000),
        Cut(300, 0, 2, for_ms=20_000),
        Produce(3500, 0),
        Crash(4000, 0, KILLED, down_ms=3000, noticed_ms=10),
    )
    history.goes_well()
    history.breaks(
        ACKNOWLEDGED,
        partition_state_machine,
        "offline_election",
        lambda replicas, isr, live, unclean_enabled: elect(replicas, isr, live, True),
    )


def test_PSM_09_a_leader_is_elected_from_the_isr_that_is_stored_now(scenario):
    """Broker 1 has taken the others out of the ISR, and the controller has not heard of that yet."""
    election = PartitionStateMachine._election

    def from_what_is_remembered(self, tp, stored, *others):
        remembered = self._context.leadership[tp]
        return election(self, tp, {tp: replace(stored[tp], isr=remembered.isr)}, *others)

    history = scenario(
        Settings(controller=True, partitions=2),
        Cut(300, 1, 0, for_ms=20_000),
        Cut(300, 1, 2, for_ms=20_000),
        Produce(310, 1),
        Produce(2600, 1),
        Crash(2700, 1, KILLED, down_ms=3000, noticed_ms=10),
    )
    history.goes_well()
    history.breaks(ACKNOWLEDGED, PartitionStateMachine, "_election", from_what_is_remembered)


def test_RSM_08_the_last_member_of_an_isr_stays_in_it(scenario):
    def without(state, replica, assigned):
        isr = tuple(member for member in state.isr if member != replica)
        return replace(state, leader=NO_LEADER if state.leader == replica else state.leader, isr=isr)

    history = scenario(
        Settings(controller=True, brokers=4, partitions=2),
        Produce(400, 1),
        Crash(500, 2, KILLED, down_ms=60_000, noticed_ms=10),
        Crash(600, 3, KILLED, down_ms=60_000, noticed_ms=10),
        Crash(700, 1, KILLED, down_ms=1000, noticed_ms=10),
    )
    history.goes_well()
    history.breaks(EQUAL_AT_THE_END, replica_state_machine, "without_replica", without)


# -- who joins the ISR ------------------------------------------------------------------------------------------------

#: Broker 2 joins the ISR of t1, which broker 1 leads; the change waits for the store, and before it is stored broker 2
#: registers again.  Its fetches do not arrive any more.
REGISTERS_AGAIN = (
    Crash(500, 2, KILLED, down_ms=100, noticed_ms=10),
    Cut(601, 1, STORE, for_ms=250),
    Cut(640, 1, 2, for_ms=3000),
    ExpireSession(700, 2),
)


def test_KIP_903_a_follower_that_has_registered_again_since_its_fetch_does_not_join(scenario):
    store_prepared = MetadataPartitionStateStore._prepared

    def whatever_the_registration(self, change, node, registrations):
        return store_prepared(self, change._replace(broker_epochs={}), node, registrations)

    history = scenario(Settings(controller=True, partitions=2), *REGISTERS_AGAIN)
    history.goes_well()
    history.breaks(JOINS_REGISTERED, MetadataPartitionStateStore, "_prepared", whatever_the_registration)


def test_KIP_903_a_leader_proposes_the_registrations_that_its_followers_fetched_with(scenario):
    history = scenario(Settings(controller=True, partitions=2), *REGISTERS_AGAIN)
    history.goes_well()
    history.breaks(JOINS_REGISTERED, partition, "_broker_epochs", lambda state: {})


def test_KIP_903_a_followers_fetch_has_its_registration(scenario):
    fetch_message = RemoteLeaderEndPoint._fetch_message

    def without_a_registration(self, *request):
        message = fetch_message(self, *request)
        message.replica_state.replica_epoch = -1
        return message

    history = scenario(Settings(controller=True, partitions=2), *REGISTERS_AGAIN)
    history.goes_well()
    history.breaks(JOINS_REGISTERED, RemoteLeaderEndPoint, "_fetch_message", without_a_registration)


def test_KIP_903_a_topic_that_the_metadata_do_not_have_is_fetched_by_its_id_and_with_the_registration(scenario):
    """Broker 0 wakes up with orders of before its session ended, follows t1 for a moment, and has no metadata of it."""
    start_and_topic_id = ReplicaLogs.start_and_topic_id

    def without_the_id_of_t1(self, tp):
        start, topic_id = start_and_topic_id(self, tp)
        return start, ZERO_UUID if tp.topic == "t1" else topic_id

    history = scenario(
        Settings(brokers=2, flush_checkpoint_ms=5000, remembers_idle=True, controller=True),
        Pause(592, 0, for_ms=2000),
        DieInWrite(663, 1, writes=3, down_ms=1000),
        CreateTopic(679, 1),
        DeleteTopic(1230, 1),
        LoseStoreAnswer(1865, 0, writes=1),
    )
    history.goes_well()
    history.breaks(JOINS_REGISTERED, ReplicaLogs, "start_and_topic_id", without_the_id_of_t1)


def joins(*, below_high_watermark=False, below_epoch_start=False, below_log_start=False):
    """may_join_isr() without one of its conditions."""
    may_join_isr = isr_rules.may_join_isr

    def rule(replica, isr, high_watermark, epoch_start, log_start=0, is_alive=True):
        return may_join_isr(
            replica,
            isr,
            0 if below_high_watermark else high_watermark,
            0 if below_epoch_start else epoch_start,
            -1 if below_log_start else log_start,
            is_alive,
        )

    return rule


def test_PART_13_a_follower_below_the_high_watermark_does_not_join(scenario):
    """Its first fetch after a start: broker 0 has committed a record alone."""
    history = scenario(
        Settings(brokers=2),
        Crash(100, 1, KILLED, down_ms=300, noticed_ms=1),
        Produce(200, 0),
    )
    history.goes_well()
    history.breaks(JOINS_WITH_ALL, isr_rules, "may_join_isr", joins(below_high_watermark=True))


def test_PART_13_a_follower_below_the_start_of_the_leader_epoch_does_not_join(scenario):
    """Broker 1 leads with a record that it does not know to be committed; broker 2 has not fetched it."""
    history = scenario(
        Settings(),
        Crash(50, 2, KILLED, down_ms=300, noticed_ms=1),
        Produce(100, 0),
        Cut(199, 0, 1, 1000),
        Elect(200, 0, 1),
    )
    history.goes_well()
    history.breaks(JOINS_WITH_ALL, isr_rules, "may_join_isr", joins(below_epoch_start=True))


# -- the ISR and acknowledgements -------------------------------------------------------------------------------------


def test_PART_18_records_are_not_acknowledged_by_fewer_than_min_insync_replicas(scenario):
    """Broker 1 dies before it has fetched them: then the ISR is broker 0 alone."""

    def whatever_the_isr(self, required_offset, leader_epoch):
        return self.is_leader and self.log.high_watermark >= required_offset

    history = scenario(
        Settings(brokers=2, min_insync_replicas=2),
        Cut(99, 0, 1, 1000),
        Produce(100, 0),
        Crash(110, 1, KILLED, down_ms=2000, noticed_ms=10),
    )
    history.goes_well()
    history.breaks(ENOUGH_REPLICAS, Partition, "check_enough_replicas_reach_offset", whatever_the_isr)


def test_KIP_497_an_isr_change_of_unknown_outcome_stays_pending(scenario):
    """It was stored: broker 1 is in the ISR, and leads next."""
    isr_stored = Partition._isr_stored

    def as_refused(self, pending, result):
        refused = isinstance(result, ApiError)
        return isr_stored(self, pending, IneligibleReplica("unknown") if refused else result)

    history = scenario(
        Settings(brokers=2),
        Crash(100, 1, KILLED, down_ms=50, noticed_ms=1),
        Lose(152, CONTROLLER, 0, count=6),
        Cut(153, 0, 1, 10_000),
        Produce(2000, 0),
        Crash(2100, 0, KILLED, down_ms=5000),
    )
    history.goes_well()
    history.breaks(ACKNOWLEDGED, Partition, "_isr_stored", as_refused)


def test_KIP_497_an_answer_to_an_earlier_isr_change_is_dropped(scenario):
    """Broker 0 has taken broker 2 out of the ISR; when it hears that, it has been elected again, and broker 2 has
    joined again.  Then broker 2 is away for longer than replica.lag.time.max.ms."""

    def whatever_is_pending(self, pending, result):
        state = self._state
        if isinstance(state, LeaderState) and isinstance(result, StoredIsr):
            self._state = state._replace(isr=CommittedIsr(result.isr), partition_epoch=result.partition_epoch)
            self._maybe_increment_leader_hw(self.log, self._state)
            self._on_isr_changed(self.topic_partition)

    history = scenario(
        Settings(),
        Pause(100, 2, for_ms=2250),
        Produce(110, 0),
        Delay(2250, CONTROLLER, 0, by_ms=600),
        Elect(2300, 0, 0),
        Lose(2400, CONTROLLER, 0, count=2),
        Cut(2360, 0, 2, for_ms=5000),
        Produce(4000, 0),
    )
    history.goes_well()
    history.breaks(MEMBERS, Partition, "_isr_stored", whatever_is_pending)


#: Broker 1 gets no record.
ALONE = (Cut(99, 0, 1, 900), Produce(100, 0, acks=1), Produce(110, 0))


def test_PART_15_the_high_watermark_waits_for_the_isr(scenario):
    history = scenario(Settings(brokers=2), *ALONE)
    history.goes_well()
    history.breaks(MEMBERS, isr_rules, "high_watermark_candidate", lambda leader_end, *others: leader_end)


def test_PART_18_acks_all_waits_for_the_high_watermark(scenario):
    history = scenario(Settings(brokers=2), *ALONE)
    history.goes_well()
    history.breaks(COMMITTED, Partition, "check_enough_replicas_reach_offset", lambda self, *record: True)


def test_RD_06_a_consumer_reads_up_to_the_high_watermark(scenario):
    read_records = Partition.read_records

    def read_to_the_end(self, fetch_offset, max_bytes, isolation, *others):
        return read_records(self, fetch_offset, max_bytes, FetchIsolation.LOG_END, *others)

    history = scenario(Settings(brokers=2), *ALONE, Consume(200, 0))
    history.goes_well()
    history.breaks("a_consumer_gets_committed_records", Partition, "read_records", read_to_the_end)


def test_PART_16_a_leader_stays_in_its_isr(scenario):
    history = scenario(Settings(brokers=2), Produce(100, 0), Consume(3000, 0))
    history.goes_well()
    history.breaks(
        "the_isr_is_never_empty", isr_rules, "out_of_sync_replicas", lambda leader_id, end, isr, *others: isr.maximal
    )


def test_RFT_07_a_followers_high_watermark_is_at_most_its_log_end(scenario):
    """It gets one batch at a time, and with it a high watermark beyond that."""

    def as_the_leader_says(log, offset):
        return log._update_high_watermark_metadata(LogOffsetMetadata(offset))

    history = scenario(
        Settings(brokers=2, fetch_bytes=300),
        Crash(50, 1, KILLED, down_ms=500, noticed_ms=1),
        *(Produce(at_ms, 0, size=60) for at_ms in range(100, 200, 10)),
    )
    history.goes_well()
    history.breaks("offsets_are_in_order", UnifiedLog, "update_high_watermark", as_the_leader_says)


def test_EPOCH_12_a_truncated_log_has_forgotten_the_epochs_of_what_was_cut(scenario):
    """Broker 0 has written three records with epoch 0 that nobody else has, and leads with epoch 2 again."""
    history = scenario(
        Settings(brokers=2),
        Cut(90, 0, 1, 500),
        Produce(100, 0, acks=1),
        Produce(105, 0, acks=1),
        Elect(110, 0, 1),
        Produce(120, 0, acks=1),
        Elect(700, 0, 0),
        Produce(800, 0),
    )
    history.goes_well()
    history.breaks(EQUAL_AT_THE_END, LeaderEpochFileCache, "truncate_from_end", lambda self, offset: None)


def test_APP_20_a_batch_that_is_sent_again_is_appended_once(scenario):
    """The first answer is lost."""

    def append_without_producers(log, records, leader_epoch, *others):
        log.producer_state_manager.truncate_fully_and_start_at(log.log_end_offset)
        return LogHotPath.append_as_leader(log, records, leader_epoch, *others)

    history = scenario(
        Settings(brokers=2), Lose(100, 0, PRODUCER), ProduceIdempotent(101, 0, producer=0), Consume(3500, 0)
    )
    history.goes_well()
    history.breaks("an_idempotent_record_is_there_once", UnifiedLog, "append_as_leader", append_without_producers)


def test_PURG_10_what_waits_is_tried_again_when_the_high_watermark_rises(scenario):
    history = scenario(Settings(brokers=2), Produce(100, 0), Consume(2000, 0))
    history.goes_well()
    history.breaks(
        "no_request_times_out_when_all_is_done", ReplicaManager, "complete_waiting", lambda self, topic_partition: None
    )


# -- decisions that random histories do not reach ---------------------------------------------------------------------


def test_FT_29_a_follower_that_was_out_of_range_goes_on_where_the_leader_has_records_by_then():
    """Broker 2 has just begun anew at broker 0's log start, without a record and an epoch, when broker 1 is elected,
    whose log ends below that; between broker 2's fetch and its lookup of that end broker 1 gets as many records.

    The other answer, to cut at the leader's end, needs a log with records and without epochs, as Kafka before 0.11
    wrote them: else the leader's answer is where the epochs diverge.
    """
    history = History(
        Settings(brokers=3, unclean=True, latency_ms=10),
        (
            Crash(50, 2, KILLED, down_ms=3500, noticed_ms=1),
            *(Produce(at_ms, 0) for at_ms in (100, 110, 120)),
            Cut(200, 0, 1, for_ms=20_000),
            *(Produce(at_ms, 0, acks=1) for at_ms in range(210, 280, 10)),
            DeleteRecords(2600, 0, share=1.0),
            Elect(3700, 0, 1),
            Produce(3718, 0, records=8),
        ),
    )
    coverage = Coverage()
    with coverage.counting():
        assert run_history(history) is None
    assert coverage.counts["out of range: go on at our end"] == 1
