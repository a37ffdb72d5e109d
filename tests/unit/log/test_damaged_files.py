"""Every kind of file of a data directory, each byte flipped, cut at each length, or not a file at all.

Whatever is damaged, the manager starts and its directory stays online; no record is presented that was never written;
what only a batch can tell is lost no further than the damage, and what can be made anew is."""

import os
import random
import shutil
import tempfile

import pytest

from kcore.common import file
from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptMessage
from kcore.log.log_config import LogConfig
from kcore.log.log_manager import LogManager
from kcore.log.log_manager_config import LogManagerConfig
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation
from tests.reference.disk import recorded
from tests.unit.log.logs import batch, idempotent, marker, seen_by_a_committed_consumer

TP = TopicPartition("t", 0)
#: Without these the log is whole: they are made anew, or say less.
REBUILT = [
    "t-0/00000000000000000000.index",
    "t-0/00000000000000000000.timeindex",
    "t-0/00000000000000000000.txnindex",
    "t-0/00000000000000000006.index",
    "t-0/00000000000000000006.snapshot",
    "t-0/00000000000000000009.snapshot",
    "t-0/leader-epoch-checkpoint",
    "t-0/partition.metadata",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
]
DATA = ["t-0/00000000000000000000.log", "t-0/00000000000000000006.log"]


def manager_of(directory):
    time = MockTime()
    config = LogConfig(index_interval_bytes=0, segment_index_bytes=120, retention_ms=-1)
    return LogManager([directory], config, LogManagerConfig(1), time=time, scheduler=MockScheduler(time))


def base_offsets_in(data):
    """Positions of the bytes that nothing vouches for: a batch's CRC covers neither its base offset nor its epoch."""
    positions, at = set(), 0
    while at + 12 <= len(data):
        positions.update(range(at, at + 8))
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return positions


def contents(log):
    """What readers get of records, epochs and aborted transactions, up to the first damage; and that."""
    records = []
    try:
        for b in log.batches():
            records.extend((r.offset, r.key, r.value, r.timestamp, b.leader_epoch) for r in b.records())
    except CorruptMessage as error:
        return records, error
    return records, None


