"""A follower's append of many batches: the log, the epochs and the producers are those of one batch after the other."""

import errno
import random
import struct
from itertools import pairwise

import pytest

from kcore.common import file
from kcore.errors import InvalidRecord, KafkaError, KafkaStorageError
from kcore.log import unified_log
from kcore.log.leader_epoch_file_cache import LeaderEpochFileCache
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation, LogOffsetMetadata
from kcore.log.producer_state_manager import ProducerStateManager
from kcore.record.crc32c import crc32c
from kcore.record.memory_records import MemoryRecords
from tests.unit.log.logs import Logs, batch, idempotent, marker

NOW = 1_700_000_000_000


def at(offset, data, leader_epoch=0):
    data[0:8] = struct.pack(">q", offset)
    data[12:16] = struct.pack(">i", leader_epoch)
    return bytes(data)


class OneByOne:
    """Kafka's rules, batch by batch: what a follower's append leaves, or the exception that it raises."""

    def __init__(self, directory, high_watermark_follows):
        self.data = b""
        self.end = 0
        self.follows = high_watermark_follows
        self.epochs = LeaderEpochFileCache("model", None, [])
        self.state = ProducerStateManager("orders-0", str(directory), writable=False)

    def append(self, chunk):
        """Whether anything was appended."""
        records = MemoryRecords(chunk, source="orders-0")
        batches = list(records.batches)
        offsets = [(one.base_offset, one.last_offset) for one in batches]
        for (_, last), (base, _) in pairwise(offsets):
            if base <= last:
                raise Refused("OffsetsOutOfOrder")
        if batches and batches[0].base_offset < self.end:
            raise Refused("UnexpectedAppendOffset")
        infos, completed = {}, []
        for one in batches:
            if one.producer_id >= 0:
                if one.producer_id not in infos:
                    infos[one.producer_id] = self.state.prepare(one.producer_id, AppendOrigin.REPLICATION)
                place = LogOffsetMetadata(one.base_offset, 0, len(self.data) + one.position)
                txn = infos[one.producer_id].append(one, place)
                completed += [txn] if txn is not None else []
        for one in batches:
            if one.leader_epoch != self.epochs.latest_epoch:
                self.epochs.assign(one.leader_epoch, one.base_offset)
        for info in infos.values():
            self.state.update(info)
        for txn in completed:
            self.state.complete_txn(txn)
        if batches:
            self.data += bytes(records.buffer)
            self.end = batches[-1].last_offset + 1
            if self.follows:
                self.state.on_high_watermark_updated(self.end)
        return bool(batches)


class Refused(Exception):
    pass


class Leader:
    """Makes chunks: producers that go on, repeat, skip sequences, get new epochs and end transactions."""

    def __init__(self, rng, producers):
        self.rng = rng
        self.producers = {producer: [0, rng.choice([0, 2**31 - 4])] for producer in producers}
        self.epoch = 0
        self.calm = 0.0

    def one(self, offset):
        rng = self.rng
        producer = rng.choice(list(self.producers))
        epoch, sequence = self.producers[producer]
        what = rng.random() * (1 - self.calm) + self.calm
        time = NOW + rng.randrange(1000)
        if what < 0.03:
            self.epoch += rng.choice([1, 1, 3])
        if what < 0.08:
            return at(offset, batch(rng.randint(1, 3), timestamp=time), self.epoch)
        if what < 0.16:
            epoch = self.producers[producer][0] = epoch + rng.choice([0, 0, 1])
            end = marker(
                producer, commit=rng.random() < 0.5, epoch=epoch, coordinator_epoch=rng.randrange(3), timestamp=time
            )
            return at(offset, end, self.epoch)
        if what < 0.20:
            epoch = self.producers[producer][0] = max(0, epoch + rng.choice([1, 1, -1]))
            sequence = 0
        if what < 0.24:
            sequence = rng.randrange(2**31)  # a gap, or a batch that came before
        count = rng.randint(1, 3)
        self.producers[producer][1] = (sequence + count) % 2**31
        is_transactional = producer % 2 == 0 if what > 0.28 else rng.random() < 0.5
        options = {"epoch": epoch, "is_transactional": is_transactional, "timestamp": time}
        return at(offset, idempotent(producer, sequence, count, **options), self.epoch)

    def chunk(self, offset):
        rng = self.rng
        # Every second chunk holds nothing but data of the producers' present epochs, every fourth no markers.
        self.calm = rng.choice([0.0, 0.17, 0.29, 0.29])
        batches = []
        for _ in range(rng.choice([1, 2, 5, 64, 150])):
            offset += rng.choice([0, 0, 0, 2])
            batches.append(self.one(offset))
            offset = MemoryRecords(batches[-1]).last_offset + 1
        data = b"".join(batches)
        damage = rng.random()
        if damage < 0.1:
            data += self.one(offset)[: rng.randrange(70)]
        elif damage < 0.2 and len(batches) > 1:
            n = rng.randrange(1, len(batches))
            batches[n] = at(MemoryRecords(batches[n - 1]).last_offset - rng.randrange(2), bytearray(batches[n]))
            data = b"".join(batches)
        elif damage < 0.27:
            n = rng.randrange(len(batches))
            broken = bytearray(batches[n])
            # A length, or a byte that the CRC covers; offset and leader epoch have no check.
            broken[rng.choice([*range(8, 12), *range(16, len(broken))])] ^= 1 << rng.randrange(8)
            data = b"".join([*batches[:n], broken, *batches[n + 1 :]])
        elif damage < 0.3:
            broken = bytearray(marker(4, commit=True))
            broken[70:72] = b"\xff\xff"
            broken[17:21] = struct.pack(">I", crc32c(broken[21:]))
            data += at(offset, broken)
        return bytes(data)


