"""kcore repair: the plan is what is done, what it does not name stays, and the result is sound."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcore.common.topic_partition import TopicPartition
from kcore.inspect import repair
from kcore.log.checkpoints import OffsetCheckpointFile
from kcore.log.directory_lock import DirectoryLock, is_held
from kcore.log.log_config import LogConfig
from kcore.log.lost_records import read_mark, write_mark
from kcore.log.open_log import open_log
from kcore.tools.main import main
from tests import golden_data
from tests.batches import batch as batch_of_values
from tests.reference import record_batch as model
from tests.reference.disk import calls, place, recorded
from tests.unit.tools.command import LOG, contents, flip, run_json
from tests.unit.tools.test_verify import batch

SALVAGES = ("truncate", "keep-after")


@pytest.fixture
def data(tmp_path) -> Path:
    """A copy of Kafka's data directory, to be changed."""
    return Path(shutil.copytree(golden_data.data_dir(), tmp_path / "data"))


def by_type(events: list[dict], kind: str) -> list[dict]:
    return [event for event in events if event["type"] == kind]


def offsets_in(directory: Path) -> set[int]:
    """The offsets of all records in the sound batches of the .log files, by the model."""
    offsets = set()
    for log in sorted(directory.glob("*.log")):
        for b in model.decode_batches(log.read_bytes()):
            offsets |= {record.offset for record in b.records}
    return offsets


def assert_sound_but_for_gaps(capsys, directory: Path, note: str = "") -> None:
    """keep-after leaves gaps, and leader epochs of which it is not certain what they should be stay as they are."""
    _, events = run_json(capsys, "verify", directory)
    damage = [event for event in events if event["type"] == "damage" and event["kind"] != "gap"]
    assert not [event for event in damage if not event["problem"].startswith("leader epoch ")], note


@pytest.mark.parametrize("output", ["{data}/fixed", "{data}/g-none-0/deeper/fixed", "{link}/fixed"])
def test_a_copy_that_would_be_inside_what_is_repaired_is_refused(output, data, capsys):
    """It would be copied into itself, and the damaged directory would be written to."""
    flip(data / "g-none-0" / LOG, 70)
    link = data.parent / "link"
    link.symlink_to(data)
    before = contents(data)
    where = output.format(data=data, link=link)
    assert main(["repair", str(data), "--apply", "--output", where]) == 2
    assert f"{where} is inside {data}: name a place outside it with --output" in capsys.readouterr().err
    assert contents(data) == before
    # The plan says it too.
    assert main(["repair", str(data), "--output", where]) == 2


def test_a_copy_beside_the_repaired_partition_is_not_inside_it(data, capsys):
    flip(data / "g-none-0" / LOG, 70)
    assert main(["repair", str(data / "g-none-0"), "--apply", "--output", str(data / "g-none-01")]) == 0


@pytest.mark.parametrize("arguments", [(), ("--salvage", "keep-after")])
def test_a_sound_directory_needs_nothing(arguments, data, capsys):
    before = contents(data)
    status, events = run_json(capsys, "repair", data, "--apply", *arguments)
    assert (status, len(events)) == (0, 1)
    assert (events[0]["actions"], events[0]["applied"]) == (0, False)
    assert contents(data) == before
    assert not Path(f"{data}.repaired").exists()


def test_of_a_sound_directory_no_copy_is_made_and_this_is_said(data, tmp_path, capsys):
    copy = tmp_path / "copy"
    assert main(["repair", str(data), "--apply", "--output", str(copy)]) == 0
    assert capsys.readouterr().out == f"{data}: nothing to repair; {copy} is not made\n"
    assert not copy.exists()
    for options in ((), ("--apply", "--in-place")):
        assert main(["repair", str(data), *options]) == 0
        assert capsys.readouterr().out == f"{data}: nothing to repair\n"


def test_a_plan_changes_nothing_and_names_what_would_go(data, capsys):
    flip(data / "g-none-0" / LOG, 3700)
    before = contents(data)
    status, events = run_json(capsys, "repair", data)
    assert status == 1
    assert contents(data) == before
    assert sorted(os.listdir(data.parent)) == ["data"]
    first, second = by_type(events, "loss")
    assert (first["position"], first["first_offset"], first["last_offset"]) == (3541, 9, 48)
    assert (second["position"], second["first_offset"], second["last_offset"]) == (0, 49, 95)
    assert first["position"] + first["size"] == (data / "g-none-0" / LOG).stat().st_size
    golden = golden_data.expected_file("g-none-0", f"{49:020}.log")["batches"]
    assert (second["batches"], second["records"]) == (len(golden), sum(b["count"] for b in golden))
    assert events[-1]["lost_bytes"] == first["size"] + second["size"]
    assert events[-1]["applied"] is False


