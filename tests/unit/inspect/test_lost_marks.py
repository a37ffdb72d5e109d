"""A repair that removes records which a broker had acknowledged leaves the mark lost-records, not above the first of
them, and does not count a record twice."""

import os
import random
import shutil
import struct
from pathlib import Path
from typing import NamedTuple
from unittest.mock import ANY

import pytest

from kcore.inspect.repair import apply_to_copy
from kcore.inspect.repair_plan import Plan, plan_repair
from kcore.log.log_config import LogConfig
from kcore.log.lost_records import read_mark
from kcore.log.open_log import open_log
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.reference import record_batch as model

SALVAGES = ["truncate", "keep-after"]


class Stored(NamedTuple):
    """A batch of the log, where it is, and the bytes of it that its CRC covers."""

    log: Path
    batch: model.Batch
    covered: bytes


def make_log(
    directory: Path, counts: list[int], gaps: list[int] | None = None, *, clean: bool = True, **config
) -> list[Stored]:
    """A partition with batches of so many records each; gaps: how many offsets are left out before each."""
    directory.mkdir()
    with open_log(str(directory / "orders-0"), "a", config=LogConfig(**config)) as log:
        for n, count in enumerate(counts):
            made = RecordBatchBuilder(base_offset=log.log_end_offset + (gaps[n] if gaps else 0), leader_epoch=0)
            for _ in range(count):
                made.append(b"value %d" % n, b"key", timestamp=1_700_000_000_000 + n)
            log.append_as_follower(made.build())
    if not clean:
        (directory / ".kafka_cleanshutdown").unlink()
    return batches_of(directory)


def batches_of(data: Path) -> list[Stored]:
    stored = []
    for log in sorted((data / "orders-0").glob("*.log")):
        content = log.read_bytes()
        stored += [
            Stored(log, b, content[b.position + 16 : b.position + b.size]) for b in model.decode_batches(content)
        ]
    return stored


def write(stored: Stored, at: int, content: bytes) -> None:
    with open(stored.log, "r+b") as file:
        file.seek(stored.batch.position + at)
        file.write(content)


def spoil(stored: Stored) -> None:
    """Make the CRC wrong."""
    write(stored, stored.batch.size - 1, b"\x7f")


def move(stored: Stored, offset: int) -> None:
    write(stored, 0, struct.pack(">q", offset))


def repaired(data: Path, salvage: str, **options) -> tuple[list[Plan], set[bytes], int | None]:
    """The plans, what is left by the bytes that CRCs cover, and the first lost offset of the mark."""
    plans = plan_repair(str(data), salvage=salvage, **options)
    result = data.with_name("repaired")
    apply_to_copy(str(data), plans, str(result))
    left = {stored.covered for stored in batches_of(result)}
    mark = read_mark(str(result / "orders-0"))
    shutil.rmtree(result)
    return plans, left, mark


