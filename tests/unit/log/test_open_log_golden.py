"""Every partition directory that Kafka wrote opens, and reads as Kafka's own consumer read it."""

import os
import shutil

import pytest

from kcore.errors import CorruptFile, DirectoryInUse, ReadOnlyLog
from kcore.log.checkpoints import LeaderEpochCheckpointFile
from kcore.log.log_offset_metadata import AbortedTxn, FetchIsolation
from kcore.log.open_log import open_log
from kcore.log.producer_state_manager import decode_snapshot, encode_snapshot
from kcore.log.transaction_index import decode_entries, encode_entries
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.golden_data import consumed, data_dir, expected, expected_file, files, partition_dir, partitions


def as_expected(log, isolation="read_uncommitted"):
    return [
        consumed(record, record.timestamp_type, batch.leader_epoch)
        for batch in log.batches(isolation=isolation)
        if not batch.is_control
        for record in batch.records()
        if record.offset >= log.log_start_offset
    ]


def snapshot_of(directory):
    return {
        path: (os.stat(path).st_mtime_ns, os.stat(path).st_size)
        for folder, _, names in os.walk(directory)
        for path in [folder, *(os.path.join(folder, name) for name in names)]
    }


#: Kafka's consumer did not read its internal topics.
CONSUMED = [partition for partition in partitions() if expected()["partitions"][partition].get("consumer")]


@pytest.mark.parametrize("partition", CONSUMED)
def test_records_are_what_kafkas_consumer_read(partition):
    consumer = expected()["partitions"][partition]["consumer"]
    with open_log(partition_dir(partition)) as log:
        assert as_expected(log) == consumer["read_uncommitted"]["records"]
        assert [record.offset for record in log.records(isolation="read_committed")] == (
            consumer["read_committed"]["offsets"]
        )
        assert log.log_start_offset == consumer["read_uncommitted"]["beginning_offset"]
        assert log.log_end_offset == log.high_watermark == consumer["read_uncommitted"]["end_offset"]
        assert log.last_stable_offset == consumer["read_committed"]["end_offset"]


@pytest.mark.parametrize("partition", sorted(path.name for path in data_dir().iterdir() if path.is_dir()))
def test_reading_changes_nothing_on_disk(partition):
    directory = data_dir() / partition
    before = snapshot_of(directory)
    with open_log(directory) as log:
        assert sum(1 for _ in log.batches()) > 0 or log.size == 0
        with pytest.raises(ReadOnlyLog):
            log.append_as_leader(RecordBatchBuilder().build())
    assert snapshot_of(directory) == before


@pytest.mark.parametrize("partition", partitions())
def test_EPOCH_01_leader_epochs_are_kafkas(partition):
    text = expected()["partitions"][partition].get("leader_epoch_checkpoint")
    with open_log(partition_dir(partition)) as log:
        lines = text.split("\n")[2:] if isinstance(text, str) else [f"{a} {b}" for a, b in text or []]
        assert [f"{e.epoch} {e.start_offset}" for e in log.leader_epoch_cache.entries] == [s for s in lines if s]


@pytest.mark.parametrize(("partition", "file"), files(".snapshot"))
def test_LOG_14_producer_snapshots_decode_as_kafka_prints_them_and_encode_to_the_same_bytes(partition, file):
    path = partition_dir(partition) / file
    raw = path.read_bytes()
    entries = decode_snapshot(raw, str(path))
    assert encode_snapshot(entries) == raw
    wanted = expected_file(partition, file)["entries"]
    assert len(entries) == len(wanted)
    for entry, want in zip(entries, wanted, strict=True):
        assert entry.producer_id == want["producerId"]
        assert entry.producer_epoch == want["producerEpoch"]
        assert entry.coordinator_epoch == want["coordinatorEpoch"]
        assert entry.current_txn_first_offset == want["currentTxnFirstOffset"]
        assert entry.last_timestamp == want["lastTimestamp"]
        if "lastOffset" in want:
            (batch,) = entry.batches
            assert (batch.first_sequence, batch.last_sequence) == (want["firstSequence"], want["lastSequence"])
            assert (batch.last_offset, batch.offset_delta) == (want["lastOffset"], want["offsetDelta"])
        else:
            assert entry.batches == ()


@pytest.mark.parametrize(("partition", "file"), files(".snapshot"))
def test_each_flipped_byte_and_each_cut_of_a_snapshot_is_refused(partition, file):
    raw = (partition_dir(partition) / file).read_bytes()
    for position in range(len(raw)):
        damaged = bytearray(raw)
        damaged[position] ^= 0x40
        with pytest.raises(CorruptFile, match="x"):
            decode_snapshot(bytes(damaged), "x")
        with pytest.raises(CorruptFile, match="x"):
            decode_snapshot(raw[:position], "x")


@pytest.mark.parametrize(("partition", "file"), files(".txnindex"))
def test_IDX_16_transaction_indexes_are_kafkas(partition, file):
    raw = (partition_dir(partition) / file).read_bytes()
    entries = decode_entries(raw, file)
    assert encode_entries(entries) == raw
    assert entries == [
        AbortedTxn(e["producerId"], e["firstOffset"], e["lastOffset"], e["lastStableOffset"])
        for e in expected_file(partition, file)["entries"]
    ]