@pytest.fixture(scope="module")
def written():
    """(a directory in memory with a log of two segments, its records, its aborted transactions)."""
    root = tempfile.mkdtemp(prefix="kcore-damage-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    try:
        directory = os.path.join(root, "sound")
        with recorded():
            manager = manager_of(directory)
            manager.startup()
            log = manager.get_or_create_log(TP)
            log.append_as_leader(batch(2), 0)
            log.append_as_leader(idempotent(5, 0, 2, is_transactional=True), 1)
            log.append_as_leader(marker(5, commit=False), 1, AppendOrigin.COORDINATOR)
            log.append_as_leader(batch(1), 1)
            log.roll()
            log.append_as_leader(idempotent(6, 0, 2), 2)
            log.append_as_leader(batch(1), 2)
            log.update_high_watermark(9)
            log.flush()
            manager.checkpoint_recovery_offsets()
            manager.checkpoint_high_watermarks({TP: 9})
            records, damage = contents(log)
            assert damage is None and len(records) == 9
            shutil.copytree(directory, os.path.join(root, "unclean"))
            manager.shutdown()
        for home in (directory, os.path.join(root, "unclean")):
            with open(os.path.join(home, "cleaner-offset-checkpoint"), "w") as out:
                out.write("0\n1\nt 0 4\n")
            with open(os.path.join(home, "t-0", "partition.metadata"), "w") as out:
                out.write("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
        yield root, records
    finally:
        shutil.rmtree(root)


def damages(data, rng, every=1):
    """(what was done, the bytes)."""
    for n in range(0, len(data), every):
        flipped = data[n] ^ rng.choice([0x01, 0x10, 0x80, 0xFF])
        yield f"byte {n} is {flipped:#x}", data[:n] + bytes([flipped]) + data[n + 1 :]
    for size in range(0, len(data), every):
        yield f"cut to {size} bytes", data[:size]


def opened(root, kind, name, data, look, done=""):
    """Put data in the place of a file, or call it to make something there; start a manager and look at it."""
    home = os.path.join(root, "damaged")
    shutil.copytree(os.path.join(root, kind), home)
    path = os.path.join(home, name)
    try:
        if callable(data):
            if os.path.exists(path):
                os.unlink(path)
            data(path)
        else:
            with open(path, "wb") as out:
                out.write(data)
        with recorded():
            manager = manager_of(home)
            manager.startup()
            try:
                assert not manager.offline_log_dirs
                look(manager, done)
            finally:
                manager.shutdown()
    finally:
        shutil.rmtree(home)


def read_sound(root, kind, name):
    try:
        with open(os.path.join(root, kind, name), "rb") as sound:
            return sound.read()
    except FileNotFoundError:
        return b""


@pytest.mark.parametrize("kind", ["sound", "unclean"])
@pytest.mark.parametrize("name", REBUILT)
def test_damage_beside_the_batches_costs_no_record(written, name, kind):
    root, records = written
    data = read_sound(root, kind, name)
    rng = random.Random(name + kind)

    def look(manager, done):
        log = manager.get_log(TP)
        assert log is not None, manager._not_loaded
        assert contents(log) == (records, None), done
        log.update_high_watermark(9)  # as its leader does
        seen = []
        for start in (0, 6):
            fetched = log.read(start, 10_000, FetchIsolation.TXN_COMMITTED)
            seen += seen_by_a_committed_consumer(fetched.records.read(), fetched.aborted_transactions or [])
        # The marker has offset 4; what was aborted, 2 and 3, is not seen.
        assert seen == [0, 1, 5, 6, 7, 8], done
        assert log.append_as_leader(batch(), 3).first_offset == 9

    every = max(1, len(data) // 40)
    for done, damaged in damages(data, rng, every):
        opened(root, kind, name, damaged, look, done)
    if not name.endswith((".index", ".timeindex")):  # those are refused by name, like a .log
        opened(root, kind, name, os.mkfifo, look, "a FIFO")
        opened(root, kind, name, os.mkdir, look, "a directory")


@pytest.mark.parametrize("kind", ["sound", "unclean"])
@pytest.mark.parametrize("name", DATA)
def test_damage_in_the_batches_shows_no_record_that_was_not_written(written, name, kind, caplog):
    root, records = written
    rng = random.Random(name + kind)
    rows = {record[:-1] for record in records}

    def look(manager, done):
        log = manager.get_log(TP)
        if log is None:
            assert TP in manager._not_loaded, done  # it is listed, and no empty log takes its place
            return
        records_read, damage = contents(log)
        assert [r[0] for r in records_read] == sorted({r[0] for r in records_read}), done
        if any(done.startswith(f"byte {position} ") for position in unproven):
            assert {record[1:-1] for record in records_read} <= {record[1:] for record in rows}, done
            return
        # The leader epoch is not under the CRC either.
        assert {record[:-1] for record in records_read} <= rows, done
        if damage is None and [record[:-1] for record in records_read] != [
            record[:-1] for record in records[: len(records_read)]
        ]:
            # Not a prefix: a whole number of batches is gone from a segment that others follow.
            assert "is empty, and others follow it" in caplog.text or "the last entry has offset" in caplog.text, done
        caplog.clear()

    data = read_sound(root, kind, name)
    unproven = base_offsets_in(data)
    for done, damaged in damages(data, rng, 3):
        opened(root, kind, name, damaged, look, done)


@pytest.mark.parametrize("name", ["log-start-offset-checkpoint", ".kafka_cleanshutdown", ".lock"])
@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"0\n1\nt 0 700\n", b"0\n1\nt 0 7", os.mkfifo, os.mkdir], ids=str)
def test_damage_in_the_files_of_the_directory_costs_no_record(written, name, data):
    root, records = written
    if name == ".lock" and data in (os.mkfifo, os.mkdir):
        return  # a foreign lock file looks like a lock: the directory is not taken

    def look(manager, done):
        assert contents(manager.get_log(TP)) == (records, None)

    opened(root, "sound", name, data, look)


@pytest.mark.parametrize("suffix", [".cleaned", ".swap", ".deleted", ".tmp"])
@pytest.mark.parametrize("kind", [".log", ".index", ".timeindex", ".txnindex", ".snapshot"])
def test_garbage_that_looks_like_a_leftover_costs_no_record(written, kind, suffix):
    root, records = written

    def look(manager, done):
        log = manager.get_log(TP)
        if log is None:
            assert TP in manager._not_loaded
            return
        records_read, _ = contents(log)
        assert set(records_read) <= set(records)
        assert suffix == ".swap" or records_read == records

    for base in (0, 6, 20):
        for data in (b"", b"\xff" * 70, b"\0" * 70):
            opened(root, "sound", f"t-0/{base:020d}{kind}{suffix}", data, look)


@pytest.fixture(autouse=True)
def nothing_recorded():
    yield
    file.clear_faults()


def test_leader_epochs_are_rebuilt_whole_when_an_index_in_the_middle_is_missing_too(written):
    root, _ = written

    def remove_index(path):
        os.unlink(os.path.join(os.path.dirname(path), "00000000000000000006.index"))
        with open(path, "w") as out:
            out.write("junk")

    def look(manager, done):
        entries = manager.get_log(TP).leader_epoch_cache.entries
        assert [tuple(entry) for entry in entries] == [(0, 0), (1, 2), (2, 6)]

    opened(root, "sound", "t-0/leader-epoch-checkpoint", remove_index, look)