@pytest.mark.parametrize("salvage", SALVAGES)
@pytest.mark.parametrize("in_place", [False, True])
def test_what_is_done_is_the_plan_and_nothing_else(salvage, in_place, data, capsys):
    flip(data / "g-none-0" / LOG, 3700)
    flip(data / "g-lz4-0" / LOG, 900)
    flip(data / "g-segments-0" / f"{30:020}.index", 7, 0x10)
    flip(data / "g-txn-0" / "00000000000000000050.snapshot", 30)
    (data / "g-zstd-0" / "leader-epoch-checkpoint").write_bytes(b"garbage")
    (data / "log-start-offset-checkpoint").write_bytes(b"\xff")
    before = contents(data)
    options = ["--salvage", salvage, *(["--in-place"] if in_place else [])]
    _, planned = run_json(capsys, "repair", data, *options)
    status, done = run_json(capsys, "repair", data, *options, "--apply")
    assert status == 0
    assert done[:-1] == planned[:-1]
    assert (done[-1]["applied"], done[-1]["problems_left"]) == (True, [])
    result = data if in_place else Path(f"{data}.repaired")
    assert done[-1]["result"] == str(result)
    after = contents(result)
    aside = {str(Path(name).relative_to(data)) for name in done[-1]["kept_aside"]}
    named = {str(Path(event["file"]).relative_to(data)): event for event in by_type(done, "action")}
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} - aside
    assert changed == set(named)
    for name, action in named.items():
        assert (name in after) is (action["action"] != "remove")
        assert (name in before) is (action["action"] != "create")
        if action["action"] in ("cut", "drop"):
            assert after[name] == b"".join(before[name][start:end] for start, end in action["keep"])
        if action["new_size"] is not None:
            assert len(after[name]) == action["new_size"]
    assert not in_place or aside
    if not in_place:
        assert contents(data) == before
    assert_sound_but_for_gaps(capsys, result)
    for partition in {Path(name).parent.name for name in named} - {""}:
        with open_log(result / partition) as log:
            list(log.records())


def test_in_place_every_byte_that_goes_is_kept_aside(data, capsys):
    directory = data / "g-none-0"
    flip(directory / LOG, 3700)
    before = contents(directory)
    assert main(["repair", str(data), "--apply", "--in-place", "--quiet"]) == 0
    text = capsys.readouterr().out
    after = contents(directory)
    assert after[LOG] + after[f"{LOG}.3541-16306.repair-cut"] == before[LOG]
    assert after[f"{49:020}.log.repair-cut"] == before[f"{49:020}.log"]
    assert f"kept aside: {directory / LOG}.3541-16306.repair-cut" in text
    # A broker, Kafka's or ours, does not look at them.
    with open_log(directory) as log:
        assert log.log_end_offset == 9
    # Mended twice, nothing is overwritten.
    flip(directory / LOG, 100)
    assert main(["repair", str(data), "--apply", "--in-place", "--quiet"]) == 0
    assert contents(directory).keys() >= after.keys() - {LOG}


def test_in_place_what_is_cut_off_is_on_disk_under_another_name_before_and_the_cut_before_the_marker(data, capsys):
    log = data / "g-none-0" / f"{49:020}.log"
    log.write_bytes(log.read_bytes() + log.read_bytes()[:70])
    with recorded() as record:
        assert main(["repair", str(data), "--apply", "--in-place", "--quiet"]) == 0
        done = calls(record, data)
    assert place(done, "unlink .kafka_cleanshutdown") + 1 == place(done, "fsync .")
    cut = place(done, f"ftruncate g-none-0/{log.name}")
    assert place(done, "fsync g-none-0") < cut
    assert done[cut + 1] == f"fsync g-none-0/{log.name}"
    marker = place(done, "rename .kafka_cleanshutdown.tmp *")
    assert "fsync g-none-0" in done[cut:marker]


def marks(directory: Path) -> dict[str, int | None]:
    """Of all partitions of a data directory that have one."""
    return {path.parent.name: read_mark(str(path.parent)) for path in directory.glob("*/lost-records")}


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("salvage", "last"), [("truncate", 95), ("keep-after", 13)])
def test_a_log_that_loses_records_gets_the_mark_at_the_first_of_them(salvage, last, in_place, data, capsys):
    flip(data / "g-none-0" / LOG, 3700)
    options = ["--salvage", salvage, "--apply", *(["--in-place"] if in_place else [])]
    status, events = run_json(capsys, "repair", data, *options)
    assert status == 0 and by_type(events, "loss")[-1]["last_offset"] == last
    mark = data / "g-none-0" / "lost-records"
    first_action = by_type(events, "action")[0]
    assert (first_action["action"], first_action["file"]) == ("create", str(mark))
    assert first_action["new_size"] == len(b"version: 0\nfirst_lost_offset: 9\n")
    assert marks(data if in_place else Path(f"{data}.repaired")) == {"g-none-0": 9}
    assert in_place or not mark.exists()


def test_a_repair_that_loses_no_record_leaves_no_mark(data, capsys):
    (data / "g-none-0" / f"{0:020}.index").unlink()
    status, events = run_json(capsys, "repair", data, "--apply", "--in-place")
    assert status == 0 and by_type(events, "action") and not by_type(events, "loss")
    assert marks(data) == {}


def test_records_that_were_deleted_before_are_not_missed(data, capsys):
    flip(data / "g-none-0" / LOG, 3700)
    starts = OffsetCheckpointFile(str(data / "log-start-offset-checkpoint"))
    starts.write(starts.read() | {TopicPartition("g-none", 0): 14})
    _, events = run_json(capsys, "repair", data, "--salvage", "keep-after", "--apply", "--in-place")
    assert [loss["last_offset"] for loss in by_type(events, "loss")] == [13]
    assert marks(data) == {}
    flip(data / "g-none-0" / LOG, 100)
    run_json(capsys, "repair", data, "--apply", "--in-place")
    assert marks(data) == {"g-none-0": 14}


