"""A gap that a log rightly has, beside a damaged base offset: no batch is moved over it."""

import random
import struct
from pathlib import Path

import pytest

from kcore.inspect.neighbour_evidence import KnownGaps
from kcore.inspect.repair import apply_to_copy
from kcore.inspect.repair_plan import plan_repair
from kcore.inspect.verifier import verify
from kcore.log.log_config import LogConfig
from kcore.log.lost_records import write_mark
from kcore.log.open_log import open_log
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.reference import record_batch as model
from tests.unit.inspect.test_damaged_pages import logs_of


def append(log, rng: random.Random, records: int, epoch: int, skipped: int = 0) -> None:
    made = RecordBatchBuilder(base_offset=log.log_end_offset + skipped, leader_epoch=epoch)
    for _ in range(records):
        made.append(rng.randbytes(rng.randint(1, 60)), b"key", timestamp=1_700_000_000_000)
    log.append_as_follower(made.build())


def log_with_gap(directory: Path, seed: int, gap: int, *, roll: bool = False, after: int = 60) -> Path:
    """30 batches of epoch 3; a truncation inside the next one leaves a gap; then batches of epoch 4.  The last of them
    has a base offset with the bit `gap`.  Stopped uncleanly."""
    directory.mkdir()
    rng = random.Random(seed)
    with open_log(str(directory / "orders-0"), "a", config=LogConfig()) as log:
        for _ in range(30):
            append(log, rng, rng.randint(1, 30), 3)
        append(log, rng, 40, 3)
        log.truncate_to(log.log_end_offset - 40 + gap)
        if roll:
            log.roll(log.log_end_offset)
        for _ in range(after):
            append(log, rng, rng.randint(gap, 30), 4)
        while not log.log_end_offset & gap:
            append(log, rng, 1, 4)
        append(log, rng, 3, 4)
    (directory / ".kafka_cleanshutdown").unlink()
    return directory


def log_of_two_parts(directory: Path, gap: int, second_epoch: int) -> tuple[Path, list[model.Batch]]:
    """25 batches of epoch 3, a gap, 25 batches; no .index."""
    directory.mkdir()
    rng = random.Random(gap)
    with open_log(str(directory / "orders-0"), "a", config=LogConfig()) as log:
        for n in range(50):
            append(log, rng, rng.randint(10, 30), 3 if n < 25 else second_epoch, gap if n == 25 else 0)
    (log,) = logs_of(directory)
    for index in (directory / "orders-0").glob("*.index"):
        index.unlink()
    return log, model.decode_batches(log.read_bytes())


def overwrite(log: Path, position: int, content: bytes) -> None:
    with open(log, "r+b") as file:
        file.seek(position)
        file.write(content)


def batches_of(data: Path) -> list[tuple[int, bytes]]:
    """(base offset, bytes that a CRC covers) of each batch."""
    found = []
    for log in logs_of(data):
        content = log.read_bytes()
        found += [
            (b.base_offset, content[b.position + 17 : b.position + b.size]) for b in model.decode_batches(content)
        ]
    return found


def repaired(data: Path, output: Path, salvage: str) -> Path:
    apply_to_copy(str(data), plan_repair(str(data), salvage=salvage), str(output))
    return output


@pytest.mark.parametrize("salvage", ["keep-after", "truncate"])
@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("after, seed", [(60, 0), (60, 1), (1, 2)])
def test_a_bit_of_the_last_base_offset_moves_no_batch_over_a_gap_before_it(tmp_path, after, seed, with_index, salvage):
    gap = 1 << seed + 1
    data = log_with_gap(tmp_path / "data", seed, gap, after=after)
    right = {covered: offset for offset, covered in batches_of(data)}
    if not with_index:
        for index in (data / "orders-0").glob("*.index"):
            index.unlink()
    (log,) = logs_of(data)
    last = model.decode_batches(log.read_bytes())[-1]
    overwrite(log, last.position, struct.pack(">q", last.base_offset ^ gap))
    assert len([one for one in verify(str(data)) if one.damage]) <= 1 + with_index
    kept = batches_of(repaired(data, tmp_path / "repaired", salvage))
    moved = [(offset, right[covered]) for offset, covered in kept[:-1] if offset != right[covered]]
    # Which of the last two is wrong is not certain.
    assert not moved and len(kept) >= len(right) - 2


@pytest.mark.parametrize("salvage", ["keep-after", "truncate"])
@pytest.mark.parametrize("roll", [False, True])
@pytest.mark.parametrize("wiped", [5, 6, 7, 8])
@pytest.mark.parametrize("seed", range(4))
def test_a_page_that_ends_inside_the_batch_before_a_gap_moves_it_nowhere(tmp_path, seed, wiped, roll, salvage):
    data = log_with_gap(tmp_path / "data", seed, 7 + seed, roll=roll)
    right = {covered: offset for offset, covered in batches_of(data)}
    log = logs_of(data)[0]
    # The batch before the gap is the last one of epoch 3.
    before = [b for b in model.decode_batches(log.read_bytes()) if b.leader_epoch == 3][-1]
    overwrite(log, before.position - 512 + wiped, bytes(512))
    kept = batches_of(repaired(data, tmp_path / "repaired", salvage))
    found = {offset for offset, covered in kept if right[covered] == before.base_offset}
    assert found <= {before.base_offset, int.from_bytes(before.base_offset.to_bytes(8)[wiped:])}
    assert all(offset == right[covered] for offset, covered in kept if right[covered] != before.base_offset)