@pytest.mark.parametrize("salvage", SALVAGES)
@pytest.mark.parametrize("header_is_readable", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_a_bad_batch_leaves_the_mark_also_where_the_batch_after_it_was_moved_onto_its_offset(
    count, header_is_readable, salvage, tmp_path
):
    """After an unclean stop nothing says that the last batch was moved."""
    stored = make_log(tmp_path / "data", [count] * 6, clean=False)
    bad, moved = stored[-2:]
    if header_is_readable:
        spoil(bad)
    else:
        write(bad, 0, bytes(61))
    move(moved, bad.batch.base_offset)
    plans, left, mark = repaired(tmp_path / "data", salvage)
    assert bad.covered not in left
    assert mark is not None and mark <= bad.batch.base_offset
    (loss, *_) = (loss for plan in plans for loss in plan.losses)
    assert loss.unreadable_size and loss.unreadable_offsets is None


@pytest.mark.parametrize("salvage", SALVAGES)
def test_the_mark_is_not_above_the_offset_of_a_bad_batch_that_comes_after_a_higher_one(salvage, tmp_path):
    """Which of the two is wrong is not certain in a log with gaps."""
    stored = make_log(tmp_path / "data", [1] * 6, [0, 3, 0, 3, 0, 3], clean=False)
    move(stored[-2], 1000)
    spoil(stored[-1])
    _, left, mark = repaired(tmp_path / "data", salvage, compacted=True)
    assert stored[-1].covered not in left
    assert mark is not None and mark <= stored[-1].batch.base_offset


@pytest.mark.parametrize("salvage", SALVAGES)
def test_the_mark_is_not_above_a_gap_of_a_log_without_gaps_before_the_batches_that_go(salvage, tmp_path):
    stored = make_log(tmp_path / "data", [1] * 8, clean=False)
    move(stored[1], 3)
    write(stored[2], 0, random.Random(1).randbytes(61))
    _, left, mark = repaired(tmp_path / "data", salvage)
    assert stored[2].covered not in left
    assert mark is not None and mark <= stored[2].batch.base_offset


@pytest.mark.parametrize("salvage", SALVAGES)
def test_a_last_batch_that_was_moved_below_the_end_by_the_recovery_point_is_lost_once(salvage, tmp_path):
    stored = make_log(tmp_path / "data", [1] * 6, clean=False)
    move(stored[-1], 2)
    plans, left, mark = repaired(tmp_path / "data", salvage)
    losses = [loss for plan in plans for loss in plan.losses]
    assert sum(loss.records + (loss.unreadable_offsets or 0) for loss in losses) == 1
    assert stored[-1].covered not in left and mark is not None and mark <= stored[-1].batch.base_offset


@pytest.mark.parametrize("salvage", SALVAGES)
@pytest.mark.parametrize("how", ["whole", "last base offset is wrong", "unclean", "a gap before"])
def test_bytes_after_the_end_by_the_recovery_point_held_no_record_and_leave_no_mark(how, salvage, tmp_path):
    """Unless the end is not certain, or a batch may have been moved up to it."""
    gaps = [0, 0, 0, 0, 0, 3 if how == "a gap before" else 0]
    stored = make_log(tmp_path / "data", [2] * 6, gaps, clean=how != "unclean")
    if how == "last base offset is wrong":
        move(stored[-1], 1000)
    log = stored[-1].log
    log.write_bytes(log.read_bytes() + bytes(100))
    plans, left, mark = repaired(tmp_path / "data", salvage)
    assert left == {each.covered for each in stored}
    (loss,) = (loss for plan in plans for loss in plan.losses)
    is_certain = how in ("whole", "last base offset is wrong")
    assert (loss.unreadable_offsets, loss.last_offset, mark) == ((0, 11, None) if is_certain else (None, None, ANY))


@pytest.mark.parametrize("salvage", SALVAGES)
@pytest.mark.parametrize("seed", range(240 if "KCORE_LONG" in os.environ else 60))
def test_every_batch_that_goes_is_at_or_above_the_mark(seed, salvage, tmp_path):
    rng = random.Random(seed)
    counts = [rng.randint(1, rng.choice([1, 4])) for _ in range(rng.randint(4, 30))]
    gaps = [rng.choice([0, 0, 3]) for _ in counts] if rng.random() < 0.3 else None
    sizes = {"segment_bytes": rng.choice([600, 2500, 1 << 20]), "index_interval_bytes": rng.choice([100, 4096])}
    stored = make_log(tmp_path / "data", counts, gaps, clean=rng.random() < 0.5, **sizes)
    near = rng.randrange(len(stored))
    damage = []
    for _ in range(rng.choice([1, 1, 2])):
        n = min(max(near + rng.randint(-1, 1), 0), len(stored) - 1)
        offset = stored[n].batch.base_offset
        damage.append((n, what := rng.choice(["bad CRC", "bad CRC", "bit", "moved onto the one before", "header"])))
        match what:
            case "bad CRC":
                spoil(stored[n])
            case "bit":
                move(stored[n], offset ^ 1 << rng.choice([0, 1, 2, 3, 10, 40]))
            case "header":
                write(stored[n], 0, rng.randbytes(61))
            case _:
                move(stored[n], stored[max(n - 1, 0)].batch.base_offset)
    _, left, mark = repaired(tmp_path / "data", salvage, compacted=gaps is not None)
    gone = [each.batch.base_offset for each in stored if each.covered not in left]
    assert not gone or (mark is not None and mark <= gone[0]), (damage, gone, mark)