@pytest.mark.parametrize(("before", "after", "action"), [(4, 4, None), (40, 9, "rewrite"), (9, 9, None)])
def test_the_lower_of_two_marks_stays(before, after, action, data, capsys):
    directory = data / "g-none-0"
    write_mark(str(directory), before)
    flip(directory / LOG, 3700)
    status, events = run_json(capsys, "repair", data, "--apply")
    assert status == 0  # that a mark stays is only a warning
    named = [event["action"] for event in by_type(events, "action") if event["file"] == str(directory / "lost-records")]
    assert named == ([] if action is None else [action])
    assert marks(Path(f"{data}.repaired")) == {"g-none-0": after}
    assert marks(data) == {"g-none-0": before}


def test_a_mark_that_cannot_be_read_stays_as_it_is(data, capsys):
    """A broker takes it as one of offset 0."""
    mark = data / "g-none-0" / "lost-records"
    mark.write_text("version: 0\n")
    flip(data / "g-none-0" / LOG, 3700)
    assert run_json(capsys, "repair", data, "--apply", "--in-place")[0] == 1
    assert mark.read_text() == "version: 0\n"


def test_in_place_the_mark_is_on_the_disk_before_anything_is_cut(data, capsys, monkeypatch):
    directory, done = data / "g-none-0", []
    flip(directory / LOG, 3700)

    def note(name):
        function = getattr(repair, name)

        def noted(path, *arguments):
            done.append((name, Path(path).name, (directory / "lost-records").exists()))
            function(path, *arguments)

        monkeypatch.setattr(repair, name, noted)

    note("sync_path")
    note("truncate_file")
    assert main(["repair", str(data), "--apply", "--in-place", "--quiet"]) == 0
    assert done[:2] == [("sync_path", "g-none-0", True), ("truncate_file", LOG, True)]


def test_checkpoints_follow_the_end_of_a_log_that_was_cut(data, capsys):
    flip(data / "g-none-0" / LOG, 3700)
    assert run_json(capsys, "repair", data / "g-none-0", "--apply", "--in-place")[0] == 0
    tp = TopicPartition("g-none", 0)
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        assert OffsetCheckpointFile(str(data / name)).read()[tp] == 9
    assert (data / ".kafka_cleanshutdown").read_bytes() == (
        golden_data.data_dir() / ".kafka_cleanshutdown"
    ).read_bytes()
    assert main(["verify", str(data)]) == 0


def test_keep_after_keeps_valid_batches_after_damage_and_explains_the_consequences(data, capsys):
    directory = data / "g-none-0"
    offsets = offsets_in(directory)
    flip(directory / LOG, 3700)
    assert main(["repair", str(data), "--salvage", "keep-after", "--apply"]) == 0
    text = capsys.readouterr().out
    assert "read_committed consumers may wait" in text
    assert "offsets 9..13: 591 bytes that cannot be read (5 offsets)\n" in text
    assert offsets_in(Path(f"{data}.repaired") / "g-none-0") == offsets - set(range(9, 14))


def test_a_plan_counts_each_loss_by_its_kind_and_names_a_salvage_that_keeps_more(data, capsys):
    directory = data / "g-none-0"
    flip(directory / LOG, 3700)
    assert main(["repair", str(data), "--quiet"]) == 1
    lines = capsys.readouterr().out.splitlines()
    readable = "35 records in 10 batches (12174 bytes) and 591 bytes that cannot be read (5 offsets)"
    assert f"  goes: {LOG} from position 3541, offsets 9..48: {readable}" in lines
    other = f"{49:020}.log from position 0, offsets 49..95, after the cut"
    assert f"  goes: {other}: 47 records in 14 batches (16273 bytes)" in lines
    more = "82 records in 24 batches after the damage, 28.4 kB"
    assert f"  --salvage keep-after would keep more: {more}" in lines
    unreadable = "591 bytes that cannot be read (5 offsets)"
    assert lines[-1].startswith(
        f"12 files change; lost: 82 records in 24 batches (28447 bytes) and {unreadable}; "
        f"with --salvage keep-after only {unreadable}.  Nothing was changed"
    )
    _, events = run_json(capsys, "repair", data)
    other = events[-1]["other_salvage"]
    lost = {"lost_bytes": 591, "lost_records": 0, "unreadable_bytes": 591, "unreadable_offsets": 5}
    assert other == {"salvage": "keep-after", "batches": 24, "records": 82, "bytes": 28447} | lost
    assert (events[-1]["unreadable_bytes"], events[-1]["lost_bytes"]) == (591, 28447 + 591)
    assert [loss["unreadable_bytes"] for loss in by_type(events, "loss")] == [591, 0]
    _, events = run_json(capsys, "repair", data, "--salvage", "keep-after")
    assert events[-1]["other_salvage"] is None
    assert {name: events[-1][name] for name in lost} == lost
    # Where nothing valid is after the damage both keep the same.
    shutil.copy(golden_data.partition_dir("g-none-0") / LOG, directory / LOG)
    last = directory / f"{49:020}.log"
    last.write_bytes(last.read_bytes()[:-1])
    _, events = run_json(capsys, "repair", data)
    assert events[-1]["other_salvage"] is None and len(by_type(events, "loss")) == 1
    assert main(["repair", str(data), "--quiet"]) == 1
    assert "with --salvage" not in capsys.readouterr().out


