"""kcore verify: Kafka's directories have no damage, and a changed byte is reported with its position."""

import dataclasses
import io
import os
import random
import shutil
import struct
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kcore.common.progress import Progress, Stopped
from kcore.common.text import date_of
from kcore.common.topic_partition import TopicPartition
from kcore.inspect import parallel, verifier
from kcore.inspect.partition_checks import read_index
from kcore.inspect.segment_scan import scan_segment
from kcore.log.checkpoints import OffsetCheckpointFile
from kcore.log.log_config import LogConfig
from kcore.log.log_manager import LogManager
from kcore.log.log_offset_metadata import AbortedTxn, AppendOrigin
from kcore.log.lost_records import write_mark
from kcore.log.open_log import open_log
from kcore.log.producer_state_entry import ProducerStateEntry
from kcore.log.producer_state_manager import decode_snapshot, encode_snapshot
from kcore.log.transaction_index import decode_entries, encode_entries
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.server.broker import Broker
from kcore.tools import verify as verify_module
from kcore.tools.main import main
from tests import golden_data
from tests.batches import TIMESTAMP
from tests.batches import batch as batch_of_values
from tests.reference import record_batch as model
from tests.unit.log.logs import batch as record_batch
from tests.unit.log.logs import idempotent
from tests.unit.log.logs import marker as end_marker
from tests.unit.tools.command import LOG, flip, run_json


def verify(capsys, *arguments) -> tuple[int, list[dict], dict]:
    """Exit status, damage and warnings, and the summary; without the gaps that compaction left."""
    status, (*problems, summary) = run_json(capsys, "verify", *arguments)
    problems = [problem for problem in problems if problem["type"] != "gap"]
    assert summary.pop("type") == "summary"
    return status, problems, summary


@pytest.fixture
def data(tmp_path) -> Path:
    """A copy of Kafka's data directory, to be changed."""
    return Path(shutil.copytree(golden_data.data_dir(), tmp_path / "data"))


def test_kafkas_own_directory_has_no_damage_and_no_warning(capsys):
    status, problems, summary = verify(capsys, golden_data.data_dir())
    assert (status, problems) == (0, [])
    described = [entry["files"] for entry in golden_data.expected()["partitions"].values()]
    batches = [batch for files in described for file in files.values() for batch in file.get("batches", [])]
    # The metadata log is in the directory, but not among what is described.
    directory = golden_data.data_dir() / "__cluster_metadata-0"
    raft = model.decode_batches((directory / LOG).read_bytes()) + model.decode_batches(
        (golden_data.data_dir() / "bootstrap.checkpoint").read_bytes()
    )
    assert summary["batches"] == len(batches) + len(raft)
    assert summary["records"] == sum(batch["count"] for batch in batches) + sum(batch.count for batch in raft)
    assert summary["bytes"] > sum(file["size"] for files in described for file in files.values())


@pytest.mark.parametrize("partition", golden_data.partitions())
def test_a_partition_directory_by_itself_has_no_damage(partition, tmp_path, capsys):
    alone = shutil.copytree(golden_data.partition_dir(partition), tmp_path / partition)
    status, problems, _ = verify(capsys, alone)
    assert (status, problems) == (0, [])


@pytest.mark.parametrize(("partition", "file"), golden_data.files(".log")[::7] + golden_data.files("index")[::7])
def test_a_single_file_has_no_damage(partition, file, capsys):
    path = golden_data.partition_dir(partition) / file
    status, problems, summary = verify(capsys, path)
    assert (status, problems) == (0, [])
    assert summary["bytes"] >= path.stat().st_size


#: Of the bytes outside the headers of the first and the last batch one in so many; CI takes more than a plain run.
STEP = 2 if "KCORE_LONG" in os.environ else 5


@pytest.mark.parametrize(("partition", "file", "step"), [("g-txn-0", LOG, STEP), ("g-lz4-0", LOG, 23)])
def test_every_flipped_byte_of_a_segment_is_found_and_its_batch_named(partition, file, step, data, capsys):
    log = data / partition / file
    original = log.read_bytes()
    batches = model.decode_batches(original)
    headers = {b.position + n for b in (batches[0], batches[-1]) for n in range(model.HEADER_SIZE)}
    for position in sorted(headers | {*range(0, len(original), step)}):
        for mask in (0x01, 0x80, 0xFF) if position in headers else (0x10,):
            log.write_bytes(original)
            flip(log, position, mask)
            status, problems, _ = verify(capsys, data / partition)
            assert status == 1, f"byte {position}"
            # A wrong offset is reported at this batch or at the next one; a checkpoint may contradict the log end.
            hit = max(b.position for b in batches if b.position <= position)
            named = [p["position"] for p in problems if p["type"] == "damage" and p["file"] == str(log)]
            assert named, f"byte {position}: {problems}"
            next_batch = [b.position for b in batches if b.position > hit][:1]
            assert set(named) & {hit, *next_batch, None}, f"byte {position} of the batch at {hit}: {named}"
            if position - hit not in range(8):
                assert hit in named, f"byte {position} of the batch at {hit}: {named}"


