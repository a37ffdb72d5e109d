"""open_log() on damaged directories: the right records or a typed error, never a gap without a message."""

import os
import shutil

import pytest

from kcore.errors import CorruptMessage
from kcore.log.clean_shutdown import write_clean_shutdown
from kcore.log.log_config import LogConfig
from kcore.log.open_log import open_log
from kcore.tools.main import main
from tests.golden_data import data_dir
from tests.unit.log.logs import NO_FILES, batch, idempotent, no_file


def copied(tmp_path, partition):
    """A copy of a golden partition, cleanly stopped."""
    shutil.copytree(data_dir() / partition, tmp_path / partition)
    write_clean_shutdown(str(tmp_path))
    return tmp_path / partition


def written(tmp_path, batches, **config):
    """A log of so many batches of ten records, cleanly stopped."""
    path = tmp_path / "t-0"
    with open_log(path, "a", config=LogConfig(**config)) as log:
        for _ in range(batches):
            log.append_as_leader(batch(10, size=100))
    return path


def offsets_read(log, start_offset=None):
    return [record.offset for record in log.records(start_offset)]


def change(path, position, data):
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)


@pytest.mark.parametrize("mode", ["r", "a"])
@pytest.mark.parametrize("mask", [0x01, 0x40, 0xFF])
def test_a_wrong_index_entry_hides_no_record(tmp_path, mode, mask):
    partition = copied(tmp_path, "g-lz4-0")
    index = partition / "00000000000000000000.index"
    sound = index.read_bytes()
    with open_log(data_dir() / "g-lz4-0") as log:
        expected = offsets_read(log)
    for n in range(len(sound)):
        index.write_bytes(sound[:n] + bytes([sound[n] ^ mask]) + sound[n + 1 :])
        with open_log(partition, mode) as log:
            assert log.log_end_offset == expected[-1] + 1, f"byte {n}"
            for start in (0, 1, 40, 57, 95):
                assert offsets_read(log, start) == [o for o in expected if o >= start], f"byte {n} start {start}"


def test_an_append_after_a_torn_tail_can_be_read_with_and_without_the_clean_marker(tmp_path):
    path = written(tmp_path, 3)
    file = path / "00000000000000000000.log"
    os.truncate(file, file.stat().st_size - 1)
    with open_log(path, "a") as log:
        assert log.log_end_offset == 20
        assert log.append_as_leader(batch()).first_offset == 20
        assert offsets_read(log) == list(range(21))


@pytest.mark.parametrize("mode", ["r", "a"])
@pytest.mark.parametrize("size", [1, 12, 17, 61, 3000])
def test_garbage_after_an_unclean_log_ends_it_in_both_modes(tmp_path, mode, size):
    partition = copied(tmp_path, "g-segments-0")
    (tmp_path / ".kafka_cleanshutdown").unlink()
    with open_log(partition) as log:
        expected = [tuple(record) for record in log.records()]
    file = max(partition.glob("*.log"))
    with open(file, "ab") as log_file:
        log_file.write(b"\x5e" * size)
    with open_log(partition, mode) as log:
        assert log.log_end_offset == expected[-1][0] + 1
        assert [tuple(record) for record in log.records()] == expected


def test_a_smaller_index_size_than_the_index_has_entries_for_rolls(tmp_path):
    path = written(tmp_path, 50, index_interval_bytes=100)
    with open_log(path, "a", config=LogConfig(index_interval_bytes=100, segment_index_bytes=64)) as log:
        assert len(log.segments) == 1
        log.append_as_leader(batch())
        assert len(log.segments) == 2
        log.truncate_to(400)
        assert offsets_read(log) == list(range(400))


@pytest.mark.parametrize("offset", [0, 5, 15, 2**40])
def test_a_batch_whose_offset_does_not_fit_ends_the_reading_with_its_place(tmp_path, offset):
    path = written(tmp_path, 4)
    size = (path / "00000000000000000000.log").stat().st_size // 4
    change(path / "00000000000000000000.log", 2 * size, offset.to_bytes(8, "big"))
    seen = []
    with (
        open_log(path) as log,
        pytest.raises(CorruptMessage, match=rf"00000000000000000000\.log: offsets {offset} .*position {2 * size}"),
    ):
        seen.extend(record.offset for record in log.records())
    assert seen == list(range(20))


def test_a_segment_that_ends_inside_a_batch_before_the_log_does_is_no_gap(tmp_path):
    path = written(tmp_path, 6, segment_bytes=2500)
    file = sorted(path.glob("*.log"))[1]
    os.truncate(file, file.stat().st_size - 1)
    with open_log(path) as log:
        assert len(log.segments) == 3
        with pytest.raises(CorruptMessage, match=rf"{file.name}: the file ends inside the batch at position"):
            offsets_read(log)