def test_what_the_other_salvage_would_lose_counts_all_partitions(data, capsys):
    """Also one where both modes lose the same."""
    flip(data / "g-none-0" / LOG, 3700)
    batch = golden_data.expected_file("g-lz4-0", LOG)["batches"][-1]
    flip(data / "g-lz4-0" / LOG, batch["position"] + 70)
    _, events = run_json(capsys, "repair", data)
    _, after = run_json(capsys, "repair", data, "--salvage", "keep-after")
    other = events[-1]["other_salvage"]
    assert other["lost_bytes"] == after[-1]["lost_bytes"] == 591 + batch["size"]
    assert other["unreadable_offsets"] == after[-1]["unreadable_offsets"]
    assert main(["repair", str(data), "--quiet", "--salvage", "keep-after"]) == 1
    lost = capsys.readouterr().out.splitlines()[-1].partition("lost: ")[2].partition(".  Nothing")[0]
    assert main(["repair", str(data), "--quiet"]) == 1
    assert f"; with --salvage keep-after only {lost}.  Nothing" in capsys.readouterr().out.splitlines()[-1]


def test_a_plan_names_a_directory_once_and_its_files_below_it(data, capsys):
    flip(data / "g-none-0" / LOG, 3700)
    assert main(["repair", str(data), "--quiet"]) == 1
    *plan, outcome = capsys.readouterr().out.splitlines()
    assert [line for line in plan if str(data) in line] == [f"{data / 'g-none-0'}:", f"{data}:"]
    assert outcome.count(str(data)) == 1


@pytest.mark.parametrize("files", [1, 2])
def test_numbers_agree_with_their_nouns(files, data, capsys):
    assert main(["reindex", str(data / "g-none-0"), "--quiet"]) == 0
    for name in (f"{0:020}.index", f"{49:020}.timeindex")[:files]:
        (data / "g-none-0" / name).unlink()
    capsys.readouterr()
    assert main(["repair", str(data), "--quiet"]) == 1
    outcome = capsys.readouterr().out.splitlines()[-1]
    assert outcome.startswith(("1 file changes; no record is lost", "2 files change; no record is lost")[files - 1])
    assert main(["verify", str(data), "--quiet"]) == 0
    assert ("1 warning,", "2 warnings,")[files - 1] in capsys.readouterr().out.splitlines()[-1]
    assert main(["reindex", str(data / "g-none-0"), "--dry-run", "--quiet"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == ("1 file to write", "2 files to write")[files - 1]


def test_a_wrong_base_offset_costs_nothing_where_only_one_fits(data, capsys):
    """The CRC does not cover it: one that is too high looks at first as if the batch after it were wrong."""
    log = data / "g-none-0" / LOG
    original = log.read_bytes()
    batches = golden_data.expected_file("g-none-0", LOG)["batches"]
    flip(log, batches[2]["position"] + 5, 0x04)
    for salvage in ("truncate", "keep-after"):
        _, events = run_json(capsys, "repair", data, "--salvage", salvage)
        assert by_type(events, "loss") == []
        (action,) = by_type(events, "action")
        assert (action["action"], action["file"]) == ("correct", str(log))
        (correction,) = action["corrections"]
        assert correction["position"] == batches[2]["position"]
        assert int(correction["bytes"], 16) == batches[2]["baseOffset"]
    assert main(["repair", str(data), "--apply", "--quiet"]) == 0
    assert "1 file changes; no record is lost" in capsys.readouterr().out
    assert (data.parent / "data.repaired" / "g-none-0" / LOG).read_bytes() == original


def test_the_line_about_a_loss_and_the_sum_count_the_same(data, capsys):
    batch = golden_data.expected_file("g-none-0", LOG)["batches"][2]
    flip(data / "g-none-0" / LOG, batch["position"] + 70)
    assert main(["repair", str(data), "--salvage", "keep-after", "--quiet"]) == 1
    lines = capsys.readouterr().out.splitlines()
    count = batch["lastOffset"] - batch["baseOffset"] + 1
    text = f"{batch['size']} bytes that cannot be read ({count} offset{'s' * (count > 1)})"
    (goes,) = (line for line in lines if line.startswith("  goes:"))
    assert goes.endswith(text)
    assert f"lost: {text}." in lines[-1]


def test_a_copy_that_would_stop_a_broker_is_warned_of(data, capsys):
    flip(data / "g-none-0" / LOG, 3700)
    assert main(["repair", str(data / "g-none-0")]) == 1
    assert "A broker refuses to start" in capsys.readouterr().out
    assert main(["repair", str(data / "g-none-0"), "--output", str(data.parent / "g-none-0")]) == 1
    assert main(["repair", str(data)]) == 1
    assert "refuses to start" not in capsys.readouterr().out


def test_a_torn_end_is_cut_and_all_before_it_stays(data, capsys):
    log = data / "g-none-0" / f"{49:020}.log"
    content = log.read_bytes()
    log.write_bytes(content + content[:70])
    status, events = run_json(capsys, "repair", data / "g-none-0", "--apply", "--output", data.parent / "out")
    assert status == 0
    (loss,) = by_type(events, "loss")
    assert (loss["size"], loss["first_offset"], loss["records"]) == (70, 96, 0)
    assert (data.parent / "out" / log.name).read_bytes() == content


def test_damage_that_cannot_be_repaired_is_kept_and_reported(data, capsys):
    (data / "meta.properties").write_bytes(b"\xff")
    status, events = run_json(capsys, "repair", data, "--apply")
    assert status == 1
    assert events[-1]["beyond_repair"] == 1
    assert [event["file"] for event in by_type(events, "damage")] == [str(data / "meta.properties")]


def test_an_interrupted_cleaning_is_finished_before_a_repair(data, capsys):
    flip(data / "g-none-0" / LOG, 3700)
    shutil.copy(data / "g-none-0" / f"{49:020}.log", data / "g-none-0" / f"{49:020}.log.swap")
    status, events = run_json(capsys, "repair", data / "g-none-0", "--apply")
    assert status == 1
    assert any(".swap" in event["problem"] for event in by_type(events, "damage"))
    assert not by_type(events, "action")


def test_a_directory_that_a_process_holds_is_refused(data, capsys):
    flip(data / "g-none-0" / LOG, 3700)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from kcore.log.directory_lock import DirectoryLock\n"
            "lock = DirectoryLock(sys.argv[1]); print('held', flush=True); sys.stdin.read()",
            str(data),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        before = contents(data)
        for options in ([], ["--apply"], ["--apply", "--in-place"]):
            assert main(["repair", str(data), *options]) == 2
            assert ".lock" in capsys.readouterr().err
        assert main(["repair", str(data / "g-none-0"), "--apply", "--in-place"]) == 2
        assert contents(data) == before
    finally:
        holder.stdin.close()
        holder.stdout.close()
        holder.wait(60)
    assert main(["repair", str(data)]) == 1


def test_checking_whether_a_directory_is_locked_does_not_release_it(tmp_path):
    assert not is_held(str(tmp_path))
    lock = DirectoryLock(str(tmp_path))
    code = "import sys; from kcore.log.directory_lock import is_held; print(is_held(sys.argv[1]))"
    for _ in range(2):
        assert is_held(str(tmp_path))
        result = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=200
        )
        assert result.stdout == "True\n", result.stderr
    lock.release()
    assert not is_held(str(tmp_path))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--apply", "--output", "."],
        ["--output", "x", "--in-place"],
        ["--salvage", "everything"],
    ],
)
def test_bad_usage(arguments, data, capsys):
    assert main(["repair", str(data), *arguments]) == 2
    assert main(["repair", str(data / "g-none-0" / LOG)]) == 2
    assert capsys.readouterr().err


