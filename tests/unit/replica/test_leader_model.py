"""A leader and three followers under random fetches, produces, pauses and answers of the store, beside a plain model.

The same history runs twice: followers that send the same data again as the same object, as in a fetch session, take a
short cut through the leader (Partition.repeat_idle_fetch); followers that send copies do not.
"""

import random

import pytest

from kcore import errors
from kcore.log.log_offset_metadata import FetchIsolation
from kcore.replica.fetch_params import FetchParams, FetchPartitionData
from kcore.replica.partition_state import PendingIsr
from kcore.replica.partition_state_store import StoredIsr
from tests.batches import batch

from .conftest import TP, Answer, Node

FOLLOWERS = (1, 2, 3)
LAG = 1000


class Store:
    def __init__(self):
        self.changes = []
        self.version = 0

    def change_isr(self, topic_partition, isr, expected_version, on_done, *, broker_epochs=None, leader_epoch=-1):
        self.changes.append((isr, on_done))

    def answer(self, rng):
        if not self.changes:
            return
        isr, on_done = self.changes.pop(0)
        if rng.random() < 0.8:
            self.version += 1
            on_done(StoredIsr(isr, self.version))
        else:
            on_done(errors.OperationNotAttempted("not now"))


class History:
    def __init__(self, directory, seed, repeats_objects):
        self.rng = random.Random(seed)
        self.store = Store()
        self.node = Node(directory, partition_state_store=self.store, replica_lag_time_max_ms=LAG)
        self.partition = self.node.lead(epoch=4, isr=(0, 1, 2), replicas=(0, *FOLLOWERS))
        self.repeats_objects = repeats_objects
        #: The log end of each follower, which only appends what it was answered, and its last data.
        self.ends = dict.fromkeys(FOLLOWERS, 0)
        self.data = {}
        self.high_watermark = 0
        self.produces = []
        self.seen = []

    def run(self, steps):
        for _ in range(steps):
            self.rng.choices([self.produce, self.fetch, self.fetch, self.pause, self.stored], [3, 4, 4, 2, 2])[0]()
            self.check()
        self.node.shutdown()
        return self.seen

    def produce(self):
        records = batch(*[b"x"] * self.rng.randint(1, 3))
        self.produces.append(self.node.produce(records, acks=self.rng.choice([-1, -1, 1]), timeout_ms=10**6))

    def fetch(self):
        follower = self.rng.choice(FOLLOWERS)
        offset = self.ends[follower]
        data = self.data.get(follower)
        if data is None or data.fetch_offset != offset or not self.repeats_objects:
            data = self.data[follower] = FetchPartitionData(offset, 1 << 20, 0, 4)
        answer = Answer()
        params = FetchParams(replica_id=follower, isolation=FetchIsolation.LOG_END)
        self.node.replica_manager.fetch_messages(params, [(TP, data)], answer)
        ((_, result),) = answer.result
        assert result.error is None
        assert self.partition.state.replicas[follower].state.log_end_offset == offset
        self.seen.append((follower, offset, result.high_watermark, result.records.size_in_bytes))
        if result.records.size_in_bytes and self.rng.random() < 0.9:  # else the answer is lost
            self.ends[follower] = self.partition.log.log_end_offset

    def pause(self):
        self.node.advance(self.rng.choice([10, 100, LAG // 2, LAG + 1]))

    def stored(self):
        self.store.answer(self.rng)

    def check(self):
        log, state = self.partition.log, self.partition.state
        ends = {0: log.log_end_offset, **self.ends}
        assert log.high_watermark >= self.high_watermark, "the high watermark fell"
        if log.high_watermark > self.high_watermark:
            for member in state.isr.maximal:
                assert ends[member] >= log.high_watermark, f"{member} may lead without what is committed"
        self.high_watermark = log.high_watermark
        assert 0 in state.isr.committed
        for member in state.isr.committed:
            assert ends[member] >= log.high_watermark, f"{member} is in sync without what is committed"
        if isinstance(state.isr, PendingIsr):
            assert len(self.store.changes) == 1
        for answer in [answer for answer in self.produces if not answer.waits]:
            assert answer.result[TP].error is None
            assert answer.result[TP].required_offset <= log.log_end_offset
        replicas = {broker_id: replica.state for broker_id, replica in state.replicas.items()}
        self.seen.append((log.high_watermark, sorted(state.isr.committed), sorted(state.isr.maximal), replicas))
        self.seen.append([answer.waits for answer in self.produces])


@pytest.mark.parametrize("seed", range(20))
def test_PART_15_PART_13_the_high_watermark_never_falls_and_never_passes_a_member_of_the_isr(seed, tmp_path):
    histories = [History(tmp_path / str(repeats), seed, repeats).run(150) for repeats in (False, True)]
    assert histories[0] == histories[1], f"seed={seed}: the short cut of an idle fetch is seen"
    assert histories[0][-2][0] > 0
