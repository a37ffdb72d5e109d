"""A .log of another log, or a copy under another name, in a partition's directory: verify names it in one line, and no
other segment; a repair sets it aside, and no batch of the log goes."""

import itertools
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcore.errors import CorruptFile
from kcore.inspect import examine_index_files, plan_repair, scan_segment, verify
from kcore.inspect.repair import apply_in_place, apply_to_copy
from kcore.log.log_config import LogConfig
from kcore.log.open_log import open_log
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.tools.main import main
from tests.unit.tools.command import run_json

FILES = ("log", "index", "timeindex", "snapshot")
INDEXES = ("index", "timeindex")


def name(base: int, suffix: str = "log") -> str:
    return f"{base:020}.{suffix}"


def make(data: Path, segments, value: bytes = b"own", *, epoch: int = 0) -> Path:
    """A partition's directory.  segments: for each one the numbers of records of its batches."""
    data.mkdir()
    config = LogConfig(segment_bytes=1 << 20, index_interval_bytes=100)
    with open_log(str(data / "orders-0"), "a", config=config) as log:
        for n, batches in enumerate(segments):
            if n:
                log.roll()
            for records in batches:
                builder = RecordBatchBuilder()
                for at in range(records):
                    builder.append(value * 10, b"key", timestamp=1_700_000_000_000 + at)
                log.append_as_leader(builder.build(), epoch)
    return data / "orders-0"


@pytest.fixture
def own(tmp_path) -> Path:
    """Segments 0, 100 and 200; the log ends at 280, after a clean stop."""
    return make(tmp_path / "data", [[5] * 20, [5] * 20, [5] * 16])


@pytest.fixture
def other(tmp_path) -> Path:
    """Segments 0, 150 and 300 of another log."""
    return make(tmp_path / "other", [[5] * 30] * 3, b"other")


def copy(source: Path, base: int, target: Path, to: int, suffixes=("log",)) -> None:
    for suffix in suffixes:
        if (source / name(base, suffix)).exists():
            shutil.copy(source / name(base, suffix), target / name(to, suffix))


def crash(partition: Path) -> None:
    (partition.parent / ".kafka_cleanshutdown").unlink()


def write_checkpoint(partition: Path, which: str, offset: int) -> None:
    (partition.parent / f"{which}-offset-checkpoint").write_text(f"0\n1\norders 0 {offset}\n")


def damage(partition: Path, **options) -> list[tuple[str, str]]:
    problems = verify(str(partition.parent), **options)
    return [(os.path.basename(problem.path), problem.text) for problem in problems if problem.damage]


def logs(partition: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(partition.glob("*.log"))}


def assert_only(misplaced: int, partition: Path, before: dict[str, bytes], *reasons: str, **options) -> None:
    """verify names this segment alone, and a repair sets its files aside and leaves every other .log as it was."""
    ((found, text),) = damage(partition, **options)
    assert found == name(misplaced) and text.startswith("not a segment of this log: "), text
    assert all(reason in text for reason in reasons), text
    repaired = partition.parent.with_name("repaired")
    for salvage in ("truncate", "keep-after"):
        plans = plan_repair(str(partition.parent), salvage=salvage, **options)
        assert not any(plan.losses or plan.beyond_repair or plan.alternative for plan in plans), plans
        assert not any(os.path.basename(action.path) == "lost-records" for plan in plans for action in plan.actions)
        apply_to_copy(str(partition.parent), plans, str(repaired))
        assert logs(repaired / "orders-0") == before
        assert not [problem for problem in verify(str(repaired), **options) if not problem.explained]
        shutil.rmtree(repaired)