def test_a_read_only_directory_is_planned_for_and_copied_mended(data, capsys):
    flip(data / "g-none-0" / LOG, 3700)
    for directory, _, names in os.walk(data):
        for name in names:
            os.chmod(os.path.join(directory, name), 0o444)
        os.chmod(directory, 0o555)
    try:
        assert main(["repair", str(data)]) == 1
        assert main(["repair", str(data), "--apply", "--output", str(data.parent / "out")]) == 0
    finally:
        for directory, _, _ in os.walk(data.parent):
            os.chmod(directory, 0o755)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    """A closed data directory of ours: segments, codecs, epochs, an idempotent producer."""
    data = tmp_path_factory.mktemp("repair") / "data"
    data.mkdir()
    config = LogConfig(segment_bytes=6_000, index_interval_bytes=400, segment_index_bytes=4_096)
    with open_log(data / "t-0", "a", config=config) as log:
        for n in range(120):
            log.append_as_leader(batch(n, model.CODECS[n % 5]), leader_epoch=n // 40)
    return data


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), salvage=st.sampled_from(SALVAGES), in_place=st.booleans())
def test_random_damage_is_mended_and_only_the_offsets_that_were_named_are_lost(
    seed, salvage, in_place, pristine, tmp_path_factory, capsys
):
    rng = random.Random(seed)
    work = tmp_path_factory.mktemp("damaged")
    data = Path(shutil.copytree(pristine, work / "data"))
    if rng.random() < 0.5:
        (data / ".kafka_cleanshutdown").unlink()
    offsets = offsets_in(data / "t-0")
    boundaries = {
        log.name: {b.position for b in model.decode_batches(log.read_bytes())} for log in (data / "t-0").glob("*.log")
    }
    files = sorted(path for path in data.rglob("*") if path.is_file() and path.stat().st_size)
    files = [path for path in files if path.name not in (".lock", "partition.metadata", "meta.properties")]
    for _ in range(rng.randint(1, 4)):
        path = rng.choice(files)
        content = bytearray(path.read_bytes())
        if not content:
            continue
        at = rng.randrange(len(content))
        match rng.randrange(4):
            case 0:
                content[at] ^= 1 << rng.randrange(8)
            case 1:
                # (After a cut at the end of a batch the files do not show that there was more.)
                del content[at + (at in boundaries.get(path.name, ())) :]
            case 2:
                content[at : at + rng.randint(1, 300)] = rng.randbytes(rng.randint(0, 300))
            case 3:
                content[at : at + rng.randint(1, 300)] = bytes(rng.randint(0, 300))
        path.write_bytes(content)
    options = ["--salvage", salvage, *(["--in-place"] if in_place else [])]
    status, events = run_json(capsys, "repair", data, "--apply", *options)
    result = Path(events[-1]["result"] or data)
    note = f"seed={seed} {json.dumps(events, indent=1)}"
    # A gap that was there before, or that damage pretends, is in no file here.
    assert status == (1 if events[-1]["beyond_repair"] else 0), note
    if not any("so no file of this partition changes" in e["problem"] for e in by_type(events, "damage")):
        assert_sound_but_for_gaps(capsys, result, note)
    left = offsets_in(result / "t-0")
    # (A base offset that damage made higher, with nothing to hold it against, is a new offset: commands/verify.md.)
    lost = offsets - left
    losses = [(e["first_offset"], e["last_offset"]) for e in by_type(events, "loss")]
    unnamed = {o for o in lost if not any(first <= o and (last is None or o <= last) for first, last in losses)}
    if left <= offsets:
        assert not unnamed, note
    with open_log(result / "t-0") as log:
        # (A log start that damage put above the end would empty it; then there is nothing to read.)
        assert {record.offset for record in log.records()} <= left, note
    shutil.rmtree(work)


