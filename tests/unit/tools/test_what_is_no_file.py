"""Directories, FIFOs and broken links in place of files, and sparse files: each command reports them and goes on."""

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pytest

from kcore.inspect import batch_reader, log_files
from kcore.log.open_log import open_log
from kcore.record.crc32c import crc32c
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.tools.main import main
from tests import golden_data
from tests.unit.log.logs import NO_FILES, no_file
from tests.unit.log.logs import batch as batch_of
from tests.unit.tools.command import LOG, contents, run_json

INDEXES = [LOG.replace(".log", suffix) for suffix in (".index", ".timeindex", ".txnindex")]


@pytest.fixture
def data(tmp_path) -> Path:
    """Two of Kafka's partitions, to be changed: the first by name is the one that is harmed."""
    for name in ("g-lz4-0", "g-txn-zstd-0"):
        shutil.copytree(golden_data.partition_dir(name), tmp_path / "data" / name)
    return tmp_path / "data"


def paths_of(events: list[dict], *types: str) -> set[str]:
    return {event["file"] for event in events if event["type"] in types}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", [LOG, *INDEXES, f"{7:020}.snapshot", "leader-epoch-checkpoint", "partition.metadata"])
def test_every_command_names_it_and_goes_on_with_the_other_partitions(name, kind, data, capsys):
    bad = data / "g-lz4-0" / name
    no_file(bad, kind)
    for command in (["dump"], ["verify"], ["verify", "--no-records"]):
        status, events = run_json(capsys, *command, data)
        assert status == 1
        assert str(bad) in paths_of(events, "damage")
        assert any("g-txn-zstd-0" in event.get("file", "") for event in events) or command != ["dump"]
    status, events = run_json(capsys, "reindex", "--check", data)
    assert {os.path.dirname(path) for path in paths_of(events, "index")} >= {str(data / "g-txn-zstd-0")}
    if name.endswith(("index", ".snapshot")):
        assert status == 1
        assert any(event["file"] == str(bad) and event["status"] not in ("identical", "agrees") for event in events)
    elif name == LOG:
        assert status == 1
        ours = [event for event in events if event["file"] == str(data / "g-lz4-0")]
        assert [(event["status"], event["done"]) for event in ours] == [("damaged", "refused")]
    status, events = run_json(capsys, "diff", golden_data.data_dir(), data)
    compared = {os.path.basename(event["b"]): event["equal"] for event in events if event.get("b") and event.get("a")}
    assert compared == {"g-lz4-0": name != LOG, "g-txn-zstd-0": True}


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", INDEXES)
def test_repair_makes_an_index_anew_and_keeps_what_was_there(name, kind, in_place, data, capsys):
    bad = data / "g-lz4-0" / name
    no_file(bad, kind)
    status, events = run_json(capsys, "repair", data, "--apply", *(["--in-place"] if in_place else []))
    assert status == 0, events
    assert run_json(capsys, "verify", events[-1]["result"])[0] == 0
    if in_place:
        assert events[-1]["kept_aside"] == [f"{bad}.repair-cut"]
        assert os.path.lexists(f"{bad}.repair-cut")
        assert kind != "directory" or (bad.with_name(f"{name}.repair-cut") / "dear").exists()


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "partition.metadata", *log_files.OFFSET_CHECKPOINTS])
def test_repair_finds_in_a_small_file_what_verify_finds_and_mends_it(name, kind, in_place, data, capsys):
    bad = data / name if name in log_files.OFFSET_CHECKPOINTS else data / "g-lz4-0" / name
    bad.touch()
    no_file(bad, kind)
    status, events = run_json(capsys, "verify", data)
    assert status == 1 and paths_of(events, "damage") == {str(bad)}
    status, events = run_json(capsys, "repair", data)
    assert (status, paths_of(events, "damage"), paths_of(events, "action")) == (1, {str(bad)}, {str(bad)})
    status, events = run_json(capsys, "repair", data, "--apply", *(["--in-place"] if in_place else []))
    assert status == 0, events
    result = Path(events[-1]["result"])
    assert run_json(capsys, "verify", result)[0] == 0
    if name == "leader-epoch-checkpoint":
        assert (result / "g-lz4-0" / name).read_text() == "0\n1\n0 0\n"


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", INDEXES)
def test_reindex_makes_an_index_anew_and_keeps_what_was_there(name, kind, data, capsys):
    bad = data / "g-lz4-0" / name
    no_file(bad, kind)
    assert run_json(capsys, "reindex", data)[0] == 0
    assert os.path.lexists(f"{bad}.damaged")
    assert run_json(capsys, "verify", data)[0] == 0


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("kind", NO_FILES)
def test_repair_of_a_log_that_cannot_be_opened_reports_it_and_mends_the_others(kind, in_place, data, capsys):
    bad = data / "g-lz4-0" / LOG
    no_file(bad, kind)
    (data / "g-txn-zstd-0" / LOG.replace(".log", ".index")).unlink()
    before = contents(data / "g-lz4-0")
    status, events = run_json(capsys, "repair", data, "--apply", *(["--in-place"] if in_place else []))
    assert status == 1
    assert events[-1]["beyond_repair"] == 1
    assert str(bad) in paths_of(events, "damage")
    assert {event["file"] for event in events if event["type"] == "action"} == {
        str(data / "g-txn-zstd-0" / LOG.replace(".log", ".index"))
    }
    result = Path(events[-1]["result"])
    assert contents(data / "g-lz4-0") == before == contents(result / "g-lz4-0")
    assert run_json(capsys, "verify", result / "g-txn-zstd-0")[0] == 0
    assert main(["repair", str(result), "--apply", "--in-place"]) == 1
    assert "nothing can be repaired" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["dangling link", "looping link"])
