"""One flipped bit in a header field that no CRC covers: one problem that names the batch, and a repair that writes the
right value where it is certain, or removes that batch at most."""

import itertools
import os
import random
import shutil
import struct
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcore.inspect.repair import apply_in_place, apply_to_copy
from kcore.inspect.repair_plan import plan_repair
from kcore.inspect.verifier import Summary, verify
from kcore.log.log_config import LogConfig
from kcore.log.open_log import open_log
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.reference import record_batch as model
from tests.unit.log.logs import batch as old_batch

#: Field -> (position in the header, bytes).
FIELDS = {"base offset": (0, 8), "length": (8, 4), "leader epoch": (12, 4), "magic": (16, 1)}


class Place(NamedTuple):
    """A batch: the .log, and where the batch is in it."""

    log: Path
    position: int
    size: int
    is_last: bool


def make_log(directory: Path, *, batches: int = 60, gaps: bool = False, segment_bytes: int = 2500) -> Path:
    """Segments of a partition with three leader epochs; with gaps as compaction leaves them between some batches."""
    directory.mkdir()
    rng = random.Random(7)
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=200)
    with open_log(str(directory / "orders-0"), "a", config=config) as log:
        for n in range(batches):
            offset = log.log_end_offset + (rng.choice([0, 0, 3]) if gaps else 0)
            builder = RecordBatchBuilder(base_offset=offset, leader_epoch=n * 3 // batches)
            for _ in range(rng.randint(1, 4)):
                builder.append(b"value", b"key", timestamp=1_700_000_000_000 + n)
            log.append_as_follower(builder.build())
    return directory


def places(data: Path) -> list[Place]:
    found = []
    for log in sorted((data / "orders-0").glob("*.log")):
        found += [Place(log, b.position, b.size, False) for b in model.decode_batches(log.read_bytes())]
    return [*found[:-1], found[-1]._replace(is_last=True)]


def flip(place: Place, at: int, bit: int) -> None:
    with open(place.log, "r+b") as file:
        file.seek(place.position + at)
        byte = file.read(1)[0]
        file.seek(place.position + at)
        file.write(bytes([byte ^ 1 << bit]))


def bits_of(field: str, rng: random.Random) -> list[tuple[int, int]]:
    """All bits of a field in CI, some in a plain run."""
    start, size = FIELDS[field]
    bits = list(itertools.product(range(start, start + size), range(8)))
    return bits if "KCORE_LONG" in os.environ else rng.sample(bits, 6)


def problems_of(data: Path):
    return [problem for problem in verify(str(data)) if problem.damage]


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != ".lock" and ".repair-cut" not in path.name
    }


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    return make_log(tmp_path_factory.mktemp("logs") / "sound")


@pytest.fixture(scope="module")
def with_gaps(tmp_path_factory) -> Path:
    return make_log(tmp_path_factory.mktemp("logs") / "gaps", gaps=True)


@pytest.mark.parametrize("field", FIELDS)
def test_a_flipped_bit_of_a_log_without_gaps_is_one_problem_and_a_repair_writes_the_right_value(field, sound, tmp_path):
    original = contents(sound)
    data = Path(shutil.copytree(sound, tmp_path / "data"))
    all_places = places(data)
    in_first = [place for place in all_places if place.log == all_places[0].log]
    chosen = [0, 1, len(in_first) - 1, len(in_first), 30, len(all_places) - 2, len(all_places) - 1]
    rng = random.Random(field)
    for n, (at, bit) in ((n, bit) for n in chosen for bit in bits_of(field, rng)):
        place, context = all_places[n], f"batch {n}, byte {at}, bit {bit}"
        flip(place, at, bit)
        problems = problems_of(data)
        assert [(p.path, p.position) for p in problems] == [(str(place.log), place.position)], (context, problems)
        plans = plan_repair(str(data))
        assert not any(plan.losses or plan.beyond_repair for plan in plans), context
        apply_to_copy(str(data), plans, str(tmp_path / "repaired"))
        assert contents(tmp_path / "repaired") == original, context
        shutil.rmtree(tmp_path / "repaired")
        flip(place, at, bit)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("how_many", [2, 3, 4])