def test_a_damaged_kraft_snapshot_is_reported_and_kept(data, capsys):
    flip(data / "bootstrap.checkpoint", 70)
    status, events = run_json(capsys, "repair", data, "--apply")
    assert (status, events[-1]["beyond_repair"]) == (1, 1)
    assert by_type(events, "damage")[0]["file"] == str(data / "bootstrap.checkpoint")


@pytest.mark.parametrize("seed", range(8))
def test_no_mess_makes_a_command_fail_and_a_mended_copy_of_it_verifies_and_opens(seed, tmp_path, capsys):
    """Kafka's files with bytes changed, files cut, gone, and renamed as an interrupted deletion renames them."""
    rng = random.Random(seed)
    data = tmp_path / "data"
    data.mkdir()
    for path in golden_data.data_dir().iterdir():
        if path.is_file() and path.name not in ("meta.properties", "bootstrap.checkpoint"):
            shutil.copy(path, data / path.name)
    partitions = sorted(path for path in golden_data.data_dir().iterdir() if path.is_dir())
    for partition in rng.sample(partitions, 2):
        shutil.copytree(partition, data / partition.name)
    for path in rng.sample(sorted(path for path in data.rglob("*") if path.is_file()), rng.randint(1, 8)):
        content = bytearray(path.read_bytes())
        at = rng.randrange(len(content) or 1)
        match rng.randrange(4):
            case 0:
                path.unlink()
                continue
            case 1:
                path.rename(path.with_name(path.name + rng.choice([".deleted", ".cleaned"])))
                continue
            case 2:
                del content[at:]
            case 3:
                content[at : at + rng.randint(1, 40)] = rng.randbytes(rng.randint(0, 40))
        path.write_bytes(content)
    for command in (["dump"], ["verify"], ["verify", "--no-records"], ["reindex", "--check"]):
        assert run_json(capsys, *command, data)[0] in (0, 1), command
    assert run_json(capsys, "diff", golden_data.data_dir(), data)[0] == 1
    salvage = rng.choice(SALVAGES)
    status, events = run_json(capsys, "repair", data, "--apply", "--salvage", salvage, "--output", tmp_path / "out")
    if not by_type(events, "action"):
        shutil.copytree(data, tmp_path / "out")
    assert status == (1 if events[-1]["beyond_repair"] else 0), json.dumps(events, indent=1)
    assert_sound_but_for_gaps(capsys, tmp_path / "out")
    for partition in (path for path in (tmp_path / "out").iterdir() if path.is_dir() and list(path.glob("*.log"))):
        with open_log(partition) as log:
            assert sum(1 for _ in log.records()) >= 0


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_last_segment_that_is_missing_below_the_recovery_point_is_a_loss(is_clean, pristine, tmp_path, capsys):
    data = Path(shutil.copytree(pristine, tmp_path / "data"))
    if not is_clean:
        (data / ".kafka_cleanshutdown").unlink()
    last = sorted((data / "t-0").glob("*.log"))[-1]
    first = int(last.stem)
    end = max(offsets_in(data / "t-0")) + 1
    for path in (data / "t-0").glob(f"{last.stem}.*"):
        path.unlink()
    missing = f"offsets {first}..{end - 1}"
    assert main(["verify", str(data)]) == 1
    assert f"{missing} are missing" in capsys.readouterr().out
    assert main(["repair", str(data)]) == 1
    printed = capsys.readouterr().out
    assert f"{missing}: {end - first} offsets in no file" in printed
    assert "no record is lost" not in printed
    status, events = run_json(capsys, "repair", data / "t-0")
    (loss,) = by_type(events, "loss")
    assert status == 1
    assert (loss["first_offset"], loss["last_offset"], loss["unreadable_offsets"]) == (first, end - 1, end - first)
    assert (events[-1]["losses"], events[-1]["unreadable_offsets"]) == (1, end - first)
    status, events = run_json(capsys, "repair", data, "--apply")
    assert (status, events[-1]["losses"]) == (0, 1)
    assert_sound_but_for_gaps(capsys, tmp_path / "data.repaired")


@pytest.mark.parametrize("salvage", SALVAGES)
def test_after_a_clean_stop_the_recovery_point_says_which_offsets_the_last_bad_batch_had(
    salvage, pristine, tmp_path, capsys
):
    data = Path(shutil.copytree(pristine, tmp_path / "data"))
    last = sorted((data / "t-0").glob("*.log"))[-1]
    bad = model.decode_batches(last.read_bytes())[-1]
    content = bytearray(last.read_bytes())
    content[bad.position + 70] ^= 1
    last.write_bytes(content)
    _, events = run_json(capsys, "repair", data, "--salvage", salvage)
    (loss,) = by_type(events, "loss")
    count = len(bad.records)
    expected = (bad.base_offset, bad.base_offset + count - 1, count)
    assert (loss["first_offset"], loss["last_offset"], loss["unreadable_offsets"]) == expected


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "replication-offset-checkpoint"])
def test_after_an_unclean_stop_the_checkpoints_say_how_many_offsets_a_bad_end_had_at_least(
    name, pristine, tmp_path, capsys
):
    data = Path(shutil.copytree(pristine, tmp_path / "data"))
    for other in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (data / other).unlink()
    last = sorted((data / "t-0").glob("*.log"))[-1]
    *_, bad, end = model.decode_batches(last.read_bytes())
    content = bytearray(last.read_bytes())
    content[bad.position + 70 :] = bytes(len(content) - bad.position - 70)
    last.write_bytes(content)
    set_checkpoint(data, name, end.base_offset + 1)
    assert main(["repair", str(data)]) == 1
    assert f" offsets {bad.base_offset} to at least {end.base_offset}: " in capsys.readouterr().out
    _, events = run_json(capsys, "repair", data)
    (loss,) = by_type(events, "loss")
    assert (loss["first_offset"], loss["last_offset"]) == (bad.base_offset, None)
    assert loss["last_offset_at_least"] == end.base_offset
    (data / name).unlink()
    assert main(["repair", str(data)]) == 1
    assert f" offsets {bad.base_offset} to ?: " in capsys.readouterr().out