@pytest.fixture
def copy(tmp_path):
    target = tmp_path / "data"
    shutil.copytree(data_dir(), target)
    return target


def opened(directory):
    with open_log(directory) as log:
        return (
            as_expected(log),
            as_expected(log, "read_committed"),
            log.leader_epoch_cache.entries,
            log.log_start_offset,
        )


@pytest.mark.parametrize("partition", partitions())
def test_LOG_30_a_directory_without_checkpoints_and_indexes_reads_the_same(copy, partition):
    directory = copy / partition
    log_start = (
        expected()["partitions"][partition].get("consumer", {}).get("read_uncommitted", {}).get("beginning_offset", 0)
    )
    whole = opened(directory)
    alone = directory.rename(copy.parent / partition)
    for path in alone.iterdir():
        if path.suffix in {".index", ".timeindex", ".txnindex", ".snapshot"} or path.name == "leader-epoch-checkpoint":
            path.unlink()
    records, committed, _, _ = opened(alone)
    assert [r for r in records if r[0] >= log_start] == whole[0]
    assert [r for r in committed if r[0] >= log_start] == whole[1]


@pytest.mark.parametrize("partition", [p for p in partitions() if not p.startswith("__")])
def test_LOG_30_recovery_after_an_unclean_stop_rebuilds_what_kafka_had_written(copy, partition):
    directory = copy / partition
    whole = opened(directory)
    small = {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if path.suffix == ".txnindex" or path.name == "leader-epoch-checkpoint"
    }
    (copy / ".kafka_cleanshutdown").unlink()
    (copy / "recovery-point-offset-checkpoint").unlink()
    for path in directory.iterdir():
        if path.suffix in {".index", ".timeindex", ".txnindex", ".snapshot"}:
            path.unlink()
    with open_log(directory, "a") as log:
        assert log.recovery_point == 0
    assert opened(directory) == whole
    for name, content in small.items():
        assert (directory / name).read_bytes() == content, name
    # The last snapshot has the same producers as Kafka's.
    newest = (
        max(path.name for path in directory.iterdir() if path.suffix == ".snapshot") if small and whole[0] else None
    )
    source = partition_dir(partition)
    if newest is not None and (source / newest).exists():
        ours = decode_snapshot((directory / newest).read_bytes(), newest)
        theirs = decode_snapshot((source / newest).read_bytes(), newest)
        assert {e.producer_id: e for e in ours} == {
            e.producer_id: e for e in theirs if e.last_timestamp >= 0
        } or not ours


def test_a_directory_of_kafkas_can_be_appended_to_and_is_left_cleanly_stopped(copy):
    directory = copy / "g-epochs-0"
    before = opened(directory)[0]
    with open_log(directory, "a") as log:
        with pytest.raises(DirectoryInUse):
            open_log(copy / "g-none-0", "a")
        assert not (copy / ".kafka_cleanshutdown").exists()
        builder = RecordBatchBuilder(compression="lz4")
        builder.append(b"more", b"k", timestamp=1_700_000_099_000)
        info = log.append_as_leader(builder.build())
        # The log's own latest epoch, not an older one that would contradict the cache.
        assert (info.first_offset, info.last_leader_epoch) == (40, 2)
        assert log.high_watermark == 41
    assert (copy / ".kafka_cleanshutdown").exists()
    assert "g-epochs 0 41\n" in (copy / "recovery-point-offset-checkpoint").read_text()
    assert "g-none 0 96\n" in (copy / "recovery-point-offset-checkpoint").read_text()
    assert LeaderEpochCheckpointFile(str(directory / "leader-epoch-checkpoint")).read() == [(0, 0), (2, 20)]
    after = opened(directory)[0]
    assert after[:-1] == before
    assert after[-1] == [40, 1_700_000_099_000, "CreateTime", "6b", b"more".hex(), [], 2]


def test_an_open_transaction_ends_what_a_committed_reader_sees():
    with open_log(partition_dir("g-txn-open-0")) as log:
        assert log.last_stable_offset == 0
        assert list(log.records(isolation="read_committed")) == []
        info = log.read(0, 1 << 20, FetchIsolation.TXN_COMMITTED)
        assert info.records.size_in_bytes == 0 and info.aborted_transactions == []


def test_opening_what_is_no_log_names_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing-0"):
        open_log(tmp_path / "missing-0")
    (tmp_path / "empty-0").mkdir()
    with pytest.raises(FileNotFoundError, match="empty-0"):
        open_log(tmp_path / "empty-0")
    with pytest.raises(ValueError, match="mode"):
        open_log(tmp_path, "w")


def test_segments_that_kafkas_cleaner_has_emptied_are_no_error(caplog):
    """The topic's settings are not there, but the cleaner's checkpoint names the partition."""
    with open_log(partition_dir("g-compact-0")) as log:
        assert any(segment.size == 0 for segment in list(log.segments)[:-1])
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "the cleaner has cleaned it and may have emptied it" in record.message