def assert_undecided(file: int, other: int, partition: Path) -> None:
    """verify has one line about two segments, and a repair changes nothing."""
    ((found, text),) = damage(partition)
    assert found == name(file) and name(other) in text and "no file here shows which" in text, text
    for salvage in ("truncate", "keep-after"):
        plans = plan_repair(str(partition.parent), salvage=salvage)
        assert not any(plan.losses or plan.actions for plan in plans)
        assert [problem.text for plan in plans for problem in plan.beyond_repair] == [text]


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("suffixes", [("log",), ("log", *INDEXES), FILES])
@pytest.mark.parametrize(
    ("source", "base", "to", "reasons"),
    [
        ("other", 150, 150, [f"{name(100)} holds offset 150 too, and ends at 200, where {name(200)} begins"]),
        ("other", 0, 150, [f"{name(100)} holds offset 150 too", "this file has the offsets 0 to 149"]),
        ("other", 300, 120, [f"{name(100)} holds offset 120 too", "this file has the offsets 300 to 449"]),
        ("own", 0, 25, [f": a copy of {name(0)}"]),
        ("own", 0, 150, [f"{name(100)} holds offset 150 too", f"this file is a copy of {name(0)}"]),
        ("own", 100, 50, [f"{name(0)} holds offset 50 too", f"this file is a copy of {name(100)}"]),
        ("own", 200, 150, [f"{name(100)} holds offset 150 too", f"this file is a copy of {name(200)}"]),
        ("own", 0, 250, [f"{name(200)} holds offset 250 too", f"this file is a copy of {name(0)}"]),
        ("own", 0, 300, [f"this file is a copy of {name(0)}"]),
        ("other", 0, 280, []),  # in the last place, without a gap before its name
    ],
)
def test_a_segment_that_does_not_belong_there_is_one_line_and_is_set_aside(
    source, base, to, reasons, suffixes, is_clean, own, other
):
    if not is_clean:
        crash(own)
    before = logs(own)
    if (source, base, to) == ("other", 0, 280):
        other = make(other.parent.with_name("small"), [[5] * 10])  # whose offsets are all in one segment of the log
    copy(other if source == "other" else own, base, own, to, suffixes)
    assert_only(to, own, before, *reasons)


@pytest.mark.parametrize("in_place", [True, False])
def test_the_command_keeps_the_files_aside_and_verify_is_clean_afterwards(in_place, own, other, tmp_path, capsys):
    before = logs(own)
    copy(other, 150, own, 150, ("log", *INDEXES))
    content = (own / name(150)).read_bytes()
    status, events = run_json(capsys, "repair", own.parent, "--apply", *(["--in-place"] if in_place else []))
    summary = events[-1]
    assert (status, summary["losses"], summary["lost_bytes"], summary["actions"]) == (0, 0, 0, 3)
    result = Path(summary["result"])
    assert run_json(capsys, "verify", result)[1][-1]["damaged"] == 0
    assert logs(result / "orders-0") == before
    if in_place:
        aside = [f"{own / name(150, suffix)}.repair-cut" for suffix in ("log", *INDEXES)]
        assert sorted(summary["kept_aside"]) == sorted(aside)
        assert (own / (name(150) + ".repair-cut")).read_bytes() == content
    else:
        assert (own / name(150)).read_bytes() == content and summary["kept_aside"] == []
    with open_log(str(result / "orders-0"), "a") as log:
        assert [record.offset for record in log.records()] == [*range(280)]


def test_people_read_one_line_and_that_no_record_is_lost(own, other, capsys):
    copy(other, 150, own, 150)
    assert main(["verify", str(own.parent)]) == 1
    line, summary = capsys.readouterr().out.splitlines()
    assert line == (
        f"{own / name(150)}: not a segment of this log: {name(100)} holds offset 150 too, and ends at 200, where "
        f"{name(200)} begins; this file has the offsets 150 to 299"
    )
    assert summary.endswith(": 1 damaged place") and ", 86 batches, 430 records in " in summary
    assert main(["repair", str(own.parent)]) == 1
    assert "1 file changes; no record is lost." in capsys.readouterr().out


def test_the_file_alone_and_its_index_have_the_same_line(own, other):
    copy(other, 150, own, 150, ("log", *INDEXES))
    for suffix in ("log", *INDEXES):
        (problem,) = verify(str(own / name(150, suffix)))
        assert problem.damage and f"{name(100)} holds offset 150 too" in problem.text
    for suffix in ("log", *INDEXES):
        assert not list(verify(str(own / name(100, suffix))))


def test_no_index_is_rebuilt_beside_a_segment_of_another_log(own, other):
    copy(other, 150, own, 150)
    with pytest.raises(CorruptFile, match="not a segment of this log"):
        examine_index_files(str(own))


