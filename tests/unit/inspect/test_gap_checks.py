"""Offsets that no batch holds: verify, repair and diff tell them, and call damage what nothing explains."""

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from kcore.log.log_config import LogConfig
from kcore.log.open_log import open_log
from kcore.metadata.embedded_store import EmbeddedStore
from kcore.metadata.znodes import encode_config, topic_config
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.tools.main import main
from tests import golden_data
from tests.reference import record_batch as model
from tests.unit.tools.command import LOG, contents, flip, run_json

#: Offsets of a segment of plain_topic().
SEGMENT = 20


def built(
    offset: int, count: int = 2, *, epoch: int = 0, producer: tuple[int, int, int] | None = None
) -> MemoryRecords:
    """A batch; producer: id, epoch and first sequence number."""
    options = {}
    if producer is not None:
        options = dict(zip(("producer_id", "producer_epoch", "base_sequence"), producer, strict=True))
    builder = RecordBatchBuilder(base_offset=offset, leader_epoch=epoch, **options)
    for n in range(count):
        builder.append(b"v" * 100, b"k%d" % (offset + n), timestamp=1_700_000_000_000 + offset)
    return MemoryRecords(builder.build())


def written(directory: Path, batches: list[MemoryRecords], roll_at: tuple[int, ...] = ()) -> Path:
    """A closed partition with these batches, as a follower appends them; a new segment begins at each of roll_at."""
    directory.parent.mkdir(exist_ok=True)
    with open_log(directory, "a", config=LogConfig(index_interval_bytes=200)) as log:
        for batch in batches:
            if batch.batches[0].base_offset in roll_at:
                log.roll()
            log.append_as_follower(batch)
    return directory


def plain_topic(directory: Path, *, segments: int = 6, **options) -> Path:
    batches = [built(offset, **options) for offset in range(0, segments * SEGMENT, 2)]
    return written(directory, batches, tuple(range(SEGMENT, segments * SEGMENT, SEGMENT)))


def two_epochs(directory: Path, *, new_at: int) -> Path:
    """As plain_topic(), by a second leader from new_at on."""
    batches = [built(offset, epoch=int(offset >= new_at)) for offset in range(0, 120, 2)]
    return written(directory, batches, tuple(range(SEGMENT, 120, SEGMENT)))


def without_segment(directory: Path, base: int) -> Path:
    files = list(directory.glob(f"{base:020}.*"))
    assert len(files) >= 3
    for file in files:
        file.unlink()
    return directory


def verify(capsys, path: Path, *options) -> tuple[int, list[dict]]:
    status, events = run_json(capsys, "verify", path, *options)
    return status, events[:-1]


def gaps_of(problems: list[dict]) -> list[tuple]:
    """(type, first offset, last offset) of the gaps; there must be nothing else but warnings, of missing indexes."""
    gaps = [problem for problem in problems if problem["kind"] == "gap"]
    assert {problem["type"] for problem in problems if problem not in gaps} <= {"warning"}, problems
    return [(problem["type"], problem["offset"], problem["last_offset"]) for problem in gaps]


@pytest.mark.parametrize("options", [(), ("--no-records",)])
def test_a_segment_that_is_missing_inside_a_plain_log_is_a_gap_and_damage(options, tmp_path, capsys):
    log = without_segment(plain_topic(tmp_path / "data" / "t-0"), 40)
    for path in (tmp_path / "data", log):
        status, problems = verify(capsys, path, *options)
        assert (status, gaps_of(problems)) == (1, [("damage", 40, 59)])
    (problem,) = problems
    assert problem["problem"].startswith("gap: offsets 40..59: ")
    assert (problem["file"], problem["position"]) == (str(log / f"{60:020}.log"), 0)


def test_what_is_missing_between_two_batches_of_a_segment_is_a_gap(tmp_path, capsys):
    log = plain_topic(tmp_path / "data" / "t-0") / f"{20:020}.log"
    batches = model.decode_batches(content := log.read_bytes())
    for first, next_batch, expected in ((3, 5, (26, 29)), (0, 2, (20, 23)), (8, 10, (36, 39))):
        end = batches[next_batch].position if next_batch < len(batches) else len(content)
        log.write_bytes(content[: batches[first].position] + content[end:])
        for suffix in (".index", ".timeindex"):
            log.with_suffix(suffix).unlink(missing_ok=True)
        status, problems = verify(capsys, tmp_path / "data", "--no-records")
        assert status == 1
        assert ("damage", *expected) in [(p["type"], p["offset"], p["last_offset"]) for p in problems], problems
        assert verify(capsys, log)[0] == 1
    # One that ends a segment and goes on in the next one is one gap.
    other = log.with_name(f"{40:020}.log")
    content = other.read_bytes()
    other.write_bytes(content[model.decode_batches(content)[3].position :])
    for suffix in (".index", ".timeindex"):
        other.with_suffix(suffix).unlink()
    _, problems = verify(capsys, tmp_path / "data")
    assert gaps_of(problems) == [("damage", 36, 45)]


