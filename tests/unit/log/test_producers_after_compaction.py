"""Compaction removes records, never the state of the log's producers, nor the outcome of a transaction."""

import random

import pytest

from kcore.log.log_cleaner import Cleaner
from kcore.log.log_cleaner_manager import find_log_to_clean
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.log.offset_map import OffsetMap
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.unit.log.logs import Logs, marker

NOW = 1_700_000_000_000
PRODUCERS = range(5)  # 0 and 1 are idempotent, the others transactional


def producer_states(log):
    return {
        producer: (entry.producer_epoch, entry.last_sequence, entry.current_txn_first_offset)
        for producer, entry in log.producer_state_manager.producers.items()
    }


def latest(log):
    """The last committed value of each key, as a consumer that reads everything ends up with."""
    values = {record.key: record.value for record in log.records(isolation="read_committed")}
    return {key: value for key, value in values.items() if value is not None}


@pytest.mark.parametrize("seed", range(10))
def test_producers_and_committed_values_are_the_same_after_cleanings_and_restarts(tmp_path, seed):
    rng = random.Random(seed)
    logs = Logs(
        tmp_path / "orders-0",
        cleanup_policy=("compact",),
        segment_bytes=2000,
        delete_retention_ms=rng.choice([0, 10**9]),
        index_interval_bytes=200,
    )
    log = logs.open()
    first_dirty = 0
    value = 0
    for _ in range(8):
        for _ in range(40):
            producer = rng.choice(PRODUCERS)
            entry = log.producer_state_manager.producers.get(producer)
            epoch, sequence = (entry.producer_epoch, entry.last_sequence + 1) if entry is not None else (0, 0)
            if producer >= 2 and rng.random() < 0.3:
                end = marker(producer, commit=rng.random() < 0.5, epoch=epoch + (rng.random() < 0.2), timestamp=NOW)
                log.append_as_leader(end, origin=AppendOrigin.COORDINATOR)
                continue
            made = RecordBatchBuilder(
                producer_id=producer,
                producer_epoch=epoch,
                base_sequence=sequence,
                is_transactional=producer >= 2,
                compression=rng.choice(["none", "lz4"]),
            )
            for _ in range(rng.randint(1, 3)):
                value += 1
                tombstone = rng.random() < 0.1
                made.append(None if tombstone else b"%d" % value, b"k%d" % rng.randrange(8), timestamp=NOW)
            log.append_as_leader(made.build())
        for producer in PRODUCERS:
            entry = log.producer_state_manager.producers.get(producer)
            if entry is not None and entry.current_txn_first_offset is not None and rng.random() < 0.8:
                end = marker(producer, commit=rng.random() < 0.5, epoch=entry.producer_epoch, timestamp=NOW)
                log.append_as_leader(end, origin=AppendOrigin.COORDINATOR)
        log.roll()
        before = producer_states(log), latest(log), log.last_stable_offset
        cleanable, _ = find_log_to_clean(log, first_dirty, logs.time.milliseconds())
        first_dirty, _ = Cleaner(OffsetMap(48 * 1000, 0.9), time=logs.time).clean(cleanable)
        assert (producer_states(log), latest(log), log.last_stable_offset) == before, f"seed={seed}"
        logs.time.sleep(60_000)
        logs.scheduler.tick()
        # No snapshot and no index of transactions: all of it from the batches that compaction left.
        if rng.random() < 0.5:
            for suffix in ("*.snapshot", "*.txnindex"):
                for path in logs.directory.glob(suffix):
                    path.unlink()
            log = logs.open(clean=False)
        else:
            log.close()
            log = logs.open()
        assert (producer_states(log), latest(log), log.last_stable_offset) == before, f"seed={seed}"