def test_the_changes_that_no_check_finds_are_those_in_the_documentation(tmp_path, capsys):
    """A lone segment: no checkpoint, no next segment, no index.  Then nothing shows a leader epoch that does not fall,
    nor in a compacted log the last batch's base offset if it grows."""
    batches = [model.encode_batch(model.make_batch([model.Record(n, 1, b"k", b"v")], leader_epoch=3)) for n in range(3)]
    original = b"".join(batches)
    log = tmp_path / LOG
    unseen = {"plain": set(), "compacted": set()}
    for position in range(len(original)):
        log.write_bytes(original)
        flip(log, position, 0x04)
        for kind, options in (("plain", ()), ("compacted", ("--compacted",))):
            if verify(capsys, log, *options)[0] == 0:
                unseen[kind].add(position)
    size = len(batches[0])
    last = 2 * size
    base_offset = {last + n for n in range(4, 8)}  # higher bytes leave the range of one segment
    # Epoch 3 with bit 2 set is 7: seen at the batch after it, so unseen in the last batch only.
    leader_epoch = {last + n for n in range(12, 16)}
    assert unseen == {"plain": leader_epoch, "compacted": base_offset | leader_epoch}


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_IDX_17_every_flipped_byte_of_an_index_is_found(suffix, data, capsys):
    """But for an offset that is still in the batch it points at, which leads lookups to the same place."""
    index = data / "g-segments-0" / f"{30:020}{suffix}"
    original = index.read_bytes()
    assert original
    unseen = 0
    for position in range(len(original)):
        for mask in (0x01, 0x80, 0xFF):
            index.write_bytes(original)
            flip(index, position, mask)
            status, problems, _ = verify(capsys, data / "g-segments-0")
            if status == 0:
                unseen += 1
                is_offset = position % 8 == 3 if suffix == ".index" else position % 12 == 11
                assert is_offset, f"byte {position}"
                assert mask == 0x01, f"byte {position}"
            else:
                assert {problem["file"] for problem in problems} == {str(index)}, f"byte {position}"
    assert unseen < len(original) // 4


@pytest.fixture
def indexed(tmp_path) -> Path:
    """A closed log of one segment with an index entry for nearly every batch."""
    (tmp_path / "data").mkdir()
    with open_log(tmp_path / "data" / "t-0", "a", config=LogConfig(index_interval_bytes=100)) as log:
        for n in range(12):
            log.append_as_leader(batch(n, "none"))
    return tmp_path / "data" / "t-0" / LOG


def broken(log: Path, how: str, victim: model.Batch) -> None:
    content = bytearray(log.read_bytes())
    if how == "crc":
        content[victim.position + victim.size - 1] ^= 1
    elif how == "zeros":
        content[victim.position : victim.position + victim.size] = bytes(victim.size)
    else:
        del content[victim.position + 30 :]
    log.write_bytes(content)


