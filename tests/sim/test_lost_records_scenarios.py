"""Histories of replicas that have lost records: each breaks an invariant if a rule of server/member/lost_records.py
and of the log's mark is taken out."""

from kcore.log.gone_logs import GoneLogs
from kcore.log.unified_log import UnifiedLog
from kcore.replica.damage_checks import DamageChecks
from kcore.replica.partition import OfflinePartition, Partition
from kcore.replica.replica_manager import ReplicaManager
from kcore.server.member import registration
from kcore.server.member.lost_records import IsrDeparture
from tests.sim.events import Crash, DamageRecords, FlipBit, PreferredElection, Produce, RemoveLog, Settings

EQUAL_AT_THE_END = "the_replicas_become_equal"
NOTHING_LOST = "no_acknowledged_record_is_lost_or_reordered"

WITH_HOLE = Settings(controller=True, segment_bytes=300, flush_checkpoint_ms=200)
#: All brokers are killed; a batch in the log of broker 0 is damaged, and it is the first one to start.
FIRST_TO_START = (
    *(Produce(500 + 20 * number, 0, records=2, size=40) for number in range(10)),
    *(Crash(2000, broker, "is killed", down_ms=1000 if broker else 100) for broker in range(3)),
    FlipBit(2050, 0, topic=0, share=0.3),
)


def test_the_first_broker_to_start_does_not_lead_without_the_records_that_it_has_lost(scenario):
    history = scenario(Settings(controller=True), *FIRST_TO_START)
    history.goes_well()
    history.breaks(NOTHING_LOST, IsrDeparture, "leave", lambda self, logs, *, may_wait: [])


#: The same, but the log of broker 0 is removed.
WITHOUT_A_LOG = (
    *FIRST_TO_START[:-1],
    RemoveLog(2050, 0, topic=0),
    PreferredElection(5000, 0),
)


def test_a_broker_whose_log_is_gone_does_not_lead_before_it_has_copied_it(scenario):
    history = scenario(Settings(controller=True), *WITHOUT_A_LOG)
    history.goes_well()
    history.also(registration, "assigned_partitions", lambda broker_id, store: [])
    history.breaks(NOTHING_LOST, GoneLogs, "find", lambda self, loaders, is_here: None)


def test_a_replica_with_a_hole_is_cut_before_it_joins_the_isr(scenario):
    """Its segments after the hole were flushed: it seems to have everything, and is the preferred leader."""
    history = scenario(WITH_HOLE, *FIRST_TO_START, PreferredElection(5000, 0))
    history.goes_well()
    history.breaks(NOTHING_LOST, ReplicaManager, "_has_no_hole", lambda self, partition: True)


def test_a_log_is_cut_at_its_first_lost_offset_and_not_at_its_end(scenario):
    def at_its_end(self):
        self.lost_records.is_cut = True

    history = scenario(WITH_HOLE, *FIRST_TO_START, PreferredElection(5000, 0))
    history.breaks(NOTHING_LOST, UnifiedLog, "cut_lost_records", at_its_end)


def test_a_leader_asks_whether_a_member_that_has_registered_again_is_still_one(scenario):
    """Broker 1, the controller, loses power and leaves the ISRs itself; the next controller finds it outside of them,
    and begins no leader epoch.  (Seed 949018894.)"""
    history = scenario(
        Settings(brokers=4, partitions=2, latency_ms=3, controller=True, rebalance_ms=500),
        Crash(3510, 0, "stops", down_ms=2500, noticed_ms=600),
        Crash(15276, 1, "loses power", down_ms=300, noticed_ms=600),
    )
    history.goes_well()
    history.breaks(EQUAL_AT_THE_END, Partition, "confirm_isr", lambda self: None)


#: Broker 2 lacks records, and is sent a damaged batch of broker 0 for ever.
DAMAGED_LEADER = (
    Produce(500, 0),
    Crash(600, 2, "is killed", down_ms=900),
    *(Produce(1000 + 20 * number, 0) for number in range(6)),
    DamageRecords(1300, 0, topic=0, share=0.5),
)


def test_a_leader_whose_records_are_damaged_gives_its_partition_up(scenario):
    history = scenario(Settings(controller=True), *DAMAGED_LEADER)
    history.goes_well()
    history.breaks(EQUAL_AT_THE_END, DamageChecks, "suspect", lambda self, *suspicion: None)


def test_a_partition_that_was_given_up_is_not_led_again_before_another_broker_has_led(scenario):
    """The controller first sends the LeaderAndIsr that it was led with; answered without an error, it is led on."""
    history = scenario(Settings(controller=True), *DAMAGED_LEADER)
    history.breaks(EQUAL_AT_THE_END, OfflinePartition, "may_take", lambda self, update, broker_id: True)