@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_batch_length_beyond_the_file_is_no_end_of_the_log(tmp_path, mode):
    # By the clean marker the log needs no recovery; by its last index entry there are more records.
    partition = copied(tmp_path, "g-lz4-0")
    log_file = partition / "00000000000000000000.log"
    change(log_file, 8, b"\x20")
    with open_log(partition, mode) as log, pytest.raises(CorruptMessage) as caught:
        offsets_read(log)
    assert caught.value.source == str(log_file)
    assert caught.value.position == 0


def test_a_batch_length_beyond_its_segment_is_no_gap_before_the_next_one(tmp_path):
    partition = copied(tmp_path, "g-segments-0")
    with open_log(partition) as log:
        batches = [b.position for b in log.batches(0, 30)]
    assert len(batches) > 4
    change(partition / "00000000000000000000.log", batches[2] + 8, b"\x20")
    with open_log(partition) as log, pytest.raises(CorruptMessage) as caught:
        offsets_read(log)
    assert caught.value.position == batches[2]


def test_a_truncation_inside_a_batch_leaves_a_directory_that_verifies(tmp_path):
    path = written(tmp_path, 3)
    with open_log(path, "a") as log:
        log.truncate_to(25)
        assert log.log_end_offset == 25
    assert main(["verify", str(tmp_path)]) == 0
    with open_log(path) as log:
        assert offsets_read(log) == list(range(20))


def test_a_fifo_in_the_place_of_a_log_is_refused_at_once(tmp_path):
    os.mkdir(tmp_path / "t-0")
    os.mkfifo(tmp_path / "t-0" / "00000000000000000000.log")
    for mode in ("r", "a"):
        with pytest.raises(OSError, match="no regular file"):
            open_log(tmp_path / "t-0", mode)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_sparse_index_of_a_terabyte_is_rebuilt_and_reported(tmp_path, suffix, capsys):
    path = written(tmp_path, 3)
    index = path / f"00000000000000000000{suffix}"
    os.truncate(index, 12 << 37)
    with open_log(path) as log:
        assert offsets_read(log) == list(range(30))
    assert main(["verify", str(path)]) == 1
    assert f"{index}: {12 << 37} bytes are more than an index can have" in capsys.readouterr().out
    assert main(["dump", str(index)]) == 1


@pytest.mark.parametrize("line", ["t 0 9223372036854775808", "t 2147483648 5"])
def test_a_log_start_that_no_log_can_have_deletes_nothing(tmp_path, line):
    path = written(tmp_path, 3)
    (tmp_path / "log-start-offset-checkpoint").write_text(f"0\n1\n{line}\n")
    with open_log(path, "a") as log:
        assert offsets_read(log) == list(range(30))


@pytest.mark.parametrize("line", ["2147483648 0", "0 9223372036854775808"])
def test_leader_epochs_that_no_log_can_have_are_rebuilt_from_the_batches(tmp_path, line):
    path = written(tmp_path, 3)
    (path / "leader-epoch-checkpoint").write_text(f"0\n1\n{line}\n")
    with open_log(path, "a") as log:
        assert log.leader_epoch_cache.entries == ((0, 0),)
        assert log.append_as_leader(batch()).first_offset == 30


def test_the_room_of_an_open_index_is_no_data(tmp_path, capsys):
    with open_log(tmp_path / "t-0", "a") as log:
        log.append_as_leader(batch())
        assert main(["verify", str(tmp_path / "t-0")]) == 0
        files = ("leader-epoch-checkpoint", "00000000000000000000.log")
        size = sum(os.path.getsize(tmp_path / "t-0" / name) for name in files)
    assert f" {size} bytes" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["r", "a"])