def test_a_partition_directory_that_is_a_link_to_nowhere_is_named(kind, data, capsys):
    lost = data / "a-0"
    no_file(lost, kind)
    for command in ("dump", "verify"):
        status, events = run_json(capsys, command, data)
        assert status == 1
        assert paths_of(events, "damage") == {str(lost)}
    status, events = run_json(capsys, "reindex", "--check", data)
    assert status == 1
    refused = [event for event in events if event["done"] == "refused"]
    assert [(event["file"], event["status"]) for event in refused] == [(str(lost), "damaged")]
    tables = data.parent / "tables"
    assert main(["dump", "--format", "arrow", "-o", str(tables), str(data)]) == 1
    assert f"{lost}: cannot be read: " in capsys.readouterr().err
    files = pa.ipc.open_file(tables / "records.arrow").read_all()["file"].unique().to_pylist()
    assert {os.path.basename(os.path.dirname(file)) for file in files} == {"g-lz4-0", "g-txn-zstd-0"}
    lone = data.parent / "lone"
    lone.mkdir()
    no_file(lone / "a-0", kind)
    assert main(["dump", "--format", "arrow", "-o", str(data.parent / "none"), str(lone)]) == 1
    assert f"{lone / 'a-0'}: cannot be read: " in capsys.readouterr().err
    status, events = run_json(capsys, "repair", data)
    assert (status, events[-1]["beyond_repair"]) == (1, 1)
    (data / "g-txn-zstd-0" / INDEXES[0]).unlink()
    status, events = run_json(capsys, "repair", data, "--apply")
    assert (status, events[-1]["actions"], events[-1]["beyond_repair"]) == (1, 1, 1)
    assert os.path.islink(os.path.join(events[-1]["result"], "a-0"))
    status, events = run_json(capsys, "diff", data, data)
    assert {os.path.basename(event["a"]): event["equal"] for event in events[:-1]} == {
        "a-0": False,
        "g-lz4-0": True,
        "g-txn-zstd-0": True,
    }


@pytest.mark.parametrize("name", [f"{0:020}.txnindex", f"{7:020}.snapshot"])
def test_a_small_file_of_a_terabyte_is_damage(name, data, capsys):
    bad = data / "g-lz4-0" / name
    bad.touch()
    os.truncate(bad, 1 << 40)
    for command in ("dump", "verify"):
        status, events = run_json(capsys, command, data)
        assert status == 1
        assert paths_of(events, "damage") == {str(bad)}
    status, events = run_json(capsys, "repair", data, "--apply")
    assert status == 0, events


@pytest.fixture
def bytes_read(monkeypatch) -> list[int]:
    """How many bytes each read of a .log brought."""
    sizes: list[int] = []

    def preadv(fd, buffers, position):
        sizes.append(os.preadv(fd, buffers, position))
        return sizes[-1]

    def pread(fd, size, position):
        sizes.append(len(data := os.pread(fd, size, position)))
        return data

    class Counting:
        def __getattr__(self, name):
            return {"preadv": preadv, "pread": pread}.get(name) or getattr(os, name)

    monkeypatch.setattr(batch_reader, "os", Counting())
    return sizes