def test_a_gap_before_an_empty_last_segment_is_reported(tmp_path, capsys):
    log = plain_topic(tmp_path / "data" / "t-0", segments=3)
    with open_log(log, "a") as opened:
        opened.roll()
    assert (log / f"{60:020}.log").stat().st_size == 0
    assert verify(capsys, log)[1] == []
    without_segment(log, 40)
    assert gaps_of(verify(capsys, log)[1]) == [("damage", 40, 59)]


def test_a_gap_in_the_place_of_an_empty_first_segment_is_reported(tmp_path, capsys):
    log = plain_topic(tmp_path / "data" / "t-0", segments=3)
    os.truncate(log / LOG, 0)
    for suffix in (".index", ".timeindex"):
        (log / LOG).with_suffix(suffix).unlink()
    assert gaps_of(verify(capsys, log)[1]) == [("damage", 0, 19)]


def test_offsets_that_unreadable_bytes_may_hold_are_no_gap(tmp_path, capsys):
    log = plain_topic(tmp_path / "data" / "t-0") / f"{20:020}.log"
    flip(log, model.decode_batches(log.read_bytes())[4].position + 70)
    status, problems = verify(capsys, tmp_path / "data")
    assert (status, [problem["kind"] for problem in problems]) == (1, [None])


def test_missing_offsets_below_the_log_start_are_no_gap(tmp_path, capsys):
    without_segment(plain_topic(tmp_path / "data" / "t-0"), 40)
    checkpoint = tmp_path / "data" / "log-start-offset-checkpoint"
    for start, expected in ((60, []), (50, [("damage", 50, 59)]), (40, [("damage", 40, 59)])):
        checkpoint.write_text(f"0\n1\nt 0 {start}\n")
        assert gaps_of(verify(capsys, tmp_path / "data")[1]) == expected


def idempotent(directory: Path, *, gap: tuple[int, int], lost: bool, producers: int = 1) -> Path:
    """Producers 7, 8, ... in turn; the offsets of `gap` (first, end) are not there.  lost: their records were, so the
    sequence numbers jump."""
    sequences = dict.fromkeys(range(7, 7 + producers), 0)
    batches = []
    for n, offset in enumerate(range(0, 120, 2)):
        producer = 7 + n % producers
        inside = gap[0] <= offset < gap[1]
        if not inside:
            batches.append(built(offset, producer=(producer, 0, sequences[producer])))
        if lost or not inside:
            sequences[producer] += 2
    return written(directory, batches, (40, 80))


