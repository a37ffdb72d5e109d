"""Histories of replicas that have lost records: each breaks an invariant if a rule of server/lost_records.py and of the
log's mark is taken out."""

from kcore.log.unified_log import UnifiedLog
from kcore.replica.replica_manager import ReplicaManager
from kcore.server.lost_records import IsrDeparture
from tests.sim.events import Crash, FlipBit, PreferredElection, Produce, Settings

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
