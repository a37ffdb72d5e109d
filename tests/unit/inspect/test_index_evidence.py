"""A wrong base offset that its neighbours do not decide is corrected where the indexes prove the right one."""

import os
import random
import shutil
import struct
from pathlib import Path

import pytest

from kcore.inspect.repair import apply_to_copy
from kcore.inspect.repair_plan import plan_repair
from kcore.inspect.verifier import verify
from kcore.log.log_config import LogConfig
from kcore.log.open_log import open_log
from tests.unit.inspect.test_batch_checks import Place, contents, flip, make_log, places
from tests.unit.log.logs import batch as old_batch

LONG = "KCORE_LONG" in os.environ


@pytest.fixture(scope="module")
def with_gaps(tmp_path_factory) -> Path:
    return make_log(tmp_path_factory.mktemp("logs") / "gaps", gaps=True)


def named_by_index(data: Path) -> list[tuple[Place, int]]:
    """The batches that the .index names, and their right base offsets."""
    named = []
    for place in places(data):
        index = place.log.with_suffix(".index").read_bytes()
        if place.position in (position for _, position in struct.iter_unpack(">ii", index)):
            content = place.log.read_bytes()[place.position :]
            named.append((place, struct.unpack_from(">q", content)[0]))
    return named


def range_between_neighbours(data: Path, place: Place) -> tuple[int, int]:
    """The offsets that the batch can have in its segment: the first, and the end."""
    everything = places(data)
    n = next(n for n, each in enumerate(everything) if each[:2] == place[:2])
    first, end = int(place.log.stem), int(place.log.stem) + (1 << 31)
    for other, is_before in ((n - 1, True), (n + 1, False)):
        if 0 <= other < len(everything):
            header = everything[other].log.read_bytes()[everything[other].position :]
            base, delta = struct.unpack_from(">q", header)[0], struct.unpack_from(">i", header, 23)[0]
            if is_before:
                first = max(first, base + delta + 1)
            else:
                end = min(end, int(everything[other].log.stem) if everything[other].log != place.log else base)
    return first, end


def test_a_flipped_bit_of_a_base_offset_between_gaps_is_corrected_where_an_index_entry_proves_it(with_gaps, tmp_path):
    """The first and the last batch of a segment and of the log are among them."""
    data = Path(shutil.copytree(with_gaps, tmp_path / "data"))
    (data / ".kafka_cleanshutdown").unlink()
    (data / "recovery-point-offset-checkpoint").unlink()
    original = contents(data)
    named = named_by_index(data)
    assert len(named) > 20
    rng = random.Random(1052)
    corrected = 0
    for place, right in named if LONG else rng.sample(named, 12):
        size = struct.unpack_from(">i", place.log.read_bytes(), place.position + 23)[0] + 1
        first, end = range_between_neighbours(data, place)
        for bit in range(63) if LONG else [0, 1, 2, 3, 5, 10, 33]:
            flip(place, 7 - bit // 8, bit % 8)
            wrong = right ^ 1 << bit
            plans = plan_repair(str(data), salvage="keep-after", compacted=True)
            corrections = [c for plan in plans for action in plan.actions for c in action.corrections]
            fits = first <= wrong and wrong + size <= end
            if corrections or not fits:
                assert [(c.position, c.content) for c in corrections] == [(place.position, right.to_bytes(8, "big"))]
                assert not any(plan.losses for plan in plans)
                apply_to_copy(str(data), plans, str(tmp_path / "repaired"))
                assert contents(tmp_path / "repaired") == original, (place, bit)
                shutil.rmtree(tmp_path / "repaired")
                problems = [p for p in verify(str(data), compacted=True) if p.damage]
                assert [(p.path, p.position) for p in problems] == [(str(place.log), place.position)], (place, bit)
                corrected += fits
            elif not wrong <= right + size - 1 < wrong + size:
                # Only the index contradicts it, which may be what is wrong; unless the entry's offset is still inside.
                assert any(p.path.endswith("index") for plan in plans for p in plan.problems), (place, bit)
            flip(place, 7 - bit // 8, bit % 8)
    assert corrected  # by the time index


def test_a_flipped_bit_of_an_index_entry_moves_no_batch(with_gaps, tmp_path):
    data = Path(shutil.copytree(with_gaps, tmp_path / "data"))
    (data / ".kafka_cleanshutdown").unlink()
    for index in sorted((data / "orders-0").glob("*index")):
        content = index.read_bytes()
        for at in range(len(content)):
            for bit in range(0, 8, 1 if LONG else 3):
                changed = bytearray(content)
                changed[at] ^= 1 << bit
                index.write_bytes(changed)
                plans = plan_repair(str(data), compacted=True)
                assert not any(a.corrections for plan in plans for a in plan.actions), (index, at, bit)
                assert not any(plan.losses for plan in plans), (index, at, bit)
        index.write_bytes(content)


def test_the_last_batch_of_a_log_without_gaps_goes_back_to_where_its_index_entry_leaves_none(tmp_path):
    """After an unclean stop, when no recovery point says where the log ends; all records have one timestamp, so the
    time index says nothing about the last batch."""
    (data := tmp_path / "data").mkdir()
    with open_log(str(data / "orders-0"), "a", config=LogConfig(index_interval_bytes=0)) as log:
        for n in range(8):
            log.append_as_follower(bytes(old_batch(3, base_offset=3 * n, leader_epoch=0)))
    (data / ".kafka_cleanshutdown").unlink()
    (data / "recovery-point-offset-checkpoint").unlink()
    original = contents(data)
    flip(places(data)[-1], 6, 2)
    plans = plan_repair(str(data))
    apply_to_copy(str(data), plans, str(tmp_path / "repaired"))
    assert contents(tmp_path / "repaired") == original


def test_beside_a_wrong_length_a_base_offset_that_an_index_entry_names_is_not_in_doubt(with_gaps, tmp_path):
    data = Path(shutil.copytree(with_gaps, tmp_path / "data"))
    seen = 0
    for place, base_offset in named_by_index(data):
        first, end = range_between_neighbours(data, place)
        original = place.log.read_bytes()
        last_offset = base_offset + struct.unpack_from(">i", original, place.position + 23)[0]
        if first == base_offset or last_offset + 1 == end:
            continue
        seen += 1
        content = bytearray(original)
        content[place.position + 8] ^= 0x4C
        place.log.write_bytes(content)
        problems = [problem for problem in verify(str(data), compacted=True) if problem.damage]
        assert [problem.text.split(" at ")[0] for problem in problems] == ["batch length"], place
        place.log.write_bytes(original)
    assert seen