@pytest.mark.parametrize("command", [["verify"], ["verify", "--no-records"], ["reindex", "--check"], ["dump"]])
def test_of_a_log_of_a_terabyte_only_what_is_there_is_read(command, tmp_path, bytes_read, capsys):
    path = tmp_path / "t-0"
    with open_log(path, "a") as log:
        log.append_as_leader(batch_of(10, size=100))
    file = path / LOG
    sound = file.read_bytes()
    step = (1 << 31) - (1 << 20)
    with file.open("r+b") as log_file:
        for n in range(1, 500):  # batches of 2 GiB, one after the other, of which only the headers are there
            log_file.seek(len(sound) + (n - 1) * step)
            log_file.write(n.to_bytes(8, "big") + (step - 12).to_bytes(4, "big") + sound[12:100])
        log_file.truncate(len(sound) + 499 * step)
    assert main([*command, str(path)]) == 1
    out = capsys.readouterr().out
    assert out.count("CRC-32C at position") == (1 if "reindex" in command else 499)
    assert sum(bytes_read) < 1 << 30


def test_a_batch_with_holes_where_its_zeros_are_is_sound(tmp_path, capsys):
    builder = RecordBatchBuilder()
    builder.append(bytes(5 << 20) + b"between" + bytes(3 << 20) + b"end", timestamp=1_700_000_000_000)
    data = bytes(builder.build())
    file = tmp_path / LOG
    with file.open("wb") as log_file:
        for at in range(0, len(data), 4096):
            if any(block := data[at : at + 4096]):
                log_file.seek(at)
                log_file.write(block)
    assert file.stat().st_blocks * 512 < len(data) // 2
    assert run_json(capsys, "verify", file)[0] == 0
    with file.open("r+b") as log_file:
        log_file.seek(100)
        log_file.write(b"\1")
    assert run_json(capsys, "verify", file)[0] == 1


@pytest.mark.parametrize("count", [0, 1, 2, 3, 61, 4096, 12_345])
def test_the_crc_of_zeros_is_that_of_so_many_zero_bytes(count):
    for value in (0, 1, 0xFFFFFFFF, 0x12345678):
        assert batch_reader.crc32c_of_zeros(count, value) == crc32c(bytes(count), value)


def test_what_repair_keeps_aside_of_a_sparse_log_is_sparse_too(tmp_path, capsys):
    path = tmp_path / "t-0"
    with open_log(path, "a") as log:
        log.append_as_leader(batch_of(10, size=100))
    file = path / LOG
    sound = file.read_bytes()
    with file.open("r+b") as log_file:
        log_file.seek(1 << 39)
        log_file.write(b"x" * 10)
        log_file.truncate(1 << 40)
    status, events = run_json(capsys, "repair", path, "--apply", "--in-place")
    assert status == 0
    assert file.read_bytes() == sound
    (aside,) = (Path(name) for name in events[-1]["kept_aside"] if LOG in name)
    assert aside.stat().st_size == (1 << 40) - len(sound)
    assert aside.stat().st_blocks * 512 < 1 << 20
    with aside.open("rb") as kept:
        kept.seek((1 << 39) - len(sound))
        assert kept.read(12) == b"x" * 10 + bytes(2)


def commands_of_a_directory(path: Path) -> list[list[str]]:
    return [[name, str(path)] for name in ("dump", "verify", "repair", "reindex", "doctor")] + [
        ["diff", str(path), str(path)]
    ]


def test_the_directory_around_data_directories_is_refused_with_the_names_of_those(data, capsys):
    around = data.parent
    for command in commands_of_a_directory(around):
        assert main(command) == 2
        reason = (
            f"{around}: neither a partition directory nor one that holds some; its directory data holds some: name that"
        )
        assert reason in capsys.readouterr().err
    for number in range(1, 5):
        shutil.copytree(data, around / f"data{number}")
    assert main(["verify", str(around)]) == 2
    assert "; its directories data, data1, data2 and 2 more hold some: name one of them" in capsys.readouterr().err


def test_a_directory_of_segments_that_are_no_partitions_is_refused_with_their_names(tmp_path, capsys):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "mixed.log").write_bytes(b"")
    for command in commands_of_a_directory(tmp_path / "old"):
        assert main(command) == 2
        assert "; it has mixed.log: `kcore verify` and `kcore dump` take a file" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "old" / "mixed.log")]) == 0


def test_a_directory_without_files_of_a_log_is_refused(tmp_path, capsys):
    for command in commands_of_a_directory(tmp_path):
        assert main(command) == 2
        assert capsys.readouterr().err.endswith("neither a partition directory nor one that holds some\n")