def test_without_any_index_it_is_the_same(own, other):
    copy(other, 150, own, 150)
    for path in itertools.chain(own.glob("*.index"), own.glob("*.timeindex")):
        path.unlink()
    assert [file for file, _ in damage(own)] == [name(150)]


def test_a_difference_between_replicas_does_not_come_from_it_and_it_is_named(own, other, tmp_path, capsys):
    replica = Path(shutil.copytree(own.parent, tmp_path / "replica"))
    copy(other, 150, own, 150)
    _, events = run_json(capsys, "diff", own, replica / "orders-0")
    (damaged,) = events[0]["damage"]
    assert damaged.startswith(f"{own / name(150)}: not a segment of this log")
    assert events[0]["first_difference"] is None and events[0]["common_end"] == 280


def test_several_segments_of_other_logs_are_a_line_each(own, other):
    before = logs(own)
    copy(other, 150, own, 50)
    copy(other, 150, own, 130)
    copy(own, 0, own, 170)
    assert [file for file, _ in damage(own)] == [name(50), name(130), name(170)]
    plans = plan_repair(str(own.parent))
    assert not any(plan.losses for plan in plans)
    apply_in_place(str(own.parent), plans)
    assert logs(own) == before and not list(verify(str(own.parent)))


def test_a_damaged_batch_of_a_sound_segment_is_reported_beside_it(own, other):
    copy(other, 150, own, 150)
    content = bytearray((own / name(100)).read_bytes())
    content[300] ^= 1
    (own / name(100)).write_bytes(content)
    assert [file for file, _ in damage(own)] == [name(100), name(150)]
    assert "CRC-32C" in damage(own)[0][1]


# -- two segments that both fit ---------------------------------------------------------------------------------------


def fifties(tmp_path: Path) -> Path:
    """Segments of 50 offsets each of another log: they fill what the segments of the log leave."""
    return make(tmp_path / "fifties", [[5] * 10] * 8, b"other")


def test_of_two_that_fit_the_one_without_indexes_and_snapshot_is_the_other_logs(own, tmp_path):
    before = logs(own)
    copy(fifties(tmp_path), 150, own, 150)
    assert_only(150, own, before, "it has no index and it has no snapshot of producers, unlike the others")


def test_of_two_that_fit_the_one_whose_index_is_of_other_batches_is_the_other_logs(own, other, tmp_path):
    before = logs(own)
    copy(fifties(tmp_path), 150, own, 150, FILES)
    odd = make(tmp_path / "odd", [[7] * 15])
    copy(odd, 0, own, 150, INDEXES)
    assert_only(150, own, before, "its .index is that of other batches")


def test_of_two_that_fit_the_one_that_contradicts_the_leader_epochs_is_the_other_logs(own, tmp_path):
    before = logs(own)
    later = make(tmp_path / "later", [[5] * 10] * 8, b"other", epoch=4)
    copy(later, 150, own, 150, FILES)
    assert_only(150, own, before, "its batches have leader epoch 4, where leader-epoch-checkpoint has 0")


@pytest.mark.parametrize("is_clean", [True, False])
def test_of_two_that_fit_with_all_their_files_neither_is_blamed_and_nothing_goes(is_clean, own, tmp_path):
    if not is_clean:
        crash(own)
    copy(fifties(tmp_path), 150, own, 150, FILES)
    assert_undecided(100, 150, own)


def test_after_an_unclean_stop_a_new_last_segment_without_its_other_files_may_be_the_logs(own, tmp_path):
    """A power loss that undid half of a truncation leaves the same files; its snapshot and indexes were not synced."""
    copy(fifties(tmp_path), 250, own, 250)
    assert [file for file, _ in damage(own)] == [name(250)]  # after a clean stop it is certain
    crash(own)
    assert_undecided(200, 250, own)


def test_a_damaged_segment_that_reaches_beyond_the_next_ones_name_loses_nothing_by_default(own, tmp_path):
    copy(fifties(tmp_path), 150, own, 150, FILES)
    content = bytearray((own / name(100)).read_bytes())
    content[300] ^= 1
    (own / name(100)).write_bytes(content)
    assert [file for file, _ in damage(own)] == [name(100)] * 2
    assert not any(plan.losses or plan.actions for plan in plan_repair(str(own.parent)))