@pytest.mark.parametrize(("at", "field"), [(16, "magic"), (6, "base offset")])
def test_where_the_end_of_a_transaction_is_corrected_its_index_stays_as_it_is(at, field, data, capsys):
    """Not as if the transaction had ended where the wrong header says."""
    path = data / "g-txn-0" / "00000000000000000050.log"
    sound = contents(data)
    flip(path, 2936 + at)
    status, events = run_json(capsys, "repair", data, "--apply", "--in-place")
    assert [event["action"] for event in by_type(events, "action")] == ["correct"], field
    assert status == 0 and {name: data for name, data in contents(data).items() if name in sound} == sound


def set_checkpoint(data: Path, name: str, offset: int) -> None:
    OffsetCheckpointFile(str(data / name)).write({TopicPartition("t", 0): offset})


@pytest.mark.parametrize("salvage", SALVAGES)
def test_a_last_segment_that_is_missing_below_the_high_watermark_is_a_loss(salvage, pristine, tmp_path, capsys):
    """After a failure of the machine the recovery point says nothing about it: acknowledged records need no fsync."""
    data = Path(shutil.copytree(pristine, tmp_path / "data"))
    (data / ".kafka_cleanshutdown").unlink()
    first = int(max((data / "t-0").glob("*.log")).stem)
    end = max(offsets_in(data / "t-0")) + 1
    set_checkpoint(data, "recovery-point-offset-checkpoint", first)
    set_checkpoint(data, "replication-offset-checkpoint", end)
    for path in (data / "t-0").glob(f"{first:020}.*"):
        path.unlink()
    missing = f"offsets {first}..{end - 1}"
    main(["verify", str(data)])
    assert f"{missing} are missing" in capsys.readouterr().out
    assert main(["repair", str(data), "--salvage", salvage]) == 1
    printed = capsys.readouterr().out
    assert f"{missing}: {end - first} offsets in no file" in printed
    assert "no record is lost" not in printed
    _, events = run_json(capsys, "repair", data, "--apply", "--salvage", salvage)
    (loss,) = by_type(events, "loss")
    assert (loss["first_offset"], loss["last_offset"], loss["size"]) == (first, end - 1, 0)
    assert marks(tmp_path / "data.repaired") == {"t-0": first}


def test_an_unclean_tail_below_the_high_watermark_names_the_offsets_that_are_missing(pristine, tmp_path, capsys):
    data = Path(shutil.copytree(pristine, tmp_path / "data"))
    (data / ".kafka_cleanshutdown").unlink()
    log = max((data / "t-0").glob("*.log"))
    last = model.decode_batches(log.read_bytes())[-1]
    end = last.base_offset + len(last.records)
    set_checkpoint(data, "recovery-point-offset-checkpoint", int(log.stem))
    set_checkpoint(data, "replication-offset-checkpoint", end)
    os.truncate(log, log.stat().st_size - 1)
    _, events = run_json(capsys, "verify", data)
    expected = f"replication-offset-checkpoint says {end}: offsets {last.base_offset}..{end - 1} are missing"
    assert [e for e in by_type(events, "warning") if expected in e["problem"]]


def shift_offsets(log: Path, first: int, last: int | None, by: int) -> list[int]:
    """Add to the base offsets of the batches first..last of a .log, which no CRC covers.  Returns what they were."""
    content = bytearray(log.read_bytes())
    batches = model.decode_batches(bytes(content))[first:last]
    for each in batches:
        content[each.position : each.position + 8] = (each.base_offset + by).to_bytes(8, "big")
    log.write_bytes(content)
    return [each.base_offset for each in batches]


@pytest.mark.parametrize("salvage", SALVAGES)
def test_a_batch_that_goes_though_its_offsets_stay_with_others_leaves_the_mark(salvage, pristine, tmp_path, capsys):
    """After an unclean stop nothing says where the log ended: which of the offsets is lost is not certain."""
    data = Path(shutil.copytree(pristine, tmp_path / "data"))
    (data / ".kafka_cleanshutdown").unlink()
    log = max((data / "t-0").glob("*.log"))
    size = len(model.decode_batches(log.read_bytes())[-2].records)
    first_wrong = shift_offsets(log, -2, None, -size)[0]
    _, events = run_json(capsys, "repair", data, "--salvage", salvage, "--apply")
    assert by_type(events, "loss")
    (mark,) = marks(tmp_path / "data.repaired").values()
    assert mark is not None and mark <= first_wrong