def test_wrong_base_offsets_of_neighbours_are_a_problem_each_and_a_repair_writes_the_right_values(
    how_many, is_clean, sound, tmp_path
):
    """Together they have as many offsets as are free between the batches before and after them."""
    data = Path(shutil.copytree(sound, tmp_path / "data"))
    if not is_clean:
        (data / ".kafka_cleanshutdown").unlink()
    original = contents(data)
    all_places = places(data)
    in_first = sum(place.log == all_places[0].log for place in all_places)
    # Without the marker the end of the last segment is not certain, and the last two batches are needed as neighbours.
    last = len(all_places) - how_many - (0 if is_clean else 2)
    rng = random.Random(f"{how_many} {is_clean}")
    for n in [0, 1, in_first - how_many, in_first - 1, 30, last]:
        for _ in range(16 if "KCORE_LONG" in os.environ else 4):
            wrong = all_places[n : n + how_many]
            flips = [(place, rng.randrange(8), rng.randrange(8)) for place in wrong]
            for place, at, bit in flips:
                flip(place, at, bit)
            problems = problems_of(data)
            found = sorted((problem.path, problem.position) for problem in problems)
            assert found == [(str(place.log), place.position) for place in wrong], (n, flips, problems)
            plans = plan_repair(str(data))
            assert not any(plan.losses or plan.beyond_repair for plan in plans), (n, flips)
            apply_to_copy(str(data), plans, str(tmp_path / "repaired"))
            assert contents(tmp_path / "repaired") == original, (n, flips)
            shutil.rmtree(tmp_path / "repaired")
            for place, at, bit in flips:
                flip(place, at, bit)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(
    ("wrong", "bad"), [([0], 1), ([1], 0), ([0, 2], 1), ([0, 1], 2), ([1, 2], 0), ([0], 2), ([2], 0)]
)
def test_wrong_base_offsets_beside_a_batch_with_a_bad_crc_are_corrected_and_that_batch_alone_goes(
    wrong, bad, is_clean, sound, tmp_path
):
    """Its header still says how many offsets it has, and with as many the others fit between their neighbours."""
    data = Path(shutil.copytree(sound, tmp_path / "data"))
    if not is_clean:
        (data / ".kafka_cleanshutdown").unlink()
    original = contents(data)
    all_places = places(data)
    in_first = sum(place.log == all_places[0].log for place in all_places)
    last = len(all_places) - 3 - (0 if is_clean else 2)
    rng = random.Random(f"{wrong} {bad} {is_clean}")
    for n in [0, 1, in_first - 3, in_first, 30, last]:
        lost = all_places[n + bad]
        flips = [(all_places[n + each], rng.randrange(8), rng.randrange(8)) for each in wrong] + [(lost, 70, 3)]
        for place, at, bit in flips:
            flip(place, at, bit)
        found = {(problem.path, problem.position) for problem in problems_of(data) if not problem.gaps}
        assert found == {(str(place.log), place.position) for place, _, _ in flips}, (n, flips)
        plans = plan_repair(str(data), salvage="keep-after")
        (loss,) = (loss for plan in plans for loss in plan.losses)
        assert (loss.path, loss.position, loss.size) == (str(lost.log), lost.position, lost.size), (n, flips)
        apply_to_copy(str(data), plans, str(tmp_path / "repaired"))
        content = original[f"orders-0/{lost.log.name}"]
        expected = content[: lost.position] + content[lost.position + lost.size :]
        assert (tmp_path / "repaired" / "orders-0" / lost.log.name).read_bytes() == expected, (n, flips)
        shutil.rmtree(tmp_path / "repaired")
        (loss, *_) = (loss for plan in plan_repair(str(data)) for loss in plan.losses)
        assert (loss.path, loss.position) == (str(lost.log), lost.position), (n, flips)
        for place, at, bit in flips:
            flip(place, at, bit)