@pytest.mark.parametrize("producers", [1, 3])
def test_sequence_numbers_that_jump_over_a_gap_prove_that_records_are_missing(producers, tmp_path, capsys):
    log = idempotent(tmp_path / "data" / "t-0", gap=(30, 44), lost=True, producers=producers)
    for snapshot in log.glob("*.snapshot"):
        snapshot.unlink()
    # (An epoch that begins after the gap would explain it otherwise.)
    (log / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 44\n")
    _, problems = verify(capsys, log)
    (gap,) = [problem for problem in problems if problem["kind"]]
    assert (gap["type"], gap["offset"], gap["last_offset"]) == ("damage", 30, 43)
    expected = {1: "producer 7 goes on with sequence 44 where 30 comes next"}.get(producers, "goes on with sequence")
    assert expected in gap["problem"]


def test_sequence_numbers_that_go_on_over_a_gap_make_it_a_warning(tmp_path, capsys):
    log = idempotent(tmp_path / "data" / "t-0", gap=(30, 44), lost=False)
    status, problems = verify(capsys, log)
    assert (status, gaps_of(problems)) == (0, [("warning", 30, 43)])
    assert "producer 7" in problems[0]["problem"]


def test_sequence_numbers_that_go_on_explain_no_gap_that_another_producers_batch_is_beside(tmp_path, capsys):
    batches = [built(0, producer=(7, 0, 0)), built(2, producer=(8, 0, 0)), built(10, producer=(7, 0, 2))]
    assert gaps_of(verify(capsys, written(tmp_path / "data" / "t-0", batches))[1]) == [("damage", 4, 9)]


def test_a_producer_epoch_that_does_not_begin_with_sequence_0_is_a_jump(tmp_path, capsys):
    def batches(sequence):
        return [built(0, producer=(7, 0, 0)), built(10, producer=(7, 1, sequence), epoch=1)]

    for sequence, kind in ((4, "damage"), (0, "warning")):
        log = written(tmp_path / str(sequence) / "t-0", batches(sequence))
        assert gaps_of(verify(capsys, log)[1]) == [(kind, 2, 9)]


def test_TRUNC_06_a_gap_that_a_truncation_inside_a_batch_left_is_a_warning(tmp_path, capsys):
    log = written(tmp_path / "data" / "t-0", [built(0, 10), built(10, 10)])
    with open_log(log, "a") as opened:
        opened.truncate_to(15)
        opened.append_as_follower(built(15, epoch=3))
    status, problems = verify(capsys, log)
    assert (status, gaps_of(problems)) == (0, [("warning", 10, 14)])
    assert "leader epoch 3" in problems[0]["problem"]
    # No epoch begins after it, so none explains it.
    for entries in ("2\n0 0\n3 14\n", "1\n0 0\n"):
        (log / "leader-epoch-checkpoint").write_text("0\n" + entries)
        _, problems = verify(capsys, log)
        assert ("damage", 10, 14) in gaps_of([problem for problem in problems if problem["kind"]]), entries


def test_TRUNC_06_two_truncations_inside_a_batch_each_leave_one_gap_which_is_a_warning(tmp_path, capsys):
    """The second leader's records were all truncated, and its epoch begins inside the gap."""
    log = written(tmp_path / "data" / "t-0", [built(0, 5), built(5, 6)])
    with open_log(log, "a") as opened:
        opened.truncate_to(8)
        opened.append_as_follower(built(8, 4, epoch=1))
        opened.truncate_to(10)
        opened.append_as_follower(built(10, 4, epoch=2))
    status, problems = verify(capsys, log)
    assert (status, gaps_of(problems)) == (0, [("warning", 5, 9)])
    assert "leader epoch 2" in problems[0]["problem"]


def test_TRUNC_06_a_truncation_inside_the_first_batch_of_a_file_leaves_a_gap_inside_that_file(tmp_path, capsys):
    log = written(tmp_path / "data" / "t-0", [built(0, 10), built(10, 10)], (10,))
    with open_log(log, "a") as opened:
        opened.truncate_to(15)
        opened.append_as_follower(built(15, epoch=3))
    assert sorted(path.name for path in log.glob("*.log")) == [LOG, f"{10:020}.log"]
    status, problems = verify(capsys, log)
    assert (status, gaps_of(problems)) == (0, [("warning", 10, 14)])


def test_a_segment_that_is_missing_before_a_new_epoch_is_damage(tmp_path, capsys):
    """A truncation inside a batch leaves its gap inside a file: the log goes on in the file that was cut."""
    log = without_segment(two_epochs(tmp_path / "data" / "t-0", new_at=60), 40)
    for path in (log, log / f"{20:020}.log"):
        status, problems = verify(capsys, path)
        assert (status, gaps_of(problems)) == (1, [("damage", 40, 59)])
        assert "between two files" in problems[0]["problem"]


def test_the_end_of_a_file_that_is_missing_before_a_new_epoch_is_damage(tmp_path, capsys):
    """As recovery leaves a damaged segment below the recovery point."""
    log = two_epochs(tmp_path / "data" / "t-0", new_at=40) / f"{20:020}.log"
    os.truncate(log, model.decode_batches(log.read_bytes())[9].position)
    for suffix in (".index", ".timeindex"):
        log.with_suffix(suffix).unlink()
    status, problems = verify(capsys, log.parent)
    assert (status, gaps_of(problems)) == (1, [("damage", 38, 39)])


def test_sequence_numbers_that_go_on_over_a_missing_segment_explain_nothing(tmp_path, capsys):
    """Another producer's records may have been in it."""
    batches = [built(0, producer=(7, 0, 0)), built(2, producer=(8, 0, 0)), built(4, producer=(7, 0, 2))]
    log = without_segment(written(tmp_path / "data" / "t-0", batches, (2, 4)), 2)
    status, problems = verify(capsys, log)
    (gap,) = [problem for problem in problems if problem["kind"]]
    assert (status, gap["type"], gap["offset"], gap["last_offset"]) == (1, "damage", 2, 3)


def test_a_log_with_a_cleaner_checkpoint_may_have_gaps_up_to_that_offset(tmp_path, capsys):
    log = without_segment(plain_topic(tmp_path / "data" / "t-0"), 40)
    checkpoint = tmp_path / "data" / "cleaner-offset-checkpoint"
    for cleaned, expected in ((80, "gap"), (60, "gap"), (40, "warning")):
        checkpoint.write_text(f"0\n1\nt 0 {cleaned}\n")
        status, problems = verify(capsys, log)
        assert (status, gaps_of(problems)) == (0, [(expected, 40, 59)])
    checkpoint.write_text("0\n1\nother 0 80\n")
    assert verify(capsys, log)[0] == 1


def test_batches_with_fewer_records_than_offsets_show_that_a_log_was_compacted(tmp_path, capsys):
    log = without_segment(plain_topic(tmp_path / "data" / "t-0"), 40) / f"{100:020}.log"
    content = log.read_bytes()
    first = model.decode_batches(content)[0]
    emptied = bytearray(content[: first.position + model.HEADER_SIZE])
    emptied[8:12] = (len(emptied) - 12).to_bytes(4, "big")
    emptied[57:61] = bytes(4)
    log.write_bytes(model.reseal(bytes(emptied)) + content[first.position + first.size :])
    for suffix in (".index", ".timeindex"):
        log.with_suffix(suffix).unlink()
    status, problems = verify(capsys, tmp_path / "data" / "t-0")
    assert status == 0
    (gap,) = [problem for problem in problems if problem["kind"]]
    assert (gap["type"], gap["gaps"], gap["offset"], gap["last_offset"]) == ("gap", 1, 40, 59)


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete", None])
@pytest.mark.parametrize("closed", [True, False])
def test_the_settings_of_our_own_broker_say_whether_a_topic_is_compacted(policy, closed, tmp_path, capsys):
    data = tmp_path / "data"
    without_segment(plain_topic(data / "t-0"), 40)
    store = EmbeddedStore(str(data / "kcore-metadata.db"))
    for path in ("/config", "/config/topics"):
        store.create(path)
    store.create(topic_config("t"), encode_config({"cleanup.policy": policy} if policy else {"retention.ms": "-1"}))
    if closed:
        store.close()
    before = contents(data)
    status, problems = verify(capsys, data)
    # The cleaner never ran here: the leader may have compacted the copied records, but no file shows that.
    expected = (0, "warning") if policy in ("compact", "compact,delete") else (1, "damage")
    assert (status, gaps_of(problems)) == (expected[0], [(expected[1], 40, 59)])
    assert contents(data) == before
    store.close()


def test_metadata_that_cannot_be_read_are_not_used_for_a_topic(tmp_path, capsys):
    data = tmp_path / "data"
    without_segment(plain_topic(data / "t-0"), 40)
    (data / "kcore-metadata.db").write_bytes(b"garbage" * 1000)
    assert verify(capsys, data)[0] == 1
    (data / "kcore-metadata.db").unlink()
    sqlite3.connect(data / "kcore-metadata.db").close()
    assert verify(capsys, data)[0] == 1


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_the_topics_of_the_coordinators_are_always_compacted(topic, tmp_path, capsys):
    log = without_segment(plain_topic(tmp_path / "data" / f"{topic}-3"), 40)
    status, problems = verify(capsys, log)
    assert (status, gaps_of(problems)) == (0, [("gap", 40, 59)])


def test_the_option_compacted_marks_a_log_as_compacted_where_no_file_does(tmp_path, capsys):
    log = without_segment(without_segment(plain_topic(tmp_path / "data" / "t-0"), 20), 80)
    assert gaps_of(verify(capsys, log)[1]) == [("damage", 20, 39), ("damage", 80, 99)]
    status, problems = verify(capsys, log, "--compacted")
    assert (status, gaps_of(problems), problems[0]["gaps"]) == (0, [("gap", 20, 99)], 2)
    assert main(["verify", str(log), "--compacted"]) == 0
    assert capsys.readouterr().out.endswith("no damage, 2 gaps left by compaction\n")


def test_of_very_many_gaps_the_first_hundred_are_reported_one_by_one(tmp_path, capsys):
    log = written(tmp_path / "data" / "t-0", [built(offset) for offset in range(0, 6 * 150, 6)])
    status, problems = verify(capsys, log)
    assert (status, len(problems)) == (1, 101)
    assert gaps_of(problems)[-1] == ("damage", 6 * 100 + 2, 6 * 149 - 1)
    assert problems[-1]["gaps"] == 49


def test_a_gap_before_compressed_messages_of_magic_1_is_seen_with_their_records(tmp_path, capsys):
    (tmp_path / "t-0").mkdir()
    shutil.copy(golden_data.golden_file("old-formats/v1-gzip.log"), tmp_path / "t-0" / LOG)
    assert gaps_of(verify(capsys, tmp_path / "t-0")[1]) == [("damage", 25, 29)]
    # Their header has the last offset only.
    assert gaps_of(verify(capsys, tmp_path / "t-0", "--no-records")[1]) == []


def test_no_directory_of_kafkas_has_an_unexplained_gap_and_the_compacted_ones_are_recognised(capsys):
    _, problems = verify(capsys, golden_data.data_dir())
    assert all(problem["type"] == "gap" for problem in problems)


# -- repair -----------------------------------------------------------------------------------------------------------


def test_repair_reports_that_a_gap_cannot_be_repaired(tmp_path, capsys):
    log = without_segment(plain_topic(tmp_path / "data" / "t-0"), 40)
    status, events = run_json(capsys, "repair", log, "--apply")
    assert (status, events[-1]["beyond_repair"], events[-1]["actions"]) == (1, 1, 0)
    assert gaps_of(events[:-1]) == [("damage", 40, 59)]
    assert main(["repair", str(log)]) == 1
    assert "cannot be repaired: " in (text := capsys.readouterr().out) and "nothing can be repaired" in text
    assert run_json(capsys, "repair", log, "--compacted")[0] == 0


def test_repair_and_verify_agree_on_a_gap_that_is_only_a_warning(tmp_path, capsys):
    log = idempotent(tmp_path / "data" / "t-0", gap=(30, 34), lost=False)
    for options in ((), ("--apply",), ("--in-place", "--apply")):
        assert main(["verify", "-q", str(log)]) == 0
        assert main(["repair", "-q", str(log), *options]) == 0
        text = capsys.readouterr().out
        assert "warning: position" in text and "nothing to repair" in text


def test_a_gap_above_a_cut_is_removed_with_the_batches_after_it(tmp_path, capsys):
    log = without_segment(plain_topic(tmp_path / "data" / "t-0"), 40)
    flip(log / LOG, 100)
    status, events = run_json(capsys, "repair", log, "--apply", "--output", tmp_path / "out")
    assert (status, events[-1]["beyond_repair"], events[-1]["gaps_left"]) == (0, 0, [])


def test_a_gap_that_keep_after_makes_stays_and_is_reported_by_verify(tmp_path, capsys):
    log = plain_topic(tmp_path / "data" / "t-0")
    damaged = log / f"{40:020}.log"
    flip(damaged, model.decode_batches(damaged.read_bytes())[2].position + 80)
    mended = tmp_path / "out"
    status, events = run_json(capsys, "repair", log, "--apply", "--salvage", "keep-after", "--output", mended)
    assert (status, events[-1]["problems_left"]) == (0, [])
    assert len(events[-1]["gaps_left"]) == 1 and "gap: offsets 44..45: " in events[-1]["gaps_left"][0]
    assert gaps_of(verify(capsys, mended)[1]) == [("damage", 44, 45)]
    status, events = run_json(capsys, "diff", log.parent, shutil.copytree(mended, tmp_path / "b" / "t-0").parent)
    assert status == 1
    assert run_json(capsys, "repair", mended)[0] == 1


# -- diff -------------------------------------------------------------------------------------------------------------


def test_a_gap_on_one_side_is_a_difference_unless_cleaning_explains_it(tmp_path, capsys):
    a = plain_topic(tmp_path / "a" / "t-0")
    b = without_segment(Path(shutil.copytree(a, tmp_path / "b" / "t-0")), 40)
    for one, other, side in ((a, b, "b"), (b, a, "a")):
        status, events = run_json(capsys, "diff", one, other)
        assert (status, events[0]["equal"]) == (1, False)
        gap = {"missing_in": side, "first_offset": 40, "last_offset": 59, "records": 20, "cleaned": False}
        assert events[0]["gaps"] == [gap]
        status, events = run_json(capsys, "diff", one, other, "--gaps-are-cleaning")
        assert (status, events[0]["equal"], events[0]["gaps"]) == (0, True, [gap | {"cleaned": True}])
    assert main(["diff", str(a), str(b)]) == 1
    text = capsys.readouterr().out
    assert "B lacks offsets 40 to 59, 20 records: nothing shows that cleaning removed them" in text
    # What the cleaner has not reached yet it did not take.
    checkpoint = tmp_path / "b" / "cleaner-offset-checkpoint"
    for cleaned, expected in ((60, 0), (40, 1)):
        checkpoint.write_text(f"0\n1\nt 0 {cleaned}\n")
        assert run_json(capsys, "diff", a, b)[0] == expected


def test_diff_prints_what_followers_would_truncate_also_where_a_gap_is_the_only_difference(tmp_path, capsys):
    a = plain_topic(tmp_path / "a" / "t-0")
    b = without_segment(Path(shutil.copytree(a, tmp_path / "b" / "t-0")), 40)
    assert main(["diff", str(a), str(b)]) == 1
    lines = capsys.readouterr().out.splitlines()
    sizes = [sum(file.stat().st_size for file in side.glob("*.log")) for side in (a, b)]
    assert f"  the same but for the gaps: offsets 0 to below 120, {sizes[0]} bytes in A, {sizes[1]} in B" in lines
    for one, other in ("AB", "BA"):
        at = lines.index(f"  if {one} followed {other}: cut to 120, {one} loses 0 records")
        assert lines[at + 1] == "    epoch 0? the leader says (epoch 0, ends at 120): cut to 120"
        assert lines[at + 2] == "    the difference below that would stay: the epochs do not show it"
    _, events = run_json(capsys, "diff", a, b)
    for name in ("if_a_follows_b", "if_b_follows_a"):
        assert (events[0][name]["truncate_to"], events[0][name]["difference_stays"]) == (120, True)
    # A gap that cleaning explains is printed too; the sides are equal, so neither would follow the other.
    assert main(["diff", str(a), str(b), "--gaps-are-cleaning"]) == 0
    text = capsys.readouterr().out
    assert "  the same but for the gaps: offsets 0 to below 120" in text and "followed" not in text


def test_diff_reports_missing_epochs_only_for_the_replica_without_them(tmp_path, capsys):
    a = written(tmp_path / "a" / "t-0", [built(offset, epoch=-1) for offset in (0, 2, 4)])
    b = written(tmp_path / "b" / "t-0", [built(0, epoch=-1), built(4, epoch=-1)])
    assert main(["diff", str(a), str(b)]) == 1
    text = capsys.readouterr().out
    assert "leader epochs of A: none" in text and "if A followed B: A has no epochs" in text


def test_what_differs_above_a_cut_does_not_stay(tmp_path, capsys):
    a = written(tmp_path / "a" / "t-0", [built(0), *(built(offset, epoch=1) for offset in (2, 4, 6))])
    b = written(tmp_path / "b" / "t-0", [built(0), *(built(offset, epoch=1) for offset in (2, 6))])
    (b / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n2 2\n")
    _, events = run_json(capsys, "diff", a, b)
    assert [gap["first_offset"] for gap in events[0]["gaps"]] == [4]
    cut = events[0]["if_a_follows_b"]
    assert (cut["truncate_to"], cut["difference_stays"]) == (2, False)


@pytest.mark.parametrize(("producer", "expected"), [((7, 0, 0), ("warning", 0)), (None, ("damage", 1))])
def test_a_raised_base_offset_of_the_last_batch_is_a_gap_where_only_the_batch_before_it_is_known(
    producer, expected, tmp_path, capsys
):
    """After an unclean stop nothing says where the log ends, and a truncation leaves the same gap."""
    path = tmp_path / "t-0"
    with open_log(path, "a") as log:
        for offset in (0, 2, 4):
            numbered = producer and (*producer[:2], offset)
            log.append_as_follower(built(offset, producer=numbered))
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (tmp_path / name).unlink(missing_ok=True)
    for file in (*path.glob("*index"), *path.glob("*.snapshot")):
        file.unlink()
    flip(path / LOG, 2 * ((path / LOG).stat().st_size // 3) + 6, 1)
    status, problems = verify(capsys, path)
    assert (gaps_of(problems), status) == ([(expected[0], 4, 4 + (1 << 8) - 1)], expected[1])