def test_damage_in_a_segment_shows_no_aborted_record_of_an_earlier_one_as_committed(tmp_path, mode):
    partition = copied(tmp_path, "g-txn-zstd-0")
    file, index = (partition / f"{11:020}{suffix}" for suffix in (".log", ".txnindex"))
    sound, aborted = file.read_bytes(), index.read_bytes()
    with open_log(partition) as log:
        expected = [record.offset for record in log.records(end_offset=11, isolation="read_committed")]
    assert expected == [0, 1, 2, 3, 4, 5]  # the marker that aborts offsets 6 to 10 is in the second segment
    for n in [*range(8, 300, 3), 3000]:
        file.write_bytes(sound[:n] + bytes([sound[n] ^ 0x40]) + sound[n + 1 :])
        with open_log(partition, mode) as log:
            read = [record.offset for record in log.records(end_offset=11, isolation="read_committed")]
        assert read == expected, f"byte {n}"
        assert index.read_bytes() == aborted, f"byte {n}"


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_log_that_lost_flushed_records_logs_that_when_it_is_opened(tmp_path, mode, clean, caplog):
    path = written(tmp_path, 3)
    file = path / "00000000000000000000.log"
    os.truncate(file, file.stat().st_size * 2 // 3)
    if not clean:
        (tmp_path / ".kafka_cleanshutdown").unlink()
    with open_log(path, mode) as log:
        assert log.log_end_offset == 20
    assert f"{path}: the log ends at offset 20, but was on disk up to 30: the records between are gone" in caplog.text
    caplog.clear()
    with open_log(path, "a") as log:
        assert log.log_end_offset == 20
    with open_log(path, mode) as log:
        assert log.log_end_offset == 20
    assert ("are gone" in caplog.text) == (mode == "r")


@pytest.mark.parametrize("mode", ["r", "a"])
@pytest.mark.parametrize("policy, lines", [("delete", 1), ("compact", 0)])
def test_empty_segments_are_logged_in_one_line_and_not_where_compaction_leaves_them(
    tmp_path, policy, lines, mode, caplog
):
    path = written(tmp_path, 4, segment_bytes=1500)
    for file in sorted(path.glob("*.log"))[:-1]:
        os.truncate(file, 0)
    with open_log(path, mode, config=LogConfig(segment_bytes=1500, cleanup_policy=(policy,))):
        messages = [message for message in caplog.messages if "is empty, and others follow it" in message]
    assert len(messages) == lines
    assert all("segment 0 is empty" in message and "(and 2 more segments like it)" in message for message in messages)


def test_no_record_is_read_under_a_base_offset_that_the_next_batch_contradicts(tmp_path):
    path = written(tmp_path, 6)
    log_file = path / "00000000000000000000.log"
    size = log_file.stat().st_size // 6
    change(log_file, 2 * size + 7, bytes([20 + 16]))
    read = []
    with open_log(path) as log, pytest.raises(CorruptMessage, match=rf"offsets 36 to 45 .*position {2 * size}:"):
        read.extend(record.offset for record in log.records())
    assert read == list(range(20))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_what_is_no_file_in_the_place_of_an_index_is_set_aside_and_the_index_rebuilt(
    tmp_path, suffix, kind, clean, caplog
):
    partition = copied(tmp_path, "g-txn-zstd-0")
    if not clean:
        (tmp_path / ".kafka_cleanshutdown").unlink()
    indexes = [partition / f"{11:020}{suffix}"]
    if suffix == ".index":
        indexes.append(partition / f"{0:020}{suffix}")
    with open_log(partition) as log:
        expected = [record.offset for record in log.records(isolation="read_committed")]
    for index in indexes:
        no_file(index, kind)
    for mode in ("r", "a"):
        with open_log(partition, mode) as log:
            assert [record.offset for record in log.records(isolation="read_committed")] == expected
    for index in indexes:
        assert f"{index}: this is no file; it is {index}.damaged now" in caplog.text
        assert index.is_file() and not index.is_symlink()
        aside = index.with_name(f"{index.name}.damaged")
        assert (aside / "dear").exists() if kind == "directory" else os.path.lexists(aside)
        assert not (partition / "not").exists()
    assert main(["verify", "--quiet", str(partition)]) == 0


@pytest.mark.parametrize("suffix", [".index", ".log.deleted", ".txnindex"])
def test_a_directory_under_the_name_of_what_would_be_removed_is_set_aside_each_time(tmp_path, suffix):
    path = written(tmp_path, 1)
    for n in ("", ".2", ".3"):
        no_file(path / f"{7:020}{suffix}", "directory")
        with open_log(path, "a") as log:
            assert offsets_read(log) == list(range(10))
        assert (path / f"{7:020}{suffix}.damaged{n}" / "dear").exists()


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_in_the_place_of_a_log_is_refused_and_nothing_made(tmp_path, kind):
    path = written(tmp_path, 4, segment_bytes=1500)
    log_file = sorted(path.glob("*.log"))[1]
    no_file(log_file, kind)
    before = sorted(os.listdir(path))
    for mode in ("r", "a"):
        with pytest.raises(OSError, match=r"no regular file|leads nowhere|\(open\)") as caught:
            open_log(path, mode)
        assert caught.value.filename == str(log_file)
    assert sorted(os.listdir(path)) == before


def test_a_dangling_link_in_the_place_of_the_only_log_is_refused_and_its_target_is_not_created(tmp_path):
    elsewhere = tmp_path / "not-mounted"
    elsewhere.mkdir()
    path = tmp_path / "t-0"
    path.mkdir()
    (path / f"{0:020}.log").symlink_to(elsewhere / "log")
    with pytest.raises(FileNotFoundError, match=r"link that leads nowhere.*0\.log"):
        open_log(path, "a")
    assert os.listdir(elsewhere) == []
    assert os.listdir(path) == [f"{0:020}.log"]


def test_a_log_may_be_a_link_to_another_disk(tmp_path):
    path = written(tmp_path, 2)
    log_file = path / f"{0:020}.log"
    log_file.rename(tmp_path / "elsewhere")
    log_file.symlink_to(tmp_path / "elsewhere")
    with open_log(path, "a") as log:
        assert log.append_as_leader(batch()).first_offset == 20
    assert log_file.is_symlink()
    with open_log(path) as log:
        assert offsets_read(log) == list(range(21))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", NO_FILES)
def test_a_directory_or_link_in_the_place_of_the_leader_epochs_is_logged_and_rebuilt(tmp_path, kind, clean, caplog):
    path = tmp_path / "t-0"
    with open_log(path, "a") as log:
        for epoch in (3, 5):
            log.append_as_leader(batch(), epoch)
        expected = log.leader_epoch_cache.entries
    assert len(expected) == 2
    if not clean:
        (tmp_path / ".kafka_cleanshutdown").unlink()
    checkpoint = path / "leader-epoch-checkpoint"
    content = checkpoint.read_bytes()
    no_file(checkpoint, kind)
    with open_log(path) as log:
        assert log.leader_epoch_cache.entries == expected
    assert os.path.lexists(checkpoint) and not checkpoint.is_file()
    with open_log(path, "a") as log:
        assert log.leader_epoch_cache.entries == expected
    assert f"rebuilding the leader epochs from the log: {checkpoint}: no regular file" in caplog.text
    assert f"{checkpoint}: this is no file; it is {checkpoint}.damaged now" in caplog.text
    assert checkpoint.read_bytes() == content
    assert os.path.lexists(f"{checkpoint}.damaged") and not (path / "not").exists()


@pytest.mark.parametrize("kind", NO_FILES)
def test_a_directory_or_link_in_the_place_of_a_checkpoint_is_logged_and_set_aside(tmp_path, kind, caplog):
    path = written(tmp_path, 2)
    checkpoint = tmp_path / "recovery-point-offset-checkpoint"
    no_file(checkpoint, kind)
    with open_log(path, "a") as log:
        assert offsets_read(log) == list(range(20))
    assert f"going on without a checkpoint: {checkpoint}: no regular file" in caplog.text
    assert os.path.lexists(f"{checkpoint}.damaged")
    assert checkpoint.read_text() == "0\n1\nt 0 20\n"


@pytest.mark.parametrize("damage", ["text", "directory", "fifo", "dangling link"])
def test_partition_metadata_that_cannot_be_parsed_is_set_aside(tmp_path, damage, caplog):
    path = written(tmp_path, 1)
    metadata = path / "partition.metadata"
    if damage == "text":
        metadata.write_text("version: 0\ntopic_id: none\n")
    else:
        no_file(metadata, damage)
    with open_log(path) as log:
        assert log.topic_id is None
    assert os.path.lexists(metadata)
    with open_log(path, "a") as log:
        assert log.topic_id is None
    assert f"the file is {metadata}.damaged now: {metadata}: " in caplog.text
    assert os.path.lexists(f"{metadata}.damaged") and not os.path.lexists(metadata)
    assert main(["verify", "--quiet", str(path)]) == 0


def test_recovery_leaves_no_damaged_snapshot_for_a_later_truncation(tmp_path, caplog):
    config = LogConfig(segment_bytes=1500)
    path = tmp_path / "t-0"
    with open_log(path, "a", config=config) as log:
        for n in range(5):
            log.append_as_leader(idempotent(7, 10 * n, 10, size=100))
    (tmp_path / ".kafka_cleanshutdown").unlink()
    first, *others = sorted(path.glob("*.snapshot"))
    assert len(others) > 1
    change(first, 10, b"\xff")
    with open_log(path, "a", config=config) as log:
        assert offsets_read(log) == list(range(50))
    assert f"{first}: " in caplog.text
    assert not first.exists() and all(snapshot.exists() for snapshot in others)
    assert main(["verify", "--quiet", str(path)]) == 0