@pytest.mark.parametrize("log", ["sound", "with_gaps"])
@pytest.mark.parametrize("damaged", [("number of offsets",), ("base offset",), ("number of offsets", "base offset")])
@pytest.mark.parametrize(("wrong", "bad"), [(0, 1), (1, 0)])
def test_a_base_offset_beside_a_batch_with_a_bad_crc_is_corrected_by_its_other_neighbour_unless_the_log_has_gaps(
    wrong, bad, damaged, log, tmp_path, request
):
    data = Path(shutil.copytree(request.getfixturevalue(log), tmp_path / "data"))
    for index in (data / "orders-0").glob("*index"):
        index.unlink()  # an entry would prove it
    all_places = places(data)
    for n in (0, 30, len(all_places) - 3):
        moved, lost = all_places[n + wrong], all_places[n + bad]
        if moved.log != lost.log:
            continue
        right = moved.log.read_bytes()[moved.position :][:8]
        flips = [(moved, 4, 3), (lost, 70, 3)]
        flips += [(lost, *{"number of offsets": (25, 4), "base offset": (6, 1)}[field]) for field in damaged]
        for place, at, bit in flips:
            flip(place, at, bit)
        plans = plan_repair(str(data), salvage="keep-after", compacted=log == "with_gaps")
        corrections = [c for plan in plans for action in plan.actions for c in action.corrections]
        assert [(c.at, c.content) for c in corrections] == [(moved.position, right)] * (log == "sound"), n
        problems = [
            p for plan in plans for p in plan.problems if (p.path, p.position) == (str(moved.log), moved.position)
        ]
        (problem,) = (problem for problem in problems if " offset " in problem.text and not problem.gaps)
        if log == "with_gaps":
            assert problem.text.endswith("; which one is right is not certain beside bytes that cannot be read"), n
        for place, at, bit in flips:
            flip(place, at, bit)


@pytest.mark.parametrize("salvage", ["truncate", "keep-after"])
@pytest.mark.parametrize("junk", [bytes(700), random.Random(1).randbytes(700)], ids=["zeros", "garbage"])
def test_bytes_after_the_end_of_the_log_do_not_keep_the_last_base_offset_from_being_corrected(
    junk, salvage, sound, tmp_path
):
    data = Path(shutil.copytree(sound, tmp_path / "data"))
    for index in (data / "orders-0").glob("*index"):
        index.unlink()  # an entry would prove it
    last = places(data)[-1]
    right = last.log.read_bytes()
    for at, bit in ((1, 3), (4, 3), (7, 0)):
        flip(last, at, bit)
        last.log.write_bytes(last.log.read_bytes() + junk)
        apply_to_copy(str(data), plan_repair(str(data), salvage=salvage), str(tmp_path / f"{at}"))
        assert (tmp_path / f"{at}" / "orders-0" / last.log.name).read_bytes() == right, at
        last.log.write_bytes(right)


@pytest.mark.parametrize("log", ["sound", "with_gaps"])
def test_wrong_base_offsets_that_nothing_proves_stay_findings_and_no_value_is_made_up(log, tmp_path, request):
    data = Path(shutil.copytree(request.getfixturevalue(log), tmp_path / "data"))
    (data / ".kafka_cleanshutdown").unlink()
    right = {(place.log, place.position): place.log.read_bytes()[place.position :][:8] for place in places(data)}
    all_places = places(data)
    rng = random.Random(log)
    starts = [len(all_places) - 2] if log == "sound" else rng.sample(range(len(all_places) - 2), 5)
    for n in starts:
        for _ in range(16 if "KCORE_LONG" in os.environ else 6):
            flips = [(place, rng.randrange(8), rng.randrange(8)) for place in all_places[n : n + 2]]
            for place, at, bit in flips:
                flip(place, at, bit)
            assert problems_of(data), (n, flips)
            for plan in plan_repair(str(data), compacted=log == "with_gaps"):
                for action in plan.actions:
                    for correction in action.corrections:
                        assert correction.content == right[Path(action.path), correction.at], (n, flips)
            for place, at, bit in flips:
                flip(place, at, bit)