@pytest.mark.parametrize("salvage", SALVAGES)
def test_the_mark_is_not_above_batches_that_may_be_the_wrong_ones(salvage, pristine, tmp_path, capsys):
    """Of two runs of batches that contradict each other the shorter goes, but the longer may be the wrong one."""
    data = Path(shutil.copytree(pristine, tmp_path / "data"))
    (data / ".kafka_cleanshutdown").unlink()
    log = max((data / "t-0").glob("*.log"))
    assert len(model.decode_batches(log.read_bytes())) > 8
    first_wrong = shift_offsets(log, 1, -2, 400)[0]
    shift_offsets(log, -4, -2, 3)
    _, events = run_json(capsys, "repair", data, "--salvage", salvage, "--apply")
    assert by_type(events, "loss")
    assert marks(tmp_path / "data.repaired") == {"t-0": first_wrong}


@pytest.mark.parametrize("salvage", SALVAGES)
@pytest.mark.parametrize("by", [256, -1])
def test_a_long_run_of_batches_that_moved_together_is_moved_back_to_end_at_the_recovery_point(
    by, salvage, pristine, tmp_path, capsys
):
    data = Path(shutil.copytree(pristine, tmp_path / "data"))
    log = max((data / "t-0").glob("*.log"))
    before = contents(data)
    assert len(shift_offsets(log, -6, None, by)) == 6
    status, events = run_json(capsys, "repair", data, "--salvage", salvage, "--apply")
    assert (status, events[-1]["losses"]) == (0, 0)
    assert contents(tmp_path / "data.repaired") == before


@pytest.mark.parametrize("salvage", SALVAGES)
def test_a_log_that_ends_beyond_the_recovery_point_of_a_clean_stop_after_a_gap_stays_as_it_is(
    salvage, pristine, tmp_path, capsys
):
    data = Path(shutil.copytree(pristine, tmp_path / "data"))
    log = max((data / "t-0").glob("*.log"))
    end = max(offsets_in(data / "t-0")) + 1
    first_wrong = shift_offsets(log, -6, -3, 300)[0]
    shift_offsets(log, -3, None, 5_000)
    before = contents(data)
    status, events = run_json(capsys, "repair", data, "--salvage", salvage, "--apply", "--in-place")
    assert (status, events[-1]["applied"]) == (1, False)
    assert contents(data) == before
    expected = f"from offset {first_wrong} on the offsets of the batches are not certain"
    (damage,) = [e for e in by_type(events, "damage") if expected in e["problem"]]
    assert f"recovery-point-offset-checkpoint says {end}" in damage["problem"]


def test_a_recovery_point_inside_a_log_without_gaps_is_the_one_that_is_wrong(pristine, tmp_path, capsys):
    data = Path(shutil.copytree(pristine, tmp_path / "data"))
    end = max(offsets_in(data / "t-0")) + 1
    last = model.decode_batches(max((data / "t-0").glob("*.log")).read_bytes())[-1]
    set_checkpoint(data, "recovery-point-offset-checkpoint", last.base_offset)
    assert run_json(capsys, "repair", data, "--apply", "--in-place")[0] == 0
    points = OffsetCheckpointFile(str(data / "recovery-point-offset-checkpoint")).read()
    assert points == {TopicPartition("t", 0): end}


def test_a_repaired_log_with_the_mark_needs_no_second_repair(data, capsys):
    flip(data / "g-none-0" / LOG, 3700)
    assert main(["repair", str(data), "--apply", "--in-place", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["repair", str(data), "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "lost-records: warning" in printed
    assert "nothing to repair" in printed and "cannot be repaired" not in printed


def swap(a: Path, b: Path) -> None:
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)


def test_segments_under_each_others_names_are_one_line_each_and_nothing_of_them_goes(data, capsys):
    directory = data / "g-segments-0"
    swap(directory / "00000000000000000030.log", directory / "00000000000000000060.log")
    _, events = run_json(capsys, "verify", directory)
    damage = [(os.path.basename(event["file"]), event["problem"]) for event in by_type(events, "damage")]
    assert [name for name, _ in damage] == ["00000000000000000030.log", "00000000000000000060.log"]
    assert "offsets 60 to 89" in damage[0][1] and "00000000000000000060.log" in damage[0][1]
    assert "offsets 30 to 59" in damage[1][1] and "00000000000000000030.log" in damage[1][1]
    before = contents(directory)
    for salvage in SALVAGES:
        status, events = run_json(capsys, "repair", directory, "--salvage", salvage, "--in-place", "--apply")
        assert (status, by_type(events, "loss"), by_type(events, "action")) == (1, [], [])
    assert contents(directory) == before


def test_segments_of_few_batches_under_each_others_names_do_not_get_each_others_offsets(tmp_path, capsys):
    """Two batches of ten offsets would fit where two others of ten were, if both were moved by the same number."""
    directory = tmp_path / "t-0"
    with open_log(directory, "a", config=LogConfig(segment_bytes=2_000)) as log:
        for n in range(6):
            log.append_as_leader(batch_of_values(*[b"%d" % n * 60] * 10, timestamp=1))
    first, second, *_ = logs = sorted(directory.glob("*.log"))
    assert [log.stem for log in logs] == ["00000000000000000000", "00000000000000000020", "00000000000000000040"]
    swap(first, second)
    before = contents(directory)
    status, events = run_json(capsys, "repair", directory, "--in-place", "--apply")
    assert (status, len(by_type(events, "damage")), by_type(events, "action")) == (1, 2, [])
    assert contents(directory) == before
