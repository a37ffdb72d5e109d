"""A replay takes runs of batches at once: the state is what the appends, one by one, had made of them."""

import random

import pytest

from kcore.log.producer_runs import take_runs
from kcore.log.producer_state_manager import ProducerStateManager, rebuild_producer_state
from kcore.record.memory_records import MemoryRecords
from tests.unit.log.logs import Logs, batch, idempotent, marker, old_message

LATEST = 2**31 - 1


def table(*batches):
    return MemoryRecords(b"".join(bytes(b) for b in batches)).batches


def at(offset, records, epoch=0):
    records[0:8] = offset.to_bytes(8, "big")
    records[12:16] = epoch.to_bytes(4, "big")
    return records


@pytest.mark.parametrize("seed", range(12))
def test_a_replay_gives_the_state_that_the_appends_left(tmp_path, seed):
    rng = random.Random(seed)
    logs = Logs(tmp_path / "orders-0", segment_bytes=rng.choice([3000, 100_000]))
    log = logs.open()
    producers = rng.choice([3, 40, 150])
    epochs = dict.fromkeys(range(producers), 0)
    sequences = {producer: rng.choice([0, 2**31 - 3]) for producer in range(producers)}
    leader_epoch = 0
    for _ in range(600):
        offset = log.log_end_offset + rng.choice([0, 0, 3])
        producer, what = rng.randrange(producers), rng.random()
        leader_epoch += rng.random() < 0.02
        if what < 0.1:
            data = batch(rng.randint(1, 3), timestamp=1_700_000_000_000 + rng.randrange(10**6))
        elif what < 0.2:
            epochs[producer] += rng.random() < 0.3
            data = marker(
                producer, commit=rng.random() < 0.5, epoch=epochs[producer], coordinator_epoch=rng.randrange(4)
            )
        else:
            if rng.random() < 0.05:
                epochs[producer] = max(0, epochs[producer] + rng.choice([1, 1, -1]))
                sequences[producer] = 0
            count = rng.randint(1, 3)
            data = idempotent(
                producer,
                sequences[producer],
                count,
                epoch=epochs[producer],
                is_transactional=producer % 2 == 0,
                timestamp=1_700_000_000_000 + rng.randrange(10**6),
            )
            sequences[producer] = (sequences[producer] + count) % 2**31
        log.append_as_follower(at(offset, data, leader_epoch))
    live = log.producer_state_manager
    again = ProducerStateManager("again", str(logs.directory), writable=False)
    rebuild_producer_state(again, log.segments, 0, log.log_end_offset, 0)
    again.on_high_watermark_updated(log.high_watermark)
    assert again.producers == live.producers, f"seed={seed}"
    assert again.first_unstable_offset == live.first_unstable_offset, f"seed={seed}"
    assert list(again._ongoing) == list(live._ongoing)
    # And so does a recovery, which collects leader epochs and aborted transactions in the same pass.
    indexes = {base: index.entries for base, index in log.local._txn_indexes.items()}
    recovered = logs.open(clean=False)
    assert recovered.leader_epoch_cache.entries == log.leader_epoch_cache.entries
    assert {base: index.entries for base, index in recovered.local._txn_indexes.items()} == indexes, f"seed={seed}"
    entries = recovered.producer_state_manager.producers
    assert {p: (e.producer_epoch, e.last_sequence, e.current_txn_first_offset) for p, e in entries.items()} == {
        p: (e.producer_epoch, e.last_sequence, e.current_txn_first_offset) for p, e in live.producers.items()
    }


def test_a_run_has_the_last_five_batches_of_each_producer():
    batches = [at(2 * n, idempotent(n % 2, n // 2 * 2, 2, timestamp=n)) for n in range(14)]
    row, runs = take_runs(table(*batches), 0, 2**62, LATEST)
    assert row == 14
    assert [run[:2] for run in runs] == [(0, 0), (1, 0)]
    assert runs[0][2] == [(n + 1, 2 * n + 1, 1, n) for n in range(4, 14, 2)]
    assert runs[0][3:] == (-1, -1)


@pytest.mark.parametrize(
    "special",
    [
        marker(1, commit=True),
        old_message(5),
        at(5, batch(), epoch=4),
        at(5, idempotent(1, 1, epoch=1)),
    ],
)
def test_a_run_ends_at_what_needs_more_than_its_header(special):
    batches = [idempotent(1, 0), at(5, bytearray(special), 4 if special[15] == 4 else 0), at(6, idempotent(1, 1))]
    if special[16] != 2:
        batches[1] = special
    rows = table(*batches)
    row, runs = take_runs(rows, 0, 2**62, 3)
    assert row == 1 and [run[0] for run in runs] == [1]
    assert take_runs(rows, 2, 2**62, 3)[0] == 3


def test_a_run_leaves_out_batches_without_a_producer_and_batches_after_its_end():
    rows = table(batch(), at(1, idempotent(1, 0, is_transactional=True)), at(2, idempotent(2, 0)))
    assert take_runs(rows, 0, 2, LATEST) == (3, [(1, 0, [(0, 1, 0, 1_700_000_000_000)], 1, len(batch()))])


def test_a_run_ends_where_there_are_too_many_producers():
    rows = table(*(at(n, idempotent(n, 0)) for n in range(100)))
    row, runs = take_runs(rows, 0, 2**62, LATEST)
    assert (row, len(runs)) == (64, 64)
    row, runs = take_runs(rows, row, 2**62, LATEST)
    assert (row, len(runs)) == (100, 36)


@pytest.mark.parametrize("start", [-1, 2])
def test_a_row_that_is_not_there_is_an_error(start):
    with pytest.raises(ValueError, match="no row"):
        take_runs(table(batch()), start, 0, 0)


@pytest.mark.parametrize("rows", range(3, 12))
def test_rows_that_an_earlier_table_left_in_the_same_memory_are_not_read(rows):
    """A table has room for as many batches as the size of the first ones lets it expect, here `rows` and one more; the
    C library gives it the memory of the table before it."""
    small = bytes(idempotent(1, 0))
    empty = len(idempotent(1, 0, size=0))
    large = bytes(at(1, idempotent(1, 1, size=(rows - 1) * len(small) - empty)))
    for _ in range(5):
        assert take_runs(table(*[small] * rows), 0, 2**62, LATEST)[0] == rows
        row, [(producer, _, batches, *_)] = take_runs(table(small, large), 0, 2**62, LATEST)
        assert (row, producer, len(batches)) == (2, 1, 2)