@pytest.mark.parametrize("epochs", ["with epochs", "without epochs"])
@pytest.mark.parametrize("log", ["sound", "with_gaps"])
@pytest.mark.parametrize("field", FIELDS)
def test_a_flipped_bit_of_an_unclean_or_compacted_log_costs_that_batch_at_most(field, log, epochs, tmp_path, request):
    data = Path(shutil.copytree(request.getfixturevalue(log), tmp_path / "data"))
    (data / ".kafka_cleanshutdown").unlink()
    (data / "recovery-point-offset-checkpoint").unlink()
    if epochs == "without epochs":
        (data / "orders-0" / "leader-epoch-checkpoint").unlink()
    compacted = log == "with_gaps"
    all_places = places(data)
    rng = random.Random(f"{field} {log} {epochs}")
    for n in [0, *rng.sample(range(1, len(all_places) - 1), 4), len(all_places) - 1]:
        for at, bit in bits_of(field, rng):
            place, context = all_places[n], f"batch {n}, byte {at}, bit {bit}"
            flip(place, at, bit)
            problems = [problem for problem in verify(str(data), compacted=compacted) if problem.damage]
            # A wrong base offset of a compacted log may be that of the batch after it.  Its indexes name it, too.
            assert len(problems) <= 4, (context, problems)
            plans = plan_repair(str(data), salvage="keep-after", compacted=compacted)
            losses = [loss for plan in plans for loss in plan.losses]
            assert sum(loss.size for loss in losses) <= max(p.size for p in all_places[max(n - 1, 0) : n + 2]), context
            if log == "sound" and not place.is_last and (field != "leader epoch" or epochs == "with epochs"):
                assert not losses, context
            flip(place, at, bit)


def test_a_wrong_base_offset_of_a_long_log_is_one_problem_and_its_repair_in_place_keeps_the_old_bytes(tmp_path):
    data = make_log(tmp_path / "data", batches=2000, segment_bytes=1 << 20)
    original = contents(data)
    place = places(data)[99]
    flip(place, 4, 2)
    wrong = place.log.read_bytes()[place.position : place.position + 8]
    (right,) = struct.unpack(">q", original[f"orders-0/{place.log.name}"][place.position : place.position + 8])
    summary = Summary()
    (problem,) = verify(str(data), summary)
    assert (problem.position, problem.offset) == (place.position, right + (1 << 26))
    assert f"only {right} fits between the batch before it and the batch after it" in problem.text
    assert summary.batches == 2000
    plans = plan_repair(str(data), in_place=True)
    assert [(action.what, action.path) for plan in plans for action in plan.actions] == [("correct", str(place.log))]
    (kept,) = apply_in_place(str(data), plans)
    assert kept == f"{place.log}.{place.position}-{place.position + 8}.repair-cut"
    assert Path(kept).read_bytes() == wrong
    assert contents(data) == original


