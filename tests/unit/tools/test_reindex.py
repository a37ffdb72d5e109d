"""kcore reindex: indexes are made anew from the log, as recovery and as Kafka make them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kcore.common.progress import Progress
from kcore.inspect.index_files import snapshot_difference
from kcore.log.directory_lock import DirectoryLock
from kcore.log.log_config import LogConfig
from kcore.log.open_log import open_log
from kcore.log.producer_state_entry import ProducerStateEntry
from kcore.log.producer_state_manager import decode_snapshot, encode_snapshot
from kcore.tools.main import main
from tests import golden_data
from tests.unit.tools.command import LOG, contents, run_json
from tests.unit.tools.test_verify import batch


@pytest.fixture
def data(tmp_path) -> Path:
    """A copy of Kafka's data directory, to be changed."""
    return Path(shutil.copytree(golden_data.data_dir(), tmp_path / "data"))


def written_by_us(directory: Path) -> dict[str, bytes]:
    """One batch per append, one run: what IDX-18 is about.  The indexes' content by name."""
    directory.parent.mkdir()
    config = LogConfig(segment_bytes=20_000, index_interval_bytes=500, segment_index_bytes=4_096)
    with open_log(directory, "a", config=config) as log:
        for n in range(300):
            log.append_as_leader(batch(n))
    return {name: data for name, data in contents(directory).items() if name.endswith("index")}


def test_IDX_18_deleted_indexes_come_back_byte_for_byte(tmp_path, capsys):
    indexes = written_by_us(tmp_path / "data" / "t-0")
    assert len(indexes) > 4
    for name in indexes:
        (tmp_path / "data" / "t-0" / name).unlink()
    status, files = run_json(capsys, "reindex", tmp_path / "data", "--index-interval-bytes", 500)
    assert status == 0
    assert {(Path(file["file"]).name, file["status"], file["done"]) for file in files if file["size"] != 0} >= {
        (name, "missing", "written") for name, data in indexes.items() if data
    }
    after = contents(tmp_path / "data" / "t-0")
    assert {name: after[name] for name in indexes if name.endswith(".index")} == {
        name: data for name, data in indexes.items() if name.endswith(".index")
    }
    assert main(["verify", str(tmp_path / "data")]) == 0


def test_IDX_17_check_distinguishes_a_contradiction_from_other_entries_and_changes_nothing(data, capsys):
    index = data / "g-segments-0" / f"{30:020}.index"
    content = bytearray(index.read_bytes())
    content[7] ^= 0x10
    index.write_bytes(content)
    before = contents(data)
    status, files = run_json(capsys, "reindex", "--check", data)
    assert status == 1
    assert contents(data) == before
    (wrong,) = [file for file in files if file["status"] == "contradicts"]
    assert wrong["file"] == str(index)
    assert "position" in wrong["problem"]
    assert {file["status"] for file in files} == {"identical", "agrees", "contradicts"}
    assert {file["done"] for file in files} == {"left"}


def test_kafkas_directory_is_without_contradictions_and_verifies_after_reindexing(data, capsys):
    assert run_json(capsys, "reindex", "--check", data)[0] == 0
    logs = {name: content for name, content in contents(data).items() if name.endswith(".log")}
    assert run_json(capsys, "reindex", data)[0] == 0
    assert {name: content for name, content in contents(data).items() if name.endswith(".log")} == logs
    assert main(["verify", "--json", str(data)]) == 0
    assert '"warnings": 0' in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(("partition", "file"), golden_data.files(".txnindex"))
def test_IDX_16_transaction_indexes_come_back_byte_for_byte(partition, file, data, capsys):
    index = data / partition / file
    original = index.read_bytes()
    index.unlink()
    assert run_json(capsys, "reindex", data / partition)[0] == 0
    assert index.read_bytes() == original
    index.write_bytes(original[:-1] + b"\x7f")
    assert run_json(capsys, "reindex", data / partition)[0] == 0
    # (A last stable offset that stays plausible contradicts nothing, and is made right all the same.)
    assert index.read_bytes() == original


@pytest.mark.parametrize(("partition", "offset"), [("g-idempotent-0", 60), ("g-txn-0", 50), ("g-txn-open-0", None)])
def test_a_damaged_snapshot_is_made_anew_with_the_same_producers(partition, offset, data, capsys):
    paths = sorted((data / partition).glob("*.snapshot"))
    path = data / partition / f"{offset:020}.snapshot" if offset is not None else paths[-1]
    original = path.read_bytes()
    path.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    status, files = run_json(capsys, "reindex", data / partition)
    assert status == 0
    assert [(f["status"], f["done"]) for f in files if f["file"] == str(path)] == [("contradicts", "written")]

    def by_producer(content):
        return sorted(decode_snapshot(content, ""), key=lambda entry: entry.producer_id)

    assert by_producer(path.read_bytes()) == by_producer(original)


def snapshot_lines(partition, capsys):
    """What `--check` says of each snapshot, by file name."""
    assert main(["reindex", "--check", "--quiet", str(partition)]) == 0
    lines = [line.partition(": ") for line in capsys.readouterr().out.splitlines()]
    return {Path(path).name: text for path, _, text in lines if path.endswith(".snapshot")}