def state_of(log):
    return (
        log.log_end_offset,
        log.size,
        list(log.leader_epoch_cache.entries),
        dict(log.producer_state_manager.producers),
        list(log.producer_state_manager._ongoing),
        log.last_stable_offset,
    )


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("sole_replica", [True, False])
def test_LOG_07_LOG_14_a_chunk_leaves_what_its_batches_one_by_one_leave(tmp_path, seed, sole_replica):
    rng = random.Random(seed)
    logs = Logs(tmp_path / "orders-0", index_interval_bytes=rng.choice([0, 300, 4096]))
    log = logs.open(sole_replica=sole_replica)
    model = OneByOne(tmp_path, sole_replica)
    leader = Leader(rng, range(rng.choice([2, 6, 90])))
    appended = refused = 0
    for _ in range(60):
        chunk = leader.chunk(max(0, log.log_end_offset - (rng.random() < 0.05)))
        before = state_of(log)
        try:
            expected = model.append(chunk)
        except (Refused, KafkaError) as error:
            refused += 1
            with pytest.raises(KafkaError) as caught:
                log.append_as_follower(chunk)
            if isinstance(error, KafkaError):
                assert (type(caught.value), str(caught.value)) == (type(error), str(error))
            else:
                assert type(caught.value).__name__ == str(error)
            assert state_of(log) == before
        else:
            appended += expected
            info = log.append_as_follower(chunk)
            batches = list(MemoryRecords(chunk).batches)
            assert info.batch_count == len(batches) and info.valid_bytes == sum(one.size for one in batches)
        assert log.producer_state_manager.producers == model.state.producers, f"seed={seed}"
        assert list(log.producer_state_manager._ongoing) == list(model.state._ongoing)
        assert log.producer_state_manager.first_unstable_offset == model.state.first_unstable_offset
        assert log.leader_epoch_cache.entries == model.epochs.entries
        assert log.log_end_offset == model.end
    assert appended > 30 and refused > 3
    assert (logs.directory / f"{0:020d}.log").read_bytes() == model.data
    # Indexes, transaction index and snapshot too are those of the same batches in appends of their own.
    others = Logs(tmp_path / "orders-1", index_interval_bytes=log.config.index_interval_bytes)
    other = others.open(sole_replica=sole_replica)
    for one in MemoryRecords(model.data).batches:
        other.append_as_follower(model.data[one.position : one.position + one.size])
    log.close()
    other.close()
    names = sorted(path.name for path in logs.directory.iterdir())
    assert names == sorted(path.name for path in others.directory.iterdir())
    for name in names:
        assert (logs.directory / name).read_bytes() == (others.directory / name).read_bytes(), name