def say_where_the_gap_is(log: Path, evidence: str, first_lost_offset: int) -> None:
    if evidence == "mark":
        write_mark(str(log.parent), first_lost_offset)
    elif evidence == "batches":
        (log.parent / "leader-epoch-checkpoint").unlink()


def offsets_of(data: Path, output: Path, batch: model.Batch, content: bytes) -> set[int]:
    """Where the batch is after the repair."""
    covered = content[batch.position + 17 : batch.position + batch.size]
    return {offset for offset, kept in batches_of(repaired(data, output, "keep-after")) if kept == covered}


EVIDENCE = {"checkpoint": 4, "batches": 4, "mark": 3}  # -> the epoch of the second part


@pytest.mark.parametrize("evidence", EVIDENCE)
def test_a_batch_without_a_base_offset_is_not_moved_up_to_what_begins_after_a_gap(tmp_path, evidence):
    log, batches = log_of_two_parts(tmp_path / "data", 7, EVIDENCE[evidence])
    content, before = log.read_bytes(), batches[24]
    say_where_the_gap_is(log, evidence, before.base_offset + before.last_offset_delta + 1)
    overwrite(log, before.position - 512 + 8, bytes(512))
    assert offsets_of(tmp_path / "data", tmp_path / "repaired", before, content) <= {0}


@pytest.mark.parametrize("evidence", EVIDENCE)
def test_a_batch_without_a_base_offset_is_not_moved_down_to_what_ends_before_a_gap(tmp_path, evidence):
    log, batches = log_of_two_parts(tmp_path / "data", 7, EVIDENCE[evidence])
    content, after, wrong = log.read_bytes(), batches[25], 1 << 30
    say_where_the_gap_is(log, evidence, after.base_offset - 7)
    overwrite(log, after.position, struct.pack(">q", wrong))
    overwrite(log, after.position + after.size + 20, bytes(512))
    assert offsets_of(tmp_path / "data", tmp_path / "repaired", after, content) <= {wrong}


@pytest.mark.parametrize("wiped", [7, 8])
def test_the_bytes_that_are_left_of_a_base_offset_say_that_the_batch_after_it_does_not_follow(tmp_path, wiped):
    log, batches = log_of_two_parts(tmp_path / "data", 7, 3)
    content, before = log.read_bytes(), batches[24]
    overwrite(log, before.position - 512 + wiped, bytes(512))
    # Without them nothing says so.
    moved = {before.base_offset + 7} if wiped == 8 else set()
    left = int.from_bytes(before.base_offset.to_bytes(8)[wiped:])
    assert offsets_of(tmp_path / "data", tmp_path / "repaired", before, content) <= {left} | moved


def test_the_first_batch_of_an_epoch_that_follows_without_a_gap_gets_its_base_offset_back(tmp_path):
    log, batches = log_of_two_parts(tmp_path / "data", 0, 4)
    content, first = log.read_bytes(), batches[25]
    overwrite(log, first.position, struct.pack(">q", 1 << 30))
    overwrite(log, first.position + first.size + 20, bytes(512))
    assert offsets_of(tmp_path / "data", tmp_path / "repaired", first, content) == {first.base_offset}


def test_a_gap_may_be_right_before_an_epoch_or_where_records_were_lost():
    gaps = KnownGaps([100, 200], lost_from=150)
    assert [gaps.may_be_before(90, end) for end in (99, 100, 101)] == [False, True, True]
    assert [gaps.may_be_before(start, 190) for start in (99, 100, 149, 150, 151)] == [True, False, False, True, False]
    assert [gaps.may_be_after(160, start) for start in (199, 200, 201)] == [False, True, False]
    assert [gaps.may_be_after(start, 190) for start in (149, 150, 151)] == [True, True, False]
    assert [gaps.may_be_after(140, start) for start in (149, 150, 151)] == [False, True, True]


@pytest.mark.parametrize("salvage", ["keep-after", "truncate"])
@pytest.mark.parametrize("is_last_alone", [True, False])
def test_bytes_after_the_end_of_the_log_move_no_batch_over_a_gap_that_nothing_names(is_last_alone, salvage, tmp_path):
    """The recovery point is where the last batch ends: it is where it was."""
    data = tmp_path / "data"
    data.mkdir()
    rng = random.Random(1)
    with open_log(str(data / "orders-0"), "a", config=LogConfig()) as log:
        for n in range(10):
            append(log, rng, 3, 3, 5 if n == (9 if is_last_alone else 8) else 0)
    right = batches_of(data)
    (log,) = logs_of(data)
    log.write_bytes(log.read_bytes() + bytes(300))
    assert batches_of(repaired(data, tmp_path / "repaired", salvage)) == right