def test_a_sound_snapshot_is_compared_with_a_rebuilt_one_and_the_first_difference_is_named(data, capsys):
    partition = data / "g-idempotent-0"
    name = f"{60:020}.snapshot"
    original = (partition / name).read_bytes()
    assert set(snapshot_lines(partition, capsys).values()) == {"identical to what a rebuild from the log gives; left"}
    entries = decode_snapshot(original, "")
    stranger = ProducerStateEntry(7_000_000, 3, (), 1)
    (first,) = entries
    older = ProducerStateEntry(first.producer_id, first.producer_epoch, [first.last_batch], first.last_timestamp - 5)
    differences = {
        encode_snapshot([first, stranger]): "the log has no batch of producer 7000000, which is in the file",
        encode_snapshot([]): f"producer {first.producer_id} of the log is not in the file",
        encode_snapshot([older]): f"producer {first.producer_id} has last_timestamp {first.last_timestamp - 5} in the "
        f"file, {first.last_timestamp} from the log",
    }
    for content, difference in differences.items():
        (partition / name).write_bytes(content)
        assert snapshot_lines(partition, capsys)[name] == (
            f"agrees with the log, but is not byte for byte what a rebuild gives: {difference}; left"
        )
        assert main(["reindex", "--quiet", str(partition)]) == 0
        assert (partition / name).read_bytes() == content


def test_two_snapshots_of_the_same_producers_in_another_order_are_called_that():
    entries = [ProducerStateEntry(n, 0, (), 1) for n in range(3)]
    text = snapshot_difference(encode_snapshot(entries), encode_snapshot(entries[::-1]))
    assert text == "the same producers, in another order"


def test_a_snapshot_of_a_log_whose_start_has_gone_says_that_it_cannot_be_rebuilt(data, capsys):
    partition = data / "g-idempotent-0"
    paths = sorted(partition.glob("*.log"))
    for path in partition.glob(f"{Path(paths[0]).stem}.*"):
        path.unlink()
    first = min(partition.glob("*.snapshot"))
    assert "only the last batches were compared" in snapshot_lines(partition, capsys)[first.name]


@pytest.mark.parametrize("words", [("reindex", "{}"), ("repair", "{}"), ("diff", "{}", "{}")])
def test_the_progress_counts_the_bytes_of_log_files_alone(words, tmp_path, monkeypatch):
    """The 10 MB of an active segment's indexes are not read: the remaining time came out as hours."""
    written_by_us(tmp_path / "data" / "t-0")
    for path in (tmp_path / "data" / "t-0").glob("*.timeindex"):
        os.truncate(path, 10 << 20)
    totals = []

    class Counted(Progress):
        def clear(self):
            totals.append((self.total, self.done))

    monkeypatch.setattr(f"kcore.tools.{words[0]}.Progress", Counted)
    main([words[0], "--quiet", *(word.format(tmp_path / "data") for word in words[1:])])
    size = sum(path.stat().st_size for path in (tmp_path / "data" / "t-0").glob("*.log"))
    assert totals[-1] == (size * (len(words) - 1), size * (len(words) - 1))


def test_a_dry_run_lists_what_the_run_then_writes(data, capsys):
    for path in (data / "g-none-0").glob("*index"):
        path.unlink()
    before = contents(data)
    _, planned = run_json(capsys, "reindex", "--dry-run", data / "g-none-0")
    assert contents(data) == before
    _, done = run_json(capsys, "reindex", data / "g-none-0")
    wanted = [(f["file"], f["size"]) for f in planned if f["done"] == "would write"]
    assert wanted == [(f["file"], f["size"]) for f in done if f["done"] == "written"]
    changed = {name for name, content in contents(data).items() if before.get(name) != content}
    assert changed == {str(Path(name).relative_to(data)) for name, _ in wanted}


def test_apply_says_in_full_what_is_done_anyway_and_does_not_go_with_a_dry_run(data, capsys):
    assert main(["reindex", str(data), "--apply", "--dry-run"]) == 2
    assert main(["reindex", str(data), "--apply", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["reindex", str(data), "--dry-run", "--quiet"]) == 0
    assert capsys.readouterr().out.endswith("0 files to write\n")


def test_an_index_without_a_log_goes(data, capsys):
    orphan = data / "g-none-0" / f"{7:020}.index"
    orphan.write_bytes(bytes(8))
    assert run_json(capsys, "reindex", data / "g-none-0")[0] == 0
    assert not orphan.exists()


def test_a_damaged_log_is_not_indexed(data, capsys):
    log = data / "g-none-0" / LOG
    content = bytearray(log.read_bytes())
    content[3600] ^= 1
    log.write_bytes(content)
    before = contents(data)
    status, files = run_json(capsys, "reindex", data / "g-none-0")
    assert status == 1
    assert files[0]["status"] == "damaged"
    assert "repair" in files[0]["problem"] and "position 3541" in files[0]["problem"]
    assert contents(data) == before
    assert main(["reindex", "--quiet", str(data / "g-none-0")]) == 1
    output = capsys.readouterr().out
    assert "is damaged or cannot be read" in output and "before the log's start" not in output


@pytest.mark.parametrize("option", [[], ["--check"]])
def test_a_directory_in_use_is_refused(option, tmp_path, capsys):
    written_by_us(tmp_path / "data" / "t-0")
    lock = DirectoryLock(str(tmp_path / "data"))
    try:
        assert main(["reindex", str(tmp_path / "data" / "t-0"), *option]) == 2
        # And so it is from another process.
        command = [sys.executable, "-m", "kcore.tools.main", "reindex", str(tmp_path / "data"), *option]
        result = subprocess.run(command, capture_output=True, text=True, timeout=200)
        # The same text with and without writing, as that of a broker which does not start.
        text = f"kcore: {tmp_path / 'data'}: another process holds its .lock: process {os.getpid()} ("
        assert (result.returncode, result.stderr.startswith(text)) == (2, True), result.stderr
        assert result.stderr.endswith("); stop it first, or work on a copy\n")
    finally:
        lock.release()
    assert main(["reindex", str(tmp_path / "data" / "t-0"), *option]) == 0