# -- a segment in another one's place ---------------------------------------------------------------------------------


def test_in_the_place_of_a_segment_another_log_s_that_is_too_long_is_one_line_about_both(own, other):
    copy(other, 0, own, 0)
    assert_undecided(0, 100, own)
    copy(other, 0, own, 0, INDEXES)
    assert_undecided(0, 100, own)


def test_in_the_place_of_a_segment_another_log_s_that_ends_there_too_shows_by_the_index_that_was_left(own, tmp_path):
    tens = make(tmp_path / "tens", [[10] * 10] * 3, b"other")
    copy(tens, 100, own, 100)
    found = damage(own)
    assert found and {file for file, _ in found} <= {name(100, suffix) for suffix in INDEXES}
    assert not any(plan.losses for plan in plan_repair(str(own.parent)))


# -- the first and the last segment -----------------------------------------------------------------------------------


def without_first(partition: Path) -> None:
    """As retention leaves the log: it begins at 100, and so do its leader epochs."""
    for suffix in FILES:
        (partition / name(0, suffix)).unlink(missing_ok=True)
    (partition / "leader-epoch-checkpoint").write_text("0\n1\n0 100\n")
    assert not list(verify(str(partition.parent)))


def test_below_the_log_start_a_segment_that_reaches_into_the_log_is_another_log_s(own, other):
    without_first(own)
    before = logs(own)
    copy(other, 0, own, 0, FILES)
    assert_only(0, own, before, f"it has offsets up to 149, where {name(100)} begins at 100")
    (own / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    assert_undecided(0, 100, own)  # the log may have begun there
    write_checkpoint(own, "log-start", 110)
    ((file, text),) = damage(own)
    assert file == name(0) and "by log-start-offset-checkpoint the log begins at 110" in text


def test_below_the_log_start_a_segment_that_ends_before_it_shows_by_the_epochs_and_its_missing_indexes(own, tmp_path):
    without_first(own)
    before = logs(own)
    copy(fifties(tmp_path), 0, own, 0)
    assert_only(0, own, before, "by leader-epoch-checkpoint the log begins at offset 100")
    copy(fifties_again := tmp_path / "fifties" / "orders-0", 0, own, 0, INDEXES)
    assert fifties_again.exists()
    ((file, text),) = damage(own)  # with its indexes it looks like a log that has lost a segment
    assert file == name(100) and "gap: offsets 50..99" in text
    assert not any(plan.losses for plan in plan_repair(str(own.parent)))


def test_a_segment_after_the_end_of_a_clean_stop_is_another_log_s(own, tmp_path):
    before = logs(own)
    copy(fifties(tmp_path), 300, own, 300, FILES)
    copy(fifties_again := tmp_path / "fifties" / "orders-0", 350, own, 350)
    assert [file for file, _ in damage(own)] == [name(300), name(350)]
    (own / name(350)).unlink()
    assert_only(300, own, before, f"{name(200)} ends at offset 280, and there the log ended at its last clean stop")
    write_checkpoint(own, "replication", 340)  # the log had more once
    assert not any("not a segment" in text for _, text in damage(own))
    write_checkpoint(own, "replication", 280)
    crash(own)
    ((file, text),) = damage(own)
    assert fifties_again.exists() and file == name(300) and "gap: offsets 280..299" in text
    assert not any(plan.losses for plan in plan_repair(str(own.parent)))


def test_after_an_unclean_stop_a_last_file_whose_offsets_several_segments_have_is_another_log_s(own, tmp_path):
    before = logs(own)
    other = make(tmp_path / "other", [[5] * 10, [5] * 35], b"other")  # segments 0 and 50, up to 225
    copy(other, 50, own, 340)
    crash(own)
    assert_only(340, own, before, f"{name(0)} to {name(200)} have its offsets", "has the offsets 50 to 224")


@pytest.mark.parametrize(
    "placed",
    [
        [("other", 50, 340), ("other", 0, 400)],
        [("other", 0, 340), ("other", 50, 400)],
        [("own", 0, 300), ("own", 100, 400)],  # which go on from each other
        [("small", 50, 340), ("small", 100, 360)],
        [("small", 50, 340), ("own", 200, 350), ("other", 0, 400)],
    ],
)
def test_after_an_unclean_stop_several_last_files_of_other_logs_are_a_line_each_and_are_all_set_aside(
    placed, own, tmp_path
):
    before = logs(own)
    sources = {
        "own": own,
        "other": make(tmp_path / "other", [[5] * 10, [5] * 35], b"other"),
        "small": make(tmp_path / "small", [[5] * 10] * 3, b"small"),
    }
    for source, base, to in placed:
        copy(sources[source], base, own, to)
    crash(own)
    found = damage(own)
    assert sorted(file for file, _ in found) == [name(to) for _, _, to in placed]
    assert all(text.startswith("not a segment of this log: ") for _, text in found), found
    plans = plan_repair(str(own.parent))
    assert not any(plan.losses or plan.beyond_repair for plan in plans)
    apply_in_place(str(own.parent), plans)
    assert logs(own) == before
    assert {path.name for path in own.glob("*.repair-cut")} == {f"{name(to)}.repair-cut" for _, _, to in placed}
    assert not [problem for problem in verify(str(own.parent)) if not problem.explained]


@pytest.mark.parametrize(
    "placed",
    [
        [(150, 340), (300, 500)],  # of which the first one has offsets of the log too
        [(300, 340), (450, 500)],
        [(600, 340), (750, 500)],
        [(150, 340)],
    ],
)
def test_after_an_unclean_stop_files_beyond_the_end_with_offsets_of_their_own_stay_and_repair_says_what_to_do(
    placed, own, tmp_path, capsys
):
    """Their records may be the log's, in files with wrong names: no other file has those offsets."""
    before = logs(own)
    other = make(tmp_path / "other", [[5] * 30] * 6, b"other")
    for base, to in placed:
        copy(other, base, own, to)
    crash(own)
    with_files = logs(own)
    for words in (["repair"], ["repair", "--apply"], ["repair", "--apply", "--in-place", "--salvage", "keep-after"]):
        assert main([*words, str(own.parent)]) == 1
        out = capsys.readouterr().out
        files = ", ".join(name(to) for _, to in placed)
        are, their, them = ("is", "its", "it") if len(placed) == 1 else ("are", "their", "them")
        (line,) = [line for line in out.splitlines() if line.startswith("  no file here shows whether ")]
        assert line == (
            f"  no file here shows whether {files} {are} of this log.  If not (`kcore dump` prints {their} records), "
            f"move {them} to another directory, with the files of the same name, and repair then: without {them} the "
            "log ends at offset 280"
        )
        assert logs(own) == with_files
    write_checkpoint(own, "replication", 300)
    assert main(["repair", str(own.parent)]) == 1
    assert "ends at offset 280, and by its checkpoints it has been as long as 300 once\n" in capsys.readouterr().out
    write_checkpoint(own, "replication", 280)
    for _, to in placed:  # as it says
        for path in own.glob(f"{to:020}.*"):
            path.rename(tmp_path / path.name)
    assert main(["repair", str(own.parent)]) == 0 and logs(own) == before and damage(own) == []


def test_nothing_is_to_be_moved_away_where_a_file_with_a_wrong_name_goes_on_where_the_log_ends(own, capsys):
    """Renamed, swapped with another one, or a copy in another one's place: its own line says what to do."""

    def is_said():
        assert main(["repair", str(own.parent)]) == 1
        out = capsys.readouterr().out
        assert "cannot be repaired: " in out
        return "no file here shows whether" in out

    (own / name(200)).rename(own / name(340))
    crash(own)
    assert not is_said()
    (own / name(100)).rename(own / name(200))
    (own / name(340)).rename(own / name(100))
    assert not is_said()
    shutil.copy(own / name(100), own / name(200))
    assert not is_said()


@pytest.mark.parametrize("names", [[340], [340, 400]])
def test_after_an_unclean_stop_an_empty_file_beyond_the_end_is_said_to_be_empty_and_what_to_do(names, own, capsys):
    """It may be the log's: a power loss can take the end of the segment before."""
    before = logs(own)
    for base in names:
        (own / name(base)).touch()
    crash(own)
    ((file, text),) = damage(own)
    files = " and ".join(map(name, names))
    assert file == name(names[-1]) and text.startswith(
        f"gap: offsets 280..{names[-1] - 1}: no file has them, and {files} "
    )
    assert "empty" in text and "then the log ends at offset 280" in text
    status, events = run_json(capsys, "doctor", own.parent)
    (finding,) = (event for event in events if event.get("kind") == "damage")
    assert status == 1 and finding["mend"].startswith(
        "move what is empty and not of this log away; if it is of it, no "
    )
    (plan, _) = plan_repair(str(own.parent))
    assert not plan.losses and [problem.text for problem in plan.beyond_repair] == [text]
    for base in names:
        for path in own.glob(f"{base:020}.*"):
            path.rename(own.parent.parent / path.name)
    assert logs(own) == before and damage(own) == []


def test_after_a_clean_stop_an_empty_file_beyond_the_end_is_said_to_be_empty_and_goes(own):
    before = logs(own)
    (own / name(340)).touch()
    assert_only(340, own, before, "there the log ended at its last clean stop; this file is empty")


def test_an_empty_file_before_those_of_another_log_hides_none_of_them(own):
    (own / name(340)).touch()
    copy(own, 0, own, 400)
    crash(own)
    found = dict(damage(own))
    assert found[name(400)].startswith("not a segment of this log: ") and f"{name(340)} is empty" in found[name(340)]


def test_no_wrong_base_offset_of_a_single_last_batch_makes_it_another_log_s(tmp_path):
    """A flipped bit moves it to offsets that the log has elsewhere."""
    own = make(tmp_path / "data", [[5] * 20, [5] * 20, [5]])
    path = own / name(200)
    content = path.read_bytes()
    for is_clean in (True, False):
        for bit in range(8):
            path.write_bytes(content[:7] + bytes([content[7] ^ 1 << bit]) + content[8:])
            found = damage(own)
            assert found and not any("not a segment" in text for _, text in found), bit
        path.write_bytes(content)
        if is_clean:
            crash(own)


def test_after_an_unclean_stop_the_segment_that_ends_below_the_recovery_point_is_not_the_last_one(own, tmp_path):
    before = logs(own)
    copy(make(tmp_path / "short", [[5] * 50, [5] * 4], b"other"), 250, own, 250, FILES)
    crash(own)
    assert_only(250, own, before, "and offset 279, which the log has had, and this file has not")
    shutil.copy(make(tmp_path / "later", [[5] * 50, [5] * 4], b"other", epoch=3) / name(250), own / name(250))
    # Of a later leader epoch: it may be what came after a truncation.
    assert any("two segments have the same offsets" in text for _, text in damage(own))
    assert not any("not a segment" in text for _, text in damage(own))
    assert not any(plan.losses or plan.actions for plan in plan_repair(str(own.parent)))


# -- what is no segment of another log --------------------------------------------------------------------------------


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_empty_file_inside_the_offsets_of_a_segment_is_one_line_and_goes(is_clean, own):
    if not is_clean:
        crash(own)
    before = logs(own)
    (own / name(150)).touch()
    assert_only(150, own, before, "this file is empty")


def test_empty_segments_at_the_end_and_between_others_are_sound(tmp_path):
    own = make(tmp_path / "data", [[5] * 20, [5] * 4, []])
    assert (own / name(120)).stat().st_size == 0
    assert not list(verify(str(own.parent)))
    crash(own)
    assert not list(verify(str(own.parent)))


@pytest.mark.parametrize("is_clean", [True, False])
def test_gaps_of_a_compacted_log_are_not_taken_for_another_log(is_clean, tmp_path):
    """Batches are missing at the start and at the end of segments, and inside."""
    own = make(tmp_path / "data", [[5] * 20] * 4)
    write_checkpoint(own, "cleaner", 400)
    for base, gone in ((0, (3, 4, 19)), (100, (0, 1, 18, 19)), (200, (5,)), (300, (0,))):
        path = own / name(base)
        rows = scan_segment(str(path)).batches
        content = path.read_bytes()
        kept = [n for n in range(len(rows)) if n not in gone]
        path.write_bytes(b"".join(content[r["position"] :][: r["size"]] for r in (rows[n] for n in kept)))
        for suffix in INDEXES:
            (own / name(base, suffix)).unlink()
    if not is_clean:
        crash(own)
    assert damage(own) == []
    before = logs(own)
    other = make(tmp_path / "other", [[5] * 30] * 3, b"other")
    for to in (130, 250, 290):
        copy(other, 150, own, to)
        ((file, text),) = damage(own)
        assert file == name(to), text
        plans = plan_repair(str(own.parent))
        assert not any(plan.losses for plan in plans)
        apply_to_copy(str(own.parent), plans, str(tmp_path / "repaired"))
        assert logs(tmp_path / "repaired" / "orders-0") == before and damage(tmp_path / "repaired" / "orders-0") == []
        shutil.rmtree(tmp_path / "repaired")
        (own / name(to)).unlink()


def test_the_rest_of_an_unclean_stop_is_not_taken_for_another_log(own):
    crash(own)
    with open(own / name(200), "r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 30)
    assert damage(own) == []
    assert {problem.text.split(",")[0] for problem in verify(str(own.parent))} >= {"unclean tail"}
    with open(own / name(200), "ab") as file:
        file.write(bytes(4096))
    assert not any("not a segment" in text or "same offsets" in text for _, text in damage(own))


@pytest.mark.parametrize("suffix", [".deleted", ".swap", ".cleaned"])
def test_files_of_a_cleaning_and_a_deletion_are_not_taken_for_segments(suffix, own, other):
    copy(other, 150, own, 150)
    os.rename(own / name(150), own / (name(150) + suffix))
    assert damage(own) == []


def test_a_segment_that_begins_where_the_log_ended_at_its_clean_stop_is_not_one_of_it_with_a_wrong_name(tmp_path):
    log = make(tmp_path / "data", [[1, 6]])
    copy(make(tmp_path / "other", [[7], [1]], b"other"), 7, log, 1, ("log",))
    ((file, text),) = damage(log)
    assert file == name(1) and text.startswith("not a segment of this log")


# -- any place --------------------------------------------------------------------------------------------------------

BATCHES = st.lists(st.integers(1, 9), min_size=1, max_size=8)
LOGS = st.lists(BATCHES, min_size=1, max_size=5)


@settings(
    max_examples=500 if "KCORE_LONG" in os.environ else 60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    own=LOGS,
    other=LOGS,
    pick=st.integers(0, 1 << 20),
    where=st.integers(0, 1 << 20),
    is_own=st.booleans(),
    suffixes=st.sampled_from([("log",), ("log", *INDEXES), FILES]),
    is_clean=st.booleans(),
)
def test_one_segment_at_any_place_is_named_alone_and_no_batch_of_the_log_goes(
    own, other, pick, where, is_own, suffixes, is_clean, tmp_path_factory
):
    root = tmp_path_factory.mktemp("any")
    log = make(root / "data", own)
    source = log if is_own else make(root / "other", other, b"other")
    before = logs(log)
    bases = [int(file.split(".")[0]) for file in before]
    end = sum(map(sum, own))
    # Inside of the log, but not in the place of a segment; a copy may also be after the end.
    places = [to for to in range(end + (9 if is_own else 0)) if to not in bases]
    if not places:
        return
    to = places[where % len(places)]
    if not is_clean:
        crash(log)
    source_bases = sorted(int(path.stem) for path in source.glob("*.log"))
    base = source_bases[pick % len(source_bases)]
    copy(source, base, log, to, suffixes)
    found = damage(log)
    # What contradicts the segment's own indexes may be said beside a line about two segments.
    of_segments = [(file, text) for file, text in found if file.endswith(".log")]
    assert {file for file, _ in found if not file.endswith(".log")} <= {name(to, suffix) for suffix in INDEXES}
    ((file, text),) = of_segments
    plans = plan_repair(str(root / "data"))
    assert not any(plan.losses for plan in plans)
    changed = {os.path.basename(action.path) for plan in plans for action in plan.actions}
    assert not changed & before.keys()
    if text.startswith("not a segment of this log"):
        assert (file, len(found)) == (name(to), 1)
        apply_in_place(str(root / "data"), plans)
        assert logs(log) == before
        assert not [problem for problem in verify(str(root / "data")) if not problem.explained]
    else:
        assert name(to) in (file, *text.split()) and not changed
    shutil.rmtree(root)