@pytest.mark.parametrize("salvage", ["truncate", "keep-after"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_log_that_is_cut_is_corrected_too(salvage, in_place, sound, tmp_path):
    data = Path(shutil.copytree(sound, tmp_path / "data"))
    all_places = places(data)
    corrected, lost = all_places[6], all_places[2 if salvage == "keep-after" else 9]
    assert corrected.log == lost.log
    original = lost.log.read_bytes()
    flip(corrected, 6, 3)
    flip(lost, 70, 0)
    plans = plan_repair(str(data), salvage=salvage, in_place=in_place)
    if in_place:
        apply_in_place(str(data), plans)
    else:
        apply_to_copy(str(data), plans, str(tmp_path / "repaired"))
    result = data if in_place else tmp_path / "repaired"
    after = original[lost.position + lost.size :] if salvage == "keep-after" else b""
    assert (result / "orders-0" / lost.log.name).read_bytes() == original[: lost.position] + after
    assert not [problem for problem in problems_of(result) if not problem.gaps]


@pytest.mark.parametrize(
    "batches, moved, bit",
    [
        # The third batch moves to 15, as if the second one had moved from 10.
        ([(0, 10), (15, 5), (31, 5), (40, 1)], 2, 4),
        # The first one moves to 32, as if the second one had moved from 37.
        ([(0, 5), (20, 5), (42, 5), (47, 1)], 0, 5),
    ],
)
def test_where_a_gap_makes_another_base_offset_possible_none_is_taken_for_certain(tmp_path, batches, moved, bit):
    data = tmp_path / "data"
    data.mkdir()
    with open_log(str(data / "orders-0"), "a") as log:
        for offset, count in batches:
            log.append_as_follower(bytes(old_batch(count, base_offset=offset, leader_epoch=0)))
    flip(places(data)[moved], 7, bit)
    (problem,) = (problem for problem in verify(str(data), compacted=True) if problem.path.endswith(".log"))
    assert "only" not in problem.text
    assert not any(action.corrections for plan in plan_repair(str(data)) for action in plan.actions)


def test_epochs_that_alternate_are_certain_nowhere(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    with open_log(str(data / "orders-0"), "a") as log:
        for offset in range(7):
            log.append_as_follower(bytes(old_batch(1, base_offset=offset, leader_epoch=5)))
    (data / "orders-0" / "leader-epoch-checkpoint").unlink()
    for n in (1, 3, 5):
        flip(places(data)[n], 15, 1)
    problems = problems_of(data)
    assert [problem.text for problem in problems] == ["leader epoch 7 before a lower one, 5"] * 3
    assert not any(action.corrections for plan in plan_repair(str(data)) for action in plan.actions)


def test_a_wrong_leader_epoch_checkpoint_is_one_problem_of_each_segment(sound, tmp_path):
    data = Path(shutil.copytree(sound, tmp_path / "data"))
    checkpoint = data / "orders-0" / "leader-epoch-checkpoint"
    right = checkpoint.read_text()
    checkpoint.write_text(right.replace("\n1 ", "\n7 ").replace("\n2 ", "\n8 "))
    segments = {place.log for place in places(data)}
    problems = problems_of(data)
    assert len(problems) <= 2 * len(segments)
    assert any("; so in the" in problem.text for problem in problems)
    # A clean stop leaves the checkpoint complete, so which of the two is wrong is not certain.
    plans = plan_repair(str(data))
    assert not any(plan.actions or plan.losses for plan in plans) and any(plan.beyond_repair for plan in plans)
    (data / ".kafka_cleanshutdown").unlink()
    apply_to_copy(str(data), plan_repair(str(data)), str(tmp_path / "repaired"))
    assert (tmp_path / "repaired" / "orders-0" / "leader-epoch-checkpoint").read_text() == right


@pytest.mark.parametrize("old, new", [("2 {}", "5 {}"), ("2 {}", "2 {-}"), ("2 {}", "2 {+}"), ("1 ", "0 ")])
def test_after_a_clean_stop_a_wrong_number_in_the_leader_epoch_checkpoint_changes_no_batch(old, new, tmp_path):
    """An epoch of two batches, so they are as few as batches with wrong epochs may be."""
    data = tmp_path / "data"
    data.mkdir()
    with open_log(str(data / "orders-0"), "a") as log:
        for n in range(30):
            log.append_as_follower(bytes(old_batch(1, base_offset=n, leader_epoch=1 + (n > 20) + (n > 22))))
    checkpoint = data / "orders-0" / "leader-epoch-checkpoint"
    numbers = {"{}": "21", "{-}": "20", "{+}": "22"}
    for name, number in numbers.items():
        old, new = old.replace(name, number), new.replace(name, number)
    text = checkpoint.read_text()
    assert f"\n{old}" in text
    checkpoint.write_text(text.replace(f"\n{old}", f"\n{new}"))
    for salvage in ("keep-after", "truncate"):
        plans = plan_repair(str(data), salvage=salvage)
        assert not any(action.corrections for plan in plans for action in plan.actions)
        assert not any(plan.losses for plan in plans)


def epoch_log(directory: Path, starts: list[int], batches: int, segment_bytes: int) -> Path:
    """One record in each batch; an epoch begins at each of these batches."""
    directory.mkdir()
    with open_log(str(directory / "orders-0"), "a", config=LogConfig(segment_bytes=segment_bytes)) as log:
        for n in range(batches):
            epoch = 3 + sum(start <= n for start in starts)
            log.append_as_follower(bytes(old_batch(1, base_offset=n, leader_epoch=epoch)))
    return directory


def headers_without_epoch(data: Path) -> bytes:
    parts = []
    for log in sorted((data / "orders-0").glob("*.log")):
        content = log.read_bytes()
        parts += [
            content[b.position : b.position + 12] + content[b.position + 16 : b.position + b.size]
            for b in model.decode_batches(content)
        ]
    return b"".join(parts)


@pytest.mark.parametrize("stop", ["clean", "unclean", "no checkpoint"])
@pytest.mark.parametrize("salvage", ["truncate", "keep-after"])
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(values=st.data())
def test_wrong_leader_epochs_of_neighbours_cost_no_batch_and_a_second_repair_has_nothing_to_do(
    stop, salvage, values, tmp_path_factory
):
    work = tmp_path_factory.mktemp("epochs")
    starts = values.draw(st.lists(st.integers(1, 29), max_size=4, unique=True))
    data = epoch_log(work / "data", starts, 30, values.draw(st.sampled_from([300, 700, 1 << 20])))
    checkpoint = data / "orders-0" / "leader-epoch-checkpoint"
    right = contents(data)
    if stop == "unclean":
        (data / ".kafka_cleanshutdown").unlink()
    elif stop == "no checkpoint":
        checkpoint.unlink()
    batches = headers_without_epoch(data)
    count = values.draw(st.integers(1, 5))
    n = values.draw(st.integers(0, 30 - count))
    for place in places(data)[n : n + count]:
        with open(place.log, "r+b") as file:
            file.seek(place.position + 12)
            file.write(struct.pack(">i", values.draw(st.one_of(st.integers(0, 9), st.integers(-(2**31), 2**31 - 1)))))
    result = data
    plans = plan_repair(str(data), salvage=salvage)
    assert not any(plan.losses for plan in plans)
    if any(plan.actions for plan in plans):
        apply_to_copy(str(data), plans, str(work / "repaired"))
        result = work / "repaired"
    assert headers_without_epoch(result) == batches
    again = plan_repair(str(result), salvage=salvage)
    assert not any(plan.actions or plan.losses for plan in again), again
    if stop == "clean":
        assert contents(result)["orders-0/leader-epoch-checkpoint"] == right["orders-0/leader-epoch-checkpoint"]
        is_left = any(plan.beyond_repair for plan in plans)
        no_epoch = any(
            b.leader_epoch == -1 for log in result.rglob("*.log") for b in model.decode_batches(log.read_bytes())
        )
        assert is_left or no_epoch or contents(result) == right
    with open_log(str(result / "orders-0")) as log:
        assert [record.offset for record in log.records()] == list(range(30))
    shutil.rmtree(work)


@pytest.mark.parametrize("salvage", ["truncate", "keep-after"])
def test_wrong_leader_epochs_on_both_sides_of_a_segment_boundary_are_corrected_after_a_clean_stop(salvage, tmp_path):
    data = epoch_log(tmp_path / "data", [], 30, 700)
    right = contents(data)
    found = places(data)
    second = next(n for n, place in enumerate(found) if place.log != found[0].log)
    for place in found[second - 1 : second + 1]:
        flip(place, 15, 0)
    plans = plan_repair(str(data), salvage=salvage)
    assert not any(plan.losses or plan.beyond_repair for plan in plans)
    apply_to_copy(str(data), plans, str(tmp_path / "repaired"))
    assert contents(tmp_path / "repaired") == right


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_flipped_bit_of_an_index_is_a_few_problems(suffix, sound, tmp_path):
    data = Path(shutil.copytree(sound, tmp_path / "data"))
    path = sorted((data / "orders-0").glob(f"*{suffix}"))[1]
    content = path.read_bytes()
    for at, bit in itertools.product(range(len(content)), range(0, 8, 3)):
        changed = bytearray(content)
        changed[at] ^= 1 << bit
        path.write_bytes(changed)
        problems = problems_of(data)
        assert len(problems) <= 3 and {problem.path for problem in problems} <= {str(path)}, (at, bit, problems)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("how_many", [2, 3, 4])
def test_wrong_leader_epochs_of_neighbours_are_corrected_where_the_checkpoint_or_the_others_prove_them(
    how_many, is_clean, sound, tmp_path
):
    data = Path(shutil.copytree(sound, tmp_path / "data"))
    if not is_clean:
        (data / ".kafka_cleanshutdown").unlink()
    original = contents(data)
    all_places = places(data)
    rng = random.Random(f"epochs {how_many} {is_clean}")
    # Without the marker an epoch at the end may be new: a crash can leave it out of the checkpoint.
    for n in [1, 3, 6, 30, *([len(all_places) - how_many] if is_clean else [])]:
        wrong = all_places[n : n + how_many]
        if len({place.log for place in wrong}) > 1:
            continue
        for same in (True, False):
            flips = [(place, 15 - 2 * same, rng.randrange(2, 7)) for place in wrong]
            if same:
                flips = [(place, *flips[0][1:]) for place in wrong]
            for place, at, bit in flips:
                flip(place, at, bit)
            problems = problems_of(data)
            assert {p.path for p in problems} == {str(wrong[0].log)}, (n, flips, problems)
            for salvage in ("keep-after", "truncate"):
                plans = plan_repair(str(data), salvage=salvage)
                assert not any(plan.losses or plan.beyond_repair for plan in plans), (n, flips)
                apply_to_copy(str(data), plans, str(tmp_path / "repaired"))
                assert contents(tmp_path / "repaired") == original, (n, flips)
                shutil.rmtree(tmp_path / "repaired")
            for place, at, bit in flips:
                flip(place, at, bit)


def test_without_a_checkpoint_more_batches_on_both_sides_prove_the_leader_epoch_of_neighbours(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    with open_log(str(data / "orders-0"), "a") as log:
        for offset in range(12):
            log.append_as_follower(bytes(old_batch(1, base_offset=offset, leader_epoch=5)))
    (data / "orders-0" / "leader-epoch-checkpoint").unlink()
    for n in (4, 5):
        flip(places(data)[n], 15, 1)
    corrections = [c for plan in plan_repair(str(data)) for action in plan.actions for c in action.corrections]
    assert [correction.text for correction in corrections] == ["leader epoch 7, expected 5"] * 2


def test_an_epoch_that_the_checkpoint_of_a_clean_stop_lacks_is_not_written_into_it(sound, tmp_path):
    data = Path(shutil.copytree(sound, tmp_path / "data"))
    for place in places(data)[-6:]:
        flip(place, 15, 3)
    plans = plan_repair(str(data), salvage="keep-after")
    assert not any(plan.actions or plan.losses for plan in plans)
    assert any("leader epoch 10" in problem.text for plan in plans for problem in plan.beyond_repair)


@pytest.mark.parametrize("salvage", ["truncate", "keep-after"])
def test_an_epoch_that_only_a_later_segment_contradicts_is_a_finding_even_if_a_repair_takes_that_segment(
    salvage, tmp_path
):
    data = epoch_log(tmp_path / "data", [], batches=6, segment_bytes=100)
    (data / "orders-0" / "leader-epoch-checkpoint").unlink()
    _, _, wrong, unreadable, *_ = places(data)
    assert unreadable.log != wrong.log
    flip(wrong, 15, 3)
    unreadable.log.write_bytes(bytes(unreadable.size))
    text = "leader epoch 11 before a lower one, 3"
    assert [(p.text, p.position) for p in problems_of(data) if p.path == str(wrong.log)] == [(text, wrong.position)]
    plan, _ = plan_repair(str(data), salvage=salvage)
    for found in (plan.problems, plan.beyond_repair):
        assert [(p.text, p.position) for p in found if p.path == str(wrong.log)] == [(text, wrong.position)]


def header_of(place: Place) -> tuple[int, int]:
    """(base offset, last offset)."""
    base_offset, delta = struct.unpack_from(">q15xi", place.log.read_bytes(), place.position)
    return base_offset, base_offset + delta


@pytest.mark.parametrize(("is_moved", "wrong_bits"), [(True, 0x4C), (False, 0x4C), (False, 0x40)])
def test_beside_a_length_with_several_wrong_bits_a_base_offset_that_nothing_proves_is_a_finding(
    is_moved, wrong_bits, with_gaps, tmp_path
):
    data = Path(shutil.copytree(with_gaps, tmp_path / "data"))
    for index in (data / "orders-0").glob("*index"):
        index.unlink()
    all_places = places(data)
    offsets = [header_of(place) for place in all_places]

    def has_room(n: int) -> bool:
        is_inside = all_places[n - 1].log == all_places[n].log == all_places[n + 1].log
        return is_inside and offsets[n][0] > offsets[n - 1][1] + 2 and offsets[n + 1][0] > offsets[n][1] + 2

    chosen = next(n for n in range(1, len(all_places) - 1) if has_room(n))
    for n in (chosen, next(n for n in range(1, 30) if offsets[n][0] == offsets[n - 1][1] + 1)):
        place, (base_offset, _) = all_places[n], offsets[n]
        original = place.log.read_bytes()
        content = bytearray(original)
        shift = is_moved and n == chosen
        struct.pack_into(">q", content, place.position, base_offset + shift)
        content[place.position + 8] ^= wrong_bits
        place.log.write_bytes(content)
        problems = [problem for problem in verify(str(data), compacted=True) if problem.damage]
        texts = [p.text for p in problems if (p.path, p.position) == (str(place.log), place.position)]
        doubt = f"base offset {base_offset + shift}: the length right after it is damaged; if it is too, no file has"
        assert texts[0].startswith("batch length at position ")
        assert [text.startswith(doubt) for text in texts[1:]] == [True] * (n == chosen and wrong_bits == 0x4C), texts
        place.log.write_bytes(original)


@pytest.mark.parametrize("salvage", ["truncate", "keep-after"])
def test_an_epoch_of_a_batch_that_goes_is_not_beyond_repair(salvage, tmp_path):
    data = epoch_log(tmp_path / "data", [], batches=6, segment_bytes=100)
    (data / "orders-0" / "leader-epoch-checkpoint").unlink()
    _, _, unreadable, wrong, *_ = places(data)
    flip(wrong, 15, 3)
    unreadable.log.write_bytes(bytes(unreadable.size))
    plan, _ = plan_repair(str(data), salvage=salvage)
    found = ["leader epoch 11 before a lower one, 3"]
    assert [problem.text for problem in plan.problems if problem.path == str(wrong.log)] == found
    assert [problem.text for problem in plan.beyond_repair] == found * (salvage == "keep-after")
