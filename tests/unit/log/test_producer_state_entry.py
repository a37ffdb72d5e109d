"""The state of a producer, and that the quick append of a batch that continues it does what the general one does."""

import random

import pytest

from kcore.errors import KafkaError
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.log.producer_state_entry import BatchMetadata, ProducerStateEntry
from kcore.record.memory_records import MemoryRecords
from tests.unit.log.logs import Logs, idempotent, marker


def batch_of(data):
    return MemoryRecords(data, check_crc=False).batches[0]


def test_of_many_batches_the_last_five_are_kept():
    batches = [BatchMetadata(i, 10 * i, 0, 100 + i) for i in range(8)]
    entry = ProducerStateEntry(7, 2, batches, 107)
    assert entry.batches == tuple(batches[3:])
    assert (entry.last_sequence, entry.expected_sequence, entry.last_batch) == (7, 8, batches[-1])


def test_a_producer_without_a_batch_expects_sequence_0():
    entry = ProducerStateEntry(7)
    assert (entry.batches, entry.last_batch, entry.last_sequence, entry.expected_sequence) == ((), None, -1, 0)
    assert (entry.producer_epoch, entry.coordinator_epoch, entry.current_txn_first_offset) == (-1, -1, None)


def test_a_batch_makes_a_new_state_and_leaves_the_old_one_as_it_was():
    before = ProducerStateEntry(7, 0, [(4, 40, 0, 9)], 9, 3, 40)
    same = ProducerStateEntry(7, 0, [(4, 40, 0, 9)], 9, 3, 40)
    after = before.with_batch(batch_of(idempotent(7, 5, 3, base_offset=50, timestamp=77)), 40)
    assert before == same
    assert after == ProducerStateEntry(7, 0, [(4, 40, 0, 9), (7, 52, 2, 77)], 77, 3, 40)
    assert after != before


def test_a_new_epoch_discards_the_batches_of_the_old_one():
    before = ProducerStateEntry(7, 0, [(4, 40, 0, 9)], 9)
    after = before.with_batch(batch_of(idempotent(7, 0, epoch=1, base_offset=41)), None)
    assert (after.producer_epoch, [b.last_offset for b in after.batches]) == (1, [41])


@pytest.mark.parametrize(
    ("sequence", "count", "epoch", "repeats"),
    [(2**31 - 1, 3, 0, True), (2**31 - 1, 2, 0, False), (0, 2, 0, False), (2**31 - 1, 3, 1, False)],
)
def test_LOG_14_a_repeat_has_first_and_last_sequence_and_epoch_of_a_recorded_batch(sequence, count, epoch, repeats):
    last = BatchMetadata(1, 12, 2, 5)  # sequences 2**31 - 1, 0, 1
    assert (last.first_sequence, last.first_offset) == (2**31 - 1, 10)
    entry = ProducerStateEntry(7, 0, [last], 5)
    assert entry.find_duplicate(batch_of(idempotent(7, sequence, count, epoch=epoch))) == (last if repeats else None)


class Pair:
    """Two logs that get the same batches: one in buffers as they come from a socket, so that each takes the quickest
    way there is, one in a form that always takes the general way."""

    def __init__(self, path):
        self.quick, self.general = (Logs(path / name).open() for name in ("orders-0", "orders-1"))
        self.appended = self.refused = self.repeated = 0

    def as_leader(self, data, origin=AppendOrigin.CLIENT):
        quick = self.outcome(lambda: self.quick.append_as_leader(bytearray(data), 0, origin))
        general = self.outcome(lambda: self.general.append_as_leader(bytes(data), 0, origin))
        self.compare(quick, general)

    def as_follower(self, data):
        quick = self.outcome(lambda: self.quick.append_as_follower(bytes(data)))
        general = self.outcome(lambda: self.general.append_as_follower(MemoryRecords(bytes(data))))
        self.compare(quick, general)

    def outcome(self, append):
        try:
            info = append()
        except KafkaError as error:
            self.refused += 1
            return type(error), str(error)
        self.appended += 1
        self.repeated += info.is_duplicate
        names = [name for name in dir(info) if not name.startswith("_")]
        return {name: getattr(info, name) for name in names}

    def compare(self, quick, general):
        assert quick == general
        assert self.quick.producer_state_manager.producers == self.general.producer_state_manager.producers
        assert self.quick.last_stable_offset == self.general.last_stable_offset
        assert self.quick.log_end_offset == self.general.log_end_offset


@pytest.mark.parametrize("seed", range(8))
def test_LOG_14_LOG_15_a_batch_that_continues_its_producer_is_taken_as_in_the_general_way(tmp_path, seed):
    rng = random.Random(seed)
    pair = Pair(tmp_path)
    sent = {}
    for _ in range(250):
        producer = rng.choice([1, 2, 2**40])
        entry = pair.quick.producer_state_manager.producers.get(producer)
        epoch = max(entry.producer_epoch, 0) if entry else 0
        sequence = entry.expected_sequence if entry else rng.choice([0, 2**31 - 3])
        in_transaction = entry is not None and entry.current_txn_first_offset is not None
        is_transactional = in_transaction
        count = rng.randrange(1, 4)
        what = rng.choices(["next", "repeat", "wrong", "marker"], [12, 3, 2, 2])[0]
        options = {"timestamp": 1_700_000_000_000 + rng.randrange(1000)}
        end = pair.quick.log_end_offset
        if what == "marker":
            data = marker(producer, commit=rng.random() < 0.5, epoch=epoch + rng.choice([0, 0, 1]))
            if rng.random() < 0.5:
                pair.as_leader(data, AppendOrigin.COORDINATOR)
            else:
                data[0:8] = end.to_bytes(8, "big")
                pair.as_follower(data)
            continue
        if what == "wrong":
            wrong = rng.choice(["sequence", "epoch", "transaction", "base sequence"])
            sequence += 5 if wrong == "sequence" else 0
            sequence = -1 if wrong == "base sequence" else sequence % 2**31
            epoch = epoch + rng.choice([-1, 1]) if wrong == "epoch" and epoch else epoch
            is_transactional ^= wrong == "transaction"
        options |= {"epoch": epoch, "is_transactional": is_transactional}
        if what == "repeat" and producer in sent:
            sequence, count, options = rng.choice(sent[producer])
        else:
            sent[producer] = [*sent.get(producer, []), (sequence, count, options)][-7:]
        if rng.random() < 0.3:
            pair.as_follower(idempotent(producer, sequence, count, base_offset=end + rng.randrange(2), **options))
        else:
            pair.as_leader(idempotent(producer, sequence, count, **options))
        if rng.random() < 0.03:
            pair.quick.roll()
            pair.general.roll()
    assert min(pair.refused, pair.repeated) > 0 and pair.appended > 200
    for log in (pair.quick, pair.general):
        log.close()
    names = sorted(path.name for path in (tmp_path / "orders-0").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "orders-1").iterdir())
    for name in names:
        assert (tmp_path / "orders-0" / name).read_bytes() == (tmp_path / "orders-1" / name).read_bytes(), name