@pytest.mark.parametrize("how", ["crc", "zeros", "cut"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_IDX_17_an_index_of_a_damaged_log_is_blamed_for_nothing_but_its_own_faults(suffix, how, indexed, capsys):
    original = indexed.read_bytes()
    index = indexed.with_suffix(suffix)
    entries = index.read_bytes()
    slot = 8 if suffix == ".index" else 12
    for victim in model.decode_batches(original)[::3]:
        indexed.write_bytes(original)
        broken(indexed, how, victim)
        _, problems, _ = verify(capsys, indexed.parent)
        assert str(index) not in {problem["file"] for problem in problems}, (victim.base_offset, problems)
        # Entries of batches before it are checked to the last bit that matters; those after it if only it is bad.
        for at in range(0, len(entries), slot):
            offset = int.from_bytes(entries[at + slot - (8 if slot == 8 else 4) :][:4], "big")
            if how != "crc" and offset >= victim.base_offset:
                continue
            for byte, mask in ((at, 0x40), (at + 3, 0x80), (at + slot - 1, 0x80), (at + slot - 2, 0x01)):
                index.write_bytes(entries)
                flip(index, byte, mask)
                status, problems, _ = verify(capsys, indexed.parent)
                files = {problem["file"] for problem in problems if problem["type"] == "damage"}
                hidden = victim.base_offset <= offset <= victim.last_offset
                assert status == 1 and (str(index) in files or hidden), (victim.base_offset, offset, byte - at)
        index.write_bytes(entries)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("how", ["crc", "zeros", "cut"])
def test_an_index_that_is_verified_alone_is_not_called_sound_beside_a_damaged_log(suffix, how, indexed, capsys):
    index = indexed.with_suffix(suffix)
    assert verify(capsys, index)[:2] == (0, [])
    broken(indexed, how, model.decode_batches(indexed.read_bytes())[5])
    status, problems, summary = verify(capsys, index)
    assert (status, {problem["file"] for problem in problems}) == (1, {str(indexed)})
    assert summary["damaged"] > 0 and summary["files"] == 1


def test_index_entries_that_kafka_2_4_to_3_8_made_for_appends_of_many_batches_are_no_damage(tmp_path, capsys):
    config = dataclasses.replace(LogConfig(), per_append_index=True, index_interval_bytes=100)
    (tmp_path / "data").mkdir()
    with open_log(tmp_path / "data" / "t-0", "a", config=config) as log:
        for first in range(0, 90, 9):
            parts = []
            for base_offset in range(first, first + 9, 3):
                builder = RecordBatchBuilder(base_offset=base_offset, leader_epoch=0)
                for _ in range(3):
                    builder.append(b"x" * 40)
                parts.append(builder.build())
            log.append_as_follower(b"".join(parts))
    index = tmp_path / "data" / "t-0" / f"{0:020}.index"
    assert len(index.read_bytes()) == 9 * 8
    assert verify(capsys, tmp_path / "data")[:2] == (0, [])
    # But an entry that leads past its offset is.
    entries = bytearray(index.read_bytes())
    entries[0:4] = (5).to_bytes(4, "big")
    index.write_bytes(entries)
    assert verify(capsys, tmp_path / "data")[0] == 1


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_IDX_12_an_index_of_odd_length_is_damage(suffix, data, capsys):
    index = data / "g-none-0" / f"{0:020}{suffix}"
    index.write_bytes(index.read_bytes()[:-3])
    status, problems, _ = verify(capsys, data / "g-none-0")
    assert status == 1
    assert [problem["file"] for problem in problems] == [str(index)]


@pytest.mark.parametrize("entries_left", [0, -1], ids=["none", "all but the last"])
def test_a_closed_segments_time_index_without_its_final_entry_is_a_warning(entries_left, data, capsys):
    index = data / "g-segments-0" / f"{30:020}.timeindex"
    entries = index.read_bytes()
    index.write_bytes(entries[:entries_left] if not entries_left else entries[:-12])
    status, problems, _ = verify(capsys, data)
    assert status == 0
    assert [(problem["type"], problem["file"]) for problem in problems] == [("warning", str(index))]
    greatest = int.from_bytes(entries[-12:-4], "big")
    assert f"the greatest of the segment is {greatest}" in problems[0]["problem"]
    # The last segment of a log that was not closed has none yet.
    index.write_bytes(entries)
    (data / ".kafka_cleanshutdown").unlink()
    last = max((data / "g-segments-0").glob("*.timeindex"))
    last.write_bytes(b"")
    assert verify(capsys, data)[:2] == (0, [])


def test_the_mark_of_lost_records_is_a_warning_and_a_mark_that_cannot_be_read_is_damage(tmp_path, capsys):
    with open_log(str(tmp_path / "orders-0"), "a") as log:
        log.append_as_leader(record_batch(1), 0)
    mark = tmp_path / "orders-0" / "lost-records"
    write_mark(str(mark.parent), 4)
    status, (problem,), _ = verify(capsys, mark.parent)
    assert (status, problem["type"], problem["file"], problem["offset"]) == (0, "warning", str(mark), 4)
    assert "lacks records from offset 4 on" in problem["problem"]
    assert main(["repair", str(mark.parent)]) == 0
    printed = capsys.readouterr().out
    assert "lost-records: warning: offset 4: this replica lacks" in printed and "cannot be repaired" not in printed
    mark.write_text("version: 0\nfirst_lost_offset: four\n")
    status, (problem,), _ = verify(capsys, mark)
    assert (status, problem["type"]) == (1, "damage") and "line 2" in problem["problem"]


def test_missing_indexes_of_a_partition_are_one_line_for_each_kind(data, capsys):
    directory = data / "g-none-0"
    segments = len([*directory.glob("*.log")])
    assert segments > 1
    for path in directory.glob("*.index"):
        path.unlink()
    next(directory.glob("*.timeindex")).unlink()
    status, events = run_json(capsys, "verify", directory)
    several, one, _ = events
    assert (status, several["type"], several["file"]) == (0, "warning", str(directory))
    assert several["problem"].startswith(f"{segments} .index files are missing, {'0' * 20}.index, ")
    assert several["problem"].endswith("; they are rebuilt when the log is opened")
    assert one["file"].endswith(".timeindex") and one["problem"] == "missing; it is rebuilt when the log is opened"


def test_leader_epochs_that_are_missing_after_a_clean_stop_are_a_warning(data, capsys):
    checkpoint = data / "g-epochs-0" / "leader-epoch-checkpoint"
    checkpoint.unlink()
    (data / ".kafka_cleanshutdown").touch()
    status, events = run_json(capsys, "verify", data / "g-epochs-0")
    (found,) = [event for event in events if event["type"] == "warning"]
    assert (status, found["file"]) == (0, str(checkpoint))
    assert found["problem"].startswith("missing; no broker makes it again after a clean stop")
    (data / ".kafka_cleanshutdown").unlink()  # a start rebuilds it from the batches
    status, events = run_json(capsys, "verify", data / "g-epochs-0")
    assert (status, [event["type"] for event in events if event["type"] != "gap"]) == (0, ["summary"])


@pytest.mark.parametrize(("other", "base"), [("g-none-0", 30), ("g-none-0", 60)])
def test_a_segment_of_another_log_is_one_line(other, base, data, capsys):
    source = sorted((data / other).glob("*.log"))[0 if base == 30 else 1]
    log = data / "g-segments-0" / f"{base:020}.log"
    shutil.copy(source, log)
    status, events = run_json(capsys, "verify", log.parent)
    (found,) = [event for event in events if event["type"] == "damage"]
    assert (status, found["file"]) == (1, str(log))
    assert found["problem"].endswith("they are of another log, or the file has another segment's name")
    status, events = run_json(capsys, "repair", log.parent)
    assert (status, events[-1]["beyond_repair"], events[-1]["actions"]) == (1, 1, 0)


def test_a_data_directory_without_meta_properties_is_a_warning(data, capsys):
    (data / "meta.properties").unlink()
    status, events = run_json(capsys, "verify", data)
    (found,) = [event for event in events if event["type"] == "warning"]
    assert (status, found["file"]) == (0, str(data / "meta.properties"))
    assert found["problem"].startswith("missing; Kafka's brokers with KRaft refuse the directory")


def test_files_that_an_unfinished_cleaning_left_in_a_partition_are_one_line(data, capsys):
    directory, names = data / "g-none-0", [f"{n:020}.log.cleaned" for n in range(4)]
    for count in (1, 4):
        for name in names[:count]:
            (directory / name).touch()
        status, events = run_json(capsys, "verify", directory)
        (found, _) = events
        assert (status, found["type"]) == (0, "warning")
        if count == 1:
            assert found["file"] == str(directory / names[0])
            assert found["problem"] == "left by a cleaning that did not end"
    assert found["file"] == str(directory)
    assert found["problem"] == f"4 files were left by a cleaning that did not end: {', '.join(names[:3])} and 1 more"


def test_files_of_deleted_segments_are_no_warning_and_only_counted(data, capsys):
    """A broker that stops within file.delete.delay.ms leaves them, and one that runs has them for that long."""
    for directory in ("g-none-0", "g-txn-0"):
        for n in range(700):
            (data / directory / f"{n:020}.log.deleted").touch()
    status, events = run_json(capsys, "verify", data)
    assert status == 0 and not [event for event in events if event["type"] == "warning"]
    assert (events[-1]["to_delete"], events[-1]["warnings"]) == (1400, 0)
    assert main(["verify", str(data)]) == 0
    assert "; 1400 .deleted files are still there, which a broker removes by itself\n" in capsys.readouterr().out


def test_entries_of_a_checkpoint_whose_partitions_are_not_there_are_one_line(data, capsys):
    checkpoint = OffsetCheckpointFile(str(data / "recovery-point-offset-checkpoint"))
    checkpoint.write(checkpoint.read() | {TopicPartition("gone", number): 7 for number in range(50)})
    status, events = run_json(capsys, "verify", data)
    (found,) = [event for event in events if event["type"] == "warning"]
    assert (status, found["file"], found["offset"]) == (0, checkpoint.path, None)
    names = ", ".join(f"gone-{number}" for number in range(5))
    assert found["problem"] == f"50 partitions are not in this directory: {names} and 45 more"


def test_a_missing_index_is_a_warning_because_opening_the_log_rebuilds_it(data, capsys):
    (data / "g-none-0" / f"{0:020}.index").unlink()
    (data / "g-none-0" / f"{49:020}.timeindex").unlink()
    status, problems, summary = verify(capsys, data)
    assert status == 0
    assert [problem["type"] for problem in problems] == ["warning", "warning"]
    assert (summary["damaged"], summary["warnings"]) == (0, 2)


@pytest.mark.parametrize("file", ["00000000000000000011.txnindex", "00000000000000000050.snapshot"])
def test_flipped_bytes_of_transaction_indexes_and_snapshots(file, data, capsys):
    path = data / "g-txn-0" / file
    original = path.read_bytes()
    detected = 0
    for position in range(len(original)):
        path.write_bytes(original)
        flip(path, position, 0x80)
        status, problems, _ = verify(capsys, data / "g-txn-0")
        detected += status == 1 and {problem["file"] for problem in problems} == {str(path)}
    if file.endswith(".snapshot"):
        assert detected == len(original)  # its CRC covers all of it
    else:
        assert detected > len(original) // 2  # no CRC: only what contradicts itself


def test_garbage_in_the_small_files_is_found(data, capsys):
    names = ["recovery-point-offset-checkpoint", "replication-offset-checkpoint", "meta.properties"]
    names += ["log-start-offset-checkpoint", "cleaner-offset-checkpoint"]
    names += ["g-none-0/leader-epoch-checkpoint", "g-none-0/partition.metadata"]
    for name in names:
        (data / name).write_bytes(b"\xfe\x00\xff")
    status, problems, _ = verify(capsys, data)
    assert status == 1
    damaged = [os.path.relpath(problem["file"], data) for problem in problems if problem["type"] == "damage"]
    assert sorted(damaged) == sorted(names)


def test_a_partial_batch_at_the_end_of_an_unclean_log_is_a_warning(data, capsys):
    log = data / "g-none-0" / f"{49:020}.log"
    content = log.read_bytes()
    size = 70
    log.write_bytes(content + content[:size])
    # After a clean stop nothing may be left over.
    assert verify(capsys, data / "g-none-0")[0] == 1
    (data / ".kafka_cleanshutdown").unlink()
    status, problems, _ = verify(capsys, data / "g-none-0")
    assert (status, [problem["type"] for problem in problems]) == (0, ["warning"])
    assert "recovery will cut 70 bytes" in problems[0]["problem"]
    assert problems[0]["position"] == len(content)
    # Nor inside the log, where another segment follows.
    first = data / "g-none-0" / LOG
    first.write_bytes(first.read_bytes() + content[:size])
    assert verify(capsys, data / "g-none-0")[0] == 1


def test_a_log_that_lost_its_flushed_end_is_damaged(data, capsys):
    log = data / "g-none-0" / f"{49:020}.log"
    batches = model.decode_batches(log.read_bytes())
    log.write_bytes(log.read_bytes()[: batches[-1].position])
    for suffix in (".index", ".timeindex"):
        log.with_suffix(suffix).unlink()
    for marker in (True, False):
        if not marker:
            (data / ".kafka_cleanshutdown").unlink()
        status, problems, _ = verify(capsys, data / "g-none-0")
        assert status == 1
        (damage,) = [p for p in problems if p["type"] == "damage" and p["file"] == str(log)]
        assert damage["offset"] == batches[-1].base_offset
        # The epoch that begins at the lost end is beyond it: mended after a crash, wrong after a clean stop.
        (epoch,) = [p["type"] for p in problems if p["file"].endswith("leader-epoch-checkpoint")]
        assert epoch == ("damage" if marker else "warning")


def test_of_two_segments_with_the_same_batches_the_one_is_named_that_has_no_others(data, capsys):
    log = data / "g-segments-0" / LOG
    other = log.parent / f"{30:020}.log"
    log.write_bytes(log.read_bytes() + other.read_bytes())
    status, problems, _ = verify(capsys, data / "g-segments-0")
    (found,) = [problem for problem in problems if problem["type"] == "damage"]
    assert (status, found["file"]) == (1, str(other))
    assert f"{LOG} has each of its batches" in found["problem"]


def test_records_that_a_header_miscounts_are_damage_unless_left_out(tmp_path, capsys):
    one = model.encode_batch(model.make_batch([model.Record(0, 1, b"k", b"v"), model.Record(1, 1)], codec="zstd"))
    (tmp_path / LOG).write_bytes(model.reseal(one[:57] + struct.pack(">i", 1) + one[61:]))
    status, problems, _ = verify(capsys, tmp_path)
    assert status == 1
    assert [(p["offset"], p["position"]) for p in problems if p["type"] == "damage"] == [(0, 0)]
    assert verify(capsys, tmp_path, "--no-records")[0] == 0


def test_the_index_of_a_log_in_use_may_have_room_left_at_its_end(data, capsys):
    for suffix in (".index", ".timeindex"):
        index = data / "g-none-0" / f"{49:020}{suffix}"
        index.write_bytes(index.read_bytes() + bytes(1200))
    assert verify(capsys, data / "g-none-0")[0] == 1  # after a clean stop it would have been trimmed
    (data / ".kafka_cleanshutdown").unlink()
    status, problems, _ = verify(capsys, data / "g-none-0")
    assert (status, problems) == (0, [])


@pytest.mark.parametrize("appended", [0, 1, 300])
@pytest.mark.parametrize("sizes", ["the same", "other"])
def test_index_entries_that_a_truncation_left_in_a_log_in_use_are_one_warning(appended, sizes, tmp_path, capsys):
    """More entries than one page has: kcore fills the page of a new entry with zeros, not those after it."""
    (tmp_path / "data").mkdir()
    with open_log(tmp_path / "data" / "t-0", "a", config=LogConfig(index_interval_bytes=100)) as log:
        for n in range(1500):
            log.append_as_leader(record_batch(timestamp=TIMESTAMP + n))
        log.truncate_to(300)
        for n in range(300, 300 + appended):
            log.append_as_leader(record_batch(timestamp=TIMESTAMP + n, size=20 if sizes == "the same" else 90))
        status, problems, summary = verify(capsys, log.directory)
        files = [problem["file"] for problem in problems]
        assert (status, summary["damaged"]) == (0, 0), problems
        assert sorted(files) == [str(Path(log.directory) / LOG.replace(".log", s)) for s in (".index", ".timeindex")]
        for problem in problems:
            assert "entries are not of this log's batches" in problem["problem"]
    assert verify(capsys, tmp_path / "data")[:2] == (0, [])


def test_a_wrong_last_entry_of_an_index_in_use_is_damage(tmp_path, capsys):
    (tmp_path / "data").mkdir()
    with open_log(tmp_path / "data" / "t-0", "a", config=LogConfig(index_interval_bytes=100)) as log:
        for n in range(12):
            log.append_as_leader(batch(n, "none"))
        index = Path(log.directory) / LOG.replace(".log", ".index")
        flip(index, len(index.read_bytes().rstrip(b"\0")) - 1, 0x01)
        status, (problem,), _ = verify(capsys, log.directory)
        assert (status, problem["type"], problem["file"]) == (1, "damage", str(index))


@pytest.mark.parametrize(("suffix", "slot"), [(".index", 8), (".timeindex", 12)])
def test_an_index_is_read_to_its_last_byte_across_holes(suffix, slot, data):
    index = data / "g-none-0" / f"{49:020}{suffix}"
    written = index.read_bytes()
    sparse = 10 * 1024 * 1024 // slot * slot
    os.truncate(index, sparse + 1)
    entries, empty, rest = read_index(str(index))
    assert (entries.tobytes(), len(entries) + empty, rest) == (written, sparse // slot, 1)
    with open(index, "r+b") as file:
        file.seek(sparse - 1)
        file.write(b"\1")
    entries, empty, rest = read_index(str(index))
    assert (len(entries), empty, rest) == (sparse // slot, 0, 1)
    assert entries.tobytes() == written + bytes(sparse - 1 - len(written)) + b"\1"


def test_a_time_index_of_which_a_power_loss_left_the_first_page_is_damage(data, capsys):
    # 4096 bytes end inside an entry; the rest is a hole.
    index = data / "g-none-0" / f"{49:020}.timeindex"
    index.write_bytes(b"".join(struct.pack(">qi", 1_800_000_000_000 + i, i) for i in range(1000))[:4096])
    os.truncate(index, 10 * 1024 * 1024 // 12 * 12)
    status, problems, _ = verify(capsys, data / "g-none-0")
    assert status == 1
    assert {problem["file"] for problem in problems} == {str(index)}


def test_what_a_running_broker_appends_while_the_log_is_read_is_no_damage(tmp_path, capsys, monkeypatch):
    config = LogConfig(segment_bytes=30_000, index_interval_bytes=100)
    path = tmp_path / "data" / "t-0"
    path.parent.mkdir()
    with open_log(path, "a", config=config) as log:
        for n in range(20):
            log.append_as_leader(batch(n))

        def scan_and_go_on(segment, **options):
            scan = scan_segment(segment, **options)
            for n in range(200):
                log.append_as_leader(batch(n))
            return scan

        monkeypatch.setattr(parallel, "scan_segment", scan_and_go_on)
        assert verify(capsys, path)[:2] == (0, [])
        assert len(list(path.glob("*.log"))) > 1, "a segment was rolled meanwhile"


def batch(n: int, codec: str = "none") -> bytearray:
    values = [b"value %d" % i * (n % 50) for i in range(n % 7 + 1)]
    return batch_of_values(*values, key=b"key", timestamp=TIMESTAMP + n, compression=codec)


def test_a_directory_that_is_open_for_appending_has_neither_damage_nor_warning(tmp_path, capsys):
    config = LogConfig(segment_bytes=8_000, index_interval_bytes=500, segment_index_bytes=4_096)
    path = tmp_path / "data" / "t-0"
    path.parent.mkdir()
    with open_log(path, "a", config=config) as log:
        for n in range(200):
            log.append_as_leader(batch(n, model.CODECS[n % 5]))
        assert len(list(path.glob("*.log"))) > 3
        assert verify(capsys, tmp_path / "data")[:2] == (0, [])
        # A background flush may replace a small file meanwhile.
        shutil.copytree(tmp_path / "data", tmp_path / "crashed", ignore=shutil.ignore_patterns("*.tmp"))
    assert verify(capsys, tmp_path / "data")[:2] == (0, [])

    crashed = tmp_path / "crashed" / "t-0"
    last = max(crashed.glob("*.log"))
    last.write_bytes(last.read_bytes() + bytes(batch(30)[:-1]))
    status, problems, _ = verify(capsys, tmp_path / "crashed")
    assert (status, [problem["type"] for problem in problems]) == (0, ["warning"])
    with open_log(crashed, "a", config=config) as log:  # recovery cuts what the warning announced
        log.append_as_leader(batch(3))
    assert verify(capsys, tmp_path / "crashed")[:2] == (0, [])


def test_the_directory_of_a_running_broker_can_be_verified(tmp_path, capsys):
    with Broker(tmp_path) as broker:
        broker.create_topic("t", partitions=2)
        for n in range(50):
            partition = broker.replica_manager.get_partition(TopicPartition("t", n % 2))
            partition.append_records_to_leader(batch(n), required_acks=1)
        assert verify(capsys, tmp_path)[:2] == (0, [])
    status, problems, summary = verify(capsys, tmp_path)
    assert (status, problems) == (0, [])
    assert summary["batches"] == 50


def test_random_garbage_never_crashes_the_tools(tmp_path, capsys, seed):
    rng = random.Random(seed)
    sources = [
        (p, f)
        for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
        for p, f in golden_data.files(suffix)
    ]
    for n in range(150):
        directory = tmp_path / str(n)
        directory.mkdir()
        partition, file = rng.choice(sources)
        content = bytearray((golden_data.partition_dir(partition) / file).read_bytes())
        for _ in range(rng.randint(1, 8)):
            if content:
                start = rng.randrange(len(content))
                content[start : start + rng.randint(0, 20)] = rng.randbytes(rng.randint(0, 20))
        (directory / file).write_bytes(content)
        for command in ("dump", "verify"):
            assert main([command, str(directory)]) in (0, 1), f"seed={seed} file={file} n={n}"
            assert not capsys.readouterr().err, f"seed={seed} file={file} n={n}"


def test_people_get_one_line_per_problem_and_a_summary(data, capsys):
    log = data / "g-none-0" / LOG
    flip(log, 3541 + 70)
    assert main(["verify", str(data / "g-none-0")]) == 1
    out, _ = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].startswith(f"{log}: offset 9, position 3541: ")
    assert lines[-1].endswith("1 damaged place")


def small_log(directory: Path, batches: int = 200) -> None:
    config = LogConfig(segment_bytes=8_000, index_interval_bytes=500, segment_index_bytes=4_096)
    with open_log(directory, "a", config=config) as log:
        for n in range(batches):
            log.append_as_leader(batch(n, model.CODECS[n % 5]))


@pytest.mark.parametrize("jobs", [1, 2, 7])
@pytest.mark.parametrize("options", [[], ["--no-records"]])
def test_as_many_threads_as_one_likes_find_the_same_in_the_same_order(jobs, options, data, capsys):
    for partition, file, position in [("g-none-0", LOG, 3600), ("g-txn-0", LOG, 100), ("g-segments-1", LOG, 500)]:
        flip(data / partition / file, position)
    expected = verify(capsys, data, "--jobs", "1")
    expected[2].pop("seconds")
    status, problems, summary = verify(capsys, data, "--jobs", jobs, *options)
    summary.pop("seconds")
    assert (status, problems, summary) == expected


@pytest.mark.parametrize("step", [97])
def test_every_flipped_byte_is_found_through_the_mapping_too(step, data, capsys):
    log = data / "g-none-0" / LOG
    original = log.read_bytes()
    for position in range(0, len(original), step):
        log.write_bytes(original)
        flip(log, position)
        results = [verify(capsys, data / "g-none-0", *options)[:2] for options in ([], ["--no-records"])]
        assert results[0] == results[1], f"byte {position}"
        assert results[0][0] == 1, f"byte {position}"


def test_progress_goes_to_stderr_as_a_bar_on_a_terminal_and_nowhere_when_quiet(data, monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(Progress, "_BAR_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    flip(data / "g-none-0" / LOG, 3600)
    for options, shown in (([], True), (["--quiet"], False), (["--json"], False)):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        assert main(["verify", str(data), *options]) == 1
        assert ("B/s" in terminal.getvalue()) is shown
        # Nothing of it is left when a line is printed.
        assert terminal.getvalue().endswith("\x1b[1A\x1b[2K" if shown else "")


def test_progress_is_plain_lines_where_there_is_no_terminal(data, monkeypatch, capsys):
    monkeypatch.setattr(Progress, "_LINE_SECONDS", 0.0)
    assert main(["verify", str(data)]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("verify: ") and "\r" not in err
    assert "no damage" in out


def test_ctrl_c_prints_the_findings_so_far(data, monkeypatch, capsys):
    flip(data / "g-none-0" / LOG, 3600)
    scan = parallel.scan_segment

    def interrupted(path, **options):
        if "g-txn-0" in path:
            raise KeyboardInterrupt
        return scan(path, **options)

    monkeypatch.setattr(parallel, "scan_segment", interrupted)
    status, problems, summary = verify(capsys, data, "--jobs", "2")
    assert (status, summary["interrupted"]) == (130, True)
    assert [problem["type"] for problem in problems] == ["damage"]
    assert 0 < summary["files"] < 257


@pytest.mark.parametrize(
    ("size", "seconds", "shown"),
    [
        (190_000, 0.05, " in 0.050 s: no damage"),
        (190_000, 2.0, " in 2.000 s (95.0 kB/s): no damage"),
        (3_000_000_000, 1.5, " in 1.500 s (2.0 GB/s): no damage"),
    ],
)
def test_a_rate_has_a_unit_that_fits_and_is_left_out_where_it_means_nothing(size, seconds, shown):
    counts = dataclasses.asdict(verifier.Summary(bytes=size, read=size, seconds=seconds))
    assert verify_module.summary_text(counts).endswith(shown)


def test_holes_of_a_sparse_file_count_for_no_rate(data, capsys):
    log = data / "g-none-0" / f"{49:020}.log"
    size = log.stat().st_size
    os.truncate(log, size + (1 << 30))
    _, _, summary = verify(capsys, log)
    assert summary["bytes"] == size + (1 << 30)
    assert summary["read"] < size + (1 << 16)


def test_times_are_dates_for_people(data, capsys):
    index = data / "g-segments-0" / f"{30:020}.timeindex"
    index.write_bytes(b"")
    assert main(["verify", str(data), "--quiet"]) == 0
    greatest = max(batch.max_timestamp for batch in model.decode_batches(index.with_suffix(".log").read_bytes()))
    seconds, ms = divmod(greatest, 1000)
    date = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ms:03}Z"
    assert f"the greatest of the segment is {greatest} ({date})" in capsys.readouterr().out
    assert main(["dump", str(data / "g-none-0" / LOG)]) == 0
    text = capsys.readouterr().out
    assert "CreateTime 2023-11-14T22:1" in text and "0: 2023-11-14T22:13:20.000Z," in text
    assert "17000000" not in text


@pytest.mark.parametrize(
    ("timestamp", "shown"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (-1, "-1"),
        (2**63 - 1, str(2**63 - 1)),
        (-(2**63), str(-(2**63))),
    ],
)
def test_what_is_no_date_is_shown_as_the_number_it_is(timestamp, shown):
    assert date_of(timestamp) == shown


def test_readers_in_threads_stop_when_stop_is_called(data):
    progress = Progress("verify", 0, quiet=True)
    progress.stop()
    with pytest.raises(Stopped):
        scan_segment(str(data / "g-none-0" / LOG), progress=progress)
    with pytest.raises(Stopped):
        scan_segment(str(data / "g-none-0" / LOG), records=False, progress=progress)


def test_a_file_that_cannot_be_read_is_damage_and_the_others_are_verified(data, capsys):
    for name in (LOG, f"{49:020}.index", "leader-epoch-checkpoint"):
        (data / "g-none-0" / name).unlink()
        (data / "g-none-0" / name).symlink_to("nowhere")
    status, problems, _ = verify(capsys, data)
    assert status == 1
    unreadable = [os.path.basename(p["file"]) for p in problems if p["problem"].startswith("cannot be read")]
    assert LOG in unreadable and f"{49:020}.index" in unreadable


def test_a_partition_behind_a_symbolic_link_is_verified(data, tmp_path, capsys):
    (tmp_path / "linked").mkdir()
    for name in ("g-none-0", "g-txn-0"):
        (tmp_path / "linked" / name).symlink_to(data / name)
    status, problems, summary = verify(capsys, tmp_path / "linked")
    assert (status, problems) == (0, [])
    assert summary["batches"] > 20


def test_an_aborted_transaction_that_the_transaction_index_lacks_is_damage(data, capsys):
    index = data / "g-txn-0" / "00000000000000000011.txnindex"
    index.unlink()
    status, problems, _ = verify(capsys, data / "g-txn-0")
    assert status == 1
    assert {p["file"] for p in problems} == {str(index)}
    assert all("aborted offsets" in p["problem"] for p in problems)


def test_a_transaction_index_that_names_a_committed_transaction_is_damage(data, capsys):
    with open_log(data / "g-txn-0") as log:
        committed = next(
            marker.offset for b in log.batches() if b.is_control for marker in b.records() if marker.key[3] == 1
        )
        producer = next(b.producer_id for b in log.batches() if b.base_offset == committed)
        base = max(segment.base_offset for segment in log.segments if segment.base_offset <= committed)
    index = data / "g-txn-0" / f"{base:020}.txnindex"
    entries = decode_entries(index.read_bytes(), "") if index.exists() else []
    wrong = AbortedTxn(producer, committed - 1, committed, committed + 1)
    index.write_bytes(encode_entries(sorted([*entries, wrong], key=lambda e: e.last_offset)))
    status, problems, _ = verify(capsys, data / "g-txn-0")
    assert status == 1
    assert [(p["file"], p["offset"]) for p in problems] == [(str(index), committed)]
    assert "committed" in problems[0]["problem"]


def test_a_snapshot_that_contradicts_the_batches_is_damage(data, capsys):
    path = data / "g-idempotent-0" / f"{60:020}.snapshot"
    (entry,) = decode_snapshot(path.read_bytes(), str(path))
    last = entry.batches[-1]
    # A snapshot at 60 has the state of the batches below 60.
    for wrong in (
        last._replace(last_offset=61),
        last._replace(last_offset=60),
        last._replace(last_sequence=last.last_sequence + 1),
    ):
        entry = ProducerStateEntry(entry.producer_id, entry.producer_epoch, [wrong], wrong.timestamp)
        path.write_bytes(encode_snapshot([entry]))
        status, problems, _ = verify(capsys, data / "g-idempotent-0")
        assert status == 1
        assert [p["file"] for p in problems] == [str(path)]


def test_checkpoints_are_compared_with_the_logs(data, capsys):
    path = data / "log-start-offset-checkpoint"
    path.write_text("0\n2\ng-none 0 97\nnot-there 3 5\n")
    status, problems, _ = verify(capsys, data)
    assert status == 1
    assert [(p["type"], p["offset"]) for p in problems] == [("warning", 5), ("damage", 96)]


def test_a_segment_that_is_about_to_replace_others_is_checked_too(data, capsys):
    swap = data / "g-none-0" / f"{49:020}.log.swap"
    shutil.copy(data / "g-none-0" / f"{49:020}.log", swap)
    assert verify(capsys, data)[0] == 0
    flip(swap, 100)
    status, problems, _ = verify(capsys, data)
    assert status == 1
    assert [(p["type"], p["file"]) for p in problems] == [("warning", str(swap)), ("damage", str(swap))]
    status, events = run_json(capsys, "repair", data)
    assert (status, events[-1]["beyond_repair"]) == (1, 1)


def test_the_rows_of_a_segment_are_those_of_its_batches_whatever_sizes_they_have(tmp_path):
    """Small batches first and large ones after them, or the reverse: the estimate of their number is wrong."""
    for name, counts in (("a-0", [1] * 9_000 + [400] * 30), ("b-0", [400] * 30 + [1] * 9_000)):
        directory = tmp_path / name
        with open_log(directory, "a") as log:
            for count in counts:
                builder = RecordBatchBuilder()
                for _ in range(count):
                    builder.append(b"v", timestamp=1_700_000_000_000)
                log.append_as_leader(builder.build())
        scan = scan_segment(str(directory / LOG), records=False)
        assert scan.records == sum(counts)
        assert scan.batches["count"].tolist() == counts
        sizes = scan.batches["size"]
        assert scan.batches["position"].tolist() == [0, *sizes.cumsum(dtype="i8")[:-1].tolist()]
        assert scan.batches["last_offset"].tolist() == (np.cumsum(counts) - 1).tolist()
        assert (scan.batches["magic"] == 2).all() and (scan.batches["leader_epoch"] == 0).all()


def test_a_log_that_was_truncated_inside_a_batch_to_its_start_has_no_damage(tmp_path, capsys):
    with open_log(tmp_path / "orders-0", mode="a") as log:
        for _ in range(4):
            log.append_as_leader(record_batch(5))
        log.maybe_increment_log_start_offset(12)
        log.truncate_to(12)
    status, problems, summary = verify(capsys, tmp_path)
    assert (status, summary["records"]) == (0, 0)
    # file.delete.delay.ms has not passed.
    assert not problems and summary["to_delete"] == 3
    with open_log(tmp_path / "orders-0") as log:
        assert (log.log_start_offset, log.log_end_offset) == (12, 12)


class CrashingBroker:
    """The log of `t-0` in a data directory; restart() is one after a crash."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.start()

    def start(self) -> None:
        self.manager = LogManager([self.data_dir], LogConfig())
        self.manager.startup()
        self.log = self.manager.get_or_create_log(TopicPartition("t", 0))

    def restart(self) -> None:
        self.log._close_files()
        for log_dir in self.manager._dirs.values():
            log_dir.release()
        self.start()

    def append(self, *batches) -> None:
        for each in batches:
            self.log.append_as_leader(bytearray(each), 0)

    def abort(self) -> None:
        self.log.append_as_leader(end_marker(6, commit=False), 0, AppendOrigin.COORDINATOR)

    def delete_records(self, offset: int) -> None:
        self.log.update_high_watermark(self.log.log_end_offset)
        self.log.maybe_increment_log_start_offset(offset)
        self.manager.checkpoint_log_start_offsets()

    def stop(self) -> None:
        self.log.update_high_watermark(self.log.log_end_offset)
        self.manager.shutdown()


def in_transaction(sequence):
    return idempotent(6, sequence, is_transactional=True)


def test_a_transaction_that_began_below_the_log_start_is_judged_by_what_can_be_read_of_it(tmp_path, capsys):
    broker = CrashingBroker(tmp_path)
    for sequence in range(3):
        broker.append(in_transaction(sequence))
        broker.log.roll()
    broker.append(in_transaction(3))
    broker.delete_records(3)
    broker.restart()
    broker.abort()
    broker.stop()
    # The recovery read the segments at and after the log start offset, and so did not see where the transaction began.
    (path,) = (path for path in (tmp_path / "t-0").glob("*.txnindex") if path.stat().st_size)
    (entry,) = decode_entries(path.read_bytes(), "")
    assert 0 < entry.first_offset <= 3
    assert verify(capsys, tmp_path)[:2] == (0, [])
    assert run_json(capsys, "repair", tmp_path)[0] == 0
    path.write_bytes(b"")
    status, problems, _ = verify(capsys, tmp_path)
    assert (status, [p["offset"] for p in problems]) == (1, [4])
    assert "aborted offsets 3 to 4: not in here" in problems[0]["problem"]


def test_of_an_index_with_many_wrong_entries_the_first_are_named_and_the_others_counted(tmp_path, capsys):
    with open_log(tmp_path / "t-0", "a", config=LogConfig(index_interval_bytes=10)) as log:
        for _ in range(40):
            log.append_as_leader(record_batch(1))
    path = tmp_path / "t-0" / f"{0:020}.index"
    entries = [*struct.iter_unpack(">ii", path.read_bytes())]
    assert len(entries) > 30
    path.write_bytes(b"".join(struct.pack(">ii", offset, position + 1) for offset, position in entries))
    status, problems, summary = verify(capsys, tmp_path)
    assert status == 1 and {problem["file"] for problem in problems} == {str(path)}
    assert [problem["problem"].split(":")[0] for problem in problems] == [f"entry {n}" for n in range(11)]
    assert problems[-1]["problem"] == f"entry 10: wrong too, and so are {len(entries) - 11} entries more"
    assert summary["damaged"] == 11


def test_a_transaction_index_that_is_missing_or_empty_is_one_problem_however_many_transactions_it_lacks(
    tmp_path, capsys
):
    broker = CrashingBroker(tmp_path)
    for n in range(5):
        broker.append(in_transaction(n))
        broker.abort()
    broker.stop()
    (path,) = (tmp_path / "t-0").glob("*.txnindex")
    content = path.read_bytes()
    for left, last_offset, text in (
        (None, 1, "offsets 0 to 1: not in here, nor are 4 aborted transactions after it; the file is missing"),
        (b"", 1, "offsets 0 to 1: not in here, nor are 4 aborted transactions after it"),
        (content[: 4 * len(content) // 5], 9, "offsets 8 to 9: not in here"),
    ):
        path.unlink() if left is None else path.write_bytes(left)
        status, (problem,), _ = verify(capsys, tmp_path)
        assert (status, problem["file"], problem["offset"]) == (1, str(path), last_offset)
        assert problem["problem"].endswith(text)
    assert run_json(capsys, "repair", tmp_path, "--in-place", "--apply")[0] == 0
    assert path.read_bytes() == content


def test_a_transaction_that_was_aborted_below_the_log_start_is_not_judged(tmp_path, capsys):
    broker = CrashingBroker(tmp_path)
    broker.append(in_transaction(0))
    broker.log.roll()
    broker.append(in_transaction(1))
    broker.abort()
    broker.append(record_batch())
    broker.log.roll()
    broker.append(*(record_batch() for _ in range(4)))
    broker.delete_records(6)
    broker.restart()
    broker.stop()
    assert verify(capsys, tmp_path)[:2] == (0, [])
    for path in (tmp_path / "t-0").glob("*.txnindex"):
        path.unlink()
    assert verify(capsys, tmp_path)[:2] == (0, [])


def test_a_stray_log_is_not_compared_with_the_checkpoints_of_the_log_in_use(tmp_path, capsys):
    with open_log(tmp_path / "t-0", mode="a") as log:
        log.append_as_leader(record_batch(4))
    stray = tmp_path / f"t-0.{'5' * 32}-stray"
    shutil.copytree(tmp_path / "t-0", stray)
    with open(stray / LOG, "ab") as file:
        file.write(record_batch(3)[:40])  # a partial batch: it was put aside after a crash
    broker = CrashingBroker(tmp_path)
    broker.append(record_batch(20))
    broker.delete_records(10)
    broker.stop()
    status, problems, _ = verify(capsys, tmp_path)
    assert status == 0
    assert [(p["type"], p["file"]) for p in problems] == [("warning", str(stray / LOG))]
    checkpoints = {path.name: path.read_bytes() for path in tmp_path.glob("*-checkpoint")}
    run_json(capsys, "repair", "--apply", "--in-place", tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*-checkpoint")} == checkpoints