def chunk_of(producers, count, offset=0, sequence=0, **options):
    return b"".join(
        at(offset + n, idempotent(n % producers, sequence + n // producers, **options)) for n in range(count)
    )


@pytest.fixture
def calls(monkeypatch):
    """How often an append had to look at its producers outside the native code."""
    made = []
    analyze = unified_log.UnifiedLog._analyze_producers

    def counted(self, *args):
        made.append(args)
        return analyze(self, *args)

    monkeypatch.setattr(unified_log.UnifiedLog, "_analyze_producers", counted)
    return made


@pytest.mark.parametrize("is_transactional", [False, True])
def test_batches_of_producers_with_state_are_taken_natively_and_with_one_write(log, calls, is_transactional):
    log.append_as_follower(chunk_of(5, 5, is_transactional=is_transactional))
    assert len(calls) == 1  # the producers were new
    file.count_calls()
    try:
        log.append_as_follower(chunk_of(5, 1000, 5, 1, is_transactional=is_transactional))
        assert file.calls("pwrite") == 1
    finally:
        file.clear_faults()
    assert len(calls) == 1
    assert log.last_stable_offset == (0 if is_transactional else 1005)


def test_more_producers_than_are_kept_track_of_at_once_and_new_epochs_go_the_other_way(log, calls):
    log.append_as_follower(chunk_of(65, 65))
    log.append_as_follower(chunk_of(65, 130, 65, 1))
    log.append_as_follower(chunk_of(1, 3, 195, 3, epoch=1))
    assert len(calls) == 3
    entry = log.producer_state_manager.producers[0]
    assert (entry.producer_epoch, [one.last_offset for one in entry.batches]) == (1, [195, 196, 197])


def test_records_of_a_slice_of_another_file_start_their_transactions_where_they_are_written(tmp_path):
    """The positions in such a table count from the file they were read from."""
    source, log = Logs(tmp_path / "a-0").open(), Logs(tmp_path / "orders-0").open()
    source.append_as_follower(at(0, batch(10)) + chunk_of(1, 3, 10, is_transactional=True))
    records = source.active_segment.slice(len(batch(10)), 1 << 20).memory_records()
    assert records.batches[0].position > 0
    log.append_as_follower(at(0, batch()))
    log.append_as_follower(records)
    assert log.last_stable_offset_metadata == (10, 0, len(batch()))
    assert log.read(0, 1 << 20, FetchIsolation.TXN_COMMITTED).records.size_in_bytes == len(batch())


@pytest.mark.parametrize("count", [1, 200])
def test_LOG_29_a_full_disk_leaves_neither_bytes_nor_producers_of_a_chunk(logs, log, count):
    log.append_as_follower(chunk_of(3, 3))
    before = state_of(log)
    file.fail_next("pwrite", errno.ENOSPC, after_bytes=1000 if count > 1 else 0)
    try:
        with pytest.raises(KafkaStorageError):
            log.append_as_follower(chunk_of(3, count, 3, 1))
    finally:
        file.clear_faults()
    assert state_of(log) == before
    assert (logs.directory / f"{0:020d}.log").stat().st_size == log.size
    log.append_as_follower(chunk_of(3, count, 3, 1))
    assert log.log_end_offset == 3 + count


@pytest.mark.parametrize("taken", [0, 1, 2, 40])
def test_a_chunk_ends_before_the_first_batch_of_a_later_leader_epoch(tmp_path, taken):
    """As if it had been sent without the rest: also the producers' states, and offsets that do not ascend after it."""
    chunk = [at(offset, idempotent(7, offset, 1), 3) for offset in range(taken)]
    rest = at(taken, idempotent(7, taken, 1), 4) + at(0, idempotent(7, 0, 1), 3)
    with Logs(tmp_path / "orders-0").open() as log, Logs(tmp_path / "orders-1").open() as other:
        if taken:
            info, expected = (
                log.append_as_follower(b"".join(chunk) + rest, 3),
                other.append_as_follower(b"".join(chunk)),
            )
            assert (info.first_offset, info.last_offset, info.valid_bytes, info.record_count) == (
                expected.first_offset,
                expected.last_offset,
                expected.valid_bytes,
                expected.record_count,
            )
        else:
            with pytest.raises(InvalidRecord, match="at offset 0 has leader epoch 4"):
                log.append_as_follower(rest, 3)
        assert log.log_end_offset == other.log_end_offset == taken and log.last_epoch == other.last_epoch
        assert log.producer_state_manager.producers.keys() == other.producer_state_manager.producers.keys()
        log.append_as_follower(at(taken, idempotent(7, taken, 1), 4), 4)
        assert (log.log_end_offset, log.last_epoch) == (taken + 1, 4)


def test_a_later_leader_epoch_in_a_slice_of_another_file(tmp_path):
    source, log = Logs(tmp_path / "a-0").open(), Logs(tmp_path / "orders-0").open()
    for offset, epoch in enumerate([1, 2, 2, 5]):
        source.append_as_follower(at(offset, batch(1), epoch))
    records = source.active_segment.slice(len(batch(1)), 1 << 20).memory_records()
    assert records.batches[0].position > 0
    assert log.append_as_follower(records, 4).last_offset == 2
    assert log.log_end_offset == 3 and log.size == 2 * len(batch(1))
